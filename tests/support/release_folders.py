"""Makes the folders that this release leaves on disk, as small as they can be, and notes what they answer.

Run once for each release, from the repository: `python tests/support/release_folders.py`, and commit the new folder
VERSION/folders. Its archive.tar.xz holds a folder for each kind of `KINDS`: data, run folders and both exports.
KIND.npz holds fixed inputs (names begin with `given.`) and the answers to them. README.md says what each of them is.

A test unpacks one kind, goes there, as the paths inside are relative, and calls the same functions:

    unpack("0.1.0/folders/archive.tar.xz", "lm", tmp_path)
    given, wanted = read_numbers("0.1.0/folders/lm.npz")
    with contextlib.chdir(tmp_path):
        got = KINDS["lm"].answers(given) | KINDS["lm"].resumed(given)  # its names are those of `wanted`
"""

import contextlib
import json
import lzma
import signal
import tarfile
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import keras_attention
from keras_attention import cli
from keras_attention.export import export_onnx, export_saved_model
from keras_attention.generation import Translator, continue_greedily
from keras_attention.images import Classifier, ImageInput
from keras_attention.layers import EncoderBlock, MultiHeadAttention, PositionalEncoding, TokenEmbedding
from keras_attention.mechanisms import LocalAttention
from keras_attention.text import ByteTokenizer, SentencePieceTokenizer
from keras_attention.training.clip import train as train_clip
from keras_attention.training.clip.options import ClipOptions
from keras_attention.training.run.run_folder import RunFolder
from keras_attention.training.run.training_state import CheckpointFolder
from keras_attention.training.vision import train as train_classifier
from keras_attention.training.vision.options import VisionOptions

FOLDER = Path(__file__).absolute().parents[1] / "releases"
EPOCHS, STOPPED_AFTER = 12, 32  # of 36 steps: in the middle of an epoch, with a best model behind it
NEW_TOKENS = 12
SOME = slice(None, None, 8)  # of the logits of 260 ids, which would fill most of the file
STATE = 24  # positions of the language model's exported decoding state


# ---- steps that all kinds share ----------------------------------------------------------------------------------


def command(*words):
    """Runs `keras-attention WORDS` in this process; an error ends it."""
    try:
        cli.main(list(words))
    except SystemExit as end:
        if end.code:
            raise


class StopAfter(keras.callbacks.Callback):
    """Sends this process SIGTERM after some steps, as `kill` would."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)


def train_twice(train, options_class, options):
    """The same run twice: finished without a break, and stopped on its way."""
    train(options_class(out="finished", **options))
    with contextlib.suppress(KeyboardInterrupt):
        train(options_class(out="stopped", **options), callbacks=[StopAfter(STOPPED_AFTER)])
    keep_newest("finished", count=0)
    keep_newest("stopped")


def keep_newest(run, count=1):
    """Removes what neither loading nor resuming a run needs: locks, pictures, all but the newest checkpoints.

    Args:
        run: the run folder.
        count: how many checkpoints stay, beside the best model; 0: none, and no best model.
    """
    run = Path(run)
    numbered = sorted(run.glob("checkpoints/st*-*.npz"), key=lambda path: path.stem.split("-")[1])
    for path in [*numbered[: len(numbered) - count], run / ".lock", *run.glob("*.png")]:
        path.unlink(missing_ok=True)
    if count == 0:
        (run / "checkpoints" / "best.npz").unlink(missing_ok=True)
        (run / "checkpoints").rmdir()


def export_run(run, *options):
    """Exports a run folder twice by the command."""
    command("export", "saved-model", run, "saved_model", *options)
    command("export", "onnx", run, "onnx", *options)


def checkpoint_numbers(run):
    """Sums of a run's newest checkpoint.

    Returns:
        dict of `checkpoint.steps`, and for the variables of model and optimizer, in float64, the sum of all numbers and
        of their squares, and apart from them the sum of all whole numbers: seeds of dropout and counts of steps.
    """
    groups, info = CheckpointFolder(Path(run) / "checkpoints").load_newest()
    numbers = {"steps": info["steps"]}
    for group in ("model", "optimizer"):
        whole = [array.sum(dtype=np.int64) for array in groups[group] if array.dtype.kind in "iu"]
        flat = np.concatenate([np.ravel(array) for array in groups[group] if array.dtype.kind == "f"], dtype=np.float64)
        numbers |= {f"{group}_sum": flat.sum(), f"{group}_squares": (flat**2).sum(), f"{group}_whole": sum(whole)}
    return under("checkpoint", numbers)


def under(place, numbers):
    """The numbers with `place.` before their names."""
    return {f"{place}.{name}": np.asarray(value) for name, value in numbers.items()}


class SavedModel:
    """The signatures of the SavedModel in saved_model/1, arrays by name in and out."""

    def __init__(self):
        import tensorflow_text  # noqa: F401  registers the tokenizer's operations

        self.model = tf.saved_model.load("saved_model/1")

    def __call__(self, signature, **given):
        out = self.model.signatures[signature](**{name: tf.constant(x) for name, x in given.items()})
        return {name: _plain(x.numpy()) for name, x in out.items()}


def onnx_graph(name, given):
    """The outputs by name of the graph onnx/NAME.onnx; of `given` it takes what it has inputs for."""
    import onnxruntime

    session = onnxruntime.InferenceSession(f"onnx/{name}.onnx", providers=["CPUExecutionProvider"])
    feeds = {port.name: given[port.name] for port in session.get_inputs()}
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def _plain(x):
    """Text as NumPy's own, which needs no pickle."""
    return np.array([text.decode() for text in x]) if x.dtype == object else x


def _mask(ids):
    return (ids != 0).astype(np.int64)


# ---- kinds -------------------------------------------------------------------------------------------------------


class Kind:
    """One kind of folder. All methods work in the current folder, which is that of the kind.

    Attributes:
        command: the sub-command of `keras-attention train`.
        finished: the run folder with the finished model.
        resumable: the run folder that can go on, or None.
        resume_options: what `--resume` is given beside the folder.
    """

    command, finished, resumable, resume_options = None, "run", None, ()

    def make(self):
        """Writes the data, the run folders and the exports."""
        raise NotImplementedError

    def given(self):
        """dict of the fixed inputs."""
        raise NotImplementedError

    def run_answers(self, given, run):
        """dict of what the Keras model of a run folder answers."""
        raise NotImplementedError

    def export_answers(self, given):
        """dict of what the exports answer: names begin with `saved_model.` and `onnx.`."""
        raise NotImplementedError

    def answers(self, given):
        """dict of all answers, and the sums of the newest checkpoint."""
        found = under("run", self.run_answers(given, self.finished)) | self.export_answers(given)
        return found | (checkpoint_numbers(self.resumable) if self.resumable else {})

    def resumed(self, given):
        """Resumes the run to its end. dict of what it then is: names begin with `resumed.`."""
        if self.resumable is None:
            return {}
        command("train", self.command, "--resume", "--out", self.resumable, *self.resume_options)
        answers = self.run_answers(given, self.resumable)
        return under("resumed", {**answers, **checkpoint_numbers(self.resumable)})


class Translation(Kind):
    """A translator of 60 phrases, trained for 398 steps, which end in the middle of an epoch; resumed to 403."""

    command, resumable, resume_options = "translation", "run", ("--steps", "403")

    def make(self):
        numbers = {"two": "zwei", "six": "sechs", "ten": "zehn"}
        colours = {"red": "rote", "grey": "graue", "blue": "blaue", "old": "alte"}
        animals = {"cats": "Katzen", "dogs": "Hunde", "cows": "Kühe", "hens": "Hühner", "bees": "Bienen"}
        pairs = [
            (f"{number} {colour} {animal}", f"{numbers[number]} {colours[colour]} {animals[animal]}")
            for number in numbers
            for colour in colours
            for animal in animals
        ]
        Path("pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
        options = "--vocab-size 60 --max-length 16 --d-model 8 --heads 2 --layers 1 --mlp-dim 12"
        options += " --tokens-per-batch 96 --learning-rate 0.03 --warmup 20 --validation-share 0.1 --test-share 0.1"
        options += " --bleu-every 10 --steps 398"
        command(*f"train translation --data pairs.tsv --out run --no-tensorboard {options}".split())
        keep_newest("run")
        export_run("run")

    def given(self):
        return {
            "texts": np.array(["two red cats", "ten old cows", "", "Six BLUE bees!", "hens"]),
            "source_ids": np.array([[2, 7, 11, 5, 3], [2, 20, 3, 0, 0]], np.int32),
            "source_lengths": np.array([5, 3], np.int32),
            "target_ids": np.array([[2, 9, 14, 6], [2, 31, 0, 0]], np.int32),
            "target_lengths": np.array([4, 2], np.int32),
            "token": np.array([8, 12], np.int32),
        }

    def run_answers(self, given, run):
        translator = Translator.load(run)
        logits = translator.model({"source": given["source_ids"], "target": given["target_ids"]}, training=False)
        return {"texts": translator(given["texts"].tolist()), "logits": logits}

    def export_answers(self, given):
        return under("saved_model", self._saved_model(given)) | under("onnx", self._onnx(given))

    def _saved_model(self, given):
        serve, texts = SavedModel(), given["texts"].tolist()
        source = {"input_ids": given["source_ids"], "input_lengths": given["source_lengths"]}
        target = {"target_ids": given["target_ids"], "target_lengths": given["target_lengths"]}
        first = serve("prefill", **source, **target)
        state = {name: x for name, x in first.items() if name != "logits"}
        generated = serve("generate", **source, max_new_tokens=np.full(2, NEW_TOKENS, np.int32))
        return {
            "texts": Translator.load("saved_model")(texts),
            "translate": serve("translate", text=given["texts"])["text"],
            "output_ids": generated["output_ids"],
            "scores": generated["scores"],
            "memory": serve("encode", **source)["memory"],
            "prefill": first["logits"],
            "decode_step": serve("decode_step", token=given["token"], **state)["logits"],
        }

    def _onnx(self, given):
        source, target = given["source_ids"].astype(np.int64), given["target_ids"].astype(np.int64)
        memory = onnx_graph("encoder_model", {"input_ids": source, "attention_mask": _mask(source)})
        memory = memory["last_hidden_state"]
        read = {"encoder_attention_mask": _mask(source), "encoder_hidden_states": memory}
        first = onnx_graph("decoder_model", {**read, "input_ids": target})
        past = {name.replace("present", "past_key_values"): x for name, x in first.items()}
        again = {**read, **past, "input_ids": given["token"].astype(np.int64)[:, None]}
        return {
            "texts": Translator.load("onnx")(given["texts"].tolist()),
            "memory": memory,
            "decoder": first["logits"],
            "decoder_with_past": onnx_graph("decoder_with_past_model", again)["logits"],
        }


class Vit(Kind):
    """A classifier of grey images of three kinds: one run finished, one stopped half way."""

    command, finished, resumable = "vit", "finished", "stopped"

    def make(self):
        labels = np.repeat(["bar", "dot", "post"], 20)
        images = self._images(np.random.default_rng(1), labels)
        np.savez_compressed("images.npz", images=images, labels=labels)
        options = {"data": "images.npz", "epochs": EPOCHS, "batch_size": 12, "augment": "shift", "tensorboard": False}
        options |= {"d_model": 8, "heads": 2, "layers": 1, "mlp_dim": 12, "patch_size": 4, "pooling": "token"}
        options |= {"learning_rate": 0.05, "warmup": 2, "ema": 0.5, "validate_every": 1, "validation_share": 0.2}
        train_twice(train_classifier, VisionOptions, options)
        export_run("finished")

    def _images(self, rng, labels):
        images = rng.integers(0, 80, (len(labels), 8, 8), dtype=np.uint8)
        for image, label, place in zip(images, labels, rng.integers(1, 6, len(labels))):
            rows, columns = slice(place, place + 2), slice(1, 7)
            image[{"bar": (rows, columns), "post": (columns, rows), "dot": (rows, rows)}[label]] += 150
        return images

    def given(self):
        return {"pixels": self._images(np.random.default_rng(2), ["post", "dot", "bar", "bar"])[..., None]}

    def run_answers(self, given, run):
        return self._classified(given, run)

    def _classified(self, given, place):
        answers = Classifier.load(place)(list(given["pixels"]))
        labels, probabilities = zip(*((answer.label, answer.probabilities) for answer in answers))
        return {"labels": labels, "probabilities": probabilities}

    def export_answers(self, given):
        serve = SavedModel()
        task = Classifier.load("onnx").task
        values = np.repeat(task.normalised(given["pixels"]).transpose(0, 3, 1, 2), 3, axis=1)
        encoded = np.array([tf.io.encode_png(image).numpy() for image in given["pixels"]], object)
        saved_model = {
            **self._classified(given, "saved_model"),
            "classify": serve("classify", images=given["pixels"])["probabilities"],
            "classify_bytes": serve("classify_bytes", image_bytes=encoded)["probabilities"],
        }
        logits = onnx_graph("model", {"pixel_values": values})["logits"]
        onnx = {**self._classified(given, "onnx"), "logits": logits}
        return under("saved_model", saved_model) | under("onnx", onnx)


class Clip(Kind):
    """CLIP on 24 captioned images: one run finished, one stopped half way."""

    command, finished, resumable = "clip", "finished", "stopped"

    def make(self):
        rng = np.random.default_rng(3)
        colours = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 230), "pale": (200, 210, 190)}
        shapes = {"square": (4, 4), "bar": (2, 6), "dot": (2, 2)}
        images, captions = rng.integers(0, 40, (24, 8, 8, 3), dtype=np.uint8), []
        for colour, values in colours.items():
            for shape, (height, width) in shapes.items():
                for side, column in (("left", 0), ("right", 8 - width)):
                    images[len(captions), 2 : 2 + height, column : column + width] = values
                    caption = f"a {colour} {shape} on the {side}"
                    captions.append({"caption": caption, "tags": [colour, side], "group": shape})
        np.savez_compressed("images.npz", images=images)
        Path("captions.json").write_text(json.dumps(captions, indent=0) + "\n", encoding="utf-8")
        options = {"epochs": EPOCHS, "batch_size": 4, "gallery": 6, "validation_pairs": 6, "tensorboard": False}
        options |= {"d_model": 4, "heads": 2, "layers": 1, "text_layers": 1, "projection_dim": 6, "patch_size": 4}
        options |= {"vocab_size": 50, "max_length": 12, "learning_rate": 0.02, "warmup": 2, "ema": 0.5}
        options |= {"data": "images.npz", "captions": "captions.json"}
        train_twice(train_clip, ClipOptions, options)
        export_run("finished")

    def given(self):
        return {
            "pixels": np.random.default_rng(4).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8),
            "texts": np.array(["a red dot on the left", "BLUE left", ""]),
            "ids": np.array([[2, 9, 14, 6, 3], [2, 21, 3, 0, 0]], np.int32),
            "lengths": np.array([5, 3], np.int32),
        }

    def run_answers(self, given, run):
        folder = RunFolder(run)
        model, tokenizer = folder.load_model(), SentencePieceTokenizer.load(folder.tokenizer_path)
        images, ids = model.encode_image(_normalised(given["pixels"], run)), model.encode_text(given["ids"])
        texts = model.encode_text(tokenizer.tokenize(given["texts"].tolist(), truncate=model.text_tower.max_length))
        return {"images": images, "ids": ids, "texts": texts, "similarities": model.similarities(images, texts)}

    def export_answers(self, given):
        serve = SavedModel()
        images = serve("encode_image", images=given["pixels"])["image_embeds"]
        texts = serve("encode_text", text=given["texts"])["text_embeds"]
        saved_model = {
            "images": images,
            "ids": serve("encode_ids", input_ids=given["ids"], input_lengths=given["lengths"])["text_embeds"],
            "texts": texts,
            "similarities": serve("similarities", image_embeds=images, text_embeds=texts)["logits_per_image"],
        }
        feeds = {
            "pixel_values": _normalised(given["pixels"], "finished").transpose(0, 3, 1, 2),
            "input_ids": given["ids"].astype(np.int64),
            "attention_mask": _mask(given["ids"]),
        }
        onnx = {
            "images": onnx_graph("vision_model", feeds)["image_embeds"],
            "ids": onnx_graph("text_model", feeds)["text_embeds"],
            "similarities": onnx_graph("model", feeds)["logits_per_image"],
        }
        return under("saved_model", saved_model) | under("onnx", onnx)


def _normalised(pixels, run):
    folder = RunFolder(run)
    return ImageInput.from_dict(folder.read_config()["image_input"], folder.config_path).normalised(pixels)


class LanguageModel(Kind):
    """A language model on 741 bytes, trained for 198 steps, which end in the middle of an epoch; resumed to 203."""

    command, resumable, resume_options = "lm", "run", ("--steps", "203")

    def make(self):
        lines = [f"{count} small boats went out to sea, and {count - 1} came back.\n" for count in range(20, 5, -1)]
        Path("boats.txt").write_text("".join(lines), encoding="utf-8")
        options = "--length 24 --batch-size 8 --d-model 4 --heads 2 --kv-heads 1 --layers 1 --mlp-dim 12 --gated-mlp"
        options += " --positions rotary --learning-rate 0.05 --warmup 20 --validation-share 0.1 --steps 198"
        command(*f"train lm --data boats.txt --out run --no-tensorboard {options}".split())
        keep_newest("run")
        export_run("run", "--max-length", str(STATE))

    def given(self):
        return {
            "prompt": np.frombuffer(b"12 small", np.uint8),
            "ids": np.array([[2, 53, 54, 36, 119], [2, 101, 0, 0, 0]], np.int32),
            "lengths": np.array([5, 2], np.int32),
            "token": np.array([113, 36], np.int32),
        }

    def run_answers(self, given, run):
        model, tokenizer = RunFolder(run).load_model(), ByteTokenizer()
        prompt = tokenizer.encode_batch([given["prompt"].tobytes()])
        special = range(tokenizer.offset)
        result = continue_greedily(model, prompt, max_new_tokens=NEW_TOKENS, forbidden=special)
        generated = np.frombuffer(tokenizer.decode(result.tokens[0]), np.uint8)
        return {"generated": generated, "logits": model(given["ids"], training=False)[..., SOME]}

    def export_answers(self, given):
        serve, ids = SavedModel(), {"input_ids": given["ids"]}
        prompt = {**ids, "input_lengths": given["lengths"]}
        first = serve("prefill", **prompt)
        state = {name: x for name, x in first.items() if name != "logits"}
        saved_model = {
            "logits": next(iter(serve("serving_default", **ids).values()))[..., SOME],
            "prefill": first["logits"][..., SOME],
            "decode_step": serve("decode_step", token=given["token"], **state)["logits"][..., SOME],
        }
        first = onnx_graph("prefill", prompt)
        past = {name.replace("present.", "past."): x for name, x in first.items()}
        onnx = {
            "logits": next(iter(onnx_graph("model", ids).values()))[..., SOME],
            "prefill": first["logits"][..., SOME],
            "decode_step": onnx_graph("decode_step", {**past, "token": given["token"]})["logits"][..., SOME],
        }
        return under("saved_model", saved_model) | under("onnx", onnx)


class Own(Kind):
    """A user's own functional model of this package's layers, never trained."""

    finished = "own.keras"

    def make(self):
        keras.utils.set_random_seed(1)
        ids = keras.Input((None,), dtype="int32", name="ids")
        x = PositionalEncoding(12, 8, name="places")(TokenEmbedding(20, 8, name="tokens")(ids))
        x = EncoderBlock(8, 2, 12, mechanism=LocalAttention(radius=2), positions="rotary", name="block")(x)
        x = MultiHeadAttention(8, 2, num_kv_heads=1, mechanism="linear", name="attention")(x)
        x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
        model = keras.Model(ids, keras.layers.Dense(3, activation="softmax", name="kinds")(x), name="own")
        model.save("own.keras")
        export_saved_model(model, "saved_model")
        export_onnx(model, "onnx")

    def given(self):
        return {"ids": np.array([[3, 4, 5, 6, 19, 11, 12], [7, 8, 9, 10, 0, 0, 0]], np.int32)}

    def run_answers(self, given, run):
        return {"kinds": keras.saving.load_model(run)(given["ids"], training=False)}

    def export_answers(self, given):
        saved_model, onnx = SavedModel()("serving_default", ids=given["ids"]), onnx_graph("model", given)
        return under("saved_model", saved_model) | under("onnx", onnx)


KINDS = {"translation": Translation(), "vit": Vit(), "clip": Clip(), "lm": LanguageModel(), "own": Own()}


# ---- archives ----------------------------------------------------------------------------------------------------


def pack(folder, path):
    """Writes all that is in a folder as one .tar.xz, without owners and times.

    It is one archive for all kinds because equal parts, such as the tables of two tokenizers, then take no room twice.
    """

    def nobody(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    # Two bits of position in place of one of context: most of it is numbers of four bytes.
    strongest = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 2, "lp": 2}
    with lzma.open(path, "wb", filters=[strongest]) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for entry in sorted(Path(folder).iterdir()):
            archive.add(entry, entry.name, filter=nobody)


def unpack(path, kind, folder):
    """Writes what an archive holds of one kind into a folder, which is then the one to go to."""

    def of_kind(entry, folder):
        kept = entry.name.startswith(f"{kind}/")
        return tarfile.data_filter(entry.replace(name=entry.name.removeprefix(f"{kind}/")), folder) if kept else None

    with tarfile.open(path) as archive:
        archive.extractall(folder, filter=of_kind)


def read_numbers(path):
    """`(given, wanted)` of a file of numbers: inputs by name, and what was answered by name."""
    with np.load(path) as file:
        numbers = dict(file)
    given = {name.removeprefix("given."): x for name, x in numbers.items() if name.startswith("given.")}
    return given, {name: x for name, x in numbers.items() if not name.startswith("given.")}


def main():
    """Makes the folders of all kinds, packs them, and then notes what they answer and how they go on."""
    out = FOLDER / keras_attention.__version__ / "folders"
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as base:
        for name, kind in KINDS.items():
            (Path(base) / name).mkdir()
            with contextlib.chdir(Path(base) / name):
                kind.make()
        pack(base, out / "archive.tar.xz")
        for name, kind in KINDS.items():
            given = kind.given()
            with contextlib.chdir(Path(base) / name):
                wanted = kind.answers(given) | kind.resumed(given)
            np.savez_compressed(out / f"{name}.npz", **under("given", given), **wanted)
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    print(f"Wrote {out}: {sizes}, {sum(sizes.values())} bytes in all")


if __name__ == "__main__":
    main()

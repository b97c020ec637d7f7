"""`train clip`: captioned images, their splits and texts, retrieval scores, and whole runs."""

import contextlib
import dataclasses
import io
import json
import re

import keras
import numpy as np
import pytest

from keras_attention.commands.export import load
from keras_attention.errors import UsageError
from keras_attention.text import BOS_ID, EOS_ID, SentencePieceTokenizer
from keras_attention.training.clip import program
from keras_attention.training.clip.caption_data import SPLITS, PairBatches, Texts, split_captioned
from keras_attention.training.clip.caption_sources import Captioned, read_captioned
from keras_attention.training.clip.options import ClipOptions
from keras_attention.training.clip.task import train
from keras_attention.training.run.run_folder import RunFolder
from keras_attention.training.vision.retrieval import recalls, zero_shot_accuracy

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220), "white": (240, 240, 240)}
PLACES = ("top", "bottom", "left", "right")


def coloured(rng, count):
    """Squares of 8 x 8: one colour, and another one in a half of it; the captions say which."""
    images, rows = [], []
    names = list(COLOURS)
    for i in range(count):
        ground, figure = rng.permutation(names)[:2]
        place = PLACES[rng.integers(4)]
        image = np.empty((8, 8, 3))
        image[:] = COLOURS[ground]
        half = {"top": image[:4], "bottom": image[4:], "left": image[:, :4], "right": image[:, 4:]}[place]
        half[:] = COLOURS[figure]
        images.append(np.clip(image + rng.normal(0, 6, image.shape), 0, 255).astype(np.uint8))
        rows.append(
            {"annotation": f"number {i}", "tags": f"{figure} {place}, on {ground}", "group": f"{ground}-ground"}
        )
    return np.stack(images), rows


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    images, rows = coloured(np.random.default_rng(3), 96)
    np.savez(folder / "images.npz", images=images)
    (folder / "captions.json").write_text(json.dumps(rows))
    return folder


def options(files, out, **changes):
    tiny = {"d_model": 16, "heads": 2, "layers": 1, "text_layers": 1, "projection_dim": 8, "patch_size": 4}
    short = {"batch_size": 16, "gallery": 12, "validation_pairs": 12, "epochs": 3, "warmup": 2, "vocab_size": 80}
    given = {**tiny, **short, "max_length": 12, "augment": "none", "checkpoint_every": 2, "ema": 0.5}
    given |= {"tensorboard": False, "learning_rate": 5e-3, **changes}
    return ClipOptions(out=str(out), data=str(files / "images.npz"), captions=str(files / "captions.json"), **given)


# ---- data --------------------------------------------------------------------------------------------------------


def captioned(captions, tags=None):
    count = len(captions)
    images = np.random.default_rng(1).integers(0, 256, (count, 4, 5, 1)).astype(np.uint8)
    return Captioned(images, captions, tags or [()] * count, [""] * count, "some pairs")


def test_no_caption_is_in_two_splits():
    captions = [f"word {i % 30}" if i % 2 else f"WORD  {i % 30}" for i in range(45)]  # most of them twice
    data = split_captioned(captioned(captions), validation=5, gallery=10)
    sets = {name: {" ".join(c.lower().split()) for c in data.splits[name].captions} for name in SPLITS}
    assert (
        [len(data.splits[name]) for name in ("validation", "gallery")]
        == [5, 10]
        == [len(sets[name]) for name in ("validation", "gallery")]
    )
    assert not sets["train"] & sets["gallery"] and not sets["train"] & sets["validation"]
    assert not sets["validation"] & sets["gallery"]
    assert len(data.splits["train"]) > len(sets["train"]) == 30 - 15  # pairs of one caption stay together
    again = split_captioned(captioned(captions[::-1]), validation=5, gallery=10)
    assert {" ".join(c.lower().split()) for c in again.splits["gallery"].captions} == sets["gallery"]
    assert data.fingerprint() != again.fingerprint()
    with pytest.raises(UsageError, match=r"30 different captions of 45 different images, too few for a gallery of 20"):
        split_captioned(captioned(captions), validation=10, gallery=20)


def test_no_image_is_in_two_splits_or_twice_in_one_that_is_scored():
    """Five captions a file, as in Flickr30k: one goes to the gallery, and the file's others must not be learnt."""
    source = captioned([f"caption {i} \ud83d" for i in range(100)])  # half an emoji, which JSON can hold
    images = np.repeat(source.images[:20], 5, axis=0)
    data = split_captioned(dataclasses.replace(source, images=images), validation=3, gallery=6)
    seen = {name: [image.tobytes() for image in data.splits[name].images] for name in SPLITS}
    assert [len(seen["gallery"]), len(set(seen["gallery"])), len(set(seen["validation"]))] == [6, 6, 3]
    assert len(set(seen["gallery"] + seen["validation"])) == 9
    assert len(seen["train"]) == 5 * 11 and not set(seen["train"]) & set(seen["gallery"] + seen["validation"])
    with pytest.raises(UsageError, match="100 different captions of 20 different images, too few for a gallery of 18"):
        split_captioned(dataclasses.replace(source, images=images), validation=3, gallery=18)


@pytest.fixture(scope="module")
def tokenizer():
    lines = ["a cat sits", "furry", "green eyes", "the dog, who barks", "loud animal", "fish", "0123456789"] * 10
    return SentencePieceTokenizer.train(lines, 60, normalization="nmt_nfkc_cf")


def test_texts_are_what_the_tokenizer_makes_of_caption_and_tags(tokenizer, rng):
    part = captioned(["A cat sits", "the Dog, who barks", "fish"], [("furry", "green eyes"), ("loud animal",), ()])
    texts = Texts(part, tokenizer, 40)
    whole = tokenizer.tokenize(["A cat sits furry green eyes", "the Dog, who barks loud animal", "fish"]).numpy()
    np.testing.assert_array_equal(texts.whole()[:, : whole.shape[1]], whole)
    assert part.whole_texts()[0] == "A cat sits furry green eyes" and not texts.whole()[:, whole.shape[1] :].any()
    drawn = {tuple(tokenizer.decode(texts.drawn(rng))) for _ in range(60)}
    assert {texts[0] for texts in drawn} == {
        "a cat sits",
        "a cat sits furry",
        "a cat sits green eyes",
        "a cat sits furry green eyes",
        "a cat sits green eyes furry",
    }
    assert {texts[1:] for texts in drawn} == {
        ("the dog, who barks", "fish"),
        ("the dog, who barks loud animal", "fish"),
    }
    cut = Texts(part, tokenizer, 5).whole()
    np.testing.assert_array_equal(cut[0], [*whole[0, :4], EOS_ID])
    assert (cut[:, 0] == BOS_ID).all() and (cut == EOS_ID).sum() == 3


def test_batches_are_functions_of_seed_epoch_and_step(tokenizer):
    part = captioned([f"cat {i}" for i in range(11)], [("furry", "loud animal")] * 11)
    data = split_captioned(part, validation=0, gallery=2)

    def batches(**where):
        made = PairBatches(
            data.splits["train"],
            Texts(data.splits["train"], tokenizer, 16),
            data.images,
            batch_size=4,
            seed=5,
            augmentation=lambda pixels, labels, number: (pixels, labels),
        )
        assert len(made) == 2
        return [{name: x.numpy() for name, x in batch[0].items()} for batch in made.dataset(**where)]

    whole, later = batches(), batches(first_epoch=1)
    assert [batch["text"].shape for batch in whole] == [(4, 16)] * 2 and whole[0]["images"].shape == (4, 4, 5, 1)
    for got, want in zip(batches(first_step=1), whole[1:], strict=True):
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])
    assert any((a["text"] != b["text"]).any() for a, b in zip(whole, later))
    # Each image stands beside its own caption.
    train = data.splits["train"]
    mean, std = data.images.mean[0], data.images.std[0]
    pixels = [np.rint((image * std + mean) * 255) for batch in whole for image in batch["images"]]
    for image, text in zip(pixels, tokenizer.decode([row for batch in whole for row in batch["text"]])):
        (index,) = [i for i, x in enumerate(train.images) if (x == image).all()]
        assert text.startswith(train.captions[index])


def test_a_folder_with_a_table(tmp_path, rng):
    pytest.importorskip("PIL", reason="needs the extra [vision]")
    from PIL import Image

    for name in ("one", "two"):
        Image.fromarray(rng.integers(0, 256, (9, 7, 3)).astype(np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    table = tmp_path / "captions.tsv"
    table.write_text("one.png\ta  first one\tsome\nbad.png\tbroken\n\ntwo.png\tthe second\nnone.png\tmissing\n")
    read = read_captioned(tmp_path, table, 6)
    assert read.captions == ["a first one", "the second"] and read.groups == ["some", ""]
    assert read.images.shape == (2, 6, 6, 3) and read.images.dtype == np.uint8
    assert len(read.notes) == 2 and "bad.png is no image" in read.notes[0] and "none.png does not" in read.notes[1]
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([{"file": "two.png", "caption": "x", "tags": ["y", " "], "more_tags": "z, y"}]))
    again = read_captioned(tmp_path, rows)
    assert again.images.shape == (1, 64, 64, 3) and again.tags == [("y", "z")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "captions.json is damaged: it is not a JSON list"),
        ("[]", "must hold a list of objects"),
        ('[{"tags": "a"}]', "Object 1 in .* must have a text under 'caption' or 'annotation'"),
        ('[{"caption": "a", "tags": [1]}]', "Object 1 in .* its tags"),
        ('[{"caption": "a"}]', "must hold a caption for each of the 96 images. Got 1"),
        (b"\xff\xfe", "captions.json is damaged: it is not a JSON list"),
    ],
)
def test_bad_captions_are_one_line(files, tmp_path, content, message):
    path = tmp_path / "captions.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=message):
        read_captioned(files / "images.npz", path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end_of_a_table_and_no_other_cut(tmp_path, rng, end):
    """Case 61: a caption may hold what `str.splitlines` takes for the end of a line."""
    pytest.importorskip("PIL", reason="needs the extra [vision]")
    from PIL import Image

    for name, image in zip("ab", coloured(rng, 2)[0]):
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    (tmp_path / "table.tsv").write_bytes(end.join(["a.png\tred\x1csquare", "b.png\tgreen", ""]).encode())
    assert read_captioned(tmp_path, tmp_path / "table.tsv").captions == ["red square", "green"]


def test_bad_files_and_options_are_one_line_and_leave_nothing(files, tmp_path, capsys):
    good = ["--data", str(files / "images.npz"), "--captions", str(files / "captions.json")]
    table = tmp_path / "captions.tsv"
    table.write_text("one.png a caption\n")
    np.savez(tmp_path / "other.npz", pictures=np.zeros(3))
    for flags, message in [
        ([], "--data is missing"),
        (good[:2], "--captions is missing"),
        (["--data", "nowhere.npz", *good[2:]], "nowhere.npz does not exist"),
        ([*good[:2], "--captions", "nowhere.json"], "nowhere.json does not exist"),
        ([*good[:2], "--captions", str(table)], r"Line 1 of .* must be FILE<TAB>CAPTION"),
        (["--data", str(tmp_path / "other.npz"), *good[2:]], "must hold an array named images"),
        ([*good, "--validation-pairs", "1"], "--validation-pairs must be 0 or at least 2: .*Got 1"),
        ([*good, "--seed", "2147483648"], "--seed must be at least 0 and below 2147483648. Got 2147483648"),
        ([*good, "--augment", "mixup"], "--augment mixup mixes classes"),
        ([*good, "--heads", "3"], "--d-model must be divisible by --heads. Got 128 and 3"),
        ([*good, "--gallery", "90"], "different images, too few for a gallery of 90, a validation of 150"),
        ([*good, "--gallery", "9", "--validation-pairs", "9", "--mechanism", "axiom"], "axiom"),
    ]:
        with pytest.raises(SystemExit) as end:
            program.main(["--out", str(tmp_path / "run"), *flags])
        assert end.value.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: ")
        assert re.search(message, lines[0]), lines[0]
    assert not (tmp_path / "run").exists()


# ---- scores ------------------------------------------------------------------------------------------------------


def test_recalls_equal_the_loop(rng):
    similarities = rng.normal(size=(9, 9))
    similarities[2, 4] = similarities[2, 2]  # in a tie the right one comes last
    got = recalls(similarities, ks=(1, 3))
    for name, table in (("image_to_text", similarities), ("text_to_image", similarities.T)):
        for k in (1, 3):
            found = 0
            for i in range(9):
                better = sum(table[i, j] >= table[i, i] for j in range(9) if j != i)
                found += better < k
            assert got[f"{name}_recall@{k}"] == pytest.approx(found / 9)
    same = recalls(np.ones((9, 9)))
    assert same.pop("reciprocal_rank") == pytest.approx(1 / 9) and set(same.values()) == {0.0}
    assert recalls(np.full((9, 9), np.nan))["text_to_image_recall@5"] == 0
    assert recalls(np.eye(9))["reciprocal_rank"] == 1


def test_zero_shot_takes_the_nearest_class(rng):
    classes = rng.normal(size=(4, 3))
    labels = np.array([2, 0, 3, 1, 1])
    images = classes[labels] * 5
    assert zero_shot_accuracy(images / 25, np.eye(3), [np.argmax(x) for x in images]) == 1
    images[4] = -images[4]
    classes /= np.linalg.norm(classes, axis=1, keepdims=True)
    assert zero_shot_accuracy(images, classes, labels) == pytest.approx(0.8)


# ---- runs --------------------------------------------------------------------------------------------------------


class Stop(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        self.step -= 1
        if not self.step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """The folder of a run by the command, and what it printed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    argv = ["--out", str(out), "--no-tensorboard"]
    for name, value in options(files, out).as_dict().items():
        if value is not None and not isinstance(value, bool):
            argv += ["--" + name.replace("_", "-"), str(value)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        program.main(argv)
    return RunFolder(out), printed.getvalue()


def scores(metrics):
    """What does not depend on the machine."""
    of_the_machine = {"train_seconds", "seconds", "train_rate", "peak_memory_mb"}
    return {name: value for name, value in metrics.items() if name not in of_the_machine}


def test_a_run_learns_and_leaves_every_piece(whole):
    run, printed = whole
    assert "image_to_text_recall@5" in printed
    metrics, config = run.read_metrics(), run.read_config()
    assert {f"test/{name}" for name in ("loss", "image_to_text_recall@1", "text_to_image_recall@5")} <= set(metrics)
    assert metrics["test/pairs"] == 12 and metrics["test/zero_shot_classes"] == 4 and metrics["steps"] == 12
    assert config["groups"] == sorted(f"{colour}-ground" for colour in COLOURS)
    assert config["data"]["train"] == 72 and config["image_input"]["height"] == 8
    loaded, known = load(run.path)
    assert known["tokenizer"].vocab_size == config["model"]["text_tower"]["config"]["vocab_size"]
    assert known["images"].mean == tuple(config["image_input"]["mean"])
    assert loaded.count_params() == metrics["parameters"]
    history = run.read_history()
    assert history[0]["pairs"] == 64 and history[-1]["loss"] < history[0]["loss"]


@pytest.mark.slow
def test_an_interrupted_run_equals_an_undisturbed_one(whole, files, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(options(files, tmp_path / "broken"), callbacks=[Stop(7)])
    metrics = train(options(files, tmp_path / "broken", resume=True))
    runs = [whole[0], RunFolder(tmp_path / "broken")]
    for got, want in zip(*(run.load_model().get_weights() for run in runs), strict=True):
        np.testing.assert_array_equal(got, want)
    first, second = (scores(run.read_metrics()) for run in runs)
    assert first == second == scores(metrics)

"""Training CLIP: from captioned images to a run folder that holds a finished model.

    python -m keras_attention.training.clip --data images.npz --captions captions.json --out runs/clip

and the same from Python: `train(ClipOptions(out="runs/clip", data="images.npz", captions="captions.json"))`.
"""

import numpy as np

from keras_attention.text import SentencePieceTokenizer
from keras_attention.training.clip.caption_data import SPLITS, PairBatches, Texts, evaluation_pairs, split_captioned
from keras_attention.training.clip.caption_sources import read_captioned
from keras_attention.training.clip.options import ClipOptions
from keras_attention.training.clip.towers import build_clip
from keras_attention.training.run.averaged_run import AveragedRun, AveragedValidation
from keras_attention.training.run.command_arguments import run_alone, typer_command
from keras_attention.training.run.model_run import given_options, print_metrics, run_in_folder
from keras_attention.training.run.run_folder import write_atomically
from keras_attention.training.vision.augmentation import Augmentation, parse
from keras_attention.training.vision.image_data import border
from keras_attention.training.vision.retrieval import recalls, zero_shot_accuracy

_EVALUATED_AT_ONCE = 256


def train(options, *, callbacks=()):
    """Train CLIP on captioned images and leave it in a run folder.

    A text is a caption with its tags behind it; in training any number of the tags, in any order. The weights with the
    best mean reciprocal rank over the validation pairs are kept; the gallery is looked at once, after that. With equal
    options and data the weights are the same in every run on one machine, however often a run was interrupted and
    resumed; under a limit of minutes the number of steps varies.

    Beside what every run folder holds there is under "image_input" in config.json the `ImageInput`, and under "groups"
    the names that zero-shot classification chooses from.

    Args:
        options: `ClipOptions`.
        callbacks: more Keras callbacks for `model.fit`.

    Returns:
        dict, the content of metrics.json. Over the gallery: "image_to_text_recall@1", "image_to_text_recall@5",
        "text_to_image_recall@1", "text_to_image_recall@5", "reciprocal_rank", "loss" (InfoNCE with the whole gallery as
        one batch), "gallery" (its pairs: chance is k / gallery); and where captions have groups "zero_shot_accuracy",
        of images by the text of their group's name, which training has not seen as a class, and "zero_shot_classes".
        The same under "validation/...". "train_seconds" (training steps alone), "pairs_per_second" (in that time),
        "seconds" (with validation and checkpoints), "steps", "epochs" (whole ones), "parameters".

    Raises:
        UsageError: bad options or data, a folder that is taken, a run that cannot be resumed.
        KeyboardInterrupt: Ctrl-C; the state is saved.
    """
    return run_in_folder(options, lambda folder, state: ClipRun(options, folder, state, callbacks))


class ClipRun(AveragedRun):
    """A run that trains CLIP."""

    counted, rate_name = "pairs", "pairs_per_second"

    def load_data(self, state):
        options = self.options
        source = read_captioned(options.data, options.captions, options.image_size)
        for note in source.notes:
            print(f"note: {note}", flush=True)
        self.origin = source.origin
        self.data = split_captioned(source, validation=options.validation_pairs, gallery=options.gallery)
        self.groups = sorted(set(source.groups) - {""})
        splits, images = self.data.splits, self.data.images
        counts = ", ".join(f"{split} {len(splits[split])}" for split in SPLITS)
        print(f"{source.origin}: {counts} pairs, {images.height} x {images.width} x {images.channels}", flush=True)
        self.tokenizer = self._make_tokenizer(state)
        self.texts = {split: Texts(splits[split], self.tokenizer, options.max_length) for split in SPLITS}
        self.batches = PairBatches(
            splits["train"],
            self.texts["train"],
            images,
            batch_size=options.batch_size,
            seed=options.seed,
            augmentation=Augmentation(
                parse(options.augment),
                height=images.height,
                width=images.width,
                channels=images.channels,
                fill=border(splits["train"].images),
                seed=options.seed,
            ),
        )
        return self.data.fingerprint()

    def _make_tokenizer(self, state):
        if state is not None:
            return SentencePieceTokenizer.load(self.folder.require(self.folder.tokenizer_path))
        return SentencePieceTokenizer.train(
            self.data.splits["train"].whole_texts(),
            self.options.vocab_size,
            normalization="nmt_nfkc_cf",
            seed=self.options.seed,
        )

    def make_model(self):
        options = self.options
        model = build_clip(options, self.data.images, self.tokenizer.vocab_size)
        optimizer = self.make_optimizer(model)
        # Said explicitly: left alone, Keras compiles on its own where there is a GPU.
        model.compile(optimizer, jit_compile=options.jit_compile)
        # Before anything is restored, the optimizer's variables must exist.
        optimizer.build(model.trainable_variables)
        return model, list(model.metrics)

    def make_validation(self):
        pairs = self._pairs("validation")
        return AveragedValidation(
            self.model,
            self.folder.checkpoints_path / "best.npz",
            None if pairs is None else lambda: measured(self.model, pairs, embedded(self.model, pairs)),
            "reciprocal_rank",
        )

    def _pairs(self, split):
        """The pairs of a split as the model takes them, or None where it has none."""
        part = self.data.splits[split]
        return evaluation_pairs(part, self.texts[split], self.data.images) if len(part) else None

    def described(self):
        counts = {split: len(self.data.splits[split]) for split in SPLITS}
        return {
            "data": {"origin": self.origin, **counts},
            "image_input": self.data.images.as_dict(),
            "groups": self.groups,
        }

    def write_files(self):
        write_atomically(self.folder.tokenizer_path, self.tokenizer.save)

    def scores(self):
        found = {}
        for split, prefix in (("validation", "validation/"), ("gallery", "")):
            pairs = self._pairs(split)
            if pairs is None:
                continue
            vectors = embedded(self.model, pairs)
            scored = measured(self.model, pairs, vectors) | self._zero_shot(split, vectors["image_embeds"])
            found |= {prefix + name: value for name, value in scored.items()}
        return found | {"gallery": len(self.data.splits["gallery"])}

    def _zero_shot(self, split, image_vectors):
        groups = self.data.splits[split].groups
        known = [i for i, group in enumerate(groups) if group]
        if not known or len(self.groups) < 2:
            return {}
        # "food-drink" is read as its words.
        names = [group.replace("-", " ").replace("_", " ") for group in self.groups]
        text = self.tokenizer.tokenize(names, truncate=self.options.max_length)
        labels = [self.groups.index(groups[i]) for i in known]
        accuracy = zero_shot_accuracy(image_vectors[known], self.model.encode_text(text), labels)
        return {"zero_shot_accuracy": accuracy, "zero_shot_classes": len(self.groups)}


def embedded(model, pairs):
    """`{"image_embeds", "text_embeds"}`, float32 [N, P] each, of the pairs that `evaluation_pairs` gives."""
    vectors = model.predict(pairs, batch_size=_EVALUATED_AT_ONCE, verbose=0)
    return {name: np.asarray(x, np.float32) for name, x in vectors.items()}


def measured(model, pairs, vectors):
    """The recalls of pairs by their vectors, and the loss with all of them as one batch."""
    similarities = model.similarities(vectors["image_embeds"], vectors["text_embeds"])
    return {**recalls(similarities), "loss": float(model.compute_loss(pairs, y_pred=vectors))}


def _run_command(given):
    print_metrics(train(given_options(ClipOptions, given)))


command = typer_command(
    ClipOptions,
    _run_command,
    "Train CLIP on captioned images with model.fit and write a run folder: model, tokenizer, config, history, metrics.",
)


def main(argv=None):
    """`python -m keras_attention.training.clip`; `argv` is that of the process by default."""
    run_alone(command, argv, "keras_attention.training.clip.task")

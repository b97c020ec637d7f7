"""Training CLIP: from captioned images to a run folder that holds a finished model.

    python -m keras_attention.training.clip --data images.npz --captions captions.json --out runs/clip

and the same from Python: `train(ClipOptions(out="runs/clip", data="images.npz", captions="captions.json"))`.
"""

from dataclasses import dataclass

import numpy as np

from keras_attention.text import SentencePieceTokenizer
from keras_attention.training.clip.caption_data import SPLITS, PairBatches, Texts, evaluation_pairs, split_captioned
from keras_attention.training.clip.caption_sources import read_captioned
from keras_attention.training.clip.towers import build_clip
from keras_attention.training.optimization.averaged_adamw import averaged_adamw
from keras_attention.training.run.fitting import fit_in_folder
from keras_attention.training.run.task import Task, TaskData
from keras_attention.training.run.validation import Validation
from keras_attention.training.vision.augmentation import Augmentation
from keras_attention.training.vision.augmentation_names import parse
from keras_attention.training.vision.image_data import border
from keras_attention.training.vision.retrieval import recalls, zero_shot_accuracy

_EVALUATED_AT_ONCE = 256


def train(options, *, callbacks=()):
    """Train CLIP on captioned images and leave it in a run folder; see `fit_in_folder`.

    A text is a caption with its tags behind it; in training any number of the tags, in any order. The weights with the
    best mean reciprocal rank over the validation pairs are kept; the gallery, the test split, is looked at once, after
    that.

    Beside what every run folder holds there is under "image_input" in config.json the `ImageInput`, and under "groups"
    the names that zero-shot classification chooses from.

    Args:
        options: `ClipOptions`.
        callbacks: more Keras callbacks for `model.fit`.

    Returns:
        dict, the content of metrics.json. Over the gallery: "test/image_to_text_recall@1",
        "test/image_to_text_recall@5", "test/text_to_image_recall@1", "test/text_to_image_recall@5",
        "test/reciprocal_rank", "test/loss" (InfoNCE with the whole gallery as one batch), "test/pairs" (their number:
        chance is k / pairs); and where captions have groups "test/zero_shot_accuracy", of images by the text of their
        group's name, which training has not seen as a class, and "test/zero_shot_classes". The same under
        "validation/", and what `fit_in_folder` says of the run; "train_rate" counts pairs.

    Raises:
        UsageError, KeyboardInterrupt: see `fit_in_folder`.
    """
    return fit_in_folder(ClipTask(options), callbacks=callbacks)


@dataclass(frozen=True, kw_only=True)
class ClipData(TaskData):
    """Captioned images.

    Attributes:
        images: `ImageInput`.
        splits, texts: split -> `Captioned`, and its `Texts`.
        groups: sorted names.
    """

    images: object
    splits: dict
    texts: dict
    groups: list

    def pairs(self, split):
        """The pairs of a split as the model takes them, or None where it has none."""
        part = self.splits[split]
        return evaluation_pairs(part, self.texts[split], self.images) if len(part) else None


class ClipTask(Task):
    """CLIP on captioned images."""

    counted = "pairs"

    def read(self, folder):
        options = self.options
        source = read_captioned(options.data, options.captions, options.image_size)
        for note in source.notes:
            print(f"note: {note}", flush=True)
        captioned = split_captioned(source, validation=options.validation_pairs, gallery=options.gallery)
        splits, images = captioned.splits, captioned.images
        sizes = {split: len(splits[split]) for split in SPLITS}
        counts = ", ".join(f"{split} {count}" for split, count in sizes.items())
        print(f"{source.origin}: {counts} pairs, {images.height} x {images.width} x {images.channels}", flush=True)
        if folder is not None:
            tokenizer = SentencePieceTokenizer.load(folder.require(folder.tokenizer_path))
        else:
            tokenizer = SentencePieceTokenizer.train(
                splits["train"].whole_texts(), options.vocab_size, normalization="nmt_nfkc_cf", seed=options.seed
            )
        texts = {split: Texts(splits[split], tokenizer, options.max_length) for split in SPLITS}
        groups = sorted(set(source.groups) - {""})
        augmentation = Augmentation(
            parse(options.augment),
            height=images.height,
            width=images.width,
            channels=images.channels,
            fill=border(splits["train"].images),
            seed=options.seed,
        )
        return ClipData(
            batches=PairBatches(
                splits["train"],
                texts["train"],
                images,
                batch_size=options.batch_size,
                seed=options.seed,
                augmentation=augmentation,
            ),
            fingerprint=captioned.fingerprint(),
            origin=source.origin,
            sizes=sizes,
            tokenizer=tokenizer,
            config={"image_input": images.as_dict(), "groups": groups},
            peak_learning_rate=options.learning_rate,
            images=images,
            splits=splits,
            texts=texts,
            groups=groups,
        )

    def build(self, data):
        model = build_clip(self.options, data.images, data.tokenizer.vocab_size)
        # Said explicitly: left alone, Keras compiles on its own where there is a GPU.
        model.compile(averaged_adamw(model, self.options), jit_compile=self.options.jit_compile)
        return model, list(model.metrics)

    def validation(self, data, model, best_path):
        pairs = data.pairs("validation")

        def measure(epoch, last):
            return {} if pairs is None else measured(model, pairs, embedded(model, pairs))

        return Validation(model, best_path, measure, "reciprocal_rank")

    def score(self, data, model, folder, kept):
        scores = {}
        for name, split in (("validation", "validation"), ("test", "gallery")):
            pairs = data.pairs(split)
            if pairs is not None:
                vectors = embedded(model, pairs)
                scores[name] = {
                    **measured(model, pairs, vectors),
                    **self._zero_shot(data, model, split, vectors["image_embeds"]),
                    "pairs": len(data.splits[split]),
                }
        return scores

    def _zero_shot(self, data, model, split, image_vectors):
        groups = data.splits[split].groups
        known = [i for i, group in enumerate(groups) if group]
        if not known or len(data.groups) < 2:
            return {}
        # "food-drink" is read as its words.
        names = [group.replace("-", " ").replace("_", " ") for group in data.groups]
        text = data.tokenizer.tokenize(names, truncate=self.options.max_length)
        labels = [data.groups.index(groups[i]) for i in known]
        accuracy = zero_shot_accuracy(image_vectors[known], model.encode_text(text), labels)
        return {"zero_shot_accuracy": accuracy, "zero_shot_classes": len(data.groups)}


def embedded(model, pairs):
    """`{"image_embeds", "text_embeds"}`, float32 [N, P] each, of the pairs that `evaluation_pairs` gives."""
    vectors = model.predict(pairs, batch_size=_EVALUATED_AT_ONCE, verbose=0)
    return {name: np.asarray(x, np.float32) for name, x in vectors.items()}


def measured(model, pairs, vectors):
    """The recalls of pairs by their vectors, and the loss with all of them as one batch."""
    similarities = model.similarities(vectors["image_embeds"], vectors["text_embeds"])
    return {**recalls(similarities), "loss": float(model.compute_loss(pairs, y_pred=vectors))}

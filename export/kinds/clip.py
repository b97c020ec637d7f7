"""CLIP as exported graphs: its towers, and what compares their vectors."""

import json

import keras
import numpy as np
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.boundary import Endpoint, real_ids
from keras_attention.export.comparing import BATCHES, LENGTHS, random_ids
from keras_attention.export.kinds.image_pixels import colours, luma, processor_config, sized
from keras_attention.export.onnx_folder.graph import Port
from keras_attention.export.plan import ExportPlan
from keras_attention.export.precision import precision_of
from keras_attention.export.report import Comparison
from keras_attention.export.signatures import ids_and_lengths
from keras_attention.inference.keras_models import check_vocabulary
from keras_attention.models import CLIP, TextEncoder, ViT
from keras_attention.ops.basics import checks
from keras_attention.text import SentencePieceTokenizer

_TEXTS, _IMAGES, _T = "text_batch_size", "image_batch_size", "sequence_length"


class ClipPlan(ExportPlan):
    """A `keras_attention.models.CLIP`: its towers, and what compares their vectors, all of length one."""

    otherwise = "CLIP has no search, and what it takes is known"

    @classmethod
    def takes(cls, model, images, onnx):
        return isinstance(model, CLIP)

    def options(self):
        return ("tokenizer", "images")

    def prepare(self):
        if isinstance(self.given.tokenizer, SentencePieceTokenizer):
            check_vocabulary(self.given.tokenizer, self.model.text_tower.vocab_size, "The export")
        if self.onnx:
            self.model = in_float32(self.model)

    def described(self):
        return {} if self.given.images is None else {"images": self.given.images.as_dict()}

    def resources(self):
        return [self.model, self.given.tokenizer]

    def endpoints(self):
        """The signatures, with float32 vectors of length one [B, P].

        - `encode_image`: with `images` pixels uint8 [B, h, w, 1 to 4] of any size, without it normalized float32
          [B, H, W, C] -> image_embeds.
        - `encode_ids`: input_ids int32 [B, T], input_lengths int32 [B] -> text_embeds.
        - `encode_text`, with a tokenizer: text string [B] -> text_embeds.
        - `similarities`: image_embeds [B, P], text_embeds [N, P] -> logits_per_image float32 [B, N].
        """
        model, tokenizer, images = self.model, self.given.tokenizer, self.given.images
        shape = image_shape(model, images)

        def encode_pixels(pixels):
            pixels = sized(colours(pixels, images.channels), images)
            return {"image_embeds": model.encode_image(images.normalized(pixels))}

        def encode_normalized(pixels):
            return {"image_embeds": model.encode_image(pixels)}

        def encode_ids(input_ids, input_lengths):
            real = tf.range(checks.sizes(input_ids)[1]) < input_lengths[:, None]
            return {"text_embeds": model.encode_text(real_ids(input_ids, input_lengths), real)}

        def encode_text(text):
            # Longer texts lose their end, as they do in training.
            ids = tokenizer.tokenize(text, truncate=model.text_tower.max_length)
            return {"text_embeds": model.encode_text(ids)}

        def similarities(image_embeds, text_embeds):
            return {"logits_per_image": model.similarities(image_embeds, text_embeds)}

        if images is None:
            image = Endpoint("encode_image", encode_normalized, [tf.TensorSpec([None, *shape], tf.float32, "images")])
        else:
            image = Endpoint("encode_image", encode_pixels, [tf.TensorSpec([None] * 4, tf.uint8, "images")])
        vectors = [
            tf.TensorSpec([None, model.projection_dim], tf.float32, name) for name in ("image_embeds", "text_embeds")
        ]
        found = {
            "serving_default": image,
            "encode_image": image,
            "encode_ids": Endpoint("encode_ids", encode_ids, [*ids_and_lengths("input")]),
            "similarities": Endpoint("similarities", similarities, vectors),
        }
        if tokenizer is not None:
            text = tf.TensorSpec([None], tf.string, "text")
            found["encode_text"] = Endpoint("encode_text", encode_text, [text], imports=["tensorflow_text"])
        return found

    def compare_served(self, served):
        model, tokenizer, images = self.model, self.given.tokenizer, self.given.images
        comparison, rng = Comparison(precision_of(model.image_tower)), np.random.default_rng(0)
        for batch, others in (BATCHES, BATCHES[::-1]):
            for length in _lengths(model):
                pixels, ids, real, image, text = _sample(model, rng, batch, others, length, images)
                got = served["encode_image"](images=tf.constant(pixels))["image_embeds"]
                comparison.numbers("encode_image", got, image)
                got = served["encode_ids"](input_ids=tf.constant(ids), input_lengths=tf.constant(real))["text_embeds"]
                comparison.numbers("encode_ids", got, text)
                got = served["similarities"](image_embeds=image, text_embeds=text)["logits_per_image"]
                comparison.numbers("similarities", got, model.similarities(image, text))
        if tokenizer is not None:
            texts = tokenizer.decode([rng.integers(4, tokenizer.vocab_size, n) for n in (*LENGTHS, 0)])
            want = model.encode_text(tokenizer.tokenize(texts, truncate=model.text_tower.max_length))
            comparison.numbers("encode_text", served["encode_text"](text=tf.constant(texts))["text_embeds"], want)
        return comparison

    def graphs(self):
        """model.onnx, which compares all images with all texts, and the towers alone, for an index that is made once.

        Inputs and outputs have the names that `optimum` gives them, all vectors length one. `pixel_values`
        [B, 3, H, W] are normalized; a model of grey images takes the luma of the three.
        """
        model, images = self.model, self.given.images
        height, width, channels = image_shape(model, images)
        for layer in model._flatten_layers(include_self=False):
            mechanism = getattr(layer, "mechanism", None)
            if isinstance(getattr(getattr(mechanism, "supports", None), "onnx", None), str):
                raise UsageError(
                    f"mechanism={mechanism.registered_name!r} cannot be exported to ONNX: {mechanism.supports.onnx}. "
                    "Export a SavedModel, or train with another mechanism."
                )

        def text(input_ids, attention_mask):
            return [model.encode_text(tf.cast(input_ids, tf.int32), attention_mask)]

        def image(pixel_values):
            pixels = tf.transpose(pixel_values, [0, 2, 3, 1])
            return [model.encode_image(luma(pixels) if channels == 1 else pixels)]

        def both(input_ids, pixel_values, attention_mask):
            text_embeds, image_embeds = text(input_ids, attention_mask)[0], image(pixel_values)[0]
            logits = model.similarities(image_embeds, text_embeds)
            return [logits, tf.transpose(logits), text_embeds, image_embeds]

        ids, mask = Port("input_ids", (_TEXTS, _T), tf.int64), Port("attention_mask", (_TEXTS, _T), tf.int64)
        pixels = Port("pixel_values", (_IMAGES, 3, height, width), tf.float32)
        logits = [Port("logits_per_image", (_IMAGES, _TEXTS)), Port("logits_per_text", (_TEXTS, _IMAGES))]
        vectors = [
            Port("text_embeds", (_TEXTS, model.projection_dim)),
            Port("image_embeds", (_IMAGES, model.projection_dim)),
        ]
        return {
            "model.onnx": (both, [ids, pixels, mask], [*logits, *vectors]),
            "text_model.onnx": (text, [ids, mask], vectors[:1]),
            "vision_model.onnx": (image, [pixels], vectors[1:]),
        }

    def compare_onnx(self, sessions):
        model, images = self.model, self.given.images
        comparison, rng = Comparison("float32"), np.random.default_rng(0)
        for batch, others in (BATCHES, BATCHES[::-1]):
            for length in _lengths(model):
                pixels, ids, real, image, text = _sample(model, rng, batch, others, length, images)
                values = pixels if images is None else images.normalized(pixels)
                values = np.repeat(values.transpose(0, 3, 1, 2), 3 // values.shape[-1], axis=1)
                mask = (np.arange(length) < real[:, None]).astype(np.int64)
                given = {"input_ids": ids.astype(np.int64), "attention_mask": mask, "pixel_values": values}
                logits = model.similarities(image, text).numpy()
                want = {
                    "logits_per_image": logits,
                    "logits_per_text": logits.T,
                    "text_embeds": text,
                    "image_embeds": image,
                }
                for name, graph in sessions.items():
                    for output, x in graph(given).items():
                        comparison.numbers(f"{name}: {output}", x, want[output])
        return comparison

    def write_companions(self, folder):
        """Writes config.json, as `transformers`' CLIPConfig reads it, and with `images` preprocessor_config.json.

        Clients take the sizes of inputs from config.json and run the graph; the towers' layers are described where they
        are those of the paper.
        """
        model, images = self.model, self.given.images
        height, _, channels = image_shape(model, images)
        text, image = model.text_tower.get_config(), model.image_tower.get_config()
        config = {
            "model_type": "clip",
            "architectures": ["CLIPModel"],
            "projection_dim": model.projection_dim,
            "logit_scale_init_value": float(np.log(model.initial_logit_scale)),
            "text_config": {
                **(_layers(text, model.text_tower) if isinstance(model.text_tower, TextEncoder) else {}),
                "model_type": "clip_text_model",
                "vocab_size": model.text_tower.vocab_size,
                "max_position_embeddings": model.text_tower.max_length,
                # Their code reads 2 as the largest id of each text.
                "eos_token_id": 2 if model.text_tower.eos_id is None else model.text_tower.eos_id,
                "pad_token_id": model.text_tower.pad_id,
                "projection_dim": model.projection_dim,
            },
            "vision_config": {
                **(_layers(image, model.image_tower) if isinstance(model.image_tower, ViT) else {}),
                "model_type": "clip_vision_model",
                "image_size": height,
                "num_channels": 3 if channels == 1 else channels,
                "projection_dim": model.projection_dim,
            },
        }
        files = {"config.json": config}
        if images is not None:
            files["preprocessor_config.json"] = processor_config(images)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if self.given.tokenizer is not None:
            self.given.tokenizer.save(folder / "tokenizer.model")


def image_shape(model, images=None):
    """(height, width, channels) of a CLIP's images: those of the `ImageInput`, or what its image tower was made for."""
    if images is not None:
        return images.height, images.width, images.channels
    tower = model.image_tower
    if getattr(tower, "image_size", None) is None:
        raise UsageError(
            "The image tower does not say what size its images have. Give images=, an ImageInput, or a CLIP whose "
            "image tower is a vision model of keras_attention.models."
        )
    return (*tower.image_size, tower.channels)


def in_float32(model):
    """The model itself, or one with its weights that computes in float32 in all parts."""
    if all(part.compute_dtype == "float32" for part in (model, model.image_tower, model.text_tower)):
        return model
    config = {**model.get_config(), "dtype": "float32"}
    for name in ("image_tower", "text_tower"):
        config[name] = {**config[name], "config": {**config[name]["config"], "dtype": "float32"}}
    copy = CLIP.from_config(config)
    copy.build()
    copy.set_weights(model.get_weights())
    return copy


def _layers(config, tower):
    block = tower.blocks[0]
    return {
        "hidden_size": block.d_model,
        "intermediate_size": block.mlp_dim,
        "num_hidden_layers": len(tower.blocks),
        "num_attention_heads": block.num_heads,
        "hidden_act": keras.activations.get(config["activation"]).__name__,
        "layer_norm_eps": config["epsilon"],
    }


def _lengths(model):
    return sorted({min(length, model.text_tower.max_length) for length in LENGTHS})


def _sample(model, rng, batch, others, length, images):
    """Random pixels as `encode_image` takes them, ids and lengths, and Keras' vectors of both."""
    shape = (batch, *image_shape(model, images))
    pixels = (
        rng.normal(size=shape).astype(np.float32) if images is None else rng.integers(0, 256, shape, dtype=np.uint8)
    )
    image = model.encode_image(pixels if images is None else images.normalized(pixels))
    ids, real = random_ids(rng, others, length, model.text_tower.vocab_size)
    mask = np.arange(length) < real[:, None]
    text = model.encode_text(tf.constant(np.where(mask, ids, 0)), tf.constant(mask))
    return pixels, ids, real, image, text

"""Attention between an image and a text: either side reads the other, or both do."""

import keras
import tensorflow as tf

from keras_attention import mechanisms
from keras_attention.layers.attention import implicit_masks
from keras_attention.layers.attention.multi_head_attention import MultiHeadAttention
from keras_attention.layers.dropout import Dropout
from keras_attention.mechanisms import base
from keras_attention.ops.basics import checks, masks
from keras_attention.recorded import Recorded

# Direction -> the side that asks. The names say which way the information goes, as the documents' do.
READERS = {"image_to_text": "text", "text_to_image": "image"}
DIRECTIONS = (*READERS, "both")
_SIDES = ("image", "text")


@keras.saving.register_keras_serializable("keras_attention")
class CrossModalAttention(Recorded, keras.layers.Layer):
    """Lets a text read an image, an image read a text, or both: the documents' cross-modal attention (5.3).

    The side that reads gets `x + tanh(gate) * attention(norm(x), norm(other))`. The gate, one number for each feature,
    starts at 0: a layer put between trained parts changes nothing at first, and learns how much of the other modality
    to let in. Each side has a normalization and each direction projections of its own, since features of a CNN and of
    a text have nothing in common at the start.

    Image features are patches [B, S, C] or a map [B, H, W, C] as a CNN gives it, whose positions are read row by row.
    The layer adds no positions: features must carry them (those of a CNN with padding do, and those of a ViT).

    Choose it to fuse two encoders, as in captioning or in answering questions about an image; for comparing images
    with texts by one vector each, see `CLIP`. Time O(T S) in each direction with the default mechanism.

    Args:
        d_model: width of the output. A side that reads and has another width is projected to it first; only with
            equal widths is the start the identity.
        num_heads: attention heads of each direction.
        direction: "image_to_text" (the text asks, the image gives keys and values), "text_to_image", or "both".
        mechanism: how to attend; any that supports keys of another sequence, see `MultiHeadAttention`.
        num_kv_heads: heads of keys and values, `num_heads` by default.
        dropout_rate: of what attention gives, in training.
        attention_dropout_rate: of the attention weights.
        gate_initializer: of the gate before its tanh; zeros.
        epsilon: of the layer normalizations.
        seed: of the dropout.

    Call arguments:
        image: [B, S, C] or [B, H, W, C].
        text: [B, T, E].
        image_mask: boolean [B, S], or [B, H, W] for a map; True = a real feature. Implicit masks of either side are
            honoured as well.
        text_mask: boolean [B, T].
        return_attention_scores: also return the weights.

    Returns:
        "image_to_text": [B, T, d_model]. "text_to_image": [B, S, d_model], or [B, H, W, d_model] for a map. "both":
        the text's T rows and then the image's S = H W rows, [B, T + S, d_model]. In the compute dtype, with the
        implicit mask of the rows where one is known (a map carries none).
        With `return_attention_scores` also the weights: [B, heads, T, S], or [B, heads, S, T], or a dict of both by
        direction.

        A row that reads and whose other side is all padding keeps its own features, up to the bias of the output
        projection.

    Raises:
        ValueError: for sizes that do not fit, and for a mechanism that attends within one sequence only.

    Example:
        >>> layer = CrossModalAttention(d_model=32, num_heads=4)
        >>> layer(keras.random.normal((2, 7, 7, 64)), keras.random.normal((2, 5, 32))).shape
        TensorShape([2, 5, 32])

    Reference: the gate is Alayrac et al., "Flamingo", 2022, https://arxiv.org/abs/2204.14198 (there one number for
    all features); both directions: Lu et al., "ViLBERT", 2019, https://arxiv.org/abs/1908.02265
    """

    def __init__(
        self,
        d_model,
        num_heads,
        *,
        direction="image_to_text",
        mechanism="auto",
        num_kv_heads=None,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        gate_initializer="zeros",
        epsilon=1e-6,
        seed=None,
        **kwargs,
    ):
        # Without autocast the implicit masks stay on the inputs until `call` has read them.
        super().__init__(autocast=False, **kwargs)
        self.d_model = checks.positive_int("d_model", d_model)
        self.num_heads = checks.positive_int("num_heads", num_heads)
        self.direction = checks.one_of("direction", direction, DIRECTIONS)
        self.mechanism = base.serialized(mechanism)
        self.num_kv_heads = num_kv_heads
        self.dropout_rate = checks.rate("dropout_rate", dropout_rate)
        self.attention_dropout_rate = checks.rate("attention_dropout_rate", attention_dropout_rate)
        self.gate_initializer = keras.initializers.get(gate_initializer)
        self.epsilon = checks.positive_number("epsilon", epsilon)
        self.seed = seed
        self.supports_masking = True
        _check_mechanism(base.get(mechanism))
        self.directions = tuple(READERS) if direction == "both" else (direction,)
        self.norms = {
            side: keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name=f"{side}_norm")
            for side in _SIDES
        }
        self.attentions = {
            way: MultiHeadAttention(
                d_model,
                num_heads,
                mechanism,
                num_kv_heads=num_kv_heads,
                dropout_rate=attention_dropout_rate,
                # Two directions with one seed would drop alike.
                seed=None if seed is None else seed + 1 + i,
                dtype=self.dtype_policy,
                name=way,
            )
            for i, way in enumerate(self.directions)
        }
        self.dropout = Dropout(self.dropout_rate, seed=seed, dtype=self.dtype_policy, name="dropout")
        self.projections, self.gates = {}, {}

    def build(self, image_shape, text_shape):
        shapes = {"image": _sequence_shape(image_shape), "text": text_shape}
        for side, given in (("image", image_shape), ("text", text_shape)):
            if len(shapes[side]) != 3 or shapes[side][-1] is None:
                wanted = "[B, S, C] or [B, H, W, C]" if side == "image" else "[B, T, E]"
                raise ValueError(f"{side} must have shape {wanted} with a known last size. Got {tuple(given)}.")
        for side, norm in self.norms.items():
            norm.build(shapes[side])
        for way, attention in self.attentions.items():
            side, other = _sides(way)
            attention.build(shapes[other], shapes[other], shapes[side])
            if shapes[side][-1] != self.d_model:
                self.projections[side] = keras.layers.Dense(
                    self.d_model, dtype=self.dtype_policy, name=f"{side}_projection"
                )
                self.projections[side].build(shapes[side])
            self.gates[way] = self.add_weight(
                name=f"{way}_gate",
                shape=(self.d_model,),
                initializer=type(self.gate_initializer).from_config(self.gate_initializer.get_config()),
            )

    def call(self, image, text, image_mask=None, text_mask=None, return_attention_scores=False, training=False):
        side_masks = {
            "image": _mask("image_mask", image_mask, image, implicit_masks.get(image)),
            "text": _mask("text_mask", text_mask, text, implicit_masks.get(text)),
        }
        grid = checks.sizes(image)[1:3] if image.shape.rank == 4 else None
        x = {"image": _sequence(tf.cast(image, self.compute_dtype)), "text": tf.cast(text, self.compute_dtype)}
        normed = {side: self.norms[side](x[side]) for side in _SIDES}
        outputs, scores = {}, {}
        for way, attention in self.attentions.items():
            side, other = _sides(way)
            read = attention(
                v=normed[other],
                k=normed[other],
                q=normed[side],
                padding_mask=side_masks[other],
                q_mask=side_masks[side],
                return_attention_scores=return_attention_scores,
                training=training,
            )
            read, scores[way] = read if return_attention_scores else (read, None)
            own = self.projections[side](x[side]) if side in self.projections else x[side]
            gate = tf.cast(tf.tanh(tf.convert_to_tensor(self.gates[way])), read.dtype)
            outputs[side] = own + gate * self.dropout(read, training=training)
        if self.direction == "both":
            result = tf.concat([outputs["text"], outputs["image"]], axis=1)
            implicit_masks.put(result, _joined_rows(side_masks, outputs))
        elif self.direction == "text_to_image" and grid is not None:
            batch = checks.sizes(outputs["image"])[0]
            result = tf.reshape(outputs["image"], [batch, *grid, self.d_model])
        else:
            side = READERS[self.direction]
            result = implicit_masks.put(outputs[side], side_masks[side])
        if not return_attention_scores:
            return result
        return result, scores if self.direction == "both" else scores[self.direction]

    def compute_mask(self, *args, **kwargs):
        # `call` hangs the mask on its output; Keras would hand on the image's.
        return None

    def compute_output_shape(self, image_shape, text_shape):
        if self.direction == "image_to_text":
            return (*text_shape[:-1], self.d_model)
        if self.direction == "text_to_image":
            return (*image_shape[:-1], self.d_model)
        lengths = (text_shape[1], _sequence_shape(image_shape)[1])
        return (text_shape[0], None if None in lengths else sum(lengths), self.d_model)

    def compute_output_spec(self, *args, **kwargs):
        # The weights come out beside the output: trace `call` rather than trust one shape.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def _sides(way):
    """The side that reads and the side that is read."""
    reader = READERS[way]
    return reader, "image" if reader == "text" else "text"


def _check_mechanism(mechanism):
    if not mechanism.supports.cross:
        able = [name for name in mechanisms.names() if mechanisms.class_of(name).supports.cross]
        mechanism.refuse("keys and values of another sequence than the queries'", f"one of {', '.join(able)}")


def _sequence_shape(shape):
    if len(shape) != 4:
        return tuple(shape)
    batch, height, width, channels = shape
    return (batch, None if None in (height, width) else height * width, channels)


def _sequence(image):
    """[B, H, W, C] -> [B, H W, C], rows of the map one after the other; [B, S, C] as it is."""
    if image.shape.rank != 4:
        return image
    batch, height, width, channels = checks.sizes(image)
    return tf.reshape(image, [batch, height * width, channels])


def _mask(name, given, x, implicit):
    """The mask [B, S] of one side, boolean, from what was given and what rides on the features."""
    length = checks.sizes(x)[1]
    parts = []
    for mask in (given, implicit if implicit is not given else None):
        if mask is None:
            continue
        mask = tf.convert_to_tensor(mask)
        if x.shape.rank == 4 and mask.shape.rank == 3:
            batch, height, width = checks.sizes(mask)
            mask = tf.reshape(mask, [batch, height * width])
        parts.append(mask)
    if x.shape.rank == 4:
        length = length * checks.sizes(x)[2]
    return masks.joined(*(masks.key_mask(mask, name, checks.sizes(x)[0], length) for mask in parts))


def _joined_rows(side_masks, outputs):
    """The mask [B, T + S] of text rows and image rows, None where no side has one."""
    if all(mask is None for mask in side_masks.values()):
        return None
    parts = []
    for side in ("text", "image"):
        mask = side_masks[side]
        parts.append(tf.ones(checks.sizes(outputs[side])[:2], tf.bool) if mask is None else mask)
    return tf.concat(parts, axis=1)

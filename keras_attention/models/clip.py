"""CLIP: an image tower and a text tower whose vectors can be compared."""

import math

import keras
import tensorflow as tf

from keras_attention.layers.built_first import built_first
from keras_attention.models.configured import ConfiguredModel
from keras_attention.ops.basics import checks, replicas
from keras_attention.ops.vision import contrastive


@keras.saving.register_keras_serializable("keras_attention")
class CLIP(ConfiguredModel):
    """Images and texts as unit vectors of one space, trained by telling which text belongs to which image.

    Each tower's features go through a linear projection and are scaled to length one; the similarity of an image and a
    text is the product of their vectors times a learned factor. `fit` needs no labels and no `loss=`: the loss is
    InfoNCE over the pairs of a batch, in both directions, in float32 under every precision. Pairs whose texts are equal
    token for token are not each other's wrong answers. Under a `tf.distribute` strategy every pair is compared with
    those of all replicas, so that replicas change nothing but the speed.

    Args:
        image_tower: a Keras model [B, H, W, C] -> [B, width], such as `ViT(..., num_classes=None)`, or its config.
        text_tower: a Keras model `(text, text_mask=None)` -> [B, width], such as `TextEncoder`, or its config.
        projection_dim: size P of the space.
        logit_scale: the similarities' factor at the start, 1 / 0.07 as in the paper.
        max_logit_scale: its bound, 100 as in the paper: a larger one makes training unstable.
        **kwargs: `name`, `dtype`: of the projections. The towers keep their own dtype policies.

    Call arguments:
        inputs: {"images": floating [B, H, W, C], normalized as the image tower expects; "text": integer [B, T]}, and
            "text_mask" [B, T], true = a real token, where the text tower cannot tell by itself.

    Returns:
        {"image_embeds": [B, P], "text_embeds": [B, P]}, float32 unit vectors; `similarities` compares them.

    Example:
        >>> vit = ViT(image_size=32, patch_size=8, num_classes=None, d_model=64, num_layers=2, num_heads=4, mlp_dim=128)
        >>> clip = CLIP(vit, TextEncoder(100, d_model=64, num_layers=2), projection_dim=32)
        >>> out = clip({"images": np.zeros((2, 32, 32, 3), "float32"), "text": np.array([[2, 9, 3], [2, 5, 3]])})
        >>> clip.similarities(out["image_embeds"], out["text_embeds"]).shape
        TensorShape([2, 2])

    Reference: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021,
    https://arxiv.org/abs/2103.00020
    """

    block_lists = ()

    def __init__(
        self, image_tower, text_tower, *, projection_dim=512, logit_scale=1 / 0.07, max_logit_scale=100.0, **kwargs
    ):
        super().__init__(**kwargs)
        self.projection_dim = checks.positive_int("projection_dim", projection_dim)
        self.initial_logit_scale = checks.positive_number("logit_scale", logit_scale)
        self.max_logit_scale = checks.positive_number("max_logit_scale", max_logit_scale)
        if logit_scale > max_logit_scale:
            raise ValueError(
                f"logit_scale must be at most max_logit_scale. Got logit_scale={logit_scale}, "
                f"max_logit_scale={max_logit_scale}."
            )
        self.image_tower = self._tower("image_tower", image_tower)
        self.text_tower = self._tower("text_tower", text_tower)
        self.image_projection, self.text_projection = (
            keras.layers.Dense(projection_dim, use_bias=False, dtype=self.dtype_policy, name=f"{side}_projection")
            for side in ("image", "text")
        )

    def _tower(self, name, given):
        if isinstance(given, dict):
            given = keras.saving.deserialize_keras_object(given)
        if not isinstance(given, keras.layers.Layer):
            raise ValueError(f"{name} must be a Keras model or its config. Got {given!r}.")
        return given

    def build(self, input_shape=None):
        for name, tower, projection, shape in (
            ("image_tower", self.image_tower, self.image_projection, (None, None, None, 3)),
            ("text_tower", self.text_tower, self.text_projection, (None, None)),
        ):
            if not tower.built:
                tower.build(shape)
            features = tower.compute_output_shape(shape)
            if len(features) != 2 or features[-1] is None:
                raise ValueError(
                    f"{name} must give one vector for each row, [B, width]. Got {tuple(features)}; a vision model does "
                    "so with num_classes=None."
                )
            projection.build(features)
        self.logit_scale = self.add_weight(
            name="logit_scale",
            shape=(),
            initializer=keras.initializers.Constant(math.log(self.initial_logit_scale)),
            constraint=self._at_most_max,
            # Half precision cannot tell neighbouring temperatures apart.
            autocast=False,
            # Each replica sets it back by itself, to the same value.
            aggregation="mean",
        )

    def _at_most_max(self, logit_scale):
        return tf.minimum(tf.convert_to_tensor(logit_scale), math.log(self.max_logit_scale))

    def call(self, inputs, training=False):
        return {
            "image_embeds": self.encode_image(inputs["images"], training=training),
            "text_embeds": self.encode_text(inputs["text"], inputs.get("text_mask"), training=training),
        }

    @built_first
    def encode_image(self, images, training=False):
        """Unit vectors, float32 [B, P], of images [B, H, W, C]."""
        return _unit(self.image_projection(self.image_tower(images, training=training)))

    @built_first
    def encode_text(self, text, text_mask=None, training=False):
        """Unit vectors, float32 [B, P], of token ids [B, T]."""
        options = {} if text_mask is None else {"text_mask": text_mask}
        return _unit(self.text_projection(self.text_tower(text, training=training, **options)))

    def similarities(self, image_embeds, text_embeds):
        """The scaled products of every image [B, P] with every text [N, P], float32 [B, N]."""
        return self.scale() * tf.matmul(image_embeds, text_embeds, transpose_b=True)

    @built_first
    def scale(self):
        """The similarities' factor, a float32 scalar, at most `max_logit_scale`."""
        return tf.exp(self._at_most_max(self.logit_scale))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """This replica's share of the InfoNCE loss of the whole batch (the loss itself where there is one replica).

        `sample_weight` [B] weighs each pair's own loss; a pair of weight 0 is still compared with.
        """
        if y is not None or getattr(self, "loss", None) is not None:
            what = "labels (y)" if y is not None else "loss= in compile()"
            raise ValueError(f"CLIP has its own loss, which needs pairs alone. Got {what}; leave it out.")
        images, first = replicas.gathered(y_pred["image_embeds"])
        texts, _ = replicas.gathered(y_pred["text_embeds"])
        marks = contrastive.row_marks(x["text"], self._real_tokens(x))
        losses = contrastive.info_nce(
            y_pred["image_embeds"],
            y_pred["text_embeds"],
            self.scale(),
            all_images=images,
            all_texts=texts,
            first=first,
            duplicates=marks[:, None] == replicas.gathered(marks)[0],
        )
        weights = (
            tf.ones_like(losses) if sample_weight is None else tf.reshape(tf.cast(sample_weight, tf.float32), [-1])
        )
        loss = tf.math.divide_no_nan(tf.reduce_sum(weights * losses), replicas.summed(tf.reduce_sum(weights)))
        if self.losses:  # what the towers add, such as regularizers
            loss += tf.add_n([tf.cast(added, tf.float32) for added in self.losses]) / replicas.count()
        return loss

    def _real_tokens(self, inputs):
        """Boolean [B, T], or None where nothing says which tokens are padding."""
        if inputs.get("text_mask") is not None:
            return tf.not_equal(tf.cast(inputs["text_mask"], tf.int32), 0)
        pad_id = getattr(self.text_tower, "pad_id", None)
        return None if pad_id is None else tf.not_equal(tf.cast(inputs["text"], tf.int32), pad_id)

    # --- Keras' contract ------------------------------------------------------------------------------------------

    def compute_output_shape(self, input_shape):
        return {
            "image_embeds": (input_shape["images"][0], self.projection_dim),
            "text_embeds": (input_shape["text"][0], self.projection_dim),
        }

    def compute_output_spec(self, inputs, training=False):
        shapes = self.compute_output_shape({name: x.shape for name, x in inputs.items()})
        return {name: keras.KerasTensor(shape, dtype="float32") for name, shape in shapes.items()}


def _unit(x):
    """Rows of length one, in float32; a row of zeros stays one, with a finite gradient."""
    return tf.math.l2_normalize(tf.cast(x, tf.float32), axis=-1)

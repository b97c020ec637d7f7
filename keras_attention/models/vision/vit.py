"""The Vision Transformer."""

import keras
import numpy as np
import tensorflow as tf

from keras_attention.layers import EncoderBlock, GridPositions, PatchEmbedding
from keras_attention.layers.dropout import Dropout
from keras_attention.mechanisms import base as mechanisms
from keras_attention.models.vision.image_model import ImageModel
from keras_attention.ops.basics import checks

# Width, layers, heads; the feed-forward layer is four times as wide.
PRESETS = {
    "Ti": (192, 12, 3),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "H": (1280, 32, 16),
}
POOLINGS = ("token", "mean", "token_mean")


@keras.saving.register_keras_serializable("keras_attention")
class ViT(ImageModel):
    """Images as sequences of patches: classifier, or with `num_classes=None` an encoder.

    Any size of image is taken. Learned positions are interpolated bicubically to its grid of patches (see
    `GridPositions`); sides that are no multiples of the patch are padded with zeros below and to the right. Mechanisms
    that are made for one grid or length (axial, linformer) take images of the grid of `image_size` only.

    A mechanism that looks at neighbours in the sequence (local, block_sparse) lets the class token see the first
    patches only: choose pooling="mean" with those, or longformer or bigbird, whose global tokens hold the class token.

    Args:
        image_size: H and W of the training images, an int or (height, width): the grid of the learned positions.
        patch_size: sides of a patch, an int or (height, width).
        num_classes: classes, or None for no head.
        d_model: width. num_layers: encoder blocks. num_heads: attention heads. mlp_dim: width of the feed-forward
            layers, 4 * d_model by default.
        channels: of the images.
        pooling: what stands for the image: "token" (a class token), "mean" (of the patches; no class token then), or
            "token_mean" (both beside each other, as DINOv2's linear heads take them).
        mechanism: how to attend, by name or as an object.
        dropout_rate: of embeddings, sub-layers and inside the feed-forward layers.
        attention_dropout_rate: of the attention weights.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0 at the first.
        layer_scale: None, or the first value of the learned factors on each branch, such as 1e-5.
        embedding_norm: whether the embeddings are normalised before the first block, as CLIP's image tower does.
        activation: of the feed-forward layers.
        epsilon: of the layer normalisations.
        remat: compute every block again for its gradient (gradient checkpointing), see `EncoderBlock`.
        seed: of the dropout.

    Call arguments:
        images: floating [B, H, W, channels], normalised as in training.

    Returns:
        Logits, float32 [B, num_classes]; without a head the pooled features, [B, feature_width], in the compute dtype.

    Example:
        >>> ViT.from_preset("Ti/16", image_size=64, num_classes=10)(np.zeros((2, 64, 64, 3), "float32")).shape
        TensorShape([2, 10])

    Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, https://arxiv.org/abs/2010.11929; Ti and S:
    Touvron et al., "Training data-efficient image transformers", 2021, https://arxiv.org/abs/2012.12877
    """

    def __init__(
        self,
        image_size,
        patch_size,
        num_classes=None,
        *,
        d_model=192,
        num_layers=12,
        num_heads=3,
        mlp_dim=None,
        channels=3,
        pooling="token",
        mechanism="auto",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.0,
        layer_scale=None,
        embedding_norm=False,
        activation="gelu",
        epsilon=1e-6,
        remat=False,
        seed=None,
        **kwargs,
    ):
        config = {
            "image_size": image_size,
            "patch_size": patch_size,
            "num_classes": num_classes,
            "d_model": checks.positive_int("d_model", d_model),
            "num_layers": checks.positive_int("num_layers", num_layers),
            "num_heads": num_heads,
            "mlp_dim": mlp_dim,
            "channels": channels,
            "pooling": checks.one_of("pooling", pooling, POOLINGS),
            "mechanism": mechanisms.serialized(mechanism),
            "dropout_rate": checks.rate("dropout_rate", dropout_rate),
            "attention_dropout_rate": checks.rate("attention_dropout_rate", attention_dropout_rate),
            "drop_path_rate": checks.rate("drop_path_rate", drop_path_rate),
            "layer_scale": layer_scale,
            "embedding_norm": bool(embedding_norm),
            "activation": keras.activations.serialize(keras.activations.get(activation)),
            "epsilon": checks.positive_number("epsilon", epsilon),
            "remat": bool(remat),
            "seed": seed,
        }
        super().__init__(config, **kwargs)
        self.d_model = d_model
        self.pooling = pooling
        self.num_prefix_tokens = 0 if pooling == "mean" else 1
        self.patch_embedding = PatchEmbedding(patch_size, d_model, dtype=self.dtype_policy, name="patch_embedding")
        self.patch_size = self.patch_embedding.patch_size
        self.grid = self.token_grid(*self.image_size)
        self.positions = GridPositions(
            self.grid, d_model, num_prefix_tokens=self.num_prefix_tokens, dtype=self.dtype_policy, name="positions"
        )
        self.embedding_dropout = Dropout(dropout_rate, seed=seed, dtype=self.dtype_policy, name="embedding_dropout")
        self.embedding_norm = None
        if embedding_norm:
            self.embedding_norm = keras.layers.LayerNormalization(
                epsilon=epsilon, dtype=self.dtype_policy, name="embedding_norm"
            )
        self.blocks = [
            EncoderBlock(
                d_model,
                num_heads,
                4 * d_model if mlp_dim is None else mlp_dim,
                mechanism=mechanisms.for_grid(mechanism, self.grid, self.num_prefix_tokens),
                dropout_rate=dropout_rate,
                attention_dropout_rate=attention_dropout_rate,
                drop_path_rate=float(rate),
                layer_scale=layer_scale,
                activation=activation,
                epsilon=epsilon,
                remat=remat,
                # A block's parts take the ten seeds from its own on.
                seed=None if seed is None else seed + 10 * (i + 1),
                dtype=self.dtype_policy,
                name=f"block_{i}",
            )
            for i, rate in enumerate(np.linspace(0, drop_path_rate, num_layers))
        ]
        self.final_norm = keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="final_norm")

    @classmethod
    def from_preset(cls, name, image_size=224, num_classes=None, **kwargs):
        """A model of a published size, with random weights.

        Args:
            name: size and patch, such as "Ti/16", "S/16", "B/32" or "L/14"; sizes are Ti, S, B, L and H.
            image_size, num_classes: see the class. **kwargs: its other arguments; those given win over the preset's.
        """
        size, _, patch = str(name).partition("/")
        if size not in PRESETS or not patch.isdecimal() or int(patch) < 1:
            raise ValueError(
                f"A preset is SIZE/PATCH with SIZE one of {', '.join(PRESETS)}, such as 'S/16'. Got {name!r}."
            )
        d_model, num_layers, num_heads = PRESETS[size]
        options = {"d_model": d_model, "num_layers": num_layers, "num_heads": num_heads, **kwargs}
        return cls(image_size, int(patch), num_classes, **options)

    @property
    def feature_width(self):
        return 2 * self.d_model if self.pooling == "token_mean" else self.d_model

    def token_grid(self, height, width):
        """(rows, columns) of the patches of an image of that size."""
        return tuple(-(-size // by) for size, by in zip((height, width), self.patch_size))

    def build_parts(self):
        stream = (None, None, self.d_model)
        self.patch_embedding.build((None, *self.image_size, self.channels))
        if self.num_prefix_tokens:
            self.class_token = self.add_weight(
                name="class_token", shape=(1, 1, self.d_model), initializer=keras.initializers.RandomNormal(stddev=0.02)
            )
        for part in (self.positions, self.embedding_norm, *self.blocks, self.final_norm):
            if part is not None:
                part.build(stream)

    def embed(self, images, training=False):
        """Patches with their positions, after the class token where there is one: [B, 1 + N, d_model]."""
        x = self.patch_embedding(self.prepared(images))
        batch, rows, columns, _ = checks.sizes(x)
        x = tf.reshape(x, [batch, rows * columns, self.d_model])
        if self.num_prefix_tokens:
            token = tf.cast(self.class_token, x.dtype)
            x = tf.concat([tf.broadcast_to(token, [batch, 1, self.d_model]), x], axis=1)
        x = self.positions(x, grid=(rows, columns))
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        return self.embedding_dropout(x, training=training)

    def hidden_states(self, images, training=False):
        """What `embed` gives, and the output of each block: a list of num_layers + 1 tensors [B, 1 + N, d_model]."""
        states = [self.embed(images, training=training)]
        for block in self.blocks:
            states.append(block(states[-1], training=training))
        return states

    def attention_scores(self, images):
        """The weights of attention of each block: a list of num_layers tensors [B, H, 1 + N, 1 + N]."""
        states = self.hidden_states(images)
        return [block.attention_scores(x) for block, x in zip(self.blocks, states)]

    def features(self, images, training=False):
        """Tokens after the last normalisation: [B, 1 + N, d_model], the class token first where there is one."""
        return self.final_norm(self.hidden_states(images, training=training)[-1])

    def pool(self, tokens):
        if self.pooling == "token":
            return tokens[:, 0]
        mean = tf.reduce_mean(tokens[:, self.num_prefix_tokens :], axis=1)
        return mean if self.pooling == "mean" else tf.concat([tokens[:, 0], mean], axis=-1)

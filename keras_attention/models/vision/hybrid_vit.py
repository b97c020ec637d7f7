"""The documents' hybrid of a convolutional network and a Vision Transformer."""

import keras
import numpy as np
import tensorflow as tf

from keras_attention.layers import ConvStem, EncoderBlock, GridPositions, RelativePositionBias2D
from keras_attention.layers.dropout import Dropout
from keras_attention.mechanisms import base as mechanisms
from keras_attention.models.vision.image_model import ImageModel
from keras_attention.ops.basics import checks

POOLINGS = ("token", "mean")
POSITIONS = ("relative", "learned")
# Width and heads.
PRESETS = {"Ti": (192, 3), "S": (384, 6), "B": (768, 12)}


@keras.saving.register_keras_serializable("keras_attention")
class HybridViT(ImageModel):
    """Convolutions for local features, then Transformer blocks with a relative position bias for global relations.

    The documents' recipe (4.1): the first four layers are convolutions, the next eight Transformer layers, a bias by
    relative position keeps the spatial information. Attention that has no layer of convolutions before it loses local
    features in its first layers; with them the model learns from fewer images.

    Any size of image is taken: convolutions pad their borders, the bias is interpolated linearly to other grids (see
    `RelativePositionBias2D`).

    Args:
        image_size: H and W of the training images: the grid of the relative positions.
        patch_size: how many times smaller the grid of tokens is, a power of 2 of at most 2^num_conv_layers. The last
            convolutions have the strides.
        num_classes: classes, or None for no head.
        d_model: width. num_conv_layers: convolutions; their channels double up to d_model, from 8 or more.
        num_layers: encoder blocks. num_heads, mlp_dim: see `ViT`.
        channels: of the images.
        pooling: "mean" of the tokens, or "token" for a class token.
        positions: "relative" (a bias of each block's own; the mechanism must take a bias) or "learned" (added to the
            tokens once, for mechanisms that take none).
        mechanism: how to attend, by name or as an object.
        dropout_rate, attention_dropout_rate, drop_path_rate, layer_scale, activation, epsilon, remat, seed: see `ViT`.

    Call arguments:
        images: floating [B, H, W, channels], normalised as in training.

    Returns:
        Logits, float32 [B, num_classes]; without a head the pooled features, [B, d_model], in the compute dtype.

    Example:
        >>> HybridViT(32, 4, 10, d_model=64, num_heads=4)(np.zeros((2, 32, 32, 3), "float32")).shape
        TensorShape([2, 10])

    Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, https://arxiv.org/abs/2010.11929 (hybrid);
    Xiao et al., "Early Convolutions Help Transformers See Better", 2021, https://arxiv.org/abs/2106.14881
    """

    def __init__(
        self,
        image_size,
        patch_size,
        num_classes=None,
        *,
        d_model=192,
        num_conv_layers=4,
        num_layers=8,
        num_heads=3,
        mlp_dim=None,
        channels=3,
        pooling="mean",
        positions="relative",
        mechanism="auto",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.0,
        layer_scale=None,
        activation="gelu",
        epsilon=1e-6,
        remat=False,
        seed=None,
        **kwargs,
    ):
        config = {
            "image_size": image_size,
            "patch_size": checks.positive_int("patch_size", patch_size),
            "num_classes": num_classes,
            "d_model": checks.positive_int("d_model", d_model),
            "num_conv_layers": checks.positive_int("num_conv_layers", num_conv_layers),
            "num_layers": checks.positive_int("num_layers", num_layers),
            "num_heads": num_heads,
            "mlp_dim": mlp_dim,
            "channels": channels,
            "pooling": checks.one_of("pooling", pooling, POOLINGS),
            "positions": checks.one_of("positions", positions, POSITIONS),
            "mechanism": mechanisms.serialized(mechanism),
            "dropout_rate": checks.rate("dropout_rate", dropout_rate),
            "attention_dropout_rate": checks.rate("attention_dropout_rate", attention_dropout_rate),
            "drop_path_rate": checks.rate("drop_path_rate", drop_path_rate),
            "layer_scale": layer_scale,
            "activation": keras.activations.serialize(keras.activations.get(activation)),
            "epsilon": checks.positive_number("epsilon", epsilon),
            "remat": bool(remat),
            "seed": seed,
        }
        super().__init__(config, **kwargs)
        halvings = patch_size.bit_length() - 1
        if patch_size != 2**halvings or halvings > num_conv_layers:
            allowed = ", ".join(str(2**i) for i in range(num_conv_layers + 1))
            raise ValueError(
                f"patch_size must be one of {allowed}, as each of the {num_conv_layers} convolutions can halve the "
                f"sides. Got patch_size={patch_size}."
            )
        self.d_model = d_model
        self.pooling = pooling
        self.num_prefix_tokens = 1 if pooling == "token" else 0
        self.patch_size = (patch_size, patch_size)
        self.grid = self.token_grid(*self.image_size)
        layers = range(num_conv_layers)
        self.stem = ConvStem(
            # A normalisation over one or two channels would leave nothing of them.
            [max(min(8, d_model), d_model // 2 ** (num_conv_layers - 1 - i)) for i in layers],
            [2 if i >= num_conv_layers - halvings else 1 for i in layers],
            activation=activation,
            epsilon=epsilon,
            dtype=self.dtype_policy,
            name="stem",
        )
        self.embedding_dropout = Dropout(dropout_rate, seed=seed, dtype=self.dtype_policy, name="embedding_dropout")
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
        self.positions, self.relative_biases = None, []
        if positions == "learned":
            self.positions = GridPositions(
                self.grid, d_model, num_prefix_tokens=self.num_prefix_tokens, dtype=self.dtype_policy, name="positions"
            )
        else:
            attending = self.blocks[0].attention.mechanism
            if not attending.supports.bias:
                attending.refuse("a relative position bias (positions='relative')", "positions='learned'")
            self.relative_biases = [
                RelativePositionBias2D(
                    self.grid, num_heads, self.num_prefix_tokens, dtype=self.dtype_policy, name=f"relative_bias_{i}"
                )
                for i in range(num_layers)
            ]
        self.final_norm = keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="final_norm")

    @classmethod
    def from_preset(cls, name, image_size=224, num_classes=None, **kwargs):
        """A model of the documents' four and eight layers, as wide as the ViT of that name, with random weights.

        Args:
            name: size and patch, such as "Ti/16" or "S/16"; sizes are Ti, S and B.
            image_size, num_classes: see the class. **kwargs: its other arguments; those given win over the preset's.
        """
        size, _, patch = str(name).partition("/")
        if size not in PRESETS or not patch.isdecimal() or int(patch) < 1:
            raise ValueError(
                f"A preset is SIZE/PATCH with SIZE one of {', '.join(PRESETS)}, such as 'S/16'. Got {name!r}."
            )
        d_model, num_heads = PRESETS[size]
        return cls(image_size, int(patch), num_classes, **{"d_model": d_model, "num_heads": num_heads, **kwargs})

    @property
    def feature_width(self):
        return self.d_model

    def token_grid(self, height, width):
        """(rows, columns) of the tokens of an image of that size."""
        return tuple(-(-size // by) for size, by in zip((height, width), self.patch_size))

    def build_parts(self):
        stream = (None, None, self.d_model)
        self.stem.build((None, *self.image_size, self.channels))
        if self.num_prefix_tokens:
            self.class_token = self.add_weight(
                name="class_token", shape=(1, 1, self.d_model), initializer=keras.initializers.RandomNormal(stddev=0.02)
            )
        for part in (self.positions, *self.blocks, self.final_norm):
            if part is not None:
                part.build(stream)

    def embed(self, images, training=False):
        """`(tokens, grid)`: what the convolutions give, as [B, P + rows * columns, d_model], and (rows, columns)."""
        x = self.stem(self.prepared(images))
        batch, rows, columns, _ = checks.sizes(x)
        x = tf.reshape(x, [batch, rows * columns, self.d_model])
        if self.num_prefix_tokens:
            token = tf.cast(self.class_token, x.dtype)
            x = tf.concat([tf.broadcast_to(token, [batch, 1, self.d_model]), x], axis=1)
        if self.positions is not None:
            x = self.positions(x, grid=(rows, columns))
        return self.embedding_dropout(x, training=training), (rows, columns)

    def hidden_states(self, images, training=False):
        """What the convolutions give, and the output of each block: num_layers + 1 tensors [B, P + N, d_model]."""
        x, grid = self.embed(images, training=training)
        states = [x]
        for block, bias in zip(self.blocks, self._biases(grid)):
            states.append(block(states[-1], bias=bias, training=training))
        return states

    def attention_scores(self, images):
        """The weights of attention of each block: a list of num_layers tensors [B, H, P + N, P + N]."""
        _, grid = self.embed(images)
        states = self.hidden_states(images)
        return [block.attention_scores(x, bias) for block, x, bias in zip(self.blocks, states, self._biases(grid))]

    def _biases(self, grid):
        return [bias(grid) for bias in self.relative_biases] or [None] * len(self.blocks)

    def features(self, images, training=False):
        """Tokens after the last normalisation: [B, P + N, d_model], the class token first where there is one."""
        return self.final_norm(self.hidden_states(images, training=training)[-1])

    def pool(self, tokens):
        return tf.reduce_mean(tokens, axis=1) if self.pooling == "mean" else tokens[:, 0]

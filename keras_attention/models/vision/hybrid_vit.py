"""The documents' hybrid of a convolutional network and a Vision Transformer."""

import keras

from keras_attention.layers import ConvStem, GridPositions, RelativePositionBias2D
from keras_attention.layers.built_first import built_first
from keras_attention.models.vision.patch_transformer import PatchTransformer
from keras_attention.ops.basics import checks

POOLINGS = ("token", "mean")
POSITIONS = ("relative", "learned")


@keras.saving.register_keras_serializable("keras_attention")
class HybridViT(PatchTransformer):
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
        images: floating [B, H, W, channels], normalized as in training.

    Returns:
        Logits, float32 [B, num_classes]; without a head the pooled features, [B, d_model], in the compute dtype.

    Example:
        >>> HybridViT(32, 4, 10, d_model=64, num_heads=4)(np.zeros((2, 32, 32, 3), "float32")).shape
        TensorShape([2, 10])

    Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, https://arxiv.org/abs/2010.11929 (hybrid);
    Xiao et al., "Early Convolutions Help Transformers See Better", 2021, https://arxiv.org/abs/2106.14881
    """

    # Four convolutions and eight blocks, as wide as the ViT of that name.
    presets = {
        "Ti": {"d_model": 192, "num_heads": 3},
        "S": {"d_model": 384, "num_heads": 6},
        "B": {"d_model": 768, "num_heads": 12},
    }

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
        super().__init__(image_size, channels, num_classes, **kwargs)
        self.d_model = checks.positive_int("d_model", d_model)
        self.pooling = checks.one_of("pooling", pooling, POOLINGS)
        checks.one_of("positions", positions, POSITIONS)
        checks.positive_int("patch_size", patch_size)
        checks.positive_int("num_conv_layers", num_conv_layers)
        halvings = patch_size.bit_length() - 1
        if patch_size != 2**halvings or halvings > num_conv_layers:
            allowed = ", ".join(str(2**i) for i in range(num_conv_layers + 1))
            raise ValueError(
                f"patch_size must be one of {allowed}, as each of the {num_conv_layers} convolutions can halve the "
                f"sides. Got patch_size={patch_size}."
            )
        self.patch_size = (patch_size, patch_size)
        self.grid = self.token_grid(*self.image_size)
        layers = range(num_conv_layers)
        self.stem = ConvStem(
            # A normalization over one or two channels would leave nothing of them.
            [max(min(8, d_model), d_model // 2 ** (num_conv_layers - 1 - i)) for i in layers],
            [2 if i >= num_conv_layers - halvings else 1 for i in layers],
            activation=activation,
            epsilon=epsilon,
            dtype=self.dtype_policy,
            name="stem",
        )
        self.make_dropout(dropout_rate, seed)
        self.make_blocks(
            num_layers,
            num_heads,
            mlp_dim,
            mechanism=mechanism,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            drop_path_rate=drop_path_rate,
            layer_scale=layer_scale,
            activation=activation,
            epsilon=epsilon,
            remat=remat,
            seed=seed,
        )
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
        self.make_final_norm(epsilon)

    def build_stem(self):
        self.stem.build((None, *self.image_size, self.channels))

    def parts(self):
        return (self.positions,)

    def stem_tokens(self, images):
        return self.stem(images)

    def add_positions(self, tokens, grid):
        return tokens if self.positions is None else self.positions(tokens, grid=grid)

    def biases(self, grid):
        return [bias(grid) for bias in self.relative_biases] or super().biases(grid)

    @built_first
    def embed(self, images, training=False):
        """`(tokens, grid)`: what the convolutions give, as [B, P + rows * columns, d_model], and (rows, columns)."""
        return self._embed(images, training)

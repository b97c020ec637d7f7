"""The Vision Transformer."""

import keras

from keras_attention.layers import GridPositions, PatchEmbedding
from keras_attention.layers.built_first import built_first
from keras_attention.models.vision.patch_transformer import PatchTransformer
from keras_attention.ops.basics import checks

POOLINGS = ("token", "mean", "token_mean")


@keras.saving.register_keras_serializable("keras_attention")
class ViT(PatchTransformer):
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
        embedding_norm: whether the embeddings are normalized before the first block, as CLIP's image tower does.
        activation: of the feed-forward layers.
        epsilon: of the layer normalizations.
        remat: compute every block again for its gradient (gradient checkpointing), see `EncoderBlock`.
        seed: of the dropout.

    Call arguments:
        images: floating [B, H, W, channels], normalized as in training.

    Returns:
        Logits, float32 [B, num_classes]; without a head the pooled features, [B, feature_width], in the compute dtype.

    Example:
        >>> ViT.from_preset("Ti/16", image_size=64, num_classes=10)(np.zeros((2, 64, 64, 3), "float32")).shape
        TensorShape([2, 10])

    Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, https://arxiv.org/abs/2010.11929; Ti and S:
    Touvron et al., "Training data-efficient image transformers", 2021, https://arxiv.org/abs/2012.12877
    """

    # The feed-forward layer is four times as wide.
    presets = {
        "Ti": {"d_model": 192, "num_layers": 12, "num_heads": 3},
        "S": {"d_model": 384, "num_layers": 12, "num_heads": 6},
        "B": {"d_model": 768, "num_layers": 12, "num_heads": 12},
        "L": {"d_model": 1024, "num_layers": 24, "num_heads": 16},
        "H": {"d_model": 1280, "num_layers": 32, "num_heads": 16},
    }

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
        super().__init__(image_size, channels, num_classes, **kwargs)
        self.d_model = checks.positive_int("d_model", d_model)
        self.pooling = checks.one_of("pooling", pooling, POOLINGS)
        self.patch_embedding = PatchEmbedding(patch_size, d_model, dtype=self.dtype_policy, name="patch_embedding")
        self.patch_size = self.patch_embedding.patch_size
        self.grid = self.token_grid(*self.image_size)
        self.positions = GridPositions(
            self.grid, d_model, num_prefix_tokens=self.num_prefix_tokens, dtype=self.dtype_policy, name="positions"
        )
        self.make_dropout(dropout_rate, seed)
        self.embedding_norm = None
        if embedding_norm:
            self.embedding_norm = keras.layers.LayerNormalization(
                epsilon=epsilon, dtype=self.dtype_policy, name="embedding_norm"
            )
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
        self.make_final_norm(epsilon)

    @property
    def feature_width(self):
        return 2 * self.d_model if self.pooling == "token_mean" else self.d_model

    def build_stem(self):
        self.patch_embedding.build((None, *self.image_size, self.channels))

    def parts(self):
        return self.positions, self.embedding_norm

    def stem_tokens(self, images):
        return self.patch_embedding(images)

    def add_positions(self, tokens, grid):
        tokens = self.positions(tokens, grid=grid)
        return tokens if self.embedding_norm is None else self.embedding_norm(tokens)

    @built_first
    def embed(self, images, training=False):
        """Patches with their positions, after the class token where there is one: [B, 1 + N, d_model]."""
        return self._embed(images, training)[0]

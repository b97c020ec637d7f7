"""The Swin Transformer."""

import keras
import numpy as np
import tensorflow as tf

from keras_attention.layers import PatchEmbedding, PatchMerging, WindowBlock
from keras_attention.layers.built_first import built_first
from keras_attention.layers.dropout import Dropout
from keras_attention.models.configured import block_seed
from keras_attention.models.vision.image_model import ImageModel
from keras_attention.ops.basics import checks

# Width of the first stage, blocks and heads of each stage.
PRESETS = {
    "tiny": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": (96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": (192, (2, 2, 18, 2), (6, 12, 24, 48)),
}


@keras.saving.register_keras_serializable("keras_attention")
class SwinTransformer(ImageModel):
    """A pyramid of stages, each attending within shifted windows and halving the sides of the one before.

    Its cost grows with the number of pixels, not with its square as a ViT's: choose it for large images and where
    features of several resolutions are wanted. Any size of image is taken: images are padded with zeros below and to
    the right to whole patches, grids to whole windows and to even sides, wherever a stage needs it.

    Args:
        image_size: H and W of the training images; a default for exports, no weight depends on it.
        patch_size: sides of a patch. num_classes: classes, or None for no head.
        window_size: side of a window, in tokens.
        d_model: width of the first stage; every stage doubles it.
        depths: blocks of each stage. num_heads: attention heads in each stage.
        mlp_ratio: width of the feed-forward layers, in widths of their stage.
        channels: of the images.
        mechanism: how to attend in a window, by name or as an object; one that takes a mask and a bias.
        dropout_rate, attention_dropout_rate, drop_path_rate: see `ViT`.
        activation, epsilon, remat, seed: see `ViT`.

    Call arguments:
        images: floating [B, H, W, channels], normalized as in training.

    Returns:
        Logits, float32 [B, num_classes]; without a head the mean of the last stage's tokens, [B, feature_width].

    Example:
        >>> model = SwinTransformer.from_preset("tiny", image_size=64, num_classes=10)
        >>> model(np.zeros((2, 64, 64, 3), "float32")).shape
        TensorShape([2, 10])

    Reference: Liu et al., "Swin Transformer", 2021, https://arxiv.org/abs/2103.14030
    """

    block_lists = ("blocks", "mergings")

    def __init__(
        self,
        image_size,
        patch_size=4,
        num_classes=None,
        *,
        window_size=7,
        d_model=96,
        depths=(2, 2, 6, 2),
        num_heads=(3, 6, 12, 24),
        mlp_ratio=4.0,
        channels=3,
        mechanism="auto",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.1,
        activation="gelu",
        epsilon=1e-5,
        remat=False,
        seed=None,
        **kwargs,
    ):
        depths = [checks.positive_int("depths", n) for n in depths]
        num_heads = [checks.positive_int("num_heads", n) for n in num_heads]
        if len(depths) != len(num_heads):
            raise ValueError(
                f"depths and num_heads must have one number for each stage. Got depths={depths}, num_heads={num_heads}."
            )
        super().__init__(image_size, channels, num_classes, **kwargs)
        checks.positive_int("d_model", d_model)
        checks.positive_int("window_size", window_size)
        checks.positive_number("mlp_ratio", mlp_ratio)
        checks.rate("drop_path_rate", drop_path_rate)
        self.d_model = d_model
        self.depths = depths
        self.patch_embedding = PatchEmbedding(patch_size, d_model, dtype=self.dtype_policy, name="patch_embedding")
        # The published models keep 1e-5 here whatever the epsilon of the blocks.
        self.embedding_norm = keras.layers.LayerNormalization(
            epsilon=1e-5, dtype=self.dtype_policy, name="embedding_norm"
        )
        self.embedding_dropout = Dropout(dropout_rate, seed=seed, dtype=self.dtype_policy, name="embedding_dropout")
        rates = iter(np.linspace(0, drop_path_rate, sum(depths)))
        self.blocks, self.mergings = [], []
        for stage, (depth, heads) in enumerate(zip(depths, num_heads)):
            width = d_model * 2**stage
            if stage:
                self.mergings.append(PatchMerging(dtype=self.dtype_policy, name=f"merging_{stage}"))
            for i in range(depth):
                self.blocks.append(
                    WindowBlock(
                        width,
                        heads,
                        int(mlp_ratio * width),
                        window=window_size,
                        shift=i % 2 * (window_size // 2),
                        mechanism=mechanism,
                        dropout_rate=dropout_rate,
                        attention_dropout_rate=attention_dropout_rate,
                        drop_path_rate=float(next(rates)),
                        activation=activation,
                        epsilon=epsilon,
                        remat=remat,
                        seed=block_seed(seed, len(self.blocks)),
                        dtype=self.dtype_policy,
                        name=f"stage_{stage}_block_{i}",
                    )
                )
        self.final_norm = keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="final_norm")

    @classmethod
    def from_preset(cls, name, image_size=224, num_classes=None, **kwargs):
        """A model of a published size, with random weights.

        Args:
            name: "tiny", "small", "base" or "large".
            image_size, num_classes: see the class. **kwargs: its other arguments; those given win over the preset's.
        """
        checks.one_of("preset", name, tuple(PRESETS))
        d_model, depths, num_heads = PRESETS[name]
        options = {"d_model": d_model, "depths": depths, "num_heads": num_heads, **kwargs}
        return cls(image_size, num_classes=num_classes, **options)

    @property
    def feature_width(self):
        return self.d_model * 2 ** (len(self.depths) - 1)

    def build_parts(self):
        self.patch_embedding.build((None, *self.image_size, self.channels))
        self.embedding_norm.build((None, None, None, self.d_model))
        for stage, blocks in enumerate(self._stages()):
            for block in blocks:
                block.build((None, None, None, self.d_model * 2**stage))
            if stage < len(self.mergings):
                self.mergings[stage].build((None, None, None, self.d_model * 2**stage))
        self.final_norm.build((None, None, None, self.feature_width))

    def _stages(self):
        ends = np.cumsum(self.depths)
        return [self.blocks[end - depth : end] for end, depth in zip(ends, self.depths)]

    @built_first
    def embed(self, images, training=False):
        """The normalized patches, [B, rows, columns, d_model]."""
        x = self.embedding_norm(self.patch_embedding(self.prepared(images)))
        return self.embedding_dropout(x, training=training)

    @built_first
    def hidden_states(self, images, training=False):
        """What `embed` gives, and what each stage hands on (merged but for the last): [B, rows, columns, width]."""
        states = [self.embed(images, training=training)]
        for stage, blocks in enumerate(self._stages()):
            x = states[-1]
            for block in blocks:
                x = block(x, training=training)
            states.append(self.mergings[stage](x) if stage < len(self.mergings) else x)
        return states

    @built_first
    def features(self, images, training=False):
        """The last stage's tokens after the last normalization: [B, rows * columns, feature_width]."""
        x = self.final_norm(self.hidden_states(images, training=training)[-1])
        batch, rows, columns, width = checks.sizes(x)
        return tf.reshape(x, [batch, rows * columns, width])

    def pool(self, tokens):
        return tf.reduce_mean(tokens, axis=1)

"""What ViT and its hybrid with convolutions share: encoder blocks over a grid of tokens, and what is read off them."""

import keras
import numpy as np
import tensorflow as tf

from keras_attention.layers import EncoderBlock
from keras_attention.layers.built_first import built_first
from keras_attention.layers.dropout import Dropout
from keras_attention.mechanisms import base as mechanisms
from keras_attention.models.configured import block_seed
from keras_attention.models.vision.image_model import ImageModel
from keras_attention.ops.basics import checks


class PatchTransformer(ImageModel):
    """Base of models with encoder blocks over the tokens of a grid, after a class token where `pooling` asks for one.

    A subclass gives `parts`, `tokens` and its constructor, which sets `d_model`, `pooling`, `patch_size` and `grid` and
    calls `make_dropout`, `make_blocks` and `make_final_norm` in the order in which its parts draw their numbers.
    """

    # Sizes by name: the constructor's arguments.
    presets = {}

    def parts(self):
        """The parts that are built for tokens [B, P + N, d_model], in the order of their weights, None for none."""
        raise NotImplementedError

    def build_stem(self):
        """Builds what makes tokens of images."""
        raise NotImplementedError

    def stem_tokens(self, images):
        """The grid of tokens, [B, rows, columns, d_model], of prepared images."""
        raise NotImplementedError

    def add_positions(self, tokens, grid):
        """What is added to the tokens, if anything is."""
        raise NotImplementedError

    def biases(self, grid):
        """The additive bias of each block's attention, or None."""
        return [None] * len(self.blocks)

    @classmethod
    def from_preset(cls, name, image_size=224, num_classes=None, **kwargs):
        """A model of a published size, with random weights.

        Args:
            name: size and patch, such as "Ti/16" or "S/16"; the sizes are the keys of `presets`.
            image_size, num_classes: see the class. **kwargs: its other arguments; those given win over the preset's.
        """
        size, _, patch = str(name).partition("/")
        if size not in cls.presets or not patch.isdecimal() or int(patch) < 1:
            raise ValueError(
                f"A preset is SIZE/PATCH with SIZE one of {', '.join(cls.presets)}, such as 'S/16'. Got {name!r}."
            )
        return cls(image_size, int(patch), num_classes, **{**cls.presets[size], **kwargs})

    @property
    def num_prefix_tokens(self):
        """How many tokens stand before the grid."""
        return 0 if self.pooling == "mean" else 1

    @property
    def feature_width(self):
        return self.d_model

    def token_grid(self, height, width):
        """(rows, columns) of the tokens of an image of that size."""
        return tuple(-(-size // by) for size, by in zip((height, width), self.patch_size))

    def make_dropout(self, rate, seed):
        self.embedding_dropout = Dropout(rate, seed=seed, dtype=self.dtype_policy, name="embedding_dropout")

    def make_blocks(self, num_layers, num_heads, mlp_dim, *, mechanism, drop_path_rate, seed, **options):
        """The encoder blocks; stochastic depth grows linearly from 0 at the first to `drop_path_rate`."""
        checks.positive_int("num_layers", num_layers)
        checks.rate("drop_path_rate", drop_path_rate)
        self.blocks = [
            EncoderBlock(
                self.d_model,
                num_heads,
                4 * self.d_model if mlp_dim is None else mlp_dim,
                mechanism=mechanisms.for_grid(mechanism, self.grid, self.num_prefix_tokens),
                drop_path_rate=float(rate),
                seed=block_seed(seed, i),
                dtype=self.dtype_policy,
                name=f"block_{i}",
                **options,
            )
            for i, rate in enumerate(np.linspace(0, drop_path_rate, num_layers))
        ]

    def make_final_norm(self, epsilon):
        self.final_norm = keras.layers.LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="final_norm")

    def build_parts(self):
        self.build_stem()
        if self.num_prefix_tokens:
            self.class_token = self.add_weight(
                name="class_token", shape=(1, 1, self.d_model), initializer=keras.initializers.RandomNormal(stddev=0.02)
            )
        for part in (*self.parts(), *self.blocks, self.final_norm):
            if part is not None:
                part.build((None, None, self.d_model))

    def _embed(self, images, training):
        """`(tokens, grid)`: the class token where there is one and the grid's, with positions; (rows, columns)."""
        x = self.stem_tokens(self.prepared(images))
        batch, rows, columns, _ = checks.sizes(x)
        x = tf.reshape(x, [batch, rows * columns, self.d_model])
        if self.num_prefix_tokens:
            token = tf.cast(self.class_token, x.dtype)
            x = tf.concat([tf.broadcast_to(token, [batch, 1, self.d_model]), x], axis=1)
        x = self.add_positions(x, (rows, columns))
        return self.embedding_dropout(x, training=training), (rows, columns)

    def _states(self, images, training=False):
        """`(hidden states, biases of the blocks)`."""
        x, grid = self._embed(images, training)
        states, biases = [x], self.biases(grid)
        for block, bias in zip(self.blocks, biases):
            states.append(block(states[-1], bias=bias, training=training))
        return states, biases

    @built_first
    def hidden_states(self, images, training=False):
        """What `embed` gives, and the output of each block: num_layers + 1 tensors [B, P + N, d_model]."""
        return self._states(images, training)[0]

    @built_first
    def attention_scores(self, images):
        """The weights of attention of each block: a list of num_layers tensors [B, H, P + N, P + N]."""
        states, biases = self._states(images)
        return [block.attention_scores(x, bias) for block, x, bias in zip(self.blocks, states, biases)]

    @built_first
    def features(self, images, training=False):
        """Tokens after the last normalization: [B, P + N, d_model], the class token first where there is one."""
        return self.final_norm(self.hidden_states(images, training=training)[-1])

    def pool(self, tokens):
        if self.pooling == "token":
            return tokens[:, 0]
        mean = tf.reduce_mean(tokens[:, self.num_prefix_tokens :], axis=1)
        return mean if self.pooling == "mean" else tf.concat([tokens[:, 0], mean], axis=-1)

"""Attention mechanisms: one file each, found by name."""

from keras_attention.mechanisms.base import Mechanism, Supports, class_of, get, names, register
from keras_attention.mechanisms.from_text import from_text

# In the order of `names()`.
# isort: off
from keras_attention.mechanisms.softmax import SoftmaxAttention
from keras_attention.mechanisms.relu import ReluAttention
from keras_attention.mechanisms.blockwise import BlockwiseAttention
from keras_attention.mechanisms.auto import AutoAttention
from keras_attention.mechanisms.local import LocalAttention
from keras_attention.mechanisms.longformer import LongformerAttention
from keras_attention.mechanisms.bigbird import BigBirdAttention
from keras_attention.mechanisms.block_sparse import BlockSparseAttention
from keras_attention.mechanisms.random_keys import RandomAttention
from keras_attention.mechanisms.axial import AxialAttention
from keras_attention.mechanisms.linear import LinearAttention
from keras_attention.mechanisms.performer import PerformerAttention
from keras_attention.mechanisms.nystrom import NystromAttention
from keras_attention.mechanisms.linformer import LinformerAttention
from keras_attention.mechanisms.lsh import LSHAttention
from keras_attention.mechanisms.retention import RetentionAttention

# isort: on

__all__ = [
    "AutoAttention",
    "AxialAttention",
    "BigBirdAttention",
    "BlockSparseAttention",
    "BlockwiseAttention",
    "LSHAttention",
    "LinearAttention",
    "LinformerAttention",
    "LocalAttention",
    "LongformerAttention",
    "Mechanism",
    "NystromAttention",
    "PerformerAttention",
    "RandomAttention",
    "ReluAttention",
    "RetentionAttention",
    "SoftmaxAttention",
    "Supports",
    "class_of",
    "from_text",
    "get",
    "names",
    "register",
]

"""One line per mechanism: everything in test_every_mechanism.py then runs on it.

To add a mechanism, append `Case("name", {options})` to `CASES`; the options are its constructor's arguments, small
enough to matter at lengths of 5 to 12. What differs from dense softmax attention is told by the other fields:

    Case("local", {"radius": 2}, reference=my_loop, exact=False)

`reference(q, k, v, *, limits, bias, scale, mechanism, **projected)` is a float64 NumPy loop over heads, as
`reference.softmax` is: q [B,H,T,D], k and v [B,H,S,D] (key heads already repeated to H), `limits` a `reference.Limits`,
`mechanism` the layer's mechanism (its options and weights), `projected` what else `heads` gives.
Put it in tests/support/reference_<topic>.py.
"""

import dataclasses
from collections.abc import Callable

import reference
import reference_kernels
import reference_patterns


@dataclasses.dataclass(frozen=True)
class Case:
    """A mechanism under test.

    Attributes:
        name: its registered name.
        options: constructor arguments.
        heads: what `reference` is given, from (layer, v, k, q): q, k, v [B, H, T or S, D] and a dict of the rest.
        finish: what stands between attention and the output projection, from (layer, joined [B, T, H D], q).
        reference: the float64 loop that its output must equal.
        exact: whether it equals softmax attention; if not, a real difference from it is asserted.
        length: length of self-attention in the tests (a mechanism that works on one length only gives it here, with
            `dynamic=False`).
        dynamic: whether lengths may be unknown when a graph is traced.
        tolerance: absolute tolerance in float32 against the reference.
        state_tolerance: absolute tolerance of prefill + steps against one pass.
        half_tolerance: relative tolerances in float16 and bfloat16.
        layer: further arguments of MultiHeadAttention, such as a head_dim that must be even.
        skips: test name without `test_` -> the reason why it cannot hold for this mechanism. Say it in its docs too.
    """

    name: str
    options: dict = dataclasses.field(default_factory=dict)
    # Before the field whose name hides the module.
    heads: Callable = reference.plain_heads
    finish: Callable = reference.unfinished
    reference: Callable = reference.softmax
    exact: bool = True
    length: int = 7
    dynamic: bool = True
    tolerance: float = 2e-5
    state_tolerance: float = 1e-5
    half_tolerance: tuple[float, float] = (5e-3, 3e-2)
    layer: dict = dataclasses.field(default_factory=dict)
    skips: dict = dataclasses.field(default_factory=dict)


CASES = [
    Case("softmax"),
    Case("relu", reference=reference_patterns.relu, exact=False),
    Case("blockwise", {"query_block_size": 2, "key_block_size": 3}),
    Case("local", {"radius": 2}, reference=reference_patterns.local, exact=False),
    Case(
        "longformer",
        {"radius": 1, "num_global": 2},
        reference=reference_patterns.longformer,
        heads=reference.heads_with_global_ones,
        exact=False,
    ),
    Case(
        "bigbird",
        {"block_size": 2, "neighbours": 0, "num_global_blocks": 1, "num_random_blocks": 1, "seed": 4},
        reference=reference_patterns.bigbird,
        exact=False,
    ),
    Case("block_sparse", {"block_size": 2}, reference=reference_patterns.block_sparse, exact=False),
    Case("random", {"num_keys": 3, "seed": 1}, reference=reference_patterns.random_keys, exact=False),
    Case(
        "axial",
        {"shape": [2, 3], "num_class_tokens": 1},
        reference=reference_patterns.axial_grid,
        exact=False,
        dynamic=False,
    ),
    Case("linear", {"chunk_size": 3}, reference=reference_kernels.linear_case, exact=False),
    Case(
        "performer",
        {"num_features": 8, "seed": 2, "chunk_size": 3},
        reference=reference_kernels.performer_case,
        exact=False,
    ),
    Case(
        "nystrom",
        {"num_landmarks": 3, "iterations": 4, "kernel_size": 3},
        reference=reference_kernels.nystrom_case,
        exact=False,
        half_tolerance=(5e-3, 5e-2),  # the iterations of the inverse carry roundings on
    ),
    Case(
        "linformer",
        {"max_length": 12, "rank": 4, "sharing": "none"},
        reference=reference_kernels.linformer_case,
        exact=False,
    ),
    Case(
        "lsh",
        {"num_buckets": 2, "bucket_size": 2, "seed": 3},
        reference=reference_kernels.lsh_case,
        heads=reference.heads_with_shared_queries,
        exact=False,
    ),
    Case(
        "retention",
        {"chunk_size": 3},
        reference=reference_kernels.retention_case,
        finish=reference.normed_and_gated,
        exact=False,
        layer={"head_dim": 4},  # pairs of features are turned
    ),
]

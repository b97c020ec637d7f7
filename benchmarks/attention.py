"""Exact attention: blockwise beside the dense form, Keras' layer and PyTorch, in time and in memory.

    benchmarks/peers/setup.sh                # once: PyTorch in its own environment
    python -m benchmarks.attention --save

Batch 1, 8 heads of 64, float32 unless said. Everything of one length runs in turn in one process (PyTorch in a worker
with as many threads). Compilation is apart. Peak memory comes from fresh processes.
"""

import argparse
import functools

from benchmarks.harness import ROOT, Report, Worker, duration, measure, peak_memory, size
from benchmarks.machine import this_machine

PEERS = ROOT / ".venv-peers" / "bin" / "python"
HEADS, DEPTH = 8, 64
# Beyond this length the dense forms would need more memory than most machines have.
LONGEST_DENSE = 8192


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 4096, 16384], help="none: no functions")
    parser.add_argument(
        "--masks", nargs="+", default=["causal", "full", "padded"], choices=["causal", "full", "padded"]
    )
    parser.add_argument("--layer-lengths", type=int, nargs="*", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--memory-lengths", type=int, nargs="*", default=[4096, 8192, 16384])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out (its environment is not needed)")
    parser.add_argument("--save", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    options = parser.parse_args(arguments)
    if not options.no_torch and not PEERS.exists():
        parser.error(f"{PEERS} is missing: run benchmarks/peers/setup.sh, or give --no-torch")
    reports = []
    if options.lengths:
        torch = None if options.no_torch else Worker([PEERS, "-m", "benchmarks.peers.torch_worker"])
        reports.append(functions(options, torch))
        if torch:
            torch.close()
    if options.layer_lengths:
        reports.append(layers(options))
    if options.memory_lengths:
        reports.append(memory(options))
    for report in reports:
        report.print()
        if options.save:
            report.save()


def functions(options, torch):
    """The functions themselves: q, k and v of shape [1, 8, T, 64]."""
    report = Report(f"Attention function, {options.dtype}")
    peer = torch.ready if torch else None
    for mask in options.masks:
        for length in options.lengths:
            for backward in (False, True):
                work = {"blockwise": attention_case("blockwise", length, mask, backward, options.dtype)}
                if length <= LONGEST_DENSE:
                    for name in ("dense", "dense, XLA"):
                        work[name] = attention_case(name, length, mask, backward, options.dtype)
                if torch:
                    torch.ask(
                        {
                            "length": length,
                            "heads": HEADS,
                            "depth": DEPTH,
                            "mask": mask,
                            "backward": backward,
                            "dtype": options.dtype,
                            "threads": this_machine().threads,
                        }
                    )
                    work[peer] = torch
                # Two products forward, five backward (scores are computed again); half of the pairs under causality.
                pairs = length * (length + 1) / 2 if mask == "causal" else length * length
                operations = {
                    name: 4 * HEADS * DEPTH * pairs * (3.5 if backward else 1) for name in ("blockwise", peer)
                }
                exponentials = _exponentials(pairs * (2 if backward else 1))
                rounds = options.rounds if length <= LONGEST_DENSE else max(3, options.rounds // 2)
                timings = measure(
                    {**work, "exponentials alone": exponentials},
                    baseline="blockwise",
                    rounds=rounds,
                    operations=operations,
                    rate_dtype=options.dtype,
                )
                for timing in timings.values():
                    report.add(
                        mask=mask,
                        what="forward + gradient" if backward else "forward",
                        T=length,
                        candidate=timing.name,
                        median=duration(timing.median),
                        spread=f"±{timing.spread:.0%}",
                        **{
                            "blockwise is": f"{1 / timing.ratio:.2f}x as fast",
                            "GFLOP/s": "" if timing.rate is None else f"{timing.rate / 1e9:.0f}",
                            "of matrix rate": "" if timing.rate is None else f"{timing.share:.0%}",
                            "matrix GFLOP/s": f"{timing.machine_rate / 1e9:.0f}",
                            "first call": "" if isinstance(work.get(timing.name), Worker) else duration(timing.first),
                        },
                    )
    report.notes.append(
        "Operations counted: 4 T S D a head forward, 14 T S D with the gradient, half under causality. Exponentials "
        "alone: one for each pair forward, two with the gradient, by XLA. Padded: the last quarter of the keys."
    )
    if any(length > LONGEST_DENSE for length in options.lengths):
        report.notes.append(
            f"Dense forms are not run beyond T = {LONGEST_DENSE}: their scores alone take 8 T² x 4 bytes."
        )
    return report


def attention_case(name, length, mask, backward, dtype="float32"):
    """A callable that attends once (and takes the gradient) on random inputs, for `measure` and `peak_memory`.

    Args:
        name: "blockwise", "dense" or "dense, XLA".
        mask: "full", "causal" or "padded".
    """
    import tensorflow as tf

    from keras_attention.ops.dense.blockwise import blockwise_attention
    from keras_attention.ops.dense.dot_product import scaled_dot_product_attention

    shape = (1, HEADS, length, DEPTH)
    q, k, v, upstream = (tf.cast(tf.random.stateless_normal(shape, (n, 0)), dtype) for n in range(4))
    options = {"use_causal_mask": mask == "causal"}
    padding = tf.range(length)[None] < length - length // 4
    if name == "blockwise":
        options |= {"xla": True, "padding_mask": padding if mask == "padded" else None}
        attention = functools.partial(blockwise_attention, **options)
    else:
        options["mask"] = padding[:, None, None] if mask == "padded" else None
        attention = functools.partial(scaled_dot_product_attention, **options)

    def both(q, k, v):
        with tf.GradientTape() as tape:
            tape.watch([q, k, v])
            out = attention(q, k, v)
        return [out, *tape.gradient(out, [q, k, v], upstream)]

    work = tf.function(both if backward else attention, autograph=False, jit_compile=name == "dense, XLA")
    return lambda: work(q, k, v)


def layers(options):
    """Whole layers of width 512, as a user has them: ours choosing by itself, and Keras' own."""
    report = Report(f"Attention layer, {options.dtype}")
    for length in options.layer_lengths:
        for backward in (False, True):
            work = {name: layer_case(name, length, backward, options.dtype) for name in ("ours", "keras.layers")}
            timings = measure(work, baseline="keras.layers", rounds=2 * options.rounds, rate_dtype=options.dtype)
            what = "forward + gradient" if backward else "forward"
            report.add_timings(timings, what=what, T=length)
    report.notes.append(
        "MultiHeadAttention(512, 8) of this package (mechanism='auto') and keras.layers.MultiHeadAttention(8, 64): "
        "self-attention, causal, batch 1, inside tf.function; gradients to all weights and the input."
    )
    return report


def layer_case(name, length, backward, dtype="float32", mechanism="auto", causal=True, traced=False):
    """A callable that runs a layer of width 512 once, for `measure` and `peak_memory`.

    Args:
        name: "ours" or "keras.layers".
        mechanism: of ours: a name, with options as in "local:radius=3".
        causal: whether the future is hidden.
        traced: make the graph at once, so that the first call does not.
    """
    import keras
    import tensorflow as tf

    from keras_attention import MultiHeadAttention, mechanisms

    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    shape = (1, length, HEADS * DEPTH)
    x = tf.random.stateless_normal(shape, (1, 0))
    if name == "ours":
        chosen = mechanisms.from_text(mechanism) if ":" in mechanism else mechanism
        layer = MultiHeadAttention(HEADS * DEPTH, HEADS, mechanism=chosen, dtype=policy)
        layer.build(shape)
        call = functools.partial(layer, use_causal_mask=causal)
    else:
        layer = keras.layers.MultiHeadAttention(HEADS, DEPTH, dtype=policy)
        layer.build(shape, shape)

        def call(x, training):
            return layer(x, x, use_causal_mask=causal, training=training)

    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = call(x, training=True)
        return [out, *tape.gradient(out, [x, *layer.trainable_variables])]

    work = tf.function(both if backward else functools.partial(call, training=False), autograph=False)
    if traced:
        work.get_concrete_function(x)
    return lambda: work(x)


def memory(options):
    """Peak memory of forward and gradient beyond inputs and results, each in a fresh process."""
    report = Report(f"Attention memory, {options.dtype}")
    for mask in options.masks:
        for length in options.memory_lengths:
            shared = {"length": length, "mask": mask, "backward": True, "dtype": options.dtype}
            runs = {"blockwise": ("benchmarks.attention:attention_case", {"name": "blockwise", **shared}, {})}
            if length <= LONGEST_DENSE // 2:
                runs["dense"] = ("benchmarks.attention:attention_case", {"name": "dense", **shared}, {})
            if not options.no_torch:
                runs["PyTorch"] = ("benchmarks.peers.torch_worker:attention", shared, {"python": PEERS})
            for name, (target, arguments, how) in runs.items():
                used = peak_memory(target, arguments, **how)
                report.add(
                    mask=mask,
                    T=length,
                    candidate=name,
                    **{
                        "extra peak": size(used.extra),
                        "output and gradients": size(used.results),
                        "in score tensors": f"{used.extra / (HEADS * length * length * 4):.2f}",
                    },
                )
    report.notes.append(
        "Forward and gradient, the first call of a fresh process, its compilation included. The last column is the "
        "extra peak in units of one float32 score tensor [8, T, T]."
    )
    return report


def _exponentials(count):
    """A callable that takes about `count` times 8 heads exponentials in tiles of [8, 256, 256], by XLA."""
    import tensorflow as tf

    scores = tf.random.stateless_uniform((HEADS, 256, 256), (9, 0), -8.0, 0.0)
    repeats = max(1, round(count / 256**2))

    @functools.partial(tf.function, autograph=False, jit_compile=True)
    def exponentials(scores):
        # Each round takes the last one's result, so that none can be left out; x -> exp(x) - 2 stays in range.
        step = lambda index, x: (index + 1, tf.exp(x) - 2.0)  # noqa: E731
        return tf.while_loop(lambda index, _: index < repeats, step, (0, scores), maximum_iterations=repeats)[1]

    return lambda: exponentials(scores)


if __name__ == "__main__":
    main()

"""A translation training step: ours beside KerasHub's layers and PyTorch's nn.Transformer, in tokens per second.

    benchmarks/peers/setup.sh                # once: KerasHub and PyTorch in their own environment
    python -m benchmarks.training --save

All build the same model (pre-norm, separate embeddings and output projection, sinusoidal positions) and do the same
step: cross-entropy over real tokens, Adam, dropout of embeddings, sub-layers and attention weights. They run in turn,
peers in workers with as many threads. Compilation is apart.
"""

import argparse
import statistics

from benchmarks.harness import ROOT, Report, Worker, duration, measure
from benchmarks.machine import this_machine

PEERS = ROOT / ".venv-peers" / "bin" / "python"
STEPS = (
    "ours",
    "ours, XLA",
    "ours, Keras' Adam",
    "ours, mixed_bfloat16",
    "ours, mixed_bfloat16, XLA",
    "ours, mixed_float16",
    "KerasHub",
    "KerasHub, XLA",
    "KerasHub, mixed_bfloat16",
    "KerasHub, mixed_bfloat16, XLA",
    "PyTorch",
)
# mixed_float16 is for GPUs: on a CPU it is slow beyond use, so it runs only where it is asked for.
DEFAULT = tuple(name for name in STEPS if "float16" not in name) + ("ours, mixed_bfloat16", "ours, mixed_bfloat16, XLA")


def main(arguments=None):
    """Prints the tables; with --save also writes them into benchmarks/RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--candidates", nargs="+", default=DEFAULT, choices=STEPS, metavar="NAME", help="; ".join(STEPS)
    )
    parser.add_argument("--layers", type=int, default=3, help="encoder blocks, and as many decoder blocks")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--mlp-dim", type=int, default=1024)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=24, help="of sources and of targets")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.0, help="of all losses; 0 is the peers' fastest")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-input", action="store_true", help="leave out the table of the input pipeline")
    parser.add_argument("--save", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    options = parser.parse_args(arguments)
    if not PEERS.exists() and any(not name.startswith("ours") for name in options.candidates):
        parser.error(f"{PEERS} is missing: run benchmarks/peers/setup.sh, or give --candidates without peers")
    reports = [steps(options)]
    if not options.no_input:
        reports.append(inputs(options))
    for report in reports:
        report.print()
        if options.save:
            report.save()


def steps(options):
    """Tokens per second of whole training steps."""
    sizes = {
        "vocab_size": options.vocab_size,
        "d_model": options.d_model,
        "heads": options.heads,
        "layers": options.layers,
        "mlp_dim": options.mlp_dim,
        "batch": options.batch,
        "length": options.length,
        "dropout": options.dropout,
        "label_smoothing": options.label_smoothing,
        "learning_rate": 1e-4,
    }
    work, workers = {}, []
    for name in options.candidates:
        peer, *how = name.split(", ")
        case = {"jit_compile": "XLA" in how, "policy": next((x for x in how if x.startswith("mixed")), "float32")}
        if peer == "ours":
            work[name] = our_step(**sizes, **case, fused_adam="Keras' Adam" not in how)
            continue
        module = "keras_hub_worker" if peer == "KerasHub" else "torch_training_worker"
        worker = Worker([PEERS, "-m", f"benchmarks.peers.{module}"])
        workers.append(worker)
        worker.ask({**sizes, **(case if peer == "KerasHub" else {}), "threads": this_machine().threads})
        work[", ".join([worker.ready, *how])] = worker
    count = operations(options)
    timings = measure(work, rounds=options.rounds, operations=count)
    for worker in workers:
        worker.close()
    hubs = [t.median for t in timings.values() if t.name.startswith("KerasHub") and "float16" not in t.name]
    plain = timings.get("ours")
    tokens = options.batch * options.length
    report = Report("Translation training step")
    for timing in timings.values():
        report.add(
            candidate=timing.name,
            **{
                "target tokens per second": f"{tokens / timing.median:,.0f}",
                "step": duration(timing.median),
                "spread": f"±{timing.spread:.0%}",
                "against the best KerasHub": f"{min(hubs) / timing.median:.2f}x" if hubs else "",
                "against ours in float32": f"{plain.median / timing.median:.2f}x" if plain else "",
                "GFLOP/s": f"{timing.rate / 1e9:.0f}",
                "of matrix rate": f"{timing.share:.0%}",
                "matrix GFLOP/s": f"{timing.machine_rate / 1e9:.0f}",
                "first call": "" if isinstance(work[timing.name], Worker) else duration(timing.first),
            },
        )
    report.notes.append(
        f"{options.layers} + {options.layers} layers, d_model {options.d_model}, {options.heads} heads, feed-forward "
        f"{options.mlp_dim}, vocabulary {options.vocab_size}, batch {options.batch} x {options.length} + "
        f"{options.length}, dropout {options.dropout}, label smoothing {options.label_smoothing}; float32 unless "
        "said. Ours takes the package's Adam unless said, PyTorch its fused one: one operation a variable. "
        "The best KerasHub is the faster of its float32 forms."
    )
    report.notes.append(
        f"Operations counted: {count / 1e9:.1f} GFLOP a step, two for each multiplication of a matrix product, three "
        "products for one (forward, gradient of the input, gradient of the weights). The matrix rate is float32."
    )
    return report


def our_step(
    vocab_size,
    d_model,
    heads,
    layers,
    mlp_dim,
    batch,
    length,
    dropout,
    label_smoothing,
    learning_rate,
    jit_compile=False,
    policy="float32",
    fused_adam=True,
):
    """A callable that does one step of Adam on one batch of random ids and returns the loss."""
    import keras

    from benchmarks.keras_step import keras_step
    from keras_attention.models import Transformer
    from keras_attention.training.optimization.adam import FusedAdam
    from keras_attention.training.optimization.losses import MaskedCrossentropy

    keras.utils.set_random_seed(0)
    model = Transformer(
        vocab_size,
        vocab_size,
        d_model=d_model,
        num_heads=heads,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        mlp_dim=mlp_dim,
        dropout_rate=dropout,
        attention_dropout_rate=dropout,
        max_length=length,
        tie_output=False,
        dtype=policy,
    )
    model.build()
    loss = MaskedCrossentropy(label_smoothing)
    adam = FusedAdam if fused_adam else None
    return keras_step(model, loss, vocab_size, batch, length, learning_rate, jit_compile, adam)


def operations(options):
    """Floating-point operations of the matrix products of one step."""
    d, length = options.d_model, options.length
    attention = 4 * d * d + 2 * length * d  # projections of q, k, v and output; scores and weighted sum
    feed_forward = 2 * d * options.mlp_dim
    encoder, decoder = attention + feed_forward, 2 * attention + feed_forward
    multiplications = options.layers * (encoder + decoder) + d * options.vocab_size
    return 2 * 3 * multiplications * options.batch * length


def inputs(options):
    """The input pipeline alone, on sentences of random lengths: it must outrun any step."""
    import time

    import numpy as np

    from keras_attention.training.translation.batches import BatchPlan

    report = Report("Translation input pipeline")
    rng = np.random.default_rng(0)
    budget = options.batch * options.length
    lengths = rng.integers(1, max(2, min(options.length * 2, budget) - 2), (2, 40 * options.batch))
    sources, targets = ([[7] * n for n in side] for side in lengths)
    for static in (False, True):
        plan = BatchPlan(sources, targets, tokens_per_batch=budget, max_length=budget, static_shapes=static)
        dataset, seconds = plan.dataset(), []
        for _ in range(options.rounds):
            began = time.perf_counter()
            tokens = sum(int(np.count_nonzero(labels)) for _, labels in dataset)
            seconds.append(time.perf_counter() - began)
        report.add(
            shapes="static" if static else "free",
            **{
                "batches an epoch": len(plan),
                "different shapes": len(plan.shapes) if static else "",
                "a batch": duration(statistics.median(seconds) / len(plan)),
                "target tokens per second": f"{tokens / statistics.median(seconds):,.0f}",
            },
        )
    report.notes.append(
        f"{len(sources)} pairs of 1 to {lengths.max()} tokens, at most {budget} tokens a batch. Training prefetches "
        "batches while a step runs; static shapes are those of --jit-compile."
    )
    return report


if __name__ == "__main__":
    main()

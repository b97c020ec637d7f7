"""Gradient checkpointing: peak memory and time of a training step, with and without it, at three depths.

    python -m benchmarks.checkpointing --save

The model is a language model (width 256, 4 heads, feed-forward 1024, dense attention, dropout) on 4 pieces of 512
tokens, with Adam. Memory comes from fresh processes, beyond the weights, the optimizer's and the inputs; time from one
process in which both run in turn.
"""

import argparse

from benchmarks.claims import save_claim
from benchmarks.harness import Report, duration, measure, peak_memory, size

CLAIM = "gradient checkpointing"
DOCUMENT = "-50 % memory for +30 % time"
WORD = (
    "Memory of a step beyond weights, optimizer and inputs. Without checkpointing it grows by all that a layer makes, "
    "with it by one tensor [B, T, d_model] a layer, so the share falls with the depth. The time is that of one more "
    "forward pass: a third of a step whose gradient costs two."
)


def main(arguments=None):
    """Prints the table; with --save also writes it into benchmarks/RESULTS.md, and the claim's row into CLAIMS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpointing", description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--precision", default="float32", choices=["float32", "mixed_bfloat16", "mixed_float16"])
    parser.add_argument("--jit-compile", action="store_true", help="compile the whole step with XLA")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write into benchmarks/RESULTS.md and CLAIMS.md")
    options = parser.parse_args(arguments)
    report = Report(f"Gradient checkpointing, {options.precision}{', XLA' if options.jit_compile else ''}")
    found = [_measured(options, layers, report) for layers in options.layers]
    report.notes.append(
        f"Language model of width {options.d_model}, {options.batch} x {options.length} tokens, dense attention, "
        "dropout 0.1, Adam. Memory: the most that a step needs beyond weights, optimizer and inputs, each in a fresh "
        "process that has made a small step before."
    )
    report.print()
    if options.save:
        report.save()
        save_claim(CLAIM, DOCUMENT, "; ".join(found), report.command, WORD)


def _measured(options, layers, report):
    """Adds the rows of one depth; returns them as a phrase."""
    sizes = {
        "layers": layers,
        "batch": options.batch,
        "length": options.length,
        "d_model": options.d_model,
        "precision": options.precision,
        "jit_compile": options.jit_compile,
    }
    work = {name: training_step(remat=name == "remat", **sizes) for name in ("plain", "remat")}
    timings = measure(work, baseline="plain", rounds=options.rounds)
    needed = {
        name: peak_memory("benchmarks.checkpointing:training_step", {**sizes, "remat": name == "remat"}).extra
        for name in work
    }
    for name in work:
        report.add(
            layers=layers,
            step=name,
            memory=size(needed[name]),
            **{"of plain": f"{needed[name] / max(needed['plain'], 1):.0%}"},
            median=duration(timings[name].median),
            spread=f"±{timings[name].spread:.0%}",
            time=f"{1 / timings[name].ratio:.2f}x",
        )
    memory = needed["remat"] / max(needed["plain"], 1) - 1
    return f"{layers} layers: {memory:+.0%} memory for {1 / timings['remat'].ratio - 1:+.0%} time".replace("%", " %")


def training_step(*, layers, batch, length, d_model, precision, jit_compile, remat):
    """A callable that makes one training step, for `measure` and `peak_memory`; its graph is traced and run before."""
    import keras
    import tensorflow as tf

    from keras_attention.models import DecoderLM

    keras.utils.set_random_seed(0)
    model = DecoderLM(
        260,
        d_model=d_model,
        num_heads=4,
        num_layers=layers,
        mechanism="softmax",
        dropout_rate=0.1,
        remat=remat,
        dtype=precision,
    )
    model.build()
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)
    tokens = tf.random.stateless_uniform([batch, length + 1], (1, 2), 4, 260, tf.int32)

    @tf.function(autograph=False, jit_compile=jit_compile, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def step(tokens):
        with tf.GradientTape() as tape:
            logits = model(tokens[:, :-1], training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[:, 1:], logits))
        weights = [variable.value for variable in model.trainable_variables]
        optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)
        return loss

    # Compiled programs belong to their shapes.
    step(tokens if jit_compile else tokens[:1, :9])
    return lambda: step(tokens)


if __name__ == "__main__":
    main()

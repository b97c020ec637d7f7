"""Generation with and without a cache: `python -m benchmarks.generation [--save]`.

The documents say that a KV cache makes generation 3 to 5 times as fast. Both sides run the same translation model in
one graph each, greedily to exactly N tokens: cached with a fixed-size state, uncached by a pass over all tokens so far.
"""

import argparse
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from benchmarks.harness import Report, measure
from keras_attention.generation import greedy, greedy_uncached
from keras_attention.models import Transformer

VOCAB, D_MODEL, LAYERS, HEADS, SOURCE_LENGTH = 8000, 256, 3, 4, 24


def generators(model, length):
    """Two functions of source ids [B, S] that generate `length` tokens: `(cached, uncached)`."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def cached(source):
        state = model.init_state(source, max_length=length)
        start = tf.fill([tf.shape(source)[0]], 2)
        return greedy(model.step, state, start, end_id=-1, max_new_tokens=length).tokens

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def uncached(source):
        # The source is encoded once: only the decoder's work differs.
        memory, valid = model.encode(source), tf.not_equal(source, 0)

        def logits(target):
            state = model.init_state_from_memory(memory, valid)
            return model.prefill(target, state)[0]

        start = tf.fill([tf.shape(source)[0]], 2)
        return greedy_uncached(logits, start, end_id=-1, max_new_tokens=length).tokens

    return cached, uncached


def main(argv=None):
    """Prints the table; with --save also writes it into benchmarks/RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="write the section of RESULTS.md")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128])
    arguments = parser.parse_args(argv)

    keras.utils.set_random_seed(0)
    model = Transformer(
        VOCAB,
        VOCAB,
        d_model=D_MODEL,
        num_heads=HEADS,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        share_embeddings=True,
    )
    model.build()
    rng = np.random.default_rng(0)
    report = Report("Generation with and without the cache")
    for batch in (1, 16):
        source = tf.constant(rng.integers(4, VOCAB, (batch, SOURCE_LENGTH)), tf.int32)
        for length in arguments.lengths:
            cached, uncached = generators(model, length)
            same = bool(tf.reduce_all(cached(source) == uncached(source)))
            timings = measure(
                {"without cache": partial(uncached, source), "with cache": partial(cached, source)},
                baseline="without cache",
                rounds=arguments.rounds,
            )
            for timing in timings.values():
                report.add(
                    batch=batch,
                    new_tokens=length,
                    candidate=timing.name,
                    tokens_per_second=f"{batch * length / timing.median:.0f}",
                    speed=f"{timing.ratio:.2f}x",
                    spread=f"±{timing.spread:.0%}",
                    same_tokens="yes" if same else "no",
                    **{"matrix GFLOP/s": f"{timing.machine_rate / 1e9:.0f}"},
                )
    report.notes.append(
        f"Greedy, float32, {LAYERS}+{LAYERS} layers, d_model {D_MODEL}, {HEADS} heads, vocabulary {VOCAB}, source of "
        f"{SOURCE_LENGTH} tokens, random weights, no end token."
    )
    report.print()
    if arguments.save:
        report.save()


if __name__ == "__main__":
    main()

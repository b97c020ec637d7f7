"""Long documents in one piece: memory, time and bits per byte of a short training at four lengths.

    KERAS_ATTENTION_DATA=... python -m benchmarks.long_documents --save

Each length trains `keras-attention train lm`'s model (4 layers, width 256, 4 heads, mechanism "blockwise", gradient
checkpointing) on as many bytes of lcet10.txt, a book, one piece a step, in a fresh process.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.claims import save_claim
from benchmarks.harness import Report, duration, peak_memory, size

HEADS, D_MODEL, LAYERS = 4, 256, 4
# Of lcet10.txt: 16,216 bytes, which one piece of the greatest length holds.
HELD_OUT = 0.038


def main(arguments=None):
    """Prints the table; with --save also writes it into benchmarks/RESULTS.md, and two rows into CLAIMS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_documents", description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--bytes", type=int, default=2 * 16384, help="to train on at each length")
    parser.add_argument("--mechanism", default="blockwise")
    parser.add_argument("--precision", default="float32", choices=["float32", "mixed_bfloat16", "mixed_float16"])
    parser.add_argument("--save", action="store_true", help="write into benchmarks/RESULTS.md and CLAIMS.md")
    options = parser.parse_args(arguments)
    data = Path(os.environ.get("KERAS_ATTENTION_DATA", "")) / "long_documents" / "lcet10.txt.gz"
    if not data.is_file():
        parser.error(f"{data} is missing: set KERAS_ATTENTION_DATA to the folder of real corpora")
    report = Report(f"Long documents, {options.mechanism}, {options.precision}")
    peaks = {}
    for length in options.lengths:
        with tempfile.TemporaryDirectory() as folder:
            sizes = {
                "out": str(Path(folder) / "run"),
                "data": str(data),
                "length": length,
                "steps": max(2, options.bytes // length),
                "mechanism": options.mechanism,
                "precision": options.precision,
            }
            memory = peak_memory("benchmarks.long_documents:short_training", sizes)
            metrics = json.loads((Path(folder) / "run" / "metrics.json").read_text())
            seconds = json.loads((Path(folder) / "run" / "step_seconds.json").read_text())
        peaks[length] = memory.peak
        report.add(
            T=length,
            **{
                "process at its peak": size(memory.peak),
                "beyond imports": size(memory.extra),
                "steps": len(seconds),
                "seconds a step": duration(statistics.median(seconds[1:])),
                "bytes a second": f"{length / statistics.median(seconds[1:]):,.0f}",
                "bits per byte": f"{metrics['validation/bits_per_byte']:.2f}",
                "scores of dense attention": size(LAYERS * HEADS * length * length * 4),
            },
        )
    report.notes.append(
        f"{LAYERS} layers, width {D_MODEL}, {HEADS} heads, batch 1, remat, Adam. The peak is the whole process, Python "
        "and TensorFlow included. Seconds a step: median without the first, which traces and compiles. Bits per byte: "
        f"of the book's last 16,216 bytes, after {options.bytes:,} bytes of training, which is far from learnt. Scores "
        "of dense attention, computed: float32, of one tensor of each layer, such as training keeps."
    )
    report.print()
    if options.save:
        report.save()
        if 4096 in peaks:
            save_claim(
                "memory of attention at 4k (Enwik8)",
                "32 GB",
                f"{size(peaks[4096])} for a whole training process at 4,096 bytes in one piece",
                report.command,
                "The document names neither model nor batch; ours has 4 layers, width 256 and batch 1, so no ratio of "
                "the two figures means anything. What can be said: nothing of size T x T is kept here.",
            )
        if 16384 in peaks:
            save_claim(
                "dialogues of 16k instead of 2k",
                "2k to 16k by efficient attention",
                f"{size(peaks[16384])} for a whole training process at 16,384 bytes in one piece"
                + (f", {size(peaks[2048])} at 2,048" if 2048 in peaks else ""),
                report.command,
                "Exact attention by tiles with gradient checkpointing; the scores of one dense layer alone would be "
                f"{size(HEADS * 16384 * 16384 * 4)}.",
            )


def short_training(*, out, data, length, steps, mechanism, precision):
    """A callable that trains in the run folder `out`, for `peak_memory`; step_seconds.json there has each step's time.

    What is measured is what the command does: data, checkpoints and the validation at the end are in it.
    """
    import time

    import keras

    from keras_attention.training.language.options import LanguageOptions
    from keras_attention.training.language.task import train

    class StepTimes(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seconds = []

        def on_train_batch_begin(self, batch, logs=None):
            self.began = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds.append(time.perf_counter() - self.began)

    options = LanguageOptions(
        out=out,
        data=[data],
        length=length,
        batch_size=1,
        steps=steps,
        mechanism=mechanism,
        precision=precision,
        d_model=D_MODEL,
        heads=HEADS,
        layers=LAYERS,
        dropout=0.0,
        remat=True,
        learning_rate=2e-3,
        warmup=4,
        validation_share=HELD_OUT,
        tensorboard=False,
    )

    def work():
        times = StepTimes()
        train(options, callbacks=[times])
        (Path(out) / "step_seconds.json").write_text(json.dumps(times.seconds))

    return work


if __name__ == "__main__":
    main()

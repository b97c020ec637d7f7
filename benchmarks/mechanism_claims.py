"""The documents' figures for efficient attention, each measured in its own setting; rows for CLAIMS.md.

    python -m benchmarks.demo_mechanisms                    # first: the change in quality, on the demo's task
    python -m benchmarks.mechanism_claims --save            # RESULTS.md and CLAIMS.md
    python -m benchmarks.mechanism_claims --save --resume   # the same figures again, with runs finished since

--only TEXT measures the claims whose name holds the text; --resume goes on after an interruption.
"""

import argparse
import functools
import importlib
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cells import Cells
from benchmarks.claims import save_claim
from benchmarks.demo_mechanisms import OUT, RUNS, exact_matches
from benchmarks.growth import growth_exponent
from benchmarks.harness import Forks, Report, duration, measure, size
from benchmarks.machine import this_machine
from benchmarks.mechanism_cases import DENSE

TEXT, LAYER = "benchmarks.text_case:text_case", "benchmarks.attention:layer_case"
SETTING = (
    "The documents name tasks but neither models nor lengths. Where nothing else is said, classifiers and language "
    "models have 2 layers of width 256 (4 heads, feed-forward 1024, vocabulary 8000), batch 1, float32; several "
    "lengths show from where on a figure holds."
)
TITLE = "The documents' figures for efficient attention"


@dataclass(frozen=True)
class Claim:
    """One figure of the documents and how it is measured.

    Attributes:
        name: what is claimed. document: the figure, in words.
        setting: what is measured, in words.
        mechanism: as `from_text` reads it. run: of `demo_mechanisms.RUNS`, for the change in quality.
        figure: "time" (seconds), "memory" (peak bytes of the work) or "process" (peak bytes of the whole process).
        target, arguments: "module:function" of the work, and its arguments beside mechanism and length.
        lengths: those measured. dense_lengths: those at which dense softmax is too.
        summary: function of the rows that returns (our figures in words, the verdict).
        why: what explains the verdict, whichever it is.
    """

    name: str
    document: str
    setting: str
    mechanism: str
    run: str
    figure: str
    target: str
    arguments: dict
    lengths: tuple[int, ...]
    dense_lengths: tuple[int, ...]
    summary: Callable
    why: str


# --- what rows say --------------------------------------------------------------------------------------------------


def ratios(rows, factor, saved=False):
    """Our figures and the verdict on a claim of being so many times cheaper.

    Args:
        rows: dicts with "T", "own" and "dense".
        factor: what dense softmax takes, over what the mechanism takes.
        saved: say how much less it takes in place of how many times as fast it is.

    Returns:
        (our figures in words, verdict).
    """
    found = {row["T"]: row["dense"] / row["own"] for row in rows if row["dense"]}
    figures = (f"{1 / x - 1:+.0%} at T = {n}" if saved else f"{x:.1f}x at T = {n}" for n, x in found.items())
    return ", ".join(figures), verdict({n: x >= factor for n, x in found.items()})


def verdict(holds):
    """From which length on a claim holds, of length -> bool."""
    lengths = sorted(holds)
    kept = [n for i, n in enumerate(lengths) if all(holds[later] for later in lengths[i:])]
    if not kept:
        return f"Does not hold up to T = {lengths[-1]}."
    return "Holds at every length measured." if kept[0] == lengths[0] else f"Holds from T = {kept[0]} on, not below."


def linear_growth(rows, limit=1.15):
    """Our figures and the verdict on O(T)."""
    own = {row["T"]: row["own"] for row in rows}
    dense = {row["T"]: row["dense"] for row in rows if row["dense"]}
    exponent, other = growth_exponent(own), growth_exponent(dense)
    figures = (
        f"time grows with T^{exponent:.2f} up to T = {max(own)}, dense softmax with T^{other:.2f} up to {max(dense)}"
    )
    return figures, "Holds." if exponent <= limit else f"Does not hold: the exponent is above {limit}."


def longer_process(rows, limit=1.15):
    """Our figures and the verdict on how little a process grows from the shortest to the longest text."""
    first, last = rows[0], rows[-1]
    grown = last["own"] / first["own"]
    dense = [row for row in rows if row["dense"]]
    figures = (
        f"{size(first['own'])} at T = {first['T']}, {size(last['own'])} at {last['T']} ({grown - 1:+.0%}); "
        f"dense softmax {size(dense[0]['dense'])} at {dense[0]['T']}, {size(dense[-1]['dense'])} at {dense[-1]['T']} "
        f"({dense[-1]['dense'] / dense[0]['dense'] - 1:+.0%})"
    )
    return figures, "Holds." if grown <= limit else "Does not hold in this reading."


CLAIMS = (
    Claim(
        "block-sparse attention in training",
        "40 % less memory, accuracy within 2 % (text classification, beyond 1024 tokens)",
        "peak memory of a classifier's training step, blocks of 64 and one neighbour on each side",
        "block_sparse:block_size=64,neighbours=1",
        "block_sparse",
        "memory",
        TEXT,
        {"training": True},
        (1024, 2048, 4096),
        (1024, 2048, 4096),
        functools.partial(ratios, factor=1 / 0.6, saved=True),
        "Of a training step's memory the part of the scores grows with the square of the length, so that the saving "
        "does too; what the feed-forward layers keep stays.",
    ),
    Claim(
        "local attention of radius 256 in training",
        "2 times as fast (code generation)",
        "time of a causal language model's training step",
        "local:radius=256",
        "local",
        "time",
        TEXT,
        {"training": True, "causal": True},
        (512, 1024, 2048, 4096),
        (512, 1024, 2048, 4096),
        functools.partial(ratios, factor=2.0),
        "A window saves what grows with the square of the length. Projections, feed-forward layers and the output over "
        "the vocabulary stay, and up to about the radius there is nothing to save under the causal flag. The document "
        "names neither length nor model.",
    ),
    Claim(
        "local attention against global attention",
        "8 times as fast, accuracy within 1 % (protein structure)",
        "time of one attention layer of width 512 forward, radius 256, not causal",
        "local:radius=256",
        "local",
        "time",
        LAYER,
        {"name": "ours", "backward": False, "causal": False},
        (1024, 2048, 4096, 8192),
        (1024, 2048, 4096, 8192),
        functools.partial(ratios, factor=8.0),
        "The gain grows in proportion to the length over the window, so that any factor is reached at some length; the "
        "document names neither length nor radius.",
    ),
    Claim(
        "Performer in inference",
        "3 times as fast (classification of product reviews)",
        "time of a classifier's forward pass, 256 features",
        "performer:num_features=256,seed=0",
        "performer",
        "time",
        TEXT,
        {"training": False},
        (256, 512, 1024, 2048, 4096),
        (256, 512, 1024, 2048, 4096),
        functools.partial(ratios, factor=3.0),
        "256 features cost as many operations as dense attention does at a length of about 512, which few reviews "
        "reach; the feed-forward layers cost the same in both.",
    ),
    Claim(
        "Longformer with 10,000 tokens",
        "15 % more memory (legal texts)",
        "peak of the whole process, an encoder of BERT's base size (12 layers of width 768, vocabulary 30,522) "
        "forward, radius 256",
        "longformer:radius=256,num_global=1",
        "longformer",
        "process",
        TEXT,
        {"training": False, "layers": 12, "width": 768, "heads": 12, "mlp_dim": 3072, "vocab_size": 30_522},
        (512, 2048, 4096, 10_000),
        (512, 2048, 4096),
        longer_process,
        "The document does not say what the 15 % are counted from; here it is the same model at BERT's 512 tokens. "
        "Weights and runtime do not grow, the window's memory and the feed-forward layer's activations grow with the "
        "length, and only dense scores with its square.",
    ),
    Claim(
        "BigBird in training",
        "37 % less time, accuracy 2.3 points higher (sentiment of reviews)",
        "time of a classifier's training step, blocks of 64, 2 global and 3 random ones",
        "bigbird:block_size=64,neighbours=1,num_global_blocks=2,num_random_blocks=3",
        "bigbird",
        "time",
        TEXT,
        {"training": True},
        (512, 1024, 2048, 4096),
        (512, 1024, 2048, 4096),
        functools.partial(ratios, factor=1 / 0.63, saved=True),
        "A query sees 8 blocks, 512 keys, and their gathering costs time: up to that length there is nothing to save. "
        "Short sentences can show that the pattern learns, not what long contexts bring in accuracy.",
    ),
    Claim(
        "linear attention",
        "O(n) in place of O(n²)",
        "one attention layer of width 512, forward and gradient, not causal",
        "linear",
        "linear",
        "time",
        LAYER,
        {"name": "ours", "backward": True, "causal": False},
        (1024, 2048, 4096, 8192, 16384),
        (1024, 2048, 4096),
        linear_growth,
        "Whole layers, whose projections are linear in the length in both; exponents are fitted on the upper half of "
        "the lengths.",
    ),
)


# --- measuring ------------------------------------------------------------------------------------------------------


def main(argv=None):
    """Measures and prints; with --save writes RESULTS.md and CLAIMS.md. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mechanism_claims", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="only the claims whose name holds this text")
    parser.add_argument("--longest", type=int, default=16384, help="leave longer texts out")
    parser.add_argument("--runs", type=Path, default=OUT, help="folder of benchmarks.demo_mechanisms, for the quality")
    parser.add_argument("--cells", type=Path, default=Path("runs/benchmark-claims.json"))
    parser.add_argument("--resume", action="store_true", help="use the figures in --cells")
    parser.add_argument("--save", action="store_true", help="write RESULTS.md and CLAIMS.md")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    claims = [claim for claim in CLAIMS if options.only in claim.name]
    if not claims:
        parser.error(f"--only {options.only!r} is in the name of none: {'; '.join(claim.name for claim in CLAIMS)}")
    least = max(claim.dense_lengths[1] for claim in claims)
    if options.longest < least:
        parser.error(f"--longest must be at least {least}: every claim takes two lengths beside dense softmax")
    if options.save and options.only:
        parser.error("--save writes all claims: leave --only out (--resume measures nothing twice)")
    quality = exact_matches(options.runs)
    missing = sorted({DENSE, *(claim.run for claim in claims)} - set(quality))
    if missing:
        print(f"no change in quality without the runs of {', '.join(missing)} in {options.runs} (demo_mechanisms)")
    try:
        cells = Cells(options.cells, {"rounds": options.rounds}, options.resume)
    except ValueError as error:
        parser.error(str(error))
    report = Report(TITLE, machine=this_machine())
    report.notes.append(SETTING)
    rows_to_save = []
    try:
        with Forks() as forks:
            for claim in claims:
                lengths = [length for length in claim.lengths if length <= options.longest]
                rows = [cells.once(f"{claim.name}, {n}", measured, claim, n, options.rounds, forks) for n in lengths]
                add_rows(report, claim, rows)
                rows_to_save.append(claim_cells(claim, rows, quality, command(argv)))
                print(f"{claim.name}: {rows_to_save[-1][2]} {rows_to_save[-1][4]}", flush=True)
    except KeyboardInterrupt:
        print(f"interrupted; go on with --resume (the figures so far are in {options.cells})", file=sys.stderr)
        return 130
    report.print()
    if options.save:
        report.save()
        for row in rows_to_save:
            save_claim(*row)
    return 0


def measured(claim, length, rounds, forks):
    """One row: {"T", "own", "dense" (None where it is not measured), "machine" (operations a second, of times)}."""
    names = {"own": claim.mechanism, "dense": DENSE}
    if length not in claim.dense_lengths:
        del names["dense"]
    arguments = {key: {**claim.arguments, "mechanism": name, "length": length} for key, name in names.items()}
    row = {"T": length, "own": None, "dense": None, "machine": None}
    if claim.figure == "time":
        module, _, function = claim.target.partition(":")
        case = getattr(importlib.import_module(module), function)
        timings = measure({key: case(**given) for key, given in arguments.items()}, rounds=rounds)
        row |= {key: timing.median for key, timing in timings.items()}
        return {**row, "machine": timings["own"].machine_rate}
    for key, given in arguments.items():
        used = forks.peak_memory(claim.target, {**given, "traced": True})
        row[key] = used.extra if claim.figure == "memory" else used.peak
    return row


def add_rows(report, claim, rows):
    """The claim's figures in the report, a row for each length."""
    text = duration if claim.figure == "time" else size
    for row in rows:
        report.add(
            claim=claim.name,
            measured=claim.setting,
            T=row["T"],
            mechanism=text(row["own"]),
            **{
                "dense softmax": text(row["dense"]) if row["dense"] else "",
                "dense / mechanism": f"{row['dense'] / row['own']:.2f}" if row["dense"] else "",
                "matrix GFLOP/s": f"{row['machine'] / 1e9:.0f}" if row["machine"] else "",
            },
        )


def claim_cells(claim, rows, quality, printed_by):
    """The row of CLAIMS.md: claim, document, ours, command, word."""
    figures, holds = claim.summary(rows)
    ours = f"{claim.setting}: {figures}"
    if claim.run in quality and DENSE in quality:
        (own, steps), (dense, dense_steps) = quality[claim.run], quality[DENSE]
        ours += (
            f"; exact match on the demo's task {own:.1%} with `{RUNS[claim.run]['mechanism']}` after {steps} steps, "
            f"{dense:.1%} with softmax after {dense_steps} ({100 * (own - dense):+.1f} points)"
        )
    else:
        ours += "; change in quality not measured"
    return claim.name, claim.document, ours, printed_by, f"{holds} {claim.why}"


def command(argv=None):
    """The command that prints these figures again, without what only writes or repeats."""
    words = sys.argv[1:] if argv is None else argv
    kept = [word for word in words if word not in ("--save", "--resume")]
    return shlex.join(["python", "-m", "benchmarks.mechanism_claims", *map(str, kept)])


if __name__ == "__main__":
    sys.exit(main())

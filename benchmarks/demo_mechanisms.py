"""The demo's task, trained once with each mechanism on the same budget, and how often each is exactly right.

    python -m benchmarks.demo_mechanisms --out runs/mechanisms            # trains what is missing, then the table
    python -m benchmarks.demo_mechanisms --out runs/mechanisms --save     # the same, and the section of RESULTS.md

Every run is a process of its own (`keras-attention train translation` with the options of examples/demo.py) and a
folder of its own under --out. Ctrl-C stops between two checkpoints: the same command goes on there. Finished runs are
skipped, a run that fails does not stop the others. Scores are those of training: greedy decoding of the 1,000 held-out
phrases.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Report
from benchmarks.translation import command_of
from examples.demo import STEPS, demo_options
from keras_attention import mechanisms
from keras_attention.errors import UsageError
from keras_attention.training.run.run_folder import RunFolder

OUT = Path("runs/mechanisms")
KIND = "test/exact_match/"
TITLE = "The demo's task with each mechanism"
# Half of the sentences have at most 8 tokens, nine in ten at most 16: sizes are such that no pattern covers most
# sentences and no approximation has as many parts as they have tokens.
_SPECIAL = {
    "softmax-rolling": {"mechanism": "softmax", "decoder_mechanism": "softmax:cache=rolling"},
    "blockwise": {"mechanism": "blockwise:query_block_size=4,key_block_size=4"},
    "local": {"mechanism": "local:radius=3"},
    "longformer": {"mechanism": "longformer:radius=2,num_global=1"},
    "bigbird": {"mechanism": "bigbird:block_size=1,neighbours=2,num_global_blocks=1,num_random_blocks=1"},
    "block_sparse": {"mechanism": "block_sparse:block_size=2,neighbours=1"},
    "random": {"mechanism": "random:num_keys=4"},
    "performer": {"mechanism": "performer:num_features=128,seed=0"},
    "nystrom": {"mechanism": "nystrom:num_landmarks=4"},
    "nystrom-convolution": {"mechanism": "nystrom:num_landmarks=4,kernel_size=5"},
    "linformer": {"mechanism": "linformer:max_length=64,rank=4"},
    "lsh": {"mechanism": "lsh:num_buckets=4,bucket_size=4,num_hashes=2,seed=0"},
    "retention-decoder": {"mechanism": "softmax", "decoder_mechanism": "retention"},
    "retention-documents": {"mechanism": "retention:decay=learned,gate=memory,norm=layer,rotary=false"},
}
_NAMED = [name for name in mechanisms.names() if not mechanisms.class_of(name).supports.grid]
# Name of the run -> what differs from the demo: every mechanism, as it is by default where nothing is said above.
RUNS = {**{name: {"mechanism": name} for name in _NAMED}, **_SPECIAL}


def main(argv=None):
    """Trains and prints; returns the exit code, 1 where a run failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo_mechanisms", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the run folders")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS), metavar="NAME")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training; the cool-down is three fifths of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-training", action="store_true", help="only the table of what is there")
    parser.add_argument("--save", action="store_true", help="write the section of benchmarks/RESULTS.md")
    options = parser.parse_args(argv)
    failed = []
    demo = {"steps": options.steps, "seed": options.seed}
    try:
        wanted = {name: demo_options(options.out / name, **demo, **RUNS[name]) for name in options.runs}
        for name, run in wanted.items():
            started = _stored(run) is not None
            if not options.no_training and not train_once(name, run, resume=started):
                failed.append(name)
        report = table({name: run for name, run in wanted.items() if is_finished(run)}, wanted, failed)
    except UsageError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    report.print()
    if options.save:
        report.save()
    return 1 if failed else 0


def train_once(name, options, *, resume):
    """Train one run in a process of its own, unless it is finished; returns whether it is finished now."""
    if is_finished(options):
        print(f"{name}: finished", flush=True)
        return True
    words = shlex.split(command_of(options.as_dict()))[1:]
    words[words.index("RUN")] = options.out
    log = Path(options.out).with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{name}: {'continued' if resume else 'training'}, see {log}", flush=True)
    with open(log, "a", encoding="utf-8") as file:
        command = [sys.executable, "-m", "keras_attention.cli", *words, *(["--resume"] if resume else [])]
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT)
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        print(f"{name}: failed with code {done.returncode}: {' '.join(last)}", flush=True)
    return done.returncode == 0


def is_finished(options):
    """Whether the run's folder holds its final scores."""
    return _stored(options) is not None and RunFolder(options.out).metrics_path.exists()


def _stored(options):
    """The options in the run's folder, or None where no run was begun.

    Raises:
        UsageError: the folder holds a run with other options.
    """
    folder = RunFolder(options.out)
    if not folder.config_path.exists():
        return None
    stored = folder.read_config()["options"]
    options.refuse_changes(stored)
    if stored.get("steps") != options.steps:
        raise UsageError(
            f"{folder} holds a run of {stored.get('steps')} steps, not {options.steps}: give another --out."
        )
    return stored


def table(runs, wanted=(), failed=()):
    """The report: one row for each finished run, the best first.

    Args:
        runs: name -> `TranslationOptions` of finished runs.
        wanted, failed: names of the runs that should be there, and of those that failed, for the notes.
    """
    report = Report(TITLE)
    metrics = {name: RunFolder(options.out).read_metrics() for name, options in runs.items()}
    for name in sorted(runs, key=lambda name: -metrics[name]["test/exact_match"]):
        options, scores = runs[name], metrics[name]
        kinds = {key.removeprefix(KIND): value for key, value in scores.items() if key.startswith(KIND)}
        worst = min(kinds, key=kinds.get)
        encoder, decoder = stacks(options)
        report.add(
            run=name,
            encoder=encoder,
            decoder=decoder,
            exact_match=f"{scores['test/exact_match']:.1%}",
            worst_kind=f"{worst} {kinds[worst]:.1%}",
            loss=f"{scores['test/loss']:.3f}",
            steps=f"{scores['steps']:.0f}",
            parameters=f"{scores['parameters']:,.0f}",
            training=f"{scores['train_seconds']:.0f} s",
        )
    if runs:
        shared = {**next(iter(runs.values())).as_dict(), "mechanism": "auto", "decoder_mechanism": None}
        report.notes.append(
            f"Each run: `{command_of(shared)} --mechanism ENCODER`, with `--decoder-mechanism DECODER` where the table "
            "has another one there. Exact match: greedy decoding of 1,000 held-out phrases. Cross-attention is softmax "
            "everywhere, and so is auto."
        )
    report.notes.append(
        "Training ran while the machine did other work: its seconds show the order of size and nothing else."
    )
    report.notes.append(
        "axial is not here: a sentence has no rows and columns. softmax-rolling trains as softmax does and decodes "
        "with a ring of the last 64 positions."
    )
    unfinished = [name for name in wanted if name not in runs and name not in failed]
    for names, what in ((unfinished, "not trained to the end"), (failed, "failed")):
        if names:
            report.notes.append(f"{what}: {', '.join(names)}")
    return report


def stacks(options):
    """What attends in the encoder and in the decoder of a run, as two texts."""
    config = RunFolder(options.out).read_config()["model"]
    decoder = config["decoder_mechanism"]
    if options.decoder_mechanism is not None:
        return options.mechanism, options.decoder_mechanism
    return options.mechanism, options.mechanism if decoder is None else decoder


def exact_matches(out):
    """Run name -> exact match (0 to 1) and steps of the finished runs under the folder `out`."""
    found = {}
    for name in RUNS:
        folder = RunFolder(Path(out) / name)
        if folder.metrics_path.exists():
            metrics = folder.read_metrics()
            found[name] = metrics["test/exact_match"], int(metrics["steps"])
    return found


if __name__ == "__main__":
    sys.exit(main())

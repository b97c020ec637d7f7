"""The one way figures are measured here.

Timings: every candidate is warmed up apart (compilation is reported, not counted), then all of them run in turn,
A B C A B C ..., so that a machine that slows down slows them all; the medians, the spread and the ratios to a named
baseline are reported, with the machine's matrix-product rate measured in the same rounds.

Memory: `peak_memory` runs one piece of work in a fresh Python process (see `benchmarks.child`).

    report = Report("Attention, T = 4096")
    timings = measure({"ours": ours, "dense": dense}, baseline="dense", operations=4 * H * T * T * D)
    report.add_timings(timings)
    report.print()
    report.save("Attention")            # the section of benchmarks/RESULTS.md with this title
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import command_line, matrix_product, this_machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"


class Seconds(float):
    """What a callable returns when it has timed itself (a worker in another process): used instead of our clock."""


@dataclass(frozen=True)
class Timing:
    """How long one candidate took, in seconds, beside the others of its run."""

    name: str
    first: float  # the first call: tracing and compilation are in it
    samples: tuple[float, ...]
    ratio: float  # the baseline's median / this median: 2.0 is twice as fast as the baseline
    rate: float | None  # operations a second, where the operations were given
    machine_rate: float  # operations a second of a plain matrix product in the same rounds

    @property
    def median(self):
        return statistics.median(self.samples)

    @property
    def spread(self):
        """Half the distance between the quartiles, as a share of the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / 2 / self.median

    @property
    def share(self):
        """Part of the machine's matrix-product rate that was reached, or None."""
        return None if self.rate is None else self.rate / self.machine_rate


def measure(
    candidates,
    *,
    baseline=None,
    rounds=7,
    warmup=2,
    operations=None,
    rate_dtype="float32",
    rate_size=1536,
    failures=None,
):
    """Time several callables alternately.

    Args:
        candidates: name -> callable without arguments that does the whole work once. A callable that returns
            `Seconds` has timed itself.
        baseline: the name that ratios refer to; the first one by default.
        rounds: samples of each candidate.
        warmup: calls of each candidate before the rounds; the first is reported as `Timing.first`.
        operations: floating-point operations of one call, as one number for all or name -> number; None leaves the
            rates out.
        rate_dtype, rate_size: of the plain matrix product that runs once in every round.
        failures: None, where an exception of a candidate ends all; or a dictionary, which receives name -> exception of
            those that fail while they are warmed up, and the others are measured. Without the baseline ratios refer
            to the first that is left.

    Returns:
        name -> `Timing`, in the order of `candidates`.

    Raises:
        ValueError: no candidates, an unknown baseline, or fewer than one round or warm-up call.
    """
    names = list(candidates)
    baseline = names[0] if baseline is None and names else baseline
    if baseline not in candidates and (names or failures is None):
        raise ValueError(f"baseline must be one of the candidates {names}. Got {baseline!r}.")
    if rounds < 1 or warmup < 1:
        raise ValueError(f"rounds and warmup must be at least 1. Got rounds={rounds}, warmup={warmup}.")
    product, product_operations = matrix_product(rate_dtype, rate_size)

    first = {}
    for name, work in candidates.items():
        try:
            first[name] = _timed(work)
            for _ in range(warmup - 1):
                _timed(work)
        except Exception as error:
            if failures is None:
                raise
            failures[name] = error
    if failures is not None:
        candidates = {name: work for name, work in candidates.items() if name not in failures}
        names = list(candidates)
        if not names:
            return {}
        baseline = baseline if baseline in names else names[0]
    for _ in range(2):
        _timed(product)

    samples = {name: [] for name in names}
    product_samples = []
    for _ in range(rounds):
        product_samples.append(_timed(product))
        for name, work in candidates.items():
            samples[name].append(_timed(work))

    machine_rate = product_operations / statistics.median(product_samples)
    base = statistics.median(samples[baseline])
    timings = {}
    for name in names:
        median = statistics.median(samples[name])
        count = operations.get(name) if isinstance(operations, dict) else operations
        rate = None if count is None else count / median
        timings[name] = Timing(name, first[name], tuple(samples[name]), base / median, rate, machine_rate)
    return timings


def _timed(work):
    start = time.perf_counter()
    result = work()
    if isinstance(result, Seconds):
        return float(result)
    tf = sys.modules.get("tensorflow")
    if tf is not None and tf.config.list_logical_devices(
        "GPU"
    ):  # a GPU's kernels are still running when a call returns
        tf.test.experimental.sync_devices()
    return time.perf_counter() - start


class Worker:
    """A callable that lives in another process, for peers with an environment of their own.

    The other side reads a line, does the work once and answers with one line of JSON holding `seconds`; it prints
    `{"ready": ...}` when it has started. `benchmarks/peers/torch_worker.py` is one.

    Args:
        command: the program and its arguments.
        environment: variables to add.
    """

    def __init__(self, command, environment=None):
        self.command = [str(part) for part in command]
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self.ready = self._answer()["ready"]

    def ask(self, request):
        """Send one JSON-able request and return the answer as a dictionary."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def __call__(self):
        return Seconds(self.ask("run")["seconds"])

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _answer(self):
        # Libraries print to standard output too: only a line that is a JSON object is an answer.
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        code = self._process.wait()
        raise RuntimeError(f"The worker ended with code {code} before it answered: {' '.join(self.command)}")


@dataclass(frozen=True)
class Memory:
    """Peak memory of one piece of work in a fresh process, in bytes."""

    baseline: int  # resident after imports and inputs
    peak: int  # highest resident while the work ran, its compilation included
    results: int  # bytes of the arrays that the work returned
    device: int | None  # highest beyond the baseline on the GPU, or None without one

    @property
    def extra(self):
        """What the work needed beyond its inputs and its results."""
        needed = self.peak - self.baseline if self.device is None else self.device
        return max(0, needed - self.results)


def peak_memory(target, arguments=None, *, python=sys.executable, environment=None):
    """Run `target(**arguments)` in a fresh process and report the peak memory of the callable that it returns.

    Args:
        target: "module:function". The function imports what it needs, makes the inputs and returns a callable; only
            the call of that is measured.
        arguments: keyword arguments, anything that JSON holds.
        python: the interpreter, for peers in another environment.

    Returns:
        A `Memory`.

    Raises:
        RuntimeError: the process failed; the end of what it printed is in the message.
    """
    command = [str(python), "-m", "benchmarks.child", target, json.dumps(arguments or {})]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **(environment or {})})
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"baseline"')]
    if done.returncode or not answers:
        raise RuntimeError(f"{target} failed with code {done.returncode}: {done.stderr.strip()[-2000:]}")
    return Memory(**json.loads(answers[-1]))


class Forks:
    """`peak_memory` again and again: each piece of work in a process of its own, forked from one that has imported.

    Starting Python and TensorFlow takes seconds, a fork takes none: see `benchmarks.forks`. A context manager.
    """

    def __init__(self):
        self._worker = None

    def peak_memory(self, target, arguments=None):
        """As the function of this name. Raises RuntimeError where the piece of work fails or is killed."""
        if self._worker is None:
            self._worker = Worker([sys.executable, "-m", "benchmarks.forks"])
        found = self._worker.ask({"target": target, "arguments": arguments or {}})
        if "error" in found:
            raise RuntimeError(f"{target} failed: {found['error']}")
        return Memory(**found)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._worker is not None:
            self._worker.close()


@dataclass
class Report:
    """Rows of figures with what they were measured on; printed as a table and kept as Markdown.

    Args:
        title: what the rows are about.
        columns: headings; the first call of an `add` method sets them where they are empty.
    """

    title: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: object = field(default_factory=this_machine)
    command: str = field(default_factory=command_line)

    def add(self, **cells):
        """Add one row; the keywords are the headings, spaces as underscores."""
        headings = [name.replace("_", " ") for name in cells]
        if not self.columns:
            self.columns = headings
        unknown = [heading for heading in headings if heading not in self.columns]
        if unknown:
            raise ValueError(f"Unknown columns {unknown}. This report has {self.columns}.")
        by_heading = dict(zip(headings, cells.values()))
        self.rows.append([_text(by_heading.get(column, "")) for column in self.columns])

    def add_timings(self, timings, **cells):
        """Add one row for each `Timing`; `cells` stand before them."""
        for timing in timings.values():
            row = {
                **cells,
                "candidate": timing.name,
                "median": duration(timing.median),
                "spread": f"±{timing.spread:.0%}",
                "speed": f"{timing.ratio:.2f}x",
                "first call": duration(timing.first),
            }
            if timing.rate is not None:
                row["GFLOP/s"] = f"{timing.rate / 1e9:.0f}"
                row["of matrix rate"] = f"{timing.share:.0%}"
            row["matrix GFLOP/s"] = f"{timing.machine_rate / 1e9:.0f}"
            self.add(**row)

    def print(self):
        """Print the table to the terminal."""
        from rich.console import Console
        from rich.table import Table

        # A pipe or a log file has no width of its own; 80 columns would break every row.
        console = Console(width=None if sys.stdout.isatty() else 160)
        table = Table(title=self.title)
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for line in [*self.notes, *self._facts()]:
            console.print(line, markup=False, highlight=False)

    def markdown(self):
        """The table, the notes, the command and the machine as a Markdown block without a heading."""
        lines = ["| " + " | ".join(self.columns) + " |", "|" + " --- |" * len(self.columns)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        lines += ["", *(f"- {note}" for note in [*self.notes, *self._facts()])]
        lines += ["", "```", self.command, "```"]
        return "\n".join(lines) + "\n"

    def save(self, path=RESULTS):
        """Write the block into `path` as the section with this title, in place of an older one."""
        append_results(self.title, self.markdown(), path)

    def _facts(self):
        machine = self.machine
        facts = [
            f"{machine.cpu}, {machine.threads} threads{', ' + machine.gpu if machine.gpu else ''}; {machine.versions}"
        ]
        if machine.load > 0.5:
            facts.append(f"The machine was not idle when the run began: load average {machine.load:.1f}")
        return facts


def append_results(section, markdown, path=RESULTS):
    """Put `markdown` under the heading `## section` of `path`, replacing the section that has this title."""
    path = Path(path)
    before = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    heading = f"## {section}"
    kept, replaced, inside, fenced = [], False, False, False
    block = [heading, "", *markdown.rstrip().splitlines(), ""]
    for line in before.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if not fenced and line.startswith(("# ", "## ")):  # a `# comment` inside a fence is no heading
            inside = line.rstrip() == heading
            if inside and not replaced:
                kept += block
                replaced = True
        if not inside:
            kept.append(line)
    if not replaced:
        while kept and not kept[-1].strip():
            kept.pop()
        kept += ["", *block]
    replace_file(path, "\n".join(kept).rstrip() + "\n")


def replace_file(path, text):
    """Write a file beside its place and rename it into place: no reader or interrupted run meets half of it."""
    path = Path(path)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=path.name, delete=False) as beside:
        beside.write(text)
    os.chmod(beside.name, 0o644)  # temporary files are private
    os.replace(beside.name, path)


def duration(seconds):
    """Seconds as text with a unit that leaves three digits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"


def size(count):
    """A number of bytes as text, in MB (10^6 bytes) or GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _text(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)

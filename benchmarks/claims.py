"""benchmarks/CLAIMS.md: rows of the documents' figures beside ours, written from measured values."""

from pathlib import Path

from benchmarks.harness import ROOT, replace_file

CLAIMS = ROOT / "benchmarks" / "CLAIMS.md"


def save_claim(claim, document, ours, command, word, path=CLAIMS):
    """Put one row into the table of `path`, in place of the row with the same claim, or after the last one.

    Args:
        claim: what is claimed, the first cell.
        document: the document's figure. ours: what was measured. word: whether it holds, and why.
        command: what prints our figures; put between backticks.
        path: a Markdown file with one table of these five columns.
    """
    path = Path(path)
    cells = [" ".join(cell.split()).replace("|", "\\|") for cell in (claim, document, ours, f"`{command}`", word)]
    row = f"| {' | '.join(cells)} |"
    lines = path.read_text(encoding="utf-8").splitlines()
    table = [index for index, line in enumerate(lines) if line.startswith("|")]
    if not table:
        raise ValueError(f"{path} has no table to put the claim {claim!r} into.")
    same = [index for index in table if lines[index].startswith(f"| {cells[0]} |")]
    if same:
        lines[same[0]] = row
    else:
        lines.insert(table[-1] + 1, row)
    replace_file(path, "\n".join(lines) + "\n")

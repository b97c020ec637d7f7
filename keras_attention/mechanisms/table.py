"""The README's table of mechanisms, made from the registry: `python -m keras_attention.mechanisms.table`."""

import sys
from pathlib import Path

from keras_attention import mechanisms

BEGIN = "<!-- mechanisms: python -m keras_attention.mechanisms.table -->"
END = "<!-- end -->"


def markdown():
    """One row for each registered mechanism: class, cost, what it supports, paper."""
    lines = [
        "| name | class | time | memory | causal | cross | rotary | ALiBi, relative | carried scores | cache | ONNX "
        "| paper |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in mechanisms.names():
        cls = mechanisms.class_of(name)
        supports = cls.supports
        authors, _, link = supports.paper.partition(", http")
        cells = (
            f"`{name}`",
            f"`{cls.__name__}`",
            supports.time.replace("*", "·"),
            supports.memory.replace("*", "·"),
            _yes(supports.causal),
            _yes(supports.cross),
            _yes(supports.rotary),
            _yes(supports.relative),
            _yes(supports.residual),
            supports.state or "no",
            _yes(supports.onnx is True),
            f"[{authors}](http{link})" if link else authors,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replaced(text):
    """A document with the table put between the two marks."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{markdown()}\n{END}{tail}"


def _yes(value):
    return "yes" if value else "no"


def main():
    """Writes the table into the README that is given, or prints it."""
    if len(sys.argv) == 1:
        print(markdown())
        return
    path = Path(sys.argv[1])
    path.write_text(replaced(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

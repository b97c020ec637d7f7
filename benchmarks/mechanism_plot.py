"""Time and memory of the mechanisms over the length, as one picture."""

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, NullFormatter

MARKERS = "osv^<>DPX*pdh"
REFERENCES = {"softmax": "black", "keras.layers": "0.45"}


def draw(times, memory, path):
    """Write a picture: one panel for each of time and memory, forward and with the gradient, both axes logarithmic.

    Args:
        times: what -> name -> length -> seconds. memory: the same in bytes; may be empty.
        path: the file; its ending chooses the format.
    """
    panels = [(f"{what}: time", "seconds", by_name, 1.0) for what, by_name in times.items()]
    panels += [(f"{what}: peak memory", "MB", by_name, 1e-6) for what, by_name in memory.items()]
    figure, axes = pyplot.subplots(-(-len(panels) // 2), 2, figsize=(13, 5 * -(-len(panels) // 2)), squeeze=False)
    handles = {}
    colors = pyplot.get_cmap("tab20").colors
    for axis, (title, unit, by_name, factor) in zip(axes.flat, panels):
        lengths = sorted({n for curve in by_name.values() for n in curve})
        for index, (name, curve) in enumerate(by_name.items()):
            if not curve:
                continue
            style = {"color": colors[index % len(colors)], "marker": MARKERS[index % len(MARKERS)], "linewidth": 1.2}
            if name in REFERENCES:
                style = {"color": REFERENCES[name], "linestyle": "--", "marker": ".", "linewidth": 2.4}
            xs = sorted(curve)
            (handles[name],) = axis.loglog(xs, [curve[x] * factor for x in xs], markersize=5, label=name, **style)
        axis.set_title(title)
        axis.set_xlabel("sequence length T")
        axis.set_ylabel(unit)
        axis.set_xticks(lengths)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(True, which="both", linewidth=0.3)
    figure.legend(handles.values(), handles.keys(), loc="center right", frameon=False)
    figure.tight_layout(rect=(0, 0, 0.87, 1))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)

"""What windows save: Swin beside global attention, in time, operations and memory.

    python -m benchmarks.swin --save

Two comparisons at each size of image. The first pair of blocks of Swin-T (96 wide, 3 heads, patches of 4 x 4, windows
of 7 x 7, the second block shifted) beside the same two blocks attending to the whole grid, which is what windows
replace: exact attention by tiles, as dense scores of 896 pixels would take 30 GB. And the whole Swin-T beside ViT-S/16,
the global model of about its parameters. Forward passes, float32, one image, inside tf.function.
"""

import argparse

from benchmarks.harness import Report, duration, measure, peak_memory, size

WIDTH, HEADS, WINDOW, PATCH = 96, 3, 7, 4
TITLE = "Swin beside global attention"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swin", description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448, 896])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write RESULTS.md and CLAIMS.md")
    options = parser.parse_args(arguments)
    report, figures = Report(TITLE), []
    for pixels in options.sizes:
        for what, names in (("first blocks", ("windows", "global")), ("whole model", ("Swin-T", "ViT-S/16"))):
            cases = {name: case(name, pixels) for name in names}
            # A pair of global blocks at 896 pixels takes 2 TFLOP.
            rounds = options.rounds if operations(names[1], pixels) < 5e11 else 2
            timings = measure(
                cases,
                baseline=names[1],
                rounds=rounds,
                warmup=1 if rounds == 2 else 2,
                operations={name: operations(name, pixels) for name in names},
            )
            del cases
            memory = {
                name: peak_memory("benchmarks.swin:case", {"name": name, "pixels": pixels}).extra for name in names
            }
            for name, timing in timings.items():
                report.add(
                    pixels=f"{pixels}",
                    what=what,
                    candidate=name,
                    GFLOP=f"{operations(name, pixels) / 1e9:.1f}",
                    median=duration(timing.median),
                    spread=f"±{timing.spread:.0%}",
                    speed=f"{timing.ratio:.2f}x",
                    **{
                        "extra peak memory": size(memory[name]),
                        "GFLOP/s": f"{timing.rate / 1e9:.0f}",
                        "matrix GFLOP/s": f"{timing.machine_rate / 1e9:.0f}",
                    },
                )
            ours, other = names
            figures.append(
                {
                    "pixels": pixels,
                    "what": what,
                    "work": 1 - operations(ours, pixels) / operations(other, pixels),
                    "time": 1 - timings[ours].median / timings[other].median,
                    "memory": 1 - memory[ours] / memory[other],
                }
            )
    report.notes.append(
        "GFLOP: two for each multiply-add of the matrix products, padding of the windows included. Speed is against "
        "global attention. Memory: peak of one first call in a fresh process beyond weights, inputs and outputs, "
        "tracing included."
    )
    report.print()
    for figure in figures:
        print(summary(figure))
    if options.save:
        report.save()
        save_claim(figures, report.command)


def summary(figure):
    """Less (or more) work, time and memory at one size, in words."""
    parts = ", ".join(f"{what} {-100 * figure[what]:+.0f} %" for what in ("work", "time", "memory"))
    return f"{figure['pixels']} px, {figure['what']}: {parts}"


def save_claim(figures, command):
    from benchmarks import claims

    by_kind = {what: [f for f in figures if f["what"] == what] for what in ("first blocks", "whole model")}
    reached = {
        what: ", ".join(f"{f['pixels']} px" for f in found if f["time"] >= 0.7) or "no size"
        for what, found in by_kind.items()
    }
    claims.save_claim(
        "Swin for images of high resolution",
        "70 % less computation",
        "; ".join(summary(figure) for found in by_kind.values() for figure in found),
        command,
        f"Against the same blocks with global attention 70 % of the time is saved at {reached['first blocks']}, as a "
        f"whole model against a ViT-S/16 at {reached['whole model']}. What windows save grows with the image: global "
        "attention costs the square of the number of patches, windows are linear in it. A ViT's patches of 16 x 16 "
        "make sixteen times fewer tokens than Swin's first stage has.",
    )


def operations(name, pixels):
    """Floating-point operations of one forward pass: two for each multiply-add of a matrix product."""
    if name in ("windows", "global"):
        return sum(block_operations(pixels // PATCH, WIDTH, None if name == "global" else WINDOW) for _ in range(2))
    if name == "ViT-S/16":
        side, width = -(-pixels // 16), 384
        tokens = side * side
        return 2 * tokens * 16 * 16 * 3 * width + 12 * (24 * tokens * width**2 + 4 * tokens**2 * width)
    total, side, width = 2 * (pixels // 4) ** 2 * 4 * 4 * 3 * 96, pixels // 4, 96
    for stage, depth in enumerate((2, 2, 6, 2)):
        total += depth * block_operations(side, width, WINDOW)
        if stage < 3:
            side = -(-side // 2)
            total += 2 * side * side * 4 * width * 2 * width
            width *= 2
    return total


def block_operations(side, width, window):
    """Of one block over side x side tokens; `window` None for global attention."""
    tokens = side * side
    if window is None:
        return 24 * tokens * width**2 + 4 * tokens**2 * width
    padded = (-(-side // window) * window) ** 2
    # Projections and attention see the padding, the feed-forward layer does not.
    return 8 * padded * width**2 + 4 * padded * window**2 * width + 16 * tokens * width**2


def case(name, pixels):
    """A callable that runs one forward pass, for `measure` and `peak_memory`."""
    import tensorflow as tf

    from keras_attention.layers import EncoderBlock, WindowBlock
    from keras_attention.models import SwinTransformer, ViT

    if name in ("windows", "global"):
        side = pixels // PATCH
        shape = (1, side, side, WIDTH) if name == "windows" else (1, side * side, WIDTH)
        x = tf.random.stateless_normal(shape, (1, 0))
        options = {"activation": "gelu"}
        if name == "windows":
            blocks = [WindowBlock(WIDTH, HEADS, 4 * WIDTH, window=WINDOW, shift=s, **options) for s in (0, WINDOW // 2)]
        else:
            blocks = [EncoderBlock(WIDTH, HEADS, 4 * WIDTH, mechanism="blockwise", **options) for _ in range(2)]
        for block in blocks:
            block.build(shape)

        def forward(x):
            for block in blocks:
                x = block(x)
            return x
    else:
        x = tf.random.stateless_normal((1, pixels, pixels, 3), (1, 0))
        make = SwinTransformer if name == "Swin-T" else ViT
        forward = make.from_preset("tiny" if name == "Swin-T" else "S/16", image_size=pixels, num_classes=1000)
        forward.build()
    work = tf.function(lambda x: forward(x), autograph=False)
    return lambda: work(x)


if __name__ == "__main__":
    main()

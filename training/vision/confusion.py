"""Which classes are taken for which: counts, and a picture of them."""

import numpy as np

from keras_attention.images.files import require_pillow

CELL, GAP, FONT_SIZE = 34, 8, 12
MOST_NAMED = 60  # classes; with more of them, names and counts could not be read
_LARGE_SIDE = 1200


def confusion_matrix(labels, predicted, count):
    """Counts int64 [true class, predicted class].

    Args:
        labels, predicted: ints [N] below `count`.
        count: number of classes.
    """
    flat = np.bincount(np.asarray(labels) * count + np.asarray(predicted), minlength=count * count)
    return flat.reshape(count, count)


def draw_confusion(matrix, names, path):
    """Write a confusion matrix as a PNG: a row for each true class, darker where more of the row is.

    Args:
        matrix: counts [N, N] as `confusion_matrix` gives them.
        names: N names of classes.
        path: the file to write.
    """
    pillow, drawing, fonts = (require_pillow(name) for name in ("Image", "ImageDraw", "ImageFont"))
    named = len(names) <= MOST_NAMED
    cell = CELL if named else max(1, _LARGE_SIDE // len(names))
    font = fonts.load_default(FONT_SIZE)
    width = max(round(font.getlength(name)) for name in names) + 2 * GAP if named else GAP
    side = cell * len(names)
    # One line more than the names' own: "true" and "predicted".
    begin = width + FONT_SIZE + GAP
    image = pillow.new("RGB", (begin + side + GAP, begin + side + GAP), "white")
    pen = drawing.Draw(image)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    for row, name in enumerate(names):
        for column in range(len(names)):
            share = float(shares[row, column])
            left, top = begin + column * cell, begin + row * cell
            # From white to a dark blue.
            colour = tuple(round(255 - share * (255 - dark)) for dark in (8, 48, 107))
            pen.rectangle((left, top, left + cell - 1, top + cell - 1), fill=colour)
            if named and matrix[row, column]:
                ink = "white" if share > 0.5 else "black"
                centre = (left + cell / 2, top + cell / 2)
                pen.text(centre, str(matrix[row, column]), fill=ink, font=font, anchor="mm")
        if named:
            middle = begin + row * cell + cell / 2
            pen.text((begin - GAP, middle), name, fill="black", font=font, anchor="rm")
            _upright(image, name, middle, begin - GAP, font)
    pen.text((begin + side / 2, GAP / 2), "predicted", fill="black", font=font, anchor="ma")
    pen.text((GAP / 2, begin + side / 2), "true", fill="black", font=font, anchor="lm")
    image.save(path, format="PNG")


def _upright(image, text, middle, bottom, font):
    """Text that runs upwards and ends above `bottom`."""
    pillow, drawing = require_pillow("Image"), require_pillow("ImageDraw")
    length = max(1, round(font.getlength(text)))
    strip = pillow.new("RGB", (length, FONT_SIZE + 4), "white")
    drawing.Draw(strip).text((0, (FONT_SIZE + 4) / 2), text, fill="black", font=font, anchor="lm")
    turned = strip.rotate(90, expand=True)
    image.paste(turned, (round(middle - turned.width / 2), round(bottom - turned.height)))

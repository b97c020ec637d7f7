"""Images as grids of patches: checks, padding, and tables of positions at other sizes."""

import tensorflow as tf

from keras_attention.ops.basics import checks

# The cubic kernel of PyTorch's bicubic interpolation, in which published position tables are resized; TensorFlow's own
# bicubic resize has -0.5 and gives other numbers.
_SHARPNESS = -0.75


def pair(name, value):
    """Returns a size given as an int or as (height, width) as a pair of ints."""
    given = value if isinstance(value, list | tuple) else (value, value)
    if len(given) != 2:
        raise ValueError(f"{name} must be an integer or (height, width). Got {name}={value!r}.")
    return tuple(checks.positive_int(name, x) for x in given)


def check(images, channels):
    """Raises ValueError where `images` is not a floating tensor [B, H, W, channels]."""
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[-1] != channels:
        hint = "; give channels last" if len(shape) == 4 and shape[1] == channels else ""
        raise ValueError(f"images must have shape [B, H, W, {channels}]. Got {shape}{hint}.")
    if not tf.as_dtype(images.dtype).is_floating:
        raise ValueError(
            f"images must be floating and normalized as in training. Got {tf.as_dtype(images.dtype).name}: cast and "
            "scale them first, e.g. tf.cast(images, 'float32') / 127.5 - 1."
        )


def pad_to_multiple(x, multiple):
    """Zeros below and to the right of x [B, H, W, C], so that H and W become multiples of (rows, columns)."""
    # Written without negative numbers, whose division converters to ONNX round the other way.
    below, right = ((size + by - 1) // by * by - size for size, by in zip(checks.sizes(x)[1:3], multiple))
    if isinstance(below, int) and isinstance(right, int) and below == right == 0:
        return x
    return tf.pad(x, [[0, 0], [0, below], [0, right], [0, 0]])


def bicubic_matrix(size, source, dtype=tf.float32):
    """The matrix [size, source], float32, that resizes a line of `source` numbers to `size`.

    Pixel centres stand at half numbers, borders are repeated, the kernel is Keys' with a = -0.75: what PyTorch's
    `interpolate(mode="bicubic", align_corners=False)` computes. `size` may be a scalar tensor.

    Reference: Keys, "Cubic Convolution Interpolation for Digital Image Processing", 1981.
    """
    scale = tf.cast(source, dtype) / tf.cast(size, dtype)
    centre = (tf.range(tf.cast(size, dtype))[:, None] + 0.5) * scale - 0.5  # [size, 1]
    first = tf.floor(centre)
    taps = tf.constant([-1.0, 0.0, 1.0, 2.0], dtype)
    distance = tf.abs(centre - first - taps)  # [size, 4], at most 2
    a = _SHARPNESS
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    weights = tf.where(distance <= 1, near, far)
    index = tf.clip_by_value(tf.cast(first + taps, tf.int32), 0, source - 1)
    return tf.reduce_sum(tf.one_hot(index, source, dtype=dtype) * weights[..., None], axis=1)


def linear_matrix(size, source, dtype=tf.float32):
    """As `bicubic_matrix`, but linear and with the ends kept; one number alone is that in the middle."""
    last = tf.cast(size - 1, dtype)
    step = (source - 1) / tf.maximum(last, 1)
    place = (tf.range(tf.cast(size, dtype))[:, None] - last / 2) * step + (source - 1) / 2
    return tf.nn.relu(1 - tf.abs(place - tf.range(source, dtype=dtype)))


def convolved(convolution, x):
    """`convolution(x)` of a `keras.layers.Conv2D`, of a batch that is known to be empty too.

    TensorFlow on a CPU (with oneDNN, in float32) then gives an empty tensor of the input's shape.
    """
    if x.shape[0] == 0:
        return convolution(tf.zeros([1, *x.shape[1:]], x.dtype))[:0]
    return convolution(x)


def resize_table(table, height, width, matrix=bicubic_matrix):
    """A table float32 [h, w, E] over a grid, resized to [height, width, E]; sizes may be scalar tensors.

    Two products with small matrices, so that the result has a gradient, converts to ONNX and follows sizes that only
    the graph knows.
    """
    rows, columns, features = table.shape
    # First the rows, with all that stands in a row as one vector; then the columns of each row.
    lines = tf.matmul(matrix(height, rows, table.dtype), tf.reshape(table, [rows, columns * features]))
    return tf.matmul(matrix(width, columns, table.dtype), tf.reshape(lines, [height, columns, features]))

"""What stands in a comparison of mechanisms: each with its options at a length, and the two dense layers."""

from keras_attention import mechanisms

DENSE, KERAS = "softmax", "keras.layers"
FORWARD, BOTH = "forward", "forward + gradient"
# What each is measured with, where that is not its default; the braces are filled from the length.
OPTIONS = {
    "local": "radius=256",
    "longformer": "radius=256,num_global=1",
    "bigbird": "block_size=64,neighbours=1,num_global_blocks=2,num_random_blocks=3",
    "block_sparse": "block_size=64,neighbours=1",
    "random": "num_keys=64",
    "axial": "shape=[{height},{width}]",
    "performer": "num_features=256,seed=0",
    "nystrom": "num_landmarks=64",
    "linformer": "max_length={length},rank=256",
    "lsh": "num_buckets={buckets},bucket_size=64,num_hashes=2,seed=0",
}
# Those that must beat dense softmax at 8192, in time and in memory, forward and backward.
PROMISED = (
    "local",
    "longformer",
    "block_sparse",
    "bigbird",
    "linear",
    "performer",
    "nystrom",
    "linformer",
    "retention",
)
PROMISED_LENGTH = 8192


def text_of(name, length):
    """The mechanism as `from_text` reads it, with the options that it is measured with at this length."""
    if name not in OPTIONS:
        return name
    height = max(n for n in range(1, int(length**0.5) + 1) if length % n == 0)
    # Buckets of about 64 tokens; an odd number of them does not exist.
    buckets = max(2, length // 128 * 2)
    filled = OPTIONS[name].format(length=length, height=height, width=length // height, buckets=buckets)
    return f"{name}:{filled}"


def shown_options(name):
    """The options for a table, the same for all lengths."""
    symbols = {"length": "T", "height": "√T", "width": "√T", "buckets": "T/64"}
    return OPTIONS.get(name, "").format(**symbols).replace(",", ", ")


def is_dense(name):
    """Whether it holds the scores of all pairs."""
    return name == KERAS or mechanisms.class_of(name).supports.memory == "T*S"


def layer_arguments(name, what, length, causal):
    """The arguments of `attention.layer_case`."""
    arguments = {"name": KERAS} if name == KERAS else {"name": "ours", "mechanism": text_of(name, length)}
    return {**arguments, "length": length, "backward": what == BOTH, "causal": causal}

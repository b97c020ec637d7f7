"""The names of the changes to training images, as --augment takes them; `augmentation` makes the changes."""

from keras_attention.errors import UsageError

NAMES = ("shift", "rotate", "zoom", "crop", "flip", "randaugment", "mixup", "cutmix")


def parse(names):
    """The names of a comma-separated list, in the order of `NAMES`; "none" is the empty one.

    Raises:
        UsageError: an unknown name.
    """
    given = {name.strip() for name in names.split(",")} - {"none", ""}
    unknown = sorted(given - set(NAMES))
    if unknown:
        raise UsageError(f"--augment knows {', '.join(NAMES)} and none. Got {unknown[0]!r}.")
    return tuple(name for name in NAMES if name in given)

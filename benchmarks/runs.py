"""What the reports about run folders share: the command that makes a run, and the machine's rate beside it."""

import shlex
import statistics
import time

from benchmarks.machine import matrix_product
from keras_attention.training.run_options import flag_name


def command_of(kind, options_class, options, leave_out=()):
    """The command line that makes a run.

    Args:
        kind: sub-command of `keras-attention train`.
        options_class: its dataclass of options.
        options: a dict as config.json holds it.
        leave_out: names of options that the command does not show.
    """
    defaults = options_class(out="RUN").as_dict()
    words = ["keras-attention", "train", kind, "--out", "RUN"]
    for name, value in options.items():
        if name not in leave_out and value != defaults[name]:
            on = [flag_name(name)] if value is True else [f"--no-{name.replace('_', '-')}"]
            words += on if isinstance(value, bool) else [flag_name(name), str(value)]
    return shlex.join(words)


def matrix_rate(rounds=7):
    """The machine's float32 matrix product, operations a second, median of `rounds`."""
    product, operations = matrix_product()
    product()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        product().numpy()
        seconds.append(time.perf_counter() - began)
    return operations / statistics.median(seconds)

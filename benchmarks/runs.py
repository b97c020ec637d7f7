"""What the reports about run folders share: the command that makes a run, and the machine's rate beside it."""

import os
import shlex
import statistics
import time
from dataclasses import fields
from pathlib import Path

from benchmarks.machine import matrix_product
from keras_attention.training.run.run_options import flag_name


def command_of(kind, options_class, options, leave_out=()):
    """The command line that makes a run. Files of the folder $KERAS_ATTENTION_DATA are shown as DATA/...

    Args:
        kind: sub-command of `keras-attention train`.
        options_class: its dataclass of options.
        options: a dict as config.json holds it.
        leave_out: names of options that the command does not show.
    """
    defaults = {each.name: each.default for each in fields(options_class)}
    words = ["keras-attention", "train", kind, "--out", "RUN"]
    for name, value in options.items():
        if name not in leave_out and value != defaults[name]:
            on = [flag_name(name)] if value is True else [f"--no-{name.replace('_', '-')}"]
            words += on if isinstance(value, bool) else [flag_name(name), _portable(str(value))]
    return shlex.join(words)


def _portable(value):
    folder = os.environ.get("KERAS_ATTENTION_DATA")
    if not folder or not Path(value).is_relative_to(folder):
        return value
    return str(Path("DATA") / Path(value).relative_to(folder))


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

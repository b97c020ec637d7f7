"""Peak memory of one piece of work, measured in this process: `python -m benchmarks.child MODULE:FUNCTION JSON`.

FUNCTION, called with the JSON object's entries as keyword arguments, makes everything that must not count (imports,
inputs) and returns a callable. The highest resident size while that callable runs, less the resident size before it,
is printed with the size of the arrays it returned, as one line of JSON.
"""

import gc
import importlib
import json
import sys


def main(target, arguments):
    print(json.dumps(measured(target, arguments)), flush=True)


def measured(target, arguments):
    """The fields of `harness.Memory` for the callable that `target(**arguments)` returns, as a dictionary."""
    module, _, function = target.partition(":")
    work = getattr(importlib.import_module(module), function)(**arguments)
    gc.collect()
    gpu = _gpu()
    if gpu:
        _tensorflow().config.experimental.reset_memory_stats(gpu)
    _reset_peak()
    baseline = _status("VmHWM")
    device_before = _tensorflow().config.experimental.get_memory_info(gpu)["current"] if gpu else 0
    result = work()
    if gpu:
        _tensorflow().test.experimental.sync_devices()
    peak = _status("VmHWM")
    device = _tensorflow().config.experimental.get_memory_info(gpu)["peak"] - device_before if gpu else None
    return {"baseline": baseline, "peak": peak, "results": _bytes(result), "device": device}


def _status(key):
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}: peak memory is measured on Linux only.")


def _reset_peak():
    """Set VmHWM back to the resident size, so that what imports needed for a moment does not hide the work."""
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")


def _bytes(result):
    """Bytes of the arrays in a nest of lists, tuples and dictionaries."""
    if isinstance(result, dict):
        return sum(_bytes(value) for value in result.values())
    if isinstance(result, list | tuple):
        return sum(_bytes(value) for value in result)
    if hasattr(result, "nbytes"):  # NumPy and PyTorch
        return int(result.nbytes)
    if hasattr(result, "dtype") and hasattr(result, "shape"):  # TensorFlow
        count = 1
        for axis in result.shape:
            count *= int(axis)
        return count * result.dtype.size
    return 0


def _tensorflow():
    return sys.modules.get("tensorflow")


def _gpu():
    tf = _tensorflow()
    return "GPU:0" if tf is not None and tf.config.list_logical_devices("GPU") else None


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

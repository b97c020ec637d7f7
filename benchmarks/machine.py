"""What a figure was measured on: the machine, the versions, and how fast it multiplies matrices."""

import importlib.metadata
import os
import platform
import shlex
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """The facts without which a timing means nothing."""

    cpu: str
    threads: int  # cores this process may use
    gpu: str  # "" where there is none
    load: float  # one-minute load average when the run began: above `threads`, figures are noise
    versions: str


def this_machine(packages=("tensorflow", "keras", "numpy", "keras-attention")):
    """Describe the machine and the installed versions of `packages` (those that are not installed are left out)."""
    versions = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Machine(_cpu_model(), _threads(), _gpu_model(), os.getloadavg()[0], ", ".join(versions))


def matrix_product(dtype="float32", size=1536):
    """A callable that multiplies two square matrices through TensorFlow, and the count of its operations.

    Args:
        dtype: "float32", "bfloat16", "float16" or "float64".
        size: side of the matrices; 1024 to 2048 is large enough to reach the machine's rate and quick enough to repeat.

    Returns:
        (callable, operations): one call does `2 * size**3` floating-point operations.
    """
    import tensorflow as tf

    left = tf.cast(tf.random.stateless_normal((size, size), (1, 2)), dtype)
    right = tf.cast(tf.random.stateless_normal((size, size), (3, 4)), dtype)
    product = tf.function(lambda: tf.matmul(left, right), autograph=False)
    return product, 2 * size**3


def command_line():
    """The command that started this process, as someone in the repository's root would type it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name:
        name = spec.name.removesuffix(".__main__")
        return shlex.join(["python", "-m", name, *sys.argv[1:]])
    return shlex.join(["python", *sys.argv])


def _cpu_model():
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _threads():
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _gpu_model():
    tf = sys.modules.get("tensorflow")
    devices = tf.config.list_physical_devices("GPU") if tf else []
    return ", ".join(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in devices)

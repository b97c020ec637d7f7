"""The package as it is installed: its list of packages, what it declares, and what an import costs."""

import ast
import configparser
import os
import re
import subprocess
import sys

import pytest
from source_tree import FOLDERS, ROOT, modules

import keras_attention

HEAVY = (
    "tensorflow_text",
    "onnx",
    "onnxruntime",
    "tf2onnx",
    "torch",
    "matplotlib",
    "sacrebleu",
    "sentencepiece",
)


@pytest.fixture(scope="module")
def config():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_every_package_is_listed(config):
    listed = config["options"]["packages"].split()
    found = []
    for package, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.append(".".join([package, *init.parent.relative_to(ROOT / folder).parts]))
    assert sorted(found) == listed, "setup.cfg lists the packages in alphabetical order"
    mapped = dict(re.findall(r"(\S+) = (\S+)", config["options"]["package_dir"]))
    assert mapped == FOLDERS
    without = {path.parent for path in modules().values()} - {
        path.parent for path in modules().values() if path.stem == "__init__"
    }
    assert not without, "folders of modules without __init__.py"


def test_version_typing_and_command(config):
    assert config["metadata"]["version"] == "attr: keras_attention.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+", keras_attention.__version__)
    assert (ROOT / "keras_attention/py.typed").exists() and "py.typed" in config["options.package_data"][
        "keras_attention"
    ]
    assert "keras-attention = keras_attention_command:main" in config["options.entry_points"]["console_scripts"]


def test_no_module_is_named_like_a_library(config):
    required = config["options"]["install_requires"] + "".join(config["options.extras_require"].values())
    libraries = {re.split(r"[\[><=~ ]", line.strip())[0].lower().replace("-", "_") for line in required.splitlines()}
    names = {path.stem.lower() for path in modules().values()} | {path.stem for path in (ROOT / "tests").glob("*.py")}
    assert not names & (libraries | {"datasets", "transformers", "utils", "onnx", "keras", "numpy"})


# Distributions whose module has another name.
MODULES = {"tensorflow-text": "tensorflow_text", "Babel": "babel", "Pillow": "PIL", "scikit-learn": "sklearn"}
TOOLS = {"pytest", "pytest-xdist", "ruff", "pre-commit", "build"}


def requirements(text):
    names = {re.split(r"[\[><=~ ]", line.strip())[0] for line in text.splitlines() if line.strip()}
    return {MODULES.get(name, name) for name in names}


def test_what_is_imported_is_declared_and_the_other_way_round(config):
    base = requirements(config["options"]["install_requires"])
    extras = requirements("\n".join(config["options.extras_require"].values())) - TOOLS
    imported, at_the_top = set(), set()
    for path in modules().values():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            found = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            found = [node.module] if isinstance(node, ast.ImportFrom) else found
            names = {module.split(".")[0] for module in found} - set(sys.stdlib_module_names) - {"keras_attention"}
            imported |= names
            # Of this module every other one imports it where it is used.
            at_the_top |= names if node in tree.body and path.stem != "phrase_kinds" else set()
    with_tensorflow = {"google", "ml_dtypes"}
    assert imported <= base | extras | with_tensorflow
    assert at_the_top <= base | with_tensorflow, "what an extra brings is imported where it is used"
    through_keras = {"rich", "tensorboard"}  # its summary and its callback import them
    assert base <= imported | through_keras


def test_no_extra_holds_both_onnx_runtimes(config):
    for name, required in config["options.extras_require"].items():
        assert not ("onnxruntime>" in required and "onnxruntime-gpu" in required), name


CHILD = """
import importlib, pkgutil, sys
import keras  # loads matplotlib by itself, where that is installed
heavy = [name for name in {heavy} if name not in sys.modules]
import keras_attention
first = [name for name in heavy if name in sys.modules]
for module in pkgutil.walk_packages(keras_attention.__path__, "keras_attention."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(first, [name for name in heavy if name in sys.modules])
"""


def test_imports_are_light():
    """Optional and slow libraries are imported where they are used, not by the package or by any module of it."""
    child = subprocess.run([sys.executable, "-c", CHILD.format(heavy=HEAVY)], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-2000:]
    assert child.stdout.split("\n")[0] == "[] []"


@pytest.mark.parametrize("backend", ["torch", "jax", "numpy"])
def test_another_backend_is_one_clear_error(backend):
    child = subprocess.run(
        [sys.executable, "-c", "import keras_attention"],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
    assert child.returncode == 1
    last = child.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: keras_attention runs on Keras' TensorFlow backend only.")
    assert f"Got backend '{backend}': set KERAS_BACKEND=tensorflow" in last


def test_submodules_come_with_the_package():
    """Case 102: `import keras_attention` is enough to write the name of any part, which is imported then."""
    script = """
import sys
import keras_attention
later = ("export", "training", "inference", "pretrained", "diagnostics")
assert not [name for name in later if f"keras_attention.{name}" in sys.modules]
for name in (*later, "checkpoints", "generation", "images", "models", "text"):
    assert getattr(keras_attention, name).__name__ == f"keras_attention.{name}"
    assert name in dir(keras_attention)
try:
    keras_attention.nothing
except AttributeError as error:
    assert "has no attribute 'nothing'" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True)

"""The package as it is installed: its list of packages, what an import costs, and which part knows which."""

import ast
import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_attention

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "keras_attention": "keras_attention",
    "keras_attention.export": "export",
    "keras_attention.training": "training",
}
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

# Lower parts never import higher ones; parts of one level know each other unless they stand apart.
LEVELS = [
    ("errors", "backend"),
    ("ops", "text"),
    ("mechanisms",),
    ("layers",),
    ("models",),
    ("checkpoints", "diagnostics", "generation"),
    ("images",),
    ("training", "export"),
    ("commands",),
    ("cli",),
]
APART = [("training", "export"), ("ops", "text")]


@pytest.fixture(scope="module")
def config():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def sources():
    """(package part, path) of every module: `ops` for keras_attention/ops/masks.py, "" for the package itself."""
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [*package.split(".")[1:], *path.relative_to(ROOT / folder).with_suffix("").parts]
            yield ("" if parts == ["__init__"] else parts[0]), path


def test_every_package_is_listed(config):
    listed = config["options"]["packages"].split()
    found = []
    for package, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.append(".".join([package, *init.parent.relative_to(ROOT / folder).parts]))
    assert sorted(found) == listed, "setup.cfg lists the packages in alphabetical order"
    mapped = dict(re.findall(r"(\S+) = (\S+)", config["options"]["package_dir"]))
    assert mapped == FOLDERS
    without = {path.parent for _, path in sources()} - {path.parent for _, path in sources() if path.stem == "__init__"}
    assert not without, "folders of modules without __init__.py"


def test_version_typing_and_command(config):
    assert config["metadata"]["version"] == "attr: keras_attention.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+", keras_attention.__version__)
    assert (ROOT / "keras_attention/py.typed").exists() and "py.typed" in config["options.package_data"][
        "keras_attention"
    ]
    assert "keras-attention = keras_attention.cli:main" in config["options.entry_points"]["console_scripts"]


def test_no_module_is_named_like_a_library(config):
    required = config["options"]["install_requires"] + "".join(config["options.extras_require"].values())
    libraries = {re.split(r"[\[><=~ ]", line.strip())[0].lower().replace("-", "_") for line in required.splitlines()}
    names = {path.stem.lower() for _, path in sources()} | {path.stem for path in (ROOT / "tests").glob("*.py")}
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
    for _, path in sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules = [node.module] if isinstance(node, ast.ImportFrom) else modules
            names = {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names) - {"keras_attention"}
            imported |= names
            at_the_top |= names if node in tree.body else set()
    with_tensorflow = {"google", "ml_dtypes"}
    assert imported <= base | extras | with_tensorflow
    assert at_the_top <= base | with_tensorflow, "what an extra brings is imported where it is used"
    through_keras = {"rich", "tensorboard"}  # its summary and its callback import them
    assert base <= imported | through_keras


def test_no_extra_holds_both_onnx_runtimes(config):
    for name, required in config["options.extras_require"].items():
        assert not ("onnxruntime>" in required and "onnxruntime-gpu" in required), name


def test_arrows_point_one_way():
    level = {part: i for i, parts in enumerate(LEVELS) for part in parts}
    for part, path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                modules = (
                    [node.module]
                    if node.module != "keras_attention"
                    else [f"{node.module}.{a.name}" for a in node.names]
                )
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in modules:
                first, *rest = module.split(".")
                assert first not in ("training", "export", "tests"), f"{path} imports {module}: a second copy"
                if first != "keras_attention" or not rest or not part:
                    continue
                if rest[0] not in level:
                    continue  # a public name of the package
                assert level[rest[0]] <= level[part], f"{path}: {part} must not know {rest[0]}"
                assert (part, rest[0]) not in APART and (rest[0], part) not in APART, f"{path} imports {module}"


def test_modules_stay_readable():
    long = {str(path): n for _, path in sources() if (n := len(path.read_text(encoding="utf-8").splitlines())) > 500}
    assert not long, "one idea a file"


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

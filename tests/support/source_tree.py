"""The package's own source files, and what each imports, read with `ast`."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Package -> folder: two folders at the top are installed inside the package.
FOLDERS = {
    "keras_attention": "keras_attention",
    "keras_attention.export": "export",
    "keras_attention.training": "training",
}


def modules():
    """dict of dotted name -> path of every module and package ("keras_attention.ops" is its `__init__.py`)."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


def imported(path, known):
    """The modules of `known` that a file imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from a.b import c` takes the module a.b.c where there is one, and a name of a.b otherwise.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    wrong = {name for name in found if name.split(".")[0] in ("training", "export", "tests")}
    assert not wrong, f"{path} imports {sorted(wrong)}: a second copy of each registered class"
    return found & set(known)

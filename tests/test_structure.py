"""The house: which room knows which, no circles between files, and rooms and modules of a size to live in."""

import ast
import importlib
from collections import Counter

import pytest
from source_tree import FOLDERS, ROOT, imported, modules

# Lower parts never import higher ones; parts of one level know each other unless they stand apart.
LEVELS = [
    ("errors", "files", "backend", "lazy_names", "console", "recorded", "scalars"),
    ("ops", "text", "images"),
    ("mechanisms",),
    ("layers",),
    ("models",),
    ("generation", "diagnostics", "pretrained"),
    ("checkpoints",),  # the old name of pretrained
    ("inference",),
    ("training", "export"),
    ("commands",),
    ("cli",),
    ("__main__",),
]
APART = [("training", "export"), ("ops", "text"), ("ops", "images")]
# What a room hands on from above it, because it lived there in an earlier version: the only references upwards.
FACES = {
    "keras_attention.generation": {"Translator": "keras_attention.inference.translator"},
    "keras_attention.images": {
        "Classification": "keras_attention.inference.classifier",
        "Classifier": "keras_attention.inference.classifier",
    },
}
MOST_MODULES, MOST_LINES = 12, 400
# A shelf of like things, one file each.
SHELVES = ("keras_attention.mechanisms",)


def part(name):
    """`ops` of keras_attention.ops.basics.masks, "" of the package itself."""
    return (name.split(".") + [""])[1]


def lazily_named(path):
    """The modules that a package's `lazy_names(...)` names, as dict of name -> module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "lazy_names"]
    return {
        keyword.arg: constants[keyword.value.id] if isinstance(keyword.value, ast.Name) else keyword.value.value
        for call in calls
        for keyword in call.keywords
    }


def test_arrows_point_one_way():
    level = {name: i for i, names in enumerate(LEVELS) for name in names}
    known = modules()
    for name, path in known.items():
        for other in imported(path, known):
            here, there = part(name), part(other)
            if not here or not there:
                continue  # the package's own names
            assert level[there] <= level[here], f"{name} must not know {other}"
            assert (here, there) not in APART and (there, here) not in APART, f"{name} imports {other}"


def test_the_only_references_upwards_are_the_faces():
    level = {name: i for i, names in enumerate(LEVELS) for name in names}
    upwards = {
        name: {key: target for key, target in lazily_named(path).items() if level[part(target)] > level[part(name)]}
        for name, path in modules().items()
        if part(name) and name != "keras_attention.lazy_names"
    }
    assert {name: found for name, found in upwards.items() if found} == FACES


@pytest.mark.parametrize("package, name", [(package, name) for package, names in FACES.items() for name in names])
def test_a_face_hands_on_the_name_itself(package, name):
    handed = getattr(importlib.import_module(package), name)
    assert handed is getattr(importlib.import_module(FACES[package][name]), name)
    assert name in dir(importlib.import_module(package))


def test_no_lazy_name_is_a_module():
    """Importing the module would put it in the place of what the package hands on under its name."""
    known = modules()
    assert not [
        f"{name}.{key}" for name, path in known.items() for key in lazily_named(path) if f"{name}.{key}" in known
    ]


def test_a_face_has_no_other_names():
    with pytest.raises(AttributeError, match=r"module 'keras_attention.images' has no attribute 'Nothing'"):
        importlib.import_module("keras_attention.images").Nothing  # noqa: B018


def test_no_two_files_import_each_other_however_far_around():
    known = modules()
    waiting = {name: imported(path, known) - {name} for name, path in known.items()}
    while True:
        free = {name for name, needs in waiting.items() if not needs & set(waiting)}
        if not free:
            break
        waiting = {name: needs for name, needs in waiting.items() if name not in free}
    assert not waiting, f"in circles, or above one: {sorted(waiting)}"


def test_rooms_hold_no_more_than_a_dozen_modules():
    held = Counter(
        name.rpartition(".")[0] for name, path in modules().items() if path.name not in ("__init__.py", "__main__.py")
    )
    crowded = {room: count for room, count in held.items() if count > MOST_MODULES and room not in SHELVES}
    assert not crowded, "give it rooms"


def test_modules_stay_readable():
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}, "one idea a file"


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in modules().values()}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
    assert {ROOT / folder for folder in FOLDERS.values()} <= folders

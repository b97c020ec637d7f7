"""Names for the tensors of a decoding state, derived from its structure."""

import re

_PART = re.compile(r"(\d+)")


def named(structure):
    """The tensors of a nested structure under stable dotted names, in numeric order.

    Args:
        structure: dicts, lists and tuples of leaves, nested at will, such as the state of `Transformer.init_state`.

    Returns:
        dict: "layers.0.self.key" -> leaf. Keys that hold numbers are ordered by them: "2" stands before "10".
    """
    return dict(_walk(structure, ()))


def packed(structure, leaves):
    """A structure like `structure` with the leaves of the dict `leaves`, which has the names that `named` gives."""
    return _pack(structure, (), leaves)


def _walk(structure, path):
    children = _children(structure)
    if children is None:
        yield ".".join(path), structure
        return
    for key, child in children:
        yield from _walk(child, (*path, key))


def _pack(structure, path, leaves):
    if isinstance(structure, dict):
        return {key: _pack(child, (*path, str(key)), leaves) for key, child in structure.items()}
    if isinstance(structure, (list, tuple)):
        children = [_pack(child, (*path, key), leaves) for key, child in _children(structure)]
        return type(structure)(*children) if hasattr(structure, "_fields") else type(structure)(children)
    return leaves[".".join(path)]


def _children(structure):
    """Pairs of name and child, or None for a leaf."""
    if isinstance(structure, dict):
        return sorted(((str(key), child) for key, child in structure.items()), key=lambda pair: _numeric(pair[0]))
    if isinstance(structure, (list, tuple)):
        names = getattr(structure, "_fields", None) or map(str, range(len(structure)))
        return list(zip(names, structure, strict=True))
    return None


def _numeric(name):
    # Text and numbers alternate in what split returns, so that like is compared with like.
    return [int(part) if part.isdigit() else part for part in _PART.split(name)]

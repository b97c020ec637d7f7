"""What attention works on: an input's heads."""

from typing import Any, NamedTuple


class Heads(NamedTuple):
    """One call's projected inputs.

    Attributes:
        q: [B, H, T, D]. k, v: [B, Hkv, S, D].
        projected: what else the mechanism's `project` made for its `attend`, by name.
    """

    q: Any
    k: Any
    v: Any
    projected: dict

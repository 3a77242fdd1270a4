"""Two layouts of an image: channels first (ONNX's own) and channels last, and what a tensor's
elements and axes are in each.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

FIRST, LAST = "first", "last"
ASSUMED = 32  # the size of a free dimension, where bytes are counted


def other(layout: str) -> str:
    return LAST if layout == FIRST else FIRST


def to_last(rank: int) -> list[int]:
    """The axes of ONNX's layout in the order of channels last."""
    return [0, *range(2, rank), 1]


def to_first(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]


def turn(rank: int, layout: str) -> list[int]:
    """The permutation that gives an image of the other layout this one."""
    return to_last(rank) if layout == LAST else to_first(rank)


def permutation(rank: int, before: str, after: str) -> list[int]:
    return list(range(rank)) if before == after else turn(rank, after)


def rank_of(value: ir.Value | None) -> int:
    """The number of axes; 0 where it is not known."""
    return 0 if value is None or value.shape is None else len(value.shape)


def is_image(value: ir.Value | None) -> bool:
    """Whether a value has axes for the batch, the channels and at least one of space."""
    return rank_of(value) >= 3


def keeps_order(dims: Sequence[object], perm: Sequence[int]) -> bool:
    """Whether a permutation of axes leaves all elements where they are in memory."""
    axes = [a for a in perm if dims[a] != 1]
    return axes == sorted(axes)


def turns_freely(value: ir.Value, written: str) -> bool:
    """Whether both layouts of an image are the same bytes, such as those of 1 × 1 pixels."""
    dims = list(value.shape or ())
    return keeps_order(dims, turn(len(dims), other(written)))


def unknown_sizes(value: ir.Value | None) -> int:
    """How many dimensions are not numbers; more than any number for an unknown rank."""
    if value is None or value.shape is None:
        return 1 << 30
    return sum(not isinstance(d, int) for d in value.shape)


def bytes_of(value: ir.Value) -> int:
    """The bytes of a tensor; a free dimension counts as `ASSUMED`."""
    size = 1
    for dim in value.shape or ():
        size *= dim if isinstance(dim, int) else ASSUMED
    return max(int(size * (4 if value.dtype is None else value.dtype.itemsize)), 1)

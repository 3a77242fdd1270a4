"""Lowerings of ONNX's family sequence: Python lists of arrays, whose shapes may differ."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import NotStatic, positive


def elements(sequence):
    """The tensors of a sequence; a damaged file may have a single tensor there."""
    if not isinstance(sequence, list):
        raise TypeError("a tensor stands where the operator takes a sequence")
    return sequence


@lowering("SequenceEmpty")
def sequence_empty(xp, *, dtype):
    return []


@lowering("SequenceConstruct")
def sequence_construct(xp, *xs):
    return list(xs)


@lowering("SequenceLength")
def sequence_length(xp, sequence):
    return np.array(len(elements(sequence)), np.int64)


@lowering("SequenceAt", static=("position",))
def sequence_at(xp, sequence, position):
    return elements(sequence)[int(position.reshape(()))]


@lowering("SequenceInsert", static=("position",))
def sequence_insert(xp, sequence, tensor, position=None):
    sequence = elements(sequence)
    at = len(sequence) if position is None else int(position.reshape(()))
    at = positive(at, len(sequence))
    return [*sequence[:at], tensor, *sequence[at:]]


@lowering("SequenceErase", static=("position",))
def sequence_erase(xp, sequence, position=None):
    sequence = elements(sequence)
    at = len(sequence) - 1 if position is None else int(position.reshape(()))
    at = positive(at, len(sequence))
    return [*sequence[:at], *sequence[at + 1 :]]


@lowering("ConcatFromSequence")
def concat_from_sequence(xp, sequence, *, axis, new_axis):
    sequence = elements(sequence)
    if not new_axis:
        return xp.concat(sequence, axis)
    return xp.stack(sequence, positive(axis, xp.rank(sequence[0]) + 1))


@lowering("SplitToSequence", static=("split",))
def split_to_sequence(xp, x, split=None, *, axis, keepdims):
    axis = positive(axis, xp.rank(x))
    whole = xp.shape(x)[axis]
    if not isinstance(whole, int) and (split is None or split.ndim == 0):
        raise NotStatic("the length of a sequence is only known while running")
    if split is None:
        sizes = [1] * whole
    elif split.ndim == 0:
        each = int(split)
        sizes = [min(each, whole - start) for start in range(0, whole, each)]
    else:
        sizes = split.tolist()
    parts = xp.split(x, sizes, axis)
    if split is None and not keepdims:
        parts = [xp.squeeze(p, (axis,)) for p in parts]
    return list(parts)


@lowering("SequenceMap")
def sequence_map(xp, sequence, *others, body):
    rows = []
    for i, item in enumerate(sequence):
        rest = [other[i] if isinstance(other, list) else other for other in others]
        rows.append(body(item, *rest))
    return tuple(list(column) for column in zip(*rows))

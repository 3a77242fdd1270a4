"""Whether two models can be compared at all, and at which sizes: what their files declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from sardonyx.errors import quote
from sardonyx.model import Model
from sardonyx.verify.inputs import symbol


def interface_mismatch(model: Model, first: Model) -> str:
    """What keeps `model` from being compared with `first`; empty where nothing does.

    Inputs are paired by name, else by place; outputs need only be as many. Ranks and sizes of
    outputs are left out: files often declare them wrongly, and a run shows what they are.
    """
    count, expected = len(model.outputs), len(first.outputs)
    if count < expected:
        return f"{_plural(count, 'output')}, not {expected}"
    if len(model.inputs) > len(first.inputs):
        return f"{_plural(len(model.inputs), 'input')}, not {len(first.inputs)}"
    problems = (_input_mismatch(a, b) for a, b in _paired(model.inputs, first.inputs))
    return next((problem for problem in problems if problem), "")


def common_sizes(first: Model, others: Iterable[Model]) -> dict[str, int]:
    """Numbers for the symbolic dimensions of `first` that another model fixes."""
    return {
        symbol(b, axis): size
        for other in others
        for a, b in _paired(other.inputs, first.inputs)
        for axis, size in enumerate(a.shape or ())
        if isinstance(size, int) and b.shape is not None and not isinstance(b.shape[axis], int)
    }


def _paired(
    inputs: Sequence[ir.Value], others: Sequence[ir.Value]
) -> list[tuple[ir.Value, ir.Value]]:
    by_name = {v.name: v for v in others}
    names = {v.name for v in inputs}
    free = [v for v in others if v.name not in names]
    unnamed = [v for v in inputs if v.name not in by_name]
    named = [(v, by_name[v.name]) for v in inputs if v.name in by_name]
    return named + list(zip(unnamed, free))


def _input_mismatch(value: ir.Value, other: ir.Value) -> str:
    if value.dtype != other.dtype and value.dtype is not None and other.dtype is not None:
        types = (value.dtype.name.lower(), other.dtype.name.lower())
        return f"input {quote(value.name)} is {types[0]}, not {types[1]}"
    if value.shape is None or other.shape is None:
        return ""
    fits = len(value.shape) == len(other.shape) and not any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(value.shape, other.shape)
    )
    if fits:
        return ""
    shapes = [[d if isinstance(d, int) else str(d) for d in v.shape or ()] for v in (value, other)]
    return f"input {quote(value.name)} has the shape {shapes[0]}, not {shapes[1]}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count != 1 else "")

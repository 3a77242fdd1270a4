"""ONNX forms of operators for which torch's exporter has none, or has one that is wrong.

Those that only training draws or folds away are in `operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset18 as op

from sardonyx.importers.torch import operators  # noqa: F401  (defines operators of ours)
from sardonyx.importers.torch.numbers import number

INT64 = 7


def grouped_mm(input: Any, weight: Any, offs: Any) -> Any:
    """The rows of each group with the matrix of that group; `offs` says where groups end.

    Rows behind the last group are zeros. Each row takes part in one product only, so that the
    experts of a mixture cost what they do in torch.
    """
    count, width = int(weight.shape[0]), weight.shape[2]
    first, axis = op.Constant(value_ints=[0]), op.Constant(value_ints=[0])
    ends = _parts(op.Cast(offs, to=INT64), count)
    results, start = [], first
    for end, matrix in zip(ends, _parts(weight, count), strict=True):
        results.append(op.MatMul(op.Slice(input, start, end, axis), op.Squeeze(matrix, axis)))
        start = end
    rest = op.Sub(op.Shape(input, start=0, end=1), start)
    zeros = op.Expand(number(0.0, input), op.Concat(rest, op.Constant(value_ints=[width]), axis=0))
    return op.Concat(*results, zeros, axis=0)


def _parts(x: Any, count: int) -> list[Any]:
    """The rows of `x` one by one, each with an axis of 1."""
    return [x] if count == 1 else list(op.Split(x, axis=0, num_outputs=count))


def translations() -> dict[Any, Callable[..., Any]]:
    """The forms by operator; libraries define theirs when they are imported."""
    table = dict(TRANSLATIONS)
    library = getattr(torch.ops, "transformers", None)
    if library is not None and hasattr(library, "grouped_mm_fallback"):
        table[library.grouped_mm_fallback.default] = grouped_mm
    return table


def view_of(x: Any) -> Any:
    return op.Identity(x)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.sardonyx.grouped_mm.default: grouped_mm,
    torch.ops.prims.view_of.default: view_of,  # what is left of a squeeze of nothing
}

"""Operators that torch's exporter has no ONNX form of, or a wrong one, written with others.

They stand in for torch's own while a module is captured, and give the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def sort(input: Any, dim: int = -1, descending: bool = False, *, stable: Any = None) -> Any:
    return torch.sort(input, dim, descending)  # equal elements keep their order in ONNX


def argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return torch.argsort(input, dim, descending)


def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    values, indices = torch.sort(input, dim)
    pair = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return torch.return_types.kthvalue(pair if keepdim else [v.squeeze(dim) for v in pair])


def median(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The lower one of two in the middle."""
    if dim is None:
        flat = input.flatten()
        return torch.sort(flat)[0][(flat.shape[0] - 1) // 2]
    middle = (input.shape[dim] - 1) // 2 + 1
    return torch.return_types.median(kthvalue(input, middle, dim, keepdim))


def cumprod(input: Any, dim: int, *, dtype: Any = None) -> Any:
    x = input if dtype is None else input.to(dtype)
    return _running(x if x.is_floating_point() else x.to(torch.int64), dim, torch.mul, 1)


def cummax(input: Any, dim: int) -> Any:
    return torch.return_types.cummax(_extremes(input, dim, torch.maximum))


def cummin(input: Any, dim: int) -> Any:
    return torch.return_types.cummin(_extremes(input, dim, torch.minimum))


def _extremes(x: Any, dim: int, choose: Callable[[Any, Any], Any]) -> Any:
    """The extremes so far and where they are, of equal ones the last."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    is_maximum = choose is torch.maximum
    limits = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    values = _running(x, dim, choose, limits.min if is_maximum else limits.max)
    shape = [1] * x.dim()
    shape[dim] = -1
    places = torch.arange(x.shape[dim], device=x.device).reshape(shape).expand(x.shape)
    return values, _running(torch.where(x == values, places, 0), dim, torch.maximum, 0)


def _running(x: Any, dim: int, combine: Callable[[Any, Any], Any], neutral: Any) -> Any:
    """All results so far along an axis, in steps that double what they reach."""
    if not x.dim():
        return x.clone()
    count, reach = x.shape[dim], 1
    if isinstance(count, torch.SymInt):
        return _running_by_table(x, dim, combine, neutral)
    while reach < count:
        start = torch.full_like(x.narrow(dim, 0, reach), neutral)
        x = combine(x, torch.cat([start, x.narrow(dim, 0, count - reach)], dim))
        reach *= 2
    return x


def _running_by_table(x: Any, dim: int, combine: Callable[[Any, Any], Any], neutral: Any) -> Any:
    """The same for a free size: of each place, all that are not after it."""
    x, places = x.movedim(dim, -1), torch.arange(x.shape[dim], device=x.device)
    is_counted = places[None, :] <= places[:, None]
    table = torch.where(is_counted, x[..., None, :], torch.full_like(x[..., None, :], neutral))
    reduce = {torch.mul: torch.prod, torch.maximum: torch.amax, torch.minimum: torch.amin}[combine]
    return reduce(table, -1).movedim(-1, dim)


def hypot(input: Any, other: Any) -> Any:
    total = input.square() + other.square()
    root = torch.where(total > 0, total, torch.ones_like(total)).sqrt()
    return torch.where(total > 0, root, torch.zeros_like(total))


def fmax(input: Any, other: Any) -> Any:
    return _without_nan(input, other, torch.maximum)


def fmin(input: Any, other: Any) -> Any:
    return _without_nan(input, other, torch.minimum)


def _without_nan(a: Any, b: Any, choose: Callable[[Any, Any], Any]) -> Any:
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, choose(a, b)))


def searchsorted(
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    steps = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    values = torch.as_tensor(input, dtype=steps.dtype)
    steps = steps if steps.dim() == 1 else steps[..., None, :]
    is_right = right or side == "right"
    is_before = steps <= values[..., None] if is_right else steps < values[..., None]
    return is_before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """The mean as a sum and a count; other kinds as they are."""
    if reduce != "mean" or not input.is_floating_point():
        return torch.scatter_reduce(input, dim, index, src, reduce, include_self=include_self)
    ones = torch.ones_like(input)
    counts = (ones if include_self else torch.zeros_like(input)).scatter_add(
        dim, index, torch.ones_like(src)
    )
    if include_self:
        return input.scatter_add(dim, index, src) / counts
    sums = torch.zeros_like(input).scatter_add(dim, index, src)
    return torch.where(counts > 0, sums / counts.clamp(min=1.0), input)


FUNCTIONS = (
    sort, argsort, kthvalue, median, cumprod, cummax, cummin, hypot, fmax, fmin, searchsorted,
    scatter_reduce,
)  # fmt: skip
PLAIN: dict[Any, Callable[..., Any]] = {
    getattr(home, function.__name__): function
    for function in FUNCTIONS
    for home in (torch, torch.Tensor)
    if hasattr(home, function.__name__)
}

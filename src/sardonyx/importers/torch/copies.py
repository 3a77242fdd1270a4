"""Independent copies of modules, optimizers and losses that belong together."""

from __future__ import annotations

import copy
import functools
from types import CellType, CodeType, FunctionType
from typing import Any

import torch

from sardonyx.importers.torch.capture import INSTALLED, INTERNAL

DEPTH = 4  # of functions that call functions
CONTAINERS = (list, tuple, dict)


def copied(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies of `parts` that refer to each other as the originals do.

    torch's own way of copying an optimizer leaves out the attributes that a subclass has added;
    Python's way of copying a function leaves it with the originals.
    """
    memo: dict[int, Any] = {id(t): t.detach().clone() for t in _results(parts)}
    copies = copy.deepcopy(parts, memo)
    for part, twin in zip(parts, copies, strict=True):
        if isinstance(part, torch.optim.Optimizer):
            for name, value in vars(part).items():
                if name not in vars(twin) and not name.startswith("_") and name != "step":
                    setattr(twin, name, copy.deepcopy(value, memo))
    return tuple(_rebound(c, memo, DEPTH) for c in copies)


def _results(parts: tuple[Any, ...]) -> list[torch.Tensor]:
    """What modules keep of their last call, with gradients: torch copies none of these tensors."""
    modules = [m for p in parts if isinstance(p, torch.nn.Module) for m in p.modules()]
    values = [v for m in modules for v in vars(m).values() if isinstance(v, torch.Tensor)]
    return [v for v in values if not v.is_leaf]


def _rebound(value: Any, memo: dict[int, Any], depth: int) -> Any:
    """A function that refers to the copies of what has been copied; any other value as it is."""
    if id(value) in memo and isinstance(value, (torch.nn.Module, torch.Tensor)):
        return memo[id(value)]
    if type(value) in CONTAINERS and depth:
        items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
        twins = {k: _rebound(v, memo, depth - 1) for k, v in items.items()}
        if all(twins[k] is v for k, v in items.items()):
            return value
        return twins if isinstance(value, dict) else type(value)(twins.values())
    if isinstance(value, functools.partial) and depth:
        arguments = _rebound(value.args, memo, depth), _rebound(value.keywords, memo, depth)
        return functools.partial(_rebound(value.func, memo, depth), *arguments[0], **arguments[1])
    if isinstance(value, FunctionType) and depth and not _is_of_library(value):
        return _function(value, memo, depth - 1)
    return value


def _is_of_library(function: FunctionType) -> bool:
    path = function.__code__.co_filename
    return path.startswith(INTERNAL) or any(part in path for part in INSTALLED)


def _names(code: CodeType) -> set[str]:
    """The names of a function's code and of the functions inside it."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _function(function: FunctionType, memo: dict[int, Any], depth: int) -> FunctionType:
    """A function whose closure, defaults and globals are those of the copies."""
    cells = [_cell(cell, memo, depth) for cell in function.__closure__ or ()]
    names = [n for n in _names(function.__code__) if n in function.__globals__]
    twins = {n: _rebound(function.__globals__[n], memo, depth) for n in names}
    changes = {n: v for n, v in twins.items() if v is not function.__globals__[n]}
    defaults = _rebound(function.__defaults__, memo, depth)
    pairs = zip(cells, function.__closure__ or (), strict=True)
    if not changes and defaults is function.__defaults__ and all(a is b for a, b in pairs):
        return function
    scope = {**function.__globals__, **changes} if changes else function.__globals__
    twin = FunctionType(function.__code__, scope, function.__name__, defaults, tuple(cells))
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _cell(cell: CellType, memo: dict[int, Any], depth: int) -> CellType:
    try:
        content = cell.cell_contents
    except ValueError:  # a variable that is assigned later
        return cell
    twin = _rebound(content, memo, depth)
    return cell if twin is content else CellType(twin)

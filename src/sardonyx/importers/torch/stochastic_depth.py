"""Stochastic depth: modules that drop whole rows of what they are given, in training mode only.

Libraries have classes of their own for it, so a module is recognized by what it does: with chosen
draws it multiplies each row, or all of them, by 0 or by one number. In the graph that is Dropout of
a one for each row.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ROWS = 4
ALMOST_ONE = 1.0 - 2.0**-24  # the largest of torch's uniform numbers


@dataclass(frozen=True)
class RowDropout:
    """How a module drops rows.

    scaled  -- whether the rows that stay are divided by their share
    per_row -- whether each row is drawn by itself, or all of them together
    uniform -- whether the module draws a uniform number, which it rounds
    """

    ratio: float
    scaled: bool
    per_row: bool
    uniform: bool


class _Chosen(TorchDispatchMode):
    """Every other draw keeps its row; `first` says whether the first one does."""

    def __init__(self, first: bool):
        super().__init__()
        self.first = first
        self.draws: list[tuple[tuple[int, ...], float | None]] = []  # shape, share that stays
        self.mask: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is aten.bernoulli_.float:
            self.draws.append((tuple(result.shape), float(args[1]) if len(args) > 1 else 0.5))
            return result.copy_(self._kept(result))
        if func is aten.rand.default:
            self.draws.append((tuple(result.shape), None))
            return self._kept(result) * ALMOST_ONE
        return result

    def _kept(self, like: Any) -> Any:
        places = torch.arange(like.numel(), dtype=like.dtype).reshape(like.shape)
        self.mask = (places + int(self.first)) % 2
        return self.mask


def row_dropout(module: torch.nn.Module, rank: int) -> RowDropout | None:
    """How a module drops rows of a tensor of some rank; None if it does something else."""
    x = torch.linspace(1.0, 2.0, ROWS * 2 ** (rank - 1), dtype=torch.float64)
    x = x.reshape(ROWS, *[2] * (rank - 1))
    answers = []
    for first in (True, False):
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _Chosen(first) as chosen:
            try:
                y = module(x.clone())
            except Exception:  # the user's own code, given another size
                return None
        if chosen.mask is not None and not chosen.mask.any():  # all rows together
            if not isinstance(y, torch.Tensor) or y.any():
                return None
        else:
            answers.append(_answer(x, y, chosen))
    return answers[0] if len(set(answers)) == 1 else None


def _answer(x: Any, y: Any, chosen: _Chosen) -> RowDropout | None:
    if len(chosen.draws) != 1 or not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return None
    ((shape, share),) = chosen.draws
    if len(shape) != x.dim() or set(shape[1:]) != {1} or shape[0] not in (1, ROWS):
        return None
    per_row, uniform = shape[0] == ROWS, share is None
    row = int(chosen.mask.reshape(-1).argmax()) if per_row else 0
    factor = float((y[row] / x[row]).mean())
    if not torch.allclose(y, x * chosen.mask * factor, rtol=1e-12):
        return None
    share = 1.0 / factor if share is None else share
    scaled = abs(factor * share - 1.0) < 1e-12
    if not 0.0 < share < 1.0 or not (scaled or factor == 1.0):
        return None
    return RowDropout(round(1.0 - share, 12), scaled, per_row, uniform)


def candidates(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Parts without weights and parts of their own, of classes that are not torch's."""
    return [
        part for part in module.modules()
        if not type(part).__module__.startswith("torch.")
        and not isinstance(part, torch.jit.ScriptModule)
        and not any(True for _ in part.children())
        and not any(True for _ in part.parameters())
        and not any(True for _ in part.buffers())
    ]  # fmt: skip


@contextlib.contextmanager
def ranks(module: torch.nn.Module, result: dict[torch.nn.Module, int]) -> Iterator[None]:
    """Inside, the ranks of what the candidates are given are noted."""

    def note(part: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].dim() > 1:
            result[part] = args[0].dim()

    handles = [part.register_forward_pre_hook(note) for part in candidates(module)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def write(parts: Mapping[torch.nn.Module, RowDropout]) -> None:
    """Let these modules call the operator that the graph keeps."""
    for part, how in parts.items():
        part.forward = functools.partial(_dropped, how=how)  # type: ignore[method-assign]


def _dropped(x: Any, how: RowDropout) -> Any:
    return torch.ops.sardonyx.row_dropout(x, how.ratio, how.scaled, how.per_row)

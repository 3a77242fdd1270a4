"""The arrays on which a module and its imported model are compared: the example, other sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from sardonyx.errors import quote
from sardonyx.importers.torch.capture import Program
from sardonyx.importers.torch.source import Source

LARGEST = 1 << 12  # of sizes that are tried


def array_of(value: torch.Tensor) -> np.ndarray:
    """An array of its own with the numbers of a tensor."""
    plain = value.detach().cpu()
    if plain.dtype == torch.bfloat16:
        import ml_dtypes

        return plain.float().numpy().astype(ml_dtypes.bfloat16)
    return np.array(plain.numpy())


def data_sets(source: Source, free: Mapping[tuple[str, int], str]) -> list[dict[str, np.ndarray]]:
    """The example, and the example with one row more where the batch is free."""
    inputs = {n: array_of(v) for n, v in source.call.tensors().items()}
    labels = {n: array_of(v) for n, v in source.label_tensors().items()}
    batched: dict[str, list[int]] = {}
    for (name, axis), size in free.items():
        if size == "batch":
            batched.setdefault(name, []).append(axis)
    if not batched:
        return [{**inputs, **labels}]
    longer = {n: _moved(_longer(a, batched[n])) if n in batched else a for n, a in inputs.items()}
    longer |= {n: _longer(a, batched.get(n, ())) for n, a in labels.items()}
    return [{**inputs, **labels}, longer]


def _longer(array: np.ndarray, axes: Iterable[int]) -> np.ndarray:
    """The rows, and the last one once more in front of them."""
    for axis in axes:
        array = np.take(array, np.arange(-1, array.shape[axis]), axis)
    return array


def _moved(rows: np.ndarray) -> np.ndarray:
    """Floats moved a little; whole numbers as they are."""
    if rows.dtype.kind != "f":
        return rows
    noise = np.random.default_rng(0).standard_normal(rows.shape)
    return (rows * (1.0 + 0.05 * noise)).astype(rows.dtype)


def other_sizes(
    program: Program, example: Mapping[str, np.ndarray], one: bool
) -> dict[str, dict[str, np.ndarray]]:
    """The example in sizes that torch has left out when it captured the module, by their words.

    torch follows one side of a branch on a size, and notes for which sizes it holds; a size of 1
    it never considers. ONNX cannot say this, so that the model must be right there too.

    one -- whether sizes of 1 are tried
    """
    sets: dict[str, dict[str, np.ndarray]] = {}
    for symbols, places in _places(program):
        limits = [program.exported.range_constraints.get(s) for s in symbols]
        for size in _sizes_left_out(limits, one):
            name, axis = places[0]
            words = f"size {size} of {quote(name)}, axis {axis}"
            sets[words] = {
                n: _resized(a, size, [axis for m, axis in places if m == n])
                for n, a in example.items()
            }
    return sets


Places = list[tuple[str, int]]


def _places(program: Program) -> list[tuple[list[Any], Places]]:
    """The symbols of each free size, and where it is: (input, axis).

    Axes that were given one name are one size, also where torch has found no reason to tie them:
    a mask that is only broadcast has a symbol of its own. Sizes that others are computed from are
    left out.
    """
    places: dict[Any, Places] = {}
    derived = set()
    for place, size in program.sizes().items():
        if isinstance(size, torch.SymInt):
            expression = size.node.expr
            if expression.is_Symbol:
                places.setdefault(expression, []).append(place)
            else:
                derived |= set(expression.free_symbols)
    groups: dict[Any, tuple[list[Any], Places]] = {}
    for symbol, axes in places.items():
        names = [program.free[place] for place in axes if place in program.free]
        symbols, group = groups.setdefault(names[0] if names else symbol, ([], []))
        symbols.append(symbol)
        group.extend(axes)
    return [(s, p) for s, p in groups.values() if not derived & set(s)]


def _sizes_left_out(limits: Iterable[Any], one: bool) -> list[int]:
    sizes = [1] if one else []
    for limit in limits:
        if limit is not None and str(limit.lower).isdigit() and int(limit.lower) > 2:
            sizes.append(int(limit.lower) - 1)
        if limit is not None and str(limit.upper).isdigit() and int(limit.upper) < LARGEST:
            sizes.append(int(limit.upper) + 1)
    return list(dict.fromkeys(sizes))


def _resized(array: np.ndarray, size: int, axes: list[int]) -> np.ndarray:
    """The array with another size along some axes, by leaving out or repeating."""
    for axis in axes:
        array = np.take(array, np.arange(size) % array.shape[axis], axis)
    return array

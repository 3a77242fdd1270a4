"""Which sizes of the inputs are free, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.export import Dim

from sardonyx.errors import ArgumentError, ImportRefused, quote
from sardonyx.importers.torch.source import Source


def free_sizes(
    source: Source, values: Mapping[str, torch.Tensor], dynamic: Any
) -> dict[tuple[str, int], str]:
    """Which axes of which inputs are free, and what they are called."""
    if dynamic is None or dynamic is False:
        return {}
    if dynamic == "batch":
        first = next((v.shape[0] for v in values.values() if v.dim()), None)
        return {(n, 0): "batch" for n, v in values.items() if v.dim() and v.shape[0] == first}
    if dynamic == "all":
        first = next((v.shape[0] for v in values.values() if v.dim()), None)
        return {
            (n, a): "batch" if a == 0 and v.shape[0] == first else f"{n}_{a}"
            for n, v in values.items()
            for a in range(v.dim())
        }
    if isinstance(dynamic, str):
        raise ArgumentError(
            f"dynamic is batch, all or torch's dynamic_shapes, not {quote(dynamic)}"
        )
    return _of_torch(source, values, dynamic)


def _of_torch(
    source: Source, values: Mapping[str, torch.Tensor], dynamic: Any
) -> dict[tuple[str, int], str]:
    """The free axes of torch's `dynamic_shapes`, which mirrors the arguments."""
    if isinstance(dynamic, (tuple, list)):
        dynamic = dict(zip(source.call.names, dynamic, strict=False))
    free: dict[tuple[str, int], str] = {}
    unknown = []
    for name, axes in _by_path(dynamic, ""):
        if name not in values:
            unknown.append([quote(name), "is no tensor argument"])
            continue
        for axis, size in axes.items():
            label = getattr(size, "__name__", None) or (size if isinstance(size, str) else None)
            if size is not None and not isinstance(size, int) and size is not Dim.STATIC:
                free[name, axis] = label or f"{name}_{axis}"
    if unknown:
        raise ArgumentError("dynamic names what the module does not take", unknown)
    named = {name for name, _ in _by_path(dynamic, "")}
    return free | _of_labels(source, values, free, named)


def _of_labels(
    source: Source,
    values: Mapping[str, torch.Tensor],
    free: Mapping[tuple[str, int], str],
    named: Iterable[str],
) -> dict[tuple[str, int], str]:
    """Axes of labels, where `dynamic` does not name them: free as those of inputs that they fit."""
    sizes = {(axis, values[n].shape[axis]): size for (n, axis), size in free.items()}
    labels = [(n, v) for n, v in source.label_tensors().items() if n not in named]
    places = [(n, axis, size) for n, v in labels for axis, size in enumerate(v.shape)]
    return {(n, a): sizes[a, size] for n, a, size in places if (a, size) in sizes}


def one_name_each(
    free: Mapping[tuple[str, int], str], sizes: Mapping[tuple[str, int], Any]
) -> dict[tuple[str, int], str]:
    """The free axes, of which those that torch has found to be one size have its first name."""
    names: dict[str, str] = {}
    symbols = {p: str(size) for p, size in sizes.items() if not isinstance(size, int)}
    return {p: names.setdefault(symbols.get(p, name), name) for p, name in free.items()}


def refuse_fixed(
    free: Mapping[tuple[str, int], str], sizes: Mapping[tuple[str, int], Any], dynamic: Any
) -> None:
    """Refuse a network that fixes what torch's `dynamic_shapes` names; AUTO only asks for it."""
    if isinstance(dynamic, (str, bool, type(None))):
        return
    rows = [
        [f"axis {axis} of {quote(name)}", f"{quote(label)} is {sizes[name, axis]} there"]
        for (name, axis), label in free.items()
        if label != f"{name}_{axis}" and isinstance(sizes[name, axis], int)
    ]
    if rows:
        raise ImportRefused(
            "the network fixes sizes that dynamic= leaves free",
            rows,
            hint="leave them out of dynamic=, or write them as Dim.AUTO, which may be fixed",
        )


def _by_path(shapes: Any, path: str) -> Iterator[tuple[str, dict[int, Any]]]:
    if isinstance(shapes, Mapping) and all(isinstance(k, int) for k in shapes):
        yield path, dict(shapes)
    elif isinstance(shapes, Mapping):
        for key, part in shapes.items():
            yield from _by_path(part, f"{path}.{key}" if path else str(key))
    elif isinstance(shapes, (tuple, list)):
        if all(not isinstance(p, (Mapping, tuple, list)) for p in shapes):
            yield path, dict(enumerate(shapes))
            return
        for index, part in enumerate(shapes):
            yield from _by_path(part, f"{path}.{index}" if path else str(index))

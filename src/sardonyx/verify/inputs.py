"""Inputs that a model can take: random, of the right types, sizes and ranges, from a seed.

Integers are followed to what reads them: indices stay inside what they index, lengths inside the
dimension, counts small and positive. Symbolic dimensions get sizes that differ from one another and
from run to run; equal names get equal sizes. What a person gives is read in `datasets.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, normalize
from sardonyx.passes.nesting import bodies

LARGEST_INPUT = 4 << 30  # bytes of a random input: a small file may declare any size

# Sizes for symbolic dimensions, tried in turn until the model takes one: small and unequal first.
# What stands first in every input is a batch: it stays small, while signals may need to be long.
FIRST = (3, 5, 2, 7, 4, 6)
LADDER: tuple[tuple[int, ...], ...] = ((5, 2, 7, 4, 6, 9, 8, 3), (8, 12, 10, 14, 16, 9))
LADDER += ((32, 40, 48, 36), (64, 80, 96), (224, 256), (512, 576))
LADDER += ((1600, 2000), (16000, 17600))
EQUAL = (4, 16, 64)
PASSED_ON: tuple[str, ...] = (
    "Identity",
    "Cast",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Transpose",
    "Slice",
)
PASSED_ON += ("Expand", "Concat", "Split", "Tile", "Clip", "Abs", "Add", "Where", "If")
INDICES = {"Gather": 0, "GatherElements": 0, "GatherND": None, "ScatterElements": 0, "Scatter": 0}
COUNTS = {"Range": (0, 1, 2), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "TopK": (1,)}
COUNTS |= {"Loop": (0,), "NonMaxSuppression": (2,), "Reshape": (1,), "Trilu": (), "Resize": (3,)}
POSITIVE = ("Log", "Sqrt", "Pow")
WORDS = ("red", "green", "blue", "sardonyx", "a", "")
BYTES = {np.dtype(np.uint8): (0, 256), np.dtype(np.int8): (-128, 128)}
INTEGERS_BELOW = 4  # where the model shows no range
NORMAL, LOW, POSITIVE_ONLY = "normal", "small numbers", "positive numbers"
STYLES = (NORMAL, LOW, POSITIVE_ONLY)  # of float inputs, tried in this order


@dataclass(frozen=True)
class Range:
    """Whole numbers from `low` up to, not including, `high`."""

    low: int
    high: int


def size_choices(
    model: Model, seed: int, fixed: Mapping[str, int] | None = None
) -> Iterator[dict[str, int]]:
    """Sizes for the symbolic dimensions, the preferred ones first."""
    names = symbols(model)
    chosen_sizes = {k: v for k, v in (fixed or {}).items() if k in names}
    unknown = set(fixed or {}) - set(names)
    if unknown:
        raise ArgumentError(
            "the inputs have no dimensions of these names",
            [[quote(n)] for n in sorted(unknown)],
            hint=f"there are: {', '.join(names) or 'none'}",
        )
    free = [n for n in names if n not in chosen_sizes]
    if not free:
        yield chosen_sizes
        return
    batches = [n for n in free if n in leading(model)]
    others = [n for n in free if n not in batches]
    for pool in LADDER if others else LADDER[:1]:
        sizes = chosen_sizes | _drawn(others, pool, seed)
        batch_pool = tuple(s for s in FIRST if s not in sizes.values()) or FIRST
        yield sizes | _drawn(batches, batch_pool, seed)
        if len(batches) > 1:
            yield sizes | dict.fromkeys(batches, batch_pool[seed % len(batch_pool)])
    unnamed = [n for n in free if n.endswith("]")]
    for name in others if len(unnamed) > 1 else ():  # without names, equal sizes look different
        for pool in LADDER:
            batch = FIRST[seed % len(FIRST)]
            yield chosen_sizes | dict.fromkeys(free, batch) | {name: pool[seed % len(pool)]}
    for size in EQUAL:
        yield chosen_sizes | dict.fromkeys(free, size + seed % 2)


def _drawn(names: list[str], pool: tuple[int, ...], seed: int) -> dict[str, int]:
    """Sizes out of a pool, another start for each seed, no two alike."""
    start = seed % len(pool)
    rotated = pool[start:] + pool[:start]
    return {n: rotated[i % len(rotated)] + i // len(rotated) * 20 for i, n in enumerate(names)}


def leading(model: Model) -> set[str]:
    """The symbols that only ever stand first."""
    first: set[str] = set()
    later: set[str] = set()
    for value in model.inputs:
        for axis in range(len(value.shape) if value.shape is not None else 0):
            (later if axis else first).add(symbol(value, axis))
    return first - later


def symbols(model: Model) -> list[str]:
    """The names of the symbolic dimensions of the inputs."""
    names: dict[str, None] = {}
    for value in model.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                names[symbol(value, axis)] = None
    return list(names)


def symbol(value: ir.Value, axis: int) -> str:
    """The name of a symbolic dimension; one without a name is called after its place."""
    assert value.shape is not None
    dim = value.shape[axis]
    name = getattr(dim, "value", None)
    return str(name) if name else f"{value.name}[{axis}]"


def sample(
    model: Model,
    seed: int,
    sizes: Mapping[str, int],
    style: str = NORMAL,
    regular: NormalizedModel | None = None,
) -> dict[str, Any]:
    """One set of random inputs; the same for the same seed, sizes and style of float numbers.

    regular -- the regular form of `model`, where the caller has it
    """
    rng = np.random.default_rng(seed)
    traced = {v.name: v for v in (regular or normalize(model)).inputs}
    feeds = {}
    for value in model.inputs:
        if _is_optional(value):
            continue
        name = value.name or ""
        feeds[name] = _styled(_make(traced.get(name, value), value, rng, sizes), style)
    for value in model.inputs:
        longest = _length_limit(value, model)
        if longest is not None and value.name in feeds:
            size = feeds[longest].shape[1]
            old = feeds[value.name]
            low = max(1, (size + 1) // 2)
            feeds[value.name] = np.asarray(rng.integers(low, size + 1, old.shape)).astype(old.dtype)
    return feeds


def _styled(value: Any, style: str) -> Any:
    if style == NORMAL or not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    return (0.1 * value if style == LOW else 0.1 + np.abs(value)).astype(value.dtype)


def _length_limit(value: ir.Value, model: Model) -> str | None:
    """The input whose second dimension bounds this one: integers called lengths, one per row."""
    kind = value.type
    if not isinstance(kind, ir.TensorType) or not kind.dtype.is_integer():
        return None
    if value.shape is None or len(value.shape) != 1 or "len" not in (value.name or "").lower():
        return None
    for other in model.inputs:
        dims = other.shape
        if other is not value and dims is not None and len(dims) > 1 and dims[0] == value.shape[0]:
            return other.name
    return None


def _is_optional(value: ir.Value) -> bool:
    return isinstance(value.type, ir.OptionalType)


def _make(
    traced: ir.Value, value: ir.Value, rng: np.random.Generator, sizes: Mapping[str, int]
) -> Any:
    kind = value.type
    if isinstance(kind, ir.SequenceType):
        dtype = np.dtype(kind.elem_type.dtype.numpy())
        return [rng.normal(size=_element(value, i, sizes)).astype(dtype) for i in range(3)]
    if not isinstance(kind, ir.TensorType) or kind.dtype == ir.DataType.UNDEFINED:
        raise ArgumentError(
            f"no random values can be made for the input {quote(value.name)}", hint="give inputs="
        )
    if value.shape is None:
        shape: tuple[int, ...] = (2, 3)
    else:
        dims = value.shape
        shape = tuple(
            d if isinstance(d := dims[i], int) else sizes[symbol(value, i)]
            for i in range(len(dims))
        )
    if math.prod(shape) * np.dtype(kind.dtype.numpy()).itemsize > LARGEST_INPUT:
        raise ArgumentError(
            f"the input {quote(value.name)} is declared with {math.prod(shape):,} elements, "
            "too many for random values",
            hint="give inputs=",
        )
    return _array(traced, np.dtype(kind.dtype.numpy()), shape, rng, sizes)


def _element(value: ir.Value, number: int, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of one element of a sequence: as declared, else with a last axis of its own."""
    if value.shape is None:
        return (2, 3 + number)
    return tuple(
        d if isinstance(d, int) else sizes.get(symbol(value, i), 2)
        for i, d in enumerate(value.shape)
    )


def _array(
    value: ir.Value,
    dtype: np.dtype,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    sizes: Mapping[str, int],
) -> np.ndarray:
    if dtype == np.dtype(object):
        return rng.choice(np.array(WORDS, object), shape)
    if dtype == np.dtype(bool):
        array = rng.integers(0, 2, shape).astype(bool)
        if array.ndim:
            array[..., :1] = True
        if array.size > 1:
            array[..., -1:] &= array.shape[-1] == 1
        return array
    limits = value_range(value, sizes)
    if limits is not None:
        return np.asarray(rng.integers(limits.low, max(limits.high, limits.low + 1), shape)).astype(
            dtype
        )
    if dtype.kind in "iu":
        low, high = BYTES.get(dtype, (0, INTEGERS_BELOW))
        return np.asarray(rng.integers(low, high, shape)).astype(dtype)
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    array = np.asarray(rng.normal(size=shape))
    if any(node.op_type in POSITIVE and place == 0 for node, place in value.uses()):
        array = np.abs(array) + 0.1
    return array.astype(dtype)


def value_range(value: ir.Value, sizes: Mapping[str, int]) -> Range | None:
    """What the readers of a value allow it to be; None where nothing says."""
    low, high, visited = None, None, {value}
    pending = [value]
    while pending:
        for node, place in pending.pop().uses():
            demand = _demand(node, place, sizes)
            if demand is not None:
                low = demand.low if low is None else max(low, demand.low)
                high = demand.high if high is None else min(high, demand.high)
            elif (node.op_type in PASSED_ON and place == 0) or node.op_type in ("Concat", "Where"):
                pending += [v for v in node.outputs if v not in visited]
                visited.update(node.outputs)
            for body in bodies(node):
                if node.op_type in ("Loop", "Scan"):
                    inner = body.inputs[place] if place < len(body.inputs) else None
                    if inner is not None and inner not in visited:
                        pending.append(inner)
                        visited.add(inner)
    return None if low is None or high is None else Range(low, high)


def _demand(node: ir.Node, place: int, sizes: Mapping[str, int]) -> Range | None:
    op = node.op_type
    if op in INDICES and place == 1:
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        if op == "GatherND":
            axis = node.attributes["batch_dims"].as_int() if "batch_dims" in node.attributes else 0
        size = _size(node.inputs[0], axis, sizes)
        return None if size is None else Range(0, size)
    if op == "OneHot" and place == 0:
        depth = node.inputs[1]
        constant = depth.const_value if depth is not None else None
        return (
            Range(0, int(constant.numpy().reshape(-1)[0]))
            if constant is not None
            else Range(0, INTEGERS_BELOW)
        )
    if op in ("LSTM", "GRU", "RNN") and place == 4:
        size = _size(node.inputs[0], 0, sizes)
        return None if size is None else Range(1, size + 1)
    if op in COUNTS and place in COUNTS[op]:
        return Range(1, INTEGERS_BELOW)
    return None


def _size(value: ir.Value | None, axis: int, sizes: Mapping[str, int]) -> int | None:
    if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    dim: Any = value.shape[axis]
    if isinstance(dim, int):
        return dim
    return sizes.get(str(dim.value)) if getattr(dim, "value", None) else None

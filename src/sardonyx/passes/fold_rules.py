"""The value of one node of shape arithmetic, from the contents of its inputs.

An array of contents holds numbers, or objects where some elements are symbols. The size of a result
is known before its value. Operators without a rule here, Loop, Scan, If, random, custom and
function nodes are not computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Contents = np.ndarray  # of numbers, or of objects: numbers and symbols (ir.SymbolicDim)
Inputs = Sequence[Any]  # the contents of each input; None for one that is left out


def is_whole(array: Contents | None) -> bool:
    """Whether every element is a number."""
    return array is not None and array.dtype != object


def objects(content: Sequence[Any], shape: tuple[int, ...]) -> Contents:
    array = np.empty(len(content), object)
    array[:] = list(content)
    return array.reshape(shape)


def settle(array: Contents) -> Contents:
    """An array of objects that are all integers becomes one of int64."""
    if array.dtype == object and all(isinstance(v, (int, np.integer)) for v in array.flat):
        return array.astype(np.int64)
    return array


def itemsize(node: ir.Node, inputs: Inputs) -> int:
    if node.op_type == "Cast":
        return max(_target(node).itemsize, 1)
    if node.op_type == "ConstantOfShape":
        return _fill(node).itemsize
    return max((a.dtype.itemsize for a in inputs if a is not None), default=8)


def _target(node: ir.Node) -> np.dtype[Any]:
    return np.dtype(ir.DataType(node.attributes["to"].as_int()).numpy())


def shape_of(node: ir.Node) -> Contents | None:
    (x,) = node.inputs
    if x is None or x.shape is None:
        return None
    dims = list(x.shape)
    if node.op_type == "Size":
        if not all(isinstance(d, int) for d in dims):
            return None
        return np.array(math.prod(d for d in dims if isinstance(d, int)), np.int64)
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(dims))
    selected = dims[slice(*_clamp(start, end, len(dims)))]
    return settle(objects(selected, (len(selected),)))


def _clamp(start: int, end: int, rank: int) -> tuple[int, int]:
    start, end = (v + rank if v < 0 else v for v in (start, end))
    return min(max(start, 0), rank), min(max(end, 0), rank)


# -- sizes, before values -----------------------------------------------------------


def _broadcast_size(_: ir.Node, inputs: Inputs) -> int:
    return math.prod(np.broadcast_shapes(*(a.shape for a in inputs if a is not None)))


def _input_size(_: ir.Node, inputs: Inputs) -> int | None:
    return None if not inputs or inputs[0] is None else inputs[0].size


def _concat_size(_: ir.Node, inputs: Inputs) -> int:
    return sum(a.size for a in inputs if a is not None)


def _gather_size(node: ir.Node, inputs: Inputs) -> int:
    data, indices = inputs
    axis = node.attributes.get_int("axis", 0)
    return data.size // max(data.shape[axis], 1) * indices.size


def _filled_size(_: ir.Node, inputs: Inputs) -> int | None:
    dims = inputs[0]
    if not is_whole(dims):
        return None
    return math.prod([int(d) for d in dims])


def _expanded_size(_: ir.Node, inputs: Inputs) -> int | None:
    x, dims = inputs
    if not is_whole(dims):
        return None
    return math.prod(_broadcast_dims(x.shape, [int(d) for d in dims]))


def _broadcast_dims(a: Sequence[int], b: Sequence[int]) -> list[int]:
    rank = max(len(a), len(b))
    left, right = [1] * (rank - len(a)) + list(a), [1] * (rank - len(b)) + list(b)
    return [max(x, y) if x and y else 0 for x, y in zip(left, right, strict=True)]


def _range_size(_: ir.Node, inputs: Inputs) -> int | None:
    if not all(is_whole(a) for a in inputs):
        return None
    start, limit, delta = (a.item() for a in inputs)
    return max(math.ceil((limit - start) / delta), 0)


# -- values -------------------------------------------------------------------------


def _axes(node: ir.Node, inputs: Inputs, position: int = 1) -> list[int] | None:
    axes = inputs[position] if len(inputs) > position else None
    return None if axes is None else [int(a) for a in np.atleast_1d(axes)]


def _cast(node: ir.Node, inputs: Inputs) -> Contents | None:
    (x,) = inputs
    target = _target(node)
    if not is_whole(x):
        return x if target.kind in "iu" and target.itemsize >= 4 else None
    if x.dtype.kind not in "biuf" or target.kind not in "biuf":
        return None
    return x.astype(target)


def _gather(node: ir.Node, inputs: Inputs) -> Contents | None:
    data, indices = inputs
    if not is_whole(indices):
        return None
    return np.take(data, indices, axis=node.attributes.get_int("axis", 0))


def _concat(node: ir.Node, inputs: Inputs) -> Contents:
    parts = [a for a in inputs if a is not None]
    if any(not is_whole(a) for a in parts):
        parts = [a.astype(object) for a in parts]
    return np.concatenate(parts, axis=node.attributes["axis"].as_int())


def _slice(node: ir.Node, inputs: Inputs) -> Contents | None:
    data, *rest = inputs
    if not all(a is None or is_whole(a) for a in rest):
        return None
    settings = [None if a is None else [int(v) for v in a] for a in (*rest, None, None)[:4]]
    starts, ends = settings[0] or [], settings[1] or []
    axes = list(range(len(starts))) if settings[2] is None else settings[2]
    steps = [1] * len(axes) if settings[3] is None else settings[3]
    where: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        where[axis] = slice(start, end, step)
    return data[tuple(where)]


def _unsqueeze(node: ir.Node, inputs: Inputs) -> Contents:
    return np.expand_dims(inputs[0], tuple(_axes(node, inputs) or ()))


def _squeeze(node: ir.Node, inputs: Inputs) -> Contents:
    axes = _axes(node, inputs)
    return np.squeeze(inputs[0], None if axes is None else tuple(axes))


def _reshape(node: ir.Node, inputs: Inputs) -> Contents | None:
    x, dims = inputs
    if not is_whole(dims):
        return None
    target = [int(d) for d in dims]
    if not node.attributes.get_int("allowzero", 0):
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    return x.reshape(target)


def _transpose(node: ir.Node, inputs: Inputs) -> Contents:
    perm = node.attributes.get("perm")
    return np.transpose(inputs[0], None if perm is None else list(perm.as_ints()))


def _fill(node: ir.Node) -> np.ndarray:
    value = node.attributes.get("value")
    return np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()


def _filled(node: ir.Node, inputs: Inputs) -> Contents:
    fill = _fill(node)
    return np.full([int(d) for d in inputs[0]], fill.reshape(-1)[0], fill.dtype)


def _expanded(node: ir.Node, inputs: Inputs) -> Contents:
    x, dims = inputs
    shape = np.broadcast_shapes(x.shape, tuple(int(d) for d in dims))
    return np.broadcast_to(x, shape).copy()


def _range(_: ir.Node, inputs: Inputs) -> Contents | None:
    start, limit, delta = inputs
    if start.dtype.kind not in "iu":
        return None  # runtimes round a long float range differently
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _divide(a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu":
        return a / b
    if np.any(b == 0):
        raise ZeroDivisionError
    # ONNX integer division rounds toward zero.
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)


def _modulo(node: ir.Node, inputs: Inputs) -> Contents | None:
    a, b = inputs
    if not (is_whole(a) and is_whole(b)) or np.any(b == 0):
        return None
    return np.fmod(a, b) if node.attributes.get_int("fmod", 0) else np.mod(a, b)


def _multiply_symbols(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if 0 in (a, b):
        return 0
    return b if a == 1 else a if b == 1 else UNKNOWN


def _add_symbols(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else a if b == 0 else UNKNOWN


def _subtract_symbols(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return a if b == 0 else UNKNOWN


def _divide_symbols(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return int(_divide(np.array(a), np.array(b)))
    return a if b == 1 else UNKNOWN


UNKNOWN = ir.SymbolicDim(None)


def _arithmetic(whole: Callable[..., Any], symbols: Callable[..., Any]) -> Callable[..., Any]:
    """A binary operator: numpy on numbers; element by element where some are symbols."""
    by_element = np.frompyfunc(symbols, 2, 1)

    def compute(_: ir.Node, inputs: Inputs) -> Contents:
        a, b = inputs
        if is_whole(a) and is_whole(b):
            return np.asarray(whole(a, b), a.dtype)
        return by_element(*(np.asarray(x.tolist(), object) for x in (a, b)))

    return compute


def _equal(_: ir.Node, inputs: Inputs) -> Contents | None:
    a, b = inputs
    if is_whole(a) and is_whole(b):
        return np.equal(a, b)
    answers = np.frompyfunc(_equal_dims, 2, 1)(a, b)
    return None if any(v is None for v in np.asarray(answers).flat) else np.asarray(answers, bool)


def _equal_dims(a: Any, b: Any) -> bool | None:
    """Equality of sizes; a symbol stands for some number that is not negative."""
    symbols = [v for v in (a, b) if isinstance(v, ir.SymbolicDim)]
    if not symbols:
        return bool(a == b)
    if len(symbols) == 2:
        return True if a.value is not None and a.value == b.value else None
    number = b if symbols[0] is a else a
    return False if number < 0 else None


def _whole_only(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(_: ir.Node, inputs: Inputs) -> Contents | None:
        return function(*inputs) if all(is_whole(a) for a in inputs) else None

    return compute


def _where(_: ir.Node, inputs: Inputs) -> Contents | None:
    condition, a, b = inputs
    if not is_whole(condition):
        return None
    return np.asarray(np.where(condition, a, b))


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(node: ir.Node, inputs: Inputs) -> Contents | None:
        x, axes = inputs[0], _axes(node, inputs)
        if not is_whole(x) or x.dtype.kind not in "iu":
            return None  # the order of a float sum is the runtime's own
        if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
            return x
        keep = bool(node.attributes.get_int("keepdims", 1))
        result = function(x, axis=tuple(axes) if axes else None, keepdims=keep)
        return np.asarray(result, x.dtype)

    return compute


def _same(_: ir.Node, inputs: Inputs) -> Contents | None:
    return inputs[0]


RULES: dict[str, tuple[Callable[..., int | None], Callable[..., Contents | None]]] = {
    "Identity": (_input_size, _same),
    "Cast": (_input_size, _cast),
    "Gather": (_gather_size, _gather),
    "Concat": (_concat_size, _concat),
    "Slice": (_input_size, _slice),
    "Unsqueeze": (_input_size, _unsqueeze),
    "Squeeze": (_input_size, _squeeze),
    "Reshape": (_input_size, _reshape),
    "Transpose": (_input_size, _transpose),
    "ConstantOfShape": (_filled_size, _filled),
    "Expand": (_expanded_size, _expanded),
    "Range": (_range_size, _range),
    "Add": (_broadcast_size, _arithmetic(np.add, _add_symbols)),
    "Sub": (_broadcast_size, _arithmetic(np.subtract, _subtract_symbols)),
    "Mul": (_broadcast_size, _arithmetic(np.multiply, _multiply_symbols)),
    "Div": (_broadcast_size, _arithmetic(_divide, _divide_symbols)),
    "Mod": (_broadcast_size, _modulo),
    "Equal": (_broadcast_size, _equal),
    "Where": (_broadcast_size, _where),
    "Less": (_broadcast_size, _whole_only(np.less)),
    "LessOrEqual": (_broadcast_size, _whole_only(np.less_equal)),
    "Greater": (_broadcast_size, _whole_only(np.greater)),
    "GreaterOrEqual": (_broadcast_size, _whole_only(np.greater_equal)),
    "And": (_broadcast_size, _whole_only(np.logical_and)),
    "Or": (_broadcast_size, _whole_only(np.logical_or)),
    "Not": (_input_size, _whole_only(np.logical_not)),
    "Neg": (_input_size, _whole_only(np.negative)),
    "Abs": (_input_size, _whole_only(np.abs)),
    "Max": (_broadcast_size, _whole_only(lambda *xs: functools.reduce(np.maximum, xs))),
    "Min": (_broadcast_size, _whole_only(lambda *xs: functools.reduce(np.minimum, xs))),
    "ReduceProd": (_input_size, _reduce(np.prod)),
    "ReduceSum": (_input_size, _reduce(np.sum)),
    "ReduceMax": (_input_size, _reduce(np.max)),
    "ReduceMin": (_input_size, _reduce(np.min)),
}

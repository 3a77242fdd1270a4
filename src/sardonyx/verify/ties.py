"""Jumps: operators whose result is a step function of a float input, such as Round or Greater.

The result changes by a whole step where the input crosses a threshold. Where an input lies on the
threshold up to rounding, two correct programs may end up on different sides of it: an index among
nearly equal values, a number half-way between two steps of a quantizer, a comparison of equal
numbers. `explained` counts the elements that differ, and those of them that are such a case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.passes.nesting import graphs

COMPARISONS = ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")
ROUNDINGS = ("Round", "Floor", "Ceil", "Sign")
SELECTIONS = ("ArgMax", "ArgMin", "TopK")
QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
OTHERS = ("NonMaxSuppression", "Unique", "IsInf", "Hardmax", "OneHot", "Mod", "If", "Loop")
QUANTIZED = ("QLinearConv", "QLinearMatMul")
PRODUCTS = ("Conv", "Gemm", "MatMul")
REACH = 10.0  # an input within this many times its rounding error of a threshold is on it
STEPS = 1  # by which an element on a threshold may differ
HALF = 0.5


def is_jump(node: ir.Node) -> bool:
    """Whether the result is a step function of a float input."""
    if node.domain != "":
        return False
    if node.op_type == "Cast":
        source, target = node.inputs[0], node.outputs[0]
        return _is_float(source) and not _is_float(target)
    listed = (*COMPARISONS, *ROUNDINGS, *SELECTIONS, *QUANTIZERS, *QUANTIZED, *OTHERS)
    return node.op_type in listed


def has_jumps(graph: ir.Graph) -> bool:
    return any(is_jump(node) for part in graphs(graph) for node in part)


def has_ties(graph: ir.Graph) -> bool:
    """Whether a graph rounds floats to whole numbers, half to even."""
    return any(_rounds(node) for part in graphs(graph) for node in part)


def _rounds(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in ("QuantizeLinear", "Round"):
        return False
    target = node.outputs[0].dtype
    return node.op_type == "Round" or (target is not None and target.is_integer())


def tied(node: ir.Node, inputs: Sequence[Any]) -> np.ndarray | None:
    """Values for the first input of a node that lie exactly half-way between two results; None for
    a node without such values.

    Half a step is exact in every float type. An engine that multiplies by the inverse of the scale
    gets half a step or the number below it, and both round to the same result. Values of 1.5 and
    2.5 steps are used only if the scale is a power of two, whose inverse is exact as well.
    """
    x = inputs[0]
    if not _rounds(node) or not isinstance(x, np.ndarray) or not x.size:
        return None
    if node.op_type == "Round":
        scale, steps = np.ones((), x.dtype), np.array([0.5, -0.5, 1.5, -1.5, 2.5, -2.5])
    else:
        aligned = _scale_along(node, x, np.asarray(inputs[1]))
        if aligned is None:
            return None
        scale, steps = aligned, np.array([0.5, -0.5])
        if np.all(np.frexp(scale.astype(np.float64))[0] == 0.5):
            steps = np.array([0.5, -0.5, 1.5, -1.5, 2.5])
    count = np.resize(steps, x.size).reshape(x.shape)
    return np.asarray(count * scale.astype(np.float64)).astype(x.dtype)


def _scale_along(node: ir.Node, x: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """The scale in a shape that broadcasts to `x`; None for a scale per block."""
    if scale.size == 1:
        return scale.reshape(())
    if scale.ndim != 1:
        return None
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
    return scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def explained(
    node: ir.Node,
    inputs: Sequence[Any],
    slack: Sequence[float],
    actual: Sequence[Any],
    expected: Sequence[Any],
) -> tuple[int, int]:
    """(elements that differ, those of them that rounding explains) over the outputs of a jump.

    inputs -- exact values; slack -- per input, how far rounding may have moved it
    """
    pairs = [
        (np.asarray(g), np.asarray(e))
        for g, e in zip(actual, expected)
        if g is not None and e is not None
    ]
    if any(g.shape != e.shape for g, e in pairs):
        return 1, 0
    if node.op_type in SELECTIONS:
        return _selection(node, inputs, slack, actual, expected)
    wrong = [g != e for g, e in pairs if g.dtype.kind != "f"]
    count = sum(int(w.sum()) for w in wrong)
    near = on_threshold(node, inputs, slack)
    if near is None:
        return count, 0
    total = 0
    for (g, e), w in zip([p for p in pairs if p[0].dtype.kind != "f"], wrong, strict=True):
        if near.shape != w.shape:
            return count, 0
        step = np.abs(g.astype(np.float64) - e.astype(np.float64)) <= STEPS
        total += int((w & near & step).sum())
    return count, total


def on_threshold(node: ir.Node, inputs: Sequence[Any], slack: Sequence[float]) -> np.ndarray | None:
    """Which elements are on a threshold, up to rounding; None if the operator has no formula."""
    formula = THRESHOLDS.get(node.op_type)
    if formula is None:
        return None
    with np.errstate(all="ignore"):
        return formula(node, [_wide(x) for x in inputs], slack)


def requantized(
    node: ir.Node, inputs: Sequence[Any], slack: float, actual: np.ndarray, expected: np.ndarray
) -> tuple[int, int]:
    """(elements that differ, those of them that rounding explains) over the output of a quantizer.

    actual, expected -- integers, or the floats into which they were dequantized
    """
    step: Any = 1.0
    if expected.dtype.kind == "f":
        scale = _scale_along(node, inputs[0], np.asarray(inputs[1])) if len(inputs) > 1 else None
        if scale is None:
            return int(np.sum(actual != expected)), 0
        step = np.abs(scale.astype(np.float64))
    apart = np.abs(actual.astype(np.float64) - expected.astype(np.float64)) / step
    near = on_threshold(node, inputs, [slack] + [0.0] * (len(inputs) - 1))
    wrong = apart > HALF
    if near is None or near.shape != wrong.shape:
        return int(wrong.sum()), 0
    return int(wrong.sum()), int((wrong & near & (apart < STEPS + HALF)).sum())


def bias_step(nodes: Sequence[ir.Node]) -> float:
    """The rounding error of a float bias in an integer kernel; 0 where there is none.

    The kernel adds products of integers, in units of `scale of x` * `scale of w`. It has to round a
    bias that the model holds in floats to a multiple of that unit, so that the error is half a
    unit. The bias may be an input of the product, or be added by a separate Add.
    """
    steps = [0.0]
    for node in nodes:
        product = _with_bias(node)
        if product is not None:
            scales = [_dequantizer_scale(v) for v in product.inputs[:2]]
            steps.append(0.5 * scales[0] * scales[1])
    return max(steps)


def _with_bias(node: ir.Node) -> ir.Node | None:
    """The product to which a node adds a constant bias: itself, or what an Add reads."""
    if node.op_type in ("Conv", "Gemm") and len(node.inputs) > 2 and _is_fixed(node.inputs[2]):
        return node
    if node.op_type != "Add" or not any(map(_is_fixed, node.inputs)):
        return None
    producers = [v.producer() for v in node.inputs if v is not None]
    return next((p for p in producers if p is not None and p.op_type in PRODUCTS), None)


def _is_fixed(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None


def _dequantizer_scale(value: ir.Value | None) -> float:
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[1] is None:
        return 0.0
    scale = node.inputs[1].const_value
    return float(np.max(np.abs(scale.numpy()), initial=0.0)) if scale is not None else 0.0


def _wide(x: Any) -> Any:
    return None if x is None else np.asarray(x).astype(np.float64)


def _rounding(node: ir.Node, inputs: Sequence[Any], slack: Sequence[float]) -> np.ndarray:
    half = 0.5 if node.op_type == "Round" else 0.0
    x = inputs[0] - half
    return np.abs(x - np.round(x)) <= REACH * slack[0]


def _comparison(node: ir.Node, inputs: Sequence[Any], slack: Sequence[float]) -> np.ndarray:
    return np.abs(inputs[0] - inputs[1]) <= REACH * (slack[0] + slack[1])


def _cast(node: ir.Node, inputs: Sequence[Any], slack: Sequence[float]) -> np.ndarray:
    x = inputs[0]
    near = np.abs(x - np.round(x)) <= REACH * slack[0]
    return near if node.outputs[0].dtype != ir.DataType.BOOL else np.abs(x) <= REACH * slack[0]


def _quantize(node: ir.Node, inputs: Sequence[Any], slack: Sequence[float]) -> np.ndarray:
    x = inputs[0]
    if node.op_type == "DynamicQuantizeLinear":
        low, high = min(float(x.min(initial=0)), 0.0), max(float(x.max(initial=0)), 0.0)
        scale: Any = (high - low) / 255 or 1.0
    else:
        scale = _scale_along(node, x, inputs[1])
        if scale is None:
            return np.zeros(x.shape, bool)
    steps = x / scale - 0.5
    # The division itself rounds: half a unit in the last place of the quotient.
    reach = REACH * slack[0] / np.abs(scale) + REACH * 2.0**-24 * np.abs(steps)
    return np.abs(steps - np.round(steps)) <= reach


THRESHOLDS: dict[str, Callable[[ir.Node, Sequence[Any], Sequence[float]], np.ndarray]] = {
    **dict.fromkeys(ROUNDINGS, _rounding),
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(QUANTIZERS, _quantize),
    "Cast": _cast,
}


def _selection(
    node: ir.Node,
    inputs: Sequence[Any],
    slack: Sequence[float],
    actual: Sequence[Any],
    expected: Sequence[Any],
) -> tuple[int, int]:
    """Other indices are right if they point at values that are equal up to rounding."""
    x = np.asarray(inputs[0], np.float64)
    place = 1 if node.op_type == "TopK" else 0
    if len(actual) <= place or actual[place] is None:
        return 0, 0
    actual_index, expected_index = np.asarray(actual[place]), np.asarray(expected[place])
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if node.op_type == "TopK" and "axis" not in node.attributes:
        axis = -1
    if node.op_type != "TopK" and actual_index.ndim < x.ndim:
        actual_index, expected_index = (
            np.expand_dims(actual_index, axis),
            np.expand_dims(expected_index, axis),
        )
    wrong = actual_index != expected_index
    count = int(wrong.sum())
    if not count:
        return 0, 0
    size = x.shape[axis]
    if actual_index.min() < -size or actual_index.max() >= size:
        return count, 0
    apart = np.abs(
        np.take_along_axis(x, actual_index, axis) - np.take_along_axis(x, expected_index, axis)
    )
    return count, int((wrong & (apart <= REACH * slack[0])).sum())

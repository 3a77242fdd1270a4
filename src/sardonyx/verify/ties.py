"""Jumps: operators whose result leaps where a value crosses a line; does rounding explain a leap?

Two correct programs may take different sides where a value lies on the line up to rounding: an
index among nearly equal values, a number half-way between two steps of a quantizer, a comparison of
equals. `explained` counts the elements that differ and says whether each of them is such a case.
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
REACH = 10.0  # how many floors from the line still count as on it
STEPS = 1


def is_jump(node: ir.Node) -> bool:
    """Whether a float input decides, in leaps, what comes out."""
    if node.domain != "":
        return False
    if node.op_type == "Cast":
        source, target = node.inputs[0], node.outputs[0]
        return _is_float(source) and not _is_float(target)
    listed = (*COMPARISONS, *ROUNDINGS, *SELECTIONS, *QUANTIZERS, *QUANTIZED, *OTHERS)
    return node.op_type in listed


def has_jumps(graph: ir.Graph) -> bool:
    return any(is_jump(node) for part in graphs(graph) for node in part)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def explained(
    node: ir.Node,
    inputs: Sequence[Any],
    slack: Sequence[float],
    got: Sequence[Any],
    expected: Sequence[Any],
) -> tuple[int, int]:
    """(elements that differ, those of them that rounding explains) over the outputs of a jump.

    inputs -- exact values; slack -- per input, how far rounding may have moved it
    """
    pairs = [
        (np.asarray(g), np.asarray(e))
        for g, e in zip(got, expected)
        if g is not None and e is not None
    ]
    if any(g.shape != e.shape for g, e in pairs):
        return 1, 0
    if node.op_type in SELECTIONS:
        return _selection(node, inputs, slack, got, expected)
    wrong = [g != e for g, e in pairs if g.dtype.kind != "f"]
    count = sum(int(w.sum()) for w in wrong)
    near = on_the_line(node, inputs, slack)
    if near is None:
        return count, 0
    total = 0
    for (g, e), w in zip([p for p in pairs if p[0].dtype.kind != "f"], wrong, strict=True):
        if near.shape != w.shape:
            return count, 0
        step = np.abs(g.astype(np.float64) - e.astype(np.float64)) <= STEPS
        total += int((w & near & step).sum())
    return count, total


def on_the_line(node: ir.Node, inputs: Sequence[Any], slack: Sequence[float]) -> np.ndarray | None:
    """Which elements lie so near to the line that rounding decides their side; None if unknown."""
    formula = LINES.get(node.op_type)
    if formula is None:
        return None
    with np.errstate(all="ignore"):
        return formula(node, [_wide(x) for x in inputs], slack)


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
        scale = inputs[1]
        if scale.ndim == 1 and x.ndim > 1:
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
            scale = scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    steps = x / scale - 0.5
    # The division itself rounds: half a unit in the last place of the quotient.
    reach = REACH * slack[0] / np.abs(scale) + REACH * 2.0**-24 * np.abs(steps)
    return np.abs(steps - np.round(steps)) <= reach


LINES: dict[str, Callable[[ir.Node, Sequence[Any], Sequence[float]], np.ndarray]] = {
    **dict.fromkeys(ROUNDINGS, _rounding),
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(QUANTIZERS, _quantize),
    "Cast": _cast,
}


def _selection(
    node: ir.Node,
    inputs: Sequence[Any],
    slack: Sequence[float],
    got: Sequence[Any],
    expected: Sequence[Any],
) -> tuple[int, int]:
    """Other indices are right if they point at values that are equal up to rounding."""
    x = np.asarray(inputs[0], np.float64)
    place = 1 if node.op_type == "TopK" else 0
    if len(got) <= place or got[place] is None:
        return 0, 0
    ours, theirs = np.asarray(got[place]), np.asarray(expected[place])
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if node.op_type == "TopK" and "axis" not in node.attributes:
        axis = -1
    if node.op_type != "TopK" and ours.ndim < x.ndim:
        ours, theirs = np.expand_dims(ours, axis), np.expand_dims(theirs, axis)
    wrong = ours != theirs
    count = int(wrong.sum())
    if not count:
        return 0, 0
    size = x.shape[axis]
    if ours.min() < -size or ours.max() >= size:
        return count, 0
    apart = np.abs(np.take_along_axis(x, ours, axis) - np.take_along_axis(x, theirs, axis))
    return count, int((wrong & (apart <= REACH * slack[0])).sum())

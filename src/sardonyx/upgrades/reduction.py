"""Adapters of ONNX's family `reduction`, in opset order."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.upgrades.driver import feed, ints, take, upgrade

AXES_MOVED_AT_18 = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSumSquare"),
)


@upgrade("ReduceSum", to=13)
def reducesum_11_13(op, node):
    feed(node, node.inputs[0], ints(op, take(node, "axes") or None))


upgrade(*AXES_MOVED_AT_18, to=18)(reducesum_11_13)


@upgrade("ReduceLogSum", "ReduceLogSumExp", to=28, shapes=True)
def reducelogsum_18_28(op, node):
    x, *axes = node.inputs
    if x.dtype is None or not x.dtype.is_integer():
        return None
    wide = op.cast(x, ir.DataType.DOUBLE)
    out = op.call(node.op_type, [wide, *axes], {a.name: a for a in node.attributes.values()})
    return op.cast(out, x.dtype)

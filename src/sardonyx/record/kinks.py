"""Operators with kinks, written so that every framework differentiates them alike.

Where a derivative does not exist (|x| at 0, the bounds of a clip), frameworks choose differently,
and zeros are common: a bias starts there. The forward half of a native step therefore selects with
`Where`, whose gradient follows the condition, as the gradient rules of these operators do. Values
stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from sardonyx.build import Builder, is_static
from sardonyx.model import Model
from sardonyx.passes.functions import replace
from sardonyx.passes.nesting import names

Rewrite = Callable[[Builder, ir.Node], ir.Value]
SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def select_at_kinks(model: Model, kept: Collection[str]) -> None:
    """Rewrite the operators of `REWRITES` in a graph of the opset inside, in place.

    kept -- operators that stay: the framework's own kernel has the same slopes
    """
    graph = model.graph
    op = Builder("kinks")
    op.reserve(names(graph))
    for node in list(graph):
        rewrite = REWRITES.get(node.op_type) if node.domain == "" else None
        x = node.inputs[0] if rewrite is not None and node.op_type not in kept else None
        if rewrite is None or x is None or not _is_float(x):
            continue
        first = len(op.nodes)
        with op.named(node.name or node.op_type):
            result = rewrite(op, node)
        replace(node, op.nodes[first:], [result])
    for value in op.constants.values():
        graph.register_initializer(value)


def unselectable(nodes: list[ir.Node]) -> ir.Node | None:
    """A node with ties that no rewrite covers, if there is one."""
    for node in nodes:
        if node.op_type == "GlobalMaxPool" and not is_static(_x(node)):
            return node
    return None


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _x(node: ir.Node) -> ir.Value:
    """The first input of a node."""
    x = node.inputs[0]
    assert x is not None
    return x


def _number(node: ir.Node, name: str, default: float) -> float:
    return float(node.attributes.get_float(name, default))


def _relu(op: Builder, node: ir.Node) -> ir.Value:
    x = _x(node)
    return op.Where(op.LessOrEqual(x, 0.0), 0.0, x)


def _abs(op: Builder, node: ir.Node) -> ir.Value:
    x = _x(node)
    return op.Mul(x, op.Sign(x))


def _leaky_relu(op: Builder, node: ir.Node) -> ir.Value:
    x = _x(node)
    return op.Where(op.Greater(x, 0.0), x, op.Mul(x, _number(node, "alpha", 0.01)))


def _prelu(op: Builder, node: ir.Node) -> ir.Value:
    x, slope = node.inputs
    return op.Where(op.Greater(x, 0.0), x, op.Mul(x, slope))


def _exponential(op: Builder, x: ir.Value, alpha: float, scale: float = 1.0) -> ir.Value:
    """x where it is positive, else alpha · (exp(x / scale) - 1)."""
    positive = op.Greater(x, 0.0)
    inner = op.Where(positive, 0.0, x)  # or its exponential overflows where it is not taken
    power = op.Exp(op.Div(inner, scale) if scale != 1 else inner)
    return op.Where(positive, x, op.Mul(op.Sub(power, 1.0), alpha))


def _elu(op: Builder, node: ir.Node) -> ir.Value:
    return _exponential(op, _x(node), _number(node, "alpha", 1.0))


def _celu(op: Builder, node: ir.Node) -> ir.Value:
    alpha = _number(node, "alpha", 1.0)
    return _exponential(op, _x(node), alpha, alpha)


def _selu(op: Builder, node: ir.Node) -> ir.Value:
    alpha, gamma = _number(node, "alpha", SELU[0]), _number(node, "gamma", SELU[1])
    return op.Mul(_exponential(op, _x(node), alpha), gamma)


def _hard_sigmoid(op: Builder, node: ir.Node) -> ir.Value:
    alpha, beta = _number(node, "alpha", 0.2), _number(node, "beta", 0.5)
    line = op.Add(op.Mul(_x(node), alpha), beta)
    low = op.Where(op.LessOrEqual(line, 0.0), 0.0, line)
    return op.Where(op.GreaterOrEqual(line, 1.0), 1.0, low)


def _hard_swish(op: Builder, node: ir.Node) -> ir.Value:
    x = _x(node)
    middle = op.Mul(x, op.Add(op.Div(x, 6.0), 0.5))
    low = op.Where(op.LessOrEqual(x, -3.0), 0.0, middle)
    return op.Where(op.GreaterOrEqual(x, 3.0), x, low)


def _clip(op: Builder, node: ir.Node) -> ir.Value:
    _, low, high = (*node.inputs, None, None)[:3]
    x = _x(node)
    if low is not None:
        x = op.Where(op.Less(x, low), low, x)
    if high is not None:
        x = op.Where(op.Greater(x, high), high, x)
    return x if x is not _x(node) else op.Identity(x)


def _reduce(op: Builder, node: ir.Node, x: ir.Value) -> ir.Value:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    options = {
        n: node.attributes.get_int(n, d) for n, d in (("keepdims", 1), ("noop_with_empty_axes", 0))
    }
    return op.ReduceSum(x, axes, **options)


def _reduce_l1(op: Builder, node: ir.Node) -> ir.Value:
    return _reduce(op, node, _abs(op, node))


def _reduce_l2(op: Builder, node: ir.Node) -> ir.Value:
    x = _x(node)
    total = _reduce(op, node, op.Mul(x, x))
    zero = op.Equal(total, 0.0)
    return op.Where(zero, 0.0, op.Sqrt(op.Where(zero, 1.0, total)))


def _global_max_pool(op: Builder, node: ir.Node) -> ir.Value:
    sizes = [int(d) for d in _x(node).shape[2:]]  # type: ignore[index, union-attr, arg-type]
    return op.MaxPool(_x(node), kernel_shape=sizes)


REWRITES: dict[str, Rewrite] = {
    "Relu": _relu,
    "Abs": _abs,
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Clip": _clip,
    "ReduceL1": _reduce_l1,
    "ReduceL2": _reduce_l2,
    "GlobalMaxPool": _global_max_pool,
}

"""Adam, Adagrad and Momentum of ai.onnx.preview.training, written out in plain operators.

Each expansion gets the builder, the learning rate R and the update count T as scalars of the
tensors' type, the tensors of one parameter and the attributes; it returns the new tensors in
the order of the operator's outputs. Nobody counts T up: that is the training graph's own
business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ModelError, quote
from sardonyx.grad.driver import attributes

Values = list[ir.Value]
Expansion = Callable[..., Values]


@dataclass(frozen=True)
class Optimizer:
    """An expansion, and how many tensors it takes per parameter (X and G included)."""

    function: Expansion
    tensors: int
    required: tuple[str, ...] = ()


def _regularized(op: Builder, x: ir.Value, g: ir.Value, coefficient: float) -> ir.Value:
    return g if not coefficient else op.Add(op.Mul(x, coefficient), g)


def adagrad(op: Builder, rate: ir.Value, count: ir.Value, values: Values, settings: Any) -> Values:
    x, g, h = values
    g = _regularized(op, x, g, settings["norm_coefficient"])
    if settings["decay_factor"]:
        rate = op.Div(rate, op.Add(op.Mul(count, settings["decay_factor"]), 1.0))
    h = op.Add(h, op.Mul(g, g))
    return [op.Sub(x, op.Div(op.Mul(g, rate), op.Add(op.Sqrt(h), settings["epsilon"]))), h]


def momentum(op: Builder, rate: ir.Value, count: ir.Value, values: Values, settings: Any) -> Values:
    x, g, v = values
    alpha, beta = settings["alpha"], settings["beta"]
    g = _regularized(op, x, g, settings["norm_coefficient"])
    scaled = g
    if beta != 1:
        one, later = (op.const(number, x.dtype) for number in (1.0, beta))
        scaled = op.Mul(g, op.Where(op.Greater(count, 0.0), later, one))
    v = op.Add(op.Mul(v, alpha), scaled)
    step = op.Add(g, op.Mul(v, alpha)) if settings["mode"] == "nesterov" else v
    return [op.Sub(x, op.Mul(step, rate)), v]


def adam(op: Builder, rate: ir.Value, count: ir.Value, values: Values, settings: Any) -> Values:
    x, g, v, h = values
    alpha, beta = settings["alpha"], settings["beta"]
    g = _regularized(op, x, g, settings["norm_coefficient"])
    v = op.Add(op.Mul(v, alpha), op.Mul(g, 1 - alpha))
    h = op.Add(op.Mul(h, beta), op.Mul(op.Mul(g, g), 1 - beta))
    # At T = 0 nothing is corrected; the power is taken at 1 there, so that no 0/0 arises.
    exponent = op.Max(count, 1.0)
    first, second = (
        op.Sub(1.0, op.Pow(op.const(base, x.dtype), exponent)) for base in (alpha, beta)
    )
    corrected = op.Div(op.Mul(rate, op.Sqrt(second)), first)
    rate = op.Where(op.Greater(count, 0.0), corrected, rate)
    out = op.Sub(x, op.Div(op.Mul(v, rate), op.Add(op.Sqrt(h), settings["epsilon"])))
    if settings["norm_coefficient_post"]:
        out = op.Mul(out, 1 - settings["norm_coefficient_post"])
    return [out, v, h]


OPTIMIZERS = {
    "Adagrad": Optimizer(adagrad, 3),
    "Momentum": Optimizer(momentum, 3, ("alpha", "beta", "norm_coefficient", "mode")),
    "Adam": Optimizer(adam, 4),
}


def problems(node: ir.Node) -> list[list[str]]:
    """What is wrong with an optimizer node, as rows of an error."""
    kind = OPTIMIZERS[node.op_type]
    where = f"node {quote(node.name or node.outputs[0].name)}"
    rows = [
        [node.op_type, where, f"has no attribute {quote(name)}"]
        for name in kind.required
        if name not in node.attributes
    ]
    count, rest = divmod(len(node.inputs) - 2, kind.tensors)
    if count < 1 or rest or any(v is None for v in node.inputs):
        rows.append(
            [node.op_type, where, f"has {len(node.inputs)} inputs, not 2 + {kind.tensors}n"]
        )
    elif len(node.outputs) > count * (kind.tensors - 1):
        rows.append([node.op_type, where, f"has more than {count * (kind.tensors - 1)} outputs"])
    mode = attributes(node).get("mode", "standard")
    if mode not in ("standard", "nesterov"):
        rows.append([node.op_type, where, f"has mode {quote(mode)}, not standard or nesterov"])
    return rows


def refuse(rows: list[list[str]]) -> None:
    if rows:
        raise ModelError("optimizer nodes that do not fit ONNX's definition", rows)


def expand_optimizer(op: Builder, node: ir.Node) -> Values:
    """The outputs of an optimizer node, in plain operators."""
    kind = OPTIMIZERS[node.op_type]
    rate, count, *tensors = [v for v in node.inputs if v is not None]
    parameters = len(tensors) // kind.tensors
    results: list[Values] = []
    for i in range(parameters):
        values = tensors[i::parameters]
        dtype = values[0].dtype or rate.dtype or ir.DataType.FLOAT
        scalars = [op.cast(_scalar(op, v), dtype) for v in (rate, count)]
        results.append(kind.function(op, *scalars, values, attributes(node)))
        for new, old in zip(results[-1], [values[0], *values[2:]], strict=True):
            new.type = ir.TensorType(dtype)
            new.shape = old.shape if old.shape is None else ir.Shape(old.shape)
    return [results[i][slot] for slot in range(kind.tensors - 1) for i in range(parameters)]


def _scalar(op: Builder, value: ir.Value) -> ir.Value:
    """`value`, of shape [] or [1], as a scalar: a scalar parameter must stay one."""
    if value.shape is not None and not len(value.shape):
        return value
    return op.Reshape(value, op.const([], ir.DataType.INT64))

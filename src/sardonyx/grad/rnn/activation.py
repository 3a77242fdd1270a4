"""The activations of recurrent operators: values and slopes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ModelError, UnsupportedOp, quote

Tape = dict[str, ir.Value]

REQUIRED = math.nan  # ONNX has no default for it

# name: (value at x, slope at x where y is the value, default alpha, default beta)
ACTIVATIONS: dict[str, tuple[Any, Any, float | None, float | None]] = {
    "sigmoid": (lambda op, x, a, b: op.Sigmoid(x), lambda op, x, y, a, b: y - y * y, None, None),
    "tanh": (lambda op, x, a, b: op.Tanh(x), lambda op, x, y, a, b: 1.0 - y * y, None, None),
    "relu": (
        lambda op, x, a, b: op.Relu(x),
        lambda op, x, y, a, b: where(op, op.Greater(y, 0.0), y, 1, 0),
        None,
        None,
    ),
    "affine": (lambda op, x, a, b: x * a + b, lambda op, x, y, a, b: op.fill(a, x), 1.0, 0.0),
    "leakyrelu": (
        lambda op, x, a, b: where(op, op.Greater(x, 0.0), x, x, x * a),
        lambda op, x, y, a, b: where(op, op.Greater(x, 0.0), x, 1, a),
        0.01,
        None,
    ),
    "thresholdedrelu": (
        lambda op, x, a, b: where(op, op.Greater(x, a), x, x, 0),
        lambda op, x, y, a, b: where(op, op.Greater(x, a), x, 1, 0),
        1.0,
        None,
    ),
    "scaledtanh": (
        lambda op, x, a, b: op.Tanh(x * b) * a,
        lambda op, x, y, a, b: (1.0 - op.Tanh(x * b) * op.Tanh(x * b)) * (a * b),
        REQUIRED,
        REQUIRED,
    ),
    "hardsigmoid": (
        lambda op, x, a, b: op.Max(op.Min(x * a + b, 1.0), 0.0),
        lambda op, x, y, a, b: where(op, op.And(op.Greater(y, 0.0), op.Less(y, 1.0)), y, a, 0),
        0.2,
        0.5,
    ),
    "elu": (
        lambda op, x, a, b: where(op, op.Greater(x, 0.0), x, x, (op.Exp(op.Min(x, 0.0)) - 1.0) * a),
        lambda op, x, y, a, b: where(op, op.Greater(x, 0.0), x, 1, y + a),
        1.0,
        None,
    ),
    "softsign": (
        lambda op, x, a, b: x / (op.Abs(x) + 1.0),
        lambda op, x, y, a, b: (1.0 - op.Abs(y)) * (1.0 - op.Abs(y)),
        None,
        None,
    ),
    "softplus": (
        lambda op, x, a, b: op.Relu(x) + op.Log(op.Exp(-op.Abs(x)) + 1.0),
        lambda op, x, y, a, b: op.Sigmoid(x),
        None,
        None,
    ),
}
# Those whose slope is a function of their value: the pre-activation need not be kept.
FROM_VALUE = {"sigmoid", "tanh", "relu", "hardsigmoid", "softsign"}


def where(op: Builder, condition: ir.Value, of: ir.Value, then: Any, other: Any) -> ir.Value:
    """Where, with numbers of the type of `of`."""
    sides = [
        v if isinstance(v, ir.Value) else op.const(np.array(v), of.dtype) for v in (then, other)
    ]
    return op.Where(condition, *sides)


@dataclass
class Activation:
    name: str
    alpha: float | None
    beta: float | None
    clip: float | None

    def __call__(self, op: Builder, x: ir.Value) -> ir.Value:
        return ACTIVATIONS[self.name][0](op, self._clipped(op, x), self.alpha, self.beta)

    @property
    def keeps_input(self) -> bool:
        return self.name not in FROM_VALUE or self.clip is not None

    def slope(self, op: Builder, tape: Tape, gate: str) -> ir.Value:
        """The derivative at every step, from what `tape` has of this gate."""
        x, y = tape.get(f"in_{gate}"), tape[gate]
        inner = x if x is None else self._clipped(op, x)
        out = ACTIVATIONS[self.name][1](op, inner, y, self.alpha, self.beta)
        if self.clip is None or x is None:
            return out
        return where(op, op.LessOrEqual(op.Abs(x), float(self.clip)), x, out, 0)

    def _clipped(self, op: Builder, x: ir.Value) -> ir.Value:
        if self.clip is None:
            return x
        bounds = [op.const(np.array(v), x.dtype) for v in (-self.clip, self.clip)]
        return op.Clip(x, *bounds)


def activations(
    node: ir.Node, settings: dict[str, Any], default: Sequence[str], count: int
) -> list[Activation]:
    """One per gate function and direction; alphas and betas go to those that have one."""
    names = [str(n).lower() for n in settings["activations"] or ()]
    defaults = [n.lower() for n in default]
    per = len(defaults)
    # RNN's schema lists Tanh twice, for both directions, where one is used.
    names = names[: per * count] if names else defaults * count
    if len(names) < per * count:
        raise ModelError(
            f"{node.op_type} {quote(node.name)} needs {per * count} activations, has {len(names)}"
        )
    unknown = sorted({n for n in names if n not in ACTIVATIONS})
    if unknown:
        raise UnsupportedOp(
            f"{node.op_type} {quote(node.name)} has an activation that ONNX does not define",
            [[quote(n)] for n in unknown],
            hint=f"known: {', '.join(ACTIVATIONS)}",
        )
    alphas, betas = (
        list(settings["activation_alpha"] or ()),
        list(settings["activation_beta"] or ()),
    )
    functions = []
    for name in names:
        _, _, alpha, beta = ACTIVATIONS[name]
        alpha = alphas.pop(0) if alpha is not None and alphas else alpha
        beta = betas.pop(0) if beta is not None and betas else beta
        if REQUIRED in (alpha, beta):
            raise ModelError(
                f"{name} of {node.op_type} {quote(node.name)} has no default alpha and beta",
                hint="set the attributes activation_alpha and activation_beta",
            )
        functions.append(Activation(name, alpha, beta, settings["clip"]))
    return functions

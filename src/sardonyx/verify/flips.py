"""Training steps by the signs of numbers, as of Lion: what they give where rounding decides a sign.

An update by a sign changes by a whole step where the number crosses zero. Where it is zero up to
rounding, both sides are right. This is told by the noise of the numbers before each Sign: the step
is computed again with the signs of those that lie within it replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.model import Model
from sardonyx.verify.exact import Reference
from sardonyx.verify.jitter import moved
from sardonyx.verify.noise import EPS, finite_rms
from sardonyx.verify.ties import REACH

SIGNS = (-1.0, 0.0, 1.0)


def has_signs(model: Model) -> bool:
    return bool(_signs(model))


def _signs(model: Model) -> list[ir.Node]:
    """The Sign nodes of floats that the graph computes."""
    return [
        node
        for node in model.graph
        if node.op_type == "Sign"
        and not node.domain
        and node.inputs[0] is not None
        and node.inputs[0].producer() is not None
        and node.inputs[0].dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    ]


def with_sign(sign: float) -> Callable[[Model], FlippedReference]:
    """Builds exact references in which `sign` stands where rounding decides."""
    return lambda model: FlippedReference(model, sign)


class FlippedReference:
    """A model in float64, with one sign for all numbers that are zero up to rounding."""

    def __init__(self, model: Model, sign: float):
        self.sign = sign
        read, self.names = _exposed(model)
        self.types = {v.name: v.dtype.numpy() for v in model.graph.inputs if v.dtype is not None}
        self.exact, self.plain = (Reference(read, exact=exact) for exact in (True, False))
        self.run = Reference(_fed(model), exact=True)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        if not self.names:
            return self.run(feeds)
        narrow = {n: np.asarray(a).astype(self.types[n]) for n, a in feeds.items()}
        rng = np.random.default_rng(0)
        # One plain run may cancel exactly where others leave what rounding does.
        runs = [self.plain(narrow), self.plain({n: moved(a, rng) for n, a in narrow.items()})]
        exact = self.exact(feeds)
        signs = {
            f"{n}/sign": self._signs(np.asarray(exact[n]), [np.asarray(r[n]) for r in runs])
            for n in self.names
        }
        return self.run({**feeds, **signs})

    def _signs(self, exact: np.ndarray, plain: Sequence[np.ndarray]) -> np.ndarray:
        dtype = plain[0].dtype
        smallest = 0.5 * EPS[dtype.name] * float(np.max(np.abs(exact), initial=0.0))
        noise = max(smallest, *(finite_rms(p, exact) for p in plain))
        signs = np.where(np.abs(exact) <= REACH * noise, self.sign, np.sign(exact))
        return signs.astype(dtype)


def _exposed(model: Model) -> tuple[Model, list[str]]:
    """The model with what it takes signs of as outputs, and their names."""
    copy = model.copy()
    values = list(dict.fromkeys(node.inputs[0] for node in _signs(copy)))
    outputs = copy.graph.outputs
    outputs.extend(v for v in values if v is not None and v not in outputs)
    return copy, [v.name or "" for v in values if v is not None]


def _fed(model: Model) -> Model:
    """The model with signs as inputs."""
    copy = model.copy()
    inputs: dict[str, ir.Value] = {}
    for node in _signs(copy):
        value = node.inputs[0]
        assert value is not None
        name = f"{value.name}/sign"
        if name not in inputs:
            inputs[name] = ir.Value(name=name, type=value.type, shape=value.shape)
            copy.graph.inputs.append(inputs[name])
        node.outputs[0].replace_all_uses_with(inputs[name], replace_graph_outputs=True)
        copy.graph.remove(node, safe=True)
    return copy

"""ONNX's own node tests, differentiated: each model's gradient against differences along a direction.

A twin of the model in float64 serves as the oracle where an engine can run it and it gives what the official
outputs say; otherwise the model itself on onnxruntime in float32, with a step and a tolerance to match.
Inputs are moved a little first: many official inputs sit on kinks and ties, where no difference is right
(`test_kinks_*` says what happens there). All cases are in the nightly run, one per operator in every run.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
from onnx import TensorProto

from sardonyx import opset
from sardonyx.grad import NO_GRADIENT, VJP, grad
from sardonyx.model import Model, from_proto
from sardonyx.testing import Runner

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
# (step, tolerance): float64 to central differences' best; in float32 rounding costs 1e-7 / step.
FLOAT64 = (6e-6, 2e-5)
FLOAT32 = (4e-3, 2e-2)

# Operators whose official cases have no difference to compare with.
EXCLUDED: dict[str, str] = {
    "DynamicQuantizeLinear": "its gradient is straight-through, and only on request",
    "Bernoulli": "random",
    "Multinomial": "random",
    "RandomNormalLike": "random",
    "RandomUniformLike": "random",
}
# (operator, input): floats that say where or how, not what; they have no gradient on purpose.
NOT_DIFFERENTIATED: dict[tuple[str, int], str] = {
    ("Dropout", 1): "the ratio of a random choice",
    ("MaxRoiPool", 1): "boxes, rounded to pixels",
    ("Resize", 1): "a region of interest: refused",
    ("Resize", 2): "scales: refused",
    ("RoiAlign", 1): "boxes: refused",
}
# (operator, output): statistics, not results.
NOT_AN_OUTPUT: dict[tuple[str, int], str] = {}


@functools.cache
def official() -> dict[str, Any]:
    """Every official node test, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cases compute infinities and roll over integers
        return {c.name.removeprefix("test_"): c for c in collect_testcases(None)}


def operators(case: Any) -> list[tuple[str, str]]:
    return [(opset.domain_name(n.domain), n.op_type) for n in case.model.graph.node]


def is_float(info: onnx.ValueInfoProto) -> bool:
    return info.type.HasField("tensor_type") and info.type.tensor_type.elem_type in FLOATS


def is_covered(case: Any) -> bool:
    """Whether the case has a rule to test, a float to differentiate, and data."""
    ops = operators(case)
    rules = [op for op in ops if op in VJP or opset.has_body(op[1], op[0])]
    graph = case.model.graph
    known = all(op in VJP or op in NO_GRADIENT or opset.has_body(op[1], op[0]) for op in ops)
    floats = any(map(is_float, graph.input)) and any(map(is_float, graph.output))
    return bool(rules) and known and floats and bool(case.data_sets)


def names() -> list[str]:
    return [
        name
        for name, case in official().items()
        if is_covered(case) and not any(op in EXCLUDED for _, op in operators(case))
    ]


def one_of_each() -> list[str]:
    """The first official case of each operator that consists of that operator alone."""
    first: dict[str, str] = {}
    for name in names():
        ops = operators(official()[name])
        if len(ops) == 1:
            first.setdefault(ops[0][1], name)
    return list(first.values())


# -- the twin in float64 ------------------------------------------------------------


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with double in the place of every other float."""
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    _double_graph(twin.graph)
    return twin


def _double_graph(graph: onnx.GraphProto) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        _double_type(info.type)
    for tensor in graph.initializer:
        _double_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            _double_attribute(attribute)
        if "stash_type" in opset.attribute_defaults(node.op_type, node.domain):
            if not any(a.name == "stash_type" for a in node.attribute):
                node.attribute.append(onnx.helper.make_attribute("stash_type", TensorProto.DOUBLE))


def _double_type(proto: onnx.TypeProto) -> None:
    kind = proto.WhichOneof("value")
    if kind == "tensor_type" and proto.tensor_type.elem_type in FLOATS:
        proto.tensor_type.elem_type = TensorProto.DOUBLE
    elif kind in ("sequence_type", "optional_type"):
        _double_type(getattr(proto, kind).elem_type)


def _double_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in FLOATS:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _double_attribute(attribute: onnx.AttributeProto) -> None:
    if attribute.HasField("t"):
        _double_tensor(attribute.t)
    if attribute.HasField("g"):
        _double_graph(attribute.g)
    if attribute.name in ("to", "dtype", "stash_type") and attribute.i in FLOATS:
        attribute.i = TensorProto.DOUBLE
    if attribute.name == "value_float":
        value = onnx.numpy_helper.from_array(np.array(attribute.f, np.float64))
        attribute.CopyFrom(onnx.helper.make_attribute("value", value))


# -- one case -------------------------------------------------------------------------


class Official:
    """One official case: a model to differentiate, where, and how exact its differences are."""

    def __init__(self, case: Any):
        inputs, self.expected = case.data_sets[0]
        graph = case.model.graph
        given = dict(zip([i.name for i in graph.input], map(_array, inputs), strict=False))
        self.expected = [_array(e) for e in self.expected]
        self.wrt = [i.name for i in graph.input if is_float(i)]
        self.of = [o.name for o in graph.output if is_float(o)]
        for node in graph.node:
            self.wrt = [n for n in self.wrt if not _listed(node.op_type, node.input, n, NOT_DIFFERENTIATED)]
            self.of = [n for n in self.of if not _listed(node.op_type, node.output, n, NOT_AN_OUTPUT)]
        self.feeds = {n: _doubled_array(a) for n, a in given.items()}
        self.model = from_proto(doubled(case.model))
        self.step, self.tol = FLOAT64
        if not self._is_faithful(graph):
            self.feeds = dict(given)
            self.model = from_proto(case.model)
            self.step, self.tol = FLOAT32
        self.forward = Runner(self.model)

    def _is_faithful(self, graph: onnx.GraphProto) -> bool:
        """Whether an engine runs the twin, to the official outputs."""
        try:
            found = Runner(self.model)(self.feeds)
        except Exception:  # neither engine has the kernel in float64
            return False
        return all(
            np.allclose(found[o.name], np.asarray(e, np.float64), rtol=2e-2, atol=2e-2, equal_nan=True)
            for o, e in zip(graph.output, self.expected, strict=True)
            if o.name in self.of
        )


def _listed(op: str, names: Any, name: str, table: dict[tuple[str, int], str]) -> bool:
    return any(n == name and (op, i) in table for i, n in enumerate(names))


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _doubled_array(value: Any) -> Any:
    if isinstance(value, list):
        return [_doubled_array(v) for v in value]
    array = np.asarray(value)
    is_small_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if is_small_float else value


def difference(one: Official, feeds: Any, seeds: Any, direction: Any, step: float) -> float:
    def objective(scale: float) -> float:
        moved = {
            n: (x + scale * direction[n]).astype(x.dtype) if n in direction else x
            for n, x in feeds.items()
        }
        out = one.forward(moved)
        return sum(float(np.sum(out[n].astype(np.float64) * seeds[f"seed/{n}"])) for n in one.of)

    return (objective(step) - objective(-step)) / (2 * step)


def check(name: str) -> None:
    one = Official(official()[name])
    if not one.wrt or not one.of:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* do not depend on each other")
        gradient = Runner(grad(one.model, of=one.of, wrt=one.wrt, seeds="input", outputs=False))
    for attempt in range(4):
        rng = np.random.default_rng(attempt)
        outward = attempt % 2 == 1
        feeds = {n: _moved(x, rng, outward) if n in one.wrt else x for n, x in one.feeds.items()}
        values = one.forward(feeds)
        seeds = {f"seed/{n}": rng.normal(size=values[n].shape).astype(values[n].dtype) for n in one.of}
        direction = {n: rng.normal(size=np.shape(feeds[n])) for n in one.wrt}
        expected = difference(one, feeds, seeds, direction, one.step)
        halved = difference(one, feeds, seeds, direction, one.step / 2)
        found = gradient({**feeds, **seeds})
        parts = [found[f"grad/{n}"].astype(np.float64) * direction[n] for n in one.wrt]
        size = max(sum(float(np.abs(p).sum()) for p in parts), abs(expected), 1e-2)
        # Where two steps disagree, a kink lies between them, and neither is a derivative.
        if abs(expected - halved) <= one.tol * size:
            break
    else:
        pytest.fail("no point found at which differences exist")
    for n in one.wrt:
        assert found[f"grad/{n}"].shape == np.shape(feeds[n])
    actual = sum(float(p.sum()) for p in parts)
    assert abs(actual - expected) <= one.tol * size, f"gradient {actual:.8g}, differences {expected:.8g}"


def _moved(x: Any, rng: np.random.Generator, outward: bool) -> np.ndarray:
    """A little off the official input: first towards zero, then away from it, for the domain's sake."""
    x = np.asarray(x)
    off = 0.02 * rng.random(x.shape) * (1 if outward else -1)
    from_zero = rng.uniform(0.01, 0.02, x.shape) * rng.choice([-1, 1], x.shape)
    return np.where(x == 0, from_zero, x * (1 + off)).astype(x.dtype)


@pytest.mark.parametrize("name", one_of_each())
def test_one_official_case_of_each_operator(name: str) -> None:
    check(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", names())
def test_every_official_case(name: str) -> None:
    check(name)


def test_excluded_operators_have_official_cases() -> None:
    tested = {op for case in official().values() for _, op in operators(case)}
    listed = {*EXCLUDED, *(op for op, _ in NOT_DIFFERENTIATED), *(op for op, _ in NOT_AN_OUTPUT)}
    assert listed <= tested

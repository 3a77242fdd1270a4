"""ONNX's own node tests, differentiated: each model's gradient against differences.

A twin of the model in float64 serves as the oracle where an engine can run it, to the official
outputs; otherwise the model itself on onnxruntime in float32, with a step and a tolerance to match.
Inputs are moved a little first: many official inputs sit on kinks and ties, where no difference is
right (`test_kinks_*` says what happens there). All cases are in the nightly run, one per operator
in every run.
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
from sardonyx.grad import GRADIENT_RULES, NO_GRADIENT, grad
from sardonyx.model import from_proto
from sardonyx.score.derivatives import difference, moved, wide
from sardonyx.testing import Runner

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
# Types of 2, 4 and 8 bits, which neither engine can be fed.
NARROW = tuple(
    kind for name, kind in TensorProto.DataType.items() if name.startswith(("FLOAT8", "FLOAT4"))
) + tuple(TensorProto.DataType.Value(n) for n in ("INT4", "UINT4", "INT2", "UINT2"))
# (step, another step, tolerance): in float32, rounding costs 1e-7 / step.
FLOAT64 = (6e-6, 6e-5, 2e-5)
FLOAT32 = (4e-3, 1e-3, 2e-2)

# Operators whose official cases have no difference to compare with.
RANDOM = "random: no two runs are alike"
EXCLUDED: dict[str, str] = {
    "Bernoulli": RANDOM,
    "DynamicQuantizeLinear": "its gradient is straight-through, and only on request",
    "RandomUniformLike": RANDOM,
}
AT_THE_LIMIT = "the limit is reached exactly: any move changes the number of elements"
INFINITE = "its outputs are infinite: they have no differences"
EXCLUDED_CASES: dict[str, str] = {
    "reduce_log_sum_empty_set": INFINITE,
    "reduce_log_sum_exp_empty_set": INFINITE,
    "reduce_log_sum_empty_set_expanded": INFINITE,
    "reduce_log_sum_exp_empty_set_expanded": INFINITE,
    "reduce_max_empty_set": INFINITE,
    "reduce_min_empty_set": INFINITE,
    "range_float_type_positive_delta": AT_THE_LIMIT,
    "range_float16_type_positive_delta": AT_THE_LIMIT,
    "range_bfloat16_type_positive_delta": AT_THE_LIMIT,
    "range_float_type_positive_delta_expanded": AT_THE_LIMIT,
    "range_float16_type_positive_delta_expanded": AT_THE_LIMIT,
    "range_bfloat16_type_positive_delta_expanded": AT_THE_LIMIT,
    "training_dropout": RANDOM,
    "training_dropout_default": RANDOM,
    "training_dropout_default_mask": RANDOM,
    "training_dropout_mask": RANDOM,
    "unique_bfloat16_sorted_without_axis": "any move changes how many elements are unique",
}
# Operators whose definition computes in float32 whatever goes in: no twin is any finer.
COARSE = {"LinearAttention"}
# (operator, input): floats that say where or how, not what; they have no gradient on purpose.
NOT_DIFFERENTIATED: dict[tuple[str, int], str] = {
    ("CastLike", 1): "only its type matters",
    ("Dropout", 1): "the ratio of a random choice",
    ("Resize", 1): "a region of interest: refused",
    ("Resize", 2): "scales: refused",
    ("RoiAlign", 1): "boxes: refused",
}
# (operator, output): statistics, not results.
NOT_AN_OUTPUT: dict[tuple[str, int], str] = {
    ("BatchNormalization", 1): "the running mean",
    ("BatchNormalization", 2): "the running variance",
}


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


def ends(case: Any) -> tuple[list[str], list[str]]:
    """The inputs to differentiate by, and the outputs to differentiate."""
    graph = case.model.graph
    wrt = [i.name for i in graph.input if is_float(i)]
    of = [o.name for o in graph.output if is_float(o)]
    for node in graph.node:
        wrt = [n for n in wrt if not _listed(node.op_type, node.input, n, NOT_DIFFERENTIATED)]
        of = [n for n in of if not _listed(node.op_type, node.output, n, NOT_AN_OUTPUT)]
    return wrt, of


def _listed(op: str, names: Any, name: str, table: dict[tuple[str, int], str]) -> bool:
    return any(n == name and (op, i) in table for i, n in enumerate(names))


def is_covered(case: Any) -> bool:
    """Whether the case has a rule to test, a float to differentiate, and data that can be fed."""
    ops = operators(case)
    ruled = [op in GRADIENT_RULES or opset.has_body(op[1], op[0]) for op in ops]
    known = all(r or op in NO_GRADIENT for r, op in zip(ruled, ops, strict=True))
    wrt, of = ends(case)
    narrow = any(i.type.tensor_type.elem_type in NARROW for i in case.model.graph.input)
    return any(ruled) and known and bool(wrt and of and case.data_sets) and not narrow


def names() -> list[str]:
    return [
        name
        for name, case in official().items()
        if is_covered(case)
        and name not in EXCLUDED_CASES
        and not any(op in EXCLUDED for _, op in operators(case))
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
        inputs = {a.name for a in node.attribute}
        if "stash_type" in set(opset.attribute_defaults(node.op_type, node.domain)) - inputs:
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

    def __init__(self, case: Any, twin: bool):
        inputs, expected = case.data_sets[0]
        graph = case.model.graph
        arguments = dict(zip([i.name for i in graph.input], map(_array, inputs), strict=False))
        self.expected = dict(
            zip([o.name for o in graph.output], map(_array, expected), strict=True)
        )
        self.wrt, of = ends(case)
        # An infinite output has no differences; where there are others, they are asked.
        self.of = [n for n in of if _is_finite(self.expected[n])] or of
        self.feeds = {n: wide(a) for n, a in arguments.items()} if twin else arguments
        self.model = from_proto(doubled(case.model) if twin else case.model)
        self.step, self.other_step, self.tol = FLOAT64 if twin else FLOAT32
        self.forward = Runner(self.model)

    def is_faithful(self) -> bool:
        """Whether an engine runs the model, to the official outputs."""
        try:
            result = self.forward(self.feeds)
        except Exception:  # neither engine has the kernel in this precision
            return False
        return all(
            np.allclose(result[n], wide(self.expected[n]), rtol=2e-2, atol=2e-2, equal_nan=True)
            for n in self.of
        )


def _is_finite(value: Any) -> bool:
    return isinstance(value, list) or bool(np.isfinite(np.asarray(value, np.float64)).all())


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def check(name: str) -> None:
    case = official()[name]
    is_coarse = any(op in COARSE for _, op in operators(case))
    for twin in (False,) if is_coarse else (True, False):
        one = Official(case, twin)
        if one.is_faithful() and _check(one):
            return
    pytest.fail("no engine and point found at which differences exist")


def _check(one: Official) -> bool:
    """Compare at the first point where two steps agree on the difference; False: there is none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* do not depend on each other")
        gradient = Runner(grad(one.model, of=one.of, wrt=one.wrt, seeds="input", outputs=False))
    for attempt in range(4):
        rng = np.random.default_rng(attempt)
        feeds = {n: moved(x, rng, attempt) if n in one.wrt else x for n, x in one.feeds.items()}
        values = one.forward(feeds)
        seeds = {n: rng.normal(size=values[n].shape).astype(values[n].dtype) for n in one.of}
        direction = {n: rng.normal(size=np.shape(feeds[n])) for n in one.wrt}
        expected = difference(one.forward, feeds, seeds, direction, one.step)
        again = difference(one.forward, feeds, seeds, direction, one.other_step)
        result = gradient({**feeds, **{f"seed/{n}": seed for n, seed in seeds.items()}})
        parts = [result[f"grad/{n}"].astype(np.float64) * direction[n] for n in one.wrt]
        size = max(sum(float(np.abs(p).sum()) for p in parts), abs(expected), 1e-2)
        # Where they disagree, a kink lies between, or the engine is too coarse for the step.
        if not abs(expected - again) <= one.tol * max(abs(expected), size):
            continue
        for n in one.wrt:
            assert result[f"grad/{n}"].shape == np.shape(feeds[n])
        actual = sum(float(p.sum()) for p in parts)
        assert abs(actual - expected) <= one.tol * size, (
            f"gradient {actual}, differences {expected}"
        )
        return True
    return False


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
    assert set(EXCLUDED_CASES) <= set(official())

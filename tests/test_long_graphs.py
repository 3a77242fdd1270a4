"""Long graphs: the work for each node does not grow with the graph, counted in calls, not in time.

Passes of normalization that look for one operator are skipped where it is absent: they must run for
an operator that only a body or a function has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.model import Model
from sardonyx.passes.nesting import graphs

FLOAT = onnx.TensorProto.FLOAT


def chain(length: int) -> bytes:
    """A MatMul and a chain of Relu nodes behind it."""
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["v0"], "product")]
    nodes += [
        onnx.helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], f"relu{i}") for i in range(length)
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "chain",
        [onnx.helper.make_tensor_value_info("x", FLOAT, ["N", 4])],
        [onnx.helper.make_tensor_value_info(f"v{length}", FLOAT, ["N", 4])],
        [onnx.numpy_helper.from_array(np.full((4, 4), 0.5, np.float32), "w")],
    )
    imports = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    return model.SerializeToString()


def calls(work: Callable[[], Any]) -> int:
    """How many functions are called, those in C included."""
    count = 0

    def counter(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counter)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


# The most calls for each node of the chain: about twice of what they take.
WORK: dict[str, tuple[Callable[[bytes], Any], int]] = {
    "load": (sx.load, 250),
    "inspect": (sx.inspect, 650),
    "check": (sx.check, 500),
    "grad": (lambda data: sx.grad(data, wrt=["x"]), 5000),
    "trainable": (lambda data: sx.trainable(data, "mse", "sgd"), 3000),
}


@pytest.mark.parametrize("name", WORK)
def test_work_is_linear_in_the_length(name: str) -> None:
    work, most = WORK[name]
    work(chain(3))  # imports, caches of schemas
    one, two, four = (calls(partial(work, chain(100 * n))) for n in (1, 2, 4))
    assert four - two <= 2.1 * (two - one)
    assert (four - two) / 200 <= most


# -- passes that are skipped where their operator is absent ----------------------------------------

IN_BRANCH = """g (bool c, float[4] x) => (float[4] y) {{
    y = If (c) <then_branch = t () => (float[4] a) {{ {body} }},
                else_branch = e () => (float[4] b) {{ b = Neg(x) }}> }}"""
IN_FUNCTION = (
    "g (float[4] x) => (float[4] y) {{ y = local.f(x) }} "
    '<domain: "local", opset_import: ["": 17, "com.microsoft": 1]> f (x) => (a) {{ {body} }}'
)
PLACES = {"branch": IN_BRANCH, "function": IN_FUNCTION}
BODIES = {
    "Constant": "k = Constant<value_float = 2.0>() a = Mul(x, k)",
    "If": """k = Constant<value = bool {1}>()
        a = If (k) <then_branch = t2 () => (float[4] p) { p = Relu(x) },
                    else_branch = e2 () => (float[4] q) { q = Exp(x) }>""",
    "QLinearSigmoid": """s = Constant<value = float {0.1}>() z = Constant<value = uint8 {3}>()
        i = QuantizeLinear(x, s, z) o = com.microsoft.QLinearSigmoid(i, s, z, s, z)
        a = DequantizeLinear(o, s, z)""",
}


def operators(model: Model) -> set[str]:
    return {node.op_type for part in graphs(model.graph) for node in part}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("operator", BODIES)
def test_a_nested_operator_is_rewritten(operator: str, place: str, tmp_path: Path) -> None:
    imports = '"": 17, "local": 1, "com.microsoft": 1'
    graph = PLACES[place].format(body=BODIES[operator])
    proto = onnx.parser.parse_model(f"<ir_version: 9, opset_import: [{imports}]> {graph}")
    normal = sx.normalize(proto)
    if operator == "If":  # the one that is left is the branch around it
        count = sum(node.op_type == "If" for part in graphs(normal.graph) for node in part)
        assert count == (place == "branch")
    else:
        assert operator not in operators(normal)
    x = np.array([-1.0, -0.2, 0.3, 2.0], np.float32)
    feeds = {"c": np.array(True), "x": x} if place == "branch" else {"x": x}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(None, feeds)
    stored = onnxruntime.InferenceSession(sx.save(normal, tmp_path / "normal.onnx"))
    (result,) = stored.run(None, feeds)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=0.11)


def test_the_default_of_a_nested_stft_is_written() -> None:
    body = """s = Constant<value = int64 {2}>() f = STFT(w, s, , l) n = Shape(f)
        k = Cast<to = 1>(n)"""
    graph = f"""g (bool c, float[1,16,1] w, float[4] x) => (float[4] y)
        <int64 l = {{8}}> {{ y = If (c) <then_branch = t () => (float[4] k) {{ {body} }},
        else_branch = e () => (float[4] b) {{ b = Neg(x) }}> }}"""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {graph}')
    nodes = [n for part in graphs(sx.normalize(proto).graph) for n in part]
    (stft,) = (n for n in nodes if n.op_type == "STFT")
    assert stft.attributes["onesided"].value == 1


# -- a model that is loaded by the call itself is normalized without a copy ------------------------


@pytest.mark.parametrize("function", [sx.inspect, sx.check, sx.normalize, sx.weights])
def test_a_model_of_the_caller_stays_as_it_is(function: Callable[[Any], Any]) -> None:
    graph = "g (float[N, 4] x) => (float[N, 4] y) <float k = {2.0}> { h = Mul(x, k)"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 11]> {graph} y = Softmax<axis = -1>(h) }}'
    )
    model, before = sx.load(proto), proto.SerializeToString(deterministic=True)
    stored = model.proto().SerializeToString(deterministic=True)
    of_model = function(model)
    assert model.proto().SerializeToString(deterministic=True) == stored
    of_proto = function(proto)
    assert proto.SerializeToString(deterministic=True) == before
    assert repr(of_model) == repr(of_proto)


def test_weights_that_are_taken_apart_and_joined_many_times() -> None:
    """Paths from a weight to its readers double with each node: 2 ** 60 of them here."""
    nodes = "".join(
        f"a{i}, b{i} = Split(h{i}, s) h{i + 1} = Concat<axis=0>(a{i}, b{i}) " for i in range(60)
    )
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N,4] x) => (float[N,3] y)
    <float[4,3] h0 = {{1,2,3,4,5,6,7,8,9,10,11,12}}, int64[2] s = {{2,2}}>
    {{{nodes} p = MatMul(x, h60) q = MatMul(x, h0) y = Add(p, q)}}"""
    net = sx.trainable(sx.load(onnx.parser.parse_model(text)), "mse", sx.optim.sgd(0.1))
    assert [w.name for w in sx.weights(net) if w.kind == "weight"] == ["h0"]

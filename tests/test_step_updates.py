"""Updates that are taken out of a step before onnxruntime optimizes it, and put back after."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from sardonyx.engines.onnxruntime.updates import put_back, take_updates

STEP = """<ir_version: 10, opset_import: ["": 21]>
g (float[4,3] x, float[3,2] w, float[3,2] m, float lr, float[4,2] y)
  => (float loss, float[3,2] w_new, float[3,2] m_new, float[3,2] gradient)
<float decay = {0.9}>
{
  scores = MatMul(x, w)
  error = Sub(scores, y)
  loss = ReduceMean<keepdims = 0>(error)
  turned = Transpose(x)
  gradient = MatMul(turned, error)
  old = Mul(m, decay)
  m_new = Add(old, gradient)
  change = Mul(m_new, lr)
  w_new = Sub(w, change)
}"""
ALL_UPDATES = """<ir_version: 10, opset_import: ["": 21]>
g (float[3] w, float[3] x) => (float[3] w_new) { w_new = Sub(w, x) }"""


def graph_of(text: str) -> ir.Model:
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("shown", [True, False], ids=["gradient shown", "gradient not shown"])
def test_updates_are_taken_out_and_put_back(shown: bool) -> None:
    model = graph_of(STEP)
    if not shown:
        model.graph.outputs.pop()
    rng = np.random.default_rng(0)
    sizes = {v.name: v.shape.numpy() for v in model.graph.inputs}
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in sizes.items()}
    expected = run(model, feeds)
    updates = take_updates(model.graph, ["w_new", "m_new"])
    # the nodes in front of the loss stay, although they read and subtract too
    rest = [node.op_type for node in model.graph]
    assert rest == ["MatMul", "Sub", "ReduceMean", "Transpose", "MatMul"]
    assert [v.name for v in model.graph.inputs] == ["x", "w", "y"]
    assert [v.name for v in model.graph.outputs] == ["loss", "gradient"]
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto)
    optimized = ir.serde.deserialize_model(proto)
    put_back(optimized.graph, updates)
    names = ["loss", "w_new", "m_new", *(["gradient"] if shown else [])]
    assert [v.name for v in optimized.graph.outputs] == names
    for ours, theirs in zip(run(optimized, feeds), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_step_of_nothing_but_updates_stays_whole() -> None:
    model = graph_of(ALL_UPDATES)
    assert not take_updates(model.graph, ["w_new"]).nodes
    assert len(model.graph) == 1

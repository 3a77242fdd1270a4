"""Products of rows by columns, rewritten as sums: the same numbers as NumPy's."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from sardonyx.engines.onnxruntime.dots import LONG, rewrite_dots

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
TOTAL = "d = MatMul(rows, columns) y = ReduceSum<keepdims = 0>(d, axes)"
BODIES = {  # the body, its output's rank, the axes that are summed
    "sum over all but the channels": (TOTAL, "{0, 2, 3}", (0, 2)),
    "negative axes": (TOTAL, "{0, -2, -1}", (0, 2)),
    "an axis kept": ("d = MatMul(rows, columns) y = ReduceSum<keepdims = 1>(d, axes)", "{0}", None),
    "no sum": ("y = MatMul(rows, columns)", "{0}", None),
    "two readers": ("d = MatMul(rows, columns) e = Neg(d) y = Sub(d, e)", "{0}", None),
}


def model_of(body: str, axes: str, length: int, batch: str) -> onnx.ModelProto:
    count = axes.count(",") + 1
    return onnx.parser.parse_model(f"""{HEAD}
    g (float[{batch},3,{length}] a, float[{batch},3,{length}] b) => (float[] y)
    <int64[1] two = {{2}}, int64[1] three = {{3}}, int64[{count}] axes = {axes}>
    {{
      rows = Unsqueeze(a, two)
      columns = Unsqueeze(b, three)
      {body}
    }}""")


def rewritten(proto: onnx.ModelProto) -> onnx.ModelProto:
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto))
    assert rewrite_dots(model.graph) == 1
    return ir.serde.serialize_model(model)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("length", [1, 5, LONG - 1, LONG, LONG + 3])
@pytest.mark.parametrize("batch", ["4", "N"])
def test_a_row_by_a_column(name: str, length: int, batch: str) -> None:
    body, axes, summed = BODIES[name]
    proto = rewritten(model_of(body, axes, length, batch))
    op_types = [node.op_type for node in proto.graph.node]
    assert "MatMul" not in op_types
    assert ("FusedMatMul" in op_types) == (length >= LONG)
    rng = np.random.default_rng(length)
    a, b = (rng.normal(size=(4, 3, length)).astype(np.float32) for _ in range(2))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"a": a, "b": b})
    terms = a.astype(np.float64) * b
    expected = terms.sum(summed) if summed else terms.sum(2)[..., None, None]
    if name == "an axis kept":
        expected = expected.sum(0, keepdims=True)
    if name == "two readers":
        expected = expected * 2
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_other_products_stay() -> None:
    proto = onnx.parser.parse_model(f"""{HEAD}
    g (float[2,1,8] a, float[2,8,2] b, double[2,1,8] c, double[2,8,1] d, float[1,8] e, float[8,1] f)
      => (float[2,1,2] x, double[2,1,1] y, float[1,1] z) {{
      x = MatMul(a, b)
      y = MatMul(c, d)
      z = MatMul(e, f)
    }}""")
    assert rewrite_dots(ir.serde.deserialize_model(proto).graph) == 0

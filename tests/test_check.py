"""`sardonyx check`: all findings, exit 1; nothing is run."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.errors import ModelError

from .networks import mlp


def run(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, str]]]:
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(path), "--json"])
    return int(stopped.value.code or 0), json.loads(capsys.readouterr().out)


def test_a_sound_model_has_no_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sx.save(sx.trainable(mlp(), "mse"), tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", capsys) == (0, [])


def test_swapped_bindings_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = sx.trainable(mlp(), "mse")
    record = net.records[0]
    record.update_binding = [(value, key) for key, value in record.update_binding]
    (tmp_path / "m.onnx").write_bytes(net.proto().SerializeToString())
    code, findings = run(tmp_path / "m.onnx", capsys)
    assert code == 1
    assert any("swapped" in f["problem"] for f in findings)


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 40)
    code, findings = run(tmp_path / "m.onnx", capsys)
    assert code == 1 and findings[0]["stage"] == "load"


def test_an_operator_that_onnxruntime_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 28]> g (bfloat16[4] x, bool[4] c) => (bfloat16[n] y)'
    )
    model = onnx.parser.parse_model(text + " {y = Compress(x, c)}")
    onnx.save(model, tmp_path / "m.onnx")
    code, findings = run(tmp_path / "m.onnx", capsys)
    assert code == 1
    assert [f["stage"] for f in findings] == ["versions for onnxruntime"]


def test_node_names_that_repeat() -> None:
    """As onnxruntime, which is the judge here."""
    import onnxruntime

    model = mlp().proto()
    assert sx.check(model)
    for node in model.graph.node:
        node.name = "act"
    with pytest.raises(Exception, match="two nodes with same node name"):
        onnxruntime.InferenceSession(model.SerializeToString())
    problems = sx.check(model).problems
    assert [p.stage for p in problems] == ["node names"] and '"act"' in problems[0].problem


HEADER = '<ir_version: 8, opset_import: ["": 17]> g '
WRONG = {
    "an axis that is not there": "(float[N,6] x) => (float[N,6] y) {y = Softmax<axis=17>(x)}",
    "sizes that do not fit": "(float[N,6] x) => (float[N,3] y) <float[7,3] w> {y = MatMul(x, w)}",
    "a stride of zero": "(float[N,1,8,8] x) => (float[N,1,a,b] y) "
    "{y = MaxPool<kernel_shape=[2,2], strides=[0,1]>(x)}",
    "axes that repeat": "(float[N,6] x) => (float[N,6] y) {y = Transpose<perm=[0,0]>(x)}",
    "an output of another type": "(float[N,6] x) => (int64[N,6] y) {y = Softmax(x)}",
    "an elementwise output of another type": "(float[N,6] x) => (int64[N,6] y) {y = Relu(x)}",
    "operands of two types": "(float[N,6] x, int64[N,6] z) => (float[N,6] y) {y = Add(x, z)}",
    "a condition that is no bool": "(float[N,6] x) => (float[N,6] y) {y = Where(x, x, x)}",
    "an operator that ONNX does not have": "(float[N] x) => (float[N] y) {y = Frobnicate(x)}",
    "an operator of a later version": "(float[N,6] x) => (float[N,6] y) {y = Gelu(x)}",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_onnxruntime_refuses_to_load(name: str) -> None:
    """As onnxruntime, which is the judge here."""
    import onnxruntime

    model = onnx.parser.parse_model(HEADER + WRONG[name])
    if "w>" in WRONG[name]:
        model = onnx.parser.parse_model(HEADER + WRONG[name].replace("<float[7,3] w>", ""))
        model.graph.initializer.append(onnx.helper.make_tensor("w", 1, [7, 3], [0.5] * 21))
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime.InferenceSession(model.SerializeToString())
    assert len(sx.check(model).problems) == 1


@pytest.mark.parametrize("version", [0, -5, 99])
def test_a_version_that_nobody_knows_is_refused(version: int) -> None:
    """What an operator means there is not known: it is not read as the newest known."""
    model = mlp().proto()
    model.opset_import[0].version = version
    assert [p.stage for p in sx.check(model).problems] == ["normalize"]
    for use in (sx.normalize, sx.trainable, sx.to_numpy):
        with pytest.raises(sx.errors.ModelError, match=f"{version}"):
            use(model)


def test_a_declared_type_is_not_a_cast() -> None:
    model = onnx.parser.parse_model(HEADER + WRONG["an output of another type"])
    with pytest.raises(sx.errors.ModelError, match="INT64") as refusal:
        sx.to_numpy(model)
    assert '"y"' in str(refusal.value) and "FLOAT" in str(refusal.value)


def test_constants_may_share_a_name() -> None:
    """As onnxruntime, which makes initializers of them first."""
    import onnxruntime

    text = """(float[N] x) => (float[N] y) {
      [c] a = Constant<value_float=1.0>()  [c] b = Constant<value_float=2.0>()
      h = Add(x, a)  y = Mul(h, b) }"""
    model = onnx.parser.parse_model(HEADER + text)
    assert [n.name for n in model.graph.node[:2]] == ["c", "c"]
    onnxruntime.InferenceSession(model.SerializeToString())
    assert sx.check(model)


WIDTHS = {
    "Add": "y = Add(x, d)",
    "Gemm": "y = Gemm(x, w, d)",
    "Where": "y = Where(b, x, d)",
    "Concat": "y = Concat<axis = 0>(x, d)",
    "MatMul behind a Cast": "c = Cast<to = 11>(x) y = MatMul(c, w)",
    "Resize, whose scales are float": "y = Resize(x, , d)",
}


@pytest.mark.parametrize("nodes", WIDTHS.values(), ids=WIDTHS)
def test_floats_of_two_widths_are_found(nodes: str) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,2] x, double[2,2] d, float[2,2] w, '
        f"bool[2,2] b) => (float y) {{{nodes}}}"
    )
    proto = onnx.parser.parse_model(text)
    with pytest.raises(Exception, match="Type"):
        onnxruntime.InferenceSession(proto.SerializeToString())
    result = sx.check(proto)
    assert any("types that its operator does not take" in p.problem for p in result.problems)
    with pytest.raises(ModelError):
        sx.normalize(proto)

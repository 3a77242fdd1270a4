"""Verdicts beside "same" and "different", and inputs drawn so that there is a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.verify.noise import DIFFERENT, FAILS, NOT_COMPARABLE, SAME, UNKNOWN
from tests.mutants import NETWORKS
from tests.networks import mlp, parse

HEADER = '<ir_version: 9, opset_import: ["": 20]> g '


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("(float[N,4] x) => (float[N,4] y) { y = Relu(x) }", "1 output, not 2"),
        (
            "(float[N,4] x, float[4] b) => (float[N,4] y, float[N,4] z)"
            " { y = Relu(x) z = Add(x, b) }",
            "2 inputs, not 1",
        ),
        (
            "(float16[N,4] x) => (float16[N,4] y, float16[N,4] z) { y = Relu(x) z = Neg(x) }",
            'input "x" is float16, not float',
        ),
        (
            "(float[N,5] x) => (float[N,5] y, float[N,5] z) { y = Relu(x) z = Neg(x) }",
            "input \"x\" has the shape ['N', 5], not ['N', 4]",
        ),
    ],
)
def test_models_of_other_inputs_or_outputs_are_not_comparable(other: str, why: str) -> None:
    first = parse(
        HEADER + "(float[N,4] x) => (float[N,4] y, float[N,4] z) { y = Relu(x) z = Neg(x) }"
    )
    report = sx.verify(first, parse(HEADER + other), seeds=1)
    assert (report.verdict, report.exit_code) == (NOT_COMPARABLE, 7)
    assert why in [m.problem for m in report.measurements]
    assert not report.culprits


def test_a_size_that_one_model_fixes_is_the_size_of_both() -> None:
    text = HEADER + "(float[%s,4] x) => (float[%s,4] y) { y = Relu(x) }"
    report = sx.verify(parse(text % ("N", "N")), parse(text % (6, 6)), seeds=2)
    assert report.verdict == SAME
    assert [r["shapes"]["x"] for r in report.runs] == [[6, 4], [6, 4]]


def test_a_file_that_its_engine_refuses_fails() -> None:
    right = parse(HEADER + "(float[3] x) => (float[3] y) { y = Relu(x) }")
    wrong = parse(HEADER + "(float[3] x) => (float[3] y) { h = Relu(x) y = NoSuchOp(h) }")
    report = sx.verify(right, wrong, seeds=1)
    assert (report.verdict, report.exit_code) == (FAILS, 6)


def test_a_failure_is_one_line_of_the_table() -> None:
    """Errors of torch go on with hints over many lines."""
    model = parse(HEADER + "(float[3] x) => (float[3] y) { y = Relu(x) }")

    def subject(x: np.ndarray) -> np.ndarray:
        raise RuntimeError("it does not run\nHINT: look elsewhere\nand there")

    report = sx.verify(model, subject, seeds=1)
    assert report.verdict == FAILS
    assert "it does not run" in str(report)
    assert "look elsewhere" not in str(report)


EMPTY_AT_SMALL_SIZES = """(float[1,T] x) => (float[1,M] y)
<int64[1] start = {9}, int64[1] stop = {10000}, int64[1] one = {1}>
{ tail = Slice(x, start, stop, one) mean = ReduceMean<keepdims: int = 1>(tail)
  y = Concat<axis: int = 1>(mean, x) }"""
NAN_OF_NEGATIVES = """(float[N,4] x) => (float[N,4] y)
<float[4,4] w = {1,2,3,4, 5,6,7,8, 9,1,2,3, 4,5,6,7}> { h = MatMul(x, w) y = Sqrt(h) }"""
NAN_ALWAYS = """(float[N,4] x) => (float[N,4] y) <float one = {1}>
{ a = Abs(x) b = Add(a, one) c = Neg(b) y = Log(c) }"""
EMPTY_ALWAYS = """(float[N,4] x) => (float[N,M] y) <int64[1] big = {1000}, int64[1] one = {1}>
{ y = Slice(x, big, big, one) }"""


def test_sizes_that_make_a_tensor_empty_are_drawn_again() -> None:
    report = sx.verify(parse(HEADER + EMPTY_AT_SMALL_SIZES), "numpy", seeds=2)
    assert report.verdict == SAME, str(report)
    assert all(r["shapes"]["x"][1] > 9 for r in report.runs)


def test_numbers_of_another_kind_are_drawn_where_the_usual_ones_make_nan() -> None:
    report = sx.verify(parse(HEADER + NAN_OF_NEGATIVES), "numpy", seeds=2)
    assert report.verdict == SAME, str(report)
    assert all((run.inputs["x"] > 0).all() for run in report.data)


@pytest.mark.parametrize("text", [NAN_ALWAYS, EMPTY_ALWAYS], ids=["NaN", "empty"])
def test_where_no_inputs_show_anything_nobody_can_tell(text: str) -> None:
    report = sx.verify(parse(HEADER + text), "numpy", lambda x: x[:, :0] * 2, seeds=1)
    assert DIFFERENT not in [m.verdict() for m in report.measurements if "numpy" in m.subject]
    report = sx.verify(parse(HEADER + text), "numpy", seeds=1)
    assert (report.verdict, report.exit_code) == (UNKNOWN, 5)
    assert "empty or not finite" in "".join(report.notes)


def test_a_model_that_takes_no_random_inputs_ends_in_could_not_tell() -> None:
    text = """(float[2,3] x, float[4,5] z) => (float[2,5] y) { h = Concat<axis: int = 0>(x, z)
    y = Relu(h) }"""
    report = sx.verify(parse(HEADER + text), "numpy")
    assert (report.verdict, report.exit_code) == (UNKNOWN, 5)
    assert "no random inputs were found that the model takes" in report.notes[0]


def test_texts_reach_a_module() -> None:
    import torch

    text = """<ir_version: 9, opset_import: ["": 20, "ai.onnx.ml": 4]>
    g (string[N] x) => (float[N] y)
    { y = ai.onnx.ml.LabelEncoder<keys_strings: strings = ["a", "red"],
      values_floats: floats = [2.0, 3.0], default_float: float = -1.0>(x) }"""

    class Lookup(torch.nn.Module):
        def forward(self, words: Any) -> torch.Tensor:
            return torch.tensor([{"a": 2.0, "red": 3.0}.get(word, -1.0) for word in words])

    assert sx.verify(parse(text), Lookup()).verdict == SAME


def test_maps_of_a_conversion_are_compared_as_maps() -> None:
    """scikit-learn's ZipMap ends in a sequence of maps."""
    text = """<ir_version: 9, opset_import: ["": 20, "ai.onnx.ml": 3]>
    g (float[N,2] x) => (seq(map(int64, float)) y)
    { p = Softmax(x) y = ai.onnx.ml.ZipMap<classlabels_int64s: ints = [4, 7]>(p) }"""

    def probabilities(x: np.ndarray) -> Any:
        e = np.exp(x - x.max(1, keepdims=True))
        return ([dict(zip((4, 7), row)) for row in e / e.sum(1, keepdims=True)],)

    report = sx.verify(parse(text), "torch", probabilities, seeds=2)
    assert report.verdict == SAME, str(report)
    report = sx.verify(parse(text), lambda x: ([{4: 0.5, 7: 0.5} for _ in x],), seeds=1)
    assert report.verdict == DIFFERENT


def test_other_weights_are_said_to_be_other_weights() -> None:
    tuned = mlp().proto()
    for tensor in tuned.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor) * np.float32(1.01)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    report = sx.verify(mlp(), tuned, seeds=1)
    assert report.verdict == DIFFERENT
    assert "the same nodes, but 4 of 4 weights have other values" in "".join(report.notes)
    rewired = mlp().copy()
    rewired.graph.node("act0").op_type = "Softsign"
    assert "weights have other values" not in "".join(sx.verify(mlp(), rewired, seeds=1).notes)


def test_an_engines_name_stands_for_the_conversion_that_users_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine's own program is right; only what `to_torch` gives is not."""
    convert = sx.to_torch

    def wrong(model: Any, **options: Any) -> Any:
        module = convert(model, **options)
        return lambda *inputs: module(*inputs) * 1.01

    def failing(model: Any, **options: Any) -> Any:
        raise TypeError("slice indices must be integers")

    assert sx.verify(mlp(), "torch", seeds=1).verdict == SAME
    monkeypatch.setattr(sx, "to_torch", wrong)
    report = sx.verify(mlp(), "torch", seeds=1)
    assert report.verdict == DIFFERENT and not report.culprits
    assert "the fault is in the conversion as a whole" in "".join(report.notes)
    monkeypatch.setattr(sx, "to_torch", failing)
    report = sx.verify(mlp(), "torch", seeds=1)
    assert report.verdict == FAILS
    assert "slice indices must be integers" in report.rows()[0].problem


@pytest.mark.parametrize("engine", ["torch", "jax", "tensorflow"])
def test_conversions_are_called_at_several_sizes(engine: str) -> None:
    """One conversion, three batches of other sizes: it must not have fixed the first one."""
    pytest.importorskip(engine)
    report = sx.verify(mlp(), engine, seeds=3)
    assert report.verdict == SAME, str(report)
    assert len({tuple(r["shapes"]["x"]) for r in report.runs}) == 3


def test_exit_codes_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(NETWORKS["cnn"](), tmp_path / "cnn.onnx")
    onnx.save(mlp().proto(), tmp_path / "mlp.onnx")
    with pytest.raises(SystemExit) as stopped:
        main(["verify", str(tmp_path / "cnn.onnx"), str(tmp_path / "mlp.onnx"), "--seeds", "1"])
    assert stopped.value.code == 7
    assert "verdict   not comparable" in capsys.readouterr().out


def test_reports_are_short_in_a_console_and_tables_in_a_notebook(tmp_path: Path) -> None:
    report = sx.verify(mlp(), "numpy", seeds=1)
    assert repr(report).startswith("<Report: model on onnxruntime -> model on numpy: same, ratio ")
    assert "<table>" in report._repr_html_() and "same" in report._repr_html_()
    page = report.to_html(tmp_path / "page.html").read_text()
    legend = page[page.index("<summary>Legend") :].split("</details>")[0]
    assert "rounding noise" in legend and "at most 3" in legend and "not comparable" in legend


WEIGHT = "<int64 i = {1}, float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}>"


@pytest.mark.parametrize(
    "graph",
    [
        f"(seq(float[N,4]) x) => (float[N,2] y) {WEIGHT} {{e = SequenceAt(x, i) y = MatMul(e, w)}}",
        f"(seq(float) x) => (float y) {WEIGHT} {{e = SequenceAt(x, i) y = Tanh(e)}}",
    ],
)
def test_sequences_are_drawn_as_they_are_declared(graph: str) -> None:
    """Elements of free shape are drawn with several shapes, which NumPy cannot stack."""
    assert sx.verify(parse(HEADER + graph)).verdict == SAME

"""Formulations for WebGPU: onnxruntime gives the numbers of the graph as it was."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import sardonyx as sx
from sardonyx.normalize import regular_copy
from sardonyx.versions import fit
from sardonyx.web import webgpu
from tests.test_export_step import node_modules
from tests.test_export_web import data, executable, normalized_network

HEAD = '<ir_version: 9, opset_import: ["": 20]> g '
# name → graph, what it may not hold afterwards; an empty text: it stays as it is
CASES = {
    "the sum of rows": (
        """(float[N,3] x) => (float[1,3] y) {
        one = Constant<value = int64[1] {1}>()
        rows = Shape<start = 0, end = 1>(x)
        shape = Concat<axis = 0>(one, rows)
        ones = ConstantOfShape<value = float[1] {1}>(shape)
        y = Gemm(ones, x) }""",
        "ConstantOfShape",
    ),
    "twice the sum of rows": (
        """(float[N,3] x) => (float[1,3] y) {
        one = Constant<value = int64[1] {1}>()
        rows = Shape<start = 0, end = 1>(x)
        shape = Concat<axis = 0>(one, rows)
        ones = ConstantOfShape<value = float[1] {2}>(shape)
        y = Gemm(ones, x) }""",
        "",
    ),
    "cross entropy": (
        """(float[N,3] x, int64[N] label) => (float y, float[N,3] logs) {
        y, logs = SoftmaxCrossEntropyLoss<reduction = "mean">(x, label) }""",
        "SoftmaxCrossEntropyLoss",
    ),
    "cross entropy that leaves a label out": (
        """(float[N,3] x, int64[N] label) => (float y) {
        y = SoftmaxCrossEntropyLoss<reduction = "mean", ignore_index = 1>(x, label) }""",
        "",
    ),
    "cross entropy of pixels": (
        """(float[N,3,2] x, int64[N,2] pixel) => (float y) {
        y = SoftmaxCrossEntropyLoss<reduction = "sum">(x, pixel) }""",
        "",
    ),
    "a sum of three": ("(float[N,3] x) => (float[N,3] y) { y = Sum(x, x, x) }", "Sum"),
    "a quotient of sizes": (
        """(float[N,3] x) => (float[N,3] y) {
        axis = Constant<value = int64[1] {1}>()
        mean = ReduceMean(x, axis)
        all = Size(x)
        some = Size(mean)
        above = Cast<to = 1>(all)
        below = Cast<to = 1>(some)
        ratio = Div(above, below)
        y = Mul(x, ratio) }""",
        "Size",
    ),
    "a quotient of sizes that depends on the batch": (
        """(float[N,3] x) => (float[N,3] y) {
        axis = Constant<value = int64[1] {0}>()
        mean = ReduceMean(x, axis)
        all = Size(x)
        some = Size(mean)
        above = Cast<to = 1>(all)
        below = Cast<to = 1>(some)
        ratio = Div(above, below)
        y = Mul(x, ratio) }""",
        "ReduceSum",
    ),
    "a shape to go back to": (
        """(float[N,3,2] x) => (float[N,3,2] y) {
        two = Mul(x, x)
        flat = Flatten(two)
        shape = Shape(two)
        y = Reshape<allowzero = 1>(flat, shape) }""",
        "Shape",
    ),
    "a shape with two free sizes": (
        """(float[N,T,2] x) => (float[N,T,2] y) {
        two = Mul(x, x)
        flat = Flatten(two)
        shape = Shape(two)
        y = Reshape<allowzero = 1>(flat, shape) }""",
        "",
    ),
    "what is spread over an axis": (
        """(float[N,3] x) => (float[N,3] y) {
        axis = Constant<value = int64[1] {1}>()
        sum = ReduceSum(x, axis)
        two = Mul(x, x)
        shape = Shape(two)
        y = Expand(sum, shape) }""",
        "Shape",
    ),
    "what is spread over the batch": (
        """(float[N,3] x) => (float[N,3] y) {
        axis = Constant<value = int64[1] {0}>()
        sum = ReduceSum(x, axis)
        two = Mul(x, x)
        shape = Shape(two)
        y = Expand(sum, shape) }""",
        "ReduceMean",
    ),
}


def outputs(proto: onnx.ModelProto, rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    feeds: dict[str, Any] = {}
    for value in proto.graph.input:
        dims = [d.dim_value or rows for d in value.type.tensor_type.shape.dim]
        whole = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        feeds[value.name] = (
            rng.integers(0, 3, dims) if whole else rng.normal(size=dims).astype(np.float32)
        )
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_stay(name: str) -> None:
    text, gone = CASES[name]
    before = regular_copy(sx.load(onnx.parser.parse_model(HEAD + text)))
    after = before.copy()
    webgpu.rewrite(after.graph)
    old, new = (fit(m, runtime="onnxruntime==1.21").proto() for m in (before, after))
    onnx.checker.check_model(new, full_check=True)
    kinds = [node.op_type for node in after.graph]
    assert gone not in kinds
    if not gone:
        assert kinds == [node.op_type for node in before.graph]
    for rows in (1, 5):
        for a, b in zip(outputs(old, rows), outputs(new, rows), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-6, atol=1e-6)


def test_what_needs_no_gpu_is_a_graph_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    for name in webgpu_files():
        (folder / name).write_text("")
    page = sx.export_web(normalized_network(), tmp_path, data(), target="webgpu", runtime=folder)
    step = onnx.load(page.parent / "step" / "train.onnx")
    beside = onnx.load(page.parent / "step" / "scalars.onnx")
    onnx.checker.check_model(step)
    onnx.checker.check_model(beside)
    types = {onnx.TensorProto.DOUBLE}
    assert not [v.name for v in step.graph.value_info if v.type.tensor_type.elem_type in types]
    assert "Shape" in {n.op_type for n in beside.graph.node}
    assert not {"Size", "LogSoftmax", "Sum"} & {n.op_type for n in step.graph.node}


def webgpu_files() -> tuple[str, ...]:
    from sardonyx.web.runtime import FILES

    return FILES["webgpu"]


@pytest.mark.slow
def test_nodes_are_placed_on_webgpu(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if executable() is None:
        pytest.skip("no browser is installed")
    place = Path(__file__).parent.parent / "bench" / "web.py"
    spec = importlib.util.spec_from_file_location("bench_web", place)
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    runtime = node_modules() / "onnxruntime-web"
    site = sx.export_web(
        normalized_network(), tmp_path / "site", data(), target="webgpu", runtime=runtime
    ).parent
    with bench.opened(site) as (page, lines):
        if "on the GPU" not in page.text_content("#facts"):
            pytest.skip("this browser has no WebGPU")
        counts = bench.placed(page, lines)
    assert counts["WebGpuExecutionProvider"] >= 0.95 * sum(counts.values())

"""The culprit: named behind fusion and inside conversions, saved as a case; models in slices."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.verify.noise import DIFFERENT, FAILS, SAME, UNKNOWN
from sardonyx.verify.subjects import OnnxSubject
from sardonyx.verify.ties import bias_step, tied
from tests.mutants import NETWORKS, fault
from tests.networks import mlp, optimized, parse


def test_an_optimized_file_is_the_same_and_a_fault_in_it_is_found_behind_the_fusion(
    tmp_path: Path,
) -> None:
    report = sx.verify(
        NETWORKS["cnn"](), optimized(NETWORKS["cnn"](), tmp_path / "right.onnx"), seeds=2
    )
    assert report.verdict == SAME, str(report)
    wrong = optimized(fault("cnn", "one weight"), tmp_path / "wrong.onnx")
    report = sx.verify(NETWORKS["cnn"](), wrong, seeds=1)
    assert report.verdict == DIFFERENT
    assert report.culprit is not None and report.culprit.replay.fused >= 1
    # Convolution, normalization and Relu became one node, under the name of what they make.
    assert report.culprit.replay.outputs[0] in ("conv1", "bn1", "relu1")


def test_a_difference_without_a_culprit_is_said_to_have_none() -> None:
    def off(x: np.ndarray) -> np.ndarray:
        return np.full((len(x), 3), 7, np.float32)

    report = sx.verify(mlp(), off)
    assert (report.verdict, report.culprit) == (DIFFERENT, None)
    assert "cannot be opened" in "".join(report.notes)


def test_a_candidate_that_fails_is_not_called_different() -> None:
    def fails(x: np.ndarray) -> np.ndarray:
        raise ValueError("no")

    report = sx.verify(mlp(), fails)
    assert (report.verdict, report.exit_code) == (FAILS, 6)
    assert report.rows()[0].problem == "fails failed: ValueError: no"


def test_where_the_exact_references_disagree_nobody_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sardonyx.lower.driver import LOWERINGS

    wrong = dataclasses.replace(
        LOWERINGS.rules["", "Softsign"], function=lambda xp, x: x / (2.0 + xp.abs(x))
    )
    monkeypatch.setitem(LOWERINGS.rules, ("", "Softsign"), wrong)
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]> g (float[N,3] x) => (float[N,3] y)
        { y = Softsign(x) }"""
    )
    report = sx.verify(model)
    assert (report.verdict, report.exit_code, report.culprit) == (UNKNOWN, 5, None)


def test_a_tie_that_is_met_shows_the_rounding_mode() -> None:
    """The fault above, with inputs that do lie half-way."""
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N] x) => (uint8[N] y)
    <float s = {0.5}, uint8 z = {0}> { y = QuantizeLinear(x, s, z) }"""
    halves = np.arange(0.25, 8, 0.5, np.float32)

    def half_up(x: np.ndarray) -> np.ndarray:
        return np.floor(x / np.float32(0.5) + np.float32(0.5)).astype(np.uint8)

    model = parse(text)
    assert sx.verify(model, half_up, inputs={"x": halves + np.float32(0.1)}).verdict == SAME
    assert sx.verify(model, half_up, inputs={"x": halves}).verdict == DIFFERENT


RERUN = """
import sys
sys.modules["sardonyx"] = None  # whoever imports it fails
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("repro.onnx", providers=["CPUExecutionProvider"])
with np.load("repro.npz", allow_pickle=False) as case:
    feeds = {k.removeprefix("input/"): case[k] for k in case if k.startswith("input/")}
    names = [o.name for o in session.get_outputs()]
    for name, found in zip(names, session.run(names, feeds)):
        print(np.abs(found - case["expected/" + name]).max())
"""


@pytest.mark.parametrize(
    ("network", "what", "op", "low", "high"),
    [
        # epsilon 1e-3 in place of 1e-5, on variances from 0.05: up to 1 % off, and never exact
        ("cnn", "batch norm epsilon", "BatchNormalization", 1e-5, 0.1),
        # 0.501 in place of 0.5 of numbers of about 1
        ("loops", "factor inside", "Mul", 1e-4, 1e-2),
        ("recurrent", "GRU gates swapped", "GRU", 1e-2, 2.0),
    ],
)
def test_the_case_runs_without_sardonyx(
    network: str, what: str, op: str, low: float, high: float, tmp_path: Path
) -> None:
    sx.verify(NETWORKS[network](), fault(network, what), seeds=1).save(tmp_path)
    assert [n.op_type for n in onnx.load(tmp_path / "repro.onnx").graph.node] == [op]
    done = subprocess.run(
        [sys.executable, "-c", RERUN], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert low < max(map(float, done.stdout.split())) < high


BLOCKS = """<ir_version: 9, opset_import: ["": 20, "acme": 1]>
g (float[N,4] x) => (float[N,4] y)
<float[4,4] w = {0.3,-0.2,0.5,0.1, 0.4,0.2,-0.6,0.3, -0.1,0.7,0.2,-0.3, 0.5,-0.4,0.1,0.6}>
{ h = acme.block(x, w) z = acme.block(h, w) y = Tanh(z) }
<domain: "acme", opset_import: ["": 20]> block (a, m) => (b)
{ p = MatMul(a, m) q = Gelu %s (p) b = Add(q, a) }"""


def test_a_fault_inside_a_function_is_named_inside_its_first_call(tmp_path: Path) -> None:
    right, wrong = (parse(BLOCKS % text) for text in ("", '<approximate = "tanh">'))
    report = sx.verify(right, wrong, seeds=1)
    assert report.culprit is not None and report.culprit.replay.op == "Gelu"
    assert report.culprit.replay.index == 2
    report.save(tmp_path)
    case = onnx.load(tmp_path / "repro.onnx")
    assert [o.domain for o in case.opset_import] == [""]  # nothing of the function is needed
    assert sx.verify(right, "numpy", seeds=1).verdict == SAME


# -- conversions of ours -----------------------------------------------------------------------


def test_the_node_inside_a_converted_module_is_named() -> None:
    import torch

    model = sx.load(NETWORKS["cnn"]())
    module = sx.to_torch(model)
    assert sx.verify(model, module, seeds=1).verdict == SAME
    with torch.no_grad():
        module.w2[3, 2, 1, 1] *= 1.01  # type: ignore[index, operator]
    report = sx.verify(model, module, seeds=1)
    assert report.verdict == DIFFERENT
    assert report.culprit is not None and report.culprit.node == "node/conv2"
    assert report.culprit.subject == "OnnxModule on torch"


def test_a_converted_module_whose_graph_was_changed_is_said_to_have_right_nodes() -> None:
    import torch

    module = sx.to_torch(mlp())
    graph = module.served.graph
    (result,) = (n for n in graph.nodes if "tanh" in str(n.target))
    result.target = torch.sigmoid
    module.served.recompile()
    report = sx.verify(mlp(), module, seeds=1)
    assert (report.verdict, report.culprit) == (DIFFERENT, None)
    assert "the graph of the conversion was changed" in "".join(report.notes)


@pytest.mark.slow
def test_the_node_inside_functions_of_jax_and_tensorflow_is_named() -> None:
    model = sx.load(NETWORKS["cnn"]())
    apply, params = sx.to_jax(model)
    module = sx.to_tensorflow(model)
    assert sx.verify(model, (apply, params), module, seeds=1).verdict == SAME
    params["w1"] = params["w1"].at[0, 1, 1, 1].mul(1.01)
    module.weights["w3"].assign(module.weights["w3"] * 1.001)
    report = sx.verify(model, (apply, params), module, seeds=1)
    named = {c.subject: c.node for c in report.culprits}
    assert named == {"apply on jax": "node/conv1", "OnnxModule on tensorflow": "node/fc"}


def test_a_module_of_others_is_compared_by_its_outputs_and_that_is_said() -> None:
    import torch

    report = sx.verify(mlp(), torch.nn.Linear(6, 3), seeds=1)
    assert (report.verdict, report.culprit) == (DIFFERENT, None)
    assert "only its outputs are compared" in "".join(report.notes)


# -- integers ----------------------------------------------------------------------------------

QUANTIZED = """<ir_version: 8, opset_import: ["": 17]> g (float[N,32] x) => (float[N,4] y)
<float s = {0.02}, uint8 z = {128}, float sw = {0.01}, int8 zw = {0}, int8[32,4] w = {%s},
 float so = {0.05}, uint8 zo = {128}>
{ xq = QuantizeLinear(x, s, z) xf = DequantizeLinear(xq, s, z)
  wf = DequantizeLinear(w, sw, zw) h = MatMul(xf, wf)
  hq = QuantizeLinear(h, so, zo) y = DequantizeLinear(hq, so, zo) }"""


@pytest.mark.parametrize(("change", "verdict"), [(0, SAME), (1, DIFFERENT)])
def test_an_integer_kernel_is_replayed_from_quantizer_to_quantizer(
    change: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that fuses what lies between, and gets a large sum wrong by some steps.

    Alone every node is right; only the whole segment shows it.
    """
    weights = np.random.default_rng(3).integers(-127, 127, 128)
    model = parse(QUANTIZED % ",".join(map(str, weights)))
    subjects = importlib.import_module("sardonyx.verify.subjects")
    plain = subjects.runner("numpy")

    def build(given: sx.Model):  # type: ignore[no-untyped-def]
        run = plain(given)
        ops = [n.op_type for n in given.graph]

        def call(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            result = dict(run(feeds))
            if {"QuantizeLinear", "MatMul", "DequantizeLinear"} <= set(ops):
                y = result["y"].copy()
                y[:, 0] += np.float32(0.05) * change * 4  # one element of each row
                result["y"] = y
            return result

        return call

    for home in ("subjects", "locate"):
        module = importlib.import_module(f"sardonyx.verify.{home}")
        monkeypatch.setattr(module, "runner", lambda engine: build)
    report = sx.verify(model, "numpy", seeds=1)
    assert report.verdict == verdict
    if change:
        assert report.culprit is not None and report.culprit.replay.fused > 1
        assert "off by more than a tie" in report.culprit.replay.problem


def test_a_bias_in_floats_is_rounded_to_the_step_of_the_sums() -> None:
    """By hand: scales of 0.03 and at most 0.004, so half a step is 0.03 * 0.004 / 2."""
    model = sx.normalize(sx.load(NETWORKS["quantized"]()))
    scale = float(model.initializer("w.scale").numpy().max())
    assert bias_step(list(model.graph)) == pytest.approx(0.5 * 0.03 * scale)
    assert bias_step(list(sx.normalize(sx.load(NETWORKS["cnn"]())).graph)) == 0.0


SEPARATE_BIAS = {
    # The weight's shape, the bias's, the input's.
    "MatMul": ((16, 16), (16,), "N,16"),
    "Conv": ((16, 16, 1), (1, 16, 1), "N,16,5"),
}


def with_separate_bias(op: str, layers: int = 3, shift: float = 0.0) -> onnx.ModelProto:
    """Products between quantizers, each with a float bias in an Add of its own.

    shift -- added to one element of the second bias
    """
    weight, bias, shape = SEPARATE_BIAS[op]
    rng = np.random.default_rng(0)
    text, tensors = "a = QuantizeLinear(x, sx, zx) h0 = DequantizeLinear(a, sx, zx) ", {}
    for i in range(layers):
        tensors[f"w{i}"] = rng.integers(-64, 64, weight).astype(np.int8)
        tensors[f"b{i}"] = (0.3 * rng.normal(size=bias)).astype(np.float32)
        text += f"v{i} = DequantizeLinear(w{i}, sw, zw) p{i} = {op}(h{i}, v{i}) "
        text += f"t{i} = Add(p{i}, b{i}) q{i} = QuantizeLinear(t{i}, sy, zy) "
        text += f"h{i + 1} = DequantizeLinear(q{i}, sy, zy) "
    tensors["b1"].reshape(-1)[3] += np.float32(shift)
    header = '<ir_version: 9, opset_import: ["": 17]> g '
    model = onnx.parser.parse_model(
        f"""{header}(float[{shape}] x) => (float[{shape}] y)
        <float sx = {{0.031}}, uint8 zx = {{120}}, float sw = {{0.0123}}, int8 zw = {{0}},
        float sy = {{0.05}}, uint8 zy = {{110}}> {{ {text} y = Identity(h{layers}) }}"""
    )
    for name, array in tensors.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("op", SEPARATE_BIAS)
def test_a_bias_in_an_add_of_its_own_is_rounded_as_well(op: str) -> None:
    """onnxruntime makes one integer product of these; it rounds the bias to the product's steps."""
    precise = {"log_severity_level": 4, "session.x64quantprecision": "1"}
    first = OnnxSubject(sx.load(with_separate_bias(op)), options=precise)
    report = sx.verify(first, seeds=8)
    assert report.verdict == SAME, str(report)
    assert bias_step(list(sx.normalize(first.model).graph)) == pytest.approx(0.5 * 0.05 * 0.0123)
    # More than a step of the result is a fault, and its segment is named.
    wrong = OnnxSubject(sx.load(with_separate_bias(op, shift=0.2)), options=precise)
    report = sx.verify(first, wrong, seeds=1)
    assert report.verdict == DIFFERENT and report.culprit is not None


@pytest.mark.parametrize("scale", [0.01, 0.25, 3.0])
def test_values_half_way_are_exactly_half_way(scale: float) -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N] x) => (uint8[N] y)
    <float s = {%r}, uint8 z = {7}> { y = QuantizeLinear(x, s, z) }"""
    (node,) = sx.normalize(parse(text % scale)).graph
    made = tied(node, [np.zeros(10, np.float32), np.float32(scale)])
    assert made is not None
    steps = made.astype(np.float64) / np.float64(np.float32(scale))
    assert np.all(np.abs(steps - np.floor(steps)) == 0.5)
    assert len(set(steps)) == (5 if scale == 0.25 else 2)


# -- slices ------------------------------------------------------------------------------------


def test_slices_judge_without_a_whole_run() -> None:
    assert sx.verify(NETWORKS["mobile"](), "numpy", sliced=True, seeds=1).verdict == SAME
    report = sx.verify(NETWORKS["mobile"](), fault("mobile", "slope 0.2"), sliced=True, seeds=1)
    assert report.verdict == DIFFERENT
    assert report.culprit is not None and report.culprit.node == "node/se.gate"


def test_slices_never_run_a_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even to find out whether inputs fit, where their sizes are fixed."""

    def refuse(*given: object) -> None:
        raise AssertionError("the whole model was run")

    monkeypatch.setattr(OnnxSubject, "__call__", refuse)
    fixed = NETWORKS["cnn"]()
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = dim.dim_value or 2
    assert sx.verify(fixed, "numpy", sliced=True, seeds=1).verdict == SAME
    with pytest.raises(AssertionError, match="whole model"):
        sx.verify(fixed, "numpy", seeds=1)


def test_slices_hold_few_values_at_a_time() -> None:
    from sardonyx.verify.culprit import Finder, _Level
    from sardonyx.verify.subjects import runner

    deep = mlp((4,) * 30)
    held: list[int] = []
    original = _Level.visit

    def visit(self: _Level, *given: object) -> None:
        original(self, *given)  # type: ignore[arg-type]
        held.append(len(self.values))

    finder = Finder(deep, deep, runner("numpy"), (3, 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Level, "visit", visit)
        search = finder({"x": np.ones((2, 4), np.float32)}, whole=True)
    assert len(search.replays) == 57
    assert max(held) <= 2


def test_memory_of_slices_does_not_grow_with_depth() -> None:
    """Activations of 2 MB each: all of the deep network's at once would be 48 MB."""

    def peak(depth: int) -> int:
        model, x = mlp((64,) * depth), np.ones((8192, 64), np.float32)
        tracemalloc.start()
        report = sx.verify(model, "numpy", inputs={"x": x}, sliced=True)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert report.verdict == SAME
        return used

    assert peak(13) < 1.3 * peak(4)

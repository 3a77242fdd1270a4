"""Verification: what is the same, what is not, which node, and what nobody can tell.

The faults that must be found are in `mutants.py`. Oracles here are numbers worked out by hand,
onnxruntime and numpy; the files that `verify` writes are run without sardonyx.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.errors import ArgumentError, DataError
from sardonyx.verify import Report, noise
from sardonyx.verify.inputs import sample, size_choices, symbols
from sardonyx.verify.noise import DIFFERENT, LOOK, SAME, UNKNOWN, measure
from sardonyx.verify.subjects import OnnxSubject
from tests.mutants import MUTANTS, NETWORKS, Mutant, attr, inputs
from tests.networks import mlp, parse, torch_mlp

F32 = np.dtype(np.float32)


def fault(network: str, what: str) -> onnx.ModelProto:
    (found,) = (m for m in MUTANTS if m.network == network and what in m.what)
    return found.model()


# -- the ratio ------------------------------------------------------------------------------


def test_ratio_is_the_error_over_the_noise() -> None:
    r = np.array([1.0, -2.0, 4.0])
    b = r + np.array([3e-6, -4e-6, 0.0])  # rms: sqrt(25 / 3) e-6
    c = r + np.array([0.0, 3e-5, 4e-5])  # rms: sqrt(2500 / 3) e-6
    found = measure(("s", "y", "run"), c, r, [b], np.dtype(np.float64))
    assert found.ratio == pytest.approx(10.0, rel=1e-6)
    assert found.peak == pytest.approx(10.0, rel=1e-6)


def test_floor_is_half_a_unit_of_the_largest_where_the_baseline_is_exact() -> None:
    r = np.array([1.0, 8.0])
    c = (r + np.array([0.0, 2.0**-20])).astype(np.float32)
    found = measure(("s", "y", "run"), c, r, [r.astype(np.float32)])
    assert found.floor == 0.5 * 2.0**-23 * 8.0
    assert found.ratio == pytest.approx(2.0**-20 / math.sqrt(2) / found.floor)


def test_zeros_must_be_zeros() -> None:
    zero = np.zeros(3, np.float32)
    assert measure(("s", "y", ""), zero, zero.astype(float), [zero]).ratio == 0.0
    assert measure(("s", "y", ""), zero + 1e-30, zero.astype(float), [zero]).ratio == math.inf


@pytest.mark.parametrize(
    ("c", "problem"),
    [
        (np.zeros((1, 3), np.float32), "shape [1, 3], not [3]"),
        (np.zeros(3, np.float16), "type float16, not float32"),
        (np.array([np.nan, 0, 0], np.float32), "NaN or infinity at other places"),
        (np.array([np.inf, 0, 0], np.float32), "NaN or infinity at other places"),
    ],
    ids=["shape", "type", "NaN", "infinity"],
)
def test_what_makes_numbers_pointless_is_different(c: np.ndarray, problem: str) -> None:
    found = measure(("s", "y", ""), c, np.zeros(3), [np.zeros(3, np.float32)])
    assert found.problem == problem
    assert found.verdict() == DIFFERENT


def test_infinities_and_nan_at_the_same_places_are_the_same() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert measure(("s", "y", ""), x, x.astype(np.float64), [x]).verdict() == SAME
    turned = np.array([np.nan, -np.inf, np.inf, 1.0], np.float32)
    assert measure(("s", "y", ""), turned, x.astype(np.float64), [x]).verdict() == DIFFERENT


def test_overflow_in_single_precision_is_part_of_the_model() -> None:
    overflown = np.array([np.inf, 1.0], np.float32)
    assert measure(("s", "y", ""), overflown, np.array([1e300, 1.0]), [overflown]).verdict() == SAME


@pytest.mark.parametrize(
    "value", [np.array([1, 2]), np.array([True, False]), np.array(["a", "b"], object)]
)
def test_what_has_no_rounding_must_be_equal(value: np.ndarray) -> None:
    assert measure(("s", "y", ""), value, value.copy(), [value]).verdict() == SAME
    other = value[::-1].copy()
    found = measure(("s", "y", ""), other, value, [value])
    assert (found.wrong, found.verdict()) == (2, DIFFERENT)


def test_sequences_are_judged_by_their_worst_element() -> None:
    r = [np.ones(2), np.ones(3)]
    b = [x.astype(np.float32) for x in r]
    assert measure(("s", "y", ""), b, r, [b]).verdict() == SAME
    assert measure(("s", "y", ""), [b[0], b[1] * 2], r, [b]).verdict() == DIFFERENT
    assert measure(("s", "y", ""), b[:1], r, [b]).problem


def test_bands() -> None:
    assert [noise.band(x, (3, 10)) for x in (3.0, 3.1, 10.0, 10.1)] == [SAME, LOOK, LOOK, DIFFERENT]
    with pytest.raises(ArgumentError):
        sx.verify(mlp(), "numpy", bands=(10, 3))


# -- faults ---------------------------------------------------------------------------------

# Nobody can see this one by random numbers: it needs a value exactly half-way between two steps.
MISSED = {"quantized: rounds half up, not to even"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_fault_is_found_and_its_node_named(mutant: Mutant) -> None:
    report = sx.verify(
        OnnxSubject(sx.load(NETWORKS[mutant.network]()), name="right"), mutant.model(), seeds=2
    )
    if str(mutant) in MISSED:
        assert report.verdict == SAME
        return
    assert report.verdict == DIFFERENT
    assert report.culprit is not None
    assert report.culprit.node == f"node/{mutant.node}"
    assert not report.culprit.subject.startswith("right")


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


def test_fixed_tolerance_misses_what_the_ratio_finds() -> None:
    right, wrong = NETWORKS["transformer"](), fault("transformer", "Gelu by tanh")
    assert sx.verify(right, wrong, rtol=1e-3, atol=1e-3).verdict == SAME
    assert sx.verify(right, wrong, culprit=False).verdict == DIFFERENT


@pytest.mark.parametrize("network", NETWORKS)
def test_correct_runs_raise_no_alarm(network: str) -> None:
    report = sx.verify(NETWORKS[network](), "numpy", seeds=3)
    assert report.verdict == SAME, str(report)


@pytest.mark.parametrize("network", NETWORKS)
def test_correct_conversion_to_torch_raises_no_alarm(network: str) -> None:
    report = sx.verify(NETWORKS[network](), "torch", seeds=2)
    assert report.verdict == SAME, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
@pytest.mark.parametrize("network", NETWORKS)
def test_correct_conversion_raises_no_alarm(network: str, engine: str) -> None:
    report = sx.verify(NETWORKS[network](), engine, seeds=2)
    assert report.verdict == SAME, str(report)


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


def optimized(model: onnx.ModelProto, path: Path) -> Path:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return path


def test_a_difference_without_a_culprit_is_said_to_have_none() -> None:
    def off(x: np.ndarray) -> np.ndarray:
        return np.full((len(x), 3), 7, np.float32)

    report = sx.verify(mlp(), off)
    assert (report.verdict, report.culprit) == (DIFFERENT, None)
    assert "cannot be opened" in "".join(report.notes)


def test_a_candidate_that_fails_differs() -> None:
    def fails(x: np.ndarray) -> np.ndarray:
        raise ValueError("no")

    report = sx.verify(mlp(), fails)
    assert report.verdict == DIFFERENT
    assert "fails: fails failed: ValueError: no" in report.rows()[0].problem


def test_where_the_exact_references_disagree_nobody_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sardonyx.lower.engine import LOWER

    wrong = dataclasses.replace(
        LOWER.rules["", "Softsign"], function=lambda xp, x: x / (2.0 + xp.abs(x))
    )
    monkeypatch.setitem(LOWER.rules, ("", "Softsign"), wrong)
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]> g (float[N,3] x) => (float[N,3] y)
        { y = Softsign(x) }"""
    )
    report = sx.verify(model)
    assert (report.verdict, report.exit_code, report.culprit) == (UNKNOWN, 2, None)


# -- kinds of precision and jumps -------------------------------------------------------------


def narrowed(proto: onnx.ModelProto, dtype: type) -> onnx.ModelProto:
    """The same network in 16 bits: weights, inputs and outputs."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name)
            )
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    return proto


@pytest.mark.parametrize("network", ["cnn", "transformer", "mobile"])
def test_float16(network: str) -> None:
    report = sx.verify(narrowed(NETWORKS[network](), np.float16), "numpy")
    assert report.verdict == SAME, str(report)
    assert {m.eps for m in report.measurements} == {2.0**-10}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_faults_show_in_16_bits(dtype: type) -> None:
    right = OnnxSubject(sx.load(narrowed(NETWORKS["cnn"](), dtype)), "numpy")
    made = narrowed(fault("cnn", "padding shifted"), dtype)
    report = sx.verify(right, OnnxSubject(sx.load(made), "numpy"), seeds=1)
    assert report.verdict == DIFFERENT
    assert report.culprit is not None and report.culprit.node == "node/conv1"
    assert sx.verify(right, OnnxSubject(right.model, "numpy", "again"), seeds=1).verdict == SAME


def test_a_quantizer_may_take_the_other_side_of_a_tie_only() -> None:
    """Some runs of the quantized network flip; node by node all agree, so they are the same."""
    report = sx.verify(NETWORKS["quantized"](), "numpy", seeds=8)
    assert report.verdict == SAME
    # One step of 0.01 is a thousand times what rounding does: without a tie it were a fault.
    assert any(m.forced is not None for m in report.measurements)


ARGMAX = """<ir_version: 9, opset_import: ["": 20]> g (float[N,4] x) => (int64[N] y)
<float[4,3] w = {0.1,0.2,0.2, 0.3,0.5,0.5, -0.2,0.7,0.7, 0.4,-0.6,-0.6}>
{ s = MatMul(x, w) y = ArgMax<axis: int = 1, keepdims: int = 0>(s) }"""


def test_another_index_of_an_equal_value_is_explained_one_of_another_value_is_not() -> None:
    model = parse(ARGMAX)
    w = model.initializer("w").numpy()

    def last(x: np.ndarray) -> np.ndarray:
        scores = x @ w
        return (2 - scores[:, ::-1].argmax(1)).astype(np.int64)

    def first_column(x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x), np.int64)

    report = sx.verify(model, last, seeds=4)
    assert report.verdict == SAME, str(report)
    assert sum(m.flipped for m in report.measurements) > 0
    assert sx.verify(model, first_column, seeds=4).verdict == DIFFERENT


def test_top_k_indices_of_equal_values() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]> g (float[5] x) => (float[2] v, int64[2] i)
        <int64[1] k = {2}> { v, i = TopK(x, k) }"""
    )
    x = {"x": np.array([1, 3, 0, 3, 2], np.float32)}

    def other_way(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.array([3, 3], np.float32), np.array([3, 1])

    def wrong(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.array([3, 3], np.float32), np.array([3, 4])

    assert sx.verify(model, other_way, inputs=x).verdict == SAME
    assert sx.verify(model, wrong, inputs=x).verdict == DIFFERENT


def test_long_sums_get_a_baseline_that_adds_one_by_one() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]> g (float[1000000] x) => (float[1] y)
        { y = ReduceSum(x) }"""
    )
    x = np.random.default_rng(0).uniform(0, 1, 1_000_000).astype(np.float32)
    one_by_one = sx.verify(model, lambda x: np.cumsum(x)[-1:], inputs={"x": x})
    assert one_by_one.verdict == SAME, str(one_by_one)
    # numpy adds in pairs: against that baseline alone, the same correct sum is far off
    r, b, c = x.astype(np.float64).sum(keepdims=True), x.sum(keepdims=True), np.cumsum(x)[-1:]
    assert measure(("s", "y", ""), c, r, [b]).ratio > 10


CUSTOM = """<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
g (float[N,4] x) => (float[N,4] y)
<float[4,4] w = {0.3,-0.2,0.5,0.1, 0.4,0.2,-0.6,0.3, -0.1,0.7,0.2,-0.3, 0.5,-0.4,0.1,0.6}>
{ h = MatMul(x, w) y = com.microsoft.Gelu(h) }"""
PLAIN = """<ir_version: 9, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y)
<float[4,4] w = {0.3,-0.2,0.5,0.1, 0.4,0.2,-0.6,0.3, -0.1,0.7,0.2,-0.3, 0.5,-0.4,0.1,0.6}>
{ h = MatMul(x, w) y = Gelu %s (h) }"""


def test_a_model_without_a_float64_run_is_weighed_by_moving_its_numbers() -> None:
    custom = parse(CUSTOM)
    report = sx.verify(custom, parse(PLAIN % ""))
    assert report.verdict == SAME, str(report)
    assert "moving" in report.reference
    assert sx.verify(custom, parse(PLAIN % '<approximate = "tanh">')).verdict == DIFFERENT


def test_random_numbers_are_not_comparable() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]> g (float[3] x) => (float[3] y)
        { n = RandomNormalLike(x) y = Add(x, n) }"""
    )
    report = sx.verify(model, "numpy")
    assert (report.verdict, report.exit_code) == (UNKNOWN, 2)


# -- subjects and inputs ----------------------------------------------------------------------


def test_torch_module_function_and_file_agree(tmp_path: Path) -> None:
    import torch

    model = mlp()
    parameters, forward = torch_mlp(model)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = torch.nn.ParameterDict(
                {k.replace(".", "_"): v for k, v in parameters.items()}
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.nn.functional.linear(x, self.held["fc0_weight"], self.held["fc0_bias"])
            return torch.nn.functional.linear(
                torch.tanh(h), self.held["fc1_weight"], self.held["fc1_bias"]
            )

    path = sx.save(model, tmp_path / "net.onnx")
    report = sx.verify(path, Net(), lambda x: forward(torch.tensor(x)))
    assert report.verdict == SAME, str(report)
    assert len({m.subject for m in report.measurements}) == 3
    # With the module first it is the reference: its own float64 and float32 runs.
    export = sx.verify(Net(), path, inputs={"x": np.ones((2, 6), np.float32)})
    assert export.verdict == SAME and "Net" in export.reference


def test_saved_outputs_are_judged(tmp_path: Path) -> None:
    model = sx.save(mlp(), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    (scores,) = session.run(None, {"x": x})
    np.savez(tmp_path / "in.npz", x=x)
    np.savez(tmp_path / "right.npz", scores=scores)
    np.savez(tmp_path / "wrong.npz", scores=scores * np.float32(1.001))
    verdicts = [
        sx.verify(model, tmp_path / name, inputs=tmp_path / "in.npz").verdict
        for name in ("right.npz", "wrong.npz")
    ]
    assert verdicts == [SAME, DIFFERENT]
    with pytest.raises(DataError, match="saved outputs belong to inputs"):
        sx.verify(model, tmp_path / "right.npz")


def test_model_zoo_folder_is_read_as_the_zoo_writes_it(tmp_path: Path) -> None:
    model = sx.save(mlp(), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for number in range(2):
        x = np.random.default_rng(number).normal(size=(2, 6)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        off = np.float32(1.01 if number else 1)
        for name, array in (("input_0.pb", x), ("output_0.pb", y * off)):
            (folder / name).write_bytes(
                numpy_helper.from_array(array, "other name").SerializeToString()
            )
    report = sx.verify(model, tmp_path / "test_data_set_0")
    assert report.verdict == SAME
    report = sx.verify(model, inputs=tmp_path)
    assert {m.run: m.verdict() for m in report.measurements if m.subject.startswith("outputs")} == {
        "test_data_set_0": SAME,
        "test_data_set_1": DIFFERENT,
    }


def test_random_inputs_are_valid_and_repeat() -> None:
    model = sx.load(NETWORKS["transformer"]())
    sizes = next(size_choices(model, 0))
    first, again = sample(model, 5, sizes), sample(model, 5, sizes)
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert not np.array_equal(first["ids"], sample(model, 6, sizes)["ids"])
    many = np.concatenate([sample(model, seed, {"N": 9})["ids"].ravel() for seed in range(20)])
    assert (many.min(), many.max()) == (0, 10)  # the table has eleven rows
    assert first["mask"].min() < 0 < first["mask"].max()


def test_symbolic_sizes_differ_from_one_another_and_from_run_to_run() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[A,B,C] x, float[B,D] z) => (float[A,B,C] y) { y = Relu(x) }"""
    )
    assert symbols(model) == ["A", "B", "C", "D"]
    chosen = [next(size_choices(model, seed)) for seed in range(3)]
    for sizes in chosen:
        assert len(set(sizes.values())) == 4
        drawn = sample(model, 0, sizes)
        assert drawn["x"].shape[1] == drawn["z"].shape[0] == sizes["B"]
    assert len({tuple(c.items()) for c in chosen}) == 3
    assert next(size_choices(model, 0, {"A": 11}))["A"] == 11
    with pytest.raises(ArgumentError, match="no dimensions"):
        next(size_choices(model, 0, {"Z": 1}))


def test_sizes_are_tried_until_the_model_takes_one() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]> g (float[1,1,H,W] x) => (float[1,1,a,b] y)
        { y = MaxPool<kernel_shape: ints = [20, 20]>(x) }"""
    )
    assert sx.verify(model, "numpy", seeds=1).verdict == SAME


def test_lengths_and_counts_stay_in_range() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[T,N,2] x, float[1,9,2] w, float[1,9,3] r, int32[N] lengths, int64 count,
           float[K] p)
          => (float[T,1,N,3] y, float[c] o, float[K] l)
        { y = GRU<hidden_size: int = 3>(x, w, r, , lengths)
          z = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>()
          range = Range(z, count, one) f = Cast<to: int = 1>(range) o = Identity(f) l = Log(p) }"""
    )
    for seed in range(10):
        drawn = sample(model, seed, {"T": 5, "N": 3, "K": 4})
        assert drawn["lengths"].min() >= 1 and drawn["lengths"].max() <= 5
        assert 1 <= drawn["count"] <= 4
        assert drawn["p"].min() > 0


# -- the culprit's case, slices, gradients, training ------------------------------------------


def test_the_case_runs_without_sardonyx(tmp_path: Path) -> None:
    report = sx.verify(NETWORKS["cnn"](), fault("cnn", "batch norm epsilon"), seeds=1)
    report.save(tmp_path)
    session = onnxruntime.InferenceSession(
        str(tmp_path / "repro.onnx"), providers=["CPUExecutionProvider"]
    )
    assert [n.op_type for n in onnx.load(tmp_path / "repro.onnx").graph.node] == [
        "BatchNormalization"
    ]
    with np.load(tmp_path / "repro.npz") as stored:
        feeds = {k.removeprefix("input/"): stored[k] for k in stored if k.startswith("input/")}
        (expected,) = (stored[k] for k in stored if k.startswith("expected/"))
        (found,) = session.run(None, feeds)
    # epsilon 1e-3 in place of 1e-5, on variances from 0.05: up to 1 % off, and never exact
    assert 1e-5 < np.abs(found - expected).max() < 0.1


def test_slices_judge_without_a_whole_run() -> None:
    assert sx.verify(NETWORKS["mobile"](), "numpy", sliced=True, seeds=1).verdict == SAME
    report = sx.verify(NETWORKS["mobile"](), fault("mobile", "slope 0.2"), sliced=True, seeds=1)
    assert report.verdict == DIFFERENT
    assert report.culprit is not None and report.culprit.node == "node/se.gate"


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


def test_gradients_of_two_engines() -> None:
    model = mlp()
    assert sx.verify(model, "numpy", gradients=True, seeds=2).verdict == SAME
    wrong = model.copy()
    wrong.graph.node("act0").op_type = "Softsign"
    report = sx.verify(model, wrong, gradients=True, seeds=1, culprit=False)
    assert report.verdict == DIFFERENT
    assert report.bands == (10, 50)
    with pytest.raises(ArgumentError, match="gradients"):
        sx.verify(model, lambda x: x, gradients=True)


def trained(**settings: float) -> sx.Model:
    optimizer = sx.optim.adam(1e-2, **settings)
    return sx.trainable(mlp(activation="Tanh"), loss="cross_entropy", optimizer=optimizer)


def test_training_on_two_engines_is_the_same() -> None:
    found = sx.verify_training(trained(), "onnxruntime", "numpy", steps=6)
    assert found.verdict == SAME, str(found)
    assert found.exit_code == 0


# Another epsilon acts at once; another beta2 only when there is a second moment to decay.
@pytest.mark.parametrize(
    ("settings", "first"), [({"eps": 1e-5}, 1), ({"b2": 0.9991}, 2)], ids=["epsilon", "beta2"]
)
def test_training_that_differs_names_step_and_variable(
    settings: dict[str, float], first: int
) -> None:
    (found,) = sx.verify_training(trained(), trained(**settings), steps=6).parts
    assert (found.verdict, found.exit_code) == (DIFFERENT, 1)
    assert found.parted is not None
    step, variable = found.parted
    assert step == first
    assert variable.endswith("adam_v") == ("b2" in settings)


def test_training_needs_a_record_and_data_that_fits() -> None:
    with pytest.raises(ArgumentError, match="no training record"):
        sx.verify_training(mlp())
    with pytest.raises(DataError, match="lacks"):
        sx.verify_training(trained(), "numpy", data={"x": np.ones((4, 6), np.float32)})


# -- reports and the command line ---------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(NETWORKS["cnn"](), "a.onnx")
    onnx.save(fault("cnn", "batch norm epsilon"), "b.onnx")
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["verify", *arguments])
    code = stopped.value.code
    return 0 if code is None else int(code)


def test_command_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.onnx", "--engine", "numpy", "--seeds", "1") == 0
    assert "verdict   same" in capsys.readouterr().out
    assert run("a.onnx", "b.onnx", "--save", "out", "--html", "page.html", "--seeds", "2") == 1
    printed = capsys.readouterr().out
    assert 'culprit   node 2 of 11, BatchNormalization "node/bn1"' in printed
    table = [line.split() for line in printed.splitlines() if line.endswith(("same", "different"))]
    assert table[0][-1] == "different"  # the worst stands first
    assert {p.name for p in (files / "out").iterdir()} == {
        "report.json",
        "test_data_set_0",
        "test_data_set_1",
        "repro.onnx",
        "repro.npz",
    }
    assert run("a.onnx", "no.onnx") == 2


def test_a_saved_report_is_judged_again(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("a.onnx", "b.onnx", "--save", "out", "--seeds", "1")
    first = capsys.readouterr().out
    assert run("out/report.json") == 1
    assert capsys.readouterr().out == first
    assert run("out/report.json", "--bands", "1e6,1e7") == 0
    assert run("out/report.json", "--bands", "2,1e7") == 2  # look
    with pytest.raises(ArgumentError, match="no saved report"):
        Report.from_json('{"format": 1}')


def test_saved_test_data_can_be_run_again(files: Path) -> None:
    run("a.onnx", "--engine", "numpy", "--save", "out", "--seeds", "1")
    assert run("a.onnx", "--inputs", "out") == 0


def test_json_is_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("a.onnx", "b.onnx", "--json", "--seeds", "1")
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == DIFFERENT
    assert found["culprits"][0]["node"] == "node/bn1"
    assert all(len(s["sha256"]) == 64 for s in found["subjects"])


def test_page_is_self_contained_and_escapes_names(tmp_path: Path) -> None:
    right, wrong = NETWORKS["cnn"](), fault("cnn", "batch norm epsilon")
    for model in (right, wrong):
        for node in model.graph.node:
            node.name += "<script>alert(1)</script>"
    page = sx.verify(right, wrong, seeds=1).to_html(tmp_path / "page.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") >= 2


def test_command_line_training(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sx.save(trained(), "t.onnx")
    assert run("t.onnx", "--training", "3", "--engine", "numpy") == 0
    assert "forced median" in capsys.readouterr().out


def test_mutants_are_enough_and_of_enough_kinds() -> None:
    assert len(MUTANTS) >= 40
    assert len({m.network for m in MUTANTS}) >= 6
    assert len({str(m) for m in MUTANTS}) == len(MUTANTS)
    found = len(MUTANTS) - len(MISSED)
    assert found / len(MUTANTS) >= 0.95


def test_changes_of_mutants_are_changes() -> None:
    """A fault that changes nothing would be a test that cannot fail."""
    for mutant in MUTANTS:
        assert (
            mutant.model().SerializeToString() != NETWORKS[mutant.network]().SerializeToString()
        ), str(mutant)
    untouched = NETWORKS["cnn"]()
    attr("conv1")(untouched)
    inputs("conv1", _2="b1")(untouched)
    assert untouched.SerializeToString() == NETWORKS["cnn"]().SerializeToString()

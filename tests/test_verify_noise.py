"""The noise ratio: what is the same up to rounding, in every precision, and where values jump."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.errors import ArgumentError
from sardonyx.verify import noise
from sardonyx.verify.jitter import Jitter
from sardonyx.verify.noise import DIFFERENT, LOOK, SAME, UNKNOWN, measure
from sardonyx.verify.subjects import OnnxSubject
from tests.mutants import NETWORKS, fault
from tests.networks import mlp, parse


def test_ratio_is_the_error_over_the_noise() -> None:
    r = np.array([1.0, -2.0, 4.0])
    b = r + np.array([3e-6, -4e-6, 0.0])  # rms: sqrt(25 / 3) e-6
    c = r + np.array([0.0, 3e-5, 4e-5])  # rms: sqrt(2500 / 3) e-6
    result = measure(("s", "y", "run"), c, r, [b], np.dtype(np.float64))
    assert result.ratio == pytest.approx(10.0, rel=1e-6)
    assert result.peak == pytest.approx(10.0, rel=1e-6)


def test_floor_is_half_a_unit_of_the_largest_where_the_baseline_is_exact() -> None:
    r = np.array([1.0, 8.0])
    c = (r + np.array([0.0, 2.0**-20])).astype(np.float32)
    result = measure(("s", "y", "run"), c, r, [r.astype(np.float32)])
    assert result.floor == 0.5 * 2.0**-23 * 8.0
    assert result.ratio == pytest.approx(2.0**-20 / math.sqrt(2) / result.floor)


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
    result = measure(("s", "y", ""), c, np.zeros(3), [np.zeros(3, np.float32)])
    assert result.problem == problem
    assert result.verdict() == DIFFERENT


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
    result = measure(("s", "y", ""), other, value, [value])
    assert (result.wrong, result.verdict()) == (2, DIFFERENT)


def test_sequences_are_judged_by_their_worst_element() -> None:
    r = [np.ones(2), np.ones(3)]
    b = [x.astype(np.float32) for x in r]
    assert measure(("s", "y", ""), b, r, [b]).verdict() == SAME
    assert measure(("s", "y", ""), [b[0], b[1] * 2], r, [b]).verdict() == DIFFERENT
    assert measure(("s", "y", ""), b[:1], r, [b]).problem


def test_floats_of_a_map_are_single_precision() -> None:
    """As ZipMap gives them: Python's own floats, of numbers that were float32."""
    exact = [{0: 1 / 3, 1: 2 / 3}]
    single = [{k: float(np.float32(v)) for k, v in exact[0].items()}]
    assert measure(("s", "y", ""), single, exact, [single]).verdict() == SAME
    off = [{0: single[0][0] + 1e-5, 1: single[0][1]}]
    assert measure(("s", "y", ""), off, exact, [single]).verdict() == DIFFERENT
    assert measure(("s", "y", ""), [{0: 1 / 3}], exact, [single]).problem == "other keys"


def test_bands() -> None:
    assert [noise.band(x, (3, 10)) for x in (3.0, 3.1, 10.0, 10.1)] == [SAME, LOOK, LOOK, DIFFERENT]
    with pytest.raises(ArgumentError):
        sx.verify(mlp(), "numpy", bands=(10, 3))


# -- kinds of precision, jumps --------------------------------------------------------------


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


EQUAL_WEIGHTS = """<ir_version: 9, opset_import: ["": 20]> g (float[N,1024] x) => (float[N,1024] y)
{ size = Constant<value = int64[2] {1024, 1024}>()
  w = ConstantOfShape<value = float[1] {0.1}>(size)
  a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w) }"""


def test_equal_weights_add_up_rounding_errors_of_one_sign() -> None:
    """Terms that are equal round to one side, further with each: sums of engines that are right
    differ by more than those of random numbers. The oracle adds in an order of its own.
    """

    def one_by_one(x: np.ndarray) -> np.ndarray:
        w = np.full((1024, 1), 0.1, np.float32)
        for _ in range(3):
            total = np.zeros((len(x), 1), np.float32)
            for k in range(1024):
                total = total + x[:, k : k + 1] * w[k]
            x = np.repeat(total, 1024, axis=1)
        return x

    report = sx.verify(parse(EQUAL_WEIGHTS), one_by_one, seeds=2)
    assert report.verdict == SAME, str(report)
    wrong = sx.verify(parse(EQUAL_WEIGHTS), lambda x: one_by_one(x) * np.float32(1.01), seeds=1)
    assert wrong.verdict == DIFFERENT


CUSTOM = """<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
g (float[N,4] x) => (float[N,4] y)
<float[4,4] w = {0.3,-0.2,0.5,0.1, 0.4,0.2,-0.6,0.3, -0.1,0.7,0.2,-0.3, 0.5,-0.4,0.1,0.6}>
{ h = MatMul(x, w) y = com.microsoft.CDist <metric = "sqeuclidean"> (h, w) }"""
PLAIN = """<ir_version: 9, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y)
<float[4,4] w = {0.3,-0.2,0.5,0.1, 0.4,0.2,-0.6,0.3, -0.1,0.7,0.2,-0.3, 0.5,-0.4,0.1,0.6},
 int64[1] one = {1}, int64[1] two = {2}>
{ h = MatMul(x, w) row = Unsqueeze(h, one) apart = Sub(row, w) square = %s(apart, apart)
  y = ReduceSum <keepdims = 0> (square, two) }"""


def test_a_model_without_a_float64_run_is_weighed_by_moving_its_numbers() -> None:
    custom = parse(CUSTOM)
    report = sx.verify(custom, parse(PLAIN % "Mul"))
    assert report.verdict == SAME, str(report)
    assert "moving" in report.reference
    assert sx.verify(custom, parse(PLAIN % "Add")).verdict == DIFFERENT


def test_random_numbers_are_not_comparable() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]> g (float[3] x) => (float[3] y)
        { n = RandomNormalLike(x) y = Add(x, n) }"""
    )
    report = sx.verify(model, "numpy")
    assert (report.verdict, report.exit_code) == (UNKNOWN, 5)


def test_noise_of_moved_weights_leaves_the_scales_of_images_alone() -> None:
    model = sx.load(
        parse(
            """<ir_version: 9, opset_import: ["": 20]> g (float[1,1,n,n] x) => (float[1,1,m,m] y)
            <float[4] s = {1, 1, 2, 2}, float[1] w = {3}>
            { a = Mul(x, w) y = Resize <mode = "linear"> (a, , s) }"""
        )
    )
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    center, moved = Jitter(OnnxSubject(model), model)({"x": x})
    assert center["y"].shape == (1, 1, 6, 6)
    assert all(result["y"].shape == (1, 1, 6, 6) for result in moved)
    assert any((result["y"] != center["y"]).any() for result in moved)


def test_the_ratio_of_a_conversion_is_that_of_its_result() -> None:
    from sardonyx.verify.report import Report

    exact = np.linspace(1, 2, 8)
    report = Report([{"name": "onnxruntime"}, {"name": "litert"}], (3.0, 30.0))
    for name, error in (("onnxruntime", 1e-4), ("litert", 1e-5)):
        found = (exact + error).astype(np.float32)
        report.measurements.append(measure((name, "y", ""), found, exact, [exact.astype("f")]))
    assert report.ratio == report.measurements[0].ratio
    assert report.ratio_of_others == report.measurements[1].ratio < report.ratio


def test_noise_of_whole_numbers_is_drawn_by_moving_weights() -> None:
    """Products of 1.0 and 0.75 are exact by luck: rounding shows only where they are others."""
    torch = pytest.importorskip("torch")

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = torch.nn.Embedding(60, 3)
            with torch.no_grad():
                self.rows.weight.fill_(1.0)[:14] = 0.75

        def forward(self, ids: Any) -> Any:
            y = self.rows(ids[:, 0])
            for place in range(1, 60):
                y = y * self.rows(ids[:, place])
            return y

    module, feeds = Product(), {"ids": np.arange(60)[None]}
    before = [p.detach().clone() for p in module.parameters()]

    def off_by(roundings: float) -> Any:
        y = np.float64(0.75**14) * (1.0 + roundings * 2.0**-24)
        return lambda ids: np.full((1, 3), y, np.float32)

    assert sx.verify(module, off_by(5), inputs=feeds).verdict == SAME
    assert sx.verify(module, off_by(400), inputs=feeds).verdict == DIFFERENT
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))

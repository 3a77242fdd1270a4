"""Derivatives where there is none: kinks, ties and undefined points of `math` and `reduction`.

The expected values are torch's choices where torch has the function, checked against torch below.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.grad import grad
from sardonyx.model import from_proto
from sardonyx.testing import Runner, case, feeds_of, model_of, wrt_of

INF, NAN = np.inf, np.nan


def gradients(op: str, *inputs: Any, **options: Any) -> list[np.ndarray]:
    """The gradients of the sum of one node's outputs, by its float inputs."""
    arrays = [a if a is None or isinstance(a, np.ndarray) else np.array(a, float) for a in inputs]
    one = case(op, *arrays, **options)
    of = ["y0"]
    result = Runner(grad(model_of(one), of=of, wrt=wrt_of(one), outputs=False))(feeds_of(one))
    return [result[f"grad/{name}"] for name in wrt_of(one)]


SELU_ALPHA, SELU_GAMMA = (
    np.float32(1.67326319217681884765625),
    np.float32(1.05070102214813232421875),
)
KINKS = [
    ("Relu", [0.0, -0.0], {}, [0, 0]),
    ("Abs", [0.0], {}, [0]),
    ("LeakyRelu", [0.0], {"alpha": 0.25}, [0.25]),
    ("Elu", [0.0], {"alpha": 2.0}, [2]),
    ("Selu", [0.0], {}, [float(SELU_GAMMA) * float(SELU_ALPHA)]),
    ("Celu", [0.0], {"alpha": 2.0}, [1]),
    ("ThresholdedRelu", [0.5], {"alpha": 0.5}, [0]),
    ("HardSigmoid", [-1.0, 1.0], {"alpha": 0.5, "beta": 0.5}, [0, 0]),
    ("HardSwish", [-3.0, 3.0], {}, [0, 1]),
    ("Sqrt", [0.0], {}, [INF]),
    ("Log", [0.0], {}, [INF]),
    ("Reciprocal", [0.0], {}, [-INF]),
    ("Asin", [1.0], {}, [INF]),
    ("Acos", [1.0], {}, [-INF]),
    ("Acosh", [1.0], {}, [INF]),
    ("ReduceL1", [0.0, -2.0, 3.0], {}, [0, -1, 1]),
    ("ReduceL2", [0.0, 0.0], {}, [0, 0]),
    ("ReduceMax", [2.0, 1.0, 2.0, 2.0], {}, [1 / 3, 0, 1 / 3, 1 / 3]),
    ("ReduceMin", [2.0, 1.0, 1.0, 2.0], {}, [0, 0.5, 0.5, 0]),
    ("ReduceLogSumExp", [-INF, -INF], {}, [NAN, NAN]),
    ("Softmax", [-INF, -INF], {}, [NAN, NAN]),
]


@pytest.mark.filterwarnings("ignore:.*encountered")
@pytest.mark.parametrize(("op", "x", "attributes", "expected"), KINKS, ids=lambda v: str(v))
def test_derivative_at_the_kink(
    op: str, x: list[float], attributes: dict[str, Any], expected: list[float]
) -> None:
    (result,) = gradients(op, x, **attributes)
    np.testing.assert_allclose(result, expected, rtol=1e-7)


def test_prelu_at_zero_passes_the_slope_and_gives_the_slope_nothing() -> None:
    dx, dslope = gradients("PRelu", [0.0], [0.25])
    assert dx == 0.25
    assert dslope == 0.0


def test_clip_passes_at_its_bounds_and_bounds_get_what_is_outside() -> None:
    dx, dlow, dhigh = gradients("Clip", [-2.0, -1.0, 0.0, 1.0, 5.0, 6.0], -1.0, 1.0)
    np.testing.assert_array_equal(dx, [0, 1, 1, 1, 0, 0])
    assert (dlow, dhigh) == (1, 2)


def test_clip_with_crossed_bounds_belongs_to_the_upper_one() -> None:
    dx, dlow, dhigh = gradients("Clip", [-2.0, 0.0, 2.0], 1.0, -1.0)
    np.testing.assert_array_equal(dx, [0, 0, 0])
    assert (dlow, dhigh) == (0, 3)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_tied_operands_share_equally(op: str) -> None:
    first, second, third = gradients(op, [1.0, 2.0], [1.0, 2.0], [1.0, 2.0])
    for share in (first, second, third):
        np.testing.assert_allclose(share, [1 / 3, 1 / 3])


def test_topk_takes_the_first_of_equals() -> None:
    (dx,) = gradients("TopK", [1.0, 3.0, 3.0, 3.0], np.array([2]), outputs=2)
    np.testing.assert_array_equal(dx, [0, 1, 1, 0])


@pytest.mark.parametrize("constant", [True, False], ids=["constant exponent", "computed exponent"])
@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [
        *[(0.0, 0.0, 0.0), (0.0, 0.5, INF), (0.0, -1.0, -INF), (0.0, 1.0, 1.0), (0.0, 2.0, 0.0)],
        *[(-2.0, 3.0, 12.0), (INF, 0.0, 0.0), (-2.0, 2.0, -4.0)],
    ],
)
def test_pow_by_its_base(constant: bool, base: float, exponent: float, expected: float) -> None:
    if constant and exponent == int(exponent):
        (dx,) = gradients("Pow", [base], np.array(int(exponent)))
    else:
        dx = gradients("Pow", [base], exponent)[0]
    np.testing.assert_array_equal(dx, [expected])


@pytest.mark.parametrize(
    ("base", "exponent", "expected"),
    [(0.0, 0.0, 0.0), (0.0, 2.0, 0.0), (0.0, -1.0, -INF), (-2.0, 2.0, NAN)],
)
def test_pow_by_its_exponent(base: float, exponent: float, expected: float) -> None:
    np.testing.assert_array_equal(gradients("Pow", base, exponent)[1], expected)


def test_mod_counts_how_often_the_divisor_was_taken() -> None:
    a, b = [7.5, -7.5, 7.5], [2.0, 2.0, -2.0]
    np.testing.assert_array_equal(gradients("Mod", a, b, fmod=1)[1], [-3, 3, 3])


@pytest.mark.filterwarnings("ignore:.*encountered")
@pytest.mark.parametrize(("fmod", "name"), [(0, "remainder"), (1, "fmod")])
def test_mod_by_infinity_is_as_in_torch(fmod: int, name: str) -> None:
    torch = pytest.importorskip("torch")
    a, b = [-5.0, 5.0, -5.0, 5.0, 0.0], [INF, INF, -INF, -INF, INF]
    leaves = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (a, b)]
    getattr(torch, name)(*leaves).sum().backward()
    for result, leaf in zip(gradients("Mod", a, b, fmod=fmod), leaves, strict=True):
        np.testing.assert_array_equal(result, leaf.grad.numpy())


@pytest.mark.parametrize("zeros", [1, 2])
def test_product_with_zeros(zeros: int) -> None:
    x = np.array([0.0, 0.0 if zeros == 2 else 3.0, 5.0])
    (dx,) = gradients("ReduceProd", x, keepdims=0)
    np.testing.assert_array_equal(dx, [0, 0, 0] if zeros == 2 else [15, 0, 0])


def test_det_of_a_singular_matrix_has_its_cofactors() -> None:
    (dx,) = gradients("Det", [[1.0, 2.0], [2.0, 4.0]])
    np.testing.assert_allclose(dx, [[4, -2], [-2, 1]])


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_mean_loss_of_ignored_labels_only_is_nan_but_depends_on_nothing(op: str) -> None:
    one = case(op, np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([1, 1]), ignore_index=1)
    result = Runner(grad(model_of(one), wrt=["x0"]))(feeds_of(one))
    assert np.isnan(result["y0"])
    np.testing.assert_array_equal(result["grad/x0"], np.zeros((2, 2)))


TORCH = [
    ("Relu", "nn.functional.relu", [0.0], {}, {}),
    ("Abs", "abs", [0.0], {}, {}),
    ("LeakyRelu", "nn.functional.leaky_relu", [0.0], {"alpha": 0.25}, {"negative_slope": 0.25}),
    ("Elu", "nn.functional.elu", [0.0], {"alpha": 2.0}, {"alpha": 2.0}),
    ("Celu", "nn.functional.celu", [0.0], {"alpha": 2.0}, {"alpha": 2.0}),
    ("HardSwish", "nn.functional.hardswish", [-3.0, 3.0], {}, {}),
    ("ReduceMax", "amax", [2.0, 1.0, 2.0], {}, {"dim": 0, "keepdim": True}),
    ("ReduceL2", "linalg.vector_norm", [0.0, 0.0], {}, {}),
]


@pytest.mark.parametrize(("op", "name", "x", "attributes", "options"), TORCH, ids=lambda v: str(v))
def test_the_same_choice_as_torch(
    op: str, name: str, x: list[float], attributes: dict[str, Any], options: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    import operator

    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    operator.attrgetter(name)(torch)(leaf, **options).sum().backward()
    np.testing.assert_array_equal(gradients(op, x, **attributes)[0], leaf.grad.numpy())


# -- masks and infinite cotangents --------------------------------------------------


def parsed(text: str) -> Any:
    import onnx.parser

    return from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}'))


def test_infinite_cotangents_do_not_reach_dead_units() -> None:
    model = parsed("g (float[3] x) => (float[3] y) { h = Relu(x) \n y = Sqrt(h) }")
    result = Runner(grad(model, outputs=False))({"x": np.array([-1.0, 0.0, 4.0], np.float32)})
    np.testing.assert_array_equal(result["grad/x"], [0, 0, 0.25])


def test_infinite_cotangents_do_not_pass_through_pointwise_operators() -> None:
    text = """g (float[2,3] x, float[2,3] z) => (float[3,2] y) {
        h = Relu(x)
        s = Add(h, z)
        t = Transpose(s)
        y = Sqrt(t)
    }"""
    x = np.array([[-1.0, 1, 4], [1, -1, 9]], np.float32)
    result = Runner(grad(parsed(text), wrt="x", outputs=False))({"x": x, "z": np.zeros_like(x)})
    np.testing.assert_allclose(result["grad/x"], [[0, 0.5, 0.25], [0.5, 0, 1 / 6]], rtol=1e-6)


def test_relu_before_a_product_is_masked_by_multiplication() -> None:
    text = "g (float[2,3] x, float[3,4] w) => (float[2,4] y) { h = Relu(x) \n y = MatMul(h, w) }"
    model = grad(parsed(text), wrt="x", outputs=False)
    assert "Where" not in {node.op_type for node in model.graph}
    x, w = np.array([[-1, 0, 2], [3, -4, 5]], np.float32), np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(Runner(model)({"x": x, "w": w})["grad/x"], 4 * (x > 0))


def test_who_only_reads_a_type_or_a_shape_says_nothing_of_masks() -> None:
    """As torch's exporter writes a batch normalization: its scale is cast to the type of x."""
    text = """g (float[2,3] x, float[3,4] w, double[4] c) => (float y, int64[2] s) {
        h = Relu(x)
        like = CastLike(c, h)
        s = Shape(h)
        p = MatMul(h, w)
        q = Mul(p, like)
        y = ReduceMean<keepdims = 0>(q)
    }"""
    model = grad(parsed(text), of="y", wrt="x", outputs=False)
    assert "Where" not in {node.op_type for node in model.graph}
    x, w = np.array([[-1, 0, 2], [3, -4, 5]], np.float32), np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(
        Runner(model)({"x": x, "w": w, "c": np.ones(4)})["grad/x"], (x > 0) / 2
    )


# -- 16-bit floats --------------------------------------------------------------------


def half(op: str, *inputs: Any, **options: Any) -> np.ndarray:
    one = case(op, *inputs, **options)
    model = model_of(one, np.float16)
    result = Runner(grad(model, of=["y0"], wrt=["x0"], outputs=False))(feeds_of(one, np.float16))
    assert result["grad/x0"].dtype == np.float16
    return result["grad/x0"]


def test_sums_over_broadcast_axes_are_added_up_in_float32() -> None:
    # In float16, 2048 + 1 is 2048.
    assert half("Add", np.array([0.0]), np.zeros(4096)) == 4096


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_mean_of_more_positions_than_float16_can_count(op: str) -> None:
    count = 70_000
    result = half(op, np.zeros((count, 2)), np.zeros(count, np.int64))
    scale = 1.0 if op.startswith("Neg") else 0.5
    np.testing.assert_allclose(result[:, 0], -scale / count, rtol=5e-3)


def test_softmax_cross_entropy_in_float16() -> None:
    x = np.array([[0.5, -1.0, 2.0], [1.0, 0.0, -0.5]])
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    result = half("SoftmaxCrossEntropyLoss", x, np.array([2, 0]))
    np.testing.assert_allclose(result, (p - np.eye(3)[[2, 0]]) / 2, atol=1e-3)


@pytest.mark.parametrize("test", ["Identity(masked)", "IsNaN(p)"])
def test_a_row_that_is_masked_whole_gives_no_gradient(test: str) -> None:
    torch = pytest.importorskip("torch")
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[2,3] x, float[2,3] bias, bool[2,1] masked) => (float[2,3] y) <float zero = {{0.0}}> {{
        s = Add(x, bias)
        p = Softmax<axis=1>(s)
        t = {test}
        y = Where(t, zero, p)
    }}"""
    gradient = grad(from_proto(onnx.parser.parse_model(text)), wrt=["x"], seeds="input")
    rng = np.random.default_rng(0)
    x, seed = rng.standard_normal((2, 2, 3)).astype(np.float32)
    bias = np.array([[-np.inf] * 3, [0, 0.5, -np.inf]], np.float32)
    inputs = {"x": x, "bias": bias, "masked": np.array([[True], [False]]), "seed/y": seed}
    result = Runner(gradient)(inputs)["grad/x"]
    row = torch.tensor(x[1], requires_grad=True)
    torch.softmax(row + torch.tensor(bias[1]), 0).backward(torch.tensor(seed[1]))
    np.testing.assert_array_equal(result[0], 0)
    np.testing.assert_allclose(result[1], row.grad.numpy(), atol=1e-6)

"""ai.onnx.preview.training: Gradient and the optimizers, lowered and run on stock onnxruntime."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from sardonyx.errors import ModelError
from sardonyx.grad.training import lower_training
from sardonyx.model import Model, load
from sardonyx.testing import Runner, runnable

OFFICIAL = (
    "test_gradient_of_add",
    "test_gradient_of_add_and_mul",
    "test_adagrad",
    "test_adagrad_multiple",
    "test_adam",
    "test_adam_multiple",
    "test_momentum",
    "test_momentum_multiple",
    "test_nesterov_momentum",
)
TRAINING = "ai.onnx.preview.training"


def official() -> dict[str, Any]:
    """The official cases; importing a module of ONNX registers the cases in it."""
    from onnx.backend.test.case import model, node

    for module in ("node.adagrad", "node.adam", "node.momentum", "model.gradient"):
        importlib.import_module(f"onnx.backend.test.case.{module}")
    every = [*node._NodeTestCases, *model._SimpleModelTestCases]
    return {case.name: case for case in every if case.name in OFFICIAL}


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    return official()


def lowered(model: Model, **options: Any) -> Callable[..., dict[str, np.ndarray]]:
    """The runner of the lowered model, which must be valid and hold standard operators only."""
    result = lower_training(model, **options)
    domains = {node.domain for node in result.graph.all_nodes()}
    assert domains <= {""}, domains
    onnx.checker.check_model(runnable(result), full_check=True)
    runner = Runner(result)
    assert runner.session is not None, "onnxruntime does not load it"
    return runner


@pytest.mark.parametrize("name", OFFICIAL)
def test_official(name: str, cases: dict[str, Any]) -> None:
    case = cases[name]
    model = load(case.model)
    run = lowered(model)
    names = [v.name for v in model.inputs]
    for inputs, outputs in case.data_sets:
        result = run(dict(zip(names, inputs, strict=True)))
        for output, expected in zip(result.values(), outputs, strict=True):
            np.testing.assert_allclose(output, expected, rtol=case.rtol, atol=case.atol)


# -- optimizers beyond the first step -----------------------------------------------------

SLOTS = {"Adagrad": "H", "Momentum": "V", "Adam": "VH"}


def optimizer_model(
    op: str, dtype: Any, shapes: list[tuple[int, ...]], scalar: bool, **given: Any
) -> Model:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    lone = [] if scalar else [1]
    inputs = [("R", kind, lone), ("T", onnx.TensorProto.INT64, lone)]
    for letter in "XG" + SLOTS[op]:
        inputs += [(f"{letter}{i}", kind, s) for i, s in enumerate(shapes)]
    outputs = [f"new_{letter}{i}" for letter in "X" + SLOTS[op] for i in range(len(shapes))]
    node = onnx.helper.make_node(op, [n for n, _, _ in inputs], outputs, domain=TRAINING, **given)
    graph = onnx.helper.make_graph(
        [node],
        "optimizer",
        [onnx.helper.make_tensor_value_info(*i) for i in inputs],
        [onnx.helper.make_tensor_value_info(n, kind, None) for n in outputs],
    )
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(TRAINING, 1)]
    return load(onnx.helper.make_model(graph, opset_imports=imports, ir_version=10))


def expected_update(
    op: str, given: dict[str, Any], r: float, t: int, x: Any, g: Any, **slots: Any
) -> Any:
    """The formulas of ONNX's documentation, with attributes in float32 as a file stores them."""
    a = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in given.items()}
    g = a.get("norm_coefficient", 0) * x + g
    if op == "Adagrad":
        h = slots["H"] + g * g
        return x - r / (1 + t * a.get("decay_factor", 0)) * g / (np.sqrt(h) + a["epsilon"]), h
    if op == "Momentum":
        v = a["alpha"] * slots["V"] + (a["beta"] if t > 0 else 1) * g
        return x - r * (g + a["alpha"] * v if a["mode"] == "nesterov" else v), v
    v = a["alpha"] * slots["V"] + (1 - a["alpha"]) * g
    h = a["beta"] * slots["H"] + (1 - a["beta"]) * g * g
    if t > 0:
        r = r * np.sqrt(1 - a["beta"] ** t) / (1 - a["alpha"] ** t)
    x = x - r * v / (np.sqrt(h) + a["epsilon"])
    return (1 - a.get("norm_coefficient_post", 0)) * x, v, h


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("Adagrad", {"epsilon": 1e-3, "decay_factor": 0.1, "norm_coefficient": 0.01}),
    ("Momentum", {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.01, "mode": "standard"}),
    ("Momentum", {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.0, "mode": "nesterov"}),
    ("Adam", {"alpha": 0.8, "beta": 0.99, "epsilon": 1e-4, "norm_coefficient": 0.01}),
    ("Adam", {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient_post": 0.02}),
]


@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("scalar", [True, False], ids=["scalar", "one element"])
@pytest.mark.parametrize(
    ("op", "given"), OPTIMIZERS, ids=[f"{o}-{i}" for i, (o, _) in enumerate(OPTIMIZERS)]
)
def test_optimizer_formula(op: str, given: dict[str, Any], scalar: bool, steps: int) -> None:
    shapes = [(2, 3), (), (4,)]
    model = optimizer_model(op, np.float64, shapes, scalar, **given)
    rng = np.random.default_rng(steps)
    lone = () if scalar else (1,)
    feeds = {"R": np.full(lone, 0.1), "T": np.full(lone, steps, np.int64)}
    feeds.update({f"{c}{i}": rng.normal(size=s) for c in "XGV" for i, s in enumerate(shapes)})
    feeds.update({f"H{i}": rng.uniform(0.1, 1, size=s) for i, s in enumerate(shapes)})
    result = lowered(model)(feeds)
    for i, shape in enumerate(shapes):
        slots = {c: feeds[f"{c}{i}"] for c in SLOTS[op]}
        expected = expected_update(op, given, 0.1, steps, feeds[f"X{i}"], feeds[f"G{i}"], **slots)
        for letter, value in zip("X" + SLOTS[op], expected, strict=True):
            assert result[f"new_{letter}{i}"].shape == shape
            np.testing.assert_allclose(result[f"new_{letter}{i}"], value, rtol=1e-12, atol=1e-14)


TORCH: list[tuple[str, dict[str, Any], int, str, dict[str, Any], float]] = [
    ("Momentum", {"alpha": 0.5, "beta": 0.75, "norm_coefficient": 0.125, "mode": "standard"}, 0,
     "SGD", {"momentum": 0.5, "dampening": 0.25, "weight_decay": 0.125}, 1e-12),
    ("Adagrad", {"epsilon": 2.0**-20, "decay_factor": 0.25, "norm_coefficient": 0.125}, 0,
     "Adagrad", {"eps": 2.0**-20, "lr_decay": 0.25, "weight_decay": 0.125}, 1e-12),
    # epsilon stands outside the bias correction: equal to torch up to its size only
    ("Adam", {"alpha": 0.5, "beta": 0.75, "epsilon": 2.0**-40}, 1,
     "Adam", {"betas": (0.5, 0.75), "eps": 2.0**-40}, 1e-9),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "given", "first", "name", "options", "tol"), TORCH, ids=[t[0] for t in TORCH]
)
def test_optimizer_follows_torch(
    op: str, given: Any, first: int, name: str, options: Any, tol: float
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3))
    leaf = torch.tensor(x, requires_grad=True)
    optimizer = getattr(torch.optim, name)([leaf], lr=0.1, **options)
    run = lowered(optimizer_model(op, np.float64, [(2, 3)], True, **given))
    slots = {f"{c}0": np.zeros((2, 3)) for c in SLOTS[op]}
    for step in range(6):
        g = rng.normal(size=(2, 3))
        leaf.grad = torch.tensor(g)
        optimizer.step()
        feeds = {"R": np.array(0.1), "T": np.array(first + step), "X0": x, "G0": g, **slots}
        result = run(feeds)
        x, slots = result["new_X0"], {n: result[f"new_{n}"] for n in slots}
        np.testing.assert_allclose(x, leaf.detach().numpy(), rtol=tol, atol=tol)


def test_optimizer_problems_are_reported_together() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
    g (float R, int64 T, float[2] x, float[2] d, float[2] v) => (float[2] a, float[2] b) {
        a = ai.onnx.preview.training.Adagrad (R, T, x, d)
        b = ai.onnx.preview.training.Adam (R, T, x, d, v)
    }"""
    with pytest.raises(ModelError) as caught:
        lower_training(load(onnx.parser.parse_model(text)))
    assert "4 inputs, not 2 + 3n" in str(caught.value)
    assert "5 inputs, not 2 + 4n" in str(caught.value)


def test_an_optimizer_without_its_mode_is_refused() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
    g (float R, int64 T, float[2] x, float[2] d, float[2] v) => (float[2] a) {
        a = ai.onnx.preview.training.Momentum <
            alpha = 0.9, beta = 1.0, norm_coefficient = 0.0
        > (R, T, x, d, v)
    }"""
    with pytest.raises(ModelError, match="mode"):
        lower_training(load(onnx.parser.parse_model(text)))


# -- Gradient -------------------------------------------------------------------------------


def gradient_model(signature: str, nodes: str) -> Model:
    header = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]> g'
    text = nodes.replace("Gradient", "ai.onnx.preview.training.Gradient")
    return load(onnx.parser.parse_model(f"{header} {signature} {{ {text} }}"))


X = np.array([0.5, -1.25, 2.0])
W = np.array([1.5, 0.25, -0.75])


def test_gradient_of_a_tensor_is_that_of_its_sum() -> None:
    model = gradient_model(
        "(double[3] x, double[3] w) => (double[3] dx, double[3] dw)",
        'y = Mul(x, w)  z = Sin(y)  dx, dw = Gradient <xs = ["x", "w"], y = "z"> (x, w)',
    )
    result = lowered(model)({"x": X, "w": W})
    np.testing.assert_allclose(result["dx"], np.cos(X * W) * W, rtol=1e-12)
    np.testing.assert_allclose(result["dw"], np.cos(X * W) * X, rtol=1e-12)


def test_gradient_by_an_intermediate_tensor_and_a_weight() -> None:
    model = gradient_model(
        "(double[3] x) => (double[3] dh)",
        'h = Exp(x)  y = Mul(h, h)  dh = Gradient <xs = ["h"], y = "y"> (h)',
    )
    np.testing.assert_allclose(lowered(model)({"x": X})["dh"], 2 * np.exp(X), rtol=1e-12)


def test_gradient_of_a_gradient() -> None:
    model = gradient_model(
        "(double[3] x) => (double[3] d3)",
        'y = Sin(x)  d1 = Gradient <xs = ["x"], y = "y"> (x) '
        's = Mul(d1, x)  d2 = Gradient <xs = ["x"], y = "s"> (x) '
        'd3 = Gradient <xs = ["x"], y = "d2"> (x)',
    )
    expected = -2 * np.sin(X) - X * np.cos(X)  # of cos x - x sin x
    np.testing.assert_allclose(lowered(model)({"x": X})["d3"], expected, rtol=1e-12)


def test_gradient_listed_before_its_y() -> None:
    model = gradient_model(
        "(double[3] x) => (double[3] dx, double[3] y)",
        'dx = Gradient <xs = ["x"], y = "y"> (x)  y = Mul(x, x)',
    )
    np.testing.assert_allclose(lowered(model)({"x": X})["dx"], 2 * X)


def test_gradient_at_other_points_evaluates_a_copy() -> None:
    model = gradient_model(
        "(double[3] x, double[3] p, double[3] w) => (double[3] y, double[3] dx)",
        "c = Cos(w)  m = Mul(x, c)  y = Sin(m) "
        'dx = Gradient <xs = ["x"], zs = ["w"], y = "y"> (p, w)',
    )
    p = X + 1
    result = lowered(model)({"x": X, "p": p, "w": W})
    np.testing.assert_allclose(result["y"], np.sin(X * np.cos(W)))
    np.testing.assert_allclose(result["dx"], np.cos(p * np.cos(W)) * np.cos(W), rtol=1e-12)


def test_gradient_at_a_point_computed_from_the_tensor_itself() -> None:
    model = gradient_model(
        "(double[3] x) => (double[3] dx)",
        'y = Sin(x)  p = Mul(x, x)  dx = Gradient <xs = ["x"], y = "y"> (p)',
    )
    np.testing.assert_allclose(lowered(model)({"x": X})["dx"], np.cos(X * X), rtol=1e-12)


def test_gradient_at_another_z() -> None:
    model = gradient_model(
        "(double[3] x, double[3] w, double[3] q) => (double[3] dx)",
        'y = Mul(x, w)  dx = Gradient <xs = ["x"], zs = ["w"], y = "y"> (x, q)',
    )
    np.testing.assert_allclose(lowered(model)({"x": X, "w": W, "q": W * 3})["dx"], W * 3)


@pytest.mark.parametrize("random", ["RandomUniformLike", "Dropout"])
def test_gradient_at_other_points_refuses_random_operators(random: str) -> None:
    inputs = "(h, half, yes)" if random == "Dropout" else "(h)"
    model = gradient_model(
        "(float[3] x, float[3] p) => (float[3] dx)",
        "half = Constant <value_float = 0.5> ()  yes = Constant <value = bool {1}> () "
        f"h = Exp(x)  n = {random} {inputs}  y = Mul(h, n) "
        'dx = Gradient <xs = ["x"], y = "y"> (p)',
    )
    with pytest.raises(ModelError, match=random):
        lower_training(model)


def test_gradient_that_does_not_reach_is_zero_with_a_warning() -> None:
    model = gradient_model(
        "(double[3] x, double[2] u) => (double[3] dx, double[2] du)",
        'y = Mul(x, x)  dx, du = Gradient <xs = ["x", "u"], y = "y"> (x, u)',
    )
    with pytest.warns(UserWarning, match='"y" does not depend on "u"'):
        run = lowered(model)
    np.testing.assert_array_equal(run({"x": X, "u": np.ones(2)})["du"], np.zeros(2))


def test_names_given_twice_each_get_the_whole_gradient() -> None:
    model = gradient_model(
        "(double[3] x) => (double[3] a, double[3] b)",
        'y = Mul(x, x)  a, b = Gradient <xs = ["x", "x"], y = "y"> (x, x)',
    )
    result = lowered(model)({"x": X})
    np.testing.assert_allclose(result["a"], 2 * X)
    np.testing.assert_allclose(result["b"], 2 * X)


def test_outputs_may_be_left_out() -> None:
    model = gradient_model(
        "(double[3] x, double[3] w) => (double[3] dw)",
        'y = Mul(x, w)  "", dw = Gradient <xs = ["x", "w"], y = "y"> (x, w)',
    )
    np.testing.assert_allclose(lowered(model)({"x": X, "w": W})["dw"], X)


def test_a_tensor_and_its_ancestor_are_refused() -> None:
    model = gradient_model(
        "(double[3] x) => (double[3] a, double[3] b)",
        'h = Exp(x)  y = Mul(h, x)  a, b = Gradient <xs = ["x", "h"], y = "y"> (x, h)',
    )
    with pytest.raises(ModelError, match=r'"x".*is used to compute "h"'):
        lower_training(model)


def test_tensors_outside_xs_and_zs_are_constants_unless_strict() -> None:
    nodes = 'y = Mul(x, w)  dx = Gradient <xs = ["x"], y = "y"> (x)'
    model = gradient_model("(double[3] x, double[3] w) => (double[3] dx)", nodes)
    np.testing.assert_allclose(lowered(model)({"x": X, "w": W})["dx"], W)
    with pytest.raises(ModelError, match='"w"'):
        lower_training(model, strict=True)
    named = nodes.replace('y = "y"> (x)', 'zs = ["w"], y = "y"> (x, w)')
    lowered(gradient_model("(double[3] x, double[3] w) => (double[3] dx)", named), strict=True)


def test_all_problems_with_names_at_once() -> None:
    model = gradient_model(
        "(double[3] x) => (double[3] a, double[3] b, double[3] c)",
        'y = Exp(x)  a = Gradient <xs = ["nowhere"], y = "y"> (x) '
        'b = Gradient <xs = ["x"], y = "missing"> (x) '
        'c = Gradient <xs = ["x"], zs = ["y"], y = "y"> (x)',
    )
    with pytest.raises(ModelError) as caught:
        lower_training(model)
    for part in ('"nowhere"', '"missing"', "1 inputs for 1 xs and 1 zs"):
        assert part in str(caught.value)


def test_names_in_a_loop_body_and_the_graph_around() -> None:
    """Gradient descent as a Loop: x goes down the slope of (x - w)^2, w is outside."""
    model = gradient_model(
        "(int64 n, double[3] x0, double[3] w) => (double[3] x)",
        """more = Constant <value = bool {1}> ()
        x = Loop (n, more, x0) <body = b (int64 i, bool c, double[3] s) => (bool c2, double[3] s2) {
            c2 = Identity(c)
            d = Sub(s, w)
            loss = Mul(d, d)
            g = Gradient <xs = ["s"], zs = ["w"], y = "loss"> (s, w)
            rate = Constant <value = double {0.25}> ()
            step = Mul(g, rate)
            s2 = Sub(s, step)
        }>""",
    )
    result = lowered(model)({"n": np.array(3), "x0": X, "w": W})["x"]
    np.testing.assert_allclose(result, W + (X - W) * 0.5**3, rtol=1e-12)


def test_y_outside_the_body_is_refused() -> None:
    model = gradient_model(
        "(bool c, double[3] x) => (double[3] d)",
        """y = Mul(x, x)
        d = If (c) <
            then_branch = t () => (double[3] a) { a = Gradient <xs = ["x"], y = "y"> (x) },
            else_branch = e () => (double[3] b) { b = Identity(x) }
        >""",
    )
    with pytest.raises(ModelError, match="made outside its graph"):
        lower_training(model)


def test_names_inside_a_function() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1, "local": 1]>
    g (double[3] y, double[3] w) => (double[3] a, double[3] b) {
        a = local.slope(y)
        b = local.slope(w)
    }
    <opset_import: ["": 21, "ai.onnx.preview.training": 1], domain: "local">
    slope (x) => (d) {
        y = Sin(x)
        d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
    }"""
    result = lowered(load(onnx.parser.parse_model(text)))({"y": X, "w": W})
    np.testing.assert_allclose(result["a"], np.cos(X), rtol=1e-12)
    np.testing.assert_allclose(result["b"], np.cos(W), rtol=1e-12)


def test_bfloat16_is_read() -> None:
    model = gradient_model(
        "(float[3] x) => (float[3] d)",
        "h = Cast <to = 16> (x)  y = Mul(h, h) "
        'g = Gradient <xs = ["h"], y = "y"> (h)  d = Cast <to = 1> (g)',
    )
    result = lower_training(model)
    assert all(node.domain == "" for node in result.graph)
    kinds = {v.name: v.dtype.name for node in result.graph for v in node.outputs if v.dtype}
    assert kinds["g"] == "BFLOAT16"


def test_short_domain_is_accepted_with_a_warning() -> None:
    model = gradient_model(
        "(double[3] x) => (double[3] d)", 'y = Mul(x, x)  d = Gradient <xs = ["x"], y = "y"> (x)'
    )
    for node in model.graph:
        if node.op_type == "Gradient":
            node.domain = "ai.onnx.preview"
    with pytest.warns(UserWarning, match="ai.onnx.preview.training"):
        run = lowered(model)
    np.testing.assert_allclose(run({"x": X})["d"], 2 * X)


def test_a_model_without_training_operators_is_returned() -> None:
    model = load(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (y) {y = Exp(x)}'
        )
    )
    assert lower_training(model) is model


def test_user_names_survive() -> None:
    model = gradient_model(
        "(double[3] x, double[3] w) => (double[3] dx)",
        'y = Mul(x, w)  z = Sin(y)  dx = Gradient <xs = ["x"], y = "z"> (x)',
    )
    names = {v.name for node in lower_training(model).graph for v in node.outputs}
    assert {"y", "dx"} <= names

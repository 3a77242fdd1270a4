"""`sx.grad` and `sx.jvp` of whole models: what is asked, what comes out, what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.checker
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx.engines.numpy import Runner as Exact
from sardonyx.errors import ArgumentError, UnsupportedOp
from sardonyx.grad import GRADIENT_RULES
from sardonyx.model import Model, from_proto
from sardonyx.registry import OpId
from sardonyx.testing import STEP, Case, Runner, feeds_of, model_of, runnable, wrt_of

from .cases import all_cases

TWO_LAYERS = """(double[n, 3] x, int64[n] labels) => (double[n, 2] y, double[n, 2] other)
    <double[3, 4] w = {0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, -0.9, 1.0, 1.1, 0.2},
     double[4, 2] v = {0.3, -0.1, 0.2, 0.5, -0.4, 0.6, 0.7, 0.9}>
    { h = MatMul(x, w)  t = Tanh(h)  y = MatMul(t, v)  e = Exp(y)  other = Mul(e, e) }"""
X = np.array([[0.3, -0.5, 0.9], [1.2, 0.1, -0.7]])
LABELS = np.zeros(2, np.int64)


def parsed(text: str, domains: str = "") -> Model:
    imports = f'"": 21{domains}'
    return from_proto(
        onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> g {text}")
    )


def run(model: Model, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    return Runner(model)(feeds)


def layers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    model = parsed(TWO_LAYERS)
    w, v = (model.initializer(n).numpy() for n in "wv")
    return w, v, np.tanh(X @ w)


# -- what is asked ----------------------------------------------------------------------


def test_unit_seeds_by_inputs_weights_and_intermediates() -> None:
    w, v, t = layers()
    result = run(sx.grad(parsed(TWO_LAYERS), of="y", wrt=["x", "w", "v", "t"]), x=X, labels=LABELS)
    ones = np.ones((2, 2))
    dt = ones @ v.T
    dh = dt * (1 - t**2)
    np.testing.assert_allclose(result["y"], t @ v)
    np.testing.assert_allclose(result["grad/t"], dt)
    np.testing.assert_allclose(result["grad/v"], t.T @ ones)
    np.testing.assert_allclose(result["grad/w"], X.T @ dh)
    np.testing.assert_allclose(result["grad/x"], dh @ w.T)


def test_given_seeds_are_inputs() -> None:
    _, _, t = layers()
    model = sx.grad(parsed(TWO_LAYERS), of="y", wrt="v", seeds="input", outputs=False)
    assert [v.name for v in model.inputs] == ["x", "labels", "seed/y"]
    assert [v.name for v in model.outputs] == ["grad/v"]
    seed = np.array([[1.0, -2.0], [0.5, 3.0]])
    result = run(model, x=X, labels=LABELS, **{"seed/y": seed})
    np.testing.assert_allclose(result["grad/v"], t.T @ seed)


def test_several_outputs_add_up() -> None:
    _, v, t = layers()
    result = run(sx.grad(parsed(TWO_LAYERS), of=["y", "other"], wrt="t"), x=X, labels=LABELS)
    np.testing.assert_allclose(result["grad/t"], (1 + 2 * np.exp(2 * (t @ v))) @ v.T)


def test_a_stopped_tensor_counts_as_a_constant() -> None:
    text = "(double[3] x) => (double[3] y) { s = Sin(x)  y = Mul(s, x) }"
    x = np.array([0.3, 1.0, -2.0])
    free = run(sx.grad(parsed(text)), x=x)
    stopped = run(sx.grad(parsed(text), stop=["s"]), x=x)
    np.testing.assert_allclose(free["grad/x"], np.sin(x) + x * np.cos(x))
    np.testing.assert_allclose(stopped["grad/x"], np.sin(x))


def test_only_the_path_is_in_the_graph() -> None:
    known = parsed(TWO_LAYERS.replace("[n", "[2"))
    model = sx.grad(known, of="y", wrt="v", outputs=False)
    # The forward up to what the gradient of v reads; nothing of y, e or `other`.
    forward = [n.op_type for n in model.graph if not (n.name or "").startswith("grad/")]
    assert forward.count("MatMul") == 1
    assert "Exp" not in forward
    assert "Mul" not in forward


def test_new_nodes_are_named_after_the_node_they_differentiate() -> None:
    proto = parsed(TWO_LAYERS).proto()
    for node in proto.graph.node:
        node.name = f"/body/{node.output[0]}"
    before = {node.name for node in proto.graph.node}
    result = sx.grad(from_proto(proto), of="y", wrt=["x", "w"])
    new = [n.name or "" for n in result.graph if n.name not in before]
    ends = ("seed/y/", "grad/x/Identity", "grad/w/Identity")
    between = [n for n in new if not n.startswith(ends)]
    assert len(between) >= 4
    assert len(between) == len(new) - 4
    assert {n.split("/body/")[0] for n in between} == {"grad/"}
    assert {n.split("/body/")[1].split("/")[0] for n in between} == {"y", "t", "h"}


def test_the_result_is_a_valid_model_of_standard_operators() -> None:
    result = sx.grad(parsed(TWO_LAYERS), wrt=["x", "w", "v"])
    onnx.checker.check_model(runnable(result), full_check=True)
    assert {node.domain for node in result.graph} == {""}
    assert Runner(result).session is not None


# -- forward mode -----------------------------------------------------------------------


def one_of_each() -> list[Case]:
    """The first case of each operator that differences can check."""
    first: dict[str, Case] = {}
    for case in all_cases():
        if case.order >= 2:
            first.setdefault(case.op, case)
    return list(first.values())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=() if i % 8 == 0 else pytest.mark.nightly, id=str(c))
        for i, c in enumerate(one_of_each())
    ],
)
def test_forward_mode_is_the_directional_difference(case: Case) -> None:
    model, feeds, wrt = model_of(case), feeds_of(case), wrt_of(case)
    forward = Runner(model)
    values = forward(feeds)
    of = [n for n, v in values.items() if v.dtype.kind == "f"]
    rng = np.random.default_rng(2)
    tangents = {n: rng.normal(size=feeds[n].shape).astype(feeds[n].dtype) for n in wrt}
    pushed = Runner(sx.jvp(model, of=of, wrt=wrt))
    result = pushed({**feeds, **{f"tangent/{n}": t for n, t in tangents.items()}})

    def at(scale: float) -> dict[str, np.ndarray]:
        moved = {n: (feeds[n] + scale * t).astype(feeds[n].dtype) for n, t in tangents.items()}
        return forward({**feeds, **moved})

    after, before = at(case.step), at(-case.step)
    for n in of:
        expected = (after[n] - before[n]) / (2 * case.step)
        size = max(float(np.max(np.abs(expected), initial=0)), 1e-3)
        tol = case.tol if case.step == STEP else 1e-3
        np.testing.assert_allclose(result[f"jvp/{n}"], expected, rtol=0, atol=tol * size, err_msg=n)


# -- 16 bits ----------------------------------------------------------------------------


def biased(kind: str) -> Model:
    return parsed(f"({kind}[n, 2] x, {kind}[2] b) => ({kind}[n, 2] y) {{ y = Add(x, b) }}")


def test_a_sum_of_many_halves_is_not_one_of_halves() -> None:
    # Added one by one, ones stay at 2048 in float16: the next number is 2050.
    x = np.zeros((6000, 2), np.float16)
    result = run(sx.grad(biased("float16"), wrt="b"), x=x, b=np.zeros(2, np.float16))
    assert result["grad/b"].dtype == np.float16
    np.testing.assert_array_equal(result["grad/b"], [6000, 6000])


def test_a_sum_of_many_bfloats_is_not_one_of_bfloats() -> None:
    # Ones stay at 256 in bfloat16.
    kind = ml_dtypes.bfloat16
    x = np.zeros((6016, 2), kind)
    result = Exact(sx.grad(biased("bfloat16"), wrt="b"))({"x": x, "b": np.zeros(2, kind)})
    assert result["grad/b"].dtype == kind
    np.testing.assert_array_equal(result["grad/b"].astype(np.float32), [6016, 6016])


HALVES = [
    "y = MatMul(x, w)",
    "y = Softmax(x)",
    "y = LayerNormalization(x, b)",
    "r = ReduceMean<keepdims=1>(x)  y = Mul(x, r)",
    "r = ReduceLogSumExp<keepdims=1>(x)  y = Sub(x, r)",
    "m = Mul(x, b)  y = Gelu(m)",
]


@pytest.mark.parametrize("nodes", HALVES)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_gradients_in_16_bits_are_those_of_float32(kind: str, nodes: str) -> None:
    shape = "[4, 8]"
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(4, 8)), "w": rng.normal(size=(8, 8)), "b": rng.normal(size=8)}
    seed = {"seed/y": rng.normal(size=(4, 8))}
    result = []
    for each in (kind, "float"):
        dtype = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float": np.float32}[each]
        text = f"({each}{shape} x, {each}[8, 8] w, {each}[8] b) => ({each}{shape} y)"
        model = sx.grad(parsed(f"{text} {{ {nodes} }}"), wrt="x", seeds="input", outputs=False)
        # The same numbers in both: what 16 bits can hold.
        small = np.float16 if kind == "float16" else ml_dtypes.bfloat16
        inputs = {n: a.astype(small).astype(dtype) for n, a in {**feeds, **seed}.items()}
        result.append(Exact(model)(inputs)["grad/x"])
    assert result[0].dtype != np.float32
    scale = np.abs(result[1]).max()
    spacing = 2.0**-10 if kind == "float16" else 2.0**-7
    np.testing.assert_allclose(
        result[0].astype(np.float32), result[1], rtol=0, atol=8 * spacing * scale
    )


# -- refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["of", "wrt"])
def test_integers_have_no_gradient(role: str) -> None:
    asked: dict[str, Any] = {"of": "y", "wrt": "x", role: "labels"}
    with pytest.raises(ArgumentError, match="only floating-point tensors") as caught:
        sx.grad(parsed(TWO_LAYERS), **asked)
    assert '"labels"' in str(caught.value)
    assert "INT64" in str(caught.value)


def test_strings_have_no_gradient() -> None:
    text = "(string[2] s, float[2] x) => (float[2] y) { y = Neg(x) }"
    with pytest.raises(ArgumentError, match="only floating-point tensors") as caught:
        sx.grad(parsed(text), wrt=["x", "s"])
    assert '"s"' in str(caught.value)
    assert '"x"' not in str(caught.value)


def test_all_unknown_names_are_reported() -> None:
    with pytest.raises(ArgumentError, match="2 tensors") as caught:
        sx.grad(parsed(TWO_LAYERS), of="y", wrt=["nothing", "x", "nobody"])
    assert '"nothing"' in str(caught.value)
    assert '"nobody"' in str(caught.value)


def test_each_node_without_a_rule_is_named_with_the_path_that_it_blocks() -> None:
    text = """(float[2] a, float[2] b, float[2] c) => (float[2] p, float[2] q, float[2] r)
        { u = com.acme.Odd(a)  p = Neg(u)  v = Neg(b)  q = com.acme.Even(v)  r = Neg(c) }"""
    model = parsed(text, ', "com.acme": 1')
    with pytest.raises(UnsupportedOp) as caught:
        sx.grad(model)
    rows = [" ".join(str(cell) for cell in row) for row in caught.value.where]
    assert rows == [
        'com.acme::Odd node "u" on the path from "p" to "a"',
        'com.acme::Even node "q" on the path from "q" to "b"',
    ]
    assert 'stop=["u"]' in str(caught.value)
    assert '@sardonyx.gradient_rule("Odd")' in str(caught.value)
    # What is not on the path blocks nothing, nor does a path that is cut.
    assert sx.grad(model, of="r", wrt="c")
    with pytest.warns(UserWarning, match="do not depend on each other"):
        sx.grad(model, stop=["u", "q"])


def test_a_lone_quantizer_beside_the_path_is_not_warned_of() -> None:
    text = """(float[3] x) => (uint8[3] q, float[3] y) <float s = {0.1}, uint8 z = {3}>
        { q = QuantizeLinear(x, s, z)  y = Sin(x) }"""
    result = run(sx.grad(parsed(text), of="y", wrt="x"), x=np.zeros(3, np.float32))
    np.testing.assert_array_equal(result["grad/x"], np.ones(3))


# -- rules of users ---------------------------------------------------------------------


@pytest.fixture
def cube() -> Any:
    key: OpId = ("com.acme", "Cube")

    @sx.gradient_rule("Cube", domain="com.acme")
    def rule(op: Any, g: Any, x: Any) -> Any:
        return g * (x * x * 3.0)

    yield rule
    del GRADIENT_RULES.rules[key]


def test_a_rule_of_a_user_is_one_like_ours(cube: Any) -> None:
    # The operator itself never runs: the gradient reads only its input.
    text = "(double[3] x) => (double[3] y) { c = com.acme.Cube(x)  y = Neg(c) }"
    model = parsed(text, ', "com.acme": 1')
    first = sx.grad(model, wrt="x", outputs=False)
    x = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(run(first, x=x)["grad/x"], -3 * x**2)
    second = sx.grad(first, wrt="x", outputs=False)
    np.testing.assert_allclose(run(second, x=x)["grad/x"], -6 * x)


def test_a_tensor_whose_type_nobody_knows_is_named() -> None:
    text = "(double[3] x) => (int64[1] y) { c = com.acme.Odd(x)  y = Shape(c) }"
    with pytest.raises(ArgumentError, match=r"types of tensors .* not known") as caught:
        sx.grad(parsed(text, ', "com.acme": 1'), of="c", wrt="x")
    assert '"c"' in str(caught.value)


def test_a_second_rule_for_an_operator_is_an_error(cube: Any) -> None:
    with pytest.raises(ArgumentError, match="Cube already has a gradient rule"):
        sx.gradient_rule("Cube", domain="com.acme")(lambda op, g, x: g)

"""What Gradient and the optimizers mean where the standard is silent (decisions 18 to 32)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.errors import SardonyxError

from .records import (
    SERVED,
    TRAIN,
    W,
    X,
    Y,
    gradient,
    info_of,
    made,
    steps,
)

SECOND = """t (float[N,1] label) => (float[2,1] w_new) {{
    d = Sub(y, label)
    s = Mul(d, d)
    loss = ReduceMean<keepdims = 0>(s)
    {gradient}
    w_new = Identity(g)
}}"""


def of_gradient(gradient_text: str, **feeds: np.ndarray) -> np.ndarray:
    return steps(made(SECOND.format(gradient=gradient_text)), **feeds)["w"]


def test_decision_18_y_that_is_not_a_scalar_is_summed() -> None:
    result = of_gradient(f'g = {TRAIN}.Gradient<xs = ["w"], y = "s">(w)')
    np.testing.assert_allclose(result, gradient(W) * len(X), rtol=1e-5)


def test_decision_19_tensors_outside_xs_and_zs_are_constants() -> None:
    with_zs = of_gradient(
        f'g = {TRAIN}.Gradient<xs = ["w"], zs = ["x", "label"], y = "loss">(w, x, label)'
    )
    without = of_gradient(f'g = {TRAIN}.Gradient<xs = ["w"], y = "loss">(w)')
    assert np.array_equal(with_zs, without)


def test_decision_20_an_x_that_does_not_reach_y_gets_zeros() -> None:
    text = SECOND.format(
        gradient="h = Mul(label, label) l = ReduceMean<keepdims = 0>(h) "
        f'g = {TRAIN}.Gradient<xs = ["w"], y = "l">(w)'
    )
    with pytest.warns(UserWarning, match='does not depend on "w": zeros'):
        state = steps(made(text))
    assert not state["w"].any()


def test_decision_21_a_tensor_and_its_ancestor_are_refused() -> None:
    model = made(
        SECOND.format(gradient=f'g, h = {TRAIN}.Gradient<xs = ["w", "y"], y = "loss">(w, y)')
    )
    with pytest.raises(SardonyxError, match="not independent"):
        prepare_training(model)


def test_decision_22_inputs_elsewhere_are_evaluated_there() -> None:
    result = of_gradient(
        "two = Constant<value_float = 2.0>() e = Mul(w, two) "
        f'g = {TRAIN}.Gradient<xs = ["w"], y = "loss">(e)'
    )
    np.testing.assert_allclose(result, gradient(2 * W), rtol=1e-5)


def nested(inside: Sequence[str], outside: Sequence[str]) -> onnx.ModelProto:
    """A Gradient in the branch of an If, with parts of its forward there or outside."""
    gradient_node = f'g = {TRAIN}.Gradient<xs = ["w"], y = "loss">(w)'
    branch = "\n".join([*inside, gradient_node, "picked = Identity(g)"])
    algorithm = f"""t (float[N,1] label, bool switch) => (float[2,1] w_new) {{
        {" ".join(outside)}
        w_new = If(switch) <
            then_branch = then () => (float[2,1] picked) {{ {branch} }},
            else_branch = other () => (float[2,1] kept) {{ kept = Identity(w) }}
        >
    }}"""
    return made(algorithm)


def test_decision_23_y_is_made_where_the_gradient_stands() -> None:
    forward = ["p = MatMul(x, w)", "d = Sub(p, label)", "s = Mul(d, d)"]
    loss = ["loss = ReduceMean<keepdims = 0>(s)"]
    whole = nested([*forward, *loss], [])
    np.testing.assert_allclose(steps(whole, switch=np.array(True))["w"], gradient(W), rtol=1e-5)
    assert np.array_equal(steps(whole, switch=np.array(False))["w"], W)
    with pytest.raises(SardonyxError, match="made outside its graph"):
        prepare_training(nested([], [*forward, *loss]))
    with pytest.raises(SardonyxError, match=r'"s" *is computed from "w"'):
        prepare_training(nested(loss, forward))


def test_decision_24_gradient_before_its_y() -> None:
    algorithm = f"""t (float[N,1] label) => (float loss, float[2,1] w_new) {{
        g = {TRAIN}.Gradient<xs = ["w"], y = "loss">(w)
        w_new = Identity(g)
        d = Sub(y, label)
        s = Mul(d, d)
        loss = ReduceMean<keepdims = 0>(s)
    }}"""
    np.testing.assert_allclose(steps(made(algorithm))["w"], gradient(W), rtol=1e-5)


def test_decision_25_an_operator_without_a_rule_is_named() -> None:
    algorithm = SECOND.format(
        gradient="[odd] o = com.acme.Odd(y) l = ReduceMean<keepdims=0>(o) "
        f'g = {TRAIN}.Gradient<xs = ["w"], y = "l">(w)'
    )
    served = SERVED.replace(
        '"ai.onnx.preview.training": 1', '"ai.onnx.preview.training": 1, "com.acme": 1'
    )
    with pytest.raises(SardonyxError, match="Odd"):
        prepare_training(made(algorithm, served=served))


def test_decision_27_a_name_twice_in_xs() -> None:
    result = of_gradient(f'g, h = {TRAIN}.Gradient<xs = ["w", "w"], y = "loss">(w, w)')
    np.testing.assert_allclose(result, gradient(W), rtol=1e-5)


OPTIMIZER = """t (float[N,1] label)
=> (float[2,1] w_new, float[2,1] v_new, float[2,1] h_new, int64 t_new)
<float{one} rate = {{0.1}}, int64{one} t = {{{count}}},
 float[2,1] v = {{0,0}}, float[2,1] h = {{0,0}}> {{
    d = Sub(y, label)
    s = Mul(d, d)
    loss = ReduceMean<keepdims = 0>(s)
    g = ai.onnx.preview.training.Gradient<xs = ["w"], y = "loss">(w)
    w_new, v_new, h_new = ai.onnx.preview.training.Adam
        <alpha = 0.9, beta = 0.999, epsilon = 0.001>(rate, t, w, g, v, h)
    step = Constant<value_int = 1>()
    more = Add(t, step)
    t_new = Reshape(more, shape)
}}"""
ADAM_BINDING = [("w", "w_new"), ("v", "v_new"), ("h", "h_new"), ("t", "t_new")]


def adam_by_hand(count: int, start: int) -> np.ndarray:
    """ONNX's Adam, in float64, from its specification."""
    w, v, h = W.astype(np.float64), np.zeros((2, 1)), np.zeros((2, 1))
    for t in range(start, start + count):
        g = gradient(w)
        v, h = 0.9 * v + 0.1 * g, 0.999 * h + 0.001 * g * g
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) if t > 0 else 0.1
        w = w - rate * v / (np.sqrt(h) + 1e-3)
    return w


@pytest.mark.parametrize("shape", ["[]", "[1]"])
@pytest.mark.parametrize("start", [0, 1])
def test_decisions_28_to_30_adam_as_specified_from_any_count(start: int, shape: str) -> None:
    one = "" if shape == "[]" else "[1]"
    algorithm = OPTIMIZER.format(one=one, count=start).replace("int64 t_new)", f"int64{one} t_new)")
    model = made(algorithm, ADAM_BINDING)
    dims = np.array([] if shape == "[]" else [1], np.int64)
    info_of(model).algorithm.initializer.append(numpy_helper.from_array(dims, "shape"))
    state = steps(model, 20)
    np.testing.assert_allclose(state["w"], adam_by_hand(20, start), rtol=1e-4)
    assert state["t"].shape == tuple(dims)
    assert int(state["t"].reshape(())) == start + 20


def test_decision_31_outputs_that_are_inputs_or_used_twice() -> None:
    algorithm = """t (float[2,1] fed) => (float[2,1] fed, float[2,1] w, float[2,1] n)
    <float[2,1] a = {1,1}, float[2,1] b = {1,1}, float[2,1] c = {1,1}, float[2,1] e = {1,1}>
    { n = Neg(w) }"""
    model = made(algorithm, [("a", "fed"), ("b", "w"), ("c", "n"), ("e", "n")])
    rep = prepare_training(model, threads=1)
    for value in (3.0, 4.0):
        fed = np.full((2, 1), value, np.float32)
        rep.step({"fed": fed})
        state = rep.state()
        assert np.array_equal(state["a"], fed)
        assert np.array_equal(state["b"], W)
        assert np.array_equal(state["c"], -W)
        assert np.array_equal(state["e"], -W)


def test_decision_32_values_that_are_not_finite_are_assigned_and_seen() -> None:
    rep = prepare_training(made(), threads=1)
    broken = X.copy()
    broken[0, 0] = np.nan
    assert np.isnan(rep.step({"x": broken, "label": Y})["loss"])
    assert np.isnan(rep.state()["w"]).any()

"""What records mean where the standard is silent: decisions 1 to 17."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.errors import ArgumentError, RecordError
from sardonyx.record import info

from .networks import mlp
from .records import (
    BATCH,
    SERVED,
    START,
    STEP,
    W,
    X,
    Y,
    add,
    gradient,
    made,
    node,
    start_reads_w,
    steps,
    swap,
    unscanned,
)


def test_decision_01_algorithm_is_joined_and_the_forward_runs_once() -> None:
    joined = info.combine(*(lambda m: (m, m.records[0]))(sx.load(made())))
    assert [n.op_type for n in joined.graph][:2] == ["MatMul", "Sub"]
    assert sum(n.op_type == "MatMul" for n in joined.graph) == 1


COUNT = """count{0} () => (int64 t{0}_new) <int64 {1} = {{{2}}}> {{
    one = Constant<value_int = 1>()
    t{0}_new = Add({1}, one)
}}"""


def test_decision_02_one_key_in_two_records_is_allowed_with_a_warning() -> None:
    model = made(COUNT.format(0, "t", 5), [("t", "t0_new")])
    add(model, COUNT.format(1, "t", 5), [("t", "t1_new")])
    with pytest.warns(UserWarning, match='more than one training record updates "t"'):
        rep = prepare_training(model)
    rep.step({})
    assert rep.state()["t"] == 7


def test_decision_03_an_update_may_be_an_output_of_the_graph() -> None:
    served = SERVED.replace("y = MatMul(x, w)", "y = MatMul(x, w) v = Neg(w)").replace(
        "(float[N,1] y)", "(float[N,1] y, float[2,1] v)"
    )
    state = steps(
        made(
            "t (float[N,1] label) => (float l) { l = ReduceMean<keepdims=0>(label) }",
            [("w", "v")],
            served=served,
        )
    )
    assert np.array_equal(state["w"], -W)


def test_decision_04_all_are_computed_then_all_are_assigned() -> None:
    algorithm = """t () => (float[2,1] w_new, float[2,1] v_new) <float[2,1] v = {7, 8}> {
        w_new = Identity(v) v_new = Identity(w) }"""
    state = steps_without_data(made(algorithm, [("w", "w_new"), ("v", "v_new")]), 1)
    assert np.array_equal(state["w"], [[7], [8]])
    assert np.array_equal(state["v"], W)


def steps_without_data(model: onnx.ModelProto, count: int) -> dict[str, np.ndarray]:
    rep = prepare_training(model, threads=1)
    for _ in range(count):
        rep.step({})
    return rep.state()


def test_decision_04_the_next_record_sees_new_values() -> None:
    model = made("a () => (float[2,1] a_new) { a_new = Add(w, w) }", [("w", "a_new")])
    algorithm = """b (float[1] z) => (float[N,1] seen, float[1] v_new) <float[1] v = {0}> {
        seen = Identity(y) v_new = Neg(z) }"""
    add(model, algorithm, [("v", "v_new")])
    rep = prepare_training(model, threads=1)
    seen = rep.step({"x": X, "z": np.ones(1, np.float32)})["seen"]
    np.testing.assert_allclose(seen, X @ (2 * W), rtol=1e-6)


def test_decision_05_all_records_or_one() -> None:
    model = made(COUNT.format(0, "a", 0), [("a", "t0_new")])
    add(model, COUNT.format(1, "b", 0), [("b", "t1_new")])
    rep = prepare_training(model)
    rep.step({})
    rep.step({}, which=1)
    rep.step({}, which=1)
    assert (int(rep.state()["a"]), int(rep.state()["b"])) == (1, 3)
    with pytest.raises(ArgumentError, match="there is no record 2"):
        rep.step({}, which=2)


def test_decision_06_one_name_is_one_variable_if_it_starts_alike() -> None:
    model = made(COUNT.format(0, "t", 5), [("t", "t0_new")])
    add(model, COUNT.format(1, "t", 6), [("t", "t1_new")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RecordError, match="start at different values"):
            prepare_training(model)


def test_decision_06_constants_are_private() -> None:
    scaled = """s{0} () => (float[2,1] s{0}_new) <float[2,1] {1} = {{1, 1}}, float k = {{{2}}}> {{
        s{0}_new = Mul({1}, k) }}"""
    model = made(scaled.format(0, "a", 2), [("a", "s0_new")])
    add(model, scaled.format(1, "b", 3), [("b", "s1_new")])
    state = steps_without_data(model, 2)
    assert (state["a"] == 4).all()
    assert (state["b"] == 9).all()


def test_decision_07_initialize_restores_what_it_does_not_bind() -> None:
    algorithm = (
        STEP.replace("float[2,1] w_new)", "float[2,1] w_new, int64 t_new)")
        .replace("<float rate = {0.1}>", "<float rate = {0.1}, int64 t = {3}, int64 one = {1}>")
        .replace("d = Sub", "t_new = Add(t, one) d = Sub")
    )
    bindings = [("w", "w_new"), ("t", "t_new")]
    rep = prepare_training(made(algorithm, bindings, START, [("w", "w0")]), threads=1)
    rep.step(BATCH)
    assert rep.state()["t"] == 4
    rep.initialize(seed=1)
    assert rep.state()["t"] == 3
    assert not np.array_equal(rep.state()["w"], W)
    rep.step(BATCH)
    rep.initialize(seed=1, only_bound=True)
    assert rep.state()["t"] == 4


def test_decision_08_an_initialization_may_call_functions_and_nothing_else() -> None:
    start = "start () => (float[2,1] w0) { w0 = my.ones() }"
    model = made(start=start, starts=[("w", "w0")])
    function = onnx.parser.parse_function(
        """<domain: "my", opset_import: ["": 17]> ones () => (b) {
            shape = Constant<value_ints = [2, 1]>()
            b = ConstantOfShape<value: tensor = float[1] {1.0}>(shape)
        }"""
    )
    model.functions.append(function)
    model.opset_import.add(domain="my", version=1)
    rep = prepare_training(model, threads=1)
    rep.initialize()
    assert np.array_equal(rep.state()["w"], np.ones((2, 1)))
    model = made()
    start_reads_w(model)
    with pytest.raises(RecordError, match="is an initializer of another graph"):
        info.check(unscanned(model))


def test_decision_09_state_that_is_only_initialized() -> None:
    model = made(
        "t (float[N,1] label) => (float l) { l = ReduceMean<keepdims=0>(label) }",
        [],
        START,
        [("w", "w0")],
    )
    rep = prepare_training(model, threads=1)
    assert rep.step(BATCH)["l"] == Y.mean()
    assert np.array_equal(rep.state()["w"], W), "an info without updates evaluates"
    rep.initialize(seed=0)
    assert not np.array_equal(rep.state()["w"], W)


INPUT_WEIGHT = SERVED.replace("(float[N,2] x)", "(float[N,2] x, float[2,1] w)")


def test_decision_10_state_is_not_fed_to_a_step_but_to_inference() -> None:
    rep = prepare_training(made(served=INPUT_WEIGHT), threads=1)
    with pytest.raises(ArgumentError, match=r'"w".*is state'):
        rep.step({**BATCH, "w": W})
    other = rep.run({"x": X, "w": 3 * W})["y"]
    np.testing.assert_allclose(other, X @ (3 * W), rtol=1e-6)
    np.testing.assert_allclose(rep.run({"x": X})["y"], X @ W, rtol=1e-6)
    rep.step(BATCH)
    np.testing.assert_allclose(rep.state()["w"], W - 0.1 * gradient(W), rtol=1e-5)


def test_inputs_that_no_graph_has_are_refused() -> None:
    rep = prepare_training(made(), threads=1)
    with pytest.raises(ArgumentError, match=r'"labels".*is no input'):
        rep.step({"x": X, "labels": Y})


def test_decision_12_unbound_outputs_are_figures_and_roles_are_metadata() -> None:
    assert prepare_training(made()).metrics == ["loss"]
    net = sx.trainable(mlp(), "mse", sx.optim.sgd(0.1, 0.9))
    roles = {k.removeprefix("sardonyx.role."): v for k, v in net.metadata.items() if "role" in k}
    assert roles["loss"] == "loss"
    assert roles["label"] == "label"
    assert roles["learning_rate"] == "hyperparameter"
    assert roles["fc0.weight"] == "parameter"
    assert roles["fc0.weight/momentum"] == "slot"


MODES = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>
served (float[N,2] x, bool on) => (float[N,1] y)
<float[2,1] w = {0.5, -1}, float[1] one = {1}, float[1] zero = {0}, float[1] mean = {3},
 float[1] var = {4}, bool on = {0}, float ratio = {0.5}> {
    m = MatMul(x, w)
    n = BatchNormalization(m, one, zero, mean, var)
    y = Dropout<seed = 1>(n, ratio, on)
}"""


def test_decision_13_modes_stay_as_the_file_says_and_switches_may_be_fed() -> None:
    algorithm = "t () => (float[N,1] seen, float[2,1] w_new) { seen = Identity(y) w_new = Neg(w) }"
    rep = prepare_training(made(algorithm, served=MODES), threads=1)
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    frozen = (x @ W - 3) / np.sqrt(4 + 1e-5)
    np.testing.assert_allclose(rep.step({"x": x})["seen"], frozen, rtol=1e-4, atol=1e-5)
    dropped = rep.step({"x": x, "on": np.array(True)})["seen"]
    assert 0.2 < (dropped == 0).mean() < 0.8
    np.testing.assert_allclose(rep.run({"x": x})["y"], frozen, rtol=1e-4, atol=1e-5)


def test_decision_14_missing_import_warns_and_the_short_domain_is_read() -> None:
    model = made()
    del model.opset_import[1]
    with pytest.warns(UserWarning, match="without importing it"):
        state = steps(model)
    np.testing.assert_allclose(state["w"], W - 0.1 * gradient(W), rtol=1e-5)
    model = made()
    node(model, "grad").domain = "ai.onnx.preview"
    with pytest.warns(UserWarning, match="read as ai.onnx.preview.training"):
        state = steps(model)
    np.testing.assert_allclose(state["w"], W - 0.1 * gradient(W), rtol=1e-5)


def test_decision_15_equal_seeds_equal_starts_and_streams_apart() -> None:
    algorithm = """t () => (float[2,1] w_new, float[2,1] v_new) <float[2,1] v = {1,1}> {
        w_new = Neg(w) v_new = Neg(v) }"""
    start = """s () => (float[2,1] a, float[2,1] b) {
        a = RandomNormal<shape=[2,1]>() b = RandomNormal<shape=[2,1]>() }"""
    bindings = [("w", "w_new"), ("v", "v_new")]
    rep = prepare_training(made(algorithm, bindings, start, [("w", "a"), ("v", "b")]))
    rep.initialize(seed=3)
    first = rep.state()
    assert not np.array_equal(first["w"], first["v"]), "two nodes draw from two streams"
    rep.initialize(seed=4)
    assert not np.array_equal(first["w"], rep.state()["w"])
    rep.initialize(seed=3)
    assert np.array_equal(first["w"], rep.state()["w"])
    assert np.array_equal(first["v"], rep.state()["v"])


def test_decision_15_a_seed_in_the_file_stays() -> None:
    start = START.replace("scale = 2.0", "scale = 2.0, seed = 7.0")
    rep = prepare_training(made(start=start, starts=[("w", "w0")]))
    rep.initialize(seed=1)
    first = rep.state()["w"]
    rep.initialize(seed=2)
    assert np.array_equal(first, rep.state()["w"])


def test_decision_16_external_data_inside_a_record(tmp_path: Path) -> None:
    net = sx.trainable(mlp((40, 30, 3)), "mse", sx.optim.adam(0.01))
    rep = prepare_training(net, threads=1)
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(4, 40)).astype(np.float32), "label": np.ones((4, 3), np.float32)}
    rep.step(batch)
    path = sx.save(rep.to_model(), tmp_path / "net.onnx", external=True)
    assert "fc0.weight/adam_m" in {
        t.name
        for t in onnx.load(path, load_external_data=False).training_info[0].algorithm.initializer
        if t.data_location == onnx.TensorProto.EXTERNAL
    }
    again = prepare_training(sx.load(path), threads=1)
    for name, value in rep.state().items():
        assert np.array_equal(again.state()[name], value), name


def test_decision_17_a_swapped_pair_is_refused_and_named() -> None:
    model = made()
    swap(model)
    with pytest.raises(RecordError, match=r'"w_new" ← "w".*key and value are swapped'):
        prepare_training(model)

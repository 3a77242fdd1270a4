"""Training records that others wrote: every rule of the checker, every decision where the texts
are silent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_graph, parse_model

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.errors import ArgumentError, EngineError, RecordError, SardonyxError
from sardonyx.model import Model, from_proto
from sardonyx.train import info

from .networks import mlp

SERVED = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>
served (float[N,2] x) => (float[N,1] y) <float[2,1] w = {0.5, -1}> { y = MatMul(x, w) }"""
STEP = """train (float[N,1] label, float rate) => (float loss, float[2,1] w_new)
<float rate = {0.1}> {
    d = Sub(y, label)
    s = Mul(d, d)
    loss = ReduceMean<keepdims = 0>(s)
    [grad] g = ai.onnx.preview.training.Gradient<xs = ["w"], y = "loss">(w)
    u = Mul(g, rate)
    w_new = Sub(w, u)
}"""
START = "start () => (float[2,1] w0) { w0 = RandomNormal<shape = [2, 1], scale = 2.0>() }"
TRAIN = "ai.onnx.preview.training"


def made(
    algorithm: str = STEP,
    updates: Sequence[tuple[str, str]] = (("w", "w_new"),),
    start: str | None = None,
    starts: Sequence[tuple[str, str]] = (),
    served: str = SERVED,
) -> onnx.ModelProto:
    """A model with one record, by `onnx.helper.make_training_info`."""
    model = parse_model(served)
    add(model, algorithm, updates, start, starts)
    return model


def add(
    model: onnx.ModelProto,
    algorithm: str,
    updates: Sequence[tuple[str, str]],
    start: str | None = None,
    starts: Sequence[tuple[str, str]] = (),
) -> None:
    model.training_info.append(
        helper.make_training_info(
            parse_graph(algorithm),
            list(updates),
            parse_graph(start) if start else onnx.GraphProto(name="none"),
            list(starts),
        )
    )


X = np.array([[1, 2], [3, -1], [0.5, 4]], np.float32)
Y = np.array([[1], [0], [2]], np.float32)
BATCH = {"x": X, "label": Y}
W = np.array([[0.5], [-1]], np.float32)


def gradient(w: np.ndarray, x: np.ndarray = X, y: np.ndarray = Y) -> np.ndarray:
    """d mean((x w - y)²) / dw, in float64."""
    x, y, w = (a.astype(np.float64) for a in (x, y, w))
    return 2 * x.T @ (x @ w - y) / len(x)


def steps(
    model: onnx.ModelProto | Model, count: int = 1, **feeds: np.ndarray
) -> dict[str, np.ndarray]:
    rep = prepare_training(model, threads=1)
    for _ in range(count):
        rep.step({**BATCH, **feeds})
    return rep.state()


def test_record_made_by_hand_trains() -> None:
    rep = prepare_training(made(), threads=1)
    w = W.astype(np.float64)
    for _ in range(10):
        loss = rep.step(BATCH)["loss"]
        np.testing.assert_allclose(loss, np.mean((X @ w - Y) ** 2), rtol=1e-5)
        w = w - 0.1 * gradient(w)
    np.testing.assert_allclose(rep.state()["w"], w, rtol=1e-5)
    np.testing.assert_allclose(rep.run({"x": X})["y"], X @ w, rtol=1e-4)


# -- the checker, one defect at a time -----------------------------------------------------


def info_of(model: onnx.ModelProto) -> onnx.TrainingInfoProto:
    return model.training_info[0]


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in info_of(model).algorithm.node if n.name == name)


def bind(model: onnx.ModelProto, key: str, value: str, initial: bool = False) -> None:
    field = info_of(model).initialization_binding if initial else info_of(model).update_binding
    field.add(key=key, value=value)


def text(algorithm: str) -> Callable[[onnx.ModelProto], None]:
    return lambda m: info_of(m).algorithm.CopyFrom(parse_graph(algorithm))


def swap(m: onnx.ModelProto) -> None:
    pair = info_of(m).update_binding[0]
    pair.key, pair.value = pair.value, pair.key


def output_type(m: onnx.ModelProto, dims: list[int], kind: int = 1) -> None:
    outputs = info_of(m).algorithm.output
    outputs[1].CopyFrom(helper.make_tensor_value_info("w_new", kind, dims))


def start_of_shape(m: onnx.ModelProto) -> None:
    graph = "start () => (float[3] w0) { w0 = RandomNormal<shape = [3]>() }"
    info_of(m).initialization.CopyFrom(parse_graph(graph))
    bind(m, "w", "w0", initial=True)


def start_reads_w(m: onnx.ModelProto) -> None:
    graph = "start () => (float[2,1] w0) { w0 = RandomNormalLike(w) }"
    info_of(m).initialization.CopyFrom(parse_graph(graph))


def start_with_input(m: onnx.ModelProto) -> None:
    graph = "start (float[2,1] z) => (float[2,1] w0) { w0 = Neg(z) }"
    info_of(m).initialization.CopyFrom(parse_graph(graph))


def sparse_key(m: onnx.ModelProto) -> None:
    values = helper.make_tensor("v", 1, [1], [1.0])
    indices = helper.make_tensor("v_i", 7, [1], [0])
    info_of(m).algorithm.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    bind(m, "v", "w_new")


DEFECTS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "a swapped pair": (swap, "key and value are swapped"),
    "a state bound twice": (lambda m: bind(m, "w", "loss"), "is assigned 2 times"),
    "a key that nobody has": (lambda m: bind(m, "nowhere", "loss"), '"nowhere".*is no init'),
    "a key that is a computed tensor": (lambda m: bind(m, "d", "loss"), '"d".*is no initializer'),
    "a value that is no output": (lambda m: bind(m, "rate", "nowhere"), '"nowhere".*is no output'),
    "a value that is an inner tensor": (lambda m: bind(m, "rate", "u"), '"u".*is no output'),
    "a sparse initializer as key": (sparse_key, '"v".*is no initializer'),
    "a start that is no output": (lambda m: bind(m, "w", "w0", True), '"w0".*is no output'),
    "an initialization with inputs": (start_with_input, "has no inputs"),
    "an initialization that reads a weight": (start_reads_w, "is an initializer of another graph"),
    "a start of another shape": (start_of_shape, r"\[2, 1\] ← \[3\]"),
    "an update of another shape": (lambda m: output_type(m, [1, 2]), r"\[2, 1\] ← \[1, 2\]"),
    "an update of another rank": (lambda m: output_type(m, [2]), r"\[2, 1\] ← \[2\]"),
    "an update of another type": (lambda m: output_type(m, [2, 1], 11), "FLOAT ← DOUBLE"),
    "IR 6": (lambda m: setattr(m, "ir_version", 6), "training records need 7"),
    "Gradient of an unknown tensor": (
        lambda m: node(m, "grad").attribute[1].CopyFrom(helper.make_attribute("y", "nothing")),
        '"nothing".*is not in the graph',
    ),
    "Gradient with respect to an unknown tensor": (
        lambda m: node(m, "grad").attribute[0].CopyFrom(helper.make_attribute("xs", ["v"])),
        '"v".*is not in the graph',
    ),
    "Gradient with too many inputs": (
        lambda m: node(m, "grad").input.append("x"),
        "2 inputs.*for 1 names",
    ),
    "Gradient with too many outputs": (
        lambda m: node(m, "grad").output.append("h"),
        "2 outputs.*for 1 names",
    ),
    "a tensor made twice": (
        text("t (float[N,1] label) => (float loss) { y = Neg(label) loss = ReduceMean(y) }"),
        '"y".*is defined 2 times',
    ),
    "an input of the graph again": (
        text("t (float[N,2] x) => (float loss) { loss = ReduceMean<keepdims=0>(x) }"),
        '"x".*is defined 2 times',
    ),
    "an initializer of the graph again": (
        text("t () => (float[2,1] w_new) <float[2,1] w = {1, 1}> { w_new = Neg(w) }"),
        '"w".*is defined 2 times',
    ),
    "a tensor that nobody makes": (
        text("t () => (float[2,1] w_new) { w_new = Mul(w, nothing) }"),
        '"nothing".*is not computed anywhere',
    ),
    "the wrong order": (
        text("t () => (float[2,1] w_new) { w_new = Neg(later) later = Neg(w) }"),
        '"later".*is read before it is computed',
    ),
    "an unknown operator": (
        text("t () => (float[2,1] w_new) { w_new = Negate(w) }"),
        "Negate",
    ),
    "an operator without a required attribute": (
        text("t () => (float[2,1] w_new) { w_new = Cast(w) }"),
        "Cast|to",
    ),
}  # fmt: skip


def unscanned(model: onnx.ModelProto) -> Model:
    """The model without the scan of `sx.load`, which finds some of the defects itself."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return from_proto(copy)


@pytest.mark.parametrize("defect", DEFECTS)
def test_defect_is_named(defect: str) -> None:
    break_it, message = DEFECTS[defect]
    model = made()
    info.check(unscanned(model))
    break_it(model)
    with pytest.raises(RecordError, match=f"(?s){message}"):
        info.check(unscanned(model))


def test_defects_are_reported_together() -> None:
    model = made()
    bind(model, "nowhere", "loss")
    bind(model, "rate", "missing")
    start_with_input(model)
    with pytest.raises(RecordError, match="breaks 3 rules") as caught:
        info.check(sx.load(model))
    assert len(caught.value.where) == 3


def test_graph_that_reads_the_algorithm_is_refused() -> None:
    model = made()
    model.graph.node[0].input[0] = "d"
    with pytest.raises(SardonyxError, match='"d"'):
        prepare_training(model)


def test_decision_11_a_shape_that_shows_only_in_the_first_step() -> None:
    algorithm = """t (float[A,B] any) => (float[P,Q] w_new) { w_new = Neg(any) }"""
    rep = prepare_training(made(algorithm), threads=1)
    with pytest.raises(EngineError, match="shape"):
        rep.step({"any": np.ones((3, 3), np.float32)})
    rep.step({"any": np.ones((2, 1), np.float32)})
    assert (rep.state()["w"] == -1).all()


# -- decisions -------------------------------------------------------------------------------


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
    assert prepare_training(made()).figures == ["loss"]
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
    found = of_gradient(f'g = {TRAIN}.Gradient<xs = ["w"], y = "s">(w)')
    np.testing.assert_allclose(found, gradient(W) * len(X), rtol=1e-5)


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
    found = of_gradient(
        "two = Constant<value_float = 2.0>() e = Mul(w, two) "
        f'g = {TRAIN}.Gradient<xs = ["w"], y = "loss">(e)'
    )
    np.testing.assert_allclose(found, gradient(2 * W), rtol=1e-5)


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
    found = of_gradient(f'g, h = {TRAIN}.Gradient<xs = ["w", "w"], y = "loss">(w, w)')
    np.testing.assert_allclose(found, gradient(W), rtol=1e-5)


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


def test_no_record_is_a_clear_error() -> None:
    with pytest.raises(ArgumentError, match="no training record"):
        prepare_training(mlp())

"""Which tensor a loss compares with which labels: class axes, ZipMap, names, sums of terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner, prepare_training
from sardonyx.errors import ArgumentError, DataError
from sardonyx.record.describe import choices

from .networks import mlp, parse

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
# Scores of 3 classes, and the axis on which they are.
SEQUENCES = {
    "product": (
        """(float[N,5,4] x) => (float[N,5,3] y) <float[4,3] w, float[3] b>
        { m = MatMul(x, w)  y = Add(m, b) }""", 2, "MatMul",
    ),
    "product, flattened": (
        """(float[N,5,4] x) => (float[N,5,3] y) <float[4,3] w, float[3] b, int64[2] flat = {-1, 4},
        int64[3] whole = {-1, 5, 3}>
        { f = Reshape(x, flat)  m = Gemm(f, w, b)  y = Reshape(m, whole) }""", 2, "Gemm",
    ),
    "product, transposed": (
        """(float[N,5,4] x) => (float[N,3,5] y) <float[4,3] w, float[3] b>
        { m = MatMul(x, w)  a = Add(m, b)  y = Transpose <perm = [0, 2, 1]> (a) }""", 1, "MatMul",
    ),
    "convolution": (
        """(float[N,4,5] x) => (float[N,3,5] y) <float[3,4,1] w, float[3] b>
        { y = Conv(x, w, b) }""", 1, "Conv",
    ),
    "convolution, transposed": (
        """(float[N,4,5] x) => (float[N,5,3] y) <float[3,4,1] w, float[3] b>
        { c = Conv(x, w, b)  r = Relu(c)  y = Transpose <perm = [0, 2, 1]> (r) }""", 2, "Conv",
    ),
    "softmax": (
        """(float[N,3,5] x) => (float[N,3,5] y) <float[3,1] w, float[3,1] b>
        { m = Mul(x, w)  a = Add(m, b)  y = Softmax <axis = 1> (a) }""", 1, "Softmax",
    ),
}  # fmt: skip


def sequence_model(name: str) -> sx.Model:
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(HEAD + SEQUENCES[name][0])
    for value in list(proto.graph.value_info):
        if value.name in ("w", "b"):
            dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
            array = rng.normal(size=dims).astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(array, value.name))
    return sx.load(proto)


@pytest.mark.parametrize("name", SEQUENCES)
def test_class_axis_is_what_the_graph_shows(name: str) -> None:
    torch = pytest.importorskip("torch")
    axis, maker = SEQUENCES[name][1:]
    model = sequence_model(name)
    net = sx.trainable(model, "cross_entropy", sx.optim.sgd(0.1))
    (row,) = [c for c in choices(net) if c.what == "class axis"]
    assert row.value.startswith(f"{axis} of") and maker in row.why
    rng = np.random.default_rng(1)
    shape = [
        6 if isinstance(d, str) or not isinstance(d, int) else d for d in model.inputs[0].shape
    ]
    x = rng.normal(size=shape).astype(np.float32)
    y = rng.integers(0, 3, (6, 5))
    scores = torch.tensor(Runner(model)({"x": x})["y"])
    scores = scores.log() if name == "softmax" else scores
    expected = torch.nn.functional.cross_entropy(scores.movedim(axis, 1), torch.tensor(y))
    result = prepare_training(net, threads=1).step({"x": x, "label": y})["loss"]
    np.testing.assert_allclose(result, expected.item(), rtol=1e-5)


def test_class_axis_is_set_by_argument_config_and_loss(tmp_path: Any) -> None:
    model = sequence_model("product")
    config = tmp_path / "train.toml"
    config.write_text('loss = "cross_entropy"\nclass_axis = 1\n')
    nets = [
        sx.trainable(model, "cross_entropy", class_axis=1),
        sx.trainable(model, config=config),
        sx.trainable(model, sx.loss.cross_entropy(axis=1)),
    ]
    for net in nets:
        (label,) = [c.value for c in choices(net) if c.what == "label"]
        assert "[N,3]" in label.replace(" ", "")
    with pytest.raises(ArgumentError, match="has 3 axes"):
        sx.trainable(model, "cross_entropy", class_axis=3)
    with pytest.raises(ArgumentError, match="no loss has classes"):
        sx.trainable(model, "mse", class_axis=1)


def test_labels_of_another_shape_are_refused_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    data = {
        "x": rng.normal(size=(8, 5, 4)).astype(np.float32),
        "label": rng.integers(0, 3, (8, 4)),
    }
    monkeypatch.setattr("sardonyx.record.step.compile_step", lambda *a: pytest.fail("compiled"))
    with pytest.raises(DataError, match="does not fit"):
        sx.train(sequence_model("product"), data, loss="cross_entropy", steps=1, display="quiet")


def zip_map_model() -> sx.Model:
    """As scikit-learn's converter writes a classifier: a tensor `label`, dictionaries of scores."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("MatMul", ["X", "coefficient"], ["m"]),
        node("Add", ["m", "intercepts"], ["z"]),
        node("Softmax", ["z"], ["probabilities"], axis=1),
        node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0),
        node("Cast", ["label"], ["output_label"], to=TensorProto.INT64),
        node(
            "ZipMap", ["probabilities"], ["output_probability"], domain="ai.onnx.ml",
            classlabels_int64s=[0, 1, 2],
        ),
    ]  # fmt: skip
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    dictionary = helper.make_map_type_proto(TensorProto.INT64, number)
    outputs = [
        helper.make_tensor_value_info("output_label", TensorProto.INT64, [None]),
        helper.make_value_info("output_probability", helper.make_sequence_type_proto(dictionary)),
    ]
    weights = {"coefficient": rng.normal(size=(4, 3)), "intercepts": rng.normal(size=3)}
    graph = helper.make_graph(
        nodes, "classifier", [helper.make_tensor_value_info("X", 1, [None, 4])], outputs,
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return sx.load(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def test_training_is_cut_at_a_zip_map_and_labels_get_a_free_name() -> None:
    net = sx.trainable(zip_map_model(), "cross_entropy", sx.optim.sgd(0.5))
    rows = {c.value: c.why for c in choices(net) if c.what == "prediction"}
    assert "ends in ZipMap: training cut at" in rows['"probabilities"']
    (label,) = [c.value for c in choices(net) if c.what == "label"]
    assert '"train/label"' in label
    rng = np.random.default_rng(1)
    x = rng.normal(size=(64, 4)).astype(np.float32)
    run = sx.train(net, {"X": x, "label": np.argmax(x[:, :3], 1)}, epochs=20, display="quiet")
    assert run.losses[-1] < 0.5 * run.losses[0]
    with pytest.raises(ArgumentError, match="names of their own"):
        sx.trainable(zip_map_model(), "cross_entropy", labels=["label"])


TWO_OUTPUTS = (
    HEAD
    + """(float[N,2] x) => (float[N,2] a, float[N,2] b)
    <float[2,2] v = {1, 2, 3, 4}, float[2,2] w = {4, 3, 2, 1}>
    { a = MatMul(x, v)  b = MatMul(x, w) }"""
)


@pytest.mark.parametrize("engine", ["onnxruntime", "torch", "jax"])
def test_losses_of_a_run_are_the_sums_of_the_terms(engine: str) -> None:
    pytest.importorskip(engine)
    terms = [
        sx.loss.Term(sx.loss.mse(), "a", ["la"]),
        sx.loss.Term(sx.loss.l1(), "b", ["lb"], weight=0.5),
    ]
    net = sx.trainable(parse(TWO_OUTPUTS), terms, sx.optim.sgd(0.0))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 2)).astype(np.float32)
    data = {"x": x, "la": np.zeros_like(x), "lb": np.ones_like(x)}
    run = sx.train(net, data, steps=1, batch_size=8, engine=engine, display="quiet")
    a, b = x @ np.array([[1, 2], [3, 4]]), x @ np.array([[4, 3], [2, 1]])
    expected = np.mean(a**2) + 0.5 * np.mean(np.abs(b - 1))
    np.testing.assert_allclose(run.losses[0], expected, rtol=1e-5)


def test_label_names_are_free_of_initializers_too() -> None:
    model = mlp()
    weight = model.graph.initializers["fc0.weight"]
    del model.graph.initializers["fc0.weight"]
    weight.name = "label"
    model.graph.register_initializer(weight)
    net = sx.trainable(model, "mse")
    assert any(c.what == "label" and "train/label" in c.value for c in choices(net))


UNCONFIRMED = (
    HEAD
    + """(float[N,4] x) => (float[N] y)
    <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float low = {-1000}, int64[1] flat = {-1}>
    {
        a = MatMul(x, w)
        top = ReduceMax <keepdims = 0> (x)
        c = Greater(top, low)
        y = If (c) <
            then_branch = t () => (float[N,2] p) { p = Identity(a) },
            else_branch = e () => (float[M] q) { q = Reshape(a, flat) }
        >
    }"""
)


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_the_rank_of_an_output_is_learned_from_the_data(loss: str) -> None:
    """The file declares rank 1, nothing in the graph contradicts it, and the rank is 2."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 4)).astype(np.float32)
    y = rng.normal(size=(6, 2)).astype(np.float32)
    z = x @ np.array([[1, 2], [3, 4], [5, 6], [7, 8]])
    expected, label = np.mean((z - y) ** 2), y
    if loss == "cross_entropy":
        label = rng.integers(0, 2, 6)
        picked = z[np.arange(6), label] - z.max(1)
        expected = -np.mean(picked - np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)))
    data = {"x": x, "label": label}
    run = sx.train(parse(UNCONFIRMED), data, loss=loss, steps=1, batch_size=6, display="quiet")
    np.testing.assert_allclose(run.losses[0], expected, rtol=1e-5)


def test_class_axis_from_the_command_line(tmp_path: Any) -> None:
    from sardonyx.cli.trainable import trainable

    source, target = tmp_path / "model.onnx", tmp_path / "trainable.onnx"
    sx.save(sequence_model("product"), source)
    trainable(source, target, loss="cross_entropy", class_axis=1)
    (row,) = [c for c in choices(sx.load(target)) if c.what == "class axis"]
    assert row.value.startswith("1 of") and row.why == "as asked"


def test_terms_take_losses_by_name_and_nothing_but_terms_is_a_term() -> None:
    model, labels = mlp(), ["label"]
    by_name = sx.trainable(model, loss=[sx.loss.Term("cross_entropy", labels=labels)])
    (term,) = (c.value for c in choices(by_name) if c.what == "loss")
    assert term == "cross_entropy"
    with pytest.raises(ArgumentError, match="objects, not tuple"):
        sx.trainable(model, loss=[("cross_entropy", "label")])


def test_a_weight_that_the_loss_does_not_reach_stays_as_it_is() -> None:
    """torch's optimizers skip a parameter without a gradient, also where weights decay."""
    torch = pytest.importorskip("torch")
    text = """(float[N,3] x) => (float[N,2] y, float[N,2] z) <float[3,2] w, float[3,2] v>
    { y = MatMul(x, w)  z = MatMul(x, v) }"""
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(3, 2)).astype(np.float32) for name in ("w", "v")}
    proto = onnx.parser.parse_model(HEAD + text)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    optimizer = sx.optim.adamw(0.1, weight_decay=0.5)
    net = sx.trainable(proto, "cross_entropy", optimizer, prediction="y", clip_norm=0.5)
    rows = {c.what: c.value for c in choices(net)}
    assert rows["not trained"] == '"v"' and rows["trained"].startswith("1 of 2 float tensors")
    rep = prepare_training(net, threads=1)
    parameters = {n: torch.nn.Parameter(torch.tensor(a)) for n, a in arrays.items()}
    theirs = torch.optim.AdamW(parameters.values(), 0.1, weight_decay=0.5)
    for _ in range(4):
        x, label = rng.normal(size=(5, 3)).astype(np.float32), rng.integers(0, 2, 5)
        loss = torch.nn.functional.cross_entropy(
            torch.tensor(x) @ parameters["w"], torch.tensor(label)
        )
        theirs.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 0.5)
        theirs.step()
        step = rep.step({"x": x, "label": label})
        np.testing.assert_allclose(step["loss"], loss.item(), rtol=1e-5)
    tuned = rep.to_model()
    for name, parameter in parameters.items():
        array = tuned.graph.initializers[name].const_value.numpy()
        np.testing.assert_allclose(array, parameter.detach().numpy(), rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("prediction", ["x", "z"])
def test_a_loss_that_reaches_no_weight_is_refused(prediction: str) -> None:
    text = """(float[N,3] x) => (float[N,3] y, float[N,3] z) <float[3,1] w = {1, 2, 3}>
    { m = MatMul(x, w)  y = Add(x, m)  z = Relu(x) }"""
    with pytest.raises(ArgumentError, match="depends on none of the trained parameters"):
        sx.trainable(parse(HEAD + text), "cross_entropy", prediction=prediction)


@pytest.mark.parametrize("declared", [[3], ["N", 2], ["N", 3, 1]])
def test_the_number_of_classes_is_inferred_not_believed(declared: list[Any]) -> None:
    """Outputs declared with another rank or size: onnxruntime runs such files."""
    text = """(float[N,4] x) => (float[N,3] y) <float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>
    { y = MatMul(x, w) }"""
    proto = onnx.parser.parse_model(HEAD + text)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, declared))
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    net = sx.trainable(proto, "cross_entropy")
    run = sx.train(net, {"x": x, "label": np.arange(6) % 3}, steps=1, batch_size=6, shuffle=False)
    scores = x @ np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    exact = scores - np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1, keepdims=True))
    exact -= scores.max(1, keepdims=True)
    np.testing.assert_allclose(
        run.losses[0], -exact[np.arange(6), np.arange(6) % 3].mean(), rtol=1e-5
    )
    with pytest.raises(DataError, match="label 3"):
        sx.train(net, {"x": x, "label": np.arange(6) % 4}, steps=1, batch_size=6)

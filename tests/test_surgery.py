"""Surgery against what torch or numpy computes on the parts, and the refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import ArgumentError, ModelError
from sardonyx.model import Model

from .networks import mlp, parse

X = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)


def classifier(nodes, initializers, outputs=("y",), shape=("N", 6), opset=17) -> Model:  # type: ignore[no-untyped-def]
    """A model of input `x` with the given nodes; weights are random of the given shapes."""
    rng = np.random.default_rng(0)
    made = [
        numpy_helper.from_array(
            v if isinstance(v, np.ndarray) else rng.normal(size=v).astype(np.float32), n
        )
        for n, v in initializers.items()
    ]
    graph = helper.make_graph(
        [
            helper.make_node(*n[:3], name=n[2][0] + "_node", **(n[3] if len(n) > 3 else {}))
            for n in nodes
        ],
        "classifier",
        [helper.make_tensor_value_info("x", 1, list(shape))],
        [helper.make_tensor_value_info(o, 1, None) for o in outputs],
        made,
    )
    return sx.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    )


IMAGE = ("N", 6, 5, 5)
HEADS = {
    "Gemm": ([("Gemm", ["x", "w", "b"], ["y"], {"transB": 1})], {"w": (3, 6), "b": (3,)}, ("N", 6)),
    "Gemm, input first, Softmax": (
        [("Gemm", ["x", "w", "b"], ["s"]), ("Softmax", ["s"], ["y"], {"axis": 1})],
        {"w": (6, 3), "b": (3,)},
        ("N", 6),
    ),
    "MatMul and Add": (
        [("MatMul", ["x", "w"], ["m"]), ("Add", ["b", "m"], ["y"])],
        {"w": (6, 3), "b": (3,)},
        ("N", 6),
    ),
    "MatMul of a Transpose": (
        [
            ("Transpose", ["w"], ["t"], {"perm": [1, 0]}),
            ("MatMul", ["x", "t"], ["m"]),
            ("Add", ["m", "b"], ["z"]),
            ("Sigmoid", ["z"], ["y"]),
        ],
        {"w": (3, 6), "b": (3,)},
        ("N", 6),
    ),
    "Conv, pooling, Reshape to the old number": (
        [
            ("Conv", ["x", "w", "b"], ["c"]),
            ("Relu", ["c"], ["r"]),
            ("GlobalAveragePool", ["r"], ["p"]),
            ("Reshape", ["p", "to"], ["f"]),
            ("Softmax", ["f"], ["y"], {"axis": 1}),
        ],
        {"w": (3, 6, 1, 1), "b": (3,), "to": np.array([-1, 3], np.int64)},
        IMAGE,
    ),
    "Softmax spelled out": (
        [
            ("Gemm", ["x", "w", "b"], ["s"], {"transB": 1}),
            ("ReduceMax", ["s"], ["t"], {"axes": [1], "keepdims": 1}),
            ("Sub", ["s", "t"], ["d"]),
            ("Exp", ["d"], ["e"]),
            ("ReduceSum", ["e", "one"], ["n"], {"keepdims": 1}),
            ("Div", ["e", "n"], ["y"]),
        ],
        {"w": (3, 6), "b": (3,), "one": np.array([1], np.int64)},
        ("N", 6),
    ),
    "LogSoftmax spelled out": (
        [
            ("MatMul", ["x", "w"], ["s"]),
            ("Exp", ["s"], ["e"]),
            ("ReduceSum", ["e", "one"], ["n"], {"keepdims": 0}),
            ("Log", ["n"], ["l"]),
            ("Unsqueeze", ["l", "one"], ["u"]),
            ("Sub", ["s", "u"], ["y"]),
        ],
        {"w": (6, 3), "one": np.array([1], np.int64)},
        ("N", 6),
    ),
    "Sigmoid spelled out": (
        [
            ("Gemm", ["x", "w", "b"], ["s"]),
            ("Neg", ["s"], ["n"]),
            ("Exp", ["n"], ["e"]),
            ("Add", ["e", "unit"], ["p"]),
            ("Reciprocal", ["p"], ["y"]),
        ],
        {"w": (6, 3), "b": (3,), "unit": np.float32([1.0])},
        ("N", 6),
    ),
    "LogSoftmax": (
        [("Gemm", ["x", "w", "b"], ["s"]), ("LogSoftmax", ["s"], ["y"], {"axis": 1})],
        {"w": (6, 3), "b": (3,)},
        ("N", 6),
    ),
    "pooling, Conv, Flatten": (
        [
            ("GlobalAveragePool", ["x"], ["p"]),
            ("Conv", ["p", "w"], ["c"]),
            ("Flatten", ["c"], ["y"]),
        ],
        {"w": (3, 6, 1, 1)},
        IMAGE,
    ),
}


@pytest.mark.parametrize("kind", HEADS)
def test_replaced_head_is_found_trained_and_served(kind: str) -> None:
    nodes, weights, shape = HEADS[kind]
    model = classifier(nodes, weights, shape=shape)
    new = sx.replace_head(model, classes=11)
    x = (
        np.random.default_rng(1)
        .normal(size=(4, *(d for d in shape if d != "N")))
        .astype(np.float32)
    )
    before, after = Runner(model)({"x": x})["y"], Runner(new)({"x": x})["y"]
    assert before.shape == (4, 3)
    assert after.shape == (4, 11)
    assert "w" not in new.graph.initializers
    weight = new.initializer("head.weight").numpy()
    assert 11 in weight.shape and weight.std() > 0
    flat = (x.mean((2, 3)) if x.ndim == 4 else x).astype(np.float64)
    if not any(n[0] == "Relu" for n in nodes):
        matrix = weight.reshape(weight.shape[:2]).astype(np.float64)
        scores = flat @ (matrix if matrix.shape[1] == 11 else matrix.T)
        if "Sigmoid" in kind or nodes[-1][0] == "Sigmoid":
            scores = 1 / (1 + np.exp(-scores))
        elif "Softmax" in kind:
            scores = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            scores = np.log(scores) if "LogSoftmax" in kind else scores
        np.testing.assert_allclose(after, scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [k for k in HEADS if "spelled out" in k])
def test_spelled_out_activation_is_seen_by_trainable(kind: str) -> None:
    from sardonyx.record.describe import settings_of

    nodes, weights, shape = HEADS[kind]
    settings = settings_of(sx.trainable(classifier(nodes, weights, shape=shape)))
    (loss_term,) = settings["loss_terms"]
    sigmoid = kind.startswith("Sigmoid")
    assert loss_term["loss"] == ("binary_cross_entropy" if sigmoid else "cross_entropy")
    # a LogSoftmax of log-probabilities changes nothing, so these may stay the prediction
    assert loss_term["prediction"] == ("y" if kind.startswith("LogSoftmax") else "s")
    assert any("spelled out" in why for _, _, why in settings["choices"])


def test_what_only_looks_like_a_softmax_is_not_one() -> None:
    nodes = [
        ("Gemm", ["x", "w", "b"], ["s"]),
        ("Exp", ["s"], ["e"]),
        ("Exp", ["x"], ["f"]),
        ("ReduceSum", ["f", "one"], ["n"], {"keepdims": 1}),
        ("Div", ["e", "n"], ["y"]),
    ]
    weights = {"w": (6, 3), "b": (3,), "one": np.array([1], np.int64)}
    with pytest.raises(ArgumentError, match="no classification head"):
        sx.replace_head(classifier(nodes, weights), 5)


def test_head_of_a_public_model_that_ends_with_a_spelled_out_softmax(
    public_models: dict[str, Path],
) -> None:
    path = public_models["magika/model.onnx"]
    new = sx.replace_head(path, classes=7)
    assert new.initializer("head.weight").shape.numpy() == (512, 7)
    data = np.random.default_rng(0).integers(0, 256, (5, *new.inputs[0].shape[1:]))  # type: ignore[index]
    result = Runner(new)({new.inputs[0].name or "": data.astype(new.inputs[0].dtype.numpy())})  # type: ignore[union-attr]
    (scores,) = result.values()
    assert scores.shape == (5, 7)
    np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)
    net = sx.trainable(new, train="head.*")
    assert {k for k, _ in net.records[0].update_binding} >= {"head.weight", "head.bias"}


def test_head_starts_as_asked_and_alike_for_equal_seeds() -> None:
    model = mlp((6, 50, 3))
    weight = lambda **k: sx.replace_head(model, 200, **k).initializer("head.weight").numpy()
    assert np.array_equal(weight(seed=1), weight(seed=1))
    assert not np.array_equal(weight(seed=1), weight(seed=2))
    bound = np.sqrt(2.0) * np.sqrt(3.0 / 50)
    assert 0.98 * bound < np.abs(weight()).max() <= bound
    assert not np.any(sx.replace_head(model, 7, init="zeros").initializer("head.weight").numpy())


def test_other_outputs_and_weights_stay_bit_for_bit() -> None:
    model = mlp((6, 5, 3))
    new = sx.replace_head(model, 4, name="classifier")
    assert np.array_equal(
        new.initializer("fc0.weight").numpy(), model.initializer("fc0.weight").numpy()
    )
    assert [v.name for v in new.outputs] == ["scores"]
    assert list(model.graph.initializers) == ["fc0.weight", "fc0.bias", "fc1.weight", "fc1.bias"]
    assert {"classifier.weight", "classifier.bias"} <= set(new.graph.initializers)


def test_new_weights_take_over_the_names_of_old_ones() -> None:
    new = sx.replace_head(mlp(), 7, name="fc1")
    assert list(new.graph.initializers) == ["fc0.weight", "fc0.bias", "fc1.weight", "fc1.bias"]
    assert new.initializer("fc1.weight").shape == (7, 5)
    assert Runner(new)({"x": X})["scores"].shape == (4, 7)


def test_replaced_head_is_what_trainable_trains(tmp_path: Path) -> None:
    net = sx.trainable(sx.replace_head(mlp(), 10), "cross_entropy", train="head.*")
    keys = {k for k, _ in net.records[0].update_binding}
    assert {"head.weight", "head.bias"} <= keys
    assert not any(k.startswith("fc") for k in keys)
    onnx.checker.check_model(str(sx.save(net, tmp_path / "net.onnx")))


@pytest.mark.parametrize(
    ("nodes", "weights", "message"),
    [
        ([("Relu", ["x"], ["y"])], {}, "no classification head"),
        ([("MatMul", ["x", "x2"], ["y"]), ], {"x2": (6, 3)}, None),
        (
            [("Gemm", ["x", "w"], ["s"]), ("Mul", ["s", "s"], ["y"])],
            {"w": (6, 3)},
            "no classification head",
        ),
        (
            [("Gemm", ["x", "w"], ["s"]), ("Add", ["s", "x"], ["y"])],
            {"w": (6, 6)},
            "no classification head",
        ),
    ],
)  # fmt: skip
def test_head_that_is_not_one(nodes, weights, message) -> None:  # type: ignore[no-untyped-def]
    model = classifier(nodes, weights)
    if message is None:
        assert sx.replace_head(model, 5)
    else:
        with pytest.raises(ArgumentError, match=message):
            sx.replace_head(model, 5)


def test_cut_gives_the_features() -> None:
    model = mlp((6, 5, 3))
    features = sx.cut(model, "a0")
    w, b = (model.initializer(f"fc0.{n}").numpy() for n in ("weight", "bias"))
    result = Runner(features)({"x": X})
    assert list(result) == ["a0"]
    np.testing.assert_allclose(result["a0"], np.tanh(X @ w.T + b), rtol=1e-5, atol=1e-6)
    assert "fc1.weight" not in features.graph.initializers


def test_cut_in_two_is_the_whole() -> None:
    model = mlp((6, 5, 4, 3))
    first, second = sx.cut(model, "a0"), sx.cut(model, start="a0")
    assert [v.name for v in second.inputs] == ["a0"]
    middle = Runner(first)({"x": X})["a0"]
    np.testing.assert_array_equal(
        Runner(second)({"a0": middle})["scores"], Runner(model)({"x": X})["scores"]
    )


def test_insert_a_block_with_weights() -> None:
    model = mlp((6, 5, 3))
    w = np.random.default_rng(5).normal(size=(5, 5)).astype(np.float32)

    def adapter(op, x):  # type: ignore[no-untyped-def]
        return x + op.MatMul(x, op.weight("adapter.weight", w))

    new = sx.insert(model, "a0", adapter)
    a = Runner(sx.cut(model, "a0"))({"x": X})["a0"]
    expected = Runner(sx.cut(model, start="a0"))({"a0": a + a @ w})["scores"]
    np.testing.assert_allclose(Runner(new)({"x": X})["scores"], expected, rtol=1e-5, atol=1e-6)
    assert "adapter.weight" in new.graph.initializers


@pytest.mark.parametrize("at", ["x", "scores"])
def test_insert_at_the_edges_keeps_the_interface(at: str) -> None:
    model = mlp((6, 5, 3))
    new = sx.insert(model, at, lambda op, x: op.Mul(x, 2.0))
    assert [v.name for v in new.inputs] == ["x"]
    assert [v.name for v in new.outputs] == ["scores"]
    run = Runner(model)
    expected = run({"x": 2 * X})["scores"] if at == "x" else 2 * run({"x": X})["scores"]
    np.testing.assert_allclose(Runner(new)({"x": X})["scores"], expected, rtol=1e-6)


def test_equal_weights_of_a_block_stay_two() -> None:
    zeros = np.zeros(5, np.float32)

    def block(op, x):  # type: ignore[no-untyped-def]
        return op.Add(op.Add(x, op.weight("a.bias", zeros)), op.weight("b.bias", zeros))

    assert {"a.bias", "b.bias"} <= set(sx.insert(mlp((6, 5, 3)), "a0", block).graph.initializers)


def test_block_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ModelError, match="does not fit behind"):
        sx.insert(mlp((6, 5, 3)), "a0", lambda op, x: op.Concat(x, x, axis=1))


def test_remove_an_activation() -> None:
    model = mlp((6, 5, 3))
    new = sx.remove(model, "act*")
    weights = {n: v.const_value.numpy() for n, v in model.graph.initializers.items()}  # type: ignore[union-attr]
    hidden = X @ weights["fc0.weight"].T + weights["fc0.bias"]
    np.testing.assert_allclose(
        Runner(new)({"x": X})["scores"],
        hidden @ weights["fc1.weight"].T + weights["fc1.bias"],
        rtol=1e-4,
    )


def test_remove_the_last_node_keeps_the_output_name() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,4] x) => (float[N,4] y) {a = Relu(x) [last] y = Sigmoid(a)}"""
    )
    x = np.array([[-1, 0, 1, 2]], np.float32)
    assert np.array_equal(Runner(sx.remove(model, "last"))({"x": x})["y"], np.maximum(x, 0))


def test_what_changes_the_shape_is_not_removed() -> None:
    with pytest.raises(ArgumentError, match="cannot be taken out"):
        sx.remove(mlp((6, 5, 3)), "fc*")


def test_reinitialize_draws_what_it_says() -> None:
    model = mlp((400, 300, 3))
    new = sx.reinitialize(model, {"*.weight": "xavier_normal", "*.bias": "zeros"}, seed=1)
    w = new.initializer("fc0.weight").numpy()
    assert w.shape == (300, 400)
    assert abs(w.std() / np.sqrt(2 / 700) - 1) < 0.02
    assert not new.initializer("fc0.bias").numpy().any()
    assert not np.array_equal(w, model.initializer("fc0.weight").numpy())
    one = sx.reinitialize(model, "fc1.weight", "xavier_normal", seed=1)
    assert np.array_equal(
        one.initializer("fc1.weight").numpy(), new.initializer("fc1.weight").numpy()
    ), "a tensor's draw depends on its name and the seed alone"


def test_reinitialize_knows_the_layout_and_the_norms() -> None:
    rng = np.random.default_rng(0)
    model = classifier(
        [("MatMul", ["x", "w"], ["h"]), ("LayerNormalization", ["h", "scale", "shift"], ["y"])],
        {"w": (6, 3000), "scale": rng.normal(size=3000).astype(np.float32), "shift": (3000,)},
    )
    new = sx.reinitialize(model, "*", "kaiming_normal")
    assert abs(new.initializer("w").numpy().std() / np.sqrt(2 / 6) - 1) < 0.02
    assert (new.initializer("scale").numpy() == 1).all()
    assert (new.initializer("shift").numpy() == 0).all()


def test_frozen_weights_are_not_trained_and_the_mark_is_saved(tmp_path: Path) -> None:
    path = sx.save(sx.freeze(mlp(), "fc0.*"), tmp_path / "frozen.onnx")
    marked = sx.load(path)
    keys = lambda m, **k: {n for n, _ in sx.trainable(m, "mse", **k).records[0].update_binding}
    assert not {"fc0.weight", "fc0.bias"} & keys(marked)
    assert {"fc1.weight", "fc1.bias"} <= keys(marked)
    assert "fc0.weight" in keys(marked, train="fc0.weight")
    assert "fc0.weight" in keys(sx.unfreeze(marked, "fc0.*"))


def test_tied_weights_are_one_and_get_one_gradient() -> None:
    model = mlp((6, 6, 6), dtype=np.float64)
    tied = sx.tie(model, ["fc0.weight", "fc1.weight"])
    assert "fc1.weight" not in tied.graph.initializers
    w = model.initializer("fc0.weight").numpy()
    b0, b1 = (model.initializer(f"fc{i}.bias").numpy() for i in (0, 1))
    x = X.astype(np.float64)
    np.testing.assert_allclose(
        Runner(tied)({"x": x})["scores"], np.tanh(x @ w.T + b0) @ w.T + b1, rtol=1e-12
    )
    torch = pytest.importorskip("torch")
    t = torch.tensor(w, requires_grad=True)
    out = torch.tanh(torch.tensor(x) @ t.T + torch.tensor(b0)) @ t.T + torch.tensor(b1)
    out.sum().backward()
    result = Runner(sx.grad(tied, wrt="fc0.weight"))({"x": x})["grad/fc0.weight"]
    np.testing.assert_allclose(result, t.grad.numpy(), rtol=1e-10)


def test_tied_transposes() -> None:
    model = mlp((6, 5, 6))
    tied = sx.tie(model, ["fc0.weight", "fc1.weight"])
    w = model.initializer("fc0.weight").numpy()
    b0, b1 = (model.initializer(f"fc{i}.bias").numpy() for i in (0, 1))
    np.testing.assert_allclose(
        Runner(tied)({"x": X})["scores"], np.tanh(X @ w.T + b0) @ w + b1, rtol=1e-4, atol=1e-6
    )
    with pytest.raises(ArgumentError, match="cannot be shared"):
        sx.tie(model, ["fc0.weight", "fc0.bias"])


def test_surgery_on_a_model_with_a_record_is_refused() -> None:
    net = sx.trainable(mlp(), "mse")
    with pytest.raises(ArgumentError, match="carries a training record"):
        sx.replace_head(net, 5)


def test_unknown_names_are_refused() -> None:
    for operation in (
        lambda: sx.cut(mlp(), ["nowhere", "elsewhere"]),
        lambda: sx.insert(mlp(), "nowhere", lambda op, x: x),
        lambda: sx.remove(mlp(), "nowhere"),
        lambda: sx.reinitialize(mlp(), "nowhere"),
        lambda: sx.freeze(mlp(), "nowhere"),
        lambda: sx.tie(mlp(), ["fc0.weight", "nowhere"]),
        lambda: sx.replace_head(mlp(), 3, output="nowhere"),
    ):
        with pytest.raises(ArgumentError):
            operation()


def test_replace_head_of_a_weight_that_is_kept_small_beside_its_scale() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 2] x) => (float[N, 3] y)
    <int8[2, 3] stored = {1, 2, 3, 4, 5, 6}, float[3] scale = {0.5, 0.25, 2},
     float[3] b = {1, 2, 3}>
    { wide = Cast<to = 1>(stored) w = Mul(wide, scale) s = MatMul(x, w) y = Add(s, b) }""")
    new = sx.replace_head(model, classes=5)
    assert list(new.initializer("head.weight").shape) == [2, 5]
    assert list(new.outputs[0].shape)[1] == 5
    assert "stored" not in new.graph.initializers

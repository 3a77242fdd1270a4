"""Preparation, model and what follows in one file: the parts by themselves are the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.build import Builder
from sardonyx.cli.__main__ import main
from sardonyx.versions import fit

node = helper.make_node
ROWS = 40
RNG = np.random.default_rng(0)
RAW: dict[str, Any] = {
    "colour": RNG.choice(["red", "green", "blue", "?"], ROWS).astype(object),
    "age": np.where(RNG.random(ROWS) < 0.2, np.nan, RNG.uniform(1, 80, ROWS)),
}
TARGET = RNG.integers(0, 2, ROWS)
HOW: dict[str, Any] = {
    "loss": "cross_entropy", "optimizer": "sgd", "lr": 0.01, "batch_size": 8, "epochs": 2
}  # fmt: skip


def info(name: str, kind: int, *dims: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(dims))


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    opset: int,
    **constants: np.ndarray,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def preparation(opset: int = 17, outputs: tuple[str, str] = ("code", "filled")) -> onnx.ModelProto:
    code, filled = outputs
    keys = {"keys_strings": ["red", "green", "blue"], "values_int64s": [0, 1, 2]}
    nodes = [
        node("LabelEncoder", ["colour"], [code], domain="ai.onnx.ml", default_int64=3, **keys),
        node("IsNaN", ["age"], ["missing"]),
        node("Where", ["missing", "mean", "age"], [filled]),
    ]
    inputs = [info("colour", TensorProto.STRING, "N"), info("age", TensorProto.DOUBLE, "N")]
    results = [info(code, TensorProto.INT64, "N"), info(filled, TensorProto.DOUBLE, "N")]
    return model_of(nodes, inputs, results, opset, mean=np.array(30.0))


def network(opset: int = 17, inner: str = "h") -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    nodes = [
        node("Gemm", ["x", "w", "b"], [inner], transB=1),
        node("Tanh", [inner], ["t"]),
        node("Gemm", ["t", "v", "c"], ["scores"], transB=1),
    ]
    weights = {"w": (5, 2), "b": (5,), "v": (2, 5), "c": (2,)}
    arrays = {n: 0.1 * rng.normal(size=s).astype(np.float32) for n, s in weights.items()}
    inputs = [info("x", TensorProto.FLOAT, "N", 2)]
    return model_of(nodes, inputs, [info("scores", TensorProto.FLOAT, "N", 2)], opset, **arrays)


def labels() -> onnx.ModelProto:
    keys = {"keys_int64s": [0, 1], "values_strings": ["no", "yes"]}
    nodes = [
        node("ArgMax", ["scores"], ["index"], axis=1, keepdims=0),
        node("LabelEncoder", ["index"], ["label"], domain="ai.onnx.ml", **keys),
    ]
    inputs = [info("scores", TensorProto.FLOAT, "N", 2)]
    return model_of(nodes, inputs, [info("label", TensorProto.STRING, "N")], 17)


def run(model: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    """The outputs of a model in onnxruntime; of ours, at versions that it takes."""
    proto = fit(model).proto() if isinstance(model, sx.Model) else model
    session = ort.InferenceSession(proto.SerializeToString())
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))


def features() -> np.ndarray:
    """What the preparation gives, by onnxruntime alone, as the network takes it."""
    parts = run(preparation(), RAW)
    return np.stack([parts["code"], parts["filled"]], 1).astype(np.float32)


def losses(result: Any) -> list[float]:
    return [epoch["loss"] for epoch in result.history]


@pytest.mark.parametrize("opset", [15, 17, 20])
def test_gives_what_the_parts_give(opset: int, tmp_path: Path) -> None:
    whole = sx.compose(preparation(opset), network(), labels())
    path = sx.save(whole, tmp_path / "whole.onnx")
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert {p.key: p.value for p in proto.metadata_props}["preprocessing_fn"].endswith(
        "::Preprocessing"
    )
    scores = run(network(), {"x": features()})["scores"]
    expected = np.array(["no", "yes"])[scores.argmax(1)]
    assert run(proto, RAW)["label"].tolist() == expected.tolist()


def test_splits_into_the_parts(tmp_path: Path) -> None:
    whole = sx.compose(preparation(20), network(), labels())
    sx.save(whole, tmp_path / "whole.onnx")
    for source in (tmp_path / "whole.onnx", sx.normalize(whole)):  # also after inlining
        parts = sx.split(source)
        assert parts.preparation is not None and parts.after is not None
        (x,) = run(parts.preparation, RAW).values()
        assert np.array_equal(x, features())
        scores = run(parts.model, {"x": x})["scores"]
        assert np.array_equal(scores, run(network(), {"x": x})["scores"])
        (label,) = run(parts.after, {"scores": scores}).values()
        assert label.tolist() == run(whole, RAW)["label"].tolist()
    original = onnx.load_from_string(network().SerializeToString())
    names = [n.op_type for n in original.graph.node]
    assert [n.op_type for n in sx.split(whole).model.graph] == names


def test_inspect_and_the_report_show_the_stages(tmp_path: Path, capsys: Any) -> None:
    whole = sx.compose(preparation(), network(), labels())
    path = sx.save(whole, tmp_path / "whole.onnx")
    inlined = sx.save(sx.normalize(whole), tmp_path / "inlined.onnx")
    assert sx.inspect(network()).stages == []
    for source in (path, inlined):
        first, middle, last = sx.inspect(source).stages
        assert [first.name, middle.name, last.name] == ["preprocessing", "model", "postprocessing"]
        assert set(first.reads) == set(RAW)
        assert first.gives == middle.reads and middle.gives == last.reads
        assert last.gives == ["label"]
    assert first.nodes >= len(preparation().graph.node)
    with pytest.raises(SystemExit):
        main(["inspect", str(path), "--html", str(tmp_path / "page.html")])
    printed = capsys.readouterr().out
    assert "preprocessing" in printed and "postprocessing" in printed
    assert "preprocessing" in (tmp_path / "page.html").read_text()
    run_ = sx.train(whole, {**RAW, "target": TARGET}, prediction="scores", **HOW)
    assert "preprocessing" in sx.write_report(run_, tmp_path / "report.html").read_text()


@pytest.mark.parametrize("engine", ["onnxruntime", "torch"])
def test_trains_from_raw_rows(engine: str, tmp_path: Path) -> None:
    whole = sx.compose(preparation(), network(), labels())
    how = {**HOW, "engine": engine}
    run_ = sx.train(whole, {**RAW, "target": TARGET}, prediction="scores", **how)
    expected = sx.train(network(), {"x": features(), "target": TARGET}, **how)
    assert losses(run_) == losses(expected)
    path = sx.save(run_.model, tmp_path / "tuned.onnx")
    onnx.checker.check_model(onnx.load(path))
    tuned = sx.split(path).model
    assert len(tuned.records) == 1
    for name in "wbvc":
        trained = expected.model.initializer(name).numpy()
        assert np.array_equal(tuned.initializer(name).numpy(), trained)
    assert sx.split(path).preparation is not None


def test_a_record_of_the_model_stays() -> None:
    data = {"x": features(), "target": TARGET}
    half = sx.train(network(), data, **HOW)
    whole = sx.compose(preparation(), half.model)
    resumed = sx.train(whole, {**RAW, "target": TARGET}, epochs=2, batch_size=8)
    expected = sx.train(half.model, data, epochs=2, batch_size=8)
    assert losses(resumed) == losses(expected)


def test_constants_of_the_preparation_are_not_weights() -> None:
    kinds = {w.name: w.kind for w in sx.weights(sx.compose(preparation(), network()))}
    assert {n for n, kind in kinds.items() if kind == "weight"} == set("wbvc")


def test_names_that_both_parts_use() -> None:
    whole = sx.compose(preparation(), network(inner="age"))
    expected = run(network(), {"x": features()})["scores"]
    assert np.array_equal(run(whole, RAW)["scores"], expected)
    trained = sx.trainable(network(inner="age"), "cross_entropy")
    with pytest.raises(sx.errors.ArgumentError, match="names of columns"):
        sx.compose(preparation(), trained)


def test_outputs_are_matched_by_name_before_position() -> None:
    rng = np.random.default_rng(2)
    inputs = [info("filled", TensorProto.FLOAT, "N", 1), info("code", TensorProto.FLOAT, "N", 1)]
    nodes = [node("Mul", ["filled", "w"], ["m"]), node("Add", ["m", "code"], ["y"])]
    weight = rng.normal(size=(1,)).astype(np.float32)
    model = model_of(nodes, inputs, [info("y", TensorProto.FLOAT, "N", 1)], 17, w=weight)
    x = features()
    expected = x[:, 1:] * weight + x[:, :1]
    assert np.array_equal(run(sx.compose(preparation(), model), RAW)["y"], expected)


def test_parts_that_do_not_fit() -> None:
    text = model_of(
        [node("Identity", ["s"], ["t"])],
        [info("s", TensorProto.STRING, "N")],
        [info("t", TensorProto.STRING, "N")],
        17,
    )
    with pytest.raises(sx.errors.ArgumentError, match="do not fit"):
        sx.compose(text, network())
    wide = model_of(
        [node("Identity", ["x"], ["y"])],
        [info("x", TensorProto.FLOAT, "N", 3)],
        [info("y", TensorProto.FLOAT, "N", 3)],
        17,
    )
    with pytest.raises(sx.errors.ArgumentError, match="gives 2 columns"):
        sx.compose(preparation(), wide)
    with pytest.raises(sx.errors.ArgumentError, match="already"):
        sx.compose(preparation(), sx.compose(preparation(), network()))


def test_a_model_without_parts_is_its_own_model() -> None:
    parts = sx.split(network())
    assert parts.preparation is None and parts.after is None
    assert len(parts.model.graph) == 3


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_gradient_boosting_behind_text_runs_on_other_engines(engine: str, tmp_path: Path) -> None:
    """The oracle is scikit-learn; the encoder of text has its keys in a tensor of strings."""
    pd = pytest.importorskip("pandas")
    ensemble = pytest.importorskip("sklearn.ensemble")
    frame = pd.DataFrame({"age": np.arange(60.0), "port": ["S", "C", "Q"] * 20})

    def prepare(df: Any) -> Any:
        ages = df["age"].fillna(df["age"].median()).rename("years")
        return pd.concat([ages, pd.get_dummies(df["port"], prefix="p").astype(float)], axis=1)

    features, labels = prepare(frame), (np.arange(60) % 7 > 3).astype(int)
    trees = ensemble.HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=5)
    trees.fit(features, labels)
    whole = sx.compose(sx.from_pandas(prepare, frame), sx.from_sklearn(trees, features))
    sx.save(whole, tmp_path / "whole.onnx")
    back = sx.load(tmp_path / "whole.onnx")
    feeds = back.feeds(frame)
    report = sx.verify(back, engine, inputs=[feeds])
    assert report.verdict == "same", str(report)
    session = ort.InferenceSession(tmp_path / "whole.onnx")
    label, probabilities = session.run(None, feeds)
    assert np.array_equal(label, trees.predict(features))
    np.testing.assert_allclose(probabilities, trees.predict_proba(features), rtol=1e-12)


def test_constants_of_strings_are_told_apart_by_their_letters() -> None:
    """Bytes of an array of strings are addresses, which are free again once the array is gone."""
    builder, values = Builder("g"), {}
    for number in range(300):
        words = [f"word {number} {letter}" for letter in "abc"]
        values[number] = builder.const(np.array(words, object))
        del words
    for number, value in values.items():
        assert value.const_value.numpy()[0] in (f"word {number} a", f"word {number} a".encode())
    assert builder.const(np.array(["x"], object)) is builder.const(np.array(["x"], object))

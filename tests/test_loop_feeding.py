"""Constant inputs, rows on another axis, batches of a fixed size; names as labels; data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.errors import ArgumentError, DataError
from sardonyx.model import Model, load
from sardonyx.train.evaluation import class_names, predictions
from sardonyx.train.fields import Feeding
from sardonyx.train.files import open_file
from sardonyx.train.predictions import write_predictions
from sardonyx.train.tables import as_array

from .networks import mlp, network

rng = np.random.default_rng(0)
X = rng.normal(size=(203, 6)).astype(np.float32)
LABEL = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)
NAMES = np.array(["ape", "bee", "cat"])
DATA = {"x": X, "label": LABEL}


def detector(batch: int | str = "N") -> Model:
    """As voice detectors are: x[N, 6], state[2, N, 3], a rate; scores and the next state."""
    weight = numpy_helper.from_array(rng.normal(size=(6, 3)).astype(np.float32), "weight")
    thousand = numpy_helper.from_array(np.float32(8000), "thousand")
    first = numpy_helper.from_array(np.array([0]), "first")
    nodes = [
        helper.make_node("Cast", ["sr"], ["rate"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Div", ["rate", "thousand"], ["factor"], "div"),
        helper.make_node("MatMul", ["x", "weight"], ["product"], "matmul"),
        helper.make_node("Mul", ["product", "factor"], ["scaled"], "mul"),
        helper.make_node("ReduceSum", ["state", "first"], ["sum"], "sum", keepdims=0),
        helper.make_node("Add", ["scaled", "sum"], ["scores"], "add"),
        helper.make_node("Tanh", ["state"], ["next"], "tanh"),
    ]
    value = helper.make_tensor_value_info
    inputs = [
        value("sr", TensorProto.INT64, []),
        value("x", TensorProto.FLOAT, [batch, 6]),
        value("state", TensorProto.FLOAT, [2, batch, 3]),
    ]
    outputs = [
        value("scores", TensorProto.FLOAT, [batch, 3]),
        value("next", TensorProto.FLOAT, [2, batch, 3]),
    ]
    graph = helper.make_graph(nodes, "detector", inputs, outputs, [weight, thousand, first])
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


STATE = rng.normal(size=(203, 2, 3)).astype(np.float32)


def scores(model: Model, state: np.ndarray, rate: int) -> np.ndarray:
    weight = model.initializer("weight").numpy().astype(np.float64)
    return X @ weight * (rate / 8000) + state.sum(1)


def cross_entropy(logits: np.ndarray) -> float:
    logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -logp[np.arange(203), LABEL].mean()


@pytest.mark.parametrize("field", (True, False), ids=["state in the data", "state is zero"])
def test_constants_and_rows_on_another_axis(field: bool) -> None:
    model = detector()
    data = {**DATA, "state": STATE} if field else DATA
    constants = {"sr": 16000} if field else {"sr": 16000, "state": 0}
    state = STATE if field else np.zeros_like(STATE)
    expected = scores(model, state, 16000)
    run = sx.train(
        model,
        data,
        steps=1,
        batch_size=203,
        constants=constants,
        loss="cross_entropy",
        optimizer=sx.optim.sgd(0.1),
    )
    assert run.losses[0] == pytest.approx(cross_entropy(expected), rel=1e-5)
    measured = sx.evaluate(
        model, data, batch_size=50, constants=constants, loss="cross_entropy", prediction="scores"
    )
    assert measured["loss"] == pytest.approx(cross_entropy(expected), rel=1e-5)
    assert measured["accuracy"] == pytest.approx((expected.argmax(1) == LABEL).mean())
    outputs = sx.predict(model, data, batch_size=50, constants=constants)
    session = onnxruntime.InferenceSession(model.proto().SerializeToString())
    feeds = {"x": X, "state": state.transpose(1, 0, 2).copy(), "sr": np.array(16000)}
    for name, value in zip(("scores", "next"), session.run(["scores", "next"], feeds), strict=True):
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-6)
    assert (
        len(sx.train(model, data, epochs=1, constants=constants, loss="cross_entropy").losses) == 7
    )


def test_the_axis_of_rows_may_be_said() -> None:
    model = detector()
    model.graph.inputs[2].shape = type(model.graph.inputs[2].shape)([2, "M", 3])  # another name
    data = {**DATA, "state": STATE}
    with pytest.raises(DataError, match="--batch-axis state=AXIS"):
        sx.predict(model, data, constants={"sr": 8000})
    outputs = sx.predict(model, data, constants={"sr": 8000}, batch_axes={"state": 1})
    np.testing.assert_allclose(outputs["scores"], scores(model, STATE, 8000), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_fed_is_refused() -> None:
    for settings, words in (
        ({}, "--constant sr=VALUE"),
        ({"constants": {"sr": 1.5, "state": 0}}, "is no INT64"),
        ({"constants": {"sr": 1, "stat": 0}}, "did you mean state"),
        ({"constants": {"sr": 1, "state": [1.0, 2.0]}}, "the shape [2]"),
        ({"constants": {"sr": 1, "x": 0, "state": 0}, "batch_axes": {"x": 7}}, "no axis 7"),
    ):
        with pytest.raises(ArgumentError) as caught:
            sx.train(detector(), DATA, steps=1, loss="cross_entropy", **settings)
        assert words in str(caught.value)


def test_a_model_that_fixes_the_batch(tmp_path: Path) -> None:
    constants = {"sr": 8000, "state": 0}
    how: dict[str, Any] = {"constants": constants, "loss": "cross_entropy"}
    model = detector(10)
    even = {"x": X[:200], "label": LABEL[:200]}
    run = sx.train(model, even, epochs=1, **how)
    assert (run.position.batch_size, run.position.step) == (10, 20)
    with pytest.raises(ArgumentError, match="--batch-size 10"):
        sx.train(model, even, epochs=1, batch_size=32, **how)
    with pytest.raises(ArgumentError, match="--drop-last"):
        sx.train(model, DATA, epochs=1, **how)
    assert sx.train(model, DATA, epochs=1, drop_last=True, **how).position.step == 20
    result = sx.predict(model, {"x": X}, constants=constants)["scores"]
    assert result.shape == (203, 3)  # also the rows that do not fill a batch
    np.testing.assert_allclose(
        result, scores(model, np.zeros_like(STATE), 8000), rtol=1e-4, atol=1e-5
    )


# -- data as people hold it ----------------------------------------------------------------------


def losses(data: Any, **settings: Any) -> list[float]:
    return list(sx.train(mlp(), data, steps=7, shuffle=False, **settings).losses)


def table(label: Any, header: str | None) -> str:
    rows = [",".join([*(repr(float(v)) for v in x), str(y)]) for x, y in zip(X, label, strict=True)]
    return "\n".join([*([header] if header else []), *rows])


def test_a_table_without_a_header_is_recognised(tmp_path: Path) -> None:
    expected = losses(DATA)
    header = "a,b,c,d,e,f,kind"
    for name, text in {
        "header": table(LABEL, header),
        "none": table(LABEL, None),
        "header and names": table(NAMES[LABEL], header),
        "names": table(NAMES[LABEL], None),
    }.items():
        path = tmp_path / f"{name}.csv"
        path.write_text(text)
        assert len(open_file(path, None)) == 203, name
        assert losses(path) == expected, name
        assert bool(open_file(path, None).facts) == ("header" not in name)
    labelled = sx.predict(mlp(), tmp_path / "none.csv")["scores"]
    np.savetxt(tmp_path / "only.csv", X, delimiter=",", fmt="%.9g")
    np.testing.assert_array_equal(sx.predict(mlp(), tmp_path / "only.csv")["scores"], labelled)


def test_names_as_labels_are_numbered_once_for_all(tmp_path: Path) -> None:
    expected = losses(DATA)
    named = {"x": X, "label": NAMES[LABEL]}
    assert losses(named) == expected
    assert losses({"x": X, "label": NAMES[LABEL].astype(object)}) == expected
    run = sx.train(mlp(), named, epochs=1, output=tmp_path / "o.onnx")
    assert class_names(sx.load(tmp_path / "o.onnx")) == ("ape", "bee", "cat")
    some = LABEL > 0  # without apes, bees are still number 1
    result = sx.evaluate(run.model, {"x": X[some], "label": NAMES[LABEL][some]})
    right = sx.predict(run.model, {"x": X[some]})["scores"].argmax(1) == LABEL[some]
    assert result["accuracy"] == pytest.approx(right.mean())
    with pytest.raises(DataError, match='"dog"'):
        sx.evaluate(run.model, {"x": X[:1], "label": np.array(["dog"])})


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({f"c{i}": X[:, i] for i in range(6)} | {"kind": LABEL})
    expected = losses(DATA)
    assert losses(frame) == expected
    assert losses(frame.assign(kind=NAMES[LABEL])) == expected
    other = frame.assign(noise=0.0)[["kind", "noise", *(f"c{i}" for i in range(6))]]
    assert losses(other, columns=[*(f"c{i}" for i in range(6)), "kind"]) == expected


def test_data_sets_of_torch() -> None:
    torch = pytest.importorskip("torch")
    expected = losses(DATA)

    class Pairs(torch.utils.data.Dataset):  # type: ignore[name-defined,misc]
        def __len__(self) -> int:
            return 203

        def __getitem__(self, i: int) -> Any:
            return torch.tensor(X[i]), int(LABEL[i])

    class Dicts(Pairs):
        classes = ["ape", "bee", "cat"]

        def __getitem__(self, i: int) -> Any:
            return {"x": X[i], "label": NAMES[LABEL[i]]}

    class Endless(torch.utils.data.IterableDataset):  # type: ignore[name-defined,misc]
        def __iter__(self) -> Any:
            return iter([(x, y) for x, y in zip(X, LABEL, strict=True)])

    assert losses(Pairs()) == expected
    assert losses(Dicts()) == expected
    assert losses(Endless()) == expected
    whole = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABEL))
    assert losses(whole) == expected
    assert sx.train(mlp(), Pairs(), epochs=1, validation=0.2).history[0]["val_accuracy"] >= 0
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


def test_axes_without_names(tmp_path: Path) -> None:
    """Nothing names the batch: the only free axis of the state is that of the rows."""
    model = detector()
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape:
            value.shape = type(value.shape)(
                [d if isinstance(d, int) else None for d in value.shape]
            )
    data = {**DATA, "state": STATE}
    outputs = sx.predict(model, data, batch_size=50, constants={"sr": 8000})
    np.testing.assert_allclose(outputs["scores"], scores(model, STATE, 8000), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs["next"], np.tanh(STATE).transpose(1, 0, 2), rtol=1e-5)


def test_labels_may_be_whole_numbers_stored_as_floats() -> None:
    assert losses({"x": X, "label": LABEL.astype(np.float32)}) == losses(DATA)
    with pytest.raises(DataError, match=r"\.5, not a whole number"):
        losses({"x": X, "label": LABEL + 0.5})
    late = LABEL.astype(np.float64)
    late[-1] = 1.5
    batches = [{"x": X[i : i + 32], "label": late[i : i + 32]} for i in range(0, 203, 32)]
    with pytest.raises(DataError, match=r"label 1\.5"):  # a stream shows it when it comes
        losses(batches)


def test_predictions_whose_rows_are_not_on_the_first_axis_as_a_table(tmp_path: Path) -> None:
    model = detector()
    feeding = Feeding(constants={"sr": 8000})
    result = predictions(model, {**DATA, "state": STATE}, 50, feeding, None, None)
    write_predictions(result, model, tmp_path / "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0].split(",") == ["row", *(f"scores_{i}" for i in range(3))] + [
        f"next_{i}" for i in range(6)
    ]
    numbers = np.array([line.split(",")[1:] for line in lines[1:]], np.float64)
    expected = scores(model, STATE, 8000)
    np.testing.assert_allclose(numbers[:, :3], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numbers[:, 3:], np.tanh(STATE).reshape(203, 6), rtol=1e-5)


def test_predictions_of_a_classifier_of_scikit_learn() -> None:
    """Such a model gives labels, and its scores as one map for each row."""
    text = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "raw"],
        "classifier",
        domain="ai.onnx.ml",
        classlabels_ints=[0, 1, 2],
        coefficients=rng.normal(size=18).tolist(),
        intercepts=[0.0, 0.1, 0.2],
        post_transform="SOFTMAX",
    )
    zipmap = helper.make_node(
        "ZipMap", ["raw"], ["scores"], "zip", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
    )
    kind = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    )
    graph = helper.make_graph(
        [text, zipmap],
        "sklearn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["N"]),
            helper.make_value_info("scores", helper.make_sequence_type_proto(kind)),
        ],
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=versions, ir_version=8)
    labels, maps = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
    result = sx.predict(load(proto), {"x": X}, batch_size=50)
    np.testing.assert_array_equal(result["label"], labels)
    expected = [[row[c] for c in range(3)] for row in maps]
    np.testing.assert_allclose(result["scores"], expected, rtol=1e-6)


def test_columns_that_are_no_arrays(tmp_path: Path) -> None:
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    expected = losses(DATA)
    assert losses({"x": X.tolist(), "label": LABEL.tolist()}) == expected
    assert losses({"x": X.tolist(), "label": NAMES[LABEL].tolist()}) == expected
    assert (
        losses({"x": torch.tensor(X, requires_grad=True), "label": torch.tensor(LABEL)}) == expected
    )
    # rows count by their place, not by the index that a part of a frame has kept
    series = pandas.Series(LABEL, index=np.arange(203)[::-1])
    assert losses({"x": X, "label": series}) == expected
    with pytest.raises(DataError, match="different shapes"):
        losses({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]})


def test_columns_of_lists_are_fields(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    contents = pyarrow.table({"x": X.tolist(), "label": LABEL})
    parquet.write_table(contents, tmp_path / "d.parquet")
    expected = losses(DATA)
    assert losses(tmp_path / "d.parquet") == expected
    assert losses(contents) == expected
    assert losses(contents.to_pandas()) == expected


TOO_LARGE = {
    "whole numbers": ("int32[N,2]", np.full((4, 2), 2**40)),
    "unsigned": ("int64[N,2]", np.full((4, 2), 2**63 + 1, np.uint64)),
    "negative": ("uint8[N,2]", np.full((4, 2), -1)),
    "floats": ("float[N,2]", np.full((4, 2), 1e300)),
    "halves": ("float16[N,2]", np.full((4, 2), 1e6, np.float32)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_numbers_that_the_type_of_an_input_does_not_hold_are_refused(name: str) -> None:
    kind, values = TOO_LARGE[name]
    model = network(f"g ({kind} x) => (float[N,2] y) {{ y = Cast<to = 1>(x) }}", {})
    with pytest.raises(DataError, match="does not hold"):
        sx.predict(model, {"x": values})
    assert sx.predict(model, {"x": np.ones_like(values)})["y"].tolist() == [[1, 1]] * 4


def test_names_of_some_classes_are_not_numbered_by_guess(tmp_path: Path) -> None:
    """A model that holds no names of classes, and data without the first of three."""
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(9, 6)).astype(np.float32), np.array(["dog", "eel", "dog"] * 3)
    with pytest.raises(DataError, match="names 2 of 3 classes"):
        sx.evaluate(mlp(), {"x": x, "label": label}, loss="cross_entropy")
    every = np.array(["cat", "dog", "eel"] * 3)
    sx.train(mlp(), {"x": x, "label": every}, steps=1, lr=0.0, output=tmp_path / "t.onnx")
    numbers = {"x": x, "label": np.where(label == "dog", 1, 2)}
    expected = sx.evaluate(mlp(), numbers, loss="cross_entropy")["loss"]
    loss = sx.evaluate(tmp_path / "t.onnx", {"x": x, "label": label})["loss"]
    assert loss == pytest.approx(expected)


def test_a_first_line_that_numbers_the_columns_is_no_row(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = np.random.default_rng(0).normal(size=(5, 4))
    pandas.DataFrame(rows).to_csv(tmp_path / "d.csv", index=False)
    model = network("g (float[N,4] x) => (float[N,4] y) { y = Identity(x) }", {})
    np.testing.assert_allclose(sx.predict(model, tmp_path / "d.csv")["y"], rows, rtol=1e-6)


@pytest.mark.parametrize("rows", [3, 4, 8, 10])
def test_rows_along_another_axis_are_told_from_a_size_that_is_equal(rows: int) -> None:
    """The batch has as many rows as the output has columns, and the file names neither."""
    model = network("g (float[N,4] x) => (float[A,B] y) { y = Transpose(x) }", {})
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    result = sx.predict(model, {"x": x}, batch_size=4)["y"]
    np.testing.assert_array_equal(result, x.T)

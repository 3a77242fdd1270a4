"""Images: prepared as the model says, in training, evaluation and prediction alike."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.errors import ArgumentError, DataError
from sardonyx.model import Model, load
from sardonyx.train.evaluation import class_names, predictions
from sardonyx.train.fields import Feeding
from sardonyx.train.images import layout_of, stored_preprocessing
from sardonyx.train.predictions import write_predictions

image = pytest.importorskip("PIL.Image")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def network(classes: int = 2, shape: tuple[Any, ...] = ("N", 3, 4, 4)) -> Model:
    """Scores from the mean of each channel."""
    axes = numpy_helper.from_array(np.array([1, 2] if shape[3] == 3 else [2, 3]), "axes")
    weight = np.random.default_rng(0).normal(size=(3, classes)).astype(np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["pixels", "axes"], ["means"], "mean", keepdims=0),
        helper.make_node("MatMul", ["means", "head.weight"], ["scores"], "head"),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", classes])],
        [axes, numpy_helper.from_array(weight, "head.weight")],
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


def pictures(folder: Path, *classes: str, count: int = 3, size: tuple[int, int] = (8, 6)) -> Path:
    rng = np.random.default_rng(len(classes))
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (*size, 3)).astype(np.uint8)
            image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def by_hand(path: Path) -> np.ndarray:
    """The centre square of three quarters of the shorter side, 4 × 4 pixels, standardized."""
    picture = image.open(path)
    width, height = picture.size
    side = round(min(width, height) * 0.75)
    left, top = (width - side) // 2, (height - side) // 2
    cut = picture.crop((left, top, left + side, top + side)).resize((4, 4), image.BILINEAR)
    pixels = np.asarray(cut).astype(np.float64) / 255
    return ((pixels - MEAN) / STD).transpose(2, 0, 1)


PREPROCESS = {"mean": MEAN, "std": STD, "crop": 0.75}


def test_the_model_holds_how_images_are_prepared_and_what_classes_are_called(
    tmp_path: Path,
) -> None:
    folder = pictures(tmp_path / "all", "bee", "cat")
    run = sx.train(
        network(), folder, epochs=2, preprocess=PREPROCESS, output=tmp_path / "o.onnx", lr=0.1
    )
    tuned = sx.load(tmp_path / "o.onnx")
    stored = stored_preprocessing(tuned)
    assert stored is not None and (stored.mean, stored.crop, stored.size) == (MEAN, 0.75, (4, 4))
    assert class_names(tuned) == class_names(run.model) == ("bee", "cat")
    files = sorted(folder.rglob("*.png"))
    weight = tuned.initializer("head.weight").numpy().astype(np.float64)
    expected = np.stack([by_hand(f) for f in files]).mean((2, 3)) @ weight
    # nothing about images is said again: the model knows
    scores = sx.predict(tuned, folder)["scores"]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    label = np.array([0, 0, 0, 1, 1, 1])
    result = sx.evaluate(tuned, folder)
    assert result["accuracy"] == pytest.approx((expected.argmax(1) == label).mean())
    with pytest.raises(ArgumentError, match="preprocessing"):
        sx.train(
            network(),
            folder,
            epochs=3,
            preprocess="imagenet",
            output=tmp_path / "o.onnx",
            resume=True,
        )


def test_labels_follow_the_names_of_the_model_not_the_folders_that_are_there(
    tmp_path: Path,
) -> None:
    run = sx.train(network(3), pictures(tmp_path / "all", "ape", "bee", "cat"), epochs=1)
    some = pictures(tmp_path / "some", "bee", "cat")
    predicted = sx.predict(run.model, some)["scores"].argmax(1)
    right = (predicted == np.array([1, 1, 1, 2, 2, 2])).mean()
    assert sx.evaluate(run.model, some)["accuracy"] == pytest.approx(right)
    with pytest.raises(DataError, match='"dog"'):
        sx.evaluate(run.model, pictures(tmp_path / "other", "bee", "dog"))


def test_predictions_of_images_as_a_table(tmp_path: Path) -> None:
    run = sx.train(network(), pictures(tmp_path / "all", "bee", "cat"), epochs=1)
    pictures(tmp_path, "flat")
    result = predictions(run.model, tmp_path / "flat", None, Feeding(), None, None)
    write_predictions(result, run.model, tmp_path / "p.csv")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    scores = result.outputs["scores"].astype(np.float64)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert [row["file"] for row in rows] == ["0.png", "1.png", "2.png"]
    assert [row["class"] for row in rows] == [("bee", "cat")[i] for i in scores.argmax(1)]
    np.testing.assert_allclose([float(row["score"]) for row in rows], shares.max(1), rtol=1e-5)


def test_predicted_classes_have_names_where_the_model_has_further_scores(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "all", "bee", "cat")
    run = sx.train(network(classes=3), folder, epochs=1)
    scores = np.eye(3, dtype=np.float32)
    result = predictions(run.model, folder, None, Feeding(), None, None)
    result.outputs["scores"] = np.concatenate([scores, scores])
    write_predictions(result, run.model, tmp_path / "p.csv")
    rows = csv.DictReader((tmp_path / "p.csv").read_text().splitlines())
    assert [row["class"] for row in rows] == ["bee", "cat", "2"] * 2


def test_one_broken_image_is_named_before_training(tmp_path: Path) -> None:
    folder = pictures(tmp_path, "bee", "cat")
    (folder / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"cat/1\.png"):
        sx.train(network(), folder, epochs=1)
    whole = (folder / "bee" / "0.png").read_bytes()
    (folder / "cat" / "1.png").write_bytes(whole[: len(whole) - 60])  # only the end is missing
    with pytest.raises(DataError, match=r"cat/1\.png"):
        sx.train(network(), folder, epochs=1)


def test_fewer_classes_than_the_model_has_are_said(tmp_path: Path) -> None:
    run = sx.train(network(10), pictures(tmp_path, "bee", "cat"), epochs=1)
    assert any("10 classes, the data has 2" in words for _, words in run.facts)
    assert any("--replace-head 2" in words for _, words in run.facts)
    numbers = {"pixels": np.zeros((4, 3, 4, 4), np.float32), "label": np.arange(4)}
    for classes, said in ((5, False), (8, True)):
        facts = sx.train(network(classes), numbers, epochs=1).facts
        assert any(name == "note" for name, _ in facts) == said
    enough = sx.train(network(2), tmp_path, epochs=1)
    assert not any(name == "note" for name, _ in enough.facts)


@pytest.mark.parametrize(
    ("shape", "last", "size"),
    [
        (("N", 3, 4, 4), False, (4, 4)),
        (("N", 4, 5, 3), True, (4, 5)),
        (("N", 3, "H", "W"), False, None),
    ],
)
def test_the_axis_of_the_channels_and_the_size_are_those_of_the_model(
    shape: tuple[Any, ...], last: bool, size: tuple[int, int] | None, tmp_path: Path
) -> None:
    layout = layout_of(network(shape=shape))
    assert (layout.last, layout.preprocessing.size) == (last, size)
    folder = pictures(tmp_path, "bee", "cat")
    pictures(tmp_path, "bee", count=1, size=(5, 5))
    if size is None:
        with pytest.raises(DataError, match="size=224"):
            sx.predict(network(shape=shape), folder)
        sx.predict(network(shape=shape), folder, preprocess={"size": 4})
    else:
        assert sx.predict(network(shape=shape), folder)["scores"].shape == (6, 2)


def test_wrong_preprocessing_is_refused(tmp_path: Path) -> None:
    for settings, words in (
        ({"mean": [1.0, 2.0]}, "3 channels"),
        ({"std": [0.0, 1.0, 1.0]}, "not zero"),
        ({"crop": 2.0}, "a share"),
        ({"order": "GBR"}, "RGB or BGR"),
        ("imagnet", "did you mean imagenet"),
    ):
        with pytest.raises(ArgumentError, match=words):
            sx.train(network(), pictures(tmp_path, "bee", "cat"), epochs=1, preprocess=settings)


def test_validation_data_is_numbered_as_the_training_data(tmp_path: Path) -> None:
    """A folder, or a column of names, that lacks the first class."""
    whole = pictures(tmp_path / "all", "ape", "bee", "cat")
    part = pictures(tmp_path / "part", "bee", "cat")
    run = sx.train(network(3), whole, epochs=1, validation=part)
    predicted = sx.predict(run.model, part)["scores"].argmax(1)
    right = (predicted == np.array([1, 1, 1, 2, 2, 2])).mean()
    assert run.history[0]["val_accuracy"] == pytest.approx(right)
    with pytest.raises(DataError, match='"dog"'):
        other = pictures(tmp_path / "other", "bee", "dog")
        sx.train(network(3), whole, epochs=1, validation=other)

    x = np.random.default_rng(0).normal(size=(30, 3, 4, 4)).astype(np.float32)
    names = np.array(["ape", "bee", "cat"] * 10)
    some = names != "ape"
    data, held_out = {"x": x, "label": names}, {"x": x[some], "label": names[some]}
    run = sx.train(network(3), data, epochs=1, validation=held_out)
    predicted = sx.predict(run.model, {"x": x[some]})["scores"].argmax(1)
    right = (predicted == np.array([1, 2] * 10)).mean()
    assert run.history[0]["val_accuracy"] == pytest.approx(right)
    with pytest.raises(DataError, match='"dog"'):
        wrong = {"x": x[:1], "label": np.array(["dog"])}
        sx.train(network(3), data, epochs=1, validation=wrong)


def test_a_trained_model_may_learn_other_classes(tmp_path: Path) -> None:
    first = sx.train(network(2), pictures(tmp_path / "first", "bee", "cat"), epochs=1).model
    first.records.clear()
    again = sx.train(first, pictures(tmp_path / "again", "cat"), epochs=1).model
    assert class_names(again) == ("bee", "cat")  # cats are still number 1
    other = sx.train(first, pictures(tmp_path / "other", "dog", "eel"), epochs=1).model
    assert class_names(other) == ("dog", "eel")
    names = {"x": np.zeros((2, 3, 4, 4), np.float32), "label": np.array(["fox", "gnu"])}
    assert class_names(sx.train(first, names, epochs=1).model) == ("fox", "gnu")

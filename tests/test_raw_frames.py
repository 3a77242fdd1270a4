"""From raw rows of a data frame, or of a file, through preparation to training and predictions."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sardonyx as sx
from sardonyx.cli import __main__ as cli
from tests.test_compose import network

ROWS = 48
RNG = np.random.default_rng(3)
FRAME = pd.DataFrame(
    {
        "id": [f"p{i}" for i in range(ROWS)],
        "age": np.where(RNG.random(ROWS) < 0.2, np.nan, RNG.integers(1, 80, ROWS).astype(float)),
        "joined": pd.to_datetime("2024-01-01") + pd.to_timedelta(RNG.integers(0, 400, ROWS), "D"),
        "town": RNG.choice(["Rome", "Oslo", None], ROWS),
        "outcome": RNG.choice(["died", "lived"], ROWS),
    }
)
INPUTS = ["age", "joined", "town"]


def prepare(frame: pd.DataFrame) -> pd.DataFrame:
    age = frame["age"].fillna(frame["age"].mean()) / 80
    town = frame["town"].map({"Rome": 1.0, "Oslo": 2.0}).fillna(0.0)
    return pd.DataFrame({"a": age + frame["joined"].dt.month / 12, "t": town})


def composed() -> sx.Model:
    return sx.compose(sx.from_pandas(prepare, FRAME[INPUTS]), network())


def losses(run: Any) -> list[float]:
    return [epoch["loss"] for epoch in run.history]


HOW: dict[str, Any] = {
    "loss": "cross_entropy", "optimizer": "sgd", "lr": 0.1, "batch_size": 8, "epochs": 3
}  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> sx.Model:
    return composed()


def features() -> dict[str, np.ndarray]:
    """What pandas gives, as the network takes it, and the numbers of the classes."""
    x = prepare(FRAME).to_numpy(np.float32)
    return {"x": x, "label": (FRAME["outcome"] == "lived").to_numpy(np.int64)}


def test_trains_on_a_frame_as_on_the_features_of_pandas(whole: sx.Model) -> None:
    run = sx.train(whole, FRAME, fields={"label": "outcome"}, **HOW)
    expected = sx.train(network(), features(), **HOW)
    assert losses(run) == pytest.approx(losses(expected), rel=1e-6)
    scores = sx.predict(run.model, FRAME)["scores"]
    tuned = sx.predict(expected.model, {"x": features()["x"]})["scores"]
    np.testing.assert_allclose(scores, tuned, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_are_read_in_the_types_of_the_schema(
    whole: sx.Model, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / f"raw.{kind}"
    FRAME.to_csv(path, index=False) if kind == "csv" else FRAME.to_parquet(path)
    run = sx.train(whole, path, fields={"label": "outcome"}, **HOW)
    assert losses(run) == losses(sx.train(whole, FRAME, fields={"label": "outcome"}, **HOW))


def test_commands_go_from_raw_rows_to_predictions(whole: sx.Model, tmp_path: Path) -> None:
    model, data = sx.save(whole, tmp_path / "whole.onnx"), tmp_path / "raw.csv"
    FRAME.to_csv(data, index=False)
    tuned, predictions = tmp_path / "tuned.onnx", tmp_path / "predictions.csv"
    options = ["--loss", "cross_entropy", "--field", "label=outcome", "--epochs", "2"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", str(model), str(data), "-o", str(tuned), *options])
    assert not ended.value.code
    with pytest.raises(SystemExit) as ended:
        cli.main(["predict", str(tuned), str(data), "-o", str(predictions)])
    assert not ended.value.code
    with predictions.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == list(FRAME["id"])
    assert {row["class"] for row in rows} <= {"died", "lived"}
    scores = sx.predict(tuned, FRAME)["scores"]
    names = [["died", "lived"][i] for i in scores.argmax(1)]
    assert [row["class"] for row in rows] == names


def test_columns_that_do_not_fit_are_all_named(whole: sx.Model, tmp_path: Path) -> None:
    with pytest.raises(sx.errors.DataError) as caught:
        sx.predict(whole, FRAME.drop(columns=["age", "town"]))
    assert '"age"' in str(caught.value) and '"town"' in str(caught.value)
    path = tmp_path / "raw.csv"
    FRAME.assign(age="old", joined="soon").to_csv(path, index=False)
    with pytest.raises(sx.errors.DataError) as caught:
        sx.predict(whole, path)
    assert '"age"' in str(caught.value) and '"joined"' in str(caught.value)

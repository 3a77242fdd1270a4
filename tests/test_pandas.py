"""from_pandas: functions of pandas as graphs, held against pandas by onnxruntime itself."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pandas as pd
import pytest
from numpy.random import default_rng

import sardonyx as sx
from sardonyx.errors import DataError, ImportRefused


def run(model: sx.Model, frame: pd.DataFrame) -> Any:
    """The frame that a stock onnxruntime gives for the rows."""
    proto = model.proto()
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString())
    return model.frame(session.run(None, model.feeds(frame)))


PEOPLE = pd.DataFrame(
    {
        "name": ["Braund, Mr. Owen", "Cumings, Mrs. John", None, "Allen, Mr. William"],
        "age": [22.0, 38.0, np.nan, 35.0],
        "sex": ["male", "female", "female", "male"],
        "when": pd.to_datetime(["2020-02-29 10:00", "1969-07-20 20:17", None, "2021-01-03 00:00"]),
        "score": [1, 0, 1, 1],
    }
)


def prepare(df: pd.DataFrame) -> pd.DataFrame:
    df = df.copy()
    df["title"] = df["name"].str.extract(r", (\w+)\.", expand=False)
    df["age"] = df["age"].fillna(df["age"].median())
    df["rate"] = df["sex"].map(df.groupby("sex")["score"].mean())
    df["weekend"] = df["when"].dt.day_of_week >= 5
    return df[["title", "age", "rate", "weekend"]]


def test_a_function_becomes_a_model() -> None:
    model = sx.from_pandas(prepare, PEOPLE)
    assert {v.name for v in model.inputs} == {"name", "age", "sex", "when"}
    pd.testing.assert_frame_equal(run(model, PEOPLE), prepare(PEOPLE), check_dtype=False)


def test_what_was_fitted_stays_for_other_rows() -> None:
    model = sx.from_pandas(prepare, PEOPLE)
    others = pd.DataFrame(
        {
            "name": ["Rice, Dr. Ann", "none"],
            "age": [np.nan, 3.0],
            "sex": ["male", "unknown"],
            "when": pd.to_datetime(["2024-02-25", None]),
        }
    )
    result = run(model, others)
    assert result["title"].tolist()[0] == "Dr" and pd.isna(result["title"][1])
    assert result["age"].tolist() == [35.0, 3.0]
    assert result["rate"][0] == 1.0 and np.isnan(result["rate"][1])
    assert result["weekend"].tolist() == [True, False]
    assert len(run(model, others.iloc[:0])) == 0


def test_frozen_values_are_in_the_metadata() -> None:
    model = sx.from_pandas(prepare, PEOPLE)
    frozen = json.loads(model.metadata["sardonyx.frozen"])
    assert {row["call"] for row in frozen} == {"age.median", "groupby.mean"}
    assert [row["value"] for row in frozen if row["call"] == "age.median"] == [35.0]
    assert all('df["' in row["code"] for row in frozen)


def test_the_model_survives_save_and_load(tmp_path: Any) -> None:
    model = sx.from_pandas(prepare, PEOPLE)
    sx.save(model, tmp_path / "preparation.onnx")
    again = sx.load(tmp_path / "preparation.onnx")
    session = ort.InferenceSession(str(tmp_path / "preparation.onnx"))
    result = again.frame(session.run(None, again.feeds(PEOPLE)))
    pd.testing.assert_frame_equal(result, prepare(PEOPLE), check_dtype=False)
    assert all(n.metadata_props["stage"] == "preprocessing" for n in again.graph)


def test_a_frame_that_does_not_fit_names_every_column() -> None:
    model = sx.from_pandas(prepare, PEOPLE)
    wrong = PEOPLE.drop(columns="name").assign(age=["a"] * 4, when=1)
    with pytest.raises(DataError) as error:
        model.feeds(wrong)
    assert all(word in str(error.value) for word in ('"name"', '"age"', '"when"'))


REFUSED = {
    "random": lambda df: df[["age"]].assign(noise=np.random.rand(len(df))),
    "one random number": lambda df: df["age"] * np.random.rand(),
    "the clock": lambda df: (pd.Timestamp.now() - df["when"]).dt.days,
    "order": lambda df: df["age"].cumsum(),
    "an unknown argument": lambda df: df["age"].fillna(0, limit=1),
    "an array of rows": lambda df: df.assign(k=np.arange(len(df))),
    "a loop": lambda df: df["age"] + sum(x for x in df["age"]),
    "files": lambda df: pd.read_csv("x.csv").merge(df),
    "length of a group": lambda df: df.groupby("sex")["age"].transform(lambda x: x / len(x)),
    "bins of a group": lambda df: df.groupby("sex")["age"].transform(
        lambda x: pd.qcut(x, 2, False)
    ),
    "order in a group": lambda df: df.groupby("sex")["age"].transform(lambda x: x.shift(1)),
    "a random generator": lambda df: df["age"] * default_rng(0).random(),
    "now": lambda df: df["age"] + pd.Period.now("D").year,
    "an environment": lambda df: df["age"] + len(os.environ),
    "a hash": lambda df: df["sex"].apply(hash),
    "if": lambda df: df["age"] if df["age"] > 3 else df["score"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(ImportRefused) as error:
        sx.from_pandas(REFUSED[name], PEOPLE)
    assert "test_pandas.py:" in str(error.value)


def test_order_is_allowed_on_request() -> None:
    model = sx.from_pandas(lambda df: df[["score"]].cumsum(), PEOPLE, order_dependent=True)
    assert json.loads(model.metadata["sardonyx.frame"])["order_dependent"]
    assert run(model, PEOPLE)["score"].tolist() == [1, 1, 2, 3]


def test_dynamic_reductions_follow_the_batch() -> None:
    model = sx.from_pandas(lambda df: df["age"] - df["age"].mean(), PEOPLE, dynamic=["mean"])
    rows = PEOPLE.assign(age=[1.0, 2.0, np.nan, 6.0])
    assert run(model, rows).tolist()[:2] == [-2.0, -1.0]


def test_types_come_back() -> None:
    frame = pd.DataFrame(
        {
            "i": pd.array([1, None, 3], dtype="Int64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "s": pd.array(["a", None, "None"], dtype="string"),
            "o": pd.Series(["x", None, "nan"], dtype=object),
            "c": pd.Categorical(["u", None, "v"]),
            "d": pd.to_timedelta(["1D", None, "3min"]),
            "z": pd.to_datetime(["2020-01-01", None, "1999-12-31"]).tz_localize("UTC"),
            "n": pd.to_datetime(["2020-01-01", None, "1999-12-31"]).astype("datetime64[ns]"),
            "f": np.array([1, np.nan, 3], "float32"),
            "k": np.array([1, 2, 3], "int8"),
        }
    )
    pd.testing.assert_frame_equal(run(sx.from_pandas(lambda df: df, frame), frame), frame)


def test_text_that_looks_missing_is_not() -> None:
    frame = pd.DataFrame({"s": ["None", "nan", "", None, "NaN"]})
    model = sx.from_pandas(lambda df: df["s"].isna(), frame)
    assert run(model, frame).tolist() == [False, False, False, True, False]
    with pytest.raises(DataError, match="stands for a missing value"):
        model.feeds(pd.DataFrame({"s": ["\ue000missing\ue000"]}))


def test_unseen_categories_are_missing() -> None:
    frame = pd.DataFrame({"c": pd.Categorical(["u", "v", "u"])})
    model = sx.from_pandas(lambda df: df["c"].cat.codes, frame)
    others = pd.DataFrame({"c": pd.Categorical(["w", "v", None])})
    assert run(model, others).tolist() == [-1, 1, -1]


def test_several_results() -> None:
    model = sx.from_pandas(lambda df: (df[["age"]].fillna(0.0), df["sex"]), PEOPLE)
    features, label = run(model, PEOPLE)
    assert features["age"].tolist() == [22.0, 38.0, 0.0, 35.0]
    assert label.tolist() == PEOPLE["sex"].tolist()


def test_a_function_that_differs_from_call_to_call_is_refused() -> None:
    calls = []

    def counting(df: pd.DataFrame) -> pd.Series:
        calls.append(1)
        return df["age"] + len(calls)

    with pytest.raises(sx.SardonyxError):
        sx.from_pandas(counting, PEOPLE)


def test_inspect_lists_what_was_frozen() -> None:
    frozen = sx.inspect(sx.from_pandas(prepare, PEOPLE)).frozen
    assert {"call": "age.median", "value": 35.0}.items() <= frozen[0].items()


def test_characters_of_any_string() -> None:
    frame = pd.DataFrame({"s": ["ab cd", "x"]})
    model = sx.from_pandas(
        lambda df: df["s"].str.upper().str.replace(r"\W+", "-", regex=True), frame
    )
    others = pd.DataFrame({"s": ["Ünïcode ß é", "😀 a", "two\nlines", "", None, "q" * 500]})
    expected = others["s"].str.upper().str.replace(r"\W+", "-", regex=True)
    pd.testing.assert_series_equal(run(model, others), expected, check_names=False)

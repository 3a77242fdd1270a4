"""Texts of floats, patterns with look-around, time zones, days, `try`: pandas is the oracle."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sardonyx as sx
from sardonyx.importers.pandas.preparation import trace


def agree(function: Callable[[pd.DataFrame], Any], train: pd.DataFrame, rows: pd.DataFrame) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = trace(function, train).run(rows)
        expected = function(rows.copy())
    assert list(actual.columns) == list(expected.columns)
    for name in expected.columns:
        pairs = zip(expected[name].astype(object), actual[name].astype(object), strict=True)
        for want, have in pairs:
            assert (pd.isna(want) and pd.isna(have)) or str(want) == str(have), name


def numbers() -> np.ndarray:
    draw = np.random.default_rng(0)
    return np.concatenate(
        [
            [0.0, -0.0, 1.0, -7.25, 1e15, 1e16, 1e-12, np.inf, -np.inf, 0.1, 1 / 3, 1e-4, 1e-5],
            [1e22, 1e23, 4503599627370497.5, 0.30000000000000004, 9.999999999999999e22, np.nan],
            [5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 9007199254740993.0],
            draw.normal(0, 100, 300),
            np.round(draw.uniform(-180, 180, 300), 6),
            draw.normal(size=300) * 10.0 ** draw.integers(-250, 250, 300),
            2.0 ** draw.integers(-200, 200, 100),
            draw.integers(2**52, 2**54, 300).astype(float),
        ]
    )


def test_floats_are_written_as_python_does() -> None:
    rows = pd.DataFrame({"x": numbers()})
    agree(lambda df: pd.DataFrame({"s": df["x"].astype(str)}), rows, rows)
    agree(lambda df: pd.DataFrame({"s": df["x"].round(2).astype(str) + "!"}), rows.iloc[:40], rows)


TEXTS = ["new shoes", "renewed", "New", "id=12&x=3", "xid=77", "$12.50", "12 USD", "foo bar",
         "foobar", "", " ", "ünew new_1", "a\n", "new\n", None]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [r"\bnew\b", r"\Bnew", r"(?<=id=)\d+", r"\d+(?! USD)", r"(?<!foo)bar", r"^\bfoo", r"\b\w+\b$"],
)
def test_boundaries_and_look_around(pattern: str) -> None:
    def function(df: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "has": df["s"].str.contains(pattern),
                "part": df["s"].str.extract(f"({pattern})")[0],
                "rest": df["s"].str.replace(pattern, "#", regex=True),
            }
        )

    rows = pd.DataFrame({"s": TEXTS})
    agree(function, rows.iloc[:3], rows)


def test_days_periods_and_zones() -> None:
    moments = ["2020-01-31 10:00", "1999-12-31 23:59", "2024-03-10 07:30", "1966-10-30 05:59"]
    rows = pd.DataFrame({"t": pd.to_datetime([*moments, None]), "n": [1, 2, 3, 4, 5]})

    def function(df: pd.DataFrame) -> pd.DataFrame:
        local = df["t"].dt.tz_localize("UTC").dt.tz_convert("America/New_York")
        return pd.DataFrame(
            {
                "day": df["t"].dt.date,
                "month": df["t"].dt.to_period("M"),
                "quarter": df["t"].dt.to_period("Q").astype(str),
                "again": pd.to_datetime(df["t"].dt.date),
                "local": local.dt.tz_localize(None),
                "name": local.dt.day_name(),
                "six": df["t"].dt.floor("6h"),
            }
        )

    agree(function, rows, rows)
    agree(function, rows.iloc[:2], rows)


def first_of_three(text: Any) -> Any:
    try:
        a, _, _ = text.split("/")
        return a
    except Exception:
        return "none"


def second(text: Any) -> Any:
    try:
        return text.split("/")[1]
    except (IndexError, AttributeError):
        return "?"


def number(text: Any) -> Any:
    try:
        return int(text)
    except ValueError:
        return -1
    except TypeError:
        return -2


def test_try_takes_the_paths_of_python() -> None:
    rows = pd.DataFrame({"s": ["a/b/c", "a/b", "", None, "12", "a/b/c/d", " 7 ", "1.5"]})

    def function(df: pd.DataFrame) -> pd.DataFrame:
        texts = df["s"].fillna("")
        return pd.DataFrame(
            {
                "first": df["s"].apply(first_of_three),
                "second": df["s"].apply(second),
                "number": texts.apply(number),
            }
        )

    agree(function, rows.iloc[:4], rows)


def test_a_refusal_that_the_function_catches_is_raised() -> None:
    def function(df: pd.DataFrame) -> pd.DataFrame:
        try:
            return df.assign(x=df["x"].cumsum())
        except Exception:
            return df

    with pytest.raises(sx.SardonyxError, match="cumsum depends on the order"):
        sx.from_pandas(function, pd.DataFrame({"x": [1.0, 2.0]}))


def test_booleans_among_objects() -> None:
    rows = pd.DataFrame({"v": pd.Series([True, False, None, True], dtype=object)})

    def function(df: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "n": df["v"].map({True: 1, False: 0}),
                "f": df["v"].fillna(False).astype(bool),
                "e": df["v"] == True,  # noqa: E712
            }
        )

    agree(function, rows, rows)
    agree(function, rows, rows.iloc[2:3].reset_index(drop=True))

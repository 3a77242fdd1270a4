"""Functions of rows: comprehensions over columns, tables that rows are keys of, `axis=1`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sardonyx as sx
from sardonyx.importers.pandas.preparation import trace

WEIGHTS = {"red": 1.5, "blue": 2.5}
PAIRS = {("red", 1): 10.0, ("blue", 1): 20.0, ("blue", 2): 30.0}
NESTED = {"red": {1: "a", 2: "b"}, "blue": {1: "c", 2: "d"}}
BY_PAIR = pd.Series([1.0, 2.0, 3.0], index=pd.MultiIndex.from_tuples(list(PAIRS)))
BY_COLOR = pd.DataFrame({"low": [1, 2], "high": [5.5, 6.5]}, index=["red", "blue"])


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "color": ["red", "blue", "red", "blue", "blue"],
            "size": [1, 2, 2, 1, 2],
            "x": [1.0, np.nan, 3.5, -2.0, 0.0],
            "y": [2.0, 2.0, np.nan, 7.0, -1.0],
            "z": [0.5, 4.0, 1.0, 7.0, 3.0],
            "text": ["a red one", "blue", "redder", "", "light blue"],
        }
    )


def other() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "color": ["blue", "red", "blue"],
            "size": [1, 1, 2],
            "x": [np.nan, 0.0, 9.0],
            "y": [1.0, np.nan, 9.0],
            "z": [np.nan, -3.0, 2.0],
            "text": ["x", "infrared", "blue blue"],
        }
    )


def _column(df: pd.DataFrame, name: str, value: Any) -> pd.DataFrame:
    return df[["size"]].assign(**{name: value})


def _chosen(df: pd.DataFrame) -> Any:
    return _column(df, "r", [w if np.isnan(w) else -w for w in df["x"]])


def _together(df: pd.DataFrame) -> Any:
    return _column(
        df, "r", [WEIGHTS[c] * s if s > 1 else 0.0 for c, s in zip(df["color"], df["size"])]
    )


def _same(function: Any) -> Any:
    return function


@_same
@_same
def _decorated(df: pd.DataFrame) -> Any:
    weights = {"red": 1.0}
    return _column(df, "r", [weights.get(c, 0.0) for c in df["color"]])


def _held(df: pd.DataFrame) -> Any:
    return _column(df, "r", [c in t for c, t in zip(df["color"], df["text"])])


def _list_of_map(df: pd.DataFrame) -> Any:
    return _column(df, "r", list(map(lambda t: t.upper()[:3], df["text"])))  # noqa: C417


def _plain_lists(df: pd.DataFrame) -> Any:
    names = [f"{n}_2" for n in ("x", "y")]
    pairs = [(a, b) for a, b in zip(names, ["x", "y"])]
    assert isinstance(names, list)
    return pd.DataFrame({a: df[b] * 2 for a, b in pairs})


def _tuple_key(df: pd.DataFrame) -> Any:
    return df.apply(lambda r: PAIRS.get((r["color"], r["size"]), -1.0), axis=1).to_frame("r")


def _two_levels(df: pd.DataFrame) -> Any:
    return df.apply(lambda r: NESTED[r["color"]][r["size"]], axis=1).to_frame("r")


def _of_series(df: pd.DataFrame) -> Any:
    held = df.apply(lambda r: (r["color"], r["size"]) in BY_PAIR.index, axis=1)
    value = df.apply(
        lambda r: BY_PAIR[r["color"], r["size"]] if r["color"] == "blue" else 0.0, axis=1
    )
    return pd.DataFrame({"r": value, "held": held})


def _of_frame(df: pd.DataFrame) -> Any:
    high = df["color"].apply(lambda c: BY_COLOR.loc[c, "high"])
    low = df["color"].apply(lambda c: BY_COLOR["low"][c] if c in BY_COLOR.index else -1)
    return pd.DataFrame({"high": high, "low": low, "at": df["color"].map(lambda c: BY_COLOR.loc[c]["low"])})  # fmt: skip  # noqa: E501


def _written_dict(df: pd.DataFrame) -> Any:
    return df["size"].apply(lambda s: {1: "one", 2: "two"}.get(s, "many")).to_frame()


def _of_characters(df: pd.DataFrame) -> Any:
    return df["color"].apply(lambda c: ord(c[0]) - ord("a")).to_frame()


def _bits(df: pd.DataFrame) -> Any:
    return pd.DataFrame({"a": df["size"] & 1, "b": df["size"] | 4, "c": df["size"] ^ 3})


def _product(df: pd.DataFrame) -> Any:
    numbers = df[["x", "y", "z"]].fillna(0)
    weights = np.array([0.5, 2.0, -1.0])
    return pd.DataFrame({"a": numbers @ weights, "b": np.linalg.norm(numbers, axis=1)})


def _rejoined(df: pd.DataFrame) -> Any:
    return df["text"].str.split(" ").str.join("--").to_frame()


def sideways(name: str, **options: Any) -> Callable[[pd.DataFrame], Any]:
    return lambda df: getattr(df[["x", "y", "z"]], name)(axis=1, **options)


FUNCTIONS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "choice": _chosen,
    "zip": _together,
    "decorated": _decorated,
    "text in text": _held,
    "list of map": _list_of_map,
    "plain lists": _plain_lists,
    "tuple key": _tuple_key,
    "nested dicts": _two_levels,
    "series of two levels": _of_series,
    "frame": _of_frame,
    "written dict": _written_dict,
    "ord": _of_characters,
    "bits": _bits,
    "product": _product,
    "join": _rejoined,
    **{n: sideways(n) for n in ("diff", "shift", "cumsum", "cumprod", "cummax", "cummin", "rank")},
    "diff backwards": sideways("diff", periods=-1),
    "pct_change": sideways("pct_change"),
    "rank downwards": sideways("rank", ascending=False, pct=True),
    "rank min": sideways("rank", method="min"),
    "rank first": sideways("rank", method="first"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_are_what_pandas_gives(name: str) -> None:
    preparation = trace(FUNCTIONS[name], frame())
    for rows in (frame(), other(), other().iloc[[1]].reset_index(drop=True)):
        expected, actual = FUNCTIONS[name](rows.copy()), preparation.run(rows)
        pd.testing.assert_frame_equal(actual, expected, check_dtype=False, rtol=1e-12)


def test_columns_may_be_called_as_inner_values_are() -> None:
    def function(df: pd.DataFrame) -> Any:
        return pd.DataFrame({n: df["text"].str.upper() for n in ("text", "const", "text_1")})

    preparation = trace(function, frame())
    assert list(preparation.run(other())) == ["text", "const", "text_1"]


def test_integers_in_categories_are_written_as_texts() -> None:
    preparation = trace(lambda df: df["size"].astype("category").astype(str), frame())
    assert preparation.run(other()).tolist() == ["1", "1", "2"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda df: df["x"] + sum(v for v in df["x"]), "iteration over rows"),
        (lambda df: df.assign(r=[v for v in df["x"] if v > 0]), "iteration over rows"),
        (lambda df: df.assign(r=[a for a, b in zip(df["x"], range(5))]), "something else"),
        (lambda df: list(df["x"]), "something else than frames"),
    ],
)
def test_refused(function: Any, reason: str) -> None:
    with pytest.raises(sx.SardonyxError, match=reason):
        trace(function, frame())

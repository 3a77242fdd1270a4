"""Each of the functions of pandas that notebooks use most, on generated frames, against pandas.

A case is recorded once on a training frame; hypothesis then generates other frames. What is
expected is pandas itself: the function where it looks at one row at a time, the function written
by hand with the state of the training frame (`fitted`) elsewhere.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import sardonyx as sx

Function = Callable[[pd.DataFrame], Any]
WORDS = ["red", "Blue", "green tea", "", "a-b", "12", "x1 y2", "  pad ", "ß é", "new", "nan"]
SEEN = ["red", "Blue", "green tea", "a-b", "12", "x1 y2", "  pad "]


def training() -> pd.DataFrame:
    draw = np.random.default_rng(3)
    n = 60
    numbers = draw.normal(10, 5, n).round(2)
    words = draw.choice(SEEN, n).astype(object)
    frame = pd.DataFrame(
        {
            "x": np.where(draw.random(n) < 0.1, np.nan, numbers),
            "y": draw.normal(0, 2, n),
            "k": draw.integers(0, 5, n),
            "n": draw.integers(-50, 50, n),
            "s": pd.Series(np.where(draw.random(n) < 0.1, None, words), dtype="str"),
            "g": pd.Series(draw.choice(["u", "v", "w"], n), dtype="str"),
            "b": draw.random(n) < 0.5,
            "t": pd.Series(
                pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 800, n), "D")
            ),
            "d": pd.Series(["2021-03-04", "1999-12-31", "2024-02-29"] * 20, dtype="str"),
        }
    )
    frame.loc[3, "t"] = pd.NaT
    return frame


TRAIN = training()


@st.composite
def frames(draw: Any) -> pd.DataFrame:
    size = draw(st.integers(0, 6))

    def column(values: st.SearchStrategy[Any], dtype: Any) -> pd.Series:
        return pd.Series(draw(st.lists(values, min_size=size, max_size=size)), dtype=dtype)

    floats = st.one_of(
        st.just(np.nan),
        st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: round(v, 3)),
        st.sampled_from([0.0, 10.0, 5.0, np.inf, -np.inf]),
    )
    times = st.datetimes(pd.Timestamp("1905-01-01"), pd.Timestamp("2190-01-01"))
    return pd.DataFrame(
        {
            "x": column(floats, float),
            "y": column(floats, float),
            "k": column(st.integers(-2, 7), "int64"),
            "n": column(st.integers(-1000, 1000), "int64"),
            "s": column(st.one_of(st.none(), st.sampled_from(WORDS), st.text(max_size=6)), "str"),
            "g": column(st.sampled_from(["u", "v", "w", "new"]), "str"),
            "b": column(st.booleans(), bool),
            "t": column(st.one_of(st.none(), times), "datetime64[us]"),
            "d": column(st.dates().map(str), "str"),
        }
    )


@dataclass
class Case:
    function: Function
    fitted: Callable[[pd.DataFrame, pd.DataFrame], Any] | None = None
    order: bool = False


def of(function: Function, fitted: Any = None, order: bool = False) -> Case:
    return Case(function, fitted, order)


def column(name: str, compute: Callable[[pd.DataFrame], Any]) -> Function:
    return lambda df: pd.DataFrame({name: compute(df)})


def mapped(table: Any, key: str) -> Callable[[pd.DataFrame], Any]:
    return lambda df: df[key].map(table)


def by_group(how: str) -> Case:
    return of(
        column("r", lambda df: df.groupby("g")["x"].transform(how)),
        lambda train, df: pd.DataFrame({"r": df["g"].map(train.groupby("g")["x"].agg(how))}),
    )


def centered(how: str) -> Case:
    return of(
        column("r", lambda df: df["x"] - getattr(df["x"], how)()),
        lambda train, df: pd.DataFrame({"r": df["x"] - getattr(train["x"], how)()}),
    )


def _set_by_loc(df: pd.DataFrame) -> pd.DataFrame:
    df = df.copy()
    df["c"] = 0
    df.loc[df["x"] > 10, "c"] = 1
    df.loc[df["s"] == "red", ["c", "n"]] = [2, 5]
    return df.loc[:, "n":"n"].assign(c=df["c"])


def _by_iloc(df: pd.DataFrame) -> pd.DataFrame:
    return df.iloc[:, [0, 2]].join(df.iloc[:, 3] * 2)


def _branches(row: Any) -> Any:
    if row["x"] > 10 and row["g"] != "u":
        return row["y"] * 2
    return row["n"] if row["b"] else -1


def _merged(df: pd.DataFrame) -> pd.DataFrame:
    table = df.groupby(["g", "k"])["y"].agg(["mean", "size"]).reset_index()
    return df[["g", "k"]].merge(table, on=["g", "k"], how="left")[["mean", "size"]]


def _merged_fitted(train: pd.DataFrame, df: pd.DataFrame) -> pd.DataFrame:
    table = train.groupby(["g", "k"])["y"].agg(["mean", "size"]).reset_index()
    return df[["g", "k"]].merge(table, on=["g", "k"], how="left")[["mean", "size"]]


def _unstacked(df: pd.DataFrame) -> pd.DataFrame:
    table = df.groupby(["g", "k"]).size().unstack(fill_value=0)
    return pd.DataFrame({"r": df["g"].map(table[1])})


def _unstacked_fitted(train: pd.DataFrame, df: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"r": df["g"].map((train["k"] == 1).groupby(train["g"]).sum())})


def _in_groups(df: pd.DataFrame) -> pd.DataFrame:
    groups = df.groupby("g")
    return pd.DataFrame(
        {
            "a": groups["n"].shift(1),
            "b": groups["t"].shift(-1),
            "c": groups["s"].shift(1),
            "d": df.groupby(["g", "k"])["n"].diff(),
            "e": groups.cumcount(),
            "f": df.groupby("s")["k"].cumsum(),
        }
    )


def _by_month(table: Callable[[pd.DataFrame], Any], **options: Any) -> Function:
    def function(df: pd.DataFrame) -> pd.DataFrame:
        means = table(df[df["t"].notna()] if len(df) else df).resample("MS", **options).mean()
        means = means["y"] if isinstance(means, pd.DataFrame) else means
        return pd.DataFrame({"r": df["t"].dt.to_period("M").dt.to_timestamp().map(means)})

    return function


def _by_month_fitted(train: pd.DataFrame, df: pd.DataFrame) -> pd.DataFrame:
    month = train["t"].dt.year * 12 + train["t"].dt.month
    means = train["y"].groupby(month).mean()
    return pd.DataFrame({"r": (df["t"].dt.year * 12 + df["t"].dt.month).map(means)})


def _pivoted(df: pd.DataFrame) -> pd.DataFrame:
    table = df.groupby(["g", "b"], as_index=False)["y"].mean()
    wide = table.pivot(index="g", columns="b", values="y").add_prefix("b_").reset_index()
    return df[["g"]].merge(wide, on="g", how="left").drop(columns="g")


def _pivoted_fitted(train: pd.DataFrame, df: pd.DataFrame) -> pd.DataFrame:
    means = {b: train[train["b"] == b].groupby("g")["y"].mean() for b in (False, True)}
    return pd.DataFrame({f"b_{b}": df["g"].map(m) for b, m in means.items()})


def _dummies(df: pd.DataFrame) -> pd.DataFrame:
    return pd.get_dummies(df[["g", "n"]], columns=["g"])


def _dummies_fitted(train: pd.DataFrame, df: pd.DataFrame) -> pd.DataFrame:
    levels = sorted(train["g"].unique())
    return df[["n"]].assign(**{f"g_{v}": df["g"] == v for v in levels})


def _quantile_bins(train: pd.DataFrame, df: pd.DataFrame) -> pd.DataFrame:
    edges = train["y"].quantile([0, 0.25, 0.5, 0.75, 1]).to_numpy()
    return pd.DataFrame({"r": pd.cut(df["y"], edges, labels=False, include_lowest=True)})


def _codes(train: pd.DataFrame, df: pd.DataFrame) -> pd.DataFrame:
    levels = sorted(train["s"].dropna().unique())
    return pd.DataFrame({"r": pd.Categorical(df["s"], categories=levels).codes})


def _factors(train: pd.DataFrame, df: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"r": pd.Index(pd.factorize(train["g"])[1]).get_indexer(df["g"])})


def frozen(compute: Callable[[pd.DataFrame], Any], use: Callable[[pd.DataFrame, Any], Any]) -> Case:
    """A value of the training frame, used in every row."""
    return of(
        column("r", lambda df: use(df, compute(df))),
        lambda train, df: pd.DataFrame({"r": use(df, compute(train))}),
    )


CASES: dict[str, Case] = {
    "groupby": by_group("mean"),
    "astype": of(
        lambda df: df[["k", "b"]].astype({"k": float, "b": int}).assign(s=df["k"].astype(str))
    ),
    "loc": of(_set_by_loc),
    "iloc": of(_by_iloc),
    "sum": of(column("r", lambda df: df[["x", "y", "n"]].sum(axis=1))),
    "mean": of(column("r", lambda df: df[["x", "y", "n"]].mean(axis=1))),
    "mean of the frame": centered("mean"),
    "apply": of(column("r", lambda df: df[["x", "g", "y", "n", "b"]].apply(_branches, axis=1))),
    "fillna": of(lambda df: df[["x", "s"]].fillna({"x": -1.0, "s": "none"})),
    "concat": of(lambda df: pd.concat([df[["x"]], df["y"].abs()], axis=1)),
    "sort_values": of(lambda df: df.sort_values(["k", "n", "y"])[["k", "n"]], order=True),
    "value_counts": frozen(lambda df: df["g"].value_counts(), lambda df, v: df["g"].map(v)),
    "unique": frozen(lambda df: df["s"].dropna().unique(), lambda df, v: df["s"].isin(v)),
    "merge": of(_merged, _merged_fitted),
    "isnull": of(lambda df: df[["x", "s", "t"]].isnull().assign(n=df["t"].notnull())),
    "max": centered("max"),
    "min": centered("min"),
    "median": centered("median"),
    "std": frozen(lambda df: df["y"].std(), lambda df, v: df["y"] / v),
    "map": of(column("r", lambda df: df["g"].map({"u": 1, "v": 2}))),
    "replace": of(lambda df: df[["k", "s"]].replace({"k": {0: 9, 1: 8}, "s": {"red": "rot"}})),
    "to_datetime": of(
        column("r", lambda df: pd.to_datetime(df["d"], format="%Y-%m-%d", errors="coerce"))
    ),
    "dropna": of(lambda df: df.dropna(subset=["x", "s"])[["x", "s"]], order=False),
    "get_dummies": of(_dummies, _dummies_fitted),
    "isin": of(column("r", lambda df: df["s"].isin(["red", "12", None]) | df["k"].isin([1, 3]))),
    "dt": of(
        lambda df: pd.DataFrame(
            {
                p: getattr(df["t"].dt, p)
                for p in (
                    "year",
                    "month",
                    "day",
                    "hour",
                    "minute",
                    "quarter",
                    "day_of_week",
                    "day_of_year",
                )
            }
        )
    ),
    "agg": frozen(
        lambda df: df["y"].agg(["min", "max"]), lambda df, v: (df["y"] - v["min"]) / v["max"]
    ),
    "any": of(
        column("r", lambda df: (df[["x", "y"]] > 3).any(axis=1) & (df[["k", "n"]] > 0).all(axis=1))
    ),
    "pivot_table": frozen(
        lambda df: df.pivot_table(index="g", values="y", aggfunc="mean")["y"],
        lambda df, v: df["g"].map(v),
    ),
    "unstack": of(_unstacked, _unstacked_fitted),
    "nunique": by_group("nunique"),
    "crosstab": frozen(
        lambda df: pd.crosstab(df["g"], df["b"])[True], lambda df, v: df["g"].map(v)
    ),
    "drop_duplicates": of(lambda df: df.drop_duplicates(["k", "g"])[["k", "g", "n"]], order=True),
    "str.lower": of(lambda df: pd.DataFrame({"a": df["s"].str.lower(), "b": df["s"].str.upper()})),
    "str.split": of(
        lambda df: pd.DataFrame(
            {"a": df["s"].str.split(" ").str[0], "b": df["s"].str.split("-").str[-1]}
        )
    ),
    "str.contains": of(column("r", lambda df: df["s"].str.contains(r"[a-e]+\d|e", na=False))),
    "cut": of(column("r", lambda df: pd.cut(df["x"], [-np.inf, 0, 5, 10, 100], labels=False))),
    "mode": frozen(lambda df: df["s"].mode()[0], lambda df, v: df["s"].fillna(v)),
    "cumsum": of(column("r", lambda df: df["n"].cumsum()), order=True),
    "to_numeric": of(column("r", lambda df: pd.to_numeric(df["s"], errors="coerce"))),
    "quantile": frozen(
        lambda df: df["y"].quantile([0.1, 0.9]), lambda df, v: df["y"].clip(v[0.1], v[0.9])
    ),
    "round": of(lambda df: df[["x", "y"]].round(1).assign(z=df["x"].round(-1))),
    "str.replace": of(
        lambda df: pd.DataFrame(
            {
                "a": df["s"].str.replace(r"[aeiou]+", "_", regex=True),
                "b": df["s"].str.replace("e", "E!", regex=False),
            }
        )
    ),
    "str.extract": of(
        column("r", lambda df: df["s"].str.extract(r"([a-z]+)\d*\s?(?:[a-z]|$)", expand=False))
    ),
    "str.startswith": of(
        lambda df: pd.DataFrame(
            {
                "a": df["s"].str.startswith("gr", na=False),
                "b": df["s"].str.endswith(("d", "ue"), na=False),
            }
        )
    ),
    "shift": of(column("r", lambda df: df["y"].shift(1)), order=True),
    "shift in groups": of(_in_groups, order=True),
    "melt": of(lambda df: df.melt(["g", "k"], ["x", "n"], "name", "v")),
    "melt of texts": of(lambda df: pd.melt(df, id_vars="n", value_vars=["s", "g"])),
    "stack": of(lambda df: df.set_index("g")[["x", "y", "n"]].stack().reset_index(name="v")),
    "concat below": of(
        lambda df: pd.concat([df[df["x"] > 3][["x", "s"]], df[["s", "n"]]], ignore_index=True)
    ),
    "set_index": of(lambda df: df[["k", "x", "s"]].set_index(["s", "k"])[["x"]].reset_index()),
    "resample": of(_by_month(lambda df: df.set_index("t")["y"]), _by_month_fitted),
    "resample of a column": of(_by_month(lambda df: df[["t", "y"]], on="t"), _by_month_fitted),
    "pivot": of(_pivoted, _pivoted_fitted),
    "comprehension": of(
        column("r", lambda df: [g + "!" if k > 2 else g for g, k in zip(df["g"], df["k"])])
    ),
    "along columns": of(
        lambda df: (
            df[["n", "k", "y"]]
            .diff(axis=1)
            .assign(r=df[["x", "n"]].rank(axis=1)["n"], c=df[["x", "n"]].cumsum(axis=1)["n"])
        )
    ),
    "clip": of(lambda df: df[["x"]].clip(0, 10).assign(k=df["k"].clip(lower=1))),
    "factorize": of(column("r", lambda df: pd.factorize(df["g"])[0]), _factors),
    "query": of(lambda df: df.query("x > 5 and g != 'u'")[["x", "g"]].eval("z = x * 2")),
    "qcut": of(column("r", lambda df: pd.qcut(df["y"], 4, labels=False)), _quantile_bins),
    "idxmax": of(column("r", lambda df: df[["k", "n"]].idxmax(axis=1))),
    "cat": of(column("r", lambda df: df["s"].astype("category").cat.codes), _codes),
    "rolling": of(column("r", lambda df: df["n"].rolling(3).mean()), order=True),
    "str.len": of(column("r", lambda df: df["s"].str.len())),
    "diff": of(column("r", lambda df: df["n"].diff()), order=True),
    "str.strip": of(
        lambda df: pd.DataFrame({"a": df["s"].str.strip(), "b": df["s"].str.rstrip("de")})
    ),
    "rank": of(column("r", lambda df: df["k"].rank()), order=True),
    "str.cat": of(column("r", lambda df: df["s"].str.cat(df["g"], sep="_"))),
    "where": of(
        lambda df: pd.DataFrame(
            {
                "a": df["x"].where(df["b"], -1.0),
                "b": df["n"].mask(df["n"] < 0),
                "c": np.where(df["x"] > 5, df["g"], "low"),
            }
        )
    ),
    "arithmetic": of(
        lambda df: pd.DataFrame(
            {
                "a": df["n"] // 7 + df["k"] % 3,
                "b": df["x"] / df["y"],
                "c": df["x"] // df["n"],
                "d": df["x"] % 3,
                "e": -(df["n"] ** 2),
                "f": (df["x"] >= df["n"]) ^ df["b"],
            }
        )
    ),
    "ufuncs": of(
        lambda df: pd.DataFrame(
            {
                "a": np.log1p(df["x"].clip(lower=0)),
                "b": np.sqrt(df["x"].abs()),
                "c": np.floor(df["y"]),
                "d": np.sign(df["n"]),
                "e": np.maximum(df["x"], df["y"]),
            }
        )
    ),
    "time arithmetic": of(
        lambda df: pd.DataFrame(
            {
                "a": (df["t"] - pd.Timestamp("2000-01-01")).dt.days,
                "b": df["t"] + pd.Timedelta(hours=5),
                "c": df["t"] > "2020-06-01",
                "d": df["t"].dt.normalize(),
            }
        )
    ),
}


@functools.cache
def recorded(name: str) -> tuple[sx.Model, ort.InferenceSession]:
    case = CASES[name]
    model = sx.from_pandas(case.function, TRAIN, order_dependent=case.order)
    return model, ort.InferenceSession(model.proto().SerializeToString())


def plain(series: pd.Series) -> list[Any]:
    """Python values; missing ones None, times as nanoseconds."""
    values = series.astype(object) if isinstance(series.dtype, pd.CategoricalDtype) else series
    if values.dtype.kind in "Mm":
        values = values.astype(
            f"{'datetime64' if values.dtype.kind == 'M' else 'timedelta64'}[us]"
        ).astype("int64")
    return [None if gone else v for v, gone in zip(values.tolist(), series.isna(), strict=True)]


def same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return a == b or abs(float(a) - float(b)) <= 1e-9 * max(1.0, abs(float(b)))


@pytest.mark.parametrize("name", CASES)
@settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(frame=frames())
def test_pandas_and_graph_agree(name: str, frame: pd.DataFrame) -> None:
    case = CASES[name]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if case.fitted is not None:
            expected = case.fitted(TRAIN, frame)
        else:
            try:
                expected = case.function(frame)
            except AttributeError:  # pandas has no .str for lists that are all missing
                reject()
    model, session = recorded(name)
    actual = model.frame(session.run(None, model.feeds(frame)))
    assert list(actual.columns) == list(expected.columns)
    for label in expected.columns:
        pairs = list(zip(plain(expected[label]), plain(actual[label]), strict=True))
        assert all(same(b, a) for a, b in pairs), (label, pairs)


def test_nothing_of_the_most_used_is_left_out() -> None:
    assert len(CASES) >= 54

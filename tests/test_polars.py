"""Functions of polars (experimental): polars itself is the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import sardonyx as sx

pl = pytest.importorskip("polars", reason="polars is not installed")
pytestmark = pytest.mark.nightly


def people() -> Any:
    frame = pl.DataFrame(
        {
            "age": [22.0, None, 35.0, 4.0],
            "port": ["S", None, "C", "Q"],
            "n": [1, 2, 3, 4],
            "day": ["2020-01-01", "1999-12-31", "2024-02-29", "2000-01-01"],
        }
    )
    return frame.with_columns(pl.col("day").str.to_datetime("%Y-%m-%d"))


def prepare(rows: Any) -> Any:
    c = pl.col
    return (
        rows.with_columns(
            c("age").fill_null(c("age").mean()).alias("a"),
            pl.when(c("n") > 1).then(pl.lit("x")).otherwise(c("port").fill_null("?")).alias("k"),
            c("day").dt.year().alias("year"),
            weekday=c("day").dt.weekday(),
        )
        .with_columns(
            z=(c("a") / c("n")).log1p().round(3),
            mean=c("a").mean().over("k"),
            low=c("port").str.to_lowercase(),
            known=c("port").is_in(["S", "C"]).fill_null(False),
            cut=c("n").clip(2, 3),
            between=c("a").is_between(5, 30).cast(pl.Int8),
        )
        .filter(c("n") < 4)
        .select(pl.all().exclude("day", "age", "port"))
    )


def test_the_graph_is_what_polars_computes() -> None:
    model = sx.from_pandas(prepare, people())
    session = ort.InferenceSession(model.proto().SerializeToString())
    actual = model.frame(session.run(None, model.feeds(people())))
    expected = prepare(people().lazy()).collect()
    assert list(actual.columns) == expected.columns
    for name in expected.columns:
        for want, have in zip(expected[name].to_list(), actual[name].tolist(), strict=True):
            if want is None:
                assert have is None or have != have
            elif isinstance(want, float):
                np.testing.assert_allclose(have, want, rtol=1e-12)
            else:
                assert have == want


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda rows: rows.select(pl.col("age").rolling_mean(2)), "has no rule"),
        (lambda rows: rows.collect(), "lazy frame"),
        (lambda rows: rows.select((pl.col("age") > 5).alias("r")), "instead of None"),
    ],
    ids=["rolling", "collected", "null-is-not-false"],
)
def test_what_has_no_faithful_graph_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(sx.SardonyxError, match=reason):
        sx.from_pandas(function, people())

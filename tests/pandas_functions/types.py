"""Data preparation as people write it: types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def columns_of_null(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df["I"] + 1,
            "b": df["I"] * df["F"],
            "c": df["I"] > 2,
            "d": df["B"] & (df["I"] > 2),
            "e": df["I"].fillna(0),
            "f": df["B"].fillna(False),
            "g": df["I"].isna(),
            "h": df["F"].fillna(df["F"].mean()),
        }
    )


def null2(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df["B"] | (df["I"] == 1),
            "b": ~df["B"],
            "c": df["I"].astype("float64"),
            "d": df["I"] / 2,
            "e": df["I"] // 2,
            "f": df["B"].astype("Int64"),
            "g": df["I"].clip(1, 3),
            "h": df["I"].where(df["I"] > 1),
        }
    )


def columns_of_str(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df["S"].str.upper(),
            "b": df["S"] == "a",
            "c": df["S"].fillna("?"),
            "d": df["S"].str.len(),
            "e": df["O"].fillna("?"),
            "f": df["O"].map({"x": 1}),
            "g": df["O"].str.upper(),
            "h": df["S"].isin(["a"]),
        }
    )


def columns_of_cat(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df["C"].cat.codes,
            "b": df["C"].astype(object).fillna("m"),
            "c": df["C"] == "u",
            "d": df["C"].map({"u": 1.5, "v": 2}).astype(float),
            "e": df["K"].cat.codes,
            "f": df["K"] > 1,
            "g": df["C"].isna(),
            "h": df["C"].cat.add_categories("w").fillna("w"),
        }
    )


def small(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df["f"] * 2,
            "b": np.log1p(df["f"]),
            "c": df["i"] * 5,
            "d": df["u"] + 250,
            "e": df["i"].astype("int16") * 300,
            "f": df["f"].fillna(df["f"].mean()),
            "g": df["i"] / 3,
            "h": df["u"] - 1,
        }
    )


def time(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df["d"].dt.total_seconds(),
            "b": df["d"].dt.days,
            "c": df["d"] * 2,
            "d": df["d"] / pd.Timedelta("1h"),
            "e": df["z"].dt.hour,
            "f": df["z"].dt.year,
            "g": df["n"].dt.month,
            "h": df["n"] - pd.Timestamp("2000-01-01"),
            "i": (df["n"] - df["n"].min()).dt.days,
            "j": df["d"].fillna(pd.Timedelta(0)),
            "k": df["n"].fillna(df["n"].max()),
        }
    )


def columns_of_pass(df: pd.DataFrame) -> Any:
    return df

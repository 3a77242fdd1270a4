"""Data preparation as people write it: adult."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def clean(df: pd.DataFrame) -> Any:
    df = df.copy()
    obj = df.select_dtypes(include=["object", "string"]).columns
    df[obj] = df[obj].apply(lambda c: c.str.strip())
    df = df.replace("?", np.nan)
    df["workclass"] = df["workclass"].fillna("Unknown")
    df.columns = [c.replace(".", "_") for c in df.columns]
    df["sex"] = (df["sex"] == "Male").astype(int)
    df["married"] = df["marital_status"].str.startswith("Married").astype(int)
    df["net"] = df["capital_gain"] - df["capital_loss"]
    return df.drop(["income", "marital_status"], axis=1)


def edu(df: pd.DataFrame) -> Any:
    def edu(x):
        x = x.strip()
        if x in ["11th", "9th", "7th-8th", "Preschool"]:
            return "dropout"
        elif x in ("Bachelors", "Masters"):
            return "college"
        elif x == "Doctorate":
            return "phd"
        else:
            return "other"

    return pd.DataFrame(
        {
            "edu": df["education"].apply(edu),
            "us": df["native.country"].apply(lambda x: 1 if "United" in x else 0),
            "hours": df["hours.per.week"].apply(
                lambda h: "part" if h < 35 else ("full" if h <= 45 else "over")
            ),
        }
    )


def freq(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    out = pd.DataFrame()
    for col in ["workclass", "occupation", "native.country"]:
        counts = fit[col].value_counts()
        rare = counts[counts < 40].index.tolist()
        out[col] = df[col].apply(lambda v: "Other" if v in rare else v)  # noqa: B023
        out[col + "_count"] = df[col].map(counts.to_dict()).fillna(0).astype(int)
    return out


def target(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    y = fit["income"].map({" <=50K": 0, " >50K": 1})
    prior = y.mean()
    out = {}
    for c in ["education", "sex"]:
        stats = y.groupby(fit[c]).agg(["mean", "count"])
        smooth = (stats["mean"] * stats["count"] + prior * 10) / (stats["count"] + 10)
        out[c + "_te"] = df[c].map(smooth).fillna(prior)
    return pd.DataFrame(out)

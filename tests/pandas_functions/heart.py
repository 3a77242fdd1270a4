"""Data preparation as people write it: heart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def all(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    df = df.copy()
    for c in ["ca", "thal"]:
        df[c] = pd.to_numeric(df[c].replace("?", np.nan))
        df[c] = df[c].fillna(pd.to_numeric(fit[c].replace("?", np.nan)).mode()[0])
    df["trestbps"] = df["trestbps"].fillna(fit["trestbps"].median())
    df["cp"] = df["cp"].map({0: "typical", 1: "atypical", 2: "non-anginal", 3: "asymptomatic"})
    df["age_q"] = pd.cut(
        df["age"],
        bins=list(fit["age"].quantile([0, 0.25, 0.5, 0.75, 1])),
        labels=False,
        include_lowest=True,
    )
    df["hr_pct"] = df["thalach"] / (220 - df["age"])
    return df.drop(columns=["target"])


def rules(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["bp"] = "normal"
    df.loc[df.trestbps.between(120, 129), "bp"] = "elevated"
    df.loc[df.trestbps >= 130, "bp"] = "high"
    df["chol_h"] = np.where(df.chol.gt(240), "high", np.where(df.chol.ge(200), "border", "ok"))
    df["risk"] = (df.trestbps > 140).astype(int) + (df.chol > 240) + df.fbs
    df["sex"] = df.sex.map({0: "F", 1: "M"}).astype("category")
    df["st"] = df.oldpeak.round().astype(int)
    df["x"] = df[["age", "chol"]].prod(axis=1) ** 0.5
    df["y"] = df[["age", "chol", "thalach"]].std(axis=1)
    return df[["bp", "chol_h", "risk", "sex", "st", "x", "y"]]

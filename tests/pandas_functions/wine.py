"""Data preparation as people write it: wine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def feats(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    df = df.copy()
    df.columns = df.columns.str.replace(" ", "_")
    f = fit.copy()
    f.columns = f.columns.str.replace(" ", "_")
    df["pH"] = df["pH"].fillna(f["pH"].mean())
    df["bound"] = df["total_sulfur_dioxide"] - df["free_sulfur_dioxide"]
    df["ratio"] = (
        df["free_sulfur_dioxide"].div(df["total_sulfur_dioxide"].replace(0, np.nan)).fillna(0)
    )
    df["is_red"] = (df["type"] == "red").astype(np.uint8)
    df["sweet"] = pd.cut(
        df["residual_sugar"],
        bins=[0, 4, 12, 45, np.inf],
        labels=["dry", "medium dry", "medium", "sweet"],
    ).cat.codes
    df["acid"] = df[[c for c in df.columns if "acid" in c]].sum(axis=1)
    df["out"] = (df["alcohol"] - f["alcohol"].mean()).abs() > 2 * f["alcohol"].std()
    return df.drop(columns=["quality"])


def qcut(df: pd.DataFrame, fit: Any = None) -> Any:
    if fit is None:
        return pd.DataFrame(
            {
                "q": pd.qcut(df["alcohol"], q=4, labels=["low", "mid", "high", "top"]),
                "s": pd.qcut(df["residual sugar"], 5, duplicates="drop", labels=False),
            }
        )
    e1 = fit["alcohol"].quantile([0, 0.25, 0.5, 0.75, 1]).to_numpy()
    e2 = np.unique(fit["residual sugar"].quantile(np.linspace(0, 1, 6)).to_numpy())
    return pd.DataFrame(
        {
            "q": pd.cut(
                df["alcohol"], e1, labels=["low", "mid", "high", "top"], include_lowest=True
            ),
            "s": pd.cut(df["residual sugar"], e2, labels=False, include_lowest=True),
        }
    )

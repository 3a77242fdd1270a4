"""Data preparation as people write it: spaceship."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def cabin(df: pd.DataFrame) -> Any:
    df = df.copy()
    df[["deck", "num", "side"]] = df["Cabin"].str.split("/", expand=True)
    df["num"] = df["num"].astype(float)
    df["group"] = df["PassengerId"].str.split("_").str[0].astype(int)
    df["no"] = df["PassengerId"].apply(lambda x: int(x.split("_")[1]))
    return df[["deck", "num", "side", "group", "no"]]


def spend(df: pd.DataFrame) -> Any:
    df = df.copy()
    exp = ["RoomService", "FoodCourt", "Spa"]
    df["total"] = df[exp].sum(axis=1)
    df["none"] = (df["total"] == 0).astype(int)
    df["max"] = df[exp].max(axis=1)
    for c in exp:
        df[c] = np.log1p(df[c].fillna(0))
    df["age_group"] = "unknown"
    df.loc[df["Age"] <= 12, "age_group"] = "0-12"
    df.loc[(df["Age"] > 12) & (df["Age"] < 18), "age_group"] = "13-17"
    df.loc[(df["Age"] >= 18), "age_group"] = "18+"
    return df[exp + ["total", "none", "max", "age_group"]]  # noqa: RUF005


def group2(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    g = df["PassengerId"].str[:4]
    size = fit["PassengerId"].str[:4].value_counts()
    out = pd.DataFrame({"size": g.map(size)})
    out["solo"] = (out["size"] == 1).astype(int)
    out["planet"] = df["HomePlanet"].fillna(fit["HomePlanet"].mode()[0])
    return out


def flags(df: pd.DataFrame) -> Any:
    out = pd.DataFrame()
    out["cryo"] = df["CryoSleep"].map({True: 1, False: 0})
    out["vip"] = df["VIP"].fillna(False).astype(bool)
    out["both"] = (df["CryoSleep"] == True) & (df["VIP"] == False)  # noqa: E712
    return out


def name(df: pd.DataFrame) -> Any:
    s = df["Name"].str.split(" ", n=1, expand=True)
    s.columns = ["first", "last"]
    s["last"] = s["last"].fillna("Unknown")
    s["dest"] = df["Destination"].str.split("-").str[0].str.upper()
    return s

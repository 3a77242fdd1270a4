"""Data preparation as people write it: houses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def columns_of_all(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["TotalSF"] = df["TotalBsmtSF"].fillna(0) + df["1stFlrSF"] + df["2ndFlrSF"]
    df["Age"] = df["YrSold"] - df[["YearBuilt", "YearRemodAdd"]].max(axis=1)
    df["Dec"] = df["YearBuilt"] // 10 * 10
    df["MSSubClass"] = df["MSSubClass"].astype(str)
    df["Old"] = df["YearBuilt"].apply(lambda y: "pre" if y < 1950 else "post")
    df["sin"] = np.sin(2 * np.pi * df["MoSold"] / 12)
    df["Season"] = pd.cut(df["MoSold"], [0, 3, 6, 9, 12], labels=["Q1", "Q2", "Q3", "Q4"])
    return df[["TotalSF", "Age", "Dec", "MSSubClass", "Old", "sin", "Season"]]


def ord(df: pd.DataFrame) -> Any:
    q = pd.CategoricalDtype(["Po", "Fa", "TA", "Gd", "Ex"], ordered=True)
    out = pd.DataFrame(
        {c: df[c].astype(q).cat.codes for c in ["ExterQual", "BsmtQual", "KitchenQual"]}
    )
    out["good"] = df["ExterQual"].astype(q) >= "Gd"
    return out


def corr(df: pd.DataFrame) -> Any:
    num = df.select_dtypes("number")
    c = num.corr()["SalePrice"].abs().sort_values(ascending=False)
    cols = [x for x in c.index[:6] if x != "SalePrice"]
    return df[cols].fillna(df[cols].mean())


def nbh(df: pd.DataFrame) -> Any:
    med = df.groupby("Neighborhood")["SalePrice"].median().sort_values()
    tiers = pd.qcut(med, 3, labels=[0, 1, 2]).astype(int)
    return pd.DataFrame(
        {
            "tier": df["Neighborhood"].map(tiers),
            "z": df["Neighborhood"].map(med).fillna(med.median()) / 1000,
        }
    )


def box(df: pd.DataFrame) -> Any:
    out = df[["LotArea", "GrLivArea"]].apply(np.log1p)
    out["sq"] = df["OverallQual"] ** 2
    out["p"] = np.power(df["GrLivArea"], 0.5)
    out["e"] = np.exp(-df["LotFrontage"] / 100)
    out["r"] = df["LotFrontage"].round(-1)
    return out


def columns_of_mode(df: pd.DataFrame) -> Any:
    cat = df.select_dtypes(include=["object", "string"]).columns
    out = df[cat].fillna(df[cat].mode().iloc[0])
    return out


def types(df: pd.DataFrame) -> Any:
    out = pd.DataFrame()
    for c in df.columns:
        if pd.api.types.is_numeric_dtype(df[c]) and df[c].isna().any():
            out[c + "_missing"] = df[c].isna().astype("int8")
            out[c] = df[c].fillna(df[c].mean())
    return out


def columns_of_int(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df["YearBuilt"].apply(lambda y: int(y / 10) * 10),
            "b": df["LotArea"].apply(lambda v: round(v / 1000, 1)),
            "c": df["GrLivArea"].apply(lambda v: np.sqrt(float(v))),
            "d": df["OverallQual"].apply(lambda q: min(q, 8)),
            "e": df["MoSold"].map(lambda m: (m - 1) // 3 + 1),
            "f": df["LotArea"].apply(lambda v: v if v < 10000 else 10000),
        }
    )


def houses(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["HasG"] = np.where(df["GarageType"].isnull(), 0, 1)
    df["Bath"] = df[["GarageCars", "OverallQual"]].prod(axis=1)
    df["Q"] = df["OverallQual"].map(lambda x: "hi" if x >= 8 else "lo" if x <= 3 else "mid")
    df["era"] = pd.cut(
        df["YearBuilt"], bins=[1899, 1945, 1980, 2010], labels=["old", "mid", "new"], right=True
    )
    df["n_missing"] = df.isnull().sum(axis=1)
    df["rooms"] = df["GrLivArea"].floordiv(500).astype("int32")
    return df[["HasG", "Bath", "Q", "era", "n_missing", "rooms"]]


def ordinal(df: pd.DataFrame) -> Any:
    m = {"Ex": 5, "Gd": 4, "TA": 3, "Fa": 2, "Po": 1}
    q = [c for c in df.columns if "Qual" in c and df[c].dtype != "int64"]
    df = df.copy()
    df[q] = df[q].apply(lambda s: s.map(m)).fillna(0)
    return df[q].assign(tot=df[q].sum(axis=1), best=df[q].idxmax(axis=1))


def robust(df: pd.DataFrame) -> Any:
    c = ["LotArea", "GrLivArea"]
    q = df[c].quantile([0.25, 0.75])
    return (df[c] - df[c].median()) / (q.loc[0.75] - q.loc[0.25])


def agg(df: pd.DataFrame) -> Any:
    st = df.groupby("Neighborhood")[["GrLivArea", "LotArea"]].agg(["mean", "std"])
    st.columns = ["_".join(c) for c in st.columns]
    return df[["Neighborhood"]].join(st, on="Neighborhood").drop(columns="Neighborhood")


def smooth(df: pd.DataFrame) -> Any:
    g = df["SalePrice"].mean()
    a = df.groupby("MSZoning")["SalePrice"].agg(["count", "mean"])
    s = (a["count"] * a["mean"] + 10 * g) / (a["count"] + 10)
    return pd.DataFrame({"e": df["MSZoning"].map(s).fillna(g)})


def feats(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["age"] = df.YrSold - df.YearBuilt
    df["remod"] = np.where(df.YearRemodAdd == df.YearBuilt, 0, 1)
    df["sf"] = df["1stFlrSF"] + df["2ndFlrSF"] + df["TotalBsmtSF"].fillna(0)
    df["season"] = df["MoSold"].apply(
        lambda m: (
            "winter"
            if m in [12, 1, 2]
            else "spring"
            if m in [3, 4, 5]
            else "summer"
            if m in (6, 7, 8)
            else "fall"
        )
    )
    df["ext"] = df["ExterQual"].replace({"Ex": 5, "Gd": 4, "TA": 3, "Fa": 2, "Po": 1})
    df["MSSubClass"] = df["MSSubClass"].apply(str)
    df["qual2"] = df.OverallQual**2
    df["haspool"] = df["PoolArea"].astype(bool).astype(int)
    df["dec"] = (df.YearBuilt // 10 * 10).astype(str) + "s"
    return df[["age", "remod", "sf", "season", "MSSubClass", "qual2", "haspool", "dec"]]


def missing(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    df = df.drop(columns=["SalePrice"], errors="ignore")
    fit = fit.drop(columns=["SalePrice"], errors="ignore")
    share = fit.isnull().mean()
    df = df.drop(columns=share[share > 0.5].index)
    num = df.select_dtypes(include=["int64", "float64"]).columns
    cat = [c for c in df.columns if c not in num]
    df[num] = df[num].fillna(fit[num].median())
    for c in cat:
        df[c] = df[c].fillna(fit[c].mode()[0])
    return df


def grouped(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    out = df[["Neighborhood", "LotArea"]].copy()
    out["mean_area"] = df["Neighborhood"].map(fit.groupby("Neighborhood")["GrLivArea"].mean())
    out["rel"] = df["GrLivArea"] / out["mean_area"]
    out["n"] = df["Neighborhood"].map(fit["Neighborhood"].value_counts(normalize=True))
    q = fit["LotArea"].quantile([0.1, 0.5, 0.9]).values
    out["tier"] = np.digitize(df["LotArea"], q)
    out["tier2"] = np.searchsorted(q, df["LotArea"])
    out["lot_clip"] = np.clip(df["LotArea"], *fit["LotArea"].quantile([0.05, 0.95]))
    return out

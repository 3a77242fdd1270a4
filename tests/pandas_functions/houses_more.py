"""More data preparation as people write it: houses."""

# ruff: noqa: B023, C408, C416, C417, E501, F841, RUF005, RUF100, UP034

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def loop(df: pd.DataFrame) -> Any:
    df = df.copy()
    for col in df.columns:
        if df[col].dtype == "object" or str(df[col].dtype) == "str":
            df[col] = df[col].fillna("None")
        else:
            df[col] = df[col].fillna(0)
    return df.drop(columns=["Id", "SalePrice"], errors="ignore")


def ordinal(df: pd.DataFrame) -> Any:
    qual = {"None": 0, "Po": 1, "Fa": 2, "TA": 3, "Gd": 4, "Ex": 5}
    cols = ["ExterQual", "BsmtQual", "KitchenQual"]
    out = df[cols].fillna("None").apply(lambda c: c.map(qual))
    out["total"] = out.sum(axis=1)
    out["best"] = out[cols].max(axis=1)
    out["which"] = out[cols].idxmax(axis=1)
    out["range"] = out["best"] - out[cols].min(axis=1)
    return out


def rare(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    out = pd.DataFrame(index=df.index)
    for c in ["Neighborhood", "MSZoning", "GarageType"]:
        freq = fit[c].value_counts(normalize=True)
        keep = freq[freq >= 0.08].index.tolist()
        out[c] = np.where(df[c].isin(keep), df[c], "Other")
    return out


def zscore(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    cols = ["LotArea", "GrLivArea", "TotalBsmtSF"]
    mu, sd = (fit[cols].mean(), fit[cols].std(ddof=0))
    z = (df[cols] - mu) / sd
    z.columns = [c + "_z" for c in z.columns]
    z["outlier"] = (z.abs() > 3).any(axis=1)
    return z


def eval(df: pd.DataFrame) -> Any:
    df = df.rename(columns={"1stFlrSF": "FirstFlr", "2ndFlrSF": "SecondFlr"})
    df = df.eval(
        "\n        total = FirstFlr + SecondFlr\n        ratio = GrLivArea / LotArea\n        age = YrSold - YearBuilt\n    "
    )
    k = 10
    df["old"] = df.eval("age > @k * 5 and OverallQual <= 5")
    return df[["total", "ratio", "age", "old"]]


def mssub(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["MSSubClass"] = df["MSSubClass"].astype(str)
    df["MoSold"] = df["MoSold"].map(
        {
            1: "Jan",
            2: "Feb",
            3: "Mar",
            4: "Apr",
            5: "May",
            6: "Jun",
            7: "Jul",
            8: "Aug",
            9: "Sep",
            10: "Oct",
            11: "Nov",
            12: "Dec",
        }
    )
    df["season"] = df["MoSold"].replace({"Dec": "winter", "Jan": "winter", "Feb": "winter"})
    df["decade"] = (df["YearBuilt"] // 10 * 10).astype(str) + "s"
    df["remod"] = np.where(df["YearRemodAdd"] > df["YearBuilt"], "Y", "N")
    return df[["MSSubClass", "MoSold", "season", "decade", "remod"]]


def groupfill(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    med = fit.groupby("Neighborhood")["LotFrontage"].median().to_dict()
    overall = fit["LotFrontage"].median()

    def fill(r):
        if np.isnan(r["LotFrontage"]):
            return med.get(r["Neighborhood"], overall)
        return r["LotFrontage"]

    return pd.DataFrame({"LotFrontage": df.apply(fill, axis=1)})


def describe(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    d = fit[["LotArea", "GrLivArea"]].describe()
    out = pd.DataFrame(index=df.index)
    for c in d.columns:
        iqr = d.loc["75%", c] - d.loc["25%", c]
        low, high = (d.loc["25%", c] - 1.5 * iqr, d.loc["75%", c] + 1.5 * iqr)
        out[c + "_out"] = ~df[c].between(low, high)
        out[c + "_s"] = (df[c] - d.loc["mean", c]) / d.loc["std", c]
    return out


def merge(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    agg = (
        fit.groupby("Neighborhood")
        .agg(price=("SalePrice", "median"), n=("SalePrice", "size"), area=("GrLivArea", "mean"))
        .reset_index()
    )
    out = df[["Neighborhood", "GrLivArea"]].merge(agg, on="Neighborhood", how="left")
    out["rel"] = out["GrLivArea"] / out["area"]
    return out.drop(columns="Neighborhood")


def where(df: pd.DataFrame) -> Any:
    out = df[["PoolArea", "GarageArea", "MasVnrArea"]].gt(0).astype("uint8").add_prefix("has_")
    out["none"] = (out.sum(axis=1) == 0).astype(bool)
    out["garage_per_car"] = df["GarageArea"].div(df["GarageCars"].replace(0, np.nan)).fillna(0)
    out["bath"] = (
        df["MasVnrArea"].where(df["MasVnrArea"].gt(0)).rpow(2).fillna(-1).clip(upper=1000000.0)
    )
    return out


def boxcox(df: pd.DataFrame) -> Any:
    lam = 0.15
    num = df.select_dtypes(include=["int64", "float64"]).columns.difference(
        ["Id", "SalePrice", "YrSold", "MoSold"]
    )
    out = df[num].copy()
    for c in num:
        out[c] = ((out[c].clip(lower=0) + 1) ** lam - 1) / lam
    return out


def qcut(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    edges = pd.qcut(fit["GrLivArea"], q=[0, 0.1, 0.5, 0.9, 1], retbins=True)[1]
    edges[0], edges[-1] = (-np.inf, np.inf)
    band = pd.cut(df["GrLivArea"], bins=edges, labels=["S", "M", "L", "XL"])
    return pd.DataFrame(
        {
            "band": band.astype(str),
            "big": band.isin(["L", "XL"]),
            "code": band.cat.codes,
            "ge": band >= "L",
        }
    )


def corr(df: pd.DataFrame) -> Any:
    qual = df["OverallQual"].astype("category").cat.set_categories(range(1, 11), ordered=True)
    return pd.DataFrame(
        {
            "q": qual.cat.codes,
            "top": qual > 8,
            "bin": pd.cut(df["OverallQual"], 3, labels=["a", "b", "c"]).astype(object)
            if False
            else df["OverallQual"].map(lambda q: "lo" if q <= 3 else "hi" if q >= 8 else "mid"),
        }
    )


def dropsparse(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    share = fit.isnull().sum() / len(fit)
    drop = share[share > 0.15].index
    out = df.drop(drop, axis=1).drop(columns=["Id", "SalePrice"], errors="ignore")
    num = [c for c in out.columns if pd.api.types.is_numeric_dtype(out[c])]
    out[num] = out[num].fillna(fit[num].median())
    cat = out.columns.difference(num)
    out[cat] = out[cat].fillna("NA")
    return out


def stacktext(df: pd.DataFrame) -> Any:
    return (
        df.set_index("Id")[["ExterQual", "BsmtQual", "KitchenQual"]]
        .stack()
        .rename("q")
        .reset_index()
    )


def melt_mixed(df: pd.DataFrame) -> Any:
    m = df[["Id", "ExterQual", "BsmtQual"]].melt("Id", var_name="what", value_name="q")
    m["n"] = m["q"].map({"Ex": 5, "Gd": 4, "TA": 3}).fillna(0)
    m["short"] = m["what"].str[:4].str.lower()
    return m


def sold(df: pd.DataFrame) -> Any:
    d = pd.to_datetime(dict(year=df["YrSold"], month=df["MoSold"], day=1), errors="coerce")
    return pd.DataFrame(
        {
            "q": d.dt.quarter,
            "leap": d.dt.is_leap_year,
            "end": d.dt.is_quarter_end,
            "d": (pd.Timestamp("2011-01-01") - d).dt.days,
        }
    )


def uncorrelated(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    num = fit.select_dtypes("number").drop(columns=["Id", "SalePrice"], errors="ignore")
    corr = num.corr().abs()
    upper = corr.where(np.triu(np.ones(corr.shape), k=1).astype(bool))
    drop = [c for c in upper.columns if any(upper[c] > 0.5)]
    const = [c for c in num.columns if num[c].nunique() <= 1]
    return df[num.columns].drop(columns=drop + const).fillna(num.median())


def filled(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    out = df.drop(columns=["Id", "SalePrice"], errors="ignore").copy()
    for c in out.columns:
        if out[c].dtype.kind in "if":
            out[c] = out[c].fillna(fit[c].mean())
        else:
            out[c] = out[c].fillna(fit[c].mode()[0])
            out[c] = pd.Categorical(
                out[c], categories=fit[c].fillna(fit[c].mode()[0]).unique()
            ).codes
    return out


def eras(df: pd.DataFrame) -> Any:
    out = pd.DataFrame()
    out["era"] = pd.cut(
        df["YearBuilt"], pd.IntervalIndex.from_tuples([(1800, 1945), (1945, 1980), (1980, 2100)])
    ).cat.codes
    out["y"] = df["YearBuilt"].astype(str).str[2:].astype(int)
    out["lot"] = df["LotFrontage"].combine_first(df["LotArea"] ** 0.5).round(1)
    out["gar"] = df["GarageArea"].fillna(0).astype(int) // 100
    out["z"] = df["MSZoning"].str.get(0).fillna("?")
    out["c"] = df["MSZoning"].str.extract("\\((\\w+)\\)", expand=False).notna()
    return out


def centered(df: pd.DataFrame) -> Any:
    g = df.groupby("Neighborhood")
    out = g[["LotArea", "GrLivArea"]].transform("mean").add_suffix("_mean")
    out["z"] = g["LotArea"].transform(lambda x: (x - x.mean()) / x.std())
    out["share"] = df["GrLivArea"] / g["GrLivArea"].transform("sum")
    out["d"] = df["OverallQual"] - g["OverallQual"].transform("max")
    return out

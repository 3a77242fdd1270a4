"""Data preparation as people write it: cars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def units(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["Mileage"] = df["Mileage"].str.split(" ").str[0].astype(float)
    df["Engine"] = df["Engine"].apply(
        lambda x: float(str(x).split(" ")[0]) if pd.notnull(x) else np.nan
    )
    df["Power"] = pd.to_numeric(df["Power"].str.replace(" bhp", ""), errors="coerce")
    df["Brand"] = df["Name"].apply(lambda x: x.split(" ")[0]).str.upper()
    df["Age"] = 2020 - df["Year"]
    df["km_y"] = df["Kilometers_Driven"] / df["Age"].replace(0, 1)
    return df[["Mileage", "Engine", "Power", "Brand", "Age", "km_y"]]


def price(df: pd.DataFrame) -> Any:
    def convert(x):
        if pd.isna(x):
            return np.nan
        v, u = x.split(" ")[0], x.split(" ")[1]
        if u == "Cr":
            return float(v) * 100
        return float(v)

    out = pd.DataFrame({"np": df["New_Price"].apply(convert)})
    out["owner"] = df["Owner_Type"].map({"First": 1, "Second": 2, "Third": 3, "Fourth & Above": 4})
    return out


def model(df: pd.DataFrame) -> Any:
    out = df["Name"].str.split(expand=True, n=2)
    out.columns = ["brand", "model", "variant"]
    out["auto"] = df["Name"].str.contains("AT|Automatic", case=True)
    out["cc"] = df["Name"].str.extract(r"(\d\.\d)")[0].astype(float)
    out["kmpl"] = df["Mileage"].str.endswith("kmpl", na=False)
    return out


def fill(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    df = df.copy()
    df["Seats"] = df["Seats"].fillna(
        df["Fuel_Type"].map(fit.groupby("Fuel_Type")["Seats"].agg(lambda s: s.mode().iloc[0]))
    )
    df["Seats"] = df["Seats"].fillna(fit["Seats"].median())
    top = fit["Name"].str.split().str[0].value_counts().nlargest(3).index
    b = df["Name"].str.split().str[0]
    df["b"] = b.where(b.isin(top), "Other")
    df["yr"] = (df["Year"] - fit["Year"].min()) / (fit["Year"].max() - fit["Year"].min())
    return df[["Seats", "b", "yr"]]


def cat(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    out = pd.DataFrame()
    for c in ["Location", "Fuel_Type", "Owner_Type"]:
        cats = sorted(fit[c].dropna().unique())
        out[c] = pd.Categorical(df[c], categories=cats).codes
        lab = {v: k for k, v in enumerate(cats)}
        out[c + "_m"] = df[c].map(lab)
    return out

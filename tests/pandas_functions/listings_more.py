"""More data preparation as people write it: listings."""

# ruff: noqa: B023, C408, C416, C417, E501, F841, RUF005, RUF100, UP034

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd


def cat(df: pd.DataFrame) -> Any:

    def split_cat(text):
        try:
            return text.split("/")
        except AttributeError:
            return ("No Label", "No Label", "No Label")

    c = df["category_name"].fillna("a/b/c").str.split("/", n=2, expand=True)
    c.columns = ["main", "sub1", "sub2"]
    c["sub2"] = c["sub2"].fillna("none")
    return c


def text(df: pd.DataFrame) -> Any:
    d = df["item_description"].fillna("").str.lower()
    out = pd.DataFrame(
        {
            "len": d.str.len(),
            "words": d.str.split().str.len(),
            "free": d.str.contains("free"),
            "rm": d.str.count("\\[rm\\]"),
            "pct": d.str.count("%"),
            "excl": d.str.count("!"),
            "digits": d.str.count("\\d"),
            "new": d.str.contains("\\b(?:new|never worn)\\b", regex=True),
        }
    )
    out["avg"] = out["len"] / out["words"].replace(0, 1)
    return out


def clean(df: pd.DataFrame) -> Any:
    n = (
        df["name"]
        .str.lower()
        .str.replace("[^\\w\\s]", "", regex=True)
        .str.replace("\\s+", " ", regex=True)
        .str.strip()
    )
    return pd.DataFrame(
        {
            "clean": n,
            "slug": n.str.replace(" ", "-"),
            "first": n.str.split(" ").str[0],
            "size": n.str.extract("size (\\d+)", expand=False).astype(float),
            "upper": df["name"].str.isupper(),
            "caps": df["name"].str.count("[A-Z]"),
        }
    )


def brand(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    b = df["brand_name"].fillna("missing")
    fb = fit["brand_name"].fillna("missing")
    pop = fb.value_counts().loc[lambda s: s.index != "missing"].index[:3]
    out = pd.DataFrame({"brand": b.where(b.isin(pop), other="other")})
    out["in_name"] = [str(x).lower() in y.lower() for x, y in zip(b, df["name"])]
    out["n"] = b.map(fb.value_counts()).fillna(0).astype(int)
    out["has"] = df["brand_name"].notna()
    return out


def price(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    m = fit.groupby("item_condition_id")["price"].median()
    lp = np.log1p(fit["price"])
    out = df[["item_condition_id", "shipping"]].copy()
    out["med"] = out["item_condition_id"].map(m)
    out["z"] = (np.log1p(df["price"]) - lp.mean()) / lp.std()
    out["cheap"] = np.where(df["price"] < out["med"], 1, 0)
    out["band"] = pd.cut(
        df["price"],
        bins=[-1, *fit["price"].quantile([0.33, 0.66]).tolist(), np.inf],
        labels=["low", "mid", "high"],
    )
    return out


def reped(df: pd.DataFrame) -> Any:
    pat = re.compile("(?P<num>\\d+)s?\\b", re.I)
    ext = df["name"].str.extract(pat)
    return pd.DataFrame(
        {
            "num": ext["num"].astype(float).fillna(-1),
            "brand": df["name"]
            .str.extract("\\b(nike|pink|lego|coach)\\b", flags=re.IGNORECASE, expand=False)
            .str.lower(),
            "m": df["name"].str.match("(?:brand )?new", case=False),
            "sub": df["name"].apply(lambda s: re.sub("[aeiou]", "", s.lower())),
        }
    )


def apply(df: pd.DataFrame) -> Any:

    def count_caps(s):
        return sum((1 for c in s if c.isupper()))

    return pd.DataFrame(
        {
            "w": df["name"].apply(lambda s: len(s.split())),
            "longest": df["name"].apply(lambda s: s.split(" ")[-1]),
            "has": df["name"].apply(lambda s: "shoes" in s.lower()),
            "i": df["name"].apply(lambda s: s[0].lower() if s else ""),
        }
    )


def combo(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    f = fit["category_name"].fillna("x").str.split("/").str[0]
    d = df["category_name"].fillna("x").str.split("/").str[0]
    k = f + "|" + fit["item_condition_id"].astype(str)
    kd = d + "|" + df["item_condition_id"].astype(str)
    stats = fit.assign(k=k).groupby("k")["price"].describe()[["mean", "50%", "max"]]
    stats.columns = ["m", "md", "mx"]
    return (
        pd.DataFrame({"k": kd})
        .merge(stats, left_on="k", right_index=True, how="left")
        .fillna({"m": fit["price"].mean(), "md": fit["price"].median(), "mx": 0})[["m", "md", "mx"]]
    )


def mode_group(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    mode = fit.groupby("category_name")["brand_name"].agg(
        lambda s: s.mode().iloc[0] if not s.mode().empty else np.nan
    )
    b = df["brand_name"].fillna(df["category_name"].map(mode)).fillna("unknown")
    return pd.DataFrame(
        {
            "brand": b,
            "code": pd.Categorical(b, categories=sorted(fit["brand_name"].dropna().unique())).codes,
        }
    )


def depth(df: pd.DataFrame) -> Any:
    d = df["category_name"].str.get_dummies(sep="/") if False else df["category_name"].fillna("")
    return pd.DataFrame(
        {
            "depth": d.str.count("/") + (d != "").astype(int),
            "w": d.str.startswith("Women"),
            "last": d.str.split("/").str[-1].str.strip(),
            "len": d.map(len),
            "u": d.str.upper().eq(d),
        }
    )


def brands(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    top = fit["brand_name"].value_counts().index[:2]
    brand = df["brand_name"].apply(lambda b: b if b in top else "none" if pd.isna(b) else "other")
    mean = fit.groupby(fit["brand_name"].fillna("none"))["price"].mean().to_dict()
    gm = fit["price"].mean()
    return pd.DataFrame(
        {
            "brand": brand,
            "m": df["brand_name"].fillna("none").map(mean).fillna(gm),
            "rel": df["price"] / df["brand_name"].map(mean).fillna(gm),
        }
    )


def grades(df: pd.DataFrame) -> Any:

    def grade(row):
        score = 0
        score += 2 if row["item_condition_id"] <= 2 else 0
        score += 1 if row["shipping"] == 1 else 0
        desc = row["item_description"]
        if isinstance(desc, str):
            if "free" in desc.lower():
                score += 1
            if len(desc) > 40:
                score += 1
        else:
            score -= 1
        return score

    df["score"] = df.apply(grade, axis=1)
    df["tier"] = pd.cut(df["score"], bins=[-10, 0, 2, 10], labels=["low", "mid", "high"])
    return df[["score", "tier"]]

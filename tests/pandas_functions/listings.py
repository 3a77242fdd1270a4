"""Data preparation as people write it: listings."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd


def cats(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["category_name"] = df["category_name"].fillna("missing/missing/missing")

    def split_cat(t):
        try:
            return t.split("/")
        except AttributeError:
            return ("No", "No", "No")

    df["main"] = df["category_name"].apply(lambda t: t.split("/")[0])
    df["depth"] = df["category_name"].str.count("/") + 1
    return df[["main", "depth"]]


def text(df: pd.DataFrame) -> Any:
    d = df["item_description"].fillna("")
    return pd.DataFrame(
        {
            "len": d.str.len(),
            "words": d.str.split().str.len(),
            "free": d.str.contains("free", case=False),
            "rm": d.str.count("\\[rm\\]"),
            "name": df["name"].str.lower().str.strip(),
            "up": df["name"].str.contains("[A-Z]{3,}"),
        }
    )


def clean(df: pd.DataFrame) -> Any:
    s = (
        df["item_description"]
        .fillna("")
        .str.lower()
        .str.replace("[^a-z0-9 ]", "", regex=True)
        .str.replace("\\s+", " ", regex=True)
        .str.strip()
    )
    return pd.DataFrame(
        {"s": s, "first": s.str.split(" ").str[0], "short": s.str[:5], "n": s.str.len()}
    )


def brand(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["has_brand"] = (~df["brand_name"].isnull()).astype(int)
    df["brand_name"] = df["brand_name"].fillna("unknown")
    pop = df["brand_name"].value_counts().loc[lambda x: x.index != "unknown"].index[:3]
    df.loc[~df["brand_name"].isin(pop), "brand_name"] = "other"
    return df[["has_brand", "brand_name"]]


def price(df: pd.DataFrame) -> Any:
    m = df.groupby("brand_name")["price"].median()
    c = df.groupby("item_condition_id")["price"].agg(p_mean="mean", p_std="std")
    return pd.DataFrame(
        {
            "b": df["brand_name"].map(m).fillna(df["price"].median()),
            "c": df["item_condition_id"].map(c["p_mean"]),
            "s": df["item_condition_id"].map(c["p_std"]),
        }
    )


def extract(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "size": df["name"].str.extract("size (\\d+)", expand=False).astype(float),
            "model": df["name"].str.extract("(?P<b>iPhone)\\s(?P<m>\\w+)")["m"],
            "digit": df["name"].str.extract("(\\d+)")[0],
        }
    )


def columns_of_cross(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "k": df["brand_name"]
            .fillna("none")
            .str.cat(df["item_condition_id"].astype(str), sep="_"),
            "t": df["name"].str.title(),
            "u": df["name"].str.upper(),
            "sw": df["name"].str.startswith(("NEW", "Brand")),
            "z": df["item_condition_id"].astype(str).str.zfill(3),
        }
    )


def catcodes(df: pd.DataFrame) -> Any:
    df = df.copy()
    for c in ["brand_name", "category_name"]:
        df[c] = df[c].fillna("missing").astype("category")
    return pd.DataFrame({c + "_code": df[c].cat.codes for c in ["brand_name", "category_name"]})


def columns_of_lambda(df: pd.DataFrame) -> Any:
    cond = {1: "new", 2: "good", 3: "fair"}
    return pd.DataFrame(
        {
            "c": df["item_condition_id"].map(lambda x: cond.get(x, "poor")),
            "w": df["name"].apply(lambda s: len(s.split(" "))),
            "nike": df["name"].apply(lambda s: 1 if "nike" in s.lower() else 0),
        }
    )


def words(df: pd.DataFrame) -> Any:
    out = pd.DataFrame(index=df.index)
    for w in ["new", "bundle", "lego"]:
        out["has_" + w] = df["name"].str.lower().str.contains(w).astype(int)
    out["total"] = out.sum(axis=1)
    out["any"] = out[["has_new", "has_lego"]].any(axis=1)
    return out


def freq(df: pd.DataFrame) -> Any:
    f = df["category_name"].value_counts(dropna=False)
    return pd.DataFrame(
        {
            "f": df["category_name"].map(f),
            "n": df.groupby("brand_name")["name"].transform("nunique"),
            "sz": df.groupby("brand_name")["price"].transform("size"),
        }
    )


def bins(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "b": pd.cut(df["price"], 5, labels=False),
            "q": pd.qcut(df["price"], [0, 0.1, 0.5, 0.9, 1], labels=["a", "b", "c", "d"]).astype(
                str
            ),
            "i": pd.cut(df["price"], [0, 10, 50, 1000]),
            "d": pd.qcut(df["price"], 10, labels=False, duplicates="drop"),
        }
    )


def gd(df: pd.DataFrame) -> Any:
    return df["category_name"].str.get_dummies("/")


def i(df: pd.DataFrame) -> Any:
    c = pd.cut(df["price"], [0.0, 10.0, 50.0, 1000.0])
    return pd.DataFrame({"s": c.astype(str), "m": c.apply(lambda i: i.mid).astype(float)})


def catlevels(df: pd.DataFrame) -> Any:
    c = df["category_name"].fillna("None/None/None").str.split("/", n=2, expand=True)
    c.columns = ["a", "b", "c"]
    c["c"] = c["c"].fillna("none")
    return c.apply(lambda s: s.astype("category").cat.codes)


def wordstats(df: pd.DataFrame) -> Any:
    d = df["item_description"].fillna("none").str.lower()
    return pd.DataFrame(
        {
            "n": d.str.split().apply(len),
            "avg": d.str.len() / d.str.split().str.len(),
            "ex": d.str.count("!"),
            "dig": d.str.count("\\d"),
            "cap": df["name"].str.count("[A-Z]"),
            "f": d.str.find("size"),
            "has": d.str.contains("never|no", regex=True).astype(int),
        }
    )


def priceband(df: pd.DataFrame) -> Any:
    m = df.groupby("category_name")["price"].transform("median")
    return pd.DataFrame(
        {
            "rel": df["price"] / m,
            "cheap": df["price"] < m,
            "log": np.log(df["price"] + 1),
            "r": df["price"].round(-1),
            "q": df["price"].quantile(0.9),
        }
    )


def nested(df: pd.DataFrame) -> Any:

    def clean(s):
        s = s.lower()
        if s.startswith("new"):
            return "new"
        elif "brand" in s or s.endswith("bag"):
            return "brand"
        else:
            return s.split()[0]

    return df["name"].apply(clean).rename("k").to_frame()


def ship(df: pd.DataFrame) -> Any:
    return df.assign(
        ship=df["shipping"].map({0: "buyer", 1: "seller"}),
        free=lambda d: d["shipping"].astype(bool),
        cond=df["item_condition_id"].between(1, 2, inclusive="left"),
    )[["ship", "free", "cond"]]


def slug(df: pd.DataFrame) -> Any:
    s = df["name"].str.lower().str.replace("[^a-z0-9]+", "-", regex=True).str.strip("-")
    return pd.DataFrame(
        {
            "slug": s,
            "l3": s.str[-3:],
            "pad": s.str[:4].str.ljust(6, "."),
            "sw": df["name"].str.swapcase(),
            "cp": df["name"].str.capitalize(),
            "al": df["name"].str.replace(" ", "").str.isalpha(),
        }
    )


def descriptions(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["category_name"] = df["category_name"].fillna("//")
    df[["c1", "c2", "c3"]] = df["category_name"].str.split("/", n=2, expand=True)
    df["brand_name"] = df["brand_name"].fillna("unknown").str.lower()
    df["desc_len"] = df["item_description"].apply(lambda x: len(str(x)))
    df["has_price"] = (
        df["item_description"].str.contains("[rm]", regex=False).fillna(False).astype(int)
    )
    df["desc"] = (
        df["item_description"]
        .fillna("")
        .str.replace(r"[^a-zA-Z ]", " ", regex=True)
        .str.lower()
        .str.split()
        .str.join(" ")
    )
    df["new"] = df["name"].str.contains(r"\bnew\b", case=False, regex=True)
    df["text"] = df["name"] + " " + df["brand_name"]
    return df[["c1", "c2", "c3", "brand_name", "desc_len", "desc", "new", "text"]]


def patterns(df: pd.DataFrame) -> Any:
    s = df["item_description"].fillna("")
    return pd.DataFrame(
        {
            "x": s.apply(lambda t: re.sub(r"[^a-z0-9]+", " ", t.lower()).strip()),
            "n": s.apply(lambda t: len(re.findall(r"\d+", t))),
            "has": s.apply(lambda t: bool(re.search(r"free", t))),
            "y": df["name"].apply(lambda t: 1 if re.search("size|Size", t) else 0),
        }
    )


def attempts(df: pd.DataFrame) -> Any:
    def split_cat(text):
        try:
            a, b, c = text.split("/")  # noqa: RUF059
            return a
        except Exception:
            return "No Label"

    def first(text):
        try:
            return text.split("/")[1]
        except IndexError:
            return "none"

    return pd.DataFrame(
        {
            "m": df["category_name"].apply(split_cat),
            "s": df["category_name"].fillna("").apply(first),
        }
    )

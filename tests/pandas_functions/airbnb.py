"""Data preparation as people write it: airbnb."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def price(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["price"] = df["price"].str.replace("$", "", regex=False).str.replace(",", "").astype(float)
    df["host_response_rate"] = df["host_response_rate"].str.rstrip("%").astype(float) / 100
    df["superhost"] = df["host_is_superhost"].map({"t": 1, "f": 0}).fillna(0).astype("int8")
    df["log_price"] = np.log(df["price"] + 1)
    return df[["price", "host_response_rate", "superhost", "log_price"]]


def price_regex(df: pd.DataFrame) -> Any:
    p = df["price"].replace(r"[\$,]", "", regex=True).astype("float64")
    b = df["bathrooms_text"].str.extract(r"(\d+\.?\d*)", expand=False).astype(float)
    b = b.mask(df["bathrooms_text"].str.lower().str.contains("half", na=False), 0.5)
    return pd.DataFrame(
        {
            "price": p,
            "baths": b,
            "shared": df["bathrooms_text"].fillna("").str.contains("shared"),
            "n_am": df["amenities"].str.count(",") + 1,
            "wifi": df["amenities"].str.contains("Wifi|Internet", regex=True).astype(int),
        }
    )


def dates(df: pd.DataFrame) -> Any:
    d = pd.to_datetime(df["host_since"], errors="coerce")
    ref = pd.to_datetime("2019-07-08")
    days = (ref - d).dt.days
    out = pd.DataFrame(
        {
            "host_days": days,
            "host_years": days / 365.25,
            "rev_days": (ref - df["last_review"]).dt.days.fillna(-1).astype(int),
        }
    )
    out["never"] = df["last_review"].isnull().astype(int)
    out["month"] = df["last_review"].dt.strftime("%Y-%m")
    out["rpm"] = df["reviews_per_month"].fillna(0)
    return out


def haversine(df: pd.DataFrame) -> Any:
    def haversine(lat1, lon1, lat2, lon2):
        R = 6371
        lat1, lon1, lat2, lon2 = map(np.radians, [lat1, lon1, lat2, lon2])
        dlat, dlon = lat2 - lat1, lon2 - lon1
        a = np.sin(dlat / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin(dlon / 2) ** 2
        return 2 * R * np.arcsin(np.sqrt(a))

    places = {"ts": (40.758, -73.9855), "jfk": (40.6413, -73.7781)}
    out = pd.DataFrame()
    for k, (la, lo) in places.items():
        out[f"dist_{k}"] = haversine(df["latitude"], df["longitude"], la, lo)
    out["nearest"] = out.min(axis=1)
    out["which"] = out[["dist_ts", "dist_jfk"]].idxmin(axis=1)
    return out


def group(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    agg = (
        fit.groupby(["neighbourhood_group", "room_type"])
        .agg(
            avail=("availability_365", "mean"),
            n=("id", "count"),
            rev=("number_of_reviews", "median"),
        )
        .reset_index()
    )
    out = pd.merge(df, agg, how="left", on=["neighbourhood_group", "room_type"])
    out["diff"] = out["availability_365"] - out["avail"]
    return out[["avail", "n", "rev", "diff"]]


def name(df: pd.DataFrame) -> Any:
    n = df["name"].fillna("").str.lower()
    return pd.DataFrame(
        {
            "len": n.str.len(),
            "words": n.str.split().apply(len),
            "excl": n.str.count("!"),
            "park": n.str.contains(r"\bpark\b").astype(int),
            "clean": n.str.replace(r"[^\w\s]", "", regex=True),
            "title": n.str.title(),
            "first": n.str.split(" ").str.get(0),
            "caps": df["name"].str.isupper(),
        }
    )

"""Data preparation as people write it: taxi."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def speed(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["dur"] = (df["dropoff_datetime"] - df["pickup_datetime"]).dt.total_seconds() / 60
    df["logd"] = np.log1p(df["trip_duration"])
    df["rush"] = df["pickup_datetime"].dt.hour.isin([7, 8, 9, 16, 17, 18]) & (
        df["pickup_datetime"].dt.day_of_week < 5
    )
    df["bucket"] = pd.cut(df["dur"], bins=[-np.inf, 5, 15, 60, np.inf], labels=["s", "m", "l", "x"])
    return df[["dur", "logd", "rush", "bucket"]]


def cluster(df: pd.DataFrame) -> Any:
    lat = (df["pickup_latitude"] * 100).round().fillna(0).astype(int)
    lon = (df["pickup_longitude"] * 100).round().fillna(0).astype(int)
    k = lat.astype(str) + "_" + lon.astype(str)
    return pd.DataFrame({"k": k, "n": k.map(k.value_counts()).fillna(0)})


def flag(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "f": df["store_and_fwd_flag"].map({"Y": 1, "N": 0}).fillna(0).astype(bool),
            "n": df["id"].str[2:].astype(int),
            "p": df["passenger_count"].clip(1, 6),
            "v": df["vendor_id"].astype("category"),
        }
    )


def manhattan(df: pd.DataFrame) -> Any:
    a = np.abs(df["dropoff_longitude"] - df["pickup_longitude"])
    b = np.abs(df["dropoff_latitude"] - df["pickup_latitude"])
    return pd.DataFrame(
        {"m": a + b, "e": np.sqrt(a**2 + b**2), "h": np.hypot(a, b), "mx": np.maximum(a, b)}
    )


def taxi(df: pd.DataFrame) -> Any:
    p = df["pickup_datetime"]
    mins = p.dt.hour * 60 + p.dt.minute
    d = np.sqrt(
        np.square(df["dropoff_longitude"] - df["pickup_longitude"])
        + np.square(df["dropoff_latitude"] - df["pickup_latitude"])
    )
    return pd.DataFrame(
        {
            "m": mins,
            "s": np.sin(mins * np.pi / 720),
            "d": d,
            "v": d / df["trip_duration"],
            "bin": pd.qcut(d, 4, labels=["a", "b", "c", "d"]),
            "hol": p.dt.strftime("%m-%d").isin(["01-01", "05-30"]),
            "wd": p.dt.day_name().str[:3],
            "night": ((p.dt.hour >= 22) | (p.dt.hour < 5)).astype(int),
        }
    )


def bins(df: pd.DataFrame) -> Any:
    lat = pd.cut(df["pickup_latitude"], 20, labels=False)
    lon = pd.cut(df["pickup_longitude"], bins=np.linspace(-74.1, -73.8, 10), labels=False)
    return pd.DataFrame(
        {
            "lat": lat,
            "lon": lon,
            "cell": lat * 100 + lon,
            "dig": np.digitize(df["passenger_count"], [1, 3, 5]),
        }
    )


def trips(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["dur"] = (df["dropoff_datetime"] - df["pickup_datetime"]).dt.total_seconds()
    df["ph"] = df["pickup_datetime"].dt.hour
    df["pd"] = df["pickup_datetime"].dt.dayofweek
    df["we"] = df["pd"].apply(lambda d: 1 if d >= 5 else 0)
    df["flag"] = (df["store_and_fwd_flag"] == "Y") * 1
    df["dist"] = np.abs(df["dropoff_longitude"] - df["pickup_longitude"]) + np.abs(
        df["dropoff_latitude"] - df["pickup_latitude"]
    )
    df["bearing"] = np.degrees(
        np.arctan2(
            df["dropoff_latitude"] - df["pickup_latitude"],
            df["dropoff_longitude"] - df["pickup_longitude"],
        )
    )
    df["bin"] = (
        df["pickup_latitude"].round(2).astype(str)
        + ","
        + df["pickup_longitude"].round(2).astype(str)
    )
    df["minute_of_day"] = df["pickup_datetime"].dt.hour * 60 + df["pickup_datetime"].dt.minute
    df["date"] = df["pickup_datetime"].dt.normalize()
    df["h3"] = df["pickup_datetime"].dt.floor("3h")
    return df[
        ["dur", "ph", "pd", "we", "flag", "dist", "bearing", "bin", "minute_of_day", "date", "h3"]
    ]


def taxi_date(df: pd.DataFrame) -> Any:
    d = df["pickup_datetime"]
    out = pd.DataFrame(
        {
            "date": d.dt.date.astype(str),
            "time": d.dt.strftime("%H:%M"),
            "wk": d.dt.isocalendar().week,
            "hol": d.dt.strftime("%m-%d").isin(["01-01", "07-04", "12-25"]),
        }
    )
    out["jan"] = (d >= "2016-01-01") & (d < "2016-02-01")
    out["mid"] = d.between("2016-02-01", "2016-03-31")
    out["name"] = d.dt.day_name().str[:3]
    return out

"""Data preparation as people write it: bike."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd


def basic(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["datetime"] = pd.to_datetime(df["datetime"])
    df["year"] = df["datetime"].dt.year
    df["month"] = df.datetime.dt.month
    df["hour"] = df.datetime.dt.hour
    df["weekday"] = df.datetime.dt.weekday
    df["date"] = df.datetime.dt.date
    df["ym"] = df["year"].astype(str) + "-" + df["month"].astype(str).str.zfill(2)
    return df.drop(columns=["datetime", "casual", "registered", "count", "date"])


def date_str(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["date"] = df["datetime"].apply(lambda x: x.split()[0])
    df["hour"] = df["datetime"].apply(lambda x: x.split()[1].split(":")[0]).astype("int")
    df["year"] = df["date"].apply(lambda x: x.split("-")[0])
    df["weekday"] = df["date"].apply(lambda d: datetime.strptime(d, "%Y-%m-%d").weekday())
    return df[["date", "hour", "year", "weekday"]]


def cyc(df: pd.DataFrame) -> Any:
    t = pd.to_datetime(df["datetime"], format="%Y-%m-%d %H:%M:%S")
    out = df[["temp", "atemp", "humidity", "windspeed"]].copy()
    for name, part, period in [
        ("hour", t.dt.hour, 24),
        ("month", t.dt.month, 12),
        ("dow", t.dt.dayofweek, 7),
    ]:
        out[f"{name}_sin"] = np.sin(2 * np.pi * part / period)
        out[f"{name}_cos"] = np.cos(2 * np.pi * part / period)
    out["rush"] = (
        (t.dt.hour.between(7, 9) | t.dt.hour.between(17, 19)) & (df["workingday"] == 1)
    ).astype(int)
    out["feel"] = out["atemp"] - out["temp"]
    out["season"] = df.season.map({1: "Spring", 2: "Summer", 3: "Fall", 4: "Winter"})
    return out


def wind(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    df = df.copy()
    mean_wind = fit.groupby("season")["windspeed"].mean()
    df["windspeed"] = df["windspeed"].fillna(df["season"].map(mean_wind))
    df["windspeed"] = np.where(df["windspeed"] == 0, fit["windspeed"].mean(), df["windspeed"])
    q1, q3 = fit["windspeed"].quantile(0.25), fit["windspeed"].quantile(0.75)
    iqr = q3 - q1
    df["windy"] = (df["windspeed"] > q3 + 1.5 * iqr).astype(int)
    df["wl"] = np.log1p(df["windspeed"].clip(lower=0))
    return df[["windspeed", "windy", "wl", "season"]]


def select(df: pd.DataFrame) -> Any:
    conds = [df["weather"].eq(1), df["weather"].eq(2), df["weather"].isin([3, 4])]
    df = df.assign(
        w=np.select(conds, ["clear", "mist", "bad"], default="unknown"),
        hum=pd.cut(df["humidity"], bins=[-1, 30, 60, 100], labels=["dry", "ok", "wet"]),
        comfort=lambda d: np.select([d.temp < 10, d.temp < 25], [0, 1], 2),
    )
    return df[["w", "hum", "comfort"]]

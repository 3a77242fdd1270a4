"""Data preparation as people write it: clicks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def time(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["click_time"] = pd.to_datetime(df["click_time"])
    df["h"] = df["click_time"].dt.hour
    df["dh"] = df["click_time"].dt.day * 100 + df["h"]
    g = df.groupby(["ip", "app"])["channel"].nunique().reset_index(name="u")
    return df.merge(g, on=["ip", "app"], how="left")[["h", "dh", "u"]]


def site(df: pd.DataFrame) -> Any:
    s = df["site"].str.split(".", expand=True)
    return pd.DataFrame(
        {
            "a": s[0].str.lower(),
            "b": s[1],
            "l": df["site"].str.len().fillna(0).astype(int),
            "e": df["site"].fillna("").str.endswith("example"),
        }
    )


def var(df: pd.DataFrame) -> Any:
    v = df.groupby("app")["channel"].var()
    return pd.DataFrame(
        {
            "v": df["app"].map(v),
            "c": df["ip"].map(df.groupby("ip").size()),
            "m": df["os"].map(df.groupby("os")["is_attributed"].mean().to_dict()),
        }
    )


def clicks(df: pd.DataFrame) -> Any:
    t = pd.to_datetime(df["click_time"], format="%Y-%m-%d %H:%M:%S")
    df = df.assign(
        hour=t.dt.hour, sec=t.dt.second, ts=(t - pd.Timestamp("1970-01-01")) // pd.Timedelta("1s")
    )
    df["part"] = pd.cut(df["hour"], [-1, 5, 11, 17, 23], labels=["n", "m", "a", "e"])
    df["conf"] = df["app"].map(df.groupby("app")["is_attributed"].mean()) * df["app"].map(
        np.log(df["app"].value_counts()) / np.log(100000)
    )
    return df[["hour", "sec", "ts", "part", "conf"]]


def columns_of_hash(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "b": df["ip"] % 16,
            "c": (df["ip"] * 31 + df["app"]) % 101,
            "d": df["ip"].astype(str).str[-2:],
            "e": (df["device"] == 1) & df["os"].isin([13, 19]),
        }
    )


def parts(df: pd.DataFrame) -> Any:
    t = pd.to_datetime(df["click_time"])
    out = pd.DataFrame(
        {
            "hour": t.dt.hour,
            "part": pd.cut(
                t.dt.hour,
                bins=[0, 6, 12, 18, 24],
                labels=["n", "m", "a", "e"],
                right=False,
                include_lowest=True,
            ),
        }
    )
    out["x"] = df["app"].astype(str).str.cat(df["os"].astype(str), sep="_")
    out["dom"] = df["site"].str.partition(".")[0]
    out["tld"] = df["site"].str.split(".").str[-1].fillna("none")
    out["unix"] = t.astype("int64") // 10**6
    out["q"] = t.dt.hour.floordiv(6)
    return out


def conf(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    out = pd.DataFrame(index=df.index)
    for cols in (["ip"], ["app"], ["app", "channel"]):
        name = "_".join(cols)
        g = fit.groupby(cols)["is_attributed"].agg(["mean", "size"]).reset_index()
        g[name + "_rate"] = g["mean"] * np.minimum(1, np.log1p(g["size"]) / np.log1p(100))
        out[name] = (
            df[cols].merge(g[cols + [name + "_rate"]], on=cols, how="left")[name + "_rate"].values  # noqa: RUF005
        )
    return out.fillna(0)

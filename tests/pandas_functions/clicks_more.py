"""More data preparation as people write it: clicks."""

# ruff: noqa: B023, C408, C416, C417, E501, F841, RUF005, RUF100, UP034

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def time(df: pd.DataFrame) -> Any:
    t = pd.to_datetime(df["click_time"], format="%Y-%m-%d %H:%M:%S", errors="coerce")
    out = pd.DataFrame(index=df.index)
    for p in [
        "year",
        "month",
        "day",
        "hour",
        "minute",
        "second",
        "weekday",
        "quarter",
        "dayofyear",
    ]:
        out[p] = getattr(t.dt, p)
    out["weekend"] = (t.dt.weekday > 4).astype(int)
    out["part"] = pd.cut(
        t.dt.hour, [-1, 5, 11, 17, 23], labels=["night", "morning", "afternoon", "evening"]
    )
    out["week"] = t.dt.isocalendar().week.astype("Int64")
    out["name"] = t.dt.day_name()
    return out


def counts(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    out = pd.DataFrame(index=df.index)
    for cols in [["ip"], ["ip", "app"], ["ip", "app", "os"]]:
        name = "_".join(cols) + "_n"
        g = fit.groupby(cols).size().rename(name).reset_index()
        out[name] = df[cols].merge(g, on=cols, how="left")[name].fillna(0).astype("int64").values
    return out


def rates(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    rate = fit.groupby(["app", "channel"])["is_attributed"].mean().rename("rate").reset_index()
    out = df.merge(rate, how="left", on=["app", "channel"])
    conf = np.log(fit.groupby("app")["is_attributed"].count()) / np.log(1000)
    out["conf"] = out["app"].map(conf)
    out["rate"] = out["rate"].fillna(fit["is_attributed"].mean()) * out["conf"].fillna(0)
    return out[["rate", "conf"]]


def nunique(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    g = fit.groupby("ip").agg({"app": "nunique", "os": ["nunique", "max"], "channel": "min"})
    g.columns = ["_".join(c) for c in g.columns]
    return (
        df[["ip"]]
        .merge(g, left_on="ip", right_index=True, how="left")
        .drop("ip", axis=1)
        .fillna(-1)
    )


def site(df: pd.DataFrame) -> Any:
    s = df["site"].str.lower().str.strip()
    out = pd.DataFrame({"domain": s.str.split(".").str[0], "tld": s.str.rsplit(".", n=1).str[-1]})
    out["is_shop"] = s.str.startswith("shop", na=False)
    out["ends"] = s.str.endswith(".example")
    out["pos"] = s.str.find(".")
    out["clean"] = s.str.replace("[^a-z]", "", regex=True)
    out["title"] = s.str.title()
    return out


def hash(df: pd.DataFrame) -> Any:
    combo = df["app"].astype(str) + ":" + df["channel"].astype(str)
    return pd.DataFrame(
        {
            "combo": combo,
            "mod": df["ip"] * 2654435761 % 1024,
            "bucket": df["ip"] % 100 // 10,
            "bit": df["device"] & 1,
        }
    )


def top(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    top = fit["app"].value_counts().nlargest(3).index.tolist()
    out = pd.DataFrame({f"app_{a}": (df["app"] == a).astype(int) for a in top})
    out["app_other"] = (~df["app"].isin(top)).astype(int)
    rank = {a: i for i, a in enumerate(top)}
    out["rank"] = df["app"].map(lambda a: rank.get(a, 99))
    return out


def tz(df: pd.DataFrame) -> Any:
    t = pd.to_datetime(df["click_time"]).dt.tz_localize("UTC").dt.tz_convert("Asia/Shanghai")
    return pd.DataFrame(
        {
            "h": t.dt.hour,
            "d": t.dt.day,
            "date": t.dt.strftime("%Y-%m-%d"),
            "min": t.dt.hour * 60 + t.dt.minute,
            "local": t.dt.tz_localize(None),
        }
    )


def codes(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    maps = {}
    for c in ["site", "app"]:
        maps[c] = {v: i for i, v in enumerate(sorted(fit[c].dropna().unique()))}
    out = df[["site", "app"]].copy()
    for c, m in maps.items():
        out[c] = out[c].map(m).fillna(-1).astype("int32")
    return out


def pct(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    p = fit["channel"].value_counts(normalize=True).mul(100).round(2)
    lim = fit["ip"].quantile(0.95)
    return df.assign(
        pct=df["channel"].map(p).fillna(0), ip=df["ip"].clip(upper=lim), heavy=df["ip"].gt(lim)
    )[["pct", "ip", "heavy"]]


def bits(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df["device"] & 1,
            "b": df["os"] | 4,
            "c": df["app"] ^ df["channel"],
            "s": df["site"].str.split(".").str.join("-"),
        }
    )


def hours(df: pd.DataFrame) -> Any:
    t = pd.to_datetime(df["click_time"], errors="coerce")
    base = pd.Timestamp("2017-11-06 16:00:00")
    return pd.DataFrame(
        {
            "h": (t - base) // pd.Timedelta("1h"),
            "s": t.dt.strftime("%A %H"),
            "epoch": (t - pd.Timestamp("1970-01-01")) // pd.Timedelta("1s"),
            "r": t.dt.round("h"),
            "c": t.dt.ceil("D"),
            "half": np.where(t.dt.minute < 30, 0, 1),
            "sec": t.dt.hour * 3600 + t.dt.minute * 60 + t.dt.second,
        }
    )


def smoothed(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    prior = fit["is_attributed"].mean()
    k = 20
    res = df[["ip"]].copy()
    for cols in (["app"], ["channel"], ["app", "os"]):
        a = fit.groupby(cols)["is_attributed"].agg(s="sum", n="count").reset_index()
        a["te"] = (a["s"] + k * prior) / (a["n"] + k)
        res["_".join(cols)] = (
            df[cols].merge(a[cols + ["te"]], on=cols, how="left")["te"].fillna(prior).to_numpy()
        )
    return res.drop(columns="ip")


def utc(df: pd.DataFrame) -> Any:
    t = pd.to_datetime(df["click_time"], utc=True, errors="coerce")
    l = t.dt.tz_convert("US/Eastern")
    return pd.DataFrame(
        {
            "h": l.dt.hour,
            "d": l.dt.dayofweek,
            "naive": t.dt.tz_localize(None),
            "s": (t - pd.Timestamp("2017-11-07", tz="UTC")).dt.total_seconds(),
        }
    )

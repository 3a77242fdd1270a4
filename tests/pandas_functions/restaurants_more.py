"""More data preparation as people write it: visits."""

# ruff: noqa: B023, C408, C416, C417, E501, F841, RUF005, RUF100, UP034

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def dates(df: pd.DataFrame) -> Any:
    d = df["visit_date"]
    out = pd.DataFrame(
        {
            "dow": d.dt.day_name(),
            "is_we": d.dt.dayofweek.isin([5, 6]).astype(int),
            "ym": d.dt.strftime("%Y%m").astype(int),
            "week": d.dt.isocalendar().week.astype(int),
            "lead": (d - df["reserve_time"]).dt.total_seconds() / 3600,
        }
    )
    out["lead_bin"] = pd.cut(
        out["lead"], [-np.inf, 0, 24, 24 * 7, np.inf], labels=["past", "day", "week", "far"]
    ).astype(object)
    out["golden"] = ((d >= "2017-04-29") & (d <= "2017-05-07")).astype(int)
    return out


def store(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    fit = fit.assign(dow=fit["visit_date"].dt.dayofweek)
    d = df.assign(dow=df["visit_date"].dt.dayofweek)
    t = fit.groupby(["store", "dow"], as_index=False).agg(
        mean_v=("visitors", "mean"), med_v=("visitors", "median"), n=("visitors", "count")
    )
    out = pd.merge(d[["store", "dow"]], t, how="left", on=["store", "dow"])
    out["mean_v"] = out["mean_v"].fillna(fit["visitors"].mean())
    return out[["mean_v", "med_v", "n"]]


def id(df: pd.DataFrame) -> Any:
    parts = df["id"].str.rsplit("_", n=1, expand=True)
    out = pd.DataFrame({"store": parts[0], "day": pd.to_datetime(parts[1], errors="coerce")})
    out["m"] = out["day"].dt.month
    out["same"] = out["store"] == df["store"]
    out["tail"] = df["store"].str.slice(4, 8).str.upper()
    return out


def label(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    out = pd.DataFrame()
    for c in ["genre", "area", "store"]:
        uniques = fit[c].unique()
        mapping = dict(zip(uniques, range(len(uniques))))
        out[c] = df[c].map(mapping)
    out["lat"] = (
        df["latitude"].max() - df["latitude"] if False else df["latitude"] - fit["latitude"].max()
    )
    return out


def res(df: pd.DataFrame) -> Any:
    r = df["reserve_visitors"]
    return pd.DataFrame(
        {
            "has": r.notnull(),
            "r0": r.fillna(0).astype(int),
            "sqrt": np.sqrt(r.fillna(0).clip(lower=0)),
            "log": np.log1p(r.clip(lower=0).fillna(0)),
            "hour": df["reserve_time"].dt.hour.fillna(-1).astype(int),
            "same_day": df["reserve_time"].dt.normalize() == df["visit_date"].dt.normalize(),
            "when": df["reserve_time"].dt.date == df["visit_date"].dt.date,
        }
    )


def multi(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    t = fit.set_index("store")["visitors"].groupby(level=0).agg(["min", "max"])
    w = fit.groupby("store").apply(
        lambda g: (g["visitors"] * g["latitude"]).sum() / g["latitude"].sum(), include_groups=False
    )
    out = df[["store"]].copy()
    out["lo"], out["hi"] = (df["store"].map(t["min"]), df["store"].map(t["max"]))
    out["w"] = df["store"].map(w)
    return out.drop("store", axis=1)


def unstack(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    u = (
        fit.assign(dow=fit["visit_date"].dt.dayofweek)
        .groupby(["genre", "dow"])["visitors"]
        .mean()
        .unstack()
    )
    u.columns = [f"d{c}" for c in u.columns]
    return (
        df[["genre"]]
        .merge(u, how="left", left_on="genre", right_index=True)
        .drop(columns=["genre"])
    )


def resample(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    w = fit.set_index("visit_date")["visitors"].resample("MS").mean()
    d = df["visit_date"].dt.to_period("M").dt.to_timestamp()
    return pd.DataFrame({"m": d.map(w)})


def level(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    t = fit.set_index("store")["visitors"].groupby(level=0).agg(["min", "max"])
    g = (
        fit.groupby(["store", pd.Grouper(key="visit_date", freq="MS")])["visitors"]
        .sum()
        .groupby("store")
        .mean()
    )
    return pd.DataFrame(
        {"lo": df["store"].map(t["min"]), "hi": df["store"].map(t["max"]), "g": df["store"].map(g)}
    )


def pivot(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    t = (
        fit.groupby(["genre", "area"], as_index=False)["visitors"]
        .mean()
        .pivot(index="genre", columns="area", values="visitors")
    )
    return (
        df[["genre"]]
        .merge(t.add_prefix("a_").reset_index(), on="genre", how="left")
        .drop(columns="genre")
    )


def holidays(df: pd.DataFrame) -> Any:
    days = {
        "Monday": 0,
        "Tuesday": 1,
        "Wednesday": 2,
        "Thursday": 3,
        "Friday": 4,
        "Saturday": 5,
        "Sunday": 6,
    }
    hol = pd.to_datetime(["2016-07-18", "2016-08-11", "2016-09-19", "2017-01-01"])
    d = df["visit_date"]
    return pd.DataFrame(
        {
            "n": d.dt.day_name().map(days),
            "hol": d.isin(hol),
            "to_ny": (pd.Timestamp("2017-01-01") - d).dt.days.clip(lower=0),
            "wom": (d.dt.day - 1) // 7 + 1,
            "s": d.dt.month % 12 // 3,
            "start": d.dt.is_month_start,
            "next": (d + pd.DateOffset(months=1)).dt.month,
        }
    )


def merged_days(df: pd.DataFrame) -> Any:
    holidays = pd.DataFrame(
        {
            "visit_date": pd.to_datetime(["2016-07-18", "2016-08-11", "2017-01-02"]),
            "flag": [1, 1, 1],
        }
    )
    out = df.merge(holidays, on="visit_date", how="left")
    out["flag"] = out["flag"].fillna(0).astype(int)
    out["pref"] = out["area"].map(
        lambda a: a.split(" ")[0].split("-")[0] if isinstance(a, str) else "none"
    )
    out["g"] = out["genre"].str.lower().str.replace("/", "_").str.slice(0, 6)
    return out[["flag", "pref", "g"]]

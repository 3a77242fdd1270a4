"""More data preparation as people write it: taxi."""

# ruff: noqa: B023, C408, C416, C417, E501, F841, RUF005, RUF100, UP034

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def haversine(df: pd.DataFrame) -> Any:

    def haversine(lat1, lng1, lat2, lng2):
        lat1, lng1, lat2, lng2 = map(np.radians, (lat1, lng1, lat2, lng2))
        r = 6371
        d = (
            np.sin((lat2 - lat1) * 0.5) ** 2
            + np.cos(lat1) * np.cos(lat2) * np.sin((lng2 - lng1) * 0.5) ** 2
        )
        return 2 * r * np.arcsin(np.sqrt(d))

    def manhattan(a, b, c, d):
        return haversine(a, b, a, d) + haversine(a, b, c, b)

    df.loc[:, "dist"] = haversine(
        df["pickup_latitude"].values,
        df["pickup_longitude"].values,
        df["dropoff_latitude"].values,
        df["dropoff_longitude"].values,
    )
    df.loc[:, "man"] = manhattan(
        df["pickup_latitude"].values,
        df["pickup_longitude"].values,
        df["dropoff_latitude"].values,
        df["dropoff_longitude"].values,
    )
    df["center_lat"] = (df["pickup_latitude"].values + df["dropoff_latitude"].values) / 2
    return df[["dist", "man", "center_lat"]]


def dates(df: pd.DataFrame) -> Any:
    p = df["pickup_datetime"]
    out = pd.DataFrame(index=df.index)
    out["date"] = p.dt.date
    out["month"] = p.dt.month_name()
    out["rush"] = (p.dt.hour.between(7, 9) | p.dt.hour.between(16, 19)) & (p.dt.dayofweek < 5)
    out["eom"] = p.dt.is_month_end
    out["floor"] = p.dt.floor("15min")
    out["since"] = (p - p.dt.normalize()).dt.total_seconds()
    out["ym"] = p.dt.to_period("M").astype(str)
    out["dim"] = p.dt.days_in_month
    out["holiday"] = p.dt.strftime("%m-%d").isin(["01-01", "07-04", "12-25"])
    return out


def business(df: pd.DataFrame) -> Any:
    p = df["pickup_datetime"]
    wd = p.dt.weekday
    df["shift"] = np.where(
        wd >= 5, "weekend", np.where((p.dt.hour >= 9) & (p.dt.hour < 17), "office", "off")
    )
    df["next_hour"] = (p + pd.Timedelta(hours=1)).dt.hour
    df["tomorrow"] = (p + pd.DateOffset(days=1)).dt.day_name()
    df["dur_min"] = ((df["dropoff_datetime"] - p) / pd.Timedelta(minutes=1)).round(2)
    df["long"] = df["dropoff_datetime"].sub(p) > pd.Timedelta("20min")
    return df[["shift", "next_hour", "tomorrow", "dur_min", "long"]]


def clean(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    m, s = (np.mean(fit["trip_duration"]), np.std(fit["trip_duration"]))
    out = pd.DataFrame(
        {
            "log": np.log1p(df["trip_duration"]),
            "ok": (df["trip_duration"] <= m + 2 * s) & (df["trip_duration"] >= m - 2 * s),
        }
    )
    out["flag"] = (
        df["store_and_fwd_flag"]
        .map({"N": 0, "Y": 1})
        .fillna(fit["store_and_fwd_flag"].map({"N": 0, "Y": 1}).mode()[0])
        .astype(int)
    )
    return out


def box(df: pd.DataFrame) -> Any:
    city = {"lng": (-74.03, -73.75), "lat": (40.63, 40.85)}
    inside = df["pickup_longitude"].between(*city["lng"]) & df["pickup_latitude"].between(
        *city["lat"]
    )
    out = pd.DataFrame({"inside": inside})
    for name, (la, lo) in {
        "jfk": (40.639, -73.778),
        "lga": (40.777, -73.872),
        "ewr": (40.69, -74.174),
    }.items():
        out[f"to_{name}"] = np.sqrt(
            (df["dropoff_latitude"] - la) ** 2 + (df["dropoff_longitude"] - lo) ** 2
        )
    out["nearest"] = out[["to_jfk", "to_lga", "to_ewr"]].idxmin(axis=1).str[3:]
    out["min"] = out[["to_jfk", "to_lga", "to_ewr"]].min(axis=1)
    return out


def id(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "num": df["id"].str[2:].astype(int),
            "last": df["id"].str[-1],
            "even": df["id"].str[-1].isin(list("02468")),
            "strip": df["id"].str.lstrip("id0"),
        }
    )


def speed(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit

    def dist(d):
        return np.hypot(
            d["dropoff_longitude"] - d["pickup_longitude"],
            d["dropoff_latitude"] - d["pickup_latitude"],
        )

    sp = dist(df) / df["trip_duration"].replace(0, np.nan)
    fs = dist(fit) / fit["trip_duration"].replace(0, np.nan)
    lo, hi = np.nanpercentile(fs, [1, 99])
    return pd.DataFrame(
        {
            "speed": np.clip(sp, lo, hi),
            "q": pd.cut(
                sp,
                [-np.inf, fs.quantile(0.25), fs.median(), fs.quantile(0.75), np.inf],
                labels=False,
            ),
        }
    )


def people(df: pd.DataFrame) -> Any:
    names = {0: "empty", 1: "single", 2: "pair"}
    return df.assign(
        kind=df["passenger_count"].map(names).fillna("group"),
        vendor=df["vendor_id"]
        .astype("category")
        .cat.rename_categories({1: "A", 2: "B"})
        .astype(str)
        if False
        else df["vendor_id"].map({1: "A", 2: "B"}),
        solo=df["passenger_count"].eq(1) & df["vendor_id"].ne(2),
    )[["kind", "vendor", "solo"]]


def cyc(df: pd.DataFrame) -> Any:
    out = {}
    for name, period in {"hour": 24, "dayofweek": 7, "month": 12}.items():
        v = getattr(df["pickup_datetime"].dt, name)
        out[name + "_sin"] = np.sin(2 * np.pi * v / period)
        out[name + "_cos"] = np.cos(2 * np.pi * v / period)
    return pd.DataFrame(out)


def minmax(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    start = fit["pickup_datetime"].min()
    span = fit["pickup_datetime"].max() - start
    return pd.DataFrame(
        {
            "rel": (df["pickup_datetime"] - start) / span,
            "days": (df["pickup_datetime"] - start).dt.days,
            "late": df["pickup_datetime"] > fit["pickup_datetime"].quantile(0.9),
        }
    )


def filterped(df: pd.DataFrame) -> Any:
    df = df[df["passenger_count"] > 0]
    df = df[~df["dropoff_datetime"].isna()]
    df = df.query("trip_duration >= 60 and trip_duration < 7200").copy()
    df["h"] = df["pickup_datetime"].dt.hour
    return df.loc[df["h"] != 3, ["h", "trip_duration"]]


def bearing(df: pd.DataFrame) -> Any:

    def bearing(a):
        lat1, lng1, lat2, lng2 = (
            a["pickup_latitude"],
            a["pickup_longitude"],
            a["dropoff_latitude"],
            a["dropoff_longitude"],
        )
        dl = np.radians(lng2 - lng1)
        lat1, lat2 = (np.radians(lat1), np.radians(lat2))
        y = np.sin(dl) * np.cos(lat2)
        x = np.cos(lat1) * np.sin(lat2) - np.sin(lat1) * np.cos(lat2) * np.cos(dl)
        return np.degrees(np.arctan2(y, x))

    b = bearing(df)
    return pd.DataFrame(
        {
            "b": b,
            "dir": pd.cut(
                (b + 360) % 360,
                [0, 90, 180, 270, 360],
                labels=["NE", "SE", "SW", "NW"],
                include_lowest=True,
            ).astype(object),
        }
    )


def zone(df: pd.DataFrame) -> Any:
    p = df["pickup_datetime"].dt.tz_localize("America/New_York", ambiguous="NaT", nonexistent="NaT")
    u = p.dt.tz_convert("UTC")
    return pd.DataFrame(
        {
            "uh": u.dt.hour,
            "ud": u.dt.date,
            "off": (df["pickup_datetime"] - u.dt.tz_localize(None)).dt.total_seconds() / 3600,
        }
    )


def eta(df: pd.DataFrame) -> Any:
    eta = df["pickup_datetime"] + pd.to_timedelta(df["trip_duration"], unit="s")
    return pd.DataFrame(
        {
            "eta_h": eta.dt.hour,
            "cross": eta.dt.date != df["pickup_datetime"].dt.date,
            "me": (df["pickup_datetime"] + pd.offsets.MonthEnd(0)).dt.day,
            "wk": df["pickup_datetime"].sub(pd.Timestamp("2016-01-01")).dt.days.floordiv(7),
        }
    )


def offsets(df: pd.DataFrame) -> Any:
    p = df["pickup_datetime"]
    out = pd.DataFrame(index=df.index)
    for n, o in {
        "me0": pd.offsets.MonthEnd(0),
        "me1": pd.offsets.MonthEnd(1),
        "me2": pd.offsets.MonthEnd(2),
        "mem": pd.offsets.MonthEnd(-1),
        "mb0": pd.offsets.MonthBegin(0),
        "mb1": pd.offsets.MonthBegin(1),
        "mbm": pd.offsets.MonthBegin(-1),
        "m1": pd.DateOffset(months=1),
        "y1": pd.DateOffset(years=1),
        "ym": pd.DateOffset(years=1, months=-3),
    }.items():
        out[n] = p + o
        out[n + "s"] = p - o
    return out


def zone_2(df: pd.DataFrame) -> Any:
    p = df["pickup_datetime"].dt.tz_localize("Europe/Berlin", ambiguous="NaT", nonexistent="NaT")
    return pd.DataFrame(
        {
            "u": p.dt.tz_convert("UTC").dt.tz_localize(None),
            "t": p.dt.tz_convert("Asia/Tokyo").dt.hour,
        }
    )

"""Data preparation as people write it: restaurants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def columns_of_dates(df: pd.DataFrame) -> Any:
    d = df["visit_date"]
    return pd.DataFrame(
        {
            "dow": d.dt.day_of_week,
            "name": d.dt.day_name(),
            "mon": d.dt.month_name(),
            "doy": d.dt.day_of_year,
            "q": d.dt.quarter,
            "ms": d.dt.is_month_start,
            "me": d.dt.is_month_end,
            "wk": d.dt.isocalendar().week,
            "y": d.dt.year,
            "dim": d.dt.days_in_month,
            "leap": d.dt.is_leap_year,
        }
    )


def lead(df: pd.DataFrame) -> Any:
    lead = df["visit_date"] - df["reserve_time"]
    return pd.DataFrame(
        {
            "h": lead.dt.total_seconds() / 3600,
            "d": lead.dt.days,
            "soon": lead < pd.Timedelta(hours=24),
            "norm": df["reserve_time"].dt.normalize(),
            "same": df["reserve_time"].dt.normalize() == df["visit_date"],
        }
    )


def area(df: pd.DataFrame) -> Any:
    out = df["area"].str.split(" ", expand=True)
    out.columns = ["pref", "city"]
    out["pref"] = out["pref"].str.replace("-to", "", regex=False).str.lower()
    out["n"] = df["area"].str.count(" ")
    return out


def store_stats(df: pd.DataFrame) -> Any:
    g = df.groupby("store")["visitors"].agg(["mean", "median", "min", "max", "count"])
    g.columns = ["store_" + c for c in g.columns]
    return (
        df[["store", "reserve_visitors"]]
        .merge(g.reset_index(), on="store", how="left")
        .drop(columns="store")
    )


def two(df: pd.DataFrame) -> Any:
    df = df.assign(dow=df["visit_date"].dt.day_of_week)
    t = (
        df.groupby(["store", "dow"], as_index=False)["visitors"]
        .mean()
        .rename(columns={"visitors": "m"})
    )
    return pd.merge(df, t, how="left", on=["store", "dow"])[["dow", "m"]]


def two_transform(df: pd.DataFrame) -> Any:
    df = df.assign(m=df["visit_date"].dt.month)
    return pd.DataFrame(
        {
            "a": df.groupby(["genre", "m"])["visitors"].transform("mean"),
            "b": df.groupby("genre")["reserve_visitors"].transform(
                lambda s: (s - s.mean()) / s.std()
            ),
        }
    )


def columns_of_id(df: pd.DataFrame) -> Any:
    parts = df["id"].str.split("_")
    return pd.DataFrame(
        {
            "store": parts.str[0] + "_" + parts.str[1],
            "date": pd.to_datetime(parts.str[2], errors="coerce"),
        }
    )


def pivot(df: pd.DataFrame) -> Any:
    p = df.pivot_table(index="store", columns="genre", values="visitors", aggfunc="mean").fillna(0)
    p.columns = [f"g_{c}" for c in p.columns]
    return df[["store"]].join(p, on="store").drop(columns=["store"])


def season(df: pd.DataFrame) -> Any:
    m = df["visit_date"].dt.month
    s = m.map(
        {
            12: "winter",
            1: "winter",
            2: "winter",
            3: "spring",
            4: "spring",
            5: "spring",
            6: "summer",
            7: "summer",
            8: "summer",
        }
    ).fillna("autumn")
    return pd.DataFrame(
        {
            "season": s,
            "golden": df["visit_date"].between("2016-12-25", "2017-01-05"),
            "after": df["visit_date"] > "2016-10-01",
        }
    )


def holiday(df: pd.DataFrame) -> Any:
    hol = pd.to_datetime(["2016-07-18", "2016-08-11", "2017-01-01"])
    return pd.DataFrame(
        {
            "h": df["visit_date"].isin(hol).astype(int),
            "hr": df["reserve_time"].dt.hour.fillna(-1).astype(int),
            "ym": df["visit_date"].dt.year * 100 + df["visit_date"].dt.month,
        }
    )


def dummies(df: pd.DataFrame) -> Any:
    return pd.get_dummies(df[["genre", "area", "latitude"]], prefix=["g", "a"], dtype=float)


def columns_of_clip(df: pd.DataFrame) -> Any:
    q = df["reserve_visitors"].quantile([0.05, 0.95])
    return df[["reserve_visitors", "latitude"]].assign(
        r=df["reserve_visitors"].clip(q.iloc[0], q.iloc[1]),
        z=(df["latitude"] - df["latitude"].mean()) / df["latitude"].std(ddof=0),
        mm=(df["latitude"] - df["latitude"].min()) / (df["latitude"].max() - df["latitude"].min()),
    )


def columns_of_cat(df: pd.DataFrame) -> Any:
    c = pd.Categorical(df["genre"], categories=["Cafe/Sweets", "Izakaya"], ordered=True)
    return pd.DataFrame(
        {
            "c": pd.Series(c, index=df.index).cat.codes,
            "g": df["genre"].astype("category").cat.codes + 1,
        }
    )


def rowwise(df: pd.DataFrame) -> Any:

    def f(row):
        if pd.isnull(row["reserve_visitors"]):
            return 0.0
        if row["reserve_visitors"] > 10:
            return 2.0
        return row["reserve_visitors"] / 10

    return pd.DataFrame({"f": df.apply(f, axis=1)})


def columns_of_filter(df: pd.DataFrame) -> Any:
    return df[df["reserve_visitors"].notna() & df["genre"].isin(["Izakaya"])][
        ["store", "reserve_visitors"]
    ]


def query(df: pd.DataFrame) -> Any:
    return df.query("reserve_visitors > 5 and genre != 'Izakaya'")[["store", "visitors"]]


def rankpct(df: pd.DataFrame) -> Any:
    r = df.groupby("store")["visitors"].mean().rank(pct=True)
    return pd.DataFrame({"r": df["store"].map(r).fillna(0.5)})


def timefloor(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "f": df["reserve_time"].dt.floor("D"),
            "c": df["reserve_time"].dt.ceil("h"),
            "t": df["visit_date"] + pd.Timedelta(days=3),
            "w": df["visit_date"]
            - pd.to_timedelta(df["visit_date"].dt.day_of_week.fillna(0).astype(int), unit="D"),
        }
    )


def fmt(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df["visit_date"].dt.strftime("%Y-%m"),
            "b": df["visit_date"].dt.month.astype(str) + "/" + df["visit_date"].dt.year.astype(str),
            "id": df["id"].str.rsplit("_", n=1).str[0],
            "u": df["genre"].str.isupper(),
            "rp": df["store"].str.removeprefix("air_"),
            "dg": np.digitize(df["latitude"], [35, 35.5, 36]),
        }
    )


def periods(df: pd.DataFrame) -> Any:
    d = df["visit_date"]
    base = d.min()
    return pd.DataFrame(
        {
            "w": (d - base).dt.days // 7,
            "ym": d.dt.strftime("%Y%m").astype(float),
            "wk": d.dt.isocalendar().week.astype("Int64"),
            "frac": (d.dt.day_of_year - 1) / 365,
            "cos": np.cos(2 * np.pi * d.dt.month / 12),
            "eom": d.dt.days_in_month - d.dt.day,
        }
    )


def multi(df: pd.DataFrame) -> Any:
    agg = df.groupby("store").agg(
        mean_v=("visitors", "mean"), n=("visitors", "size"), first=("visit_date", "min")
    )
    out = df[["store", "visit_date"]].merge(agg, left_on="store", right_index=True, how="left")
    out["age"] = (out["visit_date"] - out["first"]).dt.days
    return out[["mean_v", "n", "age"]]


def unst(df: pd.DataFrame) -> Any:
    t = (
        df.groupby(["store", "genre"])["visitors"]
        .mean()
        .unstack(fill_value=0)
        .add_prefix("m_")
        .reset_index()
    )
    return df.merge(t, on="store", how="left").filter(like="m_")


def rare(df: pd.DataFrame) -> Any:
    vc = df["area"].value_counts(normalize=True)
    keep = vc[vc > 0.2].index.tolist()
    a = df["area"].apply(lambda x: x if x in keep else "Other")
    return pd.get_dummies(a, prefix="area", dtype=int)


def zscore(df: pd.DataFrame) -> Any:
    g = df.groupby("genre")["latitude"]
    return pd.DataFrame(
        {
            "z": (df["latitude"] - g.transform("mean")) / g.transform("std"),
            "d": df["latitude"] - df.groupby("store").latitude.transform("max"),
        }
    )


def inner(df: pd.DataFrame) -> Any:
    t = df.groupby("store", as_index=False).visitors.mean()
    t = t[t.visitors > 19]
    return df[["store", "latitude"]].merge(t, on="store", how="inner")[["latitude", "visitors"]]


def feats(df: pd.DataFrame) -> Any:
    d = df["visit_date"]
    out = df[["store", "genre"]].copy()
    out["area0"] = df["area"].map(lambda x: x.split()[0])
    out["area_n"] = df["area"].map(lambda x: len(x.split()))
    out["lead_h"] = (d - df["reserve_time"]).dt.total_seconds().div(3600)
    out["hour"] = df["reserve_time"].dt.hour.fillna(-1).astype(int)
    out["we"] = np.where(d.dt.dayofweek > 4, "weekend", "weekday")
    out["gold"] = ((d >= pd.Timestamp("2017-04-29")) & (d <= pd.Timestamp("2017-05-05"))).astype(
        "int8"
    )
    out["sdate"] = pd.to_datetime(df["id"].apply(lambda s: s.split("_")[2]), errors="coerce")
    out["genre"] = out["genre"].str.replace("/", " ").str.lower()
    return out


def stats(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = (df if fit is None else fit).assign(dow=lambda x: x["visit_date"].dt.dayofweek)
    df = df.assign(dow=df["visit_date"].dt.dayofweek)
    for f in ["min", "mean", "median", "max", "count"]:
        tmp = (
            fit.groupby(["store", "dow"], as_index=False)["visitors"]
            .agg(f)
            .rename(columns={"visitors": f + "_visitors"})
        )
        df = pd.merge(df, tmp, how="left", on=["store", "dow"])
    df = df.fillna({"min_visitors": -1})
    return df[
        [
            "min_visitors",
            "mean_visitors",
            "median_visitors",
            "max_visitors",
            "count_visitors",
            "dow",
        ]
    ]

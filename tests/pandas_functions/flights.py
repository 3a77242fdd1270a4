"""Data preparation as people write it: flights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def dates(df: pd.DataFrame) -> Any:
    df = df.copy()
    d = pd.to_datetime(df["Date_of_Journey"], format="%d/%m/%Y")
    df["day"], df["month"] = d.dt.day, d.dt.month
    df["dep_h"] = df["Dep_Time"].str.split(":").str[0].astype(int)
    df["dep_m"] = pd.to_datetime(df["Dep_Time"], format="%H:%M").dt.minute
    df["arr_h"] = df["Arrival_Time"].str.slice(0, 2).astype(int)
    df["arr_next"] = df["Arrival_Time"].str.len() > 5
    return df[["day", "month", "dep_h", "dep_m", "arr_h", "arr_next"]]


def duration(df: pd.DataFrame) -> Any:
    h = df["Duration"].str.extract(r"(\d+)h", expand=False).astype(float).fillna(0)
    m = df["Duration"].str.extract(r"(\d+)m", expand=False).astype(float).fillna(0)
    stops = df["Total_Stops"].replace({"non-stop": "0 stops"}).str.split().str[0].astype(float)
    return pd.DataFrame({"minutes": h * 60 + m, "stops": stops, "long": (h * 60 + m) > 600})


def duration_loop(df: pd.DataFrame) -> Any:
    def mins(x):
        if "h" in x and "m" in x:
            return int(x.split("h")[0]) * 60 + int(x.split("m")[0].split()[-1])
        elif "h" in x:
            return int(x.replace("h", "").strip()) * 60
        return int(x.replace("m", "").strip())

    return pd.DataFrame(
        {
            "mins": df["Duration"].apply(mins),
            "stops": df["Total_Stops"].map({"non-stop": 0, "1 stop": 1, "2 stops": 2}),
        }
    )


def hhmm(df: pd.DataFrame) -> Any:
    hh, mm = df["crs_dep"] // 100, df["crs_dep"] % 100
    out = pd.DataFrame({"min": hh * 60 + mm, "hh": hh.clip(0, 23)})
    out["part"] = np.select(
        [hh < 6, hh < 12, hh < 18], ["night", "morning", "afternoon"], default="evening"
    )
    out["late"] = (df["dep_delay"] > 15).astype(int)
    out["delay"] = df["dep_delay"].clip(-30, 180).fillna(0)
    out["s"] = df["crs_dep"].astype(str).str.zfill(4).str[:2]
    out["route"] = df["Source"] + "-" + df["Destination"].replace("New Delhi", "Delhi")
    out["same"] = df["Source"].eq(df["Destination"])
    return out


def delay_stats(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    st = fit.groupby("Airline")["dep_delay"].describe()[["mean", "std", "50%"]].add_prefix("delay_")
    out = df[["Airline"]].join(st, on="Airline")
    rank = fit.groupby("Airline")["Price"].mean().rank(ascending=False).astype(int)
    out["rank"] = df["Airline"].map(rank)
    return out.drop(columns="Airline")

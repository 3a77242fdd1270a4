"""Data preparation as people write it: hotel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def date(df: pd.DataFrame) -> Any:
    df = df.copy()
    months = {
        m: i
        for i, m in enumerate(
            [
                "January",
                "February",
                "March",
                "April",
                "May",
                "June",
                "July",
                "August",
                "September",
                "October",
                "November",
                "December",
            ],
            1,
        )
    }
    df["m"] = df["arrival_date_month"].map(months)
    df["children"] = df["children"].fillna(0).astype(int)
    df["guests"] = df["adults"] + df["children"] + df["babies"]
    df["nights"] = df["stays_in_weekend_nights"] + df["stays_in_week_nights"]
    df["room_changed"] = (df["reserved_room_type"] != df["assigned_room_type"]).astype(int)
    df["has_agent"] = np.where(df["agent"].isnull(), 0, 1)
    df["has_company"] = df["company"].notnull() * 1
    df["adr_pp"] = np.where(df["guests"] > 0, df["adr"] / df["guests"], 0)
    df["meal"] = df["meal"].replace("Undefined", "SC")
    df["country"] = df["country"].fillna("Unknown")
    return df[
        [
            "m",
            "guests",
            "nights",
            "room_changed",
            "has_agent",
            "has_company",
            "adr_pp",
            "meal",
            "country",
        ]
    ]


def to_datetime_parts(df: pd.DataFrame) -> Any:
    parts = pd.DataFrame(
        {
            "year": df["arrival_date_year"],
            "month": df["arrival_date_month"].map({"July": 7, "August": 8}).fillna(1).astype(int),
            "day": df["arrival_date_day_of_month"],
        }
    )
    d = pd.to_datetime(parts, errors="coerce")
    return pd.DataFrame(
        {"d": d, "dow": d.dt.dayofweek, "lead": (df["reservation_status_date"] - d).dt.days}
    )


def str_date(df: pd.DataFrame) -> Any:
    s = (
        df["arrival_date_year"].astype(str)
        + "-"
        + df["arrival_date_month"]
        + "-"
        + df["arrival_date_day_of_month"].astype(str)
    )
    d = pd.to_datetime(s, format="%Y-%B-%d", errors="coerce")
    return pd.DataFrame(
        {
            "s": s,
            "d": d,
            "we": d.dt.dayofweek.isin([5, 6]).astype(int),
            "q": "Q" + d.dt.quarter.astype("Int64").astype(str),
        }
    )


def filter(df: pd.DataFrame) -> Any:
    df = df[(df["adults"] + df["babies"]) > 0]
    df = df.loc[df["adr"].between(0, 400)].dropna(subset=["country"])
    return df.assign(x=df["adr"] * 2)[["hotel", "adr", "x", "country"]].reset_index(drop=True)


def season(df: pd.DataFrame) -> Any:
    seasons = {("December", "January", "February"): "winter", ("June", "July", "August"): "summer"}

    def to_season(m):
        for k, v in seasons.items():
            if m in k:
                return v
        return "other"

    return pd.DataFrame(
        {
            "season": df["arrival_date_month"].apply(to_season),
            "lead": pd.cut(
                df["lead_time"],
                [-np.inf, 7, 30, 90, np.inf],
                labels=["last", "short", "mid", "long"],
            ).astype("str"),
        }
    )

"""Data preparation as people write it: sales."""

from __future__ import annotations

from typing import Any

import pandas as pd


def dates(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["Year"] = df.Date.dt.year
    df["Month"] = df.Date.dt.month
    df["Day"] = df.Date.dt.day
    df["WeekOfYear"] = df.Date.dt.isocalendar().week.astype("Int64")
    df["Quarter"] = df.Date.dt.quarter
    df["eom"] = df.Date.dt.is_month_end.astype(int)
    df["doy"] = df.Date.dt.dayofyear
    df["CompOpen"] = 12 * (df.Year - df.CompetitionOpenSinceYear) + (
        df.Month - df.CompetitionOpenSinceMonth
    )
    df["CompOpen"] = df["CompOpen"].apply(lambda x: x if x > 0 else 0)
    df["StateHoliday"] = df["StateHoliday"].map({"0": 0, "a": 1, "b": 2, "c": 3})
    return df[
        ["Year", "Month", "Day", "WeekOfYear", "Quarter", "eom", "doy", "CompOpen", "StateHoliday"]
    ]


def promo(df: pd.DataFrame) -> Any:
    df = df.copy()
    month2str = {
        1: "Jan",
        2: "Feb",
        3: "Mar",
        4: "Apr",
        5: "May",
        6: "Jun",
        7: "Jul",
        8: "Aug",
        9: "Sept",
        10: "Oct",
        11: "Nov",
        12: "Dec",
    }
    df["monthStr"] = df.Date.dt.month.map(month2str)
    df.loc[df.PromoInterval.isna(), "PromoInterval"] = ""
    df["IsPromoMonth"] = 0
    for interval in ["Jan,Apr,Jul,Oct", "Feb,May,Aug,Nov", "Mar,Jun,Sept,Dec"]:
        for month in interval.split(","):
            df.loc[(df.monthStr == month) & (df.PromoInterval == interval), "IsPromoMonth"] = 1
    return df[["monthStr", "IsPromoMonth"]]


def promo_row(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["PromoInterval"] = df["PromoInterval"].fillna("0")
    df["month_map"] = df["Date"].dt.strftime("%b")
    df["is_promo"] = df[["PromoInterval", "month_map"]].apply(
        lambda x: (
            0
            if x["PromoInterval"] == "0"
            else 1
            if x["month_map"] in x["PromoInterval"].split(",")
            else 0
        ),
        axis=1,
    )
    return df[["is_promo", "month_map"]]


def store_avg(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    avg = (
        fit.groupby(["Store", "DayOfWeek", "Promo"], as_index=False)["Sales"]
        .mean()
        .rename(columns={"Sales": "AvgSales"})
    )
    df = df.merge(avg, on=["Store", "DayOfWeek", "Promo"], how="left")
    df["AvgSales"] = df["AvgSales"].fillna(fit["Sales"].mean())
    piv = fit.pivot_table(index="Store", columns="Promo", values="Sales", aggfunc="mean")
    df["p0"] = df["Store"].map(piv[0])
    df["p1"] = df["Store"].map(piv[1])
    df["lift"] = df["p1"] / df["p0"] - 1
    df["CompetitionDistance"] = df["CompetitionDistance"].fillna(
        fit["CompetitionDistance"].max() * 2
    )
    return df[["AvgSales", "p0", "p1", "lift", "CompetitionDistance"]]


def period(df: pd.DataFrame) -> Any:
    out = pd.DataFrame()
    out["ym"] = df["Date"].dt.to_period("M").astype(str)
    out["week_start"] = df["Date"] - pd.to_timedelta(df["Date"].dt.dayofweek, unit="D")
    out["days_to_xmas"] = (
        pd.to_datetime(df["Date"].dt.year.astype("Int64").astype(str) + "-12-25", errors="coerce")
        - df["Date"]
    ).dt.days
    out["since"] = (df["Date"] - pd.Timestamp(2013, 1, 1)) / pd.Timedelta(days=1)
    out["month_begin"] = df["Date"].dt.is_month_start
    out["lead"] = (df["Date"] + pd.DateOffset(days=30)).dt.month
    return out

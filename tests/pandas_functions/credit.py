"""Data preparation as people write it: credit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def emp(df: pd.DataFrame) -> Any:
    e = df["emp_length"].replace({"n/a": np.nan, "10+ years": "10 years", "< 1 year": "0 years"})
    return pd.DataFrame(
        {
            "y": e.str.extract("(\\d+)", expand=False).astype(float),
            "term": df["term"].str.extract("(\\d+)", expand=False).astype(int),
            "r": df["int_rate"].str.replace("%", "").astype(float),
        }
    )


def columns_of_dates(df: pd.DataFrame) -> Any:
    d = pd.to_datetime(df["earliest_cr_line"], format="%b-%Y")
    ref = pd.Timestamp("2018-01-01")
    return pd.DataFrame(
        {
            "m": (ref - d) / np.timedelta64(1, "D") / 30.4,
            "y": d.dt.year,
            "mo": (ref.year - d.dt.year) * 12 + ref.month - d.dt.month,
        }
    )


def grade(df: pd.DataFrame) -> Any:
    order = {g: i for i, g in enumerate("ABCDEFG", 1)}
    return df.assign(
        grade_n=df["grade"].map(order),
        sub=df["grade"].isin(list("FG")).astype("int8"),
        home=df["home_ownership"].replace(["NONE", "OTHER"], "OTHER"),
    )[["grade_n", "sub", "home"]]


def fill(df: pd.DataFrame) -> Any:
    num = df.select_dtypes(include=[np.number]).drop(columns=["default"], errors="ignore")
    return num.fillna(num.median())


def ratio(df: pd.DataFrame) -> Any:
    out = df[["BILL_AMT1", "BILL_AMT2", "BILL_AMT3"]].copy()
    out["avg"] = out.mean(axis=1)
    out["max"] = out.max(axis=1)
    out["slope"] = (df["BILL_AMT1"] - df["BILL_AMT3"]) / 2
    out["med"] = df[["PAY_AMT1", "PAY_AMT2", "PAY_AMT3"]].median(axis=1)
    out["util"] = np.where(df["limit_bal"] == 0, np.nan, df["BILL_AMT1"] / df["limit_bal"])
    return out.replace([np.inf, -np.inf], np.nan).fillna(-999)


def edu(df: pd.DataFrame) -> Any:
    fil = (df["education"] == 5) | (df["education"] == 6) | (df["education"] == 0)
    df = df.copy()
    df.loc[fil, "education"] = 4
    df.loc[df.marriage == 0, "marriage"] = 3
    df["se"] = df.education * 10 + df.marriage
    return df[["education", "marriage", "se"]]


def zip(df: pd.DataFrame) -> Any:
    z = df["zip_code"].str[:3].astype(int)
    return pd.DataFrame(
        {
            "z": z,
            "reg": z // 100,
            "odd": z % 2 == 1,
            "p": df["purpose"].str.replace("_", " ").str.title(),
            "g": df["purpose"].str.split("_| ", regex=True).str[0],
        }
    )


def woe(df: pd.DataFrame) -> Any:
    t = df.groupby("grade")["default"].agg(["sum", "count"])
    woe = np.log((t["sum"] + 0.5) / (t["count"] - t["sum"] + 0.5))
    return pd.DataFrame(
        {
            "woe": df["grade"].map(woe),
            "smooth": df["purpose"]
            .map(
                (df.groupby("purpose")["default"].sum() + 5)
                / (df.groupby("purpose")["default"].count() + 20)
            )
            .fillna(df["default"].mean()),
        }
    )


def apply(df: pd.DataFrame) -> Any:

    def risk(r):
        if r["dti"] > 30 or r["revol_util"] > 90:
            return "high"
        elif r["dti"] > 15 and r["grade"] not in ("A", "B"):
            return "mid"
        return "low"

    return pd.DataFrame(
        {
            "risk": df.apply(risk, axis=1),
            "sc": df["annual_inc"].apply(lambda x: np.log10(x) if x > 0 else 0),
        }
    )


def minmax(df: pd.DataFrame) -> Any:
    c = ["loan_amnt", "annual_inc", "dti"]
    x = df[c]
    return (x - x.min()) / (x.max() - x.min())


def dropcols(df: pd.DataFrame) -> Any:
    keep = df.columns[df.isnull().mean() < 0.02]
    return df[keep].select_dtypes("number")


def paste(df: pd.DataFrame) -> Any:
    return df.filter(like="PAY_").rename(columns=str.lower).add_suffix("_x").astype("float32")


def outlier(df: pd.DataFrame) -> Any:
    q1, q3 = (df["annual_inc"].quantile(0.25), df["annual_inc"].quantile(0.75))
    iqr = q3 - q1
    return pd.DataFrame(
        {
            "o": ((df["annual_inc"] < q1 - 1.5 * iqr) | (df["annual_inc"] > q3 + 1.5 * iqr)).astype(
                int
            ),
            "c": df["annual_inc"].clip(upper=q3 + 1.5 * iqr),
        }
    )


def credit(df: pd.DataFrame) -> Any:
    df = df.rename(columns={"PAY_0": "PAY_1"})
    pays = [f"PAY_{i}" for i in (1, 2, 3)]
    df["late"] = (df[pays] > 0).sum(axis=1)
    df["never"] = (df[pays] <= 0).all(axis=1)
    df["trend"] = (
        df["BILL_AMT1"].sub(df["BILL_AMT3"]).div(df["limit_bal"].where(df["limit_bal"] > 0))
    )
    df["paid"] = df.filter(regex="^PAY_AMT").sum(axis=1)
    df["big"] = df["loan_amnt"].gt(df["loan_amnt"].quantile(0.9))
    df["inst"] = (
        df["loan_amnt"]
        * (df["int_rate"].str.rstrip("%").astype(float) / 1200)
        / (1 - (1 + df["int_rate"].str.rstrip("%").astype(float) / 1200) ** (-36))
    )
    return df[["late", "never", "trend", "paid", "big", "inst"]]


def hist(df: pd.DataFrame) -> Any:
    t = pd.to_datetime(df["earliest_cr_line"], format="%b-%Y")
    yrs = 2020 - t.dt.year
    return pd.DataFrame(
        {
            "yrs": yrs,
            "b": pd.cut(yrs, [0.0, 10.0, 20.0, 30.0, 40.0, 100.0]).astype(str),
            "home": df["home_ownership"]
            .str.lower()
            .map({"rent": 0, "own": 2, "mortgage": 1})
            .fillna(-1)
            .astype(int),
            "t": df["term"].apply(lambda x: int(x.split()[0])),
            "p": df["purpose"].str.contains("card|debt").map({True: "refi", False: "other"}),
        }
    )


def parse(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["term"] = df["term"].apply(lambda x: int(x.strip().split(" ")[0]))
    df["int_rate"] = df["int_rate"].apply(lambda x: float(x.replace("%", "")))
    df["emp"] = (
        df["emp_length"]
        .map({"< 1 year": 0, "1 year": 1, "2 years": 2, "5 years": 5, "10+ years": 10})
        .fillna(-1)
    )
    df["own"] = df["home_ownership"].apply(
        lambda h: h if h in ("RENT", "MORTGAGE", "OWN") else "OTHER"
    )
    df["pti"] = df["loan_amnt"] / df["annual_inc"]
    df["cr_year"] = pd.to_datetime(df["earliest_cr_line"], format="%b-%Y").dt.year
    df["cr_year2"] = df["earliest_cr_line"].str[-4:].astype(int)
    df["late"] = (
        df.filter(like="PAY_").drop(columns=["PAY_AMT1", "PAY_AMT2", "PAY_AMT3"]) > 0
    ).sum(axis=1)
    return df[["term", "int_rate", "emp", "own", "pti", "cr_year", "cr_year2", "late"]]


def rows(df: pd.DataFrame) -> Any:
    pay = [c for c in df.columns if c.startswith("PAY_") and "AMT" not in c]
    bill = [f"BILL_AMT{i}" for i in range(1, 4)]
    out = pd.DataFrame()
    out["max_late"] = df[pay].max(axis=1)
    out["worst"] = df[pay].idxmax(axis=1)
    out["n_late"] = df[pay].gt(0).sum(axis=1)
    out["any8"] = (df[pay] == 8).any(axis=1)
    out["bill_mean"] = df[bill].mean(axis=1)
    out["bill_std"] = df[bill].std(axis=1).fillna(0)
    out["trend"] = np.sign(df["BILL_AMT1"] - df["BILL_AMT3"])
    for i in range(1, 4):
        out[f"u{i}"] = (
            (df[f"BILL_AMT{i}"] / df["limit_bal"]).replace([np.inf, -np.inf], np.nan).fillna(0)
        )
    return out


def weights(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    t = pd.crosstab(fit["grade"], fit["default"])
    woe = np.log((t[1] / t[1].sum() + 1e-4) / (t[0] / t[0].sum() + 1e-4))
    out = pd.DataFrame({"woe": df["grade"].map(woe)})
    b = pd.cut(df["dti"], [-np.inf, 10, 20, 30, np.inf])
    out["b"] = b.cat.codes
    rate = fit.groupby(pd.cut(fit["dti"], [-np.inf, 10, 20, 30, np.inf]), observed=False)[
        "default"
    ].mean()
    out["r"] = b.cat.codes.map(dict(enumerate(rate.values)))
    return out

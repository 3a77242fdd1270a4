"""More data preparation as people write it: credit."""

# ruff: noqa: B023, C408, C416, C417, E501, F841, RUF005, RUF100, UP034

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd


def parse(df: pd.DataFrame) -> Any:
    out = pd.DataFrame()
    out["term"] = df["term"].str.extract("(\\d+)").astype(int)
    out["rate"] = df["int_rate"].str.replace("%", "", regex=False).astype(float).div(100)
    emp = (
        df["emp_length"]
        .str.replace("+", "", regex=False)
        .str.replace("\\D*<\\D*1.*", "0", regex=True)
    )
    out["emp"] = emp.str.extract("(\\d+)", expand=False).astype(float)
    out["zip"] = df["zip_code"].str.replace("xx", "").astype(int)
    d = pd.to_datetime(df["earliest_cr_line"], format="%b-%Y", errors="coerce")
    out["months"] = (2018 - d.dt.year) * 12 + (12 - d.dt.month)
    return out


def pay(df: pd.DataFrame) -> Any:
    pays = [c for c in df.columns if re.match("PAY_\\d$", c)]
    p = df[pays]
    out = pd.DataFrame(
        {
            "late": (p > 0).sum(axis=1),
            "max": p.max(axis=1),
            "mean": p.mean(axis=1),
            "first": p.gt(0).idxmax(axis=1),
            "rank": p.rank(axis=1)["PAY_0"],
            "nuniq": p.nunique(axis=1),
            "var": p.var(axis=1),
        }
    )
    out["trend"] = p.diff(axis=1).mean(axis=1)
    out["cum"] = p.cumsum(axis=1).max(axis=1)
    out["any2"] = p.isin([2, 3, 8]).any(axis=1)
    return out


def util(df: pd.DataFrame) -> Any:
    bills = df.filter(regex="^BILL_AMT")
    util = bills.div(df["limit_bal"].replace({0: np.nan}), axis=0)
    util.columns = [c.replace("BILL_AMT", "UTIL_") for c in util.columns]
    util["max"] = util.max(axis=1)
    util["over"] = (util[["UTIL_1", "UTIL_2", "UTIL_3"]] > 1).sum(axis=1)
    return util.replace([np.inf, -np.inf], np.nan).fillna(0)


def woe(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit

    def woe_table(col):
        g = fit.groupby(col, observed=True)["default"].agg(bad="sum", n="count")
        g["good"] = g["n"] - g["bad"]
        g["woe"] = np.log((g["good"] + 0.5) / g["good"].sum() / ((g["bad"] + 0.5) / g["bad"].sum()))
        return g["woe"]

    out = pd.DataFrame(index=df.index)
    for c in ["grade", "home_ownership", "purpose"]:
        out[f"{c}_woe"] = df[c].map(woe_table(c)).fillna(0.0)
    return out


def bins(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    edges = np.unique(fit["annual_inc"].quantile(np.linspace(0, 1, 6)).values)
    edges[0] = -np.inf
    edges[-1] = np.inf
    b = pd.cut(df["annual_inc"], edges, labels=[f"Q{i}" for i in range(1, len(edges))])
    b = b.cat.add_categories("missing").fillna("missing")
    return pd.concat([b.rename("inc"), pd.get_dummies(b, prefix="inc")], axis=1)


def rules(df: pd.DataFrame) -> Any:

    def decide(r):
        if r.grade in ["A", "B"] and r.dti < 20:
            return "approve"
        if r.annual_inc < 30000 or (r.revol_util > 100 and r.loan_amnt > 20000):
            return "reject"
        if pd.isnull(r.emp_length) or r.emp_length == "n/a":
            return "review"
        return "manual"

    return df.apply(decide, axis=1).rename("decision").to_frame()


def mapped(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["education"] = (
        df["education"].replace([0, 5, 6], 4).map({1: "grad", 2: "uni", 3: "school", 4: "other"})
    )
    df["marriage"] = df["marriage"].apply(lambda m: {1: "married", 2: "single"}.get(m, "other"))
    df["purpose"] = df["purpose"].str.replace("_", " ").str.title().str.replace(" ", "")
    df["own"] = df["home_ownership"].isin(["OWN", "MORTGAGE"]).map({True: "Y", False: "N"})
    df["grade_num"] = df["grade"].map(lambda g: ord(g) - ord("A"))
    return df[["education", "marriage", "purpose", "own", "grade_num"]]


def standard(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    num = fit.select_dtypes(include="number").columns.drop(["default"], errors="ignore")
    num = [c for c in num if c != "default"]
    med = fit[num].median()
    iqr = fit[num].quantile(0.75) - fit[num].quantile(0.25)
    iqr = iqr.replace(0, 1)
    return df[num].fillna(med).sub(med).div(iqr)


def nullable(df: pd.DataFrame) -> Any:
    out = pd.DataFrame()
    out["score"] = df["dti"].round().astype("Int64")
    out["flag"] = out["score"] > 20
    out["flag2"] = out["flag"].fillna(False).astype(int)
    out["half"] = out["score"] // 2
    out["text"] = out["score"].astype("string")
    out["m"] = out["score"].isna()
    return out


def ordered(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    order = sorted(fit["grade"].unique())
    c = pd.Categorical(df["grade"], categories=order, ordered=True)
    s = pd.Series(c, index=df.index)
    return pd.DataFrame(
        {
            "code": s.cat.codes,
            "bad": s > "C",
            "ge": (s >= "B").astype(int),
            "max": s.max() == "G" if False else s.astype(str),
        }
    )


def group(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    s = (
        fit.groupby("grade")["annual_inc"]
        .agg(["mean", "median", "std"])
        .rename(columns=lambda c: f"inc_{c}")
    )
    out = df[["grade", "annual_inc"]].join(s, on="grade")
    out["diff"] = out["annual_inc"] - out["inc_mean"]
    out["ratio"] = out["annual_inc"] / out["inc_median"]
    out["z"] = out["diff"] / out["inc_std"]
    return out.drop(columns=["grade"])


def transform(df: pd.DataFrame) -> Any:
    df = df.copy()
    g = df.groupby(["grade", "term"])["annual_inc"]
    df["annual_inc"] = df["annual_inc"].fillna(g.transform("median"))
    df["rel"] = df["loan_amnt"] / df.groupby("purpose")["loan_amnt"].transform("mean")
    df["cnt"] = df.groupby("purpose")["purpose"].transform("count")
    return df[["annual_inc", "rel", "cnt"]]


def payment(df: pd.DataFrame) -> Any:
    rate = pd.to_numeric(df["int_rate"].str.strip("%"), errors="coerce") / 100 / 12
    n = df["term"].str.strip().str.split(" ").str[0].astype(int)
    pay = df["loan_amnt"] * rate / (1 - (1 + rate) ** (-n))
    out = pd.DataFrame({"installment": pay.round(2), "pti": pay / (df["annual_inc"] / 12)})
    out["total"] = out["installment"] * n
    out["risk"] = np.where(out["pti"].isna(), "unknown", np.where(out["pti"] > 0.1, "high", "low"))
    return out


def merge_const(df: pd.DataFrame) -> Any:
    table = pd.DataFrame(
        {
            "grade": list("ABCDEFG"),
            "base": [1.0, 1.2, 1.5, 1.9, 2.4, 3.0, 4.0],
            "group": ["prime", "prime", "near", "near", "sub", "sub", "sub"],
        }
    )
    homes = pd.DataFrame({"home": ["RENT", "OWN", "MORTGAGE"], "w": [1, 3, 2]})
    out = df.merge(table, on="grade", how="left").merge(
        homes, left_on="home_ownership", right_on="home", how="left"
    )
    out["score"] = out["base"] * out["w"].fillna(0)
    return out[["base", "group", "w", "score"]]


def pivotmap(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    p = fit.pivot_table(values="default", index="grade", columns="home_ownership", aggfunc="mean")
    lookup = p.stack().to_dict()
    return pd.DataFrame(
        {"r": [lookup.get((g, h), -1.0) for g, h in zip(df["grade"], df["home_ownership"])]}
    )


def crosstab(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    ct = pd.crosstab(fit["purpose"], fit["default"], normalize="index")
    ct.columns = ["p_good", "p_bad"]
    return (
        df[["purpose"]]
        .merge(ct.reset_index(), on="purpose", how="left")[["p_good", "p_bad"]]
        .fillna(ct.mean())
    )


def explode(df: pd.DataFrame) -> Any:
    words = df["purpose"].str.replace("_", " ").str.split(" ")
    return pd.DataFrame(
        {
            "n": words.str.len(),
            "first": words.str[0],
            "last": words.str[-1],
            "joined": words.str.join("-"),
        }
    )


def tables(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    t = fit.pivot_table(
        index="grade", columns="home_ownership", values="annual_inc", aggfunc="median"
    )
    nested = {"A": {1: 0.1, 2: 0.2}, "B": {1: 0.3, 2: 0.4}}
    stats = fit.groupby("grade").agg({"dti": "mean", "annual_inc": "max"})
    return pd.DataFrame(
        {
            "t": df.apply(lambda r: t.loc[r["grade"], r["home_ownership"]], axis=1),
            "n": df.apply(
                lambda r: (
                    nested[r["grade"]][r["marriage"]]
                    if r["grade"] in nested and r["marriage"] in (1, 2)
                    else 0.0
                ),
                axis=1,
            ),
            "s": df["grade"].apply(lambda g: stats.loc[g, "dti"] if g in stats.index else -1.0),
            "u": df["grade"].map(lambda g: stats["annual_inc"][g] if g in stats.index else 0.0),
            "w": df["education"].apply(lambda e: {1: "grad", 2: "uni"}.get(e, "other")),
        }
    )


def across(df: pd.DataFrame) -> Any:
    p = df[["BILL_AMT1", "BILL_AMT2", "BILL_AMT3"]]
    q = df[["PAY_AMT1", "PAY_AMT2", "PAY_AMT3"]]
    a = p.diff(axis=1).add_prefix("d_")
    b = q.cumsum(axis=1).add_prefix("c_")
    c = q.rank(axis=1, method="min").add_prefix("r_")
    e = p.shift(1, axis=1).add_prefix("s_")
    f = p.pct_change(axis=1).add_prefix("p_").iloc[:, 1:]
    g = q.rank(axis=1, ascending=False, pct=True).add_prefix("rp_")
    h = q.cummax(axis=1).add_prefix("m_")
    return pd.concat([a, b, c, e, f, g, h], axis=1)


def dot(df: pd.DataFrame) -> Any:
    x = df[["BILL_AMT1", "BILL_AMT2", "BILL_AMT3"]].fillna(0)
    w = np.array([0.5, 0.3, 0.2])
    return pd.DataFrame(
        {
            "a": x @ w,
            "b": x.dot(pd.Series(w, index=x.columns)),
            "c": x.values @ w,
            "d": np.dot(x, w),
            "n": np.isnan(df[["PAY_AMT1", "PAY_AMT2"]]).sum(axis=1),
            "l": np.linalg.norm(x, axis=1),
        }
    )


def popped(df: pd.DataFrame) -> Any:
    df = df.copy()
    df.insert(0, "lti", df["loan_amnt"] / df["annual_inc"])
    dti = df.pop("dti")
    del df["zip_code"]
    df["dti_b"] = dti.where(dti.between(0, 35), other=35.0)
    df["home"] = (
        df["home_ownership"]
        .map(dict(RENT="r", OWN="o", MORTGAGE="m"))
        .fillna("x")
        .astype("category")
        .cat.set_categories(["m", "o", "r", "x"])
        .cat.codes
    )
    return df[["lti", "dti_b", "home"]]


def conditions(df: pd.DataFrame) -> Any:
    q = df.query("grade in ['A', 'B'] and annual_inc > 0", engine="python") if False else df
    out = pd.DataFrame(
        {
            "a": q.eval("loan_amnt / (annual_inc + 1)"),
            "b": q.eval("(dti > 20) & (revol_util < 50)"),
            "c": q.eval("grade == 'A' or grade == 'B'"),
        }
    )
    out["d"] = df["grade"].isin({"A", "B"}) & ~df["purpose"].str.contains("card|debt")
    return out


def purposes(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    s = fit.groupby("purpose").agg(
        n=("loan_amnt", "size"),
        inc=("annual_inc", "median"),
        p90=("loan_amnt", lambda x: x.quantile(0.9)),
    )
    out = df.join(s, on="purpose")[["n", "inc", "p90"]]
    out["big"] = (df["loan_amnt"] > out["p90"]).astype(int)
    return out.fillna(0)


def clipped(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    limits = {
        c: (fit[c].quantile(0.05), fit[c].quantile(0.95))
        for c in ["annual_inc", "dti", "revol_util"]
    }

    def clip(s):
        lo, hi = limits[s.name]
        return s.clip(lo, hi)

    return df[list(limits)].apply(clip)

"""More data preparation as people write it: titanic."""

# ruff: noqa: B023, C408, C416, C417, E501, F841, RUF005, RUF100, UP034

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd


def chain(df: pd.DataFrame) -> Any:
    return (
        df.rename(columns=str.lower)
        .assign(
            family=lambda d: d.sibsp + d.parch + 1,
            alone=lambda d: d.family.eq(1).astype("int8"),
            fare_pp=lambda d: d.fare.div(d.family),
            title=lambda d: d.name.str.extract("([A-Za-z]+)\\.", expand=False),
        )
        .pipe(
            lambda d: d.assign(title=d.title.replace({"Mlle": "Miss", "Ms": "Miss", "Mme": "Mrs"}))
        )
        .loc[:, ["family", "alone", "fare_pp", "title"]]
    )


def select(df: pd.DataFrame) -> Any:
    conditions = [df["Age"].isna(), df["Age"] < 13, df["Age"].between(13, 19), df["Age"] >= 60]
    choices = ["unknown", "child", "teen", "senior"]
    out = pd.DataFrame({"group": np.select(conditions, choices, default="adult")})
    out["fare_class"] = np.select([df.Fare <= 7.91, df.Fare <= 14.454, df.Fare <= 31], [0, 1, 2], 3)
    return out


def closure(df: pd.DataFrame) -> Any:

    def make_bucket(edges, names):

        def bucket(v):
            if pd.isna(v):
                return "missing"
            for e, n in zip(edges, names):
                if v <= e:
                    return n
            return names[-1]

        return bucket

    age = make_bucket([5, 12, 18, 35, 60, 100], ["baby", "child", "teen", "young", "adult", "old"])
    fare = make_bucket([8, 15, 31, 1000], ["low", "mid", "high", "top"])
    return pd.DataFrame({"age": df["Age"].apply(age), "fare": df["Fare"].apply(fare)})


def cabin(df: pd.DataFrame) -> Any:
    out = pd.DataFrame(index=df.index)
    cabin = df["Cabin"].str.extract("^(?P<deck>[A-Z])(?P<room>\\d+)?")
    out["deck"] = (
        cabin["deck"]
        .fillna("M")
        .replace({"T": "A"})
        .map(
            {
                "A": "ABC",
                "B": "ABC",
                "C": "ABC",
                "D": "DE",
                "E": "DE",
                "F": "FG",
                "G": "FG",
                "M": "M",
            }
        )
    )
    out["room"] = pd.to_numeric(cabin["room"], errors="coerce").fillna(0).astype(int)
    out["odd"] = out["room"] % 2
    out["n"] = df["Cabin"].fillna("").str.count("[A-Z]\\d+")
    return out


def name(df: pd.DataFrame) -> Any:
    parts = df["Name"].str.split(", ", n=1, expand=True)
    rest = parts[1].str.split(".", n=1, expand=True)
    return pd.DataFrame(
        {
            "last": parts[0],
            "title": rest[0].str.strip(),
            "first": rest[1].str.strip(),
            "maiden": df["Name"].str.extract("\\((.*?)\\)", expand=False),
            "has_paren": df["Name"].str.contains("(", regex=False).astype(int),
            "words": df["Name"].str.split().str.len(),
        }
    )


def impute(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    df = df.copy()
    df["Age"] = df["Age"].fillna(fit["Age"].mean()).round().astype(int)
    df["Fare"] = df["Fare"].fillna(fit.loc[fit["Pclass"] == 3, "Fare"].median())
    df["Embarked"] = df["Embarked"].fillna(fit["Embarked"].value_counts().idxmax())
    df["AgeGroup"] = pd.cut(
        df["Age"],
        bins=[-1, 12, 19, 35, 60, 200],
        labels=["Child", "Teen", "Young", "Adult", "Senior"],
        ordered=True,
    )
    df["AgeCode"] = df["AgeGroup"].cat.codes
    return df[["Age", "Fare", "Embarked", "AgeGroup", "AgeCode"]]


def target(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    gm = fit["Survived"].mean()
    out = pd.DataFrame(index=df.index)
    for col in ["Sex", "Pclass", "Embarked"]:
        stats = fit.groupby(col)["Survived"].agg(["mean", "count"])
        smooth = (stats["mean"] * stats["count"] + gm * 10) / (stats["count"] + 10)
        out[col + "_te"] = df[col].map(smooth).fillna(gm)
    return out


def row(df: pd.DataFrame) -> Any:

    def score(row):
        s = 0
        if row["Sex"] == "female":
            s += 2
        if row["Pclass"] == 1:
            s += 1
        elif row["Pclass"] == 3:
            s -= 1
        if row["Age"] < 10 or row["Age"] > 65:
            s = s * 2
        return s

    df["score"] = df.apply(score, axis=1)
    df["label"] = df["score"].apply(lambda x: "good" if x > 1 else "bad" if x < 0 else "neutral")
    return df[["score", "label"]]


def dummies_fixed(df: pd.DataFrame) -> Any:
    sex = pd.Categorical(df["Sex"], categories=["female", "male"])
    emb = pd.Categorical(df["Embarked"], categories=["C", "Q", "S"])
    a = pd.get_dummies(sex, prefix="Sex", dtype=int)
    b = pd.get_dummies(emb, prefix="Emb", dtype=int)
    out = pd.concat([a, b], axis=1)
    out["Pclass"] = df["Pclass"].values
    return out


def reindex(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    cols = pd.get_dummies(fit[["Sex", "Embarked"]]).columns
    return pd.get_dummies(df[["Sex", "Embarked"]]).reindex(columns=cols, fill_value=0).astype(int)


def group_size(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    n = fit.groupby("Ticket").size()
    fare = fit.groupby("Ticket")["Fare"].mean()
    size = df["Ticket"].map(n).fillna(1).astype(int)
    return pd.DataFrame(
        {
            "TicketSize": size,
            "Shared": (size > 1).astype(int),
            "FareEach": df["Fare"] / size,
            "mean": df["Ticket"].map(fare),
        }
    )


def interactions(df: pd.DataFrame) -> Any:
    num = ["Pclass", "SibSp", "Parch"]
    out = df[num].copy()
    for i, a in enumerate(num):
        for b in num[i + 1 :]:
            out[f"{a}_x_{b}"] = df[a] * df[b]
            out[f"{a}_minus_{b}"] = df[a] - df[b]
    out["sq"] = out["Pclass"] ** 2
    out["logfare"] = np.log(df["Fare"] + 1)
    return out


def inplace(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["Age"] = df["Age"].fillna(-0.5)
    cut_points = [-1, 0, 5, 12, 18, 35, 60, 100]
    names = ["Missing", "Infant", "Child", "Teenager", "Young Adult", "Adult", "Senior"]
    df["Age_categories"] = pd.cut(df["Age"], cut_points, labels=names)
    for c in ["Age_categories"]:
        dummies = pd.get_dummies(df[c], prefix=c)
        df = pd.concat([df, dummies], axis=1)
    df = df.drop(
        ["Name", "Ticket", "Cabin", "PassengerId", "Survived", "Age_categories", "Sex", "Embarked"],
        axis=1,
        errors="ignore",
    )
    return df


def masks(df: pd.DataFrame) -> Any:
    out = pd.DataFrame(
        {
            "woman_or_child": (df.Sex == "female") | (df.Age < 15),
            "rich": (df.Fare > 50) & df.Pclass.isin([1, 2]),
            "x": ~df.Cabin.isnull() ^ (df.SibSp > 0),
        }
    )
    return out.astype(int)


def strcat(df: pd.DataFrame) -> Any:
    out = pd.DataFrame()
    out["key"] = (
        df["Pclass"].astype(str)
        + "_"
        + df["Sex"].str[:1].str.upper()
        + "_"
        + df["Embarked"].fillna("U")
    )
    out["key2"] = df["Sex"].str.cat(df["Embarked"], sep="-", na_rep="?")
    out["n"] = out["key"].str.len()
    out["z"] = df["Pclass"].astype(str).str.zfill(3)
    out["pad"] = df["Sex"].str.pad(8, side="right", fillchar=".")
    return out


def melt(df: pd.DataFrame) -> Any:
    m = df[["PassengerId", "SibSp", "Parch"]].melt(
        id_vars="PassengerId", value_vars=["SibSp", "Parch"], var_name="kind", value_name="n"
    )
    return m


def stack(df: pd.DataFrame) -> Any:
    return df.set_index("PassengerId")[["SibSp", "Parch"]].stack().reset_index(name="n")


def comp(df: pd.DataFrame) -> Any:
    ages = {"male": 30.0, "female": 28.0}
    df = df.copy()
    df["a"] = [ages.get(s, -1.0) if np.isnan(a) else a for s, a in zip(df["Sex"], df["Age"])]
    df["b"] = [1 if x > 2 else 0 for x in df["Pclass"]]
    df["c"] = [n.split(",")[0] for n in df["Name"]]
    df["d"] = list(map(lambda s: s.upper(), df["Sex"]))
    cols = [c for c in ["a", "b", "c", "d"]]
    names = [f"x_{c}" for c in cols]
    return df[cols].set_axis(names, axis=1)


def two_keys(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    med = fit.groupby(["Sex", "Pclass"])["Age"].median()
    table = fit.groupby(["Sex", "Pclass"])[["Age", "Fare"]].mean()
    d = med.to_dict()
    df = df.copy()
    df["a"] = df.apply(
        lambda r: med[r["Sex"], r["Pclass"]] if np.isnan(r["Age"]) else r["Age"], axis=1
    )
    df["b"] = df.apply(
        lambda r: med.loc[r["Sex"], r["Pclass"]] if pd.isnull(r["Age"]) else r["Age"], axis=1
    )
    df["c"] = df.apply(lambda r: d[r["Sex"], r["Pclass"]], axis=1)
    df["d"] = df.apply(lambda r: table.loc[(r["Sex"], r["Pclass"]), "Fare"], axis=1)
    df["e"] = df.apply(lambda r: med[r["Sex"]][r["Pclass"]], axis=1)
    df["f"] = df.apply(lambda r: table.loc[r["Sex"], r["Pclass"]]["Age"], axis=1)
    return df[list("abcdef")]


def melt_2(df: pd.DataFrame) -> Any:
    m = pd.melt(df, id_vars=["PassengerId", "Sex"], value_vars=["Age", "Fare"])
    m["value"] = m["value"].fillna(0)
    return m[m["value"] > 5].reset_index(drop=True)


def concat(df: pd.DataFrame) -> Any:
    a = df[df["Sex"] == "male"][["Age", "Name"]].assign(k="m")
    b = df[df["Sex"] == "female"][["Age", "Name"]].assign(k="f")
    return pd.concat([a, b], ignore_index=True)


def logs(df: pd.DataFrame) -> Any:
    num = ["Age", "Fare"]
    return df.assign(
        **{f"{c}_log": np.log1p(df[c].clip(lower=0)) for c in num},
        **{f"{c}_na": df[c].isna().astype("int8") for c in num},
    )[[f"{c}_log" for c in num] + [f"{c}_na" for c in num]]


def merged_ages(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    df = df.copy()
    m = fit.groupby(["Pclass", "Sex"])["Age"].mean().reset_index().rename(columns={"Age": "m"})
    df = df.merge(m, on=["Pclass", "Sex"], how="left")
    df.loc[df.Age.isnull(), "Age"] = df["m"]
    df["AgeBin"] = pd.cut(df["Age"], bins=[0, 16, 32, 48, 64, 200], labels=[0, 1, 2, 3, 4]).astype(
        float
    )
    return df[["Age", "AgeBin"]]


def reindexed(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    cat = [c for c in ["Sex", "Embarked"]]
    out = []
    for c in cat:
        d = pd.get_dummies(df[c], prefix=c, prefix_sep="=", dtype="float32")
        want = [f"{c}={v}" for v in sorted(fit[c].dropna().unique())]
        out.append(d.reindex(columns=want, fill_value=0).astype("float32"))
    return pd.concat(out, axis=1)


def flags(df: pd.DataFrame) -> Any:
    flags = [df["Age"] > 60, df["Fare"] > 100, df["SibSp"] + df["Parch"] > 3]
    any_ = functools.reduce(lambda a, b: a | b, flags)
    all_ = np.logical_and.reduce(flags)
    return pd.DataFrame(
        {"any": any_.astype(int), "n": sum((f.astype(int) for f in flags)), "all": all_}
    )


def digits(df: pd.DataFrame) -> Any:
    bins = np.array([0, 10, 20, 50, 100])
    return pd.DataFrame(
        {
            "d": np.digitize(df["Fare"].fillna(0), bins),
            "s": np.searchsorted(bins, df["Fare"].fillna(0)),
            "cbrt": np.cbrt(df["Fare"]),
            "p": np.power(df["Pclass"], 2),
            "e": np.exp(-df["Age"] / 10),
        }
    )


def modes(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    modes = fit.groupby("Pclass")["Embarked"].agg(lambda x: x.value_counts().index[0])
    e = df["Embarked"].where(df["Embarked"].notna(), df["Pclass"].map(modes))
    mapping = {k: v for v, k in enumerate(sorted(fit["Embarked"].dropna().unique()))}
    return pd.DataFrame({"e": e, "c": e.map(mapping), "has": e.isin(mapping)})

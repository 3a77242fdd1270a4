"""Data preparation as people write it: titanic."""

# ruff: noqa: E721, SIM210, SIM401, UP031, UP032

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def columns_of_all(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["Title"] = df.Name.apply(lambda n: n.split(",")[1].split(".")[0].strip())
    df["Deck"] = df["Cabin"].apply(lambda c: c[0] if pd.notnull(c) else "M")
    df["Fam"] = df["SibSp"] + df["Parch"] + 1
    df["FamCat"] = df["Fam"].map(lambda s: "alone" if s == 1 else "small" if s < 5 else "big")
    df["Age"] = df["Age"].fillna(df.groupby(["Sex", "Pclass"])["Age"].transform("median"))
    df["AgeBin"] = pd.qcut(df["Age"], 5, labels=False)
    df["Child"] = (df["Age"] < 16) * 1
    return df[["Title", "Deck", "FamCat", "AgeBin", "Child", "Age"]]


def nametitle(df: pd.DataFrame) -> Any:
    t = df["Name"].str.extract("([A-Za-z]+)\\.", expand=False)
    rare = t.value_counts()[t.value_counts() < 10].index
    return pd.DataFrame(
        {
            "t": t.where(~t.isin(rare), "Rare"),
            "nlen": df["Name"].apply(len),
            "paren": df["Name"].str.contains("\\("),
        }
    )


def ticket(df: pd.DataFrame) -> Any:
    pre = (
        df["Ticket"]
        .str.replace(".", "", regex=False)
        .str.replace("/", "", regex=False)
        .str.split()
        .str[0]
    )
    return pd.DataFrame(
        {
            "p": pre.where(~pre.str.isdigit(), "XXX"),
            "grp": df.groupby("Ticket")["Ticket"].transform("count"),
        }
    )


def onehot(df: pd.DataFrame) -> Any:
    d = pd.get_dummies(df, columns=["Sex", "Embarked", "Pclass"], drop_first=True)
    return d.drop(columns=["Name", "Ticket", "Cabin", "PassengerId"])


def columns_of_loc(df: pd.DataFrame) -> Any:
    df = df.copy()
    df.loc[df["Age"] <= 16, "A"] = 0
    df.loc[(df["Age"] > 16) & (df["Age"] <= 32), "A"] = 1
    df.loc[df["Age"] > 32, "A"] = 2
    df["A"] = df["A"].fillna(-1).astype(int)
    df.loc[df["Fare"].isnull(), "Fare"] = df["Fare"].mean()
    df["F"] = "low"
    df.loc[df["Fare"] > 20, "F"] = "high"
    return df[["A", "Fare", "F"]]


def columns_of_eval(df: pd.DataFrame) -> Any:
    df = df.eval("Fam = SibSp + Parch + 1")
    df = df.eval("Each = Fare / Fam")
    return df[["Fam", "Each"]]


def helpers(df: pd.DataFrame) -> Any:
    import math

    def f(r):
        return math.sqrt(r["Fare"]) + len(r["Name"]) if r["Fare"] > 10 else -1.0

    d = {"male": "M", "female": "F"}
    return pd.DataFrame(
        {
            "f": df.apply(f, axis=1),
            "g": df["Sex"].apply(lambda s: d[s] if s in d else "?"),
            "t": df["Name"].map(lambda x: x.split(",")[1].split(".")[0].strip()),
            "h": df["Cabin"].apply(lambda x: 0 if type(x) == float else 1),
            "i": df["Cabin"].apply(lambda x: isinstance(x, str)),
            "n": df["Pclass"].apply(lambda p: str(p) + "c"),
            "k": df["Embarked"].apply(lambda e: e in {"S", "C"}),
        }
    )


def columns_of_frames(df: pd.DataFrame) -> Any:
    a = df[["Age", "Fare"]]
    b = a.apply(lambda c: c.fillna(c.median()))
    c = b.div(b.sum(axis=1), axis=0)
    d = a.isnull().astype(int).add_prefix("na_")
    return pd.concat(
        [b, c.add_suffix("_share"), d, b.rename(columns={"Age": "A2"})["A2"].round(1)], axis=1
    )


def columns_of_sum(df: pd.DataFrame) -> Any:
    return sum([df["SibSp"], df["Parch"]]).rename("fam")


def fstring(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "a": df.apply(lambda r: f"{r['Sex']}_{r['Pclass']}", axis=1),
            "b": df["Pclass"].apply(lambda p: "class %s" % p),
            "c": df["Embarked"].apply(lambda e: "{}!".format(e)),
            "d": df["Name"].map(str.lower),
            "e": df[["SibSp", "Parch"]].apply(np.sum, axis=1),
            "f": df["Age"].apply(pd.isnull),
        }
    )


def locs(df: pd.DataFrame) -> Any:
    df = df.copy()
    df.loc[df["Sex"] == "male", "Age"] *= 2
    df.loc[df["Pclass"] == 3, "Fare"] = df.loc[df["Pclass"] == 3, "Fare"].fillna(1) / 2
    df.loc[df["Sex"] == "male", "Name"] = df.loc[df["Sex"] == "male", "Name"].str.upper()
    return df[["Age", "Fare", "Name"]]


def columns_of_none(df: pd.DataFrame) -> Any:

    def f(x):
        if x < 10:
            return "kid"
        if x < 40:
            return np.nan
        return None

    def g(x):
        if x > 30:
            return 1
        elif x > 20:
            return 0.5

    return pd.DataFrame(
        {
            "a": df["Age"].apply(f),
            "b": df["Age"].apply(g),
            "c": df["Fare"].map(lambda v: v > 10),
            "d": df["SibSp"].apply(lambda v: True if v else False),
        }
    )


def fam(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["Surname"] = df["Name"].str.split(",").str[0]
    df["FID"] = df["Surname"] + "_" + (df["SibSp"] + df["Parch"] + 1).astype(str)
    small = df["FID"].value_counts()
    df["FSize"] = df["FID"].map(small).fillna(1).astype(int)
    df["T"] = df["Ticket"].str.extract("([A-Za-z/\\.0-9]+)\\s", expand=False).fillna("N")
    df["TN"] = df["Ticket"].str.extract("(\\d+)$", expand=False).astype(float)
    df["C"] = df["Cabin"].str.extract("([A-Za-z])(\\d+)")[1].astype(float)
    return df[["FSize", "T", "TN", "C"]]


def surv(df: pd.DataFrame) -> Any:
    return pd.DataFrame(
        {
            "w": df.groupby(["Sex", "Pclass"])["Survived"].transform("mean"),
            "x": df[["Sex", "Pclass"]].merge(
                df.groupby(["Sex", "Pclass"], as_index=False)["Survived"].mean(),
                how="left",
                on=["Sex", "Pclass"],
            )["Survived"],
        }
    )


def mask(df: pd.DataFrame) -> Any:
    fare = df["Fare"].mask(df["Fare"] > df["Fare"].quantile(0.99), df["Fare"].quantile(0.99))
    emb = df["Embarked"].where(df["Embarked"].notna(), df["Embarked"].mode().iat[0])
    return pd.DataFrame(
        {"f": fare.fillna(fare.mean()), "e": emb.map(emb.value_counts().rank(ascending=False))}
    )


def interact(df: pd.DataFrame) -> Any:
    d = pd.get_dummies(df["Pclass"], prefix="P").astype(int)
    return d.mul(df["Age"].fillna(30), axis=0).join(df["Sex"].eq("male").astype(int).rename("male"))


def dropna(df: pd.DataFrame) -> Any:
    return (
        df.dropna(subset=["Age"])
        .query("Fare > 5")
        .assign(r=lambda d: d["Fare"] / d["Age"])[["r", "Sex"]]
        .reset_index(drop=True)
    )


def apply2(df: pd.DataFrame) -> Any:

    def cat(age, sex):
        if pd.isna(age):
            return "unknown"
        if age < 18:
            return "child"
        return "woman" if sex == "female" else "man"

    return pd.DataFrame(
        {
            "c": df.apply(lambda r: cat(r.Age, r.Sex), axis=1),
            "d": df[["Age", "Fare"]].apply(
                lambda r: r["Age"] * 2 if r["Fare"] > 10 else r["Age"], axis=1
            ),
            "m": df[["SibSp", "Parch"]].apply(lambda r: r.max() - r.min(), axis=1),
        }
    )


def names(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["Surname"] = df["Name"].apply(lambda x: str(x).split(",")[0].strip())
    df["Title"] = df["Name"].apply(lambda n: n.split(",")[1].split(".")[0].strip())
    df["NameLen"] = df["Name"].apply(lambda x: len(x))
    df["Paren"] = df["Name"].str.contains(r"\(").astype(int)
    df["TicketPre"] = df["Ticket"].apply(
        lambda x: x.split()[0] if not x.split()[0].isdigit() else "none"
    )
    return df[["Surname", "Title", "NameLen", "Paren", "TicketPre"]]


def ticket2(df: pd.DataFrame) -> Any:
    t = df["Ticket"].str.replace(".", "", regex=False).str.replace("/", "", regex=False)
    pre = t.map(lambda x: x.split(" ")[0] if len(x.split(" ")) > 1 else "X")
    return pd.DataFrame(
        {
            "pre": pre,
            "digit": df["Ticket"].str.isdigit(),
            "first": df["Ticket"].str[0],
            "num": df["Ticket"].str.extract(r"(\d+)$")[0],
        }
    )


def age_fill(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    df = df.copy()
    med = fit.groupby(["Sex", "Pclass"])["Age"].median()
    for s in ["male", "female"]:
        for p in [1, 2, 3]:
            df.loc[df["Age"].isnull() & (df["Sex"] == s) & (df["Pclass"] == p), "Age"] = med[s, p]
    df["AgeClass"] = df["Age"] * df["Pclass"]
    return df[["Age", "AgeClass"]]


def old_style(df: pd.DataFrame) -> Any:
    df = df.copy()
    df["Sex"] = df["Sex"].map({"female": 1, "male": 0}).fillna(-1).astype(int)
    df.loc[df["Fare"] <= 7.91, "FareBin"] = 0
    df.loc[(df["Fare"] > 7.91) & (df["Fare"] <= 14.454), "FareBin"] = 1
    df.loc[(df["Fare"] > 14.454) & (df["Fare"] <= 31), "FareBin"] = 2
    df.loc[df["Fare"] > 31, "FareBin"] = 3
    df["Family"] = df["SibSp"].add(df["Parch"]).add(1)
    df["Fam"] = df["Family"].map(lambda s: "Alone" if s == 1 else ("Small" if s < 5 else "Big"))
    df["Deck"] = df["Cabin"].map(lambda c: c[0] if isinstance(c, str) and c else "M")
    return df[["Sex", "FareBin", "Family", "Fam", "Deck"]]

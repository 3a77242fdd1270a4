"""Data preparation as people write it: telco."""

from __future__ import annotations

from typing import Any

import pandas as pd


def yesno(df: pd.DataFrame) -> Any:
    df = df.drop("customerID", axis=1)
    yn = ["Partner", "Dependents", "PhoneService", "PaperlessBilling"]
    for c in yn:
        df[c] = df[c].apply(lambda x: 1 if x == "Yes" else 0)
    df = df.replace({"No internet service": "No", "No phone service": "No"})
    df["services"] = (df[["MultipleLines", "OnlineSecurity"]] == "Yes").sum(axis=1)
    df["auto"] = df["PaymentMethod"].str.contains("automatic").astype(int)
    df["method"] = df["PaymentMethod"].str.replace(" (automatic)", "", regex=False)
    df["c"] = df["Contract"].map({"Month-to-month": 1, "One year": 12, "Two year": 24})
    return df[yn + ["services", "auto", "method", "c", "MultipleLines", "InternetService"]]  # noqa: RUF005


def tenure(df: pd.DataFrame) -> Any:
    def tenure_lab(telcom):
        if telcom["tenure"] <= 12:
            return "Tenure_0-12"
        elif (telcom["tenure"] > 12) & (telcom["tenure"] <= 24):
            return "Tenure_12-24"
        elif (telcom["tenure"] > 24) & (telcom["tenure"] <= 48):
            return "Tenure_24-48"
        elif telcom["tenure"] > 48:
            return "Tenure_gt_48"

    df = df.copy()
    df["tenure_group"] = df.apply(lambda telcom: tenure_lab(telcom), axis=1)
    df["cust"] = df["customerID"].str.split("-", expand=True)[1]
    df["no"] = df["customerID"].str[:4].astype(int)
    return df[["tenure_group", "cust", "no"]]


def dummies(df: pd.DataFrame, fit: Any = None) -> Any:
    if fit is not None:
        d = pd.get_dummies(
            pd.concat([fit, df], ignore_index=True).drop(
                columns=["customerID", "TotalCharges", "Churn"]
            ),
            columns=["Contract", "InternetService"],
            drop_first=True,
            dtype=int,
        )
        keep = pd.get_dummies(
            fit.drop(columns=["customerID", "TotalCharges", "Churn"]),
            columns=["Contract", "InternetService"],
            drop_first=True,
            dtype=int,
        ).columns
        return d.iloc[len(fit) :].reset_index(drop=True)[
            [c for c in keep if d[c].dtype.kind in "iuf"]
        ]
    d = pd.get_dummies(
        df.drop(columns=["customerID", "TotalCharges", "Churn"]),
        columns=["Contract", "InternetService"],
        drop_first=True,
        dtype=int,
    )
    return d.select_dtypes("number")


def scale(df: pd.DataFrame, fit: Any = None) -> Any:
    fit = df if fit is None else fit
    num = ["tenure", "MonthlyCharges"]
    mn, mx = fit[num].min(), fit[num].max()
    scaled = (df[num] - mn) / (mx - mn)
    scaled = scaled.add_suffix("_scaled")
    z = df[num].apply(lambda c: (c - fit[c.name].mean()) / fit[c.name].std())
    return pd.concat([scaled, z], axis=1).round(4)

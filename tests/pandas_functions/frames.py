"""Frames in the shape of well-known tasks; the data is made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def with_gaps(rng: Any, s: Any, share: Any) -> pd.Series:
    s = pd.Series(s)
    return s.mask(pd.Series(rng.random(len(s)) < share))


def titanic(n: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(11)
    sex = rng.choice(["male", "female"], n, p=[0.6, 0.4])
    title = np.where(
        sex == "male",
        rng.choice(["Mr", "Master", "Rev", "Dr", "Col"], n, p=[0.8, 0.12, 0.03, 0.03, 0.02]),
        rng.choice(
            ["Mrs", "Miss", "Ms", "Mlle", "Mme", "Lady"], n, p=[0.45, 0.45, 0.03, 0.03, 0.02, 0.02]
        ),
    )
    sur = rng.choice(
        [
            "Braund",
            "Cumings",
            "Heikkinen",
            "O'Brien",
            "van Melkebeke",
            "Allen",
            "Moran",
            "Sandstrom",
            "Palsson",
            "Rice",
        ],
        n,
    )
    first = rng.choice(
        ["John", "William Henry", "Anna (Lily)", "Kate", "Owen Harris", "Elisabeth Vilhelmina"], n
    )
    cabin = [f"{a}{b}" for a, b in zip(rng.choice(list("ABCDEFGT"), n), rng.integers(1, 130, n))]
    ticket = [
        f"{p}{t}"
        for p, t in zip(
            rng.choice(["", "", "", "A/5 ", "PC ", "STON/O2. ", "C.A. "], n),
            rng.integers(1000, 400000, n),
        )
    ]
    return pd.DataFrame(
        {
            "PassengerId": np.arange(1, n + 1),
            "Survived": rng.integers(0, 2, n),
            "Pclass": rng.choice([1, 2, 3], n, p=[0.25, 0.2, 0.55]),
            "Name": [f"{s}, {t}. {f}" for s, t, f in zip(sur, title, first)],
            "Sex": sex,
            "Age": with_gaps(rng, np.round(rng.gamma(5, 6, n) + 0.25, 2), 0.2),
            "SibSp": rng.choice([0, 1, 2, 4], n, p=[0.68, 0.23, 0.06, 0.03]),
            "Parch": rng.choice([0, 1, 2, 5], n, p=[0.76, 0.13, 0.09, 0.02]),
            "Ticket": ticket,
            "Fare": with_gaps(rng, np.round(rng.lognormal(3, 1, n), 4), 0.01),
            "Cabin": with_gaps(rng, cabin, 0.7),
            "Embarked": with_gaps(rng, rng.choice(["S", "C", "Q"], n, p=[0.7, 0.2, 0.1]), 0.02),
        }
    )


def houses(n: int = 260) -> pd.DataFrame:
    rng = np.random.default_rng(23)
    built = rng.integers(1900, 2009, n)
    q = ["Ex", "Gd", "TA", "Fa", "Po"]
    return pd.DataFrame(
        {
            "Id": np.arange(1, n + 1),
            "MSSubClass": rng.choice([20, 30, 60, 120, 190], n),
            "MSZoning": with_gaps(
                rng,
                rng.choice(
                    ["RL", "RM", "FV", "RH", "C (all)"], n, p=[0.75, 0.15, 0.05, 0.03, 0.02]
                ),
                0.02,
            ),
            "LotFrontage": with_gaps(rng, np.round(rng.normal(70, 22, n).clip(21, 313)), 0.18),
            "LotArea": rng.lognormal(9.1, 0.5, n).astype("int64"),
            "Alley": with_gaps(rng, rng.choice(["Grvl", "Pave"], n), 0.9),
            "Neighborhood": rng.choice(
                ["NAmes", "CollgCr", "OldTown", "Edwards", "Somerst", "Gilbert", "Blueste"],
                n,
                p=[0.25, 0.2, 0.18, 0.15, 0.12, 0.09, 0.01],
            ),
            "OverallQual": rng.integers(1, 11, n),
            "YearBuilt": built,
            "YearRemodAdd": np.maximum(built, rng.integers(1950, 2010, n)),
            "MasVnrArea": with_gaps(
                rng, rng.exponential(100, n).round() * (rng.random(n) < 0.4), 0.01
            ),
            "ExterQual": rng.choice(q[:4], n, p=[0.05, 0.35, 0.55, 0.05]),
            "BsmtQual": with_gaps(rng, rng.choice(q, n, p=[0.1, 0.4, 0.4, 0.07, 0.03]), 0.03),
            "KitchenQual": with_gaps(rng, rng.choice(q[:4], n), 0.01),
            "TotalBsmtSF": with_gaps(rng, rng.normal(1050, 400, n).clip(0).round(), 0.01),
            "GrLivArea": rng.normal(1500, 500, n).clip(334).astype("int64"),
            "1stFlrSF": rng.normal(1150, 380, n).clip(334).astype("int64"),
            "2ndFlrSF": (rng.normal(700, 200, n).clip(0) * (rng.random(n) < 0.45)).astype("int64"),
            "GarageType": with_gaps(
                rng, rng.choice(["Attchd", "Detchd", "BuiltIn", "CarPort"], n), 0.06
            ),
            "GarageCars": with_gaps(rng, rng.choice([0.0, 1.0, 2.0, 3.0], n), 0.01),
            "GarageArea": with_gaps(rng, rng.normal(470, 200, n).clip(0).round(), 0.01),
            "PoolArea": rng.choice([0, 480, 519], n, p=[0.97, 0.02, 0.01]),
            "CentralAir": rng.choice(["Y", "N"], n, p=[0.93, 0.07]),
            "MoSold": rng.integers(1, 13, n),
            "YrSold": rng.integers(2006, 2011, n),
            "SalePrice": rng.lognormal(12, 0.4, n).round(),
        }
    )


def clicks(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(37)
    t = pd.Timestamp("2017-11-07") + pd.to_timedelta(
        np.sort(rng.integers(0, 3 * 86400, n)), unit="s"
    )
    return pd.DataFrame(
        {
            "ip": rng.choice(rng.integers(1, 200000, 60), n),
            "app": rng.choice([3, 9, 12, 15, 18, 64], n, p=[0.3, 0.2, 0.2, 0.15, 0.1, 0.05]),
            "device": rng.choice([1, 2, 0, 3032], n, p=[0.9, 0.06, 0.02, 0.02]),
            "os": rng.choice([13, 19, 17, 18, 22], n),
            "channel": rng.choice([107, 245, 280, 477, 134], n),
            "click_time": pd.Series(t).dt.strftime("%Y-%m-%d %H:%M:%S"),
            "site": with_gaps(
                rng,
                rng.choice(["news.example", "shop.example", "Play.Example", "mail.example"], n),
                0.05,
            ),
            "is_attributed": rng.choice([0, 1], n, p=[0.9, 0.1]),
        }
    )


def taxi(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(41)
    pick = pd.Timestamp("2016-01-01") + pd.to_timedelta(rng.integers(0, 181 * 86400, n), unit="s")
    dur = rng.lognormal(6.5, 0.7, n).astype("int64") + 1
    return pd.DataFrame(
        {
            "id": [f"id{i:07d}" for i in rng.integers(0, 9999999, n)],
            "vendor_id": rng.choice([1, 2], n),
            "pickup_datetime": pd.Series(pick),
            "dropoff_datetime": with_gaps(
                rng, pd.Series(pick + pd.to_timedelta(dur, unit="s")), 0.03
            ),
            "passenger_count": rng.choice(
                [0, 1, 2, 3, 5, 6], n, p=[0.01, 0.7, 0.14, 0.05, 0.06, 0.04]
            ),
            "pickup_longitude": rng.normal(-73.97, 0.04, n),
            "pickup_latitude": rng.normal(40.75, 0.03, n),
            "dropoff_longitude": rng.normal(-73.97, 0.05, n),
            "dropoff_latitude": rng.normal(40.75, 0.04, n),
            "store_and_fwd_flag": with_gaps(rng, rng.choice(["N", "Y"], n, p=[0.99, 0.01]), 0.02),
            "trip_duration": dur,
        }
    )


def credit(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(53)
    opened = pd.Timestamp("1985-01-01") + pd.to_timedelta(rng.integers(0, 10000, n), unit="D")
    d = {
        "loan_amnt": rng.integers(10, 400, n) * 100,
        "term": rng.choice([" 36 months", " 60 months"], n),
        "int_rate": [f"{r:.2f}%" for r in rng.uniform(5, 25, n)],
        "grade": rng.choice(list("ABCDEFG"), n, p=[0.2, 0.3, 0.25, 0.13, 0.07, 0.03, 0.02]),
        "emp_length": with_gaps(
            rng,
            rng.choice(["10+ years", "2 years", "< 1 year", "1 year", "5 years", "n/a"], n),
            0.04,
        ),
        "home_ownership": rng.choice(
            ["RENT", "MORTGAGE", "OWN", "OTHER", "NONE"], n, p=[0.42, 0.45, 0.1, 0.02, 0.01]
        ),
        "annual_inc": with_gaps(rng, rng.lognormal(11, 0.5, n).round(2), 0.02),
        "purpose": rng.choice(
            ["debt_consolidation", "credit_card", "home improvement", "small business", "other"], n
        ),
        "dti": with_gaps(rng, rng.uniform(0, 40, n).round(2), 0.01),
        "earliest_cr_line": pd.Series(opened).dt.strftime("%b-%Y"),
        "zip_code": [f"{z:03d}xx" for z in rng.integers(1, 999, n)],
        "revol_util": with_gaps(rng, rng.uniform(0, 120, n).round(1), 0.03),
        "limit_bal": rng.choice(
            [0, 20000, 50000, 120000, 500000], n, p=[0.02, 0.3, 0.3, 0.28, 0.1]
        ),
        "education": rng.choice([0, 1, 2, 3, 4, 5, 6], n),
        "marriage": rng.choice([0, 1, 2, 3], n),
    }
    for k in (0, 2, 3, 4, 5, 6):
        d[f"PAY_{k}"] = rng.choice(
            [-2, -1, 0, 1, 2, 3, 8], n, p=[0.15, 0.2, 0.45, 0.08, 0.07, 0.03, 0.02]
        )
    for k in (1, 2, 3):
        d[f"BILL_AMT{k}"] = rng.normal(50000, 60000, n).round()
        d[f"PAY_AMT{k}"] = with_gaps(rng, rng.exponential(5000, n).round(), 0.02)
    d["default"] = rng.choice([0, 1], n, p=[0.78, 0.22])
    return pd.DataFrame(d)


def restaurants(n: int = 360) -> pd.DataFrame:
    rng = np.random.default_rng(67)
    stores = [
        f"air_{x}"
        for x in (
            "ba937bf13d40fb24",
            "25e9888d30b386df",
            "8e4360a64dbd4c50",
            "d0e8a085d8dc83aa",
            "3525f11ef0bf0c35",
        )
    ]
    day = pd.Timestamp("2016-07-01") + pd.to_timedelta(rng.integers(0, 280, n), unit="D")
    s = rng.choice(stores, n)
    return pd.DataFrame(
        {
            "id": [f"{a}_{d:%Y-%m-%d}" for a, d in zip(s, day)],
            "store": s,
            "visit_date": pd.Series(day),
            "genre": rng.choice(["Izakaya", "Cafe/Sweets", "Italian/French", "Dining bar"], n),
            "area": rng.choice(
                ["Tokyo-to Shibuya-ku", "Osaka-fu Kita-ku", "Hyogo-ken Kobe-shi", "Hokkaido"], n
            ),
            "reserve_visitors": with_gaps(rng, rng.poisson(8, n).astype("float64"), 0.5),
            "reserve_time": with_gaps(
                rng, pd.Series(day - pd.to_timedelta(rng.integers(0, 30 * 24, n), unit="h")), 0.2
            ),
            "latitude": rng.normal(35.6, 0.5, n),
            "visitors": rng.poisson(20, n),
        }
    )


def listings(n: int = 320) -> pd.DataFrame:
    rng = np.random.default_rng(71)
    adj = rng.choice(["NEW", "Vintage", "bundle of", "Brand New!", "Used", "Authentic"], n)
    what = rng.choice(
        ["Nike Shoes", "PINK leggings", "iPhone 6s case", "Lego set", "Coach bag", "size 8 jeans"],
        n,
    )
    return pd.DataFrame(
        {
            "train_id": np.arange(n),
            "name": [f"{a} {w}" for a, w in zip(adj, what)],
            "item_condition_id": rng.integers(1, 6, n),
            "category_name": with_gaps(
                rng,
                rng.choice(
                    [
                        "Women/Tops/Blouse",
                        "Electronics/Phones/Cases",
                        "Men/Shoes/Athletic",
                        "Kids/Toys",
                        "Women/Athletic Apparel/Pants, Tights",
                        "Handmade",
                    ],
                    n,
                ),
                0.05,
            ),
            "brand_name": with_gaps(
                rng, rng.choice(["Nike", "PINK", "Apple", "LEGO", "Coach"], n), 0.4
            ),
            "price": rng.lognormal(3, 0.8, n).round(),
            "shipping": rng.integers(0, 2, n),
            "item_description": with_gaps(
                rng,
                [
                    " ".join(
                        rng.choice(
                            [
                                "great",
                                "condition",
                                "no",
                                "rips",
                                "free",
                                "shipping",
                                "[rm]",
                                "size",
                                "M",
                                "never",
                                "worn!",
                                "100%",
                            ],
                            rng.integers(1, 14),
                        )
                    )
                    for _ in range(n)
                ],
                0.03,
            ),
        }
    )


def types(n: int = 40) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "I": pd.array([1, None, 3, 4] * 10, dtype="Int64"),
            "F": pd.array([1.5, None, 3, 4] * 10, dtype="Float64"),
            "B": pd.array([True, None, False, True] * 10, dtype="boolean"),
            "S": pd.array(["a", None, "bb", "c"] * 10, dtype="string"),
            "O": pd.Series(["x", None, "y", "z"] * 10, dtype=object),
            "C": pd.Categorical(["u", "v", None, "u"] * 10),
            "f": np.array([1, 2, np.nan, 4] * 10, "float32"),
            "i": np.arange(n).astype("int8"),
            "u": np.arange(n).astype("uint8"),
            "d": pd.to_timedelta(["1D", "2h", None, "3min"] * 10),
            "z": pd.Series(
                pd.to_datetime(
                    ["2020-01-01 05:00", "2021-06-01 00:00", None, "1999-12-31 00:00"] * 10
                )
            ).dt.tz_localize("UTC"),
            "n": pd.Series(
                pd.to_datetime(
                    ["2020-01-01 05:00", "2021-06-01 00:00", None, "1999-12-31 00:00"] * 10
                )
            ).astype("datetime64[ns]"),
            "K": pd.Categorical([3, 1, 2, None] * 10, ordered=True),
        }
    )

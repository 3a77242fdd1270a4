"""Frames of more tasks; the data is made up."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tests.pandas_functions.frames import with_gaps


def bike(n: int = 300) -> pd.DataFrame:
    r = np.random.default_rng(1)
    t = pd.date_range("2011-01-01", periods=n, freq="7h")
    return pd.DataFrame(
        {
            "datetime": t.strftime("%Y-%m-%d %H:%M:%S"),
            "season": r.integers(1, 5, n),
            "holiday": r.integers(0, 2, n),
            "workingday": r.integers(0, 2, n),
            "weather": r.integers(1, 5, n),
            "temp": r.normal(20, 8, n).round(2),
            "atemp": r.normal(23, 8, n).round(3),
            "humidity": r.integers(0, 101, n),
            "windspeed": with_gaps(r, r.exponential(12, n).round(4), 0.03),
            "casual": r.integers(0, 300, n),
            "registered": r.integers(0, 800, n),
            "count": r.integers(1, 900, n),
        }
    )


def adult(n: int = 300) -> pd.DataFrame:
    r = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "age": r.integers(17, 90, n),
            "workclass": r.choice([" Private", " ?", " Self-emp-inc", " State-gov"], n),
            "education": r.choice([" Bachelors", " HS-grad", " 11th", " Masters", " Doctorate"], n),
            "education.num": r.integers(1, 17, n),
            "marital.status": r.choice(
                [" Married-civ-spouse", " Never-married", " Divorced", " Widowed"], n
            ),
            "occupation": r.choice([" Sales", " ?", " Tech-support", " Craft-repair"], n),
            "sex": r.choice([" Male", " Female"], n),
            "capital.gain": r.choice([0, 0, 0, 2174, 99999], n),
            "capital.loss": r.choice([0, 0, 1902], n),
            "hours.per.week": r.integers(1, 99, n),
            "native.country": r.choice([" United-States", " Mexico", " ?"], n, p=[0.8, 0.1, 0.1]),
            "income": r.choice([" <=50K", " >50K"], n),
        }
    )


def telco(n: int = 300) -> pd.DataFrame:
    r = np.random.default_rng(3)
    ten = r.integers(0, 73, n)
    m = r.uniform(18, 118, n).round(2)
    tot = [" " if t == 0 else f"{t * x:.2f}" for t, x in zip(ten, m)]
    return pd.DataFrame(
        {
            "customerID": [
                f"{a:04d}-{b}"
                for a, b in zip(r.integers(0, 9999, n), r.choice(["VHVEG", "GNVDE", "QPYBK"], n))
            ],
            "gender": r.choice(["Male", "Female"], n),
            "SeniorCitizen": r.integers(0, 2, n),
            "Partner": r.choice(["Yes", "No"], n),
            "Dependents": r.choice(["Yes", "No"], n),
            "tenure": ten,
            "PhoneService": r.choice(["Yes", "No"], n),
            "MultipleLines": r.choice(["Yes", "No", "No phone service"], n),
            "InternetService": r.choice(["DSL", "Fiber optic", "No"], n),
            "OnlineSecurity": r.choice(["Yes", "No", "No internet service"], n),
            "Contract": r.choice(["Month-to-month", "One year", "Two year"], n),
            "PaperlessBilling": r.choice(["Yes", "No"], n),
            "PaymentMethod": r.choice(
                [
                    "Electronic check",
                    "Mailed check",
                    "Bank transfer (automatic)",
                    "Credit card (automatic)",
                ],
                n,
            ),
            "MonthlyCharges": m,
            "TotalCharges": tot,
            "Churn": r.choice(["Yes", "No"], n),
        }
    )


def airbnb(n: int = 300) -> pd.DataFrame:
    r = np.random.default_rng(4)
    d = pd.Timestamp("2015-01-01") + pd.to_timedelta(r.integers(0, 1600, n), unit="D")
    return pd.DataFrame(
        {
            "id": np.arange(n),
            "name": with_gaps(
                r,
                r.choice(
                    [
                        "Cozy room near Central Park",
                        "LUXURY 2BR loft!!",
                        "Sunny studio",
                        "private room w/ balcony",
                    ],
                    n,
                ),
                0.02,
            ),
            "host_since": with_gaps(r, pd.Series(d).dt.strftime("%Y-%m-%d"), 0.03),
            "price": [f"${x:,.2f}" for x in r.lognormal(5, 1.2, n)],
            "bathrooms_text": with_gaps(
                r,
                r.choice(
                    ["1 bath", "1.5 shared baths", "2 baths", "Half-bath", "Private half-bath"], n
                ),
                0.02,
            ),
            "amenities": r.choice(
                ['["Wifi", "Kitchen", "Heating"]', '["TV", "Wifi"]', '["Pool"]', "[]"], n
            ),
            "host_response_rate": with_gaps(r, r.choice(["100%", "95%", "0%", "67%"], n), 0.2),
            "host_is_superhost": with_gaps(r, r.choice(["t", "f"], n), 0.05),
            "neighbourhood_group": r.choice(["Manhattan", "Brooklyn", "Queens", "Bronx"], n),
            "latitude": r.normal(40.7, 0.05, n),
            "longitude": r.normal(-73.95, 0.05, n),
            "room_type": r.choice(["Entire home/apt", "Private room", "Shared room"], n),
            "minimum_nights": r.choice([1, 2, 3, 30, 365], n),
            "number_of_reviews": r.poisson(20, n),
            "last_review": with_gaps(r, pd.Series(d + pd.to_timedelta(100, unit="D")), 0.2),
            "reviews_per_month": with_gaps(r, r.exponential(1, n).round(2), 0.2),
            "availability_365": r.integers(0, 366, n),
        }
    )


def spaceship(n: int = 300) -> pd.DataFrame:
    r = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "PassengerId": [
                f"{a:04d}_{b:02d}"
                for a, b in zip(np.sort(r.integers(1, 200, n)), r.integers(1, 6, n))
            ],
            "HomePlanet": with_gaps(r, r.choice(["Earth", "Europa", "Mars"], n), 0.03),
            "CryoSleep": with_gaps(r, pd.Series(r.choice([True, False], n)).astype(object), 0.03),
            "Cabin": with_gaps(
                r,
                [
                    f"{d}/{k}/{s}"
                    for d, k, s in zip(
                        r.choice(list("ABCDEFGT"), n),
                        r.integers(0, 1800, n),
                        r.choice(list("PS"), n),
                    )
                ],
                0.03,
            ),
            "Destination": with_gaps(
                r, r.choice(["TRAPPIST-1e", "55 Cancri e", "PSO J318.5-22"], n), 0.03
            ),
            "Age": with_gaps(r, r.integers(0, 80, n).astype(float), 0.03),
            "VIP": with_gaps(
                r, pd.Series(r.choice([True, False], n, p=[0.05, 0.95])).astype(object), 0.03
            ),
            "RoomService": with_gaps(r, r.exponential(200, n).round() * (r.random(n) < 0.4), 0.03),
            "FoodCourt": with_gaps(r, r.exponential(400, n).round() * (r.random(n) < 0.4), 0.03),
            "Spa": with_gaps(r, r.exponential(300, n).round() * (r.random(n) < 0.4), 0.03),
            "Name": with_gaps(
                r, r.choice(["Maham Ofracculy", "Juanna Vines", "Altark Susent"], n), 0.03
            ),
            "Transported": r.choice([True, False], n),
        }
    )


def hotel(n: int = 300) -> pd.DataFrame:
    r = np.random.default_rng(6)
    d = pd.Timestamp("2015-07-01") + pd.to_timedelta(r.integers(0, 790, n), unit="D")
    return pd.DataFrame(
        {
            "hotel": r.choice(["Resort Hotel", "City Hotel"], n),
            "lead_time": r.integers(0, 500, n),
            "arrival_date_year": d.year,
            "arrival_date_month": d.month_name(),
            "arrival_date_day_of_month": d.day,
            "stays_in_weekend_nights": r.integers(0, 5, n),
            "stays_in_week_nights": r.integers(0, 10, n),
            "adults": r.integers(0, 4, n),
            "children": with_gaps(r, r.choice([0.0, 1.0, 2.0], n), 0.02),
            "babies": r.choice([0, 1], n, p=[0.95, 0.05]),
            "meal": r.choice(["BB", "HB", "SC", "Undefined"], n),
            "country": with_gaps(r, r.choice(["PRT", "GBR", "ESP", "FRA"], n), 0.03),
            "agent": with_gaps(r, r.choice([9.0, 240.0, 1.0], n), 0.15),
            "company": with_gaps(r, r.choice([40.0, 223.0], n), 0.9),
            "adr": r.normal(100, 45, n).round(2),
            "reserved_room_type": r.choice(list("ADE"), n),
            "assigned_room_type": r.choice(list("ADE"), n),
            "reservation_status_date": pd.Series(d + pd.to_timedelta(3, unit="D")),
            "is_canceled": r.integers(0, 2, n),
        }
    )


def cars(n: int = 300) -> pd.DataFrame:
    r = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "Name": r.choice(
                [
                    "Maruti Wagon R LXI CNG",
                    "Hyundai Creta 1.6 CRDi SX",
                    "Honda Jazz V",
                    "Audi A4 New 2.0 TDI",
                    "ISUZU MUX",
                ],
                n,
            ),
            "Location": r.choice(["Mumbai", "Pune", "Chennai"], n),
            "Year": r.integers(1998, 2020, n),
            "Kilometers_Driven": r.integers(500, 300000, n),
            "Fuel_Type": r.choice(["CNG", "Diesel", "Petrol"], n),
            "Owner_Type": r.choice(["First", "Second", "Third", "Fourth & Above"], n),
            "Mileage": with_gaps(
                r,
                [
                    f"{x:.2f} {u}"
                    for x, u in zip(r.uniform(8, 30, n), r.choice(["km/kg", "kmpl"], n))
                ],
                0.02,
            ),
            "Engine": with_gaps(r, [f"{x} CC" for x in r.integers(600, 4000, n)], 0.02),
            "Power": with_gaps(
                r, [f"{x:.2f} bhp" if x > 40 else "null bhp" for x in r.uniform(30, 300, n)], 0.02
            ),
            "Seats": with_gaps(r, r.choice([5.0, 7.0, 4.0], n), 0.03),
            "New_Price": with_gaps(
                r,
                [
                    f"{x:.2f} {u}"
                    for x, u in zip(r.uniform(1, 99, n), r.choice(["Lakh", "Cr"], n, p=[0.9, 0.1]))
                ],
                0.6,
            ),
            "Price": r.lognormal(2, 0.8, n).round(2),
        }
    )


def flights(n: int = 300) -> pd.DataFrame:
    r = np.random.default_rng(8)
    return pd.DataFrame(
        {
            "Airline": r.choice(["IndiGo", "Air India", "Jet Airways", "SpiceJet"], n),
            "Date_of_Journey": [
                f"{d}/{m:02d}/2019" for d, m in zip(r.integers(1, 28, n), r.integers(3, 7, n))
            ],
            "Source": r.choice(["Delhi", "Kolkata", "Banglore"], n),
            "Destination": r.choice(["Cochin", "New Delhi", "Banglore"], n),
            "Dep_Time": [
                f"{h:02d}:{m:02d}"
                for h, m in zip(r.integers(0, 24, n), r.choice([0, 5, 20, 45], n))
            ],
            "Arrival_Time": [
                f"{h:02d}:{m:02d}" + x
                for h, m, x in zip(
                    r.integers(0, 24, n), r.choice([0, 5, 20, 45], n), r.choice(["", " 22 Mar"], n)
                )
            ],
            "Duration": r.choice(["2h 50m", "7h 25m", "19h", "5m", "23h 5m"], n),
            "Total_Stops": with_gaps(r, r.choice(["non-stop", "1 stop", "2 stops"], n), 0.01),
            "crs_dep": r.integers(0, 2360, n),
            "dep_delay": with_gaps(r, r.normal(5, 20, n).round(), 0.05),
            "distance": r.integers(80, 3000, n),
            "Price": r.integers(2000, 20000, n),
        }
    )


def heart(n: int = 250) -> pd.DataFrame:
    r = np.random.default_rng(9)
    return pd.DataFrame(
        {
            "age": r.integers(29, 77, n),
            "sex": r.integers(0, 2, n),
            "cp": r.integers(0, 4, n),
            "trestbps": with_gaps(r, r.integers(94, 200, n).astype(float), 0.03),
            "chol": r.integers(126, 564, n),
            "fbs": r.integers(0, 2, n),
            "thalach": r.integers(71, 202, n),
            "oldpeak": r.uniform(0, 6.2, n).round(1),
            "ca": r.choice(["0.0", "1.0", "2.0", "?"], n),
            "thal": r.choice(["3.0", "6.0", "7.0", "?"], n),
            "target": r.integers(0, 2, n),
        }
    )


def sales(n: int = 400) -> pd.DataFrame:
    r = np.random.default_rng(10)
    d = pd.Timestamp("2013-01-01") + pd.to_timedelta(r.integers(0, 900, n), unit="D")
    return pd.DataFrame(
        {
            "Store": r.integers(1, 9, n),
            "DayOfWeek": d.day_of_week + 1,
            "Date": pd.Series(d),
            "Open": with_gaps(r, r.choice([0.0, 1.0], n), 0.02),
            "Promo": r.integers(0, 2, n),
            "StateHoliday": r.choice(["0", "a", "b", "c"], n, p=[0.9, 0.05, 0.03, 0.02]),
            "StoreType": r.choice(list("abcd"), n),
            "CompetitionDistance": with_gaps(r, r.lognormal(8, 1, n).round(-1), 0.05),
            "CompetitionOpenSinceMonth": with_gaps(r, r.integers(1, 13, n).astype(float), 0.2),
            "CompetitionOpenSinceYear": with_gaps(r, r.integers(1998, 2015, n).astype(float), 0.2),
            "PromoInterval": with_gaps(
                r, r.choice(["Jan,Apr,Jul,Oct", "Feb,May,Aug,Nov", "Mar,Jun,Sept,Dec"], n), 0.4
            ),
            "Sales": r.integers(0, 20000, n),
        }
    )


def wine(n: int = 250) -> pd.DataFrame:
    r = np.random.default_rng(12)
    return pd.DataFrame(
        {
            "fixed acidity": r.normal(8, 1.5, n).round(1),
            "volatile acidity": r.normal(0.5, 0.2, n).round(2),
            "citric acid": r.uniform(0, 1, n).round(2),
            "residual sugar": r.lognormal(1, 0.5, n).round(1),
            "free sulfur dioxide": r.integers(1, 70, n).astype(float),
            "total sulfur dioxide": r.integers(70, 280, n).astype(float),
            "pH": with_gaps(r, r.normal(3.3, 0.15, n).round(2), 0.02),
            "alcohol": r.uniform(8, 15, n).round(1),
            "type": r.choice(["red", "white"], n),
            "quality": r.integers(3, 9, n),
        }
    )


def logs(n: int = 300) -> pd.DataFrame:
    r = np.random.default_rng(13)
    t = pd.Timestamp("2023-01-01", tz="UTC") + pd.to_timedelta(
        r.integers(0, 365 * 86400, n), unit="s"
    )
    return pd.DataFrame(
        {
            "ts": pd.Series(t),
            "epoch": r.integers(1_600_000_000, 1_700_000_000, n),
            "url": r.choice(
                [
                    "https://www.shop.example/cart?id=12&ref=mail",
                    "http://blog.example/post/2021/05/intro",
                    "/home",
                    "https://api.example/v2/items/877",
                ],
                n,
            ),
            "agent": with_gaps(
                r,
                r.choice(
                    [
                        "Mozilla/5.0 (Windows NT 10.0)",
                        "Mozilla/5.0 (iPhone; CPU iPhone OS 14_0)",
                        "curl/7.68.0",
                        "Googlebot/2.1",
                    ],
                    n,
                ),
                0.04,
            ),
            "ip": [f"{a}.{b}.{c}.{d}" for a, b, c, d in r.integers(1, 255, (n, 4))],
            "status": r.choice([200, 200, 301, 404, 500], n),
            "bytes": with_gaps(r, r.lognormal(7, 2, n).round(), 0.05),
            "email": r.choice(["a.b@mail.example", "JOHN@Corp.example ", "none"], n),
        }
    )

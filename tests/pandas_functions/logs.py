"""Data preparation as people write it: logs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def url(df: pd.DataFrame) -> Any:
    u = df["url"]
    return pd.DataFrame(
        {
            "domain": u.str.extract(r"https?://([^/]+)")[0],
            "https": u.str.startswith("https"),
            "depth": u.str.count("/"),
            "query": u.str.contains("?", regex=False),
            "path": u.str.replace(r"^https?://[^/]+", "", regex=True),
            "id": pd.to_numeric(u.str.extract(r"id=(\d+)")[0]),
            "n_digits": u.str.count(r"\d"),
        }
    )


def agent(df: pd.DataFrame) -> Any:
    a = df["agent"].fillna("unknown")

    def family(ua):
        if "iPhone" in ua or "Android" in ua:
            return "mobile"
        if "bot" in ua.lower():
            return "bot"
        if ua.startswith("Mozilla"):
            return "desktop"
        return "other"

    return pd.DataFrame(
        {
            "fam": a.map(family),
            "ver": a.str.extract(r"/(\d+)\.(\d+)")[0].astype(float),
            "len": a.apply(len),
            "bot": a.str.match(r".*[Bb]ot"),
        }
    )


def time(df: pd.DataFrame) -> Any:
    t = df["ts"]
    e = pd.to_datetime(df["epoch"], unit="s")
    local = t.dt.tz_convert("US/Eastern")
    return pd.DataFrame(
        {
            "h": t.dt.hour,
            "lh": local.dt.hour,
            "ld": local.dt.day_name(),
            "eh": e.dt.hour,
            "naive": t.dt.tz_localize(None),
            "night": (t.dt.hour >= 22) | (t.dt.hour < 6),
        }
    )


def ip(df: pd.DataFrame) -> Any:
    parts = df["ip"].str.split(".", expand=True).astype(int)
    parts.columns = [f"o{i}" for i in range(4)]
    parts["private"] = (parts["o0"] == 10) | ((parts["o0"] == 192) & (parts["o1"] == 168))
    parts["num"] = parts["o0"] * 256**3 + parts["o1"] * 256**2 + parts["o2"] * 256 + parts["o3"]
    return parts


def email(df: pd.DataFrame) -> Any:
    e = df["email"].str.strip().str.lower()
    return pd.DataFrame(
        {
            "user": e.str.split("@").str[0],
            "dom": e.str.split("@").str.get(1).fillna("none"),
            "ok": e.str.contains(r"^[\w\.]+@[\w\.]+$", regex=True),
            "tld": e.str.rsplit(".", n=1).str[-1],
            "klass": (df["status"] // 100).astype(str) + "xx",
            "err": df["status"].ge(400),
        }
    )


def bytes(df: pd.DataFrame) -> Any:
    b = df["bytes"]
    return pd.DataFrame(
        {
            "kb": (b / 1024).round(2),
            "log": np.log10(b.replace(0, np.nan)),
            "band": pd.cut(b, [0, 1e3, 1e6, np.inf], labels=["small", "mid", "big"], right=False),
            "s": b.fillna(0).astype(int).astype(str) + "B",
            "sq": np.sqrt(b.clip(lower=0)),
            "isbig": b.gt(1e4).astype("Int64"),
        }
    )

"""Data preparation: pandas against the recorded graph in onnxruntime, on two threads.

    python bench/frames.py            # 1,000,000 rows, one row, and the time to record

The function has 20 output columns: missing values, arithmetic, logarithms, bins, categories,
dates, group statistics and strings. Both start from the data in memory, the frame or the tensors.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pandas as pd

import sardonyx as sx

ROWS = 1_000_000


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)

    def gaps(values: np.ndarray, share: float) -> np.ndarray:
        return np.where(draw.random(rows) < share, np.nan, values)

    start = pd.Timestamp("2015-01-01")
    return pd.DataFrame(
        {
            "income": gaps(draw.lognormal(10, 1, rows), 0.05),
            "debt": gaps(draw.lognormal(8, 1, rows), 0.05),
            "age": gaps(draw.normal(40, 12, rows).round(), 0.1),
            "children": draw.integers(0, 5, rows),
            "score": draw.normal(600, 80, rows),
            "latitude": draw.normal(40.7, 0.1, rows),
            "longitude": draw.normal(-73.9, 0.1, rows),
            "region": draw.integers(0, 50, rows),
            "product": pd.Series(draw.choice(["basic", "plus", "pro"], rows), dtype="str"),
            "opened": start + pd.to_timedelta(draw.integers(0, 3000 * 86400, rows), "s"),
            "closed": start + pd.to_timedelta(draw.integers(0, 3500 * 86400, rows), "s"),
            "default": draw.integers(0, 2, rows),
        }
    )


def prepare(df: pd.DataFrame) -> pd.DataFrame:
    out = pd.DataFrame(index=df.index)
    income = df["income"].fillna(df["income"].median())
    debt = df["debt"].fillna(0)
    out["income"] = np.log1p(income)
    out["debt"] = np.log1p(debt)
    out["ratio"] = (debt / income).clip(upper=10)
    out["age"] = df["age"].fillna(df["age"].mean())
    out["age_missing"] = df["age"].isna().astype(int)
    out["age_band"] = pd.cut(out["age"], [0, 25, 35, 50, 65, 200], labels=False).fillna(-1)
    out["family"] = df["children"] + 1
    out["large"] = (df["children"] > 2).astype(int)
    out["score"] = (df["score"] - df["score"].mean()) / df["score"].std()
    out["score_band"] = pd.qcut(df["score"], 10, labels=False)
    out["cell"] = np.floor(df["latitude"] * 100) * 1000 + np.floor(df["longitude"] * 100)
    out["center"] = np.sqrt((df["latitude"] - 40.7) ** 2 + (df["longitude"] + 73.9) ** 2)
    out["region_rate"] = df["region"].map(df.groupby("region")["default"].mean())
    out["region_size"] = df["region"].map(df["region"].value_counts())
    out["product"] = df["product"].map({"basic": 0, "plus": 1, "pro": 2}).fillna(-1)
    out["hour"] = df["opened"].dt.hour
    out["month"] = df["opened"].dt.month
    out["weekend"] = (df["opened"].dt.day_of_week >= 5).astype(int)
    out["days"] = (df["closed"] - df["opened"]).dt.days
    out["kind"] = np.where(out["ratio"] > 1, 2, np.where(out["ratio"] > 0.5, 1, 0))
    return out


def seconds(run: Callable[[], object], times: int) -> tuple[float, float]:
    """The time of the quickest of several runs, by the clock and of the processor."""
    clock, processor = [], []
    for _ in range(times):
        start, used = time.perf_counter(), time.process_time()
        run()
        clock.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    return min(clock), min(processor)


def main() -> None:
    warnings.simplefilter("ignore")
    ort.set_default_logger_severity(3)
    training = frame(5_000)
    start = time.perf_counter()
    model = sx.from_pandas(prepare, training)
    print(f"recorded, built and proved    {time.perf_counter() - start:8.2f} s")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model.proto().SerializeToString(), options)
    for rows, times in ((ROWS, 5), (1, 200)):
        data = frame(rows, 1) if rows > 1 else training.iloc[[0]]
        start = time.perf_counter()
        feeds = model.feeds(data)
        feeding = time.perf_counter() - start
        ours, ours_used = seconds(lambda feeds=feeds: session.run(None, feeds), times)
        pandas, pandas_used = seconds(lambda data=data: prepare_row(data), min(times, 5))
        print(
            f"{rows:>9,} rows  pandas {pandas * 1e3:9.2f} ms  onnxruntime {ours * 1e3:9.3f} ms  "
            f"{pandas / ours:6.1f} x faster; processor time {pandas_used * 1e3:.1f} and "
            f"{ours_used * 1e3:.2f} ms (feeds from the frame: {feeding * 1e3:.2f} ms)"
        )


def prepare_row(data: pd.DataFrame) -> object:
    if len(data) > 1:
        return prepare(data)
    return prepare(pd.concat([data, data], ignore_index=True).assign(score=[600.0, 601.0]))


if __name__ == "__main__":
    main()

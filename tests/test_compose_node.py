"""A composed model in Node: what onnxruntime gives here is the oracle."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pandas as pd
import pytest

import sardonyx as sx
from tests.test_export_step import node_modules

SCRIPT = """
import * as ort from "onnxruntime-web";
import fs from "fs";
const feeds = {};
for (const [name, t] of Object.entries(JSON.parse(fs.readFileSync("feeds.json")))) {
  const types = {
    float32: Float32Array, float64: Float64Array, int32: Int32Array, bool: Uint8Array,
  };
  const data = t.type === "string" ? t.data
    : t.type === "int64" ? BigInt64Array.from(t.data, BigInt) : types[t.type].from(t.data);
  feeds[name] = new ort.Tensor(t.type, data, t.dims);
}
const session = await ort.InferenceSession.create(new Uint8Array(fs.readFileSync("whole.onnx")));
const results = await session.run(feeds);
const plain = Object.entries(results).map(([name, t]) => [name, Array.from(t.data, String)]);
console.log(JSON.stringify(Object.fromEntries(plain)));
"""


def people() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "name": ["Braund, Mr. Owen", "Rice, Mrs. John", "Moran, Miss. Ann", "x"] * 5,
            "age": [22.0, 38.0, np.nan, 35.0] * 5,
            "port": ["S", "C", None, "Q"] * 5,
            "boarded": pd.to_datetime(["1912-04-10", "1912-04-11", "2024-02-29", None] * 5),
        }
    )


def prepare(df: pd.DataFrame) -> pd.DataFrame:
    out = pd.DataFrame(index=df.index)
    out["age"] = df["age"].fillna(df["age"].median())
    out["long"] = df["name"].str.len()
    out["port"] = df["port"].map({"S": 0, "C": 1, "Q": 2}).fillna(-1)
    out["mr"] = df["name"].str.contains(r"\bMr\b").astype(int)
    out["day"] = df["boarded"].dt.day.fillna(0)
    return out


def tensor(array: np.ndarray) -> dict[str, Any]:
    kind = "string" if array.dtype == object else str(array.dtype)
    kinds = {"str": "string", "boolean": "bool"}
    data = [str(v) if kind == "int64" else v for v in array.reshape(-1).tolist()]
    return {"type": kinds.get(kind, kind), "dims": list(array.shape), "data": data}


@pytest.mark.slow
def test_a_composed_model_runs_in_node(tmp_path: Path) -> None:
    modules = node_modules()
    os.symlink(modules, tmp_path / "node_modules")
    preparation = sx.from_pandas(prepare, people())
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,5] x) => (float[N,1] y)
    <float[5,1] w = {0.1, 0.2, 0.3, 0.4, 0.5}> { y = MatMul(x, w) }"""
    whole = sx.compose(preparation, onnx.parser.parse_model(text))
    sx.save(whole, tmp_path / "whole.onnx")
    rows = people().iloc[:4].drop(columns="age").assign(age=[0.5, -3.0, 1e6, 7.0])
    feeds = whole.feeds(rows)
    (expected,) = ort.InferenceSession(str(tmp_path / "whole.onnx")).run(None, feeds)
    (tmp_path / "feeds.json").write_text(json.dumps({n: tensor(a) for n, a in feeds.items()}))
    (tmp_path / "run.mjs").write_text(SCRIPT)
    done = subprocess.run(
        ["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    scores = [float(v) for v in json.loads(done.stdout)["y"]]
    np.testing.assert_allclose(scores, expected.reshape(-1), rtol=1e-5)

"""A whole training in one file against `sx.train(shuffle="hash")`, bit for bit, over many networks.

    python -m tests.sweeps.whole_training [--only mlp,cnn]

The seven networks of the benchmark and those of tests, each with a loss, an optimizer and settings
of the record that suit it. Prints a line per network; the exit code is 1 if one differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import sardonyx as sx
from tests.networks import cnn, lstm, mlp, transformer

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "bench"))

import whole as bench_whole

import networks as bench

BATCHES = 3
Case = tuple[Any, dict[str, np.ndarray], dict[str, Any], int]


def of_bench(network: bench.Network) -> Case:
    if network.name == "gpt":
        network.make = bench_whole.Tokens
    model = sx.load(bench.export(network, network.module()))
    parts = [network.batch(seed) for seed in range(BATCHES)]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    label = y.reshape(len(x), -1) if len(y) != len(x) else y
    data = {model.inputs[0].name or "": x, "label": label}
    return model, data, {"loss": "cross_entropy"}, len(parts[0][0])


def table(rows: int = 71, width: int = 6) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    return {"x": x, "label": np.arange(rows) % 3}


def pixels() -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(29, 3, 8, 8)).astype(np.float32)
    return {"x": x, "label": np.arange(29) % 3}


def tokens() -> dict[str, np.ndarray]:
    ids = np.random.default_rng(2).integers(0, 11, (21, 5))
    return {"ids": ids, "label": np.roll(ids, -1, 1)}


def series() -> dict[str, np.ndarray]:
    x = np.random.default_rng(3).normal(size=(19, 4, 3)).astype(np.float32)
    return {"x": x, "label": np.arange(19) % 3}


def regression() -> dict[str, np.ndarray]:
    x = table()["x"]
    return {"x": x, "label": x[:, :2] * 2 + 1}


CROSS = {"loss": "cross_entropy"}
SMALL: dict[str, Callable[[], Case]] = {
    "small mlp": lambda: (mlp(), table(), CROSS, 8),
    "deep mlp": lambda: (mlp((6, 9, 8, 7, 3), activation="Relu"), table(), CROSS, 16),
    "small cnn": lambda: (cnn(), pixels(), CROSS, 8),
    "wide cnn": lambda: (cnn(17), pixels(), CROSS, 4),
    "small transformer": lambda: (transformer(), tokens(), CROSS, 8),
    "small lstm": lambda: (lstm(), series(), CROSS, 8),
    "regression": lambda: (mlp((6, 5, 2)), regression(), {"loss": "mse"}, 8),
    "robust regression": lambda: (mlp((6, 5, 2)), regression(), {"loss": "huber"}, 8),
    "double": lambda: (
        mlp(dtype=np.float64), {**table(), "x": table()["x"].astype(np.float64)}, CROSS, 8,
    ),
    "accumulated": lambda: (cnn(), pixels(), {**CROSS, "accumulate": 3, "ema": 0.9}, 8),
    "scheduled": lambda: (
        mlp(), table(),
        {**CROSS, "optimizer": sx.optim.sgd(0.1, 0.9, schedule=sx.schedule.cosine(30))}, 8,
    ),
    "clipped": lambda: (lstm(), series(), {**CROSS, "clip_norm": 0.1, "l2": 0.01}, 8),
    "frozen": lambda: (cnn(), pixels(), {**CROSS, "freeze": "conv*"}, 8),
    "adapters": lambda: (sx.lora(transformer(), 2), tokens(), CROSS, 8),
    "quantized": lambda: (sx.quantize_aware(cnn(), pixels(), weights="int4"), pixels(), CROSS, 8),
}  # fmt: skip


def difference(case: Case, folder: Path, exported: dict[str, Any]) -> str:
    """What differs between the two trainings; empty where nothing does."""
    model, data, how, size = case
    path = sx.export_training(model, folder / "whole.onnx", **how, **exported)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = ort.InferenceSession(path, options)
    numbers = {"epochs": 2, "batch_size": size, "seed": 5}
    feeds = {**data, **{n: np.array(v) for n, v in numbers.items()}}
    names = [v.name for v in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, feeds), strict=True))
    run = sx.train(
        model, data, shuffle="hash", engine_options={"threads": 1}, **numbers, **how, **exported
    )
    if outputs["losses"].ravel().tolist() != list(run.losses):
        return "losses"
    state = run.rep.state()
    wrong = [n for n, a in state.items() if not np.array_equal(outputs[f"last/{n}"], a)]
    return ", ".join(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    only = [n for n in parser.parse_args().only.split(",") if n]
    cases = {n.name: (lambda n=n: of_bench(n)) for n in bench.NETWORKS} | SMALL
    failed = 0
    for name, make in cases.items():
        if only and name not in only:
            continue
        started = time.monotonic()
        exported = {"validation": 0.25} if name in SMALL else {}
        with tempfile.TemporaryDirectory() as folder:
            wrong = difference(make(), Path(folder), exported)
        failed += bool(wrong)
        print(f"{name:20} {wrong or 'same bits'}  {time.monotonic() - started:.0f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Quantization-aware training against rounding after training, with a float control beside it.

    python bench/quantize.py [--weights int4] [--activations uint8] [--epochs 4] [--rows 20000]

The task is generated: 12×12 images of ten shapes, moved, turned, stretched and noisy; the test has
10,000 images that no training sees. A float network is trained first. From there, the control
trains on in floats, and the quantized one trains with rounding in its graph, both for the same
epochs, batches and rate. "rounded" is the control rounded without training, by sardonyx and by
onnxruntime's own `quantize_static`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from torch import nn

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner

SIZE, CLASSES, TEST = 12, 10, 10_000


def images(rows: int, seed: int, noise: float = 0.55) -> dict[str, np.ndarray]:
    """Ten patterns of waves and blobs under random shifts, turns and noise."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CLASSES, rows)
    fixed = np.random.default_rng(7)
    frequency, phase = fixed.uniform(0.6, 2.4, (CLASSES, 2, 2)), fixed.uniform(0, 6, (CLASSES, 2))
    axis = np.linspace(-1, 1, SIZE)
    place = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    angle, shift = rng.normal(size=rows) * 0.25, rng.normal(size=(rows, 1, 1, 2)) * 0.2
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1)
    turned = np.einsum("hwi,nij->nhwj", place, turn.reshape(-1, 2, 2)) + shift
    waves = np.einsum("nhwi,nij->nhwj", turned, frequency[label]) * 3 + phase[label][:, None, None]
    x = np.sin(waves[..., 0]) * np.cos(waves[..., 1]) + rng.normal(size=(rows, SIZE, SIZE)) * noise
    return {"x": x[:, None].astype(np.float32), "label": label}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def exported(folder: Path) -> sx.Model:
    path = folder / "float.onnx"
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        network().eval(), (torch.zeros(2, 1, SIZE, SIZE),), dynamo=True, optimize=False,
        verbose=False, input_names=["x"], dynamic_shapes=({0: batch},),
    )  # fmt: skip
    program.save(path)
    return sx.load(path)


def speed(model: sx.Model, x: np.ndarray) -> float:
    """Microseconds of CPU time an image, at one thread, the least of several runs."""
    run = Runner(model, threads=1)
    times = []
    for _ in range(5):
        started = time.process_time()
        run({"x": x})
        times.append(time.process_time() - started)
    return min(times) / len(x) * 1e6


class Rows(CalibrationDataReader):
    """Batches of the data for onnxruntime's quantizer."""

    def __init__(self, x: np.ndarray):
        self.batches = iter([{"x": x[i : i + 64]} for i in range(0, 512, 64)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def by_onnxruntime(model: sx.Model, data: Any, weights: str, folder: Path) -> sx.Model:
    """onnxruntime's own rounding after training, per channel, calibrated on as many rows."""
    source, target = folder / "source.onnx", folder / "target.onnx"
    sx.save(model, source, opset=21)
    kinds = {"int4": QuantType.QInt4, "int8": QuantType.QInt8}
    quantize_static(
        source, target, Rows(data["x"]), quant_format=QuantFormat.QDQ, per_channel=True,
        weight_type=kinds[weights], activation_type=QuantType.QUInt8,
    )  # fmt: skip
    return sx.load(target)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", default="int4,int8")
    parser.add_argument("--activations", default="uint8")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rows", type=int, default=20_000)
    arguments = parser.parse_args()
    data, test = images(arguments.rows, 0), images(TEST, 1)
    how: dict[str, Any] = {"batch_size": 128, "loss": "cross_entropy"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = exported(folder)
        first = sx.train(model, data, epochs=arguments.epochs, lr=2e-3, **how).model
        trained = bare(first)
        again = {"epochs": arguments.epochs, "lr": 3e-4, "seed": 1, **how}
        control = bare(sx.train(trained, data, **again).model)
        rows: list[tuple[str, sx.Model]] = [("float", trained), ("float, control", control)]
        for weights in arguments.weights.split(","):
            kind = None if arguments.activations == "none" else arguments.activations
            settings: dict[str, Any] = {"weights": weights, "activations": kind}
            label = f"{weights}, {kind or 'float'}"
            rounded = sx.quantize_aware(control, data, **settings)
            rows.append((f"{label}: rounded", sx.to_integers(rounded)))
            if kind == "uint8":
                theirs = by_onnxruntime(control, data, weights, folder)
                rows.append((f"{label}: rounded by onnxruntime", theirs))
            tuned = sx.train(sx.quantize_aware(trained, data, **settings), data, **again).model
            rows.append((f"{label}: trained", sx.to_integers(tuned)))
        print("| model | test accuracy, % | file, kB | CPU µs an image |")
        print("|---|---|---|---|")
        for label, item in rows:
            (scores,) = sx.predict(item, {"x": test["x"]}).values()
            accuracy = np.mean(scores.argmax(1) == test["label"])
            size = sx.save(item, folder / "size.onnx").stat().st_size / 1e3
            cells = f"{100 * accuracy:.2f} | {size:.0f} | {speed(item, test['x'][:2000]):.1f}"
            print(f"| {label} | {cells} |", flush=True)


def bare(model: sx.Model) -> sx.Model:
    """The model without its record, as it serves."""
    served = model.copy()
    served.records = []
    return served


if __name__ == "__main__":
    main()

"""Training in WebAssembly against onnxruntime: ten small networks, 100 steps each, one thread.

    python bench/web.py --runtime FOLDER [--networks mlp,cnn] [--steps 100]

FOLDER is an npm project that has onnxruntime-web; node runs it. Both sides take the same batches,
from the same weights. The figures: the largest difference of a loss, and the median CPU time of a
step over that of onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import sardonyx as sx

FLOORS = {"difference": 2e-6, "time": 3.0}
BATCHES, ROWS = 10, 16
RUNNER = """
import { readFile } from "node:fs/promises";
import * as ort from "onnxruntime-web";
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";
const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array };
const size = (shape) => shape.reduce((a, b) => a * b, 1);
const { folder, steps, batches } = JSON.parse(await readFile(process.argv[2]));
const read = (name) => readFile(`${folder}/${name}`);
const about = JSON.parse(await read("step.json")), { train } = about.steps[0];
const open = async (name) => ort.InferenceSession.create(await read(name), { logSeverityLevel: 3 });
const first = await (await open(about.initialize.file)).run({});
const state = {}, hyper = {};
for (const [name, output] of Object.entries(about.initialize.state)) state[name] = first[output];
for (const { name, type, shape, default: value } of train.hyperparameters) {
  const number = type === "int64" ? BigInt(value) : value;
  hyper[name] = new ort.Tensor(type, new ARRAYS[type](size(shape)).fill(number), shape);
}
const feeds = [];
for (const batch of batches) {
  const tensors = {};
  for (const { name, type, shape, file } of batch) {
    const bytes = new Uint8Array(await read(file));
    tensors[name] = new ort.Tensor(type, new ARRAYS[type](bytes.buffer), shape);
  }
  feeds.push(tensors);
}
const session = await open(train.file), losses = [], times = [];
for (let step = 0; step < steps; step++) {
  const current = Object.fromEntries(train.state.map((n) => [n, state[n]]));
  const begin = process.cpuUsage();
  const result = await session.run({ ...feeds[step % feeds.length], ...hyper, ...current });
  const { user, system } = process.cpuUsage(begin);
  for (const [name, output] of Object.entries(train.updates)) state[name] = result[output];
  losses.push(result.loss.data[0]);
  times.push((user + system) / 1e6);
}
console.log(JSON.stringify({ losses, times }));
"""


class Recurrent(nn.Module):
    """A recurrent layer over 12 steps, and a head on the last one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Residual(nn.Module):
    """Convolutions with batch normalization, and a connection around two of them.

    Its activation is smooth: a ReLU whose input is rounded to the other side of 0 makes a gradient
    jump, on any two runtimes.
    """

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(16), nn.SiLU())
        inner = [nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)]
        self.block = nn.Sequential(*inner, nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        return self.head(nn.functional.silu(y + self.block(y)).mean((2, 3)))


class Words(nn.Module):
    """A transformer's layer over embedded tokens, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.table(tokens)).mean(1))


def convolutions(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4))


# name → network, shape of a row, loss
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)), (64,), "ce"),
    "deep": (
        lambda: nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(32, 32), nn.Tanh()))),
        (32,),
        "mse",
    ),
    "regression": (lambda: nn.Linear(16, 1), (16,), "mse"),
    "autoencoder": (
        lambda: nn.Sequential(nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 64), nn.Sigmoid()),
        (64,),
        "mse",
    ),
    "cnn": (
        lambda: convolutions(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), width=16),
        (1, 16, 16),
        "ce",
    ),
    "residual": (Residual, (3, 16, 16), "ce"),
    "separable": (
        lambda: convolutions(
            nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, groups=12, bias=False),
            nn.BatchNorm2d(12), nn.ReLU(), width=12,
        ),
        (3, 16, 16),
        "ce",
    ),
    "lstm": (lambda: Recurrent(nn.LSTM(8, 32, batch_first=True)), (12, 8), "ce"),
    "gru": (lambda: Recurrent(nn.GRU(8, 32, batch_first=True)), (12, 8), "ce"),
    "words": (Words, (12,), "ce"),
}  # fmt: skip
LOSSES = {"ce": "cross_entropy", "mse": "mse"}


def record(name: str) -> tuple[sx.Model, list[dict[str, np.ndarray]]]:
    """A network with its training record, and the batches."""
    make, shape, loss = NETWORKS[name]
    torch.manual_seed(0)
    module, rng = make().eval(), np.random.default_rng(0)

    def rows() -> np.ndarray:
        if name == "words":
            return rng.integers(0, 100, (ROWS, *shape))
        return rng.normal(size=(ROWS, *shape)).astype(np.float32)

    example = torch.from_numpy(rows())
    model = sx.from_torch(module, (example,))
    net = sx.trainable(model, LOSSES[loss], sx.optim.adamw(1e-3), labels=["label"])
    out = module(example).shape[1:]
    batches = []
    for _ in range(BATCHES):
        label = rng.integers(0, 4, ROWS) if loss == "ce" else rng.random((ROWS, *out), np.float32)
        batches.append({model.inputs[0].name or "x": rows(), "label": label})
    return net, batches


def native(net: sx.Model, batches: list[dict[str, np.ndarray]], steps: int) -> dict[str, Any]:
    rep = sx.prepare_training(net, threads=1)
    losses, times = [], []
    for step in range(steps):
        begin = time.process_time()
        losses.append(float(rep.step(batches[step % len(batches)])["loss"]))
        times.append(time.process_time() - begin)
    return {"losses": losses, "times": times}


def in_node(
    net: sx.Model, batches: list[dict[str, np.ndarray]], steps: int, project: Path
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sx.export_step(net, folder, current=True)
        tensors = []
        for i, batch in enumerate(batches):
            row = []
            for j, (key, array) in enumerate(batch.items()):
                file = f"{i}_{j}.bin"
                (folder / file).write_bytes(np.ascontiguousarray(array).tobytes())
                row.append(
                    {"name": key, "type": str(array.dtype), "shape": array.shape, "file": file}
                )
            tensors.append(row)
        job = {"folder": name, "steps": steps, "batches": tensors}
        (folder / "job.json").write_text(json.dumps(job))
        (folder / "run.mjs").write_text(RUNNER)
        (folder / "node_modules").symlink_to(project / "node_modules")
        done = subprocess.run(
            ["node", folder / "run.mjs", folder / "job.json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    print("| network | largest difference of a loss | node, ms | onnxruntime, ms | ratio |")
    print("|---|---|---|---|---|")
    for name in options.networks.split(","):
        net, batches = record(name)
        ours = native(net, batches, options.steps)
        theirs = in_node(net, batches, options.steps, options.runtime.resolve())
        difference = np.abs(np.subtract(ours["losses"], theirs["losses"])).max()
        here, there = (statistics.median(side["times"][5:]) for side in (ours, theirs))
        print(
            f"| {name} | {difference:.1e} | {1e3 * there:.2f} | {1e3 * here:.2f} "
            f"| {there / here:.2f} |",
            flush=True,
        )
    print(f"\nfloors: difference {FLOORS['difference']:.0e}, ratio {FLOORS['time']}")


if __name__ == "__main__":
    main()

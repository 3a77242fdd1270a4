"""One training run, handed on: torch, onnxruntime, JAX, TensorFlow, a browser's runtime, torch.

A network with batch normalization and dropout takes ten steps in each of them. Only the file is
handed on: weights, running statistics, the optimizer's state, the number of the step. At the end
the losses are compared with those of one uninterrupted run in torch.

    python examples/relay.py [FOLDER of node_modules with onnxruntime-web]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

import sardonyx as sx
from sardonyx.importers.torch.masks import Masks, sites_of

OUT = Path("out/relay")
SCRIPT = Path(__file__).parent / "export_step" / "node" / "train.mjs"
STEPS, ROWS = 10, 32
Batch = dict[str, np.ndarray]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 24, bias=False),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(24, 4),
    )


def data(steps: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    rule = rng.normal(size=(12, 4))
    batches = []
    for _ in range(steps):
        x = rng.normal(size=(ROWS, 12)).astype(np.float32)
        batches.append({"x": x, "label": (x @ rule).argmax(1)})
    return batches


class InTorch:
    """The network, its loss and its optimizer in torch, with the masks of the record."""

    def __init__(self) -> None:
        self.net, self.loss = network(), nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2, weight_decay=0.05)
        probe = sx.from_torch(self.net.eval(), torch.zeros(ROWS, 12), verify=False)
        self.masks = Masks(sites_of(probe))
        self.net.train()

    def steps(self, batches: list[Batch]) -> list[float]:
        losses = []
        for batch in batches:
            with self.masks:
                scores = self.net(torch.from_numpy(batch["x"]))
            loss = self.loss(scores, torch.from_numpy(batch["label"]))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.masks.next_step()
            losses.append(loss.item())
        return losses

    def to_file(self, batch: Batch) -> sx.Model:
        """The run as a file, at its present position."""
        return sx.from_torch(
            self.net,
            torch.from_numpy(batch["x"]),
            loss=self.loss,
            labels=torch.from_numpy(batch["label"]),
            optimizer=self.optimizer,
            names={"input": "x"},
        )

    def from_file(self, model: sx.Model) -> None:
        """Go on where the file stands: Adam's slots hold the moments divided by 1 - beta."""
        record = model.records[0]
        count = int(record.state["train/step"].numpy())
        (group,) = self.optimizer.param_groups
        first, second = (1.0 - beta for beta in group["betas"])
        with torch.no_grad():
            for name, tensor in self.net.state_dict().items():
                if name in model.graph.initializers:
                    tensor.copy_(torch.from_numpy(np.array(model.initializer(name).numpy())))
            for name, parameter in self.net.named_parameters():
                moments = (record.state[f"{name}/adam_{kind}"].numpy() for kind in "mv")
                m, v = (torch.from_numpy(np.array(array)) for array in moments)
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(count)), "exp_avg": m * first,
                    "exp_avg_sq": v * second,
                }  # fmt: skip
        self.masks.step = count


def on_engine(engine: str) -> Callable[[Path, list[Batch]], list[float]]:
    """Ten steps of a file on an engine; the file is replaced by what came out."""

    def run(path: Path, batches: list[Batch]) -> list[float]:
        rep = sx.prepare_training(path, engine)
        losses = [float(rep.step(batch)["loss"]) for batch in batches]
        sx.save(rep.to_model(), path)
        return losses

    return run


def in_web(modules: Path) -> Callable[[Path, list[Batch]], list[float]]:
    """Ten steps in onnxruntime-web, the runtime of browsers, under Node."""

    def run(path: Path, batches: list[Batch]) -> list[float]:
        folder = path.parent / "web"
        sx.export_step(path, folder, current=True)
        listed = [
            {n: {"data": a.ravel().tolist(), "shape": list(a.shape)} for n, a in b.items()}
            for b in batches
        ]
        (folder / "batches.json").write_text(json.dumps(listed))
        shutil.copy(SCRIPT, folder / "train.mjs")
        link = folder / "node_modules"
        if not link.exists():
            link.symlink_to(modules.absolute())
        command = ["node", folder / "train.mjs", folder, folder / "state.json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        state = json.loads((folder / "state.json").read_text())
        arrays = {n: np.array(t["data"], t["type"]).reshape(t["shape"]) for n, t in state.items()}
        sx.save(put_state(sx.load(path), arrays), path)
        return list(json.loads(done.stdout))

    return run


def put_state(model: sx.Model, arrays: dict[str, np.ndarray]) -> sx.Model:
    """The model with other weights, statistics and slots."""
    changed = model.copy()
    for name, array in arrays.items():
        tensor = ir.Tensor(array, name=name, shape=ir.Shape(array.shape))
        if name in changed.graph.initializers:
            changed.graph.initializers[name].const_value = tensor
        if name in changed.records[0].state:
            changed.records[0].state[name] = tensor
    return changed


def main(modules: Path | None = None, engines: tuple[str, ...] = ()) -> dict[str, list[float]]:
    """Run the relay; the losses of every leg, and those of the uninterrupted run."""
    engines = engines or ("onnxruntime", "jax", "tensorflow")
    legs: list[tuple[str, Any]] = [(engine, on_engine(engine)) for engine in engines]
    if modules is not None:
        legs.append(("onnxruntime-web", in_web(modules)))
    batches = data(STEPS * (len(legs) + 2))
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "run.onnx"
    runner = InTorch()
    losses = {"torch": runner.steps(batches[:STEPS])}
    sx.save(runner.to_file(batches[0]), path)
    for place, (name, leg) in enumerate(legs, 1):
        losses[name] = leg(path, batches[place * STEPS : (place + 1) * STEPS])
    runner = InTorch()
    runner.from_file(sx.load(path))
    losses["torch again"] = runner.steps(batches[-STEPS:])
    straight = InTorch().steps(batches)
    print_table(losses, straight)
    return {**losses, "uninterrupted": straight}


def print_table(losses: dict[str, list[float]], straight: list[float]) -> None:
    print(f"{'':17}{'steps':9}{'first loss':>12}{'last loss':>12}{'largest difference':>22}")
    start = 0
    for name, leg in losses.items():
        expected = straight[start : start + len(leg)]
        apart = max(abs(a - b) for a, b in zip(leg, expected, strict=True))
        span = f"{start + 1}-{start + len(leg)}"
        print(f"{name:17}{span:9}{leg[0]:12.6f}{leg[-1]:12.6f}{apart:22.1e}")
        start += len(leg)
    print(f"{'uninterrupted':17}{f'1-{start}':9}{straight[0]:12.6f}{straight[-1]:12.6f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)

"""Pages that train, in Chromium, against `sx.train(shuffle="hash")`: many networks and settings.

    python -m tests.sweeps.web_pages [--only lora,dropout]

Each case is exported, opened, trained and downloaded. Losses and validation must be those of
Python up to 2e-6, and Python must continue the file. Prints a line per case; the exit code is 1 if
one differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

import sardonyx as sx
from tests.test_export_step import node_modules
from tests.test_export_web import KEPT, check_tuned, finish, visited

ROWS, EPOCHS, BATCH = 43, 3, 8
Case = tuple[sx.Model, dict[str, np.ndarray]]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(classes: int | None = 3, width: int = 6, rows: int = ROWS) -> dict[str, np.ndarray]:
    x = rng(1).normal(size=(rows, width)).astype(np.float32)
    if classes is None:
        return {"x": x, "label": (x @ rng(2).normal(size=(width, 2))).astype(np.float32)}
    return {"x": x, "label": np.arange(rows) % classes}


def pictures(rows: int = ROWS) -> dict[str, np.ndarray]:
    return {"x": rng(1).random((rows, 1, 6, 6), np.float32), "label": np.arange(rows) % 3}


def imported(module: nn.Module, data: dict[str, np.ndarray]) -> sx.Model:
    """The network, with a free number of rows."""
    torch.manual_seed(0)
    for p in module.parameters():
        nn.init.normal_(p, std=0.4)
    inputs = [torch.from_numpy(v[:4]) for k, v in data.items() if k != "label"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sx.from_torch(module.eval(), tuple(inputs))
    for value, name in zip(model.inputs, [k for k in data if k != "label"], strict=True):
        value.name = name
    return model


def mlp(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *(middle or [nn.Tanh()]), nn.Linear(8, 3))


def plain(
    module: nn.Module | None = None,
    data: dict[str, np.ndarray] | None = None,
    loss: str = "cross_entropy",
    optimizer: Any = None,
    **settings: Any,
) -> Case:
    data = table() if data is None else data
    model = imported(module or mlp(), data)
    return sx.trainable(model, loss, optimizer or sx.optim.adamw(1e-2), **settings), data


def convolutional(**settings: Any) -> Case:
    # A bias in front of a batch normalization has no gradient but noise, which Adam scales up.
    conv = nn.Conv2d(1, 4, 3, bias=False)
    layers = [conv, nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)]
    return plain(nn.Sequential(*layers), pictures(), **settings)


def adapted(dropout: float = 0.0) -> Case:
    model = sx.lora(imported(mlp(), table()), rank=2, dropout=dropout)
    return sx.trainable(model, "cross_entropy", sx.optim.adamw(1e-2)), table()


def rounded(**how: Any) -> Case:
    net = sx.quantize_aware(imported(mlp(), table()), table(), **how)
    return sx.trainable(net, "cross_entropy", sx.optim.adamw(1e-2)), table()


def segmentation() -> Case:
    data = pictures()
    data["label"] = (data["x"][:, 0] * 3).astype(np.int64) % 3
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1)]
    return plain(nn.Sequential(*layers), data)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.left(x) + torch.tanh(self.right(z))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.table(x)))


def small_labels() -> Case:
    return plain(data={**table(), "label": (np.arange(ROWS) % 3).astype(np.int32)})


def several_labels() -> Case:
    data = table()
    data["label"] = (rng(3).random((ROWS, 3)) > 0.5).astype(np.float32)
    return plain(data=data, loss="binary_cross_entropy")


def one_score() -> Case:
    data = table()
    data["label"] = np.arange(ROWS) % 2
    return plain(
        nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)), data, "binary_cross_entropy"
    )


def two_inputs() -> Case:
    return plain(Two(), {**table(), "z": rng(4).normal(size=(ROWS, 4)).astype(np.float32)})


def series() -> Case:
    x = rng(5).normal(size=(ROWS, 4, 3)).astype(np.float32)
    return plain(Recurrent(), {"x": x, "label": np.arange(ROWS) % 3})


def tokens() -> Case:
    ids = rng(6).integers(0, 9, (ROWS, 5))
    return plain(Words(), {"x": ids, "label": np.roll(ids, -1, 1)})


def dropout() -> Case:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> net (float[N,6] x) => (float[N,3] y)
        <float[6,8] w, float[8,3] v, float share> {
          h = MatMul(x, w)
          kept, mask = Dropout(h, share)
          y = MatMul(kept, v)
        }"""
    )
    numbers = {"w": rng(7).normal(size=(6, 8)), "v": rng(8).normal(size=(8, 3)), "share": 0.3}
    del proto.graph.initializer[:]
    for name, values in numbers.items():
        tensor = onnx.numpy_helper.from_array(np.asarray(values, np.float32), name)
        proto.graph.initializer.append(tensor)
    net = sx.trainable(proto, "cross_entropy", sx.optim.adamw(1e-2))
    return net, table()


def regression(loss: str) -> Case:
    return plain(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)), table(None), loss)


CASES: dict[str, Callable[[], Case]] = {
    "plain": plain,
    "lora": adapted,
    "lora with dropout": lambda: adapted(0.2),
    "quantized": rounded,
    "quantized int4, weights only": lambda: rounded(weights="int4", activations=None),
    "quantized int16": lambda: rounded(activations="int16", learn_scales=False),
    "segmentation": segmentation,
    "several labels": several_labels,
    "one score": one_score,
    "mse": lambda: regression("mse"),
    "l1": lambda: regression("l1"),
    "huber": lambda: regression("huber"),
    "two inputs": two_inputs,
    "dropout": dropout,
    "batch normalization": convolutional,
    "frozen statistics": lambda: convolutional(batch_norm="frozen"),
    "accumulate": lambda: plain(accumulate=2),
    "schedule": lambda: plain(optimizer=sx.optim.adamw(1e-2, schedule=sx.schedule.cosine(12))),
    "clip norm": lambda: plain(clip_norm=0.3),
    "clip value": lambda: plain(clip_value=0.05),
    "ema": lambda: plain(ema=0.9),
    "frozen": lambda: plain(train="2.*"),
    "sgd": lambda: plain(optimizer=sx.optim.sgd(0.05, momentum=0.9)),
    "series": series,
    "tokens, tied": tokens,
    "small labels": small_labels,
    "few rows": lambda: plain(data=table(rows=5)),
}  # fmt: skip


def difference(name: str, folder: Path) -> float:
    """The largest difference of a loss; other differences raise."""
    net, data = CASES[name]()
    how = {"epochs": EPOCHS, "batch_size": BATCH, "validation": 0.2}
    page_file = sx.export_web(
        net, folder / "site", data, runtime=node_modules() / "onnxruntime-web", **how
    )
    with visited(page_file.parent) as page:
        page.click("#start")
        page.wait_for_function(
            "document.getElementById('status').textContent.startsWith('finished')"
            " || !document.getElementById('problem').hidden",
            timeout=120_000,
        )
        if problem := page.text_content("#problem"):
            raise RuntimeError(problem)
        finish(page)
        progress = page.evaluate(KEPT)
        with page.expect_download() as download:
            page.click("#download")
        download.value.save_as(folder / "tuned.onnx")
    classes = "val_accuracy" in progress["history"][0]
    metrics = {"metrics": ["accuracy"]} if classes else {}
    run = sx.train(net, data, shuffle="hash", display="quiet", **metrics, **how)
    for mine, theirs in zip(progress["history"], run.history, strict=True):
        for key in mine.keys() - {"epoch"}:
            if abs(mine[key] - theirs[key]) > 2e-6 * max(1, abs(theirs[key])):
                raise RuntimeError(f"{key}: {mine[key]} instead of {theirs[key]}")
    check_tuned(folder, run, data)
    return float(np.abs(np.subtract(progress["losses"], run.losses)).max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only")
    only = parser.parse_args().only
    bad = 0
    for name in only.split(",") if only else CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                most = difference(name, Path(folder))
            except Exception as error:
                bad += 1
                text = str(error).strip() or traceback.format_exc()
                print(f"WRONG {name}: {type(error).__name__}: {text[:600]}", flush=True)
                continue
        bad += most > 2e-6
        print(f"{'WRONG' if most > 2e-6 else 'same'} {name}: {most:.1e}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

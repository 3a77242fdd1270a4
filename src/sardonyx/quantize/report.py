"""What quantization costs and gains: accuracy, size and speed of several models, side by side."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import quote
from sardonyx.model import Model
from sardonyx.save import save
from sardonyx.train.batches import epoch_blocks
from sardonyx.train.evaluation import chosen_batch_size, evaluate, open_for
from sardonyx.train.fields import Feeding, link, row_count
from sardonyx.weights import weights

TIMED_ROWS, ROUNDS = 256, 5


@dataclass
class Line:
    """One model: its metrics on the data, the size of its file, CPU time a row."""

    name: str
    metrics: dict[str, float]
    bytes: int
    microseconds: float


@dataclass
class QuantizationReport:
    """The models of a quantization, in order."""

    lines: list[Line] = field(default_factory=list)

    def __str__(self) -> str:
        names = list(dict.fromkeys(n for line in self.lines for n in line.metrics))
        rows = [["model", *names, "file", "CPU a row"]]
        for line in self.lines:
            metrics = [f"{line.metrics[n]:.4f}" if n in line.metrics else "" for n in names]
            rows.append(
                [line.name, *metrics, f"{line.bytes / 1e3:,.1f} kB", f"{line.microseconds:.1f} µs"]
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def compared(
    models: Mapping[str, tuple[Model, Model]], data: Any, **how: Any
) -> QuantizationReport:
    """Measure models on data; `how` are arguments of `evaluate`, such as the loss.

    models -- name → the model with float weights, whose metrics are those of the second one to the
              bit, and the model that is stored
    """
    report = QuantizationReport()
    for name, (model, stored) in models.items():
        metrics = evaluate(model, data, **(how if not model.records else {}))
        report.lines.append(Line(name, metrics, _size(stored), _speed(stored, data)))
    return report


def left_as_floats(model: Model) -> list[list[str]]:
    """Matrices and kernels of a quantized model that are still floats: name, sizes, who reads it.

    >>> import sardonyx as sx
    >>> left_as_floats(sx.load("model.onnx"))[0]
    ['"body.weight"', '8 × 16', 'Gemm']
    """
    rows = []
    for weight in weights(model):
        value = model.graph.initializers.get(weight.name)
        if weight.kind != "weight" or value is None or len(weight.shape) < 2:
            continue
        readers = sorted({node.op_type for node in value.consumers()})
        if readers != ["QuantizeLinear"]:
            sizes = " × ".join(map(str, weight.shape))
            rows.append([quote(weight.name), sizes, ", ".join(readers)])
    return rows


def _size(model: Model) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return save(model, Path(folder) / "model.onnx").stat().st_size


def _speed(model: Model, data: Any) -> float:
    """Microseconds of CPU time a row at one thread: the least of several runs over one batch."""
    source = open_for(model, data, None, None, labelled=False)
    links = link(model.inputs, [], source, Feeding())
    size = chosen_batch_size(None, links, TIMED_ROWS)
    blocks = epoch_blocks(source, links, size, seed=None, epoch=0)
    batch = next(chain.from_iterable(blocks))
    run = Runner(model, threads=1)
    run(batch)
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        run(batch)
        times.append(time.process_time() - started)
    return min(times) / row_count(batch, links) * 1e6

"""The training axis: models that carry a training record, and what they must be after each step.

The cases are data for any engine (`folders.training_cases`): a folder each, `model.onnx` with its
`training_info`, and a `test_data_set_K` for step K in the official layout: `input_N.pb` is what the
step is fed, `output_N.pb` what is true after it (the loss, every parameter), each tensor by its
name. What is expected was computed in float64, elsewhere, and rounded to the model's type.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from sardonyx.errors import ArgumentError, quote
from sardonyx.score import folders
from sardonyx.score.judge import Cell, answer
from sardonyx.score.pool import Worker
from sardonyx.score.suite import every_node, nodes, spelled

# Of the largest element of a tensor: float32 after a few steps is this near to float64.
SAME, ROUNDING = 2e-5, 1e-3


@dataclass(frozen=True)
class RecordCase:
    """One training case."""

    name: str
    op: str
    ops: tuple[str, ...]
    digest: str
    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    def steps(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """What each step is fed, and what is true after it, by name."""
        sets = sorted(self.folder.glob("test_data_set_*"), key=_number)
        return [(_tensors(folder, "input"), _tensors(folder, "output")) for folder in sets]


@functools.cache
def cases() -> tuple[RecordCase, ...]:
    """Every training case, by name."""
    return tuple(_case(path.parent) for path in sorted(_source().glob("*/model.onnx")))


def _source() -> Path:
    """The folder of the cases; an error that says where to get them where there is none."""
    folder = folders.training_cases()
    if folder is None:
        raise ArgumentError(
            "the training cases are not installed: a wheel does not contain them",
            hint="take tests/data/training_cases from the source distribution (pip download "
            "--no-deps --no-binary sardonyx sardonyx) and name that folder in "
            "SARDONYX_TRAINING_CASES; or leave the axis out: --axis forward,gradient",
        )
    return folder


def _case(folder: Path) -> RecordCase:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    model = onnx.load(folder / "model.onnx")
    every = list(every_node(model))
    for record in model.training_info:
        every += [*nodes(record.algorithm), *nodes(record.initialization)]
    ops = tuple(dict.fromkeys(spelled(n.op_type, n.domain) for n in every))
    return RecordCase(folder.name, "", ops, digest.hexdigest(), folder)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _tensors(folder: Path, kind: str) -> dict[str, np.ndarray]:
    tensors = {}
    for path in sorted(folder.glob(f"{kind}_*.pb"), key=_number):
        tensor = onnx.TensorProto.FromString(path.read_bytes())
        tensors[tensor.name] = onnx.numpy_helper.to_array(tensor)
    return tensors


def export(folder: Path) -> Path:
    """Copy the cases into a new folder, for others to run."""
    if folder.exists() and any(folder.iterdir()):
        raise ArgumentError(f"{quote(folder)} is not empty")
    shutil.copytree(_source(), folder, dirs_exist_ok=True)
    return folder


# -- one cell ---------------------------------------------------------------------------------


def judge(worker: Worker, case: RecordCase) -> Cell:
    """The cell of one case: all its steps, each compared."""
    steps = case.steps()
    states = answer(lambda: worker.train(case.model, [batch for batch, _ in steps]))
    if isinstance(states, Cell):
        return states
    if len(states) != len(steps):
        return Cell("wrong numbers", f"{len(states)} steps, not {len(steps)}")
    worst = Cell("pass")
    for index, ((_, expected), values) in enumerate(zip(steps, states, strict=True), 1):
        cell = _compare(expected, values, index)
        if cell.kind == "wrong numbers":
            return cell
        worst = worst if cell.is_good else cell
    return worst


def _compare(expected: dict[str, Any], state: dict[str, Any], step: int) -> Cell:
    worst = Cell("pass")
    for name, e in expected.items():
        if name not in state:
            return Cell("wrong numbers", f"step {step}: {name} is missing")
        f = np.asarray(state[name])
        if f.shape != e.shape:
            message = f"step {step}: {name} has shape {list(f.shape)}, not {list(e.shape)}"
            return Cell("wrong numbers", message)
        largest = max(float(np.abs(e).max(initial=0)), 1e-6)
        error = float(np.abs(f.astype(np.float64) - e).max(initial=0)) / largest
        if not error <= SAME:
            kind = "tolerance only" if error <= ROUNDING else "wrong numbers"
            worst = Cell(kind, f"step {step}: {name} is off by {error:.2g} of its size")
            if kind == "wrong numbers":
                break
    return worst

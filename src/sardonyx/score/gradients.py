"""One cell of the gradient axis: an engine's gradient along a direction, against the difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.score import variants
from sardonyx.score.derivatives import GradientCase, wide
from sardonyx.score.judge import Cell, answer
from sardonyx.score.pool import Worker

# How far a gradient may be off, relative to the sum of its parts, by the coarsest type.
TOLERANCES = {"float64": 2e-5, "float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
LOOSE = 2e-2  # where the difference itself is no finer


def judge(worker: Worker, case: GradientCase) -> Cell:
    """The cell of one case: the engine's gradient along the direction, against the difference."""
    point = case.point()
    first = _attempt(worker, case.case.model, point, _tolerance(point, case.exact))
    if first.kind == "unsupported":
        for form in variants.relabelled(case.case.proto()):
            path = worker.write("variant.onnx", form.SerializeToString())
            if _attempt(worker, path, point, _tolerance(point, case.exact)).is_good:
                return Cell("version skew", first.message)
    if first.kind == "wrong numbers" and case.exact:
        doubled = {**point, "inputs": {n: wide(x) for n, x in point["inputs"].items()}}
        doubled["seeds"] = {n: wide(x) for n, x in point["seeds"].items()}
        if _attempt(worker, case.folder / "wide.onnx", doubled, TOLERANCES["float64"]).is_good:
            return Cell("tolerance only", f"{first.message}; right in float64")
    return first


def _tolerance(point: dict[str, Any], exact: bool) -> float:
    values = [*point["inputs"].values(), *point["seeds"].values()]
    names = {np.asarray(v).dtype.name for v in values if not isinstance(v, list)}
    tolerance = max(TOLERANCES[name] for name in names if name in TOLERANCES)
    return tolerance if exact else max(tolerance, LOOSE)


def _attempt(worker: Worker, model: Path | str, point: dict[str, Any], tolerance: float) -> Cell:
    request = {name: point[name] for name in ("inputs", "seeds", "wrt")}
    request["wrt"] = list(point["wrt"])
    gradients = answer(lambda: worker.gradient(model, request))
    return gradients if isinstance(gradients, Cell) else _compare(gradients, point, tolerance)


def _compare(gradients: dict[str, Any], point: dict[str, Any], tolerance: float) -> Cell:
    total = size = 0.0
    for name, direction in point["direction"].items():
        gradient = gradients.get(name)
        if gradient is None or np.shape(gradient) != np.shape(direction):
            shape = "missing" if gradient is None else f"of shape {list(np.shape(gradient))}"
            return Cell("wrong numbers", f"the gradient of input {name} is {shape}")
        part = np.asarray(gradient).astype(np.float64) * direction
        total, size = total + float(part.sum()), size + float(np.abs(part).sum())
    expected = float(point["expected"])
    if abs(total - expected) <= tolerance * max(size, abs(expected)):
        return Cell("pass")
    message = f"along a direction {total:.6g}, by differences {expected:.6g}"
    return Cell("wrong numbers", message)

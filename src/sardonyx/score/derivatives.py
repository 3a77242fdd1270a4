"""The oracle of the gradient axis: official cases with a point, a direction, and a derivative.

The derivative is a central difference of the model itself, run forwards in float64 where some
engine can (else in its own precision), so that no gradient of anybody's is its own judge. A case
takes part if its outputs are the official ones there, if two steps agree on the difference, and if
the difference is not zero. Inputs are moved a little first: many official inputs sit on kinks and
ties, where no difference is right.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import testing
from sardonyx.build import FLOATS
from sardonyx.edit.widen import widen
from sardonyx.model import Model, load
from sardonyx.score import suite
from sardonyx.score.judge import draws
from sardonyx.score.suite import Case
from sardonyx.score.worker import pack, unpack

WIDENED = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# (step, another step, how well they must agree): in float32, rounding costs 1e-7 / step.
FLOAT64 = (6e-6, 6e-5, 2e-5)
FLOAT32 = (4e-3, 1e-3, 1e-2)
ATTEMPTS = 6
SMALLEST = 1e-3  # a derivative below this is taken for zero
# Float inputs that are positions or settings rather than data have no gradient.
PARAMETERS = {("CastLike", 1), ("Dropout", 1), ("Resize", 1), ("Resize", 2), ("RoiAlign", 1)}
PARAMETERS |= {
    ("Upsample", 1),
    ("Range", 0),
    ("Range", 1),
    ("Range", 2),
    ("OneHot", 0),
    ("OneHot", 1),
}
# Statistics, not results: running mean and variance.
STATISTICS = {("BatchNormalization", 1), ("BatchNormalization", 2)}


@dataclass(frozen=True)
class GradientCase:
    """One official case with a derivative, and the point at which it is differentiated."""

    name: str
    op: str
    ops: tuple[str, ...]
    digest: str
    exact: bool  # the derivative was taken in float64

    @property
    def case(self) -> Case:
        return suite.by_name()[self.name]

    @property
    def folder(self) -> Path:
        return _folder() / self.name

    def point(self) -> dict[str, Any]:
        return unpack((self.folder / "point").read_bytes())


# -- which cases there are --------------------------------------------------------------------


def _folder() -> Path:
    return suite.folder() / f"gradients-{_fingerprint()[:12]}"


@functools.cache
def _fingerprint() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for package in ("onnxruntime", "onnx", "numpy"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()


@functools.cache
def cases(jobs: int = 1) -> tuple[GradientCase, ...]:
    """Every case that has a derivative; found on the first call, which takes some minutes."""
    index = _folder() / "index.json"
    if not index.exists():
        every = suite.cases()
        _folder().mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(jobs) as pool:
            points = list(pool.map(_prepare, every, chunksize=8))
        partial = index.with_suffix(".partial")
        partial.write_text(json.dumps(dict(zip([c.name for c in every], points, strict=True))))
        partial.replace(index)
    rows = json.loads(index.read_text())
    forward_cases = suite.by_name()
    return tuple(
        GradientCase(
            name, forward_cases[name].op, forward_cases[name].ops, row["digest"], row["exact"]
        )
        for name, row in rows.items()
        if "digest" in row
    )


def skipped() -> dict[str, str]:
    """The official cases that have no derivative to compare with, and why."""
    cases()
    rows = json.loads((_folder() / "index.json").read_text())
    return {name: row["skipped"] for name, row in rows.items() if "skipped" in row}


def _prepare(case: Case) -> dict[str, Any]:
    """Find the point of one case and write it down."""
    if case.kind == "real":
        return {"skipped": "a whole network, whose weights are made up"}
    wrt, of = ends(case.proto())
    if not wrt or not of:
        return {"skipped": "no float goes in, or none comes out"}
    if draws(case):
        return {"skipped": "random"}
    for exact in (True, False):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                point = _search(case, wrt, of, exact)
        except Exception as error:  # no engine runs it in this precision
            reason = f"does not run: {type(error).__name__}"
            continue
        if isinstance(point, str):
            reason = point
            continue
        folder = _folder() / case.name
        folder.mkdir(exist_ok=True)
        packed = pack(point[0])
        (folder / "point").write_bytes(packed)
        (folder / "wide.onnx").write_bytes(point[1].proto().SerializeToString())
        digest = hashlib.sha256(case.digest.encode() + packed).hexdigest()
        return {"digest": digest, "exact": exact}
    return {"skipped": reason}


def ends(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """The inputs to differentiate by, and the outputs to differentiate."""
    initializers = {t.name for t in model.graph.initializer}  # old files list weights as inputs
    wrt = [i.name for i in model.graph.input if _is_float(i) and i.name not in initializers]
    of = [o.name for o in model.graph.output if _is_float(o)]
    for node in model.graph.node:
        wrt = [n for n in wrt if not _is_listed(node.op_type, node.input, n, PARAMETERS)]
        of = [n for n in of if not _is_listed(node.op_type, node.output, n, STATISTICS)]
    return wrt, of


def _is_float(info: onnx.ValueInfoProto) -> bool:
    kind = info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else 0
    return kind in FLOATS


def _is_listed(op: str, names: Any, name: str, table: set[tuple[str, int]]) -> bool:
    return any(n == name and (op, i) in table for i, n in enumerate(names))


# -- differences ------------------------------------------------------------------------------


def _search(
    case: Case, wrt: list[str], of: list[str], exact: bool
) -> tuple[dict[str, Any], Model] | str:
    """The first point where two steps agree on the difference, or why there is none."""
    original = load(case.proto())
    model = widen(original, WIDENED) if exact else original
    forward = testing.Runner(model)
    inputs = case.inputs()
    if not _is_faithful(forward, case, of, exact):
        return "no engine gives the official outputs"
    step, other, agreement = FLOAT64 if exact else FLOAT32
    reason = "no difference exists: kinks, or too coarse"
    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng(attempt)
        feeds = {n: moved(x, rng, attempt) if n in wrt else x for n, x in inputs.items()}
        there = {n: wide(x) for n, x in feeds.items()} if exact else feeds
        values = forward(there)
        expected = case.expected()
        if any(values[n].shape != np.shape(expected[n]) for n in of):
            reason = "any move changes how many elements there are"
            continue
        seeds = {
            n: rng.normal(size=values[n].shape).astype(np.asarray(expected[n]).dtype) for n in of
        }
        direction = {n: rng.normal(size=np.shape(feeds[n])) for n in wrt}
        one, two = (difference(forward, there, seeds, direction, s) for s in (step, other))
        if not abs(one - two) <= agreement * max(abs(one), SMALLEST):
            continue
        if abs(one) < SMALLEST:
            reason = "its derivative is zero"
            continue
        point = {
            "inputs": feeds,
            "seeds": seeds,
            "wrt": np.array(wrt, object),
            "direction": direction,
            "expected": np.asarray(one),
        }
        return point, model
    return reason


def difference(
    forward: testing.Runner,
    feeds: dict[str, Any],
    seeds: dict[str, np.ndarray],
    direction: dict[str, np.ndarray],
    step: float,
) -> float:
    """The central difference of Σ seed · output along a direction."""

    def objective(scale: float) -> float:
        there = {
            n: (x + scale * direction[n]).astype(x.dtype) if n in direction else x
            for n, x in feeds.items()
        }
        out = forward(there)
        with np.errstate(invalid="ignore"):  # infinities of both signs: there is no difference
            return sum(
                float(np.sum(out[n].astype(np.float64) * seed.astype(np.float64)))
                for n, seed in seeds.items()
            )

    return (objective(step) - objective(-step)) / (2 * step)


def _is_faithful(forward: testing.Runner, case: Case, of: Sequence[str], exact: bool) -> bool:
    inputs = case.inputs()
    outputs = forward({n: wide(x) for n, x in inputs.items()} if exact else inputs)
    return all(
        np.allclose(wide(outputs[n]), wide(e), rtol=2e-2, atol=2e-2, equal_nan=True)
        for n, e in case.expected().items()
        if n in of
    )


def wide(value: Any) -> Any:
    if isinstance(value, list):
        return [wide(v) for v in value]
    array = np.asarray(value)
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if is_float else value


def moved(x: Any, rng: np.random.Generator, attempt: int) -> np.ndarray:
    """A little off the official input, towards zero or away from it, for the domain's sake.

    Infinities and NaN, of which some official inputs have many, stay at first, then become numbers.
    """
    x = np.asarray(x)
    jittered = x.astype(np.float64)
    if attempt >= 2:
        jittered = np.where(np.isfinite(jittered), jittered, 0.5)
    off = 0.02 * rng.random(x.shape) * (1 if attempt % 2 else -1)
    from_zero = rng.uniform(0.01, 0.02, x.shape) * rng.choice([-1, 1], x.shape)
    return np.where(jittered == 0, from_zero, jittered * (1 + off)).astype(x.dtype)

"""`verify` over correct conversions, so that every alarm is false; prints the table.

    python tests/sweeps/verify.py                             all of it
    python tests/sweeps/verify.py --engine torch silero       one engine, models of that name
    python tests/sweeps/verify.py --largest 0.1 --limit 60    megabytes, seconds per conversion

Public models, the smallest first, run on each engine and as onnxruntime's optimizer rewrites them;
torch modules are compared with what torch's own exporter makes of them. Each row is judged in a
process of its own kind, which ends where a row takes too long. Fails where one is called different.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
import sardonyx as sx
from sardonyx.errors import SardonyxError
from tests import real_inputs
from tests.public_models import models

# Before any framework is imported, as in tests/conftest.py.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ENGINES = ("numpy", "torch", "jax", "tensorflow")
OPTIMIZED, EXPORTED = "optimized", "exported"
KINDS = (*ENGINES, OPTIMIZED, EXPORTED)
LATE, NOT_RUN = "no time", "not run"
# Numbers of any size give NaN: a range of frequencies, the rate of samples.
PARTICULAR = ("swift-f0", "silero-vad")


@dataclass(frozen=True)
class Row:
    """One correct conversion: a public model on an engine or optimized, or an exported module."""

    kind: str
    name: str
    path: str = ""
    size: float = 0.0


@dataclass
class Outcome:
    verdict: str
    ratio: float = 0.0
    detail: str = ""


def rows() -> list[Row]:
    """Every conversion, the smallest first."""
    from tests import torch_networks

    found = [Row(EXPORTED, f"torch {name}") for name in torch_networks.NETWORKS]
    for name, path in models().items():
        size = path.stat().st_size / 1e6
        found += [Row(kind, name, str(path), size) for kind in (*ENGINES, OPTIMIZED)]
    return sorted(found, key=lambda row: row.size)


def judge(row: Row, seeds: int = 1) -> Outcome:
    """What `verify` says of one conversion."""
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            report = compare(row, Path(folder), seeds)
    except SardonyxError as error:
        return Outcome(NOT_RUN, detail=error.what)
    unclear = [] if report.verdict == "same" else [*map(str, report.culprits), *report.notes]
    return Outcome(report.verdict, report.ratio, "; ".join(unclear))


def compare(row: Row, folder: Path, seeds: int) -> Any:
    if row.kind == EXPORTED:
        return compare_export(row.name.removeprefix("torch "), folder)
    first, candidate = precise(row.path), row.kind
    if row.kind == OPTIMIZED:
        candidate = precise(optimized(row.path, folder / Path(row.path).name))
    if row.name.split("/")[0] not in PARTICULAR:
        return sx.verify(first, candidate, seeds=seeds)
    given = [real_inputs.inputs(row.name, first.model, seed) for seed in range(seeds)]
    return sx.verify(first, candidate, inputs=given)


def precise(path: str | Path) -> Any:
    """A model on onnxruntime, without the 8-bit kernels that saturate on processors without VNNI.

    Those are not correct, and an alarm would not be false: see tests/test_verify_public.py.
    """
    from sardonyx.verify.subjects import OnnxSubject

    options = {"log_severity_level": 4, "session.x64quantprecision": "1"}
    return OnnxSubject(sx.load(path), options=options)


def compare_export(name: str, folder: Path) -> Any:
    """The module is the reference; the file runs on onnxruntime and on our own torch engine."""
    from sardonyx.verify.subjects import OnnxSubject
    from tests.torch_networks import exported

    module, inputs = exported(name, folder / "net.onnx")
    model = sx.load(folder / "net.onnx")
    given = {v.name: x.numpy() for v, x in zip(model.inputs, inputs, strict=True)}
    return sx.verify(module, model, OnnxSubject(model, "torch"), inputs=given)


def optimized(path: str, target: Path) -> Path:
    import onnxruntime

    for data in Path(path).parent.glob(f"{Path(path).name}.*"):  # weights beside the file
        shutil.copy(data, target.parent)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except RuntimeError as error:
        raise SardonyxError(f"onnxruntime does not optimize it: {str(error)[:100]}") from error
    return target


# -- processes that may take too long ---------------------------------------------------------


def serve(pipe: Any) -> None:
    """Judge what comes in, until the other end closes."""
    while True:
        try:
            row, seeds = pipe.recv()
        except EOFError:  # the sweep is over
            return
        try:
            pipe.send(judge(row, seeds))
        except Exception as error:  # a fault of ours: the sweep goes on, the row shows it
            pipe.send(Outcome("failed", detail=f"{type(error).__name__}: {error}"))


class Worker:
    """A process that keeps its framework loaded; killed and begun anew where a row takes long."""

    def __init__(self) -> None:
        self.spawn = multiprocessing.get_context("spawn")
        self.process: Any = None

    def __call__(self, row: Row, seeds: int, limit: float) -> Outcome:
        if self.process is None:
            self.pipe, theirs = self.spawn.Pipe()
            self.process = self.spawn.Process(target=serve, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        self.pipe.send((row, seeds))
        try:
            if self.pipe.poll(limit):
                return self.pipe.recv()
            return self._end(Outcome(LATE, detail=f"more than {limit:g} s"))
        except EOFError:
            return self._end(Outcome("failed", detail="the process died"))

    def _end(self, outcome: Outcome) -> Outcome:
        self.process.kill()
        self.process.join()
        self.process = None
        return outcome


def chosen(given: argparse.Namespace) -> Iterator[Row]:
    kinds = given.engine.split(",")
    for row in rows():
        if row.kind not in kinds or not given.smallest <= row.size <= given.largest:
            continue
        if not given.names or any(part in row.name for part in given.names):
            yield row


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--largest", type=float, default=100.0, help="megabytes")
    parser.add_argument("--smallest", type=float, default=0.0, help="megabytes")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds per conversion")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    workers = {kind: Worker() for kind in KINDS}
    counts: Counter[str] = Counter()
    largest = 0.0
    for row in chosen(given):
        start = time.monotonic()
        found = workers[row.kind](row, given.seeds, given.limit)
        counts[found.verdict] += 1
        largest = max(largest, found.ratio if found.verdict == "same" else 0.0)
        took = time.monotonic() - start
        print(
            f"{row.size:6.2f} {row.name:52.52} {row.kind:10} {found.verdict:14} {took:6.1f} s "
            f"{found.ratio:9.3g}  {found.detail[:160]}".rstrip(),
            flush=True,
        )
    judged = sum(n for verdict, n in counts.items() if verdict not in (NOT_RUN, LATE))
    listed = ", ".join(f"{verdict} {n}" for verdict, n in counts.most_common())
    print(f"{judged} correct conversions judged; {listed}; largest ratio of the same {largest:.2f}")
    print(f"false alarms: {counts['different']}")
    return int(counts["different"] + counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())

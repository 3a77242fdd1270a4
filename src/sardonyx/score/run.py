"""Run every selected case on every selected engine, several processes at a time."""

from __future__ import annotations

import functools
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx

import sardonyx
from sardonyx.score import folders, sources, suite
from sardonyx.score.engines import Engine
from sardonyx.score.judge import Cell, judge
from sardonyx.score.pool import Crashed, Refused, TimedOut, Worker
from sardonyx.score.score import Column, Score
from sardonyx.score.store import Store, key

LIMIT = 60.0  # seconds a case may take
CANARIES = {"forward": ("test_relu", "test_matmul_2d")}
HARNESS = {
    "forward": ("worker.py", "judge.py"),
    "gradient": ("worker.py", "judge.py", "gradients.py"),
    "training": ("worker.py", "judge.py", "records.py"),
}

Progress = Callable[[str, int, int], None]


@dataclass
class Job:
    """What to run: cases by axis, and how.

    jobs  -- processes at a time
    sample -- these are one in so many of all cases
    fresh -- do not take results from earlier runs
    known -- run nothing: results of earlier runs are all there is
    """

    cases: dict[str, list[Any]]
    jobs: int = 1
    limit: float = LIMIT
    fresh: bool = False
    known: bool = False
    store: Store = field(default_factory=lambda: Store(folders.results()))
    progress: Progress = lambda engine, done, total: None
    sample: int = 1


def score(engines: Sequence[Engine], job: Job) -> Score:
    """Run the job on engines, one after the other."""
    columns = [_known(e, job) if job.known else _column(e, job) for e in engines]
    names = {axis: [case.name for case in cases] for axis, cases in job.cases.items()}
    date = datetime.now(UTC).date().isoformat()
    return Score(sardonyx.__version__, onnx.__version__, date, columns, names, job.sample)


def _column(engine: Engine, job: Job) -> Column:
    started = time.perf_counter()
    column = Column(engine.name, engine.kind)
    with Worker(engine, job.limit) as worker:
        column.canary, column.version, able = _greeted(worker, job)
        if not column.canary:
            column.able = [axis for axis, ability in ABILITY.items() if ability in able]
            axes = [axis for axis in job.cases if axis in column.able]
            column.cells = {axis: {} for axis in axes}
            work = [(axis, case) for axis in axes for case in job.cases[axis]]
            _run_all(worker, job, work, column)
    column.seconds = time.perf_counter() - started
    return column


def _known(engine: Engine, job: Job) -> Column:
    """What earlier runs found."""
    greeting = job.store.get(_engine_key(engine, "forward", "greeting")) or {}
    column = Column(engine.name, engine.kind, greeting.get("version", ""))
    column.able = [axis for axis, word in ABILITY.items() if word in greeting.get("able", ())]
    for axis in column.able:
        cells = {c.name: _kept(engine, job, axis, c) for c in job.cases.get(axis, ())}
        cells_of_case = {name: cell for name, cell in cells.items() if cell is not None}
        column.cells |= {axis: cells_of_case} if cells_of_case else {}
    return column


ABILITY = {"forward": "run", "gradient": "gradient", "training": "train"}


def _greeted(worker: Worker, job: Job) -> tuple[str, str, list[str]]:
    """An engine's canary, version and abilities; from the store where all was well before."""
    name = _engine_key(worker.engine, "forward", "greeting")
    greeting = None if job.fresh else job.store.get(name)
    if greeting is not None:
        return "", greeting["version"], greeting["able"]
    canary = _canary(worker)
    if not canary:
        job.store.put(name, {"version": worker.version, "able": worker.able})
    return canary, worker.version, worker.able


def _canary(worker: Worker) -> str:
    """Empty if the engine answers the simplest questions rightly; else what is wrong."""
    try:
        worker.hello()
    except (Refused, Crashed, TimedOut) as error:
        return f"does not start: {getattr(error, 'kind', type(error).__name__)}: {error}"
    if "run" not in worker.able:
        return "" if worker.able else "the adapter has no function run(model, inputs)"
    for name in CANARIES["forward"]:
        cell = judge(worker, suite.by_name()[name])
        if cell.kind not in ("pass", "version skew"):
            return f"{name}: {cell.kind}: {cell.message}"
    return ""


def _run_all(first: Worker, job: Job, work: list[tuple[str, Any]], column: Column) -> None:
    """Take cases from a queue, several workers at a time; results come in the job's order."""
    engine = first.engine
    cells: dict[tuple[str, str], Cell] = {}
    pending: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    for axis, case in work:
        cached = None if job.fresh else _kept(engine, job, axis, case)
        if cached is None:
            pending.put((axis, case))
        else:
            cells[axis, case.name] = cached
    errors: list[BaseException] = []

    def serve(worker: Worker) -> None:
        try:
            with worker:
                while True:
                    axis, case = pending.get_nowait()
                    worker.used.clear()
                    cell = _judge(axis)(worker, case)
                    _keep(engine, job, axis, case, cell, worker.used)
                    cells[axis, case.name] = cell
                    job.progress(engine.name, len(cells), len(work))
        except queue.Empty:
            pass
        except BaseException as error:
            errors.append(error)

    count = min(job.jobs, pending.qsize())
    workers = [first, *(Worker(engine, job.limit) for _ in range(count - 1))][:count]
    threads = [threading.Thread(target=serve, args=[w], daemon=True) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    for axis, case in work:
        column.cells[axis][case.name] = cells[axis, case.name]


def _judge(axis: str) -> Callable[[Worker, Any], Cell]:
    """What judges a case of an axis; the others are not imported, which takes long."""
    if axis == "forward":
        return judge
    if axis == "gradient":
        from sardonyx.score import gradients

        return gradients.judge
    from sardonyx.score import records

    return records.judge


# -- results of earlier runs -----------------------------------------------------------------


def _kept(engine: Engine, job: Job, axis: str, case: Any) -> Cell | None:
    entry = job.store.get(_key(engine, axis, case))
    if entry is None or job.limit > entry.get("limit", job.limit):
        return None
    if engine.kind == "ours" and entry["rules"] != _rules(engine, case, entry["used"]):
        return None
    if entry["retries"] not in ("", _source("variants.py")):
        return None
    return Cell(entry["class"], entry["message"])


def _keep(engine: Engine, job: Job, axis: str, case: Any, cell: Cell, used: set[str]) -> None:
    """Store a cell; of time-outs only those of peers, until a longer limit is set."""
    if cell.kind == "time-out" and engine.kind != "peer":
        return
    # What passes was not run in other forms.
    retries = "" if cell.is_good else _source("variants.py")
    entry: dict[str, Any] = {"class": cell.kind, "message": cell.message, "retries": retries}
    if cell.kind == "time-out":
        entry["limit"] = job.limit
    if engine.kind == "ours":
        entry |= {"used": sorted(used), "rules": _rules(engine, case, sorted(used))}
    job.store.put(_key(engine, axis, case), entry)


def _rules(engine: Engine, case: Any, used: Sequence[str]) -> str:
    return sources.of_rules(engine.name, [*used, *case.ops])


def _key(engine: Engine, axis: str, case: Any) -> str:
    return _engine_key(engine, axis, case.digest)


def _engine_key(engine: Engine, axis: str, what: str) -> str:
    shared = sources.shared(engine.name, axis) if engine.kind == "ours" else ""
    same = [engine.name, engine.packages, sorted(engine.environment.items())]
    return key(axis, what, *same, _harness(engine, axis), shared)


@functools.cache
def _harness(engine: Engine, axis: str) -> str:
    """A digest of what stands between a case and an engine."""
    adapter = hashlib.sha256(engine.adapter.read_bytes()).hexdigest()
    shared = ["ours/__init__.py"] if engine.kind == "ours" else []
    return key(adapter, *map(_source, [*HARNESS[axis], *shared]))


@functools.cache
def _source(name: str) -> str:
    return hashlib.sha256((Path(__file__).parent / name).read_bytes()).hexdigest()

"""`verify` over correct conversions, so that every alarm is false; prints one table at its end.

    python tests/sweeps/verify.py                             all of it, anew
    python tests/sweeps/verify.py --resume --seconds 480      the next eight minutes of it
    python tests/sweeps/verify.py --engine torch silero       one engine, models of that name
    python tests/sweeps/verify.py --largest 0.1 --limit 60    megabytes, seconds per model

Public models, the smallest first, run on each engine and as onnxruntime's optimizer rewrites them;
torch modules are compared with what torch's own exporter makes of them, on every engine. The rows
of one model are judged together, on one float64 run, in a process that ends where it takes too
long: the rows then say so, and do not count. Their seconds are those of all together. Outcomes are
kept in the cache, so that `--resume` goes on where a sweep stopped; rows that were judged by other
code than there is now are counted under the table. Fails where a correct conversion is called
different or fails.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
import sardonyx as sx
from sardonyx.errors import EngineError, SardonyxError
from sardonyx.verify.noise import DIFFERENT, FAILS, SAME, UNKNOWN, worst
from tests import real_inputs
from tests.public_models import cache_folder, models

# Before any framework is imported, as in tests/conftest.py.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ENGINES = ("numpy", "torch", "jax", "tensorflow")
OPTIMIZED, EXPORTED = "optimized", "exported"
KINDS = (*ENGINES, OPTIMIZED, EXPORTED)
LATE, NOT_RUN = "no time", "not run"
# Not just any numbers: a range of frequencies, the rate of samples, a state for a batch of one.
PARTICULAR = ("swift-f0/", "silero-vad/", "speechmos/Run_")


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
    conversions: int = 1
    seconds: float = 0.0
    limit: float = 0.0
    code: str = ""


def rows() -> list[Row]:
    """Every conversion, the smallest first."""
    from tests import torch_networks

    result = [Row(EXPORTED, f"torch {name}") for name in torch_networks.NETWORKS]
    for name, path in models().items():
        size = path.stat().st_size / 1e6
        result += [Row(kind, name, str(path), size) for kind in (*ENGINES, OPTIMIZED)]
    return sorted(result, key=lambda row: (row.size, row.name))


def judge(row: Row, seeds: int = 1) -> Outcome:
    """What `verify` says of one conversion."""
    return outcomes([row], seeds)[0]


def outcomes(asked: Sequence[Row], seeds: int = 1) -> list[Outcome]:
    """What `verify` says of some conversions of one model, in one comparison."""
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            if asked[0].kind == EXPORTED:
                return [whole(compare_export(asked[0].name.removeprefix("torch "), Path(folder)))]
            return compare(asked, Path(folder), seeds)
    except SardonyxError as error:
        return [Outcome(NOT_RUN, detail=error.what)] * len(asked)


def compare(asked: Sequence[Row], folder: Path, seeds: int) -> list[Outcome]:
    """The float64 run is made once, for all candidates."""
    path, name = asked[0].path, asked[0].name
    first, candidates, refused = precise(path), {}, {}
    for row in asked:
        try:
            if row.kind == OPTIMIZED:
                candidates[row] = precise(optimized(path, folder / Path(path).name))
            else:
                candidates[row] = row.kind
        except SardonyxError as error:
            refused[row] = Outcome(NOT_RUN, detail=error.what)
    if not candidates:
        return [refused[row] for row in asked]
    inputs = None
    if name.startswith(PARTICULAR):
        inputs = [real_inputs.inputs(name, first.model, seed) for seed in range(seeds)]
    report = sx.verify(first, *candidates.values(), inputs=inputs, seeds=seeds)
    labels = [s["name"] for s in report.subjects]
    result = {row: of_one(report, label) for row, label in zip(candidates, labels[1:], strict=True)}
    return [{**result, **refused}[row] for row in asked]


def of_one(report: Any, label: str) -> Outcome:
    """What a report says of one candidate and of the first, with which it is compared."""
    mine = [m for m in report.measurements if m.subject == label]
    notes = [note for note in report.notes if label in note]
    if not mine:
        return Outcome(NOT_RUN, detail="; ".join(notes))
    first = [m for m in report.measurements if m.subject == report.subjects[0]["name"]]
    mine += [m for m in first if m.outcome != FAILS]  # then the float64 run alone is the judge
    verdict = worst([m.verdict(report.bands) for m in mine])
    culprits = [str(c) for c in report.culprits if c.subject == label]
    if verdict == DIFFERENT and not report.comparable and not culprits:
        verdict = UNKNOWN
    ratio = max(m.ratio if m.forced is None else m.forced for m in mine)
    return Outcome(verdict, ratio, "" if verdict == SAME else "; ".join([*culprits, *notes]))


def whole(report: Any) -> Outcome:
    """What a report says of all its candidates together."""
    unclear = [] if report.verdict == SAME else [*map(str, report.culprits), *report.notes]
    return Outcome(report.verdict, report.ratio, "; ".join(unclear), len(report.subjects) - 1)


def precise(path: str | Path) -> Any:
    """A model on onnxruntime, without the 8-bit kernels that saturate on processors without VNNI.

    Those are not correct, and an alarm would not be false: see tests/test_verify_public.py.
    """
    from sardonyx.verify.subjects import OnnxSubject

    options: dict[str, Any] = {"log_severity_level": 4, "session.x64quantprecision": "1"}
    result = OnnxSubject(sx.load(path), options=options)
    try:
        result.prepare()
    except EngineError:
        # onnxruntime 1.31.1 refuses this setting where two nodes share a weight.
        import onnxruntime

        options.pop("session.x64quantprecision")
        options["graph_optimization_level"] = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        result = OnnxSubject(sx.load(path), options=options)
    return result


def compare_export(name: str, folder: Path) -> Any:
    """The module is the reference; the file runs on onnxruntime and on every engine of ours."""
    from sardonyx.verify.subjects import OnnxSubject
    from tests.torch_networks import exported

    module, inputs = exported(name, folder / "net.onnx")
    model = sx.load(folder / "net.onnx")
    arguments = {v.name: x.numpy() for v, x in zip(model.inputs, inputs, strict=True)}
    others = [OnnxSubject(model, engine) for engine in ENGINES]
    return sx.verify(module, model, *others, inputs=arguments)


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
    except Exception as error:  # onnxruntime raises a class per status code
        raise SardonyxError(f"onnxruntime does not optimize it: {str(error)[:100]}") from error
    return target


# -- processes that may take too long ---------------------------------------------------------


def serve(pipe: Any, judging: Callable[..., Any]) -> None:
    """Judge what comes in, until the other end closes."""
    while True:
        try:
            row = pipe.recv()
        except EOFError:  # the sweep is over
            return
        try:
            pipe.send(judging(*row))
        except Exception as error:  # a fault of ours: the sweep goes on, the row shows it
            pipe.send(Outcome("failed", detail=f"{type(error).__name__}: {error}"))


class Worker:
    """A process that keeps its framework loaded; killed and begun anew where a row takes long."""

    def __init__(self, judging: Callable[..., Any]) -> None:
        self.spawn = multiprocessing.get_context("spawn")
        self.judging = judging
        self.process: Any = None

    def __call__(self, *row: Any, limit: float) -> Any:
        """What judging the row gives, or an `Outcome` where that did not come to its end."""
        if self.process is None:
            self.pipe, theirs = self.spawn.Pipe()
            self.process = self.spawn.Process(
                target=serve, args=(theirs, self.judging), daemon=True
            )
            self.process.start()
            theirs.close()
        self.pipe.send(row)
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


# -- outcomes that are kept ------------------------------------------------------------------


@functools.cache
def code() -> str:
    """A digest of the package as it is now."""
    digest = hashlib.sha256()
    for path in sorted(Path(sx.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Kept:
    """The outcomes of a sweep, by row, in a file that grows line by line."""

    def __init__(self, path: Path, resume: bool):
        self.path = path
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            path.unlink(missing_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            kind, name, outcome = json.loads(line)
            self.outcomes[kind, name] = Outcome(**outcome)

    def is_settled(self, row: Row, limit: float) -> bool:
        result = self.outcomes.get((row.kind, row.name))
        return result is not None and not (result.verdict == LATE and result.limit < limit)

    def add(self, row: Row, outcome: Outcome) -> None:
        self.outcomes[row.kind, row.name] = outcome
        with self.path.open("a") as file:
            file.write(json.dumps([row.kind, row.name, asdict(outcome)]) + "\n")


def chosen(given: argparse.Namespace) -> Iterator[Row]:
    kinds = given.engine.split(",")
    for row in rows():
        if row.kind not in kinds or not given.smallest <= row.size <= given.largest:
            continue
        if not given.names or any(part in row.name for part in given.names):
            yield row


def sweep(asked: list[Row], kept: Kept, given: argparse.Namespace) -> None:
    """Judge what is not settled, as far as the time goes; the rows of one model together."""
    worker = Worker(outcomes)
    until = time.monotonic() + given.seconds
    for _, group in itertools.groupby(asked, lambda row: row.name):
        open_rows = [row for row in group if not kept.is_settled(row, given.limit)]
        if not open_rows or time.monotonic() > until:
            continue
        start = time.monotonic()
        result: Any = worker(open_rows, given.seeds, limit=given.limit)
        if isinstance(result, Outcome):  # no time, or a failure
            result = [replace(result) for _ in open_rows]
        took = time.monotonic() - start
        for row, outcome in zip(open_rows, result, strict=True):
            outcome.seconds, outcome.limit, outcome.code = took, given.limit, code()
            kept.add(row, outcome)
            print(line(row, outcome), file=sys.stderr, flush=True)


def line(row: Row, found: Outcome) -> str:
    ratio = f"{found.ratio:9.3g}" if found.verdict not in (LATE, NOT_RUN) else f"{'':9}"
    return (
        f"{row.size:6.2f} {row.name:52.52} {row.kind:10} {found.verdict:14} "
        f"{found.seconds:6.1f} s {ratio}  {found.detail[:160]}".rstrip()
    )


def table(asked: list[Row], kept: Kept) -> int:
    """Print every outcome and their sum; the number of alarms and failures."""
    result = [(row, kept.outcomes.get((row.kind, row.name))) for row in asked]
    counts: Counter[str] = Counter()
    largest, models_seen, older = 0.0, set(), 0
    for row, outcome in result:
        if outcome is None:
            continue
        print(line(row, outcome))
        counts[outcome.verdict] += outcome.conversions
        if outcome.verdict not in (LATE, NOT_RUN):
            models_seen.add(row.name)
        if outcome.verdict == SAME:
            largest = max(largest, outcome.ratio)
        older += outcome.code != code()
    judged = sum(n for verdict, n in counts.items() if verdict not in (NOT_RUN, LATE))
    listed = ", ".join(f"{verdict} {n}" for verdict, n in counts.most_common())
    print(f"{judged} correct conversions of {len(models_seen)} models judged: {listed}")
    print(f"largest ratio of the same: {largest:.2f}; false alarms: {counts[DIFFERENT]}")
    left = sum(outcome is None for _, outcome in result)
    if left:
        print(f"{left} rows are still to be judged: --resume goes on")
    if older:
        print(f"{older} rows were judged by the code of before")
    return counts[DIFFERENT] + counts[FAILS] + counts["failed"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--largest", type=float, default=100.0, help="megabytes")
    parser.add_argument("--smallest", type=float, default=0.0, help="megabytes")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per model")
    parser.add_argument("--seconds", type=float, default=1e9, help="then no row is begun any more")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on where a sweep stopped")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    asked = list(chosen(options))
    kept = Kept(cache_folder() / "verify-sweep.jsonl", options.resume)
    sweep(asked, kept, options)
    return int(table(asked, kept) > 0)


if __name__ == "__main__":
    sys.exit(main())

"""A score: cells by engine, axis and case; as JSON; what became worse since an earlier score."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sardonyx.errors import ArgumentError, quote
from sardonyx.score.judge import CLASSES, Cell

AXES = ("forward", "gradient", "training")
KINDS = ("ours", "peer", "given")  # of engines, in the order of columns
FORM = 1


@dataclass
class Column:
    """One engine's results.

    canary  -- empty if the engine gave the right answer to the simplest questions; else what was
               wrong, and then there are no cells: a broken wrapper is not a score of zero
    able    -- the axes that it has, run or not; empty where that is not known
    """

    name: str
    kind: str
    version: str = ""
    canary: str = ""
    seconds: float = 0.0
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)
    able: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"sardonyx on {self.name}" if self.kind == "ours" else self.name

    def count(self, axis: str = "forward") -> Counter[str]:
        return Counter(cell.kind for cell in self.cells.get(axis, {}).values())

    def share(self, axis: str) -> str:
        """How many cases of an axis pass, of those that were run."""
        if not self.cells.get(axis):
            return "not run" if axis in self.able and not self.canary else "–"
        return f"{self.count(axis)['pass']} of {self.count(axis).total()}"


@dataclass(repr=False)
class Score:
    """Engines × cases: one run of the scoreboard."""

    sardonyx: str
    onnx: str
    date: str
    columns: list[Column]
    cases: dict[str, list[str]]  # by axis
    sample: int = 1  # these are one in so many of all cases

    def to_json(self) -> str:
        """Everything, as text; `from_json` reads it."""
        return json.dumps(
            {
                "form": FORM,
                "sardonyx": self.sardonyx,
                "onnx": self.onnx,
                "date": self.date,
                "sample": self.sample,
                "classes": {kind: meaning for kind, (_, meaning) in CLASSES.items()},
                "cases": self.cases,
                "engines": {c.name: _written(c, self.cases) for c in self.columns},
            },
            indent=1,
            ensure_ascii=False,
        )

    @staticmethod
    def from_json(text: str) -> Score:
        """A score out of what `to_json` wrote."""
        try:
            data = json.loads(text)
            columns = [_read(name, c, data["cases"]) for name, c in data["engines"].items()]
            sardonyx, onnx, date = (data[key] for key in ("sardonyx", "onnx", "date"))
            return Score(sardonyx, onnx, date, columns, data["cases"], data.get("sample", 1))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(
                "this file is not a saved score", hint="sardonyx score --save FILE writes one"
            ) from error

    def save(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json(), encoding="utf-8")
        return path

    def sampled(self, column: Column) -> str:
        """Which cases were run on an engine, in words; empty if all were."""
        ran, every = column.count().total(), len(self.cases.get("forward", ()))
        if 0 < ran < every:
            return f"{ran} of {every} cases were run"
        return f"one case in {self.sample}" if self.sample > 1 else ""

    def __repr__(self) -> str:
        engines = ", ".join(f"{c.name} {c.share('forward')}" for c in self.columns)
        return f"<Score: {engines}>"

    def __str__(self) -> str:
        from sardonyx.score import table

        return table.text(self)

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)


def load(path: Path) -> Score:
    """A score from a file."""
    if not path.is_file():
        raise ArgumentError(f"there is no file {quote(path)}")
    return Score.from_json(path.read_text(encoding="utf-8"))


def together(scores: Sequence[Score]) -> Score:
    """Several scores as one, ours before the others.

    What was scored last counts, by the date of the score, axis by axis of each engine.
    """
    last = max(scores, key=lambda score: score.date)
    columns: dict[str, Column] = {}
    for score in sorted(scores, key=lambda score: score.date):
        for column in score.columns:
            before = columns.get(column.name)
            columns[column.name] = column if before is None else _added(before, column)
    cases: dict[str, list[str]] = {}
    for score in scores:
        for axis, names in score.cases.items():
            cases[axis] = list(dict.fromkeys([*cases.get(axis, ()), *names]))
    engines = dict.fromkeys(column.name for score in scores for column in score.columns)
    ordered = sorted(engines, key=lambda name: KINDS.index(columns[name].kind))
    about = (last.sardonyx, last.onnx, last.date, [columns[n] for n in ordered])
    return Score(*about, cases, max(score.sample for score in scores))


def _added(before: Column, column: Column) -> Column:
    """An engine's column, and the axes that an older one has besides."""
    if column.canary or before.canary or before.version != column.version:
        return column
    older = {axis: cells for axis, cells in before.cells.items() if axis not in column.cells}
    total = column.seconds + (before.seconds if older else 0.0)
    able = column.able or before.able
    return replace(column, seconds=total, cells={**older, **column.cells}, able=able)


def _written(column: Column, cases: Mapping[str, list[str]]) -> dict[str, Any]:
    """A column; what passes is not listed, so that a reader sees what does not."""
    left_out = {
        axis: [name for name in cases[axis] if name not in cells]
        for axis, cells in column.cells.items()
    }
    return {
        "kind": column.kind,
        "version": column.version,
        "canary": column.canary,
        "seconds": round(column.seconds, 1),
        "able": column.able,
        "not passing": {
            axis: {
                name: {"class": cell.kind, **({"message": cell.message} if cell.message else {})}
                for name, cell in cells.items()
                if cell.kind != "pass"
            }
            for axis, cells in column.cells.items()
        },
        "not run": {axis: names for axis, names in left_out.items() if names},
    }


def _read(name: str, data: Mapping[str, Any], cases: Mapping[str, list[str]]) -> Column:
    cells = {}
    for axis, listed in data["not passing"].items():
        left_out = set(data.get("not run", {}).get(axis, ()))
        cells[axis] = {case: Cell("pass") for case in cases[axis] if case not in left_out}
        cells[axis] |= {
            case: Cell(cell["class"], cell.get("message", "")) for case, cell in listed.items()
        }
    kind, version, canary = data["kind"], data["version"], data["canary"]
    able = data.get("able", [])
    return Column(name, kind, version, canary, data.get("seconds", 0.0), cells, able)


# -- baselines: the classes alone, small enough to keep beside the tests ----------------------


def to_baseline(score: Score) -> str:
    """What does not pass, by class, without messages; `compared_with` reads it."""
    engines = {}
    for column in score.columns:
        by_class: dict[str, dict[str, list[str]]] = {axis: {} for axis in column.cells}
        for axis, cells in column.cells.items():
            for name, cell in sorted(cells.items()):
                if cell.kind != "pass":
                    by_class[axis].setdefault(cell.kind, []).append(name)
        engines[column.name] = {"kind": column.kind, "version": column.version, "axes": by_class}
    data = {"baseline": FORM, "sardonyx": score.sardonyx, "onnx": score.onnx, "date": score.date}
    return json.dumps({**data, "engines": engines}, indent=1) + "\n"


def compared_with(path: Path, score: Score) -> Score:
    """An older score to hold `score` against: a saved one, or a baseline (unlisted is a pass)."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{quote(path)} is not a saved score") from error
    if not (isinstance(data, dict) and "baseline" in data):
        return load(path)
    columns = []
    for name, listed in data["engines"].items():
        column = Column(name, listed["kind"], listed["version"])
        for axis, by_class in listed["axes"].items():
            column.cells[axis] = {case: Cell("pass") for case in score.cases.get(axis, ())}
            column.cells[axis] |= {c: Cell(k) for k, names in by_class.items() for c in names}
        columns.append(column)
    return Score(data["sardonyx"], data["onnx"], data["date"], columns, score.cases)


# -- what became worse ----------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A cell that is in another class than before."""

    engine: str
    axis: str
    case: str
    before: str
    now: str
    message: str = ""

    @property
    def is_worse(self) -> bool:
        return _badness(self.now) > _badness(self.before)

    def row(self) -> list[str]:
        return [self.engine, self.axis, self.case, f"{self.before} → {self.now}", self.message]


def _badness(kind: str) -> int:
    return CLASSES[kind][0] if kind in CLASSES else len(CLASSES)


def changes(score: Score, before: Score) -> Iterator[Change]:
    """Cells of both scores that are in another class now; an engine that broke is one change."""
    for column in score.columns:
        old = before.column(column.name)
        if old is None or old.canary:
            continue
        if column.canary:
            yield Change(column.name, "", "canary", "pass", "broken", column.canary)
            continue
        for axis, cells in column.cells.items():
            old_cells = old.cells.get(axis, {})
            for case, cell in cells.items():
                if case in old_cells and old_cells[case].kind != cell.kind:
                    was = old_cells[case].kind
                    yield Change(column.name, axis, case, was, cell.kind, cell.message)

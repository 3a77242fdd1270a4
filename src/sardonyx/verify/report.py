"""The result of a comparison: measurements, culprit, versions; as table, JSON, judged again."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import __version__
from sardonyx.errors import ArgumentError, quote
from sardonyx.save import folder_reported
from sardonyx.verify.culprit import Case, Replay, Search
from sardonyx.verify.datasets import DataSet
from sardonyx.verify.noise import (
    DIFFERENT,
    FAILS,
    LOOK,
    NOT_COMPARABLE,
    PEAK,
    SAME,
    UNKNOWN,
    Measurement,
    worst,
)
from sardonyx.verify.subjects import Subject

FORMAT = 1
# 2 is wrong usage and 3 an unexpected error, as of every command
EXIT = {SAME: 0, DIFFERENT: 1, LOOK: 4, UNKNOWN: 5, FAILS: 6, NOT_COMPARABLE: 7}
LEGEND = {
    "max abs": "the largest difference from the exact (float64) result",
    "peak": "that difference in units of the largest rounding error; a hint above 100",
    "ratio": "the rms difference in units of the rounding noise of this model: the verdict",
    SAME: "nothing but rounding: the ratio is at most {0:g}",
    LOOK: "more than usual, less than a fault: the ratio is at most {1:g}",
    DIFFERENT: "more than rounding can do",
    UNKNOWN: "no inputs show it, random numbers, or a missing engine",
    FAILS: "it does not run",
    NOT_COMPARABLE: "other inputs or outputs",
}


@dataclass
class Culprit:
    """The first node that is wrong alone, and how the others did."""

    subject: str
    replay: Replay
    others: float
    not_compared: int = 0
    case: Case | None = None

    @classmethod
    def of(cls, subject: str, search: Search) -> Culprit:
        assert search.culprit is not None
        before = search.replays[: search.replays.index(search.culprit)]
        ratios = [r.ratio for r in before if math.isfinite(r.ratio)]
        return cls(
            subject,
            search.culprit,
            max(ratios, default=0.0),
            len(set(search.not_compared)),
            search.case,
        )

    @property
    def node(self) -> str:
        return self.replay.node

    def __str__(self) -> str:
        replay = self.replay
        inside = f" inside {' / '.join(replay.path)}" if replay.path else ""
        several = f" (fused: {replay.fused} nodes)" if replay.fused > 1 else ""
        what = replay.problem or f"{shown(replay.ratio)} x rounding"
        name = f"{replay.op} {quote(replay.node)}{several}"
        return (
            f"node {replay.index} of {replay.total}{inside}, {name}: "
            f"alone, on reference inputs, {what} (all before <= {shown(self.others)})"
        )


@dataclass(repr=False)
class Report:
    """The result of `verify`: print it; look at `verdict`, `culprit`, `measurements`; save it."""

    subjects: list[dict[str, str]]
    bands: tuple[float, float]
    measurements: list[Measurement] = field(default_factory=list)
    culprits: list[Culprit] = field(default_factory=list)
    replays: dict[str, list[Replay]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    reference: str = ""
    comparable: bool = True
    tolerances: tuple[float, float] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    data: list[DataSet] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        subjects: Sequence[Subject],
        labels: Sequence[str],
        bands: tuple[float, float],
        tolerances: tuple[float, float] | None,
    ) -> Report:
        rows = [
            {"name": label, "engine": s.engine, "version": s.version, "sha256": _digest(s)}
            for label, s in zip(labels, subjects)
        ]
        versions = {
            "sardonyx": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
        return cls(rows, checked_bands(bands), tolerances=tolerances, versions=versions)

    @property
    def verdict(self) -> str:
        """One of "same", "look", "different", "could not tell", "fails", "not comparable"."""
        verdicts = [m.verdict(self.bands) for m in self.measurements]
        if not self.comparable:  # then a difference counts only where a node shows it
            verdicts = [v for v in verdicts if v != DIFFERENT or self.culprits] + [UNKNOWN]
        return worst(verdicts)

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]

    @property
    def ratio(self) -> float:
        return max(
            (m.ratio if m.forced is None else m.forced for m in self.measurements), default=0.0
        )

    @property
    def ratio_of_others(self) -> float:
        """The largest ratio of the subjects after the first, which rounds by itself as well."""
        first = self.subjects[0]["name"] if self.subjects else ""
        others = [m for m in self.measurements if m.subject != first]
        return max((m.ratio if m.forced is None else m.forced for m in others), default=0.0)

    @property
    def culprit(self) -> Culprit | None:
        return self.culprits[0] if self.culprits else None

    def rows(self) -> list[Measurement]:
        """Per subject and output the worst run, the worst first."""
        worst_runs: dict[tuple[str, str], Measurement] = {}
        for part in self.measurements:
            key = (part.subject, part.output)
            if key not in worst_runs or part.ratio > worst_runs[key].ratio:
                worst_runs[key] = part
        return sorted(
            worst_runs.values(), key=lambda m: -(m.ratio if m.forced is None else m.forced)
        )

    def __str__(self) -> str:
        names = " -> ".join(f"{s['name']} {s['version']}".strip() for s in self.subjects)
        lines = [f"verify {names}", f"  {len(self.runs)} runs, reference: {self.reference}"]
        header = ["subject", "output", "shape", "max abs", "peak", "ratio", "verdict"]
        table = [header, *(self._cells(m) for m in self.rows())]
        widths = [max(len(row[i]) for row in table) for i in range(len(header))]
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in table]
        lines += [f"note      {note}" for note in self.notes]
        lines += [f"culprit   {culprit}" for culprit in self.culprits]
        return "\n".join([*lines, f"verdict   {self.verdict}"])

    def __repr__(self) -> str:
        names = " -> ".join(s["name"] for s in self.subjects)
        return f"<Report: {names}: {self.verdict}, ratio {shown(self.ratio)}>"

    def _repr_html_(self) -> str:
        from sardonyx.verify.page import fragment

        return fragment(self)

    def legend(self) -> dict[str, str]:
        """What the columns and the verdicts mean."""
        return {word: text.format(*self.bands) for word, text in LEGEND.items()}

    def _cells(self, m: Measurement) -> list[str]:
        ratio = shown(m.ratio) if m.forced is None else f"{shown(m.forced)} forced"
        if m.wrong:
            ratio = f"{m.wrong} differ" + (f", {m.flipped} ties" if m.flipped else "")
        verdict = m.verdict(self.bands) + (f": {m.problem}" if m.problem else "")
        if verdict == SAME and m.peak > PEAK and m.ratio > 0:
            verdict += " (one element stands out)"
        return [
            quote(m.subject)[1:-1],
            quote(m.output)[1:-1],
            str(tuple(m.shape)),
            f"{m.peak_error:.1e}",
            shown(m.peak),
            ratio,
            verdict,
        ]

    # -- saved and judged again -----------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON takes it: measurements, not verdicts."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "subjects": self.subjects,
            "reference": self.reference,
            "bands": list(self.bands),
            "tolerances": self.tolerances,
            "seeds": self.seeds,
            "runs": self.runs,
            "comparable": self.comparable,
            "notes": self.notes,
            "versions": self.versions,
            "measurements": [asdict(m) for m in self.measurements],
            "culprits": [
                {
                    "subject": c.subject,
                    "others": c.others,
                    "not_compared": c.not_compared,
                    **asdict(c.replay),
                }
                for c in self.culprits
            ],
            "replays": {label: [asdict(r) for r in rows] for label, rows in self.replays.items()},
        }

    def to_json(self) -> str:
        return json.dumps(_plain(self.as_dict()), indent=1)

    @classmethod
    def from_json(cls, text: str, bands: tuple[float, float] | None = None) -> Report:
        """A saved report, judged by its own bands or by new ones; nothing is run."""
        try:
            content = _numbers(json.loads(text))
            if content["format"] != FORMAT:
                raise ArgumentError(f"the report has format {content['format']}, not {FORMAT}")
            culprits = []
            for row in content["culprits"]:
                subject, others, skipped = (
                    row.pop(k) for k in ("subject", "others", "not_compared")
                )
                culprits.append(Culprit(subject, _replay(row), others, skipped))
            return cls(
                content["subjects"],
                checked_bands(bands or tuple(content["bands"])),
                [Measurement(**m) for m in content["measurements"]],
                culprits,
                {k: [_replay(r) for r in rows] for k, rows in content["replays"].items()},
                content["notes"],
                content["runs"],
                content["seeds"],
                content["reference"],
                content["comparable"],
                content["tolerances"],
                content["versions"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"this is not a saved report: {error}") from error

    def save(self, folder: str | Path) -> list[Path]:
        """Write `report.json`, the runs in the model zoo's form and, with a culprit, its case."""
        from sardonyx.verify import datasets

        target = Path(folder)
        with folder_reported(target):
            target.mkdir(parents=True, exist_ok=True)
            path = target / "report.json"
            path.write_text(self.to_json(), encoding="utf-8")
            paths = [path, *datasets.write(target, self.data)]
            if self.culprit is not None and self.culprit.case is not None:
                paths += self.culprit.case.save(target)
        return paths

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page."""
        from sardonyx.verify.page import write_page

        return write_page(self, Path(path))


def checked_bands(bands: Sequence[float]) -> tuple[float, float]:
    if len(bands) != 2 or not 0 < bands[0] <= bands[1]:
        raise ArgumentError(
            f"bands are two rising numbers, not {list(bands)}", hint="bands=(3, 10)"
        )
    return float(bands[0]), float(bands[1])


def shown(ratio: float) -> str:
    """A ratio, rounded for display."""
    if math.isinf(ratio) or math.isnan(ratio):
        return "inf"
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _digest(subject: Subject) -> str:
    model = subject.model
    if model is None or model.source is None or not model.source.is_file():
        return ""
    digest = hashlib.sha256()
    with open(model.source, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _replay(row: dict[str, Any]) -> Replay:
    fields = {**row, "readers": tuple(map(tuple, row.get("readers", ())))}
    return Replay(**fields | {k: tuple(row[k]) for k in ("path", "inputs", "outputs")})


# JSON has no infinities: they are written as words, and read back.
WORDS = {"infinite": math.inf, "-infinite": -math.inf, "not a number": math.nan}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    return value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return WORDS.get(value, value) if isinstance(value, str) else value

"""A score as text: the table of the terminal, and the one of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sardonyx.score import operators
from sardonyx.score.judge import CLASSES
from sardonyx.score.score import AXES, Change, Column, Score

SHORT = {
    "pass": "pass",
    "nondeterministic": "random",
    "tolerance only": "tolerance",
    "version skew": "skew",
    "binding limit": "binding",
    "unsupported": "unsupported",
    "time-out": "time-out",
    "crash": "crash",
    "wrong numbers": "wrong",
}
HEADER = ["engine", "version", "operators", *SHORT.values(), "gradient", "training", "seconds"]


def rows(score: Score) -> list[list[str]]:
    """One row per engine: the operators that it has as a whole, how many cases are in each class,
    and the other axes as `good of all`.
    """
    subjects = operators.subjects(score)
    return [_row(score, column, subjects) for column in score.columns]


def _row(score: Score, column: Column, subjects: dict[str, list[str]]) -> list[str]:
    head = [column.title, column.version]
    if column.canary:
        return [*head, "broken", *[""] * (len(HEADER) - 3)]
    count = column.count()
    ran = "forward" in column.cells
    cells = [(str(count[kind]) if count[kind] else "") if ran else "–" for kind in CLASSES]
    others = [column.share(axis) for axis in AXES[1:]]
    every = ran and not score.sampled(column)  # a sample says nothing of whole operators
    whole = "{} of {}".format(*operators.whole(column, subjects)) if every else "–"
    return [*head, whole, *cells, *others, f"{column.seconds:.0f}" if column.seconds else ""]


def text(score: Score) -> str:
    """The table for a terminal, and what is broken below it."""
    lines = _aligned(_filled(score))
    count = len(score.cases.get("forward", ()))
    lines.append(f"\n{count} cases of onnx {score.onnx}, sardonyx {score.sardonyx}, {score.date}")
    return "\n".join([*lines, *_notes(score)])


def _filled(score: Score) -> list[list[str]]:
    """The header and the rows, without columns in which nothing is."""
    every = [HEADER, *rows(score)]
    columns = [i for i in range(len(HEADER)) if any(row[i] for row in every[1:])]
    return [[row[i] for i in columns] for row in every]


def _notes(score: Score) -> list[str]:
    """What a reader of the counts must know."""
    broken = [f"broken: {c.title}: {c.canary}" for c in score.columns if c.canary]
    samples = ((c.title, score.sampled(c)) for c in score.columns)
    return broken + [f"a sample: {title}: {words}" for title, words in samples if words]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = 2  # names and versions; numbers are set to the right
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def markdown(score: Score) -> str:
    """The same as a table of Markdown."""
    every = _filled(score)
    lines = ["| " + " | ".join(row) + " |" for row in every]
    lines.insert(1, "|---|---|" + "---:|" * (len(every[0]) - 2))
    notes = [f"- {note}" for note in _notes(score)]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def failures(score: Score) -> Iterable[str]:
    """Every cell that is not a pass, one line each."""
    for column in score.columns:
        for axis, cells in column.cells.items():
            for name, cell in cells.items():
                if cell.kind != "pass":
                    yield f"{column.name}  {axis}  {name}  {cell.kind}: {cell.message}"


def changed(changes: Sequence[Change]) -> list[str]:
    """What became worse, then what became better."""
    lines = []
    for word, worse in (("worse", True), ("better", False)):
        for change in changes:
            if change.is_worse == worse:
                lines.append(f"{word}  " + "  ".join(filter(None, change.row())))
    return lines

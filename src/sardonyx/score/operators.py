"""What a score is about: operators with their cases, and which of them an engine has as a whole.

Cases are spread unevenly: Cast has hundreds, most operators one or two. A count of operators whose
cases all pass is the fairer headline; a count of wrong answers says whom to trust.
"""

from __future__ import annotations

from sardonyx.score import suite
from sardonyx.score.score import Column, Score

# Parts of the suite without an operator of their own, and what is in them.
NETWORKS = {
    "simple": "Small models of the suite, of several operators each.",
    "pytorch-converted": "Layers that were exported from PyTorch.",
    "pytorch-operator": "Operators that were exported from PyTorch.",
    "real": "Networks of the model zoo, with weights that are made up.",
    "node": "Cases of several operators.",
}
GOOD = ("pass", "nondeterministic")


def subjects(score: Score) -> dict[str, list[str]]:
    """Operators, and parts of the suite without one, with their cases that were run."""
    ran = set(score.cases.get("forward", ())) | set(score.cases.get("gradient", ()))
    names = {
        name: [case.name for case in cases if case.name in ran]
        for name, cases in suite.operators().items()
    }
    return dict(sorted(((n, c) for n, c in names.items() if c), key=_in_order))


def _in_order(item: tuple[str, object]) -> tuple[bool, str]:
    name = item[0]
    return name in NETWORKS, name.rpartition("::")[2].lower()


def whole(column: Column, subjects: dict[str, list[str]], axis: str = "forward") -> tuple[int, int]:
    """How many operators have no case that fails, of all that have one on this axis."""
    cells = column.cells.get(axis, {})
    rows = [
        all(cells[case].kind in GOOD for case in cases if case in cells)
        for name, cases in subjects.items()
        if name not in NETWORKS and any(case in cells for case in cases)
    ]
    return sum(rows), len(rows)

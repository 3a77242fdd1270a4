"""How documents are judged: each is imported, scored, and held against JPMML and PMML4S."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sardonyx as sx
from sardonyx.errors import ImportRefused
from tests.sweeps.pmml_pipelines import jpmml, score, start_java, wrong_columns

# Errors of JPMML that mean that a row has no result.
NO_RESULT = ("ValueCheckException", "UndefinedResult", "InvalidResult", "returnInvalid")
Documents = Iterator[tuple[str, str]]
WORDS = ("Ab", " b c ", "x", None, "Zoo9")
DATES = ("2020-02-29", "1959-12-31", None, "2000-01-01")
TIMES = ("2020-02-29T13:14:15", "1969-12-31T23:59:59", None, "2000-01-01T00:00:00")


def rows():
    import pandas as pd

    numbers = [None, -9.0, -2.5, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0, 4.0, 9.0]
    pairs = list(itertools.product(numbers, [None, -1.0, 0.0, 2.5]))
    texts = ["a", "b", "c", None, "d"]
    return pd.DataFrame(
        {
            "x": pd.Series([p[0] for p in pairs], dtype=float),
            "z": pd.Series([p[1] for p in pairs], dtype=float),
            "i": pd.Series([[0.0, 1.0, 2.0, None, 1.5][k // 3 % 5] for k in range(len(pairs))]),
            "s": pd.Series([texts[k % 5] for k in range(len(pairs))], dtype=object),
            "w": pd.Series([WORDS[k // 2 % 5] for k in range(len(pairs))], dtype=object),
            "b": pd.Series([(True, None, False)[k % 3] for k in range(len(pairs))], dtype=object),
            "d": pd.Series([DATES[k % 4] for k in range(len(pairs))], dtype=object),
            "t": pd.Series([TIMES[k % 4] for k in range(len(pairs))], dtype=object),
        }
    )


def by_jpmml(path: Path, x) -> tuple[dict[str, list], list[bool]]:
    """The columns of JPMML, and the rows that it judges: those with a result, or clearly none."""
    errors: list[str | None] = []
    theirs = jpmml(path, x, errors)
    judged = [e is None or any(word in e for word in NO_RESULT) for e in errors] or [True] * len(x)
    if not any(judged):
        raise ValueError(str(errors[0]))
    return theirs, judged


def by_pmml4s(path: Path, x) -> tuple[dict[str, list], list[bool]]:
    """The same of PMML4S, whose tables name some columns in another way."""
    from pypmml import Model

    model = Model.load(str(path))
    names = [n for n in model.inputNames if n in x.columns]
    table = model.predict(x[names])
    targets = {f"predicted_{n}": n for n in model.targetNames}
    return {targets.get(c, c): list(table[c]) for c in table.columns}, [True] * len(x)


def compared(evaluator: Any, path: Path, x: Any, actual: dict[str, Any]) -> tuple[str, str]:
    try:
        theirs, judged = evaluator(path, x)
    except Exception as error:
        return "unjudged", (str(error).strip() or repr(error)).splitlines()[0][:150]
    shared = {n: v for n, v in theirs.items() if n in actual or evaluator is by_jpmml}
    if not shared:
        return "unjudged", "no columns in common"
    problems = wrong_columns(
        {n: list(itertools.compress(v, judged)) for n, v in actual.items()},
        {n: list(itertools.compress(v, judged)) for n, v in shared.items()},
    )
    return ("wrong", str(problems[:2])) if problems else ("right", "")


def tried(text: str, path: Path, x) -> tuple[str, str]:
    path.write_text(text)
    try:
        model = sx.from_pmml(path)
    except ImportRefused as error:
        reason = " ".join(str(error).splitlines()[:2])
        judges = [j.__name__ for j in (by_jpmml, by_pmml4s) if can_score(j, path, x)]
        return "refused", f"{reason}; scored by {judges}"
    actual = score(model, x)
    verdict, reason = compared(by_jpmml, path, x, actual)
    if verdict == "right":
        return verdict, reason
    other, more = compared(by_pmml4s, path, x, actual)
    if verdict == "unjudged":
        # PMML4S reads an unknown condition as false and a fraction as an integer, and applies
        # Targets at other places: alone, it is a hint and no verdict.
        other = "PMML4S differs" if other == "wrong" else other
        return other, f"JPMML: {reason}; PMML4S: {more}"
    return ("JPMML differs" if other == "right" else "wrong"), f"{reason}; PMML4S: {other} {more}"


def can_score(evaluator: Any, path: Path, x: Any) -> bool:
    try:
        evaluator(path, x)
    except Exception:
        return False
    return True


def judge(documents: Callable[[], Documents], arguments: list[str] | None = None) -> Counter[str]:
    """Try all documents, or those whose names have a part that the command line gives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    names = parser.parse_args(arguments).names
    start_java()
    totals: Counter[str] = Counter()
    x = rows()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in documents():
            if names and not any(part in name for part in names):
                continue
            verdict, reason = tried(text, Path(folder) / "model.pmml", x)
            totals[verdict] += 1
            if verdict != "right":
                print(f"{name:70} {verdict:14} {reason}", flush=True)
    print(dict(totals))
    return totals

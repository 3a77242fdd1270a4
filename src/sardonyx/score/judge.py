"""One cell of the scoreboard: an answer against the expected one, and the class it is in.

A failure is classified by running the case again in another form (variants.py), not by reading
names or messages: what passes with older labels is version skew, what is right once types that
numpy lacks stay inside the model is a limit of the binding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sardonyx.passes.cse import RANDOM
from sardonyx.score import variants
from sardonyx.score.pool import Crashed, Refused, TimedOut, Worker
from sardonyx.score.suite import Case, every_node

# class -> (how bad, what it means); a change to a higher number is a regression
CLASSES = {
    "pass": (0, "as expected"),
    "nondeterministic": (0, "draws random numbers: type and shape are right, values are its own"),
    "tolerance only": (1, "right up to rounding, beyond the suite's tolerance"),
    "version skew": (2, "right once the version labels of the file, and nothing else, are lowered"),
    "binding limit": (
        2,
        "right once types that numpy cannot hand over stay inside of the model",
    ),
    "unsupported": (3, "refused, with an error"),
    "time-out": (4, "no answer within the time limit"),
    "crash": (4, "the process ended"),
    "wrong numbers": (5, "an answer, and it is not the right one"),
}
# An error of so many units in the last place of the largest element is rounding.
ROUNDING = 10
BFLOAT16_RTOL = 2.0**-6  # as in the suite's own comparison
PATIENCE = 1 / 3  # the share of the time limit that another form may take


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Cell:
    """What came of one case on one engine: a class, and the message that goes with it."""

    kind: str
    message: str = ""

    @property
    def is_good(self) -> bool:
        return self.kind == "pass"


@dataclass(frozen=True)
class Difference:
    """How an answer differs: not at all, in values ("close", "wrong") or in its form."""

    kind: str = "same"
    message: str = ""


# -- comparing ------------------------------------------------------------------------


def compare(
    expected: Sequence[Any], actual: Sequence[Any], rtol: float, atol: float, eps: float = 0.0
) -> Difference:
    """An answer against the expected one, by the rules of the suite.

    eps -- the unit of the coarsest float in the case, for what counts as rounding
    """
    if len(expected) != len(actual):
        return Difference("form", f"{len(actual)} outputs, not {len(expected)}")
    worst = Difference()
    order = ("same", "close", "wrong", "form")
    for index, (e, f) in enumerate(zip(expected, actual, strict=True)):
        one = _compare_one(e, f, rtol, atol, eps)
        if order.index(one.kind) > order.index(worst.kind):
            worst = Difference(one.kind, f"output {index}: {one.message}")
    return worst


def _compare_one(e: Any, f: Any, rtol: float, atol: float, eps: float) -> Difference:
    if e is None or f is None:
        return Difference() if e is f else Difference("form", "one is absent")
    if isinstance(e, (list, tuple)) or isinstance(f, (list, tuple)):
        if not (isinstance(e, (list, tuple)) and isinstance(f, (list, tuple))):
            return Difference("form", "one is a sequence")
        return compare(e, f, rtol, atol, eps)
    e, f = np.asarray(e), np.asarray(f)
    if e.shape != f.shape:
        return Difference("form", f"shape {list(f.shape)}, not {list(e.shape)}")
    if e.dtype.kind == "O" or f.dtype.kind in "OU":
        same = np.array_equal(e.astype(str), f.astype(str))
        return Difference() if same else Difference("wrong", "other text")
    if e.dtype != f.dtype:
        return Difference("form", f"{f.dtype}, not {e.dtype}")
    return _compare_numbers(e, f, rtol, atol, eps)


def _compare_numbers(
    e: np.ndarray, f: np.ndarray, rtol: float, atol: float, eps: float
) -> Difference:
    if e.dtype.name == "bfloat16":
        rtol = max(rtol, BFLOAT16_RTOL)
    wide = np.complex128 if e.dtype.kind == "c" else np.float64
    a, b = e.astype(wide), f.astype(wide)
    if e.dtype.kind in "iu" and e.dtype.itemsize == 8 and np.array_equal(e, f):
        return Difference()
    with np.errstate(all="ignore"):
        if np.allclose(b, a, rtol=rtol, atol=atol, equal_nan=True):
            return Difference()
        finite = np.isfinite(a)
        if not np.array_equal(np.where(finite, 0, a), np.where(np.isfinite(b), 0, b), True):
            return Difference("wrong", "infinities or NaN at other places")
        error = float(np.abs(np.where(finite, a - b, 0)).max())
        largest = float(np.abs(np.where(finite, a, 0)).max())
    message = f"differs by up to {error:.3g}, largest element {largest:.3g}"
    close = _is_float(e.dtype) and error <= ROUNDING * eps * largest
    return Difference("close" if close else "wrong", message)


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind in "fc" or "float" in dtype.name


def unit(values: Sequence[Any]) -> float:
    """The unit of the coarsest float of 16 bits or more among values."""
    units = [0.0]
    for value in values:
        if isinstance(value, (list, tuple)):
            units.append(unit(value))
        elif value is not None and np.asarray(value).dtype.name in UNITS:
            units.append(UNITS[np.asarray(value).dtype.name])
    return max(units)


UNITS = {
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
    "float32": 2.0**-23,
    "complex64": 2.0**-23,
    "float64": 2.0**-52,
    "complex128": 2.0**-52,
}


# -- classifying ------------------------------------------------------------------------


def judge(worker: Worker, case: Case) -> Cell:
    """The cell of one case: run as it is, then in other forms to tell why it fails."""
    first = _attempt(worker, case, case.model, None, worker.limit)
    if first.kind in ("pass", "nondeterministic", "time-out"):
        return first
    for reason, model, baked in variants.of(case):
        path = worker.write("variant.onnx", model.SerializeToString())
        again = _attempt(worker, case, path, baked, worker.limit * PATIENCE)
        if again.is_good:
            return Cell(reason, first.message)
        if again.kind == "time-out":  # the other forms would take as long
            break
    return first


def _attempt(worker: Worker, case: Case, model: Path | str, baked: Any, limit: float) -> Cell:
    for index in range(case.sets):
        expected = list(case.expected(index).values())
        data: Path | str = case.folder / f"inputs_{index}"
        if baked is not None:
            data = worker.write("inputs", baked.inputs)
            expected = baked.expected
        outputs = answer(functools.partial(worker.run, model, data, limit))
        cell = outputs if isinstance(outputs, Cell) else _cell(case, expected, outputs, index)
        if not cell.is_good:
            return cell
    return Cell("pass")


def answer(ask: Callable[[], Answer]) -> Answer | Cell:
    """What an engine answers, or the cell that says why it does not."""
    try:
        return ask()
    except Refused as error:
        # Where it said so, too: the words alone are often `list index`.
        place = f" [{error.where}]" if error.where else ""
        return Cell("unsupported", f"{error.kind}: {tidy(str(error))}{place}")
    except Crashed as error:
        return Cell("crash", tidy(str(error)))
    except TimedOut as error:
        return Cell("time-out", str(error))


def _cell(case: Case, expected: list[Any], outputs: list[Any], index: int) -> Cell:
    eps = unit([*expected, *case.inputs(index).values()])
    difference = compare(expected, outputs, case.rtol, case.atol, eps)
    if difference.kind == "same":
        return Cell("pass")
    if difference.kind != "form" and draws(case):
        return Cell("nondeterministic", difference.message)
    kind = "tolerance only" if difference.kind == "close" else "wrong numbers"
    return Cell(kind, difference.message)


def draws(case: Case) -> bool:
    """Whether a case draws random numbers: a random operator, or a Dropout that trains."""
    if RANDOM & set(case.ops):
        return True
    return "Dropout" in case.ops and any(
        node.op_type == "Dropout" and len(node.input) > 2 for node in every_node(case.proto())
    )


def tidy(message: str) -> str:
    """A message on one line, without the folders of this machine."""
    words = []
    for word in message.split():
        if word.count("/") > 1 or word.count("\\") > 1:
            head, _, last = word.replace("\\", "/").rpartition("/")
            opening = head[: len(head) - len(head.lstrip("'\"(["))]
            word = f"{opening}…/{last}" if head.lstrip("'\"([").startswith(("/", "~")) else word
        words.append(word)
    text = " ".join(words)
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 3]} … {text[-2 * SHOWN // 3 :]}"


SHOWN = 360  # characters of a message; engines say first who they are and last what is wrong

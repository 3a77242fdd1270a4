"""Cases of ONNX's text family: values only, strings that only a run knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import Case, case

DAYS = np.array(["Monday", "tuesday", "Wednesday", "monday"], object)
LINES = np.array([["a,b,,c", "", ",x"], ["y", "1,2", "äö,ß"]], object)
ADDRESSES = np.array([["a@b.com", "a@b"], ["x.y@z.org ", "Ä@b.com"]], object)


def text(op: str, *inputs: np.ndarray, id: str = "", **given: Any) -> Case:
    return case(op, *inputs, order=0, fed=True, id=id, **given)


CASES = [
    text("StringConcat", LINES, np.array([["-"], ["ß"]], object), id="broadcast"),
    text("StringConcat", np.array("a", object), np.array("", object), id="scalars"),
    text("StringSplit", LINES, delimiter=",", outputs=2, id="delimiter"),
    text("StringSplit", LINES, delimiter=",", maxsplit=1, outputs=2, id="at-most-one"),
    text("StringSplit", np.array([" a b  c ", "d"], object), outputs=2, id="white-space"),
    text("RegexFullMatch", ADDRESSES, pattern=r"[^@ ]+@[^@ ]+\.(com|org)", id="address"),
    text("RegexFullMatch", DAYS, pattern=r"\w+day\z", id="end-of-text"),
    text("StringNormalizer", DAYS, id="unchanged"),
    text(
        "StringNormalizer",
        DAYS,
        case_change_action="LOWER",
        is_case_sensitive=1,
        stopwords=["monday"],
        id="lower",
    ),
    text(
        "StringNormalizer",
        DAYS.reshape(1, 4),
        case_change_action="UPPER",
        is_case_sensitive=0,
        stopwords=["monday"],
        id="upper-insensitive",
    ),
    text(
        "StringNormalizer",
        DAYS[:1],
        is_case_sensitive=1,
        stopwords=["Monday"],
        id="nothing-left",
    ),
]

"""Operators of onnxruntime's own domain that public models contain."""

from __future__ import annotations

import re

from sardonyx.lower.driver import lowering
from sardonyx.lower.text import words

START, END = "\x02", "\x03"


@lowering("Tokenizer", domain="com.microsoft")
def tokenizer(
    xp, x, *, mark=0, mincharnum=1, pad_value="#", separators=None, stopexp=None, tokenexp=None
):
    rows = [
        [token for token in tokens(text, separators, tokenexp) if len(token) >= mincharnum]
        for text in x.flat
    ]
    if mark:
        rows = [[START, *row, END] for row in rows]
    longest = max((len(row) for row in rows), default=0)
    padded = [token for row in rows for token in row + [pad_value] * (longest - len(row))]
    return words(padded, (*x.shape, longest))


def tokens(text: str, separators: list[str] | None, tokenexp: str | None) -> list[str]:
    """The parts of a text that an expression matches, or those between separators."""
    if tokenexp:
        return [match.group() for match in re.finditer(tokenexp, text)]
    if not separators or list(separators) == [""]:
        return list(text)
    parts = [text]
    for separator in separators:
        parts = [piece for part in parts for piece in re.split(separator, part)]
    return parts

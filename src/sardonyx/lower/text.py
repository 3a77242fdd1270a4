"""Strings, as numpy's arrays of objects: the other frameworks call out for them.

The search for n-grams also takes numbers and is in `nn/ngram.py`; conversion to numbers is Cast's.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from sardonyx.lower.driver import lowering

INT64 = np.dtype(np.int64)
CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


def words(items, shape):
    """Strings as one array."""
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


@lowering("StringConcat")
def string_concat(xp, x, y):
    left, right = np.broadcast_arrays(x, y)
    return words([a + b for a, b in zip(left.flat, right.flat)], left.shape)


@lowering("StringNormalizer")
def string_normalizer(xp, x, *, case_change_action, is_case_sensitive, locale, stopwords):
    # Unicode's case mapping, whatever the locale: the same on every machine.
    change = CASES[case_change_action]
    fold = str if is_case_sensitive else str.lower
    removed = {fold(word) for word in stopwords or ()}
    rest = [change(word) for word in x.flat if fold(word) not in removed] or [""]
    return words(rest, (1, -1) if x.ndim == 2 else (-1,))


@lowering("StringSplit")
def string_split(xp, x, *, delimiter, maxsplit):
    limit = -1 if maxsplit is None else maxsplit
    parts = [word.split(delimiter or None, limit) if word else [] for word in x.flat]
    longest = max((len(p) for p in parts), default=0)
    padded = [word for p in parts for word in p + [""] * (longest - len(p))]
    counts = np.array([len(p) for p in parts], INT64).reshape(x.shape)
    return words(padded, (*x.shape, longest)), counts


@lowering("RegexFullMatch")
def regex_full_match(xp, x, *, pattern):
    # `\z` is RE2's end of text, which Python spells `\Z`.
    compiled = re.compile(re.sub(r"(?<!\\)((?:\\\\)*)\\z", r"\1\\Z", pattern))
    matches = [compiled.fullmatch(word) is not None for word in x.flat]
    return np.array(matches, bool).reshape(x.shape)

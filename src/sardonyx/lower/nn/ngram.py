"""TfIdfVectorizer: how often each n-gram of a pool occurs, skips between its elements allowed.

Elements become numbers of a vocabulary, then n-grams grow by one element at a time: a pair of
numbers is looked up among those that begin an n-gram of the pool, by a binary search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.lookup import once, search
from sardonyx.lower.xp import is_string

FLOAT32, INT64 = np.dtype(np.float32), np.dtype(np.int64)


@dataclass
class Grams:
    """The n-grams of one length: sorted pairs for each further element, then their columns."""

    length: int
    pairs: list[np.ndarray]
    columns: np.ndarray


@lowering("TfIdfVectorizer")
def tf_idf_vectorizer(
    xp,
    x,
    *,
    max_gram_length,
    max_skip_count,
    min_gram_length,
    mode,
    ngram_counts,
    ngram_indexes,
    pool_int64s,
    pool_strings,
    weights,
):
    rows = x if xp.rank(x) == 2 else xp.reshape(x, [1, -1])
    height, width = xp.shape(rows)[0], max(ngram_indexes) + 1
    vocabulary, pool = compiled(
        starts=ngram_counts,
        indexes=ngram_indexes,
        pool=pool_int64s or pool_strings,
        shortest=min_gram_length,
        longest=max_gram_length,
    )
    # One place more than there are columns, for what is no n-gram of the pool.
    total = xp.zeros([height * width + 1], FLOAT32)
    begin = xp.reshape(xp.arange(0, height, 1, INT64) * width, [height, 1])
    numbers = numbered(xp, rows, vocabulary)
    for grams in pool:
        # one element has no neighbours to skip to
        for step in range(1, (max_skip_count if grams.length > 1 else 0) + 2):
            column, matches = occurrences(xp, numbers, grams, step, len(vocabulary))
            at = xp.where(matches, begin + column, xp.zeros([1, 1], INT64) + height * width)
            flat = xp.reshape(at, [-1])
            total = xp.put(total, flat, xp.ones(xp.shape(flat), FLOAT32), "add")
    total = xp.reshape(xp.index(total, 0, 0, height * width), [height, width])
    if mode in ("IDF", "TFIDF"):
        factor = xp.asarray(column_weights(weights, ngram_indexes, width))
        if mode == "IDF":
            total = xp.cast(xp.greater(total, xp.scalar(0, total)), FLOAT32)
        total = total * factor
    return total if xp.rank(x) == 2 else xp.reshape(total, [width])


@once
def compiled(starts, indexes, pool, shortest, longest):
    """The elements of the pool in order, and its n-grams by length, as places among those."""
    vocabulary, numbers = np.unique(np.asarray(pool), return_inverse=True)
    groups, position = [], 0
    for length, (start, stop) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        grams = numbers[start:stop].reshape(-1, length)
        columns = np.asarray(indexes[position : position + len(grams)], INT64)
        position += len(grams)
        if len(grams) and shortest <= length <= longest:
            groups.append(joined(grams, columns, len(vocabulary)))
    return vocabulary, groups


def joined(grams, columns, base) -> Grams:
    state, pairs = grams[:, 0].astype(INT64), []
    for k in range(1, grams.shape[1]):
        unique, state = np.unique(state * base + grams[:, k], return_inverse=True)
        pairs.append(unique)
    # a single element may be one of longer n-grams only
    table = np.full(len(pairs[-1]) if pairs else base, -1, INT64)
    table[state] = columns
    return Grams(grams.shape[1], pairs, table)


def numbered(xp, rows, vocabulary):
    """The elements of `rows` as places in the vocabulary; -1 for those that are not in it."""
    if is_string(xp.dtype(rows)):
        place = {word: i for i, word in enumerate(vocabulary.tolist())}
        return np.array([place.get(v, -1) for v in rows.flat], INT64).reshape(rows.shape)
    at, matches = search(xp, vocabulary.astype(INT64), xp.cast(rows, INT64))
    return xp.where(matches, at, xp.full((), -1, INT64))


def occurrences(xp, numbers, grams: Grams, step, base):
    """For the n-gram that begins at each place: its column, and whether it is in the pool."""
    size = xp.shape(numbers)[1]
    beyond = xp.pad(numbers, (0, 0), (0, (grams.length - 1) * step), -1)
    zero = xp.full((), 0, INT64)
    state = numbers
    matches = xp.greater_equal(numbers, zero)
    for k, pairs in enumerate(grams.pairs, 1):
        following = xp.index(beyond, 1, k * step, k * step + size)
        state, there = search(xp, pairs, state * base + following)
        matches = xp.logical_and(matches, xp.logical_and(there, xp.greater_equal(following, zero)))
    column = xp.take(xp.asarray(grams.columns), xp.maximum(state, zero), 0)
    return column, xp.logical_and(matches, xp.greater_equal(column, zero))


def column_weights(weights, indexes, width):
    factors = np.ones(width, np.float32)
    if weights:
        factors[list(indexes)] = weights
    return factors

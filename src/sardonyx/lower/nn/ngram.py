"""TfIdfVectorizer: how often each n-gram of a pool occurs, skips between its elements allowed."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sardonyx.lower.engine import lower
from sardonyx.lower.xp import is_string

FLOAT32 = np.dtype(np.float32)


@lower("TfIdfVectorizer")
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
    width = max(ngram_indexes) + 1
    total = xp.zeros([xp.shape(rows)[0], width], FLOAT32)
    for length, grams in by_length(ngram_counts, pool_int64s or pool_strings).items():
        if not min_gram_length <= length <= max_gram_length:
            continue
        columns = [ngram_indexes[i] for i, _ in grams]
        found = counts(xp, rows, [g for _, g in grams], length, max_skip_count)
        if found is not None:
            total = xp.add(total, xp.matmul(found, xp.asarray(one_hot(columns, width))))
    if mode in ("IDF", "TFIDF"):
        factor = xp.asarray(column_weights(weights, ngram_indexes, width))
        if mode == "IDF":
            total = xp.cast(xp.greater(total, xp.scalar(0, total)), FLOAT32)
        total = total * factor
    return total if xp.rank(x) == 2 else xp.reshape(total, [width])


def by_length(starts, pool) -> dict[int, list[tuple[int, list]]]:
    """The n-grams by their length, each with its position among all."""
    found: dict[int, list[tuple[int, list]]] = defaultdict(list)
    position = 0
    for n, (start, stop) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        for at in range(start, stop, n):
            found[n].append((position, list(pool[at : at + n])))
            position += 1
    return found


def counts(xp, rows, grams, length, most_skipped):
    """How often each gram occurs in each row: (rows, grams); None where rows are too short."""
    text = is_string(xp.dtype(rows))
    table = np.array(grams, object) if text else np.array(grams, xp.dtype(rows))
    total, size = None, xp.shape(rows)[1]
    # one element has no neighbours to skip to
    for step in range(1, (most_skipped if length > 1 else 0) + 2):
        last = size - (length - 1) * step
        if isinstance(last, int) and last <= 0:
            break
        same = None
        for k in range(length):
            part = xp.expand_dims(xp.index(rows, 1, k * step, k * step + last), (2,))
            equal = xp.equal(part, xp.asarray(table[:, k].reshape(1, 1, -1)))
            same = equal if same is None else xp.logical_and(same, equal)
        found = xp.sum(xp.cast(same, FLOAT32), 1)
        total = found if total is None else xp.add(total, found)
    return total


def one_hot(columns, width):
    return (np.array(columns)[:, None] == np.arange(width)).astype(np.float32)


def column_weights(weights, indexes, width):
    made = np.ones(width, np.float32)
    if weights:
        made[list(indexes)] = weights
    return made

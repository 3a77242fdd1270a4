"""Maps: only Python has them, so that these run in numpy within every framework."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.traditionalml.score import FLOAT32, INT64, ML

CASTS: dict[str, np.dtype] = {"TO_FLOAT": FLOAT32, "TO_INT64": INT64, "TO_STRING": np.dtype(object)}


@lowering("ZipMap", domain=ML, only="numpy")
def zip_map(xp, x, *, classlabels_int64s, classlabels_strings):
    keys = classlabels_strings or classlabels_int64s
    return [dict(zip(keys, row)) for row in x.reshape(-1, len(keys)).tolist()]


@lowering("DictVectorizer", domain=ML, only="numpy")
def dict_vectorizer(xp, x, *, int64_vocabulary, string_vocabulary, dtypes):
    keys = string_vocabulary or int64_vocabulary
    dtype = dtypes[0] or np.asarray(list(x.values())).dtype
    if dtype.kind in "OUST":
        return np.array([[x.get(k, "") for k in keys]], object)
    return np.array([[x.get(k, 0) for k in keys]], dtype)


@lowering("CastMap", domain=ML, only="numpy")
def cast_map(xp, x, *, cast_to, map_form, max_map):
    dtype = CASTS[cast_to]
    items = {int(k): element(v, dtype) for k, v in x.items()}
    if map_form == "DENSE":
        values = [items[k] for k in sorted(items)]
    else:
        values = [items.get(k, element(0.0, dtype)) for k in range(max_map)]
    return np.array([values], dtype)


def element(value, dtype):
    """A value of a map as an element of an array."""
    if dtype.kind == "O":
        return value if isinstance(value, str) else f"{value:f}"
    return dtype.type(float(value))

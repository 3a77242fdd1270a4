"""Cases of ONNX's nn family whose values alone are checked: integers, indices, n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import Case, case

from .nn import ints, spaced


def whole(low: int, high: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Integers from a fixed seed."""
    rng = np.random.default_rng(int(np.prod(shape)))
    return rng.integers(low, high, shape).astype(dtype)


BYTES = whole(0, 255, (2, 4, 5, 6), np.uint8)
SIGNED = whole(-128, 127, (2, 4, 5, 6), np.int8)
KERNELS = whole(0, 255, (6, 2, 3, 2), np.uint8)
SIGNED_KERNELS = whole(-128, 127, (6, 2, 3, 2), np.int8)


def scalar(value: Any, dtype: Any) -> np.ndarray:
    return np.array(value, dtype)


QUANTIZED = [
    case("ConvInteger", BYTES, KERNELS, group=2, fed=True, order=0),
    case(
        "ConvInteger",
        BYTES,
        KERNELS,
        scalar(7, np.uint8),
        scalar(200, np.uint8),
        group=2,
        pads=[1, 0, 2, 1],
        strides=[2, 1],
        dilations=[1, 2],
        fed=True,
        order=0,
        id="zero-points",
    ),
    case(
        "QLinearConv",
        BYTES,
        scalar(0.02, np.float32),
        scalar(120, np.uint8),
        KERNELS,
        scalar(0.03, np.float32),
        scalar(90, np.uint8),
        scalar(2.5, np.float32),
        scalar(60, np.uint8),
        whole(-2000, 2000, (6,), np.int32),
        group=2,
        pads=[1, 1, 1, 1],
        fed=True,
        order=0,
        id="bias",
    ),
    case(
        "QLinearConv",
        SIGNED,
        scalar(0.02, np.float32),
        scalar(5, np.int8),
        SIGNED_KERNELS,
        np.linspace(0.01, 0.06, 6).astype(np.float32),
        np.zeros(6, np.int8),
        scalar(0.5, np.float32),
        scalar(-3, np.int8),
        group=2,
        strides=[1, 2],
        fed=True,
        order=0,
        id="per-channel",
    ),
]

POOLS = [
    case(
        "MaxPool",
        SIGNED,
        kernel_shape=[3, 2],
        pads=[1, 1, 1, 0],
        strides=[2, 1],
        fed=True,
        order=0,
        id="int8",
    ),
    case(
        "MaxPool",
        BYTES,
        kernel_shape=[2, 2],
        dilations=[2, 3],
        fed=True,
        order=0,
        id="uint8-dilated",
    ),
    case(
        "MaxPool",
        spaced(2, 3, 7, 8),
        kernel_shape=[3, 3],
        strides=[2, 3],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
        storage_order=1,
        outputs=2,
        order=0,
        id="ceil-column-major-indices",
    ),
    case(
        "MaxPool",
        spaced(2, 3, 9),
        kernel_shape=[2],
        dilations=[3],
        pads=[1, 0],
        outputs=2,
        order=0,
        id="1d-dilated-indices",
    ),
    case(
        "AveragePool",
        (2, 3, 7, 8),
        kernel_shape=[3, 3],
        strides=[3, 2],
        pads=[1, 0, 0, 1],
        ceil_mode=1,
        count_include_pad=1,
        order=0,
        id="ceil-uneven-pads-counted",
    ),
    case(
        "AveragePool",
        (2, 3, 8, 9),
        kernel_shape=[2, 3],
        strides=[2, 1],
        dilations=[2, 2],
        pads=[1, 1, 0, 2],
        ceil_mode=1,
        order=0,
        id="ceil-dilated",
    ),
]

POOL = {"ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6]}
GRAMS = {"pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7], **POOL}
TOKENS = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int64)


def n_grams(mode: str, id: str, tokens: Any = TOKENS, **given: Any) -> Case:
    options = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 5, **GRAMS, **given}
    return case("TfIdfVectorizer", tokens, mode=mode, fed=True, order=0, id=id, **options)


TEXT = [
    n_grams("TF", "counts"),
    n_grams("TF", "pairs-only", min_gram_length=2, max_skip_count=0),
    n_grams("IDF", "presence", weights=[0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]),
    n_grams("TFIDF", "weighed", TOKENS[1], weights=[0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]),
]

ATTENTION = [
    case(
        "Attention",
        (2, 4, 5, 6),
        (2, 2, 7, 6),
        (2, 2, 7, 3),
        None,
        None,
        None,
        ints(7, 3),
        is_causal=1,
        left_window_size=2,
        order=0,
        id="shared-heads-window-lengths",
    ),
    case(
        "Attention",
        (2, 5, 24),
        (2, 7, 12),
        (2, 7, 6),
        np.random.default_rng(3).random((5, 7)) > 0.5,
        q_num_heads=4,
        kv_num_heads=2,
        right_window_size=1,
        softcap=1.5,
        outputs=4,
        qk_matmul_output_mode=3,
        order=0,
        id="packed-heads-window-probabilities",
    ),
]

CASES: list[Case] = [*QUANTIZED, *POOLS, *TEXT, *ATTENTION]

"""Inputs on which an imported graph is compared with TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sardonyx.importers.tensorflow.sources import Source

SIZES = (3, 2, 8, 32, 64, 224)  # of free axes: small ones first, larger ones where those fail
Feeds = dict[str, np.ndarray]


def candidates(source: Source, example: Any) -> Iterator[tuple[int, Feeds]]:
    """Inputs to compare on, with the size of free axes: the example's, then random ones."""
    arrays = _example(source, example)
    if arrays is not None:
        yield 0, arrays
    for size in SIZES:
        for kind in range(3):
            yield size, _drawn(source, [size], kind, arrays)


def of_other_sizes(source: Source, size: int) -> Iterator[Feeds]:
    """Inputs whose free sizes differ from axis to axis, and those with sizes of one.

    A size that is taken for another one shows only where they differ.

    size -- one that TensorFlow takes for all axes
    """
    dims = [d for t in source.inputs.values() for d in t.shape.dims or []]
    if size and any(d.value is None for d in dims):
        yield _drawn(source, [size + 1, size + 2, size, size + 3], 0, None)
        yield _drawn(source, [1], 0, None)


def _example(source: Source, example: Any) -> Feeds | None:
    if example is None:
        return None
    if isinstance(example, Mapping) and set(example) == set(source.inputs):
        leaves = [example[n] for n in source.inputs]
    else:
        leaves = tf.nest.flatten(example)
    if len(leaves) != len(source.inputs) or any(isinstance(x, tf.TypeSpec) for x in leaves):
        return None
    pairs = zip(source.inputs.items(), leaves, strict=True)
    return {
        n: np.asarray(x.numpy() if tf.is_tensor(x) else x, t.dtype.as_numpy_dtype)
        for (n, t), x in pairs
    }


def _drawn(
    source: Source, sizes: Sequence[int], kind: int, example: Mapping[str, np.ndarray] | None
) -> Feeds:
    """Random inputs; `kind` is the range of numbers, and integers are those of the example.

    sizes -- of the free axes, by the number of the axis; the last one is that of all after it
    """
    rng = np.random.default_rng(sizes[0] + kind)
    definite = any(node.type == "Cholesky" for node in source.graph.get_operations())
    feeds = {}
    for name, tensor in source.inputs.items():
        array = (example or {}).get(name)
        if array is not None and array.dtype.kind != "f":
            feeds[name] = array
            continue
        dims = list(array.shape) if array is not None else [None, None]
        if array is None and tensor.shape.rank is not None:
            dims = tensor.shape.as_list()
        shape = [sizes[min(a, len(sizes) - 1)] if d is None else int(d) for a, d in enumerate(dims)]
        x = _array(rng, shape, tensor.dtype, kind, array)
        if definite and x.dtype.kind == "f" and len(shape) > 1 and shape[-1] == shape[-2]:
            x = x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1], dtype=x.dtype)
        feeds[name] = x
    return feeds


def _array(
    rng: np.random.Generator, shape: list[int], dtype: tf.DType, kind: int, example: Any
) -> np.ndarray:
    if dtype == tf.string:
        words = np.array([b"alpha", b"Beta", b"12", b"", b"gamma delta"], object)
        return words[rng.integers(0, len(words), shape)]
    numpy_type = dtype.as_numpy_dtype
    if dtype == tf.bool:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        first, last = ((0, 2), (1, 3), (0, 1))[kind]
        return rng.integers(first, last, shape).astype(numpy_type)
    if example is not None and example.size and np.isfinite(example).all():
        low, high = float(example.min()), float(example.max())
        return rng.uniform(low, high if high > low else low + 1e-6, shape).astype(numpy_type)
    if kind == 1:
        return rng.uniform(0, 1, shape).astype(numpy_type)
    return rng.normal(0, 1 if kind == 0 else 0.1, shape).astype(numpy_type)

"""The comparison of an imported graph with TensorFlow, before anybody sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from sardonyx.errors import ImportDiffers, ImportRefused, SardonyxError
from sardonyx.importers import proof
from sardonyx.importers.tensorflow.sources import Source
from sardonyx.model import Model
from sardonyx.verify import verify
from sardonyx.verify.noise import DIFFERENT, FAILS, NOT_COMPARABLE

SECONDS = 60.0
CLOSE = 1e-5  # within this, no judgement by the noise is needed
RUNS = 2
SIZES = (3, 2, 8, 32, 64, 224)  # of free axes: small ones first, larger ones where those fail
HINT = "this is a defect of the import: please report the graph; nothing was returned"


def require_same(
    model: Model, source: Source, example: Any = None, is_random: bool = False
) -> None:
    """Raise `ImportDiffers` unless the model computes what TensorFlow does."""
    runs: list[dict[str, np.ndarray]] = []
    failure = ""
    for feeds in _candidates(source, example):
        try:
            expected = run_source(source, feeds)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            failure = str(error).partition("\n")[0]
            continue
        compare(model, source, feeds, expected, is_random)
        runs.append(feeds)
        if len(runs) == RUNS:
            return
    if not runs:
        raise ImportRefused(
            "TensorFlow itself fails on every input that was tried, so nothing can be compared",
            [[failure]],
            hint="give inputs that it takes: example=[array, …]",
        )


def run_source(source: Source, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results of TensorFlow by the names of the model's outputs."""
    tensors = [tf.constant(feeds[n], t.dtype) for n, t in source.inputs.items()]
    results = source.function(*tensors)
    return {n: np.asarray(r.numpy()) for n, r in zip(source.outputs, results, strict=True)}


def compare(
    model: Model,
    source: Source,
    feeds: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    is_random: bool = False,
) -> None:
    """Hold the model against the results of TensorFlow on one set of inputs."""
    used = {v.name for v in model.inputs}
    feeds_of_model = {n: _texts(a) for n, a in feeds.items() if n in used}
    try:
        actual = proof.run(model, feeds_of_model)
    except SardonyxError as error:
        raise ImportDiffers(
            "the imported model does not run", [[str(error).partition("\n")[0]]], hint=HINT
        ) from error
    rows: list[list[object]] = []
    near = True
    for name, reference in expected.items():
        result = np.asarray(actual[name])
        if result.shape != reference.shape or not _same_type(result, reference):
            description = f"{reference.dtype}{list(reference.shape)}"
            rows.append([name, f"{result.dtype}{list(result.shape)} instead of {description}"])
        elif not is_random:
            _, problems = proof.differences(result, reference, CLOSE)
            if problems and reference.dtype.kind != "f":
                rows += [[name, *row] for row in problems]
            near = near and not problems
    if rows:
        raise ImportDiffers("the imported model and TensorFlow differ", rows, hint=HINT)
    if not near:
        _judge(model, source, feeds, feeds_of_model)


def _texts(array: np.ndarray) -> np.ndarray:
    """An array as onnxruntime takes it: texts, where TensorFlow has bytes."""
    if array.dtype.kind not in "OS":
        return array
    texts = [t.decode(errors="replace") if isinstance(t, bytes) else t for t in array.reshape(-1)]
    return np.array(texts, object).reshape(array.shape)


def _same_type(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype or (a.dtype.kind in "OSU" and b.dtype.kind in "OSU")


def _judge(
    model: Model,
    source: Source,
    feeds: Mapping[str, np.ndarray],
    model_feeds: dict[str, np.ndarray],
) -> None:
    """Whether rounding explains a difference: the ratio to the noise of float32 decides."""
    used = [v.name or "" for v in model.inputs]

    def tensorflow_graph(*arrays: Any) -> dict[str, Any]:
        return run_source(source, {**feeds, **dict(zip(used, arrays, strict=True))})

    report = verify(model, tensorflow_graph, inputs=[model_feeds], seconds=SECONDS)
    if report.verdict in (DIFFERENT, FAILS, NOT_COMPARABLE):
        lines = str(report).splitlines()
        raise ImportDiffers(
            "the imported model and TensorFlow differ", [[line] for line in lines], hint=HINT
        )


# -- inputs ---------------------------------------------------------------------------------------


def _candidates(source: Source, example: Any) -> Iterator[dict[str, np.ndarray]]:
    """Inputs to compare on: the example's, then random ones of several sizes and ranges."""
    arrays = _example(source, example)
    if arrays is not None:
        yield arrays
    for size in SIZES:
        for kind in range(3):
            yield _drawn(source, size, kind, arrays)


def _example(source: Source, example: Any) -> dict[str, np.ndarray] | None:
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
    source: Source, size: int, kind: int, example: Mapping[str, np.ndarray] | None
) -> dict[str, np.ndarray]:
    """Random inputs; `kind` is the range of numbers, and integers are those of the example."""
    rng = np.random.default_rng(size + kind)
    feeds = {}
    for name, tensor in source.inputs.items():
        array = (example or {}).get(name)
        if array is not None and array.dtype.kind != "f":
            feeds[name] = array
            continue
        dims = list(array.shape) if array is not None else [size, size]
        if array is None and tensor.shape.rank is not None:
            dims = [size if d is None else d for d in tensor.shape.as_list()]
        shape = [int(d) for d in dims]
        feeds[name] = _array(rng, shape, tensor.dtype, kind, array)
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

"""The comparison of an imported graph with TensorFlow, before anybody sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from sardonyx.errors import ImportDiffers, ImportRefused, SardonyxError
from sardonyx.importers import proof
from sardonyx.importers.tensorflow.draws import candidates, of_other_sizes
from sardonyx.importers.tensorflow.sources import Source
from sardonyx.model import Model
from sardonyx.verify import verify
from sardonyx.verify.noise import DIFFERENT, FAILS, NOT_COMPARABLE

SECONDS = 60.0
CLOSE = 1e-5  # within this, no judgement by the noise is needed
RUNS = 2
FAILURES = (tf.errors.OpError, ValueError, TypeError)  # of TensorFlow, for inputs it does not take
NOT_RUN = "the imported model does not run"
HINT = "this is a defect of the import: please report the graph; nothing was returned"


def require_same(
    model: Model, source: Source, example: Any = None, is_random: bool = False
) -> None:
    """Raise `ImportDiffers` unless the model computes what TensorFlow does."""
    sizes: list[int] = []
    failure = ""
    for size, feeds in candidates(source, example):
        try:
            expected = run_source(source, feeds)
        except FAILURES as error:
            failure = str(error).partition("\n")[0]
            continue
        compare(model, source, feeds, expected, is_random)
        sizes.append(size)
        if len(sizes) == RUNS:
            break
    if not sizes:
        raise ImportRefused(
            "TensorFlow itself fails on every input that was tried, so nothing can be compared",
            [[failure]],
            hint="give inputs that it takes: example=[array, …]",
        )
    if example is None and not is_random:
        _require_same_sizes(model, source, sizes[0])


def _require_same_sizes(model: Model, source: Source, size: int) -> None:
    """Compare on other sizes that TensorFlow takes.

    That a result is empty or not finite says that a size is too small: what the model does then is
    of no use to anybody.
    """
    for feeds in of_other_sizes(source, size):
        try:
            expected = run_source(source, feeds)
        except FAILURES:
            continue
        numbers = [a for a in expected.values() if a.dtype.kind == "f"]
        is_empty = any(not a.size for a in expected.values())
        if is_empty or any(not np.isfinite(a).all() for a in numbers):
            continue
        compare(model, source, feeds, expected)


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
        raise ImportDiffers(NOT_RUN, [[str(error).partition("\n")[0]]], hint=HINT) from error
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

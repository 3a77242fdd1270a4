"""Two branches of a graph of tensorflow, of which one may be invalid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.engines.tensorflow.sizes import tf
from sardonyx.errors import EngineError
from sardonyx.lower.program import DependsOnData
from sardonyx.lower.run_limits import LimitReached
from sardonyx.lower.xp import NotStatic

Branch = Callable[[], Sequence[Any]]


def as_tensors(xp: Any, values: Sequence[Any]) -> list[Any]:
    if any(isinstance(v, (list, dict)) for v in values):
        raise NotStatic("an If or Loop that depends on data has sequences as outputs")
    return [xp.asarray(v) for v in values]


# NOTE [a branch that fails]: a model may have a branch for each of several sizes or ranks of its
# input, and only one of them is valid (silero_vad: one for each sampling rate). tensorflow builds
# both. The invalid one becomes a node that raises its error if that branch is ever chosen.


def branched(xp: Any, condition: Any, branches: Sequence[Branch]) -> list[Any]:
    """The results of the branch that a condition chooses; a branch that cannot be built is an
    error only if it is chosen.
    """
    failures: dict[int, EngineError] = {}
    types: list[tuple[Any, Any]] = []

    def build(number: int) -> list[Any]:
        if number in failures:
            return failing(failures[number], types, condition)
        try:
            results = as_tensors(xp, branches[number]())
        except (DependsOnData, LimitReached):
            raise
        except EngineError as failure:
            failures[number] = failure
            raise
        types[:] = [(v.dtype, v.shape) for v in results]
        return results

    try:
        return list(tf.cond(condition, lambda: build(0), lambda: build(1)))
    except EngineError:
        if not failures:
            raise
        # The valid branch is built first: it shows the types of the results.
        (invalid,) = failures
        is_valid = condition if invalid else tf.logical_not(condition)
        return list(tf.cond(is_valid, lambda: build(1 - invalid), lambda: build(invalid)))


def failing(failure: EngineError, types: Sequence[tuple[Any, Any]], condition: Any) -> list[Any]:
    """An error at run time, in the place of results of these types and shapes."""
    message = f"the branch that is chosen is invalid for these inputs: {failure}"
    with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [message])]):
        # XLA leaves assertions out. It has no kernels for text, so that it cannot pass over this.
        count = tf.strings.length(tf.strings.as_string(condition)) * 0
        return [no_elements(dtype, shape, count) for dtype, shape in types]


def no_elements(dtype: Any, shape: Any, count: Any) -> Any:
    """A tensor that claims a shape and has no elements."""
    empty = tf.compat.v1.placeholder_with_default(tf.zeros([count], dtype), None)
    empty.set_shape(shape)
    return empty

"""tensorflow's own kernels for ONNX's family controlflow: tf.cond and tf.while_loop.

Conditions and trip counts that are known while building are decided in Python, as everywhere.
"""

from __future__ import annotations

import numpy as np

from sardonyx.engines.tensorflow.xp import tf
from sardonyx.lower import controlflow
from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import NotStatic


def is_static(value):
    return value is None or tf.executing_eagerly() or isinstance(value, np.ndarray)


def static(xp, value):
    return value if value is None or isinstance(value, np.ndarray) else xp.static(value)


def as_tensors(xp, values):
    if any(isinstance(v, (list, dict)) for v in values):
        raise NotStatic("an If or Loop that depends on data has sequences as outputs")
    return [xp.asarray(v) for v in values]


@lowering("If", only="tensorflow", either=("cond",))
def if_(xp, cond, *, then_branch, else_branch):
    if is_static(cond):
        cond = static(xp, cond)
        return controlflow.if_(xp, cond, then_branch=then_branch, else_branch=else_branch)
    branches = [lambda b=b: as_tensors(xp, b()) for b in (then_branch, else_branch)]
    return tuple(tf.cond(tf.reshape(cond, ()), *branches))


@lowering("Loop", only="tensorflow", either=("M", "cond"))
def loop(xp, M=None, cond=None, *state, body, count, dtypes):
    if is_static(M) and is_static(cond):
        try:
            M, cond = static(xp, M), static(xp, cond)
            return controlflow.loop(xp, M, cond, *state, body=body, count=count)
        except NotStatic:
            pass
    trips = tf.constant(controlflow.UNBOUNDED) if M is None else tf.reshape(M, ())
    running = tf.constant(True) if cond is None else tf.reshape(cond, ())
    state = as_tensors(xp, state)
    forms: list[tf.TensorShape] = []

    def step(i, running, state, rows):
        going_on, *results = body(i, np.array(True), *state)
        results = as_tensors(xp, results)
        forms[:] = [v.shape for v in results[len(state) :]]
        running = tf.reshape(tf.cast(xp.asarray(going_on), tf.bool), ())
        rows = [a.write(tf.cast(i, tf.int32), v) for a, v in zip(rows, results[len(state) :])]
        return i + 1, running, results[: len(state)], rows

    row_dtypes = [tf.as_dtype(xp.storage(t)) for t in dtypes[len(state) :]]
    start = tf.constant(0, tf.int64)
    arrays = [tf.TensorArray(t, 0, dynamic_size=True, infer_shape=False) for t in row_dtypes]
    # Sizes may change from trip to trip, ranks may not.
    shapes = [tf.TensorShape([None] * len(s.shape)) for s in state]
    free = (start.shape, running.shape, shapes, [tf.TensorShape(None)] * len(arrays))
    _, _, state, rows = tf.while_loop(
        lambda i, running, *_: running & (i < trips), step, (start, running, state, arrays), free
    )
    return (*state, *(tf.ensure_shape(a.stack(), [None, *f]) for a, f in zip(rows, forms)))

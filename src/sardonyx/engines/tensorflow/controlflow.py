"""tensorflow's own kernels for ONNX's family controlflow: what data decides, inside tf.function.

What is known while building decides in Python, as everywhere.
"""

from __future__ import annotations

import numpy as np

from sardonyx.engines.tensorflow.xp import tf
from sardonyx.lower import controlflow
from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import NotStatic


def known(value):
    return value is None or tf.executing_eagerly() or isinstance(value, np.ndarray)


def static(xp, value):
    return value if value is None or isinstance(value, np.ndarray) else xp.static(value)


def held(xp, values):
    if any(isinstance(v, (list, dict)) for v in values):
        raise NotStatic("a branch or loop that data decides gives sequences")
    return [xp.asarray(v) for v in values]


@lowering("If", only="tensorflow", either=("cond",))
def if_(xp, cond, *, then_branch, else_branch):
    if known(cond):
        cond = static(xp, cond)
        return controlflow.if_(xp, cond, then_branch=then_branch, else_branch=else_branch)
    branches = [lambda b=b: held(xp, b()) for b in (then_branch, else_branch)]
    return tuple(tf.cond(tf.reshape(cond, ()), *branches))


@lowering("Loop", only="tensorflow", either=("M", "cond"))
def loop(xp, M=None, cond=None, *state, body, count, dtypes):
    if known(M) and known(cond):
        try:
            M, cond = static(xp, M), static(xp, cond)
            return controlflow.loop(xp, M, cond, *state, body=body, count=count)
        except NotStatic:
            pass
    trips = tf.constant(controlflow.UNBOUNDED) if M is None else tf.reshape(M, ())
    going = tf.constant(True) if cond is None else tf.reshape(cond, ())
    state = held(xp, state)
    forms: list[tf.TensorShape] = []

    def step(i, going, state, rows):
        going_on, *found = body(i, np.array(True), *state)
        found = held(xp, found)
        forms[:] = [v.shape for v in found[len(state) :]]
        going = tf.reshape(tf.cast(xp.asarray(going_on), tf.bool), ())
        rows = [a.write(tf.cast(i, tf.int32), v) for a, v in zip(rows, found[len(state) :])]
        return i + 1, going, found[: len(state)], rows

    kept = [tf.as_dtype(xp.storage(t)) for t in dtypes[len(state) :]]
    start = tf.constant(0, tf.int64)
    arrays = [tf.TensorArray(t, 0, dynamic_size=True, infer_shape=False) for t in kept]
    # Sizes may change from trip to trip, ranks may not.
    shapes = [tf.TensorShape([None] * len(s.shape)) for s in state]
    free = (start.shape, going.shape, shapes, [tf.TensorShape(None)] * len(arrays))
    _, _, state, rows = tf.while_loop(
        lambda i, going, *_: going & (i < trips), step, (start, going, state, arrays), free
    )
    return (*state, *(tf.ensure_shape(a.stack(), [None, *f]) for a, f in zip(rows, forms)))

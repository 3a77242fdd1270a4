"""tensorflow's own kernels for ONNX's family controlflow: tf.cond and tf.while_loop.

Conditions and trip counts that are known while building are decided in Python, as everywhere.
"""

from __future__ import annotations

import numpy as np

from sardonyx.engines.tensorflow.branches import as_tensors, branched
from sardonyx.engines.tensorflow.xp import tf
from sardonyx.lower import controlflow
from sardonyx.lower.driver import lowering
from sardonyx.lower.fork import Fork
from sardonyx.lower.xp import NotStatic, positive


def is_static(value):
    return value is None or tf.executing_eagerly() or isinstance(value, np.ndarray)


def static(xp, value):
    return value if value is None or isinstance(value, np.ndarray) else xp.static(value)


@lowering("If", only="tensorflow", either=("cond",))
def if_(xp, cond, *, then_branch, else_branch):
    if is_static(cond):
        cond = static(xp, cond)
        return controlflow.if_(xp, cond, then_branch=then_branch, else_branch=else_branch)
    condition = tf.reshape(cond, ())
    outputs = tuple(branched(xp, condition, (then_branch, else_branch)))
    if any(v.shape.rank is None for v in outputs):
        # The rest is built in each branch; what was built here is read by nothing.
        alternatives = (
            lambda rest: then_branch(continuation=rest),
            lambda rest: else_branch(continuation=rest),
        )
        return Fork(condition, alternatives)
    return outputs


@lowering("Scan", only="tensorflow")
def scan(xp, *inputs, body, num_scan_inputs, dtypes, **options):
    state_count = len(inputs) - num_scan_inputs
    axes = options["scan_input_axes"] or [0] * num_scan_inputs
    if tf.executing_eagerly() or isinstance(xp.shape(inputs[state_count])[axes[0]], int):
        options["num_scan_inputs"] = num_scan_inputs
        return controlflow.scan(xp, *inputs, body=body, **options)
    backwards = options["scan_input_directions"] or [0] * num_scan_inputs
    rows = [
        xp.move(x, positive(axis, xp.rank(x)), 0) for x, axis in zip(inputs[state_count:], axes)
    ]
    rows = [xp.flip(row, (0,)) if back else row for row, back in zip(rows, backwards)]

    def step(state, row):
        results = as_tensors(xp, body(*state, *row))
        return tuple(results[:state_count]), tuple(results[state_count:])

    row_dtypes = [xp.storage(t) for t in dtypes[state_count:]]
    state, columns = xp.scan(step, inputs[:state_count], rows, row_dtypes)
    count = len(columns)
    turned = options["scan_output_directions"] or [0] * count
    places = options["scan_output_axes"] or [0] * count
    columns = [xp.flip(c, (0,)) if back else c for c, back in zip(columns, turned)]
    return (*state, *(xp.move(c, 0, positive(p, xp.rank(c))) for c, p in zip(columns, places)))


@lowering("Loop", only="tensorflow", either=("M", "cond"))
def loop(xp, M=None, cond=None, *state, body, count, dtypes):
    if is_static(M) and is_static(cond):
        try:
            M, cond = static(xp, M), static(xp, cond)
            return controlflow.loop(xp, M, cond, *state, body=body, count=count)
        except NotStatic:
            pass
    trips = tf.constant(controlflow.UNBOUNDED) if M is None else tf.reshape(xp.asarray(M), ())
    running = tf.constant(True) if cond is None else tf.reshape(cond, ())
    initial = as_tensors(xp, state)
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
    shapes = [tf.TensorShape([None] * len(s.shape)) for s in initial]
    free = (start.shape, running.shape, shapes, [tf.TensorShape(None)] * len(arrays))
    done, _, state, rows = tf.while_loop(
        lambda i, running, *_: running & (i < trips), step, (start, running, initial, arrays), free
    )
    if not rows:
        return tuple(state)
    stacks = tf.cond(
        done > 0,
        lambda: [a.stack() for a in rows],
        lambda: as_tensors(xp, controlflow.no_rows(xp, body, initial)),
    )
    return (*state, *(tf.ensure_shape(v, [None, *f]) for v, f in zip(stacks, forms)))

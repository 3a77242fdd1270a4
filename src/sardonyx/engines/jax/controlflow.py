"""jax's own kernels for ONNX's family controlflow: branches and loops that data decides, under jit.

What is known while building decides in Python, as everywhere; shapes stay the same in a loop.
"""

from __future__ import annotations

import numpy as np
from jax import lax

from sardonyx.engines.jax.xp import is_traced, jax
from sardonyx.lower import controlflow
from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import NotStatic

DIFFERENTIABLE = 1 << 10  # up to so many trips a loop is one that jax can go through backwards
LONG = 8  # scans of more steps are loops of XLA, shorter ones are written out


def known(value):
    return value is None or isinstance(value, np.ndarray)


def held(xp, values):
    return tuple(jax.tree.map(xp.asarray, v) for v in values)


@lowering("If", only="jax", either=("cond",))
def if_(xp, cond, *, then_branch, else_branch):
    if not is_traced(cond):
        return controlflow.if_(xp, cond, then_branch=then_branch, else_branch=else_branch)
    branches = [lambda b=b: held(xp, b()) for b in (then_branch, else_branch)]
    return lax.cond(cond.reshape(()), *branches)


@lowering("Loop", only="jax", either=("M", "cond"))
def loop(xp, M=None, cond=None, *state, body, count):
    M, cond = (v if v is None or is_traced(v) else np.asarray(v) for v in (M, cond))
    if known(M) and known(cond):
        try:
            return controlflow.loop(xp, M, cond, *state, body=body, count=count)
        except NotStatic:
            pass
    if count > len(state):
        raise NotStatic("a loop stacks rows, but how many depends on data")
    trips = np.array(controlflow.UNBOUNDED) if M is None else M.reshape(())
    going = np.array(True) if cond is None else cond.reshape(())

    def step(i, state):
        going_on, *found = body(i, np.array(True), *state)
        return xp.asarray(going_on).reshape(()).astype(bool), held(xp, found)

    state = held(xp, state)
    if known(M) and M is not None and trips <= DIFFERENTIABLE:
        return _bounded(int(trips), going, state, step)
    start = (np.int64(0), xp.asarray(going).astype(bool), state)
    _, _, state = lax.while_loop(
        lambda at: at[1] & (at[0] < trips), lambda at: (at[0] + 1, *step(at[0], at[2])), start
    )
    return tuple(state)


def _bounded(trips, going, state, step):
    """A loop of at most `trips`, which goes on idly after its condition failed."""

    def trip(at, i):
        return lax.cond(at[0], lambda: step(i, at[1]), lambda: at), None

    start = (jax.numpy.asarray(going, bool), state)
    (_, state), _ = lax.scan(trip, start, np.arange(trips, dtype=np.int64))
    return tuple(state)


@lowering("Scan", only="jax")
def scan(xp, *given, body, num_scan_inputs, **options):
    first = len(given) - num_scan_inputs
    axis = (options["scan_input_axes"] or [0])[0]
    if given[first].shape[axis] <= LONG:
        return controlflow.scan(xp, *given, body=body, num_scan_inputs=num_scan_inputs, **options)
    count = num_scan_inputs
    axes = options["scan_input_axes"] or [0] * count
    backwards = options["scan_input_directions"] or [0] * count
    rows = [jax.numpy.moveaxis(x, a, 0) for x, a in zip(given[first:], axes)]
    rows = [r[::-1] if b else r for r, b in zip(rows, backwards)]

    def step(state, row):
        found = held(xp, body(*state, *row))
        return found[:first], found[first:]

    state, columns = lax.scan(step, tuple(given[:first]), tuple(rows))
    turned = options["scan_output_directions"] or [0] * len(columns)
    places = options["scan_output_axes"] or [0] * len(columns)
    columns = [c[::-1] if t else c for c, t in zip(columns, turned)]
    return (*state, *(jax.numpy.moveaxis(c, 0, p) for c, p in zip(columns, places)))

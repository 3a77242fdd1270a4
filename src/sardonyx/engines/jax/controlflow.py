"""jax's own kernels for ONNX's family controlflow: lax.cond, while_loop and scan.

Conditions and trip counts that are known while building are decided in Python, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from jax import lax

from sardonyx.engines.jax.xp import is_traced, jax
from sardonyx.errors import EngineError
from sardonyx.lower import controlflow
from sardonyx.lower.driver import lowering
from sardonyx.lower.program import DependsOnData
from sardonyx.lower.run_limits import LimitReached
from sardonyx.lower.xp import NotStatic, is_symbolic

_EXPORTING: ContextVar[bool] = ContextVar("exporting", default=False)
DIFFERENTIABLE = 1 << 10  # up to so many trips a loop becomes a scan, which jax differentiates
LONG = 8  # scans of more steps are loops of XLA, shorter ones are written out


def is_exporting() -> bool:
    return _EXPORTING.get()


@contextmanager
def exporting() -> Iterator[None]:
    """Where every branch must be valid: a file of `jax.export` holds no callbacks, and what fails
    while sizes are symbols may be valid at some of them.
    """
    token = _EXPORTING.set(True)
    try:
        yield
    finally:
        _EXPORTING.reset(token)


def is_static(value):
    return value is None or isinstance(value, np.ndarray)


def as_arrays(xp, values):
    return tuple(jax.tree.map(xp.asarray, v) for v in values)


@lowering("If", only="jax", either=("cond",))
def if_(xp, cond, *, then_branch, else_branch):
    if not is_traced(cond):
        return controlflow.if_(xp, cond, then_branch=then_branch, else_branch=else_branch)
    branches = [lambda b=b: as_arrays(xp, b()) for b in (then_branch, else_branch)]
    condition = cond.reshape(())
    try:
        return lax.cond(condition, *branches)
    except EngineError as error:
        if isinstance(error, (DependsOnData, LimitReached)) or is_exporting():
            raise
        return lax.cond(condition, *_with_one_failing(branches, error))
    except TypeError as error:
        if "branches must have equal output types" not in str(error):
            raise
        different = "a computed condition chooses between branches with different output shapes"
        raise NotStatic(different) from error


# NOTE [a branch that fails]: a model may have one branch for each of several sizes of its input
# (silero_vad: one for each sampling rate), and none but the chosen one is valid at the size in use.
# jax builds both. The invalid one becomes a callback that raises its error if it is ever chosen.


def _with_one_failing(branches, error):
    """The branches with the one that cannot be built replaced by its error, which is raised when
    that branch is chosen; `error` itself if no branch can be built.
    """
    shapes, failures = [], {}
    for branch in branches:
        try:
            shapes.append(jax.eval_shape(branch))
        except (DependsOnData, LimitReached):
            raise
        except EngineError as failure:
            failures[branch] = failure
    if not shapes:
        raise error

    def raising(failure):
        def fail():
            raise failure

        return lambda: jax.pure_callback(fail, shapes[0], vmap_method="sequential")

    return [raising(failures[b]) if b in failures else b for b in branches]


@lowering("Loop", only="jax", either=("M", "cond", "state"))
def loop(xp, M=None, cond=None, *state, body, count):
    M = xp.asarray(M) if is_symbolic(M) else M  # a size that jax.export leaves free
    M, cond = (v if v is None or is_traced(v) else np.asarray(v) for v in (M, cond))
    if is_static(M) and is_static(cond):
        try:
            return controlflow.loop(xp, M, cond, *state, body=body, count=count)
        except NotStatic:
            pass
    if count > len(state):
        raise NotStatic("a loop stacks rows, and their number depends on data")
    trips = np.array(controlflow.UNBOUNDED) if M is None else M.reshape(())
    running = np.array(True) if cond is None else cond.reshape(())

    def step(i, state):
        going_on, *results = body(i, np.array(True), *state)
        return xp.asarray(going_on).reshape(()).astype(bool), as_arrays(xp, results)

    state = as_arrays(xp, state)
    if is_static(M) and M is not None and trips <= DIFFERENTIABLE:
        return _bounded(int(trips), running, state, step)
    start = (np.int64(0), xp.asarray(running).astype(bool), state)
    _, _, state = lax.while_loop(
        lambda at: at[1] & (at[0] < trips), lambda at: (at[0] + 1, *step(at[0], at[2])), start
    )
    return tuple(state)


def _bounded(trips, running, state, step):
    """A loop of at most `trips`, which goes on idly after its condition failed."""

    def trip(at, i):
        return lax.cond(at[0], lambda: step(i, at[1]), lambda: at), None

    start = (jax.numpy.asarray(running, bool), state)
    (_, state), _ = lax.scan(trip, start, np.arange(trips, dtype=np.int64))
    return tuple(state)


@lowering("Scan", only="jax")
def scan(xp, *inputs, body, num_scan_inputs, **options):
    first = len(inputs) - num_scan_inputs
    axis = (options["scan_input_axes"] or [0])[0]
    length = inputs[first].shape[axis]
    if isinstance(length, int) and length <= LONG:
        return controlflow.scan(xp, *inputs, body=body, num_scan_inputs=num_scan_inputs, **options)
    count = num_scan_inputs
    axes = options["scan_input_axes"] or [0] * count
    backwards = options["scan_input_directions"] or [0] * count
    rows = [jax.numpy.moveaxis(x, a, 0) for x, a in zip(inputs[first:], axes)]
    rows = [r[::-1] if b else r for r, b in zip(rows, backwards)]

    def step(state, row):
        results = as_arrays(xp, body(*state, *row))
        return results[:first], results[first:]

    state, columns = lax.scan(step, tuple(inputs[:first]), tuple(rows))
    turned = options["scan_output_directions"] or [0] * len(columns)
    places = options["scan_output_axes"] or [0] * len(columns)
    columns = [c[::-1] if t else c for c, t in zip(columns, turned)]
    return (*state, *(jax.numpy.moveaxis(c, 0, p) for c, p in zip(columns, places)))

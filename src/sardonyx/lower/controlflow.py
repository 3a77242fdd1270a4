"""Lowerings of ONNX's family controlflow: branches and loops, whose bodies come as functions.

Conditions and trip counts that are known while building are decided in Python. Those that depend on
data need each framework's own kernels (`engines/<framework>/controlflow.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.run_limits import spend
from sardonyx.lower.xp import positive

UNBOUNDED = 1 << 62


@lowering("If", static=("cond",))
def if_(xp, cond, *, then_branch, else_branch):
    return then_branch() if bool(np.asarray(cond).reshape(())) else else_branch()


def is_true(xp, cond):
    value = cond if isinstance(cond, np.ndarray) else xp.static(cond)
    return bool(value.reshape(()))


@lowering("Loop", static=("M", "cond"))
def loop(xp, M=None, cond=None, *state, body, count):
    trips = UNBOUNDED if M is None else int(M.reshape(-1)[0])
    running = True if cond is None else bool(cond.reshape(-1)[0])
    scanned: list[list[Any]] = [[] for _ in range(count - len(state))]
    i = 0
    while running and i < trips:
        spend(trips=1)
        going_on, *results = body(np.array(i, np.int64), np.array(True), *state)
        state, rows = tuple(results[: len(state)]), results[len(state) :]
        for rows_so_far, row in zip(scanned, rows):
            rows_so_far.append(row)
        running = is_true(xp, going_on)
        i += 1
    if scanned and not i:
        return (*state, *no_rows(xp, body, state))
    return (*state, *(joined(xp, rows) for rows in scanned))


def no_rows(xp, body, state):
    """What a loop without iterations stacks: only an iteration shows the shapes of its rows."""
    _, *results = body(np.array(0, np.int64), np.array(True), *state)
    stacks = [joined(xp, [row]) for row in results[len(state) :]]
    return tuple(v[:0] if isinstance(v, np.ndarray) else xp.index(v, 0, 0, 0) for v in stacks)


def joined(xp, rows):
    """Rows stacked along a new first axis, those known while building among them."""
    if all(isinstance(r, np.ndarray) for r in rows):
        return np.stack(rows)
    return xp.stack([xp.asarray(r) for r in rows], 0)


@lowering("Scan")
def scan(
    xp,
    *inputs,
    body,
    num_scan_inputs,
    scan_input_axes,
    scan_input_directions,
    scan_output_axes,
    scan_output_directions,
):
    state_count = len(inputs) - num_scan_inputs
    state, sequences = list(inputs[:state_count]), inputs[state_count:]
    axes = scan_input_axes or [0] * num_scan_inputs
    backwards = scan_input_directions or [0] * num_scan_inputs
    axes = [positive(a, xp.rank(x)) for a, x in zip(axes, sequences)]
    steps = xp.shape(sequences[0])[axes[0]]
    rows = []
    for i in range(steps):
        spend(trips=1)
        at = [steps - 1 - i if b else i for b in backwards]
        parts = [xp.squeeze(xp.index(x, a, p, p + 1), (a,)) for x, a, p in zip(sequences, axes, at)]
        results = body(*state, *parts)
        state = list(results[:state_count])
        rows.append(results[state_count:])
    outputs = []
    for k, column in enumerate(zip(*rows)):
        column = column[::-1] if scan_output_directions and scan_output_directions[k] else column
        stacked = joined(xp, column)
        axis = scan_output_axes[k] if scan_output_axes else 0
        axis = positive(axis, len(stacked.shape))
        outputs.append(stacked if axis == 0 else xp.move(xp.asarray(stacked), 0, axis))
    return (*state, *outputs)

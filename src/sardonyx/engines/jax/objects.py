"""A training record as functions of jax: the model, its loss, and an optax transformation.

Optimizers that optax computes alike are chains of its own transformations; the others, and records
that accumulate or average, are one transformation that computes what the record says. Either way
its state holds the slots of the record, and `slots_of` reads them back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sardonyx.engines.jax.convert import to_jax
from sardonyx.engines.jax.xp import arrays, enable_x64, jax, jnp
from sardonyx.errors import ArgumentError, MissingExtra, quote
from sardonyx.lower.program import Program
from sardonyx.model import Model
from sardonyx.record.builder import SEED, STEP
from sardonyx.record.modes import mode_of
from sardonyx.record.native_step import NotNative, split_step
from sardonyx.record.reading import (
    Group,
    Reading,
    loss_model,
    mode_of_layers,
    predicting,
    read_record,
)
from sardonyx.record.schedule import factor_at

try:
    import optax
except ImportError as error:
    raise MissingExtra("optax", "jax") from error

Arrays = Mapping[str, Any]


def training_objects(model: Model, fallback: str) -> tuple[Any, ...]:
    """`(apply, params, loss, tx, opt_state)` of the only record of a model."""
    reading = read_record(model)
    _refuse_layers(reading)
    apply, params = to_jax(predicting(reading), fallback=fallback)
    compute, constants = to_jax(loss_model(reading), fallback="error")
    loss = functools.partial(compute, constants)
    if not is_plain(reading):
        tx = _recorded(reading)
        return apply, params, loss, tx, tx.init(params)
    tx = _chain(reading, params)
    return apply, params, loss, tx, _filled(tx.init(params), reading, reading.groups[0])


def _refuse_layers(reading: Reading) -> None:
    """Refuse layers that keep statistics or draw masks: a pure function of params does not."""
    modes = mode_of_layers(reading)
    rows = [
        [node.op_type, quote(node.name or node.outputs[0].name)]
        for node in reading.model.graph
        if node.op_type in modes and mode_of(node, modes[node.op_type]) == "train"
    ]
    if rows:
        raise ArgumentError(
            f"{rows[0][0]} trains in this record, and apply(params, …) has no state for it",
            rows,
            hint='make the record with batch_norm="frozen" and dropout="frozen", or train it with '
            'sx.train(…, engine="jax")',
        )


# -- optimizers that optax has ----------------------------------------------------------------

NATIVE = ("sgd", "adam", "adamw", "lion", "lamb", "rmsprop")
NOT_ALIKE = ("dampening", "amsgrad", "momentum_schedule")  # settings that optax lacks
FROZEN = "frozen"
# state of optax → its fields: our slot, and by what optax's number is divided
Fields = dict[str, tuple[str, Callable[[Mapping[str, Any]], float]]]
_ONE: Callable[[Mapping[str, Any]], float] = lambda settings: 1.0
SLOTS: dict[str, Fields] = {
    "ScaleByAdamState": {
        "mu": ("adam_m", lambda s: 1.0 - s["b1"]),
        "nu": ("adam_v", lambda s: 1.0 - s["b2"]),
    },
    "TraceState": {"trace": ("momentum", _ONE)},
    "ScaleByLionState": {"mu": ("lion_m", _ONE)},
    "ScaleByRmsState": {"nu": ("square_avg", _ONE)},
    "ScaleByRStdDevState": {"mu": ("grad_avg", _ONE), "nu": ("square_avg", _ONE)},
}


def is_plain(reading: Reading) -> bool:
    """Whether optax's own transformations compute what the record says."""
    return (
        reading.optimizer in NATIVE
        and not any(reading.settings.get(name) for name in ("accumulate", "ema"))
        and not any(group.settings.get(n) for group in reading.groups for n in NOT_ALIKE)
    )


def _chain(reading: Reading, params: Arrays) -> Any:
    labels = dict.fromkeys(params, FROZEN)
    transforms: dict[str, Any] = {FROZEN: optax.set_to_zero()}
    for number, group in enumerate(reading.groups):
        transforms[str(number)] = _transform(reading.optimizer, group)
        labels |= dict.fromkeys(group.names, str(number))
    limit, norm = reading.settings.get("clip_value"), reading.settings.get("clip_norm")
    trained = set(reading.parameters)
    parts = []
    if limit is not None:
        parts.append(optax.clip(limit))
    if norm is not None:
        parts.append(optax.stateless(functools.partial(_clipped, norm, trained)))
    return optax.chain(*parts, optax.multi_transform(transforms, labels))


def _clipped(limit: float, trained: set[str], updates: Arrays, params: Any) -> Arrays:
    """Gradients scaled to a norm of at most `limit`, by torch's formula."""
    squares = [jnp.sum(jnp.square(updates[n].astype(float))) for n in updates if n in trained]
    factor = jnp.minimum(limit / (jnp.sqrt(sum(squares)) + 1e-6), 1.0)
    return {n: (g * factor).astype(g.dtype) for n, g in updates.items()}


def _transform(name: str, group: Group) -> Any:
    """The transformation of one group."""
    s = group.settings
    decay = s.get("weight_decay") or 0.0
    parts = [optax.scale(-1.0)] if s.get("maximize") else []
    if decay and name in ("sgd", "adam", "rmsprop"):
        parts.append(optax.add_decayed_weights(decay))
    if name in ("adam", "adamw", "lamb"):
        parts.append(optax.scale_by_adam(s["b1"], s["b2"], s["eps"]))
    elif name == "lion":
        parts.append(optax.scale_by_lion(s["b1"], s["b2"]))
    elif name == "rmsprop":
        scale = optax.scale_by_stddev if s["centered"] else optax.scale_by_rms
        parts.append(scale(s["alpha"], s["eps"], eps_in_sqrt=False))
    if s.get("momentum"):
        parts.append(optax.trace(s["momentum"], bool(s.get("nesterov"))))
    if decay and name in ("adamw", "lion", "lamb"):
        parts.append(optax.add_decayed_weights(decay))
    if name == "lamb":
        parts.append(optax.scale_by_trust_ratio())
    if group.schedule is None:
        return optax.chain(*parts, optax.scale(-s["lr"]))
    rate = lambda count: -s["lr"] * factor_at(group.schedule, count, jnp)
    return optax.chain(*parts, optax.scale_by_schedule(rate))


def _filled(state: Any, reading: Reading, group: Group) -> Any:
    """A new state of optax with the slots of the record in it."""
    if isinstance(state, dict):
        numbers = {str(i): g for i, g in enumerate(reading.groups)}
        return {k: _filled(v, reading, numbers.get(k, group)) for k, v in state.items()}
    if not isinstance(state, tuple):
        return state
    if not hasattr(state, "_fields"):
        return tuple(_filled(part, reading, group) for part in state)
    fields = SLOTS.get(type(state).__name__, {})
    values = {}
    for key, value in zip(state._fields, state, strict=True):
        if key == "count":
            values[key] = jnp.asarray(group.updates, jnp.int32)
        elif key in fields:
            slot, factor = fields[key]
            values[key] = {
                n: _scaled(reading.state[f"{n}/{slot}"], factor(group.settings))
                if isinstance(v, jax.Array)
                else v
                for n, v in value.items()
            }
        else:
            values[key] = _filled(value, reading, group)
    return type(state)(**values)


def _scaled(array: np.ndarray, factor: float) -> Any:
    return jnp.asarray((array.astype(np.float64) * factor).astype(array.dtype))


# -- what the record says ---------------------------------------------------------------------


class RecordState(NamedTuple):
    """The slots of a record by name."""

    slots: dict[str, Any]


def _recorded(reading: Reading) -> Any:
    """The update of the record itself as one transformation."""
    try:
        halves = split_step(reading.model, reading.record)
    except NotNative as error:
        raise ArgumentError(f"the update of this record cannot be converted: {error}") from error
    xp, state = arrays(), reading.state
    with enable_x64(True):
        program = Program(halves.update, xp, fallback="error")
    outputs = dict(reading.record.update_binding)
    slots = [n for n in outputs if n not in halves.variables and n != SEED]
    types = {n: state[n].dtype for n in slots}
    constants = {n: state[n] for n in (*halves.whole.hyper, SEED) if n in state}

    def init(params: Arrays) -> RecordState:
        return RecordState({n: jnp.asarray(_narrow(state[n])) for n in slots})

    def update(gradients: Arrays, old: RecordState, params: Arrays | None = None) -> Any:
        if params is None:
            raise ArgumentError("the update of a record needs the params: tx.update(g, state, p)")
        with enable_x64(True):
            feeds = {n: xp.cast(old.slots[n], types[n]) for n in slots}
            feeds |= {n: xp.asarray(a) for n, a in constants.items()}
            feeds |= {n: params[n] for n in halves.variables}
            named = zip(halves.gradients, halves.variables, strict=True)
            feeds |= {key: gradients[n] for key, n in named}
            results = program({n: feeds[n] for n in program.names})
            new = dict(zip(program.outputs, map(program.convert, results), strict=True))
            moved = {n: new[outputs[n]] - params[n] for n in halves.variables}
            kept = {n: _narrow_traced(new[outputs[n]]) for n in slots}
        updates = {n: moved.get(n, jnp.zeros_like(g)) for n, g in gradients.items()}
        return updates, RecordState(kept)

    return optax.GradientTransformation(init, update)


def _narrow(array: np.ndarray) -> np.ndarray:
    """Counters in 32 bits: jax has no others unless it is told."""
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _narrow_traced(value: Any) -> Any:
    return value.astype(np.int32) if value.dtype == np.int64 else value


# -- back -------------------------------------------------------------------------------------


def slots_of(model: Model, state: Any) -> dict[str, np.ndarray]:
    """The slots of the record, and its counter, from a state of optax."""
    reading = read_record(model)
    slots: dict[str, np.ndarray] = {}
    counts: set[int] = set()
    _collect(state, reading, reading.groups[0], slots, counts)
    prefixes = tuple(f"{name}/" for name in reading.parameters)
    missing = [n for n in reading.state if n.startswith(prefixes) and n not in slots]
    if missing:
        raise ArgumentError(
            f"the state of optax lacks slots of the record's optimizer {reading.optimizer}",
            [[quote(name)] for name in missing],
            hint="give the opt_state of sx.to_jax(model, training=True)",
        )
    if STEP in reading.state and counts:
        slots[STEP] = np.asarray(max(counts), np.int64)
    return slots


def _collect(
    state: Any, reading: Reading, group: Group, slots: dict[str, np.ndarray], counts: set[int]
) -> None:
    if isinstance(state, RecordState):
        slots |= {n: np.array(v, reading.state[n].dtype) for n, v in state.slots.items()}
        return
    if isinstance(state, dict):
        numbers = {str(i): g for i, g in enumerate(reading.groups)}
        for key, part in state.items():
            _collect(part, reading, numbers.get(key, group), slots, counts)
        return
    if not isinstance(state, tuple):
        return
    offset = group.updates - max(g.updates for g in reading.groups)
    fields = SLOTS.get(type(state).__name__, {})
    names = getattr(state, "_fields", range(len(state)))
    for key, part in zip(names, state, strict=True):
        if key == "count":
            counts.add(int(part) - offset)
        elif key in fields:
            slot, factor = fields[key]
            for name, value in part.items():
                if hasattr(value, "dtype"):
                    wide = np.asarray(value, np.float64) / factor(group.settings)
                    slots[f"{name}/{slot}"] = wide.astype(np.dtype(value.dtype))
        else:
            _collect(part, reading, group, slots, counts)

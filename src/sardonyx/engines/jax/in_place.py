"""Steps on a CPU whose new state takes the memory of the old one.

A search for what went wrong needs the state before a step. So each update is taken only if every
metric of the step is finite; else the old state stays, and the step is computed once more, into
memory of its own. The choice is part of the update's graph, where a new parameter is computed from
the chosen slots: XLA then needs no copy of the old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.jax.xp import jax, jnp
from sardonyx.engines.native_step import NativeStep
from sardonyx.lower.program import Program
from sardonyx.lower.xp import Arrays
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.record.native_step import SplitStep

IS_FINITE, ANYWAY = "sardonyx/is_finite", "sardonyx/anyway"  # fed to the update, and to a step


class Update:
    """The update half of a step, which keeps the old state where a metric is not finite."""

    def __init__(self, step: NativeStep, xp: Arrays):
        self.step = step
        model = normalize(_either(step.halves.update, step.graph.updates))
        step.update = Program(model, xp, fallback="error")

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        metrics = [jnp.isfinite(arrays[name]).all() for name in self.step.graph.metrics]
        is_finite = jnp.stack(metrics).all() | arrays.get(ANYWAY, False)
        return self.step.run_update({**arrays, IS_FINITE: is_finite})


def can_choose(halves: SplitStep) -> bool:
    """Whether the metrics are numbers with a fraction that are known before the update, and each
    variable has a new value of its own.
    """
    outputs = list(halves.whole.updates.values())
    known = {v.name for v in halves.forward.outputs if v.dtype and v.dtype.is_floating_point()}
    metrics = halves.whole.metrics
    return bool(metrics) and known.issuperset(metrics) and len({*outputs}) == len(outputs)


def _either(update: Model, updates: Mapping[str, str]) -> Model:
    """The update with a choice, by an input, between each new value and the old one."""
    model = update.copy()
    graph = model.graph
    is_finite = ir.Value(name=IS_FINITE, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    graph.inputs.append(is_finite)
    inputs = {v.name: v for v in graph.inputs}
    outputs = {v.name: v for v in graph.outputs}
    for variable, name in updates.items():
        new, old = outputs.get(name), inputs.get(variable)
        maker = new.producer() if new is not None else None
        if new is None or maker is None:
            continue
        if old is None:
            old = ir.Value(name=variable, type=new.type, shape=new.shape)
            graph.inputs.append(old)
        choice = ir.Node("", "Where", [is_finite, new, old], num_outputs=1, name=f"{name}/choice")
        (chosen,) = choice.outputs
        chosen.type, chosen.shape = new.type, new.shape
        for node, index in tuple(new.uses()):
            if node is not choice:
                node.replace_input_with(index, chosen)
        graph.outputs[list(graph.outputs).index(new)] = chosen
        new.name, chosen.name = f"{name}/computed", name
        graph.insert_after(maker, choice)
    return model


def given_up(state: Mapping[str, Any], updated: Collection[str]) -> dict[str, Any]:
    """The arrays whose memory a step may take; not one that stands there twice."""
    uses = Counter(map(id, state.values()))
    return {n: state[n] for n in updated if n in state and uses[id(state[n])] == 1}


def replacing(function: Callable[..., Any], updated: Collection[str]) -> Callable[..., Any]:
    """A step whose update is an `Update`, compiled.

    Where a metric is not finite, `state` is given the state before the step anew.
    """

    def step(old: Mapping[str, Any], others: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
        return function({**old, **others}, feeds)

    compiled, plain = jax.jit(step, donate_argnums=0), jax.jit(function)

    def call(state: dict[str, Any], feeds: Mapping[str, Any]) -> Any:
        old = given_up(state, updated)
        others = {n: v for n, v in state.items() if n not in old}
        # outputs that are inputs, as they are, could still be read from the caller's memory
        metrics, updates = jax.block_until_ready(
            compiled(old, others, {**feeds, ANYWAY: np.False_})
        )
        if all(np.isfinite(m).all() for m in map(np.asarray, metrics.values())):
            return metrics, updates
        state.update({n: updates[n] for n in old})
        return jax.block_until_ready(plain(state, {**feeds, ANYWAY: np.True_}))

    return call

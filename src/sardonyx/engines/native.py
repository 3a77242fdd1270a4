"""What every conversion to a framework shares: which tensors are weights, the graph for training,
and writing weights back into the original model.

How a framework holds the weights and makes a function of the graph is in its own `convert.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.engines.idioms import recognize
from sardonyx.errors import ArgumentError, quote
from sardonyx.grad.nn.batch_norm import new_statistics
from sardonyx.model import Model, load
from sardonyx.normalize import NormalizedModel, normalize
from sardonyx.weights import weights

# Makes a node train; gives the new values of statistics, by their names.
Switch = Callable[[Builder, ir.Node, Mapping[str, str]], dict[str, ir.Value]]


@dataclass
class Native:
    """A model on its way into a framework.

    served     -- the normalized graph with its idioms as single nodes, as it is served
    training   -- the graph while training; None where nothing behaves differently
    kinds      -- "weight" or "statistic" of each tensor that the framework holds, by name
    updates    -- statistic → the output of `training` that becomes its new value
    options    -- the arguments `fallback` and `place` of the programs
    """

    served: Model
    training: Model | None
    kinds: dict[str, str]
    updates: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> list[ir.Value]:
        return self.served.inputs

    @property
    def outputs(self) -> list[str]:
        return [v.name or "" for v in self.served.outputs]

    def array(self, name: str) -> np.ndarray:
        return self.served.initializer(name).numpy()


def native(
    model: Any,
    switches: Mapping[str, Switch] | None = None,
    *,
    fallback: str = "warn",
    place: Mapping[str, str] | None = None,
    kinds: dict[str, str] | None = None,
) -> Native:
    """A model prepared for a framework, without its training records.

    kinds    -- which tensors the framework holds, if known already
    switches -- operator → what makes its nodes train, where a framework differs
    fallback, place -- as in `Program`; with `place` no idioms are used: other engines lack them
    """
    normal = normalize(load(model))
    if kinds is None:
        kinds = {
            w.name: w.kind
            for w in weights(normal)
            if w.kind != "constant" and w.name in normal.graph.initializers
        }
    served = normal if place else recognize(normal, kinds)
    overrides = {} if place else switches or {}
    training, updates = _training(served, kinds, {**SWITCHED, **overrides})
    options = {"fallback": fallback, "place": place}
    return Native(served, training, kinds, updates, options)


def _training(
    served: Model, kinds: Mapping[str, str], switches: Mapping[str, Switch]
) -> tuple[Model | None, dict[str, str]]:
    """The graph in which BatchNormalization and Dropout train, with new statistics as outputs."""
    copy = Model(served.ir.clone(), [], served.source)
    op = Builder("training")
    op.reserve({v.name for n in copy.graph.all_nodes() for v in n.outputs if v.name})
    op.reserve({*copy.graph.initializers, *(v.name for v in copy.graph.inputs if v.name)})
    updates: dict[str, str] = {}
    changed = False
    for node in list(copy.graph):
        if node.domain != "" or node.op_type not in switches:
            continue
        changed = True
        first = len(op.nodes)
        results = switches[node.op_type](op, node, kinds)
        copy.graph.insert_after(node, op.nodes[first:])
        for name, value in results.items():
            value.name = op.fresh(f"{name}/next")
            copy.graph.outputs.append(value)
            updates[name] = value.name
    for constant in op.constants.values():
        copy.graph.register_initializer(constant)
    return (NormalizedModel.of(copy), updates) if changed else (None, {})


def _switch_dropout(op: Builder, node: ir.Node, kinds: Mapping[str, str]) -> dict[str, ir.Value]:
    node.attributes.pop("seed", None)  # a mask is drawn at every call, not once for all
    node.resize_inputs(3)
    node.replace_input_with(2, op.const(True, ir.DataType.BOOL))
    return {}


def _switch_batch_norm(op: Builder, node: ir.Node, kinds: Mapping[str, str]) -> dict[str, ir.Value]:
    """Normalize by the batch, and give the new running statistics."""
    x, _, _, mean, var = node.inputs
    assert x is not None and mean is not None and var is not None
    momentum = node.attributes.get_float("momentum", 0.9)
    node.attributes.add(ir.AttrInt64("training_mode", 1))
    node.attributes.add(ir.AttrFloat32("momentum", 0.0))  # the outputs are the batch's own
    node.resize_outputs(3)
    with op.named(f"training/{node.name or node.outputs[0].name}"):
        for running, batch in zip((mean, var), node.outputs[1:], strict=True):
            batch.name = op.fresh(f"{running.name}/batch")
            batch.type, batch.shape = running.type, running.shape
        batch_statistics = (node.outputs[1], node.outputs[2])
        updates = new_statistics(op, x, (mean, var), batch_statistics, momentum)
    return {r.name: u for r, u in zip((mean, var), updates, strict=True) if r.name in kinds}  # type: ignore[misc]


SWITCHED = {"Dropout": _switch_dropout, "BatchNormalization": _switch_batch_norm}


def bind(
    names: Sequence[str], positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Inputs by name, of those given in order and those given by name."""
    if any(isinstance(value, Mapping) for value in positional):
        hint = "inputs come in order or by name: unpack the mapping with **"
        raise ArgumentError("an input is a mapping", hint=hint)
    unknown = [n for n in named if n not in names[len(positional) :]]
    missing = [n for n in names[len(positional) :] if n not in named]
    if len(positional) > len(names) or unknown or missing:
        rows = [[quote(n), "is missing"] for n in missing]
        rows += [[quote(n), "is not an input, or given twice"] for n in unknown]
        hint = f"it takes {', '.join(names)}"
        raise ArgumentError(
            f"{len(positional) + len(named)} inputs do not fit the model", rows, hint=hint
        )
    return {**dict(zip(names, positional)), **named}


@dataclass
class Stored:
    """A conversion that was written: read back from `path`, it is `function`, without sardonyx.

    rows       -- facts about it, as lines of a table
    unverified -- why there is no function to compare with, where there is none
    sizes      -- free sizes to compare at, where the function does not accept every one
    """

    path: Path
    function: Callable[..., Any] | None
    rows: list[list[str]]
    unverified: str = ""
    sizes: dict[str, int] = field(default_factory=dict)

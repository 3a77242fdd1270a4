"""The front of a model: what turns raw data into the numbers that the trained part reads.

Text, operators of other libraries and nodes that are marked as preparation do not belong into a
training step: engines bind numbers only, and the result is the same in every epoch. `separate`
cuts them off, as long as they read data and constants alone. The rest is a model, with its
records, that takes the features as inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import FLOATS
from sardonyx.grad.driver import GRADIENT_RULES, op_id
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.passes.cse import RANDOM
from sardonyx.passes.nesting import graphs, reads
from sardonyx.passes.stages import PREPARATION, cut_front, stage_of
from sardonyx.record.info import state_names

# Domains of operators that engines have, or that normalization rewrites.
ORDINARY_DOMAINS = ("", "ai.onnx.ml", "com.microsoft", opset.TRAINING_DOMAIN, "ai.onnx.preview")


@dataclass(frozen=True)
class Front:
    """A model in two: `model` computes the `features` that `rest` takes as inputs.

    passed   -- features that are outputs of the whole model as well
    inputs   -- the raw inputs that nothing but the front reads
    """

    model: Model
    rest: Model
    features: tuple[str, ...]
    passed: tuple[str, ...]
    inputs: tuple[str, ...]

    @property
    def is_random(self) -> bool:
        """Whether the features of a row differ from one run to the next."""
        return any(n.op_type in RANDOM for part in graphs(self.model.graph) for n in part)


def separate(model: Model) -> Front | None:
    """The front of a model and the rest; None for a model of numbers throughout."""
    if not any(_needs_a_look(model)):
        return None
    typed = {v.name: v for n in normalize(model).graph for v in n.outputs if v.name}
    names = _front_names(model, typed)
    if not names:
        return None
    parts = cut_front(model, names)
    for value in parts.rest.graph.inputs:
        inferred = typed.get(value.name or "", value)
        value.type, value.shape = value.type or inferred.type, value.shape or inferred.shape
    left = {v.name for v in parts.rest.graph.inputs}
    raw = tuple(v.name or "" for v in model.graph.inputs if v.name not in left)
    return Front(parts.front, parts.rest, parts.boundary, parts.passed, raw)


def _needs_a_look(model: Model) -> Iterator[bool]:
    """Whether a model holds anything that belongs into a front, without inferring types."""
    for graph in model.graphs():
        yield any(v.dtype == ir.DataType.STRING for v in (*graph.inputs, *graph.outputs))
        for node in graph:
            yield _is_marked(node) or _is_foreign(node, model)
            yield any(v is not None and v.dtype == ir.DataType.STRING for v in node.inputs)


def _is_marked(node: ir.Node) -> bool:
    return stage_of(node) == PREPARATION


def _is_foreign(node: ir.Node, model: Model) -> bool:
    """An operator that neither the standard nor onnxruntime nor the model itself defines."""
    if node.op_identifier() in model.ir.functions:
        return False
    return opset.domain_name(node.domain) not in ORDINARY_DOMAINS


def _may_train(node: ir.Node, model: Model) -> bool:
    """Whether a gradient may reach what a node reads."""
    return not _is_foreign(node, model) or op_id(node) in GRADIENT_RULES


def _front_names(model: Model, typed: Mapping[str, ir.Value]) -> set[str]:
    """The first outputs of the nodes in the front.

    typed -- values by name, with the types and shapes that normalization infers
    """
    trained = _trained(model)
    front: set[ir.Node] = set()
    for node in model.graph:
        values = reads(node)
        may_be_cut = _is_marked(node) and not model.records
        if not may_be_cut and any(v in trained for v in values):
            trained.update(node.outputs)
        elif any(v.is_graph_input() or v.producer() is not None for v in values) and (
            _is_marked(node)
            or _is_foreign(node, model)
            or any(_may_be_text(v, typed) for v in (*values, *node.outputs))
        ):
            front.add(node)
    pending = list(front)
    while pending:
        node = pending.pop()
        for value in reads(node):
            producer = value.producer()
            if producer is not None and producer not in front:
                front.add(producer)
                pending.append(producer)
    return {n.outputs[0].name or "" for n in front if n.outputs}


def _trained(model: Model) -> set[ir.Value]:
    """The initializers that a step may change; without records, all that could be weights: not the
    settings of foreign operators, such as the temperature of a tokenizer, which have no gradient.
    """
    initializers = model.graph.initializers
    if not model.records:
        floats = [v for v in initializers.values() if v.dtype in FLOATS]
        return {v for v in floats if any(_may_train(n, model) for n in v.consumers())}
    state = {n for record in model.records for n in state_names(model, record)}
    overridable = {v.name for v in model.graph.inputs if v.name in initializers}
    return {v for n, v in initializers.items() if n in state | overridable}


def _may_be_text(value: ir.Value, typed: Mapping[str, ir.Value]) -> bool:
    inferred = typed.get(value.name or "", value)
    return (value.dtype or inferred.dtype) in (None, ir.DataType.STRING)

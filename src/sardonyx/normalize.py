"""Normalization: any model becomes one regular form, on a copy that shares the weights.

inline functions → upgrade to the opset inside → constants as initializers → shapes → explicit form

After it, no rule has to handle a version, a function call, a Constant node, an auto_pad or a
negative axis (`passes/explicit.py` has the full list), and every value has a type and a shape
where one can be known. Names of the user's nodes and values stay, except those of Constant and
call nodes, which are gone. Training records are copied unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.collector import paused
from sardonyx.errors import ModelError, quote, translated
from sardonyx.model import Model, ModelSource, Record, load
from sardonyx.passes.branches import take_known_branches
from sardonyx.passes.contrib import DOMAIN as CONTRIB
from sardonyx.passes.contrib import standardize
from sardonyx.passes.explicit import make_explicit
from sardonyx.passes.functions import inline
from sardonyx.passes.hoist import hoist_initializers
from sardonyx.passes.loops import settle_loops
from sardonyx.passes.nesting import graphs
from sardonyx.passes.ranks import imply_ranks
from sardonyx.passes.shapes import forget_shapes, infer_shapes, recall_shapes, refine_shapes
from sardonyx.passes.signatures import require_signatures, require_types, require_versions
from sardonyx.passes.snapshot import Snapshot
from sardonyx.upgrades import upgrade_graph

FIRST_IR_WITH_PLAIN_INITIALIZERS = 4
IR_INSIDE = 13
ML = "ai.onnx.ml"
LAST_ML_WITH_OLD_TREES = 4


class NormalizedModel(Model):
    """A model in the regular form, which rules and drivers rely on; made by `normalize`.

    It is meant to be read. After an edit in place, `normalize` notices and makes the regular form
    of the edited graph; to change one, take `regular_copy`.
    """

    def __init__(
        self, ir_model: ir.Model, records: Iterable[Record] = (), source: Path | None = None
    ):
        super().__init__(ir_model, records, source)
        self._snapshot = Snapshot(ir_model.graph)

    @classmethod
    def of(cls, model: Model) -> NormalizedModel:
        """Declare that `model` has the regular form; the graph and the records are shared."""
        normalized = cls(model.ir, (), model.source)
        normalized.records = model.records
        return normalized

    def is_unedited(self) -> bool:
        """Whether the graph is still the one that was normalized."""
        imports = self.ir.opset_imports
        inside = all(opset.INSIDE.get(d, v) == v or d == ML for d, v in imports.items())
        return inside and not self.ir.functions and self._snapshot.matches(self.graph)


@paused()
def normalize(model: ModelSource) -> NormalizedModel:
    """The regular form of `model`: one opset, no functions, shapes inferred, defaults explicit.

    The model itself is not changed. A normalized model is its own regular form.

    >>> import onnx, sardonyx as sx
    >>> text = '''<ir_version: 8, opset_import: ["": 11]>
    ... g (float[2,3] x) => (float[2,3] y) {y = Softmax(x)}'''
    >>> normalize(sx.load(onnx.parser.parse_model(text))).opset
    28
    """
    loaded = load(model)
    if loaded is not model:
        return NormalizedModel.of(regularize(loaded))
    if isinstance(loaded, NormalizedModel) and loaded.is_unedited():
        return loaded
    return NormalizedModel.of(regular_copy(loaded))


@paused()
def regular_copy(model: Model) -> Model:
    """The regular form of `model` as an independent graph, to be edited; the weights are shared."""
    copy = model.copy()
    is_regular = isinstance(model, NormalizedModel) and model.is_unedited()
    return copy if is_regular else regularize(copy)


@paused()
@translated("the model has no regular form")
def regularize(model: Model) -> Model:
    """Give a model that nothing else uses the regular form, in place."""
    _normalize(model)
    return model


def extended(model: Model) -> NormalizedModel:
    """The regular form of a regular graph to which nodes of the internal opset were added.

    The graph is changed in place. This is much cheaper than `normalize`, because the builder has
    inferred types and shapes already.
    """
    graph = model.graph
    refine_shapes(graph)
    take_known_branches(graph)
    settle_loops(graph)
    imply_ranks(graph)
    make_explicit(graph)
    return NormalizedModel.of(model)


def _normalize(model: Model) -> None:
    graph = model.graph
    if model.ir.ir_version is not None and model.ir.ir_version < FIRST_IR_WITH_PLAIN_INITIALIZERS:
        _drop_initializer_inputs(graph)
    require_versions(model.ir.opset_imports)
    inline(model.ir)
    require_signatures(graph, model.ir.opset_imports)
    upgrade_graph(graph, dict(model.ir.opset_imports))
    operators = _stamp(model.ir)
    if any(domain == CONTRIB for domain, _ in operators):
        standardize(graph)
        operators = census(graph)
    if ("", "Constant") in operators:
        constants_to_initializers(graph)
    if ("", "STFT") in operators:
        _write_defaults(graph)
    declared = forget_shapes(graph)
    infer_shapes(graph, model.skeleton)
    if recall_shapes(declared):
        infer_shapes(graph, model.skeleton)
    require_types(graph)
    if ("", "If") in operators:
        take_known_branches(graph)
    settle_loops(graph)
    imply_ranks(graph)
    hoist_initializers(graph)
    make_explicit(graph)


def census(graph: ir.Graph) -> set[tuple[str, str]]:
    """The operators of a graph and of its bodies, as (domain, name): which passes are needed."""
    return {(node.domain, node.op_type) for part in graphs(graph) for node in part}


def _write_defaults(graph: ir.Graph) -> None:
    """ONNX's shape inference reads an absent `onesided` of STFT as 0; its default is 1."""
    for part in graphs(graph):
        for node in part:
            if node.op_type == "STFT" and node.domain == "" and "onesided" not in node.attributes:
                node.attributes.add(ir.AttrInt64("onesided", 1))


def _drop_initializer_inputs(graph: ir.Graph) -> None:
    """Before IR 4 every initializer was also listed as an input, without being one that is fed."""
    inputs = [v for v in graph.inputs if v.name not in graph.initializers]
    graph.inputs.clear()
    graph.inputs.extend(inputs)


def _stamp(model: ir.Model) -> set[tuple[str, str]]:
    """Set the model's opset imports to the internal versions, and clear those of its nodes;
    returns its operators.
    """
    # Training records use the imports of the model, but their nodes are not in its graph.
    domains = {"", *(d for d in (opset.TRAINING_DOMAIN,) if d in model.opset_imports)}
    operators = set()
    for part in graphs(model.graph):
        for node in part:
            node.version = None
            operators.add((node.domain, node.op_type))
    domains.update(domain for domain, _ in operators)
    old_trees = any(d == ML and opset.schema(name, ML) is None for d, name in operators)
    for domain in ("ai.onnx", *opset.INSIDE):
        model.opset_imports.pop(domain, None)
    model.opset_imports.update({d: v for d, v in opset.INSIDE.items() if d in domains})
    if old_trees:
        model.opset_imports[ML] = LAST_ML_WITH_OLD_TREES
    model.ir_version = max(model.ir_version or 0, IR_INSIDE)
    return operators


def constants_to_initializers(graph: ir.Graph) -> None:
    """Turn every Constant node into an initializer of its graph, under the name of its output."""
    for part in graphs(graph):
        for node in list(part):
            if node.op_type != "Constant" or node.domain != "":
                continue
            _swap(part, node, node.outputs[0], _constant_tensor(node))


def _swap(graph: ir.Graph, node: ir.Node, old: ir.Value, tensor: ir.TensorProtocol) -> None:
    name, old.name = old.name, None
    new = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )
    new.metadata_props.update(old.metadata_props)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    graph.register_initializer(new)


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol:
    for name, dtype in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in node.attributes:
            return ir.tensor(np.array(node.attributes[name].value, dtype))
    if "value" in node.attributes:
        return node.attributes["value"].as_tensor()
    for name in ("value_string", "value_strings"):
        if name in node.attributes:
            return _string_tensor(node.attributes[name].value)
    raise ModelError(f"Constant {quote(node.name)} has no value that can be read")


def _string_tensor(value: Any) -> ir.TensorProtocol:
    single = isinstance(value, (str, bytes))
    items = [value] if single else list(value)
    encoded = [v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in items]
    return ir.StringTensor(encoded, shape=ir.Shape([] if single else [len(encoded)]))

"""A user's loss as an ONNX graph or function: (prediction, labels …) → one number, inlined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import onnx_ir as ir

from sardonyx.build import Builder, constant, infer, type_proto
from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model, load
from sardonyx.normalize import normalize
from sardonyx.passes.functions import copy_nodes
from sardonyx.record.loss.kinds import Label, Loss

GraphLike = str | Path | onnx.ModelProto | onnx.FunctionProto | Model


@dataclass(frozen=True)
class _Declared(Label):
    """A label whose type and shape the loss's own graph declares."""

    value: ir.Value | None = None
    like: ir.Value | None = None

    def of(self, prediction: ir.Value) -> tuple[ir.DataType, list[Any]]:
        assert self.value is not None and self.like is not None
        if self.value.dtype is None or self.value.shape is None:
            raise ArgumentError(
                f"the loss does not declare the type and shape of {quote(self.value.name)}"
            )
        theirs, ours = self.like.shape, prediction.shape
        same = zip(theirs or (), ours or (), strict=False)
        dims = {d.value: o for d, o in same if isinstance(d, ir.SymbolicDim) and d.value}
        return self.value.dtype, [
            dims.get(d.value or "", d) if isinstance(d, ir.SymbolicDim) else d
            for d in self.value.shape
        ]


def graph(
    source: GraphLike,
    labels: Sequence[Label] | None = None,
    name: str | None = None,
    reads: Sequence[str] = (),
) -> Loss:
    """A loss from an ONNX model or function whose first input is the prediction.

    labels  -- what the other inputs of a function are; as the prediction, if not given
    reads   -- further tensors of the trained model, by name: the inputs of a model that come after
               the prediction and before the labels

    >>> import onnx, sardonyx as sx
    >>> squared = onnx.parser.parse_function('''
    ... <domain: "my", opset_import: ["": 17]> squared (z, y) => (l)
    ... {d = Sub(z, y) s = Mul(d, d) l = ReduceMean <keepdims = 0> (s)}''')
    >>> sx.loss.graph(squared).name
    'squared'
    """
    if isinstance(source, onnx.FunctionProto):
        return _of_function(source, labels, name)
    model = normalize(load(source))
    if model.records:
        raise ArgumentError("a loss has no training record of its own")
    inputs = model.inputs
    if not inputs or len(model.outputs) != 1:
        raise ArgumentError(
            f"a loss takes the prediction and labels and gives one number, not "
            f"{len(inputs)} inputs and {len(model.outputs)} outputs"
        )
    rest = inputs[1 + len(reads) :]
    kinds = labels or [_Declared("declared", value=v, like=inputs[0]) for v in rest]

    def compute(op: Builder, prediction: ir.Value, *labels: ir.Value) -> ir.Value:
        return _inline(op, model, [prediction, *labels])

    return Loss(
        name or model.graph.name or "graph",
        compute,
        tuple(kinds),
        names=tuple(v.name or "" for v in rest),
        reads=tuple(reads),
    )


def _of_function(
    function: onnx.FunctionProto, labels: Sequence[Label] | None, name: str | None
) -> Loss:
    kinds = labels or [Label("like")] * (len(function.input) - 1)
    if not function.input or len(function.output) != 1:
        raise ArgumentError(
            f"the function {quote(function.name)} is not a loss, which has one output and an input"
        )

    def compute(op: Builder, prediction: ir.Value, *labels: ir.Value) -> ir.Value:
        values = [prediction, *labels]
        call = onnx.helper.make_node(
            function.name, list(function.input), list(function.output), domain=function.domain
        )
        whole = onnx.helper.make_model(
            onnx.helper.make_graph(
                [call],
                function.name,
                [_declared(n, v) for n, v in zip(function.input, values, strict=True)],
                [onnx.ValueInfoProto(name=function.output[0])],
            ),
            functions=[function],
            opset_imports=[*function.opset_import, onnx.helper.make_opsetid(function.domain, 1)],
            ir_version=10,
        )
        return _inline(op, normalize(load(whole)), values)

    return Loss(name or function.name, compute, tuple(kinds), names=tuple(function.input[1:]))


def _declared(name: str, value: ir.Value) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name, type=type_proto(value))


def _inline(op: Builder, model: Model, arguments: Sequence[ir.Value]) -> ir.Value:
    """Copy the nodes of `model` behind `given`; the value of its output."""
    graph = model.graph
    values: dict[ir.Value, ir.Value | None] = {}
    for formal, actual in zip(model.inputs, arguments, strict=True):
        _check_fit(formal, actual)
        values[formal] = actual
    for value in graph.initializers.values():
        array = constant(value)
        values[value] = op.const(array, value.dtype) if array is not None else None
    prefix = op.prefix or "loss"
    copies = copy_nodes(graph, values, {}, lambda name: op.fresh(f"{prefix}/{name}"))
    for node in copies:
        # Symbols of the loss's own graph mean nothing here: shapes follow from what it is given.
        for value in node.outputs:
            value.shape = None
        infer(node)
    op.nodes.extend(copies)
    result = values.get(graph.outputs[0], graph.outputs[0])
    if result is None:
        raise ArgumentError(f"the loss {quote(graph.name)} has no output value")
    return result


def _check_fit(formal: ir.Value, actual: ir.Value) -> None:
    if formal.dtype is not None and actual.dtype is not None and formal.dtype != actual.dtype:
        raise ArgumentError(
            f"the loss takes {quote(formal.name)} as {formal.dtype}, "
            f"but {quote(actual.name)} is {actual.dtype}"
        )
    if formal.shape is None or actual.shape is None:
        return
    fits = len(formal.shape) == len(actual.shape) and all(
        a == b
        for a, b in zip(formal.shape, actual.shape, strict=True)
        if isinstance(a, int) and isinstance(b, int)
    )
    if not fits:
        raise ArgumentError(
            f"the loss takes {quote(formal.name)} of shape {formal.shape}, "
            f"but {quote(actual.name)} has {actual.shape}"
        )

"""Inputs brought to mean 0 and deviation 1: computed from the data inside the graph, and afterwards
part of the trained model.

Columns of tables and channels of images (axis 1) have a mean and a deviation each, over the rows
to train on. Sums are taken in double precision, some rows at a time, so that the data is never in
memory twice as doubles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from sardonyx import partial
from sardonyx.build import FLOATS, Builder
from sardonyx.edit.compose import compose
from sardonyx.errors import ArgumentError
from sardonyx.model import Model
from sardonyx.opset import OPSET
from sardonyx.record.front import separate
from sardonyx.train.whole.loops import Body, Values, Writer, loop

T = ir.DataType
CHUNK = 4096
MEAN, DEVIATION = MEASURES = ("mean", "deviation")


def standardized_inputs(net: Model, excluded: Collection[str]) -> list[str]:
    """The float inputs of the served graph; an error if there are none, or if they are prepared
    already.
    """
    if separate(net) is not None:
        raise ArgumentError(
            "the model prepares its data itself, so that its inputs are not standardized",
            hint="add it to the preparation, or take that off with sx.split",
        )
    values = [v for v in net.inputs if v.dtype in FLOATS and v.name not in excluded]
    if not values:
        raise ArgumentError("the model has no float inputs to standardize")
    return [v.name or "" for v in values]


def measured(op: Writer, name: str, field: ir.Value, rows: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The mean and the deviation of a field over some rows; a deviation of 0 counts as 1."""
    assert field.shape is not None
    axes = [0, *range(2, len(field.shape))]
    one_row = op.cast(op.Gather(field, op.const([0], T.INT64)), T.DOUBLE)
    zero = op.ReduceSum(op.Mul(one_row, 0.0), axes, keepdims=1)
    count = op.cast(op.Shape(rows), T.DOUBLE)
    # of every row, as many elements as one row has of each column or channel
    each = op.Div(op.cast(op.Size(one_row), T.DOUBLE), op.cast(op.Size(zero), T.DOUBLE))
    total = op.Mul(count, each)
    mean = op.Div(_summed(op, f"{name}/{MEAN}", field, rows, zero, axes, None), total)
    squares = _summed(op, f"{name}/{DEVIATION}", field, rows, zero, axes, mean)
    deviation = op.Sqrt(op.Div(squares, total))
    deviation = op.Where(op.Greater(deviation, np.float64(0)), deviation, np.float64(1))
    return op.cast(mean, field.dtype), op.cast(deviation, field.dtype)


def _summed(
    op: Writer,
    name: str,
    field: ir.Value,
    rows: ir.Value,
    zero: ir.Value,
    axes: list[int],
    mean: ir.Value | None,
) -> ir.Value:
    """The sums of the elements or, given a mean, of the squares of their distances from it."""

    def chunk(body: Writer, number: ir.Value, carried: Values) -> Body:
        begin = body.Reshape(body.Mul(number, CHUNK), [1])
        numbers = body.Slice(rows, begin, body.Add(begin, [CHUNK]))
        part = body.cast(body.Gather(field, numbers), T.DOUBLE)
        if mean is not None:
            distance = body.Sub(part, mean)
            part = body.Mul(distance, distance)
        total = body.Add(carried["sum"], body.ReduceSum(part, axes, keepdims=1))
        return Body(body.const(True), {"sum": body.typed(total, zero)})

    chunks = op.Div(op.Add(op.Shape(rows), [CHUNK - 1]), [CHUNK])
    return loop(op, f"sum/{name}", op.Squeeze(chunks), None, {"sum": zero}, chunk)[0]["sum"]


def standard(op: Builder, value: ir.Value, mean: ir.Value, deviation: ir.Value) -> ir.Value:
    return op.Div(op.Sub(value, mean), deviation)


def with_preparation(net: Model, numbers: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Model:
    """The model behind nodes that standardize its inputs.

    numbers -- input → mean and deviation
    """
    if not numbers:
        return net
    op = Builder("standardize")
    op.reserve([v.name or "" for v in net.inputs])
    inputs, outputs = [], []
    for value in net.inputs:
        raw = ir.Value(name=value.name, type=value.type, shape=value.shape)
        if value.name in numbers:
            mean, deviation = (op.const(array) for array in numbers[value.name or ""])
            output = standard(op, raw, mean, deviation)
        else:
            output = op.Identity(raw)
        output.type, output.shape = value.type, value.shape
        inputs.append(raw)
        outputs.append(output)
    graph = ir.Graph(inputs, outputs, nodes=op.nodes, opset_imports={"": OPSET}, name="standardize")
    for constant in op.constants.values():
        graph.register_initializer(constant)
    return compose(Model(ir.Model(graph, ir_version=10)), _with_free_names(net, outputs))


def _with_free_names(net: Model, outputs: list[ir.Value]) -> Model:
    """The model with other names for its inputs, also where its records read them, so that the raw
    inputs can have theirs; `outputs` get the new names.
    """
    renamed = net.copy()
    new_names = {}
    for value, output in zip(renamed.inputs, outputs, strict=True):
        new_names[value.name] = f"{value.name}/prepared"
        value.name = output.name = new_names[value.name]
    for record in renamed.records:
        algorithm = partial.clone(record.algorithm)
        for value in partial.free_values(algorithm):
            value.name = new_names.get(value.name, value.name)
        for node in algorithm.all_nodes():
            for key in ("xs", "zs") if node.op_type == "Gradient" else ():
                names = [new_names.get(n, n) for n in node.attributes.get_strings(key, ())]
                if key in node.attributes:
                    node.attributes.add(ir.AttrStrings(key, names))
        record.algorithm = algorithm
    return renamed

"""Rules of control flow: cond, while and scan as If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.jax import keys
from sardonyx.importers.jax.driver import Reader, dtype_of, importer
from sardonyx.importers.jax.writer import Writer, shape_of

T = ir.DataType


def _parameter(op: Writer, aval: Any, stem: str) -> ir.Value:
    """An input of a body."""
    physical = keys.physical(aval)
    value = ir.Value(
        name=op.fresh(f"{op.prefix}/{stem}" if op.prefix else stem),
        type=ir.TensorType(dtype_of(aval)),  # type: ignore[arg-type]
        shape=shape_of(physical.shape),
    )
    value.meta["aval"] = physical
    return value


def _node(
    op: Writer, op_type: str, inputs: Sequence[Any], out: Sequence[Any], **attributes: Any
) -> list[ir.Value]:
    attrs = [
        ir.AttrGraph(k, v)
        if isinstance(v, ir.Graph)
        else ir.AttrInt64s(k, v)
        if isinstance(v, list)
        else ir.AttrInt64(k, v)
        for k, v in attributes.items()
    ]
    name = op.fresh(f"{op.prefix}/{op_type}" if op.prefix else op_type)
    node = ir.Node("", op_type, list(inputs), attributes=attrs, num_outputs=len(out), name=name)
    for i, (value, aval) in enumerate(zip(node.outputs, out, strict=True)):
        value.name = name if i == 0 else op.fresh(f"{name}:{i}")
        value.type = ir.TensorType(dtype_of(aval))  # type: ignore[arg-type]
        value.shape = shape_of(keys.physical(aval).shape)
        value.meta["aval"] = keys.physical(aval)
    op.nodes.append(node)
    return list(node.outputs)


@importer("cond")
def cond(
    op: Writer,
    index: ir.Value,
    *operands: ir.Value,
    branches: Any,
    out: Sequence[Any],
    reader: Reader,
) -> Sequence[ir.Value]:
    if not out:
        return []
    return _branches(op, index, operands, branches, 0, out, reader)


def _branches(
    op: Writer, index: ir.Value, operands: Any, branches: Any, first: int, out: Any, reader: Reader
) -> list[ir.Value]:
    """The branches from number `first` on; an index out of range means the nearest one."""
    if first == len(branches) - 1:
        return reader.closed(op, branches[first], operands)
    chosen = (
        op.LessOrEqual(index, op.like(first, index)) if index.dtype != T.BOOL else op.Not(index)
    )
    yes, no = Writer(op.prefix, op), Writer(op.prefix, op)
    then_values = reader.closed(yes, branches[first], operands)
    then_branch = yes.as_graph([], then_values, "then")
    else_values = _branches(no, index, operands, branches, first + 1, out, reader)
    else_branch = no.as_graph([], else_values, "else")
    return _node(op, "If", [chosen], out, then_branch=then_branch, else_branch=else_branch)


@importer("while")
def while_(
    op: Writer,
    *operands: ir.Value,
    cond_nconsts: int,
    cond_jaxpr: Any,
    body_nconsts: int,
    body_jaxpr: Any,
    out: Sequence[Any],
    reader: Reader,
) -> Sequence[ir.Value]:
    tests, constants = operands[:cond_nconsts], operands[cond_nconsts:][:body_nconsts]
    carry = operands[cond_nconsts + body_nconsts :]
    (start,) = reader.closed(op, cond_jaxpr, [*tests, *carry])
    start = _any(op, start)
    body = Writer(op.prefix, op)
    number = ir.Value(name=op.fresh("iteration"), type=ir.TensorType(T.INT64), shape=ir.Shape([]))
    go = ir.Value(name=op.fresh("go_on"), type=ir.TensorType(T.BOOL), shape=ir.Shape([]))
    state = [_parameter(body, aval, "carry") for aval in out]
    new = reader.closed(body, body_jaxpr, [*constants, *state])
    if cond_jaxpr.out_avals[0].shape:  # under vmap: what has ended keeps its values
        (live,) = reader.closed(body, cond_jaxpr, [*tests, *state])
        new = [_chosen(body, live, *pair) for pair in zip(new, state, strict=True)]
    (again,) = reader.closed(body, cond_jaxpr, [*tests, *new])
    again = _any(body, again)
    graph = body.as_graph([number, go, *state], [again, *new], "body")
    return _node(op, "Loop", [None, start, *carry], out, body=graph)


def _any(op: Writer, condition: ir.Value) -> ir.Value:
    """A condition of several loops at once goes on while one of them does."""
    rank = len(condition.shape or ())
    return op.ReduceMax(condition, list(range(rank)), keepdims=0) if rank else condition


def _chosen(op: Writer, live: ir.Value, new: ir.Value, old: ir.Value) -> ir.Value:
    """The new numbers of the loops that go on, whose axes come first."""
    first, rank = len(live.shape or ()), len(old.shape or ())
    y = op.where(op.unsqueezed(live, list(range(first, rank))), new, old)
    y.type, y.shape = old.type, old.shape
    y.meta["aval"] = old.meta["aval"]
    return y


@importer("scan")
def scan(
    op: Writer,
    *operands: ir.Value,
    jaxpr: Any,
    length: Any,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    out: Sequence[Any],
    reader: Reader,
) -> Sequence[ir.Value]:
    constants = operands[:num_consts]
    carry, xs = operands[num_consts:][:num_carry], list(operands[num_consts + num_carry :])
    if isinstance(length, int) and length == 0:
        empty = [
            op.expanded(op.const(np.zeros((), aval.dtype)), aval.shape) for aval in out[num_carry:]
        ]
        return [*carry, *empty]
    body = Writer(op.prefix, op)
    avals = [v.aval for v in jaxpr.jaxpr.invars[num_consts:]]
    inputs = [_parameter(body, aval, "carry") for aval in avals[:num_carry]]
    inputs += [_parameter(body, aval, "slice") for aval in avals[num_carry:]]
    results = reader.closed(body, jaxpr, [*constants, *inputs])
    if not xs:  # Scan takes its length from an input
        xs = [op.iota(length)]
        inputs.append(
            ir.Value(name=op.fresh("step"), type=ir.TensorType(T.INT64), shape=ir.Shape([]))
        )
    graph = body.as_graph(inputs, results, "body")
    directions: dict[str, Any] = {}
    if reverse:
        directions = {
            "scan_input_directions": [1] * len(xs),
            "scan_output_directions": [1] * (len(results) - num_carry),
        }
        if len(results) == num_carry:
            del directions["scan_output_directions"]
    return _node(op, "Scan", [*carry, *xs], out, body=graph, num_scan_inputs=len(xs), **directions)

"""Gradients of ONNX's sequence family.

The cotangent of a sequence is a sequence of equal length. Where the elements are known while
building (`unrolled`), rules work on them directly and no sequence is left in the gradient;
elsewhere SequenceMap does what has to be done to each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.grad import driver
from sardonyx.grad.driver import gradient_rule, no_gradient
from sardonyx.passes.nesting import captured

Grad = ir.Value | None
ZEROS = "zeros"  # marks values that are zero everywhere, so that sums can leave them out

no_gradient("SequenceEmpty", "SequenceLength")


# -- what is known of a sequence ----------------------------------------------------


def unrolled(op: Builder, sequence: ir.Value) -> list[ir.Value] | None:
    """The elements of a sequence, where its length is known while building."""
    node = sequence.producer()
    if node is None:
        return None
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type == "SequenceConstruct":
        return inputs
    if node.op_type == "SequenceEmpty":
        return []
    if node.op_type == "Identity":
        return unrolled(op, inputs[0])
    if node.op_type in ("SequenceInsert", "SequenceErase"):
        return _edited(op, node)
    if node.op_type == "SplitToSequence":
        count = _pieces(node)
        return None if count is None else [op.SequenceAt(sequence, i) for i in range(count)]
    return None


def _edited(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """The elements after a SequenceInsert or SequenceErase."""
    inputs = [*node.inputs, None]
    inserts = node.op_type == "SequenceInsert"
    before = unrolled(op, inputs[0])  # type: ignore[arg-type]
    if before is None:
        return None
    at = _place(inputs[2 if inserts else 1], len(before), inserts)
    if at is None:
        return None
    new = [inputs[1]] if inserts else []
    return [*before[:at], *new, *before[at + (not inserts) :]]  # type: ignore[list-item]


def _place(position: ir.Value | None, length: int, inserts: bool) -> int | None:
    """Where a sequence of known length is edited, counted from its start, if that is known too."""
    if position is None:
        return length if inserts else length - 1
    number = constant(position)
    if number is None:
        return None
    at = int(number.reshape(()))
    return at if at >= 0 else at + length


def _pieces(node: ir.Node) -> int | None:
    """Into how many pieces a SplitToSequence cuts."""
    x, *more = node.inputs
    split = more[0] if more else None
    lengths = constant(split)
    if lengths is not None and lengths.ndim == 1:
        return int(lengths.size)
    axis = driver.attributes(node)["axis"]
    size = x.shape[axis] if x is not None and x.shape is not None else None
    if not isinstance(size, int) or (split is not None and lengths is None):
        return None
    return -(-size // (1 if lengths is None else int(lengths)))


def element(op: Builder, sequence: ir.Value, position: int) -> ir.Value:
    """One element of a sequence, without a node where it is known."""
    node = sequence.producer()
    if node is not None and node.op_type == "SequenceConstruct":
        return [v for v in node.inputs if v is not None][position]
    return op.SequenceAt(sequence, position)


def zeros_like(op: Builder, x: ir.Value) -> ir.Value:
    zeros = op.zeros_like(x)
    zeros.meta[ZEROS] = True
    return zeros


def fill_sequence(op: Builder, value: float, sequence: ir.Value) -> ir.Value:
    """A sequence of tensors of `value`, shaped like the elements of `sequence`."""
    return map_elements(op, lambda body, x: body.fill(value, x), sequence)


def construct(op: Builder, elements: Sequence[ir.Value], like: ir.Value) -> ir.Value:
    if elements:
        return op.SequenceConstruct(*elements)
    return op.SequenceEmpty(dtype=int(like.type.elem_type.dtype))  # type: ignore[union-attr]


# -- SequenceMap, built -------------------------------------------------------------


def map_elements(op: Builder, function: Callable[..., ir.Value], *sequences: ir.Value) -> ir.Value:
    """The sequence of `function(body, *elements)` over sequences of equal length."""
    body = Builder(op.prefix, parent=op)
    inputs = [_element_of(op, s) for s in sequences]
    with body:
        result = function(body, *inputs)
    graph = ir.Graph(inputs, [result], nodes=body.nodes, name=op.fresh("each"))
    return _sequence_map(op, sequences, graph)[0]


def _element_of(op: Builder, sequence: ir.Value) -> ir.Value:
    """A body's input that represents an element of `sequence`."""
    kind: Any = sequence.type.elem_type  # type: ignore[union-attr]
    return ir.Value(name=op.fresh(f"{sequence.name}/element"), type=kind, shape=sequence.shape)


def _sequence_map(op: Builder, inputs: Sequence[ir.Value], body: ir.Graph) -> tuple[ir.Value, ...]:
    results = op.call("SequenceMap", inputs, {"body": body}, outputs=len(body.outputs))
    for value, result in zip(results, body.outputs, strict=True):
        assert result.type is not None
        value.type = ir.SequenceType(result.type)
    return results


# -- sums ---------------------------------------------------------------------------


def add_sequences(op: Builder, parts: Sequence[ir.Value]) -> ir.Value:
    """The sum of sequences of equal length, element by element."""
    element_lists = [unrolled(op, p) for p in parts]
    if all(k is not None for k in element_lists):
        columns = zip(*element_lists, strict=True)  # type: ignore[arg-type]
        return construct(op, [_sum(op, column) for column in columns], parts[0])
    total = parts[0]
    for part in parts[1:]:
        total = map_elements(op, lambda body, a, b: body.Add(a, b), total, part)
    return total


def _sum(op: Builder, values: Sequence[ir.Value]) -> ir.Value:
    counting = [v for v in values if ZEROS not in v.meta]
    if len(counting) > 1:
        return driver.add(op, counting)
    return counting[0] if counting else values[0]


# -- rules --------------------------------------------------------------------------


@gradient_rule("SequenceConstruct")
def sequence_construct(op, g, *elements):
    return [element(op, g, i) for i in range(len(elements))]


@gradient_rule("SequenceAt")
def sequence_at(op, g, sequence, position):
    elements, index = unrolled(op, sequence), constant(position)
    if elements is not None and index is not None:
        parts = [zeros_like(op, e) for e in elements]
        parts[int(index.reshape(()))] = g
        return construct(op, parts, sequence)
    zeros = fill_sequence(op, 0, sequence)
    at = _from_start(op, sequence, position)
    return op.SequenceInsert(op.SequenceErase(zeros, at), g, at)


def _from_start(op: Builder, sequence: ir.Value, position: ir.Value) -> ir.Value:
    """A position that counts from the start: from the end, it would differ for another length."""
    position = op.cast(position, ir.DataType.INT64)
    return op.Where(op.Less(position, 0), op.Add(position, op.SequenceLength(sequence)), position)


@gradient_rule("SequenceInsert")
def sequence_insert(op, g, sequence, x, position):
    elements = unrolled(op, sequence)
    place = None if elements is None else _place(position, len(elements), inserts=True)
    if elements is not None and place is not None:
        parts = [element(op, g, i) for i in range(len(elements) + 1)]
        return construct(op, [*parts[:place], *parts[place + 1 :]], sequence), parts[place]
    if position is None:
        return op.SequenceErase(g), op.SequenceAt(g, -1)
    at = _from_start(op, sequence, position)
    return op.SequenceErase(g, at), op.SequenceAt(g, at)


@gradient_rule("SequenceErase")
def sequence_erase(op, g, sequence, position):
    elements = unrolled(op, sequence)
    place = None if elements is None else _place(position, len(elements), inserts=False)
    if elements is not None and place is not None:
        parts = [element(op, g, i) for i in range(len(elements) - 1)]
        return construct(
            op, [*parts[:place], zeros_like(op, elements[place]), *parts[place:]], sequence
        )
    if position is None:
        return op.SequenceInsert(g, op.zeros_like(op.SequenceAt(sequence, -1)))
    at = _from_start(op, sequence, position)
    return op.SequenceInsert(g, op.zeros_like(op.SequenceAt(sequence, at)), at)


@gradient_rule("SplitToSequence")
def split_to_sequence(op, g, x, split, *, axis, keepdims):
    drops = split is None and not keepdims
    parts = unrolled(op, g)
    if not parts:
        return op.ConcatFromSequence(g, axis=axis, new_axis=int(drops))
    if drops:
        parts = [op.Unsqueeze(p, [axis]) for p in parts]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


@gradient_rule("ConcatFromSequence")
def concat_from_sequence(op, g, sequence, *, axis, new_axis):
    elements = unrolled(op, sequence)
    if elements:
        sizes = [1 if new_axis else op.dim(e, axis) for e in elements]
        parts = op.Split(g, op.join(sizes), axis=axis, outputs=len(elements))
        return op.SequenceConstruct(
            *([op.Squeeze(p, [axis]) for p in parts] if new_axis else parts)
        )
    if new_axis:
        return op.SplitToSequence(g, axis=axis, keepdims=0)
    end = None if axis == -1 else axis + 1
    each = map_elements(op, lambda body, x: body.Shape(x, start=axis, end=end), sequence)
    return op.SplitToSequence(g, op.ConcatFromSequence(each, axis=0), axis=axis)


@gradient_rule("SequenceMap", structural=True)
def sequence_map(op, gs, node, targets):
    body = node.attributes["body"].value.clone(allow_outer_scope_values=True)
    for value in (*body.inputs, *(v for inner in body for v in inner.outputs)):
        value.name = op.fresh(value.name)
    inner = Builder(op.prefix, parent=op)
    cotangents: dict[ir.Value, ir.Value] = {}
    extra_inputs: list[ir.Value] = []
    for g, result in zip(gs, body.outputs, strict=True):
        if g is not None:
            arrived = cotangents[result] = _element_of(op, g)
            arrived.shape = result.shape
            extra_inputs.append(g)
    outer = [*zip(node.inputs, body.inputs, strict=True), *((v, v) for v in captured(node))]
    inner_targets = [(x, inside) for x, inside in outer if x in targets]
    arriving = list(cotangents.values())
    gradients = driver.backward(
        inner, list(body), cotangents, [inside for _, inside in inner_targets]
    )
    pairs = [(x, dx) for (x, _), dx in zip(inner_targets, gradients, strict=True) if dx is not None]
    if not pairs:
        return {}
    # A body may not name one value as two outputs, nor an input as an output, in onnxruntime.
    results = [inner.Identity(dx) for _, dx in pairs]
    body.inputs.extend(arriving)
    body.extend(inner.nodes)
    body.outputs.clear()
    body.outputs.extend(results)
    outputs = _sequence_map(op, [*node.inputs, *extra_inputs], body)  # type: ignore[list-item]
    return _per_value(op, [x for x, _ in pairs], outputs)


def _per_value(
    op: Builder, values: Sequence[ir.Value | None], outputs: Sequence[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Sequences stay as they are; a tensor that every element read gets the sum over them."""
    total: dict[ir.Value, ir.Value] = {}
    for x, dx in zip(values, outputs, strict=True):
        assert x is not None
        if not isinstance(x.type, ir.SequenceType):
            dx = op.total(op.ConcatFromSequence(dx, axis=0, new_axis=1), [0])
        total[x] = dx if x not in total else driver.add(op, [total[x], dx])
    return total

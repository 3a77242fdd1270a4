"""Rules of calls, branches and loops: functions in place, If and Loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant
from sardonyx.importers.tensorflow.lists import TensorList
from sardonyx.importers.tensorflow.reader import Reader, Unknown, importer, merge_shape
from sardonyx.importers.tensorflow.recurrent import RecurrentLoop
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType
# Operators that add an element to a list: which operand is the list, and which the element.
WRITERS = {"TensorListSetItem": (0, 2), "TensorListPushBack": (0, 1), "TensorArrayWriteV3": (3, 2)}


@importer("PartitionedCall", "StatefulPartitionedCall", "TPUPartitionedCall")
def partitioned_call(op: Writer, *operands: Any, f: Any, node: Any, reader: Reader) -> list[Any]:
    return reader.function(op, f.name, node.graph, operands)


# -- branches -------------------------------------------------------------------------------------


@importer("If", "StatelessIf")
def if_(
    op: Writer,
    condition: ir.Value,
    *operands: Any,
    then_branch: Any,
    else_branch: Any,
    node: Any,
    reader: Reader,
) -> list[Any]:
    array = constant(condition)
    if array is not None:
        branch = then_branch if array.any() else else_branch
        return reader.function(op, branch.name, node.graph, operands)
    flag = condition if condition.dtype == T.BOOL else op.cast(condition, T.BOOL)
    branches = [then_branch.name, else_branch.name]
    return _chosen(op, flag, operands, branches, node, reader)


@importer("Case", "StatelessCase")
def case(
    op: Writer, index: ir.Value, *operands: Any, branches: Any, node: Any, reader: Reader
) -> list[Any]:
    return _case(op, op.int64(index), operands, [b.name for b in branches], 0, node, reader)


def _case(
    op: Writer,
    index: ir.Value,
    operands: Sequence[Any],
    names: Sequence[str],
    number: int,
    node: Any,
    reader: Reader,
) -> list[Any]:
    """Branch `number` and those after it; an index out of range means the last one."""
    if number == len(names) - 1:
        return reader.function(op, names[number], node.graph, operands)
    flag = op.Equal(index, op.like(number, index))
    yes, no = Writer(op.prefix, op), Writer(op.prefix, op)
    left = reader.function(yes, names[number], node.graph, operands)
    right = _case(no, index, operands, names, number + 1, node, reader)
    return _joined(op, flag, (yes, left), (no, right), node)


def _chosen(
    op: Writer, flag: ir.Value, operands: Sequence[Any], names: list[str], node: Any, reader: Reader
) -> list[Any]:
    sides = []
    for name in names:
        writer = Writer(op.prefix, op)
        sides.append((writer, reader.function(writer, name, node.graph, operands)))
    return _joined(op, flag, sides[0], sides[1], node)


def _joined(op: Writer, flag: ir.Value, yes: Any, no: Any, node: Any) -> list[Any]:
    """One If of two branches, each a writer and its results."""
    lists: dict[int, ir.DataType] = {}
    results: list[list[Any]] = []
    for writer, values in (yes, no):
        plain = []
        for i, value in enumerate(values):
            if isinstance(value, TensorList):
                lists[i] = value.dtype
                value = value.stacked(writer)
            plain.append(value)
        results.append(plain)
    if any(isinstance(v, Unknown) for side in results for v in side):
        return [Unknown() for _ in node.outputs]
    shared = [a is b for a, b in zip(*results, strict=True)]
    places = [i for i, same in enumerate(shared) if not same]
    for i in places:
        if not all(isinstance(side[i], ir.Value) for side in results):
            raise Refusal("branches with different variables or tables")
    if not places:
        return [TensorList(lists[i], v) if i in lists else v for i, v in enumerate(results[0])]
    graphs = [
        writer.as_graph([], [side[i] for i in places], label)
        for (writer, _), side, label in zip((yes, no), results, ("then", "else"), strict=True)
    ]
    attributes = [ir.AttrGraph("then_branch", graphs[0]), ir.AttrGraph("else_branch", graphs[1])]
    outputs = _node(op, "If", [flag], attributes, len(places))
    out = list(results[0])
    for i, value in zip(places, outputs, strict=True):
        value.type = results[0][i].type
        _common_shape(value, [side[i] for side in results])
        if i in lists:
            out[i] = TensorList(lists[i], value)
            continue
        merge_shape(value, node.outputs[i].shape, node.type)
        out[i] = value
    return out


def _common_shape(value: ir.Value, sides: Sequence[ir.Value]) -> None:
    """The shape on which both branches agree."""
    shapes = [s.shape for s in sides]
    if any(s is None for s in shapes) or len({len(s) for s in shapes}) > 1:  # type: ignore[arg-type]
        return
    dims = [d[0] if d[0] == d[1] else None for d in zip(*shapes, strict=True)]  # type: ignore[arg-type]
    value.shape = ir.Shape(dims)


def _node(
    op: Writer, op_type: str, inputs: Sequence[Any], attributes: Sequence[Any], count: int
) -> list[ir.Value]:
    name = op.fresh(f"{op.prefix}/{op_type}" if op.prefix else op_type)
    node = ir.Node("", op_type, list(inputs), attributes=attributes, num_outputs=count, name=name)
    for i, value in enumerate(node.outputs):
        value.name = name if i == 0 else op.fresh(f"{name}:{i}")
    op.nodes.append(node)
    return list(node.outputs)


# -- loops ----------------------------------------------------------------------------------------


@importer("While", "StatelessWhile")
def while_(
    op: Writer, *operands: Any, cond: Any, body: Any, node: Any, reader: Reader
) -> list[Any]:
    if any(isinstance(v, Unknown) for v in operands):
        return [Unknown() for _ in node.outputs]
    return FunctionLoop(op, list(operands), reader, cond.name, body.name, node).written()


@dataclass
class Loop:
    """One loop of TensorFlow and what each of its variables is to ONNX.

    kept     -- variables that the body returns as they are: values of the graph around
    appended -- lists to which each iteration adds one element: scan outputs
    carried  -- all others

    A kind of loop says what its body and its test are: graphs with `inputs` and `outputs`.
    """

    op: Writer
    operands: list[Any]
    reader: Reader
    kept: set[int] = field(default_factory=set, kw_only=True)
    appended: dict[int, tf.Tensor] = field(default_factory=dict, kw_only=True)

    def written(self) -> list[Any]:
        op = self.op
        body = self.body()
        self._sort(body)
        carried = [i for i in range(len(self.operands)) if i not in (*self.kept, *self.appended)]
        starts = [self._start(i, body) for i in carried]
        inner = Writer(op.prefix, op)
        number = _parameter(op, "iteration", T.INT64, [])
        flag = _parameter(op, "go_on", T.BOOL, [])
        state = [self._state(i, v, body) for i, v in zip(carried, starts, strict=True)]
        inside = list(self.operands)
        for i, value in zip(carried, state, strict=True):
            inside[i] = self._as_operand(i, value)
        new = self._iteration(inner, body, inside)
        layers = RecurrentLoop(self, inner, body, inside, new).results()
        if layers is not None:
            return layers
        again = self._test(inner, [*self._after(new, inside)])
        go = self._test(op, self.operands)
        if any(isinstance(v, Unknown) for v in [*new, again, go]):
            return [Unknown() for _ in self.operands]
        finals = [self._plain(inner, new[i]) for i in carried]
        items = [new[i] for i in self.appended]
        graph = inner.as_graph([number, flag, *state], [again, *finals, *items], "body")
        outputs = _node(
            op, "Loop", [None, go, *starts], [ir.AttrGraph("body", graph)], len(finals) + len(items)
        )
        return self._results(outputs, carried, state, items)

    def body(self) -> Any:
        """The body, with the shapes that TensorFlow guarantees in every iteration."""
        raise NotImplementedError

    def test(self) -> Any:
        """The test before each iteration, with these shapes."""
        raise NotImplementedError

    def _sort(self, body: Any) -> None:
        for i, (before, after) in enumerate(zip(body.inputs, body.outputs, strict=True)):
            if _origin(after) is before:
                self.kept.add(i)
        for i, after in enumerate(body.outputs):
            if i in self.kept or not isinstance(self.operands[i], TensorList):
                continue
            writer = _origin(after).op
            item = self._appended_item(i, writer, body)
            if item is not None:
                self.appended[i] = item

    def _appended_item(self, i: int, writer: tf.Operation, body: Any) -> tf.Tensor | None:
        """The element that each iteration adds to list `i`; None where it does anything else."""
        places = WRITERS.get(writer.type)
        if places is None:
            return None
        operand = self.operands[i]
        if _origin(writer.inputs[places[0]]) is not body.inputs[i] or operand.value is not None:
            return None
        readers = _readers(body.inputs[i])
        if readers != [writer] and any(r is not writer for r in readers):
            return None
        item = writer.inputs[places[1]]
        if writer.type == "TensorListPushBack":
            return item
        index = _origin(writer.inputs[1])
        counters = [j for j, t in enumerate(body.inputs) if t is index]
        return item if counters and self.counts(counters[0], body) else None

    def counts(self, j: int, body: Any) -> bool:
        """Whether variable `j` is the number of the iteration."""
        start = constant(self.operands[j]) if isinstance(self.operands[j], ir.Value) else None
        if start is None or start.size != 1 or start.reshape(-1)[0] != 0:
            return False
        step = _origin(body.outputs[j]).op
        if step.type not in ("Add", "AddV2"):
            return False
        sides = [_origin(t) for t in step.inputs]
        others = [t for t in sides if t is not body.inputs[j]]
        return len(others) == 1 and _number(others[0]) == 1

    def _start(self, i: int, body: Any) -> ir.Value:
        value = self.operands[i]
        if isinstance(value, TensorList):
            if value.value is None and (value.shape is None or None in value.shape):
                dims = _item_shape(self.reader, body.outputs[i])
                value.shape = value.shape if dims is None else dims
            return value.stacked(self.op)
        if not isinstance(value, ir.Value):
            raise Refusal("a loop that changes a variable or a table")
        return value

    def _state(self, i: int, start: ir.Value, body: Any) -> ir.Value:
        shape = body.inputs[i].shape
        if isinstance(self.operands[i], TensorList):
            operand = self.operands[i]
            sizes = operand.shape if operand.value is None else None
            dims: Any = list(start.shape)[1:] if sizes is None and start.shape else sizes
            dims = None if dims is None else [None, *dims]
        else:
            dims = shape.as_list() if shape.rank is not None else None
        return _parameter(self.op, "carry", start.dtype, dims)

    def _as_operand(self, i: int, value: ir.Value) -> Any:
        operand = self.operands[i]
        if not isinstance(operand, TensorList):
            return value
        return TensorList(operand.dtype, value, operand.count, operand.shape, operand.lacks_size)

    def _iteration(self, inner: Writer, body: Any, inside: list[Any]) -> list[Any]:
        """The results of the body; elements instead of the lists to which they are appended."""
        fed = {t.name: v for t, v in zip(body.inputs, inside, strict=True)}
        targets = [self.appended.get(i, t) for i, t in enumerate(body.outputs)]
        for i in self.kept:
            targets[i] = body.inputs[i]
        return self.reader.graph(inner, body, fed, targets)

    def _after(self, new: list[Any], inside: list[Any]) -> list[Any]:
        """What the test of the next iteration sees."""
        return [inside[i] if i in self.kept or i in self.appended else v for i, v in enumerate(new)]

    def _test(self, op: Writer, operands: Sequence[Any]) -> Any:
        graph = self.test()
        fed = {t.name: v for t, v in zip(graph.inputs, operands, strict=True)}
        (flag,) = self.reader.graph(op, graph, fed, graph.outputs)
        if isinstance(flag, ir.Value) and flag.dtype != T.BOOL:
            flag = op.cast(flag, T.BOOL)
        if isinstance(flag, ir.Value) and flag.shape is not None and len(flag.shape):
            flag = op.Reshape(flag, op.const(np.zeros(0, np.int64)))
        return flag

    def _plain(self, inner: Writer, value: Any) -> ir.Value:
        if isinstance(value, TensorList):
            return value.stacked(inner)
        if not isinstance(value, ir.Value):
            raise Refusal("a loop that changes a variable or a table")
        return value

    def _results(
        self, outputs: list[ir.Value], carried: list[int], state: list[ir.Value], items: list[Any]
    ) -> list[Any]:
        results = list(self.operands)
        for i, value, inner in zip(carried, outputs, state, strict=False):
            value.type, value.shape = inner.type, inner.shape
            results[i] = self._as_operand(i, value)
        scanned = outputs[len(carried) :]
        for i, value, item in zip(self.appended, scanned, items, strict=True):
            value.type = item.type
            if item.shape is not None:
                dims = [d if isinstance(d, int) else None for d in item.shape]
                value.shape = ir.Shape([None, *dims])
            results[i] = TensorList(item.dtype, self._filled(i, value, item))
        return results

    def _filled(self, i: int, value: ir.Value, item: ir.Value) -> ir.Value:
        """The elements of the iterations, and zeros for those that were reserved beyond."""
        operand = self.operands[i]
        count = constant(operand.count)
        if (count is not None and count[0] == 0) or self.fills(operand.count):
            return value
        if item.shape is None or item.dtype == T.STRING:
            raise Refusal("a loop that may leave elements of a list unwritten")
        op, n = self.op, len(item.shape) + 1
        missing = op.Max(op.Sub(operand.count, op.dim_value(value, 0)), [0])
        pads = op.join([*[0] * n, missing, *[0] * (n - 1)])
        narrow = item.dtype == T.BOOL
        y = op.Pad(op.cast(value, T.UINT8) if narrow else value, pads)
        return op.cast(y, item.dtype)

    def fills(self, count: ir.Value) -> bool:
        """Whether the loop runs as often as a list has elements: while number < count."""
        graph = self.test()
        body = self.body()
        tests = [_origin(graph.outputs[0])]
        while tests:
            test = tests.pop()
            if test.op.type == "LogicalAnd":
                tests += [_origin(t) for t in test.op.inputs]
                continue
            if test.op.type not in ("Less", "Greater"):
                return False
            low, high = test.op.inputs if test.op.type == "Less" else reversed(test.op.inputs)
            places = {t.name: j for j, t in enumerate(graph.inputs)}
            j, k = places.get(_origin(low).name), places.get(_origin(high).name)
            if j is None or not self.counts(j, body):
                return False
            bound = self.operands[k] if k is not None else _constant_of(self.op, _origin(high))
            if k is not None and k not in self.kept:
                return False
            if not same_count(self.op, bound, count):
                return False
        return True


@dataclass
class FunctionLoop(Loop):
    """A loop whose test and body are functions of the graph's library."""

    condition: str = ""
    name: str = ""
    node: Any = None

    def body(self) -> Any:
        return self._function(self.name)

    def test(self) -> Any:
        return self._function(self.condition)

    def _function(self, name: str) -> Any:
        shapes = [tf.TensorShape(t.shape) for t in self.node.outputs]
        return self.reader.body_of_shapes(name, self.node.graph, shapes)


def _constant_of(op: Writer, tensor: tf.Tensor) -> ir.Value | None:
    number = _number(tensor)
    return None if number is None else op.const(np.array(number, np.int64))


def same_count(op: Writer, bound: Any, count: ir.Value) -> bool:
    """Whether a number and a vector of one are the same number."""
    if not isinstance(bound, ir.Value):
        return False
    a, b = constant(bound), constant(count)
    if a is not None and b is not None:
        return int(a.reshape(-1)[0]) == int(b.reshape(-1)[0])
    first, second = _root(bound), _root(count)
    if first is second:
        return True
    mine, other = op.elements(bound), op.elements(_unshaped(count))
    if mine is None or other is None or mine.size != 1 or other.size != 1:
        return False
    x, y = mine.reshape(-1)[0], other.reshape(-1)[0]
    return x.same(y) if hasattr(x, "same") else x is y


def _unshaped(value: ir.Value) -> ir.Value:
    """A value before casts and reshapes that keep its one element."""
    while "elements" not in value.meta:
        producer = value.producer()
        if producer is None or producer.op_type not in ("Cast", "Reshape", "Squeeze", "Unsqueeze"):
            break
        value = producer.inputs[0]  # type: ignore[assignment]
    return value


def _root(value: ir.Value) -> ir.Value:
    while True:
        producer = value.producer()
        if producer is None or producer.op_type not in ("Cast", "Reshape", "Squeeze", "Unsqueeze"):
            return value
        value = producer.inputs[0]  # type: ignore[assignment]


def _parameter(op: Writer, stem: str, dtype: Any, dims: Any) -> ir.Value:
    """An input of a body."""
    name = op.fresh(f"{op.prefix}/{stem}" if op.prefix else stem)
    value = ir.Value(name=name, type=ir.TensorType(dtype))
    if dims is not None:
        value.shape = ir.Shape(dims)
    return value


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor before the operators that pass it on."""
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


def _readers(tensor: tf.Tensor) -> list[tf.Operation]:
    """The operators that read a tensor, through those that pass it on."""
    out = []
    for node in tensor.consumers():
        out += _readers(node.outputs[0]) if node.type == "Identity" else [node]
    return out


def _number(tensor: tf.Tensor) -> int | None:
    if tensor.op.type != "Const":
        return None
    array = tf.make_ndarray(tensor.op.get_attr("value"))
    return int(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "iu" else None


def _item_shape(reader: Reader, tensor: tf.Tensor) -> list[int | None] | None:
    """The shape of the elements that a body writes to a list, in a branch maybe."""
    origin = _origin(tensor)
    writer = origin.op
    if writer.type in WRITERS:
        shape = writer.inputs[WRITERS[writer.type][1]].shape
        return shape.as_list() if shape.rank is not None else None
    if writer.type not in ("If", "StatelessIf"):
        return None
    for side in ("then_branch", "else_branch"):
        shapes = [t.shape for t in writer.inputs[1:]]
        branch = reader.body_of_shapes(writer.get_attr(side).name, writer.graph, shapes)
        dims = _item_shape(reader, branch.outputs[origin.value_index])
        if dims is not None:
            return dims
    return None

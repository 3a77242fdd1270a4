"""Images with their channels last, as XLA's kernels on a CPU want them.

XLA turns the operands of a convolution by itself, but moves them back right after it: pools, norms
and gradients between two convolutions keep ONNX's layout, at a copy each. Here tensors stay turned
from one such node to the next, and turn back where something else reads them. Convolutions, pools
and batch normalization become operators of the domain `NATIVE` (kernels in `nn.py`); elementwise
nodes, Concat, Split and reductions stay what they are. Everything else (Resize, Pad, norms over
groups) and bodies of control flow read and give ONNX's layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.build import FLOATS, Builder, constant
from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.driver import attributes
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel
from sardonyx.passes.nesting import names

WINDOWS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
ELEMENTWISE = (
    *("Abs", "Add", "Cast", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid"),
    *("HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu"),
    *("Pow", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Sum"),
    *("Swish", "Tanh", "ThresholdedRelu", "Where"),
)
REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
GLOBAL = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}


def channels_last(model: Model) -> NormalizedModel:
    """A copy of a normalized model in which images are carried with their channels last."""
    copy = model.copy()
    copy.ir.opset_imports[NATIVE] = 1
    Carrier(copy.graph).run()
    return NormalizedModel.of(copy)


def rank_of(value: ir.Value | None) -> int:
    """The number of axes; 0 where it is not known."""
    return 0 if value is None or value.shape is None else len(value.shape)


def is_single_element(value: ir.Value) -> bool:
    return value.shape is not None and all(d == 1 for d in value.shape)


def _trains(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("training_mode", 0))


class Carrier:
    """Walks over a graph once; `last` has the turned form of every tensor that has one."""

    def __init__(self, graph: ir.Graph):
        self.graph = graph
        self.last: dict[ir.Value, ir.Value] = {}
        self.op = Builder()
        self.op.reserve(names(graph))

    def run(self) -> None:
        for node in list(self.graph):
            if node.domain == "":
                with self.op.named(node.name or node.op_type):
                    self._node(node)
        for node in reversed(self.op.nodes):
            (value,) = node.outputs
            if not value.uses() and not value.is_graph_output():
                self.graph.remove(node, safe=True)
        for value in self.op.constants.values():
            self.graph.register_initializer(value)

    def _node(self, node: ir.Node) -> None:
        if node.op_type in REDUCTIONS or node.op_type in GLOBAL:
            self._reduction(node)
        elif not all(rank_of(v) > 2 for v in node.outputs):
            return
        elif node.op_type in WINDOWS or node.op_type == "BatchNormalization":
            self._window(node)
        elif not any(v in self.last for v in node.inputs):
            return
        elif node.op_type in ELEMENTWISE:
            self._elementwise(node)
        elif node.op_type in ("Concat", "Split"):
            self._along_axis(node)

    # -- kinds of nodes

    def _window(self, node: ir.Node) -> None:
        x = node.inputs[0]
        if x is None or rank_of(x) < 3 or x.dtype not in FLOATS or len(node.outputs) != 1:
            return
        if node.op_type not in WINDOWS and (x not in self.last or _trains(node)):
            return
        settings = {n: v for n, v in attributes(node).items() if v is not None}
        attrs = ir.convenience.convert_attributes(settings)
        inputs = [self._turned(node, x), *node.inputs[1:]]
        self._carry(node, ir.Node(NATIVE, node.op_type, inputs, attrs))

    def _elementwise(self, node: ir.Node) -> None:
        rank = rank_of(node.outputs[0])
        ranks = [0 if v is None else rank_of(v) for v in node.inputs]
        carried = {r for v, r in zip(node.inputs, ranks) if v in self.last}
        if carried != {rank} or any(v is not None and v.shape is None for v in node.inputs):
            return
        inputs = [
            v if v is None or is_single_element(v) else self._turned(node, v, rank)
            for v in node.inputs
        ]
        self._carry(node, ir.Node("", node.op_type, inputs, node.attributes.values()))

    def _along_axis(self, node: ir.Node) -> None:
        rank = rank_of(node.inputs[0])
        joins = node.op_type == "Concat"
        if not rank or (joins and any(rank_of(v) != rank for v in node.inputs)):
            return
        if not joins and node.inputs[0] not in self.last:
            return
        axis = ir.AttrInt64("axis", moved(attributes(node)["axis"] % rank, rank))
        turned = [self._turned(node, v) for v in node.inputs[: None if joins else 1]]
        attrs = [*(a for n, a in node.attributes.items() if n != "axis"), axis]
        inputs = [*turned, *node.inputs[len(turned) :]]
        count = len(node.outputs)
        self._carry(node, ir.Node("", node.op_type, inputs, attrs, num_outputs=count))

    def _reduction(self, node: ir.Node) -> None:
        """Over all pixels: the channels that are left are in order, whatever the layout was."""
        x = node.inputs[0]
        rank = rank_of(x)
        pixels = set(range(2, rank))
        axes = pixels if node.op_type in GLOBAL else self._axes(node)
        if x not in self.last or axes is None or not axes >= pixels:
            return
        keepdims = attributes(node).get("keepdims", 1)
        over = self.op.const(np.array(sorted(moved(a, rank) for a in axes), np.int64))
        attrs = [ir.AttrInt64("keepdims", keepdims)]
        name = GLOBAL.get(node.op_type, node.op_type)
        new = ir.Node("", name, [self._turned(node, x), over], attrs)
        if keepdims:
            self._carry(node, new)
        else:
            self._put(node, new)
            self._replace(node.outputs[0], new.outputs[0])
            self.graph.remove(node, safe=True)

    def _axes(self, node: ir.Node) -> set[int] | None:
        axes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
        return None if axes is None else {int(a) for a in axes.reshape(-1)}

    # -- tensors

    def _turned(self, at: ir.Node, value: ir.Value | None, rank: int = 0) -> ir.Value:
        """A tensor with its channels last, as if it had `rank` axes."""
        assert value is not None
        if value in self.last:
            return self.last[value]
        first = len(self.op.nodes)
        source, missing = value, rank - rank_of(value)
        if missing > 0:
            source = self.op.Unsqueeze(value, np.arange(missing))
        turned = self.op.Transpose(source, perm=to_last(max(rank, rank_of(value))))
        self.graph.insert_before(at, self.op.nodes[first:])
        if missing <= 0:
            self.last[value] = turned
        return turned

    def _put(self, node: ir.Node, new: ir.Node) -> None:
        new.name = node.name
        new.metadata_props.update(node.metadata_props)
        self.graph.insert_before(node, new)

    def _carry(self, node: ir.Node, new: ir.Node) -> None:
        """`new` in the place of `node`, whose outputs it gives with their channels last."""
        self._put(node, new)
        for old, turned in zip(node.outputs, new.outputs):
            rank = rank_of(old)
            turned.name = self.op.fresh(f"{old.name}/last")
            turned.type = old.type
            turned.shape = ir.Shape([old.shape[a] for a in to_last(rank)])  # type: ignore[index]
            first = len(self.op.nodes)
            back = self.op.Transpose(turned, perm=to_first(rank))
            self.graph.insert_before(node, self.op.nodes[first:])
            self._replace(old, back)
            self.last[back] = turned
        self.graph.remove(node, safe=True)

    def _replace(self, old: ir.Value, new: ir.Value) -> None:
        new.type, new.shape = old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name, old.name = old.name, None


def moved(axis: int, rank: int) -> int:
    """Where an axis of ONNX's layout is with channels last."""
    return to_last(rank).index(axis)


def to_last(rank: int) -> Sequence[int]:
    return [0, *range(2, rank), 1]


def to_first(rank: int) -> Sequence[int]:
    return [0, rank - 1, *range(1, rank - 1)]

"""`quantize_aware`: a model that rounds its weights and activations, ready to be trained.

Every product with a stored weight (MatMul, Gemm, Conv, ConvTranspose) reads that weight, and its
other input, through a QuantizeLinear and a DequantizeLinear. Gradients pass straight through the
rounding (`grad/quantization.py`). A scale is `scale · factor`: the first is calibrated and fixed,
the second starts at 1 and is trained, so that a learning rate means the same for every scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.edit.lora import FIRST, adapters
from sardonyx.edit.surgery import finish, open_model
from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model, ModelSource
from sardonyx.quantize.folding import fold_batch_norm
from sardonyx.quantize.ranges import LEVELS, Levels, activation_range, observed, weight_scale
from sardonyx.weights import KIND

OPERATORS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
SCALE, FACTOR = "scale", "scale_factor"


@dataclass(frozen=True)
class Product:
    """A node with a stored weight.

    position -- the input of `node` that the weight is
    weight   -- the stored tensor
    moves    -- the permutations of axes between the stored tensor and the node
    axis     -- the axis of the stored tensor along which the outputs of the product lie
    """

    node: ir.Node
    position: int
    weight: ir.Value
    moves: tuple[tuple[int, ...], ...]
    axis: int


def quantize_aware(
    model: ModelSource,
    data: Any = None,
    *,
    weights: Literal["int8", "int4"] = "int8",
    activations: Literal["uint8", "int16"] | None = "uint8",
    per_channel: bool = True,
    learn_scales: bool = True,
    skip: str | Sequence[str] = (),
    rows: int = 512,
    fields: Mapping[str, str] | None = None,
) -> Model:
    """Insert rounding into a model, so that training makes it robust against it.

    data         -- rows that show the range of the activations, in any form that `train` takes
    weights      -- the integers that weights are rounded to
    activations  -- those of the inputs of products; None leaves activations as they are
    per_channel  -- a scale for every output channel of a weight, not one for the whole; a stack of
                    matrices of int8 beside activations of uint8 has one scale, because onnxruntime
                    multiplies such integers with no other
    learn_scales -- train the scales too
    skip         -- patterns of weights that stay floats, such as "head.*"
    rows         -- of the data that are looked at
    fields       -- input → field of the data, where names differ

    Batch normalization behind a product is folded into it. The result serves and trains like any
    other model; `to_integers` stores the trained weights as integers.

    >>> import sardonyx as sx
    >>> net = sx.quantize_aware("model.onnx", "data.npz", weights="int8")
    >>> run = sx.train(net, "data.npz", epochs=1)
    >>> small = sx.to_integers(run.model)
    """
    patterns = [skip] if isinstance(skip, str) else skip
    switches = {"per_channel": per_channel, "learn_scales": learn_scales}
    _check(weights, activations, data, rows, patterns, switches)
    work, op = open_model(model)
    fold_batch_norm(work, op)
    for value in op.constants.values():
        if value.name not in work.graph.initializers:
            work.graph.register_initializer(value)
    products = _products(work, patterns)
    _refuse_not_finite(products)
    ends: dict[str, tuple[float, float]] = {}
    read = list(dict.fromkeys(v.name or "" for p in products for v in _activations(p)))
    if activations is not None and read:
        ends = observed(work, read, data, rows, fields)
    insert = _Insertion(work, op, learn_scales)
    for product in products:
        is_stack = product.node.op_type == "MatMul" and len(product.weight.shape or ()) > 2
        one_scale = is_stack and (weights, activations) == ("int8", "uint8")
        axis = product.axis if per_channel and not one_scale else None
        insert.weight(product, LEVELS[weights], axis)
        if activations is not None:
            for value in _activations(product):
                insert.activation(product.node, value, LEVELS[activations], ends[value.name or ""])
    insert.adapters(adapters(work))
    finish(work, op, "the model cannot be quantized")
    return work


def _check(
    weights: str,
    activations: str | None,
    data: Any,
    count: Any,
    skip: Any,
    switches: Mapping[str, Any],
) -> None:
    rows = [[n, f"True or False, not {v!r}"] for n, v in switches.items() if v not in (True, False)]
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        rows.append(["rows", f"a whole number from 1 on, not {count!r}"])
    if not isinstance(skip, (list, tuple)) or not all(isinstance(s, str) for s in skip):
        rows.append(["skip", f"patterns of names, not {skip!r}"])
    if weights not in ("int8", "int4"):
        rows.append(["weights", f'"int8" or "int4", not {weights!r}'])
    if activations not in ("uint8", "int16", None):
        rows.append(["activations", f'"uint8", "int16" or None, not {activations!r}'])
    if activations is not None and data is None:
        rows.append(["data", "rows that show the range of the activations"])
    if rows:
        raise ArgumentError("this cannot be quantized to", rows)


def _refuse_not_finite(products: Sequence[Product]) -> None:
    """No scale fits a weight that is not finite."""
    weights = {p.weight.name or "": p.weight.const_value for p in products}
    rows = [
        [quote(name), "holds a number that is not finite"]
        for name, tensor in weights.items()
        if tensor is not None and not np.isfinite(tensor.numpy()).all()
    ]
    if rows:
        raise ArgumentError("weights cannot be rounded", rows, hint="`skip` leaves weights out")


def _products(model: Model, skip: Sequence[str]) -> list[Product]:
    """The products with float weights; an error where there are none, or a pattern is in vain."""
    products = [p for node in model.graph if (p := _product(node)) is not None]
    names = [p.weight.name or "" for p in products]
    vain = [s for s in skip if not any(fnmatchcase(n, s) for n in names)]
    if vain:
        raise ArgumentError(
            "no weight that could be quantized matches",
            [[quote(s)] for s in vain],
            hint=f"there are {', '.join(map(quote, names)) or 'none'}",
        )
    chosen = [p for p in products if not any(fnmatchcase(p.weight.name or "", s) for s in skip)]
    if not chosen:
        nodes = [n for n in model.graph if n.op_type in OPERATORS or "Integer" in n.op_type]
        raise ArgumentError(
            "the model has no product with a float32 weight to quantize",
            [[n.op_type, quote(n.name)] for n in nodes],
            hint="weights are quantized where MatMul, Gemm, Conv or ConvTranspose read them from "
            "the file; sx.dequantize gives a quantized model float weights",
        )
    return chosen


def _product(node: ir.Node) -> Product | None:
    if node.domain != "" or node.op_type not in OPERATORS:
        return None
    for position in (1, 0) if node.op_type == "MatMul" else (1,):
        value, moves = _stored(node.inputs[position])
        if value is None or value.dtype != ir.DataType.FLOAT or value.const_value is None:
            continue
        rank = len(value.const_value.shape)
        if rank < 2:
            continue
        axis = _axis(node, position, rank)
        for permutation in reversed(moves):
            axis = permutation[axis]
        return Product(node, position, value, moves, axis)
    return None


def _stored(value: ir.Value | None) -> tuple[ir.Value | None, tuple[tuple[int, ...], ...]]:
    """The stored tensor behind an operand, and how its axes are permuted on the way."""
    moves: list[tuple[int, ...]] = []
    while value is not None and (node := value.producer()) is not None:
        if node.domain != "" or node.op_type not in ("Transpose", "Identity"):
            return None, ()
        if node.op_type == "Transpose":
            if value.shape is None:
                return None, ()
            reverse = range(len(value.shape))[::-1]
            moves.insert(0, tuple(node.attributes.get_ints("perm") or reverse))
        value = node.inputs[0]
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None, ()
    return value, tuple(moves)


def _axis(node: ir.Node, position: int, rank: int) -> int:
    """The axis of a weight along which the outputs of its product lie."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return rank - 1 if position == 1 else rank - 2


def _activations(product: Product) -> list[ir.Value]:
    """What a product reads beside its weight and its bias, where that is computed or fed."""
    value = product.node.inputs[1 - product.position]
    computed = value is not None and _stored(value)[0] is None
    return [value] if computed and value.dtype == ir.DataType.FLOAT else []  # type: ignore[list-item,union-attr]


class _Insertion:
    """Writes the pairs of nodes; a tensor that several products read is rounded once."""

    def __init__(self, model: Model, op: Builder, learn: bool):
        self.model, self.op, self.learn = model, op, learn
        self.pairs: dict[tuple[str, int | None], ir.Value] = {}
        self.permuted: dict[tuple[Any, ...], ir.Value] = {}

    def weight(self, product: Product, levels: Levels, axis: int | None) -> None:
        value = product.weight
        key = (value.name or "", axis)
        if key not in self.pairs:
            assert value.const_value is not None
            scale = weight_scale(value.const_value.numpy(), levels, axis)
            zero = np.zeros(np.shape(scale), levels.numpy)
            self.pairs[key] = self._pair(product.node, value, scale, zero, axis)
            value.metadata_props[KIND] = "weight"
        operand = self._moved(product, key)
        product.node.replace_input_with(product.position, operand)

    def _moved(self, product: Product, key: tuple[str, int | None]) -> ir.Value:
        """The rounded weight with its axes as the product reads them."""
        value = self.pairs[key]
        for i, permutation in enumerate(product.moves):
            place = (key, product.moves[: i + 1])
            if place not in self.permuted:
                with self.op.named(f"{product.weight.name}/quantize"):
                    self.permuted[place] = self.op.Transpose(value, perm=list(permutation))
                nodes, self.op.nodes = self.op.nodes, []
                self.model.graph.insert_after(value.producer(), nodes)  # type: ignore[arg-type]
            value = self.permuted[place]
        return value

    def activation(
        self, node: ir.Node, value: ir.Value, levels: Levels, ends: tuple[float, float]
    ) -> None:
        key = (value.name or "", None)
        if key not in self.pairs:
            number, zero = activation_range(*ends, levels)
            scale = np.asarray(number, np.float32)
            self.pairs[key] = self._pair(node, value, scale, np.asarray(zero, levels.numpy), None)
        for position, read in enumerate(node.inputs):
            if read is value and position < 2:
                node.replace_input_with(position, self.pairs[key])

    def adapters(self, names: Collection[str]) -> None:
        """Let the path of each adapter read what its product reads: merging keeps the numbers."""
        for name in names:
            first = self.model.graph.initializers[name + FIRST]
            for node in first.consumers():
                position = 1 if node.inputs[0] is first else 0
                while (value := node.inputs[position]) is not None:
                    rounded = self.pairs.get((value.name or "", None))
                    if rounded is not None:
                        node.replace_input_with(position, rounded)
                        break
                    producer = value.producer()
                    if producer is None or producer.op_type not in ("Dropout", "Transpose"):
                        break
                    node, position = producer, 0

    def _pair(
        self,
        node: ir.Node,
        value: ir.Value,
        scale: np.ndarray,
        zero: np.ndarray,
        axis: int | None,
    ) -> ir.Value:
        """The value rounded to levels, as a float again; its nodes stand before their reader."""
        op = self.op
        along = {} if axis is None else {"axis": axis}
        with op.named(f"{value.name}/quantize"):
            step = self._scale(value.name or "", scale)
            zero_point = op.weight(f"{value.name}/zero_point", zero)
            integers = op.QuantizeLinear(value, step, zero_point, **along)
            result = op.DequantizeLinear(integers, step, zero_point, **along)
        nodes, op.nodes = op.nodes, []
        self._place(node, value, nodes)
        return result

    def _scale(self, name: str, array: np.ndarray) -> ir.Value:
        fixed = self.op.weight(f"{name}/{SCALE}", array)
        fixed.metadata_props[KIND] = "constant"
        if not self.learn:
            return fixed
        factor = self.op.weight(f"{name}/{FACTOR}", np.ones_like(array))
        factor.metadata_props[KIND] = "weight"
        return self.op.Mul(fixed, factor)

    def _place(self, node: ir.Node, value: ir.Value, nodes: list[ir.Node]) -> None:
        producer = value.producer()
        graph = self.model.graph
        if producer is not None:
            graph.insert_after(producer, nodes)
        elif len(graph):
            graph.insert_before(graph[0], nodes)

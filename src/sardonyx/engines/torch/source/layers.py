"""Nodes with weights as layers of torch.nn: how a layer is made, and its weights in torch's layout.

A weight in another layout (ONNX's MatMul has inputs × outputs) is stored in torch's layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.torch.rnn import ORDER
from sardonyx.engines.torch.source.expression import Literal, build
from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.driver import attributes
from sardonyx.lower.rnn import DEFAULTS

if TYPE_CHECKING:
    from sardonyx.engines.torch.source.origin import Origin
    from sardonyx.engines.torch.source.reading import Reader, Statement
    from sardonyx.engines.torch.source.scopes import Path


@dataclass
class Tensor:
    """A tensor of the state dict: the model's tensors it is made from, and the function."""

    sources: list[ir.Value]
    make: Callable[..., np.ndarray] | None = None
    is_buffer: bool = False

    @property
    def array(self) -> np.ndarray:
        arrays = [v.const_value.numpy() for v in self.sources]  # type: ignore[union-attr]
        stored = arrays[0] if self.make is None else self.make(*arrays)
        return np.require(stored, requirements="C")


@dataclass
class Layer:
    """A layer of torch.nn.

    arguments -- arguments of its constructor; keywords at their default are left out
    before    -- expressions applied to its input, where torch's layer lacks an option
    """

    kind: str
    arguments: list[Literal]
    tensors: dict[str, Tensor]
    inputs: list[ir.Value]
    word: str = ""
    before: list[Any] = field(default_factory=list)
    recurrent: bool = False

    def statements(self, node: ir.Node, path: Path) -> list[Statement]:
        from sardonyx.engines.torch.source import reading

        statements_out, inputs = [], list(self.inputs)
        for i, expression in enumerate(self.before):
            value = ir.Value(name=f"{node.outputs[0].name}/before{i}", type=inputs[0].type)
            statements_out.append(reading.Statement([value], path, "Pad", expression))
            inputs[0] = value
        if self.recurrent:
            return self._recurrent(node, path, inputs)
        call = reading.Statement(
            [node.outputs[0]], path, node.op_type, build(""), self, tuple(inputs)
        )
        return [*statements_out, call]

    def _recurrent(self, node: ir.Node, path: Path, inputs: list[ir.Value]) -> list[Statement]:
        """torch's outputs, then ONNX's of them: with an axis of directions."""
        from sardonyx.engines.torch.source import reading

        named = [v for v in node.outputs if v.name]
        results = [ir.Value(name=f"{v.name}/torch", type=v.type) for v in node.outputs]
        while len(results) < (3 if node.op_type == "LSTM" else 2):
            results.append(ir.Value(name=f"{node.outputs[0].name}/rest{len(results)}"))
        statements_out = [
            reading.Statement(results, path, node.op_type, build(""), self, tuple(inputs))
        ]
        for i, value in enumerate(named):
            text = "{0}.unsqueeze(1)" if i == 0 else "{0}"
            if i == 0 and self.arguments[-1].value:
                text = "{0}.unflatten(2, (2, -1)).transpose(1, 2)"
            if value.uses() or value.is_graph_output():
                statements_out.append(
                    reading.Statement([value], path, "Identity", build(text, results[i]))
                )
        return statements_out


def option(name: str, value: Any, usual: Any) -> Literal:
    """An argument by keyword."""
    return Literal(value, name, f", {name}=", usual)


def epsilon_option(value: float, usual: float = 1e-5) -> Literal:
    near = np.isclose(value, usual, rtol=1e-5, atol=0)
    return option("eps", usual if near else float(value), usual)


def dims(value: ir.Value | None) -> tuple[int, ...] | None:
    tensor = None if value is None or value.is_graph_input() else value.const_value
    return None if tensor is None else tuple(tensor.shape.numpy())


def layer_of(reader: Reader, node: ir.Node) -> Layer | None:
    """A node as a layer; None where it is none, or torch's layer lacks an option of it."""
    make = MAKERS.get((node.domain, node.op_type))
    if make is None:
        return None
    if node.op_type not in RECURRENT and any(v.uses() for v in node.outputs[1:]):
        return None
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    return make(reader, node, inputs, attributes(node))


Inputs = list[ir.Value | None]


def _transposed(array: np.ndarray) -> np.ndarray:
    return array.T


def linear(
    reader: Reader, node: ir.Node, inputs: Inputs, attributes: dict[str, Any]
) -> Layer | None:
    x, w, b = inputs[:3]
    shape = dims(w)
    if x is None or w is None or shape is None or len(shape) != 2 or dims(x) is not None:
        return None
    if b is not None and (dims(b) is None or len(dims(b) or ()) != 1):
        return None
    wide = attributes.get("transB", 0) or attributes.get("transposed", 0)
    if (
        attributes.get("transA", 0)
        or attributes.get("alpha", 1.0) != 1
        or attributes.get("beta", 1.0) != 1
    ):
        return None
    outputs, columns = shape if wide else shape[::-1]
    if b is not None and dims(b) != (outputs,):
        return None
    tensors = {"weight": Tensor([w]) if wide else Tensor([w], _transposed)}
    arguments = [Literal(columns, "in_features"), Literal(outputs, "out_features")]
    arguments.append(option("bias", b is not None, True))
    if b is not None:
        tensors["bias"] = Tensor([b])
    return Layer("nn.Linear", arguments, tensors, [x], "linear")


def even(values: Any) -> Any:
    """A number for all axes where they agree, else one for each."""
    values = tuple(int(v) for v in values)
    return values[0] if len(set(values)) == 1 else values


def conv(reader: Reader, node: ir.Node, inputs: Inputs, options: dict[str, Any]) -> Layer | None:
    x, w, b = inputs[:3]
    shape = dims(w)
    if x is None or w is None or shape is None or not 3 <= len(shape) <= 5:
        return None
    if b is not None and dims(b) is None:
        return None
    rank = len(shape) - 2
    turned = node.op_type == "ConvTranspose"
    group, pads = options["group"], list(options["pads"] or [0] * 2 * rank)
    begin, end = pads[:rank], pads[rank:]
    if (options.get("auto_pad") or "NOTSET") != "NOTSET" or (turned and options["output_shape"]):
        return None
    before = []
    if begin != end:
        if turned:
            return None
        pairs = [p for pair in zip(reversed(begin), reversed(end)) for p in pair]
        before.append(build("F.pad({0}, {1})", x, Literal(tuple(pairs), "pads")))
        begin = [0] * rank
    channels = shape[:2] if turned else shape[1::-1]
    widths = (channels[0], channels[1] * group) if turned else (channels[0] * group, channels[1])
    arguments = [
        Literal(widths[0], "in_channels"),
        Literal(widths[1], "out_channels"),
        Literal(even(shape[2:]), "kernel_size"),
        option("stride", even(options["strides"] or [1]), 1),
        option("padding", even(begin), 0),
        option("dilation", even(options["dilations"] or [1]), 1),
        option("groups", group, 1),
    ]
    if turned:
        arguments.append(option("output_padding", even(options["output_padding"] or [0]), 0))
    arguments.append(option("bias", b is not None, True))
    tensors = {"weight": Tensor([w])}
    if b is not None:
        tensors["bias"] = Tensor([b])
    kind = f"nn.ConvTranspose{rank}d" if turned else f"nn.Conv{rank}d"
    return Layer(kind, arguments, tensors, [x], "conv", before)


def batch_norm(
    reader: Reader, node: ir.Node, inputs: Inputs, options: dict[str, Any]
) -> Layer | None:
    x, scale, b, mean, var = inputs[:5]
    if x is None or x.shape is None or any(dims(v) is None for v in inputs[1:5]):
        return None
    if options["training_mode"]:
        return None
    rank = len(x.shape)
    kind = {2: "nn.BatchNorm1d", 3: "nn.BatchNorm1d", 4: "nn.BatchNorm2d", 5: "nn.BatchNorm3d"}
    if rank not in kind or scale is None or b is None or mean is None or var is None:
        return None
    (width,) = dims(scale) or (0,)
    momentum = round(1 - options["momentum"], 6)
    arguments = [Literal(width, "num_features"), epsilon_option(options["epsilon"])]
    arguments.append(option("momentum", momentum, 0.1))
    count = np.zeros((), np.int64)
    tensors = {
        "weight": Tensor([scale]),
        "bias": Tensor([b]),
        "running_mean": Tensor([mean], is_buffer=True),
        "running_var": Tensor([var], is_buffer=True),
        "num_batches_tracked": Tensor([], lambda: count, is_buffer=True),
    }
    return Layer(kind[rank], arguments, tensors, [x], "norm")


def layer_norm(
    reader: Reader, node: ir.Node, inputs: Inputs, options: dict[str, Any]
) -> Layer | None:
    x, scale, b = inputs[:3]
    if x is None or x.shape is None or scale is None or dims(scale) is None:
        return None
    if b is not None and dims(b) != dims(scale):
        return None
    axis = options["axis"] % len(x.shape)
    form = dims(scale) or ()
    if len(form) != len(x.shape) - axis:
        return None
    rms = node.op_type == "RMSNormalization"
    arguments = [Literal(form[0] if len(form) == 1 else form, "width")]
    arguments.append(epsilon_option(options["epsilon"], 0.0 if rms else 1e-5))
    tensors = {"weight": Tensor([scale])}
    if b is not None:
        tensors["bias"] = Tensor([b])
    elif not rms:
        arguments.append(option("bias", False, True))
    kind = "nn.RMSNorm" if rms else "nn.LayerNorm"
    return Layer(kind, arguments, tensors, [x], "norm")


def group_norm(
    reader: Reader, node: ir.Node, inputs: Inputs, options: dict[str, Any]
) -> Layer | None:
    x, scale, b = inputs[:3]
    form = dims(scale)
    if x is None or scale is None or b is None or form is None or dims(b) != form:
        return None
    groups = options.get("num_groups", form[0])
    arguments = [Literal(groups, "num_groups"), Literal(form[0], "num_channels")]
    arguments.append(epsilon_option(options["epsilon"]))
    tensors = {"weight": Tensor([scale]), "bias": Tensor([b])}
    return Layer("nn.GroupNorm", arguments, tensors, [x], "norm")


def embedding(
    reader: Reader, node: ir.Node, inputs: Inputs, options: dict[str, Any]
) -> Layer | None:
    table, ids = inputs[:2]
    shape = dims(table)
    if table is None or ids is None or shape is None or len(shape) != 2 or options["axis"] != 0:
        return None
    if table.name not in reader.weights or ids in reader.known or ids.dtype is None:
        return None
    arguments = [Literal(shape[0], "num_embeddings"), Literal(shape[1], "embedding_dim")]
    return Layer("nn.Embedding", arguments, {"weight": Tensor([table])}, [ids], "embedding")


RECURRENT = {"LSTM": "nn.LSTM", "GRU": "nn.GRU", "RNN": "nn.RNN"}


def recurrent(
    reader: Reader, node: ir.Node, inputs: Inputs, attributes: dict[str, Any]
) -> Layer | None:
    x, w, r, b, lengths, hidden_state, cell_state, peepholes = inputs
    directions = {"forward": 1, "bidirectional": 2}.get(attributes["direction"])
    op = node.op_type
    weights = _weights(reader, w, r, b)
    if x is None or weights is None:
        return None
    if directions is None or lengths is not None or peepholes is not None:
        return None
    states = [hidden_state, cell_state][: 2 if op == "LSTM" else 1]
    start_states = [v for v in states if v is not None and not _is_zero(reader, v)]
    if start_states and len(start_states) < len(states):
        return None
    names = [str(a).lower() for a in attributes["activations"] or []]
    usual = [a.lower() for a in DEFAULTS[op]] * directions
    odd = attributes.get("input_forget", 0) or attributes["layout"] or attributes["clip"]
    if odd or (names and names != usual) or (op == "GRU" and not attributes["linear_before_reset"]):
        return None
    hidden, wide = weights[1].shape[2], weights[0].shape[2]
    arguments = [Literal(wide, "input_size"), Literal(hidden, "hidden_size")]
    arguments.append(option("bias", b is not None, True))
    arguments.append(option("bidirectional", directions == 2, False))
    parts: dict[str, Tensor | None] = {}
    for d in range(directions):
        end = "_l0_reverse" if d else "_l0"
        parts[f"weight_ih{end}"] = weights[0].tensor(_gates(op, hidden, d))
        parts[f"weight_hh{end}"] = weights[1].tensor(_gates(op, hidden, d))
        if b is not None:
            half = len(ORDER[op]) * hidden
            parts[f"bias_ih{end}"] = weights[2].tensor(_gates(op, hidden, d, 0, half))
            parts[f"bias_hh{end}"] = weights[2].tensor(_gates(op, hidden, d, half, 2 * half))
    tensors = {name: tensor for name, tensor in parts.items() if tensor is not None}
    if len(tensors) < len(parts):
        return None
    operands = [x, *start_states]
    return Layer(RECURRENT[op], arguments, tensors, operands, op.lower(), recurrent=True)


def _weights(reader: Reader, *values: ir.Value | None) -> list[Origin] | None:
    """Where weights, recurrence weights and biases come from; None if they are computed."""
    from sardonyx.engines.torch.source.origin import Origin

    origins = [Origin(reader, v) for v in values if v is not None]
    is_complete = None not in values[:2] and all(o.places is not None for o in origins)
    return origins if is_complete else None


def _is_zero(reader: Reader, value: ir.Value) -> bool:
    """Whether a state is all zeros, which is what torch's layers begin with by themselves."""
    array = reader.known.get(value)
    if array is not None:
        return not array.any()
    node = value.producer()
    if node is None or node.domain != "":
        return False
    if node.op_type == "ConstantOfShape":
        fill = node.attributes.get_tensor("value")
        return fill is None or not fill.numpy().any()
    inner = node.inputs[0] if node.op_type in ("Expand", "Identity") else None
    return inner is not None and _is_zero(reader, inner)


def _gates(
    op: str, hidden: int, d: int, start: int = 0, stop: int | None = None
) -> Callable[[np.ndarray], np.ndarray]:
    """The rows of one direction in torch's order of gates."""

    def change(array: np.ndarray) -> np.ndarray:
        rows = array[d][start:stop]
        parts = [rows[i * hidden : (i + 1) * hidden] for i in range(len(rows) // hidden)]
        return np.concatenate([parts[i] for i in ORDER[op]])

    return change


MAKERS: dict[tuple[str, str], Callable[..., Layer | None]] = {
    (NATIVE, "Linear"): linear,
    ("", "Gemm"): linear,
    ("", "Conv"): conv,
    ("", "ConvTranspose"): conv,
    ("", "BatchNormalization"): batch_norm,
    ("", "LayerNormalization"): layer_norm,
    ("", "RMSNormalization"): layer_norm,
    ("", "GroupNormalization"): group_norm,
    ("", "InstanceNormalization"): group_norm,
    ("", "Gather"): embedding,
    ("", "LSTM"): recurrent,
    ("", "GRU"): recurrent,
    ("", "RNN"): recurrent,
}

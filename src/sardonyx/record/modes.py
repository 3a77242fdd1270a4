"""Training mode: the forward pass of training, beside the graph that is served.

BatchNormalization and Dropout behave differently while training. The served graph stays in
inference mode. Copies of these nodes in training mode, and of everything that depends on them, go
into the record's algorithm, which also updates the running statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.errors import ArgumentError, quote
from sardonyx.grad.nn.batch_norm import new_statistics, normalize_batch
from sardonyx.model import Model
from sardonyx.passes.cse import is_random
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import bodies, reads
from sardonyx.record.builder import RecordBuilder
from sardonyx.record.describe import Choices
from sardonyx.record.hash_random import keep_mask

Mode = str | Mapping[str, str]
MODES = ("train", "frozen")


def mode_of(node: ir.Node, mode: Mode) -> str:
    """The mode of a node: one for all nodes, or that of the first pattern that matches its name."""
    if isinstance(mode, str):
        return mode
    return next((m for p, m in mode.items() if _matches(node, p)), "frozen")


def _matches(node: ir.Node, pattern: str) -> bool:
    names = [n for n in (node.name, *(v.name for v in node.inputs if v is not None)) if n]
    return any(fnmatchcase(n, pattern) for n in names)


def _check(kind: str, mode: Mode, nodes: list[ir.Node]) -> None:
    """Refuse an unknown mode, and a pattern that matches no node."""
    words = [mode] if isinstance(mode, str) else list(mode.values())
    for word in words:
        if word not in MODES:
            raise ArgumentError(f"a mode is one of {', '.join(MODES)}, not {word!r}")
    patterns = [] if isinstance(mode, str) else list(mode)
    unused = [p for p in patterns if not any(_matches(n, p) for n in nodes)]
    if unused:
        listed = ", ".join(quote(n.name or n.outputs[0].name) for n in nodes) or "none"
        raise ArgumentError(
            f"no {kind} matches", [[quote(p)] for p in unused], hint=f"the model has {listed}"
        )


def training_forward(
    builder: RecordBuilder, batch_norm: Mode = "train", dropout: Mode = "train"
) -> tuple[dict[ir.Value, ir.Value], list[tuple[ir.Node, str]]]:
    """Copy every node that behaves differently while training, and what depends on it.

    Returns the training copy of each changed value, and each BatchNormalization and Dropout with
    its mode.
    """
    nodes = [n for n in builder.model.graph if n.domain == ""]
    modes = {"BatchNormalization": batch_norm, "Dropout": dropout}
    for kind, mode in modes.items():
        _check(kind, mode, [n for n in nodes if n.op_type == kind])
    values: dict[ir.Value, ir.Value] = {}
    report: list[tuple[ir.Node, str]] = []
    for node in builder.model.graph:
        report += _switches_in_bodies(node)
        if node.op_type in SWITCHES and node.domain == "":
            mode = mode_of(node, modes[node.op_type])
            report.append((node, SWITCHES[node.op_type](builder, node, mode, values)))
        if node.outputs[0] not in values and any(v in values for v in reads(node)):
            _copy(builder, node, values)
    return values, report


def _switches_in_bodies(node: ir.Node) -> list[tuple[ir.Node, str]]:
    """BatchNormalization and Dropout in the bodies of a node: they keep the inference mode."""
    inner = [n for body in bodies(node) for n in body.all_nodes()]
    mode = f"frozen: it is inside a body of {node.op_type}"
    return [(n, mode) for n in inner if n.op_type in SWITCHES and n.domain == ""]


def _copy(builder: RecordBuilder, node: ir.Node, values: dict[ir.Value, ir.Value]) -> None:
    replacements: dict[ir.Value, ir.Value | None] = dict(values)
    copies = copy_nodes([node], replacements, {}, lambda name: builder.op.fresh(f"train/{name}"))
    values.update({v: t for v, t in replacements.items() if t is not None})
    builder.op.nodes.extend(copies)


def _batch_norm(builder: RecordBuilder, node: ir.Node, values: dict[ir.Value, ir.Value]) -> None:
    """Normalize by the batch, and bind the new running statistics.

    Nodes that share statistics (one module, called twice) update them one after the other.
    """
    x, scale, bias, mean, var = node.inputs
    assert x is not None and scale is not None and bias is not None
    assert mean is not None and mean.name and var is not None and var.name
    op, x = builder.op, values.get(x, x)
    with op.named(f"train/{node.name or node.outputs[0].name}"):
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        y, batch_mean, batch_var = normalize_batch(op, x, scale, bias, epsilon)
        momentum = node.attributes.get_float("momentum", 0.9)
        latest = builder.updates.get(mean.name, mean), builder.updates.get(var.name, var)
        new_mean, new_var = new_statistics(op, x, latest, (batch_mean, batch_var), momentum)
    builder.updates.update({mean.name: new_mean, var.name: new_var})
    builder.roles.update({mean.name: "statistic", var.name: "statistic"})
    values[node.outputs[0]] = y


def _switch_batch_norm(
    builder: RecordBuilder, node: ir.Node, mode: str, values: dict[ir.Value, ir.Value]
) -> str:
    """Add a copy in the requested mode if the served node has another; returns the actual mode."""
    if mode == "train" and not _has_stored_statistics(builder, node):
        mode = "frozen: its statistics are computed in the graph and cannot be updated"
    if mode == "train":
        _batch_norm(builder, node, values)
    elif node.attributes.get_int("training_mode", 0):
        _frozen_batch_norm(builder, node, values)
    return mode


def _frozen_batch_norm(
    builder: RecordBuilder, node: ir.Node, values: dict[ir.Value, ir.Value]
) -> None:
    """Normalize by the running statistics, although the file has the node in training mode."""
    inputs = [v if v is None else values.get(v, v) for v in node.inputs]
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    with builder.op.named(f"train/{node.name or node.outputs[0].name}"):
        values[node.outputs[0]] = builder.op.BatchNormalization(*inputs, epsilon=epsilon)


def serve_in_inference_mode(model: Model, choices: Choices) -> None:
    """Switch nodes of the served graph to inference mode, unless their other outputs are used."""
    switched: Counter[str] = Counter()
    for node in model.graph:
        if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]) or node.domain != "":
            continue
        if (
            node.op_type == "BatchNormalization"
            and node.attributes.get_int("training_mode", 0) == 1
        ):
            node.attributes.add(ir.AttrInt64("training_mode", 0))
            node.resize_outputs(1)
        elif (
            node.op_type == "Dropout" and constant(node.inputs[-1]) is not None and is_random(node)
        ):
            node.resize_inputs(2)
        else:
            continue
        switched[node.op_type] += 1
    if switched:
        counts = ", ".join(f"{count} {kind}" for kind, count in switched.items())
        why = "the file has them in training mode; only the record trains"
        choices.add("served", f"in inference mode: {counts}", why)


def _has_stored_statistics(builder: RecordBuilder, node: ir.Node) -> bool:
    initializers = builder.model.graph.initializers
    return all(v is not None and v.name in initializers for v in node.inputs[3:5])


def _ratio(node: ir.Node) -> ir.Value | float | None:
    """The ratio of a Dropout: a value, a number, or None where it is known to be 0."""
    ratio = node.inputs[1] if len(node.inputs) > 1 else None
    if ratio is None:
        return 0.5
    array = constant(ratio)
    if array is None:
        return ratio
    return float(array.reshape(-1)[0]) or None


def _switch_dropout(
    builder: RecordBuilder, node: ir.Node, mode: str, values: dict[ir.Value, ir.Value]
) -> str:
    """Add a copy in the requested mode if the served node has another; returns the actual mode."""
    ratio, x = _ratio(node), node.inputs[0]
    if mode == "train" and ratio is not None:
        _dropout(builder, node, ratio, values)
    elif is_random(node) and x is not None:
        values[node.outputs[0]] = values.get(x, x)
    return "off (ratio 0)" if ratio is None else mode


def _dropout(
    builder: RecordBuilder, node: ir.Node, ratio: ir.Value | float, values: dict[ir.Value, ir.Value]
) -> None:
    x = node.inputs[0]
    assert x is not None
    x = values.get(x, x)
    op = builder.op
    site = node.name or node.outputs[0].name or "dropout"
    with op.named(f"train/{site}"), op:
        scalar = op.const(np.float32(ratio)) if isinstance(ratio, float) else ratio
        keep = keep_mask(builder, x, scalar, site)
        keep_share = op.cast(1.0 - op.cast(scalar, ir.DataType.FLOAT), x.dtype)  # type: ignore[arg-type]
        values[node.outputs[0]] = x * (op.cast(keep, x.dtype) / keep_share)  # type: ignore[arg-type]
        if len(node.outputs) > 1 and node.outputs[1].name:
            values[node.outputs[1]] = keep


# operators that behave differently while training -> how each is copied
SWITCHES = {"BatchNormalization": _switch_batch_norm, "Dropout": _switch_dropout}

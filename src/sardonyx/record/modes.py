"""Training mode: the forward as it is while training, beside the graph as it is served.

BatchNormalization and Dropout behave differently while training. A served graph keeps its inference
form; whatever depends on a switched node is copied into the algorithm, and running statistics are
bound there.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.errors import ArgumentError, quote
from sardonyx.grad.nn.batch_norm import normalize_batch
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import reads
from sardonyx.record.builder import RecordBuilder
from sardonyx.record.hash_random import keep_mask

Mode = str | Mapping[str, str]
MODES = ("train", "frozen")


def mode_of(node: ir.Node, mode: Mode) -> str:
    """ "train" or "frozen": one word for all nodes, or by pattern of the node's name (first
    match).
    """
    if isinstance(mode, str):
        return mode
    return next((m for p, m in mode.items() if _matches(node, p)), "frozen")


def _matches(node: ir.Node, pattern: str) -> bool:
    names = [n for n in (node.name, *(v.name for v in node.inputs if v is not None)) if n]
    return any(fnmatchcase(n, pattern) for n in names)


def _check(kind: str, mode: Mode, nodes: list[ir.Node]) -> None:
    """Errors for words that are no mode, and patterns that match nothing."""
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
    """Copy what behaves differently while training; the new value of each changed one.

    Also returns each switchable node with what was done to it, for people to see.
    """
    nodes = [n for n in builder.model.graph if n.domain == ""]
    for kind, mode in (("BatchNormalization", batch_norm), ("Dropout", dropout)):
        _check(kind, mode, [n for n in nodes if n.op_type == kind])
    values: dict[ir.Value, ir.Value] = {}
    report: list[tuple[ir.Node, str]] = []
    for node in builder.model.graph:
        if node.op_type == "BatchNormalization" and node.domain == "":
            chosen = mode_of(node, batch_norm)
            report.append((node, chosen))
            if chosen == "train":
                _batch_norm(builder, node, values)
                continue
        elif node.op_type == "Dropout" and node.domain == "":
            chosen = mode_of(node, dropout)
            ratio = _ratio(node)
            report.append((node, "off (ratio 0)" if ratio is None else chosen))
            if chosen == "train" and ratio is not None:
                _dropout(builder, node, ratio, values)
                continue
        if any(v in values for v in reads(node)):
            _copy(builder, node, values)
    return values, report


def _copy(builder: RecordBuilder, node: ir.Node, values: dict[ir.Value, ir.Value]) -> None:
    known: dict[ir.Value, ir.Value | None] = dict(values)
    copies = copy_nodes([node], known, {}, lambda name: builder.op.fresh(f"train/{name}"))
    values.update({v: t for v, t in known.items() if t is not None})
    builder.op.nodes.extend(copies)


def _batch_norm(builder: RecordBuilder, node: ir.Node, values: dict[ir.Value, ir.Value]) -> None:
    x, scale, bias, mean, var = node.inputs
    assert x is not None and scale is not None and bias is not None
    op = builder.op
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    momentum = node.attributes.get_float("momentum", 0.9)
    with op.named(f"train/{node.name or node.outputs[0].name}"):
        y, batch_mean, batch_var = normalize_batch(op, values.get(x, x), scale, bias, epsilon)
        _update_statistics(builder, x, (mean, batch_mean), (var, batch_var), momentum)
    values[node.outputs[0]] = y


def _update_statistics(
    builder: RecordBuilder,
    x: ir.Value,
    mean: tuple[ir.Value | None, ir.Value],
    var: tuple[ir.Value | None, ir.Value],
    momentum: float,
) -> None:
    """running = running * momentum + batch * (1 - momentum); the variance unbiased, as in torch."""
    op = builder.op
    with op:
        channels = op.dim(x, 1)
        count = op.Div(
            op.Size(x), channels if isinstance(channels, int) else op.Squeeze(channels, [0])
        )
        count = op.cast(count, ir.DataType.FLOAT)
        unbiased = count / op.Max(count - 1.0, 1.0)
        for (running, batch), factor in ((mean, None), (var, unbiased)):
            if (
                running is None
                or not running.name
                or running.name not in builder.model.graph.initializers
            ):
                continue
            batch = op.cast(batch, running.dtype)  # type: ignore[arg-type]
            if factor is not None:
                batch = batch * op.cast(factor, running.dtype)  # type: ignore[arg-type]
            # Layers that share their statistics update them one after the other, as in torch.
            latest = builder.updates.get(running.name, running)
            builder.updates[running.name] = latest * momentum + batch * (1.0 - momentum)
            builder.roles[running.name] = "statistic"


def _ratio(node: ir.Node) -> ir.Value | float | None:
    """The ratio of a Dropout: a value, a number, or None where it is known to be 0."""
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        return 0.5
    known = constant(given)
    if known is None:
        return given
    return float(known.reshape(-1)[0]) or None


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
        kept = op.cast(1.0 - op.cast(scalar, ir.DataType.FLOAT), x.dtype)  # type: ignore[arg-type]
        values[node.outputs[0]] = x * (op.cast(keep, x.dtype) / kept)  # type: ignore[arg-type]
        if len(node.outputs) > 1 and node.outputs[1].name:
            values[node.outputs[1]] = keep

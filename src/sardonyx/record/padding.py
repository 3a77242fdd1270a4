"""Rows of embeddings that torch never trains: `padding_idx`.

ONNX's Gather does not know them, but the newer exporter keeps the call that a node comes from. The
lookup of such a row gets no gradient then; what else reads the table, such as a tied head, does.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.edit.torch_names import CALL
from sardonyx.errors import quote
from sardonyx.grad.driver import STOPPED
from sardonyx.model import Model
from sardonyx.passes.nesting import names as all_names
from sardonyx.record.describe import Choices

PADDING = re.compile(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d+)")


def keep_padding_rows(model: Model, choices: Choices) -> None:
    """Stop the gradient of rows that the calls of the newer exporter say are padding."""
    op = Builder("padding")
    op.reserve(all_names(model.graph))
    rows = []
    for node in [n for n in model.graph if n.op_type == "Gather" and n.domain == ""]:
        call = PADDING.search(node.metadata_props.get(CALL, ""))
        table = node.inputs[0]
        if call is None or table is None or not table.is_initializer() or node.inputs[1] is None:
            continue
        if any(STOPPED in reader.metadata_props for reader, _ in node.outputs[0].uses()):
            continue
        _stop(model, node, int(call[1]), op)
        rows.append(f"row {call[1]} of {quote(table.name or '')}")
    if rows:
        for value in op.constants.values():
            model.graph.register_initializer(value)
        why = "padding_idx of torch: its lookup gets no gradient"
        choices.add("padding", ", ".join(dict.fromkeys(rows)), why)


def _stop(model: Model, node: ir.Node, row: int, op: Builder) -> None:
    """Let what reads the rows read those of padding behind a stop."""
    looked_up, indices = node.outputs[0], node.inputs[1]
    assert indices is not None
    uses, is_output, count = list(looked_up.uses()), looked_up.is_graph_output(), len(op.nodes)
    is_padding = op.Equal(indices, np.asarray(row, (indices.dtype or ir.DataType.INT64).numpy()))
    stopped = op.Identity(looked_up)
    stopped.producer().metadata_props[STOPPED] = "a row of padding"
    rows = op.Where(op.Unsqueeze(is_padding, [-1]), stopped, looked_up)
    rows.type, rows.shape = looked_up.type, looked_up.shape
    model.graph.insert_after(node, op.nodes[count:])
    for reader, position in uses:
        reader.replace_input_with(position, rows)
    if is_output:
        _take_over(model.graph, looked_up, rows)


def _take_over(graph: ir.Graph, output: ir.Value, value: ir.Value) -> None:
    """Make `value` the output of the graph that `output` was, under its name."""
    name = output.name
    output.name, value.name = f"{name}/rows", name
    graph.outputs[list(graph.outputs).index(output)] = value

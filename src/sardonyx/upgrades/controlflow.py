"""Adapters of ONNX's family `controlflow`, in opset order."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.upgrades.driver import take, upgrade


@upgrade("Scan", to=9)
def scan_8_9(op, node):
    """A scan over the batch (axis 0), whose body scans one sample's sequence."""
    body, count = take(node, "body"), take(node, "num_scan_inputs")
    directions = take(node, "directions")
    lengths, *batched = node.inputs
    sample = Builder(op.prefix, parent=op)
    inputs = [_sample_of(op, x) for x in batched]
    states, scans = inputs[: len(batched) - count], inputs[len(batched) - count :]
    if lengths is not None:
        inputs.append(_sample_of(op, lengths))
        length = sample.Unsqueeze(inputs[-1], [0])
        longest = sample.Shape(scans[0], start=0, end=1)
        scans = [sample.Slice(x, [0], length, [0]) for x in scans]
        batched.append(lengths)
    outputs = sample.Scan(
        *(*states, *scans),
        outputs=len(node.outputs),
        body=body,
        num_scan_inputs=count,
        scan_input_directions=directions,
    )
    if lengths is not None:
        pads = sample.Concat([0], sample.Sub(longest, length), axis=0)
        padded = [sample.Pad(y, pads, None, [0]) for y in outputs[len(states) :]]
        outputs = (*outputs[: len(states)], *padded)
    per_sample = ir.Graph(inputs, outputs, nodes=sample.nodes, name=op.fresh("sample"))
    return op.Scan(
        *batched, outputs=len(node.outputs), body=per_sample, num_scan_inputs=len(batched)
    )


def _sample_of(op: Builder, x: ir.Value) -> ir.Value:
    shape = None if x.shape is None else ir.Shape(x.shape[1:])
    return ir.Value(name=op.fresh(f"{x.name}/sample"), type=x.type, shape=shape)

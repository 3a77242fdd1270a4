"""Whether nodes match the schemas of their operators: inputs, outputs, attributes and bodies.

ONNX's schemas define what a file may leave out, at the version that the node is written in.
Everything that follows relies on it, so it is checked once, before anything is rewritten. Operators
that ONNX does not define are not checked.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import onnx_ir as ir

from sardonyx import opset
from sardonyx.errors import ModelError, quote
from sardonyx.limits.wellformed import Problems
from sardonyx.passes.nesting import graphs

_BODIES = {
    "If": ("then_branch", "else_branch"),
    "Loop": ("body",),
    "Scan": ("body",),
    "SequenceMap": ("body",),
}


@functools.cache
def _signature(op: str, domain: str, version: int) -> opset.Signature | None:
    return opset.signature(op, domain, version)


def require_signatures(graph: ir.Graph, imports: Mapping[str, int]) -> None:
    """Raise one error that names every node that does not match its operator's schema."""
    versions = {opset.domain_name(domain): version for domain, version in imports.items()}
    problems = Problems()
    plain: set[tuple[str, str, int | None, int, int]] = set()  # no attributes, no problem
    for part in graphs(graph):
        for node in part:
            counts = len(node.inputs), len(node.outputs)
            form = (node.op_type, node.domain, node.version, *counts)
            if form in plain and not node.attributes.data:
                continue
            domain = opset.domain_name(node.domain)
            version = node.version or versions.get(domain)
            signature = None if version is None else _signature(node.op_type, domain, version)
            problem = None if signature is None else _problem(node, signature)
            if problem is None and domain == "" and node.op_type in _BODIES:
                problem = _body_problem(node, version or 0)
            if problem is not None:
                problems.add(_label(node), problem)
            elif not node.attributes.data:
                plain.add(form)
    problems.raise_if_any(
        ModelError,
        "a node does not match its operator's schema",
        "{} nodes do not match the schemas of their operators",
        "the file is damaged, or its exporter has a defect: export it again",
    )


def _label(node: ir.Node) -> str:
    name = node.name or (node.outputs[0].name if node.outputs else "")
    return f"node {quote(name)} ({quote(node.op_type)[1:-1]})"


def _problem(node: ir.Node, signature: opset.Signature) -> str | None:
    count = len(node.inputs)
    if not signature.least_inputs <= count <= signature.most_inputs:
        return f"has {count} inputs, {_range(signature.least_inputs, signature.most_inputs)}"
    if len(node.outputs) > signature.most_outputs:
        allowed = _range(signature.least_outputs, signature.most_outputs)
        return f"has {len(node.outputs)} outputs, {allowed}"
    missing = [quote(name) for name in signature.required if name not in node.attributes]
    if missing:
        return f"lacks {', '.join(missing)}"
    for name, attr in node.attributes.items():
        expected = signature.types.get(name)
        if expected is None:
            return f"has {quote(name)}, an attribute that the operator does not have"
        if int(attr.type) != expected:
            return f"has {quote(name)} of another type than {ir.AttributeType(expected).name}"
    return None


def _range(least: int, most: int) -> str:
    if least == most:
        return f"takes {most}"
    return f"takes {least} to {most}" if most < 2**31 - 1 else f"takes {least} or more"


def _body_problem(node: ir.Node, version: int) -> str | None:
    """The mismatch between a node's bodies and its inputs and outputs, or None."""
    if any(node.attributes[n].is_ref() for n in _BODIES[node.op_type] if n in node.attributes):
        return None
    for name in _BODIES[node.op_type]:
        body = node.attributes[name].as_graph()
        ends = len(body.inputs), len(body.outputs)
        fits = {"If": _fits_if, "Loop": _fits_loop}.get(node.op_type, _fits_scan)
        if node.op_type == "Scan" and version < 9:
            continue  # its first input was the lengths of the sequences
        if not fits(node, *ends):
            took = f"{ends[0]} inputs and {ends[1]} outputs"
            outer = f"{len(node.inputs)} inputs and {len(node.outputs)} outputs"
            return f"has {outer}, which does not fit its {quote(name)} of {took}"
    return None


def _fits_if(node: ir.Node, inputs: int, outputs: int) -> bool:
    return inputs == 0 and outputs >= len(node.outputs)


def _fits_loop(node: ir.Node, inputs: int, outputs: int) -> bool:
    states = len(node.inputs) - 2
    return inputs == states + 2 and outputs >= max(states, len(node.outputs)) + 1


def _fits_scan(node: ir.Node, inputs: int, outputs: int) -> bool:
    return inputs == len(node.inputs) and outputs >= len(node.outputs)

"""Whether nodes match the schemas of their operators: inputs, outputs, attributes and bodies.

ONNX's schemas define what a file may leave out, at the version that the node is written in.
Everything that follows relies on it, so it is checked once, before anything is rewritten. Operators
that ONNX does not define are not checked.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from sardonyx import opset
from sardonyx.errors import ModelError, quote
from sardonyx.limits import is_as_loaded
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


def require_versions(imports: Mapping[str, int]) -> None:
    """Raise where a model is written for a version of ONNX's operators that nothing here knows.

    An operator may mean something else there: it cannot be read as the newest that is known.
    """
    problems = Problems()
    for domain, version in imports.items():
        newest = opset.INSIDE.get(opset.domain_name(domain))
        if newest is not None and not 1 <= version <= newest:
            name = quote(opset.domain_name(domain) or "ai.onnx")
            problems.add(f"{name} at {version}", f"versions 1 to {newest} are known")
    problems.raise_if_any(
        ModelError,
        "the model is written for a version of its operators that is not known",
        "the model is written for {} versions of its operators that are not known",
        "export it for an older opset, or install a newer sardonyx",
    )


def require_types(graph: ir.Graph) -> None:
    """Raise one error that names every node whose values have types that do not go together.

    A runtime refuses such a file; an engine without types would compute with it. Widths of floats
    are compared in models as their files have them: one that is computed in double precision for
    comparison (`edit/widen.py`) keeps operators whose schemas name float alone.
    """
    problems = Problems()
    any_width = not is_as_loaded(graph)
    for part in graphs(graph):
        for node in part:
            formal = _formal_types(node.op_type, node.domain, len(node.inputs), len(node.outputs))
            if formal is None:
                continue
            types: dict[str, Any] = {}
            for value, variable in zip((*node.inputs, *node.outputs), formal, strict=True):
                if value is None or variable is None or value.type is None:
                    continue
                expected = types.setdefault(variable, _concrete(variable) or value.type)
                if expected is value.type or expected == value.type:
                    continue
                if not (any_width and _is_float(expected) and _is_float(value.type)):
                    text = f"{quote(value.name or '')} is {value.type}, where {expected} is due"
                    problems.add(_label(node), text)
                    break
    problems.raise_if_any(
        ModelError,
        "a node has tensors of types that its operator does not take together",
        "{} nodes have tensors of types that their operators do not take together",
        "the file is damaged, or its exporter has a defect: export it again",
    )


def _is_float(kind: ir.TypeProtocol) -> bool:
    return isinstance(kind, ir.TensorType) and kind.dtype.is_floating_point()


@functools.cache
def _formal_types(
    op_type: str, domain: str, inputs: int, outputs: int
) -> tuple[str | None, ...] | None:
    """The type variable, or the type, of each input and output; None where any type may stand."""
    schema = opset.schema(op_type, domain)
    if schema is None:
        return None
    single = {
        c.type_param_str: next(iter(c.allowed_type_strs))
        for c in schema.type_constraints
        if len(c.allowed_type_strs) == 1
    }
    formal: list[str | None] = []
    for parameters, count in ((schema.inputs, inputs), (schema.outputs, outputs)):
        if count and not parameters:
            return None
        for i in range(count):
            parameter = parameters[min(i, len(parameters) - 1)]
            variadic = parameter.option == opset.Variadic
            free = variadic and not parameter.is_homogeneous
            formal.append(None if free else single.get(parameter.type_str, parameter.type_str))
    return tuple(formal)


@functools.cache
def _concrete(name: str) -> ir.TensorType | None:
    """The type that a schema names, `tensor(int64)`; None for a type variable."""
    if not name.startswith("tensor("):
        return None
    kind = {"float": "FLOAT", "double": "DOUBLE"}.get(name[7:-1], name[7:-1].upper())
    return ir.TensorType(ir.DataType[kind])


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

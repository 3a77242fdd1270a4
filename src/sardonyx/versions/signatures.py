"""The signatures that an operator had, and the lowest version at which one node means the same."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx import opset
from sardonyx.upgrades.driver import ADAPTERS
from sardonyx.versions.downgrades import ONLY_SINCE

REWRITTEN = "sardonyx.rewritten"  # the version that a rewritten node was written for


@dataclass(frozen=True)
class Form:
    """One version of an operator's signature."""

    since: int
    deprecated: bool
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    inputs: tuple[tuple[bool, frozenset[str]], ...]  # required, allowed types; the last repeats
    outputs: tuple[tuple[bool, frozenset[str]], ...]
    attributes: tuple[str, ...]
    required: frozenset[str]
    defaults: dict[str, Any]


@functools.cache
def forms(op_type: str, domain: str) -> tuple[Form, ...]:
    """Every signature that the operator had, newest first."""
    signatures = []
    for schema in reversed(opset.history(op_type, domain)):
        allowed = {
            c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints
        }
        parameters = [
            tuple(
                (p.option == opset.Single, allowed.get(p.type_str, frozenset([p.type_str])))
                for p in side
            )
            for side in (schema.inputs, schema.outputs)
        ]
        signatures.append(
            Form(
                schema.since_version,
                schema.deprecated,
                schema.min_input,
                schema.max_input,
                schema.min_output,
                schema.max_output,
                parameters[0],
                parameters[1],
                tuple(schema.attributes),
                frozenset(n for n, a in schema.attributes.items() if a.required),
                {n: opset.attribute_value(a.default_value) for n, a in schema.attributes.items()},
            )
        )
    return tuple(signatures)


@functools.cache
def _forms_until(op_type: str, domain: str, version: int) -> tuple[Form, ...]:
    """The signatures that the operator had up to `version`, newest first."""
    return tuple(form for form in forms(op_type, domain) if form.since <= version)


def lowest(node: ir.Node, version: int, floor: int = 0) -> int:
    """The lowest opset at which `node` means what it means at `version`, or one from `floor` down
    at which it does.
    """
    version = node.meta.get(REWRITTEN, version) if node.meta else version
    now, *rest = _forms_until(node.op_type, node.domain, version) or (None,)
    if now is None:
        return version
    if now.since <= floor:
        return now.since
    boundaries = {a.to for a in ADAPTERS.get((node.domain, node.op_type), ())}
    low = now
    for older in rest:
        if low.since <= floor:
            break
        means_more = ONLY_SINCE.get((node.domain, node.op_type, low.since))
        if low.since in boundaries or (means_more is not None and means_more(node)):
            break
        if older.deprecated or not _fits(node, older, now):
            break
        low = older
    return low.since


def is_same_at(node: ir.Node, one: int, other: int) -> bool:
    """Whether a standard node means the same at opset `other`, above `one`."""
    changes = {a.to for a in ADAPTERS.get((node.domain, node.op_type), ())}
    return all(
        (node.op_type, version) in KEPT and KEPT[node.op_type, version](node)
        for version in changes
        if one < version <= other
    )


def _is_inference(node: ir.Node) -> bool:
    return not any(v.name for v in node.outputs[1:])


def _is_over_the_last_axis(node: ir.Node) -> bool:
    shapes = [v.shape for v in (*node.inputs, *node.outputs) if v is not None]
    ranks = {len(shape) for shape in shapes if shape is not None}
    axis = node.attributes.get_int("axis", 1)
    return "axis" in node.attributes and (axis == -1 or ranks == {axis + 1})


# Changes of an operator's form that leave most of its nodes alone, and which.
KEPT = {
    ("BatchNormalization", 14): _is_inference,
    ("Softmax", 13): _is_over_the_last_axis,
    ("LogSoftmax", 13): _is_over_the_last_axis,
}


def _fits(node: ir.Node, form: Form, now: Form) -> bool:
    if not form.min_inputs <= len(node.inputs) <= form.max_inputs:
        return False
    if not form.min_outputs <= len(node.outputs) <= form.max_outputs:
        return False
    for values, parameters in ((node.inputs, form.inputs), (node.outputs, form.outputs)):
        for i, value in enumerate(values):
            required, allowed = parameters[min(i, len(parameters) - 1)]
            if value is None or not value.name:
                if required:
                    return False
                continue
            kind = type_name(value.type)
            if kind is not None and kind not in allowed:
                return False
    present = set(node.attributes)
    if not present and not form.required:
        return True
    if form.required - present - {n for n, d in now.defaults.items() if d is not None}:
        return False
    return all(
        name in form.attributes or _is_default(node.attributes[name], now.defaults.get(name))
        for name in present
    )


def _is_default(attr: ir.Attr, default: Any) -> bool:
    if default is None or attr.is_ref():
        return False
    value = attr.value
    return (tuple(value) if isinstance(value, (list, tuple)) else value) == default


def write_defaults(node: ir.Node, current: int, version: int) -> None:
    """Drop attributes that the older form lacks; write those whose default was another."""
    absent, added = other_defaults(node, node.meta.pop(REWRITTEN, current), version)
    for name in absent:
        node.attributes.pop(name)
    for name, default in added.items():
        node.attributes.add(ir.convenience.convert_attribute(name, default))


def other_defaults(node: ir.Node, current: int, version: int) -> tuple[set[str], dict[str, Any]]:
    """The attributes of a node that the older form lacks, and the defaults that were others."""
    now = next(iter(_forms_until(node.op_type, node.domain, current)), None)
    then = next(iter(_forms_until(node.op_type, node.domain, version)), None)
    if now is None or then is None or now is then:
        return set(), {}
    added: dict[str, Any] = {}
    if not (node.attributes or then.attributes):
        return set(), added
    for name in then.attributes:
        default = now.defaults.get(name)
        if name not in node.attributes and default is not None and then.defaults[name] != default:
            added[name] = default
    return set(node.attributes) - set(then.attributes), added


def type_name(kind: ir.TypeProtocol | None) -> str | None:
    """A type as schemas write it: `tensor(float)`, `seq(tensor(int64))`; None if not known."""
    if kind is None:
        return None
    if type(kind) is ir.TensorType:  # isinstance is slow for what derives from a protocol
        return _tensor_type_name(kind.dtype)
    if isinstance(kind, ir.SequenceType):
        inner = type_name(kind.elem_type)
        return None if inner is None else f"seq({inner})"
    if isinstance(kind, ir.OptionalType):
        inner = type_name(kind.elem_type)
        return None if inner is None else f"optional({inner})"
    return _tensor_type_name(kind.dtype) if isinstance(kind, ir.TensorType) else None


@functools.cache
def _tensor_type_name(dtype: ir.DataType) -> str | None:
    return None if dtype == ir.DataType.UNDEFINED else f"tensor({dtype.name.lower()})"

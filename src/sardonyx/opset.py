"""The one internal opset, and what ONNX's schemas define for its operators.

This is the only module that imports `onnx.defs`: schema look-up, attribute defaults, the family of
an operator (the file name of its rules in every package), function bodies, type and shape inference
of one node.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import onnx
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.shape_inference

OPSET = 28
ML_OPSET = 5
# The domains of onnxruntime-extensions: text, sound and images.
EXTENSIONS = ("ai.onnx.contrib", "com.microsoft.extensions")
TRAINING_DOMAIN = "ai.onnx.preview.training"
INSIDE = {"": OPSET, "ai.onnx.ml": ML_OPSET, TRAINING_DOMAIN: 1, "ai.onnx.preview": 1}
# Deprecated, yet kept: their successors cannot express everything that they do.
KEPT = {("ai.onnx.ml", "TreeEnsembleClassifier"): 3, ("ai.onnx.ml", "TreeEnsembleRegressor"): 3}

Schema = onnx.defs.OpSchema
Single = onnx.defs.OpSchema.FormalParameterOption.Single
Variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
Optional = onnx.defs.OpSchema.FormalParameterOption.Optional


def domain_name(domain: str) -> str:
    """`ai.onnx` and the empty string are one domain; the empty string is its name here."""
    return "" if domain == "ai.onnx" else domain


@functools.cache
def schema(op: str, domain: str = "", version: int | None = None) -> Schema | None:
    """The schema of `op` as of `version` (the version inside, if not given), or None if there is
    none.

    >>> schema("Softmax", version=11).since_version
    11
    """
    domain = domain_name(domain)
    version = INSIDE.get(domain, 1) if version is None else version
    try:
        operator = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None
    return None if operator.deprecated else operator


@functools.cache
def exists(op: str, domain: str, version: int) -> bool:
    """Whether ONNX has an operator at a version, deprecated ones included."""
    return bool(onnx.defs.has(op, version, domain_name(domain)))


def kept_schema(op: str, domain: str = "") -> Schema | None:
    """The last schema of a deprecated operator that models inside may still have."""
    version = KEPT.get((domain_name(domain), op))
    return None if version is None else schema(op, domain, version)


@functools.cache
def history(op: str, domain: str = "") -> tuple[Schema, ...]:
    """Every version of `op` in ONNX, oldest first."""
    versions = [s for s in _all_schemas() if s.name == op and s.domain == domain_name(domain)]
    return tuple(sorted(versions, key=lambda s: s.since_version))


@functools.cache
def _all_schemas() -> tuple[Schema, ...]:
    return tuple(onnx.defs.get_all_schemas_with_history())


@functools.cache
def live_ops(domain: str = "") -> tuple[str, ...]:
    """The operators that are not deprecated at the version inside, in alphabetical order."""
    names = {s.name for s in _all_schemas() if s.domain == domain_name(domain)}
    return tuple(sorted(name for name in names if schema(name, domain) is not None))


@functools.cache
def family(op: str, domain: str = "") -> str:
    """ONNX's own family of an operator: the name of the file that holds its rules.

    >>> family("Gather"), family("Conv")
    ('tensor', 'nn')
    """
    operator = schema(op, domain) or (history(op, domain) or (None,))[-1]
    return PurePosixPath(operator.file).parent.name if operator else "custom"


@dataclass(frozen=True)
class Signature:
    """How many inputs and outputs an operator takes, its attributes, and which must be there."""

    least_inputs: int
    most_inputs: int
    least_outputs: int
    most_outputs: int
    required: tuple[str, ...]
    types: dict[str, int]


def signature(op: str, domain: str, version: int) -> Signature | None:
    """The signature of `op` as of `version`, or None if it has no schema."""
    operator = schema(op, domain, version)
    if operator is None:
        return None
    return Signature(
        operator.min_input,
        operator.max_input,
        operator.min_output,
        operator.max_output,
        tuple(name for name, a in operator.attributes.items() if a.required),
        {n: int(a.type.value) for n, a in operator.attributes.items()},  # type: ignore[attr-defined]
    )


@functools.cache
def attribute_defaults(op: str, domain: str = "", version: int | None = None) -> dict[str, Any]:
    """Every attribute of `op` with its default; None for one that has no default."""
    operator = schema(op, domain, version)
    if operator is None:
        return {}
    return {name: attribute_value(a.default_value) for name, a in operator.attributes.items()}


def attribute_value(proto: onnx.AttributeProto) -> Any:
    """A plain Python value: text for strings, tuples for lists, None for an absent default."""
    if proto.type == onnx.AttributeProto.UNDEFINED:
        return None
    value = onnx.helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if proto.type == onnx.AttributeProto.STRINGS:
        return tuple(v.decode("utf-8", "surrogateescape") for v in value)
    if isinstance(value, (list, tuple)) or hasattr(value, "extend"):
        return tuple(value)
    return value


@functools.cache
def differentiable_ops() -> tuple[str, ...]:
    """The operators that ONNX tags Differentiable, in at least one input and one output."""
    category = onnx.defs.OpSchema.DifferentiationCategory.Differentiable
    return tuple(
        op
        for op in live_ops()
        if any(i.differentiation_category == category for i in schema(op).inputs)  # type: ignore[union-attr]
        and any(o.differentiation_category == category for o in schema(op).outputs)  # type: ignore[union-attr]
    )


def _is_function(operator: Any) -> bool:
    return bool(operator.has_function or operator.has_context_dependent_function)


def has_body(op: str, domain: str = "") -> bool:
    """Whether ONNX defines `op` by a function body."""
    operator = schema(op, domain)
    return operator is not None and _is_function(operator)


def body(
    node: onnx.NodeProto, input_types: list[onnx.TypeProto], version: int | None = None
) -> onnx.FunctionProto | None:
    """The function body by which ONNX defines `node`, for these input types, or None."""
    operator = schema(node.op_type, node.domain, version)
    if operator is None:
        return None
    function = onnx.FunctionProto()
    if operator.has_function:  # type: ignore[attr-defined]
        function.CopyFrom(operator.function_body)
    elif operator.has_context_dependent_function:  # type: ignore[attr-defined]
        serialized = [t.SerializeToString() for t in input_types]
        try:
            build = operator.get_context_dependent_function  # type: ignore[attr-defined]
            data = build(node.SerializeToString(), serialized)
        except Exception:  # the C++ builder throws when the types do not suffice
            return None
        function.ParseFromString(data)
    else:
        return None
    return function if function.node else None


def infer_outputs(
    node: onnx.NodeProto,
    input_types: dict[str, onnx.TypeProto],
    input_data: dict[str, onnx.TensorProto],
    version: int | None = None,
) -> dict[str, onnx.TypeProto]:
    """Types and shapes of one node's outputs, from those of its inputs; empty where unknown."""
    operator = schema(node.op_type, node.domain, version)
    if operator is None or not operator.has_type_and_shape_inference_function:
        return {}
    domain = domain_name(node.domain)
    stamp = INSIDE.get(domain, 1) if version is None else version
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            operator,
            node,
            input_types,
            input_data,
            opset_imports=[onnx.helper.make_opsetid(domain, stamp)],
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return {}
    return {name: t for name, t in inferred.items() if not holds_map(t)}


def holds_map(proto: onnx.TypeProto) -> bool:
    """Whether a type is, or contains, a map, which onnx_ir cannot represent."""
    while True:
        kind = proto.WhichOneof("value")
        if kind not in ("sequence_type", "optional_type"):
            return kind == "map_type"
        proto = getattr(proto, kind).elem_type

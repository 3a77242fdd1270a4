"""Other forms of a case, which tell why an engine fails it: older labels, narrow types inside.

Older labels: the numbers of IR and opset are lowered, nothing else, as far as the older definition
of every operator has the inputs and attributes that the model uses. Narrow types inside: inputs of
types that numpy does not have (bfloat16, floats of 8 bits, 4 and 2 bits) become constants, outputs
are cast to float32 or int32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from onnx import TensorProto

from sardonyx import opset
from sardonyx.score.suite import Case, every_node

# Opsets to try, newest first: what most engines know of, and those at which many of them stand.
LABELS = (26, 23, 20, 17, 13, 9)
# The oldest IR that knows a type; files without such types are labelled 8, which has functions.
PLAIN_IR = 8
IR_OF = {
    "FLOAT8E4M3FN": 9,
    "FLOAT8E4M3FNUZ": 9,
    "FLOAT8E5M2": 9,
    "FLOAT8E5M2FNUZ": 9,
    "INT4": 10,
    "UINT4": 10,
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    "INT2": 13,
    "UINT2": 13,
}
NARROW = {"BFLOAT16", *IR_OF}


@dataclass(frozen=True)
class Baked:
    """What is fed to a model whose narrow inputs are inside, and what it should give."""

    inputs: dict[str, Any]
    expected: list[Any]


def of(case: Case) -> Iterator[tuple[str, onnx.ModelProto, Baked | None]]:
    """Forms to try, each with the class of a case that is right in it."""
    model = case.proto()
    older = list(relabelled(model))
    for form in older:
        yield "version skew", form, None
    if case.sets == 1 and has_narrow_ends(model):
        inside, feeds = bake(model, case.inputs(), list(case.expected().values()))
        for form in (inside, *relabelled(inside)):
            yield "binding limit", form, feeds


# -- labels -----------------------------------------------------------------------------


def relabelled(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The same model with older labels, newest first; labels that mean the same are tried once."""
    current = next((i.version for i in model.opset_import if i.domain in ("", "ai.onnx")), None)
    if current is None:
        return
    nodes = [n for n in every_node(model) if opset.domain_name(n.domain) == ""]
    ir = min(_oldest_ir(model), model.ir_version)
    attempts = {(model.ir_version, _versions(nodes, current))}
    for label in LABELS:
        version = min(label, current)
        if all(_can_say(n, version) for n in nodes):
            meaning = (ir, _versions(nodes, version))
            if meaning not in attempts or current > LABELS[0] == label:
                attempts.add(meaning)
                yield _labelled(model, ir, version)


def _versions(nodes: list[onnx.NodeProto], label: int) -> tuple[int, ...]:
    """Which definitions of its operators a label stands for."""
    schemas = [opset.schema(n.op_type, n.domain, label) for n in nodes]
    return tuple(schema.since_version if schema else 0 for schema in schemas)


def _can_say(node: onnx.NodeProto, version: int) -> bool:
    """Whether an older definition of the operator has what the node uses."""
    schema = opset.schema(node.op_type, node.domain, version)
    if schema is None:
        return False
    fits = schema.min_input <= len(node.input) <= schema.max_input
    fits = fits and len(node.output) <= schema.max_output
    return fits and {a.name for a in node.attribute} <= set(schema.attributes)


def _oldest_ir(model: onnx.ModelProto) -> int:
    types = [i.type for i in (*model.graph.input, *model.graph.output)]
    kinds = {t.tensor_type.elem_type for t in types} | {
        t.data_type for t in model.graph.initializer
    }
    kinds |= {a.i for n in every_node(model) for a in n.attribute if a.name in ("to", "dtype")}
    names = [TensorProto.DataType.Name(k) for k in kinds if k in TensorProto.DataType.values()]
    return max([PLAIN_IR, *(IR_OF.get(name, 0) for name in names)])


def _labelled(model: onnx.ModelProto, ir: int, version: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = ir
    for labels in (copy.opset_import, *(f.opset_import for f in copy.functions)):
        for label in labels:
            if label.domain in ("", "ai.onnx"):
                label.version = version
    return copy


# -- narrow types -----------------------------------------------------------------------


def _is_narrow(info: onnx.ValueInfoProto) -> bool:
    kind = info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else 0
    return kind in TensorProto.DataType.values() and TensorProto.DataType.Name(kind) in NARROW


def has_narrow_ends(model: onnx.ModelProto) -> bool:
    return any(map(_is_narrow, (*model.graph.input, *model.graph.output)))


def bake(
    model: onnx.ModelProto, inputs: dict[str, Any], expected: list[Any]
) -> tuple[onnx.ModelProto, Baked]:
    """The model with narrow inputs as constants and narrow outputs cast, and its data."""
    inside = onnx.ModelProto()
    inside.CopyFrom(model)
    graph, feeds = inside.graph, dict(inputs)
    for info in [i for i in graph.input if _is_narrow(i)]:
        graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop(info.name), info.name))
        graph.input.remove(info)
    values = list(expected)
    for index, info in enumerate(graph.output):
        if not _is_narrow(info):
            continue
        is_float = "FLOAT" in TensorProto.DataType.Name(info.type.tensor_type.elem_type)
        kind = TensorProto.FLOAT if is_float else TensorProto.INT32
        name = f"{info.name}_wide"
        graph.node.append(onnx.helper.make_node("Cast", [info.name], [name], to=kind))
        info.name, info.type.tensor_type.elem_type = name, kind
        values[index] = np.asarray(expected[index]).astype(np.float32 if is_float else np.int32)
    return inside, Baked(feeds, values)

"""ONNX's own checker and strict inference on a model whose weights stay where they are."""

from __future__ import annotations

import re

import onnx
import onnx.checker
import onnx.helper
import onnx.shape_inference

from sardonyx.errors import ModelError
from sardonyx.model import Model

# ONNX infers the bodies of operators that are functions, and fails where a body reads an attribute.
_IN_FUNCTION = re.compile(
    r"\(op_type:(?!If\b|Loop\b|Scan\b|SequenceMap\b)[^)]*\): .*Inference error"
)


def check_whole(model: Model, what: str) -> None:
    """Raise a ModelError where ONNX's checker or its shape inference refuses the graph."""
    proto = without_payloads(model.skeleton())
    problem = complaint(proto)
    if problem is None:
        try:
            onnx.shape_inference.infer_shapes(proto, strict_mode=True)
        except (onnx.shape_inference.InferenceError, RuntimeError) as error:
            problem = str(error)
    if problem is not None:
        raise ModelError(f"{what}: {problem}")


def inference_problems(model: Model) -> list[str]:
    """What ONNX's inference finds wrong with the types and shapes of a model, node by node.

    Declared shapes of outputs are left out: files declare wrong ones, and runtimes take them.
    """
    proto = without_payloads(model.skeleton())
    proto.graph.ClearField("value_info")
    for output in proto.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    try:
        onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        text = str(error).partition("Inference error(s): ")[2] or str(error)
        return [line for line in text.splitlines() if line.strip() and not _IN_FUNCTION.match(line)]
    except (RuntimeError, ValueError, TypeError) as error:
        return [str(error)]
    return []


def complaint(proto: onnx.ModelProto) -> str | None:
    """The complaint of ONNX's checker about a model, or None."""
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        return str(error).strip()
    return None


def without_payloads(skeleton: onnx.ModelProto) -> onnx.ModelProto:
    """A skeleton whose absent payloads become inputs: the checker would look for their files."""
    declared = {i.name for i in skeleton.graph.input}
    inline = []
    for tensor in skeleton.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            inline.append(tensor)
        elif tensor.name not in declared:
            skeleton.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    skeleton.graph.ClearField("initializer")
    skeleton.graph.initializer.extend(inline)
    return skeleton

"""A compiled model of OpenVINO: arrays in, arrays out, in the precision of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.openvino.support import lacks
from sardonyx.engines.segments import Function, Refusal
from sardonyx.errors import EngineError, MissingExtra
from sardonyx.model import Model
from sardonyx.versions import fit

try:
    import openvino
except ImportError as error:
    raise MissingExtra("openvino", "openvino") from error

# Without the hint it computes in bfloat16 where the processor has it.
SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
OPSET, IR = 21, 10
NAMED = re.compile(r"(?:No conversion rule found for operations|following ONNX operations): *(.+)")


class OpenVINO:
    """The runtime: it compiles models whose sizes are known."""

    name = "openvino"

    def __init__(self) -> None:
        self.core = openvino.Core()

    def lacks(self, node: ir.Node) -> str:
        return lacks(node)

    def compile(self, model: Model) -> Function:
        try:
            data = fit(model, runtime=None).proto().SerializeToString()
            compiled = self.core.compile_model(self.core.read_model(data), "CPU", SETTINGS)
        except Exception as error:
            words = str(error)
            named = NAMED.search(words)
            operators = re.findall(r"\w+", named[1]) if named else ()
            raise Refusal(f"OpenVINO refused the model: {words[:300]}", operators) from error
        return Session(compiled, model)


class Session:
    """A compiled model; each call writes its outputs into arrays of their own."""

    def __init__(self, compiled: Any, model: Model):
        self.request = compiled.create_infer_request()
        # An input that nothing reads in the end is no input of the compiled model.
        names = {v.name or "" for v in model.graph.inputs}
        self.inputs = [next(n for n in p.get_names() if n in names) for p in compiled.inputs]
        self.outputs = [v.name or "" for v in model.graph.outputs]
        self.static: list[tuple[int, ...] | None] = []
        self.types = [np.dtype(v.dtype.numpy()) for v in model.graph.outputs if v.dtype is not None]
        for port in compiled.outputs:
            shape = port.get_partial_shape()
            self.static.append(tuple(shape.to_shape()) if shape.is_static else None)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._run(feeds)
        except Exception as error:
            raise EngineError(f"OpenVINO failed: {str(error)[:300]}") from error

    def _run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        arrays = [np.require(feeds[name], requirements="C") for name in self.inputs]
        for index, array in enumerate(arrays):
            self.request.set_input_tensor(index, _tensor(array))
        results: list[np.ndarray | None] = []
        for index, (shape, dtype) in enumerate(zip(self.static, self.types, strict=True)):
            result = None if shape is None or 0 in shape else np.empty(shape, dtype)
            results.append(result)
            if result is not None:
                self.request.set_output_tensor(index, _tensor(result))
        self.request.infer()
        values = [self._output(index, result) for index, result in enumerate(results)]
        return dict(zip(self.outputs, values, strict=True))

    def _output(self, index: int, result: np.ndarray | None) -> np.ndarray:
        data = self.request.get_output_tensor(index).data
        if result is None or data.ctypes.data != result.ctypes.data:
            # An output that is an input, or of free size, is not written where we asked for it.
            return np.array(data)
        return result


def _tensor(array: np.ndarray) -> Any:
    if array.dtype.kind in "iu":
        # numpy has two types of 64-bit integers (long and long long); OpenVINO knows one of them.
        array = array.view(np.dtype(array.dtype.str))
    if array.size == 0 or not array.flags.writeable:
        return openvino.Tensor(np.array(array))
    return openvino.Tensor(array, shared_memory=True)

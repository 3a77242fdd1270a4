"""A compiled model of OpenVINO: arrays in, arrays out, in the precision of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.openvino.support import declares, lacks, lacks_graph
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
NAMED = re.compile(r"(?:No conversion rule found for operations|following ONNX operations): *(.+)")


class OpenVINO:
    """The runtime: it compiles models whose sizes are known."""

    name = "openvino"

    def __init__(self) -> None:
        self.core = openvino.Core()

    def lacks(self, node: ir.Node) -> str:
        return lacks(node)

    def lacks_graph(self, graph: ir.Graph) -> str:
        return lacks_graph(graph)

    def declares(self, op: str, domain: str) -> str:
        return declares(op, domain)

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
    """A compiled model. Inputs are read where they are; outputs are copied, because OpenVINO does
    not write every output to memory that it is given.
    """

    def __init__(self, compiled: Any, model: Model):
        self.request = compiled.create_infer_request()
        self.inputs = [v.name or "" for v in model.graph.inputs]
        if len(compiled.inputs) < len(self.inputs):
            # An input that nothing reads in the end is no input of the compiled model.
            self.inputs = [_name(port, set(self.inputs)) for port in compiled.inputs]
        self.outputs = [v.name or "" for v in model.graph.outputs]

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            arrays = [np.require(feeds[name], requirements="C") for name in self.inputs]
            for index, array in enumerate(arrays):
                self.request.set_input_tensor(index, _tensor(array))
            self.request.infer()
        except Exception as error:
            raise EngineError(f"OpenVINO failed: {str(error)[:300]}") from error
        outputs = [self.request.get_output_tensor(i) for i in range(len(self.outputs))]
        return {n: np.array(t.data) for n, t in zip(self.outputs, outputs, strict=True)}


def _name(port: Any, names: set[str]) -> str:
    """The name in the model of an input; a tensor that is also an output has several."""
    listed = [port.get_node().get_friendly_name(), *port.get_names()]
    matches = [name for name in listed if name in names]
    if not matches:
        raise Refusal(f"OpenVINO lost the name of an input: {listed}")
    return matches[0]


def _tensor(array: np.ndarray) -> Any:
    if array.dtype.kind in "iu":
        # numpy has two types of 64-bit integers (long and long long); OpenVINO knows one of them.
        array = array.view(np.dtype(array.dtype.str))
    if array.size == 0 or not array.flags.writeable:
        return openvino.Tensor(np.array(array))
    return openvino.Tensor(array, shared_memory=True)

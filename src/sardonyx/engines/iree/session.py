"""A model compiled by IREE for this processor, by way of torch-mlir's importer of ONNX."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.engines import plain_operators
from sardonyx.engines.segments import Function, Refusal
from sardonyx.errors import EngineError, MissingExtra
from sardonyx.model import Model

try:
    import iree.runtime
    from iree.compiler import api
    from iree.compiler import ir as mlir
    from iree.compiler.extras import onnx_importer
except ImportError as error:
    raise MissingExtra("iree", "iree") from error

FLAGS = (
    "--iree-input-type=onnx",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


class IREE:
    """The runtime: it compiles models whose sizes are known, in seconds."""

    name = "iree"

    def __init__(self) -> None:
        self.config = iree.runtime.Config("local-task")

    def lacks(self, node: ir.Node) -> str:
        return plain_operators.lacks(node, "IREE")

    def lacks_graph(self, graph: ir.Graph) -> str:
        return ""

    def declares(self, op: str, domain: str) -> str:
        return plain_operators.declares(op, domain)

    def compile(self, model: Model) -> Function:
        proto = plain_operators.plain(model, "IREE").proto()
        proto.graph.name = "main"
        try:
            onnx.checker.check_model(proto)
            proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
            context = iree.runtime.SystemContext(config=self.config)
            module = iree.runtime.VmModule.copy_buffer(context.instance, compiled(proto))
            context.add_vm_module(module)
        except Exception as error:
            raise Refusal(f"IREE refused the model: {str(error)[:300]}") from error
        return Session(context, model)


class Session:
    """A compiled model of IREE."""

    def __init__(self, context: Any, model: Model):
        self.context, self.function = context, context.modules.module["main"]
        self.inputs = [v.name or "" for v in model.graph.inputs]
        self.outputs = {v.name or "": v.dtype for v in model.graph.outputs}

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            results = self.function(*(np.asarray(feeds[n], order="C") for n in self.inputs))
        except Exception as error:
            raise EngineError(f"IREE failed: {str(error)[:300]}") from error
        results = results if isinstance(results, (list, tuple)) else [results]
        values = zip(self.outputs.items(), results, strict=True)
        return {name: _typed(value.to_host(), dtype) for (name, dtype), value in values}


def _typed(value: np.ndarray, dtype: ir.DataType | None) -> np.ndarray:
    """IREE's booleans are bytes."""
    return np.array(value, bool) if dtype == ir.DataType.BOOL else np.array(value)


def compiled(proto: onnx.ModelProto) -> bytes:
    """The bytecode of a model."""
    with mlir.Context() as context:
        info = onnx_importer.ModelInfo(proto)
        module = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        module.verify()
        text = module.get_asm().encode() + b"\0"
    with api.Session() as session, tempfile.TemporaryFile() as messages:
        session.set_flags(*FLAGS)
        invocation = session.invocation()
        invocation.enable_console_diagnostics()
        source = api.Source.wrap_buffer(session, text)
        with _redirected(messages.fileno()):
            ok = invocation.parse_source(source) and invocation.execute()
        if not ok:
            messages.seek(0)
            words = messages.read().decode(errors="replace").partition("error: ")[2]
            raise ValueError(words.partition("\n")[0] or "it does not compile")
        output = api.Output.open_membuffer()
        invocation.output_vm_bytecode(output)
        return bytes(output.map_memory())


@contextlib.contextmanager
def _redirected(file: int) -> Iterator[None]:
    """What the compiler says goes to stderr, from C++."""
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)

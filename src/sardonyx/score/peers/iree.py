"""IREE: compiled in this process for its host's CPU, by way of torch-mlir's importer of ONNX."""

import contextlib
import os
import tempfile
from importlib.metadata import version as version_of

import iree.runtime
import onnx
from iree.compiler import api, ir
from iree.compiler.extras import onnx_importer

FLAGS = (
    "--iree-input-type=onnx",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
CONFIG = iree.runtime.Config("local-sync")


def version():
    return version_of("iree-base-compiler")


def run(model, inputs):
    # As its own command does: checked, with inferred shapes.
    proto = onnx.load(model)
    onnx.checker.check_model(proto)
    proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    context = iree.runtime.SystemContext(config=CONFIG)
    context.add_vm_module(iree.runtime.VmModule.copy_buffer(context.instance, _compiled(proto)))
    outputs = context.modules.module[proto.graph.name or "main"](*inputs.values())
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [_signed(v.to_host(), o) for v, o in zip(outputs, proto.graph.output)]


def _signed(value, declared):
    """IREE returns signless integers, also for other types of their size: reinterpret the bits."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type)
    is_bits = value.dtype.kind in "iu" and dtype.kind in "uV"
    return value.view(dtype) if is_bits and value.itemsize == dtype.itemsize else value


def _compiled(proto):
    with ir.Context() as context:
        info = onnx_importer.ModelInfo(proto)
        module = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        module.verify()
        text = module.get_asm().encode() + b"\0"
    with api.Session() as session, tempfile.TemporaryFile() as log:
        session.set_flags(*FLAGS)
        invocation = session.invocation()
        invocation.enable_console_diagnostics()
        source = api.Source.wrap_buffer(session, text)
        with _redirected(log):
            ok = invocation.parse_source(source) and invocation.execute()
        if not ok:
            log.seek(0)
            words = log.read().decode(errors="replace").partition("error: ")[2]
            raise ValueError(words.partition("\n")[0] or "it does not compile")
        output = api.Output.open_membuffer()
        invocation.output_vm_bytecode(output)
        return bytes(output.map_memory())


@contextlib.contextmanager
def _redirected(file):
    """What the compiler says goes to stderr, from C++."""
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)

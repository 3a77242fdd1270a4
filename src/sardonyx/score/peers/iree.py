"""IREE: compiled for the CPU by way of torch-mlir's importer of ONNX."""

import tempfile
from importlib.metadata import version as version_of
from pathlib import Path

import iree.compiler.tools
import iree.runtime
import onnx
from iree.compiler.tools.import_onnx import __main__ as importer


def version():
    return version_of("iree-base-compiler")


def run(model, inputs):
    name = onnx.load(model).graph.name or "main"
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "model.mlir"
        importer.main(importer.parse_arguments([model, "-o", str(text)]))
        binary = iree.compiler.tools.compile_file(
            str(text),
            input_type="onnx",
            target_backends=["llvm-cpu"],
            extra_args=["--iree-llvmcpu-target-cpu=host"],
        )
    config = iree.runtime.Config("local-sync")
    context = iree.runtime.SystemContext(config=config)
    context.add_vm_module(iree.runtime.VmModule.copy_buffer(context.instance, binary))
    found = context.modules.module[name](*inputs.values())
    found = found if isinstance(found, (list, tuple)) else [found]
    return [value.to_host() for value in found]

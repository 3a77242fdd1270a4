"""The operators of onnxruntime-extensions, where that package is installed.

The library comes from the installed package, never from a path that a model names.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from sardonyx import opset
from sardonyx.errors import EngineError, quote
from sardonyx.model import Model
from sardonyx.passes.nesting import graphs

PACKAGE = "onnxruntime_extensions"
PROTOBUF = ("SentencepieceTokenizer", "SentencepieceDecoder")  # read messages with its own protobuf
_loaded: list[Any] = []  # the package, where it was imported here


def libraries(model: Model) -> list[str]:
    """The libraries whose operators a model uses; an error names all of them where they lack."""
    every = [model.graph, *(f.graph for f in model.ir.functions.values())]
    nodes = [
        n for graph in every for part in graphs(graph) for n in part if n.domain in opset.EXTENSIONS
    ]
    if not nodes:
        return []
    if importlib.util.find_spec(PACKAGE) is None:
        raise EngineError(
            "operators of onnxruntime-extensions are used, which is not installed",
            [
                [f"{n.domain}::{n.op_type}", f"node {quote(n.name or n.outputs[0].name)}"]
                for n in nodes
            ],
            hint="pip install onnxruntime-extensions",
        )
    _refuse_mixed([n for n in nodes if n.op_type in PROTOBUF])
    return [_imported().get_library_path()]


def _imported() -> Any:
    """The package. Its library finds its own functions first: those of TensorFlow that have the
    same names, where that was loaded before, end the process (onnxruntime-extensions 0.15).
    """
    if PACKAGE in sys.modules or not hasattr(os, "RTLD_DEEPBIND"):
        return importlib.import_module(PACKAGE)
    before = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
    try:
        _loaded.append(importlib.import_module(PACKAGE))
        return _loaded[0]
    finally:
        sys.setdlopenflags(before)


def _refuse_mixed(nodes: Sequence[ir.Node]) -> None:
    """Refuse what would end the process: somebody else imported the package after TensorFlow."""
    order = list(sys.modules)
    if PACKAGE not in order or "tensorflow" not in order or not nodes or _loaded:
        return
    if order.index("tensorflow") < order.index(PACKAGE):
        raise EngineError(
            "onnxruntime-extensions was imported after TensorFlow, which ends the process here",
            [[n.op_type, f"node {quote(n.name or n.outputs[0].name)}"] for n in nodes],
            hint="import onnxruntime_extensions before tensorflow, or leave its import to sardonyx",
        )

"""The operators of onnxruntime-extensions, where that package is installed.

The library comes from the installed package, never from a path that a model names.
"""

from __future__ import annotations

import importlib
import importlib.util

from sardonyx import opset
from sardonyx.errors import EngineError, quote
from sardonyx.model import Model
from sardonyx.passes.nesting import graphs

PACKAGE = "onnxruntime_extensions"


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
    return [importlib.import_module(PACKAGE).get_library_path()]

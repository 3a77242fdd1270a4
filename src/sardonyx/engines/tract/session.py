"""A model in tract: a small runtime in Rust, which optimizes a graph when it is loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines import plain_operators
from sardonyx.engines.segments import Function, Refusal
from sardonyx.errors import EngineError, MissingExtra
from sardonyx.model import Model

try:
    import tract
except ImportError as error:
    raise MissingExtra("tract", "tract") from error


class Tract:
    """The runtime."""

    name = "tract"

    def __init__(self) -> None:
        self.reader = tract.onnx()

    def lacks(self, node: ir.Node) -> str:
        return plain_operators.lacks(node, "tract")

    def lacks_graph(self, graph: ir.Graph) -> str:
        return ""

    def declares(self, op: str, domain: str) -> str:
        return plain_operators.declares(op, domain)

    def compile(self, model: Model) -> Function:
        proto = plain_operators.plain(model, "tract").proto()
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.onnx")
                path.write_bytes(proto.SerializeToString())
                runnable = self.reader.load(path).into_model().into_runnable()
        except Exception as error:
            raise Refusal(f"tract refused the model: {str(error)[:300]}") from error
        return Session(runnable, model)


class Session:
    """A model that is ready to run."""

    def __init__(self, runnable: Any, model: Model):
        self.runnable = runnable
        self.inputs = [v.name or "" for v in model.graph.inputs]
        self.outputs = {v.name or "": v.dtype for v in model.graph.outputs}

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            results = self.runnable.run([np.asarray(feeds[n], order="C") for n in self.inputs])
            values = [result.to_numpy() for result in results]
        except Exception as error:
            raise EngineError(f"tract failed: {str(error)[:300]}") from error
        typed = zip(self.outputs.items(), values, strict=True)
        return {n: np.array(v, t.numpy() if t is not None else None) for (n, t), v in typed}

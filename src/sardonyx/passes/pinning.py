"""A model for one choice of its free sizes: shapes are numbers, and what follows from them alone is
computed beforehand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.model import Model
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold
from sardonyx.passes.nesting import graphs
from sardonyx.passes.shapes import infer_shapes


def pinned(model: Model, shapes: Mapping[str, Sequence[Any]], keep: Collection[str] = ()) -> Model:
    """A copy of a model in the regular form whose inputs have these shapes.

    Inputs that are not named stay as they are, and so do the names of all outputs.

    keep -- names of initializers whose readers stay, such as weights that are trained
    """
    copy = model.copy()
    for value in copy.graph.inputs:
        if value.name and value.name in shapes and isinstance(value.type, ir.TensorType):
            value.shape = ir.Shape(shapes[value.name])
    for graph in graphs(copy.graph):
        for node in graph:
            for output in node.outputs:
                output.shape = None
                output.meta.pop("content", None)
    infer_shapes(copy.graph, copy.skeleton)
    fold(copy.graph, keep=keep)
    remove_dead(copy.graph)
    return copy

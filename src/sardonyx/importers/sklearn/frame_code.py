"""Python functions of data frames in a FunctionTransformer, through the recorder of pandas code.

scikit-learn calls such a function on every batch anew, so a value that pandas code would take from
the rows of a training frame (a mean, levels, a vocabulary) has no place here and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import MissingExtra
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.sklearn.encoders import missing_text
from sardonyx.importers.sklearn.table import BOOL, DOUBLE, FLOAT, INT64, STRING, Columns, texts
from sardonyx.passes.functions import copy_nodes

SAMPLES: dict[ir.DataType, list[Any]] = {
    DOUBLE: [0.5, 1.5, 2.5],
    FLOAT: [0.5, 1.5, 2.5],
    INT64: [1, 2, 3],
    BOOL: [True, False, True],
    STRING: ["a", "b", "c"],
}
KINDS = {"float": (DOUBLE, FLOAT), "int": (INT64,), "bool": (BOOL,), "text": (STRING,)}


def is_frame(x: Any) -> bool:
    """Whether scikit-learn passes a data frame: columns that are inputs of the whole model."""
    return isinstance(x, Columns) and all(part.producer() is None for part in x.parts)


def traced_frame_call(
    op: Builder, function: Callable[..., Any], x: Columns, options: dict
) -> Columns:
    """The columns that a function of data frames gives."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtra("pandas", "pandas") from error
    from sardonyx.importers.pandas.convert import build, record
    from sardonyx.importers.pandas.rules import load

    load()
    columns = {}
    for part in x.parts:
        assert part.dtype is not None
        dtype = "str" if part.dtype == STRING else part.dtype.numpy()
        columns[part.name] = pd.Series(SAMPLES[part.dtype], dtype=dtype)
    frame = pd.DataFrame(columns)
    recorded = record(lambda df: function(df, **options), frame, (), False)
    if recorded.trace.frozen:
        raise refuse(
            "the function computes "
            + ", ".join(sorted({f"{f.call} ({f.place})" for f in recorded.trace.frozen}))
            + " over the rows of a batch",
            hint="fit it: a transformer with a fitted state, or sx.from_pandas and sx.compose",
        )
    model, emission = build(recorded)
    parts = {part.name: part for part in x.parts}
    values: dict[ir.Value, ir.Value | None] = {}
    for step, value in emission.inputs.items():
        part = parts[recorded.inputs[step]]
        values[value] = _input(op, part, emission.reps[step].kind)
    for value in model.graph.initializers.values():
        values[value] = _constant(op, value)
    nodes = copy_nodes(model.graph, values, {}, lambda name: op.fresh(f"{op.prefix}/{name}"))
    for node in nodes:
        node.metadata_props.pop("stage", None)
    op.nodes.extend(nodes)
    return Columns(
        [
            _output(op, values[output], column.label, emission.reps[column.step])
            for output, (_, column) in zip(model.graph.outputs, recorded.columns, strict=True)
        ]
    )


def _input(op: Builder, part: ir.Value, kind: str) -> ir.Value:
    from sardonyx.frames import MISSING_TEXT

    if part.dtype not in KINDS.get(kind, ()):
        raise refuse(
            f"the function works on the characters of column {part.name!r}",
            hint="sx.from_pandas and sx.compose put such code in front of a model",
        )
    column = op.Reshape(part, [-1])
    if part.dtype != STRING:
        return column
    is_missing = op.Equal(column, texts(op, missing_text.get()))
    return op.Where(is_missing, texts(op, MISSING_TEXT), column)


def _constant(op: Builder, value: ir.Value) -> ir.Value:
    tensor = value.const_value
    assert tensor is not None
    if tensor.dtype == STRING:
        array = np.asarray(tensor.numpy())
        decoded = np.array([v.decode() for v in array.reshape(-1)], object)
        return texts(op, decoded.reshape(array.shape))
    return op.const(tensor.numpy())


def _output(op: Builder, value: Any, label: Any, rep: Any) -> ir.Value:
    from sardonyx.frames import MISSING_TEXT

    if value.dtype not in KINDS.get(rep.kind, ()) or (rep.kind != "text" and rep.missing):
        raise refuse(f"the function gives a column of {rep.kind}, {label!r}")
    column = op.Reshape(value, [-1, 1])
    if value.dtype != STRING:
        return column
    is_missing = op.Equal(column, texts(op, MISSING_TEXT))
    return op.Where(is_missing, texts(op, missing_text.get()), column)

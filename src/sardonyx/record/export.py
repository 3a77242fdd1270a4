"""The step as plain ONNX files, for runtimes without sardonyx: C++, C#, Java, mobile, web.

    train.onnx       data, hyperparameters and state in; metrics and new state out
    evaluate.onnx    data and state in; metrics and predictions of the served model out
    initialize.onnx  nothing in; the starting value of every state variable out
    infer.onnx       the served model, its state as inputs
    step.json        inputs, outputs and defaults of each, and which output becomes which state

A trainer runs `initialize` once, then `train` in a loop, and hands each new state to the next call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import partial
from sardonyx.build import Builder
from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model, ModelSource, Record, load
from sardonyx.normalize import NormalizedModel, normalize, regular_copy
from sardonyx.passes.inlining import inline_functions
from sardonyx.passes.nesting import names as all_names
from sardonyx.passes.pinning import pinned
from sardonyx.record import info
from sardonyx.record.describe import descriptions
from sardonyx.record.step import (
    StepGraph,
    all_state,
    compile_evaluation,
    compile_inference,
    compile_step,
    distinct_outputs,
)
from sardonyx.save import folder_reported, save

FORMAT = "sardonyx-step"
VERSION = 1


def export_step(
    model: ModelSource,
    folder: str | Path,
    *,
    current: bool = False,
    runtime: str | None = "onnxruntime==1.21",
    plain: bool = False,
    batch: int | None = None,
) -> Path:
    """Write the training step of a model as plain ONNX files with a description; the path of
    `step.json`.

    current  -- initialize.onnx returns the current state instead of the record's starting values
    runtime  -- the oldest runtime that must accept the files
    plain    -- losses, normalizations and all other operators that ONNX defines by others, and that
                it did not have in opset 11, are replaced by these others
    batch    -- the number of rows of every batch, instead of a free size

    >>> import sardonyx as sx
    >>> sx.export_step("trainable.onnx", "step")  # doctest: +SKIP
    """
    form = Form(runtime, plain, batch)
    with folder_reported(folder):
        return write_step(load(model), Path(folder), current, form)


def write_step(model: Model, folder: Path, current: bool, form: Form) -> Path:
    """Write the files of `export_step` in one form; the path of `step.json`."""
    if not model.records:
        raise ArgumentError(
            "the model carries no training record",
            hint="make one with sx.trainable, or the command sardonyx trainable",
        )
    info.check(model)
    folder.mkdir(parents=True, exist_ok=True)
    starts = _write_initialization(model, folder, current, form)
    steps = [
        _write_step(model, index, record, folder, form)
        for index, record in enumerate(model.records)
    ]
    served = form.write(compile_inference(model), folder / "infer.onnx")
    description = {
        "format": FORMAT,
        "version": VERSION,
        "initialize": {"file": "initialize.onnx", "state": starts},
        "steps": steps,
        "infer": {"file": "infer.onnx", **_signature(served)},
        "state": [_typed(n, _state_array(model, n)) for n in all_state(model)],
    }
    path = folder / "step.json"
    path.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True)
class Form:
    """How the files are written: for which runtime, in which operators, for which batch.

    rewrite -- what a runtime needs beyond that: it changes the graph of a model
    """

    runtime: str | None
    plain: bool = False
    batch: int | None = None
    rewrite: Callable[[ir.Graph], None] | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise ArgumentError(f"a batch has at least one row, not {self.batch}")

    def write(self, graph: StepGraph, path: Path) -> StepGraph:
        """Write a graph in this form; the graph as it was written."""
        model: Model = graph.model
        if self.batch is not None:
            model = pinned(model, batch_shapes(graph, self.batch))
        if self.plain:
            model = model.copy()
            inline_functions(model.graph)
            model = normalize(model)
        if self.rewrite is not None:
            model = model.copy()
            self.rewrite(model.graph)
        written = graph if model is graph.model else replace(graph, model=NormalizedModel.of(model))
        save(written.model, path, runtime=self.runtime)
        return written


def batch_shapes(graph: StepGraph, batch: int) -> dict[str, list[Any]]:
    """The shapes of the data inputs of a step for batches of one size.

    The free size that counts rows is the first one of the inputs, and has one name in all of them.
    """
    inputs = [v for v in graph.model.graph.inputs if v.name in graph.inputs]
    dims = {v.name or "": list(v.shape) for v in inputs if v.shape is not None}
    first = {d[0].value for d in dims.values() if d and not isinstance(d[0], int)}
    names = first - {None}
    everywhere = [n for n in names if all(n in _symbols(d) for d in dims.values())]
    if len(names) > 1 and len(everywhere) != 1:
        rows = [[quote(n), str([getattr(x, "value", x) for x in d])] for n, d in dims.items()]
        raise ArgumentError("which size of the data counts the rows is not clear", rows)
    rows_name = everywhere[0] if everywhere else next(iter(names), None)
    return {
        name: [batch if _counts_rows(i, d, rows_name) else d for i, d in enumerate(sizes)]
        for name, sizes in dims.items()
    }


def _symbols(dims: Sequence[Any]) -> set[str | None]:
    return {d.value for d in dims if not isinstance(d, int)}


def _counts_rows(axis: int, dim: Any, name: str | None) -> bool:
    if isinstance(dim, int):
        return False
    return dim.value == name if dim.value is not None else axis == 0


def _write_step(
    model: Model, index: int, record: Record, folder: Path, form: Form
) -> dict[str, Any]:
    tail = "" if len(model.records) == 1 else f"_{index}"
    train = distinct_outputs(compile_step(model, record))
    train = form.write(train, folder / f"train{tail}.onnx")
    forward = descriptions(model)[index].get("forward", {})
    served = [v.name or "" for v in model.outputs]
    evaluate = compile_evaluation(model, record, forward, served)
    evaluate = form.write(evaluate, folder / f"evaluate{tail}.onnx")
    return {
        "name": record.algorithm.name,
        "train": {"file": f"train{tail}.onnx", **_signature(train)},
        "evaluate": {"file": f"evaluate{tail}.onnx", **_signature(evaluate)},
    }


def _signature(graph: StepGraph) -> dict[str, Any]:
    """The inputs and outputs of a graph, by the role of each tensor."""
    inputs = {v.name: v for v in graph.model.graph.inputs}
    outputs = {v.name: v for v in graph.model.graph.outputs}
    return {
        "inputs": [_declared(inputs[n]) for n in graph.inputs],
        "hyperparameters": [
            {**_typed(n, value), "default": value.tolist()} for n, value in graph.hyper.items()
        ],
        "state": graph.state,
        "metrics": [_declared(outputs[n]) for n in graph.metrics],
        "updates": graph.updates,
    }


def _declared(value: ir.Value) -> dict[str, Any]:
    shape: list[Any] | None = None
    if value.shape is not None:
        shape = [d if isinstance(d, int) else d.value for d in value.shape]
    return {"name": value.name, "type": _type_name(value.dtype), "shape": shape}


def _typed(name: str, array: np.ndarray) -> dict[str, Any]:
    return {
        "name": name,
        "type": _type_name(ir.DataType.from_numpy(array.dtype)),
        "shape": list(array.shape),
    }


def _type_name(dtype: ir.DataType | None) -> str | None:
    if dtype is None:
        return None
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


# -- starting values --------------------------------------------------------------------


def _state_array(model: Model, name: str) -> np.ndarray:
    for record in model.records:
        tensor = info.state_tensor(model, record, name)
        if tensor is not None:
            return tensor.numpy()
    raise ArgumentError(f"no record has a state variable {name!r}")


def _write_initialization(
    model: Model, folder: Path, current: bool, form: Form
) -> Mapping[str, str]:
    """Write one graph without inputs that returns every state variable; state → output."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": model.opset}, name="initialize")
    whole = Model(ir.Model(graph, ir_version=10))
    outputs: dict[str, str] = {}
    for index, record in enumerate([] if current else model.records):
        part = regular_copy(info.initialization_model(model, record))
        renamed = _absorb(whole, part, f"{index}/" if index else "")
        outputs.update({key: renamed[value] for key, value in record.initialization_binding})
    op = Builder("initialize")
    op.reserve(all_names(whole.graph))
    for name in all_state(model):
        if name not in outputs:
            value = op.Identity(op.weight(f"{name}/now", _state_array(model, name)))
            value.name = outputs[name] = op.fresh(f"{name}/start")
            whole.graph.outputs.append(value)
    for constant in op.constants.values():
        whole.graph.register_initializer(constant)
    whole.graph.extend(op.nodes)
    if form.plain:
        inline_functions(whole.graph)
    save(whole, folder / "initialize.onnx", runtime=form.runtime)
    return outputs


def _absorb(whole: Model, part: Model, prefix: str) -> dict[str, str]:
    """Move the nodes of `part` into `whole`; how its outputs are called there."""
    graph = part.graph
    outputs = list(graph.outputs)
    original = [v.name or "" for v in outputs]
    for value in [*graph.initializers.values(), *(v for node in graph for v in node.outputs)]:
        if value.name:
            value.name = prefix + value.name
    for node in graph:
        node.name = prefix + (node.name or "")
    partial.join(whole.graph, graph)
    whole.graph.opset_imports.update(part.ir.opset_imports)
    return dict(zip(original, (v.name or "" for v in outputs), strict=True))

"""Operators of a file one by one, each on the numbers that LiteRT gave the operators before it.

A tie that rounds the other way grows in the operators after it: where the mean of squares is a few
quanta, one more is a large part of it. What is right operator by operator is right nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import SardonyxError
from sardonyx.importers.tflite.driver import CONTROL, STATE, imported
from sardonyx.importers.tflite.reader import File, Graph, Operator
from sardonyx.verify.subjects import runner

STORED = ("DEQUANTIZE", "DENSIFY")  # of a constant: how it is stored
Results = Iterator[tuple[Operator, int, np.ndarray, np.ndarray]]


def replayed(graph: Graph, content: bytes, draws: Sequence[Mapping[str, Any]]) -> Results:
    """For each operator and draw: an output, ours, and LiteRT's.

    Nothing where an operator cannot be read by itself, as one with graphs or a state of its own.
    """
    makers = {o.outputs[0]: o for o in graph.operators if _is_stored(graph, o)}
    operators = [o for o in graph.operators if o not in makers.values()]
    try:
        parts = [_part(graph, operator, makers) for operator in operators]
    except SardonyxError:
        return
    for feeds in draws:
        values = _values(graph, content, list(feeds.values()))
        for operator, (run, inputs) in zip(operators, parts, strict=True):
            ours = run({name: values[index] for name, index in inputs.items()})
            for index, array in zip(operator.outputs, ours.values(), strict=True):
                yield operator, index, np.asarray(array), values[index]


def _is_stored(graph: Graph, operator: Operator) -> bool:
    return operator.name in STORED and graph.tensors[operator.inputs[0]].data is not None


def _part(
    graph: Graph, operator: Operator, makers: Mapping[int, Operator]
) -> tuple[Callable[[Mapping[str, Any]], Mapping[str, Any]], dict[str, int]]:
    """One operator as a program, and the tensors that are its inputs."""
    if operator.name in (*CONTROL, *STATE):
        raise SardonyxError("an operator with graphs or a state of its own")
    before = [makers[i] for i in operator.inputs if i in makers]
    inputs = [
        i
        for i in dict.fromkeys(operator.inputs)
        if i >= 0 and i not in makers and graph.tensors[i].data is None
    ]
    if any(graph.tensors[i].is_variable for i in inputs):
        raise SardonyxError("an operator with a state")
    part = Graph(graph.tensors, [*before, operator], inputs, operator.outputs)
    model, _ = imported(File([part], {}))
    names = [v.name or "" for v in model.inputs]
    return runner("onnxruntime")(model), dict(zip(names, inputs, strict=True))


def _values(graph: Graph, content: bytes, arrays: Sequence[Any]) -> dict[int, np.ndarray]:
    """What LiteRT's own kernels give for each tensor."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    program = Interpreter(
        model_content=content,
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    for index, array in zip(graph.inputs, arrays, strict=True):
        program.resize_tensor_input(index, np.shape(array))
    program.allocate_tensors()
    for index, array in zip(graph.inputs, arrays, strict=True):
        program.set_tensor(index, np.ascontiguousarray(array))
    program.invoke()
    ends = {i for o in graph.operators for i in o.outputs} | set(graph.inputs)
    return {i: np.asarray(program.get_tensor(i)) for i in ends}

"""The halves of a native step as torch runs them best: the forward half as a graph of its own
operators, the update over all parameters at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sardonyx.engines.native_step import NativeStep
from sardonyx.engines.torch.fast_dispatch import quicken
from sardonyx.engines.torch.foreach import Grouped, fold_constants
from sardonyx.engines.torch.trace import retarget, trace
from sardonyx.engines.torch.xp import arrays, torch
from sardonyx.errors import EngineError
from sardonyx.lower.program import Program

Half = Callable[[Mapping[str, Any]], dict[str, Any]]


def forward_function(
    step: NativeStep, state: Mapping[str, Any], device: str, compile: bool
) -> Half:
    """The forward half as an fx graph; node by node where it cannot be traced.

    state -- the values of everything that it reads beside the data
    """
    program = Program(step.forward_model, arrays("cpu"), fallback="error")
    data = step.graph.inputs
    names = [n for n in program.names if n not in data]
    values = {v.name: v for v in step.halves.forward.graph.inputs}

    def flat(*tensors: Any) -> list[Any]:
        outputs = program(dict(zip([*names, *data], tensors, strict=True)))
        return [program.convert(v) for v in outputs]

    tensors = {n: torch.empty_like(state[n], device="cpu") for n in names}
    try:
        graph = trace(flat, tensors, [values[n] for n in data])
    except EngineError:
        return step.run_forward
    graph = quicken(graph)
    if device != "cpu":
        retarget(graph.to(device), torch.device(device), {})
    run = torch.compile(graph) if compile else graph

    def forward(tensors: Mapping[str, Any]) -> dict[str, Any]:
        outputs = run(*(tensors[n] for n in (*names, *data)))
        return dict(zip(program.outputs, outputs, strict=True))

    return forward


def update_function(step: NativeStep, compile: bool) -> Half:
    """The update half, traced when it first runs."""
    from torch.fx.experimental.proxy_tensor import make_fx

    names, outputs = step.update.names, step.update.outputs
    graphs: dict[Any, Callable[..., Any]] = {}

    def flat(*tensors: Any) -> list[Any]:
        results = step.run_update(dict(zip(names, tensors, strict=True)))
        return [results[n] for n in outputs]

    def update(tensors: Mapping[str, Any]) -> dict[str, Any]:
        values = [tensors[n] for n in names]
        key = tuple((v.shape, v.dtype) for v in values)
        if key not in graphs:
            graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*values)
            fold_constants(graph)
            graphs[key] = torch.compile(graph) if compile else Grouped(graph)
        with torch.no_grad():
            return dict(zip(outputs, graphs[key](*values), strict=True))

    return update

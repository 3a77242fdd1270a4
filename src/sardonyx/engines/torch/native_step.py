"""The halves of a native step as torch runs them best: the forward half as a graph of its own
operators, the update over all parameters at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.engines.native_step import NativeStep
from sardonyx.engines.torch.fast_dispatch import quicken
from sardonyx.engines.torch.foreach import Grouped, fold_constants
from sardonyx.engines.torch.fused_update import Fused
from sardonyx.engines.torch.late import separate_late
from sardonyx.engines.torch.narrow_loss import narrow_losses
from sardonyx.engines.torch.promotion import drop_casts
from sardonyx.engines.torch.recorded import NotRecorded, recorded
from sardonyx.engines.torch.trace import retarget, trace
from sardonyx.engines.torch.update import fused
from sardonyx.engines.torch.xp import Torch, arrays, torch
from sardonyx.errors import EngineError
from sardonyx.lower.program import Program
from sardonyx.model import Model
from sardonyx.passes.cse import is_random as is_random_node

Half = Callable[[Mapping[str, Any]], dict[str, Any]]


def forward_function(
    step: NativeStep, model: Model, state: Mapping[str, Any], device: str, compile: bool
) -> Half:
    """The forward half as an fx graph; node by node where it cannot be traced.

    model -- the forward half
    state -- the values of everything that it reads beside the data
    """
    program = Program(model, arrays("cpu"), fallback="error")
    data = [n for n in step.graph.inputs if n in program.names]
    names = [n for n in program.names if n not in data]
    values = {v.name: v for v in model.graph.inputs}

    def flat(*tensors: Any) -> list[Any]:
        outputs = program(dict(zip([*names, *data], tensors, strict=True)))
        return [program.convert(v) for v in outputs]

    tensors = {n: torch.empty_like(state[n], device="cpu") for n in names}
    try:
        graph = trace(flat, tensors, [values[n] for n in data])
    except EngineError:
        return node_by_node(model, device)
    drop_casts(graph)
    late, sizes = None, []
    if compile:
        read = {v.name for v in step.halves.update.graph.inputs if v.uses()} - {*step.sized()}
        read |= {step.halves.loss, *step.graph.metrics, *step.graph.updates.values()}
        sizes = give_sizes(graph, [i for i, n in enumerate(program.outputs) if n not in read])
        decompose_norms(graph, device)
    else:
        narrow_losses(graph)
        late = separate_late(graph)
    graph = quicken(graph)
    if device != "cpu":
        retarget(graph.to(device), torch.device(device), {})
    run = torch.compile(graph) if compile else graph

    arguments = (*names, *data)

    def forward(tensors: Mapping[str, Any]) -> dict[str, Any]:
        outputs = run(*(tensors[n] for n in arguments))
        if sizes:
            outputs = with_shapes(outputs, sizes)
        if late is not None:
            with torch.no_grad():
                outputs = late(*outputs)
        return dict(zip(program.outputs, outputs, strict=True))

    return forward


def give_sizes(graph: torch.fx.GraphModule, places: Sequence[int]) -> list[tuple[int, Any]]:
    """Let a graph give the sizes of some outputs instead of them: their places and types.

    A compiler must keep an output in memory, and in the layout of the trace, for the sake of its
    sizes alone.
    """
    (output,) = [n for n in graph.graph.nodes if n.op == "output"]
    results = list(output.args[0])
    sizes = []
    with graph.graph.inserting_before(output):
        for place in places:
            value = results[place].meta.get("val")
            if not isinstance(value, torch.Tensor) or value.ndim == 0:
                continue
            axes = range(value.ndim)
            read = torch.ops.aten.sym_size.int
            source = results[place]
            results[place] = tuple(graph.graph.call_function(read, (source, a)) for a in axes)
            sizes.append((place, value.dtype))
    output.args = (results,)
    graph.recompile()
    return sizes


def with_shapes(outputs: Sequence[Any], sizes: Sequence[tuple[int, Any]]) -> list[Any]:
    """The outputs of such a graph, with tensors of the right shape that have no memory."""
    tensors = list(outputs)
    for place, dtype in sizes:
        tensors[place] = torch.empty((), dtype=dtype, device="meta").expand(tensors[place])
    return tensors


def decompose_norms(graph: torch.fx.GraphModule, device: str) -> None:
    """Batch normalization as the operator that torch's compiler fuses with its neighbours.

    On a CPU, the compiler gives the statistics of a narrow image in its type: it is widened first.
    """
    for node in list(graph.graph.nodes):
        if node.target is not torch.ops.aten._batch_norm_impl_index.default:
            continue
        node.target = torch.native_batch_norm
        image, *others = node.args[:-1]  # without the choice of cuDNN
        dtype = image.meta["val"].dtype
        if device == "cpu" and dtype in (torch.bfloat16, torch.float16):
            with graph.graph.inserting_before(node):
                image = graph.graph.call_method("to", (image, torch.float32))
            for part in [n for n in node.users if n.args[1] == 0]:
                with graph.graph.inserting_after(part):
                    narrow = graph.graph.call_method("to", (part, dtype))
                part.replace_all_uses_with(narrow, lambda user, new=narrow: user is not new)
        node.args = (image, *others)
    graph.recompile()


def node_by_node(model: Model, device: str) -> Half:
    program = Program(model, arrays(device), fallback="error")

    def run(tensors: Mapping[str, Any]) -> dict[str, Any]:
        values = program({n: tensors[n] for n in program.names})
        return {n: program.convert(v) for n, v in zip(program.outputs, values, strict=True)}

    return run


def update_function(step: NativeStep, model: Model, xp: Torch) -> Half:
    """The update half `model`, traced when it first runs.

    It is not compiled: its kernels over all parameters are few already, and a compiler would write
    one for each parameter, which takes longer than the rest of the network.
    """
    program = Program(model, xp, fallback="error")
    is_random = any(map(is_random_node, model.graph.all_nodes()))
    names, outputs = program.names, program.outputs
    fixed = {*step.graph.state, *step.halves.gradients, *step.hyper}
    sized = [n for n in names if n not in fixed]
    graphs: dict[Any, Grouped] = {}

    def flat(*tensors: Any) -> list[Any]:
        results = program(dict(zip(names, tensors, strict=True)))
        return [program.convert(v) for v in results]

    def update(tensors: Mapping[str, Any]) -> dict[str, Any]:
        values = [tensors[n] for n in names]
        key = tuple(tensors[n].shape for n in sized)
        if key not in graphs:
            over = _replaceable(step, tensors, names, outputs)
            recorded_update = _graph_of(flat, values, is_random)
            graphs[key] = fused(recorded_update, over, torch.device(xp.device))
        graph = graphs[key]
        if isinstance(graph, Fused) and not step.rep.steps_ahead:
            graph.replace(_are_finite(tensors, step.graph.metrics))
        with torch.no_grad():
            return dict(zip(outputs, graph(*values), strict=True))

    return update


def _are_finite(tensors: Mapping[str, Any], metrics: Sequence[str]) -> bool:
    """Whether all metrics are known before the update, and finite.

    Otherwise the state before the step is for a search of what is not finite.
    """
    return all(n in tensors and bool(tensors[n].isfinite().all()) for n in metrics)


def _graph_of(
    function: Callable[..., Any], values: Sequence[Any], is_random: bool
) -> torch.fx.GraphModule:
    """An update as a graph for tensors of these sizes."""
    try:
        if is_random:
            raise NotRecorded("random numbers")
        return recorded(function, values)
    except (NotRecorded, EngineError):  # the latter from a node of the program
        from torch.fx.experimental.proxy_tensor import make_fx

        graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*values)
        fold_constants(graph)
        return graph


def _replaceable(
    step: NativeStep, tensors: Mapping[str, Any], names: Sequence[str], outputs: Sequence[str]
) -> dict[int, int]:
    """Place of an output → place of the variable that it may be written over.

    Nothing is, where the state before a step is still needed after it, because a step whose
    gradients overflow is left out. Neither is a variable that a metric is a view of.
    """
    if getattr(step.rep, "scale", None) is not None:
        return {}
    metrics = [tensors[n] for n in step.graph.metrics if isinstance(tensors.get(n), torch.Tensor)]
    memory = {metric.untyped_storage().data_ptr() for metric in metrics}
    return {
        outputs.index(new): names.index(name)
        for name, new in step.graph.updates.items()
        if new in outputs and name in names
        if tensors[name].untyped_storage().data_ptr() not in memory
    }

"""A function of tensors as an fx graph, whose sizes stay free where the model leaves them free.

The plan of a model runs once, over fake tensors with symbolic sizes; torch records its own
operators. Whatever was known while building (shape arithmetic, constants, defaults) is gone from
the result.
"""

from __future__ import annotations

import keyword
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.engines.torch.controlflow import hoist_constants
from sardonyx.engines.torch.simplify import CONSTANT, simplify
from sardonyx.engines.torch.xp import DTYPES, torch
from sardonyx.errors import EngineError, quote
from sardonyx.lower.program import element_type
from sardonyx.lower.run_limits import allowance
from sardonyx.lower.xp import NotStatic

UNROLLED = 1024  # trips of loops that a graph may repeat; more of them run node by node
# Sizes that stand for symbols while tracing: none is a factor, a sum or a neighbour of another.
HINTS = (6, 23, 41, 67, 97, 131, 173, 211)
LARGER = 1021  # added to them, it gives sizes that have next to nothing in common with them
MULTIPLE = 32  # what networks that halve an image often want its sides to be a multiple of


def example(
    value: ir.Value, hints: dict[str, int], more: int = 0, by: int = 1
) -> tuple[Any, list[bool]]:
    """A tensor that fits an input, and which of its sizes are free.

    hints    -- sizes that stand for symbols, added to as symbols are met
    more, by -- each is hint * by + more
    """
    dtype = element_type(value)
    if value.shape is None or dtype not in DTYPES:
        raise EngineError(f"input {quote(value.name)} has no known rank or type that torch has")
    sizes, free = [], []
    for axis, dim in enumerate(value.shape):
        free.append(not isinstance(dim, int))
        # A size without a name is like no other.
        name = str(dim) if getattr(dim, "value", dim) is not None else f"{value.name}/{axis}"
        if free[-1] and name not in hints:
            size = HINTS[len(hints) % len(HINTS)] + 256 * (len(hints) // len(HINTS))
            hints[name] = size * by + more
        sizes.append(dim if isinstance(dim, int) else hints[name])
    return torch.zeros(sizes, dtype=DTYPES[dtype]), free


def trace(
    function: Callable[..., Any], held: Mapping[str, Any], inputs: Sequence[ir.Value]
) -> torch.fx.GraphModule:
    """`function(*held, *inputs)` as a graph; raises `EngineError` where that cannot be.

    The graph holds for every size: what the trace took for granted of its small sizes (one frame of
    a short signal, say) is asked of larger ones too. A model that does not take small sizes is
    traced at larger ones, and one that takes only round sizes at those.

    held -- tensors whose sizes are what they are
    """
    try:
        graph, environment = _traced(function, held, inputs)
    except EngineError as error:
        if isinstance(error.__cause__, NotStatic) or not _has_free_sizes(inputs):
            raise
        return _tidied(_traced_elsewhere(function, held, inputs, error))
    if not _holds_for(environment, lambda size: size + LARGER):
        graph, _ = _traced(function, held, inputs, LARGER)
        _refuse_other_values(graph, function, held, inputs)
    return _tidied(graph)


def argument_names(names: Sequence[str]) -> list[str]:
    """A Python name for each tensor: its own, wherever it is one."""
    arguments: list[str] = []
    for name in names:
        text = re.sub(r"[^A-Za-z0-9_]", "_", name)
        text = text if text.isidentifier() and not keyword.iskeyword(text) else f"input_{text}"
        while text in (*arguments, "self"):
            text += "_"
        arguments.append(text)
    return arguments


def named(module: torch.fx.GraphModule, names: Sequence[str]) -> torch.fx.GraphModule:
    """A graph whose inputs are called like what is given to it: its code can be read."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, name in zip(inputs, argument_names(names), strict=True):
        node._rename(name)  # or a name like it, where another node has it
        node.target = node.name
    type(module).__name__ = "Graph"
    module.recompile()
    return module


def _has_free_sizes(inputs: Sequence[ir.Value]) -> bool:
    return any(not isinstance(d, int) for v in inputs if v.shape is not None for d in v.shape)


def _traced_elsewhere(
    function: Callable[..., Any],
    held: Mapping[str, Any],
    inputs: Sequence[ir.Value],
    problem: EngineError,
) -> torch.fx.GraphModule:
    """The graph of a model that cannot be traced at small sizes, because of `problem`."""
    tries: list[tuple[int, int, Callable[[int], int]]] = [
        (LARGER, 1, lambda size: size + LARGER),
        (0, MULTIPLE, lambda size: size * 2),
    ]
    for more, by, other in tries:
        try:
            graph, environment = _traced(function, held, inputs, more, by)
        except EngineError:
            continue
        if _holds_for(environment, other):
            _refuse_other_values(graph, function, held, inputs)
            return graph
    raise problem


def _traced(
    function: Callable[..., Any],
    held: Mapping[str, Any],
    inputs: Sequence[ir.Value],
    more: int = 0,
    by: int = 1,
) -> tuple[torch.fx.GraphModule, Any]:
    """The graph at the hinted sizes, and torch's account of what it assumed of them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
    )

    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    hints: dict[str, int] = {}
    fakes = [mode.from_tensor(t.detach(), static_shapes=True) for t in held.values()]
    for value in inputs:
        tensor, free = example(value, hints, more, by)
        sizes = [DimDynamic.DYNAMIC if f else DimDynamic.STATIC for f in free]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        fakes.append(mode.from_tensor(tensor, symbolic_context=context))
    try:
        with warnings.catch_warnings(), allowance(trips=UNROLLED):
            warnings.simplefilter("ignore")
            graph = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*fakes)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"torch cannot trace the model: {error}") from error
    _refuse_fixed(environment, hints)
    return graph, environment


def _holds_for(environment: Any, other: Callable[[int], int]) -> bool:
    """Whether what the trace took for granted of its sizes is so of others too."""
    named = "backed_var_to_val" if hasattr(environment, "backed_var_to_val") else "var_to_val"
    sizes = getattr(environment, named)
    others = {symbol: other(int(size)) for symbol, size in sizes.items()}
    return all(bool(guard.expr.xreplace(others)) for guard in environment.guards)


def _refuse_other_values(
    graph_module: torch.fx.GraphModule,
    function: Callable[..., Any],
    held: Mapping[str, Any],
    inputs: Sequence[ir.Value],
) -> None:
    """A graph traced at large sizes must give what the model gives at small ones."""
    hints: dict[str, int] = {}
    tensors = [example(value, hints)[0] for value in inputs]

    def run(graph: Callable[..., Any]) -> list[Any]:
        # In training, statistics are written in place and random numbers are drawn.
        state = [t if t.requires_grad else t.clone() for t in held.values()]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return list(graph(*state, *map(_filled, tensors)))

    try:
        expected = run(function)
    except Exception:
        return  # the model does not take sizes that small
    try:
        outputs = run(torch.fx.Interpreter(graph_module).run)
        torch.testing.assert_close(outputs, expected, equal_nan=True)
    except (RuntimeError, AssertionError, IndexError, ValueError) as error:
        raise EngineError("the model is another graph at small sizes than at large") from error


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    """Values that differ where they may be anything; integers, often indices, stay zero."""
    if not tensor.is_floating_point():
        return tensor
    return torch.linspace(-1, 1, tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of two dicts of tensors, traced and compiled by torch once for each set of sizes.

    It gives two dicts. torch cannot look through the plan itself, which computes sizes in numpy.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    programs: dict[Any, tuple[Any, list[list[str]]]] = {}

    def run(*parts: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        names = [list(part) for part in parts]
        tensors = [tensor for part in parts for tensor in part.values()]
        key = tuple((t.shape, t.dtype, t.device) for t in tensors)
        if key not in programs:
            results: list[list[str]] = []

            def flat(*values: Any) -> list[Any]:
                rest = iter(values)
                outputs = function(*({n: next(rest) for n in part} for part in names))
                results[:] = [list(part) for part in outputs]
                return [value for part in outputs for value in part.values()]

            graph = _tidied(
                make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
            )
            programs[key] = torch.compile(graph), results
        graph, results = programs[key]
        rest = iter(graph(*tensors))
        return tuple({n: next(rest) for n in part} for part in results)

    return run


def _refuse_fixed(environment: Any, hints: Mapping[str, int]) -> None:
    """A free size that the trace took for a number would be wrong for every other size."""
    fixed = {int(v) for v in environment.replacements.values() if v.is_number}
    names = [name for name, hint in hints.items() if hint in fixed]
    if fixed:
        rows = [[quote(n), "free in the model, but fixed by its trace"] for n in names]
        raise EngineError("sizes of the model depend on its data", rows)


def _tidied(module: torch.fx.GraphModule, is_inner: bool = False) -> torch.fx.GraphModule:
    """Dead nodes out, constants as buffers that move with the module but are not saved."""
    for inner in module.children():
        _tidied(inner, is_inner=True)
    graph = module.graph
    graph.set_codegen(torch.fx.graph.CodeGen())
    graph.eliminate_dead_code()
    simplify(module, is_inner)
    hoist_constants(module)
    used = {n.target for n in graph.nodes if n.op == "get_attr"}
    for name in [n for n in (*vars(module), *module._buffers) if n.startswith(CONSTANT)]:
        value = getattr(module, name)
        delattr(module, name)
        if name in used:
            module.register_buffer(name, value, persistent=False)
    module.recompile()
    return module


def retarget(module: torch.fx.GraphModule, device: Any, floats: Mapping[Any, Any]) -> None:
    """Let the graph make its own tensors on another device, its floats of another type."""
    for inner in module.children():
        retarget(inner, device, floats)
    changed = False
    for node in module.graph.nodes:
        keywords = dict(node.kwargs)
        if keywords.get("device") is not None:
            keywords["device"] = device
        arguments = tuple(floats.get(a, a) if isinstance(a, torch.dtype) else a for a in node.args)
        if isinstance(keywords.get("dtype"), torch.dtype):
            keywords["dtype"] = floats.get(keywords["dtype"], keywords["dtype"])
        if keywords != dict(node.kwargs) or arguments != tuple(node.args):
            node.kwargs, node.args, changed = keywords, arguments, True
    if changed:
        module.recompile()

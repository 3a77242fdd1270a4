"""A function of tensors as an fx graph, with the free sizes of the model.

The program of a model runs once, over fake tensors with symbolic sizes, and torch records its own
operators. Everything that is known during the trace (shape arithmetic, constants, defaults) is
computed then and no part of the graph.
"""

from __future__ import annotations

import keyword
import logging
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx.engines.torch.controlflow import hoist_constants
from sardonyx.engines.torch.simplify import CONSTANT, simplify
from sardonyx.engines.torch.xp import DTYPES, torch
from sardonyx.errors import EngineError, quote
from sardonyx.lower.program import element_type
from sardonyx.lower.run_limits import run_limits
from sardonyx.lower.xp import NotStatic

UNROLLED = 1024  # the most trips of loops that a graph may repeat; with more, nodes run one by one
# Sizes that symbols have while tracing: none is a factor, a sum or a neighbour of another.
HINTS = (19, 23, 41, 67, 97, 131, 173, 211)
LARGER = 1021  # added to them, it gives sizes that have next to nothing in common with them
MULTIPLE = 32  # networks that halve an image often need its sides to be a multiple of this
TRIED = 1 << 22  # the most elements of inputs with which a model is run to compare results
ALLOCATED = 1 << 28  # the same where only their sizes are read: the system sets no page aside
LOGGERS = ("_subclasses.fake_tensor", "fx.experimental.symbolic_shapes")
Grow = Callable[[int], int]


def small(size: int) -> int:
    return size


def larger(size: int) -> int:
    return size + LARGER


def multiple(size: int) -> int:
    return size * MULTIPLE


def input_sizes(value: ir.Value, hints: dict[str, int]) -> list[int | str]:
    """The sizes of an input; of a free one, the name under which `hints` has a number for it."""
    if value.shape is None or torch_type(value) is None:
        raise EngineError(f"input {quote(value.name)} has no known rank or type that torch has")
    sizes: list[int | str] = []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int):
            sizes.append(dim)
            continue
        # A size without a name differs from every other.
        name = f"{value.name}/{axis}" if dim.value is None else str(dim)
        size = HINTS[len(hints) % len(HINTS)] + 256 * (len(hints) // len(HINTS))
        hints.setdefault(name, size)
        sizes.append(name)
    return sizes


def torch_type(value: ir.Value) -> Any:
    return DTYPES.get(element_type(value))  # type: ignore[arg-type]


def examples(
    inputs: Sequence[ir.Value],
    grow: Grow = small,
    names: Collection[str] | None = None,
    most: int = TRIED,
) -> list[torch.Tensor]:
    """Zeros that fit the inputs, with sizes of `HINTS`; those called `names` grow (None: all)."""
    hints: dict[str, int] = {}
    shapes = [input_sizes(value, hints) for value in inputs]
    numbers = {n: grow(h) if names is None or n in names else h for n, h in hints.items()}
    sizes = [[d if isinstance(d, int) else numbers[d] for d in shape] for shape in shapes]
    if sum(math.prod(s) for s in sizes) > most:
        raise EngineError("the model's inputs are too large to try it")
    types = [torch_type(value) for value in inputs]
    return [torch.zeros(s, dtype=t) for s, t in zip(sizes, types, strict=True)]


def trace(
    function: Callable[..., Any], weights: Mapping[str, Any], inputs: Sequence[ir.Value]
) -> torch.fx.GraphModule:
    """`function(*weights, *inputs)` as a graph; raises `EngineError` where that is impossible.

    The graph holds for every size: assumptions that the trace made about its small sizes (one frame
    of a short signal, say) are checked at larger ones too. A model that does not accept small sizes
    is traced at larger ones, and one that accepts only multiples of 32 at those. No tensor of these
    sizes is allocated.

    weights -- tensors of fixed sizes
    """
    try:
        graph, assumptions = _traced(function, weights, inputs, small)
    except EngineError as error:
        if _depends_on_data(error) or not _has_free_sizes(inputs):
            raise
        return _tidied(_traced_elsewhere(function, weights, inputs, error))
    broken = assumptions.broken(larger)
    if broken:
        try:
            graph, _ = _traced(function, weights, inputs, larger)
        except EngineError:
            _refuse_unless_fails(function, weights, inputs, broken)
        else:
            _refuse_other_values(graph, function, weights, inputs)
    return _tidied(graph)


def argument_names(names: Sequence[str]) -> list[str]:
    """A Python name for each tensor: its own name where that is an identifier."""
    arguments: list[str] = []
    for name in names:
        text = re.sub(r"[^A-Za-z0-9_]", "_", name)
        text = text if text.isidentifier() and not keyword.iskeyword(text) else f"input_{text}"
        while text in (*arguments, "self"):
            text += "_"
        arguments.append(text)
    return arguments


def named(module: torch.fx.GraphModule, names: Sequence[str]) -> torch.fx.GraphModule:
    """A graph whose inputs have these names, so that its code can be read."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, name in zip(inputs, argument_names(names), strict=True):
        node._rename(name)  # or a similar name, where another node has this one
        node.target = node.name
    type(module).__name__ = "Graph"
    module.recompile()
    return module


def exported(module: torch.nn.Module, inputs: Sequence[ir.Value]) -> Any:
    """A module as an exported program of torch, with the free sizes of its inputs.

    Not every model accepts small sizes: they are followed by others until torch is content.
    """
    sizes = tuple(
        {i: torch.export.Dim.AUTO for i, d in enumerate(v.shape or ()) if not isinstance(d, int)}
        for v in inputs
    )
    names = _free_names(inputs)
    problem: Exception | None = None
    for grow in (small, multiple, larger) if names else (small,):
        try:
            # A tensor of one row stays one of any number of rows.
            with without_log(), torch.fx.experimental._config.patch(backed_size_oblivious=True):
                tensors = tuple(examples(inputs, grow, names, most=ALLOCATED))
                return torch.export.export(module, tensors, dynamic_shapes=sizes)
        except Exception as error:  # torch has no class of its own for these
            problem = problem or error
    assert problem is not None
    reason = str(problem).strip().partition("\n")[0]
    raise EngineError(f"torch cannot export the model: {reason}") from problem


def _free_names(inputs: Sequence[ir.Value]) -> set[str]:
    """The free sizes but those of batches, which every model accepts, or all if there are no
    others.
    """
    hints: dict[str, int] = {}
    shapes = [input_sizes(value, hints) for value in inputs]
    batches = {shape[0] for shape in shapes if shape}
    return {name for name in hints if name not in batches} or set(hints)


def _has_free_sizes(inputs: Sequence[ir.Value]) -> bool:
    return any(not isinstance(d, int) for v in inputs if v.shape is not None for d in v.shape)


def _depends_on_data(error: EngineError) -> bool:
    """Whether a trace failed for a reason that other sizes do not change."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return isinstance(error.__cause__, (NotStatic, GuardOnDataDependentSymNode))


def _traced_elsewhere(
    function: Callable[..., Any],
    weights: Mapping[str, Any],
    inputs: Sequence[ir.Value],
    problem: EngineError,
) -> torch.fx.GraphModule:
    """The graph of a model that cannot be traced at small sizes, because of `problem`."""
    tries: list[tuple[Grow, Grow]] = [(larger, larger), (multiple, lambda size: size * 2)]
    for grow, other in tries:
        try:
            graph, assumptions = _traced(function, weights, inputs, grow)
        except EngineError:
            continue
        if not assumptions.broken(other):
            _refuse_other_values(graph, function, weights, inputs)
            return graph
    raise problem


@dataclass
class Assumptions:
    """What a trace assumed about free sizes: guards over symbols, which have these values."""

    guards: list[Any]
    symbols: dict[Any, int]
    names: dict[int, str]  # value of a symbol → name of the size

    def broken(self, other: Grow) -> set[str]:
        """The names of the sizes in assumptions that do not hold at other sizes."""
        others = {symbol: other(size) for symbol, size in self.symbols.items()}
        guards = [g for g in self.guards if not bool(g.xreplace(others))]
        used = {s for g in guards for s in g.free_symbols}
        return {self.names[v] for s, v in self.symbols.items() if s in used}


def _traced(
    function: Callable[..., Any],
    weights: Mapping[str, Any],
    inputs: Sequence[ir.Value],
    grow: Grow,
) -> tuple[torch.fx.GraphModule, Assumptions]:
    """The graph at the hinted sizes, and what torch assumed about them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    mode.cache_enabled = False  # with symbolic sizes, it costs more than it saves
    fakes = [mode.from_tensor(t.detach(), static_shapes=True) for t in weights.values()]
    hints: dict[str, int] = {}
    fakes += [_fake(mode, value, hints, grow) for value in inputs]
    try:
        with warnings.catch_warnings(), run_limits(trips=UNROLLED), without_log():
            warnings.simplefilter("ignore")
            graph = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*fakes)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"torch cannot trace the model: {error}") from error
    names = {grow(hint): name for name, hint in hints.items()}
    _refuse_fixed(environment, names)
    attribute = "backed_var_to_val" if hasattr(environment, "backed_var_to_val") else "var_to_val"
    symbols = {symbol: int(size) for symbol, size in getattr(environment, attribute).items()}
    return graph, Assumptions([g.expr for g in environment.guards], symbols, names)


def _fake(mode: Any, value: ir.Value, hints: dict[str, int], grow: Grow) -> Any:
    """A fake tensor that fits an input, with symbols for free sizes."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    names = input_sizes(value, hints)
    sizes = [d if isinstance(d, int) else grow(hints[d]) for d in names]
    kinds = [DimDynamic.STATIC if isinstance(d, int) else DimDynamic.DYNAMIC for d in names]
    symbols, strides, _ = mode.shape_env.create_symbolic_sizes_strides_storage_offset(
        torch.empty(sizes, device="meta"),
        ConstantSource(f"input_{value.name}"),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds),
    )
    with mode:
        return torch.empty_strided(symbols, strides, dtype=torch_type(value))


@contextmanager
def without_log() -> Iterator[None]:
    """Without torch's own log of errors, which the caller gets as exceptions."""
    loggers = [logging.getLogger(f"torch.{name}") for name in LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _run(
    function: Callable[..., Any], weights: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> list[Any]:
    # In training, statistics are written in place and random numbers are drawn.
    state = [t if t.requires_grad else t.clone() for t in weights.values()]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return list(function(*state, *map(_filled, tensors)))


def _refuse_unless_fails(
    function: Callable[..., Any],
    weights: Mapping[str, Any],
    inputs: Sequence[ir.Value],
    names: Collection[str],
) -> None:
    """A graph traced at small sizes is complete if the model itself does not accept large ones,
    because a table of positions ends before them, say.
    """
    tensors = examples(inputs, larger, names)
    try:
        _run(function, weights, tensors)
    except EngineError:
        return
    raise EngineError("the model is another graph at large sizes than at small")


def _refuse_other_values(
    graph: torch.fx.GraphModule,
    function: Callable[..., Any],
    weights: Mapping[str, Any],
    inputs: Sequence[ir.Value],
) -> None:
    """A graph traced at large sizes must give the model's results at small ones."""
    tensors = examples(inputs)
    try:
        expected = _run(function, weights, tensors)
    except Exception:
        return  # the model does not accept sizes that small
    try:
        outputs = _run(torch.fx.Interpreter(graph).run, weights, tensors)
        torch.testing.assert_close(outputs, expected, equal_nan=True)
    except (RuntimeError, AssertionError, IndexError, ValueError) as error:
        raise EngineError("the model is another graph at small sizes than at large") from error


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    """Distinct values for floats; integers, often indices, stay zero."""
    if not tensor.is_floating_point():
        return tensor
    return torch.linspace(-1, 1, tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of two dicts of tensors, traced and compiled by torch once for each set of sizes.

    It returns two dicts. torch cannot trace the program itself, which computes sizes in numpy.
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


def _refuse_fixed(environment: Any, names: Mapping[int, str]) -> None:
    """A free size that the trace fixed to a number would be wrong for every other size."""
    fixed = {int(v) for v in environment.replacements.values() if v.is_number}
    if fixed:
        rows = [
            [quote(name), "free in the model, but fixed by its trace"]
            for size, name in names.items()
            if size in fixed
        ]
        raise EngineError("sizes of the model depend on its data", rows)


def _tidied(module: torch.fx.GraphModule, is_inner: bool = False) -> torch.fx.GraphModule:
    """Remove dead nodes; make constants buffers that move with the module but are not saved."""
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
    """Create the graph's own tensors on another device, with its floats of another type."""
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

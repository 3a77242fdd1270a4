"""torch's own kernels for ONNX's family controlflow: what data decides, as part of a graph.

While a graph is traced, branches and loops become torch's `cond`, `while_loop` and `scan`, so that
it is exported and compiled whole. A plain call of the graph goes through them in Python, where
autograd sees every step. What is known while building decides there, as everywhere; short loops are
written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from sardonyx.engines.torch.simplify import CONSTANT
from sardonyx.engines.torch.xp import is_traced, torch
from sardonyx.lower import controlflow
from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import NotStatic, positive

HIGHER = torch.ops.higher_order
LONG = 8  # loops of more trips are loops of the graph, shorter ones are written out
DEEP = 4  # torch traces a body several times, and each time all that lies in it
Tensors = tuple[Any, ...]
_DEPTH: ContextVar[int] = ContextVar("depth", default=0)


def is_tracing() -> bool:
    """Whether a graph is being built."""
    return get_proxy_mode() is not None


@contextmanager
def deeper() -> Iterator[None]:
    """Inside of a branch or loop of the graph, which are not nested without end."""
    depth = _DEPTH.get()
    if depth == DEEP:
        raise NotStatic(f"branches and loops that data decides are nested more than {DEEP} deep")
    token = _DEPTH.set(depth + 1)
    try:
        yield
    finally:
        _DEPTH.reset(token)


# -- functions over tensors of a graph ----------------------------------------------


class _Reads(TorchFunctionMode):
    """Finds the tensors of the graph that a function reads besides its arguments."""

    def __init__(self, given: Sequence[Any]):
        super().__init__()
        self.inside = {id(t): t for t in given}
        self.outside: dict[int, Any] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and is_traced(leaf) and id(leaf) not in self.inside:
                self.outside[id(leaf)] = leaf
        found = func(*args, **(kwargs or {}))
        self.inside.update((id(t), t) for t in tree_leaves(found) if isinstance(t, torch.Tensor))
        return found


class _Instead(TorchFunctionMode):
    """Gives a function other tensors in place of those that it would read."""

    def __init__(self, tensors: dict[int, Any]):
        super().__init__()
        self.tensors = tensors

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def swap(tensor: Any) -> Any:
            return self.tensors.get(id(tensor), tensor)

        args, kwargs = tree_map_only(torch.Tensor, swap, (args, kwargs or {}))
        return func(*args, **kwargs)


def read_by(function: Callable[..., Any], given: Sequence[Any]) -> tuple[list[Any], Any]:
    """The tensors that `function` reads besides `given`, and what it gives."""
    with disable_proxy_modes_tracing(), _Reads(given) as reads:
        found = function(*given)
    return list(reads.outside.values()), found


def closed(function: Callable[..., Any], count: int, extra: Sequence[Any]) -> Callable[..., Any]:
    """`function` of `count` arguments as one that takes the tensors `extra` as well.

    What it gives are tensors of their own: no graph of torch's may give what it was given.
    """

    def call(*given: Any) -> Tensors:
        tensors = {id(t): v for t, v in zip(extra, given[count:], strict=True)}
        with _Instead(tensors):
            found = function(*given[:count])
            return fresh(found, given)

    return call


def fresh(found: Sequence[Any], given: Sequence[Any]) -> Tensors:
    """Tensors that share no memory with `given` or among each other, in plain order."""
    used = {StorageWeakRef(t.untyped_storage()) for t in given if isinstance(t, torch.Tensor)}
    made = []
    for tensor in found:
        tensor = tensor.contiguous()
        place = StorageWeakRef(tensor.untyped_storage())
        made.append(tensor.clone() if place in used else tensor)
        used.add(place)
    return tuple(made)


def held(xp, values) -> Tensors:
    if any(isinstance(v, (list, dict, type(None))) for v in values):
        raise NotStatic("a branch or loop that data decides gives sequences")
    return tuple(v if isinstance(v, torch.Tensor) else xp.known(v) for v in values)


# -- what a graph calls -------------------------------------------------------------


def branch(condition: Any, yes: Any, no: Any, given: Tensors) -> Any:
    """`yes(*given)` or `no(*given)`."""
    if torch.compiler.is_compiling():
        return HIGHER.cond(condition, yes, no, tuple(given))
    return (yes if condition else no)(*given)


def repeat(goes_on: Any, step: Any, state: Tensors, extra: Tensors) -> Any:
    """`state` after `step(*state, *extra)` as long as `goes_on(*state, *extra)`."""
    if torch.compiler.is_compiling():
        return HIGHER.while_loop(goes_on, step, tuple(state), tuple(extra))
    while goes_on(*state, *extra):
        state = step(*state, *extra)
    return tuple(state)


def fold(step: Any, state: Sequence[Any], rows: Sequence[Any], extra: Tensors) -> Any:
    """The last state, then what each `step(*state, *row, *extra)` gave besides it, stacked."""
    if torch.compiler.is_compiling():
        return HIGHER.scan(step, list(state), list(rows), tuple(extra))
    count, length = len(state), rows[0].shape[0]
    state, kept = tuple(state), []
    for i in range(length):
        found = step(*state, *(r[i] for r in rows), *extra)
        state = tuple(found[:count])
        kept.append(found[count:])
    if not kept:  # the sizes of rows that there are none of
        found = step(*state, *(r.new_zeros(r.shape[1:]) for r in rows), *extra)
        return (*state, *(v.new_zeros((0, *v.shape)) for v in found[count:]))
    return (*state, *(torch.stack(column) for column in zip(*kept, strict=True)))


CALLS = {HIGHER.cond: branch, HIGHER.while_loop: repeat, HIGHER.scan: fold}


def hoist_constants(module: torch.fx.GraphModule) -> None:
    """Hand the constants of inner graphs in from outside: torch.export loses them inside."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in CALLS:
            continue
        inner = [getattr(module, a.target) for a in node.args if _is_graph(module, a)]
        found: dict[int, Any] = {}
        for graph in inner:
            for read in graph.graph.find_nodes(op="get_attr"):
                value = getattr(graph, read.target)
                if isinstance(value, torch.Tensor):
                    found.setdefault(id(value), value)
        added = [_held(module, node, value) for value in found.values()]
        for graph in inner:
            _take_from_outside(graph, list(found.values()))
        node.args = (*node.args[:-1], (*node.args[-1], *added))


def _is_graph(module: torch.fx.GraphModule, argument: Any) -> bool:
    is_name = isinstance(argument, torch.fx.Node) and argument.op == "get_attr"
    return is_name and isinstance(getattr(module, argument.target), torch.fx.GraphModule)


def _held(module: torch.fx.GraphModule, before: torch.fx.Node, value: Any) -> torch.fx.Node:
    """A constant of the graph itself."""
    number = 0
    while hasattr(module, f"{CONSTANT}_inner{number}"):
        number += 1
    module.register_buffer(f"{CONSTANT}_inner{number}", value, persistent=False)
    with module.graph.inserting_before(before):
        return module.graph.get_attr(f"{CONSTANT}_inner{number}")


def _take_from_outside(module: torch.fx.GraphModule, values: Sequence[Any]) -> None:
    """Further arguments in place of constants."""
    graph = module.graph
    last = [*graph.find_nodes(op="placeholder")][-1:]
    first = next(iter(graph.nodes))
    for value in values:
        with graph.inserting_after(last[0]) if last else graph.inserting_before(first):
            last = [graph.placeholder(f"constant_{len(graph.nodes)}")]
        for node in graph.find_nodes(op="get_attr"):
            if getattr(module, node.target) is value:
                node.replace_all_uses_with(last[0])
        for user in [u for u in last[0].users if u.op == "output"]:
            with graph.inserting_before(user):
                copy = graph.call_function(torch.clone, (last[0],))
            user.replace_input_with(last[0], copy)
    graph.eliminate_dead_code()
    for name in list(module._buffers):
        delattr(module, name)
    module.recompile()


def scanned(step: Callable[..., Any], state: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
    """A function of state and row, tuples both, over all rows, as one operation of a graph."""
    count = len(state)

    def flat(*given: Any) -> Tensors:
        new, kept = step(tuple(given[:count]), tuple(given[count:]))
        return (*new, *kept)

    first = [r[0] for r in rows]
    with deeper():
        extra, _ = read_by(flat, [*state, *first])
        call = closed(flat, count + len(rows), extra)
        found = HIGHER.scan(call, list(fresh(state, ())), list(rows), tuple(extra))
    return tuple(found[:count]), tuple(found[count:])


# -- the three ----------------------------------------------------------------------


@lowering("If", only="torch", either=("cond",))
def if_(xp, cond, *, then_branch, else_branch):
    if not is_traced(cond):
        known = cond if isinstance(cond, np.ndarray) else xp.static(cond)
        return controlflow.if_(xp, known, then_branch=then_branch, else_branch=else_branch)
    sides = [lambda b=b: held(xp, b()) for b in (then_branch, else_branch)]
    with deeper():
        read = {id(t): t for side in sides for t in read_by(side, ())[0]}
        extra = tuple(read.values())
        both = [closed(side, 0, extra) for side in sides]
        return tuple(HIGHER.cond(cond.reshape(()), *both, extra))


@lowering("Loop", only="torch", either=("M", "cond"))
def loop(xp, M=None, cond=None, *state, body, count):
    decided = [v is None or not is_traced(v) for v in (M, cond)]
    if all(decided):
        M, cond = (v if v is None or isinstance(v, np.ndarray) else xp.static(v) for v in (M, cond))
        trips = controlflow.UNBOUNDED if M is None else int(M.reshape(-1)[0])
        if not is_tracing() or trips <= LONG:
            try:
                return controlflow.loop(xp, M, cond, *state, body=body, count=count)
            except NotStatic:
                pass
    state = held(xp, state)
    position = torch.zeros((), dtype=torch.int64, device=xp.device)
    with deeper():
        going_on = read_by(lambda i, *s: body(i, np.array(True), *s), (position, *state))[1][0]
    always = isinstance(going_on, np.ndarray) and bool(going_on.all())
    always &= cond is None or (isinstance(cond, np.ndarray) and bool(cond.all()))
    stacks = count > len(state)
    # A scan is differentiable wherever it runs, but its length must not be a matter of data there.
    if always and M is not None and (stacks or isinstance(M, np.ndarray)):
        return _counted(xp, M, state, body)
    if stacks:
        raise NotStatic("a loop stacks rows, but how many depends on data")
    return _conditional(xp, M, cond, position, state, body)


def _counted(xp, trips, state, body):
    """A loop whose trips are counted: a scan over their numbers."""
    known = isinstance(trips, np.ndarray)
    length = int(trips.reshape(-1)[0]) if known else trips.reshape(()).item()
    numbers = torch.arange(length, dtype=torch.int64, device=xp.device)

    def step(state, row):
        _, *found = body(row[0], np.array(True), *state)
        found = held(xp, found)
        return found[: len(state)], found[len(state) :]

    last, rows = scanned(step, state, (numbers,))
    return (*last, *rows)


def _conditional(xp, trips, cond, position, state, body):
    """A loop that its body ends."""
    going = torch.full((), True, device=xp.device) if cond is None else xp.asarray(cond).reshape(())
    limit = None if trips is None else xp.asarray(trips).reshape(())

    def goes_on(i, going, *state):
        return going if limit is None else going & (i < limit)

    def step(i, going, *state):
        going_on, *found = body(i, np.array(True), *state)
        if isinstance(going_on, np.ndarray):
            going_on = torch.full((), bool(going_on.all()), device=xp.device)
        return i + 1, going_on.reshape(()).to(torch.bool), *held(xp, found)

    start = fresh((position, going, *state), ())
    with deeper():
        read = {id(t): t for f in (goes_on, step) for t in read_by(f, start)[0]}
        extra = list(read.values())

        def test(*given: Any) -> Any:
            return closed(lambda *s: (goes_on(*s),), len(start), extra)(*given)[0]

        found = HIGHER.while_loop(test, closed(step, len(start), extra), start, tuple(extra))
    return tuple(found[2:])


@lowering("Scan", only="torch")
def scan(xp, *given, body, num_scan_inputs, **options):
    first = len(given) - num_scan_inputs
    axes = options["scan_input_axes"] or [0] * num_scan_inputs
    length = given[first].shape[axes[0]]
    if not is_tracing() or (isinstance(length, int) and length <= LONG):
        return controlflow.scan(xp, *given, body=body, num_scan_inputs=num_scan_inputs, **options)
    backwards = options["scan_input_directions"] or [0] * num_scan_inputs
    rows = [x.movedim(positive(a, x.ndim), 0) for x, a in zip(given[first:], axes)]
    rows = [r.flip(0) if b else r for r, b in zip(rows, backwards)]

    def step(state, row):
        found = held(xp, body(*state, *row))
        return found[:first], found[first:]

    state, columns = scanned(step, tuple(given[:first]), tuple(rows))
    turned = options["scan_output_directions"] or [0] * len(columns)
    places = options["scan_output_axes"] or [0] * len(columns)
    ordered = [c.flip(0) if t else c for c, t in zip(columns, turned)]
    return (*state, *(c.movedim(0, positive(p, c.ndim)) for c, p in zip(ordered, places)))

"""torch's kernels for ONNX's family controlflow: branches and loops inside a traced graph.

While a graph is traced, a branch or loop that depends on data becomes torch's `cond`, `while_loop`
or `scan`, so that the graph is exported and compiled whole. A plain call of the graph runs them in
Python, where autograd sees every step. Where the condition is already known during the trace, only
the chosen branch is traced, and short loops are unrolled.
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
from sardonyx.lower.xp import NotStatic, is_symbolic, positive

HIGHER = torch.ops.higher_order
LONG = 8  # loops of more trips stay loops of the graph, shorter ones are unrolled
MANY = 1 << 16  # the most rows that a loop which ends itself may stack
DEEP = 4  # torch traces a body several times, and each time everything nested in it
Tensors = tuple[Any, ...]
_DEPTH: ContextVar[int] = ContextVar("depth", default=0)


def is_tracing() -> bool:
    """Whether a graph is being built."""
    return get_proxy_mode() is not None


@contextmanager
def deeper() -> Iterator[None]:
    """Enter a branch or loop of the graph; refuse to nest them deeper than `DEEP`."""
    depth = _DEPTH.get()
    if depth == DEEP:
        raise NotStatic(f"data-dependent branches and loops are nested more than {DEEP} deep")
    token = _DEPTH.set(depth + 1)
    try:
        yield
    finally:
        _DEPTH.reset(token)


# -- functions over tensors of a graph ----------------------------------------------


class _Reads(TorchFunctionMode):
    """Finds the tensors of the graph that a function reads besides its arguments."""

    def __init__(self, arguments: Sequence[Any]):
        super().__init__()
        self.inside = {id(t): t for t in arguments}
        self.outside: dict[int, Any] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and is_traced(leaf) and id(leaf) not in self.inside:
                self.outside[id(leaf)] = leaf
        outputs = func(*args, **(kwargs or {}))
        self.inside.update((id(t), t) for t in tree_leaves(outputs) if isinstance(t, torch.Tensor))
        return outputs


class _Instead(TorchFunctionMode):
    """Replaces tensors that a function reads by others."""

    def __init__(self, tensors: dict[int, Any]):
        super().__init__()
        self.tensors = tensors

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def swap(tensor: Any) -> Any:
            return self.tensors.get(id(tensor), tensor)

        args, kwargs = tree_map_only(torch.Tensor, swap, (args, kwargs or {}))
        return func(*args, **kwargs)


def read_by(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[list[Any], Any]:
    """The tensors that `function` reads besides its arguments, and its outputs."""
    with disable_proxy_modes_tracing(), _Reads(arguments) as reads:
        outputs = function(*arguments)
    return list(reads.outside.values()), outputs


def closed(function: Callable[..., Any], count: int, extra: Sequence[Any]) -> Callable[..., Any]:
    """`function` of `count` arguments as one that takes the tensors `extra` as well.

    Its outputs are fresh tensors: a graph of torch may not return one of its own inputs.
    """

    def call(*arguments: Any) -> Tensors:
        tensors = {id(t): v for t, v in zip(extra, arguments[count:], strict=True)}
        with _Instead(tensors):
            outputs = function(*arguments[:count])
            return fresh(outputs, arguments)

    return call


def fresh(tensors: Sequence[Any], others: Sequence[Any]) -> Tensors:
    """Contiguous tensors that share no memory with `others` or with each other."""
    used = {StorageWeakRef(t.untyped_storage()) for t in others if isinstance(t, torch.Tensor)}
    copies = []
    for tensor in tensors:
        tensor = tensor.contiguous()
        place = StorageWeakRef(tensor.untyped_storage())
        copies.append(tensor.clone() if place in used else tensor)
        used.add(place)
    return tuple(copies)


def as_tensors(xp, values) -> Tensors:
    if any(isinstance(v, (list, dict, type(None))) for v in values):
        raise NotStatic("a data-dependent branch or loop returns sequences")
    return tuple(v if isinstance(v, torch.Tensor) else xp.known(v) for v in values)


# -- the functions that a graph calls -------------------------------------------------------------


def branch(condition: Any, yes: Any, no: Any, arguments: Tensors) -> Any:
    """`yes(*arguments)` or `no(*arguments)`."""
    if torch.compiler.is_compiling():
        return HIGHER.cond(condition, yes, no, tuple(arguments))
    return (yes if condition else no)(*arguments)


def repeat(goes_on: Any, step: Any, state: Tensors, extra: Tensors) -> Any:
    """`state` after `step(*state, *extra)` as long as `goes_on(*state, *extra)`."""
    if torch.compiler.is_compiling():
        return HIGHER.while_loop(goes_on, step, tuple(state), tuple(extra))
    while goes_on(*state, *extra):
        state = step(*state, *extra)
    return tuple(state)


def fold(step: Any, state: Sequence[Any], rows: Sequence[Any], extra: Tensors) -> Any:
    """The last state, then the further outputs of each `step(*state, *row, *extra)`, stacked."""
    if torch.compiler.is_compiling():
        torch._check(rows[0].shape[0] > 0)  # torch's scan has at least one step
        return HIGHER.scan(step, list(state), list(rows), tuple(extra))
    count, length = len(state), rows[0].shape[0]
    state, rows_out = tuple(state), []
    for i in range(length):
        outputs = step(*state, *(r[i] for r in rows), *extra)
        state = tuple(outputs[:count])
        rows_out.append(outputs[count:])
    if not rows_out:  # no step ran: one more tells the sizes of the empty stacks
        outputs = step(*state, *(r.new_zeros(r.shape[1:]) for r in rows), *extra)
        return (*state, *(v.new_zeros((0, *v.shape)) for v in outputs[count:]))
    return (*state, *(torch.stack(column) for column in zip(*rows_out, strict=True)))


CALLS = {HIGHER.cond: branch, HIGHER.while_loop: repeat, HIGHER.scan: fold}


def hoist_constants(module: torch.fx.GraphModule) -> None:
    """Pass the constants of inner graphs in as arguments: torch.export loses them inside."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in CALLS:
            continue
        inner = [getattr(module, a.target) for a in node.args if _is_graph(module, a)]
        constants: dict[int, Any] = {}
        for graph in inner:
            for read in graph.graph.find_nodes(op="get_attr"):
                value = getattr(graph, read.target)
                if isinstance(value, torch.Tensor):
                    constants.setdefault(id(value), value)
        arguments = [_constant(module, node, value) for value in constants.values()]
        for graph in inner:
            _take_from_outside(graph, list(constants.values()))
        node.args = (*node.args[:-1], (*node.args[-1], *arguments))


def _is_graph(module: torch.fx.GraphModule, argument: Any) -> bool:
    is_name = isinstance(argument, torch.fx.Node) and argument.op == "get_attr"
    return is_name and isinstance(getattr(module, argument.target), torch.fx.GraphModule)


def _constant(module: torch.fx.GraphModule, before: torch.fx.Node, value: Any) -> torch.fx.Node:
    """A node that reads a new constant of the outer graph."""
    number = 0
    while hasattr(module, f"{CONSTANT}_inner{number}"):
        number += 1
    module.register_buffer(f"{CONSTANT}_inner{number}", value, persistent=False)
    with module.graph.inserting_before(before):
        return module.graph.get_attr(f"{CONSTANT}_inner{number}")


def _take_from_outside(module: torch.fx.GraphModule, values: Sequence[Any]) -> None:
    """Replace constants of an inner graph by further arguments."""
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
    """Run a function of state and row, both tuples, over all rows, as one operation of a graph."""
    count = len(state)

    def flat(*values: Any) -> Tensors:
        new, row = step(tuple(values[:count]), tuple(values[count:]))
        return (*new, *row)

    first = [r[0] for r in rows]
    with deeper():
        extra, _ = read_by(flat, [*state, *first])
        call = closed(flat, count + len(rows), extra)
        outputs = HIGHER.scan(call, list(fresh(state, ())), list(rows), tuple(extra))
    return tuple(outputs[:count]), tuple(outputs[count:])


# -- the operators ----------------------------------------------------------------------


@lowering("If", only="torch", either=("cond",))
def if_(xp, cond, *, then_branch, else_branch):
    if not is_traced(cond):
        decided = cond if isinstance(cond, np.ndarray) else xp.static(cond)
        return controlflow.if_(xp, decided, then_branch=then_branch, else_branch=else_branch)
    sides = [lambda b=b: as_tensors(xp, b()) for b in (then_branch, else_branch)]
    with deeper():
        found = [read_by(side, ()) for side in sides]
        if len({tuple(t.ndim for t in outputs) for _, outputs in found}) > 1:
            decided = decided_by_sizes(xp, cond)
            return controlflow.if_(xp, decided, then_branch=then_branch, else_branch=else_branch)
        read = {id(t): t for tensors, _ in found for t in tensors}
        extra = tuple(read.values())
        both = [closed(side, 0, extra) for side in sides]
        return tuple(HIGHER.cond(cond.reshape(()), *both, extra))


def decided_by_sizes(xp, cond):
    """A condition on sizes, decided at those of an export: torch's programs check what was assumed.

    A graph of ours would not: there, the model runs node by node.
    """
    if not hasattr(cond, "sizes") or not torch.compiler.is_exporting():
        raise NotStatic("the branches return tensors of other ranks")
    return xp.static(cond)


@lowering("Loop", only="torch", either=("M", "cond"))
def loop(xp, M=None, cond=None, *state, body, count):
    decided = [v is None or not is_traced(v) for v in (M, cond)]
    if all(decided):
        M, cond = (v if v is None or isinstance(v, np.ndarray) else xp.static(v) for v in (M, cond))
        is_size = M is not None and is_symbolic(M)  # of an axis that the graph leaves free
        trips = controlflow.UNBOUNDED if M is None or is_size else int(M.reshape(-1)[0])
        if not is_tracing() or trips <= LONG:
            try:
                return controlflow.loop(xp, M, cond, *state, body=body, count=count)
            except NotStatic:
                pass
    state = as_tensors(xp, state)
    position = torch.zeros((), dtype=torch.int64, device=xp.device)
    with deeper():
        outputs = read_by(lambda i, *s: body(i, np.array(True), *s), (position, *state))[1]
    going_on, examples = outputs[0], outputs[len(state) + 1 :]
    runs_out = isinstance(going_on, np.ndarray) and bool(going_on.all())
    always = cond is None or (isinstance(cond, np.ndarray) and bool(cond.all()))
    # A scan is differentiable everywhere, but its length may not depend on data.
    if runs_out and M is not None and (examples or (always and isinstance(M, np.ndarray))):
        return _counted(xp, M, None if always else cond, state, body)
    if examples:
        return _stacked(xp, M, cond, position, state, body, as_tensors(xp, examples))
    return _conditional(xp, M, cond, position, state, body)[2:]


def _trips(trips):
    """The number of trips as a size."""
    if isinstance(trips, np.ndarray) and is_symbolic(trips):
        return trips.reshape(-1)[0]
    if trips is None or (isinstance(trips, np.ndarray) and trips.reshape(-1)[0] > MANY):
        raise NotStatic("a loop stacks rows, and their number is not bounded")
    is_constant = isinstance(trips, np.ndarray)
    return int(trips.reshape(-1)[0]) if is_constant else trips.reshape(()).item()


def _counted(xp, trips, cond, state, body):
    """A loop that makes all its trips, or none: a scan over their numbers."""
    if cond is not None:
        trips = xp.asarray(trips).reshape(()) * xp.asarray(cond).reshape(())
    numbers = torch.arange(_trips(trips), dtype=torch.int64, device=xp.device)

    def step(state, row):
        _, *outputs = body(row[0], np.array(True), *state)
        outputs = as_tensors(xp, outputs)
        return outputs[: len(state)], outputs[len(state) :]

    last, rows = scanned(step, state, (numbers,))
    return (*last, *rows)


def _stacked(xp, trips, cond, position, state, body, examples):
    """A loop that ends when its body says so, and stacks rows: buffers with room for all trips."""
    count, length = len(state), _trips(trips)
    options = [{"dtype": row.dtype, "device": xp.device} for row in examples]
    buffers = [torch.zeros((length, *r.shape), **o) for r, o in zip(examples, options)]

    def write(i, going, *values):
        going_on, *outputs = body(i, going, *values[:count])
        rows = zip(values[count:], as_tensors(xp, outputs[count:]), strict=True)
        return going_on, *outputs[:count], *(b.index_copy(0, i[None], r[None]) for b, r in rows)

    passes, _, *results = _conditional(xp, trips, cond, position, (*state, *buffers), write)
    length = passes.item()
    return (*results[:count], *(buffer[:length] for buffer in results[count:]))


def _conditional(xp, trips, cond, position, state, body):
    """A loop that ends when its body says so: trips made, whether it goes on, the last state."""
    (going,) = as_tensors(xp, [np.array(True) if cond is None else cond])
    going, limit = going.reshape(()), None
    if trips is not None:
        limit = as_tensors(xp, [trips])[0].reshape(())

    def goes_on(i, going, *state):
        return going if limit is None else going & (i < limit)

    def step(i, going, *state):
        going_on, *outputs = body(i, np.array(True), *state)
        if isinstance(going_on, np.ndarray):
            going_on = torch.full((), bool(going_on.all()), device=xp.device)
        return i + 1, going_on.reshape(()).to(torch.bool), *as_tensors(xp, outputs)

    start = fresh((position, going, *state), ())
    with deeper():
        read = {id(t): t for f in (goes_on, step) for t in read_by(f, start)[0]}
        extra = list(read.values())

        def test(*values: Any) -> Any:
            return closed(lambda *s: (goes_on(*s),), len(start), extra)(*values)[0]

        results = HIGHER.while_loop(test, closed(step, len(start), extra), start, tuple(extra))
    return tuple(results)


@lowering("Scan", only="torch")
def scan(xp, *inputs, body, num_scan_inputs, **options):
    first = len(inputs) - num_scan_inputs
    axes = options["scan_input_axes"] or [0] * num_scan_inputs
    length = inputs[first].shape[axes[0]]
    if not is_tracing() or (isinstance(length, int) and length <= LONG):
        return controlflow.scan(xp, *inputs, body=body, num_scan_inputs=num_scan_inputs, **options)
    backwards = options["scan_input_directions"] or [0] * num_scan_inputs
    rows = [x.movedim(positive(a, x.ndim), 0) for x, a in zip(inputs[first:], axes)]
    rows = [r.flip(0) if b else r for r, b in zip(rows, backwards)]

    def step(state, row):
        outputs = as_tensors(xp, body(*state, *row))
        return outputs[:first], outputs[first:]

    state, columns = scanned(step, tuple(inputs[:first]), tuple(rows))
    turned = options["scan_output_directions"] or [0] * len(columns)
    places = options["scan_output_axes"] or [0] * len(columns)
    ordered = [c.flip(0) if t else c for c, t in zip(columns, turned)]
    return (*state, *(c.movedim(0, positive(p, c.ndim)) for c, p in zip(ordered, places)))

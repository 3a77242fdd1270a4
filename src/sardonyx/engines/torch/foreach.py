"""Many small equal operations as few large ones: an update runs over all parameters at once.

An optimizer does the same with every parameter. Launched one by one, its operations cost more than
the arithmetic; torch's `_foreach_` functions take lists of tensors. `Grouped` arranges an fx graph
by levels and joins what is the same operation on a level. Each element is computed as before.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from sardonyx.engines.torch.merge import MERGED
from sardonyx.engines.torch.xp import torch

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node
UNARY: dict[Any, Callable[..., Any]] = {
    aten.sqrt.default: torch._foreach_sqrt,
    aten.neg.default: torch._foreach_neg,
    aten.abs.default: torch._foreach_abs,
    aten.exp.default: torch._foreach_exp,
    aten.reciprocal.default: torch._foreach_reciprocal,
    aten.sign.default: torch._foreach_sign,
}
# Operand kinds: T many tensors, 0 one number in a tensor, s a Python number.
BINARY: dict[Any, tuple[Callable[..., Any], tuple[str, ...]]] = {
    aten.add.Tensor: (torch._foreach_add, ("TT", "T0", "0T", "Ts")),
    aten.mul.Tensor: (torch._foreach_mul, ("TT", "T0", "0T", "Ts")),
    aten.sub.Tensor: (torch._foreach_sub, ("TT", "Ts")),
    aten.div.Tensor: (torch._foreach_div, ("TT", "T0", "Ts")),
    aten.maximum.default: (torch._foreach_maximum, ("TT",)),
    aten.minimum.default: (torch._foreach_minimum, ("TT",)),
    aten.pow.Tensor_Scalar: (torch._foreach_pow, ("Ts",)),
    aten.clamp_min.default: (torch._foreach_clamp_min, ("Ts",)),
    aten.clamp_max.default: (torch._foreach_clamp_max, ("Ts",)),
}

COMMUTATIVE = (aten.add.Tensor, aten.mul.Tensor, aten.maximum.default, aten.minimum.default)
WITH_NUMBER = {  # the operation with a Python number as its second operand
    **{target: target for target, (_, kinds) in BINARY.items() if "Ts" in kinds},
    aten.maximum.default: aten.clamp_min.default,
    aten.minimum.default: aten.clamp_max.default,
}


class Grouped:
    """An fx graph whose equal operations run together; it takes and gives lists of tensors."""

    def __init__(self, graph: torch.fx.GraphModule):
        inline_numbers(graph)
        nodes = list(graph.graph.nodes)
        self.owner = graph
        self.places = {node: i for i, node in enumerate(nodes)}
        self.inputs = [self.places[n] for n in nodes if n.op == "placeholder"]
        self.constants = [
            (self.places[n], operator.attrgetter(n.target)) for n in nodes if n.op == "get_attr"
        ]
        (output,) = [n for n in nodes if n.op == "output"]
        self.outputs = [self.places[n] for n in output.args[0]]
        groups = self.groups_of([n for n in nodes if n.op == "call_function"])
        self.frees = self._last_reads(groups)
        joined = {n for group in groups if len(group) > 1 for n in group}
        private = {
            self.places[n]
            for n in joined
            if all(user in joined for user in n.users)  # others may keep a view of it
        }
        self.calls = [
            self.call_of(group, private & set(dead))
            for group, dead in zip(groups, self.frees, strict=True)
        ]

    def groups_of(self, nodes: list[Node]) -> list[list[Node]]:
        """The operations that run together, in order."""
        return _groups(nodes)

    def call_of(self, group: list[Node], dead: set[int]) -> Callable[[list[Any]], None]:
        """How a group runs. dead -- places of tensors that it reads last and nobody else has"""
        if len(group) == 1:
            return _Single(group[0], self.places)
        return _Joined(group, self.places, dead)

    def _last_reads(self, groups: list[list[Node]]) -> list[list[int]]:
        """For each call, the places that nothing reads after it."""
        permanent = {*self.outputs, *self.inputs, *(place for place, _ in self.constants)}
        last: dict[int, int] = {}
        for number, group in enumerate(groups):
            for node in group:
                for other in (node, *node.all_input_nodes):
                    last[self.places[other]] = number
        frees: list[list[int]] = [[] for _ in groups]
        for place, number in last.items():
            if place not in permanent:
                frees[number].append(place)
        return frees

    def __call__(self, *values: Any) -> list[Any]:
        env: list[Any] = [None] * len(self.places)
        for place, value in zip(self.inputs, values, strict=True):
            env[place] = value
        for place, read in self.constants:
            env[place] = read(self.owner)
        for call, places in zip(self.calls, self.frees, strict=True):
            call(env)
            for place in places:
                env[place] = None
        return [env[place] for place in self.outputs]


class _Single:
    """One node."""

    def __init__(self, node: Node, places: dict[Node, int]):
        self.node, self.places = node, places
        self.target, self.place = node.target, places[node]
        # Arguments that are nodes themselves are read at once; lists are looked into.
        self.flat = [(places[a] if isinstance(a, torch.fx.Node) else None, a) for a in node.args]
        self.nested = bool(node.kwargs) or any(isinstance(a, (list, tuple)) for a in node.args)

    def __call__(self, env: list[Any]) -> None:
        if not self.nested:
            arguments = [a if place is None else env[place] for place, a in self.flat]
            env[self.place] = self.target(*arguments)
            return

        def value(node: Node) -> Any:
            return env[self.places[node]]

        arguments = torch.fx.node.map_arg(self.node.args, value)
        keywords = torch.fx.node.map_arg(self.node.kwargs, value)
        env[self.place] = self.target(*arguments, **keywords)


class _Joined:
    """Nodes of one operation, in one call.

    dead -- places of tensors that this call reads last and that are nowhere else
    """

    def __init__(self, group: list[Node], places: dict[Node, int], dead: set[int]):
        first = group[0]
        self.results = [places[node] for node in group]
        self.keywords = dict(first.kwargs)
        kinds = _kinds(first)
        order = (1, 0) if kinds == "0T" else range(len(kinds))  # addition or multiplication
        self.operands = [
            (kinds[i], [places[n.args[i]] for n in group] if kinds[i] == "T" else first.args[i])
            for i in order
        ]
        self.places = places
        first_places = self.operands[0][1]
        # Tensors of this graph that nothing reads any more take the results.
        self.in_place = dead.issuperset(first_places) and len({*first_places}) == len(group)
        self.function = _function(first.target, kinds, self.in_place)

    def __call__(self, env: list[Any]) -> None:
        values = [self._value(kind, operand, env) for kind, operand in self.operands]
        results = self.function(*values, **self.keywords)
        results = values[0] if self.in_place else results
        for place, value in zip(self.results, results, strict=True):
            env[place] = value

    def _value(self, kind: str, operand: Any, env: list[Any]) -> Any:
        if kind == "T":
            return [env[place] for place in operand]
        return env[self.places[operand]] if kind == "0" else operand


def _function(target: Any, kinds: str, in_place: bool) -> Callable[..., Any]:
    """The operation over lists of tensors."""
    if target in MERGED:
        _, new, replacing = MERGED[target]
        return replacing if in_place else new
    function = UNARY[target] if len(kinds) == 1 else BINARY[target][0]
    name = f"{function.__name__}_" if in_place else function.__name__
    # torch takes one number in a tensor for a Python number, and waits for a GPU to read it.
    chosen: Callable[..., Any] = (
        getattr(aten, name).Tensor if "0" in kinds else getattr(torch, name)
    )
    return chosen


def fold_constants(graph: torch.fx.GraphModule) -> None:
    """Compute once what depends on constants alone; on a GPU, each would be a copy per step."""
    constants: dict[Node, Any] = {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            constants[node] = operator.attrgetter(node.target)(graph)
        elif node.op == "call_function" and _is_fixed(node, constants):
            with torch.no_grad():
                arguments, keywords = (
                    torch.fx.node.map_arg(part, constants.__getitem__)
                    for part in (node.args, node.kwargs)
                )
                constants[node] = node.target(*arguments, **keywords)
    kept = [n for n in constants if n.op == "call_function" and not set(n.users) <= set(constants)]
    for number, node in enumerate(kept):
        name = f"_folded_constant{number}"
        graph.register_buffer(name, constants[node])
        with graph.graph.inserting_before(node):
            fixed = graph.graph.get_attr(name)
        fixed.meta = dict(node.meta)
        node.replace_all_uses_with(fixed)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _is_fixed(node: Node, constants: dict[Node, Any]) -> bool:
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    return bool(node.all_input_nodes) and all(n in constants for n in node.all_input_nodes)


def inline_numbers(graph: torch.fx.GraphModule) -> None:
    """Write constants of one number into the operations that read them: then they are equal."""
    numbers = {n: value for n in graph.graph.nodes if (value := _number(n, graph)) is not None}
    for node in graph.graph.nodes:
        if node.target not in WITH_NUMBER or len(node.args) != 2:
            continue
        value, (first, second) = node.meta.get("val"), node.args
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            continue
        if second in numbers and _kind(first, value) == "T":
            node.args = (first, numbers[second])
        elif first in numbers and _kind(second, value) == "T" and node.target in COMMUTATIVE:
            node.args = (second, numbers[first])
        else:
            continue
        node.target = WITH_NUMBER[node.target]
    graph.graph.eliminate_dead_code()


def _number(node: Node, graph: torch.fx.GraphModule) -> float | None:
    """The value of a constant of one float."""
    if node.op == "call_function" and node.target is aten.lift_fresh_copy.default:
        node = node.args[0]  # type: ignore[assignment]
    if node.op != "get_attr":
        return None
    tensor = operator.attrgetter(node.target)(graph)
    if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1:
        return None
    if not tensor.is_floating_point():
        return None
    return tensor.item()


# -- which nodes belong together ------------------------------------------------------------


def _groups(nodes: list[Node]) -> list[list[Node]]:
    """The nodes level by level; what is the same operation on a level is one group."""
    levels: dict[Node, int] = {}
    groups: dict[Any, list[Node]] = {}
    for node in nodes:
        level = 1 + max((levels.get(n, 0) for n in node.all_input_nodes), default=0)
        levels[node] = level
        key = _key(node)
        groups.setdefault((level, node if key is None else key), []).append(node)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def _key(node: Node) -> Any:
    """What nodes of one group have in common; None for a node that stays alone."""
    kinds = _kinds(node)
    if not kinds:
        return None
    others = tuple(a for a, kind in zip(node.args, kinds, strict=False) if kind != "T")
    value = node.meta["val"]
    keywords = tuple(sorted(node.kwargs.items()))
    return node.target, kinds, others, keywords, value.dtype, value.device


def _kinds(node: Node) -> str:
    """The kinds of the operands of an operation that can be joined, or ""."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return ""
    kinds = "".join(_kind(argument, value) for argument in node.args)
    if node.target in UNARY:
        return kinds if kinds == "T" else ""
    if node.target in MERGED:
        return kinds if kinds in MERGED[node.target][0] else ""
    return kinds if kinds in BINARY.get(node.target, (None, ()))[1] else ""


def _kind(argument: Any, result: Any) -> str:
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return "s"
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.dtype != result.dtype:
        return "?"
    if value.ndim == 0:
        return "0" if value.device == result.device else "?"
    return "T" if value.shape == result.shape else "?"

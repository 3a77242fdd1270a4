"""The names of a model's graphs: each is defined once, and each name that is read is defined.

The order of nodes does not matter (many exporters write unsorted graphs), cycles do. A graph inside
a node may read the names of the graphs around it and may shadow them; a function may not;
a training graph may also read names of the model and of the other training graphs: the rules of
training records are checked where records are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.errors import quote

from .callgraph import Body
from .wellformed import Problems, inside, node_label

_INPUT, _INITIALIZER = -1, -2


class Scope:
    """One graph or function: which node defines each name, and what each node reads."""

    __slots__ = (
        "body",
        "captured",
        "depth",
        "in_function",
        "in_training",
        "label",
        "labels",
        "makers",
        "outputs",
        "parent",
        "parent_node",
        "reads",
    )

    def __init__(
        self,
        parent: Scope | None,
        label: str,
        parent_node: int,
        body: Body,
        depth: int = 0,
        in_function: bool = False,
        in_training: bool = False,
    ):
        self.parent, self.parent_node, self.label = parent, parent_node, label
        self.body, self.depth = body, depth
        self.in_function, self.in_training = in_function, in_training
        self.makers: dict[str, int] = {}
        self.reads: list[list[str]] = []
        self.labels: list[tuple[str, str]] = []
        self.outputs: list[str] = []
        self.captured: dict[int, dict[str, str]] = {}

    def where(self, index: int) -> str:
        return inside(self.label, node_label(*self.labels[index], index))

    def declare_input(self, name: str, problems: Problems) -> None:
        if not name:
            problems.add(inside(self.label, "input"), "has no name")
        elif name in self.makers:
            problems.add(inside(self.label, f"input {quote(name)}"), "is listed twice")
        else:
            self.makers[name] = _INPUT

    def declare_initializer(self, name: str, problems: Problems) -> None:
        if not name:
            problems.add(inside(self.label, "initializer"), "has no name")
        elif self.makers.get(name) == _INITIALIZER:
            problems.add(inside(self.label, f"initializer {quote(name)}"), "is given twice")
        else:
            self.makers[name] = _INITIALIZER

    def add_node(
        self,
        node_name: str,
        op_type: str,
        inputs: list[str],
        outputs: list[str],
        problems: Problems,
    ) -> None:
        index = len(self.reads)
        self.reads.append(inputs)
        self.labels.append((node_name, op_type))
        for name in outputs:
            if not name:
                continue
            if name in self.makers:
                problems.add(self.where(index), f"makes {quote(name)}, which {self._maker(name)}")
            else:
                self.makers[name] = index

    def _maker(self, name: str) -> str:
        index = self.makers[name]
        if index < 0:
            return "is also an " + ("input" if index == _INPUT else "initializer")
        return f"{self.where(index)} makes too"


def check_names(scopes: Sequence[Scope], problems: Problems) -> None:
    """Check the names of all `scopes`, in which a graph comes before the graphs inside it."""
    training = [s for s in scopes if s.in_training and s.parent is None]
    main = [s for s in scopes if s.parent is None and not s.in_function and not s.in_training]
    visible_in_training = [s.makers for s in [*main, *training]]
    for scope in reversed(scopes):
        free, is_sorted = _free_names(scope)
        if not is_sorted:
            _check_cycles(scope, problems)
        if scope.parent is not None:
            captured = scope.parent.captured.setdefault(scope.parent_node, {})
            for name, where in free.items():
                captured.setdefault(name, where)
            continue
        around = visible_in_training if scope.in_training else ()
        for name, where in free.items():
            if not any(name in makers for makers in around):
                problems.add(where, f"reads {quote(name)}, which nothing makes")
        _check_outputs(scope, around, problems)


def _free_names(scope: Scope) -> tuple[dict[str, str], bool]:
    """The names read but not defined here, with their places; whether the nodes are in order."""
    makers, captured = scope.makers, scope.captured
    free: dict[str, str] = {}
    is_sorted = True
    for index, names in enumerate(scope.reads):
        for name in names:
            maker = makers.get(name)
            if maker is None:
                if name and name not in free:
                    free[name] = scope.where(index)
            elif maker >= index:
                is_sorted = False
        for name, where in captured.get(index, {}).items():
            maker = makers.get(name)
            if maker is None:
                free.setdefault(name, where)
            elif maker >= index:
                is_sorted = False
    if scope.parent is not None:
        for name in scope.outputs:
            if name and name not in makers:
                free.setdefault(name, inside(scope.label, f"output {quote(name)}"))
    return free, is_sorted


def _check_outputs(scope: Scope, around: Sequence[dict[str, int]], problems: Problems) -> None:
    for name in scope.outputs:
        where = inside(scope.label, f"output {quote(name)}")
        if not name:
            problems.add(where, "has no name")
        elif name not in scope.makers and not any(name in makers for makers in around):
            problems.add(where, "is made by nothing")


def _check_cycles(scope: Scope, problems: Problems) -> None:
    count = len(scope.reads)
    before: list[list[int]] = []
    after: list[list[int]] = [[] for _ in range(count)]
    for index, names in enumerate(scope.reads):
        reads = [*names, *scope.captured.get(index, ())]
        producers = [m for m in (scope.makers.get(name, _INPUT) for name in reads) if m >= 0]
        before.append(producers)
        for maker in producers:
            after[maker].append(index)
    waiting = [len(producers) for producers in before]
    ready = [index for index, missing in enumerate(waiting) if not missing]
    while ready:
        for reader in after[ready.pop()]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    starts: dict[int, int] = {}
    for start in range(count):
        if waiting[start] and start not in starts:
            _report_cycle(scope, start, before, waiting, starts, problems)


def _report_cycle(
    scope: Scope,
    start: int,
    before: list[list[int]],
    waiting: list[int],
    starts: dict[int, int],
    problems: Problems,
) -> None:
    """Follow unready nodes backwards from `start`; report the cycle if it is a new one."""
    path: list[int] = []
    index = start
    while index not in starts:
        starts[index] = start
        path.append(index)
        index = next(maker for maker in before[index] if waiting[maker])
    if starts[index] == start:
        cycle = path[path.index(index) :][::-1]
        description = " → ".join(scope.where(i) for i in [*cycle[:4], cycle[0]])
        problems.add(scope.where(cycle[0]), f"is in a cycle of {len(cycle)} nodes: {description}")

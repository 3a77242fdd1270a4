"""Statements as a tree of modules: the tensors, children, inputs and outputs of each.

A module's body is ordered so that every child is called once. A child that would have to be called
in the middle of another is split: its parts are reached through it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from sardonyx.engines.torch.source.expression import Dim, Expression, Hole
from sardonyx.engines.torch.source.layers import Layer
from sardonyx.engines.torch.source.reading import Branch, Cycle, Reader, Statement
from sardonyx.engines.torch.source.scopes import Path, cleaned, common, dotted, split


@dataclass
class Call:
    """The call of a child; `target` is its name, with a dot where it is an item of a list."""

    target: str
    child: Module | Layer
    inputs: list[ir.Value]
    outputs: list[ir.Value]
    origin: Path = ()

    @property
    def reads(self) -> list[ir.Value]:
        return self.inputs


@dataclass
class Loop:
    """One call for each item of a list: `carried` goes from one to the next."""

    container: str
    first: Call
    carried: list[tuple[int, ir.Value, ir.Value]]  # position, value before, value after

    @property
    def inputs(self) -> list[ir.Value]:
        return self.first.inputs

    @property
    def reads(self) -> list[ir.Value]:
        return self.first.inputs

    @property
    def outputs(self) -> list[ir.Value]:
        return [after for _, _, after in self.carried]


@dataclass
class Choice:
    """One of two calls: `if condition:`. A branch of one line is that line instead of a call."""

    condition: Expression
    branches: list[Call | Statement]
    outputs: list[ir.Value]

    @property
    def calls(self) -> list[Call]:
        return [branch for branch in self.branches if isinstance(branch, Call)]

    @property
    def reads(self) -> list[ir.Value]:
        return [*self.condition.values, *(v for branch in self.branches for v in branch.reads)]


@dataclass
class Repeat:
    """A Loop or Scan of the graph: one call of its body for each item of an iteration."""

    iterable: Expression  # nothing for a loop that only its condition ends
    call: Call
    cycle: Cycle
    outputs: list[ir.Value]

    @property
    def inner(self) -> list[ir.Value]:
        return [*self.cycle.items, *self.cycle.states]

    @property
    def reads(self) -> list[ir.Value]:
        outside = [v for v in self.call.inputs if v not in self.inner]
        return [*self.iterable.values, *self.cycle.starts, *outside]


Element = Statement | Call | Loop | Choice | Repeat


@dataclass
class Module:
    """A scope of the model as a module."""

    path: Path
    body: list[Element]
    children: dict[str, Module | Layer] = field(default_factory=dict)
    held: dict[ir.Value, str] = field(default_factory=dict)  # tensors that belong to no layer
    reached: dict[ir.Value, str] = field(default_factory=dict)  # tensors of layers, read directly
    inputs: list[ir.Value] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)
    gives: list[ir.Value] = field(default_factory=list)  # of a branch: its outputs, in order
    is_sequential: bool = False  # written as nn.Sequential, whose children have numbers

    def every(self) -> Iterator[Module]:
        """The module and those inside it, the inner ones first."""
        for child in self.children.values():
            if isinstance(child, Module):
                yield from child.every()
        yield self


# -- where layers are ---------------------------------------------------------------


def place_layers(statements: list[Statement], has_scopes: bool) -> dict[int, Path]:
    """The path of each layer, by the number of its statement: its weights' name or its scope."""
    prefixes = {s.path[:i] for s in statements for i in range(len(s.path))}
    counts = Counter(s.path for s in statements)
    marks: dict[Path, Any] = {}
    around: set[Path] = set()
    places: dict[int, Path] = {}
    for number, statement in enumerate(statements):
        layer = statement.layer
        if layer is None:
            continue
        # One tensor may be the weight of convolutions of different strides: other layers.
        mark = (
            layer.kind,
            tuple(a.value for a in layer.arguments),
            *(v for t in layer.tensors.values() for v in t.sources),
        )
        for path in _candidates(statement, has_scopes, prefixes, counts):
            depth = len(statement.branch)
            if path[:depth] != statement.branch or len(path) == depth:
                path = (*statement.branch, path[-1])
            inside = any(path[:i] in marks for i in range(1, len(path)))
            if inside or path in around or path in prefixes or marks.get(path, mark) != mark:
                continue
            marks[path] = mark
            around.update(path[:i] for i in range(len(path)))
            places[number] = path
            break
    return places


def _candidates(
    statement: Statement, has_scopes: bool, prefixes: set[Path], counts: Counter[Path]
) -> Iterator[Path]:
    layer, scope = statement.layer, statement.path
    assert layer is not None
    names = [v.name or "" for t in layer.tensors.values() for v in t.sources]
    for name in names:
        path = _named(name.rpartition(".")[0], scope, has_scopes)
        # Another layer is there: the tensor is shared, or was found equal by the exporter.
        is_other = has_scopes and path != scope and counts[path or ()] > 0
        if path and not is_other:
            yield path
    companions = 0 if not layer.recurrent and not layer.before else 2
    if scope and scope not in prefixes and counts[scope] <= 1 + companions:
        yield scope
    for i in itertools.count():
        for depth in range(len(scope), -1, -1):
            yield (*scope[:depth], f"{layer.word}{i or ''}")


def _named(prefix: str, scope: Path, has_scopes: bool) -> Path | None:
    """The path in a weight's name, if it agrees with the scope of its node."""
    if not prefix or not all(p.replace("_", "a").isalnum() for p in prefix.split(".")):
        return None
    if not has_scopes:
        return cleaned(split(prefix))
    prefix = dotted(cleaned([prefix]))
    if prefix == dotted(scope):
        return scope
    for parent in (scope, scope[:-1]):
        before = dotted(parent) + "." if parent else ""
        rest = prefix[len(before) :]
        if prefix.startswith(before) and rest and "." not in rest:
            return (*parent, rest)
    return None


# -- the tree -------------------------------------------------------------------------


class TreeBuilder:
    """Builds the tree of modules from a list of statements."""

    def __init__(self, reader: Reader, statements: list[Statement], has_scopes: bool):
        self.reader = reader
        self.statements = statements
        self.leaves = place_layers(statements, has_scopes)
        self.layers: dict[Path, Layer] = {}
        self.outputs = set(reader.graph.outputs)
        self.of_layers = self._of_layers()
        self.owners = self._owners()
        self.module_paths = self._module_paths()
        self.places = [self._place(i) for i in range(len(statements))]

    def build(self) -> Module:
        root = self._module((), list(range(len(self.statements))), self.places)
        self._hold(root)
        self._resolve_sizes(root)
        self._connect(root)
        for module in root.every():
            _inline_short_branches(module)
            module.body = looped(module.body, module.children)
        return root

    def _of_layers(self) -> dict[ir.Value, tuple[Path, str]]:
        """Tensors that a layer stores unchanged: the layer's path and the name there."""
        places: dict[ir.Value, tuple[Path, str]] = {}
        for number, path in self.leaves.items():
            layer = self.statements[number].layer
            for name, tensor in layer.tensors.items() if layer is not None else ():
                if tensor.make is None:
                    places.setdefault(tensor.sources[0], (path, name))
        return places

    def _owners(self) -> dict[ir.Value, Path]:
        """The innermost scope of all statements that read a tensor of the model directly."""
        users: dict[ir.Value, list[Path]] = {}
        for i, statement in enumerate(self.statements):
            starts = statement.cycle.starts if statement.cycle is not None else ()
            for value in (*statement.expression.values, *statement.inputs, *starts):
                if value in self.of_layers:
                    continue
                if value.const_value is not None and not value.is_graph_input():
                    path = self.leaves.get(i, (*statement.path, ""))[:-1]
                    users.setdefault(value, []).append(path)
        for value in self.reader.graph.outputs:  # a constant that is an output
            if value.const_value is not None and not value.is_graph_input():
                users.setdefault(value, []).append(())
        return {value: self._outside_layers(common(paths)) for value, paths in users.items()}

    def _outside_layers(self, path: Path) -> Path:
        """The scope around a layer, for a path that is the layer's: it holds only its own tensors.

        A bias that is added by a node of its own is named like the weight of its layer.
        """
        layers = set(self.leaves.values())
        return next((path[:i] for i in range(len(path)) if path[: i + 1] in layers), path)

    def _module_paths(self) -> set[Path]:
        """Scopes that become modules; the others are part of the scope around them."""
        weights = self.reader.weights
        paths = [path[:-1] for path in self.leaves.values()]
        paths += [path for value, path in self.owners.items() if value.name in weights]
        paths += self.reader.branches
        return {path[:i] for path in paths for i in range(len(path) + 1)} | {()}

    def _module_around(self, path: Path) -> Path:
        while path not in self.module_paths:
            path = path[:-1]
        return path

    def _place(self, number: int) -> Path:
        """The module in which a statement is written."""
        if number in self.leaves:
            return self.leaves[number][:-1]
        statement = self.statements[number]
        return self._module_around(statement.path)

    def _module(self, path: Path, numbers: list[int], places: Sequence[Path]) -> Module:
        depth = len(path)
        rests = {i: places[i][depth:] for i in numbers}
        while True:
            blocks: dict[Any, list[int]] = {}
            for i in numbers:
                blocks.setdefault(rests[i][0] if rests[i] else i, []).append(i)
            order, stuck = self._ordered(blocks)
            if stuck is None:
                break
            for i in blocks[stuck]:  # split it
                inner = rests[i][1:]
                rests[i] = (f"{stuck}.{inner[0]}", *inner[1:]) if inner else ()
                if i in self.leaves and not inner:
                    self.leaves[i] = (*path, f"{stuck}.{self.leaves[i][-1]}")
        body: list[Element] = []
        children: dict[str, Module | Layer] = {}
        for key in order:
            if isinstance(key, str):
                inside = list(places)
                for i in blocks[key]:
                    inside[i] = (*path, *rests[i])
                child = self._module((*path, key), blocks[key], inside)
                children[key] = child
                body.append(Call(key, child, [], [], (*path, key)))
            elif self.statements[key].cycle is not None:
                body.append(self._repeat(self.statements[key], body))
            elif self.statements[key].branches:
                body.append(self._choice(self.statements[key], body))
            else:
                body.append(self._element(key, children))
        return Module(path, body, children)

    def _choice(self, statement: Statement, body: list[Element]) -> Choice:
        """The calls of both branches, which are already in the body, as one element."""
        branches: list[Call | Statement] = [self._call_of(b, body) for b in statement.branches]
        return Choice(statement.expression, branches, statement.outputs)

    def _repeat(self, statement: Statement, body: list[Element]) -> Repeat:
        assert statement.cycle is not None
        call = self._call_of(statement.branches[0], body)
        return Repeat(statement.expression, call, statement.cycle, statement.outputs)

    def _call_of(self, branch: Branch, body: list[Element]) -> Call:
        """The call of a branch, taken out of the body that it is in."""
        call = next(
            e for e in body
            if isinstance(e, Call) and isinstance(e.child, Module)
            and any(branch.outputs[0] in s.outputs for s in _flat(e.child))
        )  # fmt: skip
        body.remove(call)
        assert isinstance(call.child, Module)
        call.child.gives = branch.outputs
        return call

    def _element(self, number: int, children: dict[str, Module | Layer]) -> Element:
        statement = self.statements[number]
        if statement.layer is None:
            return statement
        leaf = self.leaves[number]
        layer = self.layers.setdefault(leaf, statement.layer)
        children[leaf[-1]] = layer
        return Call(
            leaf[-1], layer, list(statement.inputs), list(statement.outputs), statement.path
        )

    def _ordered(self, blocks: dict[Any, list[int]]) -> tuple[list[Any], str | None]:
        """The blocks, each after those it reads; or a child that makes this impossible."""
        makers = {
            v: key for key, numbers in blocks.items() for i in numbers
            for v in self.statements[i].outputs
        }  # fmt: skip
        needs = {
            key: {
                makers[v] for i in numbers for v in self.statements[i].reads
                if v in makers and makers[v] != key
            }
            for key, numbers in blocks.items()
        }  # fmt: skip
        order: list[Any] = []
        waiting = sorted(blocks, key=lambda k: blocks[k][0])
        while waiting:
            ready = next((k for k in waiting if needs[k] <= set(order)), None)
            if ready is None:
                children = [k for k in waiting if isinstance(k, str)]
                return order, max(children, key=lambda k: len(blocks[k]))
            order.append(ready)
            waiting.remove(ready)
        return order, None

    # -- tensors, inputs and outputs

    def _hold(self, root: Module) -> None:
        by_path = {m.path: m for m in root.every()}
        for value, path in self.owners.items():
            while path not in by_path:
                path = path[:-1]
            by_path[path].held[value] = ""
        for value, (path, name) in self.of_layers.items():
            owner = path[:-1]
            while owner not in by_path:
                owner = owner[:-1]
            rest = dotted(path)[len(dotted(owner)) + bool(owner) :]
            by_path[owner].reached[value] = f"{rest}.{name}"

    def _resolve_sizes(self, root: Module) -> None:
        """Read sizes from values that a module has anyway, not from distant ones."""
        for module in root.every():
            near = self._natural_inputs(module)
            values: list[ir.Value] = list(near)
            for i, element in enumerate(module.body):
                if isinstance(element, Statement):
                    module.body[i] = self._with_near_sizes(element, values)
                values += element.outputs

    def _natural_inputs(self, module: Module) -> list[ir.Value]:
        produced = {v for s in _flat(module) for v in s.outputs}
        inputs: dict[ir.Value, None] = {}
        for element in _flat(module):
            holes = [p.value for p in _parts(element) if isinstance(p, Hole)]
            holes += element.condition.values if isinstance(element, Choice) else []
            if isinstance(element, Repeat):
                holes += [*element.iterable.values, *element.cycle.starts]
                produced.update(element.inner)
            for value in (*holes, *(element.inputs if isinstance(element, Call) else ())):
                if value not in produced and value.const_value is None:
                    inputs[value] = None
        return list(inputs)

    def _with_near_sizes(self, statement: Statement, values: list[ir.Value]) -> Statement:
        parts = [
            self._near(p, values) if isinstance(p, Dim) else p for p in statement.expression.parts
        ]
        new = Expression(tuple(parts), statement.expression.rank)
        return replace(statement, expression=new)

    def _near(self, dim: Dim, values: list[ir.Value]) -> Dim:
        ids = self.reader.ids
        size_id = ids[dim.value][dim.axis]
        for value in values:
            value_ids = ids.get(value, ())
            if size_id in value_ids:
                return Dim(value, value_ids.index(size_id))
        return dim

    def _connect(self, root: Module) -> None:
        """Inputs and outputs of every module, and of the calls."""
        readers: dict[ir.Value, set[int]] = {}
        for module in root.every():
            for element in module.body:
                reads = [] if isinstance(element, Call) and not element.inputs else element.reads
                for value in reads:
                    readers.setdefault(value, set()).add(id(module))
        self._connect_one(root, readers)
        root.inputs = [v for v in self.reader.graph.inputs if v.const_value is None]
        root.outputs = list(self.reader.graph.outputs)

    def _connect_one(self, module: Module, readers: dict[ir.Value, set[int]]) -> None:
        inside = set(map(id, module.every()))
        for child in module.children.values():
            if isinstance(child, Module):
                self._connect_one(child, readers)
        calls = [e for e in module.body if isinstance(e, Call)]
        calls += [c for e in module.body if isinstance(e, Choice) for c in e.calls]
        calls += [e.call for e in module.body if isinstance(e, Repeat)]
        for call in calls:
            if isinstance(call.child, Module):
                call.inputs, call.outputs = call.child.inputs, call.child.outputs
        produced = {v for e in module.body for v in e.outputs}
        inputs: dict[ir.Value, None] = {}
        for element in module.body:
            for value in element.reads:
                is_held = value in module.held or value in module.reached
                if value not in produced and not is_held:
                    inputs[value] = None
        module.inputs = list(inputs)
        module.outputs = module.gives or [
            v
            for e in module.body
            for v in e.outputs
            if v in self.outputs or readers.get(v, set()) - inside
        ]


def _inline_short_branches(module: Module) -> None:
    """Write branches of one line, without weights, in place instead of as modules."""
    for element in module.body:
        if not isinstance(element, Choice):
            continue
        for i, branch in enumerate(element.branches):
            child = branch.child if isinstance(branch, Call) else None
            if not isinstance(child, Module) or child.held or child.children:
                continue
            if len(child.body) == 1 and isinstance(child.body[0], Statement):
                element.branches[i] = child.body[0]
                del module.children[branch.target]  # type: ignore[union-attr]


def _flat(module: Module) -> Iterator[Statement | Call | Choice | Repeat]:
    for element in module.body:
        if isinstance(element, Call) and isinstance(element.child, Module):
            yield from _flat(element.child)
        elif isinstance(element, Choice):
            for call in element.calls:
                yield from _flat(call.child) if isinstance(call.child, Module) else (call,)
            yield element
        elif isinstance(element, Repeat):
            yield from _flat(element.call.child)  # type: ignore[arg-type]
            yield element
        elif not isinstance(element, Loop):
            yield element


def _parts(element: Element) -> Iterable[Any]:
    return element.expression.parts if isinstance(element, Statement) else ()


# -- loops ------------------------------------------------------------------------------


def looped(body: list[Element], children: dict[str, Module | Layer]) -> list[Element]:
    """A body in which consecutive calls of all items of a list are a loop."""
    elements: list[Element] = []
    i = 0
    while i < len(body):
        run = _run(body, i)
        container = run[0].target.rpartition(".")[0] if run else ""
        whole = [n for n in children if n.rpartition(".")[0] == container]
        items = [f"{container}.{i}" for i in range(len(run))]
        if len(run) > 1 and [c.target for c in run] == whole == items:
            loop = _loop(run, _read_later(body[i + len(run) :]))
            if loop is not None:
                elements.append(loop)
                i += len(run)
                continue
        elements.append(body[i])
        i += 1
    return elements


def _run(body: list[Element], start: int) -> list[Call]:
    """Calls from `start` on that are the items 0, 1, … of one list, all of it."""
    run: list[Call] = []
    for element in itertools.islice(body, start, None):
        is_call = isinstance(element, Call) and isinstance(element.child, Module)
        container, _, item = element.target.rpartition(".") if is_call else ("", "", "")  # type: ignore[union-attr]
        if not container or not item.isdigit():
            break
        if run and container != run[0].target.rpartition(".")[0]:
            break
        run.append(element)  # type: ignore[arg-type]
    return run


def _read_later(rest: list[Element]) -> set[ir.Value]:
    return {v for e in rest for v in e.reads}


def _loop(run: list[Call], later: set[ir.Value]) -> Loop | None:
    """The loop equal to a run of calls, if each call only takes the results of the one before."""
    first, last = run[0], run[-1]
    width = len(first.outputs)
    if any(len(c.outputs) != width or len(c.inputs) != len(first.inputs) for c in run):
        return None
    places: list[int] = []
    for k in range(width):
        at = [p for p, v in enumerate(run[1].inputs) if v is first.outputs[k]]
        if len(at) != 1:
            return None
        places.append(at[0])
    for before, call in itertools.pairwise(run):
        expected = list(first.inputs)
        for k, place in enumerate(places):
            expected[place] = before.outputs[k]
        if any(a is not b for a, b in zip(expected, call.inputs)):
            return None
    if later & {v for c in run[:-1] for v in c.outputs}:
        return None
    carried = [(p, first.inputs[p], last.outputs[k]) for k, p in enumerate(places)]
    return Loop(first.target.rpartition(".")[0], first, carried)

"""Runs a normalized model over the arrays of one framework.

A program is built once: nodes in order, attributes with defaults, values by number, the last reader
of each value, and the results of nodes that read only constants. A run goes through the nodes. What
is known while building (constants, shapes) stays in numpy, and nodes that only read such values are
computed there: shape arithmetic never becomes part of a framework's graph. A body (If, Loop, Scan,
SequenceMap) is a program of its own, passed to the rule as a function; the values that it captures
are further inputs of its node.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import (
    ArgumentError,
    EngineError,
    SardonyxError,
    UnsupportedOp,
    quote,
    table,
    translated,
)
from sardonyx.lower.data_dependent import decided_by_data
from sardonyx.lower.driver import array_of, attributes, find, prepare
from sardonyx.lower.fork import Continuation, Fork, count_fork, counting
from sardonyx.lower.numpy_xp import numpy_arrays
from sardonyx.lower.partition import CHOSEN, Placement, Region, element_type, known_dims, op_id
from sardonyx.lower.precompute import GROWTH, accepted, call, within
from sardonyx.lower.run_limits import spend
from sardonyx.lower.xp import FLOAT_DTYPES, Arrays, NotStatic, is_string, is_symbolic, settle
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.passes.cse import is_random
from sardonyx.passes.folding import Budget
from sardonyx.registry import op_name

NUMPY_ELEMENTS = 1 << 10  # results of more elements are computed by the framework, not by numpy

FALLBACKS = ("error", "warn", "allow")


class DependsOnData(EngineError):
    """A value that a framework needs while it builds a graph is only known while the graph runs."""


def is_static(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(is_static(v) for v in value)
    return value is None or isinstance(value, (np.ndarray, np.generic))


class Instruction:
    """One node: its rule, and where its values are."""

    def __init__(self, node: ir.Node, owner: GraphProgram, framework: str, region: Region | None):
        self.label = quote(node.name or (node.outputs[0].name if node.outputs else ""))
        self.op = op_name(op_id(node))
        self.region = region
        self.rule = find(node.op_type, node.domain, framework)
        self.numpy_rule = find(node.op_type, node.domain, "numpy")
        self.random = is_random(node)
        count = None if self.rule is None else self.rule.tensors
        self.either: Collection[int] = () if self.rule is None else self.rule.options["either"]
        self.inputs = _padded([owner.slot(v) for v in node.inputs], count)
        self.outputs = [owner.slot(v) for v in node.outputs]
        self.input_types = [element_type(v) for v in node.inputs]
        self.types = tuple(element_type(v) for v in node.outputs)
        self.dims = [known_dims(v) for v in node.outputs]
        self.bodies: dict[str, GraphProgram] = {}
        values = attributes(node) if region is None else {}
        for name, value in values.items():
            if isinstance(value, ir.Graph):
                self.bodies[name] = GraphProgram(value, owner.program, owner)
        self.captured = sorted({s for body in self.bodies.values() for s in body.captured})
        self.keywords = accepted(self.rule, self._special(values))
        self.numpy_keywords = accepted(self.numpy_rule, self._special(values))
        self.frees: list[int] = []
        self.waits = False  # its results are too large to compute in numpy while building

    def _special(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "count": len(self.types), "dtypes": self.types}

    @property
    def reads(self) -> list[int]:
        return [s for s in self.inputs if s >= 0] + self.captured


def _padded(slots: list[int], count: int | None) -> list[int]:
    return slots if count is None else (slots + [-1] * count)[:count]


class GraphProgram:
    """One graph, ready to run."""

    def __init__(self, graph: ir.Graph, program: Program, outer: GraphProgram | None = None):
        self.program = program
        self.outer = outer
        self.slots: dict[ir.Value, int] = {}
        self.captured: dict[int, int] = {}  # slot outside -> slot inside
        self.constants: dict[int, Any] = {}
        self.variables: dict[str, int] = {}
        self.instructions: list[Instruction] = []
        self._own: set[ir.Value] = set(graph.inputs)
        self._own.update(graph.initializers.values())
        self._own.update(v for node in graph for v in node.outputs)
        for name, value in graph.initializers.items():
            self._initializer(name, value)
        self.inputs = [self.slot(v) for v in graph.inputs]
        for node in graph:
            self._node(node)
        self.outputs = [self.slot(v) for v in graph.outputs]
        self._share_constants()
        self._mark_last_reads()
        # NOTE [compared for equality]: a compiler may compute a value anew wherever it is read,
        # with another rounding; the gradient of a maximum, Equal(x, max(x)), would then find none.
        self.compared = {
            s
            for instruction in self.instructions
            if instruction.op == "Equal" and instruction.input_types[0] in FLOAT_DTYPES
            for s in instruction.inputs
        }

    def slot(self, value: ir.Value | None) -> int:
        """The number of a value; -1 for one that is omitted."""
        if value is None:
            return -1
        if value not in self.slots:
            self.slots[value] = len(self.slots)
            if value not in self._own and self.outer is not None:
                outer_slot = self.outer.slot(value)
                if outer_slot in self.outer.constants:
                    self.constants[self.slots[value]] = self.outer.constants[outer_slot]
                else:
                    self.captured[outer_slot] = self.slots[value]
        return self.slots[value]

    def _initializer(self, name: str, value: ir.Value) -> None:
        if name in self.program.parameters or value.is_graph_input():
            self.variables[name] = self.slot(value)
            self.program.defaults[name] = value
        elif value.const_value is not None:
            self.constants[self.slot(value)] = array_of(value.const_value)

    def _node(self, node: ir.Node) -> None:
        instruction = Instruction(node, self, self.program.xp.name, self.program.regions.get(node))
        constants = (
            self._precompute(instruction, node)
            if not instruction.bodies and not instruction.random
            else None
        )
        if constants is None:
            self.instructions.append(instruction)
        else:
            self.constants.update(zip(instruction.outputs, constants))

    def _precompute(self, instruction: Instruction, node: ir.Node) -> tuple[Any, ...] | None:
        """The results of a node that only reads constants, unless they are too large to keep."""
        if instruction.numpy_rule is None or any(
            s not in self.constants for s in instruction.reads
        ):
            return None
        values = [self.constants[s] if s >= 0 else None for s in instruction.inputs]
        budget = self.program.budget
        try:
            results = within(
                budget, node, values, instruction.numpy_rule, instruction.numpy_keywords
            )
        except Exception:  # it is reported when the node runs
            return None
        instruction.waits = results is None and budget.is_large
        return results

    def _share_constants(self) -> None:
        """Constants that a framework reads are converted once, outside of any trace."""
        native = [instruction for instruction in self.instructions if instruction.region is None]
        used = {
            s
            for instruction in native
            for i, s in enumerate(instruction.inputs)
            if i not in _statics(instruction)
        }
        static_slots = {
            s
            for instruction in native
            for i, s in enumerate(instruction.inputs)
            if i in _statics(instruction)
        }
        self.tensors: dict[int, Any] = {}
        for slot, value in self.constants.items():
            if slot in used and _size(value):
                self.tensors[slot] = self.program.shared(value)
                if _size(value) > NUMPY_ELEMENTS and slot not in static_slots:
                    self.constants[slot] = self.tensors[slot]  # numpy's copy is not needed any more

    def _mark_last_reads(self) -> None:
        permanent = {*self.outputs, *self.constants, *self.inputs, *self.variables.values()}
        permanent.update(self.captured.values())
        last: dict[int, Instruction] = {}
        for instruction in self.instructions:
            for slot in (*instruction.reads, *instruction.outputs):
                if slot not in permanent and slot >= 0:
                    last[slot] = instruction
        for slot, instruction in last.items():
            instruction.frees.append(slot)

    def run(
        self,
        inputs: Sequence[Any],
        captured: Mapping[int, Any],
        variables: Mapping[str, Any],
        symbols: Mapping[str, Any],
        continuation: Continuation | None = None,
    ) -> Any:
        """The outputs in order, or what `continuation` makes of them."""
        env: list[Any] = [None] * len(self.slots)
        for slot, value in self.constants.items():
            env[slot] = value
        for slot, value in zip(self.inputs, inputs):
            env[slot] = value
        for outer_slot, slot in self.captured.items():
            env[slot] = captured[outer_slot]
        for name, slot in self.variables.items():
            env[slot] = variables[name]
        return self._run_from(0, env, symbols, continuation)

    def _run_from(
        self,
        start: int,
        env: list[Any],
        symbols: Mapping[str, Any],
        continuation: Continuation | None,
    ) -> Any:
        instruction = None
        try:
            for position in range(start, len(self.instructions)):
                instruction = self.instructions[position]
                results = self._results(instruction, env, symbols)
                if isinstance(results, Fork):
                    return self._in_branches(position, results, env, symbols, continuation)
                self._keep(instruction, results, env, symbols)
        except SardonyxError:
            raise
        except NotStatic as error:
            assert instruction is not None
            raise DependsOnData(
                f"a node cannot be in a graph of {self.program.xp.name}: {error}",
                [[instruction.op, f"node {instruction.label}"]],
                hint="make the value that it depends on a constant, or run without compiling",
            ) from error
        except Exception as error:
            assert instruction is not None
            name = self.program.xp.name
            raise EngineError(
                f"{name} failed in a node: {error}", [[instruction.op, f"node {instruction.label}"]]
            ) from error
        outputs = [env[slot] for slot in self.outputs]
        return outputs if continuation is None else continuation(outputs)

    def _in_branches(
        self,
        position: int,
        fork: Fork,
        env: list[Any],
        symbols: Mapping[str, Any],
        continuation: Continuation | None,
    ) -> Any:
        """All that follows a fork, once for each of its alternatives."""

        def rest(results: Sequence[Any]) -> Any:
            copy = list(env)
            self._keep(self.instructions[position], results, copy, symbols)
            return self._run_from(position + 1, copy, symbols, continuation)

        count_fork()
        branches = [functools.partial(a, rest) for a in fork.alternatives]
        return self.program.xp.fork(fork.condition, branches)

    def _results(
        self, instruction: Instruction, env: list[Any], symbols: Mapping[str, Any]
    ) -> Sequence[Any] | Fork:
        program = self.program
        spend(nodes=1)
        values = [env[s] if s >= 0 else None for s in instruction.inputs]
        bound = {
            name: functools.partial(self._body, body, {s: env[s] for s in body.captured}, symbols)
            for name, body in instruction.bodies.items()
        }
        if instruction.region is not None:
            return program.xp.call_out(instruction.region, values)  # type: ignore[no-any-return]
        results = self._in_numpy(instruction, values, bound)
        if results is None:
            results = self._in_framework(instruction, values, bound)
        return results[0] if results and isinstance(results[0], Fork) else results

    def _keep(
        self,
        instruction: Instruction,
        results: Sequence[Any],
        env: list[Any],
        symbols: Mapping[str, Any],
    ) -> None:
        program = self.program
        for slot, value, dims in zip(instruction.outputs, results, instruction.dims):
            if slot in self.compared and not is_static(value):
                value = program.xp.computed_once(value)
            env[slot] = value
            if program.xp.annotates and dims is not None and not isinstance(value, np.ndarray):
                program.xp.annotate(
                    value, [symbols.get(d) if isinstance(d, str) else d for d in dims]
                )
        for slot in instruction.frees:
            env[slot] = None

    def _in_numpy(
        self, instruction: Instruction, values: list[Any], bound: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """The outputs of a node that only reads what is known; None if it is for the framework."""
        on_numpy = self.program.on_numpy
        if not on_numpy and not self._is_known(instruction, values):
            return None
        keywords = {**instruction.numpy_keywords, **bound}
        try:
            results = call(instruction.numpy_rule, numpy_arrays(), values, keywords)
        except NotStatic:
            if on_numpy or not any(map(is_symbolic, values)):
                raise
            return None
        is_large = sum(map(_size, results)) > NUMPY_ELEMENTS + sum(map(_size, values))
        return None if is_large and not on_numpy else results

    def _is_known(self, instruction: Instruction, values: list[Any]) -> bool:
        """Whether a node only reads what is known while building, and can be computed on that."""
        if (
            instruction.numpy_rule is None
            or instruction.random
            or instruction.bodies
            or instruction.waits
        ):
            return False
        if not all(map(is_static, values)):
            return False
        return instruction.numpy_rule.options["sizes"] or not any(map(is_symbolic, values))

    def _in_framework(
        self, instruction: Instruction, values: list[Any], bound: dict[str, Any]
    ) -> tuple[Any, ...]:
        program, statics = self.program, _statics(instruction)
        arguments = []
        for i, (slot, value) in enumerate(zip(instruction.inputs, values)):
            if i in statics:
                arguments.append(program.known(instruction, i, value))
            elif i in instruction.either and is_static(value):
                arguments.append(value)
            elif slot in self.tensors:
                arguments.append(self.tensors[slot])
            else:
                arguments.append(program.convert(value))
        return call(instruction.rule, program.xp, arguments, {**instruction.keywords, **bound})

    def _body(
        self,
        body: GraphProgram,
        captured: Mapping[int, Any],
        symbols: Mapping[str, Any],
        *inputs: Any,
        continuation: Continuation | None = None,
    ) -> Any:
        results = body.run(inputs, captured, {}, symbols, continuation)
        return results if continuation else tuple(results)


def _statics(instruction: Instruction) -> Collection[int]:
    return () if instruction.rule is None else instruction.rule.options["static"]


def _size(value: Any) -> int:
    return value.size if isinstance(value, np.ndarray) else 0


class Program:
    """A model in terms of one framework's arrays: called with inputs, it gives outputs.

    parameters -- names of initializers that are given at each call rather than built in
    fallback   -- what happens to nodes that the framework cannot run: they run in numpy, with a
                  warning ("warn") or without ("allow"), or are refused ("error")
    place      -- pattern of node names or operators → the engine that runs these nodes
    sized      -- every size must be known while building: operators with data-dependent shapes
                  run in numpy
    """

    @translated("the model cannot be made ready to run")
    def __init__(
        self,
        model: Model,
        xp: Arrays,
        *,
        parameters: Collection[str] = (),
        fallback: str = "warn",
        place: Mapping[str, str] | None = None,
        sized: bool = False,
    ):
        if fallback not in FALLBACKS:
            raise ArgumentError(f"fallback is one of {FALLBACKS}, not {fallback!r}")
        self.xp = xp
        self.on_numpy = xp.name == "numpy"
        self.parameters = frozenset(parameters)
        self.defaults: dict[str, ir.Value] = {}
        data_dependent = functools.partial(decided_by_data, framework=xp.name, fed=self.parameters)
        more = data_dependent if sized else None
        prepared = prepare(normalize(model), xp.name, xp.strings, place, self.parameters, more)
        self.regions = prepared.regions
        self.report(fallback)
        graph = prepared.model.graph
        self.budget = Budget(graph, GROWTH)
        self._converted: dict[int, tuple[Any, Any]] = {}
        self.main = GraphProgram(graph, self)
        self._converted.clear()
        self.names = [v.name or "" for v in graph.inputs]
        self.input_types = {v.name or "": element_type(v) for v in graph.inputs}
        self.input_dims = [known_dims(v) for v in graph.inputs]
        self.outputs = [v.name or "" for v in graph.outputs]
        self.output_types = [element_type(v) for v in graph.outputs]
        self.values = {
            n: self.convert(array_of(v.const_value))
            for n, v in self.defaults.items()
            if v.const_value is not None and n not in self.parameters
        }

    @property
    def elsewhere(self) -> list[Placement]:
        """The nodes that do not run in the framework itself: on which engine, and why."""
        return [p for region in self.regions.values() for p in region.placements]

    def report(self, fallback: str) -> None:
        """Warn about the nodes that the framework cannot run, or refuse them."""
        forced = [p.row for p in self.elsewhere if p.reason != CHOSEN]
        if not forced or fallback == "allow":
            return
        what = f"{len(forced)} node{'s' * (len(forced) > 1)} cannot run in {self.xp.name} itself"
        if fallback == "error":
            raise UnsupportedOp(what, forced, hint='fallback="warn" runs them in numpy')
        warnings.warn("\n".join([f"{what}:", *table(forced)]), stacklevel=4)

    def __call__(
        self, feeds: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """The outputs in order; inputs by name, as arrays of the framework or of numpy."""
        bound = {**self.values, **(parameters or {})}
        for name in set(bound) & set(feeds):
            bound[name] = self.convert(feeds[name])
        missing = [n for n in self.names if n not in feeds and n not in bound]
        if missing:
            raise ArgumentError("inputs are missing", [[quote(n)] for n in missing])
        inputs = [bound[n] if n in bound else self.convert(feeds[n]) for n in self.names]
        with counting():
            return list(self.main.run(inputs, {}, bound, self._symbols(inputs)))

    def _symbols(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """The sizes that the model names, of these inputs."""
        sizes: dict[str, Any] = {}
        if self.xp.annotates:
            for value, dims in zip(inputs, self.input_dims):
                if dims is None or isinstance(value, (list, np.ndarray, type(None))):
                    continue
                for symbol, size in zip(dims, self.xp.shape(value)):
                    if isinstance(symbol, str):
                        sizes.setdefault(symbol, size)
        return sizes

    def convert(self, value: Any) -> Any:
        """A value as the framework holds it: what is numpy's becomes its own array."""
        if self.on_numpy:
            return value
        if isinstance(value, list):
            return [self.convert(v) for v in value]
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        if is_symbolic(value):
            return self.xp.from_sizes(value)
        return value if is_string(value.dtype) and not self.xp.strings else self.xp.asarray(value)

    def shared(self, value: Any) -> Any:
        """A constant as the framework holds it: once for the graph and all its bodies."""
        if id(value) not in self._converted:
            self._converted[id(value)] = (self.convert(value), value)  # keeps the id in use
        return self._converted[id(value)][0]

    def known(self, instruction: Instruction, position: int, value: Any) -> Any:
        """A value that must be known while building, as numpy."""
        if is_static(value):
            return value
        try:
            return self.xp.static(value)
        except NotStatic as error:
            raise DependsOnData(
                f"input {position} of a node must be known while building, but depends on data",
                [[instruction.op, f"node {instruction.label}"]],
                hint="make it a constant, or run without compiling",
            ) from error


def to_numpy(xp: Arrays, value: Any, dtype: np.dtype | None) -> Any:
    """A result as numpy: arrays of the type that the model says, lists and dicts of such arrays."""
    if isinstance(value, (list, tuple)):
        return [to_numpy(xp, v, dtype) for v in value]
    if value is None or isinstance(value, dict):
        return value
    if is_symbolic(value):
        return np.asarray(settle([int(v) for v in value.flat], value.shape))
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value) if dtype is None or is_string(dtype) else np.asarray(value, dtype)
    return xp.to_numpy(value, dtype)

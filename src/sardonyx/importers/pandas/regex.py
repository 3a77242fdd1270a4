"""Regular expressions as automata, by Python's own parse of the pattern.

Every state reads one character; the edges between them are in the order of preference in which
Python's backtracking tries them. Anchors, word boundaries and look-around at a fixed number of
characters are conditions of an edge. Other look-around, references to groups, and repetitions of
what may be empty are refused.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Any

from sardonyx.importers.pandas.characters import Ranges, ranges_of
from sardonyx.importers.pandas.recorder import refuse

parser = re._parser  # type: ignore[attr-defined]
codes = re._constants  # type: ignore[attr-defined]
casefix = re._casefix  # type: ignore[attr-defined]
TOP = 0x10FFFF
LARGEST = 300  # states
NO_CONDITION = 0  # the place of the empty set among the conditions of a program


@dataclass(frozen=True)
class Condition:
    """What must hold between two characters.

    kind   -- start, end, very end, boundary; next, previous: the characters after or before
    ranges -- of the characters that are looked at; of word characters for a boundary
    """

    kind: str
    ranges: tuple[Ranges, ...] = ()
    negative: bool = False


@dataclass
class State:
    """A node of the automaton: it reads a character, or leads on without reading."""

    ranges: Ranges | None = None
    after: list[State] = field(default_factory=list)  # in the order of preference
    opens: int | None = None
    closes: int | None = None
    condition: Condition | None = None


@dataclass
class Edge:
    """From after one character to before the next (`target` is a reading state, or the end)."""

    target: int
    opens: frozenset[int]
    closes: frozenset[int]
    condition: int


@dataclass
class Program:
    """The automaton: the ranges that each state reads, the edges after each (last: the start)."""

    ranges: list[Ranges]
    edges: list[list[Edge]]
    groups: int
    names: dict[str, int]
    may_be_empty: bool
    conditions: list[frozenset[Condition]]  # what an edge asks for, all of it; the first is empty

    @property
    def is_fixed(self) -> bool:
        """Whether it is a plain sequence of characters."""
        chain = [[0], *([i + 1] for i in range(len(self.ranges)))]
        order = [self.edges[-1], *self.edges[:-1]]
        return all(
            [e.target for e in edges] == expected and edges[0].condition == NO_CONDITION
            for edges, expected in zip(order, chain, strict=True)
        )


def complement(ranges: Ranges) -> Ranges:
    result, start = [], 0
    for low, high in ranges:
        if low > start:
            result.append((start, low - 1))
        start = high + 1
    if start <= TOP:
        result.append((start, TOP))
    return tuple(result)


def union(*several: Ranges) -> Ranges:
    result: list[list[int]] = []
    for low, high in sorted(r for ranges in several for r in ranges):
        if result and low <= result[-1][1] + 1:
            result[-1][1] = max(result[-1][1], high)
        else:
            result.append([low, high])
    return tuple((a, b) for a, b in result)


@functools.cache
def category(name: str) -> Ranges:
    """What \\d, \\w and \\s stand for in Python."""
    tests = {
        "digit": str.isdecimal,
        "space": str.isspace,
        "word": lambda c: c.isalnum() or c == "_",
    }
    test = tests[name]
    return ranges_of(c for c in range(TOP + 1) if not 0xD800 <= c < 0xE000 and test(chr(c)))


class Compiler:
    """Builds the automaton from Python's own parse of the pattern."""

    def __init__(self, pattern: str, flags: int):
        try:
            self.tree = parser.parse(pattern, flags)
        except re.error as error:
            refuse(f"the pattern is not valid: {error}")
        self.flags = self.tree.state.flags
        if self.flags & ~(re.UNICODE | re.IGNORECASE | re.DOTALL | re.ASCII):
            refuse("flags of the pattern other than IGNORECASE and DOTALL have no rule")
        self.count = 0

    def ranges(self, low: int, high: int | None = None) -> Ranges:
        high = low if high is None else high
        if not self.flags & re.IGNORECASE:
            return ((low, high),)
        if high - low > 0x3000:
            refuse("a range of a pattern that ignores case is too large")
        points: set[int] = set()
        for point in range(low, high + 1):
            points |= variants(chr(point))
        return ranges_of(points)

    def category(self, name: str) -> Ranges:
        kind = str(name).removeprefix("CATEGORY_").lower()
        ranges = category(kind.removeprefix("not_"))
        if self.flags & re.ASCII:
            ranges = tuple((a, min(b, 127)) for a, b in ranges if a < 128)
        return complement(ranges) if kind.startswith("not_") else ranges

    def set_of(self, items: Any) -> Ranges:
        negative, parts = False, []
        for code, value in items:
            if code is codes.NEGATE:
                negative = True
            elif code is codes.LITERAL:
                parts.append(self.ranges(value))
            elif code is codes.RANGE:
                parts.append(self.ranges(*value))
            elif code is codes.CATEGORY:
                parts.append(self.category(value))
            else:
                refuse(f"{code} in a pattern has no rule")
        ranges = union(*parts)
        return complement(ranges) if negative else ranges

    def reading(self, ranges: Ranges, after: State) -> State:
        self.count += 1
        if self.count > LARGEST:
            refuse("the pattern is too large", "shorten its repetitions")
        return State(ranges, [after])

    def sequence(self, items: Any, after: State) -> State:
        for code, value in reversed(list(items)):
            after = self.item(code, value, after)
        return after

    def item(self, code: Any, value: Any, after: State) -> State:
        if code is codes.LITERAL:
            return self.reading(self.ranges(value), after)
        if code is codes.NOT_LITERAL:
            return self.reading(complement(self.ranges(value)), after)
        if code is codes.ANY:
            every = ((0, TOP),) if self.flags & re.DOTALL else ((0, 9), (11, TOP))
            return self.reading(every, after)
        if code is codes.IN:
            return self.reading(self.set_of(value), after)
        if code is codes.BRANCH:
            return State(after=[self.sequence(branch, after) for branch in value[1]])
        if code is codes.SUBPATTERN:
            group, add, remove, items = value
            if add or remove:
                refuse("flags inside a pattern have no rule")
            if group is None:
                return self.sequence(items, after)
            closing = State(after=[after], closes=group)
            return State(after=[self.sequence(items, closing)], opens=group)
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, items = value
            return self.repeat(least, most, items, after, code is codes.MAX_REPEAT)
        if code is codes.AT:
            return State(after=[after], condition=self.anchor(value))
        if code in (codes.ASSERT, codes.ASSERT_NOT):
            direction, items = value
            ranges = tuple(self.single(*item) for item in items)
            kind = "next" if direction > 0 else "previous"
            condition = Condition(kind, ranges, code is codes.ASSERT_NOT)
            return State(after=[after], condition=condition)
        return refuse(f"{code} {value} in a pattern has no rule")

    def anchor(self, value: Any) -> Condition:
        kinds = {
            codes.AT_BEGINNING: "start",
            codes.AT_BEGINNING_STRING: "start",
            codes.AT_END: "end",
            codes.AT_END_STRING: "very end",
        }
        if value in kinds:
            return Condition(kinds[value])
        if value in (codes.AT_BOUNDARY, codes.AT_NON_BOUNDARY):
            words = self.category("CATEGORY_WORD")
            return Condition("boundary", (words,), value is codes.AT_NON_BOUNDARY)
        return refuse(f"{value} in a pattern has no rule")

    def single(self, code: Any, value: Any) -> Ranges:
        """The characters that an item of look-around takes, which must be exactly one."""
        state = self.item(code, value, State())
        if state.ranges is None:
            refuse("look-around at more than a fixed sequence of characters has no rule")
        return state.ranges

    def repeat(self, least: int, most: Any, items: Any, after: State, greedy: bool) -> State:
        if items.getwidth()[0] == 0 and most != 1:
            refuse("a repetition of something that may be empty has no rule")

        def choice(inside: State) -> list[State]:
            return [inside, after] if greedy else [after, inside]

        if most is codes.MAXREPEAT:
            loop = State()
            loop.after = choice(self.sequence(items, loop))
            start = loop
        else:
            start = after
            for _ in range(most - least):
                start = State(after=choice(self.sequence(items, start)))
        for _ in range(least):
            start = self.sequence(items, start)
        return start


@functools.cache
def variants(character: str) -> frozenset[int]:
    """The characters that a pattern which ignores case takes for one."""
    near = {
        character,
        character.lower(),
        character.upper(),
        character.swapcase(),
        character.title(),
    }
    points = {ord(c) for c in near if len(c) == 1}
    for point in list(points):
        points |= set(casefix._EXTRA_CASES.get(point, ()))
    test = re.compile(re.escape(character), re.IGNORECASE)
    return frozenset(p for p in points if test.fullmatch(chr(p)))


def compiled(pattern: str, flags: int = 0) -> Program:
    compiler = Compiler(pattern, flags)
    end = State()
    start = compiler.sequence(compiler.tree, end)
    reading: dict[int, int] = {}
    states: list[State] = []

    def number(state: State) -> int:
        if id(state) not in reading:
            reading[id(state)] = len(states)
            states.append(state)
        return reading[id(state)]

    conditions: list[frozenset[Condition]] = [frozenset()]
    first = closure(start, end, number, conditions)
    edges, place = [], 0
    while place < len(states):
        edges.append(closure(states[place].after[0], end, number, conditions))
        place += 1
    for edge in (e for several in (*edges, first) for e in several):
        edge.target = len(states) if edge.target < 0 else edge.target
    groups = compiler.tree.state.groups - 1
    names = dict(compiler.tree.state.groupdict)
    empty = compiler.tree.getwidth()[0] == 0
    ranges = [s.ranges or () for s in states]
    return Program(ranges, [*edges, first], groups, names, empty, conditions)


def closure(
    start: State, end: State, number: Any, conditions: list[frozenset[Condition]]
) -> list[Edge]:
    """The edges from a place between characters, the preferred ones first."""
    result: list[Edge] = []
    seen: dict[int, list[frozenset[Condition]]] = {}

    def visit(
        state: State,
        opens: frozenset[int],
        closes: frozenset[int],
        demands: frozenset[Condition],
    ) -> None:
        if state.condition is not None:
            demands = demands | {state.condition}
        before = seen.setdefault(id(state), [])
        if any(weaker <= demands for weaker in before):
            return
        before.append(demands)
        if state is end or state.ranges is not None:
            target = -1 if state is end else number(state)
            if demands not in conditions:
                conditions.append(demands)
            result.append(Edge(target, opens, closes, conditions.index(demands)))
            return
        if state.opens is not None:
            opens, closes = opens | {state.opens}, closes - {state.opens}
        if state.closes is not None:
            closes = closes | {state.closes}
        for following in state.after:
            visit(following, opens, closes, demands)

    visit(start, frozenset(), frozenset(), frozenset())
    return result


# -- patterns of RegexFullMatch ---------------------------------------------------


def re2(pattern: str, flags: int) -> str | None:
    """The pattern in the syntax of RegexFullMatch; None where the two might differ."""
    compiler = Compiler(pattern, flags)
    try:
        return _re2(compiler, compiler.tree)
    except ValueError:
        return None


def _re2(compiler: Compiler, items: Any) -> str:
    return "".join(_re2_item(compiler, code, value) for code, value in items)


def _re2_item(compiler: Compiler, code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return _re2_set(compiler.ranges(value))
    if code is codes.NOT_LITERAL:
        return _re2_set(complement(compiler.ranges(value)))
    if code is codes.ANY:
        return "." if compiler.flags & re.DOTALL else "[^\\n]"
    if code is codes.IN:
        return _re2_set(compiler.set_of(value))
    if code is codes.BRANCH:
        return f"(?:{'|'.join(_re2(compiler, branch) for branch in value[1])})"
    if code is codes.SUBPATTERN and not value[1] and not value[2]:
        return f"(?:{_re2(compiler, value[3])})"
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        least, most, inside = value
        high = "" if most is codes.MAXREPEAT else most
        return f"(?:{_re2(compiler, inside)}){{{least},{high}}}"
    raise ValueError("anchors and references are searched in characters")


def _re2_set(ranges: Ranges) -> str:
    if len(ranges) > 200:
        raise ValueError("a large set")
    return "[" + "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in ranges) + "]"

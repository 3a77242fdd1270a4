"""One MATLAB function out of nodes: names of its values, the rule of each node, its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.matlab.names import Names
from sardonyx.errors import UnsupportedOp
from sardonyx.lower.driver import array_of, attributes
from sardonyx.registry import Registry, op_name

RULES = Registry("matlab rule", leading=1)
FLOAT_CLASSES = {ir.DataType.FLOAT: "single", ir.DataType.DOUBLE: "double"}
INTEGERS = {
    getattr(ir.DataType, f"{sign}INT{bits}"): f"{sign.lower()}int{bits}"
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}
TEXT = ir.DataType.STRING
TYPES = {**FLOAT_CLASSES, **INTEGERS, ir.DataType.BOOL: "logical", TEXT: "text"}
# Operators that take text: their rules write what MATLAB does with cell arrays too.
TEXT_RULES = frozenset(
    ["Concat", "Equal", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
     "If", "Lookup", "Loop", "Ngrams", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze",
     "StringConcat", "StringNormalizer", "Tile", "Tokenizer", "Transpose", "Unsqueeze", "Where"]
)  # fmt: skip
INLINE = 12  # elements of a constant that is written as numbers
WIDE = 96


class Refused(Exception):
    """A node cannot be written; the words say why."""


def matlab(
    *ops: str, domain: str = "", ranks: Callable[..., str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the rule of operators: a function of a `Call`, then the inputs as expressions and
    the attributes. It returns the expression of the output, or calls `m.emit`.

    ranks -- for rules that also take tensors whose number of axes is known only while the code
             runs: how many axes the output has, as an expression, from the same arguments;
             empty if the rule's own statements count them
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in ops:
            RULES.register(function, name, domain, ranks=ranks)
        return function

    return decorate


def table(formulas: Mapping[str, str], module: str) -> None:
    """Register one-line rules: a formula of `x`, `a` and `b`, the inputs."""
    for name, formula in formulas.items():
        rule = _formula_rule(formula)
        rule.__module__ = module
        RULES.register(rule, name, ranks=widest)


def widest(m: Call, *inputs: Any, **attributes: Any) -> str:
    """The number of axes that tensors have after broadcasting."""
    places = [i for i, v in enumerate(m.node.inputs) if v is not None]
    ranks = [m.rank(i) for i in places]
    least = max([r for r in ranks if isinstance(r, int)], default=0)
    words = [r for r in ranks if isinstance(r, str)] + [str(least)] * bool(least)
    return words[0] if len(words) == 1 else f"max([{', '.join(words)}])"


def _formula_rule(formula: str) -> Callable[..., str]:
    def rule(m: Call, *inputs: str) -> str:
        names = {"x": inputs[0], "a": inputs[0], "b": inputs[-1]}
        return re.sub(r"\b[xab]\b", lambda match: names[match[0]], formula)

    return rule


def rank_of(value: ir.Value | None) -> int:
    if value is None or value.shape is None:
        raise Refused("the number of axes of a tensor is not known")
    return len(value.shape)


def constant(value: ir.Value | None) -> np.ndarray | None:
    """What a value holds, where that is certain."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return array_of(value.const_value)


def check_exact(array: np.ndarray) -> None:
    """Refuse 64-bit integers that a double does not hold. The largest and the smallest of the type
    become themselves again when they are converted back. Letters beyond ASCII are refused too:
    MATLAB counts them otherwise than Octave.
    """
    if array.dtype.kind == "O" and not all(str(word).isascii() for word in array.flat):
        raise Refused("text beyond ASCII")
    if array.dtype not in (np.int64, np.uint64):
        return
    ends = np.iinfo(array.dtype)
    inside = array[(array != ends.min) & (array != ends.max)]
    if any(int(float(int(n))) != int(n) for n in inside[abs(inside.astype(float)) >= 2.0**53]):
        raise Refused("an integer is too large to be exact")


def is_inline(value: ir.Value, array: np.ndarray) -> bool:
    """Whether a constant is written as numbers: a few integers, or one number of any kind; never
    a weight.
    """
    if value.meta.get("held") or array.dtype.kind == "O":
        return False
    return array.ndim <= 1 and array.size <= (1 if array.dtype.kind == "f" else INLINE)


def literal(array: np.ndarray) -> str:
    """An array of at most one axis as an expression."""
    short = array.dtype == np.float32
    words = [_number(float(str(x)) if short else x.item()) for x in array.reshape(-1)]
    text = words[0] if len(words) == 1 else f"[{'; '.join(words)}]"
    if array.ndim == 1 and not words:
        text = "zeros(0, 1)"
    if array.dtype == np.float32:
        return f"single({text})"
    if array.dtype == np.bool_:
        return f"logical({text})"
    return text


def _number(x: Any) -> str:
    if isinstance(x, float):
        if np.isnan(x):
            return "NaN"
        if np.isinf(x):
            return "Inf" if x > 0 else "-Inf"
    if isinstance(x, bool):
        return str(int(x))
    text = repr(x)
    return text[:-2] if text.endswith(".0") else text


def row(numbers: Sequence[Any]) -> str:
    """Numbers as a row: `[1, 2]`."""
    items = list(numbers) if isinstance(numbers, list) else np.asarray(numbers).reshape(-1).tolist()
    words = [n if isinstance(n, str) else _number(n) for n in items]
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"


class Call:
    """A node while its rule is applied."""

    def __init__(self, function: Function, node: ir.Node):
        self.function, self.node = function, node

    def rank(self, position: int = 0) -> Any:
        """How many axes an input has: a number, or an expression where only the code knows."""
        return self.function.rank(self.node.inputs[position])

    @property
    def out_rank(self) -> int:
        return rank_of(self.node.outputs[0])

    def type(self, position: int = 0) -> ir.DataType | None:
        value = self.node.inputs[position]
        return None if value is None else value.dtype

    def has(self, position: int) -> bool:
        return position < len(self.node.inputs) and self.node.inputs[position] is not None

    def constant(self, position: int, what: str = "") -> np.ndarray:
        """An input that must be known; refused otherwise."""
        value = self.known(position)
        if value is None:
            raise Refused(f"{what or 'an input'} is not constant")
        return value

    def numbers(self, position: int, what: str) -> list[int]:
        """Integers that must be known; refused otherwise."""
        return [int(n) for n in self.constant(position, what).reshape(-1)]

    def known(self, position: int) -> np.ndarray | None:
        value = self.node.inputs[position] if self.has(position) else None
        return None if value is None or value.meta.get("held") else constant(value)

    def dim(self, axis: int, rank: Any) -> Any:
        """The dimension of MATLAB of an axis of ONNX."""
        if isinstance(rank, str):
            return -axis if axis < 0 else f"{rank} - {axis}"
        return rank - (axis % rank if rank else 0)

    def dims(self, axes: Sequence[int] | np.ndarray, rank: Any) -> list[Any]:
        result = [self.dim(int(a), rank) for a in axes]
        return result if isinstance(rank, str) else sorted(result)

    def emit(self, *results: str | None, expression: str) -> None:
        self.function.assign(results, expression)

    def outputs(self) -> list[str]:
        """The names of the outputs; "~" for those that nothing reads."""
        return [self.function.output(v) for v in self.node.outputs]

    def used(self, position: int) -> bool:
        if position >= len(self.node.outputs):
            return False
        value = self.node.outputs[position]
        return bool(value.uses()) or value.is_graph_output() or value in self.function.results


class Function:
    """A function while it is written.

    weights -- initializer → how the function reaches it, such as `params.fc_weight`
    """

    def __init__(
        self,
        inputs: Sequence[ir.Value],
        results: Sequence[ir.Value],
        weights: Callable[[ir.Value], str],
        taken: Collection[str] = (),
    ):
        self.names = Names((*taken, "params"))
        self.values: dict[ir.Value, str] = {}
        self.ranks: dict[ir.Value, str] = {}  # of tensors whose axes are counted by the code
        self.weights = weights
        self.results = list(results)
        self.lines: list[str] = []
        self.arguments = [self.name(v, "x") for v in inputs]

    def name(self, value: ir.Value, other: str = "value") -> str:
        if value not in self.values:
            text = (
                (value.name or "").rpartition("/")[2] if "/" in (value.name or "") else value.name
            )
            self.values[value] = self.names.fresh(text or "", other)
        return self.values[value]

    def output(self, value: ir.Value) -> str:
        is_read = bool(value.uses()) or value.is_graph_output() or value in self.results
        return self.name(value) if is_read else "~"

    def expression(self, value: ir.Value | None) -> str | None:
        if value is None:
            return None
        if value in self.values:
            return self.values[value]
        array = constant(value)
        if array is not None:
            if value.dtype not in TYPES:
                raise Refused(f"a constant of type {value.dtype}")
            if any(use.node.op_type != "Slice" for use in value.uses()):
                check_exact(array)  # a Slice ends at the last element, however far it reaches
            return literal(array) if is_inline(value, array) else self.weights(value)
        return self.name(value)

    def assign(self, results: Sequence[str | None], expression: str) -> None:
        names = [r or "~" for r in results]
        while len(names) > 1 and names[-1] == "~":
            names.pop()
        left = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
        self.lines.append(wrapped(f"{left} = {expression};"))

    def write(self, node: ir.Node) -> None:
        """Add the statements of a node."""
        rule = RULES.get(node.op_type, node.domain)
        if rule is None:
            raise Refused("there is no rule for this operator")
        is_free = rule.options.get("ranks") is not None
        for value in (*node.inputs, *node.outputs):
            if value is not None and (value.name or value.uses()):
                self._check(value, is_free)
                if value.dtype == TEXT and node.op_type not in TEXT_RULES:
                    raise Refused("text")
        keywords = attributes(node)
        if not rule.takes_all_keywords:
            keywords = {k: v for k, v in keywords.items() if k in rule.keywords}
        call = Call(self, node)
        inputs = [self.expression(v) for v in node.inputs]
        result = rule.function(call, *inputs, **keywords)
        if result is not None:
            self.assign([self.name(node.outputs[0])], result)
        ranks = rule.options.get("ranks")
        if ranks is not None and self._is_loose(node):
            count = ranks(call, *inputs, **keywords)
            if count:
                self.count_axes(node.outputs[0], count)

    def rank(self, value: ir.Value | None) -> Any:
        """How many axes a tensor has: a number, or an expression where only the code knows."""
        return self.ranks[value] if value in self.ranks else rank_of(value)

    def count_axes(self, value: ir.Value, count: str) -> None:
        """Keep the number of axes of a tensor, or check it where the model says what it is."""
        if value.shape is not None:
            if value.uses() and count != str(
                len(value.shape)
            ):  # to who calls the model, the number of axes says nothing
                self.lines.append(f"onnx_axes({count}, {len(value.shape)});")
            return
        if value not in self.ranks:
            self.ranks[value] = self.names.fresh(f"{self.name(value)}_rank")
        self.lines.append(f"{self.ranks[value]} = {count};")

    def _is_loose(self, node: ir.Node) -> bool:
        inputs = any(v in self.ranks for v in node.inputs)
        return inputs or any(v.shape is None for v in node.outputs)

    def write_body(self, body: ir.Graph, names: Sequence[str], outputs: Sequence[ir.Value]) -> None:
        """Add the statements of a branch, which assigns its results to `names`."""
        start = len(self.lines)
        for node in body:
            self.write(node)
        for name, value, outside in zip(names, body.outputs, outputs, strict=True):
            if value.dtype != outside.dtype:
                raise Refused("branches of different types")
            if name != "~":
                self.assign([name], self.expression(value) or "[]")
                rank = self.rank(value)
                if outside.shape is None or rank != len(outside.shape):
                    self.count_axes(outside, str(rank))
        self.indent(start)

    def indent(self, start: int) -> None:
        """Indent the lines from `start` on."""
        inner = [line for text in self.lines[start:] for line in text.splitlines()]
        self.lines[start:] = [f"    {line}" for line in inner]

    def _check(self, value: ir.Value, is_free: bool) -> None:
        if not isinstance(value.type, ir.TensorType):
            raise Refused("not all of its types are tensors")
        if value.dtype not in TYPES:
            raise Refused(f"MATLAB has no {value.dtype}")
        is_counted = value in self.ranks or value.producer() is not None
        if value.shape is None and not (is_free and is_counted):
            rank_of(value)


def wrapped(line: str) -> str:
    """A statement in lines of bounded width, broken after commas."""
    parts: list[str] = []
    while len(line) > WIDE and ", " in line[20:WIDE]:
        place = line.rindex(", ", 0, WIDE) + 1
        parts.append(f"{line[:place]} ...")
        line = f"    {line[place:].lstrip()}"
    return "\n".join([*parts, line])


def refuse(problems: Sequence[tuple[ir.Node, str]]) -> None:
    """One error that names every node that cannot be written."""
    if not problems:
        return
    rows = [
        [op_name((n.domain, n.op_type)), f"node {(n.name or n.outputs[0].name)!r}", why]
        for n, why in problems
    ]
    ops = sorted({r[0] for r in rows})
    raise UnsupportedOp(
        f"{len(ops)} operator{'s' * (len(ops) > 1)} of this model cannot be written in MATLAB",
        rows,
        hint="cut them off with sx.cut, or run the model elsewhere",
    )

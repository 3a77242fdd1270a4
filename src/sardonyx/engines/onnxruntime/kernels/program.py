"""A group of elementwise nodes as one `Fused` node, and the C function that computes it.

The text of a function depends on operators and constants alone, so that equal layers share one. All
inputs of an element are read before any result is written. Where a program sums over rows, it
passes over a row once more after each sum that something depends on; what a later pass reads of
an earlier one is kept in a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

DOMAIN = "sardonyx.kernels"
WHOLE, ROW, SUM = range(3)  # what the value of a member is

FORMULAS = {
    "Abs": "fabsf({0})",
    "Add": "{0} + {1}",
    "And": "{0} != 0.0f && {1} != 0.0f ? 1.0f : 0.0f",
    "Cast": "{0}",
    "Div": "{0} / {1}",
    "Equal": "{0} == {1} ? 1.0f : 0.0f",
    "Erf": "error_function({0})",
    "Exp": "exponential({0})",
    "Greater": "{0} > {1} ? 1.0f : 0.0f",
    "GreaterOrEqual": "{0} >= {1} ? 1.0f : 0.0f",
    "Identity": "{0}",
    "Less": "{0} < {1} ? 1.0f : 0.0f",
    "LessOrEqual": "{0} <= {1} ? 1.0f : 0.0f",
    "Max": "greater_of({0}, {1})",
    "Min": "less_of({0}, {1})",
    "Mul": "{0} * {1}",
    "Neg": "-{0}",
    "Not": "{0} == 0.0f ? 1.0f : 0.0f",
    "Or": "{0} != 0.0f || {1} != 0.0f ? 1.0f : 0.0f",
    "Reciprocal": "1.0f / {0}",
    "Relu": "{0} < 0.0f ? 0.0f : {0}",
    "Sigmoid": "logistic({0})",
    "Sign": "sign({0})",
    "Sqrt": "sqrtf({0})",
    "Sub": "{0} - {1}",
    "Tanh": "hyperbolic_tangent({0})",
    "Where": "{0} != 0.0f ? {1} : {2}",
}
ARITY = {name: sum(f"{{{i}}}" in text for i in range(3)) for name, text in FORMULAS.items()}
REDUCTIONS = frozenset(("ReduceSum", "ReduceMean"))


@dataclass
class Member:
    """A node of a group.

    kind -- whether its value has one number for each element, one for each row, or is a sum
    axes -- which axes a sum runs over, and whether they stay as axes of one element
    """

    node: ir.Node
    kind: int = WHOLE
    axes: tuple[int, ...] = ()
    keep: bool = True

    @property
    def value(self) -> ir.Value:
        return self.node.outputs[0]

    @property
    def operands(self) -> list[ir.Value]:
        values = [v for v in self.node.inputs if v is not None]
        return values[:1] if self.node.op_type in REDUCTIONS else values

    @property
    def reduces(self) -> bool:
        return self.kind == ROW and self.node.op_type in REDUCTIONS


@dataclass
class _Pass:
    """One loop over the elements of a block.

    before -- statements for the whole row
    loop   -- statements for one element
    sums   -- of the row, that are added up
    """

    before: list[str] = field(default_factory=list)
    loop: list[str] = field(default_factory=list)
    sums: list[str] = field(default_factory=list)


class _Writer:
    """Writes the function of a group."""

    def __init__(self, members: Sequence[Member], results: Sequence[ir.Value]):
        self.members, self.results = members, results
        self.inputs: list[ir.Value] = []
        self.names: dict[ir.Value, str] = {}  # of members, as C calls them
        self.kinds = {m.value: m.kind for m in members}
        self.row_sums = {m.value for m in members if m.reduces}
        self.at: dict[ir.Value, int] = {}  # the pass in which a member is computed
        self.buffers: dict[ir.Value, int] = {}
        self.loads: list[dict[str, str]] = []  # of each pass: name → what it reads
        self.passes: list[_Pass] = []

    def write(self) -> str:
        for number, member in enumerate(self.members):
            self._place(member, f"v{number}")
        for member in self.members:
            self._statement(member)
        for slot, value in enumerate(self.results):
            self._store(slot, value)
        return self._text()

    def _place(self, member: Member, name: str) -> None:
        """Where and under which name a member is computed."""
        after = [self.at[v] + (v in self.row_sums) for v in member.operands if v in self.at]
        self.at[member.value] = max(after, default=0)
        self.names[member.value] = name
        self._pass(self.at[member.value])

    def _statement(self, member: Member) -> None:
        if member.kind == SUM:
            return
        name, place = self.names[member.value], self.at[member.value]
        here = self.passes[place]
        row = member.kind == ROW and not member.reduces
        operands = [self._operand(v, place, row) for v in member.operands]
        if member.reduces:
            here.sums.append(f"s_{name}")
            here.loop.append(f"s_{name} += {operands[0]};")
            mean = " / (float)n" if member.node.op_type == "ReduceMean" else ""
            self._pass(place + 1).before.append(f"const float {name} = s_{name}{mean};")
            return
        formula = FORMULAS[member.node.op_type]
        first, *others = operands
        text = formula.format(first, *others)
        for other in others[1:] if member.node.op_type in ("Max", "Min") else ():
            text = formula.format(text, other)
        (here.before if row else here.loop).append(f"const float {name} = {text};")

    def _pass(self, index: int) -> _Pass:
        while len(self.passes) <= index:
            self.passes.append(_Pass())
            self.loads.append({})
        return self.passes[index]

    def _operand(self, value: ir.Value, place: int, row: bool) -> str:
        if value in self.names:
            if self.kinds[value] == ROW or self.at[value] == place:
                return self.names[value]
            if value not in self.buffers:
                self.buffers[value] = len(self.buffers)
            buffer = self.buffers[value]
            name = f"b{buffer}"
            self.loads[place][name] = f"const float {name} = t{buffer}[i];"
            return name
        number = single_number(value)
        if number is not None:
            return literal(number)
        if value not in self.inputs:
            self.inputs.append(value)
        slot = self.inputs.index(value)
        if row or is_single(value):
            return f"x{slot}" if is_single(value) else f"i{slot}[0]"
        self.loads[place][f"x{slot}"] = f"const float x{slot} = i{slot}[i];"
        return f"x{slot}"

    def _store(self, slot: int, value: ir.Value) -> None:
        member = next(m for m in self.members if m.value is value)
        if member.kind == SUM:
            source = member.operands[0]
            place = self.at[value]
            name = self._operand(source, place, row=False)
            self.passes[place].loop.append(f"o{slot}[i] = {name};")
        elif member.kind == ROW:
            place = self.at[value] + member.reduces
            self._pass(place).before.append(f"o{slot}[0] = {self.names[value]};")
        else:
            self.passes[self.at[value]].loop.append(f"o{slot}[i] = {self.names[value]};")

    def _text(self) -> str:
        for value, buffer in self.buffers.items():
            store = f"t{buffer}[i] = {self.names[value]};"
            self.passes[self.at[value]].loop.append(store)
        lines = [
            f"const float x{slot} = in[{slot}][0];"
            if is_single(value)
            else f"const float *i{slot} = in[{slot}];"
            for slot, value in enumerate(self.inputs)
        ]
        lines += [f"float *o{slot} = out[{slot}];" for slot in range(len(self.results))]
        lines += [
            f"float *t{slot} = scratch + {slot} * width;" for slot in range(len(self.buffers))
        ]
        for index, here in enumerate(self.passes):
            lines += here.before
            if not here.loop:
                continue
            lines += [f"float {name} = 0.0f;" for name in here.sums]
            sums = f" reduction(+ : {', '.join(here.sums)})" if here.sums else ""
            lines.append(f"#pragma omp simd{sums}")
            lines.append("for (int64_t i = 0; i < n; i++) {")
            lines += [f"  {line}" for line in (*self.loads[index].values(), *here.loop)]
            lines.append("}")
        lines.append("(void)in, (void)out, (void)scratch, (void)n, (void)width;")
        return "\n  ".join(lines)


def literal(number: float) -> str:
    if not math.isfinite(number):
        return "NAN" if math.isnan(number) else f"({'-' if number < 0 else ''}INFINITY)"
    return f"({float(number).hex()}f)"


def single_number(value: ir.Value) -> float | None:
    """The number of a constant of one element."""
    tensor = value.const_value if value.is_initializer() else None
    if tensor is None or value.is_graph_input() or tensor.size != 1:
        return None
    return float(tensor.numpy().reshape(()))


def is_single(value: ir.Value) -> bool:
    return value.shape is not None and all(d == 1 for d in value.shape)


class Programs:
    """The functions of a step, each text once."""

    def __init__(self) -> None:
        self.bodies: dict[str, int] = {}

    def node(self, members: Sequence[Member], results: Sequence[ir.Value], rank: int) -> ir.Node:
        """One node for all members; its outputs stand for `results`, in their order.

        rank -- of the shape that all members work on
        """
        writer = _Writer(members, results)
        text = writer.write()
        number = self.bodies.setdefault(text, len(self.bodies))
        by_value = {m.value: m for m in members}
        by_rows = any(m.kind == ROW for m in members)
        program = [number, len(writer.inputs), len(results), len(writer.buffers)]
        program += [int(by_rows), rank]
        for member in (by_value[v] for v in results):
            mask = sum(1 << axis for axis in member.axes)
            program += [member.kind, mask, int(member.keep)]
        attribute = ir.AttrInt64s("program", program)
        return ir.Node(DOMAIN, "Fused", writer.inputs, [attribute], num_outputs=len(results))

    def source(self) -> str:
        """The C text of all functions, and the table of them."""
        head = "const float *const *in, float *const *out, float *scratch, int64_t n, int64_t width"
        functions = [
            f"static void body_{number}({head}) {{\n  {text}\n}}\n"
            for text, number in self.bodies.items()
        ]
        names = ", ".join(f"body_{number}" for number in self.bodies.values())
        return "\n".join([*functions, f"static const Body BODIES[] = {{{names or 0}}};"])


def is_fused(node: ir.Node) -> bool:
    """Whether a node is one of these: it reads an element before it writes it."""
    return node.domain == DOMAIN and node.op_type == "Fused"

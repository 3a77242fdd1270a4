"""The C function of one step of a loop over rows: expressions of columns, products between them.

A value of a step is a matrix whose rows belong to the rows of a batch. Here it is a list of pieces,
side by side, each an expression of one column; cutting and joining columns moves nothing. What a
product multiplies is stored in a buffer, and so is what it gives. Products divide a step into
stages: in each, a product comes first, then one pass over every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sardonyx.engines.onnxruntime.kernels.program import FORMULAS, literal

LOAD, NUMBER = "load", "number"  # what is no operator


@dataclass(frozen=True)
class Buffer:
    """Memory that a step reads or writes.

    kind  -- "read": a slice of a sequence, "write": likewise, "now", "next": states, "outer": the
             same in every step, "temp": of this step alone
    width -- how many columns it has
    row   -- how far the next row is, in C; 0 where all rows share one
    """

    kind: str
    index: int
    width: int
    row: str
    flag: bool = False  # whether its elements are bool


@dataclass(frozen=True, eq=False)
class Expression:
    """One number for each row and column.

    stage    -- after which product it can be computed
    buffer   -- of a load, with the column where it starts and how far the next one is
    """

    operator: str
    width: int
    stage: int = 0
    operands: tuple[Expression, ...] = ()
    buffer: Buffer | None = None
    start: int = 0
    step: int = 1
    number: float = 0.0


Pieces = tuple[Expression, ...]


@dataclass(frozen=True)
class Multiplication:
    left: Pieces
    matrix: int
    depth: int
    columns: int
    result: Buffer
    stage: int


def width(pieces: Pieces) -> int:
    return sum(p.width for p in pieces)


@dataclass
class LoopProgram:
    """What one step computes.

    temps -- the widths of buffers of a step
    """

    temps: list[int] = field(default_factory=list)
    products: list[Multiplication] = field(default_factory=list)
    stores: dict[Buffer, Pieces] = field(default_factory=dict)
    known: dict[object, Expression] = field(default_factory=dict)

    # -- expressions ------------------------------------------------------------------

    def load(
        self, buffer: Buffer, start: int, columns: int, step: int = 1, stage: int = 0
    ) -> Pieces:
        key = (buffer, start, columns, step)
        if key not in self.known:
            self.known[key] = Expression(LOAD, columns, stage, (), buffer, start, step)
        return (self.known[key],)

    def number(self, value: float) -> Pieces:
        return (self.known.setdefault(repr(value), Expression(NUMBER, 1, number=value)),)

    def apply(self, operator: str, values: Sequence[Pieces]) -> Pieces:
        """An elementwise operator; values of one column count for all columns."""
        columns = max(width(v) for v in values)
        spread = [
            tuple(self._spread(p, columns) for p in v) if width(v) == 1 else v for v in values
        ]
        ends = sorted({end for v in spread for end in _ends(v)})
        begins = [0, *ends[:-1]]
        pieces = []
        for begin, end in zip(begins, ends, strict=True):
            parts = [self.cut(v, begin, end)[0] for v in spread]
            pieces.append(self._operation(operator, parts))
        return tuple(pieces)

    def _operation(self, operator: str, operands: Sequence[Expression]) -> Expression:
        key = (operator, *operands)
        if key not in self.known:
            stage = max(o.stage for o in operands)
            self.known[key] = Expression(operator, operands[0].width, stage, tuple(operands))
        return self.known[key]

    def _spread(self, piece: Expression, columns: int) -> Expression:
        if piece.operator == NUMBER:
            key = (piece, columns)
            return self.known.setdefault(key, Expression(NUMBER, columns, number=piece.number))
        if piece.buffer is not None:
            return self.load(piece.buffer, piece.start, columns, 0, piece.stage)[0]
        return self._operation(piece.operator, [self._spread(o, columns) for o in piece.operands])

    def cut(self, pieces: Pieces, begin: int, end: int) -> Pieces:
        """Some of the columns."""
        parts, at = [], 0
        for piece in pieces:
            first, last = max(begin - at, 0), min(end - at, piece.width)
            if first < last:
                parts.append(self._part(piece, first, last))
            at += piece.width
        return tuple(parts)

    def _part(self, piece: Expression, first: int, last: int) -> Expression:
        columns = last - first
        if columns == piece.width:
            return piece
        if piece.operator == NUMBER:
            key = (NUMBER, piece.number, columns)
            return self.known.setdefault(key, Expression(NUMBER, columns, number=piece.number))
        if piece.buffer is not None:
            start = piece.start + first * piece.step
            return self.load(piece.buffer, start, columns, piece.step, piece.stage)[0]
        return self._operation(piece.operator, [self._part(o, first, last) for o in piece.operands])

    def multiply(self, left: Pieces, matrix: int, depth: int, columns: int) -> Pieces:
        stage = 1 + max(p.stage for p in left)
        result = self._temp(columns)
        self.products.append(Multiplication(left, matrix, depth, columns, result, stage))
        return self.load(result, 0, columns, stage=stage)

    def _temp(self, columns: int) -> Buffer:
        self.temps.append(columns)
        return Buffer("temp", len(self.temps) - 1, columns, f"PADDED({columns})")

    # -- the text ---------------------------------------------------------------------

    def text(self) -> str:
        """The statements of a step. All results have been put into `stores` by now."""
        operands = [self._stored(p.left) for p in self.products]
        self._keep_for_later_stages()
        lines: list[str] = []
        stages = {p.stage for p in self.products}
        stages |= {e.stage for pieces in self.stores.values() for e in pieces}
        for stage in sorted(stages):
            for product, buffer in zip(self.products, operands, strict=True):
                if product.stage == stage:
                    lines.append(_product(product, buffer))
            lines += self._passes(stage)
        return "\n  ".join(lines)

    def _stored(self, pieces: Pieces) -> Buffer:
        """A buffer with these columns, to be multiplied."""
        first = pieces[0]
        if len(pieces) == 1 and first.buffer is not None and _can_be_multiplied(first):
            return first.buffer
        for buffer, stored in self.stores.items():
            if stored == pieces:
                return buffer
        buffer = self._temp(width(pieces))
        self.stores[buffer] = pieces
        return buffer

    def _keep_for_later_stages(self) -> None:
        """Store what a later stage needs of an earlier one."""
        pending = [(e, e.stage) for pieces in self.stores.values() for e in pieces]
        self.kept: dict[Expression, tuple[Buffer, int]] = {}
        for buffer, pieces in self.stores.items():
            for piece, end in zip(pieces, _ends(pieces), strict=True):
                self.kept.setdefault(piece, (buffer, end - piece.width))
        seen = set(pending)
        while pending:
            expression, stage = pending.pop()
            if expression.operands and expression.stage < stage:
                if expression not in self.kept:
                    buffer = self._temp(expression.width)
                    self.stores[buffer] = (expression,)
                    self.kept[expression] = (buffer, 0)
                stage = expression.stage
            for operand in expression.operands:
                if (operand, stage) not in seen:
                    seen.add((operand, stage))
                    pending.append((operand, stage))

    def _passes(self, stage: int) -> list[str]:
        """A pass over the rows: for each width a loop over the columns."""
        loops: dict[int, _Loop] = {}
        for buffer, pieces in self.stores.items():
            for piece, end in zip(pieces, _ends(pieces), strict=True):
                if piece.stage == stage:
                    loop = loops.setdefault(piece.width, _Loop(stage, self.kept))
                    loop.store(buffer, end - piece.width, piece)
        lines = [line for columns, loop in loops.items() for line in loop.text(columns)]
        return ["for (int64_t r = 0; r < rows; r++) {", *(f"  {s}" for s in lines), "}"]


def _ends(pieces: Pieces) -> list[int]:
    ends, at = [], 0
    for piece in pieces:
        at += piece.width
        ends.append(at)
    return ends


def _can_be_multiplied(e: Expression) -> bool:
    """Whether what is loaded is a whole buffer of numbers, with rows of its own."""
    buffer = e.buffer
    if buffer is None or buffer.flag or buffer.row == "0":
        return False
    return buffer.width == e.width and e.step == 1


def _base(buffer: Buffer) -> str:
    return f"{buffer.kind}[{buffer.index}]"


def _product(product: Multiplication, left: Buffer) -> str:
    arguments = f"{_base(left)}, {left.row}, {product.depth}, matrix[{product.matrix}]"
    target = f"{_base(product.result)}, {product.columns}"
    return f"multiply_panels({arguments}, {target}, rows, panels);"


class _Loop:
    """One loop over columns: pointers before it, statements in it."""

    def __init__(self, stage: int, kept: dict[Expression, tuple[Buffer, int]]):
        self.stage, self.kept = stage, kept
        self.before: list[str] = []
        self.inside: list[str] = []
        self.names: dict[object, str] = {}

    def store(self, buffer: Buffer, start: int, piece: Expression) -> None:
        name = self._expression(piece)
        target = self._pointer(buffer, start, "float *restrict")
        self.inside.append(f"{target}[i] = {name};")

    def _expression(self, e: Expression) -> str:
        if e in self.names:
            return self.names[e]
        if e.operator == NUMBER:
            return literal(e.number)
        if e.buffer is not None:
            text = self._read(e.buffer, e.start, e.step)
        elif e.stage < self.stage:
            text = self._read(*self.kept[e], 1)
        else:
            operands = [self._expression(o) for o in e.operands]
            text = FORMULAS[e.operator].format(*operands)
        self.names[e] = f"v{len(self.names)}"
        lines = self.before if e.buffer is not None and e.step == 0 else self.inside
        lines.append(f"const float {self.names[e]} = {text};")
        return self.names[e]

    def _read(self, buffer: Buffer, start: int, step: int) -> str:
        kind = "const unsigned char *" if buffer.flag else "const float *"
        element = f"{self._pointer(buffer, start, kind)}[{'i' if step else 0}]"
        return f"{element} ? 1.0f : 0.0f" if buffer.flag else element

    def _pointer(self, buffer: Buffer, start: int, kind: str) -> str:
        key = (buffer, start, kind)
        if key not in self.names:
            self.names[key] = name = f"p{len(self.names)}"
            base = f"({kind.removesuffix('restrict')}){_base(buffer)}"
            self.before.append(f"{kind} {name} = {base} + r * {buffer.row} + {start};")
        return self.names[key]

    def text(self, columns: int) -> Iterable[str]:
        head = ["#pragma omp simd", f"for (int64_t i = 0; i < {columns}; i++) {{"]
        return ["{", *self.before, *head, *(f"  {s}" for s in self.inside), "}", "}"]

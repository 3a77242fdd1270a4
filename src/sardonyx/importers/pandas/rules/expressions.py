"""query and eval: expressions in strings, read by Python's parser."""

from __future__ import annotations

import ast
import operator
import re
import sys
from typing import Any

import numpy as np

from sardonyx.importers.pandas.recorder import Proxy, place, refuse, rule

BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
COMPARE = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
LOCAL = "__local_"


def evaluate(frame: Any, expression: str) -> Any:
    """The value of an expression of pandas over the columns of a frame."""
    names = {f"__column_{i}": n for i, n in enumerate(frame.series)}
    text = expression.strip()
    for alias, name in names.items():
        text = text.replace(f"`{name}`", alias)
    text = re.sub(r"@(\w+)", rf"{LOCAL}\1", text)
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        refuse(f"the expression is not valid: {error.msg}")
    return _Reader(frame, names).read(tree)


class _Reader:
    def __init__(self, frame: Any, names: dict[str, Any]):
        self.frame, self.names = frame, names

    def read(self, node: Any) -> Any:
        method = getattr(self, f"read_{type(node).__name__}", None)
        if method is None:
            refuse(f"{type(node).__name__} in an expression has no rule")
        return method(node)

    def read_Constant(self, node: Any) -> Any:
        return node.value

    def read_List(self, node: Any) -> Any:
        return [self.read(e) for e in node.elts]

    read_Tuple = read_List

    def read_Name(self, node: Any) -> Any:
        name = node.id
        if name.startswith(LOCAL):
            return _local(name.removeprefix(LOCAL))
        if name in self.names:
            return self.frame[self.names[name]]
        if name in self.frame.series:
            return self.frame[name]
        return refuse(f"{name} in the expression is no column", "refer to variables by @name")

    def read_BinOp(self, node: Any) -> Any:
        operation = BINARY.get(type(node.op))
        if operation is None:
            refuse(f"{type(node.op).__name__} in an expression has no rule")
        return operation(self.read(node.left), self.read(node.right))

    def read_UnaryOp(self, node: Any) -> Any:
        value = self.read(node.operand)
        if isinstance(node.op, ast.USub):
            return -value
        if isinstance(node.op, (ast.Not, ast.Invert)):
            return ~value
        return value

    def read_BoolOp(self, node: Any) -> Any:
        values = [self.read(v) for v in node.values]
        result = values[0]
        for value in values[1:]:
            result = result & value if isinstance(node.op, ast.And) else result | value
        return result

    def read_Compare(self, node: Any) -> Any:
        left, result = self.read(node.left), None
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.read(right_node)
            part = self.compared(op, left, right)
            result = part if result is None else result & part
            left = right
        return result

    def compared(self, op: Any, left: Any, right: Any) -> Any:
        several = isinstance(right, (list, tuple, set, np.ndarray))
        if isinstance(op, (ast.In, ast.NotIn)) or (several and isinstance(op, (ast.Eq, ast.NotEq))):
            inside = left.isin(list(right))
            return inside if isinstance(op, (ast.In, ast.Eq)) else ~inside
        return COMPARE[type(op)](left, right)

    def read_Attribute(self, node: Any) -> Any:
        return getattr(self.read(node.value), node.attr)

    def read_Call(self, node: Any) -> Any:
        options = {k.arg: self.read(k.value) for k in node.keywords if k.arg}
        if isinstance(node.func, ast.Name):
            function = getattr(np, {"abs": "absolute"}.get(node.func.id, node.func.id), None)
            if function is None:
                refuse(f"the function {node.func.id} in an expression has no rule")
            return function(*(self.read(a) for a in node.args), **options)
        return self.read(node.func)(*(self.read(a) for a in node.args), **options)

    def read_Subscript(self, node: Any) -> Any:
        return self.read(node.value)[self.read(node.slice)]


def _local(name: str) -> Any:
    """A variable of the user's function."""
    here = place()
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == here.file and frame.f_lineno == here.line:
            for scope in (frame.f_locals, frame.f_globals):
                if name in scope:
                    return scope[name]
        frame = frame.f_back  # type: ignore[assignment]
    return refuse(f"the variable {name} of the expression is not defined")


@rule("DataFrame", "eval")
def eval_(self: Any, expr: str, *, inplace: bool = False) -> Any:
    lines = [line.strip() for line in expr.strip().splitlines() if line.strip()]
    target = self if inplace else self.copy()
    for line in lines:
        match = re.match(r"^(\w+)\s*=(?!=)\s*(.+)$", line)
        if match is None:
            if len(lines) > 1 or inplace:
                refuse("several lines of eval must all be assignments")
            value = evaluate(self, line)
            return value.named(None) if isinstance(value, Proxy) else value
        target[match[1]] = evaluate(target, match[2])
    return None if inplace else target

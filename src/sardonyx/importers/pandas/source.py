"""Source: comprehensions and dicts written in a function, as calls that the recording can answer.

Python has no hook for `[f(a) for a in column]`, nor for `{...}[value of a row]`. The function is
compiled again from its source, with a call in the place of each. Where the source is not at hand,
or is not the one that the function was compiled from, the function stays as it is.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

ROWS, TABLE = "__sardonyx_rows__", "__sardonyx_table__"
_FUTURES = sum(getattr(__future__, n).compiler_flag for n in __future__.all_feature_names)
_compiled: set[types.CodeType] = set()  # by `recompiled`, which does not do it twice


def recompiled(function: types.FunctionType) -> types.CodeType:
    """The code of a function, with calls of ROWS and TABLE where it needs them."""
    code = function.__code__
    if code in _compiled or "__class__" in code.co_freevars:
        return code
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return code
    ast.increment_lineno(tree, max(first, 1) - 1)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)) and _is_of(node, code):
            changed = ast.fix_missing_locations(_Calls().visit(node))
            result = _code_of(changed, code)
            if result is not None and set(result.co_freevars) <= set(code.co_freevars):
                _compiled.update(_with_inner(result))
                return result
    return code


def _is_of(node: ast.AST, code: types.CodeType) -> bool:
    """Whether a function of the source is the one that was compiled."""
    if getattr(node, "name", "<lambda>") != code.co_name:
        return False
    again = _code_of(node, code)
    return again is not None and _outline(again) == _outline(code)


def _outline(code: types.CodeType) -> list[Any]:
    """What two codes of one source have in common: names, constants and lines.

    How a function of a module is called depends on the imports of the file, and the first line on
    the decorators, which are not here.
    """
    lines = {line for _, _, line in code.co_lines()} - {code.co_firstlineno}
    plain = [
        sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
        if not isinstance(c, types.CodeType)
    ]
    inner = [_outline(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return [code.co_names, code.co_varnames, code.co_freevars, lines, plain, inner]


def _code_of(node: Any, like: types.CodeType) -> types.CodeType | None:
    """The code of a function of the source, inside a function that has its free variables."""
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = []
        body: list[ast.stmt] = [node]
    else:
        body = [ast.Expr(node)]
    module = ast.parse(f"def outer({', '.join(like.co_freevars)}): pass")
    module.body[0].body = body  # type: ignore[attr-defined]
    ast.fix_missing_locations(module)
    flags = like.co_flags & _FUTURES
    whole: Any = compile(module, like.co_filename, "exec", flags, dont_inherit=True)
    inner = next(_with_inner(whole, skip=1))
    codes = [c for c in inner.co_consts if isinstance(c, types.CodeType)]
    return next((c for c in codes if c.co_name == like.co_name), None)


def _with_inner(code: types.CodeType, skip: int = 0) -> Iterator[types.CodeType]:
    if not skip:
        yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant, max(skip - 1, 0))


class _Calls(ast.NodeTransformer):
    def visit_ListComp(self, node: ast.ListComp) -> Any:
        self.generic_visit(node)
        first, *others = node.generators
        targets = first.target.elts if isinstance(first.target, ast.Tuple) else [first.target]
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        bound = any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(node))
        if others or first.ifs or first.is_async or bound or len(names) < len(targets):
            return node
        arguments = ast.arguments(
            posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[],
            defaults=[],
        )  # fmt: skip
        many = ast.Constant(isinstance(first.target, ast.Tuple))
        call = ast.Call(
            ast.Name(ROWS, ast.Load()), [ast.Lambda(arguments, node.elt), first.iter, many], []
        )
        return ast.copy_location(call, node)

    def visit_Dict(self, node: ast.Dict) -> Any:
        self.generic_visit(node)
        call = ast.Call(ast.Name(TABLE, ast.Load()), [node], [])
        return ast.copy_location(call, node)

"""Functions that are not pure: what they change outside of themselves while JAX traces them.

JAX runs the Python code of a function once, and keeps its equations. What the code counts, collects
or draws then has another value than the code that is called each time would have.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from types import CodeType
from typing import Any

import numpy as np
from jax import tree_util
from jax._src import core

from sardonyx.errors import ArgumentError, quote

SHOWN = 3
DEPTH = 4  # of functions in functions, and of containers in containers
LONGEST = 1000  # items of a container that are looked at
Key = tuple[int, str]  # of a variable: whose it is, and its name
PLAIN = (bool, int, float, complex, str, bytes, type(None))
INSTALLED = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")})
HINT = "what a step counts, collects or draws belongs into its state and its results"


@contextlib.contextmanager
def pure(*functions: Callable[..., Any]) -> Iterator[None]:
    """Inside, functions are traced; what they have changed outside of themselves is an error.

    Looked at are closures, globals, and attributes of the object whose method a function is: plain
    values, arrays of NumPy and containers of these.
    """
    before = {key: _content(value) for key, value in _all_variables(functions)}
    try:
        yield
    except Exception as error:
        _require_unchanged(functions, before, error)
        raise
    _require_unchanged(functions, before, None)


def _require_unchanged(
    functions: Sequence[Any], before: dict[Key, Any], cause: Exception | None
) -> None:
    rows = []
    for key, value in _all_variables(functions):
        leaks = [leaf for leaf in _leaves(value) if isinstance(leaf, core.Tracer)]
        if leaks:
            rows.append([quote(key[1]), f"keeps {leaks[0].aval.str_short()} of the trace"])
        elif key in before and _is_changed(before[key], _content(value)):
            rows.append([quote(key[1]), "is changed"])
    if rows:
        what = "the function is not pure: it changes what is outside of it"
        raise ArgumentError(what, rows, HINT) from cause


def _all_variables(functions: Sequence[Any]) -> Iterator[tuple[Key, Any]]:
    seen: set[int] = set()
    for function in functions:
        yield from _variables(function, seen, DEPTH)


def _variables(function: Any, seen: set[int], depth: int) -> Iterator[tuple[Key, Any]]:
    """The variables outside of a function, and those of the functions that it calls."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if owner is None and not hasattr(function, "__code__"):
        owner = function
    if owner is not None and id(owner) not in seen and _is_of_user(type(owner)):
        seen.add(id(owner))
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            yield from _of_value((id(owner), f"self.{name}"), value, seen, depth)
    function = getattr(function, "__func__", function)
    function = inspect.unwrap(function) if callable(function) else function
    code = getattr(function, "__code__", None)
    if code is None or id(function) in seen or code.co_filename.startswith(INSTALLED):
        return
    seen.add(id(function))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that is assigned later
            yield from _of_value((id(function), name), cell.cell_contents, seen, depth)
    for name in _global_names(code):
        if name in function.__globals__:
            value = function.__globals__[name]
            yield from _of_value((id(function), name), value, seen, depth)


def _global_names(code: CodeType) -> set[str]:
    """The names of a function's code and of the functions inside it."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _of_value(key: Key, value: Any, seen: set[int], depth: int) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, (*PLAIN, list, dict, set, np.ndarray, core.Tracer)):
        yield key, value
    elif depth and inspect.isroutine(inspect.unwrap(value) if callable(value) else value):
        yield from _variables(value, seen, depth - 1)


def _is_of_user(kind: type) -> bool:
    """Whether a class is the user's own, not one of a library with caches of its own."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return kind.__module__ not in sys.builtin_module_names and not path.startswith(INSTALLED)


def _content(value: Any, depth: int = DEPTH) -> Any:
    """What a variable holds, in a form that a later change does not reach."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes() if value.size <= LONGEST else None
    if isinstance(value, PLAIN):
        return value
    if depth and isinstance(value, dict) and len(value) <= LONGEST:
        return {k: _content(v, depth - 1) for k, v in value.items()}
    if depth and isinstance(value, (list, tuple)) and len(value) <= LONGEST:
        return [_content(v, depth - 1) for v in value]
    if isinstance(value, (list, dict, set)):
        return len(value)
    return id(value)


def _is_changed(before: Any, after: Any) -> bool:
    """Whether content is another one; new keys of a dict are what memories of results have."""
    if isinstance(before, dict) and isinstance(after, dict):
        return any(k not in after or _is_changed(v, after[k]) for k, v in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) != len(after) or any(map(_is_changed, before, after))
    return type(before) is not type(after) or bool(before != after and before == before)


def _leaves(value: Any) -> list[Any]:
    try:
        return tree_util.tree_leaves(list(value) if isinstance(value, set) else value)
    except (TypeError, ValueError):  # keys of a dict that cannot be sorted
        return list(value.values()) if isinstance(value, dict) else []


def require_repeatable(trace: Callable[[], Any], what: str) -> None:
    """Refuse a function that is another one each time it is traced."""
    first, second = _equations(trace()), _equations(trace())
    rows = [
        [f"once {a.strip()}", f"then {b.strip()}"]
        for a, b in zip_longest(first, second, fillvalue="")
        if a != b
    ]
    if rows:
        raise ArgumentError(
            f"{what} is not pure: each time it is traced, it computes something else",
            rows[:SHOWN],
            hint="counters and random numbers of Python or NumPy belong into the state",
        )


def _equations(traced: Any) -> list[str]:
    text = re.sub(r" at 0x[0-9a-f]+", "", str(traced.jaxpr.jaxpr))
    constants = [f"constant {np.asarray(c).tolist()}" for c in traced.jaxpr.consts]
    return [*text.splitlines(), *constants]

"""Functions that are not pure: what they change outside of themselves while JAX traces them.

JAX runs the Python code of a function once, and keeps its equations. What the code counts, collects
or draws then has another value than the code that is called each time would have.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from types import CodeType, ModuleType
from typing import Any

import numpy as np
from jax import tree_util
from jax._src import core, source_info_util

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

    Looked at are closures, globals, default values, and attributes of the user's own objects: plain
    values, arrays of NumPy and containers of these. What keeps a value of the trace anywhere else
    is found by the garbage collector.
    """
    before = {key: _content(value) for key, value in _all_variables(functions)}
    older = {id(tracer) for tracer in _live_tracers()}
    try:
        yield
    except Exception as error:
        _require_unchanged(functions, before, error)
        raise
    _require_unchanged(functions, before, None)
    _require_no_leaks(older)


def _live_tracers() -> list[Any]:
    # By type: `isinstance` asks for `__class__`, where proxies of other libraries run code.
    return [value for value in gc.get_objects() if issubclass(type(value), core.Tracer)]


def _require_no_leaks(older: set[int]) -> None:
    """Refuse a function that keeps values of its trace, wherever it does."""
    if not any(id(tracer) not in older for tracer in _live_tracers()):
        return
    gc.collect()  # what only a cycle has kept is no leak
    leaks = [tracer for tracer in _live_tracers() if id(tracer) not in older]
    inner = {id(value) for value in gc.get_referents(*leaks)}  # what other tracers are made of
    lines = {
        f"{leak.aval.str_short()} of {source_info_util.summarize(leak._line_info)}": None
        for leak in leaks
        if id(leak) not in inner
    }
    if lines:
        raise ArgumentError(
            "the function is not pure: it keeps values of its trace outside of it",
            [[line] for line in list(lines)[:SHOWN]],
            HINT,
        )


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
        for name, value in [*enumerate(function.args), *function.keywords.items()]:
            yield from _of_value((id(function), f"argument {name}"), value, seen, depth)
        function = function.func
    owner = getattr(function, "__self__", None)
    if owner is None and not hasattr(function, "__code__"):
        owner = function
    if owner is not None:
        yield from _attributes("self", owner, seen, depth)
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
    for name, value in _defaults(function).items():
        yield from _of_value((id(function), name), value, seen, depth)


def _defaults(function: Any) -> dict[str, Any]:
    """The default values of a function by its arguments' names, and its attributes."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    attributes = {f"{function.__name__}.{n}": v for n, v in vars(function).items()}
    return {
        **dict(zip(names, values, strict=True)),
        **(function.__kwdefaults__ or {}),
        **attributes,
    }


def _attributes(name: str, owner: Any, seen: set[int], depth: int) -> Iterator[tuple[Key, Any]]:
    """The attributes of an object of the user, and of its class."""
    kind = owner if isinstance(owner, type) else type(owner)
    if id(owner) in seen or not _is_of_user(kind):
        return
    seen.add(id(owner))
    for attribute, value in list(getattr(owner, "__dict__", {}).items()):
        yield from _of_value((id(owner), f"{name}.{attribute}"), value, seen, depth)


def _global_names(code: CodeType) -> set[str]:
    """The names of a function's code and of the functions inside it."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _of_value(key: Key, value: Any, seen: set[int], depth: int) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, (*PLAIN, list, tuple, dict, set, np.ndarray, core.Tracer)):
        yield key, value
    elif depth and inspect.isroutine(inspect.unwrap(value) if callable(value) else value):
        yield from _variables(value, seen, depth - 1)
    elif depth and not isinstance(value, ModuleType):
        yield from _attributes(key[1], value, seen, depth - 1)


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

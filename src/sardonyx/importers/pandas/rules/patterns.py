"""Python's `re` inside a function of rows, by the methods of pandas' strings."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sardonyx.importers.pandas.recorder import Proxy, refuse
from sardonyx.importers.pandas.rules.apply import Scalar, demand


def is_value(value: Any) -> bool:
    return isinstance(value, Scalar)


def _text(pattern: Any, flags: int) -> tuple[str, int]:
    if isinstance(pattern, Pattern):
        pattern = pattern.real
    if isinstance(pattern, re.Pattern):
        return pattern.pattern, (pattern.flags & ~re.UNICODE) | flags
    return pattern, flags


def _checked(value: Any) -> Any:
    demand(value.notna, TypeError("expected string or bytes-like object, got 'float'"))
    return value


class Match(Proxy):
    """What `re.search` gives on the rows in which it finds something."""

    _owner = "re.Match"

    def __init__(self, value: Any, pattern: str, flags: int):
        self.value, self.pattern, self.flags = value, pattern, flags

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: Any) -> Any:
        return self.group(key)

    def group(self, *keys: Any) -> Any:
        """The text of a group, by number or name."""
        if len(keys) > 1:
            return tuple(self.group(key) for key in keys)
        key = keys[0] if keys else 0
        names = re.compile(self.pattern, self.flags).groupindex
        number = names[key] if isinstance(key, str) else key
        # The whole match is a group around the pattern, which moves the others by one.
        parts = self.value.str.extract(f"({self.pattern})", self.flags)
        return Scalar(list(parts.series.values())[number].step, None)

    def groups(self) -> Any:
        count = re.compile(self.pattern, self.flags).groups
        return tuple(self.group(k) for k in range(1, count + 1))


class Matches(Proxy):
    """The list that `re.findall` gives: how many there are, and the first."""

    _owner = "list"

    def __init__(self, value: Any, pattern: str, flags: int):
        self.value, self.pattern, self.flags = value, pattern, flags

    def size(self) -> Any:
        return Scalar(self.value.str.count(self.pattern, self.flags).step, None)

    def __bool__(self) -> bool:
        return bool(self.size() > 0)

    def __getitem__(self, key: Any) -> Any:
        if key != 0 or re.compile(self.pattern).groups > 1:
            refuse("only the first of re.findall has a rule", "use .str.extract")
        demand(lambda: self.size() > 0, IndexError("list index out of range"))
        group = self.pattern if re.compile(self.pattern).groups else f"({self.pattern})"
        return Scalar(self.value.str.extract(group, self.flags, expand=False).step, None)


def _searching(before: str, after: str) -> Callable[..., Any]:
    def function(pattern: Any, string: Any, flags: int = 0) -> Any:
        text, flags = _text(pattern, int(flags))
        text = f"{before}(?:{text}){after}" if before or after else text
        value = _checked(string)
        if not bool(Scalar(value.str.contains(text, flags=flags, regex=True).step, None)):
            return None
        return Match(value, text, flags)

    return function


def sub(pattern: Any, repl: Any, string: Any, count: int = 0, flags: int = 0) -> Any:
    text, flags = _text(pattern, int(flags))
    value = _checked(string)
    result = value.str.replace(text, repl, n=count or -1, flags=flags, regex=True)
    return Scalar(result.step, None)


def findall(pattern: Any, string: Any, flags: int = 0) -> Any:
    return Matches(_checked(string), *_text(pattern, int(flags)))


def split(pattern: Any, string: Any, maxsplit: int = 0, flags: int = 0) -> Any:
    from sardonyx.importers.pandas.rules.apply import Parts

    text, flags = _text(pattern, int(flags))
    if flags or re.compile(text).groups:
        refuse("re.split with flags or groups has no rule")
    return Parts(_checked(string).str.split(text, n=maxsplit or -1, regex=True))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sub": sub,
    "findall": findall,
    "split": split,
    "search": _searching("", ""),
    "match": _searching(r"\A", ""),
    "fullmatch": _searching(r"\A", r"\Z"),
}
VALUE = {"sub": 2, "findall": 1, "split": 1, "search": 1, "match": 1, "fullmatch": 1}


def of_module(name: str, real: Any) -> Any:
    """A function of `re` that knows values of rows."""
    if name not in FUNCTIONS:
        return real

    def function(*arguments: Any, **options: Any) -> Any:
        values = [*arguments[VALUE[name] :][:1], options.get("string")]
        if any(map(is_value, values)):
            return FUNCTIONS[name](*arguments, **options)
        return real(*map(_plain, arguments), **options)

    return function


def _plain(value: Any) -> Any:
    return value.real if isinstance(value, Pattern) else value


class Pattern:
    """A compiled pattern whose methods know values of rows."""

    def __init__(self, real: re.Pattern[str]):
        self.real = real

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)
        if name not in FUNCTIONS:
            return method

        def function(*arguments: Any, **options: Any) -> Any:
            if any(map(is_value, arguments)):
                return FUNCTIONS[name](self.real, *arguments, **options)
            return method(*arguments, **options)

        return function

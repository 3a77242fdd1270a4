"""Which of our sources a result of our engines depends on.

A rule counts for the cases that looked it up (ours/ writes down which operators those are),
everything else counts for all. So a change of one rule makes few results stale. Found by reading
the files, not by importing them: a rule is a function under `@lower` or `@vjp` that no other code
names.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

from sardonyx.score.engines import PACKAGE

# Rooms whose files hold rules, with the decorators (and tables) that register them.
ROOMS = {"lower": {"lower"}, "grad": {"vjp"}}
KERNELS = "engines"
# What no result depends on.
APART = ("cli", "score", "verify", "importers", "diff", "html.py", "coverage.py", "inspect.py")


def of_rules(engine: str, ops: Iterable[str]) -> str:
    """A digest of the rules of these operators, as an engine of ours finds them."""
    made = hashlib.sha256()
    for op in sorted(set(ops)):
        for room in ROOMS:
            made.update("\n".join([op, *rules(room, engine).get(op, ())]).encode())
    return made.hexdigest()


@functools.cache
def shared(engine: str, axis: str) -> str:
    """A digest of every source that is no rule, and of what rules' modules hold besides rules."""
    made = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if not _counts(place, engine, axis):
            continue
        kept, _ = split(path) if place.parts[0] in (*ROOMS, KERNELS) else (path.read_text(), {})
        made.update(f"{place}\n{kept}".encode())
    return made.hexdigest()


def _counts(place: Path, engine: str, axis: str) -> bool:
    first = place.parts[0]
    if first == KERNELS and len(place.parts) > 2:
        return place.parts[1] == engine
    if first == "train":
        return axis == "training"
    if first == "grad" and axis == "forward":
        return place.name in ("training.py", "training_optimizer.py")
    return first not in APART


@functools.cache
def rules(room: str, engine: str) -> dict[str, list[str]]:
    """The sources of rules by operator: of a room, and the engine's own kernels."""
    found: dict[str, list[str]] = {}
    folders = [PACKAGE / room, *([PACKAGE / KERNELS / engine] if room == "lower" else [])]
    for path in (p for folder in folders for p in sorted(folder.rglob("*.py"))):
        for op, source in split(path)[1].items():
            found.setdefault(op, []).append(source)
    return found


@functools.cache
def split(path: Path) -> tuple[str, dict[str, str]]:
    """A module without its rules, and the sources of its rules by operator."""
    text = path.read_text()
    lines = text.splitlines()
    kept: list[str] = list(lines)
    rules: dict[str, str] = {}
    for node in ast.parse(text).body:
        ops = list(_registered(node))
        if isinstance(node, ast.FunctionDef) and ops and node.name not in called():
            start, end = node.decorator_list[0].lineno - 1, node.end_lineno or node.lineno
            rules.update(dict.fromkeys(ops, "\n".join(lines[start:end])))
            kept[start:end] = [""] * (end - start)
    return "\n".join(line for line in kept if line), rules


@functools.cache
def called() -> frozenset[str]:
    """Names that the rooms of rules use: a rule that others call is no rule by itself."""
    found: set[str] = set()
    for room in (*ROOMS, KERNELS):
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Name):
                    found.add(node.id)
                elif isinstance(node, ast.alias):
                    found.add(node.name)
                elif isinstance(node, ast.Attribute):
                    found.add(node.attr)
    return frozenset(found)


def _registered(node: ast.stmt) -> Iterable[str]:
    """The operators that a decorated function is registered for, as `domain::name`."""
    for call in getattr(node, "decorator_list", []):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        if not any(call.func.id in names for names in ROOMS.values()):
            continue
        domain = next((k.value for k in call.keywords if k.arg == "domain"), None)
        spelled = str(domain.value) if isinstance(domain, ast.Constant) else None
        if domain is not None and spelled is None:
            continue  # a name: the source stays with what is shared
        for argument in call.args:
            if isinstance(argument, ast.Constant):
                op = str(argument.value)
                yield f"{spelled}::{op}" if spelled else op

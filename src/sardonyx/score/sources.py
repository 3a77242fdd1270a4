"""Which of our sources a result of our engines depends on.

A rule counts for the cases that looked it up (ours/ writes down which operators those are),
everything else counts for all. So a change of one rule makes few results stale. Found by reading
the files, not by importing them: the source of a rule is its function, or its line of a table,
and whatever that names, directly or not, in the modules of rules. What modules of rules do besides
defining things, and what others name of them, counts for all.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sardonyx.score.engines import PACKAGE

RULE_PACKAGES = ("lower", "grad")  # of rules
KERNELS = "engines"
# What registers rules: decorators, and functions that take a table; operators begin with that.
REGISTER = {"lowering": "", "table": "", "gradient_rule": "", "formulas": "", "reduction": "Reduce"}
# Packages and modules that no result depends on.
APART = (
    "cli",
    "score",
    "verify",
    "importers",
    "diff",
    "checking.py",
    "html_page.py",
    "inspection.py",
    "operator_support.py",
    "picture.py",
)

Unit = tuple[str, str]  # a module by its dotted name, and a name in it


@dataclass
class Module:
    """One file: what it defines, which rules it registers, what it imports, what else it does."""

    name: str
    text: str
    units: dict[str, ast.stmt] = field(default_factory=dict)
    rules: dict[str, list[ast.AST]] = field(default_factory=dict)  # by operator
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # (module, name or "")
    rest: list[ast.AST] = field(default_factory=list)
    tables: set[str] = field(default_factory=set)  # names whose lines are rules

    @functools.cached_property
    def lines(self) -> list[str]:
        return [line.strip() for line in self.text.splitlines()]

    @property
    def is_split(self) -> bool:
        """Whether it is looked at piece by piece: it has rules, or belongs to a family of them."""
        _, package, *inner = self.name.split(".") if "." in self.name else ("", self.name)
        return bool(self.rules) or (package in RULE_PACKAGES and len(inner) > 1)

    def source(self, node: ast.AST) -> str:
        """The text of a node, its decorators too."""
        first = [d.lineno for d in getattr(node, "decorator_list", [])]
        start = min([node.lineno, *first]) - 1  # type: ignore[attr-defined]
        return "\n".join(self.lines[start : node.end_lineno])  # type: ignore[attr-defined]


# -- digests ----------------------------------------------------------------------------------


def of_rules(engine: str, ops: Iterable[str]) -> str:
    """A digest of the rules that one of Sardonyx's engines uses for these operators."""
    digest = hashlib.sha256()
    for op in sorted(set(ops)):
        for package in RULE_PACKAGES:
            digest.update("\n".join([op, *rules(package, engine).get(op, ())]).encode())
    return digest.hexdigest()


@functools.cache
def rules(package: str, engine: str) -> dict[str, list[str]]:
    """The sources of rules by operator: of a package, and the engine's own kernels."""
    files: dict[str, list[str]] = {}
    folders = [package, *([f"{KERNELS}.{engine}"] if package == "lower" else [])]
    for name, module in modules().items():
        if any(name.startswith(f"sardonyx.{folder}.") for folder in folders):
            for op, nodes in module.rules.items():
                texts = [module.source(node) for node in nodes]
                texts += _texts(reached((module, node) for node in nodes))
                files.setdefault(op, []).extend(texts)
    return files


@functools.cache
def shared(engine: str, axis: str) -> str:
    """A digest of everything that is not a rule: other modules, the parts of rule modules that
    they use, and the parts that nothing uses.
    """
    digest = hashlib.sha256()
    roots: list[tuple[Module, ast.AST]] = []
    for name, module in modules().items():
        if not _counts(Path(*name.split(".")[1:]), engine, axis):
            continue
        if module.is_split:
            texts = [module.source(node) for node in module.rest]
        else:
            texts = [module.text]
            roots += [(module, node) for node in module.units.values()]
        roots += [(module, node) for node in module.rest]
        digest.update("\n".join([name, *texts]).encode())
    digest.update("\n".join(_texts(reached(roots) | _orphans())).encode())
    return digest.hexdigest()


def _texts(units: set[Unit]) -> list[str]:
    return [f"{m} {modules()[m].source(modules()[m].units[name])}" for m, name in sorted(units)]


@functools.cache
def _orphans() -> frozenset[Unit]:
    """Definitions in modules of rules that are no rules and that no rule names."""
    split = [module for module in modules().values() if module.is_split]
    nodes = [(m, node) for m in split for rules in m.rules.values() for node in rules]
    used = reached(nodes)
    registered = {id(node) for _, node in nodes}
    return frozenset(
        (m.name, name)
        for m in split
        for name, node in m.units.items()
        if (m.name, name) not in used and id(node) not in registered and name not in m.tables
    )


def _counts(place: Path, engine: str, axis: str) -> bool:
    first = place.parts[0] if place.parts else ""
    if first == KERNELS and len(place.parts) > 1 and (PACKAGE / KERNELS / place.parts[1]).is_dir():
        return place.parts[1] == engine
    if first == "train":
        return axis == "training"
    if first == "grad" and axis == "forward":
        return place.name in ("training", "training_optimizer")
    return True


# -- what names what --------------------------------------------------------------------------


def reached(start: Iterable[tuple[Module, ast.AST]]) -> set[Unit]:
    """What nodes name in modules of rules, directly or not."""
    units: set[Unit] = set()
    pending = [unit for module, node in start for unit in _named(module, node)]
    while pending:
        unit = pending.pop()
        if unit not in units:
            units.add(unit)
            pending += _named_by(unit)
    return units


@functools.cache
def _named_by(unit: Unit) -> tuple[Unit, ...]:
    module = modules()[unit[0]]
    return tuple(_named(module, module.units[unit[1]]))


def _named(module: Module, node: ast.AST) -> Iterator[Unit]:
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            target = module.imports.get(part.value.id)
            if target and (whole := _as_module(*target)):
                yield from _resolved(whole, part.attr)
        elif isinstance(part, ast.Name):
            yield from _resolved(module.name, part.id)


def _resolved(module: str, name: str) -> Iterator[Unit]:
    """The definition behind a name of a module, through imports, if it is in a module of rules."""
    target = modules().get(module)
    if target is None:
        return
    if name in target.units:
        if target.is_split:
            yield module, name
    elif name in target.imports:
        source, original = target.imports[name]
        if original and not _as_module(source, original):
            yield from _resolved(source, original)


def _as_module(module: str, name: str) -> str | None:
    dotted = f"{module}.{name}" if name else module
    return dotted if dotted in modules() else None


# -- reading ----------------------------------------------------------------------------------


@functools.cache
def modules() -> dict[str, Module]:
    """Every file of Sardonyx that a result may depend on, by its dotted name."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] in APART:
            continue
        place = path.relative_to(PACKAGE.parent).with_suffix("")
        name = ".".join(place.parts).removesuffix(".__init__")
        trees[name] = read(name, path.read_text(encoding="utf-8"))
    return trees


def read(name: str, text: str) -> Module:
    """A module's parts; one that registers no rule is not taken apart."""
    module = Module(name, text)
    body = ast.parse(text).body
    values = {n: s.value for s in body if isinstance(s, ast.Assign) for n in _targets(s)}
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            module.imports.update(_bound(statement))
            values.update(_imported_texts(statement))
        elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            module.units[statement.name] = statement
            for op in _registered(statement, values):
                module.rules.setdefault(op, []).append(statement)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            module.units.update(dict.fromkeys(_targets(statement), statement))
        elif table := _table(statement, values):
            module.tables.update(n.id for n in ast.walk(statement) if isinstance(n, ast.Name))
            for op, value in table.items():
                module.rules.setdefault(op, []).append(value)
        elif not _is_text(statement):
            module.rest.append(statement)
    return module


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def _bound(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, tuple[str, str]]]:
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            yield alias.asname or alias.name, (statement.module or "", alias.name)
        elif alias.asname:
            yield alias.asname, (alias.name, "")


def _imported_texts(statement: ast.stmt) -> dict[str, ast.expr]:
    """Names of string constants, such as domains, that are imported from Sardonyx's modules."""
    source = getattr(statement, "module", None) or ""
    texts = _texts_of(source) if source.startswith("sardonyx.") else {}
    names = [alias.name for alias in getattr(statement, "names", ()) if not alias.asname]
    return {name: texts[name] for name in names if name in texts}


@functools.cache
def _texts_of(module: str) -> dict[str, ast.expr]:
    path = (PACKAGE.parent / module.replace(".", "/")).with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    assignments = [
        s for s in body if isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant)
    ]
    return {name: s.value for s in assignments for name in _targets(s)}


def _registered(function: ast.stmt, values: dict[str, ast.expr]) -> Iterator[str]:
    """The operators that a decorated function is registered for, as `domain::name`."""
    for call in getattr(function, "decorator_list", []):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        names = [a.value for a in call.args if isinstance(a, ast.Constant)]
        domain = _domain(call, values)
        if call.func.id in REGISTER and domain is not None and len(names) == len(call.args):
            start = f"{domain}::" if domain else REGISTER[call.func.id]
            yield from (f"{start}{op!s}" for op in names)


def _domain(call: ast.Call, values: dict[str, ast.expr]) -> str | None:
    """The domain in a registration; None: it cannot be told by reading."""
    value = next((k.value for k in call.keywords if k.arg == "domain"), ast.Constant(""))
    value = values.get(value.id, value) if isinstance(value, ast.Name) else value
    return str(value.value) if isinstance(value, ast.Constant) else None


def _table(statement: ast.stmt, values: dict[str, ast.expr]) -> dict[str, ast.expr] | None:
    """The lines of a table of rules, by operator."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args):
        return None
    table = call.args[0]
    table = values.get(table.id, table) if isinstance(table, ast.Name) else table
    if call.func.id not in REGISTER or not isinstance(table, ast.Dict):
        return None
    pairs = zip(table.keys, table.values, strict=True)
    return {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)

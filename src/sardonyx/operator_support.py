"""How each operator is supported, read from the registries: nothing here is listed by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

from sardonyx import opset
from sardonyx.grad import GRADIENT_RULES, NO_GRADIENT

# How an operator is differentiated, best first.
GRADIENT = {
    "rule": "a gradient rule of its own",
    "body": "through the function body by which ONNX defines it",
    "none": "none on purpose: the derivative is zero, or nothing differentiable goes in or out",
    "missing": "no gradient: asking for one is an error",
}


@dataclass(frozen=True)
class Coverage:
    """One operator of the opset inside, and how it is differentiated."""

    operator: str
    domain: str
    family: str
    gradient: str  # a key of GRADIENT
    tagged: bool  # ONNX tags it Differentiable

    @property
    def name(self) -> str:
        return f"{self.domain}::{self.operator}" if self.domain else self.operator

    def row(self) -> dict[str, object]:
        return asdict(self)


def coverage(pattern: str = "*") -> list[Coverage]:
    """Every live operator whose name matches `pattern`, by family and name.

    >>> [c.gradient for c in coverage("Softmax")]
    ['rule']
    """
    tagged = set(opset.differentiable_ops())
    rows = [
        Coverage(
            op, domain, opset.family(op, domain), _gradient(op, domain), not domain and op in tagged
        )
        for domain in opset.INSIDE
        for op in opset.live_ops(domain)
        if fnmatchcase(op.lower(), pattern.lower())
    ]
    return sorted(rows, key=lambda c: (c.domain, c.family, c.operator))


def _gradient(op: str, domain: str) -> str:
    if (domain, op) in GRADIENT_RULES:
        return "rule"
    if (domain, op) in NO_GRADIENT:
        return "none"
    return "body" if opset.has_body(op, domain) else "missing"


def summary(rows: Iterable[Coverage]) -> str:
    """One sentence: how many operators are differentiated, and how."""
    rows = list(rows)
    counts = Counter(c.gradient for c in rows)
    tagged = [c for c in rows if c.tagged]
    covered = sum(c.gradient != "missing" for c in tagged)
    parts = ", ".join(f"{counts[kind]} {kind}" for kind in GRADIENT if counts[kind])
    return (
        f"{len(rows)} operators: {parts}. "
        f"Of the {len(tagged)} that ONNX tags Differentiable, {covered} are covered."
    )


def markdown(rows: Iterable[Coverage]) -> str:
    """The page `docs/reference/ops.md`."""
    rows = list(rows)
    lines = ["# Operators", "", summary(rows), "", "| gradient | meaning |", "|---|---|"]
    lines += [f"| {kind} | {meaning} |" for kind, meaning in GRADIENT.items()]
    lines += ["", "| operator | family | gradient | tagged Differentiable |", "|---|---|---|---|"]
    lines += [
        f"| {c.name} | {c.family} | {c.gradient} | {'yes' if c.tagged else ''} |" for c in rows
    ]
    return "\n".join(lines) + "\n"

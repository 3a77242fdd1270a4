"""Registry: rules by operator. One class serves gradients, lowerings and upgrades.

A rule is a plain function: leading parameters (the builder, cotangents, an array namespace), then
tensors positional by schema order, then attributes keyword-only by schema name. The signature is
checked against the ONNX schema when the rule is registered, so that a misspelt attribute fails at
import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sardonyx import opset
from sardonyx.errors import ArgumentError

OpId = tuple[str, str]


def op_name(op: OpId) -> str:
    """`("", "Relu")` reads `Relu`, `("com.acme", "Foo")` reads `com.acme::Foo`."""
    domain, name = op
    return f"{domain}::{name}" if domain else name


@dataclass(frozen=True)
class Rule:
    """A registered function and what a driver needs to know to call it."""

    function: Callable[..., Any]
    tensors: int | None  # how many positional tensors it takes; None: any number
    keywords: frozenset[str]
    takes_all_keywords: bool
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        return self.function.__module__


class Registry:
    """Rules of one kind, by (domain, op_type).

    leading  -- how many parameters come before the tensors
    special  -- keyword-only parameters that are not attributes (what the driver can pass)
    """

    def __init__(self, kind: str, leading: int, special: Iterable[str] = ()):
        self.kind = kind
        self.leading = leading
        self.special = frozenset(special)
        self.rules: dict[OpId, Rule] = {}

    def register(
        self, function: Callable[..., Any], op: str, domain: str = "", **options: Any
    ) -> None:
        key = (opset.domain_name(domain), op)
        if key in self.rules:
            raise ArgumentError(
                f"{op_name(key)} already has a {self.kind}", hint="remove one of the two"
            )
        self.rules[key] = self._inspect(function, key, options)

    def remove(self, op: str, domain: str = "") -> None:
        self.rules.pop((opset.domain_name(domain), op), None)

    def get(self, op: str, domain: str = "") -> Rule | None:
        return self.rules.get((opset.domain_name(domain), op))

    def __contains__(self, op: OpId) -> bool:
        return op in self.rules

    def __iter__(self) -> Iterator[OpId]:
        return iter(self.rules)

    def _inspect(self, function: Callable[..., Any], key: OpId, options: dict[str, Any]) -> Rule:
        positional, keywords, variadic, all_keywords = 0, set(), False, False
        for p in list(inspect.signature(function).parameters.values())[self.leading :]:
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                positional += 1
            elif p.kind == p.VAR_POSITIONAL:
                variadic = True
            elif p.kind == p.KEYWORD_ONLY:
                keywords.add(p.name)
            else:
                all_keywords = True
        self._check(key, positional, keywords, all_keywords)
        return Rule(
            function, None if variadic else positional, frozenset(keywords), all_keywords, options
        )

    def _check(self, key: OpId, positional: int, keywords: set[str], all_keywords: bool) -> None:
        domain, op = key
        schema = opset.schema(op, domain) or opset.kept_schema(op, domain)
        if schema is None:
            if domain in opset.INSIDE:
                raise ArgumentError(f"{op_name(key)} is not an operator of opset {opset.OPSET}")
            return
        attributes = set(schema.attributes)
        unknown = keywords - attributes - self.special
        if unknown:
            raise ArgumentError(f"{op_name(key)} has no attribute {sorted(unknown)}")
        ignored = attributes - keywords
        if ignored and not all_keywords:
            raise ArgumentError(
                f"the {self.kind} of {op_name(key)} ignores the attributes {sorted(ignored)}",
                hint="name each attribute as a keyword-only parameter, or take **attributes",
            )
        variadic = any(i.option == opset.Variadic for i in schema.inputs)
        if positional > len(schema.inputs) and not variadic:
            raise ArgumentError(f"{op_name(key)} takes at most {len(schema.inputs)} inputs")

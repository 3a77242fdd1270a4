"""Rules of importers by the name of what they import, and the hook with which users add theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sardonyx.errors import ArgumentError

Function = TypeVar("Function", bound=Callable[..., Any])

RULES: dict[str, Callable[..., Any]] = {}
COLUMNS: set[str] = set()  # the rules that take columns of any type, rather than one matrix


def importer(*names: str, columns: bool = False) -> Callable[[Function], Function]:
    """Register a function that imports estimators of a class, by the class's full name.

    The function receives the builder, the fitted estimator and its input, a matrix of floats, and
    returns the output of its `transform` or `predict`, or a dict of values by the names of the
    estimator's methods (`predict`, `predict_proba`, `decision_function`, `transform`). Imported
    models are verified against the estimator, so a wrong rule is an error.

    columns -- the input may hold texts and columns of different types: `sardonyx.importers.sklearn`
               `.table.column(op, x, i)` is one of them

    >>> import sardonyx as sx
    >>> @sx.importer("my_package.Doubler")
    ... def doubler(op, estimator, x):
    ...     return op.Mul(x, 2.0)
    """

    def register(function: Function) -> Function:
        for name in names:
            theirs = RULES.get(name)
            if theirs is not None and theirs.__module__.startswith("sardonyx."):
                raise ArgumentError(f"{name} already has a rule of sardonyx")
            RULES[name] = function
            COLUMNS.discard(name)
            if columns:
                COLUMNS.add(name)
        return function

    return register


def public_name(kind: type) -> str:
    """The name under which a class is imported: `sklearn.svm._classes.SVC` is `sklearn.svm.SVC`."""
    parts = kind.__module__.split(".")
    private = [i for i, part in enumerate(parts) if i and part.startswith("_")]
    return ".".join([*parts[: private[0] if private else None], kind.__qualname__])


def rule_of(thing: Any) -> tuple[str, Callable[..., Any]] | None:
    """The name and the rule of an object's own class. Subclasses may compute something else."""
    kind = type(thing)
    for name in (f"{kind.__module__}.{kind.__qualname__}", public_name(kind)):
        if name in RULES:
            return name, RULES[name]
    return None

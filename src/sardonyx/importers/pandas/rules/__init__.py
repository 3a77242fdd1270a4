"""The rules of pandas' methods and functions, one module per family."""

from __future__ import annotations


def load() -> None:
    """Register every rule."""
    from sardonyx.importers.pandas.rules import (  # noqa: F401
        apply,
        arithmetic,
        binning,
        calendar,
        categories,
        conversions,
        dates,
        expressions,
        groups,
        indexing,
        labels,
        longer,
        merge,
        missing,
        order,
        parsing,
        reductions,
        reshape,
        selection,
        sequences,
        sideways,
        splitting,
        strings,
        ufuncs,
    )

"""Refusals: what cannot become ONNX faithfully, with element and line, all of it at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sardonyx.errors import ImportRefused, counted

from .document import Element


class Refusal(Exception):
    """One element that cannot be expressed; collected, and raised with all the others."""

    def __init__(self, element: Element, reason: str):
        super().__init__(reason)
        self.element, self.reason = element, reason


class Refusals:
    """The refusals of a document, in the order of its lines."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str, str], None] = {}

    def add(self, refusal: Refusal) -> None:
        self.rows[(refusal.element.line, refusal.element.tag, refusal.reason)] = None

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep a refusal raised inside, so that the import can look for others."""
        try:
            yield
        except Refusal as refusal:
            self.add(refusal)

    def check(self) -> None:
        """Raise what was collected."""
        if not self.rows:
            return
        rows = [[f"line {line}", tag, reason] for line, tag, reason in sorted(self.rows)]
        raise ImportRefused(
            f"{counted(len(rows), 'element')} of this PMML document cannot become ONNX",
            rows,
            hint="what is not supported is refused: see docs/guides/from-pmml.md",
        )

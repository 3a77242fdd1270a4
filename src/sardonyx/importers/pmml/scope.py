"""Scopes: which column a field name means, at one place of the document.

A model inside a model sees the fields around it. Derived fields are built on first use,
so that unused ones cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from .document import Element
from .graph import Column, Graph
from .refusal import Refusal, Refusals

Maker = Callable[[], Column]


@dataclass
class Document:
    """What the whole document shares."""

    root: Element
    g: Graph
    refusals: Refusals
    data_fields: dict[str, Element] = field(default_factory=dict)
    functions: dict[str, Element] = field(default_factory=dict)
    inputs: list[ir.Value] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)  # of inputs with names of their own
    calls: list[str] = field(default_factory=list)
    evaluations: int = 0  # of Apply elements, one for each call of the function that holds it


class Scope:
    """Field names and their columns, and the scope around it."""

    def __init__(self, document: Document, parent: Scope | None = None):
        self.document = document
        self.g = document.g
        self.parent = parent
        self.columns: dict[str, Column] = {}
        self.makers: dict[str, tuple[Element, Maker]] = {}
        self.building: set[str] = set()

    def put(self, name: str, column: Column) -> None:
        self.columns[name] = column

    def define(self, name: str, element: Element, maker: Maker) -> None:
        """A field that is built when it is asked for."""
        self.makers[name] = (element, maker)

    def column(self, name: str | None, element: Element) -> Column:
        """The column of a field that `element` refers to."""
        column = self.find(name)
        if column is None:
            raise Refusal(element, f"field {name!r} is not defined here")
        return column

    def find(self, name: str | None) -> Column | None:
        if name is None:
            return None
        if name in self.columns:
            return self.columns[name]
        if name in self.makers:
            return self._build(name)
        return self.parent.find(name) if self.parent is not None else None

    def _build(self, name: str) -> Column:
        element, maker = self.makers[name]
        if name in self.building:
            raise Refusal(element, f"field {name!r} is defined by itself")
        self.building.add(name)
        try:
            with self.g.part("preprocessing"):
                self.columns[name] = maker()
        finally:
            self.building.discard(name)
        return self.columns[name]

"""The document: XML from outside, as a tree of small elements that know their line.

expat parses it with every road outside closed: no entity may be declared, no external entity or
parameter entity is read, and the bytes, the elements and the depth are bounded before anything is
built of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat

from sardonyx.errors import LimitExceeded, ModelError, quote
from sardonyx.limits import Limits, read_file

DEPTH = 600  # elements around an element; the walks over them are recursive
CHUNK = 2**20
_PLAIN = re.compile(r"\S+")
_WORDS = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')


class Element:
    """One XML element: its local name, attributes, children, own text and line."""

    __slots__ = ("attributes", "children", "line", "tag", "text")

    def __init__(self, tag: str, attributes: dict[str, str], line: int):
        self.tag = tag
        self.attributes = attributes
        self.children: list[Element] = []
        self.text = ""
        self.line = line

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def child(self, *tags: str) -> Element | None:
        """The first child with one of the names."""
        for child in self.children:
            if child.tag in tags:
                return child
        return None

    def all(self, *tags: str) -> list[Element]:
        """The children with one of the names, in order."""
        return [child for child in self.children if child.tag in tags]

    def walk(self) -> Iterator[Element]:
        """This element and everything below it, in document order."""
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(reversed(element.children))

    def __repr__(self) -> str:
        return f"<{self.tag}> of line {self.line}"


class _Reader:
    """The handlers of expat; elements appear when their end is read."""

    def __init__(self, limits: Limits):
        self.most = 16 * limits.nodes
        self.root: Element | None = None
        self.stack: list[Element] = []
        self.count = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        self.parser.EntityDeclHandler = self.entity
        self.parser.UnparsedEntityDeclHandler = self.entity
        self.parser.ExternalEntityRefHandler = self.entity
        self.parser.SkippedEntityHandler = self.skipped

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        stack = self.stack
        if len(stack) >= DEPTH:
            raise LimitExceeded(f"the XML nests more than {DEPTH} elements")
        if self.count > self.most:
            raise LimitExceeded(
                f"the XML has more than {self.most:,} elements",
                hint="raise it with limits=sx.Limits(nodes=…), of which there are 16 for each",
            )
        line = self.parser.CurrentLineNumber
        element = Element(name.rpartition(":")[2] if ":" in name else name, attributes, line)
        if not stack:
            self.root = element
        elif element.tag != "Extension":
            stack[-1].children.append(element)
        stack.append(element)

    def end(self, name: str) -> None:
        self.stack.pop()

    def characters(self, text: str) -> None:
        element = self.stack[-1]
        if not text.isspace() or element.tag in KEEPS_SPACE:
            element.text += text

    def entity(self, *_: Any) -> int:
        raise ModelError(
            "the XML declares an entity, which no PMML file needs",
            [["line", self.parser.CurrentLineNumber]],
        )

    def skipped(self, name: str, is_parameter: bool) -> None:
        # A document type that is described elsewhere may have entities that are not declared here.
        if not is_parameter:
            raise ModelError(
                f"the XML refers to an entity {quote(name)} of a description elsewhere, "
                "which is not read",
                [["line", self.parser.CurrentLineNumber]],
            )


KEEPS_SPACE = {"Constant", "Array", "RealSparseArray", "INT-SparseArray", "REAL-SparseArray"}


def read(source: str | Path | bytes, limits: Limits) -> Element:
    """The root element of a PMML file or of its bytes."""
    if isinstance(source, bytes):
        data = source
        if len(data) > limits.file_bytes:
            raise LimitExceeded(
                f"the document has {len(data):,} bytes, more than limits.file_bytes"
            )
    else:
        data = read_file(Path(source), limits)
    reader = _Reader(limits)
    try:
        for start in range(0, len(data), CHUNK):
            reader.parser.Parse(data[start : start + CHUNK], False)
        reader.parser.Parse(b"", True)
    except (expat.ExpatError, ValueError) as error:
        raise ModelError(f"this is not well-formed XML: {quote(error)}") from error
    root = reader.root
    if root is None or root.tag != "PMML":
        tag = quote(root.tag) if root is not None else "nothing"
        raise ModelError(f"this is not a PMML document: its root is {tag}")
    return root


def array(element: Element) -> list[str]:
    """The entries of an Array: separated by spaces, quoted where they hold spaces."""
    text, count = element.text, element.get("n")
    entries = _PLAIN.findall(text)
    if '"' in text:
        words = _WORDS.findall(text)
        entries = [plain or re.sub(r"\\(.)", r"\1", quoted) for quoted, plain in words]
    if element.tag == "Array" and count is not None and int(count) != len(entries):
        raise ModelError(
            f"the Array of line {element.line} declares {count} entries and has {len(entries)}"
        )
    return entries


def reals(element: Element) -> list[float]:
    """The entries of an Array, or of a sparse one with its zeros, as numbers."""
    if element.tag == "Array" or element.tag == "Matrix":
        return [float(entry) for entry in array(element)]
    return _sparse(element)


def _sparse(element: Element) -> list[float]:
    indices = next((c for c in element.children if c.tag.endswith("Indices")), None)
    entries = next((c for c in element.children if c.tag.endswith("Entries")), None)
    places = [int(i) for i in array(indices)] if indices is not None else []
    values = [float(v) for v in array(entries)] if entries is not None else []
    size = int(element.get("n", max(places, default=0)))
    if size > 2**24 or len(places) != len(values) or any(not 1 <= p <= size for p in places):
        raise ModelError(f"the sparse array of line {element.line} is inconsistent")
    dense = [float(element.get("defaultValue", 0))] * size
    for place, value in zip(places, values, strict=True):
        dense[place - 1] = value
    return dense

"""TextIndex: how often a term of a few words occurs in a text.

The text is split into words, and each distinct word is held against a regular expression for each
word of the term, so that punctuation around it and its case do not matter. A text whose case a
function changes is not written anew: the expression for its words takes both cases.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .document import Element
from .graph import Column, Graph, missing
from .refusal import Refusal
from .scope import Scope

BLANKS = " \t\n\v\f\r"  # what \s is in Java
MOST_SEPARATORS = 16
REPEATED = 6  # of a word in what stands between two blanks; a text with more has no result
_SEPARATORS = re.compile(r"(?:\[((?:\\.|[^\]\\^])+)\]|(\\.|[^\\\[\](){}.*+?|^$]))(\+?)")
_RUNS = {r"\w+": 1, r"\w\w+": 2, r"\b\w\w+\b": 2, r"(?u)\b\w\w+\b": 2, r"\b\w+\b": 1}


class Lowered(Column):
    """A text in lower case, of which only its words can be asked for."""

    def __init__(self, source: Column, element: Element):
        super().__init__(source.numbers, "string", text=source.text)
        self.source, self.element = source, element

    def _refuse(self) -> Refusal:
        return Refusal(self.element, "lowercase of text without a list of its values has no table")

    @property
    def numbers(self) -> ir.Value:
        raise self._refuse()

    @numbers.setter
    def numbers(self, value: ir.Value) -> None:
        pass

    @property
    def text(self) -> ir.Value | None:
        raise self._refuse()

    @text.setter
    def text(self, value: ir.Value | None) -> None:
        pass


def text_index(scope: Scope, element: Element, dtype: str | None) -> Column:
    """The weight of a term in the text of a field; missing where the text is."""
    g = scope.g
    column = scope.column(element.get("textField"), element)
    is_lowered = isinstance(column, Lowered)
    source = column.source if isinstance(column, Lowered) else column
    if not source.is_text or source.text is None:
        raise Refusal(element, "the field is not an input of text")
    term = _term(scope, element)
    _check(element)
    is_exact = element.get("isCaseSensitive", "false") == "true"
    if element.get("x-wordRE") or element.get("wordRE"):
        count = _runs(g, element, source.text, term, is_exact, is_lowered)
    else:
        count = _words(g, element, source.text, term, is_exact, is_lowered)
    value = _weighted(g, element, count)
    gap = missing(g, source)
    kind = "double" if element.get("localTermWeights") == "logarithmic" else "integer"
    return Column(g.Where(gap, g.number(math.nan), value), kind)


def _term(scope: Scope, element: Element) -> str:
    from .expressions import EXPRESSIONS, evaluate

    child = element.child(*EXPRESSIONS)
    literal = evaluate(scope, child).literal if child is not None else None
    if not isinstance(literal, str) or not literal.strip():
        raise Refusal(element, "the term is not a constant text")
    return literal


def _check(element: Element) -> None:
    if element.get("tokenize", "true") != "true":
        raise Refusal(element, "a text that is not split into words is not supported")
    if int(element.get("maxLevenshteinDistance", 0)) != 0:
        raise Refusal(element, "terms that are only similar are not supported")
    weights = element.get("localTermWeights", "termFrequency")
    if weights not in ("termFrequency", "binary", "logarithmic"):
        raise Refusal(element, f"localTermWeights {weights} is not supported")


def _weighted(g: Graph, element: Element, count: ir.Value) -> ir.Value:
    weights = element.get("localTermWeights", "termFrequency")
    if weights == "binary":
        return g.Where(g.Greater(count, g.number(0.0)), g.number(1.0), g.number(0.0))
    if weights == "logarithmic":
        return g.Div(g.Log(g.Add(count, g.number(1.0))), g.number(math.log(10.0)))
    return count


# -- words between separators ------------------------------------------------------------


def separators(element: Element) -> str:
    """The characters that `wordSeparatorCharacterRE` names; several in a row are one separator."""
    pattern = element.get("wordSeparatorCharacterRE", r"\s+")
    match = _SEPARATORS.fullmatch(pattern)
    if match is None or not match[3] or "-" in re.sub(r"\\.", "", match[1] or ""):
        raise Refusal(element, f"the separator {pattern!r} is not supported")
    characters = ""
    for part in re.findall(r"\\.|.", match[1] or match[2], re.S):
        if part == r"\s":
            characters += BLANKS
        elif part[0] == "\\" and part[1].isalnum():
            escaped = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(part[1])
            if escaped is None:
                raise Refusal(element, f"the separator {pattern!r} is not supported")
            characters += escaped
        else:
            characters += part[-1]
    characters = "".join(dict.fromkeys(characters))
    if len(characters) > MOST_SEPARATORS:
        raise Refusal(element, "there are too many separators")
    return characters


def _words(
    g: Graph, element: Element, text: ir.Value, term: str, is_exact: bool, is_lowered: bool
) -> ir.Value:
    marks = separators(element)
    parts = [p for p in re.split(f"[{re.escape(marks)}]", term) if p]
    patterns = []
    for part in parts:
        word = _trimmed(part)
        if not word:
            raise Refusal(element, "a word of the term is punctuation")
        patterns.append(rf"\pP*{_spelled(word, is_exact, is_lowered)}\pP*")
    words, places = tokens(g, text, marks)
    hits = [_hits(g, words, pattern) for pattern in patterns]
    if len(hits) == 1:
        return _count(g, g.Gather(hits[0], places, axis=0))
    row = _compact(g, words, places)
    none = g.const(np.zeros(1))
    matches = [g.Gather(g.Concat(none, hit, axis=0), row, axis=0) for hit in hits]
    size, total = len(matches), None
    for i, part in enumerate(matches):
        end = np.array([2**62 if i == size - 1 else i + 1 - size], np.int64)
        piece = g.Slice(part, np.array([i]), end, np.array([1]))
        total = piece if total is None else g.Mul(total, piece)
    assert total is not None
    return _count(g, total)


def _count(g: Graph, hits: ir.Value) -> ir.Value:
    total = g.ReduceSum(hits, [1], keepdims=0)
    total.shape = ir.Shape(["N"])
    return total


def tokens(g: Graph, text: ir.Value, marks: str) -> tuple[ir.Value, ir.Value]:
    """The distinct words of all rows, and the places [N, words] of each row's words in them."""
    key = ("tokens", id(text), marks)
    if key not in g.shared:
        words = text
        for mark in marks:
            parts, _ = g.call("StringSplit", [words], {"delimiter": mark}, outputs=2)
            words = g.Flatten(parts, axis=1)
        flat = g.Reshape(words, np.array([-1], np.int64))
        distinct, _, inverse, _ = g.call("Unique", [flat], {"sorted": 1}, outputs=4)
        g.shared[key] = (distinct, g.Reshape(inverse, g.Shape(words), allowzero=1))
    return g.shared[key]


def _hits(g: Graph, words: ir.Value, pattern: str) -> ir.Value:
    """1 for each word that a regular expression takes as a whole, else 0."""
    key = ("hits", id(words), pattern)
    if key not in g.shared:
        match = g.call("RegexFullMatch", [words], {"pattern": pattern})
        g.shared[key] = g.cast(match, ir.DataType.DOUBLE)
    return g.shared[key]


def _compact(g: Graph, words: ir.Value, places: ir.Value) -> ir.Value:
    """The places plus one, [N, words], with empty words, which separators leave, moved to the end.

    An empty word is 0.
    """
    key = ("compact", id(places))
    if key not in g.shared:
        one = g.const(np.array(1, np.int64))
        full = g.Sub(g.number(1.0), _hits(g, words, ""))
        mask = g.cast(g.Gather(full, places, axis=0), ir.DataType.INT64)
        order = g.Sub(g.CumSum(mask, np.array(1, np.int64)), one)
        last = g.Gather(g.Shape(places), np.array([1]), axis=0)
        index = g.Where(g.Equal(mask, one), order, last)
        # A column more than there are words takes the empty ones.
        size = g.Add(g.Shape(places), np.array([0, 1]))
        empty = g.ConstantOfShape(size, value=ir.tensor(np.zeros(1, np.int64)))
        moved = g.ScatterElements(empty, index, g.Add(places, one), axis=1)
        g.shared[key] = g.Slice(moved, np.array([0]), last, np.array([1]))
    return g.shared[key]


def _trimmed(word: str) -> str:
    """A word without the punctuation around it."""
    letters = [i for i, c in enumerate(word) if not unicodedata.category(c).startswith("P")]
    return word[letters[0] : letters[-1] + 1] if letters else ""


def _spelled(word: str, is_exact: bool, is_lowered: bool) -> str:
    """A regular expression for a word, in one case or in both."""
    if is_exact and not is_lowered:
        return "".join(_quoted(c) for c in word)
    if is_exact and word != word.lower():
        return r"[^\x00-\x{10FFFF}]"  # no text in lower case has it
    return "".join(_both_cases(c) for c in word)


def _both_cases(character: str) -> str:
    low = character.lower()
    forms = {character, low, character.upper(), low.upper(), character.title()}
    forms |= {"k": {"\u212a"}, "\xe5": {"\u212b"}, "\u03c9": {"\u2126"}}.get(low, set())
    forms = {f for f in forms if len(f) == 1 and f.lower() == low}
    return _quoted(character) if len(forms) < 2 else f"[{''.join(sorted(forms))}]"


def _quoted(character: str) -> str:
    return character if character.isalnum() else rf"\x{{{ord(character):X}}}"


# -- runs of letters and digits ------------------------------------------------------------


def _runs(
    g: Graph, element: Element, text: ir.Value, term: str, is_exact: bool, is_lowered: bool
) -> ir.Value:
    r"""How often a run of word characters, `\w+`, is the term: counted between blanks."""
    pattern = element.get("x-wordRE") or element.get("wordRE")
    least = _RUNS.get(pattern)
    if least is None:
        raise Refusal(element, f"the words {pattern!r} are not supported")
    if not re.fullmatch(r"\w+", term, re.ASCII):
        raise Refusal(element, "a term of several words is not supported here")
    words, places = tokens(g, text, BLANKS)
    if len(term) < least:
        return _count(g, g.Mul(g.Gather(_hits(g, words, ""), places, axis=0), g.number(0.0)))
    word, total = _spelled(term, is_exact, is_lowered), None
    for times in range(1, REPEATED + 2):
        inner = rf"(?:\W|\W.*\W){word}" * (times - 1)
        hit = _hits(g, words, rf"(?s)(?:.*\W)?{word}{inner}(?:\W.*)?")
        if times > REPEATED:
            assert total is not None
            many = g.Greater(hit, g.number(0.0))
            total = g.Where(many, g.number(math.nan), total)
        else:
            total = hit if total is None else g.Add(total, hit)
    assert total is not None
    return _count(g, g.Gather(total, places, axis=0))


def lowered(element: Element, column: Column) -> Column | None:
    """An input of text in lower case, if its words can be found."""
    if isinstance(column, Lowered):
        return None
    if column.finite is None and column.text is not None:
        return Lowered(replace(column), element)
    return None

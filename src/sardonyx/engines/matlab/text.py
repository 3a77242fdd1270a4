"""Text, as cell arrays of character rows; and tables, trees and n-grams, which may hold text."""

from __future__ import annotations

import re

from sardonyx.engines.matlab.elementwise import bool_word
from sardonyx.engines.matlab.forms import OWN
from sardonyx.engines.matlab.function import Refused, matlab

CONTRIB = "com.microsoft"
# One set of characters, once or several times: there all dialects agree on what matches.
SIMPLE = re.compile(r"(?P<set>\[\^?[A-Za-z0-9_ \-]+\]|\\w|\\d)(?P=set)*(\+|\{\d+,\})?")


def quoted(text: str) -> str:
    """Characters as an expression."""
    if not text.isascii():
        raise Refused("text beyond ASCII")
    if re.fullmatch(r"[\w \[\]+*.\\^/|-]*", text):
        return f"'{text}'"
    return f"char({[ord(c) for c in text]})"


def cells(words: list[str]) -> str:
    return f"{{{', '.join(quoted(w) for w in words)}}}"


@matlab("StringNormalizer")
def string_normalizer(m, x, *, case_change_action, is_case_sensitive, locale, stopwords):
    words = f"'{case_change_action}', {bool_word(is_case_sensitive)}, {cells(stopwords or [])}"
    return f"onnx_normalize_text({x}, {words})"


@matlab("StringConcat")
def string_concat(m, x, y):
    return f"onnx_join_text({x}, {y})"


@matlab("Tokenizer", domain=CONTRIB)
def tokenizer(m, x, **attributes):
    pattern = attributes.get("tokenexp", "")
    if attributes.get("mark") or attributes.get("separators") or not SIMPLE.fullmatch(pattern):
        raise Refused("how it finds words")
    least, fill = attributes.get("mincharnum", 1), quoted(attributes["pad_value"])
    return f"onnx_tokens({x}, {m.rank()}, {quoted(pattern)}, {least}, {fill})"


@matlab("Lookup", domain=OWN)
def lookup(m, x, keys, values, default):
    return f"onnx_lookup({x}, {keys}, {values}, {default})"


@matlab("Trees", domain=OWN)
def trees(m, x, *tables, aggregate):
    return f"onnx_trees({x}, {', '.join(tables)}, '{aggregate}')"


@matlab("Ngrams", domain=OWN)
def ngrams(m, x, *tables, mode, min_gram_length, max_gram_length, max_skip_count):
    words = f"'{mode}', {min_gram_length}, {max_gram_length}, {max_skip_count}"
    return f"onnx_ngrams({x}, {m.rank()}, {', '.join(tables)}, {words})"

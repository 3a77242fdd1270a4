"""Literals: the constants that a document writes as text, read by their data type."""

from __future__ import annotations

import math
import re

import numpy as np

from .document import Element
from .refusal import Refusal

_INTEGER = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NAMES = {"INF": math.inf, "-INF": -math.inf, "Infinity": math.inf, "-Infinity": -math.inf}
TYPES = ("integer", "float", "double", "boolean", "string")


def parse(element: Element, text: str, dtype: str) -> float | str:
    """The value of a constant: a float for numbers and booleans, else its text."""
    if dtype == "string":
        return text
    number = as_number(text, dtype)
    if number is None:
        raise Refusal(element, f"{text!r} is no {dtype}")
    return number


def as_number(text: str, dtype: str = "double") -> float | None:
    """The number that a text writes, rounded to what the data type holds, or None."""
    text = text.strip()
    if text in ("true", "false", "TRUE", "FALSE", "True", "False"):
        return float(text.lower() == "true")
    if "_" in text or not text.isascii():  # which Python's float accepts
        return None
    try:
        number = _NAMES[text] if text in _NAMES else float(text)
    except ValueError:
        return None
    return float(np.float32(number)) if dtype == "float" and math.isfinite(number) else number


def type_of(text: str) -> str:
    """The data type of a constant that declares none."""
    if _INTEGER.fullmatch(text.strip()):
        return "integer"
    if _REAL.fullmatch(text.strip()) or text.strip() in _NAMES or text.strip() == "NaN":
        return "double"
    return "string"


def java_text(value: float, dtype: str) -> str:
    """A number as Java writes it, which is how PMML consumers turn numbers into text."""
    if dtype == "boolean":
        return "true" if value else "false"
    if dtype == "integer":
        return str(int(value))
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = np.format_float_positional(
            np.float32(value) if dtype == "float" else value, trim="0"
        )
        return plain
    mantissa, _, exponent = np.format_float_scientific(
        np.float32(value) if dtype == "float" else value, trim="0"
    ).partition("e")
    return f"{mantissa}E{int(exponent)}"


def number_of(text: str, dtype: str) -> float | None:
    """The number whose text in Java is exactly `text`, or None."""
    number = as_number(text, dtype)
    if number is None or (dtype == "integer" and not number.is_integer()):
        return None
    return number if java_text(number, dtype) == text else None

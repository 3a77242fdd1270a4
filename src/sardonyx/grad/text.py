"""ONNX's `text` family: strings, through which no gradient flows."""

from __future__ import annotations

from sardonyx.grad.driver import no_gradient

no_gradient("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit")

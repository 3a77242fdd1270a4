"""Lowerings of ONNX's family traditionalml (ai.onnx.ml): trees, linear and kernel models, features.

Models become tensor programs without branches, so that they run wherever the framework does. Where
the specification leaves a meaning open (a single score of two classes), onnxruntime's is taken.
"""

from __future__ import annotations

from sardonyx.lower.traditionalml import feature, label, linear, map, score, svm, tree

__all__ = ["feature", "label", "linear", "map", "score", "svm", "tree"]

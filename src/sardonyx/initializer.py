"""Initializers of parameters: their names, their distributions, and samples in NumPy.

Names are the usual ones: zeros, ones, normal, uniform, xavier_uniform, xavier_normal,
kaiming_uniform, kaiming_normal, orthogonal. Fans are counted as torch counts them: (out, in, …) for
weights of two axes or more. `record/initialize.py` writes the same initializers as nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError

NAMES = (
    "zeros",
    "ones",
    "normal",
    "uniform",
    "xavier_uniform",
    "xavier_normal",
    "kaiming_uniform",
    "kaiming_normal",
    "orthogonal",
)


@dataclass(frozen=True)
class Initializer:
    """How a parameter starts.

    scale  -- the standard deviation of normal, half the width of uniform, a gain of the others
    """

    kind: str
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in NAMES:
            raise ArgumentError(
                f"no initializer is called {self.kind!r}", hint=f"one of {', '.join(NAMES)}"
            )


# Operators that scale and shift what they have normalized: a fresh scale is 1.
SCALED = (
    "BatchNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "GroupNormalization",
    "RMSNormalization",
)


def as_initializer(initializer: str | Initializer) -> Initializer:
    """The initializer of a name; `kaiming` and `xavier` are the uniform ones."""
    if isinstance(initializer, Initializer):
        return initializer
    alias = {"kaiming": "kaiming_uniform", "xavier": "xavier_uniform"}
    return Initializer(alias.get(initializer, initializer))


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many numbers come in and go out at each element: (fan in, fan out)."""
    if len(shape) < 2:
        return max(math.prod(shape), 1), max(math.prod(shape), 1)
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def spread(initializer: Initializer, shape: tuple[int, ...]) -> tuple[str, float]:
    """("normal", standard deviation) or ("uniform", half the width) of a random initializer."""
    fan_in, fan_out = fans(shape)
    scale = initializer.scale
    if initializer.kind == "normal":
        return "normal", 0.02 if scale is None else scale
    if initializer.kind == "uniform":
        return "uniform", 0.05 if scale is None else scale
    gain = 1.0 if scale is None else scale
    if initializer.kind == "xavier_normal":
        return "normal", gain * math.sqrt(2.0 / (fan_in + fan_out))
    if initializer.kind == "xavier_uniform":
        return "uniform", gain * math.sqrt(6.0 / (fan_in + fan_out))
    gain = math.sqrt(2.0) if scale is None else scale
    if initializer.kind == "kaiming_normal":
        return "normal", gain / math.sqrt(fan_in)
    return "uniform", gain * math.sqrt(3.0 / fan_in)


def draw(
    initializer: str | Initializer, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """Starting values as a float32 array."""
    initializer = as_initializer(initializer)
    if initializer.kind in ("zeros", "ones"):
        return np.full(shape, float(initializer.kind == "ones"), np.float32)
    if initializer.kind == "orthogonal":
        return _orthogonal(initializer, shape, rng)
    kind, size = spread(initializer, shape)
    numbers = rng.normal(0.0, size, shape) if kind == "normal" else rng.uniform(-size, size, shape)
    return numbers.astype(np.float32)


def _orthogonal(
    initializer: Initializer, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    rows, columns = matrix(shape)
    q, r = np.linalg.qr(rng.normal(size=(max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))
    q = q if rows >= columns else q.T
    return (q.reshape(shape) * (1.0 if initializer.scale is None else initializer.scale)).astype(
        np.float32
    )


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        raise ArgumentError("only tensors of two axes or more can start orthogonal")
    return shape[0], math.prod(shape[1:])


def as_used(initializer: str | Initializer, value: ir.Value) -> tuple[Initializer, bool]:
    """The initializer for a parameter as it is used, and whether the weight is stored as (in, out).

    A vector has no fans: instead of an initializer that needs them, biases start at 0 and scales of
    normalizations at 1.
    """
    initializer = as_initializer(initializer)
    uses = value.uses()
    if value.shape is not None and len(value.shape) < 2:
        if initializer.kind in ("zeros", "ones", "normal", "uniform"):
            return initializer, False
        scale = any(u.node.op_type in SCALED and u.idx in (1, 4) for u in uses)
        return Initializer("ones" if scale else "zeros"), False
    return initializer, any(_is_input_first(u.node, u.idx) for u in uses)


def _is_input_first(node: ir.Node, position: int) -> bool:
    if position != 1:
        return False
    if node.op_type == "Gemm":
        return not node.attributes.get_int("transB", 0)
    return node.op_type == "MatMul"

"""Products of matrices."""

from __future__ import annotations

from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import is_float


@lowering("MatMul")
def matmul(xp, a, b):
    return xp.matmul(a, b)


@lowering("Gemm")
def gemm(xp, a, b, c=None, *, alpha, beta, transA, transB):
    product = xp.matmul(xp.swap(a) if transA else a, xp.swap(b) if transB else b)
    product = scaled(xp, product, alpha)
    return product if c is None else xp.add(product, scaled(xp, c, beta))


def scaled(xp, x, factor):
    if factor == 1:
        return x
    if is_float(xp.dtype(x)):
        return xp.multiply(x, xp.scalar(factor, x))
    return xp.multiply(x, xp.scalar(int(factor), x))


@lowering("Einsum")
def einsum(xp, *xs, equation):
    return xp.einsum(equation.replace(" ", ""), *xs)

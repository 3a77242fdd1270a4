"""Products of matrices: MatMul, Gemm, Einsum; and the determinant."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import HALF, Builder, Dim, rank, same_dim, same_shape
from sardonyx.errors import UnsupportedOp, quote
from sardonyx.grad.driver import gradient_rule

Pair = tuple[ir.Value, ir.Value]


@gradient_rule("MatMul", broadcasts=True)
def matmul(op, g, a, b):
    if a.shape is None or b.shape is None:
        # Einsum is the only product that can transpose a tensor of unknown rank.
        da = op.Einsum(g, b, equation="...ik,...jk->...ij")
        return da, op.Einsum(a, g, equation="...ij,...ik->...jk")
    if rank(b) == 2 and rank(a) > 2:
        rows, seeds = op.reshape(a, [-1, op.dim(a, -1)]), op.reshape(g, [-1, op.dim(g, -1)])
        return op.MatMul(g, op.swap(b)), _shaped(op.Gemm(rows, seeds, transA=1), b)
    return op.MatMul(g, op.swap(b)), op.MatMul(op.swap(a), g)


def _shaped(dx: ir.Value, x: ir.Value) -> ir.Value:
    """`dx` has the shape of `x`, though its dimensions may have other symbols."""
    if x.shape is not None and not same_shape(dx, x):
        dx.shape = ir.Shape(x.shape)
    return dx


@gradient_rule("Gemm", broadcasts=True)
def gemm(
    op,
    g,
    a,
    b,
    c,
    *,
    alpha,
    beta,
    transA,  # ONNX's spelling
    transB,
):
    if transA:
        da = op.Gemm(b, g, alpha=alpha, transA=transB, transB=1)
    else:
        da = op.Gemm(g, b, alpha=alpha, transB=1 - transB)
    if transB:
        db = op.Gemm(g, a, alpha=alpha, transA=1, transB=transA)
    else:
        db = op.Gemm(a, g, alpha=alpha, transA=1 - transA)
    return _shaped(da, a), _shaped(db, b), None if c is None else _bias(op, g, c, beta)


def _bias(op: Builder, g: ir.Value, c: ir.Value, beta: float) -> ir.Value:
    if not _is_row(c, g) or g.dtype in HALF:
        return g if beta == 1.0 else g * beta
    # A row of ones times g beats ReduceSum over the first axis.
    one = ir.tensor(np.ones(1, g.dtype.numpy()))  # type: ignore[union-attr]
    ones = op.ConstantOfShape(op.join([1, op.dim(g, 0)]), value=one)
    row = op.Gemm(ones, g, alpha=beta)
    return op.reshape(row, [op.dim(g, 1)]) if rank(c) == 1 else row


def _is_row(c: ir.Value, g: ir.Value) -> bool:
    """Whether `c` is known to be broadcast over the rows of `g`, and over nothing else."""
    if c.shape is None or g.shape is None or len(c.shape) not in (1, 2):
        return False
    return same_dim(c.shape[-1], g.shape[-1]) and (len(c.shape) == 1 or c.shape[0] == 1)


# -- Einsum ---------------------------------------------------------------------


@gradient_rule("Einsum", broadcasts=True)
def einsum(op, g, *xs, equation, node):
    """Each gradient is another Einsum: of the output's and the other inputs' terms to this one's.

    A letter that only this input has was summed over: its gradient is constant along it. A letter
    that this input has twice took a diagonal: its gradient is zero off it.
    """
    terms, result = _terms(equation, xs, node)
    grads: list[ir.Value | None] = []
    for i, (x, term) in enumerate(zip(xs, terms, strict=True)):
        others = [(t, v) for j, (t, v) in enumerate(zip(terms, xs, strict=True)) if j != i]
        parts = [(result, g), *others]
        letters = set().union(*(t for t, _ in parts))
        present = [s for k, s in enumerate(term) if s in letters and s not in term[:k]]
        sizes = [_size(s, parts) for s in present]
        dx = g
        if others or result != present:
            left = ",".join("".join(t) for t, _ in parts)
            dx = op.Einsum(*[v for _, v in parts], equation=f"{left}->{''.join(present)}")
            dx.shape = ir.Shape(sizes)
        # A letter of the result has its full size in g; another may be 1 in all other inputs.
        dims = [None] * len(term) if x.shape is None else list(x.shape)
        is_full = [
            s in result or dims[term.index(s)] == 1 or _same(size, dims[term.index(s)])
            for s, size in zip(present, sizes, strict=True)
        ]
        grads.append(_restore(op, dx, x, term, present, all(is_full)))
    return grads


def _size(letter: str, parts: list[tuple[list[str], ir.Value]]) -> Any:
    """The size of a letter in a product, sizes of 1 broadcast; None where that is not known."""
    dims = [
        v.shape[k] if v.shape is not None else None
        for term, v in parts
        for k, s in enumerate(term)
        if s == letter
    ]
    larger = [d for d in dims if d != 1]
    if not larger:
        return 1
    sizes = [d for d in larger if isinstance(d, int)]
    if sizes:
        return sizes[0]
    alike = all(d is not None and same_dim(d, larger[0]) for d in larger)
    return larger[0] if alike else None


def _terms(
    equation: str, xs: tuple[ir.Value, ...], node: ir.Node
) -> tuple[list[list[str]], list[str]]:
    """The letters of each input and of the output, the dimensions of an ellipsis spelt out."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    free = [c for c in string.ascii_letters if c not in equation]
    width = 0
    for term, x in zip(terms, xs, strict=True):
        if "..." in term:
            if x.shape is None:
                raise UnsupportedOp(
                    "the gradient of Einsum with an ellipsis needs known ranks",
                    [[f"node {quote(node.name)}", f"input {quote(x.name)}"]],
                    hint="declare the shapes of the model's inputs",
                )
            width = max(width, len(x.shape) - len(term.replace("...", "")))
    spelt = []
    for term, x in zip(terms, xs, strict=True):
        hidden = 0 if "..." not in term else rank(x) - len(term.replace("...", ""))
        spelt.append(list(term.replace("...", "".join(free[width - hidden : width]))))
    return spelt, list(right.replace("...", "".join(free[:width])))


def _restore(
    op: Builder, dx: ir.Value, x: ir.Value, term: list[str], present: list[str], is_full: bool
) -> ir.Value:
    """Give `dx`, whose axes are `present`, the axes of `x`, whose letters are `term`."""
    first = {term.index(s) for s in present}
    added = [k for k in range(len(term)) if k not in first]
    dx = op.Unsqueeze(dx, added) if added else dx
    if not is_full or any(s not in present for s in term):
        dx = op.Expand(dx, op.shape(x))
    for k, s in enumerate(term):
        if term.index(s) != k:
            n = op.dim(x, k)
            row, column = (_along(op, n, axis, len(term)) for axis in (term.index(s), k))
            dx = op.Where(op.Equal(row, column), dx, 0.0)
    return dx


def _same(a: Any, b: Any) -> bool:
    return a is not None and b is not None and same_dim(a, b)


def _along(op: Builder, n: Dim, axis: int, size: int) -> ir.Value:
    """0, 1, …, n-1 along `axis` of a tensor of `size` axes."""
    shape = [-1 if a == axis else 1 for a in range(size)]
    if isinstance(n, int):
        return op.const(np.arange(n, dtype=np.int64).reshape(shape))
    return op.Reshape(op.Range(0, op.Squeeze(n, [0]), 1), shape)


# -- Det ------------------------------------------------------------------------


@gradient_rule("Det")
def det(op, g, x):
    """The cofactors, each by its own determinant: exact for singular matrices too."""
    n = op.dim(x, -1)
    seed = op.Unsqueeze(g, [-2, -1])
    if n == 1:
        return _shaped(seed, x)
    if isinstance(n, int):
        columns = np.array([[c for c in range(n) if c != i] for i in range(n)], np.int64)
        picked: Any = op.const(columns[:, None, :, None] * n + columns[None, :, None, :])
        signs: Any = op.const((-1.0) ** np.add.outer(np.arange(n), np.arange(n)), x.dtype)
    else:
        picked, signs = _minors(op, n, x)
    flat = op.reshape(x, op.join([*op.dims(x, 0, -2), -1]))
    minors = op.Gather(flat, picked, axis=-1)
    return _shaped(seed * (signs * op.Det(minors)), x)


def _minors(op: Builder, n: ir.Value, x: ir.Value) -> Pair:
    """Indices of all minors of n x n matrices in flat order, and the signs of the cofactors."""
    assert x.dtype is not None
    size = op.Squeeze(n, [0])
    all_rows = op.Range(0, size, 1)
    fewer = op.Range(0, size - 1, 1)
    later = op.GreaterOrEqual(fewer, op.Unsqueeze(all_rows, [1]))
    columns = fewer + op.cast(later, ir.DataType.INT64)
    rows = op.Unsqueeze(columns, [1, 3]) * size
    odd = op.Mod(op.Unsqueeze(all_rows, [1]) + all_rows, 2)
    return rows + op.Unsqueeze(columns, [0, 2]), 1.0 - op.cast(odd, x.dtype) * 2.0

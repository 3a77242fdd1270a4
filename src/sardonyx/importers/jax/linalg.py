"""Rules of decompositions of matrices and of solutions of equations, as loops over columns or rows.

The functions are written in JAX and traced in place; signs and pivots are those of LAPACK, with
which JAX computes them on a CPU. Eigenvalues and singular values have no rule: the sign of their
vectors is nobody's to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import onnx_ir as ir
from jax import lax
from jax._src.lax import linalg

from sardonyx.importers.jax.driver import importer
from sardonyx.importers.jax.writer import Refusal, Writer

# Rows or columns of a decomposition; those of LAPACK are themselves 3e-5 to 1e-4 off at 200 rows.
LARGEST = 128


def _require_small(x: ir.Value) -> None:
    if any(not isinstance(size, int) or size > LARGEST for size in x.meta["aval"].shape[-2:]):
        raise Refusal(f"matrices of more than {LARGEST} rows or columns, or of a free size")


@importer("cholesky")
def cholesky(op: Writer, x: ir.Value) -> ir.Value:
    _require_small(x)
    return op.inline(op, _cholesky, x)[0]


def _cholesky(a: Any) -> Any:
    rows = jnp.arange(a.shape[-1])

    def column(lower: Any, j: Any) -> Any:
        here = rows == j
        row = jnp.where(here[:, None], lower, 0).sum(-2)
        rest = _column(a, here) - jnp.squeeze(lower @ row[..., None], -1)
        pivot = jnp.where(here, rest, 0).sum(-1, keepdims=True)
        new = jnp.where(rows >= j, rest / jnp.sqrt(pivot), 0)
        return jnp.where(here, new[..., None], lower), None

    lower = lax.scan(column, jnp.zeros_like(a), rows)[0]
    failed = jnp.isnan(lower).any((-2, -1), keepdims=True)
    lower = jnp.where(rows[:, None] >= rows, lower, a)  # what LAPACK leaves, jnp.tril drops
    return jnp.where(failed, jnp.nan, lower)


def _column(a: Any, here: Any) -> Any:
    """The column of matrices that a mask chooses."""
    return jnp.where(here, a, 0).sum(-1)


@importer("triangular_solve")
def triangular_solve(
    op: Writer,
    a: ir.Value,
    b: ir.Value,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    unit_diagonal: bool,
) -> ir.Value:
    def solve(a: Any, b: Any) -> Any:
        if not left_side:  # X A = B is A' X' = B'
            b = b.mT
        is_transposed = transpose_a != (not left_side)
        x = _substitute(a.mT if is_transposed else a, b, lower != is_transposed, unit_diagonal)
        return x if left_side else x.mT

    return op.inline(op, solve, a, b)[0]


def _substitute(a: Any, b: Any, lower: bool, unit_diagonal: bool) -> Any:
    a = jnp.tril(a) if lower else jnp.triu(a)
    rows = jnp.arange(a.shape[-1])

    def row(x: Any, i: Any) -> Any:
        line = lax.dynamic_slice_in_dim(a, i, 1, -2)
        rest = lax.dynamic_slice_in_dim(b, i, 1, -2) - line @ x
        if not unit_diagonal:
            rest = rest / lax.dynamic_slice_in_dim(line, i, 1, -1)
        return jnp.where((rows == i)[:, None], rest, x), None

    return lax.scan(row, jnp.zeros_like(b), rows, reverse=not lower)[0]


@importer("lu")
def lu(op: Writer, x: ir.Value) -> Sequence[ir.Value]:
    return op.inline(op, linalg._lu_python, x)


@importer("lu_pivots_to_permutation")
def lu_pivots_to_permutation(op: Writer, pivots: ir.Value, *, permutation_size: int) -> ir.Value:
    return op.inline(
        op, lambda p: linalg._generic_lu_pivots_to_permutation(p, permutation_size), pivots
    )[0]


@importer("tridiagonal_solve")
def tridiagonal_solve(op: Writer, *operands: ir.Value) -> ir.Value:
    def solve(*bands: Any) -> Any:
        return linalg._tridiagonal_solve_jax(*bands, perturb_singular=False)

    return op.inline(op, solve, *operands)[0]


@importer("qr")
def qr(op: Writer, x: ir.Value, *, pivoting: bool, full_matrices: bool) -> Sequence[ir.Value]:
    if pivoting:
        raise Refusal("columns in another order")
    _require_small(x)

    def decompose(a: Any) -> Any:
        return linalg._qr_lowering(a, pivoting=False, full_matrices=full_matrices, use_magma=None)

    return op.inline(op, decompose, x)


@importer("geqrf")
def geqrf(op: Writer, x: ir.Value) -> Sequence[ir.Value]:
    return op.inline(op, _reflected, x)


def _reflected(a: Any) -> Any:
    """The matrix after Householder's reflections, which stand below its diagonal."""
    rows, columns = jnp.arange(a.shape[-2]), jnp.arange(a.shape[-1])

    def reflect(state: Any, j: Any) -> Any:
        x = _column(state, columns == j)
        tail = jnp.where(rows > j, x, 0)
        alpha = jnp.where(rows == j, x, 0).sum(-1, keepdims=True)
        length = jnp.sqrt(alpha**2 + (tail**2).sum(-1, keepdims=True))
        is_plain = (tail == 0).all(-1, keepdims=True)
        beta = jnp.where(is_plain, alpha, jnp.where(alpha < 0, length, -length))
        tau = jnp.where(is_plain, 0, (beta - alpha) / jnp.where(is_plain, 1, beta))
        v = tail / jnp.where(is_plain, 1, alpha - beta)
        vector = v + (rows == j)
        moved = _reflection(state, vector, tau)
        new = jnp.where(rows > j, v, jnp.where(rows == j, beta, x))
        state = jnp.where(columns > j, moved, state)
        return jnp.where(columns == j, new[..., None], state), tau[..., 0]

    a, taus = lax.scan(reflect, a, jnp.arange(min(a.shape[-2:])))
    return a, jnp.moveaxis(taus, 0, -1)


def _reflection(a: Any, vector: Any, tau: Any) -> Any:
    return a - tau[..., None] * vector[..., :, None] * (vector[..., None, :] @ a)


@importer("householder_product")
def householder_product(op: Writer, a: ir.Value, taus: ir.Value) -> ir.Value:
    return op.inline(op, _product, a, taus)[0]


def _product(a: Any, taus: Any) -> Any:
    rows, columns = jnp.arange(a.shape[-2]), jnp.arange(a.shape[-1])

    def reflect(q: Any, part: Any) -> Any:
        j, tau = part
        vector = jnp.where(rows > j, _column(a, columns == j), 0) + (rows == j)
        return _reflection(q, vector, tau[..., None]), None

    start = jnp.broadcast_to(jnp.eye(a.shape[-2], a.shape[-1], dtype=a.dtype), a.shape)
    parts = jnp.arange(taus.shape[-1]), jnp.moveaxis(taus, -1, 0)
    return lax.scan(reflect, start, parts, reverse=True)[0]

"""Primitives of JAX on special values: NaN, infinities, signed zeros, wrap-around, no elements.

Results of integers, booleans and selections are equal bit for bit; functions that round are within
a few units in the last place of the largest value. XLA on a CPU takes numbers below 1e-38 for 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sardonyx.importers import proof

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402

from sardonyx.importers.jax import check, finish  # noqa: E402

jnp = jax.numpy
NAN, INF = np.nan, np.inf
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, 0.5, -0.5, 3e9, -3e9, 1e-30], np.float32)
OTHER = np.array([1.0, NAN, 2.0, -0.0, 0.0, 2.5, -2.5, NAN, 1.0, 2.0, 2.0, 0.0], np.float32)
INTS = np.array([0, 1, -1, 7, -7, 2**31 - 1, -(2**31), 100], np.int32)
BY = np.array([3, 0, -1, -2, 2, -1, -1, 31], np.int32)
WORDS = np.array([0, 1, 2**31, 2**32 - 1, 12345, 7], np.uint32)
SMALL = np.array([-128, 127, -1, 5, 0, 100], np.int8)
TABLE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
SQUARE = np.random.default_rng(0).normal(size=(3, 4, 4)).astype(np.float32)
POSITIVE = SQUARE @ SQUARE.swapaxes(1, 2) + 2 * np.eye(4, dtype=np.float32)
LARGE = np.random.default_rng(0).integers(0, 2**32, (7, 5))
NANS = np.array([[1, NAN, 3], [NAN, 2, 1], [3, 2, NAN], [-INF, -INF, -INF]], np.float32)
KEY = jax.random.key(3)


def _collatz(n: Any) -> Any:
    """How many steps it takes to 1, with a key and numbers that change on the way."""

    def step(state: Any) -> Any:
        n, count, half, key = state
        n = jnp.where(n % 2 == 0, n // 2, 3 * n + 1)
        return n, count + 1, half * 0.5, jax.random.fold_in(key, 1)

    start = n, jnp.int32(0), jnp.ones((2, 3)), jax.random.key(0)
    n, count, half, key = lax.while_loop(lambda s: (s[0] != 1) & (s[1] < 50), step, start)
    return n, count, half, jax.random.key_data(key)


EXACT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "max and min": (lambda x, y: (lax.max(x, y), lax.min(x, y)), (SPECIAL[:3], OTHER[:3])),
    "clamp": (lambda x: lax.clamp(-1.0, x, 2.0), (SPECIAL,)),
    "clamp, bounds swapped": (lambda x: lax.clamp(2.0, x, -1.0), (SPECIAL,)),
    "sign": (jnp.sign, (SPECIAL,)),
    "comparisons": (lambda x, y: (x < y, x <= y, x == y, x != y, x >= y), (SPECIAL, OTHER)),
    "round": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), (SPECIAL,)),
    "round away": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), (SPECIAL,)),
    "casts to integers": (
        lambda x: tuple(x.astype(t) for t in ("int32", "uint32", "int8", "uint8", "int16", "bool")),
        (SPECIAL,),
    ),
    "casts of integers": (
        lambda x: tuple(x.astype(t) for t in ("float32", "uint32", "int8", "uint8", "bool")),
        (INTS,),
    ),
    "is finite": (jnp.isfinite, (SPECIAL,)),
    "indices out of bounds that were promised to be inside": (
        lambda x, i: tuple(
            getattr(x.at[:, i], how)(7.0, mode="promise_in_bounds")
            for how in ("set", "add", "multiply", "min", "max")
        ),
        (TABLE[0], np.array([1, 9, -30], np.int32)),
    ),
    "loops under vmap, each with an end of its own": (
        lambda n: jax.vmap(jax.vmap(_collatz))(n),
        (np.array([[27, 1, 6], [7, 3, 19]], np.int32),),
    ),
    "nextafter": (jnp.nextafter, (SPECIAL[1:6], OTHER[1:6])),
    "fmod": (lax.rem, (SPECIAL[3:], OTHER[3:] + 3)),
    "integer division": (lambda x, y: (lax.div(x, y), lax.rem(x, y)), (INTS, BY)),
    "floor division": (lambda x, y: (x // 3, x % 3, x // -4, x % -4), (INTS, BY)),
    "unsigned division": (lambda x: (x // jnp.uint32(3), x % jnp.uint32(0)), (WORDS,)),
    "wrap-around": (lambda x: (x + x, x * x, x - 5, -x, abs(x)), (INTS,)),
    "wrap-around of words": (lambda x: (x + x, x * x, x - jnp.uint32(5)), (WORDS,)),
    "wrap-around of bytes": (lambda x: (x + x, x * x, x - x * 2, abs(x)), (SMALL,)),
    "shifts": (
        lambda x, n: (lax.shift_left(x, n), lax.shift_right_logical(x, n)),
        (INTS, np.array([0, 31, 32, 33, 1, 2, 3, -1], np.int32)),
    ),
    "arithmetic shifts": (
        lax.shift_right_arithmetic,
        (INTS, np.array([0, 31, 32, 33, 1, 2, 3, 4], np.int32)),
    ),
    "bits of bytes": (lambda x: (x >> 1, x << 1, ~x, x & 15, x | 1, x ^ 85), (SMALL,)),
    "population count": (lambda x: (lax.population_count(x), lax.clz(x)), (WORDS,)),
    "reduced extremes": (lambda x: (x.max(1), x.min(0), x.max(), jnp.argmax(x, 1)), (NANS,)),
    "argmin": (lambda x: (jnp.argmin(x, 1), jnp.argmin(x), jnp.argmax(x)), (NANS,)),
    "pooling with NaN": (
        lambda x: lax.reduce_window(x, -INF, lax.max, (1, 2), (1, 1), "SAME"),
        (NANS,),
    ),
    "running extremes": (lambda x: (lax.cummax(x, 1), lax.cummin(x, 0, reverse=True)), (NANS,)),
    "sort": (lambda x: (jnp.sort(x), jnp.argsort(x)), (SPECIAL,)),
    "sort of integers": (lambda x: (jnp.sort(x), jnp.argsort(-x)), (INTS,)),
    "sort of words": (lambda x: jnp.sort(x), (WORDS,)),
    "sort by two keys": (
        lambda x, y: lax.sort((x // 2, y, x), num_keys=2),
        (INTS[:6] % 4, BY[:6]),
    ),
    "top k": (lambda x: lax.top_k(x, 3), (np.array([1, 3, 3, -1, 2], np.float32),)),
    "no elements": (lambda x: (x.sum(0), x.max(1), x.T, x @ x.T), (np.zeros((0, 3), np.float32),)),
    "one element": (lambda x: (x.sum(), jnp.sort(x), x[0], x[::-1]), (np.ones(1, np.float32),)),
    "take out of bounds": (lambda x, i: (jnp.take(x, i, 1), x[:, i]), (TABLE, INTS[:5])),
    "take with modes": (
        lambda x, i: tuple(jnp.take(x, i, 0, mode=m) for m in ("clip", "wrap", "fill")),
        (TABLE, INTS[:5]),
    ),
    "put out of bounds": (
        lambda x, i: tuple(
            getattr(x.at[i], m)(9.0) for m in ("set", "add", "multiply", "max", "min")
        ),
        (TABLE[0, 0], np.array([0, 7, -1, -9, 2], np.int32)),
    ),
    "put into a box": (lambda x: x.at[:, 1, 1:3].set(5.0), (TABLE,)),
    "boolean put": (lambda x, i: x.at[i].set(True), (np.zeros(4, bool), INTS[:3])),
    "gather of pairs": (lambda x, i, j: x[i, :, j], (TABLE, INTS[:2], np.array([3, 1], np.int32))),
    "slices that move": (
        lambda x, i: (
            lax.dynamic_slice(x, (i, i, i), (1, 2, 3)),
            lax.dynamic_update_slice(x, x[:1, :2, :2] * 0, (i, i, i)),
        ),
        (TABLE, np.int32(5)),
    ),
    "pad": (
        lambda x: (
            lax.pad(x, 7.0, ((1, -1, 0), (0, 2, 1), (-1, 1, 2))),
            lax.pad(x, 0.0, ((0, 0, 0), (-2, 0, 0), (-3, 4, 0))),
        ),
        (TABLE,),
    ),
    "select": (lambda x, y: lax.select_n(y % 3, x, x + 1, x + 2), (INTS, np.abs(BY))),
    "select of booleans": (lambda x, y: jnp.where(x > 0, y > 0, y < 0), (INTS, BY)),
    "cond of three": (
        lambda i, x: lax.switch(i, [lambda v: v, lambda v: -v, lambda v: v * 2], x),
        (np.int32(7), SPECIAL[1:4]),
    ),
    "while": (
        lambda n: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 3), (0, 1)),
        (np.int32(5),),
    ),
    "scan without inputs": (
        lambda x: lax.scan(lambda c, _: (c + 1, c), x, None, length=4),
        (np.int32(3),),
    ),
    "scan backwards": (
        lambda x: lax.scan(lambda c, v: (c * 2 + v, c), 0, x, reverse=True),
        (np.arange(5, dtype=np.int32),),
    ),
    "scan of nothing": (
        lambda x: lax.scan(lambda c, v: (c + v, c), 0.0, x),
        (np.zeros(0, np.float32),),
    ),
    "bit casts": (lambda x: lax.bitcast_convert_type(x, jnp.int32), (SPECIAL,)),
    "random bits": (
        lambda k: tuple(
            jax.random.bits(s, (3, 5), d) for s in jax.random.split(k) for d in ("uint8", "uint32")
        ),
        (KEY,),
    ),
    "random keys": (
        lambda k: (
            jax.random.key_data(jax.random.split(k, (2, 3))),
            jax.random.key_data(jax.random.fold_in(k, 7)),
            jax.random.key_data(jax.random.split(k, 4)[2]),
            jax.random.randint(k, (9,), -5, 100),
            jax.random.bernoulli(k, 0.3, (9,)),
            jax.random.permutation(k, 10),
        ),
        (KEY,),
    ),
    "keys of a map": (
        lambda k: jax.vmap(lambda s: jax.random.uniform(s, (3,)))(jax.random.split(k, 4)),
        (KEY,),
    ),
    "old keys": (
        lambda k: jax.random.uniform(jax.random.split(k)[1], (4,)),
        (jax.random.PRNGKey(1),),
    ),
    "halves": (
        lambda x: (x + 1, x * x, x.max(), x.astype("float32"), x > 0, -x),
        (np.array([1.5, -2, 0.1], jnp.bfloat16),),
    ),
    "integer products": (
        lambda x: (x @ x.T, x.sum(), x.prod(1)),
        (np.arange(6, dtype=np.int32).reshape(2, 3),),
    ),
    "sums and products that wrap around": (
        lambda x, y: (x.sum(), x.sum(1), x.prod(), y.sum(0), y.prod(1), jnp.cumprod(x, 1)),
        (LARGE.astype(np.int32), LARGE.astype(np.uint32)),
    ),
    "extremes of words": (
        lambda x: (x.max(), x.max(1), x.min(), x.min(0), jnp.argmax(x, 1), jnp.clip(x, 9, x[0])),
        (LARGE.astype(np.uint32),),
    ),
    "no elements along an axis": (
        lambda x: (
            jnp.max(x[:, :0], axis=1, initial=-3.0),
            (x[:, :0] > 0).any(1),
            (x[:, :0] > 0).all(1),
            x[:, :0].astype(int).prod(1),
            jnp.pad(x, ((0, 0), (1, 2)), mode="edge"),
        ),
        (TABLE[0],),
    ),
    "products of bytes": (
        lambda x: lax.dot_general(x, x, (((0,), (0,)), ((), ())), preferred_element_type=jnp.int32),
        (SMALL,),
    ),
    "any and all": (lambda x: ((x > 0).any(0), (x > 0).all(0), (x > 0).sum()), (NANS,)),
    "differences of counts": (lambda x: jnp.cumsum(x), (SMALL,)),
    "unique values": (lambda x: jnp.unique(x, size=5, fill_value=-1), (INTS,)),
    "histogram": (lambda x: jnp.bincount(x, length=6), (np.array([1, 1, 5, 0], np.int32),)),
    "searchsorted": (
        lambda x: jnp.searchsorted(jnp.arange(5.0), x),
        (np.array([2.5, -1, 9], np.float32),),
    ),
    "one hot": (lambda x: jax.nn.one_hot(x, 4), (np.array([0, 3, 9, -1], np.int32),)),
}

GRID = np.linspace(-4, 4, 41).astype(np.float32)
UNIT = np.linspace(-0.999, 0.999, 41).astype(np.float32)
TINY = np.array([1e-8, -1e-8, 1e-4, -1e-4, 0.3, 5.0, INF, -0.0], np.float32)
ROUNDED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "log1p and expm1": (lambda x: (jnp.log1p(x), jnp.expm1(x)), (TINY,)),
    "expm1 far down": (jnp.expm1, (np.array([-INF, -200, -20, 80], np.float32),)),
    "atan2": (jnp.arctan2, (SPECIAL[1:9], np.roll(SPECIAL[1:9], 1))),
    "cube root": (jnp.cbrt, (SPECIAL,)),
    "powers": (lambda x: (x**3, x**-2, jnp.abs(x) ** 0.5, 2.0**x), (GRID + 0.05,)),
    "error functions": (lambda x: (lax.erf(x), lax.erfc(x)), (GRID,)),
    "inverse error function": (lax.erf_inv, (np.append(UNIT, [1, -1]).astype(np.float32),)),
    "gamma functions": (lambda x: (lax.lgamma(x), lax.digamma(x)), (GRID + 0.05,)),
    "incomplete gamma": (lambda x: lax.igamma(2.0 + 0 * x, x), (np.abs(GRID),)),
    "Bessel functions": (lambda x: (lax.bessel_i0e(x), lax.bessel_i1e(x)), (GRID * 4,)),
    "logarithmic sums": (lambda x: (jax.nn.logsumexp(x), lax.cumlogsumexp(x)), (GRID,)),
    "activations": (
        lambda x: (
            jax.nn.gelu(x),
            jax.nn.silu(x),
            jax.nn.softplus(x),
            jax.nn.elu(x),
            jax.nn.mish(x),
        ),
        (GRID,),
    ),
    "softmax with -inf": (jax.nn.softmax, (np.array([[1, -INF, 2], [0, 0, 0]], np.float32),)),
    "normal numbers": (lambda k: jax.random.normal(k, (50,)), (KEY,)),
    "other distributions": (
        lambda k: (
            jax.random.gumbel(k, (20,)),
            jax.random.exponential(k, (20,)),
            jax.random.truncated_normal(k, -1.0, 1.0, (20,)),
            jax.random.categorical(k, jnp.zeros((6, 4))),
        ),
        (KEY,),
    ),
    "gamma and beta": (
        lambda k: (jax.random.gamma(k, jnp.array([0.3, 4.0]), (3, 2)), jax.random.beta(k, 2, 3)),
        (KEY,),
    ),
    "decompositions": (
        lambda x, y: (jnp.linalg.cholesky(x), jnp.linalg.cholesky(y), jnp.linalg.qr(y[:, :, :2])),
        (POSITIVE, SQUARE),
    ),
    "more decompositions": (
        lambda x: (jnp.linalg.qr(x.mT), jnp.linalg.qr(x, mode="complete"), lax.linalg.lu(x)),
        (SQUARE[:, :, :2],),
    ),
    "solutions": (
        lambda x: (jnp.linalg.solve(x, x[:, :, :2]), jnp.linalg.inv(x), jnp.linalg.slogdet(x)),
        (SQUARE,),
    ),
    "triangular solutions": (
        lambda x: tuple(
            lax.linalg.triangular_solve(
                x,
                x[:, :, :2] if left else x[:, :2],
                left_side=left,
                lower=lower,
                transpose_a=transpose,
                unit_diagonal=left == lower,
            )
            for left in (True, False)
            for lower in (True, False)
            for transpose in (True, False)
        ),
        (POSITIVE,),
    ),
    "tridiagonal solutions": (
        lambda x: lax.linalg.tridiagonal_solve(x[0, 0], x[0, 1] + 5, x[0, 2], x[0, :, :2]),
        (SQUARE,),
    ),
    "einsum": (
        lambda x, y: (jnp.einsum("abc,dbc->ad", x, y), jnp.einsum("abc,abd->bcd", x, y)),
        (TABLE, TABLE + 1),
    ),
    "batched products": (lambda x: (x @ x.swapaxes(1, 2), x @ x[0].T), (TABLE,)),
    "resize": (lambda x: jax.image.resize(x, (2, 6, 3), "cubic"), (TABLE,)),
    "variance": (lambda x: (x.var(1), x.std(), jnp.median(x, 2)), (TABLE,)),
    "interpolation": (
        lambda x: jnp.interp(x, jnp.arange(5.0), jnp.arange(5.0) ** 2),
        (np.abs(GRID),),
    ),
}


def results(function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Pairs of what onnxruntime and JAX give."""
    model = finish.forward(lambda _, *a: function(*a), (), arguments, checked=False)
    names = [f"input_{i}" for i in range(len(arguments))]
    feeds = check.sample(dict(zip(names, arguments, strict=True)), None)
    used = {v.name for v in model.inputs}
    outputs = proof.run(model, {n: a for n, a in feeds.items() if n in used})
    expected = jax.tree_util.tree_leaves(jax.jit(function)(*arguments))
    return [
        (outputs[v.name or ""], check.plain(x))
        for v, x in zip(model.outputs, expected, strict=True)
    ]


@pytest.mark.parametrize("name", EXACT)
def test_values_are_exactly_those_of_jax(name: str) -> None:
    for actual, expected in results(*EXACT[name]):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ROUNDED)
def test_values_are_those_of_jax(name: str) -> None:
    for actual, expected in results(*ROUNDED[name]):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("bits", [32, 33, 63])
def test_long_integers_are_exactly_those_of_jax(dtype: Any, bits: int) -> None:
    rng = np.random.default_rng(bits)
    x, y = (rng.integers(0, 2**bits, (5, 6), dtype=np.uint64).astype(dtype) for _ in range(2))

    def function(x: Any, y: Any) -> Any:
        extremes = x.max(1), x.max(), x.min(0), jnp.argmax(x, 1), jnp.argmin(x), jnp.sort(x)
        totals = x.sum(0), x.sum(), x.prod(1), jnp.cumsum(x, 1), lax.cummax(x, 1)
        return extremes, totals, jnp.maximum(x, y), jnp.minimum(x, y), jnp.sign(x)

    with jax.enable_x64(True):
        for actual, expected in results(function, (x, y)):
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(actual, expected)

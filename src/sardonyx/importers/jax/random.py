"""Rules of random numbers: the threefry hash in integers, bit for bit.

How keys become seeds, splits and bits is JAX's own code, traced; the hash at its bottom is written
here. A key is an array of uint32 with one more axis (`keys.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax._src.random import core, prng

from sardonyx.importers.jax.driver import importer
from sardonyx.importers.jax.writer import Refusal, Writer

T = ir.DataType
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


@importer("threefry2x32")
def threefry2x32(
    op: Writer, k1: ir.Value, k2: ir.Value, x1: ir.Value, x2: ir.Value
) -> Sequence[ir.Value]:
    words = [k1, k2, op.BitwiseXor(op.BitwiseXor(k1, k2), op.const(PARITY))]
    a, b = op.Add(x1, words[0]), op.Add(x2, words[1])
    for number in range(5):
        for rotation in ROTATIONS[number % 2]:
            a = op.Add(a, b)
            b = op.BitwiseXor(a, _rotated(op, b, rotation))
        a = op.Add(a, words[(number + 1) % 3])
        b = op.Add(b, op.Add(words[(number + 2) % 3], op.const(np.uint32(number + 1))))
    return a, b


def _rotated(op: Writer, x: ir.Value, by: int) -> ir.Value:
    left = op.BitShift(x, op.const(np.uint32(by)), direction="LEFT")
    return op.BitwiseOr(left, op.BitShift(x, op.const(np.uint32(32 - by)), direction="RIGHT"))


@importer("iota_2x32_shape")
def iota_2x32_shape(op: Writer, *, shape: Sequence[Any]) -> Sequence[ir.Value]:
    size: Any = 1
    for d in shape:
        size = size * d
    if isinstance(size, int) and size >= 1 << 32:
        raise Refusal("more than 2**32 random numbers at once")
    low = op.shaped(op.cast(op.iota(size), T.UINT32), shape)
    return op.expanded(op.const(np.uint32(0)), shape), low


def _require_threefry(impl: Any) -> None:
    if impl.name != "threefry2x32":
        raise Refusal(f"random numbers by {impl.name}: use threefry keys")


@importer("random_seed")
def random_seed(op: Writer, seeds: ir.Value, *, impl: Any) -> ir.Value:
    _require_threefry(impl)
    return op.inline(op, lambda s: prng.random_seed_impl_base(s, impl=impl), seeds)[0]


@importer("random_split")
def random_split(op: Writer, key: ir.Value, *, shape: Any, impl: Any, keys_aval: Any) -> ir.Value:
    _require_threefry(impl)
    rank = len(keys_aval.shape)
    return op.inline(op, lambda k: prng.random_split_impl_base(impl, k, rank, shape=shape), key)[0]


@importer("random_fold_in")
def random_fold_in(
    op: Writer, key: ir.Value, message: ir.Value, *, impl: Any, keys_aval: Any
) -> ir.Value:
    _require_threefry(impl)
    shape = keys_aval.shape
    return op.inline(
        op, lambda k, m: prng.random_fold_in_impl_base(impl, k, m, shape), key, message
    )[0]


@importer("random_bits")
def random_bits(
    op: Writer, key: ir.Value, *, bit_width: int, shape: Any, impl: Any, keys_aval: Any
) -> ir.Value:
    _require_threefry(impl)
    rank = len(keys_aval.shape)
    return op.inline(
        op,
        lambda k: prng.random_bits_impl_base(impl, k, rank, bit_width=bit_width, shape=shape),
        key,
    )[0]


@importer("random_gamma")
def random_gamma(
    op: Writer, key: ir.Value, a: ir.Value, *, log_space: bool, impl: Any, keys_aval: Any
) -> ir.Value:
    _require_threefry(impl)

    def draw(words: Any, a: Any) -> Any:
        keys = jax.random.wrap_key_data(words, impl=impl)
        return core._gamma_impl(keys, a, log_space=log_space, use_vmap=True)

    return op.inline(op, draw, key, a)[0]


@importer("random_wrap", "random_unwrap", "random_clone")
def random_wrap(op: Writer, key: ir.Value) -> ir.Value:
    return key

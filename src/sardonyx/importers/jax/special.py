"""Rules of special functions: XLA's own expansions, or those that JAX writes in Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import onnx_ir as ir
from jax import lax
from jax._src.lax import special

from sardonyx.importers.coefficients import (
    ERFC_FAR,
    ERFC_NEAR,
    I1E_FAR,
    I1E_NEAR,
    LANCZOS,
    LANCZOS_G,
)
from sardonyx.importers.jax.driver import importer
from sardonyx.importers.jax.writer import Refusal, Writer

T = ir.DataType
# Giles's approximation, as XLA has it: coefficients for w < 5 and for the rest.
ERF_INV_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
ERF_INV_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def _single(op: Writer, x: ir.Value) -> None:
    if x.dtype == T.DOUBLE:
        raise Refusal("the function in float64")


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    y = jnp.zeros_like(x)
    for c in coefficients:
        y = y * x + jnp.asarray(c, x.dtype)
    return y


@importer("erf_inv")
def erf_inv(op: Writer, x: ir.Value) -> ir.Value:
    _single(op, x)
    return op.inline(op, _erf_inv, x)[0]


def _erf_inv(x: Any) -> Any:
    w = -jnp.log1p(-x * x)
    near = w < 5.0
    t = jnp.where(near, w - 2.5, jnp.sqrt(jnp.maximum(w, 0.0)) - 3.0)
    y = _polynomial(t, [0.0])
    for a, b in zip(ERF_INV_NEAR, ERF_INV_FAR, strict=True):
        y = y * t + jnp.where(near, jnp.asarray(a, x.dtype), jnp.asarray(b, x.dtype))
    return jnp.where(jnp.abs(x) == 1.0, x * jnp.inf, y * x)


@importer("erfc")
def erfc(op: Writer, x: ir.Value) -> ir.Value:
    _single(op, x)
    return op.inline(op, _erfc, x)[0]


def _erfc(x: Any) -> Any:
    a = jnp.abs(x)
    z = jnp.exp(-x * x)
    q = 1.0 / jnp.maximum(a, 1.0)
    s = q * q
    p = jnp.where(a < 2.0, _polynomial(s, ERFC_NEAR), _polynomial(s, ERFC_FAR))
    y = z * q * p
    y = jnp.where(z == 0.0, 0.0, y)
    far = jnp.where(x < 0, 2.0 - y, y)
    return jnp.where(a < 1.0, 1.0 - lax.erf(x), far)


@importer("lgamma")
def lgamma(op: Writer, x: ir.Value) -> ir.Value:
    return op.inline(op, _lgamma, x)[0]


def _lanczos(z: Any) -> Any:
    total = jnp.full_like(z, LANCZOS[0])
    for i, c in enumerate(LANCZOS[1:]):
        total = total + jnp.asarray(c, z.dtype) / (z + (i + 1.0))
    return total


def _lgamma(x: Any) -> Any:
    reflect = x < 0.5
    z = jnp.where(reflect, -x, x - 1.0)
    t = z + (LANCZOS_G + 0.5)
    log_t = math.log(LANCZOS_G + 0.5) + jnp.log1p(z / (LANCZOS_G + 0.5))
    half = jnp.asarray(0.5 * math.log(2 * math.pi), x.dtype)
    log_y = half + (z + 0.5 - t / log_t) * log_t + jnp.log(_lanczos(z))
    fraction = jnp.abs(x) - jnp.floor(jnp.abs(x))
    fraction = jnp.where(fraction > 0.5, 1.0 - fraction, fraction)
    log_sine = jnp.log(jnp.sin(math.pi * fraction))
    reflected = jnp.where(jnp.isfinite(log_sine), math.log(math.pi) - log_sine - log_y, -log_sine)
    y = jnp.where(reflect, reflected, log_y)
    return jnp.where(jnp.isinf(x), jnp.inf, y)


@importer("digamma")
def digamma(op: Writer, x: ir.Value) -> ir.Value:
    return op.inline(op, _digamma, x)[0]


def _digamma(x: Any) -> Any:
    reflect = x < 0.5
    z = jnp.where(reflect, -x, x - 1.0)
    numerator, denominator = jnp.zeros_like(z), jnp.full_like(z, LANCZOS[0])
    for i, c in enumerate(LANCZOS[1:]):
        base = z + (i + 1.0)
        numerator = numerator - jnp.asarray(c, x.dtype) / (base * base)
        denominator = denominator + jnp.asarray(c, x.dtype) / base
    t = z + (LANCZOS_G + 0.5)
    log_t = math.log(LANCZOS_G + 0.5) + jnp.log1p(z / (LANCZOS_G + 0.5))
    y = log_t + numerator / denominator - LANCZOS_G / t
    reduced = x + jnp.abs(jnp.floor(x + 0.5))
    angle = math.pi * reduced
    reflected = y - math.pi * jnp.cos(angle) / jnp.sin(angle)
    result = jnp.where(reflect, reflected, y)
    return jnp.where((x <= 0) & (x == jnp.floor(x)), jnp.nan, result)


@importer("bessel_i0e")
def bessel_i0e(op: Writer, x: ir.Value) -> ir.Value:
    return op.inline(op, special.bessel_i0e_impl, x)[0]


@importer("bessel_i1e")
def bessel_i1e(op: Writer, x: ir.Value) -> ir.Value:
    _single(op, x)
    return op.inline(op, _bessel_i1e, x)[0]


def _chebyshev(x: Any, coefficients: Sequence[float]) -> Any:
    b0 = b1 = b2 = jnp.zeros_like(x)
    for c in coefficients:
        b2, b1 = b1, b0
        b0 = x * b1 - b2 + jnp.asarray(c, x.dtype)
    return 0.5 * (b0 - b2)


def _bessel_i1e(x: Any) -> Any:
    z = jnp.abs(x)
    near = z * _chebyshev(0.5 * z - 2.0, I1E_NEAR)
    far = _chebyshev(32.0 / jnp.maximum(z, 8.0) - 2.0, I1E_FAR) / jnp.sqrt(jnp.maximum(z, 8.0))
    return jnp.sign(x) * jnp.where(z <= 8.0, near, far)


def _in_python(name: str) -> None:
    function = special._up_and_broadcast(getattr(special, f"{name}_impl"))

    def rule(op: Writer, *operands: ir.Value) -> ir.Value:
        return op.inline(op, function, *operands)[0]

    importer(name)(rule)


for _name in ("regularized_incomplete_beta", "igamma", "igammac", "igamma_grad_a"):
    _in_python(_name)


@importer("zeta")
def zeta(op: Writer, s: ir.Value, q: ir.Value) -> ir.Value:
    raise Refusal("Hurwitz's zeta function")

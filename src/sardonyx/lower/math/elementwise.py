"""One element in, one element out; operands are broadcast."""

from __future__ import annotations

from sardonyx.lower.driver import lowering, table
from sardonyx.lower.sizes import broadcast_shape, of_sizes, quotient
from sardonyx.lower.xp import NotStatic, is_float, is_symbolic

table(
    {
        "Abs": lambda xp, x: xp.abs(x),
        "Acos": lambda xp, x: xp.acos(x),
        "Acosh": lambda xp, x: xp.acosh(x),
        "Asin": lambda xp, x: xp.asin(x),
        "Asinh": lambda xp, x: xp.asinh(x),
        "Atan": lambda xp, x: xp.atan(x),
        "Atanh": lambda xp, x: xp.atanh(x),
        "Ceil": lambda xp, x: xp.ceil(x),
        "Cos": lambda xp, x: xp.cos(x),
        "Cosh": lambda xp, x: xp.cosh(x),
        "Erf": lambda xp, x: xp.erf(x),
        "Exp": lambda xp, x: xp.exp(x),
        "Floor": lambda xp, x: xp.floor(x),
        "Log": lambda xp, x: xp.log(x),
        "Reciprocal": lambda xp, x: xp.reciprocal(x),
        "Round": lambda xp, x: xp.round(x),
        "Sigmoid": lambda xp, x: xp.sigmoid(x),
        "Sign": lambda xp, x: xp.sign(x),
        "Sin": lambda xp, x: xp.sin(x),
        "Sinh": lambda xp, x: xp.sinh(x),
        "Softplus": lambda xp, x: xp.softplus(x),
        "Sqrt": lambda xp, x: xp.sqrt(x),
        "Tan": lambda xp, x: xp.tan(x),
        "Tanh": lambda xp, x: xp.tanh(x),
    },
    __name__,
)

table(
    {
        "Add": lambda xp, a, b: xp.add(a, b),
        "Mul": lambda xp, a, b: xp.multiply(a, b),
        "Neg": lambda xp, x: xp.negative(x),
        "Sub": lambda xp, a, b: xp.subtract(a, b),
    },
    __name__,
    sizes=True,
)


@lowering("Div", sizes=True)
def div(xp, a, b):
    if is_float(xp.dtype(a)):
        return xp.divide(a, b)
    if is_symbolic(a) or is_symbolic(b):
        return of_sizes(quotient, a, b)
    if xp.dtype(a).kind == "u":
        return xp.floor_divide(a, b)
    # ONNX rounds integer quotients toward zero.
    floor = xp.floor_divide(a, b)
    exact = xp.equal(xp.multiply(floor, b), a)
    negative = xp.less(floor, xp.scalar(0, a))
    up = xp.logical_and(negative, xp.logical_not(exact))
    return xp.add(floor, xp.cast(up, xp.dtype(a)))


@lowering("Mod", sizes=True)
def mod(xp, a, b, *, fmod):
    if fmod and (is_symbolic(a) or is_symbolic(b)):
        raise NotStatic
    return xp.fmod(a, b) if fmod else xp.remainder(a, b)


@lowering("Pow")
def power(xp, a, b):
    dtype, other = xp.dtype(a), xp.dtype(b)
    if dtype == other:
        return xp.power(a, b)
    if is_float(dtype):
        return xp.power(a, xp.cast(b, dtype))
    if is_float(other):
        return xp.cast(xp.power(xp.cast(a, other), b), dtype)
    return xp.power(a, xp.cast(b, dtype))


def fold(xp, function, first, rest):
    for other in rest:
        first = function(first, other)
    return first


@lowering("Sum")
def total(xp, first, *rest):
    return fold(xp, xp.add, first, rest)


@lowering("Mean")
def mean(xp, first, *rest):
    summed = fold(xp, xp.add, first, rest)
    return xp.divide(summed, xp.scalar(len(rest) + 1, summed))


@lowering("Max", sizes=True)
def maximum(xp, first, *rest):
    return fold(xp, xp.maximum, first, rest)


@lowering("Min", sizes=True)
def minimum(xp, first, *rest):
    return fold(xp, xp.minimum, first, rest)


@lowering("Clip")
def clip(xp, x, low=None, high=None):
    return xp.clip(x, low, high)


@lowering("Expand", static=("shape",))
def expand(xp, x, shape):
    return xp.broadcast_to(x, broadcast_shape(xp.shape(x), shape.tolist()))

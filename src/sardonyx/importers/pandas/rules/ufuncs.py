"""NumPy's functions of columns, and the methods of series that are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas.column import check_operand, is_column, is_scalar, record
from sardonyx.importers.pandas.emission import NAMES, Emission, Rep
from sardonyx.importers.pandas.recorder import refuse, rule
from sardonyx.importers.pandas.rules.arithmetic import wrapped


def over_columns(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a column that a frame applies to each of its columns."""

    def apply(self: Any, *arguments: Any) -> Any:
        if getattr(self, "_owner", "") == "DataFrame":
            return self.each(lambda column: function(column, *arguments))
        return function(self, *arguments)

    apply.__name__ = function.__name__
    return apply


def _unary(name: str, emit: Callable[[Emission, Any], Any], to_float: bool = True) -> None:
    function = getattr(np, name)

    def ufunc(x: Any) -> Any:
        def build(em: Emission, rep: Rep) -> Rep:
            return Rep("float", emit(em, em.double(rep, em.float_type())))

        def replay(a: pd.Series) -> Any:
            with np.errstate(all="ignore"):
                return function(a)

        return record(name, [x], replay, build)

    rule("numpy", name)(over_columns(ufunc))


def log1p(em: Emission, x: Any) -> Any:
    """log(1 + x) without the loss of a small x: what rounding took from 1 + x is added again."""
    op = em.op
    one = op.const(1.0, x.dtype)
    u = op.Add(one, x)
    log = op.Log(u)
    remainder = op.Div(op.Sub(x, op.Sub(u, one)), u)
    return op.Where(op.IsInf(log), log, op.Add(log, remainder))


def expm1(em: Emission, x: Any) -> Any:
    op = em.op
    one = op.const(1.0, x.dtype)
    u = op.Exp(x)
    small = op.Less(op.Abs(x), op.const(0.5, x.dtype))
    log = op.Log(op.Where(small, u, one))
    plain = op.Sub(u, one)
    denominator = op.Where(op.Equal(log, op.const(0.0, x.dtype)), one, log)
    precise = op.Where(op.Equal(u, one), x, op.Mul(plain, op.Div(x, denominator)))
    return op.Where(small, precise, plain)


# onnxruntime has no Atan, Asin, Acos, Tan, Sinh, Cosh for doubles: Cephes' rational approximation
# of the arc tangent, accurate to a unit in the last place, gives all arc functions.
_ATAN_P = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
           -1.228866684490136173410e2, -6.485021904942025371773e1)  # fmt: skip
_ATAN_Q = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
           4.853903996359136964868e2, 1.945506571482613964425e2)  # fmt: skip


def _polynomial(em: Emission, x: Any, coefficients: tuple[float, ...]) -> Any:
    result = em.op.const(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        result = em.op.Add(em.op.Mul(result, x), em.op.const(coefficient, x.dtype))
    return result


def arctan(em: Emission, x: Any) -> Any:
    op = em.op

    def number(value: float) -> Any:
        return op.const(value, x.dtype)

    size = op.Abs(x)
    large, middle = op.Greater(size, number(2.41421356237309504880)), op.Greater(size, number(0.66))
    one = number(1.0)
    safe = op.Where(large, size, one)
    reduced = op.Where(
        large,
        op.Neg(op.Div(one, safe)),
        op.Where(middle, op.Div(op.Sub(size, one), op.Add(size, one)), size),
    )
    start = op.Where(large, number(np.pi / 2), op.Where(middle, number(np.pi / 4), number(0.0)))
    more = op.Where(
        large,
        number(6.123233995736765886130e-17),
        op.Where(middle, number(3.061616997868382943065e-17), number(0.0)),
    )
    z = op.Mul(reduced, reduced)
    series = op.Div(op.Mul(z, _polynomial(em, z, _ATAN_P)), _polynomial(em, z, _ATAN_Q))
    value = op.Add(start, op.Add(op.Add(op.Mul(reduced, series), reduced), more))
    signed = op.Where(op.Less(x, number(0.0)), op.Neg(value), value)
    return op.Where(op.IsNaN(x), x, op.Where(op.Equal(x, number(0.0)), x, signed))


def arcsin(em: Emission, x: Any) -> Any:
    """asin x = atan(x / sqrt((1 - x)(1 + x))), which is exact enough next to one as well."""
    op = em.op
    one = op.const(1.0, x.dtype)
    return arctan(em, op.Div(x, op.Sqrt(op.Mul(op.Sub(one, x), op.Add(one, x)))))


def arccos(em: Emission, x: Any) -> Any:
    op = em.op
    one = op.const(1.0, x.dtype)
    ratio = op.Sqrt(op.Div(op.Sub(one, x), op.Add(one, x)))
    return op.Mul(op.const(2.0, x.dtype), arctan(em, ratio))


def arctan2(em: Emission, y: Any, x: Any) -> Any:
    op = em.op

    def number(value: float) -> Any:
        return op.const(value, y.dtype)

    zero, pi = number(0.0), number(np.pi)
    negative_y = op.Or(op.Less(y, zero), op.Less(op.Div(number(1.0), y), zero))
    left = op.Or(op.Less(x, zero), op.And(op.Equal(x, zero), op.Less(op.Div(number(1.0), x), zero)))
    both = op.And(op.IsInf(x), op.IsInf(y))
    ratio = op.Where(both, op.Mul(op.Sign(x), op.Sign(y)), op.Div(y, x))
    origin = op.And(op.Equal(x, zero), op.Equal(y, zero))
    angle = arctan(em, op.Where(origin, zero, ratio))
    turned = op.Add(angle, op.Where(negative_y, op.Neg(pi), pi))
    angle = op.Where(origin, op.Where(left, turned, y), op.Where(left, turned, angle))
    return op.Where(op.Or(op.IsNaN(x), op.IsNaN(y)), number(np.nan), angle)


def _scaled(factor: float) -> Callable[[Emission, Any], Any]:
    return lambda em, x: em.op.Mul(x, em.op.const(factor, x.dtype))


def _plain(operator: str) -> Callable[[Emission, Any], Any]:
    return lambda em, x: getattr(em.op, operator)(x)


def _log_base(base: float) -> Callable[[Emission, Any], Any]:
    """A logarithm by another base; whole powers of the base come out whole, as in C."""

    def emit(em: Emission, x: Any) -> Any:
        op = em.op
        value = op.Div(op.Log(x), op.const(np.log(base), x.dtype))
        whole = op.Round(value)
        exact = op.Equal(op.Pow(op.const(base, x.dtype), whole), x)
        return op.Where(exact, whole, value)

    return emit


def tan(em: Emission, x: Any) -> Any:
    return em.op.Div(em.op.Sin(x), em.op.Cos(x))


def sinh(em: Emission, x: Any) -> Any:
    op, growth = em.op, expm1(em, x)
    one, half = op.const(1.0, x.dtype), op.const(0.5, x.dtype)
    value = op.Mul(half, op.Add(growth, op.Div(growth, op.Add(growth, one))))
    extreme = op.Greater(op.Abs(x), op.const(700.0, x.dtype))
    large = op.Mul(op.Sign(x), op.Exp(op.Sub(op.Abs(x), op.const(np.log(2), x.dtype))))
    return op.Where(extreme, large, value)


def cosh(em: Emission, x: Any) -> Any:
    op = em.op
    size, log2 = op.Abs(x), op.const(np.log(2), x.dtype)
    return op.Add(op.Exp(op.Sub(size, log2)), op.Exp(op.Neg(op.Add(size, log2))))


FUNCTIONS: dict[str, Callable[[Emission, Any], Any]] = {
    "sin": _plain("Sin"), "cos": _plain("Cos"), "tan": tan, "exp": _plain("Exp"),
    "log": _plain("Log"), "sqrt": _plain("Sqrt"), "tanh": _plain("Tanh"),
    "log1p": log1p, "expm1": expm1, "log2": _log_base(2.0), "log10": _log_base(10.0),
    "arctan": arctan, "arcsin": arcsin, "arccos": arccos, "sinh": sinh, "cosh": cosh,
    "exp2": lambda em, x: em.op.Pow(em.op.const(2.0, x.dtype), x),
    "radians": _scaled(np.pi / 180), "deg2rad": _scaled(np.pi / 180),
    "degrees": _scaled(180 / np.pi), "rad2deg": _scaled(180 / np.pi),
    "cbrt": lambda em, x: em.op.Mul(
        em.op.Sign(x), em.op.Pow(em.op.Abs(x), em.op.const(1 / 3, x.dtype))
    ),
}  # fmt: skip
for _name, _emit in FUNCTIONS.items():
    _unary(_name, _emit)


def _keeps_integers(name: str, operator: str) -> None:
    """Functions that leave integers integers."""
    function = getattr(np, name)

    def ufunc(x: Any) -> Any:
        def build(em: Emission, rep: Rep) -> Rep:
            if rep.kind == "timedelta" and operator in ("Abs", "Neg"):
                value = getattr(em.op, operator)(rep.data)
                return rep.but(data=em.op.Where(em.missing(rep), rep.data, value))
            if rep.kind == "int" and operator in ("Floor", "Ceil", "Round"):
                return rep
            if rep.kind not in ("int", "float"):
                em.refuse(f"np.{name} of {NAMES[rep.kind]} has no rule")
            result = rep.but(data=getattr(em.op, operator)(rep.data))
            return wrapped(em, result) if rep.kind == "int" else result

        return record(name, [x], lambda a: function(a), build)

    rule("numpy", name)(over_columns(ufunc))


for _name, _operator in {
    "absolute": "Abs", "negative": "Neg", "sign": "Sign", "floor": "Floor", "ceil": "Ceil",
    "rint": "Round",
}.items():  # fmt: skip
    _keeps_integers(_name, _operator)


@rule("numpy", "fabs")
def fabs(x: Any) -> Any:
    return abs(x.astype(float))


@rule("numpy")
@over_columns
def square(x: Any) -> Any:
    return x * x


@rule("numpy")
@over_columns
def reciprocal(x: Any) -> Any:
    if x.step.value.dtype.kind != "f":
        refuse("np.reciprocal of integers has no rule", "write 1 / x")
    return 1.0 / x


@rule("numpy")
@over_columns
def trunc(x: Any) -> Any:
    def emit(em: Emission, rep: Rep) -> Rep:
        value = em.double(rep, em.float_type())
        return Rep("float", em.op.Mul(em.op.Sign(value), em.op.Floor(em.op.Abs(value))))

    return record("trunc", [x], lambda a: np.trunc(a), emit)


def _tests(name: str, operator: str) -> None:
    def ufunc(x: Any) -> Any:
        def emit(em: Emission, rep: Rep) -> Rep:
            value = em.double(rep)
            if operator == "IsFinite":
                return Rep("bool", em.op.Not(em.op.Or(em.op.IsNaN(value), em.op.IsInf(value))))
            return Rep("bool", getattr(em.op, operator)(value))

        return record(name, [x], lambda a: getattr(np, name)(a), emit)

    rule("numpy", name)(over_columns(ufunc))


for _name, _operator in {"isnan": "IsNaN", "isinf": "IsInf", "isfinite": "IsFinite"}.items():
    _tests(_name, _operator)


@rule("numpy", "arctan2")
def arctan2_(y: Any, x: Any) -> Any:
    def emit(em: Emission, a: Any, b: Any) -> Rep:
        to = em.float_type()
        return Rep("float", arctan2(em, em.double(em.operand(a), to), em.double(em.operand(b), to)))

    return record(
        "arctan2", [check_operand(y), check_operand(x)], lambda a, b: np.arctan2(a, b), emit
    )


@rule("numpy")
def hypot(x: Any, y: Any) -> Any:
    def emit(em: Emission, a: Any, b: Any) -> Rep:
        op, to = em.op, em.float_type()
        u, v = (op.Abs(em.double(em.operand(o), to)) for o in (a, b))
        top, low = op.Max(u, v), op.Min(u, v)
        ratio = op.Div(low, op.Where(op.Equal(top, op.const(0.0, to)), op.const(1.0, to), top))
        value = op.Mul(top, op.Sqrt(op.Add(op.const(1.0, to), op.Mul(ratio, ratio))))
        return Rep("float", op.Where(op.IsInf(top), top, value))

    return record("hypot", [check_operand(x), check_operand(y)], lambda a, b: np.hypot(a, b), emit)


def _extremum(name: str, operator: str, skips: bool) -> None:
    function = getattr(np, name)

    def ufunc(x: Any, y: Any) -> Any:
        def emit(em: Emission, a: Any, b: Any) -> Rep:
            left, right = em.unify(em.operand(a), em.operand(b))
            if left.kind not in ("int", "float"):
                em.refuse(f"np.{name} of {NAMES[left.kind]} has no rule")
            return extremum(em, operator, left, right, skips)

        return record(name, [check_operand(x), check_operand(y)], lambda a, b: function(a, b), emit)

    rule("numpy", name)(ufunc)


def extremum(em: Emission, operator: str, left: Rep, right: Rep, skips: bool) -> Rep:
    """The larger or smaller of two; NaN wins, or is skipped."""
    op = em.op
    test = op.Greater if operator == "Max" else op.Less
    value = op.Where(test(left.data, right.data), left.data, right.data)
    if left.kind == "float":
        first, second = (left, right) if not skips else (right, left)
        value = op.Where(op.IsNaN(left.data), first.data, value)
        value = op.Where(op.IsNaN(right.data), second.data, value)
        if not skips:
            value = op.Where(op.IsNaN(left.data), left.data, value)
    return left.but(data=value, missing=em.either(left.missing, right.missing))


for _name, _operator, _skips in (
    ("maximum", "Max", False), ("minimum", "Min", False),
    ("fmax", "Max", True), ("fmin", "Min", True),
):  # fmt: skip
    _extremum(_name, _operator, _skips)


# -- choices ------------------------------------------------------------------------


@rule("numpy")
def where(condition: Any, x: Any, y: Any) -> Any:
    operands = [check_operand(v) for v in (condition, x, y)]
    if any(getattr(v, "_owner", "") == "DataFrame" for v in operands):
        refuse("np.where of a frame has no rule", "use DataFrame.where, or one column at a time")

    def replay(c: Any, a: Any, b: Any) -> Any:
        return rows_like(np.where(c, *plain(a, b)), c, a, b)

    return record("np.where", operands, replay, _emit_choice).named(None)


def _emit_choice(em: Emission, c: Any, a: Any, b: Any) -> Rep:
    test, *values = (em.operand(v) for v in (c, a, b))
    chosen = em.where(truth(em, test), *values)
    return em.like(chosen, next(r for r in (test, *values) if em.rank(r)))


def choose_objects(condition: Any, x: Any, y: Any) -> Any:
    """np.where over Python objects: the type of the column follows from the values."""

    def replay(c: Any, a: Any, b: Any) -> Any:
        parts = [v.astype(object) if isinstance(v, pd.Series) else [v] * len(c) for v in (a, b)]
        return pd.Series([p if t else q for t, p, q in zip(c, *parts, strict=True)], index=c.index)

    operands = [check_operand(v) for v in (condition, x, y)]
    return record("choice", operands, replay, _emit_choice).named(None)


def plain(*values: Any) -> list[Any]:
    """Strings as objects: NumPy would write a missing value as the text "nan"."""
    return [
        v.astype(object) if isinstance(v, pd.Series) and v.dtype == "str" else v for v in values
    ]


def rows_like(array: np.ndarray, *operands: Any) -> pd.Series:
    index = next(o.index for o in operands if isinstance(o, pd.Series))
    if array.dtype.kind == "U":
        array = array.astype(object)
    series = pd.Series(array, index=index)
    if series.dtype == np.dtype(object) and all(isinstance(v, str) or pd.isna(v) for v in array):
        return series.astype("str")
    return series


def truth(em: Emission, rep: Rep) -> Any:
    """A condition as booleans: numbers count as true unless they are zero."""
    if rep.kind == "bool":
        if rep.missing is not None and not rep.nullable:  # NaN among objects counts as true
            return em.op.Or(rep.data, rep.missing)
        if rep.missing is not None:
            return em.op.And(rep.data, em.op.Not(rep.missing))
        return rep.data
    if rep.kind not in ("int", "float"):
        em.refuse(f"a condition of {NAMES[rep.kind]} has no rule")
    return em.op.Not(em.op.Equal(rep.data, em.op.const(0, rep.data.dtype)))


@rule("numpy")
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    conditions, choices = list(condlist), list(choicelist)
    if len(conditions) != len(choices) or not conditions:
        refuse("np.select needs as many choices as conditions")
    operands = [check_operand(v) for v in (*conditions, *choices, default)]
    if not all(is_column(c) for c in conditions):
        refuse("np.select with conditions that are no columns has no rule")
    count = len(conditions)

    def emit(em: Emission, *values: Any) -> Rep:
        reps = [em.operand(v) for v in values]
        result = reps[-1]
        for test, choice in reversed(list(zip(reps[:count], reps[count:-1], strict=True))):
            result = em.where(truth(em, test), choice, result)
        return em.like(result, reps[0])

    def replay(*values: Any) -> Any:
        tests = [np.asarray(v, bool) for v in values[:count]]
        choices = [
            np.asarray(v) if isinstance(v, pd.Series) else v for v in plain(*values[count:-1])
        ]
        return rows_like(np.select(tests, choices, values[-1]), *values)

    return record("np.select", operands, replay, emit).named(None)


@rule("numpy")
def clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    return a.clip(a_min, a_max)


@rule("numpy", "round", "around")
def round_(a: Any, decimals: int = 0) -> Any:
    return a.round(decimals)


@rule("numpy")
def nan_to_num(x: Any, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    if posinf is None:
        posinf = np.finfo(float).max
    if neginf is None:
        neginf = np.finfo(float).min
    return x.fillna(nan).replace({np.inf: posinf, -np.inf: neginf})


@rule("numpy")
def isin(element: Any, test_elements: Any) -> Any:
    return element.isin(test_elements)


def _reduction_of_numpy(name: str, method: str) -> None:
    def function(a: Any, axis: Any = None, **options: Any) -> Any:
        if axis not in (None, 0):
            return getattr(a, method)(axis=axis, **options)
        return getattr(a, method)(**options)

    rule("numpy", name)(function)


for _name, _method in {
    "sum": "sum", "nansum": "sum", "amin": "min", "amax": "max", "min": "min", "max": "max",
    "nanmean": "mean", "mean": "mean", "nanmedian": "median", "any": "any", "all": "all",
    "unique": "unique",
}.items():  # fmt: skip
    _reduction_of_numpy(_name, _method)


@rule("numpy", "nanpercentile")
def nanpercentile(a: Any, q: Any) -> Any:
    from sardonyx.importers.pandas.recorder import freeze

    return freeze("np.nanpercentile", np.nanpercentile(a.value, q))


@rule("numpy")
def percentile(a: Any, q: Any) -> Any:
    from sardonyx.importers.pandas.recorder import freeze

    return freeze("np.percentile", np.percentile(a.value, q))


@rule("numpy")
def median(a: Any) -> Any:
    from sardonyx.importers.pandas.recorder import freeze

    return freeze("np.median", np.median(a.value))


@rule("numpy")
def std(a: Any, ddof: int = 0) -> Any:
    return a.std(ddof=ddof)


@rule("numpy")
def shape(a: Any) -> Any:
    return a.shape


@rule("numpy")
def full_like(a: Any, fill_value: Any, dtype: Any = None) -> Any:
    from sardonyx.importers.pandas.column import constant

    if not is_scalar(fill_value):
        refuse("np.full_like needs one value")
    column = constant(fill_value, a.rows, len(a.step.value))
    return column.astype(dtype or a.step.value.dtype)


@rule("numpy")
def zeros_like(a: Any, dtype: Any = None) -> Any:
    return full_like(a, 0, dtype)


@rule("numpy")
def ones_like(a: Any, dtype: Any = None) -> Any:
    return full_like(a, 1, dtype)

"""Python functions of arrays, such as a FunctionTransformer holds: run once, on a traced array.

A `TracedArray` stands for the rows that will be fed. Beside its value in the graph it holds a
sample of rows, on which NumPy itself repeats every operation: types and shapes are NumPy's own.
What depends on the other rows of a batch, or has no node, is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import SardonyxError
from sardonyx.importers.sklearn.array_rules import (
    BINARY,
    COMPARISONS,
    REDUCTIONS,
    UNARY,
    choose,
)
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.sklearn.table import DOUBLE

ROWS = 1009  # of the sample: a size that no other axis is likely to have
NUMBERS = "fiub"


def traced_call(op: Builder, function: Callable[..., Any], x: ir.Value, options: dict) -> ir.Value:
    """The value that a function of arrays gives for the matrix `x`."""
    assert x.shape is not None and x.dtype is not None
    shape = [size if isinstance(size, int) else ROWS for size in x.shape]
    sample = np.ones(shape, x.dtype.numpy())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            result = function(TracedArray(op, x, sample), **options)
        except SardonyxError:
            raise
        except Exception as error:
            raise refuse(
                f"the function {_name(function)} cannot be traced: {type(error).__name__}: {error}",
                hint="NumPy's functions and indexing by columns can be traced; or subclass the "
                "transformer and add a rule with @sx.importer",
            ) from error
    if not isinstance(result, TracedArray):
        raise refuse(f"the function {_name(function)} returns what does not depend on its input")
    if result.sample.ndim != 2 or result.sample.shape[0] != ROWS:
        raise refuse(f"the function {_name(function)} does not give one row for each row")
    return result.value


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def _stop(reason: str, hint: str | None = None) -> NoReturn:
    raise refuse(f"a function of arrays {reason}", hint)


class TracedArray:
    """What stands for an array while the function runs."""

    __array_priority__ = 1e6
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, op: Builder, value: ir.Value, sample: np.ndarray):
        self.op, self.value, self.sample = op, value, sample

    def _like(self, value: ir.Value, sample: Any) -> TracedArray:
        sample = np.asarray(sample)
        return TracedArray(self.op, self.op.cast(value, _type(sample.dtype)), sample)

    # -- what it is -----------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        return self.sample.dtype

    @property
    def ndim(self) -> int:
        return self.sample.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sample.shape

    def __len__(self) -> int:
        return len(self.sample)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _stop("reads values, which are not known while it is traced")

    __float__ = __int__ = __index__ = __complex__ = __iter__ = __array__

    def __bool__(self) -> NoReturn:
        _stop("decides by values of the rows", hint="np.where chooses element by element")

    # -- element by element -----------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        target = options.pop("out", None)
        if method != "__call__" or options:
            _stop(f"calls np.{ufunc.__name__} with {method} or options")
        result = _elementwise(self.op, ufunc, inputs)
        if target is not None:
            target[0]._assign(result)
            return target[0]
        return result

    def _assign(self, other: TracedArray) -> None:
        """Store in place: the type stays."""
        if not np.can_cast(other.dtype, self.dtype, "same_kind"):
            _stop(f"stores {other.dtype} in an array of {self.dtype}")
        self.value = self.op.cast(other.value, _type(self.dtype))

    def astype(self, dtype: Any, **_: Any) -> TracedArray:
        sample = self.sample.astype(dtype)
        if self.dtype.kind == "f" and sample.dtype.kind in "iu":
            _stop("turns floats into integers, which is undefined for missing values")
        return self._like(self.op.cast(self.value, _type(sample.dtype)), sample)

    def copy(self, *_: Any) -> TracedArray:
        return TracedArray(self.op, self.value, self.sample)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        return np.clip(self, min, max)

    def round(self, decimals: int = 0) -> Any:
        return np.round(self, decimals)

    # -- indices and shapes -------------------------------------------------------------

    def __getitem__(self, key: Any) -> TracedArray:
        return take(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        put(self, key, value)

    def reshape(self, *shape: Any, order: str = "C") -> TracedArray:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        sample = self.sample.reshape(*sizes)
        if order != "C" or not sample.ndim or sample.shape[0] != ROWS:
            _stop("reshapes the rows")
        return self._like(self.op.Reshape(self.value, [-1, *sample.shape[1:]]), sample)

    # -- along the columns ----------------------------------------------------------------

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        rule = FUNCTIONS.get(function.__name__)
        if rule is None:
            _stop(f"calls np.{function.__name__}, which has no rule")
        return rule(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name in REDUCTIONS:
            return lambda axis=None, **options: reduce(name, self, axis, **options)
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            _stop(f"uses ndarray.{name}, which has no rule")
        raise AttributeError(name)


def _give_operators() -> None:
    """Python's operators on a traced array are NumPy's functions of the same meaning."""
    two: dict[str, Any] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide,
        "floordiv": np.floor_divide, "mod": np.remainder, "pow": np.power,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip
    comparisons: dict[str, Any] = {
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
        "gt": np.greater, "ge": np.greater_equal,
    }  # fmt: skip
    one: dict[str, Any] = {
        "neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert,
    }  # fmt: skip

    def in_place(self: TracedArray, other: Any, ufunc: Any) -> TracedArray:
        self._assign(ufunc(self, other))
        return self

    for name, ufunc in (two | comparisons).items():
        setattr(TracedArray, f"__{name}__", lambda self, other, f=ufunc: f(self, other))
    for name, ufunc in two.items():
        setattr(TracedArray, f"__r{name}__", lambda self, other, f=ufunc: f(other, self))
        setattr(TracedArray, f"__i{name}__", lambda self, other, f=ufunc: in_place(self, other, f))
    for name, ufunc in one.items():
        setattr(TracedArray, f"__{name}__", lambda self, f=ufunc: f(self))


_give_operators()


def _type(dtype: np.dtype) -> ir.DataType:
    if dtype.kind not in NUMBERS or dtype == np.float16:
        _stop(f"makes an array of {dtype}")
    return ir.DataType.from_numpy(dtype)


def _elementwise(op: Builder, ufunc: Any, inputs: Any) -> TracedArray:
    """A ufunc in double or int64, in the type that NumPy gives the result."""
    name = ufunc.__name__
    samples = [i.sample if isinstance(i, TracedArray) else i for i in inputs]
    sample = ufunc(*samples)
    if name in UNARY:
        if sample.dtype.kind != "f":
            return _of_integers(op, name, inputs[0], sample)
        return _traced(op, UNARY[name](op, _operand(op, inputs[0], np.dtype(float))), sample)
    rule = BINARY.get(name) or COMPARISONS.get(name)
    if rule is None:
        _stop(f"calls np.{name}, which has no rule")
    common = np.result_type(*(s if _is_weak(s) else np.asarray(s).dtype for s in samples))
    common = np.result_type(common, sample.dtype) if name in BINARY else common
    operands = [_operand(op, i, common) for i in inputs]
    return _traced(op, rule(op, *operands, common.kind), sample)


def _is_weak(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, (bool, np.generic))


def _of_integers(op: Builder, name: str, x: TracedArray, sample: np.ndarray) -> TracedArray:
    if name in ("isnan", "isinf", "isfinite", "logical_not"):
        wide = _operand(op, x, np.dtype(bool if name == "logical_not" else float))
        return _traced(op, UNARY[name](op, wide), sample)
    if name == "invert" and sample.dtype.kind == "b":
        return _traced(op, op.Not(x.value), sample)
    if name in ("floor", "ceil", "rint", "trunc", "positive"):
        return _traced(op, x.value, sample)
    if name in ("absolute", "negative", "sign", "square"):
        return _traced(op, UNARY[name](op, op.cast(x.value, ir.DataType.INT64)), sample)
    _stop(f"calls np.{name} of integers, which has no rule")


def _traced(op: Builder, value: ir.Value, sample: Any) -> TracedArray:
    sample = np.asarray(sample)
    return TracedArray(op, op.cast(value, _type(sample.dtype)), sample)


def _operand(op: Builder, value: Any, common: np.dtype) -> ir.Value:
    """An operand as double, int64 or bool, rounded to the type in which NumPy computes."""
    wide = {"f": np.float64, "b": np.bool_}.get(common.kind, np.int64)
    if isinstance(value, TracedArray):
        return op.cast(op.cast(value.value, _type(common)), ir.DataType.from_numpy(np.dtype(wide)))
    array = np.asarray(value)
    if array.dtype.kind not in NUMBERS:
        _stop(f"computes with {array.dtype}")
    if array.shape[:1] == (ROWS,):
        _stop("computes with an array as long as the rows", hint="use one value for all rows")
    return op.const(array.astype(common).astype(wide))


# -- indices -----------------------------------------------------------------------------------


def take(x: TracedArray, key: Any) -> TracedArray:
    """Columns of all rows; `None` adds an axis."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(p, TracedArray) for p in parts):
        _stop("chooses rows by their values", hint="np.where keeps every row")
    sample = x.sample[key]
    plain = [p for p in parts if p is not None and p is not Ellipsis]
    whole = parts[0] is Ellipsis or (isinstance(parts[0], slice) and parts[0] == slice(None))
    if not whole or sample.shape[:1] != (ROWS,):
        _stop("chooses rows by their position")
    if x.sample.ndim == 2 and len(plain) <= 2:
        places = np.arange(x.sample.shape[1])
        chooser = plain[-1] if parts[0] is Ellipsis or len(plain) == 2 else slice(None)
        columns = np.atleast_1d(places[chooser])
        value = x.op.Gather(x.value, columns.astype(np.int64), axis=1)
    elif x.sample.ndim == 1 and len(plain) <= 1:
        value = x.value
    else:
        _stop("indexes more than columns")
    return x._like(x.op.Reshape(value, [-1, *sample.shape[1:]]), sample)


def put(x: TracedArray, key: Any, value: Any) -> None:
    """`x[mask] = value` and `x[:, columns] = value`, by Where."""
    op = x.op
    if isinstance(key, TracedArray):
        if key.dtype != bool or key.shape != x.shape or isinstance(value, TracedArray):
            _stop("assigns to rows chosen by their values")
        x.value = choose(op, key.value, _stored(x, value), x.value)
        return
    parts = key if isinstance(key, tuple) else (key,)
    if isinstance(parts[0], TracedArray) and len(parts) == 2 and x.ndim == 2:
        _put_in_column(x, parts[0], parts[1], value)
        return
    if x.ndim != 2 or not isinstance(parts[0], slice) or parts[0] != slice(None):
        _stop("assigns to rows by their position")
    columns = np.atleast_1d(np.arange(x.shape[1])[parts[1] if len(parts) > 1 else slice(None)])
    chosen = np.isin(np.arange(x.shape[1]), columns)
    if len(np.unique(columns)) < len(columns):
        _stop("assigns to a column twice")
    new = _stored(x, value)
    if len(columns) > 1 and isinstance(value, (TracedArray, np.ndarray, list)):
        order = np.zeros(x.shape[1], np.int64)
        order[columns] = np.arange(len(columns))
        new = op.Gather(new, order, axis=-1) if new.shape and new.shape[-1] != 1 else new
    elif isinstance(value, TracedArray) and value.ndim == 1:
        new = op.Unsqueeze(new, [1])
    x.value = choose(op, op.const(chosen[None]), new, x.value)


def _put_in_column(x: TracedArray, mask: TracedArray, column: Any, value: Any) -> None:
    """`x[mask, column] = value`."""
    if not isinstance(column, (int, np.integer)) or isinstance(value, TracedArray):
        _stop("assigns to rows chosen by their values")
    chosen = (np.arange(x.shape[1]) == int(column) % x.shape[1])[None]
    both = x.op.And(x.op.Unsqueeze(mask.value, [1]), chosen)
    x.value = choose(x.op, both, _stored(x, value), x.value)


def _stored(x: TracedArray, value: Any) -> ir.Value:
    if isinstance(value, TracedArray):
        return x.op.cast(value.value, _type(x.dtype))
    array = np.asarray(value)
    if array.shape[:1] == (ROWS,):
        _stop("stores an array as long as the rows")
    return x.op.const(array.astype(x.dtype))


# -- functions of NumPy --------------------------------------------------------------------------


def reduce(name: str, x: TracedArray, axis: Any = None, keepdims: bool = False, **more: Any) -> Any:
    """A reduction over the columns of each row."""
    if x.ndim != 2 or axis not in (1, -1, (1,)):
        _stop(
            f"computes the {name} over the rows of a batch",
            hint="a fitted transformer keeps what it learned of the training rows",
        )
    ddof = more.pop("ddof", 0)
    if any(v is not None for v in more.values()):
        _stop(f"calls {name} with {', '.join(more)}")
    options = {"ddof": ddof} if ddof else {}
    sample = getattr(np, name)(x.sample, axis=1, keepdims=keepdims, **options)
    wide = x.op.cast(x.value, DOUBLE) if name in ("mean", "std", "var") else x.value
    if wide.dtype != DOUBLE and name not in ("any", "all"):
        wide = x.op.cast(wide, DOUBLE if x.dtype.kind == "f" else ir.DataType.INT64)
    value = REDUCTIONS[name](x.op, wide, ddof)
    return _traced(x.op, value if keepdims else x.op.Squeeze(value, [1]), sample)


def where(condition: Any, a: Any, b: Any) -> TracedArray:
    one = next(v for v in (condition, a, b) if isinstance(v, TracedArray))
    samples = [v.sample if isinstance(v, TracedArray) else v for v in (condition, a, b)]
    sample = np.where(*samples)
    test = _operand(one.op, condition, np.dtype(bool))
    first, second = (_operand(one.op, v, sample.dtype) for v in (a, b))
    return _traced(one.op, choose(one.op, test, first, second), sample)


def concatenate(arrays: Any, axis: int = 0) -> TracedArray:
    parts = list(arrays)
    if not all(isinstance(p, TracedArray) for p in parts):
        _stop("joins its input with constants")
    if axis % parts[0].ndim != 1:
        _stop("joins rows")
    sample = np.concatenate([p.sample for p in parts], axis=1)
    op, dtype = parts[0].op, _type(sample.dtype)
    return _traced(op, op.Concat(*(op.cast(p.value, dtype) for p in parts), axis=1), sample)


def column_stack(arrays: Any) -> TracedArray:
    return concatenate([a.reshape(-1, 1) if a.ndim == 1 else a for a in arrays], axis=1)


def stack(arrays: Any, axis: int = 0) -> TracedArray:
    if axis not in (1, -1) or any(a.ndim != 1 for a in arrays):
        _stop("stacks arrays along their rows")
    return column_stack(arrays)


def clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = a_min if min is None else min, a_max if max is None else max
    a = a if low is None else np.maximum(a, low)
    return a if high is None else np.minimum(a, high)


def round_(a: Any, decimals: int = 0) -> Any:
    if decimals == 0:
        return np.rint(a)
    factor = 10.0 ** abs(decimals)
    return np.rint(a * factor) / factor if decimals > 0 else np.rint(a / factor) * factor


def nan_to_num(x: Any, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None):
    limits = np.finfo(x.dtype)
    x = np.where(np.isnan(x), x.dtype.type(nan), x)
    x = np.where(x == np.inf, x.dtype.type(limits.max if posinf is None else posinf), x)
    return np.where(x == -np.inf, x.dtype.type(limits.min if neginf is None else neginf), x)


def expand_dims(a: Any, axis: int) -> Any:
    return a[:, None] if axis in (1, -1) else _stop("adds an axis before the rows")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": where, "concatenate": concatenate, "hstack": lambda tup: concatenate(tup, 1),
    "column_stack": column_stack, "stack": stack, "clip": clip, "round": round_, "around": round_,
    "nan_to_num": nan_to_num, "expand_dims": expand_dims,
    "copy": lambda a, **_: a.copy(), "ones_like": lambda a, **_: a * 0 + 1,
    "reshape": lambda a, shape, **o: a.reshape(shape, **o),
    "append": lambda arr, values, axis=None: concatenate([arr, values], axis or 0),
    "shape": lambda a: a.shape, "ndim": lambda a: a.ndim,
    **{n: (lambda a, axis=None, n=n, **o: reduce(n, a, axis, **o)) for n in REDUCTIONS},
    "amax": lambda a, axis=None, **o: reduce("max", a, axis, **o),
    "amin": lambda a, axis=None, **o: reduce("min", a, axis, **o),
}  # fmt: skip

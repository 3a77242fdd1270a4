"""The driver: walks the equations of a jaxpr and applies the rule of each primitive.

A rule is a plain function `(op, *operands, **params)` named after its primitive. It takes the
params that it needs by name, and `out`, the types of the results, if it asks for them. What a rule
cannot express, and every primitive without a rule, is collected with the user's line; the import is
refused when all equations have been read.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax._src import core, source_info_util
from jax.extend.core import ClosedJaxpr, Literal

from sardonyx.errors import ArgumentError, ImportRefused, counted
from sardonyx.importers.jax import keys
from sardonyx.importers.jax.writer import Refusal, Writer, is_static, shape_of

TRANSFORMATION = re.compile(r"[a-z_]+\(")
FAMILIES = (
    "calls", "control", "conv", "dot", "elementwise", "indexing", "integers", "linalg",
    "random", "reductions", "shapes", "sorting", "special", "windows",
)  # fmt: skip
# What these do is judged by the equations inside them.
CALLS = frozenset(["jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2"])


@dataclass(frozen=True)
class Rule:
    function: Callable[..., Any]
    keywords: frozenset[str]
    required: frozenset[str]


RULES: dict[str, Rule] = {}


def importer(*primitives: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the rule of `primitives`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(function).parameters.values()
        named = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
        keywords = frozenset(p.name for p in named)
        required = frozenset(p.name for p in named if p.default is p.empty)
        for name in primitives:
            if name in RULES:
                raise ArgumentError(f"the JAX primitive {name} already has a rule")
            RULES[name] = Rule(function, keywords, required)
        return function

    return register


def load_rules() -> None:
    for family in FAMILIES:
        importlib.import_module(f"sardonyx.importers.jax.{family}")


class Reader:
    """Reads jaxprs into one graph; `problems` are rows for the error that refuses them.

    differentiated -- whether the graph will be differentiated, so that where JAX stops or replaces
                      a gradient counts
    """

    def __init__(self, op: Writer, differentiated: bool = False):
        load_rules()
        self.op, self.differentiated = op, differentiated
        self.problems: dict[tuple[str, ...], None] = {}
        self.line = ""  # of the user's code, for equations of library functions that it calls
        op.inline = self.inline

    def closed(
        self, op: Writer, jaxpr: ClosedJaxpr, operands: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """The results of `jaxpr` on `operands`, written with `op`."""
        return self.open(op, jaxpr.jaxpr, [constant(op, c) for c in jaxpr.consts], operands)

    def open(
        self,
        op: Writer,
        jaxpr: core.Jaxpr,
        constants: Sequence[ir.Value],
        operands: Sequence[ir.Value],
    ) -> list[ir.Value]:
        values: dict[Any, ir.Value] = {}

        def read(atom: Any) -> ir.Value:
            return constant(op, atom.val, atom.aval) if isinstance(atom, Literal) else values[atom]

        for variable, value in zip(jaxpr.constvars, constants, strict=True):
            values[variable] = _typed(value, variable.aval)
        for variable, value in zip(jaxpr.invars, operands, strict=True):
            values[variable] = _typed(value, variable.aval)
        scope = op.prefix
        for equation in jaxpr.eqns:
            stack = scope_name(str(equation.source_info.name_stack))
            with op.named("/".join(s for s in (scope, stack) if s)):
                results = self._equation(op, equation, [read(v) for v in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def inline(
        self, op: Writer, function: Callable[..., Any], *operands: ir.Value
    ) -> list[ir.Value]:
        """The equations of a JAX function of `operands`, in place."""
        structs = [
            jax.ShapeDtypeStruct(v.meta["aval"].shape, v.meta["aval"].dtype) for v in operands
        ]
        return self.closed(op, jax.make_jaxpr(function)(*structs), operands)

    def _equation(self, op: Writer, equation: Any, operands: Sequence[ir.Value]) -> list[ir.Value]:
        name = equation.primitive.name
        avals = [v.aval for v in equation.outvars]
        before, outer = len(op.nodes), self.line
        self.line = source_info_util.summarize(equation.source_info) or outer
        try:
            if name not in CALLS:
                for atom in (*equation.invars, *equation.outvars):
                    _require_real(atom.aval)
            if name not in RULES:
                raise Refusal("no rule")
            results = _empty(op, avals) or self._apply(op, RULES[name], equation, operands)
        except (Refusal, core.InconclusiveDimensionOperation) as refusal:
            del op.nodes[before:]
            reason = str(refusal) if isinstance(refusal, Refusal) else "a comparison of free sizes"
            self.problems[(name, reason, self.line)] = None
            return [_placeholder(aval) for aval in avals]
        finally:
            self.line = outer
        checked = [_checked(name, v, aval) for v, aval in zip(results, avals, strict=True)]
        return [op.remember_sizes(v) for v in checked]

    def _apply(
        self, op: Writer, rule: Rule, equation: Any, operands: Sequence[ir.Value]
    ) -> Sequence[ir.Value]:
        params = {**equation.params, "reader": self}
        params["out"] = [keys.physical(v.aval) for v in equation.outvars]
        if any(keys.is_key(v.aval) for v in (*equation.invars, *equation.outvars)):
            operands, params = keys.adapted(op, equation, operands, params)
        keywords = {k: params[k] for k in rule.keywords if k in params}
        if not rule.required <= keywords.keys():
            raise Refusal(f"JAX {jax.__version__} writes it in a form that is not known here")
        results = rule.function(op, *operands, **keywords)
        return results if isinstance(results, (list, tuple)) else [results]

    def refuse(self) -> None:
        """Raise one error with every equation that could not be read."""
        if not self.problems:
            return
        rows = [list(row) for row in self.problems]
        raise ImportRefused(
            f"{counted(len(rows), 'equation')} of this function cannot become ONNX",
            rows,
            hint="compute these parts outside of the function, or by other functions of JAX",
        )


def scope_name(stack: str) -> str:
    """The scopes of an equation, with `grad` for what JAX's transformations call transpose.

    >>> scope_name("transpose(jvp(MLP))/Dense_0")
    'grad/MLP/Dense_0'
    """
    backward = "transpose(" in stack
    plain = TRANSFORMATION.sub("", stack).replace(")", "")
    parts = [p for p in plain.split("/") if p]
    return "/".join(["grad", *parts] if backward else parts)


def _require_real(aval: Any) -> None:
    if keys.is_key(aval):
        return
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        raise Refusal(f"a value of type {type(aval).__name__}")
    if np.issubdtype(dtype, np.complexfloating):
        raise Refusal("complex numbers: ONNX has no type for them")
    if dtype_of(aval) is None:
        raise Refusal(f"the type {dtype}")


def dtype_of(aval: Any) -> ir.DataType | None:
    """The type of ONNX that holds values of a JAX type; keys are pairs of uint32."""
    dtype = keys.physical(aval).dtype
    if dtype == jax.dtypes.float0:
        return ir.DataType.BOOL
    try:
        return ir.DataType.from_numpy(np.dtype(dtype))
    except TypeError:
        return None


def _empty(op: Writer, avals: Sequence[Any]) -> list[ir.Value]:
    """The results, if none has an element: few kernels of onnxruntime take such arrays."""
    if any(_is_complex(aval) for aval in avals):
        return []
    shapes = [keys.physical(aval).shape for aval in avals]
    if not all(is_static(shape) and 0 in shape for shape in shapes):
        return []
    pairs = zip(shapes, avals, strict=True)
    return [op.const(np.zeros(s, np.bool_), dtype_of(aval)) for s, aval in pairs]


def constant(op: Writer, value: Any, aval: Any = None) -> ir.Value:
    """An array, a number or an array of keys as a constant."""
    aval = jax.typeof(value) if aval is None else aval
    array = keys.data(value) if keys.is_key(aval) else np.asarray(value)
    if not keys.is_key(aval):
        array = array.astype(aval.dtype)
    return _typed(op.const(array), aval)


def _typed(value: ir.Value, aval: Any) -> ir.Value:
    value.meta["aval"] = keys.physical(aval)
    return value


def _placeholder(aval: Any) -> ir.Value:
    kind = dtype_of(aval) if not _is_complex(aval) else ir.DataType.FLOAT
    physical = keys.physical(aval)
    value = ir.Value(
        name="refused",
        type=ir.TensorType(kind or ir.DataType.FLOAT),
        shape=shape_of(physical.shape),
    )
    return _typed(value, aval)


def _is_complex(aval: Any) -> bool:
    return not keys.is_key(aval) and np.issubdtype(aval.dtype, np.complexfloating)


def _checked(name: str, value: ir.Value, aval: Any) -> ir.Value:
    """The result of a rule, with the type and shape that JAX gives it."""
    if _is_complex(aval):
        return value
    kind, physical = dtype_of(aval), keys.physical(aval)
    assert value.dtype == kind, f"{name} gave {value.dtype}, JAX {kind}"
    shape = shape_of(physical.shape)
    if value.shape is not None and all(isinstance(d, int) for d in (*value.shape, *shape)):
        assert list(value.shape) == list(shape), f"{name} gave {value.shape}, JAX {shape}"
    elif value.const_value is None:
        value.shape = shape
    return _typed(value, aval)

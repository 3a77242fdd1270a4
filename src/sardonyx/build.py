"""`op`: write ONNX as Python. `op.Softmax(x, axis=1)` makes a checked node and returns its output.

A Builder collects nodes. Names in capitals are operators of ONNX; lower-case methods are small
idioms that use shapes (`dim`, `shape`, `reshape`, `total`, …) and emit nothing where the result is
known while building. Python numbers, lists and arrays become constants, with the element type that
the schema requires. While a builder is active (`with builder:`), `+ - * /` on values build nodes
too.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 and friends with numpy)
import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.errors import ArgumentError, quote
from sardonyx.values import FOLDED_CONSTANT as FOLDED_CONSTANT
from sardonyx.values import constant as constant
from sardonyx.values import content as content
from sardonyx.values import formal_types, same_dims
from sardonyx.values import infer as infer
from sardonyx.values import is_static as is_static
from sardonyx.values import rank as rank
from sardonyx.values import same_dim as same_dim
from sardonyx.values import same_shape as same_shape
from sardonyx.values import static as static
from sardonyx.values import type_proto as type_proto

Dim = int | ir.Value
Operand = ir.Value | int | float | bool | Sequence[Any] | np.ndarray | np.generic | None

HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, *HALF)

_active: contextvars.ContextVar[Builder | None] = contextvars.ContextVar("builder", default=None)


class _Arithmetic:
    """Sends `+ - * /` on values to the builder that is active in this thread.

    onnx_ir has one handler for the whole process: ours is in place while any thread has an active
    builder, and passes on to the one before it what comes from threads that have none.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.active = 0
        self.before: Any = None

    def install(self) -> None:
        with self.lock:
            if not self.active:
                self.before = ir.set_value_magic_handler(self)  # type: ignore[arg-type]
            self.active += 1

    def remove(self) -> None:
        with self.lock:
            self.active -= 1
            if not self.active:
                ir.set_value_magic_handler(self.before)

    def __getattr__(self, op_type: str) -> Any:
        target = _active.get() or self.before
        if target is None:
            raise ArgumentError(
                "arithmetic on values needs an active builder", hint="use `with builder:`"
            )
        return getattr(target, op_type)


_arithmetic = _Arithmetic()


def array_bytes(array: np.ndarray) -> bytes:
    """Bytes that equal arrays share. Those of an array of strings are addresses, which another
    array may have later: strings are spelled out.
    """
    return repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()


class Builder:
    """Collects nodes in order.

    prefix -- nodes are named `<prefix>/<OpType>`, values after their node
    parent -- the builder of the graph around, when this one builds a body; constants go to the
              outermost
    """

    def __init__(self, prefix: str = "", parent: Builder | None = None):
        self.prefix = prefix
        self.nodes: list[ir.Node] = []
        self.root: Builder = parent.root if parent else self
        self.parent = parent
        self._tokens: list[contextvars.Token[Builder | None]] = []
        if parent is None:
            self.constants: dict[tuple[Any, ...], ir.Value] = {}
            self._names: dict[str, int] = {}
            self._reserved: set[str] = set()

    # -- names ---------------------------------------------------------------

    def reserve(self, names: Iterator[str] | Sequence[str] | set[str]) -> None:
        """Never give one of `names` to a new value or node."""
        self.root._reserved.update(names)

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet: `stem`, or `stem_1`, `stem_2`, …"""
        root = self.root
        count = root._names.get(stem, 0)
        while True:
            name = f"{stem}_{count}" if count else stem
            count += 1
            if name not in root._reserved:
                break
        root._names[stem] = count
        root._reserved.add(name)
        return name

    @contextmanager
    def named(self, prefix: str) -> Iterator[None]:
        """Name the nodes built inside after `prefix`."""
        before, self.prefix = self.prefix, prefix
        try:
            yield
        finally:
            self.prefix = before

    # -- operators -----------------------------------------------------------

    def __getattr__(self, op_type: str) -> Any:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)

        def call(*inputs: Operand, outputs: int | None = None, **attributes: Any) -> Any:
            return self.call(op_type, inputs, attributes, outputs=outputs)

        return call

    def call(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int | None = None,
    ) -> Any:
        """Add one node. Returns its output, or a tuple if `outputs` gives their number."""
        schema = opset.schema(op_type, domain)
        if schema is None and domain in opset.INSIDE:
            raise ArgumentError(f"{op_type} is not an operator of opset {opset.OPSET}")
        values = self._operands(schema, op_type, inputs)
        attrs = _attributes(op_type, schema, attributes or {})
        name = self.fresh(f"{self.prefix}/{op_type}" if self.prefix else op_type)
        node = ir.Node(
            domain, op_type, values, attributes=attrs, num_outputs=outputs or 1, name=name
        )
        for i, value in enumerate(node.outputs):
            value.name = name if i == 0 else self.fresh(f"{name}:{i}")
        infer(node)
        self.nodes.append(node)
        return tuple(node.outputs) if outputs is not None else node.outputs[0]

    def _operands(
        self, schema: opset.Schema | None, op_type: str, inputs: Sequence[Operand]
    ) -> list[ir.Value | None]:
        values = list(inputs)
        while values and values[-1] is None:
            values.pop()
        if all(v is None or isinstance(v, ir.Value) for v in values):
            return values  # type: ignore[return-value]
        formal = formal_types(schema, len(values))
        dtypes = {
            t: v.dtype for t, v in zip(formal, values, strict=True) if isinstance(v, ir.Value)
        }
        return [
            v
            if v is None or isinstance(v, ir.Value)
            else self.const(v, _constant_type(schema, t, v, dtypes))
            for t, v in zip(formal, values, strict=True)
        ]

    def Pad(
        self,
        x: Operand,
        pads: Operand,
        value: Operand = None,
        axes: Operand = None,
        **attributes: Any,
    ) -> Any:
        """Pad, over all axes where the rank is known.

        NOTE [Pad without axes]: onnxruntime 1.31 moves a Transpose through Pad and permutes the
        pads as if they covered every axis; with an `axes` input it then reads out of bounds.
        """
        which_axes = constant(axes) if isinstance(axes, ir.Value) else axes
        if which_axes is None or not isinstance(x, ir.Value) or x.shape is None:
            return self.call("Pad", [x, pads, value, axes], attributes)
        count = len(x.shape)
        where = [int(a) % count for a in np.reshape(np.asarray(which_axes), -1)]
        where += [a + count for a in where]
        if isinstance(pads, ir.Value) and constant(pads) is None:
            zeros = self.const(np.zeros(2 * count, np.int64))
            full: Operand = self.ScatterElements(zeros, np.array(where, np.int64), pads, axis=0)
        else:
            sizes = constant(pads) if isinstance(pads, ir.Value) else np.asarray(pads)
            full = np.zeros(2 * count, np.int64)
            full[where] = sizes
        return self.call("Pad", [x, full, value], attributes)

    # -- constants -----------------------------------------------------------

    def const(self, value: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant (an initializer of the outermost graph); equal ones are shared."""
        if dtype is not None:
            array = np.asarray(value).astype(dtype.numpy())
        else:
            array = np.asarray(value)
            if array.dtype == np.float64 and not isinstance(value, (np.ndarray, np.generic)):
                array = array.astype(np.float32)
        key = (array.dtype.str, str(array.dtype), array.shape, array_bytes(array))
        constants = self.root.constants
        if key not in constants:
            tensor = _tensor(array)
            name = self.fresh(_constant_name(array))
            tensor.name = name
            constants[key] = ir.Value(
                name=name,
                shape=ir.Shape(array.shape),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
        return constants[key]

    def weight(self, name: str, array: np.ndarray) -> ir.Value:
        """A new parameter called `name` (or `name_1`, …): an initializer that is never shared."""
        tensor = ir.Tensor(array, name=self.fresh(name), shape=ir.Shape(array.shape))
        value = ir.Value(
            name=tensor.name,
            shape=tensor.shape,
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.root.constants[("weight", tensor.name)] = value
        return value

    # -- idioms --------------------------------------------------------------

    def dim(self, x: ir.Value, axis: int) -> Dim:
        """The size of `x` along `axis`: an int where known, else a value of shape [1]."""
        if x.shape is not None:
            size = x.shape[axis]
            if isinstance(size, int):
                return size
            axis %= len(x.shape)
            out = self.Shape(x, start=axis, end=axis + 1)
            out.meta["content"] = (size,)
            return out
        if axis < 0:
            return self.Shape(x, start=axis, **({} if axis == -1 else {"end": axis + 1}))
        return self.Shape(x, start=axis, end=axis + 1)

    def dims(self, x: ir.Value, start: int = 0, end: int | None = None) -> list[Dim]:
        """The sizes of `x` along each axis; its rank must be known."""
        return [self.dim(x, a) for a in range(*slice(start, end).indices(rank(x)))]

    def shape(self, x: ir.Value) -> ir.Value:
        """The shape of `x`: a constant where known."""
        if is_static(x):
            return self.const(np.array(static(x), np.int64))
        out = self.Shape(x)
        if x.shape is not None:
            out.meta["content"] = tuple(x.shape)
        return out

    def join(self, dims: Sequence[Dim]) -> ir.Value:
        """One int64 vector out of sizes, each an int or a value of shape [1]."""
        if all(isinstance(d, int) for d in dims):
            return self.const(np.array(dims, np.int64))
        parts = [d if isinstance(d, ir.Value) else self.const([d], ir.DataType.INT64) for d in dims]
        out = parts[0] if len(parts) == 1 else self.Concat(*parts, axis=0)
        if all("content" in p.meta or p.const_value is not None for p in parts):
            out.meta["content"] = tuple(c for p in parts for c in content(p))  # type: ignore[union-attr]
        return out

    def reshape(self, x: ir.Value, dims: Sequence[Dim] | ir.Value, allowzero: int = 0) -> ir.Value:
        """Reshape, unless the shape is known to be that already."""
        target = dims if isinstance(dims, ir.Value) else self.join(dims)
        sizes = content(target)
        if sizes is not None and x.shape is not None and same_dims(tuple(x.shape), sizes):
            return x
        out = self.Reshape(x, target, allowzero=allowzero)
        if sizes is not None and not any(isinstance(d, int) and d <= 0 for d in sizes):
            out.shape = ir.Shape(sizes)
        return out

    def reshape_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """`x` with the shape of `like`."""
        if same_shape(x, like):
            return x
        copies = is_static(like) and 0 not in static(like)
        return self.reshape(x, self.shape(like), allowzero=0 if copies else 1)

    def transpose(self, x: ir.Value, perm: Sequence[int]) -> ir.Value:
        """Transpose, unless `perm` changes nothing."""
        return x if list(perm) == list(range(len(perm))) else self.Transpose(x, perm=list(perm))

    def swap(self, x: ir.Value) -> ir.Value:
        """`x` with its last two axes exchanged."""
        n = rank(x)
        return self.Transpose(x, perm=[*range(n - 2), n - 1, n - 2])

    def cast(self, x: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        """Cast, unless `x` has that type already."""
        return x if x.dtype == dtype else self.Cast(x, to=int(dtype))  # type: ignore[arg-type]

    def total(
        self, x: ir.Value, axes: Sequence[int] | ir.Value | None = None, keepdims: bool = False
    ) -> ir.Value:
        """The sum of `x` over `axes` (all, if not given); 16-bit floats are added up in float32."""
        if not isinstance(axes, ir.Value) and axes is not None and not len(axes):
            return x
        dtype = x.dtype
        wide = self.cast(x, ir.DataType.FLOAT) if dtype in HALF else x
        if axes is None:
            out = self.ReduceSum(wide, keepdims=int(keepdims))
        else:
            out = self.ReduceSum(wide, axes, keepdims=int(keepdims), noop_with_empty_axes=1)
        return self.cast(out, dtype) if dtype in HALF else out  # type: ignore[arg-type]

    def mean(self, x: ir.Value, axes: Sequence[int], keepdims: bool = False) -> ir.Value:
        """The mean of `x` over `axes`; 16-bit floats are added up in float32."""
        dtype = x.dtype
        wide = self.cast(x, ir.DataType.FLOAT) if dtype in HALF else x
        out = self.ReduceMean(wide, list(axes), keepdims=int(keepdims))
        return self.cast(out, dtype) if dtype in HALF else out  # type: ignore[arg-type]

    def fill(self, value: float, like: ir.Value, dtype: ir.DataType | None = None) -> ir.Value:
        """A tensor of `value`, with the shape of `like` and its type (or `dtype`)."""
        dtype = dtype or like.dtype
        assert dtype is not None
        one = ir.tensor(np.full([1], value, dtype.numpy()))
        out = self.ConstantOfShape(self.shape(like), value=one)
        if like.shape is not None:
            out.shape = ir.Shape(like.shape)
        return out

    def zeros_like(self, x: ir.Value) -> ir.Value:
        return self.fill(0, x)

    # -- activation of `+ - * /` ----------------------------------------------

    def __enter__(self) -> Builder:
        _arithmetic.install()
        self._tokens.append(_active.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _active.reset(self._tokens.pop())
        _arithmetic.remove()


# -- operands and attributes --------------------------------------------------------


def _constant_type(
    schema: opset.Schema | None, formal: str, value: Any, dtypes: dict[str, ir.DataType | None]
) -> ir.DataType | None:
    if dtypes.get(formal) is not None:
        return dtypes[formal]
    if isinstance(value, (np.ndarray, np.generic)):
        return None
    allowed: Sequence[str] = [formal]
    for constraint in schema.type_constraints if schema else ():
        if constraint.type_param_str == formal:
            allowed = constraint.allowed_type_strs
    array = np.asarray(value)
    kind = (
        "bool"
        if array.dtype == bool
        else "int64"
        if array.dtype.kind in "iu" or not array.size
        else "float"
    )
    if f"tensor({kind})" in allowed or len(allowed) > 1:
        return ir.DataType[{"float": "FLOAT", "int64": "INT64", "bool": "BOOL"}[kind]]
    (only,) = allowed
    return ir.DataType[{"float": "FLOAT", "double": "DOUBLE"}.get(only[7:-1], only[7:-1].upper())]


def _attributes(op_type: str, schema: opset.Schema | None, values: dict[str, Any]) -> list[ir.Attr]:
    attributes = []
    for name, value in values.items():
        if value is None:
            continue
        kind = None
        if schema is not None:
            if name not in schema.attributes:
                raise ArgumentError(f"{op_type} has no attribute {quote(name)}")
            kind = ir.AttributeType(schema.attributes[name].type.value)  # type: ignore[attr-defined]
        if isinstance(value, ir.Attr):
            attributes.append(value)
        else:
            attributes.append(ir.convenience.convert_attribute(name, value, kind))
    return attributes


def _tensor(array: np.ndarray) -> Any:
    """A constant; texts are bytes in a file."""
    if array.dtype.kind != "O":
        return ir.tensor(np.ascontiguousarray(array).reshape(array.shape))
    return ir.StringTensor([str(t).encode() for t in array.flat], shape=ir.Shape(array.shape))


def _constant_name(array: np.ndarray) -> str:
    if array.size == 1 and array.dtype.kind in "iufb":
        text = f"{array.reshape(-1)[0]!s}".replace("-", "m").replace("+", "")
        return f"const_{text}" if len(text) <= 12 else "const"
    return "const"

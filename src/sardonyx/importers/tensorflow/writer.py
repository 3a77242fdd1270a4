"""The builder that rules for TensorFlow's operators write with.

It adds sizes that are known while building, so that the arithmetic of shapes leaves no nodes, and
images with channels first, whose transposes cancel each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Dim, Operand, constant
from sardonyx.importers.widening import Refusal as Refusal
from sardonyx.importers.widening import WideningBuilder
from sardonyx.values import same_dim

T = ir.DataType
# Operators of one image, element by element: a Transpose before them may as well come after them.
ELEMENTWISE = frozenset([
    "Relu", "Sigmoid", "Tanh", "Clip", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "Abs",
    "Neg", "Exp", "Log", "Sqrt", "Erf", "HardSwish", "HardSigmoid", "Reciprocal",
])  # fmt: skip
PAIRS = frozenset(["Add", "Sub", "Mul", "Div", "Max", "Min"])
PARTS = 8  # elements of a vector that are followed one by one
LARGEST, SMALLEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


class Size:
    """An element of a shape that is free: axis `axis` of `value`."""

    def __init__(self, value: ir.Value, axis: int):
        self.value, self.axis = value, axis
        assert value.shape is not None
        self.dim = value.shape[axis]

    def same(self, other: Any) -> bool:
        if not isinstance(other, Size):
            return False
        alike = self.value is other.value and self.axis == other.axis
        return alike or same_dim(self.dim, other.dim)


class Part:
    """An element of a shape that is computed: number `index` of `value`."""

    def __init__(self, value: ir.Value, index: int):
        self.value, self.index = value, index

    def same(self, other: Any) -> bool:
        return isinstance(other, Part) and self.value is other.value and self.index == other.index


class Writer(WideningBuilder):
    """A builder of nodes for the operators of a TensorFlow graph."""

    def __init__(self, prefix: str = "", parent: Writer | None = None):
        super().__init__(prefix, parent)
        self._sizes: dict[tuple[int, int], ir.Value] = {}

    # -- nodes ------------------------------------------------------------------------

    def call(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int | None = None,
    ) -> Any:
        """One node; before the Transpose of its inputs where that is the same."""
        moved = self._behind_transpose(op_type, inputs, attributes) if not domain else None
        if moved is not None:
            return moved
        return super().call(op_type, inputs, attributes, domain=domain, outputs=outputs)

    def _behind_transpose(self, op_type: str, inputs: Sequence[Operand], attributes: Any) -> Any:
        """An operator of one or two transposed images, computed before their Transpose."""
        if op_type not in ELEMENTWISE and op_type not in PAIRS:
            return None
        images = inputs[: 1 + (op_type in PAIRS)]
        perms = [_image_order(v) for v in images]
        if perms[0] is None or any(p != perms[0] for p in perms):
            return None
        sources = [v.producer().inputs[0] for v in images]  # type: ignore[union-attr]
        rest = inputs[len(images) :]
        y = super().call(op_type, [*sources, *rest], attributes)
        return self.Transpose(y, perm=perms[0])

    # -- constants --------------------------------------------------------------------

    def const(self, value: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant; texts too."""
        array = np.asarray(value)
        if array.dtype.kind not in "OSU":
            return super().const(value, dtype)
        texts = [t if isinstance(t, bytes) else str(t).encode() for t in array.reshape(-1)]
        key = ("text", array.shape, tuple(texts))
        constants = self.root.constants
        if key not in constants:
            data = np.array(texts, object).reshape(array.shape)
            name = self.fresh("text")
            tensor = ir.StringTensor(data, shape=ir.Shape(array.shape), name=name)
            constants[key] = ir.Value(
                name=name, shape=tensor.shape, type=ir.TensorType(T.STRING), const_value=tensor
            )
        return constants[key]

    # -- sizes ------------------------------------------------------------------------

    def int64(self, x: ir.Value) -> ir.Value:
        """`x` in int64, without a detour where it was made of sizes."""
        return x.meta.get("int64") or self.cast(x, T.INT64)

    def vector(self, x: ir.Value) -> ir.Value:
        """A scalar or vector of integers as an int64 vector."""
        wide = self.int64(x)
        return wide if x.shape is not None and len(x.shape) == 1 else self.Reshape(wide, [-1])

    def size(self, element: int | Size | Part) -> Dim:
        """An element of a shape: an int, or a value of shape [1]."""
        if isinstance(element, Part):
            whole = self.vector(element.value)
            one = element.value.shape is not None and element.value.shape.dims in ((), (1,))
            return whole if one else self.element(whole, element.index)
        if not isinstance(element, Size):
            return int(element)
        key = (id(element.value), element.axis)
        writer: Any = self
        while writer is not None:
            if key in writer._sizes:
                return writer._sizes[key]
            writer = writer.parent
        value = self.Shape(element.value, start=element.axis, end=element.axis + 1)
        value.meta["content"] = (element.dim,)
        self._sizes[key] = value
        return value

    def sized(self, elements: np.ndarray, dtype: ir.DataType | None) -> ir.Value:
        """An array of elements of shapes as a value, which remembers them."""
        numbers = all(not isinstance(e, (Size, Part)) for e in elements.reshape(-1))
        if numbers:
            return self.const(elements.astype(np.int64), dtype)
        wide = self.join([self.size(e) for e in elements.reshape(-1)])
        wide = wide if elements.ndim == 1 else self.Reshape(wide, list(elements.shape))
        value = self.cast(wide, dtype)
        value.meta["elements"] = elements
        value.meta["int64"] = wide
        return value

    def elements(self, x: ir.Value) -> np.ndarray | None:
        """The elements of a value of sizes: ints and `Size`s; None where they are not known."""
        if "elements" in x.meta:
            return x.meta["elements"]
        array = constant(x)
        if array is None or array.dtype.kind not in "iu":
            return None
        return array.astype(object)

    def parts(self, x: ir.Value) -> np.ndarray | None:
        """The elements of a short vector of integers, each of them computed."""
        if x.shape is None or x.dtype not in (T.INT32, T.INT64) or len(x.shape) > 1:
            return None
        dims = [d for d in x.shape if isinstance(d, int)]
        if len(dims) != len(x.shape) or any(d > PARTS for d in dims):
            return None
        out = np.empty(dims, object)
        flat = out.reshape(-1)
        for i in range(flat.size):
            flat[i] = Part(x, i)
        return flat.reshape(dims)

    def shape_elements(self, x: ir.Value) -> np.ndarray | None:
        """The shape of `x` as elements."""
        if x.shape is None:
            return None
        sizes = [d if isinstance(d, int) else Size(x, a) for a, d in enumerate(x.shape)]
        out = np.empty(len(sizes), object)
        out[:] = sizes
        return out

    def known(self, x: ir.Value, what: str) -> np.ndarray:
        """The array behind a constant, which a rule needs while building."""
        array = constant(x)
        if array is None:
            raise Refusal(f"{what} that is computed, not constant")
        return array

    # -- shapes -----------------------------------------------------------------------

    def element(self, x: ir.Value, i: int) -> ir.Value:
        """Element `i` of an int64 vector, as a vector of one."""
        array = constant(x)
        if array is not None:
            return self.const(array[i : i + 1])
        if x.shape is not None and x.shape.dims == (1,):
            return x
        return self.part(x, 0, i, i + 1)

    def count(self, x: ir.Value) -> ir.Value:
        """0, 1, … up to a size of shape [1] or [], in int64."""
        array = constant(x)
        if array is not None and array.reshape(-1)[0] <= 1 << 12:
            return self.const(np.arange(int(array.reshape(-1)[0]), dtype=np.int64))
        size = self.Squeeze(x) if x.shape is None or len(x.shape) else x
        return self.Range(self.const(np.int64(0)), size, self.const(np.int64(1)))

    def dim_value(self, x: ir.Value, axis: int) -> ir.Value:
        """The size of `x` along an axis as an int64 vector of one."""
        size = self.dim(x, axis)
        return size if isinstance(size, ir.Value) else self.const(np.array([size], np.int64))

    # -- images -----------------------------------------------------------------------

    def channels_first(self, x: ir.Value) -> ir.Value:
        """An image [batch, …, channels] as [batch, channels, …]."""
        producer = x.producer()
        n = _rank(x)
        back = [0, *range(2, n), 1]
        if producer is not None and producer.op_type == "Transpose" and _order(producer) == back:
            return producer.inputs[0]  # type: ignore[return-value]
        return self.Transpose(x, perm=[0, n - 1, *range(1, n - 1)])

    def channels_last(self, x: ir.Value) -> ir.Value:
        """An image [batch, channels, …] as [batch, …, channels]."""
        n = _rank(x)
        return self.Transpose(x, perm=[0, *range(2, n), 1])


def _rank(x: ir.Value) -> int:
    if x.shape is None:
        raise Refusal("an image of unknown rank")
    return len(x.shape)


def _order(node: ir.Node) -> list[int]:
    return list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else []


def _image_order(x: Operand) -> list[int] | None:
    """The order of a Transpose from channels first to last that made `x`."""
    producer = x.producer() if isinstance(x, ir.Value) else None
    if producer is None or producer.op_type != "Transpose":
        return None
    order = _order(producer)
    n = len(order)
    return order if n in (4, 5) and order == [0, *range(2, n), 1] else None

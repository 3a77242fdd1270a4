"""torch's adapter: the array namespace of `lower/xp.py` in terms of torch."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np

from sardonyx.errors import MissingExtra
from sardonyx.lower.sizes import ORDERS, Order
from sardonyx.lower.unsigned import Unsigned, Widening
from sardonyx.lower.xp import (
    BFLOAT16,
    BINARY,
    SMALL_FLOATS,
    SMALL_INTEGERS,
    UNARY,
    Arrays,
    NotStatic,
    is_symbolic,
    settle,
)

try:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch.utils._python_dispatch import _disable_current_modes
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

DTYPES = {
    np.dtype(name): getattr(torch, name)
    for name in [
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
}
DTYPES[BFLOAT16] = torch.bfloat16
NUMPY_TYPES = {t: n for n, t in DTYPES.items()}
# torch has these types but few functions of them.
WIDE = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
OTHER_NAMES = {
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "power": "pow",
}
UNSIGNED = Unsigned(
    functools.partial(torch.div, rounding_mode="floor"), torch.bitwise_right_shift, torch.where
)
WIDENING = Widening(WIDE, torch.uint64, torch.Tensor.to, UNSIGNED)
widened, in_wide = WIDENING.widened, WIDENING.in_wide
ordered, in_order = WIDENING.ordered, WIDENING.in_order
EQUAL = widened("equal", torch.eq)
SIZES = 16  # the most numbers that are read as sizes: a shape, or where a slice begins
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def is_traced(value):
    """Whether a tensor belongs to a graph that is being traced."""
    if isinstance(value, list):
        return any(map(is_traced, value))
    return isinstance(value, (FakeTensor, FunctionalTensor))


def free_in_front(before, after):
    """How many leading sizes, some of them free, two shapes share before fixed ones."""
    shared = 0
    while shared < min(len(before), len(after)) and is_same(before[shared], after[shared]):
        shared += 1
    free = any(isinstance(d, torch.SymInt) for d in before[:shared])
    are_numbers = all(isinstance(d, int) and d for d in (*before[shared:], *after[shared:]))
    return shared if free and are_numbers and shared < min(len(before), len(after)) else 0


def is_same(a, b):
    """Whether two sizes are the same, tested so that a trace gains no assumption about them."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return a.node.expr == b.node.expr
    return isinstance(a, int) and isinstance(b, int) and a == b


def forwards(start, stop, step, size):
    """The slice of positive step with the elements of one of negative step, in reverse order."""
    if all(v is None or isinstance(v, int) for v in (start, stop, size)):
        chosen = range(*slice(start, stop, step).indices(size))
        return slice(chosen[-1], chosen[0] + 1, -step) if len(chosen) else slice(0, 0, 1)
    first = size - 1 if start is None else torch.sym_min(from_front(start, size), size - 1)
    last = -1 if stop is None else from_front(stop, size)
    return slice(last + 1 + (first - last - 1) % -step, first + 1, -step)


def from_front(position, size):
    """A position counted from the front; -1 for any before it."""
    if isinstance(position, int):
        return position if position >= 0 else torch.sym_max(position + size, -1)
    return torch.sym_max(torch.sym_ite(position < 0, position + size, position), -1)


def is_at_least(a, b):
    """Whether a ≥ b for all sizes, tested so that a trace gains no assumption about them."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    # torch's own ranges begin at 2: it makes another graph for sizes of 0 and 1, a module does not.
    ranges = next(size.node.shape_env.var_to_range for size in (a, b) if hasattr(size, "node"))
    first, second = (size.node.expr if hasattr(size, "node") else size for size in (a, b))
    difference = first - second
    sizes = {
        symbol: ValueRanges(min(ranges[symbol].lower, 0), int_oo)
        for symbol in difference.free_symbols
    }
    return bool(bound_sympy(difference, sizes).lower >= 0)


ORDERS[torch.SymInt] = Order(torch.sym_max, torch.sym_min, is_at_least)


class Torch(Arrays):
    """The namespace over torch tensors, on one device."""

    name = "torch"
    carried = {**SMALL_FLOATS, **SMALL_INTEGERS}

    def __init__(self, device="cpu"):
        self.device = device
        for name in (*UNARY, *BINARY):
            if not hasattr(type(self), name):
                function = getattr(torch, OTHER_NAMES.get(name, name))
                setattr(self, name, widened(name, function))

    # -- what it is

    def dtype(self, x):
        return NUMPY_TYPES[x.dtype] if isinstance(x, torch.Tensor) else x.dtype

    def shape(self, x):
        return tuple(x.shape)

    def rank(self, x):
        return x.ndim

    # -- conversion

    def asarray(self, array, dtype=None):
        if isinstance(array, torch.Tensor):
            return array if dtype is None else self.cast(array, dtype)
        array = np.asarray(array, dtype)
        array = array.astype(self.storage(array.dtype)) if array.dtype in self.carried else array
        if array.dtype == BFLOAT16:
            bits = torch.from_numpy(np.array(array).view(np.int16))
            return bits.view(torch.bfloat16).to(self.device)
        return torch.from_numpy(np.array(array)).to(self.device)

    def cast(self, x, dtype):
        target = DTYPES[self.storage(dtype)]
        if x.dtype == target:
            return x
        if x.dtype.is_floating_point and target in WIDE:
            return x.to(torch.int64).to(target)
        return x.to(target)

    def static(self, x):
        if is_traced(x):
            return self._read(x)
        with _disable_current_modes():  # a constant, maybe in the middle of a trace
            return self.to_numpy(x)

    def _read(self, x):
        """Integers that depend on data, as symbolic sizes of a graph that is being traced."""
        if hasattr(x, "pieces"):
            return settle([v for piece in x.pieces for v in self.static(piece)])
        if hasattr(x, "sizes"):
            return x.sizes
        is_integer = not x.dtype.is_floating_point and x.dtype not in (torch.bool, torch.complex64)
        if not is_integer or not all(isinstance(d, int) for d in x.shape) or x.numel() > SIZES:
            raise NotStatic
        return settle([element.item() for element in x.reshape(-1)], x.shape)

    def to_numpy(self, x, dtype=None):
        x = x.detach().cpu().resolve_conj()
        if x.dtype == torch.bfloat16:
            array = x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        else:
            array = x.numpy()
        return array if dtype is None or array.dtype == dtype else array.astype(dtype)

    def from_sizes(self, values):
        parts = [torch.scalar_tensor(v, dtype=torch.int64, device=self.device) for v in values.flat]
        tensor = torch.stack(parts).reshape(values.shape)
        if is_traced(tensor):
            tensor.sizes = values  # for `_read`
        return tensor

    # -- making

    def full(self, shape, value, dtype):
        torch_type = DTYPES[self.storage(dtype)]
        if isinstance(value, torch.Tensor):
            return value.to(torch_type).expand(tuple(shape))
        value = value.item() if isinstance(value, np.generic) else value
        return torch.full(tuple(shape), value, dtype=torch_type, device=self.device)

    def arange(self, start, stop, step, dtype):
        torch_type = DTYPES[dtype]
        numbers = torch.arange(
            start, stop, step, dtype=WIDE.get(torch_type, torch_type), device=self.device
        )
        return numbers if torch_type not in WIDE else numbers.to(torch_type)

    def _draw(self, function, shape, dtype, seed):
        options = {"dtype": DTYPES[dtype], "device": self.device}
        if seed is not None:  # absent, not None: with a generator, torch takes no symbolic sizes
            options["generator"] = torch.Generator(self.device).manual_seed(abs(int(seed)))
        return function(tuple(shape), **options)

    def uniform(self, shape, dtype, low=0.0, high=1.0, seed=None):
        return self._draw(torch.rand, shape, dtype, seed) * (high - low) + low

    def normal(self, shape, dtype, mean=0.0, scale=1.0, seed=None):
        return self._draw(torch.randn, shape, dtype, seed) * scale + mean

    # -- layout

    def reshape(self, x, shape):
        shape = tuple(shape)
        shared = free_in_front(x.shape, shape)
        if shared:  # without naming the free sizes, so that the graph need not read them
            if x.ndim == shared + 1:
                return x.unflatten(shared, shape[shared:])
            if len(shape) == shared + 1:
                return x.flatten(shared)
        return torch.reshape(x, shape)

    def transpose(self, x, perm):
        return x.permute(tuple(perm))

    def expand_dims(self, x, axes):
        for axis in sorted(axes):
            x = x.unsqueeze(axis)
        return x

    def squeeze(self, x, axes):
        return torch.squeeze(x, tuple(axes))

    def broadcast_to(self, x, shape):
        return x.expand(tuple(shape))

    def concat(self, xs, axis):
        joined = torch.cat(list(xs), axis)
        if joined.ndim == 1 and is_traced(joined):
            joined.pieces = list(xs)  # for `_read`: some may be constants
        return joined

    def stack(self, xs, axis):
        return torch.stack(list(xs), axis)

    def split(self, x, sizes, axis):
        return list(torch.split(x, list(sizes), axis))

    def slice(self, x, starts, stops, steps):
        parts, turned = [], []
        for axis, (start, stop, step) in enumerate(zip(starts, stops, steps)):
            if isinstance(step, int) and step < 0:
                # torch has no negative steps: the same elements forwards, then turned around
                turned.append(axis)
                parts.append(forwards(start, stop, step, x.shape[axis]))
            else:
                parts.append(slice(start, stop, step))
        x = x[tuple(parts)] if parts else x
        return torch.flip(x, turned) if turned else x

    def pad(self, x, before, after, value):
        pads = [p for pair in reversed(list(zip(before, after))) for p in pair]
        if x.dtype == torch.bool:
            return torch.nn.functional.pad(x.to(torch.uint8), pads, value=int(value)).to(torch.bool)
        return torch.nn.functional.pad(x, pads, value=value) if pads else x

    def flip(self, x, axes):
        return torch.flip(x, tuple(axes))

    def tile(self, x, repeats):
        return x.repeat(tuple(repeats)) if len(repeats) else x

    # -- indexing

    def take(self, x, indices, axis):
        if axis == 0 and x.ndim == 2 and x.dtype.is_floating_point:
            return torch.embedding(x, indices)  # its gradient sorts, where others collide on GPUs
        flat = torch.index_select(x, axis, indices.reshape(-1))
        return flat.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def take_along(self, x, indices, axis):
        axis = axis % x.ndim
        rest = [a for a in range(x.ndim) if a != axis]
        if all(x.shape[a] == indices.shape[a] for a in rest):
            # take_along_dim broadcasts, for which it fixes sizes that are free in a trace
            return in_wide(lambda v: torch.gather(v, axis, indices), x)
        return in_wide(functools.partial(torch.take_along_dim, indices=indices, dim=axis), x)

    def put(self, x, indices, updates, reduction="none"):
        if reduction == "none":
            return x.index_put((indices,), updates)
        if x.dtype in WIDE:
            wide = WIDE[x.dtype]
            return self.put(x.to(wide), indices, updates.to(wide), reduction).to(x.dtype)
        return x.scatter_reduce(0, indices, updates, REDUCTIONS[reduction])

    def nonzero(self, x):
        return torch.nonzero(x).permute(1, 0)

    def where(self, condition, a, b):
        if a.dtype in WIDE:
            wide = WIDE[a.dtype]
            return torch.where(condition, a.to(wide), b.to(wide)).to(a.dtype)
        return torch.where(condition, a, b)

    # -- elementwise where torch differs

    def floor_divide(self, a, b):
        return widened("floor_divide", functools.partial(torch.div, rounding_mode="floor"))(a, b)

    def sign(self, x):
        # torch's sign of NaN is 0
        signs = widened("sign", torch.sign)(x)
        return torch.where(torch.isnan(x), x, signs) if x.dtype.is_floating_point else signs

    def floor(self, x):
        return torch.floor(x) if x.dtype.is_floating_point else x

    def ceil(self, x):
        return torch.ceil(x) if x.dtype.is_floating_point else x

    # -- reductions

    def _reduce(self, name, x, axis, keepdims):
        function = getattr(torch, name)
        if axis is None:
            axis = tuple(range(x.ndim))
        axes = axis if isinstance(axis, tuple) else (axis,)
        if not axes:
            return x
        return in_wide(functools.partial(function, dim=axes, keepdim=keepdims), x)

    def sum(self, x, axis=None, keepdims=False):
        if axis is None:
            axis = tuple(range(x.ndim))
        if axis == ():
            return x
        dtype = WIDE.get(x.dtype, x.dtype)
        total = torch.sum(x, axis, keepdim=keepdims, dtype=dtype)
        return total if total.dtype == x.dtype else total.to(x.dtype)

    def mean(self, x, axis=None, keepdims=False):
        return self._reduce("mean", x, axis, keepdims)

    def max(self, x, axis=None, keepdims=False):
        return in_order(lambda v: self._reduce("amax", v, axis, keepdims), x)

    def min(self, x, axis=None, keepdims=False):
        return in_order(lambda v: self._reduce("amin", v, axis, keepdims), x)

    def any(self, x, axis=None, keepdims=False):
        return self._reduce("any", x, axis, keepdims)

    def all(self, x, axis=None, keepdims=False):
        return self._reduce("all", x, axis, keepdims)

    def prod(self, x, axis=None, keepdims=False):
        axes = (
            tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        )
        for a in sorted(axes, reverse=True):
            x = in_wide(
                functools.partial(
                    torch.prod, dim=a, keepdim=keepdims, dtype=WIDE.get(x.dtype, x.dtype)
                ),
                x,
            )
        return x

    def argmax(self, x, axis):
        # argmax of torch names any of several maxima
        x = ordered(x)
        return self._first(x, torch.amax(x, axis, keepdim=True), axis)

    def argmin(self, x, axis):
        x = ordered(x)
        return self._first(x, torch.amin(x, axis, keepdim=True), axis)

    def _first(self, x, extreme, axis):
        return torch.argmax((x == extreme).to(torch.uint8), axis)

    def cumsum(self, x, axis):
        return torch.cumsum(x, axis, dtype=x.dtype)

    def cumprod(self, x, axis):
        return torch.cumprod(x, axis, dtype=x.dtype)

    # -- order and products

    def equal(self, a, b):
        result = EQUAL(a, b)
        if any(hasattr(x, "sizes") for x in (a, b)) and result.numel() == 1:
            first, second = (self.static(x).reshape(-1)[0] for x in (a, b))
            result.sizes = np.array([first == second], object).reshape(result.shape)
        return result

    def sort(self, x, axis):
        return in_order(lambda v: torch.sort(v, axis).values, x)

    def argsort(self, x, axis, descending=False):
        return torch.argsort(ordered(x), dim=axis, descending=descending, stable=True)

    def matmul(self, a, b):
        if a.dtype in WIDE:
            wide = WIDE[a.dtype]
            return torch.matmul(a.to(wide), b.to(wide)).to(a.dtype)
        return torch.matmul(a, b)

    def einsum(self, equation, *xs):
        return torch.einsum(equation, *xs)

    def det(self, x):
        return torch.linalg.det(x)

    def fft(self, real, imaginary, axis, inverse):
        x = real if imaginary is None else torch.complex(real, imaginary)
        spectrum = (torch.fft.ifft if inverse else torch.fft.fft)(x, dim=axis)
        return spectrum.real, spectrum.imag

    def bit_cast(self, x, dtype):
        return x.view(DTYPES[self.storage(dtype)])

    def scan(self, step, state, rows, kept):
        """Unrolled where the number of rows is known, else one operation of the graph."""
        from sardonyx.engines.torch import controlflow

        if isinstance(rows[0].shape[0], int) or not controlflow.is_tracing():
            return super().scan(step, state, rows, kept)
        return controlflow.scanned(step, state, rows)

    # -- other engines

    def call_out(self, region, values):
        """Run a region on another engine, as an operator of torch where only numbers cross."""
        from sardonyx.engines import callout
        from sardonyx.engines.torch.callout import call_out

        if not region.is_plain or any(isinstance(v, (list, type(None))) for v in values):
            if any(is_traced(v) for v in values):
                raise NotStatic(f"a graph cannot pass text or lists to {region.label}")
            return callout.run_at_once(self, region, values)
        if any(is_traced(v) for v in values):
            region, values = callout.inline_constants(region, values)
        tensors = [v if isinstance(v, torch.Tensor) else self.known(v) for v in values]
        return call_out(region, tensors)

    def known(self, value):
        """A numpy array, of symbolic sizes too, as a tensor."""
        value = np.asarray(value)
        return self.from_sizes(value) if is_symbolic(value) else self.asarray(value)

    def is_array(self, value):
        return isinstance(value, torch.Tensor)


@functools.cache
def arrays(device="cpu"):
    return Torch(device)


__all__ = ["Torch", "arrays"]

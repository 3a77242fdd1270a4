"""jax's adapter: the array namespace of `lower/xp.py` in terms of jax.numpy."""

from __future__ import annotations

import functools

import numpy as np

from sardonyx.errors import MissingExtra
from sardonyx.lower.numpy_xp import NumpyLike
from sardonyx.lower.sizes import ORDERS, Order
from sardonyx.lower.xp import BFLOAT16, NotStatic, is_symbolic

try:
    import jax
    import jax.experimental
    import jax.numpy as jnp
    from jax import export
    from jax.scipy.special import erf
except ImportError as error:
    raise MissingExtra("jax", "jax") from error

from sardonyx.engines.jax import miscompiled

miscompiled.avoid()

enable_x64 = jax.enable_x64
HALVES = (np.dtype(np.float16), BFLOAT16)


def is_traced(value):
    """Whether an array is a tracer: a placeholder in a graph that is being built."""
    if isinstance(value, list):
        return any(map(is_traced, value))
    return isinstance(value, jax.core.Tracer)


def within(size, start, stop, step):
    """The start, the stop and the step of a slice forwards, where they are known; else None."""
    if not all(isinstance(v, (int, np.integer, type(None))) for v in (start, stop, step)):
        return None
    if (start, stop, step) == (0, None, 1):
        return 0, size, 1
    if step < 1 or not isinstance(size, int):
        return None
    first, last, step = slice(start, stop, step).indices(size)
    return first, max(first, last), step


@jax.custom_jvp
def rounded(x):
    """`x`, of which a product is rounded before something is subtracted from it.

    XLA computes x*y anew where it subtracts, and does both in one instruction that rounds once. The
    difference from a maximum of x*y, which was rounded, is then up to half a unit in the last place
    instead of zero: above 1e9 its exponential is infinite or zero. XLA drops barriers; a selection
    stays.
    """
    return jnp.where(x == x, x, jnp.full_like(x, np.nan))


rounded.defjvps(lambda tangent, _, x: tangent)


def is_at_least(a, b):
    """Whether a ≥ b is certain of sizes that `jax.export` leaves free."""
    try:
        return bool(a >= b)
    except jax.errors.InconclusiveDimensionOperation:
        return False


def chosen(name, a, b):
    """The larger ("max") or the smaller ("min") one of two sizes, of which one is free."""
    scope = next(size.scope for size in (a, b) if not isinstance(size, int))
    (size,) = export.symbolic_shape(f"{name}({a}, {b})", scope=scope)
    return size


FREE = type(export.symbolic_shape("n")[0])
ORDERS[FREE] = Order(
    larger=lambda a, b: chosen("max", a, b),
    smaller=lambda a, b: chosen("min", a, b),
    is_at_least=is_at_least,
)


class Jax(NumpyLike):
    """The namespace over jax arrays. Types of 64 bits need x64 mode, which runners turn on."""

    name = "jax"

    def __init__(self, fused_attention: bool = False, once: bool = False) -> None:
        super().__init__(jnp)
        self.draws = 0
        self.fused_attention, self.once = fused_attention, once

    # -- conversion

    def asarray(self, array, dtype=None):
        if is_symbolic(array):
            return self.from_sizes(array)
        if dtype is None and isinstance(array, np.ndarray):
            return jax.device_put(array, may_alias=False)  # jnp.asarray compiles one per shape
        return jnp.asarray(array, dtype)

    def cast(self, x, dtype):
        return x if x.dtype == dtype else jax.lax.convert_element_type(x, dtype)

    def static(self, x):
        if isinstance(x, jax.core.Tracer):
            raise NotStatic
        return np.asarray(x)

    def to_numpy(self, x, dtype=None):
        return np.asarray(x, dtype)

    def from_sizes(self, values):
        return jnp.stack([jnp.asarray(v, np.int64) for v in values.flat]).reshape(values.shape)

    # -- making

    def _key(self, seed):
        if seed is None:
            self.draws += 1
            return jax.random.key(np.random.SeedSequence(self.draws).generate_state(1)[0])
        return jax.random.key(abs(int(seed)))

    def uniform(self, shape, dtype, low=0.0, high=1.0, seed=None):
        return jax.random.uniform(self._key(seed), tuple(shape), dtype, low, high)

    def normal(self, shape, dtype, mean=0.0, scale=1.0, seed=None):
        return jax.random.normal(self._key(seed), tuple(shape), dtype) * scale + mean

    # -- where jax differs

    def erf(self, x):
        return erf(x)

    def put(self, x, indices, updates, reduction="none"):
        at = x.at[indices]
        change = {"none": at.set, "add": at.add, "mul": at.multiply, "max": at.max, "min": at.min}
        return change[reduction](updates)

    def tile(self, x, repeats):
        return jnp.tile(x, tuple(int(r) if isinstance(r, np.integer) else r for r in repeats))

    def slice(self, x, starts, stops, steps):
        # Where one size is not known jax gathers, even if the slice leaves that axis whole.
        bounds = [within(*part) for part in zip(x.shape, starts, stops, steps)]
        if None in bounds or all(isinstance(size, int) for size in x.shape):
            return super().slice(x, starts, stops, steps)
        return jax.lax.slice(x, *zip(*bounds))

    def split(self, x, sizes, axis):
        # jax pads and adds up the gradients of slices, but joins those of a split.
        if all(isinstance(size, int) and size >= 0 for size in (x.shape[axis], *sizes)):
            return jax.lax.split(x, sizes, axis)
        return super().split(x, sizes, axis)

    def standardized(self, x, axes, epsilon):
        from sardonyx.engines.jax.nn import standardized, two_passes

        return standardized(x, axes, epsilon, two_passes)

    def nonzero(self, x):
        if isinstance(x, jax.core.Tracer):
            raise NotStatic
        return jnp.stack(jnp.nonzero(x)).astype(np.int64)

    def pad(self, x, before, after, value):
        widths = [(b, a, 0) for b, a in zip(before, after)]
        return jax.lax.pad(x, jnp.asarray(value, x.dtype), widths)

    def computed_once(self, x):
        # On CPUs XLA drops its own barriers before it fuses; it does not look into a condition.
        if 0 in x.shape:
            return x
        first = x[(0,) * x.ndim]
        bits = jax.lax.bitcast_convert_type(first, np.dtype(f"uint{8 * x.dtype.itemsize}"))
        never = np.array(np.iinfo(bits.dtype).max, bits.dtype)  # a NaN that no arithmetic gives
        return jax.lax.cond(bits != never, lambda v: v, jnp.zeros_like, x)

    def rounded(self, x):
        return rounded(x)

    # Indices of 32 bits: callers compile outside of the mode for 64 bits, where XLA has no others.

    def argmax(self, x, axis):
        return jax.lax.argmax(x, axis % x.ndim, np.int32).astype(np.int64)

    def argmin(self, x, axis):
        return jax.lax.argmin(x, axis % x.ndim, np.int32).astype(np.int64)

    def has_fused_attention(self, q, k, v, is_causal):
        """Whether cuDNN computes attention without its scores in memory, and the gradient too."""
        alike = q.ndim == 4 and k.shape == v.shape and q.shape[:2] == k.shape[:2]
        sizes = q.shape[-1] == k.shape[-1] <= 128 and q.shape[-1] % 8 == 0
        sizes = sizes and all(a.shape[-2] % 64 == 0 for a in (q, k))
        sizes = sizes and (not is_causal or q.shape[-2] == k.shape[-2])
        return self.fused_attention and q.dtype in HALVES and alike and sizes

    def sigmoid(self, x):
        return jax.nn.sigmoid(x)

    def bit_cast(self, x, dtype):
        # bool has no bits of its own
        x = x.astype(np.uint8) if x.dtype == bool else x
        if dtype == np.dtype(bool):
            return jax.lax.bitcast_convert_type(x, np.uint8).astype(bool)
        return jax.lax.bitcast_convert_type(x, dtype)

    def fft(self, real, imaginary, axis, inverse):
        # in double: the single precision transform of XLA on CPUs has errors of 2e-6
        wide = real.astype(jnp.float64)
        imaginary = None if imaginary is None else imaginary.astype(jnp.float64)
        spectrum = super().fft(wide, imaginary, axis, inverse)
        return tuple(v.astype(real.dtype) for v in spectrum)

    def _reduce(self, name, x, axis, keepdims):
        # Asked for a half, jax adds up in halves; left alone it does so in single precision.
        dtype = None if x.dtype in HALVES else x.dtype
        return getattr(jnp, name)(x, axis=axis, keepdims=keepdims, dtype=dtype)

    def divide(self, a, b):
        if a.dtype in HALVES:  # XLA multiplies by a reciprocal that it rounds to a half
            return (a.astype(np.float32) / b.astype(np.float32)).astype(a.dtype)
        return jnp.divide(a, b)

    def scan(self, step, state, rows, dtypes):
        return jax.lax.scan(step, tuple(state), tuple(rows))

    def scan_product(self, step, matrix, state, rows, dtypes):
        if not self.once:  # what follows cannot be differentiated forwards
            return super().scan_product(step, matrix, state, rows, dtypes)

        def run(matrix, state, rows):
            return jax.lax.scan(functools.partial(step, matrix), state, rows)

        def forward(matrix, state, rows):
            results, back = jax.vjp(functools.partial(run, matrix), state, rows)
            _, (new,) = results
            return results, (back, jnp.concatenate([state[0][None], new[:-1]]))

        def backward(kept, gradients):
            back, before = kept
            of_state, of_rows = back(gradients)
            return jnp.tensordot(before, of_rows[0], ((0, 1), (0, 1))), of_state, of_rows

        function = jax.custom_vjp(run)
        function.defvjp(forward, backward)
        return function(matrix, tuple(state), tuple(rows))

    # -- other engines

    def call_out(self, region, values):
        """Run a region elsewhere: a callback in jax's graph, or at once where there is none."""
        from sardonyx.engines import callout
        from sardonyx.engines.jax.callout import call_out

        if not any(is_traced(v) for v in values):
            return callout.run_at_once(self, region, values)
        if not region.is_plain or any(isinstance(v, (list, type(None))) for v in values):
            raise NotStatic(f"text and sequences cannot be in a graph: {region.label}")
        region, values = callout.inline_constants(region, values)
        arrays = [v if isinstance(v, jax.Array) else self.asarray(v) for v in values]
        return call_out(region, arrays)

    def is_array(self, value):
        return isinstance(value, jax.Array)


@functools.cache
def arrays(fused_attention=False, once=False):
    """once -- nobody differentiates further, or forwards"""
    return Jax(fused_attention, once)


@functools.cache
def has_cudnn_attention():
    """Whether cuDNN's attention and its gradient work here: tried, on the default device."""
    x = jnp.ones((1, 64, 1, 64), BFLOAT16)

    def total(x):
        y = jax.nn.dot_product_attention(x, x, x, is_causal=True, implementation="cudnn")
        return y.astype(np.float32).sum()

    try:
        return bool(jnp.isfinite(jax.jit(jax.grad(total))(x)).all())
    except Exception:  # of any kind: no GPU, no cuDNN, an old one
        return False


__all__ = ["Jax", "arrays", "enable_x64", "jax"]

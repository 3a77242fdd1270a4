"""Arrays of random keys: JAX hides the words of a key, ONNX holds them in one more axis.

Primitives that only move elements work on the physical array once their params count that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax._src import core, dtypes

from sardonyx.importers.jax.writer import Refusal, Writer

Params = dict[str, Any]


def is_key(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and dtypes.issubdtype(dtype, dtypes.prng_key)


def physical(aval: Any) -> Any:
    """The type of the array behind an array of keys; of any other, itself."""
    return core.physical_aval(aval) if is_key(aval) else aval


def data(value: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(value))


def adapted(
    op: Writer, equation: Any, operands: Sequence[ir.Value], params: Params
) -> tuple[Sequence[ir.Value], Params]:
    """Operands and params that count the hidden axis."""
    name = equation.primitive.name
    if name in AWARE:
        aval = next((v.aval for v in equation.invars if is_key(v.aval)), None)
        aval = aval or equation.outvars[0].aval
        return operands, {**params, "impl": aval.dtype._impl, "keys_aval": aval}
    if name not in ADAPTED:
        raise Refusal("random keys in this primitive")
    return ADAPTED[name](op, equation, operands, params)


def _unchanged(op: Writer, equation: Any, operands: Any, params: Params) -> Any:
    return operands, params


def _longer(**more: Callable[[tuple[int, ...], int], Any]) -> Callable[..., Any]:
    """Params, each extended by a function of the hidden sizes and the visible rank."""

    def adapt(op: Writer, equation: Any, operands: Any, params: Params) -> Any:
        key = next(v.aval for v in (*equation.outvars, *equation.invars) if is_key(v.aval))
        hidden = key.dtype._impl.key_shape
        rank = len(equation.outvars[0].aval.shape)
        changed = {
            k: (*params[k], *f(hidden, rank)) for k, f in more.items() if params[k] is not None
        }
        return operands, {**params, **changed}

    return adapt


def _starts(sizes: str | None) -> Callable[..., Any]:
    def adapt(op: Writer, equation: Any, operands: Any, params: Params) -> Any:
        hidden = equation.invars[0].aval.dtype._impl.key_shape
        zero = op.const(np.zeros((), np.int32))
        changed = {sizes: (*params[sizes], *hidden)} if sizes else {}
        return [*operands, *(zero for _ in hidden)], {**params, **changed}

    return adapt


def _select(op: Writer, equation: Any, operands: Any, params: Params) -> Any:
    which, *cases = operands
    rank = len(equation.invars[0].aval.shape)
    return [op.unsqueezed(which, [rank]) if rank else which, *cases], params


def _gather(op: Writer, equation: Any, operands: Any, params: Params) -> Any:
    key = equation.invars[0].aval
    hidden = key.dtype._impl.key_shape
    rank = len(equation.outvars[0].aval.shape)
    numbers = params["dimension_numbers"]
    numbers = numbers._replace(offset_dims=(*numbers.offset_dims, *range(rank, rank + len(hidden))))
    sizes = (*params["slice_sizes"], *hidden)
    return operands, {**params, "dimension_numbers": numbers, "slice_sizes": sizes}


def _zeros(hidden: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return tuple(0 for _ in hidden)


def _sizes(hidden: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return hidden


def _ones(hidden: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return tuple(1 for _ in hidden)


def _last(hidden: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return tuple(range(rank, rank + len(hidden)))


AWARE = frozenset(
    [
        "random_seed",
        "random_split",
        "random_fold_in",
        "random_bits",
        "random_wrap",
        "random_unwrap",
        "random_clone",
        "random_gamma",
        "jit",
        "cond",
        "while",
        "scan",
        "custom_jvp_call",
        "custom_vjp_call",
        "remat2",
        "closed_call",
    ]
)
ADAPTED: dict[str, Callable[..., Any]] = {
    "slice": _longer(start_indices=_zeros, limit_indices=_sizes, strides=_ones),
    "reshape": _longer(new_sizes=_sizes),
    "broadcast_in_dim": _longer(shape=_sizes, broadcast_dimensions=_last),
    "transpose": _longer(permutation=_last),
    "dynamic_slice": _starts("slice_sizes"),
    "dynamic_update_slice": _starts(None),
    "select_n": _select,
    "gather": _gather,
    **dict.fromkeys(
        [
            "squeeze",
            "concatenate",
            "rev",
            "copy",
            "copy_p",
            "split",
            "stack",
            "unstack",
            "optimization_barrier",
        ],
        _unchanged,
    ),
}

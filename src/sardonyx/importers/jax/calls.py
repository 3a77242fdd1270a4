"""Rules of primitives that call a jaxpr: written in place, under the name of the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from jax.extend.core import ClosedJaxpr

from sardonyx.importers.jax.driver import Reader, importer
from sardonyx.importers.jax.purity import INSTALLED
from sardonyx.importers.jax.writer import Refusal, Writer

LIBRARIES = (*INSTALLED, str(Path(__file__).parents[2]))
OWN_GRADIENT = 'a gradient of its own: how="step" lets JAX differentiate'
# The first word of a call's name -> what it is written as, instead of its equations; the words
# after it are settings, as numbers by name, and the shapes of its operands.
MARKED: dict[str, Callable[..., Any]] = {}


def shapes_word(operands: Sequence[Any]) -> str:
    """The shapes of operands as one word of a call's name."""
    return ";".join(",".join(map(str, operand.shape)) for operand in operands).replace(" ", "")


def _named(op: Writer, name: str) -> str:
    return "/".join(part for part in (op.prefix, name.strip("_<>")) if part)


@importer("jit", "closed_call", "core_call", "pjit")
def jit(
    op: Writer,
    *operands: ir.Value,
    jaxpr: Any = None,
    call_jaxpr: Any = None,
    name: str = "",
    reader: Reader,
) -> Sequence[ir.Value]:
    mark, *settings = name.split() or [""]
    body = jaxpr if jaxpr is not None else call_jaxpr
    if mark not in MARKED:
        with op.named(_named(op, name)):
            return reader.closed(op, body, operands)
    words = dict(word.split("=") for word in settings)
    if words.pop("shapes") != shapes_word([v.meta["aval"] for v in operands]):
        with op.named(_named(op, mark)):  # differentiated, or over a further axis
            return reader.closed(op, body, operands)
    results = MARKED[mark](op, *operands, **{k: float(v) for k, v in words.items()})
    return results if isinstance(results, (list, tuple)) else [results]


@importer("custom_jvp_call")
def custom_jvp_call(
    op: Writer, *operands: ir.Value, call_jaxpr: Any, reader: Reader
) -> Sequence[ir.Value]:
    if _is_relu(call_jaxpr):
        return [op.Relu(operands[0])]
    if reader.differentiated and _is_of_user(call_jaxpr):
        raise Refusal(OWN_GRADIENT)
    return reader.closed(op, call_jaxpr, operands)


def _is_of_user(jaxpr: Any) -> bool:
    """Whether a function is the user's own: those of libraries have the gradient of their code."""
    place = str(jaxpr.jaxpr.debug_info.func_src_info).rpartition(" at ")[2]
    return not place.startswith(LIBRARIES)


def _is_relu(jaxpr: Any) -> bool:
    """Whether this is jax.nn.relu: the gradient of a plain maximum is another one at 0."""
    equations = jaxpr.jaxpr.eqns
    if len(equations) != 1 or equations[0].params.get("name") != "relu":
        return False
    inner = equations[0].params["jaxpr"].jaxpr.eqns
    aval = jaxpr.jaxpr.invars[0].aval
    floats = aval.dtype in (np.float32, np.float64)
    return floats and len(inner) == 1 and inner[0].primitive.name == "max"


@importer("custom_vjp_call", "custom_vmap_call", "custom_lin")
def custom_vjp_call(
    op: Writer, *operands: ir.Value, call_jaxpr: Any = None, call: Any = None, reader: Reader
) -> Sequence[ir.Value]:
    if reader.differentiated:
        raise Refusal(OWN_GRADIENT)
    body = call_jaxpr if call_jaxpr is not None else call
    if body is None:
        raise Refusal("a call without equations")
    return reader.closed(op, body, operands)


@importer("remat2", "checkpoint", "remat", "remat_opt")
def remat(op: Writer, *operands: ir.Value, jaxpr: Any, reader: Reader) -> Sequence[ir.Value]:
    if isinstance(jaxpr, ClosedJaxpr):
        return reader.closed(op, jaxpr, operands)
    return reader.open(op, jaxpr, [], operands)


@importer("custom_linear_solve")
def custom_linear_solve(
    op: Writer, *operands: ir.Value, const_lengths: Any, jaxprs: Any, reader: Reader
) -> Sequence[ir.Value]:
    sizes = [const_lengths.matvec, const_lengths.vecmat, const_lengths.solve]
    start = sum(sizes[:2])
    constants = operands[start : start + sizes[2]]
    rest = operands[start + sizes[2] + const_lengths.transpose_solve :]
    return reader.closed(op, jaxprs.solve, [*constants, *rest])


@importer("platform_index")
def platform_index(op: Writer, *, platforms: Any) -> ir.Value:
    for number, names in enumerate(platforms):
        if names is None or "cpu" in names:
            return op.const(np.int32(number))
    raise Refusal("code for other platforms than the CPU")

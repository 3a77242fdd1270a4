"""A function of jax as `jax.export` writes it, with the free sizes of its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.engines.jax.controlflow import exporting
from sardonyx.engines.jax.xp import jax
from sardonyx.errors import EngineError, SardonyxError, quote
from sardonyx.model import Model

MULTIPLES = (1, 2, 4, 8, 16, 32, 64)  # tried in turn, for sizes that are no batch


@dataclass
class Exported:
    """A function that jax exported.

    specs -- its inputs, with symbols for free sizes
    sizes -- sizes that it accepts, by name, where it accepts only multiples of a number
    """

    program: Any
    specs: list[Any]
    sizes: dict[str, int]


def exported(apply: Any, params: Any, loaded: Model) -> Exported:
    """The function with free sizes; detectors want the sides of an image in multiples."""
    labels = _labels(loaded)
    batches = {sizes[0] for sizes in labels if sizes}
    names = dict.fromkeys(d for sizes in labels for d in sizes if isinstance(d, str))
    sides = [name for name in names if name not in batches]
    problem: Exception | None = None
    for factor in MULTIPLES if sides else (1,):
        symbols = {
            name: f"{factor}*d{i}" if name in sides else f"d{i}" for i, name in enumerate(names)
        }
        specs = _specs(loaded, labels, symbols)
        sizes = {name: factor * i for i, name in enumerate(sides, 2)} if factor > 1 else {}
        try:
            with exporting():
                program = jax.export.export(jax.jit(apply))(params, *specs)
            return Exported(program, specs, sizes)
        except (SardonyxError, ValueError, TypeError) as error:
            problem = problem or error
    assert problem is not None
    if isinstance(problem, SardonyxError):
        raise problem
    raise EngineError(f"jax cannot export the model: {_first_line(problem)}") from problem


def _labels(loaded: Model) -> list[list[int | str]]:
    """The sizes of each input; a free one without a name is called after its place."""
    unknown = [v for v in loaded.inputs if v.shape is None or v.dtype is None]
    if unknown:
        raise EngineError(f"input {quote(unknown[0].name)} has no known rank or type")
    return [
        [
            d if isinstance(d, int) else str(d.value) if d.value else f"{v.name}[{axis}]"
            for axis, d in enumerate(v.shape or ())
        ]
        for v in loaded.inputs
    ]


def _specs(loaded: Model, labels: list[list[int | str]], symbols: dict[str, str]) -> list[Any]:
    scope = jax.export.SymbolicScope()
    specs = []
    for value, sizes in zip(loaded.inputs, labels, strict=True):
        text = ", ".join(symbols[d] if isinstance(d, str) else str(d) for d in sizes)
        shape = jax.export.symbolic_shape(text, scope=scope) if sizes else ()
        assert value.dtype is not None
        dtype = jax.dtypes.canonicalize_dtype(value.dtype.numpy())
        specs.append(jax.ShapeDtypeStruct(shape, dtype))
    return specs


def serialized(program: Any) -> tuple[bytes, str]:
    """The bytes of an exported function, and why they are without its gradient (empty: with it)."""
    try:
        return program.serialize(vjp_order=1), ""
    except Exception as error:  # jax has no class of its own for these
        return program.serialize(), f"left out, jax cannot export it: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:120]

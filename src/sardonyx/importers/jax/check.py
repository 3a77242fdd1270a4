"""The comparison of an imported model with JAX, before anybody sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax import tree_util
from jax._src import core

from sardonyx.errors import ImportDiffers
from sardonyx.importers.jax import keys, trees
from sardonyx.model import Model
from sardonyx.record.info import state_names, state_tensor
from sardonyx.verify import verify
from sardonyx.verify.noise import DIFFERENT, FAILS, NOT_COMPARABLE
from sardonyx.verify.training import verify_training

SECONDS = 60.0
SHORT = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16)
LARGEST = 1 << 12  # of the smallest sizes that functions ask for
FREE_SIZE = 3  # what the first symbolic size is for the comparison; the others are larger
LARGER = (8, 16, 32, 64, 128, 256)  # where a function leaves nothing of smaller ones
HEAVY = 1 << 17  # elements of inputs, such as images, of which few examples show enough


def require_same(
    model: Model,
    function: Callable[..., list[Any]],
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any],
    size: int = FREE_SIZE,
) -> None:
    """Raise `ImportDiffers` unless the model computes what `function` of all leaves does.

    size -- what the first symbolic size is; the others are larger
    """
    if not model.outputs:
        return
    used = [v.name or "" for v in model.inputs]
    names = [v.name for v in model.outputs]

    example = sample(inputs, None, size)

    def jax_function(*arrays: Any) -> dict[str, Any]:
        fed: dict[str, Any] = {**example, **dict(zip(used, arrays, strict=True))}
        leaves = [_like(leaf, fed[name]) for name, leaf in inputs.items()]
        results = function(*weights.values(), *leaves)
        return dict(zip(names, map(plain, results), strict=True))  # type: ignore[arg-type]

    seeds = (None,) if _is_heavy(inputs) else (None, 1)
    samples = (sample(inputs, seed, size) for seed in seeds)
    runs = [{n: a for n, a in arrays.items() if n in used} for arrays in samples]
    report = verify(model, jax_function, inputs=runs if used else [{}], seconds=SECONDS)
    if report.verdict in (DIFFERENT, FAILS, NOT_COMPARABLE):
        raise ImportDiffers(
            "the imported model and JAX differ",
            [[line] for line in str(report).splitlines()],
            hint=_hint(model, "function"),
        )


def _hint(model: Model, what: str) -> str:
    graphs = [model.graph, *(record.algorithm for record in model.records)]
    values = (v for graph in graphs for node in graph.all_nodes() for v in node.outputs)
    if any(v.dtype in SHORT for v in values):
        return "XLA leaves out roundings to 16 bits where it fuses: import the function in float32"
    return f"this is a defect of the import: please report the {what}; nothing was returned"


class JaxSide:
    """A training step of JAX as `verify_training` compares it."""

    def __init__(self, step: Callable[[Any, Any], Any], state: Any, batch: Any, names: list[str]):
        self.step_function = jax.jit(step)
        self.tree, self.batch, self.names = state, batch, names
        self.state_names = list(trees.named_leaves(state))
        self.others: dict[str, np.ndarray] = {}  # what a record has besides, such as its seed

    def step(self, inputs: Mapping[str, Any]) -> None:
        leaves, structure = tree_util.tree_flatten(self.batch)
        arrays = [_like(leaf, inputs.get(n)) for n, leaf in zip(self.names, leaves, strict=True)]
        self.tree, _ = self.step_function(self.tree, tree_util.tree_unflatten(structure, arrays))

    def state(self) -> dict[str, np.ndarray]:
        leaves = zip(self.state_names, tree_util.tree_leaves(self.tree), strict=True)
        return {**self.others, **{n: trees.array(leaf) for n, leaf in leaves}}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        leaves, structure = tree_util.tree_flatten(self.tree)
        named = zip(self.state_names, leaves, strict=True)
        new = [jax.numpy.asarray(_like(x, state[n])) if n in state else x for n, x in named]
        self.tree = tree_util.tree_unflatten(structure, new)
        self.others.update({n: a for n, a in state.items() if n not in self.state_names})


def require_same_training(
    model: Model,
    side: JaxSide,
    fed: Mapping[str, Any],
    data: Sequence[Mapping[str, np.ndarray]] | None = None,
) -> None:
    """Raise `ImportDiffers` unless two steps of the model's record are those of JAX.

    data -- the batches of the steps; like the examples `fed`, if not given
    """
    data = data or [sample(fed, None), sample(fed, 1)]
    for record in model.records:
        for name in state_names(model, record):
            if name not in side.state_names:
                side.others[name] = state_tensor(model, record, name).numpy()  # type: ignore[union-attr]
    report = verify_training(model, side, "onnxruntime", data=data, steps=len(data))
    if report.verdict == DIFFERENT:
        raise ImportDiffers(
            "the imported training step and that of JAX differ",
            [[line] for line in str(report).splitlines()],
            hint=_hint(model, "step"),
        )


def plain(value: Any) -> np.ndarray:
    """A result of JAX as NumPy has it; keys as their words."""
    return keys.data(value) if keys.is_key(value) else np.asarray(value)


def _like(leaf: Any, array: Any) -> Any:
    """An array as the function of JAX takes it in the place of `leaf`."""
    if array is None:
        array = trees.array(leaf)
    return jax.random.wrap_key_data(array, impl=leaf.dtype._impl) if keys.is_key(leaf) else array


def fitting_size(jaxpr: Any, inputs: Mapping[str, Any]) -> int:
    """A symbolic size of which strides and windows in a trace leave something."""
    dims = {str(d): d for d in _symbolic_dims(jaxpr.jaxpr)}
    for size in (FREE_SIZE, *LARGER):
        sizes = _sizes(inputs, size - 1 if size == FREE_SIZE and _is_heavy(inputs) else size)
        if all(int(d._evaluate(sizes)) > 0 for d in dims.values()):
            return size
    return FREE_SIZE


def _symbolic_dims(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield from (d for d in getattr(variable.aval, "shape", ()) if not isinstance(d, int))
        for inner in core.jaxprs_in_params(equation.params):
            yield from _symbolic_dims(inner)


def sample(
    inputs: Mapping[str, Any], seed: int | None, size: int = FREE_SIZE
) -> dict[str, np.ndarray]:
    """Arrays for every input: the example itself where there is one, or (`seed`) random floats."""
    rng = np.random.default_rng(seed or 0)
    small = size == FREE_SIZE and _is_heavy(inputs)
    sizes = _sizes(inputs, size - 1 if small else size)
    arrays = {}
    for name, leaf in inputs.items():
        if isinstance(leaf, jax.ShapeDtypeStruct):
            shape = [d if isinstance(d, int) else int(d._evaluate(sizes)) for d in leaf.shape]
            arrays[name] = _drawn(rng, shape, leaf.dtype)
            continue
        array = trees.array(leaf)
        if seed is not None and array.dtype.kind == "f" and np.isfinite(array).all():
            spread = float(array.std()) or 1.0
            values = rng.normal(float(array.mean()), spread, array.shape)
            array = np.clip(values, array.min() - spread / 2, array.max() + spread / 2).astype(
                array.dtype
            )
            if float(trees.array(leaf).min()) >= 0:
                array = np.abs(array)
        arrays[name] = array
    return arrays


def _drawn(rng: np.random.Generator, shape: list[int], dtype: Any) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return rng.random(shape) < 0.5
    if np.issubdtype(kind, np.integer):
        return rng.integers(0, 2, shape).astype(kind)
    return rng.normal(size=shape).astype(kind)


def _is_heavy(inputs: Mapping[str, Any]) -> bool:
    sizes = _sizes(inputs)
    shapes = (leaf.shape for leaf in inputs.values() if isinstance(leaf, jax.ShapeDtypeStruct))
    numbers = ([d if isinstance(d, int) else int(d._evaluate(sizes)) for d in s] for s in shapes)
    return sum(math.prod(shape) for shape in numbers) > HEAVY


def _sizes(inputs: Mapping[str, Any], first: int = FREE_SIZE) -> dict[str, int]:
    symbols: dict[str, Any] = {}
    for leaf in inputs.values():
        for dim in getattr(leaf, "shape", ()):
            if not isinstance(dim, int):
                symbols.update(dict.fromkeys(sorted(dim._get_vars()), dim.scope))
    numbers = enumerate(symbols.items())
    return {n: _at_most(max(first, _least(n, s)) + i, n, s) for i, (n, s) in numbers}


def _at_most(size: int, name: str, scope: Any) -> int:
    """A size, or the largest that the constraints of a symbol's scope allow below it."""
    (symbol,) = jax.export.symbolic_shape(name, scope=scope)
    while size > 1:
        try:
            if not symbol <= size - 1:
                break
        except core.InconclusiveDimensionOperation:
            break
        size -= 1
    return size


def _least(name: str, scope: Any) -> int:
    """The largest power of two that a symbol is not below, by the constraints of its scope."""
    (symbol,) = jax.export.symbolic_shape(name, scope=scope)
    least = 1
    while least < LARGEST:
        try:
            if not symbol >= 2 * least:
                break
        except core.InconclusiveDimensionOperation:
            break
        least *= 2
    return least

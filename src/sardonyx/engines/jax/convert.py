"""`to_jax`: an ONNX model as a pure function and its weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.engines.callout import refused
from sardonyx.engines.channels import channels_last
from sardonyx.engines.jax import backend  # noqa: F401  (registers the kernels)
from sardonyx.engines.jax.controlflow import exporting
from sardonyx.engines.jax.exported import exported, serialized
from sardonyx.engines.jax.nn import CHANNELS_LAST
from sardonyx.engines.jax.xp import arrays, enable_x64, is_traced, jax
from sardonyx.engines.native import Native, Stored, bind, native
from sardonyx.errors import ArgumentError, EngineError, quote
from sardonyx.external import is_mapped
from sardonyx.lower.program import DependsOnData, Program, element_type
from sardonyx.lower.xp import is_integer
from sardonyx.model import Model, ModelSource, load


def to_jax(
    model: ModelSource,
    *,
    as_: str = "function",
    fallback: str = "warn",
    place: Mapping[str, str] | None = None,
    training: bool = False,
) -> Any:
    """An ONNX model as `(apply, params)`: a pure function, and its weights by the model's own
    names.

    `apply(params, *inputs)` takes the inputs in order or by name; it is for `jax.jit`, `grad`,
    `vmap` and `jax.export`. Statistics of BatchNormalization are not among the params: they stay as
    they are.

    as_      -- "function" for that pair, "nnx" for a Flax NNX module with the same weights
    fallback -- what happens to nodes that jax cannot run (under `jax.jit` also those with
                data-dependent shapes): they run in numpy, with a warning ("warn") or without
                ("allow"), or are refused ("error")
    place    -- pattern of node names or operators → the engine that runs these nodes
    training -- give `(apply, params, loss, tx, opt_state)` of the model's training record: `apply`
                gives what `loss(prediction, label)` takes, `tx` is an optax transformation, and
                `opt_state` holds the slots, so that a loop in jax goes on where the record stands

    >>> import jax, numpy as np, sardonyx as sx
    >>> apply, params = sx.to_jax("model.onnx")
    >>> sorted(params)
    ['body.bias', 'body.weight', 'head.bias', 'head.weight']
    >>> jax.jit(apply)(params, np.zeros((2, 8), np.float32)).shape
    (2, 3)
    """
    if training:
        from sardonyx.engines.jax.objects import training_objects

        return training_objects(load(model), fallback)
    if as_ not in ("function", "nnx"):
        raise ArgumentError(f"cannot convert as {as_!r}", hint="as_ is 'function' or 'nnx'")
    parts = native(model, fallback=fallback, place=place)
    names = [n for n, kind in parts.kinds.items() if kind == "weight"]
    xp = arrays()
    # In 64-bit mode, whatever the caller's mode is: ONNX's indices are int64.
    with enable_x64(True):
        programs = Programs(parts, names)
        params = {name: _param(xp, parts.array(name)) for name in names}
    inputs = [v.name or "" for v in parts.inputs]
    types = {v.name: element_type(v) for v in parts.inputs}

    def apply(params: Mapping[str, Any], *values: Any, **named: Any) -> Any:
        with enable_x64(True):
            feeds = bind(inputs, values, named)
            feeds = {n: _of_type(xp, programs.plain.convert(v), types[n]) for n, v in feeds.items()}
            sizes = [d for v in feeds.values() for d in getattr(v, "shape", ())]
            is_free = not all(isinstance(d, int) for d in sizes)
            with exporting() if is_free else nullcontext():
                outputs = programs(feeds, params)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    if as_ == "nnx":
        from sardonyx.engines.jax.nnx import OnnxNnx

        return OnnxNnx(apply, params)
    return apply, params


def _param(xp: Any, array: np.ndarray) -> Any:
    """A weight as a jax array: the mapped file itself, if the weight is at an address that XLA
    accepts (a multiple of 64), since neither is ever written to; otherwise a copy.
    """
    return jax.device_put(array) if is_mapped(array) else xp.asarray(np.array(array))


class Programs:
    """A model as jax runs it eagerly, and as jax compiles it, where every size must be known."""

    def __init__(self, parts: Native, names: Collection[str]):
        self.parts, self.names = parts, names
        # Other platforms have kernels for both layouts; other engines do not know the turned nodes.
        turns = jax.default_backend() == "cpu" and not parts.options["place"]
        served = channels_last(parts.served, CHANNELS_LAST, names) if turns else parts.served
        self.plain = Program(served, arrays(), parameters=names, **parts.options)
        self._sized: dict[frozenset[str], Program] = {}

    def __call__(self, feeds: Mapping[str, Any], params: Mapping[str, Any]) -> list[Any]:
        values = {**feeds, **params}
        traced = frozenset(name for name, value in values.items() if is_traced(value))
        program = self._sized.get(traced, self.plain)
        try:
            outputs = program(feeds, params)
        except DependsOnData:
            if not traced or program is not self.plain:
                raise
            program = self._with_known_sizes()
            outputs = program(feeds, params)
            program.report(self.parts.options["fallback"])
            self._sized[traced] = program
        return [program.convert(value) for value in outputs]

    def _with_known_sizes(self) -> Program:
        """The program in which operators with data-dependent shapes run in numpy."""
        for program in self._sized.values():
            return program
        options = dict(self.parts.options)
        if options["fallback"] == "warn":  # the caller warns, once the program has worked
            options["fallback"] = "allow"
        return Program(self.parts.served, arrays(), parameters=self.names, sized=True, **options)


def _of_type(xp: Any, value: Any, dtype: np.dtype | None) -> Any:
    """Integers as the model has them: outside of jax's mode for 64 bits, int64 arrives as int32."""
    if dtype is None or not is_integer(dtype) or not hasattr(value, "dtype"):
        return value
    return xp.cast(value, dtype) if is_integer(np.dtype(value.dtype)) else value


def weight_arrays(module: Any) -> dict[str, np.ndarray]:
    """The weights of an NNX module by name."""
    if hasattr(module, "params") and callable(module.params):
        return {name: np.array(value) for name, value in module.params().items()}
    from flax import nnx

    leaves = nnx.to_flat_state(nnx.state(module, nnx.Param, nnx.BatchStat))
    return {".".join(map(str, path)): np.array(leaf[...]) for path, leaf in leaves}


def store(model: ModelSource, path: Path) -> Stored:
    """Write a model as a folder: `function.jax` (jax.export, symbolic sizes) and `params.npz`."""
    if importlib.util.find_spec("flatbuffers") is None:  # jax does not bring it
        what = "jax.export needs the package flatbuffers to write a function"
        raise EngineError(what, hint="pip install flatbuffers")
    with refused("jax"):
        return _store(load(model), path)


def _store(loaded: Model, path: Path) -> Stored:
    apply, params = to_jax(loaded, fallback="error")
    unsupported = [
        [quote(n), str(p.dtype)] for n, p in params.items() if np.dtype(p.dtype).kind == "V"
    ]
    if unsupported:
        raise EngineError("files of numpy have no such type", unsupported)
    written = exported(apply, params, loaded)
    content, gradient = serialized(written.program)
    path.mkdir(parents=True, exist_ok=True)
    (path / "function.jax").write_bytes(content)
    arrays: dict[str, Any] = {n: np.asarray(p) for n, p in params.items()}
    np.savez(path / "params.npz", **arrays)
    back = jax.export.deserialize(bytearray((path / "function.jax").read_bytes()))
    weights = dict(np.load(path / "params.npz"))

    def run(*arrays: Any) -> Any:
        return back.call(
            weights, *(np.asarray(a, g.dtype) for a, g in zip(arrays, written.specs, strict=True))
        )

    rows = [
        [f"input {quote(v.name)}", f"{g.dtype}{list(g.shape)}"]
        for v, g in zip(loaded.inputs, written.specs, strict=True)
    ]
    rows.append(
        ["parameters", f"{sum(p.size for p in weights.values()):,} in {len(weights)} tensors"]
    )
    rows += [["gradient", gradient]] if gradient else []
    rows.append(["to load it", "jax.export.deserialize(bytearray(…)).call(params, *inputs)"])
    return Stored(path, run, rows, sizes=written.sizes)

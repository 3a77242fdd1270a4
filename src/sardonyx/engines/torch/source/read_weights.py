"""Tuned weights of a generated module, by the names and in the layouts of the ONNX model.

The keys of the file are recovered by reading the model again: the same model gives the same source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.engines.torch.source.layers import Tensor
from sardonyx.engines.torch.source.write import WEIGHTS, weights_of
from sardonyx.engines.torch.xp import arrays
from sardonyx.errors import ArgumentError, MissingExtra, quote
from sardonyx.model import Model


def arrays_of(path: Path, model: Model, partial: bool) -> dict[str, np.ndarray]:
    """The tensors of a folder that `to_torch_source` wrote, as `model` has them."""
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingExtra("safetensors", "torch") from error
    file = path / WEIGHTS
    if not file.is_file():
        hint = "give the folder that to_torch_source wrote"
        raise ArgumentError(f"there are no weights in {quote(path.name)}", hint=hint)
    return named(load_file(str(file)), model, partial)


def named(state: Mapping[str, Any], model: Model, partial: bool = False) -> dict[str, np.ndarray]:
    """The tensors of a generated module's state, as `model` has them."""
    expected, same = weights_of(model)
    stored = {key: _stored(key, state, same) for key in expected}
    missing = [
        [quote(k), "is missing"] for k, t in expected.items() if t.sources and stored[k] is None
    ]
    wrong = [
        [quote(k), f"{list(expected[k].array.shape)} ← {list(v.shape)}"]
        for k, v in stored.items()
        if v is not None and expected[k].array.shape != tuple(v.shape)
    ]
    if partial:
        missing = []
        expected = {k: t for k, t in expected.items() if not t.sources or stored[k] is not None}
    if missing or wrong:
        what = "the weights are not those of this model's source"
        raise ArgumentError(what, [*missing, *wrong], hint="was the source made from this model?")
    xp = arrays("cpu")
    targets: dict[str, _Target] = {}
    torn = []
    for key, tensor in expected.items():
        if tensor.sources and not _put(targets, tensor, xp.to_numpy(stored[key])):
            torn.append([quote(key), f"shares {quote(tensor.sources[0].name)} with other keys"])
    if torn:
        hint = "to_torch keeps them one parameter, or export the model with a tensor for each"
        raise ArgumentError(
            "keys that share one tensor of the model have different values", torn, hint
        )
    shaped = {n: t.values.reshape(t.shape) for n, t in targets.items()}
    return {n: a for n, a in shaped.items() if not _is_made(n, a, expected)}


@dataclass
class _Target:
    """A tensor of the model that is being written, and which of its elements were."""

    values: np.ndarray
    written: np.ndarray
    shape: tuple[int, ...]


def _stored(key: str, state: Mapping[str, Any], same: Mapping[str, str]) -> Any | None:
    """A tensor of the file, which has tied ones under any one of their keys."""
    first = same.get(key, key)
    names = [key, first, *(k for k, f in same.items() if f == first)]
    return next((state[n] for n in names if n in state), None)


def _put(targets: dict[str, _Target], tensor: Tensor, value: np.ndarray) -> bool:
    """Write a tensor of torch's layout to where its elements come from; False for a conflict."""
    (source,) = tensor.sources
    assert source.const_value is not None and source.name
    if source.name not in targets:
        values = np.array(source.const_value.numpy()).astype(value.dtype).reshape(-1)
        shape = tuple(source.const_value.shape.numpy())
        targets[source.name] = _Target(values, np.zeros(values.size, bool), shape)
    target = targets[source.name]
    places = np.arange(target.values.size).reshape(target.shape)
    at = (places if tensor.make is None else tensor.make(places)).reshape(-1)
    flat = value.reshape(-1)
    old = target.written[at]
    if not np.array_equal(target.values[at][old], flat[old], equal_nan=True):
        return False
    target.values[at], target.written[at] = flat, True
    return True


def _is_made(name: str, array: np.ndarray, state: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is no weight of the model but a constant, and has not changed."""
    (value,) = {id(v): v for t in state.values() for v in t.sources if v.name == name}.values()
    same = np.array_equal(value.const_value.numpy(), array)  # type: ignore[union-attr]
    return same and "is_weight" not in value.meta

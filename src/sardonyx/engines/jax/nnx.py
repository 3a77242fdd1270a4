"""A converted model as a Flax NNX module: its weights are `nnx.Param`s by the model's own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sardonyx.errors import MissingExtra

try:
    from flax import nnx
except ImportError as error:
    raise MissingExtra("flax", "flax") from error


class OnnxNnx(nnx.Module):
    """An ONNX model as an NNX module; made by `sardonyx.to_jax(model, as_="nnx")`."""

    def __init__(self, apply: Callable[..., Any], params: Mapping[str, Any]):
        self.apply = apply
        self.weights = nnx.Dict({name: nnx.Param(value) for name, value in params.items()})

    def params(self) -> dict[str, Any]:
        """The weights by the names of the model."""
        return {name: weight[...] for name, weight in self.weights.items()}

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self.apply(self.params(), *inputs, **named)

"""Three networks of the benchmarks in Flax NNX, with the weights of the torch modules.

Written as somebody would who uses Flax alone: its layers, images with their channels last.
Batch normalization takes the running statistics, as the converted functions do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from torch import nn

KEYS = nnx.Rngs(0)


def _linear(layer: nn.Linear) -> nnx.Linear:
    made = nnx.Linear(layer.in_features, layer.out_features, rngs=KEYS)
    made.kernel[...] = jnp.asarray(layer.weight.detach().numpy().T)
    made.bias[...] = jnp.asarray(layer.bias.detach().numpy())
    return made


def _conv(layer: nn.Conv2d) -> nnx.Conv:
    made = nnx.Conv(
        layer.in_channels, layer.out_channels, layer.kernel_size, padding="SAME", use_bias=False,
        rngs=KEYS,
    )  # fmt: skip
    made.kernel[...] = jnp.asarray(layer.weight.detach().numpy().transpose(2, 3, 1, 0))
    return made


def _batch_norm(layer: nn.BatchNorm2d) -> nnx.BatchNorm:
    made = nnx.BatchNorm(layer.num_features, use_running_average=True, epsilon=layer.eps, rngs=KEYS)
    pairs = {"scale": layer.weight, "bias": layer.bias}
    pairs |= {"mean": layer.running_mean, "var": layer.running_var}
    for name, tensor in pairs.items():
        getattr(made, name)[...] = jnp.asarray(tensor.detach().numpy())
    return made


def _layer_norm(layer: nn.LayerNorm) -> nnx.LayerNorm:
    made = nnx.LayerNorm(layer.normalized_shape[0], epsilon=layer.eps, rngs=KEYS)
    made.scale[...] = jnp.asarray(layer.weight.detach().numpy())
    made.bias[...] = jnp.asarray(layer.bias.detach().numpy())
    return made


class MLP(nnx.Module):
    def __init__(self, module: Any) -> None:
        self.layers = nnx.List([_linear(m) for m in module if isinstance(m, nn.Linear)])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


class CNN(nnx.Module):
    def __init__(self, module: Any) -> None:
        self.convs = nnx.List([_conv(m) for m in module.conv])
        self.norms = nnx.List([_batch_norm(m) for m in module.bn])
        self.head = _linear(module.head)

    def __call__(self, x: Any) -> Any:
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = jax.nn.relu(norm(conv(x)))
            if i < 2:
                x = nnx.max_pool(x, (2, 2), (2, 2))
        return self.head(x.mean((1, 2)))


class Layer(nnx.Module):
    def __init__(self, module: Any) -> None:
        self.heads = module.heads
        self.norm1, self.norm2 = _layer_norm(module.norm1), _layer_norm(module.norm2)
        self.qkv, self.out = _linear(module.qkv), _linear(module.out)
        self.up, self.down = _linear(module.up), _linear(module.down)

    def __call__(self, x: Any) -> Any:
        b, t, c = x.shape
        split = self.qkv(self.norm1(x)).reshape(b, t, 3, self.heads, c // self.heads)
        q, k, v = (split[:, :, i] for i in range(3))
        x = x + self.out(nnx.dot_product_attention(q, k, v).reshape(b, t, c))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x)), approximate=False))


class Encoder(nnx.Module):
    def __init__(self, module: Any) -> None:
        self.token = nnx.Embed(*module.token.weight.shape, rngs=KEYS)
        self.token.embedding[...] = jnp.asarray(module.token.weight.detach().numpy())
        self.place = nnx.Param(jnp.asarray(module.place.detach().numpy()))
        self.layers = nnx.List([Layer(m) for m in module.layers])
        self.norm, self.head = _layer_norm(module.norm), _linear(module.head)

    def __call__(self, x: Any) -> Any:
        x = self.token(x) + self.place[...]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _channels_last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


# name: (the module in Flax, its input of the input in torch's layout)
FLAX: dict[str, tuple[Callable[[Any], nnx.Module], Callable[[np.ndarray], np.ndarray]]] = {
    "mlp": (MLP, _same),
    "cnn": (CNN, _channels_last),
    "transformer": (Encoder, _same),
}

"""The networks of the benchmarks in Keras, with the weights of the torch modules, and steps.

Written as somebody would who uses Keras alone, with TensorFlow behind it: layers, channels last,
`compile` and `train_on_batch`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

from networks import Network

layers, ops = keras.layers, keras.ops
Weights = dict[str, np.ndarray]


class Writer:
    """Calls layers and gives them the weights of the torch module."""

    def __init__(self, weights: Weights):
        self.weights = weights

    def call(self, layer: Any, x: Any, *arrays: np.ndarray) -> Any:
        y = layer(x)
        layer.set_weights(list(arrays))
        return y

    def dense(self, name: str, x: Any) -> Any:
        kernel, bias = self.weights[f"{name}.weight"].T, self.weights.get(f"{name}.bias")
        arrays = [kernel] if bias is None else [kernel, bias]
        return self.call(layers.Dense(kernel.shape[1], use_bias=bias is not None), x, *arrays)

    def conv(self, name: str, x: Any, stride: int = 1, pad: int = 1) -> Any:
        kernel = self.weights[f"{name}.weight"].transpose(2, 3, 1, 0)
        x = layers.ZeroPadding2D(pad)(x) if pad else x
        layer = layers.Conv2D(kernel.shape[3], kernel.shape[:2], stride, use_bias=False)
        return self.call(layer, x, kernel)

    def depthwise(self, name: str, x: Any, stride: int) -> Any:
        kernel = self.weights[f"{name}.weight"].transpose(2, 3, 0, 1)
        layer = layers.DepthwiseConv2D(3, stride, use_bias=False)
        return self.call(layer, layers.ZeroPadding2D(1)(x), kernel)

    def batch_norm(self, name: str, x: Any) -> Any:
        keys = ("weight", "bias", "running_mean", "running_var")
        layer = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
        return self.call(layer, x, *(self.weights[f"{name}.{key}"] for key in keys))

    def layer_norm(self, name: str, x: Any) -> Any:
        scale, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self.call(layers.LayerNormalization(epsilon=1e-5), x, scale, bias)


def mlp(w: Writer, x: Any) -> Any:
    return w.dense("4", ops.relu(w.dense("2", ops.relu(w.dense("0", x)))))


def cnn(w: Writer, x: Any) -> Any:
    for i in range(3):
        x = ops.relu(w.batch_norm(f"bn.{i}", w.conv(f"conv.{i}", x)))
        if i < 2:
            x = layers.MaxPooling2D(2)(x)
    return w.dense("head", layers.GlobalAveragePooling2D()(x))


def resnet18(w: Writer, x: Any) -> Any:
    x = ops.relu(w.batch_norm("bn", w.conv("stem", x, 2, 3)))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))  # of what is not negative
    for i in range(8):
        at, stride = f"blocks.{i}", 2 if i in (2, 4, 6) else 1
        y = ops.relu(w.batch_norm(f"{at}.bn1", w.conv(f"{at}.conv1", x, stride)))
        y = w.batch_norm(f"{at}.bn2", w.conv(f"{at}.conv2", y))
        if stride > 1:
            x = w.batch_norm(f"{at}.short.1", w.conv(f"{at}.short.0", x, stride, 0))
        x = ops.relu(y + x)
    return w.dense("head", layers.GlobalAveragePooling2D()(x))


def layer(w: Writer, at: str, x: Any, heads: int, causal: bool) -> Any:
    length, width = x.shape[1:]
    split = w.dense(f"{at}.qkv", w.layer_norm(f"{at}.norm1", x))
    split = ops.reshape(split, (-1, length, 3, heads, width // heads))
    q, k, v = (ops.transpose(split[:, :, i], (0, 2, 1, 3)) for i in range(3))
    scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (width // heads) ** 0.5
    if causal:
        mask = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        scores = scores + mask
    y = ops.transpose(ops.matmul(ops.softmax(scores), v), (0, 2, 1, 3))
    x = x + w.dense(f"{at}.out", ops.reshape(y, (-1, length, width)))
    up = ops.gelu(w.dense(f"{at}.up", w.layer_norm(f"{at}.norm2", x)), approximate=False)
    return x + w.dense(f"{at}.down", up)


class Places(layers.Layer):
    """A learned vector for every place."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


def embedded(w: Writer, x: Any) -> Any:
    table = w.weights["token.weight"]
    x = w.call(layers.Embedding(*table.shape), x, table)
    return w.call(Places(), x, w.weights["place"])


def transformer(w: Writer, x: Any) -> Any:
    x = embedded(w, x)
    for i in range(2):
        x = layer(w, f"layers.{i}", x, 4, causal=False)
    return w.dense("head", ops.mean(w.layer_norm("norm", x), 1))


def gpt(w: Writer, x: Any) -> Any:
    x = embedded(w, x)
    for i in range(6):
        x = layer(w, f"layers.{i}", x, 6, causal=True)
    return w.dense("head", w.layer_norm("norm", x))


def lstm(w: Writer, x: Any) -> Any:
    weights = w.weights
    bias = weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
    arrays = [weights["lstm.weight_ih_l0"].T, weights["lstm.weight_hh_l0"].T, bias]
    recurrent = layers.LSTM(arrays[1].shape[0], unit_forget_bias=False)
    return w.dense("head", w.call(recurrent, x, *arrays))


def separable(w: Writer, x: Any) -> Any:
    x = ops.relu(w.batch_norm("bn", w.conv("stem", x, 2)))
    for i, stride in enumerate((1, 2, 1, 2)):
        at = 6 * i
        x = ops.relu(w.batch_norm(f"body.{at + 1}", w.depthwise(f"body.{at}", x, stride)))
        x = ops.relu(w.batch_norm(f"body.{at + 4}", w.conv(f"body.{at + 3}", x, pad=0)))
    return w.dense("head", layers.GlobalAveragePooling2D()(x))


FORWARD: dict[str, Callable[[Writer, Any], Any]] = {
    f.__name__: f for f in (mlp, cnn, resnet18, transformer, gpt, lstm, separable)
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: keras.optimizers.AdamW(1e-3, weight_decay=1e-2, epsilon=1e-8),
    "sgd": lambda: keras.optimizers.SGD(1e-2, 0.9),
}


def step(network: Network, optimizer: str) -> Callable[[], float]:
    """One call of `train_on_batch`; what it returns is the loss before the update."""
    writer = Writer({n: t.detach().numpy() for n, t in network.module().state_dict().items()})
    x, y = network.batch()
    x = x.transpose(0, 2, 3, 1) if x.ndim == 4 else x
    y = y.reshape(x.shape) if network.name == "gpt" else y
    inputs = keras.Input(x.shape[1:], dtype=str(x.dtype))
    model = keras.Model(inputs, FORWARD[network.name](writer, inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[optimizer](), loss)

    def run() -> float:
        model.reset_metrics()  # they are a mean over the calls so far
        return float(model.train_on_batch(x, y))

    return run

"""Imports of Keras models: their time, and what free sizes cost in nodes.

    python bench/keras_imports.py [--only NAME] [--without-times]

The first table has networks with free sizes and the same networks with fixed ones: nodes of the
imported graphs, and their ratio. The second has seconds of processor time of `sx.from_keras`, the
comparison with Keras included, after a small import. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
warnings.simplefilter("ignore")

import keras  # noqa: E402

import sardonyx as sx  # noqa: E402

layers = keras.layers


def unet(x: Any, how: str) -> Any:
    skips = []
    for width in (8, 16):
        x = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x))
        skips.append(layers.ReLU()(x))
        x = layers.MaxPooling2D()(skips[-1])
    for width in (16, 8):
        if how == "transposed":
            x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        else:
            x = layers.UpSampling2D(interpolation=how)(x)
        x = layers.Concatenate()([x, skips.pop()])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return layers.Conv2D(2, 1)(x)


def strided(x: Any) -> Any:
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    x = layers.SeparableConv2D(8, 5, strides=2, padding="same")(x)
    x = layers.GroupNormalization(2)(layers.AveragePooling2D(3, 2, padding="same")(x))
    return layers.Dense(2)(layers.GlobalAveragePooling2D()(x))


def encoder(x: Any, width: int, heads: int, depth: int) -> Any:
    for _ in range(depth):
        attention = layers.MultiHeadAttention(heads, width // heads)(x, x)
        x = layers.LayerNormalization()(x + attention)
        inner = layers.Dense(4 * width, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(width)(inner))
    return layers.Dense(2)(layers.GlobalAveragePooling1D()(x))


def recurrent(x: Any) -> Any:
    x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
    return layers.Dense(2)(layers.GRU(8)(x))


def words(x: Any) -> Any:
    x = layers.MaxPooling1D()(layers.Conv1D(8, 5, activation="relu")(x))
    return layers.Dense(2)(layers.GlobalMaxPooling1D()(layers.Conv1D(8, 3)(x)))


IMAGE, SEQUENCE = (None, None, 3), (None, 16)
NETWORKS: dict[str, tuple[Callable[[Any], Any], tuple[int | None, ...]]] = {
    "U-Net, transposed convolutions": (lambda x: unet(x, "transposed"), IMAGE),
    "U-Net, nearest pixels": (lambda x: unet(x, "nearest"), IMAGE),
    "U-Net, bilinear": (lambda x: unet(x, "bilinear"), IMAGE),
    "CNN with strides and SAME padding": (strided, IMAGE),
    "transformer of two layers": (lambda x: encoder(x, 16, 2, 2), SEQUENCE),
    "bidirectional LSTM and GRU": (recurrent, SEQUENCE),
    "convolutions over words": (words, SEQUENCE),
}


def nodes(build: Callable[[Any], Any], shape: tuple[int | None, ...], fixed: bool) -> int:
    sizes = [32 if d is None and fixed else d for d in shape]
    x = keras.Input(sizes, batch_size=2 if fixed else None)
    return len(sx.from_keras(keras.Model(x, build(x))).graph)


def transformer() -> Any:
    tokens = keras.Input((None,), dtype="int32")
    return keras.Model(tokens, encoder(layers.Embedding(8000, 768)(tokens), 768, 12, 12))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the name of a network")
    parser.add_argument("--without-times", action="store_true")
    arguments = parser.parse_args()
    print("| network | nodes, free sizes | nodes, fixed sizes | ratio |\n|---|---|---|---|")
    for name, (build, shape) in NETWORKS.items():
        if arguments.only in name:
            free, fixed = nodes(build, shape, False), nodes(build, shape, True)
            print(f"| {name} | {free} | {fixed} | {free / fixed:.2f} |", flush=True)
    if arguments.without_times:
        return
    print("\n| network | nodes | seconds |\n|---|---|---|")
    times = {
        "EfficientNetB0": lambda: keras.applications.EfficientNetB0(weights=None),
        "transformer, 12 layers of 768": transformer,
    }
    for name, make in times.items():
        model, start = make(), time.process_time()
        count = len(sx.from_keras(model).graph)
        print(f"| {name} | {count} | {time.process_time() - start:.1f} |", flush=True)


if __name__ == "__main__":
    main()

"""Every optimizer, loss, schedule, metric, regularizer and constraint of Keras, imported with its
training: ten steps of the record in onnxruntime against `train_on_batch`, and on from there in the
model that `to_keras` makes.

    python -m tests.sweeps.keras_training                      # each once
    python -m tests.sweeps.keras_training --all                # every optimizer with every loss
    python -m tests.sweeps.keras_training --only "network*" --resume
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import keras
import numpy as np

import sardonyx as sx
from sardonyx.errors import SardonyxError

STEPS, CLASSES, ROWS = 10, 3, 6
TOLERANCE = 2e-5  # of a loss, relative to its size: ten steps in float32
RATIO = 3.0  # of a larger difference to what one rounding of the weights does in Keras
layers, optimizers, losses = keras.layers, keras.optimizers, keras.losses
schedules = optimizers.schedules
Case = Callable[[], tuple[keras.Model, Callable[[np.random.Generator], tuple[Any, Any]]]]


def public(module: Any, kind: type, leave: tuple[str, ...] = ()) -> dict[str, Any]:
    """The classes of a module of Keras, each once."""
    classes = {v.__name__: v for v in vars(module).values() if isinstance(v, type)}
    return {n: c for n, c in sorted(classes.items()) if issubclass(c, kind) and n not in leave}


OPTIMIZERS = public(optimizers, optimizers.Optimizer, ("Optimizer", "MultiOptimizer"))
LOSSES = public(losses, losses.Loss, ("Loss",))
METRICS = public(keras.metrics, keras.metrics.Metric, ("Metric", "MeanMetricWrapper"))
REGULARIZERS = {
    "L1": keras.regularizers.L1(0.01), "L2": keras.regularizers.L2(0.02),
    "L1L2": keras.regularizers.L1L2(0.01, 0.02),
    "Orthogonal": keras.regularizers.OrthogonalRegularizer(0.01),
}  # fmt: skip
CONSTRAINTS = {
    "MaxNorm": keras.constraints.MaxNorm(0.5), "NonNeg": keras.constraints.NonNeg(),
    "UnitNorm": keras.constraints.UnitNorm(),
    "MinMaxNorm": keras.constraints.MinMaxNorm(0.2, 0.5, 0.7),
}  # fmt: skip
SCHEDULES = {
    "ExponentialDecay": schedules.ExponentialDecay(0.05, 3, 0.7),
    "ExponentialDecay stairs": schedules.ExponentialDecay(0.05, 3, 0.7, staircase=True),
    "PiecewiseConstantDecay": schedules.PiecewiseConstantDecay([2, 5], [0.05, 0.02, 0.01]),
    "PolynomialDecay": schedules.PolynomialDecay(0.05, 6, 0.001, power=2.0),
    "PolynomialDecay cycle": schedules.PolynomialDecay(0.05, 4, 0.001, cycle=True),
    "InverseTimeDecay": schedules.InverseTimeDecay(0.05, 2, 0.5),
    "CosineDecay": schedules.CosineDecay(0.0, 6, warmup_target=0.05, warmup_steps=3),
    "CosineDecayRestarts": schedules.CosineDecayRestarts(0.05, 3, t_mul=2.0, m_mul=0.8),
}
SETTINGS: dict[str, Any] = {
    "SGD momentum": lambda: optimizers.SGD(0.05, momentum=0.9),
    "SGD nesterov": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "SGD decay": lambda: optimizers.SGD(0.05, weight_decay=0.1),
    "Adam amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "RMSprop centered": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adam clipnorm": lambda: optimizers.Adam(0.01, clipnorm=0.05),
    "Adam clipvalue": lambda: optimizers.Adam(0.01, clipvalue=0.01),
    "Adam global clipnorm": lambda: optimizers.Adam(0.01, global_clipnorm=0.05),
    "Adam ema": lambda: optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "SGD accumulation": lambda: optimizers.SGD(0.05, gradient_accumulation_steps=3),
    "Lion decay": lambda: optimizers.Lion(0.01, weight_decay=0.1),
    "SGD loss scale": lambda: optimizers.SGD(0.05, loss_scale_factor=128.0),
}


def network(activation: str = "softmax", **options: Any) -> keras.Model:
    """A small network; its last layer has `options`."""
    x = layers.Input((4,), name="x")
    h = layers.Dense(5, activation="tanh")(x)
    return keras.Model(x, layers.Dense(CLASSES, activation=activation, **options)(h))


def classes(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, CLASSES, ROWS).astype(np.int32)


def shares(rng: np.random.Generator) -> np.ndarray:
    drawn = rng.uniform(0.05, 0.95, (ROWS, CLASSES))
    return (drawn / drawn.sum(-1, keepdims=True)).astype(np.float32)


def features(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(ROWS, 4)).astype(np.float32)


def with_loss(name: str, optimizer: Any) -> Case:
    def case() -> Any:
        if name == "CTC":
            x = layers.Input((7, 4), name="x")
            model = keras.Model(x, layers.Dense(4)(layers.Dense(5, activation="tanh")(x)))

            def draw(rng: np.random.Generator) -> Any:
                x = rng.normal(size=(ROWS, 7, 4)).astype(np.float32)
                return x, rng.integers(1, 4, (ROWS, 3)).astype(np.int32)
        else:
            model = network("linear" if name == "Circle" else "softmax")

            def draw(rng: np.random.Generator) -> Any:
                sparse = name in ("SparseCategoricalCrossentropy", "Circle") or "General" in name
                return features(rng), (classes if sparse else shares)(rng)

        model.compile(optimizer=optimizer(), loss=LOSSES[name]())
        return model, draw

    return case


def with_parts(optimizer: Any, metrics: Any = (), **options: Any) -> Case:
    def case() -> Any:
        model = network(**options)
        model.compile(optimizer=optimizer(), loss="categorical_crossentropy", metrics=list(metrics))
        return model, lambda rng: (features(rng), shares(rng))

    return case


def metric_case(name: str) -> Case:
    def case() -> Any:
        kind = METRICS[name]
        sparse = "Sparse" in name
        more: dict[str, Any] = {}
        if "IoU" in name:
            more = {"num_classes": CLASSES}
            more |= {"target_class_ids": [0]} if name in ("IoU", "OneHotIoU") else {}
            more = {"target_class_ids": [0]} if name == "BinaryIoU" else more
        elif name in ("PrecisionAtRecall", "RecallAtPrecision"):
            more = {"recall" if name == "PrecisionAtRecall" else "precision": 0.5}
        elif "AtS" in name:
            more = {"specificity" if "AtSpec" in name else "sensitivity": 0.5}
        elif name == "MeanRelativeError":
            more = {"normalizer": np.ones(CLASSES)}
        model = network()
        loss = "sparse_categorical_crossentropy" if sparse else "categorical_crossentropy"
        model.compile(optimizer=optimizers.SGD(0.05), loss=loss, metrics=[kind(**more)])

        def draw(rng: np.random.Generator) -> Any:
            hard = np.eye(CLASSES, dtype=np.float32)[classes(rng)]
            return features(rng), classes(rng) if sparse else hard

        return model, draw

    return case


def sgd() -> Any:
    return optimizers.SGD(0.05)


def made(kind: Any) -> Callable[[], Any]:
    if kind.__name__ == "LossScaleOptimizer":
        return lambda: kind(optimizers.Adam(0.01), initial_scale=16.0, dynamic_growth_steps=3)
    return lambda: kind(learning_rate=0.01)


def cases(product: bool) -> Iterator[tuple[str, Case]]:
    first = "CategoricalCrossentropy"
    for name, kind in OPTIMIZERS.items():
        for loss in LOSSES if product else (first,):
            yield f"{name} × {loss}", with_loss(loss, made(kind))
    if not product:
        for loss in LOSSES:
            yield f"{loss} × SGD", with_loss(loss, sgd)
    for name, maker in SETTINGS.items():
        yield name, with_parts(maker)
    for name, schedule in SCHEDULES.items():
        yield f"schedule {name}", with_parts(lambda s=schedule: optimizers.SGD(s, momentum=0.5))
    for name, regularizer in REGULARIZERS.items():
        yield f"regularizer {name}", with_parts(sgd, kernel_regularizer=regularizer)
        if name != "Orthogonal":
            yield f"activity {name}", with_parts(sgd, activity_regularizer=regularizer)
    for name, constraint in CONSTRAINTS.items():
        yield f"constraint {name}", with_parts(sgd, kernel_constraint=constraint)
    for name in METRICS:
        if name not in ("Mean", "MeanTensor", "Sum"):
            yield f"metric {name}", metric_case(name)
    yield from networks()


def networks() -> Iterator[tuple[str, Case]]:
    """The kinds of networks that people train."""

    def cnn() -> Any:
        x = layers.Input((8, 8, 2), name="x")
        h = layers.Conv2D(4, 3, use_bias=False)(x)
        h = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(h)))
        y = layers.Dense(CLASSES)(layers.Flatten()(layers.Dropout(0.4)(h)))
        model = keras.Model(x, y)
        loss = losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])

        def draw(rng: np.random.Generator) -> Any:
            return rng.normal(size=(ROWS, 8, 8, 2)).astype(np.float32), classes(rng)

        return model, draw

    def recurrent() -> Any:
        t = layers.Input((None,), dtype="int32", name="t")
        h = layers.Embedding(9, 5, mask_zero=True)(t)
        h = layers.Bidirectional(layers.LSTM(4, return_sequences=True, dropout=0.2))(h)
        model = keras.Model(t, layers.Dense(1, activation="sigmoid")(layers.GRU(3)(h)))
        model.compile("rmsprop", "binary_crossentropy", metrics=["accuracy"])

        def draw(rng: np.random.Generator) -> Any:
            y = rng.integers(0, 2, (ROWS, 1)).astype(np.float32)
            return rng.integers(0, 9, (ROWS, 5)).astype(np.int32), y

        return model, draw

    def transformer() -> Any:
        t = layers.Input((None,), dtype="int32", name="t")
        h = layers.Embedding(9, 8)(t)
        h = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 4, dropout=0.1)(h, h))
        h = layers.LayerNormalization()(h + layers.Dense(8)(layers.Dense(16, "gelu")(h)))
        model = keras.Model(t, layers.Dense(9, activation="softmax")(h))
        rate = schedules.CosineDecay(0.0, 20, warmup_target=0.01, warmup_steps=4)
        model.compile(
            optimizers.AdamW(rate, global_clipnorm=1.0), "sparse_categorical_crossentropy"
        )

        def draw(rng: np.random.Generator) -> Any:
            t = rng.integers(0, 9, (ROWS, 5)).astype(np.int32)
            return t, np.roll(t, -1, 1)

        return model, draw

    def two_outputs() -> Any:
        x = layers.Input((4,), name="x")
        h = layers.Dense(6, activation="relu")(x)
        outputs = {"kind": layers.Dense(CLASSES, "softmax")(h), "size": layers.Dense(1)(h)}
        model = keras.Model(x, outputs)
        both = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
        model.compile("adamw", both, loss_weights={"kind": 1.0, "size": 0.5})

        def draw(rng: np.random.Generator) -> Any:
            size = rng.normal(size=(ROWS, 1)).astype(np.float32)
            return features(rng), {"kind": classes(rng), "size": size}

        return model, draw

    for build in (cnn, recurrent, transformer, two_outputs):
        yield f"network {build.__name__}", build


def compared(case: Case, resumes: bool) -> str:
    """What came of one case: "right" with the largest difference, or what is wrong."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    source, draw = case()
    source.train_on_batch(*draw(rng))
    try:
        model = sx.from_keras(source)
    except SardonyxError as error:
        return f"refused  {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    steps = sx.prepare_training(model)
    again = sx.to_keras(model) if resumes else None
    (name,) = [value.name for value in model.inputs]
    worst = resumed = 0.0
    for _ in range(STEPS):
        x, y = draw(rng)
        labels = {f"label_{k}": v for k, v in y.items()} if isinstance(y, dict) else {"label": y}
        ours = {k.removeprefix("metrics/"): v for k, v in steps.step({name: x, **labels}).items()}
        source.reset_metrics()
        expected = source.train_on_batch(x, y, return_dict=True)
        worst = max(worst, *(_difference(ours[k], v) for k, v in expected.items()))
        if again is not None:
            again.reset_metrics()
            actual = again.train_on_batch(x, y, return_dict=True)
            resumed = max(resumed, _difference(actual["loss"], expected["loss"]))
    verdict = "right" if max(worst, resumed) <= TOLERANCE else "WRONG"
    if verdict == "WRONG" and max(worst, resumed) <= RATIO * noise(case):
        verdict = "right (noise)"
    way = "record" if any(n.op_type == "Gradient" for n in model.records[0].algorithm) else "step"
    return f"{verdict}  {worst:.1e} {resumed:.1e} {way}"


def noise(case: Case) -> float:
    """How far Keras's own losses go apart where weights differ by one rounding."""
    runs = []
    for factor in (1.0, 1.0 + np.finfo(np.float32).eps, 1.0 - np.finfo(np.float32).eps):
        keras.utils.set_random_seed(0)
        rng = np.random.default_rng(0)
        source, draw = case()
        source.train_on_batch(*draw(rng))
        source.set_weights([w * np.float32(factor) for w in source.get_weights()])
        runs.append([])
        for _ in range(STEPS):
            source.reset_metrics()
            runs[-1].append(source.train_on_batch(*draw(rng), return_dict=True)["loss"])
    first, *others = runs
    return max(_difference(a, b) for run in others for a, b in zip(run, first, strict=True))


def _difference(actual: Any, expected: Any) -> float:
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if np.isnan(a).any() or np.isnan(b).any():
        return 0.0 if np.array_equal(np.isnan(a), np.isnan(b)) else np.inf
    return float((np.abs(a - b) / np.maximum(np.abs(b), 1e-2)).max())


def main() -> int:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every optimizer with every loss")
    parser.add_argument("--only", default="*", help="a pattern of the names of cases")
    parser.add_argument("--resume", action="store_true", help="also train on in to_keras's model")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    for name, case in cases(options.all):
        if not fnmatchcase(name, options.only):
            continue
        started = time.monotonic()
        try:
            result = compared(case, options.resume or name.startswith("network"))
        except Exception as error:
            result = f"failed  {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        counts[result.split()[0]] = counts.get(result.split()[0], 0) + 1
        print(f"{name:45} {result}  {time.monotonic() - started:.1f} s", flush=True)
    print(counts)
    return int(any(word not in ("right", "refused") for word in counts))


if __name__ == "__main__":
    sys.exit(main())

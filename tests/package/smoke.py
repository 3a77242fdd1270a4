"""Try each framework that is importable: convert, compile, differentiate, train, verify, store.

    python tests/package/smoke.py [framework ...]

`make oldest` runs it on the oldest versions that pyproject.toml allows. Names after the script are
the frameworks to try; without names it tries all that are there. The oracle is onnxruntime; it
exits with 1 if anything differs.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# The networks of the tests, from a checkout that is not on the path.
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from tests.networks import cnn, lstm, mlp, network, transformer

ROWS = 4
LOOP = """loop (float[N,3] x) => (float[N,3] scores) <bool yes = {1}, int64 trips = {3}> {
    scores = Loop (trips, yes, x) <body = b (int64 i, bool go, float[N,3] h)
        => (bool on, float[N,3] next) { on = Identity (go)  p = MatMul (h, w)  next = Tanh (p) }>
}"""


def cases() -> Iterator[tuple[str, sx.Model, np.ndarray]]:
    rng = np.random.default_rng(0)
    models = {
        "mlp": (mlp(), (6,)),
        "cnn": (cnn(), (3, 8, 8)),
        "lstm": (lstm(), (5, 3)),
        "loop": (network(LOOP, {"w": rng.normal(size=(3, 3))}), (3,)),
    }
    for name, (model, shape) in models.items():
        yield name, model, rng.normal(size=(ROWS, *shape)).astype(np.float32)
    yield "transformer", transformer(words=3), rng.integers(0, 3, (ROWS, 5))


def weights_of(model: sx.Model) -> dict[str, np.ndarray]:
    return {n: v.const_value.numpy() for n, v in model.graph.initializers.items()}


def scores_of(model: sx.Model, x: np.ndarray) -> np.ndarray:
    return Runner(model)({model.inputs[0].name: x})["scores"]


def gradient_by_differences(model: sx.Model, x: np.ndarray, name: str) -> float:
    """The slope of sum(scores²) along a weight's own direction, by differences in onnxruntime."""
    weight = weights_of(model)[name]

    def loss(scale: float) -> float:
        moved = sx.with_weights(model, {name: (weight * scale).astype(np.float32)}, partial=True)
        return float((scores_of(moved, x).astype(np.float64) ** 2).sum())

    return (loss(1 + 1e-3) - loss(1 - 1e-3)) / 2e-3


def check_jax(model: sx.Model, x: np.ndarray, expected: np.ndarray, folder: Path) -> Any:
    import jax

    from sardonyx.engines.jax.convert import store

    apply, params = sx.to_jax(model)
    np.testing.assert_allclose(jax.jit(apply)(params, x), expected, rtol=1e-4, atol=1e-5)
    if importlib.util.find_spec("flax"):
        from flax import nnx

        module = sx.to_jax(model, as_="nnx")
        np.testing.assert_allclose(nnx.jit(module)(x), expected, rtol=1e-4, atol=1e-5)
    store(model, folder)
    function = jax.export.deserialize(bytearray((folder / "function.jax").read_bytes()))
    np.testing.assert_allclose(function.call(params, x), expected, rtol=1e-4, atol=1e-5)
    return jax.jit(jax.grad(lambda p: (apply(p, x) ** 2).sum()))(params)


def check_tensorflow(model: sx.Model, x: np.ndarray, expected: np.ndarray, folder: Path) -> Any:
    import tensorflow as tf

    module = sx.to_tensorflow(model)
    np.testing.assert_allclose(tf.function(module)(x), expected, rtol=1e-4, atol=1e-5)
    module.save(folder)
    loaded = tf.saved_model.load(str(folder))
    np.testing.assert_allclose(loaded(x), expected, rtol=1e-4, atol=1e-5)
    variables = list(module.trainable_variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(module(x) ** 2)
    return {v.name.split(":")[0]: g for v, g in zip(variables, tape.gradient(loss, variables))}


def check_torch(model: sx.Model, x: np.ndarray, expected: np.ndarray, folder: Path) -> Any:
    import torch

    module = sx.to_torch(model).eval()
    scores = module(torch.from_numpy(x))
    np.testing.assert_allclose(scores.detach(), expected, rtol=1e-4, atol=1e-5)
    (scores**2).sum().backward()
    return {name: p.grad for name, p in module.named_parameters()}


def trained(model: sx.Model, x: np.ndarray, engine: str) -> dict[str, np.ndarray]:
    net = sx.trainable(model, "cross_entropy", sx.optim.sgd(0.1))
    labels = x[:, ::-1] if x.ndim == 2 and x.dtype.kind == "i" else np.arange(len(x)) % 3
    data = {model.inputs[0].name: x, "label": labels}
    run = sx.train(net, data, steps=2, batch_size=len(x), engine=engine, display="quiet")
    return weights_of(run.model)


CHECKS: dict[str, Callable[..., Any]] = {
    "jax": check_jax,
    "tensorflow": check_tensorflow,
    "torch": check_torch,
}


def check(framework: str, model: sx.Model, x: np.ndarray) -> None:
    expected = scores_of(model, x)
    with tempfile.TemporaryDirectory() as folder:
        gradients = CHECKS[framework](model, x, expected, Path(folder) / "stored")
    name = "w" if "w" in gradients else next(n for n in gradients if n.endswith("weight"))
    slope = float((np.asarray(gradients[name]) * weights_of(model)[name]).sum())
    np.testing.assert_allclose(slope, gradient_by_differences(model, x, name), rtol=2e-2, atol=1e-2)
    ours, theirs = trained(model, x, framework), trained(model, x, "onnxruntime")
    for key, value in theirs.items():
        np.testing.assert_allclose(ours[key], value, rtol=1e-3, atol=1e-5, err_msg=key)
    report = sx.verify(model, framework)
    assert report.verdict == "same", report


def main(frameworks: list[str]) -> int:
    failures = 0
    for framework in frameworks or [name for name in CHECKS if importlib.util.find_spec(name)]:
        for case, model, x in cases():
            try:
                check(framework, model, x)
            except Exception as error:
                failures += 1
                print(f"{framework} {case}: {type(error).__name__}: {error}")
            else:
                print(f"{framework} {case}: ok")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What torch's exporters write runs on every engine, at more than one batch, compiled too.

The exact result is torch's own in double precision; what torch itself loses in single precision
is the measure of what an engine may.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx as sx

from .torch_exports import DYNAMO, EXPORTS, SCRIPT, example, exported, network

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

BATCHES = (3, 6)
TIMES = 8  # how much farther from the exact result than torch an engine may be
QUICK = [("lstm", SCRIPT, 17), ("transformer", SCRIPT, 17), ("cnn", DYNAMO, 22)]
Function = Callable[[np.ndarray], np.ndarray]


def compiler() -> str:
    """torch's own compiler, which itself needs one of C++; else all of the way up to it."""
    return "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"


def in_numpy(model: Any, backend: str) -> dict[str, Function]:
    return {"plain": sx.to_numpy(model)}


def in_torch(model: Any, backend: str) -> dict[str, Function]:
    module = sx.to_torch(model)
    assert not module.untraced
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=True)

    def run(function: Any) -> Function:
        return lambda x: function(torch.from_numpy(x)).detach().numpy()

    return {"plain": run(module), "compiled": run(compiled)}


def in_jax(model: Any, backend: str) -> dict[str, Function]:
    jax = pytest.importorskip("jax")
    apply, params = sx.to_jax(model)
    jitted = jax.jit(apply)
    return {
        "plain": lambda x: np.asarray(apply(params, narrow(x))),
        "jitted": lambda x: np.asarray(jitted(params, narrow(x))),
    }


def narrow(x: np.ndarray) -> np.ndarray:
    """Indices as jax takes them outside of its mode for 64 bits."""
    return x.astype(np.int32) if x.dtype == np.int64 else x


def in_tensorflow(model: Any, backend: str) -> dict[str, Function]:
    tf = pytest.importorskip("tensorflow")
    from sardonyx.engines.tensorflow import Runner

    module, runner = sx.to_tensorflow(model), Runner(model)
    return {
        "plain": lambda x: runner({"x": x})["y"],
        "tf.function": lambda x: module(tf.constant(x)).numpy(),
    }


CONVERT = {"numpy": in_numpy, "torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def check(name: str, exporter: str, version: int, engine: str, backend: str) -> None:
    module, wide = network(name), network(name).double()
    functions = CONVERT[engine](sx.load(exported(name, exporter, version)), backend)
    for batch in BATCHES:
        x = example(name, batch)
        with torch.no_grad():
            single = module(x).numpy().astype(np.float64)
            exact = wide(x.double() if x.is_floating_point() else x).numpy()
        noise = max(rms(single - exact), 2.0**-24 * float(np.abs(exact).max()))
        for how, function in functions.items():
            result = function(x.numpy())
            assert result.shape == exact.shape and result.dtype == np.float32
            assert rms(result - exact) <= TIMES * noise, how


@pytest.mark.parametrize("engine", CONVERT)
@pytest.mark.parametrize("export", QUICK, ids=lambda e: "-".join(map(str, e)))
def test_export_quickly(export: tuple[str, str, int], engine: str) -> None:
    check(*export, engine, "aot_eager")


@pytest.mark.nightly
@pytest.mark.parametrize("engine", CONVERT)
@pytest.mark.parametrize("export", EXPORTS, ids=lambda e: "-".join(map(str, e)))
def test_export(export: tuple[str, str, int], engine: str) -> None:
    check(*export, engine, compiler())


def test_there_are_as_many_as_the_exporters_write() -> None:
    assert len(EXPORTS) == 17

"""The public functions from many threads at once: the same results as one after the other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.build import Builder
from sardonyx.errors import ArgumentError

from .networks import cnn, mlp

THREADS = 4
NETWORKS = {"mlp": mlp, "cnn": cnn}


@pytest.fixture(autouse=True)
def eager_switching() -> Iterator[None]:
    """Threads change places a hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def feeds(model: sx.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {v.name: [d if isinstance(d, int) else 4 for d in v.shape] for v in model.graph.inputs}
    return {name: rng.normal(size=s).astype(np.float32) for name, s in sizes.items()}


def trained(model: sx.Model, engine: str) -> bytes:
    net = sx.trainable(model, "cross_entropy", optimizer=sx.optim.adam(0.01))
    (x,) = feeds(model).values()
    label = np.arange(len(x)) % 3
    data = {model.graph.inputs[0].name: x, "label": label}
    run = sx.train(net, data, steps=2, batch_size=len(x), shuffle=False, engine=engine)
    return sx.load(run.model.proto()).proto().SerializeToString(deterministic=True)


def gradient(model: sx.Model) -> bytes:
    wrt = sorted(w.name for w in sx.weights(model) if w.name != "ratio")
    return sx.grad(model, wrt=wrt).proto().SerializeToString(deterministic=True)


def saved(model: sx.Model, folder: Path) -> bytes:
    path = folder / f"{threading.get_ident()}.onnx"
    sx.save(model, path)
    return sx.load(path).proto().SerializeToString(deterministic=True)


def jobs(model: sx.Model, folder: Path) -> dict[str, Callable[[], Any]]:
    return {
        "train onnxruntime": lambda: trained(model, "onnxruntime"),
        "train numpy": lambda: trained(model, "numpy"),
        "grad": lambda: gradient(model),
        "to_numpy": lambda: np.asarray(sx.to_numpy(model)(**feeds(model))).tobytes(),
        "verify": lambda: sx.verify(model, "numpy", inputs=feeds(model)).verdict,
        "save": lambda: saved(model, folder),
        "normalize": lambda: sx.normalize(model).proto().SerializeToString(deterministic=True),
    }


@pytest.mark.parametrize("network", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shared", [True, False], ids=["one model", "a model each"])
def test_threads_give_what_one_gives(network: str, shared: bool, tmp_path: Path) -> None:
    proto = NETWORKS[network]().proto()
    serial = {name: job() for name, job in jobs(sx.load(proto), tmp_path).items()}
    model = sx.load(proto)
    barrier = threading.Barrier(THREADS)

    def work(number: int) -> list[tuple[str, Any]]:
        mine = jobs(model if shared else sx.load(proto), tmp_path)
        names = list(mine)[number:] + list(mine)[:number]
        barrier.wait()
        return [(name, mine[name]()) for name in names]

    with ThreadPoolExecutor(THREADS) as pool:
        for results in pool.map(work, range(THREADS)):
            for name, result in results:
                assert result == serial[name], name


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax", "tensorflow"])
def test_threads_train_on_every_framework(engine: str) -> None:
    pytest.importorskip(engine)
    model = mlp()
    serial = trained(model, engine)
    with ThreadPoolExecutor(THREADS) as pool:
        for result in pool.map(lambda _: trained(model, engine), range(THREADS)):
            assert result == serial


def test_arithmetic_belongs_to_the_thread_of_its_builder() -> None:
    kind = ir.TensorType(ir.DataType.FLOAT)
    failures: list[str] = []

    def build(number: int) -> None:
        for _ in range(300):
            x = ir.Value(name="x", type=kind, shape=ir.Shape([number + 1]))
            op = Builder()
            with op:
                y = x * 2.0 + x
            if [n.op_type for n in op.nodes] != ["Mul", "Add"] or y.shape != [number + 1]:
                failures.append(f"thread {number}")

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(build, range(THREADS)))
    assert not failures


def test_another_handler_of_arithmetic_is_left_in_place() -> None:
    class Other:
        def Add(self, a: Any, b: Any) -> str:
            return "theirs"

    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    before = ir.set_value_magic_handler(Other())  # type: ignore[arg-type]
    try:
        with Builder() as op:
            assert (value + 1.0).producer() is op.nodes[0]
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(lambda: value + 1.0).result() == "theirs"
        assert value + 1.0 == "theirs"
    finally:
        ir.set_value_magic_handler(before)


def test_arithmetic_without_a_builder_is_an_error() -> None:
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    with Builder(), ThreadPoolExecutor(1) as pool, pytest.raises(ArgumentError, match="builder"):
        pool.submit(lambda: value + 1.0).result()

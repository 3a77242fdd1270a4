"""Graphs of updates that are recorded without torch's tracer, against those of the tracer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from tests.update_cases import CASES, Net

torch = pytest.importorskip("torch")

from sardonyx.engines.torch import native_step  # noqa: E402
from sardonyx.engines.torch.recorded import NotRecorded, recorded  # noqa: E402


def values(seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    return [torch.tensor(random.standard_normal((3, 4)), dtype=torch.float32) for _ in range(2)]


def test_operations_become_nodes() -> None:
    def function(a: Any, b: Any) -> list[Any]:
        rows = (a * b).sum(1, keepdim=True).expand(3, 4)
        return [torch.where(a > 0, rows, b.reshape(4, 3).T + 2), torch.full((2,), 7.0), a]

    graph = recorded(function, values())
    for expected, result in zip(function(*values(1)), graph(*values(1)), strict=True):
        assert torch.equal(expected, result)


def test_equal_operations_are_worked_out_once() -> None:
    graph = recorded(lambda a, b: [a * 2, b * 2, a * 3], values())
    first, second, _ = (n.meta["val"] for n in graph.graph.nodes if n.op == "call_function")
    assert first is second and first.shape == (3, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: [a.add_(b)],
        lambda a, b: [a * float(b.sum())],
        lambda a, b: [torch.rand_like(a)],
        lambda a, b: [torch.nonzero(a)],
        lambda a, b: list(torch.split(a, 2, 1)),
    ],
    ids=["in place", "number", "random", "sizes by data", "several results"],
)
def test_what_cannot_be_recorded_is_refused(function: Any) -> None:
    with pytest.raises(NotRecorded):
        recorded(function, values())


@pytest.mark.parametrize("name", CASES)
def test_updates_are_those_of_the_tracer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, with and without the recorder; the recorder must take these updates."""
    calls: list[bool] = []

    def counted(function: Any, tensors: Any) -> Any:
        graph = recorded(function, tensors)
        calls.append(True)
        return graph

    def refused(function: Any, tensors: Any) -> Any:
        raise NotRecorded("as requested")

    states = []
    for way in (counted, refused):
        monkeypatch.setattr(native_step, "recorded", way)
        states.append(trained(name))
    assert calls
    for key, value in states[0].items():
        assert np.array_equal(value, states[1][key], equal_nan=True), key


def trained(name: str) -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    optimizer, settings = CASES[name]
    program = torch.onnx.export(Net().eval(), (torch.randn(4, 7),), dynamo=True, verbose=False)
    net = sx.trainable(program.model_proto, "cross_entropy", optimizer, **settings)
    rep = sx.prepare_training(net, "torch")
    rng = np.random.default_rng(0)
    feed = net.inputs[0].name
    for _ in range(3):
        x, y = rng.normal(size=(4, 7)).astype("f"), rng.integers(0, 3, 4)
        rep.step({feed: x, "label": y})
    return rep.state()

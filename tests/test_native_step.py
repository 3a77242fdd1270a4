"""Steps that a framework differentiates itself, against torch's results and the expanded step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import sardonyx as sx
from sardonyx.engines.torch.foreach import Grouped
from tests.torch_exports import DYNAMO, NETWORKS, SCRIPT, example, exported

CASES = sorted((Path(__file__).parent / "data" / "training_cases").iterdir())
NATIVE = "the framework differentiates the forward part"
ENGINES = ("torch", "jax", "tensorflow")
Arrays = dict[str, np.ndarray]


def tensors_of(folder: Path, kind: str) -> Arrays:
    tensors = [onnx.load_tensor(path) for path in sorted(folder.glob(f"{kind}_*.pb"))]
    return {t.name: onnx.numpy_helper.to_array(t) for t in tensors}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_published_cases(folder: Path, engine: str) -> None:
    rep = sx.prepare_training(folder / "model.onnx", engine)
    reasons = {
        ("mlp_expanded", engine): "its gradient is expanded",
        ("mlp_huber", "tensorflow"): "tensorflow differentiates Min otherwise",
    }
    reason = reasons.get((folder.name, engine))
    expected = f"the expanded gradient is executed: {reason}" if reason else NATIVE
    assert rep.ways == [expected]
    for step in sorted(folder.glob("test_data_set_*")):
        metrics = rep.step(tensors_of(step, "input"))
        results = {**metrics, **rep.state()}
        for name, value in tensors_of(step, "output").items():
            np.testing.assert_allclose(results[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("exporter, opset", [(SCRIPT, 17), (DYNAMO, 20)])
@pytest.mark.parametrize("name", NETWORKS)
def test_exports_of_torch_step_as_the_expanded_record_does(
    name: str, exporter: str, opset: int
) -> None:
    net = sx.trainable(
        exported(name, exporter, opset), "mse", sx.optim.sgd(1e-2, momentum=0.9, nesterov=True),
        clip_norm=0.5, accumulate=2, ema=0.9, groups={"*bias*": {"lr": 1e-3}},
    )  # fmt: skip
    native, expanded = (sx.prepare_training(net, "torch", native=way) for way in (True, False))
    assert native.ways == [NATIVE]
    assert expanded.ways == ["the expanded gradient is executed: as requested"]
    rng = np.random.default_rng(0)
    served, label = (v.name for v in native.step_inputs)
    for _ in range(4):
        x = np.asarray(example(name, 3))
        outputs = native.run({served: x})
        (output,) = (v for v in outputs.values())
        feeds = {served: x, label: rng.normal(size=output.shape).astype(np.float32)}
        ours, theirs = (rep.step(feeds) for rep in (native, expanded))
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    for key, value in expanded.state().items():
        scale = np.abs(value).max() if value.size else 1
        np.testing.assert_allclose(native.state()[key], value, rtol=1e-3, atol=2e-5 * max(scale, 1))


LOOP = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,2] x) => (float[N,2] y)
<float[2,2] w = {1.0, 0.5, -0.5, 1.0}, int64 n = {2}, bool t = {1}>
{ y = Loop (n, t, x) <body = b (int64 i, bool c, float[N,2] h) => (bool o, float[N,2] k)
  {o = Identity(c) k = MatMul(h, w)}> }"""
QUANTIZED = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1.0, 0.5, -0.5, 1.0}, float s = {0.1}>
{ q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) y = MatMul(d, w) }"""


@pytest.mark.parametrize(
    "text, reason", [(LOOP, "Loop has a body"), (QUANTIZED, "straight-through")]
)
def test_what_is_left_to_the_expanded_gradient(text: str, reason: str) -> None:
    net = sx.trainable(sx.load(onnx.parser.parse_model(text)), "mse", "sgd", lr=0.1)
    rep = sx.prepare_training(net, "torch")
    assert reason in rep.ways[0]
    feeds = {"x": np.ones((3, 2), np.float32), "label": np.zeros((3, 2), np.float32)}
    plain = sx.prepare_training(net, "onnxruntime")
    for _ in range(3):
        loss = plain.step(feeds)["loss"]
        assert rep.step(feeds)["loss"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_that_stop_in_the_forward_part_stop_here_too(engine: str) -> None:
    class Stopped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).detach() + self.first(x) ** 2)

    torch.manual_seed(0)
    module = Stopped()
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    loss = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    net = sx.from_torch(module, (x,), loss=loss, labels=y, optimizer=optimizer)
    rep = sx.prepare_training(net, engine)
    names = [v.name for v in rep.step_inputs]
    feeds = dict(zip(names, (x.numpy(), y.numpy()), strict=True))
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(module(x), y)
        value.backward()
        optimizer.step()
        assert rep.step(feeds)["loss"] == pytest.approx(value.item(), rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep", [False, True])
def test_arrays_that_were_fed_may_be_written_to_after_the_step(
    engine: str, keep: bool, tmp_path: Path
) -> None:
    """Also where a record keeps a batch as its state."""
    net = _with_a_kept_batch(keep, tmp_path)
    rep, fresh = (sx.prepare_training(net, engine) for _ in range(2))
    assert rep.ways == [NATIVE]
    rng = np.random.default_rng(0)
    x, y = np.zeros((400, 300), np.float32), np.zeros((400, 2), np.float32)
    for _ in range(3):
        x[:], y[:] = rng.normal(size=x.shape), rng.normal(size=y.shape)
        assert rep.step({"x": x, "label": y}) == fresh.step({"x": x.copy(), "label": y.copy()})
    kept = x.copy()
    x[:], y[:] = 7, 7
    for name, value in fresh.state().items():
        np.testing.assert_array_equal(rep.state()[name], value, err_msg=name)
    if keep:
        np.testing.assert_array_equal(rep.state()["last"], kept)


def _with_a_kept_batch(keep: bool, folder: Path) -> onnx.ModelProto:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[400,300] x) => (float[400,2] y) { y = MatMul(x, w) }""")
    weights = np.random.default_rng(1).normal(size=(300, 2)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    net = sx.trainable(model, "mse", sx.optim.sgd(0.1, momentum=0.9))
    sx.save(net, folder / "net.onnx")
    model = onnx.load(folder / "net.onnx")
    if keep:
        (info,) = model.training_info
        last = onnx.numpy_helper.from_array(np.zeros((400, 300), np.float32), "last")
        info.algorithm.initializer.append(last)
        info.algorithm.node.append(onnx.helper.make_node("Identity", ["x"], ["newest"]))
        output = onnx.helper.make_tensor_value_info("newest", 1, (400, 300))
        info.algorithm.output.append(output)
        info.update_binding.add(key="last", value="newest")
    return model


def test_tensors_of_torch_are_fed_as_they_are() -> None:
    folder = next(f for f in CASES if f.name == "mlp_adamw")
    ours, theirs = (sx.prepare_training(folder / "model.onnx", "torch") for _ in range(2))
    for step in sorted(folder.glob("test_data_set_*")):
        feeds = tensors_of(step, "input")
        loss = ours.step({n: torch.tensor(a) for n, a in feeds.items()})["loss"]
        assert loss == theirs.step(feeds)["loss"]


def test_grouped_operations_compute_the_same_bits() -> None:
    def update(rate, *tensors):  # type: ignore[no-untyped-def]
        results = []
        for value, slope in zip(tensors[::2], tensors[1::2], strict=True):
            moment = value * 0.9 + slope
            root = (slope * slope).sqrt() + 1e-8
            results += [value - rate * (moment / root), torch.maximum(moment, -slope)]
        return [*results, rate * 2]

    generator = torch.Generator().manual_seed(0)
    shapes = [(3,), (4, 5), (1,), (0, 2), ()] * 4
    tensors = [torch.randn(s, generator=generator) for s in shapes for _ in range(2)]
    rate = torch.tensor(0.1)
    graph = make_fx(update, tracing_mode="fake")(rate, *tensors)
    grouped = Grouped(graph)
    assert len(grouped.calls) < 0.4 * len(list(graph.graph.nodes))
    for ours, theirs in zip(grouped(rate, *tensors), update(rate, *tensors), strict=True):
        assert torch.equal(ours, theirs)


def test_a_compiled_forward_part_gives_no_images_for_their_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Running variances depend on the number of pixels: a compiler would keep every image."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(),
        torch.nn.Linear(4 * 8 * 8, 3),
    )  # fmt: skip
    program = torch.onnx.export(
        module.eval(), (torch.randn(5, 3, 12, 12),), dynamo=True, optimize=False, verbose=False,
        input_names=["x"],
    )  # fmt: skip
    net = sx.trainable(program.model_proto, "cross_entropy", sx.optim.adamw(1e-2))
    rng = np.random.default_rng(0)
    batches = [
        {"x": rng.normal(size=(5, 3, 12, 12)).astype(np.float32), "label": rng.integers(0, 3, 5)}
        for _ in range(3)
    ]
    plain = sx.prepare_training(net, "torch")
    expected = [float(plain.step(batch)["loss"]) for batch in batches]
    ranks: list[int] = []

    def compile(graph: torch.fx.GraphModule) -> Callable[..., Any]:
        def run(*tensors: Any) -> Any:
            outputs = graph(*tensors)
            ranks.extend(o.ndim for o in outputs if isinstance(o, torch.Tensor))
            return outputs

        return run

    monkeypatch.setattr(torch, "compile", compile)
    rep = sx.prepare_training(net, "torch", compile=True)
    np.testing.assert_allclose([float(rep.step(b)["loss"]) for b in batches], expected, rtol=1e-6)
    assert ranks and max(ranks) < 4
    for name, array in plain.state().items():
        np.testing.assert_allclose(rep.state()[name], array, rtol=1e-4, atol=1e-5, err_msg=name)

"""`precision=`: products in bfloat16, float16 or TF32, with parameters and state in float32.

The oracle is the same network in torch, trained under `torch.autocast` with torch's own optimizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.engines.mixed import TYPES, mixed
from sardonyx.engines.native_step import NativeStep
from sardonyx.errors import ArgumentError, EngineError
from sardonyx.normalize import normalize
from tests.networks import mlp

torch = pytest.importorskip("torch")
STEPS = 12
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Block(torch.nn.Module):
    """Convolution, batch normalization, attention, layer normalization, GELU, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.heads = torch.nn.Linear(8, 24)
        self.layer = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        q, k, v = self.heads(x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + seen.transpose(1, 2).flatten(2)
        x = x + self.down(torch.nn.functional.gelu(self.up(self.layer(x))))
        return self.head(x.mean(1))


def data() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(16, 2, 4, 4, generator=generator)
    return x, torch.randint(0, 3, (16,), generator=generator)


def autocast_losses(module: Any, dtype: Any) -> list[float]:
    x, y = data()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def block() -> Any:
    torch.manual_seed(0)
    module = Block().train()
    x, y = data()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    net = sx.from_torch(
        module, (x,), loss=torch.nn.CrossEntropyLoss(), labels=y, optimizer=optimizer
    )
    start = {k: v.clone() for k, v in module.state_dict().items()}
    return net, module, start


@pytest.mark.parametrize(
    "engine, precision", [("torch", "bf16"), ("torch", "fp16"), ("jax", "bf16")]
)
def test_losses_are_those_of_autocast(engine: str, precision: str, block: Any) -> None:
    pytest.importorskip(engine)
    net, module, start = block
    losses = {}
    for name, dtype in (("float32", None), ("half", HALF[precision])):
        module.load_state_dict(start)
        losses[name] = np.array(autocast_losses(module, dtype))
    rep = sx.prepare_training(net, engine, precision=precision)
    x, y = data()
    feeds = dict(zip((v.name for v in rep.step_inputs), (x.numpy(), y.numpy()), strict=True))
    ours = np.array([float(rep.step(feeds)["loss"]) for _ in range(STEPS)])
    noise = np.abs(losses["half"] - losses["float32"]).max()
    assert noise > 1e-5  # the precision matters here
    assert np.abs(ours - losses["float32"]).max() > 1e-5
    np.testing.assert_allclose(ours, losses["half"], atol=4 * noise)
    assert all(v.dtype != np.float16 for v in rep.state().values())
    assert {a.dtype for a in rep.state().values()} <= {np.dtype("float32"), np.dtype("int64")}
    onnx.checker.check_model(rep.to_model().proto())


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
def test_running_statistics_are_those_of_autocast(compile: bool) -> None:
    """A compiler for CPUs gives the statistics of an image in bf16 in its type."""
    torch.manual_seed(0)
    parts = (torch.nn.Conv2d(2, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten())
    module = torch.nn.Sequential(*parts, torch.nn.Linear(32, 3)).train()
    with torch.no_grad():
        parts[0].bias.add_(3.0)
    x, y = data()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    net = sx.from_torch(
        module, (x,), loss=torch.nn.CrossEntropyLoss(), labels=y, optimizer=optimizer
    )
    rep = sx.prepare_training(net, "torch", compile=compile, precision="bf16", device="cpu")
    feeds = dict(zip((v.name for v in rep.step_inputs), (x.numpy(), y.numpy()), strict=True))
    rep.step(feeds)
    with torch.autocast("cpu", torch.bfloat16):
        module(x)
    state, expected = rep.state(), parts[1].state_dict()
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(state[f"1.{name}"], expected[name].numpy(), rtol=1e-5)


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_float32_is_untouched_without_a_precision(engine: str, block: Any) -> None:
    pytest.importorskip(engine)
    net, module, start = block
    module.load_state_dict(start)
    expected = autocast_losses(module, None)
    rep = sx.prepare_training(net, engine)
    x, y = data()
    feeds = dict(zip((v.name for v in rep.step_inputs), (x.numpy(), y.numpy()), strict=True))
    ours = [float(rep.step(feeds)["loss"]) for _ in range(STEPS)]
    np.testing.assert_allclose(ours, expected, rtol=2e-4)


def test_products_are_narrow_and_losses_wide(block: Any) -> None:
    rep = sx.prepare_training(block[0], "torch", precision="bf16")
    (step,) = rep.steps
    assert isinstance(step, NativeStep)
    low = TYPES["bf16"]
    for node in step.forward_model.graph:
        types = {v.dtype for v in node.inputs if v is not None and v.dtype is not None}
        if node.op_type in ("Conv", "Linear", "Gemm", "MatMul", "DotProductAttention"):
            assert types == {low}
        if node.op_type in ("LayerNormalization", "SoftmaxCrossEntropyLoss", "ReduceMean"):
            assert low not in types
    sized = step.sized()  # the update reads their sizes alone: they need not be wide
    wide = {v.name: v.dtype for v in step.forward_model.graph.outputs if v.name not in sized}
    assert wide.items() <= {v.name: v.dtype for v in step.halves.forward.graph.outputs}.items()


def test_overflow_skips_the_step_and_halves_the_scale() -> None:
    net = sx.trainable(mlp(), "mse", sx.optim.sgd(1e-3))
    rep = sx.prepare_training(net, "torch", precision="fp16")
    before = rep.state()
    x = np.full((4, 6), 300.0, np.float32)
    label = np.full((4, 3), 900.0, np.float32)
    loss = float(rep.step({"x": x, "label": label})["loss"])
    assert np.isfinite(loss)
    assert rep.scale.factor == 65536.0 / 2
    for name, value in rep.state().items():
        np.testing.assert_array_equal(value, before[name])
    for _ in range(40):
        rep.step({"x": x, "label": label})
    assert any((value != before[name]).any() for name, value in rep.state().items())
    again = sx.prepare_training(rep.to_model(), "torch", precision="fp16")
    assert (again.scale.factor, again.scale.steps) == (rep.scale.factor, rep.scale.steps)


def test_gradients_that_float16_has_not_survive_by_the_scale() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,1] x) => (float[N,1] y) <float[1,1] w = {0.0}> { y = MatMul(x, w) }"""
    net = sx.trainable(sx.load(onnx.parser.parse_model(text)), "mse", sx.optim.sgd(1.0))
    rep = sx.prepare_training(net, "torch", precision="fp16")
    rep.step({"x": np.array([[1e-3]], np.float32), "label": np.array([[-1e-5]], np.float32)})
    # dw = 2 (x w - label) x = 2e-8, which float16 rounds to nothing
    assert float(rep.state()["w"].item()) == pytest.approx(-2e-8, rel=1e-2)


REFUSED = {
    "unknown": ({"engine": "torch", "precision": "bf61"}, "did you mean bf16"),
    "another spelling": ({"engine": "torch", "precision": "bfloat16"}, "write bf16"),
    "of torch": ({"engine": "torch", "precision": "torch.float16"}, "write fp16"),
    "that of the file": ({"engine": "torch", "precision": "fp32"}, "leave precision out"),
    "onnxruntime": ({"precision": "bf16"}, "onnxruntime does not train in bf16"),
    "numpy": ({"engine": "numpy", "precision": "bf16"}, "numpy does not train in bf16"),
    "jax fp16": ({"engine": "jax", "precision": "fp16"}, "jax does not train in fp16"),
    "tf32 on a CPU": (
        {"engine": "torch", "precision": "tf32", "device": "cpu"}, "needs an NVIDIA GPU",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_engine_lacks_is_refused_before_the_model_is_read(case: str) -> None:
    settings, words = REFUSED[case]
    pytest.importorskip(settings.get("engine", "onnxruntime"))
    with pytest.raises(ArgumentError, match=words):
        sx.train("absent.onnx", {"x": np.zeros((2, 6), np.float32)}, **settings)
    with pytest.raises(ArgumentError, match=words):
        sx.prepare_training("absent.onnx", **settings)


def test_an_unknown_precision_is_one_error_whatever_the_engine() -> None:
    with pytest.raises(ArgumentError, match="no precision is called 'int8'") as caught:
        sx.train("absent.onnx", {}, engine="auto", precision="int8")
    assert not caught.value.where


def test_records_that_are_not_differentiated_natively_are_refused() -> None:
    net = sx.trainable(mlp(), "mse", form="expanded")
    with pytest.raises(EngineError, match="cannot be trained in bf16: its gradient is expanded"):
        sx.prepare_training(net, "torch", precision="bf16")
    wide = normalize(mlp(dtype=np.float64))
    with pytest.raises(ArgumentError, match="changes nothing"):
        mixed(wide, "bf16")


def test_the_command_trains_in_bf16(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 6)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, label=rng.integers(0, 3, 8))
    sx.save(mlp(), tmp_path / "model.onnx")
    output = tmp_path / "out.onnx"
    arguments = ["train", tmp_path / "model.onnx", tmp_path / "data.npz", "-o", output]
    arguments += ["--loss", "cross_entropy", "--engine", "torch", "--precision", "bf16"]
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in arguments])
    assert not done.value.code
    assert "precision: bf16 (as requested; the file stays float32)" in capsys.readouterr().err
    model = onnx.load(output)
    assert {t.data_type for t in model.graph.initializer} == {onnx.TensorProto.FLOAT}

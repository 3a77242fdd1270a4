"""What torch's exporters leave of buffers, of tensors that the code makes, and of `detach`.

Files of the older exporter do not tell buffers from parameters; the newer one computes what it can.
Nobody trains a mask or a table of sines, and a row of padding is trained by what else reads it.
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx.fixed_tables import fixed_tables

torch = pytest.importorskip("torch")
nn = torch.nn

EXPORTERS = ("older", "older, unfolded", "newer", "newer, unfolded")


def exported(module: nn.Module, x: Any, exporter: str) -> onnx.ModelProto:
    module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter.startswith("newer"):
            optimize = exporter == "newer"
            program = torch.onnx.export(module, (x,), dynamo=True, verbose=False, optimize=optimize)
            return program.model_proto
        file = io.BytesIO()
        folds = exporter == "older"
        torch.onnx.export(
            module, (x,), file, dynamo=False, input_names=["x"], do_constant_folding=folds
        )
    return onnx.load_from_string(file.getvalue())


def trained(net: sx.Model) -> set[str]:
    return {key for key, _ in net.records[0].update_binding if not key.startswith("train/")}


def said(net: sx.Model) -> str:
    return "\n".join(f"{c.value}: {c.why}" for c in sx.choices(net) if c.what == "note")


def follows_torch(module: nn.Module, proto: onnx.ModelProto, x: Any) -> sx.Model:
    """Train both for some steps, which must have the same losses."""
    net = sx.trainable(proto, "mse", sx.optim.sgd(0.1, momentum=0.9))
    rep = importlib.import_module("sardonyx.engines.numpy").prepare_training(net)
    entry = net.inputs[0].name or ""
    y = torch.randn(module(x).shape, dtype=torch.float64)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for step in range(5):
        loss = nn.functional.mse_loss(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ours = rep.step({entry: x.numpy(), "label": y.numpy()})["loss"]
        np.testing.assert_allclose(ours, loss.item(), rtol=1e-9, err_msg=f"step {step}")
    return net


class Attention(nn.Module):
    """Causal attention with a mask and a table of positions, both buffers."""

    def __init__(self, masked: float) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 24), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((4, 4), masked).triu(1))
        angles = torch.arange(6)[:, None] * torch.exp(torch.arange(0, 8, 2) * -math.log(1e4) / 8)
        table = torch.stack([angles.sin(), angles.cos()], -1).reshape(1, 6, 8)
        self.register_buffer("table", table)

    def forward(self, x: Any) -> Any:
        q, k, v = self.inner(x + self.table[:, : x.shape[1]].to(x.dtype)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 3 + self.mask.to(x.dtype)
        return self.head((scores.softmax(-1) @ v).mean(1))


class Rotary(nn.Module):
    """Rotary positions from two tables, of which one is not kept in the state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 16, bias=False), nn.Linear(8, 3)
        angles = torch.outer(torch.arange(4), 1 / 1e4 ** (torch.arange(0, 8, 2) / 8)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin(), persistent=False)

    def turned(self, x: Any) -> Any:
        half = torch.cat([-x[..., 4:], x[..., :4]], -1)
        return x * self.cosines.to(x.dtype) + half * self.sines.to(x.dtype)

    def forward(self, x: Any) -> Any:
        q, k = self.inner(x).chunk(2, -1)
        scores = self.turned(q) @ self.turned(k).transpose(-1, -2)
        return self.head((scores.softmax(-1) @ x).mean(1))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("masked", [-math.inf, -1e9])
def test_masks_and_positions_are_no_weights(masked: float, exporter: str) -> None:
    torch.manual_seed(0)
    module, x = Attention(masked).double(), torch.randn(3, 4, 8, dtype=torch.float64)
    net = follows_torch(module, exported(module, x, exporter), x)
    if exporter.startswith("older"):
        assert "2 tensors not trained" in said(net)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_tables_of_rotary_positions_are_no_weights(exporter: str) -> None:
    torch.manual_seed(0)
    module, x = Rotary().double(), torch.randn(3, 4, 8, dtype=torch.float64)
    follows_torch(module, exported(module, x, exporter), x)


def test_a_table_is_trained_where_it_is_named() -> None:
    module = Attention(-1e9).double()
    proto = exported(module, torch.randn(3, 4, 8, dtype=torch.float64), "older, unfolded")
    net = sx.trainable(proto, "mse", sx.optim.sgd(0.1), train=["table", "head.*"])
    assert trained(net) == {"table", "head.weight", "head.bias"} and "table" not in said(net)


ANGLES = np.outer(np.arange(5), 0.5 ** np.arange(4))
TABLES = {
    "mask": np.triu(np.full((3, 3), -np.inf), 1),
    "half mask": np.triu(np.full((2, 3, 3), -65504.0, np.float16), 1),
    "window": np.tri(4, 4, dtype=np.float32),
    "one table": np.concatenate([np.sin(ANGLES), np.cos(ANGLES)], -1).astype(np.float16),
    "cosines": 1.2 * np.cos(ANGLES),
    "sines": 1.2 * np.sin(ANGLES),
    "frequencies": (10000.0 ** -(np.arange(8) / 8)).astype(np.float32)[None, :, None],
}
WEIGHTS = {
    "drawn": np.random.default_rng(0).normal(size=(4, 4)),
    "drawn too": np.random.default_rng(1).uniform(-1, 1, size=(4, 4)),
    "ones": np.ones((4, 4)),
    "zeros": np.zeros((4, 4)),
    "gates": np.repeat([0.0, 1.0, 0.0], 4),
    "one number": np.full((2, 2), -1e9),
    "slopes": 0.5 ** np.arange(1, 9),
    "three numbers": np.array([[0.0, 1.0], [2.0, 0.0]]),
    "not a number": np.array([[0.0, 1.0], [np.nan, 0.0]]),
    "empty": np.zeros((0, 4)),
}


def test_tables_are_told_by_their_numbers() -> None:
    assert set(fixed_tables(TABLES | WEIGHTS)) == set(TABLES)


class Extra(nn.Module):
    """Attention with a row of zeros that torch adds to keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.inner(x, x, x, need_weights=False)[0].mean(1))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_zeros_of_the_code_are_no_weights(exporter: str) -> None:
    torch.manual_seed(0)
    module, x = Extra().double(), torch.randn(3, 4, 8, dtype=torch.float64)
    follows_torch(module, exported(module, x, exporter), x)


class Padded(nn.Module):
    """An embedding with a row of padding, which is the head as well if it is tied."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 6, padding_idx=2), nn.Linear(6, 6)
        self.head = self.table.weight if tied else nn.Parameter(torch.randn(7, 6))

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.layer(self.table(x))).mean(1) @ self.head.t()


@pytest.mark.parametrize("exporter", EXPORTERS[2:])
@pytest.mark.parametrize("tied", [False, True])
def test_a_row_of_padding_gets_no_gradient_from_its_lookup(tied: bool, exporter: str) -> None:
    torch.manual_seed(0)
    module, x = Padded(tied).double(), torch.tensor([[2, 0, 1], [2, 2, 6]])
    net = follows_torch(module, exported(module, x, exporter), x)
    assert 'row 2 of "table.weight"' in str(sx.choices(net))
    bare = net.copy()
    bare.records = []
    again = sx.trainable(bare, "mse", sx.optim.sgd(0.1))
    assert len(again.graph) == len(net.graph)


def test_the_rows_that_are_an_output_keep_their_name() -> None:
    module = nn.Embedding(7, 6, padding_idx=2)
    proto = exported(module, torch.tensor([[2, 0, 1]]), "newer")
    net = sx.trainable(proto, "mse", sx.optim.sgd(0.1))
    assert [v.name for v in net.outputs] == [v.name for v in proto.graph.output]
    rep = importlib.import_module("sardonyx.engines.numpy").prepare_training(net)
    before = rep.state()["weight"].copy()
    entry = net.inputs[0].name or ""
    rep.step({entry: np.array([[2, 0, 1]]), "label": np.ones((1, 3, 6), np.float32)})
    moved = (rep.state()["weight"] != before).any(axis=1)
    assert moved.tolist() == [True, True, False, False, False, False, False]


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(5, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Any) -> Any:
        x = self.layer(x) * self.scale
        return x * torch.sigmoid(self.gate(x.detach()))


def test_what_the_newer_exporter_leaves_out_is_said() -> None:
    net = sx.trainable(exported(Detached(), torch.randn(3, 5), "newer"), "mse", sx.optim.sgd(0.1))
    assert "1 result of detached tensors" in said(net)
    assert "1 operation left out by the exporter" in said(net)
    plain = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 3))
    net = sx.trainable(exported(plain, torch.randn(3, 5), "newer"), "mse", sx.optim.sgd(0.1))
    assert said(net) == ""


class Response(nn.Module):
    """Local responses, which the older exporter writes with a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(5, 6), nn.LocalResponseNorm(3)

    def forward(self, x: Any) -> Any:
        return self.norm(self.layer(x)[..., None, None]).mean((2, 3))


@pytest.mark.parametrize("form", ["symbolic", "expanded"])
def test_names_in_the_branches_of_a_file_are_not_taken_again(form: str) -> None:
    proto = exported(Response(), torch.randn(3, 5), "older")
    net = sx.trainable(proto, "mse", sx.optim.sgd(0.1), form=form)
    rep = sx.prepare_training(net, engine="onnxruntime", threads=1)
    feeds = {"x": np.ones((3, 5), np.float32), "label": np.zeros((3, 6), np.float32)}
    losses = [float(rep.step(feeds)["loss"]) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("axis", [0, 1])
def test_an_embedding_of_zeros_and_ones_is_a_weight(axis: int) -> None:
    """Rows that data looks up are of categories; a table that is read otherwise is a mask."""
    shape = "float[N,4]" if axis == 0 else "float[6,N]"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (int64[N] words) => ({shape} y)
        <float[6, 4] t = {{1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1, 1,1,0,0, 0,0,1,1}}>
        {{ y = Gather <axis = {axis}> (t, words) }}"""
    )
    (table,) = [w for w in sx.weights(model) if w.name == "t"]
    assert table.kind == ("weight" if axis == 0 else "constant")

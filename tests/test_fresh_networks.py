"""Untrained networks as torch exports them train as torch trains them.

A fresh network is full of equal tensors, which exporters merge, and of layers without weights, for
which they write constants. What is trained has to be what torch trains: no more, no less.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.record import restore_weights

torch = pytest.importorskip("torch")
nn = torch.nn


class Blocks(nn.Module):
    """Blocks one after the other, each added to what it reads."""

    def __init__(self, blocks: list[Any]) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def block(bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 6, bias=bias), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 6, bias=bias)
    )


def copies(bias: bool = True) -> nn.Module:
    original = block(bias)
    return Blocks([copy.deepcopy(original) for _ in range(3)])


def shared() -> nn.Module:
    return Blocks([block()] * 3)


def image(*layers: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.Flatten(), nn.Linear(64, 3))


def encoder() -> nn.Module:
    """Attention begins with biases of zeros, which the newer exporter leaves out."""
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Decoder(nn.Module):
    """Two attentions whose biases begin alike; the exporters split that of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x, x.flip(1))


class OneShift(nn.Module):
    """Two normalizations that have one shift, beside a third that has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(6) for _ in range(3)), nn.Linear(6, 3)
        self.norms[1].bias = self.norms[0].bias

    def forward(self, x: Any) -> Any:
        for norm in self.norms:
            x = torch.tanh(norm(x)) + x
        return self.head(x)


class Parameters(nn.Module):
    """Parameters outside of all layers that begin alike, and a weight that is read both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 4, bias=False), nn.Linear(6, 3)
        self.shift, self.other_shift = (nn.Parameter(torch.zeros(4)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.layer(x) + self.shift)
        x = nn.functional.softplus(x) + self.other_shift
        return self.head(x @ self.layer.weight)


class Numbers(nn.Module):
    """Parameters that are single numbers: of a residual branch, a temperature, a generalized mean.

    The slope of the last activation is a plain number of Python, which is no parameter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.branch, self.power = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.full((1,), 3.0))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Any) -> Any:
        x = x + self.branch * torch.tanh(self.layer(x))
        x = (x.abs() + 0.1).pow(self.power) / self.temperature
        return 0.5 * self.head(x)


class LearnedState(nn.Module):
    """A recurrent layer whose first state is a parameter, which begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)
        self.state = nn.Parameter(torch.zeros(1, 1, 5))

    def forward(self, x: Any) -> Any:
        state = self.state.expand(1, x.shape[0], 5).contiguous()
        return self.head(self.cell(x, state)[0][:, -1])


class WithoutWeights(nn.Module):
    """Normalizations without weights, after one whose fresh weights are ones and zeros as well."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([
            nn.LayerNorm(6), nn.LayerNorm(6, elementwise_affine=False),
            nn.BatchNorm1d(6, affine=False),
        ])  # fmt: skip
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        for norm in self.norms:
            x = torch.tanh(norm(x)) + x
        return self.head(x)


class CalledTwice(nn.Module):
    """Two normalizations, each called twice, whose statistics begin like their weights."""

    def __init__(self, affine: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(6, affine=affine) for _ in range(2))
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        first, second = self.norms
        y = torch.tanh(second(torch.tanh(self.layer(first(x)))))
        return self.head(first(2 * y + 1) + second(x - 1))


class BothWays(nn.Module):
    """A weight that is read both ways, with biases of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6) * 0.4)
        self.inner, self.outer = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(6))

    def forward(self, x: Any) -> Any:
        code = torch.tanh(nn.functional.linear(x, self.weight, self.inner))
        return nn.functional.linear(code, self.weight.t(), self.outer)


def zeros(*layers: Any) -> Callable[[], nn.Module]:
    """Layers whose biases begin with zeros."""

    def make() -> nn.Module:
        module = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))
        module(torch.zeros(1, 3, 6, 6))
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        return module

    return make


IMAGE = (3, 6, 6)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "GroupNorm twice": (image(nn.GroupNorm(2, 4), nn.ReLU(), nn.GroupNorm(2, 4)), IMAGE),
    "InstanceNorm without weights": (image(nn.InstanceNorm2d(4), nn.ReLU()), IMAGE),
    "LayerNorm without weights": (
        image(nn.LayerNorm([4, 4, 4], elementwise_affine=False), nn.ReLU()),
        IMAGE,
    ),
    "copies of a block": (copies, (6,)),
    "copies of a block, rows of rows": (lambda: copies(bias=False), (5, 6)),
    "one block, three times": (shared, (6,)),
    "one block, three times, rows of rows": (shared, (5, 6)),
    "encoder": (encoder, (5, 6)),
    "decoder": (Decoder, (5, 6)),
    "one shift of two": (OneShift, (6,)),
    "parameters outside of layers": (Parameters, (6,)),
    "single numbers": (Numbers, (6,)),
    "a first state that is learned": (LearnedState, (4, 6)),
    "without weights": (WithoutWeights, (6,)),
    "normalizations that are called twice": (lambda: CalledTwice(affine=True), (6,)),
    "normalizations without weights that are called twice": (
        lambda: CalledTwice(affine=False),
        (6,),
    ),
    "both ways": (BothWays, (6,)),
    "zeros": (
        zeros(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.ConvTranspose2d(4, 4, 2, groups=2), nn.Tanh()),
        IMAGE,
    ),
}


def exported(module: nn.Module, x: Any, newer: bool, **settings: Any) -> sx.Model:
    module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if newer:
            shapes = ({0: "batch"},)
            program = torch.onnx.export(module, (x,), dynamo=True, dynamic_shapes=shapes)
            return sx.load(program.model_proto)
        file = io.BytesIO()
        torch.onnx.export(module, (x,), file, dynamo=False, dynamic_axes={"x": {0: "batch"}},
                          input_names=["x"], **settings)  # fmt: skip
    return sx.load(onnx.load_from_string(file.getvalue()))


def check(name: str, newer: bool) -> None:
    """Losses of five steps and the numbers that are served after them."""
    torch.manual_seed(0)
    make, row = NETWORKS[name]
    module = make()
    x = torch.randn(4, *row)
    model = exported(module, x, newer)
    labels = torch.randn(module(x).shape)
    net = sx.trainable(model, "mse", sx.optim.sgd(0.02, momentum=0.9))
    rep = prepare_training(net, threads=1)
    parameters = [p for p in module.train().parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.02, momentum=0.9)
    entry = model.inputs[0].name
    for step in range(5):
        loss = rep.step({entry: x.numpy(), "label": labels.numpy()})["loss"]
        optimizer.zero_grad()
        expected = nn.functional.mse_loss(module(x), labels)
        expected.backward()
        optimizer.step()
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-4, err_msg=f"step {step}")
    served = rep.run({entry: x.numpy()})[net.outputs[0].name]
    expected = module.eval()(x).detach().numpy()
    np.testing.assert_allclose(served, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_older_exporter(name: str) -> None:
    check(name, newer=False)


@pytest.mark.parametrize(
    "name",
    [
        "copies of a block", "decoder", "one shift of two", "parameters outside of layers", "zeros",
        "without weights", "both ways", "normalizations that are called twice",
        "normalizations without weights that are called twice",
    ],
)  # fmt: skip
def test_the_newer_exporter(name: str) -> None:
    check(name, newer=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_from_the_newer_exporter(name: str) -> None:
    check(name, newer=True)


def test_single_numbers_with_names_are_trained_and_said() -> None:
    x = torch.randn(4, 6)
    model = exported(Numbers(), x, newer=False)
    numbers = {w.name: w.kind for w in sx.weights(model) if w.size == 1}
    names = {n for n, kind in numbers.items() if kind == "weight"}
    assert names == {"branch", "power", "temperature"} and len(numbers) > len(names)
    net = sx.trainable(model, "mse", sx.optim.sgd(0.02))
    assert "3 single numbers trained" in str(sx.choices(net))
    frozen = sx.trainable(model, "mse", sx.optim.sgd(0.02), freeze=sorted(names))
    assert "single number" not in str(sx.choices(frozen))


class FirstState(nn.Module):
    """A cell whose first state is made in the forward pass: a tensor that a trace writes down."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 6), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        state, memory = torch.zeros(4, 6), torch.linspace(-1, 1, 24).reshape(4, 6)
        for _ in range(3):
            state, memory = self.cell(x, (state, memory))
        return self.head(state)


def test_tensors_of_a_trace_are_no_weights() -> None:
    module = FirstState()
    model = exported(module, torch.randn(4, 6), newer=False)
    names = {w.name for w in sx.weights(model) if w.kind == "weight"}
    assert names == {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize("padding", [0, None])
def test_a_row_of_padding_is_said(padding: int | None) -> None:
    """An ONNX file does not hold padding_idx: the row of zeros is the only sign of it."""
    module = nn.Sequential(nn.Embedding(9, 4, padding_idx=padding), nn.Flatten(), nn.Linear(12, 3))
    model = exported(module, torch.arange(6).reshape(2, 3), newer=False)
    choices = str(sx.choices(sx.trainable(model, "mse", sx.optim.sgd(0.02))))
    assert ('row 0 of "0.weight" holds zeros' in choices) == (padding == 0)


def test_a_copy_of_a_parameter_is_a_parameter() -> None:
    """torch's mark of a parameter stays with a tensor that is separated from another."""
    torch.manual_seed(0)
    net = sx.untie(exported(copies(), torch.randn(4, 6), newer=True), "*")
    kinds = {w.kind for w in sx.weights(net) if w.name.endswith((".weight", ".bias"))}
    assert kinds == {"weight"}


class Tied(nn.Module):
    """A language model whose head is its embedding, transposed."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 9, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.layer(self.table(x))))


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_the_embedding(newer: bool, tied: bool) -> None:
    """Both exporters write a transposed copy of the table; torch trains one parameter."""
    torch.manual_seed(0)
    module = Tied(tied)
    x = torch.randint(0, 9, (4, 3))
    model = exported(module, x, newer)
    net = sx.trainable(model, "cross_entropy", sx.optim.sgd(0.5))
    restored = [c.value for c in sx.choices(net) if c.what == "restored"]
    assert len(restored) == tied
    rep = prepare_training(net, threads=1)
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for step in range(4):
        tokens = torch.randint(0, 9, (4, 3))
        expected = nn.functional.cross_entropy(module(tokens).movedim(-1, 1), tokens)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        loss = rep.step({model.inputs[0].name: tokens.numpy(), "label": tokens.numpy()})["loss"]
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-5, err_msg=f"step {step}")
    served = rep.run({model.inputs[0].name: x.numpy()})[net.outputs[0].name]
    np.testing.assert_allclose(served, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_each_weight_is_read_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is a transpose of another is looked up, not compared with every other one."""
    reads: list[str] = []
    constant = restore_weights.constant

    def counted(value: Any) -> Any:
        reads.append(value.name)
        return constant(value)

    monkeypatch.setattr(restore_weights, "constant", counted)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh()) for _ in range(12)]
    model = exported(nn.Sequential(*layers), torch.randn(3, 2, 8), newer=True)
    sx.trainable(model, "mse")
    assert max(reads.count(name) for name in reads) <= 12


def test_a_copy_of_a_layer_is_not_tied_to_it() -> None:
    """Equal numbers in two layers, one of which the older exporter transposes: two parameters."""
    torch.manual_seed(0)
    first = nn.Linear(6, 6, bias=False)
    module = nn.Sequential(
        nn.Flatten(1), first, nn.Unflatten(1, (1, 6)), nn.Tanh(), copy.deepcopy(first)
    )
    net = sx.trainable(exported(module, torch.randn(4, 6), newer=False), "mse")
    assert not [c for c in sx.choices(net) if c.what == "restored"]
    assert sum(w.kind == "weight" for w in sx.weights(net)) == 2


def test_statistics_that_are_repeated_are_separated_from_weights() -> None:
    """The newer exporter merges fresh statistics with scale and shift, then what repeats them."""
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    x, labels = torch.randn(4, 3, 6, 6), torch.randn(4, 3)
    model = exported(module, x, newer=True)
    net = sx.trainable(model, "mse", sx.optim.sgd(0.1), batch_norm="frozen")
    assert any("2 running statistics" in c.value for c in sx.choices(net))
    rep = prepare_training(net, threads=1)
    optimizer = torch.optim.SGD(module.eval().parameters(), 0.1)
    for step in range(5):
        loss = rep.step({model.inputs[0].name: x.numpy(), "label": labels.numpy()})["loss"]
        expected = nn.functional.mse_loss(module(x), labels)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-5, err_msg=f"step {step}")


class Transposed(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.down, self.head = nn.Linear(4, 5), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(nn.functional.linear(torch.tanh(self.down(x)), self.down.weight.t()))


class FirstToken(nn.Module):  # type: ignore[misc]
    """A parameter for every row of the batch, as vision transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Parameter(torch.randn(1, 1, 4)), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))


class Positions(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(x + self.table(torch.arange(x.shape[1]))))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("kind", [Transposed, FirstToken, Positions])
def test_what_the_newer_exporter_computed_is_trained_as_its_parameter(kind: Any, dims: int) -> None:
    """With the sizes of the file fixed and the exporter's own optimizer, its default."""
    if dims == 2 and kind is not Transposed:
        pytest.skip("reads sequences")
    module = kind()
    x = torch.randn((6, 7, 4)[-dims:])
    y = torch.randn(module(x).shape)
    program = torch.onnx.export(module.eval(), (x,), dynamo=True, verbose=False, input_names=["x"])
    net = sx.trainable(program.model_proto, "mse", sx.optim.sgd(0.2), l2=0.01)
    rep = sx.prepare_training(net, threads=1)
    optimizer = torch.optim.SGD(module.train().parameters(), 0.2)
    for _ in range(8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), y)
        loss = loss + 0.005 * sum((p * p).sum() for p in module.parameters())
        loss.backward()
        optimizer.step()
        result = rep.step({"x": x.numpy(), "label": y.numpy()})["loss"]
        if kind is Positions:  # rows that are not in the file do not add to the penalty
            loss = loss - 0.005 * (module.table.weight[7:].detach() ** 2).sum()
        np.testing.assert_allclose(result, loss.item(), rtol=1e-3 if kind is Positions else 1e-5)


class Halves(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Any) -> Any:
        return torch.tanh(x @ self.w[:4]) + x @ self.w[2:6]


def test_results_of_parameters_are_said() -> None:
    norm = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    for module, count in ((norm, "1 weight"), (Halves(), "2 weights")):
        program = torch.onnx.export(
            module.eval(), (torch.randn(3, 2, 4),), dynamo=True, verbose=False
        )
        net = sx.trainable(program.model_proto, "mse")
        notes = [c.value for c in sx.choices(net) if c.what == "note"]
        assert any(f"{count} trained as the exporter computed" in n for n in notes), notes


def test_a_batch_that_is_as_large_as_the_channels() -> None:
    """The scale [4, 1, 1] of a fresh normalization is no scale for each of four rows."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3))
    x, y = torch.randn(4, 3, 6, 6), torch.randn(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module.eval(), (x,), dynamo=True, verbose=False)
    net = sx.trainable(program.model_proto, "mse", sx.optim.sgd(0.5))
    assert "restored" not in {choice.what for choice in sx.choices(net)}
    rep, entry = prepare_training(net, threads=1), net.inputs[0].name
    optimizer = torch.optim.SGD(module.train().parameters(), 0.5)
    for _ in range(4):
        loss = rep.step({entry: x.numpy(), "label": y.numpy()})["loss"]
        optimizer.zero_grad()
        expected = nn.functional.mse_loss(module(x), y)
        expected.backward()
        optimizer.step()
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-4)


def test_an_image_that_is_enlarged_by_computed_scales() -> None:
    torch.manual_seed(0)
    enlarged = nn.Upsample(scale_factor=2, mode="bilinear")
    module = image(enlarged, nn.Conv2d(4, 1, 1))()
    x, labels = torch.randn(4, *IMAGE), torch.randn(4, 3)
    model = exported(module, x, newer=False, do_constant_folding=False)
    rep = prepare_training(sx.trainable(model, "mse", sx.optim.sgd(1.0)), threads=1)
    before = rep.state()
    rep.step({"x": x.numpy(), "label": labels.numpy()})
    nn.functional.mse_loss(module(x), labels).backward()
    for name, parameter in module.named_parameters():
        change = before[name] - rep.state()[name]
        np.testing.assert_allclose(change, parameter.grad, rtol=1e-3, atol=1e-5, err_msg=name)

"""`from_torch`: modules with their training, continued elsewhere; torch is the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, ImportRefused

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn

from sardonyx.importers import proof  # noqa: E402
from sardonyx.importers.torch import compare  # noqa: E402
from sardonyx.importers.torch.convert import IMPORTED  # noqa: E402
from sardonyx.importers.torch.masks import Masks, sites_of  # noqa: E402

ROWS = 16


def batches(count: int, width: int = 8, classes: int = 3) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(ROWS, width, generator=generator),
            torch.randint(0, classes, (ROWS,), generator=generator),
        )
        for _ in range(count)
    ]


def perceptron(dropout: float = 0.2) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16, bias=False),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(16, 3),
    )


def torch_step(net: Any, loss: Any, optimizer: Any, batch: Any, masks: Any = None) -> float:
    with masks or torch.enable_grad():
        value = loss(net(batch[0]), batch[1])
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    if masks is not None:
        masks.next_step()
    return float(value.detach())


def apart(rep: Any, net: Any) -> float:
    """The largest difference between the state of a training and that of a module."""
    state = rep.state()
    named = {n: v.numpy() for n, v in net.state_dict().items() if n in state}
    assert named
    return max(float(np.abs(state[n] - v).max()) for n, v in named.items())


@pytest.mark.parametrize("engine", ["onnxruntime", "torch", "jax", "tensorflow"])
def test_a_run_of_torch_goes_on_elsewhere(engine: str) -> None:
    net, loss = perceptron(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    data = batches(103)
    masks = Masks(sites_of(sx.from_torch(net.eval(), data[0][0], verify=False)))
    net.train()
    for batch in data[:3]:
        torch_step(net, loss, optimizer, batch, masks)
    model = sx.from_torch(net, data[0][0], loss=loss, optimizer=optimizer, labels=data[0][1])
    assert net.training
    rep = sx.prepare_training(model, engine)
    for batch in data[3:]:
        expected = torch_step(net, loss, optimizer, batch, masks)
        metrics = rep.step({"input": batch[0].numpy(), "label": batch[1].numpy()})
        assert abs(float(metrics["loss"]) - expected) < 1e-6
    assert apart(rep, net) < 2e-6


def test_the_file_is_a_standard_model_with_names_of_the_module(tmp_path: Any) -> None:
    net, loss = perceptron(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    x, y = batches(1)[0]
    model = sx.from_torch(net, x, loss=loss, optimizer=optimizer, labels=y)
    path = sx.save(model, tmp_path / "net.onnx")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    names = set(net.state_dict()) - {"1.num_batches_tracked"}
    assert names <= set(model.graph.initializers)
    again = sx.load(path)
    assert [v.name for v in again.inputs] == ["input"]
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (scores,) = session.run(["output"], {"input": x[:5].numpy()})
    with torch.no_grad():
        expected = net.eval()(x[:5]).numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_training_the_module_further_leaves_the_model_alone() -> None:
    net, x = nn.Linear(8, 3), batches(1)[0][0]
    model = sx.from_torch(net, x)
    before = model.initializer("weight").numpy().copy()
    with torch.no_grad():
        net.weight.zero_()
    np.testing.assert_array_equal(model.initializer("weight").numpy(), before)


def test_tied_weights_are_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            return self.head(self.embed(ids))

    net = Tied()
    model = sx.from_torch(net, torch.arange(4)[:, None])
    assert "embed.weight" in model.graph.initializers
    assert "head.weight" not in model.graph.initializers
    sx.with_weights(model, net)


@dataclass
class Batch:
    ids: Any
    scale: Any


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)

    def forward(self, batch: Batch, others: dict[str, Any], *, bias: Any = None) -> dict[str, Any]:
        x = self.embed(batch.ids) * batch.scale
        x = x if bias is None else x + bias
        return {"mean": x.mean(1), "pair": (x + others["a"], x - others["b"])}


def test_nested_arguments_and_results_have_names() -> None:
    batch = Batch(torch.tensor([[1, 2], [3, 4]]), torch.ones(2, 1, 1))
    others = {"a": torch.ones(2, 1, 1), "b": torch.zeros(2, 1, 1)}
    model = sx.from_torch(Structured(), (batch, others), {"bias": torch.ones(2, 1, 1)})
    names = [v.name for v in model.inputs]
    assert names == ["batch.ids", "batch.scale", "others.a", "others.b", "bias"]
    assert [v.name for v in model.outputs] == ["mean", "pair.0", "pair.1"]
    assert {str(v.shape[0]) for v in model.inputs} == {"batch"}  # type: ignore[index]


def test_other_names() -> None:
    model = sx.from_torch(nn.Linear(2, 2), torch.ones(2, 2), names={"input": "x", "output": "y"})
    assert [v.name for v in (*model.inputs, *model.outputs)] == ["x", "y"]
    with pytest.raises(ArgumentError, match="not there"):
        sx.from_torch(nn.Linear(2, 2), torch.ones(2, 2), names={"z": "x"})


# -- bad input --------------------------------------------------------------------------


def test_a_module_in_training_mode_is_refused_by_its_layers() -> None:
    with pytest.raises(ArgumentError, match="training mode") as caught:
        sx.from_torch(perceptron().train(), torch.ones(2, 8))
    assert '"1"' in str(caught.value) and '"3"' in str(caught.value)


def test_a_branch_on_data_is_refused_with_its_line() -> None:
    class Branches(nn.Module):
        def forward(self, x: Any) -> Any:
            if x.sum() > 0:  # the line to be named
                return x + 1
            return x

    with pytest.raises(ImportRefused, match="the line to be named"):
        sx.from_torch(Branches(), torch.ones(2, 2))


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(ImportRefused, match='"input"'):
        sx.from_torch(nn.Identity(), torch.ones(2, 2, dtype=torch.complex64))


def test_writing_to_an_input_is_refused() -> None:
    class Writes(nn.Module):
        def forward(self, x: Any) -> Any:
            x.view(-1).add_(1)
            return x * 2

    with pytest.raises(ImportRefused, match='"x"'):
        sx.from_torch(Writes(), torch.ones(2, 2))


def test_a_loss_that_ignores_its_labels_is_refused() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match="ignores its labels"):
        sx.from_torch(
            net, torch.ones(2, 2), loss=lambda out, label: out.mean(), labels=torch.ones(2)
        )


def test_foreign_parameters_are_refused() -> None:
    net, other = nn.Linear(2, 2), nn.Linear(3, 4)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
    with pytest.raises(ArgumentError, match="not the module's") as caught:
        sx.from_torch(
            net, torch.ones(2, 2), loss=nn.MSELoss(), labels=torch.ones(2, 2), optimizer=optimizer
        )
    assert "group 0, parameter 2" in str(caught.value)


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
def test_some_optimizers_are_refused_by_name(name: str) -> None:
    net = nn.Linear(2, 2)
    optimizer = getattr(torch.optim, name)(net.parameters())
    with pytest.raises(ImportRefused, match=name):
        sx.from_torch(
            net, torch.ones(2, 2), loss=nn.MSELoss(), labels=torch.ones(2, 2), optimizer=optimizer
        )


def test_training_needs_a_loss() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match="needs a loss"):
        sx.from_torch(net, torch.ones(2, 2), optimizer=torch.optim.SGD(net.parameters(), 0.1))


# -- files and free sizes -----------------------------------------------------------------


def test_an_exported_program_is_read(tmp_path: Any) -> None:
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), torch.randn(3, 4)
    batch = torch.export.Dim("batch", min=1)
    torch.export.save(
        torch.export.export(net, (x,), dynamic_shapes=({0: batch},)), tmp_path / "net.pt2"
    )
    model = sx.from_torch(tmp_path / "net.pt2", x)
    assert {"0.weight", "0.bias"} <= set(model.graph.initializers)


def test_a_pickle_is_read_only_where_it_is_trusted(tmp_path: Any) -> None:
    torch.save(nn.Linear(4, 3), tmp_path / "net.pt")
    with pytest.raises(ImportRefused, match="trust=True"):
        sx.from_torch(tmp_path / "net.pt", torch.randn(3, 4))
    model = sx.from_torch(tmp_path / "net.pt", torch.randn(3, 4), trust=True)
    assert "weight" in model.graph.initializers


def test_sizes_are_free_as_asked() -> None:
    net, x = nn.Conv1d(2, 3, 3), torch.randn(2, 2, 7)
    every = sx.from_torch(net, x, dynamic="all", verify=False)
    assert [isinstance(d, int) for d in every.inputs[0].shape] == [False, True, False]  # type: ignore[union-attr]
    none = sx.from_torch(net, x, dynamic=None, verify=False)
    assert list(none.inputs[0].shape) == [2, 2, 7]  # type: ignore[arg-type]
    named = sx.from_torch(net, x, dynamic={"input": {2: torch.export.Dim("length")}}, verify=False)
    assert [str(d) for d in named.inputs[0].shape] == ["2", "2", "length"]  # type: ignore[union-attr]


def test_a_module_that_returns_its_loss() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            logits = self.head(x)
            if labels is None:
                return {"logits": logits}
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    net = Own()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    labels = torch.tensor([0, 1, 2])
    model = sx.from_torch(net, torch.randn(3, 4), labels=labels, optimizer=optimizer)
    assert [v.name for v in model.inputs] == ["x"]
    assert [v.name for v in model.outputs] == ["logits"]
    assert "labels" in {v.name for v in model.records[0].algorithm.inputs}


def test_recurrent_weights_keep_their_names() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 5, 2, bidirectional=True, dropout=0.2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.rnn(x)[0]

    net = Net().eval()
    model = sx.from_torch(net, torch.randn(2, 6, 4))
    assert set(net.state_dict()) <= set(model.graph.initializers)
    assert sum(n.op_type == "LSTM" for n in model.graph) == 2
    assert sum(n.op_type == "Dropout" for n in model.graph) == 1


def test_an_lstm_with_a_projection_trains_as_in_torch() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(
                4, 6, 2, proj_size=3, bidirectional=True, dropout=0.2, batch_first=True
            )

        def forward(self, x: Any) -> Any:
            y, (h, c) = self.rnn(x)
            return y.sum(1), h, c

    torch.manual_seed(0)
    net = Net()
    # The import compares outputs and two steps of training, and raises where they differ.
    model = sx.from_torch(
        net,
        torch.randn(3, 5, 4),
        loss=lambda outputs, label: ((outputs[0] - label) ** 2).mean() + outputs[2].mean(),
        labels=torch.randn(3, 6),
        optimizer=torch.optim.SGD(net.parameters(), 0.1, momentum=0.9),
    )
    assert set(net.state_dict()) <= set(model.graph.initializers)
    assert sum(n.op_type == "Scan" for n in model.graph) == 4


def test_a_batch_that_the_network_fixes_is_not_free() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(2, 6).cumsum(1)

    model = sx.from_torch(Fixed(), torch.randn(3, 4))
    assert [list(v.shape) for v in model.inputs] == [[3, 4]]


class _Shifted(torch.nn.Module):
    def __init__(self, shift: float, factor: float):
        super().__init__()
        self.shift, self.factor = shift, factor

    def forward(self, x: Any) -> Any:
        size = x.square().mean(-1, keepdim=True) + self.shift
        return x * torch.rsqrt(size) * self.factor


@pytest.mark.parametrize(("shift", "factor"), [(1e-8, 1.0), (1e-12, 1.0), (0.0, 1.000005)])
def test_small_numbers_are_kept(shift: float, factor: float) -> None:
    """The exporter's own simplifications take 1e-8 for 0, and 1.000005 for 1."""
    x = 1e-5 * torch.randn(4, 8)
    model = sx.from_torch(_Shifted(shift, factor), x)
    assert model.metadata[IMPORTED].endswith("same")


def test_zeros_before_a_pooling_stay_zeros(tmp_path: Path) -> None:
    """Stock onnxruntime merges such a padding into the pooling, which pads with -inf."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.ZeroPad2d(1), torch.nn.MaxPool2d(3, 2)
    )
    x = torch.randn(2, 1, 9, 9) - 5.0
    path = sx.save(sx.from_torch(net.eval(), x), tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"input": x.numpy()})
    np.testing.assert_allclose(y, net(x).detach().numpy(), atol=1e-5)


class _Keeps(torch.nn.Module):
    """Keeps a result of evaluation mode for its next call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4))
        self.cache: dict[str, Any] = {}

    def forward(self, x: Any) -> Any:
        if self.training:
            return x @ self.weight.exp().T
        if "weight" not in self.cache:
            self.cache["weight"] = self.weight.exp()
        return x @ self.cache["weight"].T


def test_what_a_module_keeps_is_put_back() -> None:
    net = _Keeps()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, y = torch.randn(4, 4), torch.randn(4, 3)
    model = sx.from_torch(net, x, loss=torch.nn.MSELoss(), labels=y, optimizer=optimizer)
    assert net.cache == {}
    assert model.metadata[IMPORTED].startswith(f"torch {torch.__version__}, same, training")


class _Signs(torch.nn.Module):
    """Has a layer whose gradient is zero, which torch's weight decay shrinks all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.last(torch.sign(self.first(x)))


def test_a_parameter_that_only_torch_trains_is_named() -> None:
    net = _Signs()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, weight_decay=0.1)
    x, y = torch.randn(4, 4), torch.randn(4, 3)
    with pytest.raises(sx.SardonyxError, match=r"first\.weight"):
        sx.from_torch(net, x, loss=torch.nn.MSELoss(), labels=y, optimizer=optimizer)


class Selected(nn.Module):
    """Reads a mask by indices, so that torch does not tie the mask's rows to those of the ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, ids: Any, mask: Any) -> Any:
        rows = torch.arange(ids.shape[0])[:, None]
        return self.embed(ids) * mask[rows, torch.arange(ids.shape[1])][..., None]


@pytest.mark.parametrize("rows", [1, 4])
def test_first_axes_are_one_batch_also_where_torch_does_not_tie_them(rows: int) -> None:
    module = Selected().eval()
    ids, mask = torch.randint(0, 10, (3, 5)), torch.rand(3, 5)
    model = sx.from_torch(module, (ids, mask))
    assert [str(v.shape[0]) for v in model.inputs] == ["batch", "batch"]
    ids, mask = torch.randint(0, 10, (rows, 5)), torch.rand(rows, 5)
    (output,) = proof.run(model, {"ids": ids.numpy(), "mask": mask.numpy()}).values()
    np.testing.assert_allclose(output, module(ids, mask).detach(), rtol=1e-6)


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Any = None, scale: Any = None) -> Any:
        return self.linear(x) * scale


def test_keyword_arguments_alone_are_a_call() -> None:
    torch.manual_seed(0)
    module, feeds = Keywords().eval(), {"x": torch.randn(3, 4), "scale": torch.randn(3, 1)}
    for model in (sx.from_torch(module, None, feeds), sx.from_torch(module, kwargs=feeds)):
        (output,) = proof.run(model, {n: v.numpy() for n, v in feeds.items()}).values()
        np.testing.assert_allclose(output, module(**feeds).detach(), rtol=1e-6, atol=1e-6)


def test_the_model_has_weights_of_its_own() -> None:
    module = nn.Linear(4, 2)
    model = sx.from_torch(module, torch.randn(3, 4), verify=False)
    before = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.zero_()
    weight = model.graph.initializers["weight"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), before.numpy())


class Twins(nn.Module):
    """Layers of one shape, of which one product needs the results of two."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6, bias=i % 2 == 0) for i in range(3)])

    def forward(self, x: Any) -> Any:
        first, second, third = (layer(x) for layer in self.layers)
        return torch.nn.functional.linear(first * second, weight=self.layers[0].weight) + third


def test_the_exact_run_is_that_of_the_module_in_float64() -> None:
    module, x = Twins().eval(), torch.randn(5, 6)
    with torch.no_grad():
        with compare.exactly():
            exact = module(x.double())
        expected = module.double()(x.double())
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact, expected, rtol=1e-14, atol=1e-14)

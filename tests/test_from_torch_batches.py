"""Batches of imported records: rows along other axes, rows compared with rows, labels in a dict.

Each record is made from a few rows, and takes a step with other numbers of rows; torch is the
oracle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.errors import ImportRefused

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn, functional = torch.nn, torch.nn.functional

SIZES = (1, 2, 7)


def normal(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def check_losses(net: Any, loss: Any, batches: Any, example: Any, dynamic: Any = "batch") -> None:
    """Each batch, (arguments, labels), has torch's loss; no step changes the parameters."""
    arguments, labels = example
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    model = sx.from_torch(
        net, arguments, loss=loss, labels=labels, optimizer=optimizer, dynamic=dynamic
    )
    rep = sx.prepare_training(model)
    names = [v.name for v in rep.step_inputs]
    net.eval()
    for arguments, labels in batches:
        listed = list(labels.values()) if isinstance(labels, dict) else [labels]
        feeds = dict(zip(names, (v.numpy() for v in (*arguments, *listed)), strict=True))
        with torch.no_grad():
            expected = float(loss(net(*arguments), labels))
        assert np.isclose(rep.step(feeds)["loss"], expected, rtol=1e-5)


class WithState(nn.Module):
    """A recurrent network that is given its state, whose rows are along axis 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(4, 5, num_layers=2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Any, hidden: Any, cell: Any) -> Any:
        y, (hidden, cell) = self.layers(x, (hidden, cell))
        return self.head(y[:, -1]), hidden, cell


@pytest.mark.parametrize("rows", [3, 2], ids=["rows", "as-many-rows-as-layers"])
def test_the_batch_is_free_where_a_state_has_it_along_another_axis(rows: int) -> None:
    def batch(rows: int) -> Any:
        arguments = normal(rows, 6, 4), normal(2, rows, 5), normal(2, rows, 5) * 0.5
        return arguments, torch.arange(rows) % 3

    torch.manual_seed(0)
    check_losses(
        WithState(),
        lambda outputs, labels: functional.cross_entropy(outputs[0], labels),
        map(batch, SIZES),
        batch(rows),
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
def test_rows_may_be_compared_with_all_rows(kind: str, smoothing: float) -> None:
    def loss(outputs: Any, labels: Any) -> Any:
        places = torch.arange(outputs.shape[0]) + 0 * labels
        same = (labels[:, None] == labels[None]).float()
        target = places if kind == "classes" else same / same.sum(1, keepdim=True)
        return functional.cross_entropy(outputs @ outputs.T, target, label_smoothing=smoothing)

    def batch(rows: int) -> Any:
        return (normal(rows, 6),), torch.arange(rows) % 2

    torch.manual_seed(0)
    check_losses(nn.Linear(6, 4), loss, map(batch, SIZES), batch(5))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind, self.size = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x: Any) -> Any:
        return {"kind": self.kind(x), "size": self.size(x)[:, 0]}


class OfBoth(nn.Module):
    """A loss that takes its labels as one dict."""

    def forward(self, outputs: Any, labels: Any) -> Any:
        of_kind = functional.cross_entropy(outputs["kind"], labels["kind"])
        return of_kind + functional.mse_loss(outputs["size"], labels["size"])


@pytest.mark.parametrize(
    "whole", [OfBoth(), lambda a, b: OfBoth()(a, b)], ids=["module", "function"]
)
def test_a_loss_may_take_its_labels_as_one_dict(whole: Any) -> None:
    def batch(rows: int) -> Any:
        return (normal(rows, 6),), {"kind": torch.arange(rows) % 3, "size": normal(rows)}

    torch.manual_seed(0)
    check_losses(TwoHeads(), whole, map(batch, SIZES), batch(5))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_rows_may_be_added_and_divided_by_a_count(
    smoothing: float, weighted: bool
) -> None:
    # Torch's exporter takes these losses for one number where the batch is free, and drops the sum.
    weight = torch.tensor([1.0, 2.0, 0.5]) if weighted else None

    def loss(outputs: Any, labels: Any) -> Any:
        each = functional.cross_entropy(
            outputs, labels, weight, ignore_index=-1, reduction="none", label_smoothing=smoothing
        )
        return each.sum() / (labels != -1).sum().clamp(min=1)

    def batch(rows: int) -> Any:
        return (normal(rows, 6),), torch.arange(rows) % 4 - 1

    torch.manual_seed(0)
    check_losses(nn.Linear(6, 3), loss, map(batch, SIZES), batch(5))


class Twins(nn.Module):
    """One network over two inputs, joined to one batch and parted again."""

    def __init__(self, part: Any):
        super().__init__()
        self.line, self.part = nn.Linear(6, 3), part

    def forward(self, a: Any, b: Any) -> Any:
        first, second = self.part(self.line(torch.cat([a, b])), a.shape[0])
        return functional.cosine_similarity(first, second)


@pytest.mark.parametrize(
    "part",
    [
        lambda x, rows: x.chunk(2),
        lambda x, rows: x.split(rows),
        lambda x, rows: x.split([rows] * 2),
    ],
    ids=["chunk", "split", "sizes"],
)
def test_a_batch_of_two_inputs_may_be_parted(part: Any) -> None:
    def batch(rows: int) -> Any:
        return (normal(rows, 6), normal(rows, 6) + 1), normal(rows)

    torch.manual_seed(0)
    check_losses(Twins(part), functional.mse_loss, map(batch, SIZES), batch(5))


class Score(nn.Module):
    """A regression whose output and label are squeezed, as those of Hugging Face are."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x: Any) -> Any:
        return self.head(x)


def test_what_has_no_axis_of_one_may_be_squeezed() -> None:
    def loss(outputs: Any, labels: Any) -> Any:
        return functional.mse_loss(outputs.squeeze(), labels.squeeze())

    def batch(rows: int) -> Any:
        return (normal(rows, 6),), normal(rows)

    torch.manual_seed(0)
    check_losses(Score(), loss, map(batch, (2, 7)), batch(5))


class WithoutRescaling(nn.Module):
    """A network that writes to a weight what is in it already, as RWKV does in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        if not self.training:
            with torch.no_grad():
                self.body.weight.div_(1)
        return self.head(torch.tanh(self.body(x)))


def test_a_weight_that_is_rewritten_as_it_is_trains() -> None:
    torch.manual_seed(0)
    net = WithoutRescaling()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, label = normal(4, 6), torch.arange(4) % 3
    loss = nn.CrossEntropyLoss()
    model = sx.from_torch(net, x, loss=loss, labels=label, optimizer=optimizer)
    rep = sx.prepare_training(model)
    rep.step({"x": x.numpy(), "label": label.numpy()})
    loss(net(x), label).backward()
    optimizer.step()
    np.testing.assert_allclose(
        rep.state()["body.weight"], net.body.weight.detach().numpy(), atol=1e-7
    )


@pytest.mark.parametrize("dynamic", ["batch", "all", "of torch"])
def test_the_batch_is_free_where_the_example_is_one_row(dynamic: str) -> None:
    # Torch takes a size of 1 for fixed.
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(24, 3))
    net.eval()
    size = {0: torch.export.Dim("rows")}
    x = normal(1, 1, 8)
    model = sx.from_torch(net, x, dynamic=(size,) if dynamic == "of torch" else dynamic)
    rows = normal(5, 1, 8)
    result = sx.predict(model, {"input": rows.numpy()})
    np.testing.assert_allclose(result["output"], net(rows).detach().numpy(), atol=1e-5)


def test_a_record_of_one_row_takes_others() -> None:
    def batch(rows: int) -> Any:
        return (normal(rows, 6),), torch.arange(rows) % 3

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3))
    check_losses(net, nn.CrossEntropyLoss(), map(batch, SIZES), batch(1))


class OneRow(nn.Module):
    """A network that only takes one row."""

    def forward(self, x: Any) -> Any:
        return x.reshape(3, 2).cumsum(0)


def test_a_network_of_one_row_stays_so() -> None:
    model = sx.from_torch(OneRow(), normal(1, 6))
    assert model.inputs[0].shape == [1, 6]


class HalfFrozen(nn.Module):
    """Dropout in a layer, in a function, in attention and between recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5))
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.layers = nn.LSTM(8, 8, 2, dropout=0.4, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        h = self.body(x)
        h, _ = self.attention(h, h, h)
        h, _ = self.layers(h)
        return functional.dropout(self.head(h[:, -1]), 0.1, self.training)


@pytest.mark.parametrize("part", ["body", "attention", "layers", "head"])
def test_dropout_of_a_part_in_evaluation_mode_is_off(part: str) -> None:
    # Two steps are compared with torch's, which draws the masks of the record.
    torch.manual_seed(0)
    net = HalfFrozen().train()
    net.get_submodule(part).eval()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    settings = {"loss": nn.CrossEntropyLoss(), "labels": torch.arange(4) % 3}
    model = sx.from_torch(net, normal(4, 5, 6), optimizer=optimizer, **settings)
    modes = [c.value for c in sx.choices(model) if "ropout" in c.what]
    assert sum("frozen" in mode for mode in modes) == 1, modes


OF_INTEGERS: dict[str, Any] = {
    "a float minus integers": lambda x, mask: x * (1.0 - mask)[..., None],
    "an integer minus integers": lambda x, mask: x * (1 - mask)[..., None],
    "a float minus bytes": lambda x, mask: x * (1.5 - mask.to(torch.uint8))[..., None],
    "an integer divided by integers": lambda x, mask: x + (7 // (mask + 2))[..., None],
    "a mean of integers": lambda x, mask: x * mask.mean(1, dtype=torch.float32)[:, None, None],
    "a mean of all integers": lambda x, mask: x * mask.mean(dtype=torch.float32),
}


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_masks_of_integers_take_part_in_arithmetic(name: str) -> None:
    class Masked(nn.Module):
        def forward(self, x: Any, mask: Any) -> Any:
            return OF_INTEGERS[name](x, mask)

    x, mask = normal(2, 3, 4), torch.tensor([[1, 0, 2], [1, 1, 0]])
    model = sx.from_torch(Masked(), (x, mask))
    more = torch.arange(15).reshape(5, 3) % 4
    rows = normal(5, 3, 4)
    result = sx.predict(model, {"x": rows.numpy(), "mask": more.numpy()}, batch_size=5)
    np.testing.assert_allclose(result["output"], Masked()(rows, more).numpy(), atol=1e-6)


class Tagger(nn.Module):
    def __init__(self, kind: str):
        super().__init__()
        self.layers = getattr(nn, kind)(4, 5, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x)[0])


def of_tags(outputs: Any, labels: Any) -> Any:
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_take_any_number_of_steps(kind: str) -> None:
    def batch(rows: int, steps: int) -> Any:
        return (normal(rows, steps, 4),), torch.arange(rows * steps).reshape(rows, steps) % 3

    torch.manual_seed(0)
    batches = [batch(rows, steps) for rows, steps in ((2, 3), (1, 9), (6, 1))]
    check_losses(Tagger(kind), of_tags, batches, batch(3, 5), "all")


def test_labels_are_free_where_only_sizes_of_inputs_are_named() -> None:
    def batch(rows: int, steps: int) -> Any:
        return (normal(rows, steps, 4),), torch.arange(rows * steps).reshape(rows, steps) % 3

    torch.manual_seed(0)
    shapes = {"input": {0: torch.export.Dim("rows"), 1: torch.export.Dim("steps")}}
    batches = [batch(rows, steps) for rows, steps in ((2, 3), (6, 7))]
    check_losses(nn.Linear(4, 3), of_tags, batches, batch(3, 5), shapes)


def test_a_size_that_is_named_and_fixed_is_refused() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(20, 3)).eval()
    rows, steps = torch.export.Dim("rows"), torch.export.Dim("steps")
    with pytest.raises(ImportRefused, match=r'axis 1 of "input" +"steps" is 5'):
        sx.from_torch(net, normal(2, 5, 4), dynamic=({0: rows, 1: steps},))
    shapes = {0: rows, 1: torch.export.Dim.AUTO, 2: torch.export.Dim.STATIC}
    model = sx.from_torch(net, normal(2, 5, 4), dynamic=(shapes,))
    assert str(model.inputs[0].shape) == "[rows,5,4]"


class LastStep(nn.Module):
    """A recurrent network of steps first, and of a state that is given where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(4, 5), nn.Linear(5, 3)

    def forward(self, x: Any, state: Any = None) -> Any:
        return self.head(self.layer(x, state)[0][-1])


@pytest.mark.parametrize("stateful", [False, True])
def test_rows_are_free_behind_steps(stateful: bool) -> None:
    def batch(steps: int, rows: int) -> Any:
        states = (normal(1, rows, 5),) if stateful else ()
        return (normal(steps, rows, 4), *states), torch.arange(rows) % 3

    torch.manual_seed(0)
    net = LastStep()
    batches = [batch(steps, rows) for steps, rows in ((3, 2), (9, 1), (4, 7))]
    check_losses(net, functional.cross_entropy, batches, batch(5, 3), "all")
    optimizer, (arguments, labels) = torch.optim.SGD(net.parameters(), 0.1), batch(5, 3)
    settings = {"loss": functional.cross_entropy, "labels": labels, "optimizer": optimizer}
    model = sx.from_torch(net, arguments, dynamic="all", **settings)
    assert "label" not in [value.name for value in model.inputs]


class Extremes(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        pairs = torch.maximum(a, b), torch.minimum(a, b), torch.clamp(a, max=b)
        bounded = a.clamp(5, 3_000_000_000), a.clamp(min=0)
        axes = a.amax(1), a.amin(0), a.max(dim=1).values, a.min(dim=1, keepdim=True)[0]
        return *pairs, *bounded, *axes, a.max(), a.amax((0, 1))


@pytest.mark.parametrize("dynamic", ["batch", "all", None])
def test_extremes_of_large_integers_are_those_of_torch(dynamic: str | None) -> None:
    """onnxruntime takes 1 for larger than 3,000,000,000, on many processors."""
    generator = torch.Generator().manual_seed(0)

    def integers(rows: int) -> Any:
        return torch.randint(-(2**33), 2**33, (rows, 37), generator=generator)

    model = sx.from_torch(Extremes().eval(), (integers(4), integers(4)), dynamic=dynamic)
    session = onnxruntime.InferenceSession(model.proto().SerializeToString())
    for rows in SIZES if dynamic else (4,):
        a, b = integers(rows), integers(rows)
        results = session.run(None, {"a": a.numpy(), "b": b.numpy()})
        for result, expected in zip(results, Extremes()(a, b), strict=True):
            np.testing.assert_array_equal(result, expected.numpy())

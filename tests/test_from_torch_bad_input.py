"""Bad input of `from_torch`: one error each, which names the line, the parameter or the output."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, ImportRefused, SardonyxError
from sardonyx.verify.training import prepare_training

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    """A module whose forward pass is a function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.line = nn.Linear(4, 4)
        self.register_buffer("buffer", torch.ones(4))
        self.calls = 0

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def example(*shape: int) -> Any:
    return torch.randn(*(shape or (3, 4)), generator=torch.Generator().manual_seed(0))


def squared(outputs: Any, label: Any) -> Any:
    return ((outputs - label) ** 2).mean()


def imported(function: Callable[..., Any], **options: Any) -> Any:
    return sx.from_torch(Net(function).eval(), example(), **options)


def trained(net: Any, loss: Any = squared, optimizer: Any = None, labels: Any = None) -> Any:
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1)
    labels = example() if labels is None else labels
    return sx.from_torch(net, example(), loss=loss, labels=labels, optimizer=optimizer)


# -- in evaluation mode -----------------------------------------------------------------


def writes_weight(net: Any, x: Any) -> Any:
    with torch.no_grad():
        net.line.weight.mul_(0.9)
    return net.line(x)


def writes_view_of_input(net: Any, x: Any) -> Any:
    x[:, 0] = 0
    return net.line(x)


def writes_buffer(net: Any, x: Any) -> Any:
    net.buffer.add_(1)
    return net.line(x) * net.buffer


def assigns_buffer(net: Any, x: Any) -> Any:
    net.buffer = net.buffer + 1
    return net.line(x) * net.buffer


def counts(net: Any, x: Any) -> Any:
    net.calls += 1
    return net.line(x) * net.calls


def writes_data_of_weight(net: Any, x: Any) -> Any:
    net.line.weight.data[0] = 0.0
    return net.line(x)


def writes_data(net: Any, x: Any) -> Any:
    y = net.line(x)
    y.data[:, 0] = 0.0
    return y * 2


def writes_behind_detach(net: Any, x: Any) -> Any:
    y = net.line(x)
    y.detach()[:, 0] = 0.0
    return y


def writes_behind_dropout(net: Any, x: Any) -> Any:
    y = net.line(x)
    nn.functional.dropout(y, 0.5, net.training).relu_()
    return y + 1


def reads_what_it_writes(net: Any, x: Any) -> Any:
    y = net.line(x) * 1
    y[:, 1:] += y[:, :-1]
    return y


SHARED = {
    "behind detach": (writes_behind_detach, "fill_"),
    "behind dropout": (writes_behind_dropout, "relu_"),
    "into what is read": (reads_what_it_writes, "add_"),
}
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a complex output": (lambda net, x: torch.complex(x, net.line(x)), "is torch.complex64"),
    "a weight in place": (writes_weight, 'parameter "line.weight"'),
    "a view of an input": (writes_view_of_input, f'input "x".*in place.*{__file__}'),
    "complex numbers without a form": (
        lambda net, x: torch.complex(x, net.line(x)).sqrt().imag,
        f"complex(.|\n)*aten.sqrt.default *{__file__}(.|\n)*real and imaginary parts",
    ),
    "the data of a weight": (writes_data_of_weight, 'parameter "line.weight"'),
    "the data of a tensor": (writes_data, f"{__file__}"),
    "a buffer in place": (writes_buffer, 'buffer "buffer"'),
    "a buffer assigned": (assigns_buffer, 'buffer "buffer"'),
    "a counter": (counts, 'other numbers each time(.|\n)*output "output"'),
    "random of Python": (lambda net, x: net.line(x) * random.random(), "each time"),
    "random of NumPy": (lambda net, x: net.line(x) * np.random.rand(), "each time"),
    "random of torch": (lambda net, x: net.line(x) + torch.randn_like(x), "randn_like"),
    "a branch on a size": (lambda net, x: net.line(x) if x.shape[0] > 2 else x, "size 2 of"),
    "a branch on one row": (lambda net, x: net.line(x) if x.shape[0] > 1 else x, "size 1 of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_module_must_not_do_is_refused(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(ImportRefused, match=words):
        imported(function)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", SHARED)
def test_writes_to_memory_that_is_shared_are_refused(name: str, verify: bool) -> None:
    function, operator = SHARED[name]
    with pytest.raises(ImportRefused, match=f"another tensor shares\n.*{operator}.*{__file__}"):
        imported(function, verify=verify)


def test_memory_that_nothing_else_reads_may_be_written_to() -> None:
    """Neither the other name of the memory nor the elements that are written are read."""

    def function(net: Any, x: Any) -> Any:
        y = net.line(x).detach()
        y[:, 0] = 0.0
        z = y * 1
        z[:, :2] += z[:, 2:]
        return nn.functional.dropout(z, 0.5, net.training).relu_()

    assert imported(function, verify=False).graph


def test_complex_numbers_are_imported_only_with_a_comparison() -> None:
    def function(net: Any, x: Any) -> Any:
        return torch.fft.fft(net.line(x)).abs()

    assert "same" in imported(function).metadata["sardonyx.imported"]
    with pytest.raises(ImportRefused, match=f"complex numbers(.|\n)*fft.*{__file__}(.|\n)*verify"):
        imported(function, verify=False)


def test_a_weight_that_is_an_output_keeps_its_name() -> None:
    net = Net(lambda net, x: (net.line(x), net.line.weight)).eval()
    model = sx.from_torch(net, example())
    assert "line.weight" in model.graph.initializers
    assert [v.name for v in model.outputs] == ["output.0", "output.1"]


def test_a_refused_module_is_left_as_it_was() -> None:
    for function in (writes_weight, assigns_buffer, counts):
        net = Net(function).eval()
        weight = net.line.weight.detach().clone()
        with pytest.raises(ImportRefused):
            sx.from_torch(net, example())
        assert torch.equal(net.line.weight, weight)
        assert torch.equal(net.buffer, torch.ones(4)) and net.calls == 0


def test_a_buffer_that_nothing_reads_may_count() -> None:
    def function(net: Any, x: Any) -> Any:
        net.buffer = net.buffer + 1
        return net.line(x)

    net = Net(function).eval()
    assert "same" in sx.from_torch(net, example()).metadata["sardonyx.imported"]
    assert torch.equal(net.buffer, torch.ones(4))


def test_views_inside_a_network_may_be_written_to() -> None:
    def function(net: Any, x: Any) -> Any:
        y = net.line(x)
        y.view(-1, 2, 2)[:, 0] += 1
        y[:, 3] *= 2
        return y

    assert imported(function).graph


def test_a_branch_on_a_size_is_taken_where_sizes_are_fixed() -> None:
    function = REFUSED["a branch on a size"][0]
    assert imported(function, dynamic=None).inputs[0].shape == (3, 4)


def test_one_row_may_lose_its_axis() -> None:
    """`squeeze` drops the axis of a batch of one in torch; the model keeps it."""
    assert imported(lambda net, x: net.line(x)[:, :1].squeeze())


def test_a_size_that_the_module_does_not_take_is_not_tried() -> None:
    class Parts(nn.Module):
        def forward(self, x: Any, sizes: Any) -> Any:
            return torch.split(x, sizes.tolist())[0] + 1

    assert sx.from_torch(Parts().eval(), (example(), torch.tensor([1, 2])))


MODES = {
    "dropout as a function": lambda net, x: nn.functional.dropout(net.line(x), 0.5, net.training),
    "a branch": lambda net, x: net.line(x) * (2 if net.training else 1),
}


@pytest.mark.parametrize("name", MODES)
def test_training_mode_is_refused_where_it_changes_outputs(name: str) -> None:
    with pytest.raises(ArgumentError, match=r'training mode\n.*"output"'):
        sx.from_torch(Net(MODES[name]), example())
    assert sx.from_torch(Net(lambda net, x: net.line(x)), example())  # here, it changes nothing


# -- training ---------------------------------------------------------------------------


def writes_outputs(outputs: Any, label: Any) -> Any:
    outputs[:, 0] = 0
    return squared(outputs, label)


def writes_labels(outputs: Any, label: Any) -> Any:
    return squared(outputs, label.sub_(1))


def doubled(gradient: Any) -> Any:
    return gradient * 2


def plain() -> Any:
    return Net(lambda net, x: net.line(x))


def with_parameter_hook() -> Any:
    net = plain()
    net.line.weight.register_hook(doubled)
    return trained(net)


def with_module_hook() -> Any:
    net = plain()
    net.line.register_full_backward_hook(lambda module, inputs, outputs: None)
    return trained(net)


def with_optimizer_hook() -> Any:
    net = plain()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    return trained(net, optimizer=optimizer)


def draws(outputs: Any, label: Any) -> Any:
    return squared(outputs, label) * np.random.rand()


def as_number(outputs: Any, label: Any) -> Any:
    return torch.tensor(squared(outputs, label).item())


class Centered(nn.Module):
    """Counts in training mode, in a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.register_buffer("center", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.center = 0.9 * self.center + 0.1 * x.detach().mean(0)
        return self.line(x - self.center)


TRAININGS: dict[str, tuple[Callable[[], Any], str]] = {
    "a loss that writes to outputs": (lambda: trained(plain(), writes_outputs), '"output"'),
    "a loss that writes to labels": (lambda: trained(plain(), writes_labels), '"label"'),
    "a loss that draws": (lambda: trained(plain(), draws), "no two trainings"),
    "a loss that ignores one label": (
        lambda: trained(plain(), lambda y, a, b: squared(y, a), labels=(example(), example())),
        '"label.1"',
    ),
    "a loss that is a number of Python": (lambda: trained(plain(), as_number), "line.weight"),
    "a hook on a parameter": (with_parameter_hook, 'parameter "line.weight"'),
    "a hook on a module": (with_module_hook, 'module "line"'),
    "a hook on an optimizer": (with_optimizer_hook, 'optimizer "SGD"'),
    "a buffer, where the loss is a name": (
        lambda: sx.from_torch(Centered(), example(), loss="mse", optimizer="sgd"),
        '"center"',
    ),
    "a class of optimizers": (lambda: trained(plain(), optimizer=torch.optim.SGD), '"SGD" is no'),
}


def test_a_buffer_that_is_assigned_in_training_mode_is_put_back() -> None:
    net = Centered()
    center = net.center
    with pytest.raises(ImportRefused, match='"center"'):
        trained(net)
    assert net.center is center
    assert not center.any()


@pytest.mark.parametrize("name", TRAININGS)
def test_what_a_training_must_not_do_is_refused(name: str) -> None:
    import_it, words = TRAININGS[name]
    with pytest.raises(SardonyxError, match=words):
        import_it()


def trains_alike(net: Any, loss: Any, **options: Any) -> None:
    """The record takes ten steps as torch does, on batches of their own."""
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    model = sx.from_torch(
        net, example(), loss=loss, labels=example(), optimizer=optimizer, **options
    )
    step = prepare_training(model, "onnxruntime")
    for seed in range(10):
        x, y = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
        step.step({"x": x.numpy(), "label": y.numpy()})
    state = step.state()
    for name in ("line.weight", "line.bias"):
        expected = net.get_parameter(name).detach().numpy()
        np.testing.assert_allclose(state[name], expected, atol=1e-6)


def test_a_loss_may_read_the_parameters_of_the_module() -> None:
    """The comparison trains a copy of the module, and the loss must follow it there."""
    net = plain()
    rate, weights = {"l1": 0.05}, [net.line.weight]
    trains_alike(net, lambda y, z: squared(y, z) + rate["l1"] * net.line.weight.abs().sum())
    trains_alike(net, lambda y, z: squared(y, z) + sum(w.square().sum() for w in weights))


def test_an_output_may_be_a_parameter() -> None:
    net = Net(lambda net, x: (net.line(x), net.line.weight))
    trains_alike(net, lambda y, z: squared(y[0], z) + y[1].square().sum())


def test_no_gradient_flows_through_a_number_of_python() -> None:
    net = Net(lambda net, x: net.line(x) * net.line.weight.sum().item())
    trains_alike(net, squared)


def test_a_scheduler_that_needs_a_metric_leaves_the_rate() -> None:
    net = plain()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    model = sx.from_torch(
        net, example(), loss=squared, labels=example(), optimizer=optimizer, scheduler=scheduler
    )
    notes = [c.value for c in sx.choices(model) if c.what == "not taken over"]
    assert notes == ["ReduceLROnPlateau: the rate stays"]


def test_a_scheduler_that_is_not_passed_is_said() -> None:
    net = plain()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model = sx.from_torch(net, example(), loss=squared, labels=example(), optimizer=optimizer)
    notes = [c.value for c in sx.choices(model) if c.what == "not taken over"]
    assert notes == ["a scheduler: the rate stays"]


def test_a_weight_that_keeps_its_numbers_may_be_written_to() -> None:
    def function(net: Any, x: Any) -> Any:
        with torch.no_grad():
            net.line.weight.div_(1.0)
        return net.line(x)

    assert imported(function)


def test_one_row_of_what_is_squeezed_inside() -> None:
    """The axis of a batch of one stays where torch has captured that it is larger."""

    def function(net: Any, x: Any) -> Any:
        first = net.line(x)[:, :1].squeeze()
        return torch.cat([net.line(x)[:, :2] * 0 + first.reshape(-1, 1), x], 1)

    net = Net(function).eval()
    model = sx.from_torch(net, example())
    row = example()[:1]
    with torch.no_grad():
        expected = net(row).numpy()
    ours = sx.to_numpy(model)(row.numpy())
    np.testing.assert_allclose(ours, expected, atol=1e-6)


class OnlySingle(torch.autograd.Function):
    """Knows float32 only, as kernels of some libraries do."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        if x.dtype == torch.float64:
            raise RuntimeError("expected Float")
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return OnlySingle.apply(self.layer(x))


def test_a_module_that_does_not_run_in_float64_is_compared_with_itself() -> None:
    model = sx.from_torch(Single().eval(), torch.randn(5, 4))
    assert model.metadata["sardonyx.imported"].endswith("same")


def test_a_training_that_does_not_run_in_float64_is_refused() -> None:
    module = Single()
    settings = {"loss": nn.MSELoss(), "labels": torch.randn(5, 3)}
    settings["optimizer"] = torch.optim.SGD(module.parameters(), 0.1)
    with pytest.raises(ImportRefused, match=r"(?s)float64.*expected Float.*verify=False"):
        sx.from_torch(module, torch.randn(5, 4), **settings)


def test_a_module_that_does_not_run_on_its_example_is_one_error() -> None:
    """torch's exporter does not see it: it knows shapes, not numbers."""

    class Picky(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:, torch.tensor([7])]

    with pytest.raises(ImportRefused, match=r"(?s)does not run.*test_from_torch_bad_input.py"):
        sx.from_torch(Picky().eval(), torch.randn(5, 4))


def test_a_packed_sequence_is_refused_with_what_to_do_instead() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 3, batch_first=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]

    with pytest.raises(ImportRefused, match=r"(?s)pad_packed_sequence.*hint:.*padded rows"):
        sx.from_torch(Packed().eval(), (torch.randn(3, 5, 4), torch.tensor([5, 4, 2])))

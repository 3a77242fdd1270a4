"""Optimizers, schedulers and losses of torch in imported records; torch going on is the oracle."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.build import Builder
from sardonyx.errors import ArgumentError, ImportRefused

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn, optim = torch.nn, torch.optim
schedulers = optim.lr_scheduler

from sardonyx.importers.torch.schedulers import read_scheduler  # noqa: E402

WARM_UP, STEPS, ROWS = 3, 100, 16
ENGINES = ["onnxruntime", "torch", "jax", "tensorflow"]


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def groups(net: Any, **second: Any) -> list[dict[str, Any]]:
    parameters = list(net.parameters())
    return [{"params": parameters[:2]}, {"params": parameters[2:], **second}]


def data() -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(ROWS, 8, generator=generator),
            torch.randint(0, 3, (ROWS,), generator=generator),
        )
        for _ in range(WARM_UP + STEPS)
    ]


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda n: optim.SGD(groups(n, lr=0.02), 0.05),
    "SGD-nesterov": lambda n: optim.SGD(
        groups(n, weight_decay=0.0), 0.05, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "SGD-dampening-maximize": lambda n: optim.SGD(
        groups(n, dampening=0.1), 1e-3, momentum=0.9, dampening=0.3, maximize=True
    ),
    "Adam": lambda n: optim.Adam(groups(n, betas=(0.8, 0.99)), 1e-3, weight_decay=0.01),
    "Adam-amsgrad-maximize": lambda n: optim.Adam(
        groups(n, lr=2e-3), 1e-3, amsgrad=True, maximize=True
    ),
    "AdamW": lambda n: optim.AdamW(groups(n, weight_decay=0.2), 1e-3),
    "AdamW-amsgrad": lambda n: optim.AdamW(groups(n, weight_decay=0.2), 1e-3, amsgrad=True),
    "Adagrad": lambda n: optim.Adagrad(groups(n, lr=0.02), 0.01),
    "Adagrad-decay": lambda n: optim.Adagrad(
        groups(n, lr=0.02), 0.01, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.1
    ),
    "RMSprop": lambda n: optim.RMSprop(groups(n, lr=2e-3), 1e-3),
    "RMSprop-centered": lambda n: optim.RMSprop(
        groups(n, lr=2e-3), 1e-3, centered=True, momentum=0.9, weight_decay=0.01
    ),
    "Adafactor": lambda n: optim.Adafactor(groups(n, lr=2e-2), 1e-2, weight_decay=0.01),
    "NAdam": lambda n: optim.NAdam(groups(n, lr=1e-3), 2e-3),
    "NAdam-decoupled": lambda n: optim.NAdam(
        groups(n, lr=1e-3), 2e-3, weight_decay=0.1, decoupled_weight_decay=True
    ),
    "RAdam": lambda n: optim.RAdam(groups(n, lr=2e-3), 1e-3, weight_decay=0.01),
    "Adamax": lambda n: optim.Adamax(groups(n, lr=1e-3), 2e-3, weight_decay=0.01),
    "Adadelta": lambda n: optim.Adadelta(groups(n, lr=0.5), 1.0, weight_decay=0.01),
    "Rprop": lambda n: optim.Rprop(groups(n, lr=1e-3), 2e-3),
    "ASGD": lambda n: optim.ASGD(groups(n, lr=0.02), 0.05, t0=20, weight_decay=0.01),
}
QUICK = ("SGD-nesterov", "RAdam", "Adam-amsgrad-maximize")


def step(net: Any, optimizer: Any, batch: Any, scheduler: Any = None) -> None:
    loss = nn.functional.cross_entropy(net(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()


def feeds(batch: Any) -> dict[str, np.ndarray]:
    return {"input": batch[0].numpy(), "label": batch[1].numpy()}


def apart(rep: Any, net: Any) -> float:
    state = rep.state()
    return max(float(np.abs(state[n] - v.numpy()).max()) for n, v in net.state_dict().items())


def continued(net: Any, optimizer: Any, scheduler: Any = None) -> tuple[Any, Any]:
    """The model after a few steps in torch, and the batches that follow."""
    batches = data()
    for batch in batches[:WARM_UP]:
        step(net, optimizer, batch, scheduler)
    model = sx.from_torch(
        net,
        batches[0][0],
        loss=nn.CrossEntropyLoss(),
        labels=batches[0][1],
        optimizer=optimizer,
        scheduler=scheduler,
    )
    return model, batches[WARM_UP:]


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in OPTIMIZERS]
)
def test_an_optimizer_goes_on_in_onnxruntime(name: str) -> None:
    check_engines(name, ["onnxruntime"])


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_in_every_engine(name: str) -> None:
    check_engines(name, ENGINES[1:])


def check_engines(name: str, engines: list[str]) -> None:
    net = network()
    optimizer = OPTIMIZERS[name](net)
    model, batches = continued(net, optimizer)
    for batch in batches:
        step(net, optimizer, batch)
    for engine in engines:
        rep = sx.prepare_training(model, engine)
        for batch in batches:
            rep.step(feeds(batch))
        assert apart(rep, net) < 1e-6, engine


def test_muon_takes_the_same_steps() -> None:
    # It rounds to bfloat16: where that falls differently, a step differs by 1e-6 and more, in
    # torch as well, where one bit of a weight is changed. Single steps show the formula.
    net = network()
    matrices = [{"params": [net[0].weight]}, {"params": [net[2].weight], "lr": 2e-3}]
    optimizer = optim.Muon(matrices, 1e-3)
    model, batches = continued(net, optimizer)
    rep = sx.prepare_training(model)
    differences = []
    for batch in batches[:40]:
        state = rep.state()
        for name, parameter in (("0.weight", net[0].weight), ("2.weight", net[2].weight)):
            state[name] = parameter.detach().numpy().copy()
            buffer = optimizer.state[parameter]["momentum_buffer"]
            state[f"{name}/momentum_buffer"] = buffer.numpy().copy()
        rep.load_state(state)
        rep.step(feeds(batch))
        step(net, optimizer, batch)
        after = rep.state()
        differences.append(np.abs(after["0.weight"] - net[0].weight.detach().numpy()).max())
    assert statistics.median(differences) < 1e-7


def test_parameters_with_other_counts_of_updates() -> None:
    net = network()
    optimizer = optim.AdamW(list(net[2].parameters()), 1e-3)
    batches = data()
    for batch in batches[:2]:
        step(net, optimizer, batch)
    optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 5e-4})
    model, rest = continued(net, optimizer)
    rep = sx.prepare_training(model)
    for batch in rest[:30]:
        step(net, optimizer, batch)
        rep.step(feeds(batch))
    assert apart(rep, net) < 1e-6


def test_clipping_accumulation_and_frozen_parameters() -> None:
    net = network()
    net[0].bias.requires_grad_(False)
    optimizer = optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1, momentum=0.9)
    x, y = data()[0]
    settings: dict[str, Any] = {"clip_norm": 0.05, "accumulate": 2, "ema": 0.9}
    model = sx.from_torch(
        net, x, loss=nn.CrossEntropyLoss(), labels=y, optimizer=optimizer, **settings
    )
    rep = sx.prepare_training(model)
    batches = data()[:8]
    for index, batch in enumerate(batches):
        (nn.functional.cross_entropy(net(batch[0]), batch[1]) / 2).backward()
        if index % 2:
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
        rep.step(feeds(batch))
    assert "0.bias" not in rep.variables
    state = rep.state()
    for name in ("0.weight", "2.weight", "2.bias"):
        expected = net.get_parameter(name).detach().numpy()
        np.testing.assert_allclose(state[name], expected, atol=1e-6)
    assert any(c.what == "not trained" and "0.bias" in c.value for c in sx.choices(model))


class Signed(optim.Optimizer):
    """An optimizer of a user: the sign of a momentum, with a decay that follows its count."""

    def __init__(self, params: Any, lr: float = 1e-3, count: Any = torch.tensor):
        super().__init__(params, {"lr": lr, "beta": 0.9})
        self.count = count

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["t"] = torch.zeros_like(p), self.count(0.0)
                state["t"] += 1
                state["m"].lerp_(p.grad, 1 - group["beta"])
                p.add_(state["m"].tanh() / (state["t"] + 10) ** 0.5, alpha=-group["lr"])


def test_an_optimizer_of_a_user_is_captured() -> None:
    net = network()
    optimizer = Signed(groups(net, lr=5e-2), 1e-1)
    model, batches = continued(net, optimizer)
    rep = sx.prepare_training(model)
    for batch in batches[:40]:
        step(net, optimizer, batch)
        rep.step(feeds(batch))
    assert apart(rep, net) < 1e-6


def test_an_optimizer_that_counts_in_python_is_refused() -> None:
    net = network()
    with pytest.raises(ImportRefused, match='"t"'):
        continued(net, Signed(net.parameters(), count=float))


def test_an_optimizer_without_a_formula_needs_state() -> None:
    net, (x, y) = network(), data()[0]
    with pytest.raises(ImportRefused, match="no state yet"):
        sx.from_torch(
            net, x, loss=nn.CrossEntropyLoss(), labels=y, optimizer=Signed(net.parameters())
        )


# -- schedulers -------------------------------------------------------------------------

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, [lambda e: 0.95**e, lambda e: 1 / (1 + e)]),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda e: 0.97),
    "StepLR": lambda o: schedulers.StepLR(o, 7, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [10, 30, 3000], 0.3),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.2, 20),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.1, 1.0, 25),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.98),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 10), schedulers.CosineAnnealingLR(o, 40)], [10]
    ),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 60, 2.0),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 30, 1e-5),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.1, 5), schedulers.ExponentialLR(o, 0.95)]
    ),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-3, 1e-2, step_size_up=9, mode="triangular2"),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, [5e-3, 1e-2], total_steps=5000),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 10, 2),
}


def values(schedule: Any, base: float, places: list[int]) -> np.ndarray:
    """The numbers that a schedule writes into a record, run by the NumPy engine."""
    op = Builder("schedule")
    t = ir.Value(name="t", type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape([]))
    with op:
        factor = schedule.factor(op, t)
    constants = list(op.constants.values())
    graph = ir.Graph(
        [t], [factor], nodes=op.nodes, initializers=constants, opset_imports={"": 28}, name="s"
    )
    run = sx.to_numpy(sx.Model(ir.Model(graph, ir_version=10)))
    return np.array([base * float(run(np.array(float(p)))) for p in places])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_a_table_from_its_present_position(name: str) -> None:
    net = network()
    optimizer = optim.SGD(groups(net, lr=5e-3), 1e-2, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(WARM_UP):
        scheduler.step()
    before = [g["lr"] for g in optimizer.param_groups]
    timetable = read_scheduler(optimizer, scheduler)
    assert [g["lr"] for g in optimizer.param_groups] == before
    places = [*range(60), 500, 2990, 3100, 4900]
    settings = [timetable.placed(g, WARM_UP) for g in (0, 1)]
    rates, momenta = [], []
    for place in range(places[-1] + 1):
        if place in places:
            rates.append([g["lr"] for g in optimizer.param_groups])
            momenta.append(optimizer.param_groups[0]["momentum"])
        scheduler.step()
    counts = [p + WARM_UP for p in places]
    for group in (0, 1):
        rate = values(settings[group]["schedule"], settings[group]["lr"], counts)
        np.testing.assert_allclose(rate, np.array(rates)[:, group], rtol=1e-8, atol=1e-16)
    if "momentum_schedule" in settings[0]:
        cycled = values(settings[0]["momentum_schedule"], settings[0]["momentum"], counts)
        np.testing.assert_allclose(cycled, momenta, rtol=1e-9)
    else:
        assert len(set(momenta)) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on(name: str, kind: str) -> None:
    net = network()
    settings = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(optim, kind)(groups(net, lr=5e-3), 1e-2, **settings)
    scheduler = SCHEDULERS[name](optimizer)
    model, batches = continued(net, optimizer, scheduler)
    rep = sx.prepare_training(model)
    for batch in batches:
        step(net, optimizer, batch, scheduler)
        rep.step(feeds(batch))
    assert apart(rep, net) < 1e-6


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    net = network()
    optimizer, other = (optim.SGD(net.parameters(), 0.1) for _ in range(2))
    with pytest.raises(ArgumentError, match="not one of this optimizer"):
        read_scheduler(optimizer, schedulers.StepLR(other, 3))


# -- losses -----------------------------------------------------------------------------


def signs(*shape: int) -> Any:
    return torch.sign(torch.randn(*shape))


class Head(nn.Module):
    """A layer with an activation, or two layers side by side."""

    def __init__(self, activation: Any = None, several: int = 1):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 4) for _ in range(several))
        self.activation = activation

    def forward(self, x: Any) -> Any:
        results = tuple(layer(x) for layer in self.layers)
        if self.activation is not None:
            return self.activation(results[0])
        return results[0] if len(results) == 1 else results


def log_softmax(x: Any) -> Any:
    return x.log_softmax(1)


def both(loss: Any) -> Callable[..., Any]:
    return lambda outputs, label: loss(*outputs, label)


def losses() -> dict[str, tuple[Any, Any, Any]]:
    """A network, a loss and labels."""
    torch.manual_seed(0)
    classes, numbers = torch.tensor([0, 1, 2, 3, 2, 0]), torch.randn(6, 4)
    shares, weight = torch.softmax(torch.randn(6, 4), 1), torch.rand(4) + 0.1
    plain = Head()
    linear = {}
    if hasattr(nn, "LinearCrossEntropyLoss"):  # since torch 2.13
        linear = {"LinearCrossEntropyLoss": (plain, nn.LinearCrossEntropyLoss(4, 3), classes % 3)}
    return {
        **linear,
        "L1Loss": (plain, nn.L1Loss(), numbers),
        "MSELoss": (plain, nn.MSELoss(reduction="sum"), numbers),
        "CrossEntropyLoss": (plain, nn.CrossEntropyLoss(), classes),
        "CrossEntropyLoss-all": (
            plain, nn.CrossEntropyLoss(weight, ignore_index=2, label_smoothing=0.1), classes,
        ),
        "CrossEntropyLoss-shares": (
            plain, nn.CrossEntropyLoss(weight, label_smoothing=0.1), shares,
        ),
        "NLLLoss": (Head(log_softmax), nn.NLLLoss(weight, ignore_index=2), classes),
        "PoissonNLLLoss": (plain, nn.PoissonNLLLoss(full=True), numbers.abs() * 3),
        "GaussianNLLLoss": (
            Head(several=2),
            lambda o, y: nn.GaussianNLLLoss(full=True)(o[0], y, nn.functional.softplus(o[1])),
            numbers,
        ),
        "KLDivLoss": (Head(log_softmax), nn.KLDivLoss(reduction="batchmean"), shares),
        "BCELoss": (Head(torch.sigmoid), nn.BCELoss(), shares),
        "BCEWithLogitsLoss": (plain, nn.BCEWithLogitsLoss(weight, pos_weight=weight + 1), shares),
        "MarginRankingLoss": (Head(several=2), both(nn.MarginRankingLoss(0.3)), signs(6, 4)),
        "HingeEmbeddingLoss": (plain, nn.HingeEmbeddingLoss(), signs(6, 4)),
        "MultiLabelMarginLoss": (
            plain, nn.MultiLabelMarginLoss(), torch.tensor([[3, 0, -1, 1], [1, -1, 2, 0]] * 3),
        ),
        "HuberLoss": (plain, nn.HuberLoss(delta=0.5), numbers),
        "SmoothL1Loss": (plain, nn.SmoothL1Loss(beta=0.7), numbers),
        "SoftMarginLoss": (plain, nn.SoftMarginLoss(), signs(6, 4)),
        "MultiLabelSoftMarginLoss": (plain, nn.MultiLabelSoftMarginLoss(weight), shares.round()),
        "CosineEmbeddingLoss": (Head(several=2), both(nn.CosineEmbeddingLoss(0.1)), signs(6)),
        "MultiMarginLoss": (plain, nn.MultiMarginLoss(2, weight=weight), classes),
        "TripletMarginLoss": (
            Head(several=3), lambda o, w: (nn.TripletMarginLoss(reduction="none")(*o) * w).mean(),
            torch.rand(6),
        ),
        "TripletMarginWithDistanceLoss": (
            Head(several=3),
            lambda o, w: (nn.TripletMarginWithDistanceLoss(reduction="none")(*o) * w).mean(),
            torch.rand(6),
        ),
    }  # fmt: skip


QUICK_LOSSES = ("CrossEntropyLoss-all", "GaussianNLLLoss", "MarginRankingLoss")


@pytest.mark.parametrize(
    "name", [n if n in QUICK_LOSSES else pytest.param(n, marks=pytest.mark.slow) for n in losses()]
)
def test_a_loss_trains_as_in_torch(name: str) -> None:
    # The import itself takes two steps in onnxruntime and in torch, and raises where they differ.
    net, loss, labels = losses()[name]
    of_loss = loss.parameters() if isinstance(loss, nn.Module) else ()
    optimizer = optim.SGD([*net.parameters(), *of_loss], 0.05, momentum=0.9)
    model = sx.from_torch(net, torch.randn(6, 5), loss=loss, labels=labels, optimizer=optimizer)
    assert "training" in model.metadata["sardonyx.imported"]


def test_every_loss_of_torch_is_tested() -> None:
    names = {n for n in dir(nn) if n.endswith("Loss") and n != "AdaptiveLogSoftmaxWithLoss"}
    assert names - {"CTCLoss", "NLLLoss2d"} <= {n.partition("-")[0] for n in losses()}


@pytest.mark.slow
def test_ctc_trains_as_in_torch() -> None:
    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 7)

        def forward(self, x: Any) -> Any:
            return self.head(x).log_softmax(-1).transpose(0, 1)

    net = Frames()
    lengths = torch.tensor([3, 2, 3, 1])
    labels = (torch.randint(1, 7, (4, 3)), torch.tensor([6, 6, 5, 6]), lengths)
    optimizer = optim.SGD(net.parameters(), 0.05)
    sx.from_torch(net, torch.randn(4, 6, 5), loss=nn.CTCLoss(), labels=labels, optimizer=optimizer)


# -- gradients that are stopped ---------------------------------------------------------


class Stopping(nn.Module):
    """detach(), a region without gradients, and an embedding whose padding does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.target = nn.Linear(4, 4), nn.Linear(4, 4)
        self.embed = nn.Embedding(5, 4, padding_idx=2)
        nn.init.normal_(self.embed.weight)

    def forward(self, x: Any, ids: Any) -> Any:
        h = self.layer(x) + self.embed(ids)
        with torch.no_grad():
            k = self.target(x * 2) * self.layer(x)
        return h * h.detach() + k + self.target(x)


def test_stopped_gradients_stay_stopped() -> None:
    torch.manual_seed(0)
    net = Stopping()
    arguments = (torch.randn(5, 4), torch.tensor([2, 0, 1, 2, 3]))
    optimizer = optim.AdamW(net.parameters(), 1e-2)  # the padding's row decays all the same
    model = sx.from_torch(
        net, arguments, loss=nn.MSELoss(), labels=torch.randn(5, 4), optimizer=optimizer
    )
    assert "training" in model.metadata["sardonyx.imported"]


class Teacher(nn.Module):
    """A part without gradients that is still in the optimizer, as in networks with a teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher, self.choice = (nn.Linear(8, 3) for _ in range(3))

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            soft = self.teacher(x).softmax(-1)
        return self.student(x) + soft + self.choice(x).argmax(-1, keepdim=True)


def test_what_gradients_do_not_arrive_at_is_left_alone_after_steps() -> None:
    torch.manual_seed(0)
    net = Teacher()
    optimizer = optim.AdamW(net.parameters(), 1e-2, weight_decay=0.5)
    model, batches = continued(net, optimizer)
    rep = sx.prepare_training(model)
    for batch in batches[:10]:
        step(net, optimizer, batch)
        rep.step({"x": batch[0].numpy(), "label": batch[1].numpy()})
    state = {n: array for n, array in rep.state().items() if n in net.state_dict()}
    assert sorted(state) == ["student.bias", "student.weight"]
    for name, array in state.items():
        np.testing.assert_allclose(array, net.state_dict()[name].numpy(), atol=1e-6)


# -- and back ---------------------------------------------------------------------------


def test_weights_and_state_go_back_into_the_file() -> None:
    net = network()
    optimizer = optim.AdamW(groups(net, lr=5e-3), 1e-3)
    model, batches = continued(net, optimizer)
    for batch in batches[:5]:
        step(net, optimizer, batch)
    later = sx.with_weights(model, net, optimizer=optimizer)
    rep = sx.prepare_training(later)
    assert int(rep.state()["train/step"]) == WARM_UP + 5
    for batch in batches[5:20]:
        step(net, optimizer, batch)
        rep.step(feeds(batch))
    assert apart(rep, net) < 1e-6
    with pytest.raises(ArgumentError, match="optimizer is adamw"):
        sx.with_weights(model, net, optimizer=optim.SGD(net.parameters(), 0.1))


def test_tied_weights_of_numbered_layers_train_as_one() -> None:
    torch.manual_seed(0)
    head = nn.Linear(8, 20, bias=False)
    net = nn.Sequential(nn.Embedding(20, 8), nn.LayerNorm(8), head)
    head.weight = net[0].weight
    ids, target = torch.randint(0, 20, (5, 6)), torch.randint(0, 20, (5, 6))
    optimizer = optim.SGD(net.parameters(), 0.1)

    def loss(outputs: Any, label: Any) -> Any:
        return nn.functional.cross_entropy(outputs.transpose(1, 2), label)

    model = sx.from_torch(net, ids, loss=loss, labels=target, optimizer=optimizer)
    rep = sx.prepare_training(model)
    for _ in range(3):
        optimizer.zero_grad()
        loss(net(ids), target).backward()
        optimizer.step()
        rep.step({"input": ids.numpy(), "label": target.numpy()})
    np.testing.assert_allclose(rep.state()["0.weight"], net[0].weight.detach(), atol=1e-6)

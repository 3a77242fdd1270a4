"""Every optimizer against torch.optim (or its paper), over 50 steps in float64."""

from __future__ import annotations

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.errors import ArgumentError
from sardonyx.record.optim import Optimizer

from .networks import mlp, torch_mlp

torch = pytest.importorskip("torch")

STEPS = 50


def batches(count: int = STEPS):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(1)
    for _ in range(count):
        yield rng.normal(size=(7, 6)), rng.normal(size=(7, 3))


def ours(optimizer: Optimizer, steps: int = STEPS, **settings: object) -> dict[str, np.ndarray]:
    net = sx.trainable(mlp(dtype=np.float64), "mse", optimizer, **settings)  # type: ignore[arg-type]
    rep = prepare_training(net, threads=1)
    for x, y in batches(steps):
        rep.step({"x": x, "label": y})
    return {n: a for n, a in rep.state().items() if n.startswith("fc") and "/" not in n}


def theirs(make, steps: int = STEPS, each=None):  # type: ignore[no-untyped-def]
    parameters, forward = torch_mlp(mlp(dtype=np.float64))
    optimizer = make(list(parameters.values()))
    for i, (x, y) in enumerate(batches(steps)):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y)).backward()
        if each is not None:
            each(i, optimizer, parameters)
        optimizer.step()
    return {n: p.detach().numpy() for n, p in parameters.items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9 * scale, err_msg=name)


O = torch.optim
TABLE = {
    "sgd": (sx.optim.sgd(0.1), lambda p: O.SGD(p, 0.1)),
    "sgd momentum": (sx.optim.sgd(0.05, 0.9), lambda p: O.SGD(p, 0.05, 0.9)),
    "sgd nesterov": (
        sx.optim.sgd(0.05, 0.9, nesterov=True, weight_decay=0.1),
        lambda p: O.SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.1),
    ),
    "sgd dampening": (
        sx.optim.sgd(0.05, 0.9, dampening=0.3),
        lambda p: O.SGD(p, 0.05, 0.9, dampening=0.3),
    ),
    "adam": (sx.optim.adam(0.01), lambda p: O.Adam(p, 0.01)),
    "adam decay": (
        sx.optim.adam(0.01, 0.8, 0.99, 1e-3, 0.1),
        lambda p: O.Adam(p, 0.01, (0.8, 0.99), 1e-3, 0.1),
    ),
    "adamw": (sx.optim.adamw(0.01, weight_decay=0.2), lambda p: O.AdamW(p, 0.01, weight_decay=0.2)),
    "adagrad": (
        sx.optim.adagrad(0.05, 0.1, initial=0.1, weight_decay=0.01),
        lambda p: O.Adagrad(p, 0.05, 0.1, 0.01, 0.1),
    ),
    "rmsprop": (sx.optim.rmsprop(0.01), lambda p: O.RMSprop(p, 0.01)),
    "rmsprop centered": (
        sx.optim.rmsprop(0.01, momentum=0.5, centered=True, weight_decay=0.1),
        lambda p: O.RMSprop(p, 0.01, momentum=0.5, centered=True, weight_decay=0.1),
    ),
    "adafactor": (
        sx.optim.adafactor(0.05, weight_decay=0.1),
        lambda p: O.Adafactor(p, 0.05, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_matches_torch(name: str) -> None:
    optimizer, make = TABLE[name]
    assert_same(ours(optimizer), theirs(make))


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, params, lr, b1, b2, weight_decay):  # type: ignore[no-untyped-def]
        super().__init__(params, {"lr": lr})
        self.b1, self.b2, self.weight_decay = b1, b2, weight_decay

    @torch.no_grad()
    def step(self):  # type: ignore[no-untyped-def,override]
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = self.b1 * m + (1 - self.b1) * p.grad
                p -= group["lr"] * (c.sign() + self.weight_decay * p)
                m.copy_(self.b2 * m + (1 - self.b2) * p.grad)


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, algorithm 2, with bias correction and phi the identity."""

    def __init__(self, params, lr, weight_decay):  # type: ignore[no-untyped-def]
        super().__init__(params, {"lr": lr})
        self.weight_decay, self.t = weight_decay, 0

    @torch.no_grad()
    def step(self):  # type: ignore[no-untyped-def,override]
        self.t += 1
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                v = self.state[p].setdefault("v", torch.zeros_like(p))
                m.copy_(0.9 * m + 0.1 * p.grad)
                v.copy_(0.999 * v + 0.001 * p.grad**2)
                r = (m / (1 - 0.9**self.t)) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-6)
                u = r + self.weight_decay * p
                p -= group["lr"] * (p.norm() / u.norm()) * u


def test_lion_follows_its_paper() -> None:
    # float64 all through: the sign of a rounding error would be a whole step
    assert_same(
        ours(sx.optim.lion(1e-3, weight_decay=0.1)), theirs(lambda p: Lion(p, 1e-3, 0.9, 0.99, 0.1))
    )


def test_lamb_follows_its_paper() -> None:
    assert_same(ours(sx.optim.lamb(0.01, weight_decay=0.1)), theirs(lambda p: Lamb(p, 0.01, 0.1)))


def test_clip_by_global_norm() -> None:
    def clip(i, optimizer, parameters):  # type: ignore[no-untyped-def]
        torch.nn.utils.clip_grad_norm_(parameters.values(), 0.1)

    result = ours(sx.optim.sgd(0.1), clip_norm=0.1)
    assert_same(result, theirs(lambda p: O.SGD(p, 0.1), each=clip))


def test_clip_by_value() -> None:
    def clip(i, optimizer, parameters):  # type: ignore[no-untyped-def]
        torch.nn.utils.clip_grad_value_(parameters.values(), 0.05)

    assert_same(
        ours(sx.optim.sgd(0.1), clip_value=0.05), theirs(lambda p: O.SGD(p, 0.1), each=clip)
    )


def clip_norm(limit: float):  # type: ignore[no-untyped-def]
    return lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, limit)


def clip_value(limit: float):  # type: ignore[no-untyped-def]
    return lambda parameters: torch.nn.utils.clip_grad_value_(parameters, limit)


# Settings beside `accumulate`: our optimizer and settings, torch's optimizer, clipping, schedule.
ACCUMULATED = {
    "adam": (sx.optim.adam(0.01), {}, lambda p: O.Adam(p, 0.01), None, None),
    "clip_norm": (
        sx.optim.sgd(0.1), {"clip_norm": 0.05}, lambda p: O.SGD(p, 0.1), clip_norm(0.05), None,
    ),
    "clip_value": (
        sx.optim.sgd(0.1), {"clip_value": 0.01}, lambda p: O.SGD(p, 0.1), clip_value(0.01), None,
    ),
    "schedule": (
        sx.optim.adamw(0.01, schedule=sx.schedule.step(3, 0.5)), {},
        lambda p: O.AdamW(p, 0.01), None, lambda o: O.lr_scheduler.StepLR(o, 3, 0.5),
    ),
    "warm-up and clip_norm": (
        sx.optim.sgd(0.1, 0.9, schedule=sx.schedule.linear_warmup(6)), {"clip_norm": 0.05},
        lambda p: O.SGD(p, 0.1, 0.9), clip_norm(0.05),
        lambda o: O.lr_scheduler.LambdaLR(o, lambda t: min((t + 1) / 6, 1.0)),
    ),
    "dampening": (
        sx.optim.sgd(0.05, 0.9, dampening=0.3), {},
        lambda p: O.SGD(p, 0.05, 0.9, dampening=0.3), None, None,
    ),
    "adagrad's decay": (
        sx.optim.adagrad(0.05, 0.1), {}, lambda p: O.Adagrad(p, 0.05, 0.1), None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCUMULATED)
def test_everything_is_counted_by_updates_where_gradients_are_accumulated(name: str) -> None:
    optimizer, settings, make, clip, schedule = ACCUMULATED[name]
    net = sx.trainable(mlp(dtype=np.float64), "mse", optimizer, accumulate=5, ema=0.9, **settings)
    rep = prepare_training(net, threads=1)
    parameters, forward = torch_mlp(mlp(dtype=np.float64))
    average = {n: p.detach().clone() for n, p in parameters.items()}
    theirs = make(list(parameters.values()))
    scheduler = schedule(theirs) if schedule else None
    for i, (x, y) in enumerate(batches()):
        rep.step({"x": x, "label": y})
        (torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y)) / 5).backward()
        if i % 5 < 4:
            continue
        if clip:
            clip(parameters.values())
        theirs.step()
        if scheduler:
            scheduler.step()
        theirs.zero_grad()
        average = {n: 0.9 * average[n] + 0.1 * p.detach() for n, p in parameters.items()}
    state = rep.state()
    assert_same(
        {n: state[n] for n in average}, {n: p.detach().numpy() for n, p in parameters.items()}
    )
    assert_same({n: state[f"{n}/ema"] for n in average}, {n: a.numpy() for n, a in average.items()})


def test_groups_are_clipped_together_after_accumulation() -> None:
    group = {"*.bias": {"lr": 0.02}}
    result = ours(sx.optim.sgd(0.1), accumulate=5, clip_norm=0.05, groups=group)
    parameters, forward = torch_mlp(mlp(dtype=np.float64))
    biases = [p for n, p in parameters.items() if n.endswith("bias")]
    rest = [p for n, p in parameters.items() if not n.endswith("bias")]
    optimizer = O.SGD([{"params": biases, "lr": 0.02}, {"params": rest}], 0.1)
    for i, (x, y) in enumerate(batches()):
        (torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y)) / 5).backward()
        if i % 5 == 4:
            torch.nn.utils.clip_grad_norm_(parameters.values(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
    assert_same(result, {n: p.detach().numpy() for n, p in parameters.items()})


CHAINS = {
    "adam": sx.optim.chain(sx.optim.scale_by_adam(), sx.optim.scale_by_rate(0.01)),
    "adam, ema": sx.optim.chain(
        sx.optim.scale_by_adam(), sx.optim.scale_by_rate(0.01), sx.optim.ema(0.9)
    ),
    "accumulated": sx.optim.chain(sx.optim.accumulate(sx.optim.adam(0.01), 1)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_ones_own_match_torch(name: str) -> None:
    assert_same(ours(CHAINS[name]), theirs(lambda p: O.Adam(p, 0.01)))


def test_a_chain_accumulates_where_a_part_does() -> None:
    chain = sx.optim.chain(sx.optim.clip_by_value(0.01), sx.optim.accumulate(sx.optim.sgd(0.1), 5))
    assert_same(ours(chain), ours(sx.optim.sgd(0.1), accumulate=5, clip_value=0.01))
    with pytest.raises(ArgumentError, match="accumulate over"):
        sx.optim.chain(chain, sx.optim.accumulate(sx.optim.sgd(), 2))


def test_hyperparameters_of_a_double_record_are_double() -> None:
    net = sx.trainable(mlp(dtype=np.float64), "mse", sx.optim.adamw(1e-3, weight_decay=0.01))
    state = net.records[0].state
    assert state["learning_rate"].numpy().tolist() == 1e-3
    assert state["weight_decay"].numpy().tolist() == 0.01


def test_groups_have_their_own_settings() -> None:
    result = ours(sx.optim.adamw(0.01), groups={"*.bias": {"weight_decay": 0.0, "lr": 0.002}})
    parameters, forward = torch_mlp(mlp(dtype=np.float64))
    biases = [p for n, p in parameters.items() if n.endswith("bias")]
    rest = [p for n, p in parameters.items() if not n.endswith("bias")]
    optimizer = O.AdamW(
        [{"params": biases, "lr": 0.002, "weight_decay": 0.0}, {"params": rest}], 0.01
    )
    for x, y in batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y)).backward()
        optimizer.step()
    assert_same(result, {n: p.detach().numpy() for n, p in parameters.items()})


def test_moving_average_of_weights() -> None:
    net = sx.trainable(mlp(dtype=np.float64), "mse", sx.optim.sgd(0.1), ema=0.9)
    rep = prepare_training(net, threads=1)
    parameters, forward = torch_mlp(mlp(dtype=np.float64))
    average = {n: p.detach().clone() for n, p in parameters.items()}
    optimizer = O.SGD(parameters.values(), 0.1)
    for x, y in batches(10):
        rep.step({"x": x, "label": y})
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y)).backward()
        optimizer.step()
        for n, p in parameters.items():
            average[n] = 0.9 * average[n] + 0.1 * p.detach()
    state = rep.state()
    assert_same({n: state[f"{n}/ema"] for n in average}, {n: a.numpy() for n, a in average.items()})


SCHEDULES = {
    "warm-up": (
        sx.schedule.linear_warmup(10),
        lambda o: O.lr_scheduler.LambdaLR(o, lambda t: min((t + 1) / 10, 1.0)),
    ),
    "cosine": (
        sx.schedule.cosine(30, 0.1),
        lambda o: O.lr_scheduler.LambdaLR(
            o, lambda t: 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * min(t / 30, 1)))
        ),
    ),
    "step": (sx.schedule.step(7, 0.5), lambda o: O.lr_scheduler.StepLR(o, 7, 0.5)),
    "exponential": (sx.schedule.exponential(0.95), lambda o: O.lr_scheduler.ExponentialLR(o, 0.95)),
    "one cycle": (
        sx.schedule.one_cycle(STEPS + 1),
        lambda o: O.lr_scheduler.OneCycleLR(o, 0.1, STEPS + 1, cycle_momentum=False),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_matches_torch(name: str) -> None:
    schedule, make = SCHEDULES[name]
    parameters, forward = torch_mlp(mlp(dtype=np.float64))
    optimizer = O.SGD(parameters.values(), 0.1)
    scheduler = make(optimizer)
    for x, y in batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y)).backward()
        optimizer.step()
        scheduler.step()
    result = ours(sx.optim.sgd(0.1, schedule=schedule))
    assert_same(result, {n: p.detach().numpy() for n, p in parameters.items()})


def test_unknown_names_and_settings_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no optimizer is called 'adamx'"):
        sx.trainable(mlp(), "mse", "adamx")
    with pytest.raises(ArgumentError, match="no setting learning_rate"):
        sx.optim.named("adam", learning_rate=1.0)


def test_muon_names_all_weights_that_are_no_matrices() -> None:
    with pytest.raises(ArgumentError, match="matrices alone") as refusal:
        sx.trainable(mlp(), "mse", sx.optim.muon())
    biases = [w.name for w in sx.weights(mlp()) if len(w.shape) != 2]
    assert biases and all(name in str(refusal.value) for name in biases)


def test_learning_rate_is_an_input_of_the_step() -> None:
    rep = prepare_training(sx.trainable(mlp(), "mse", sx.optim.sgd(0.1)), threads=1)
    before = rep.state()["fc0.weight"]
    x, y = (a.astype(np.float32) for a in next(iter(batches(1))))
    rep.step({"x": x, "label": y, "learning_rate": 0.0})
    assert np.array_equal(rep.state()["fc0.weight"], before)
    rep.step({"x": x, "label": y})
    assert not np.array_equal(rep.state()["fc0.weight"], before)

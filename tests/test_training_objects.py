"""`to_torch(training=True)` and `to_jax(training=True)`: a record as the framework's own objects.

Both loops start from a record in the middle of a run; the oracle of the objects is onnxruntime, and
that of the way back is the run that was never interrupted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError
from sardonyx.record.schedule import factor_at
from tests.networks import cnn, mlp, network

BEFORE, AFTER, BACK = 5, 20, 5
RNG = np.random.default_rng(0)
XS = RNG.normal(size=(BEFORE + AFTER + BACK, 8, 6)).astype(np.float32)
YS = RNG.integers(0, 3, (BEFORE + AFTER + BACK, 8))
OF_TORCH = [n for n in sx.optim.MAKERS if n not in ("onnx_adam", "lion", "lamb")]
WARM_UP = sx.schedule.linear_warmup(4, after=sx.schedule.cosine(20, end=0.1))
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "schedule, groups and clipping": {
        "schedule": WARM_UP,
        "clip_norm": 0.2,
        "groups": {"*.bias": {"lr": 3e-4}},
    },
}


def sampled(names: Any) -> list[Any]:
    """Every optimizer; those outside a small sample are tested at night."""
    kept = ("sgd", "adamw", "nadam")
    return [n if n in kept else pytest.param(n, marks=pytest.mark.nightly) for n in names]


def net_of(name: str, how: str) -> Any:
    settings = dict(HOW[how])
    schedule = settings.pop("schedule", None)
    optimizer = sx.optim.named(name)
    if name == "muon":  # for matrices
        settings = {**settings, "train": "*.weight", "groups": None}
    if schedule is not None and name != "rprop":
        optimizer = optimizer.with_(schedule=schedule)
    return sx.trainable(mlp(), "cross_entropy", optimizer, **settings)


def continued(net: Any, run: Callable[[Any, range], tuple[list[float], Any]]) -> None:
    """Train on onnxruntime, in the framework, and on onnxruntime again; losses as without."""
    rep = sx.prepare_training(net, threads=1)
    for i in range(BEFORE):
        rep.step({"x": XS[i], "label": YS[i]})
    theirs, model = run(rep.to_model(), range(BEFORE, BEFORE + AFTER))
    ours = [float(rep.step({"x": XS[i], "label": YS[i]})["loss"]) for i in range(BEFORE, 25)]
    np.testing.assert_allclose(theirs, ours, rtol=1e-6)
    again = sx.prepare_training(model, threads=1)
    for i in range(BEFORE + AFTER, len(XS)):
        feeds = {"x": XS[i], "label": YS[i]}
        assert float(again.step(feeds)["loss"]) == pytest.approx(
            float(rep.step(feeds)["loss"]), rel=1e-6
        )


# -- torch ------------------------------------------------------------------------------------


def in_torch(model: Any, steps: range) -> tuple[list[float], Any]:
    torch = pytest.importorskip("torch")
    module, loss, optimizer, scheduler = sx.to_torch(model, training=True)
    assert isinstance(module, torch.nn.Module) and module.training
    assert type(optimizer).__module__.startswith("torch.optim")
    losses = []
    for i in steps:
        optimizer.zero_grad()
        value = loss(module(torch.from_numpy(XS[i])), torch.from_numpy(YS[i]))
        value.backward()
        optimizer.step()
        scheduler.step()
        losses.append(value.item())
    return losses, sx.with_weights(model, module, optimizer=optimizer)


def of_torch_network(rate: float = 1e-2) -> Any:
    """A network of torch, its optimizer and scheduler, and a loss that only code describes."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    optimizer = torch.optim.AdamW(net.parameters(), rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)

    def loss(scores: Any, label: Any) -> Any:
        each = torch.nn.functional.cross_entropy(scores, label, reduction="none")
        return each.sum() / len(label) + 0.1 * scores.logsumexp(1).square().mean()

    return net, loss, optimizer, scheduler


def step_of_torch(parts: Any, i: int) -> float:
    torch = pytest.importorskip("torch")
    net, loss, optimizer, scheduler = parts
    optimizer.zero_grad()
    value = loss(net(torch.from_numpy(XS[i])), torch.from_numpy(YS[i]))
    value.backward()
    optimizer.step()
    scheduler.step()
    return value.item()


def test_an_imported_training_goes_back_to_torch() -> None:
    torch = pytest.importorskip("torch")
    parts = of_torch_network()
    for i in range(BEFORE):
        step_of_torch(parts, i)
    net, loss, optimizer, scheduler = parts
    model = sx.from_torch(
        net, torch.from_numpy(XS[0]), loss=loss, labels=torch.from_numpy(YS[0]),
        optimizer=optimizer, scheduler=scheduler,
    )  # fmt: skip
    expected = [step_of_torch(parts, i) for i in range(BEFORE, len(XS))]
    rep = sx.prepare_training(model, threads=1)
    name = rep.step_inputs[0].name
    losses = [float(rep.step({name: XS[i], "label": YS[i]})["loss"]) for i in range(5, 10)]
    again = sx.to_torch(rep.to_model(), training=True)
    losses += [step_of_torch(again, i) for i in range(10, 20)]
    model = sx.with_weights(model, again[0], optimizer=again[2])
    rep = sx.prepare_training(model, threads=1)
    losses += [float(rep.step({name: XS[i], "label": YS[i]})["loss"]) for i in range(20, 30)]
    np.testing.assert_allclose(losses, expected, rtol=2e-6)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_scheduler_that_cycles_the_momentum_goes_back_to_torch(kind: str) -> None:
    """With a group that was added later, whose updates and schedule stand elsewhere."""
    torch = pytest.importorskip("torch")
    net, loss, _, _ = of_torch_network()
    momentum = {} if kind == "AdamW" else {"momentum": 0.8, "nesterov": True}
    optimizer = getattr(torch.optim, kind)(net[0].parameters(), 1e-2, **momentum)
    later = getattr(torch.optim, kind)(
        list(net[1].parameters()) + list(net[3].parameters()), 0.02, **momentum
    )
    cycled = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=40)
    for i in range(BEFORE):
        step_of_torch((net, loss, optimizer, cycled), i)
    optimizer.add_param_group({"params": later.param_groups[0]["params"]})
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.02, 0.01], total_steps=60)
    model = sx.from_torch(
        net, torch.from_numpy(XS[0]), loss=loss, labels=torch.from_numpy(YS[0]),
        optimizer=optimizer, scheduler=scheduler,
    )  # fmt: skip
    parts = (net, loss, optimizer, scheduler)
    expected = [step_of_torch(parts, i) for i in range(BEFORE, len(XS))]
    rep = sx.prepare_training(model, threads=1)
    name = rep.step_inputs[0].name
    losses = [float(rep.step({name: XS[i], "label": YS[i]})["loss"]) for i in range(5, 10)]
    again = sx.to_torch(rep.to_model(), training=True)
    assert "momenta" not in again[3].state_dict()
    losses += [step_of_torch(again, i) for i in range(10, 20)]
    rep = sx.prepare_training(sx.with_weights(model, again[0], optimizer=again[2]), threads=1)
    losses += [float(rep.step({name: XS[i], "label": YS[i]})["loss"]) for i in range(20, 30)]
    np.testing.assert_allclose(losses, expected, rtol=2e-6)


def test_an_imported_loss_goes_to_jax() -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    pytest.importorskip("optax")
    net, loss, optimizer, _ = of_torch_network()
    del net[1]
    model = sx.from_torch(
        net, torch.from_numpy(XS[0]), loss=loss, labels=torch.from_numpy(YS[0]),
        optimizer=optimizer.__class__(net.parameters(), 1e-2),
    )  # fmt: skip
    apply, params, of_jax, _, _ = sx.to_jax(model, training=True)
    actual = jax.grad(lambda p: of_jax(apply(p, XS[1]), YS[1]))(params)
    loss(net(torch.from_numpy(XS[1])), torch.from_numpy(YS[1])).backward()
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(actual[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_loss_that_reads_weights_stays_in_the_record(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net, plain, optimizer, _ = of_torch_network()

    def loss(scores: Any, label: Any) -> Any:
        return plain(scores, label) + 0.01 * net[3].weight.abs().sum()

    model = sx.from_torch(
        net, torch.from_numpy(XS[0]), loss=loss, labels=torch.from_numpy(YS[0]), optimizer=optimizer
    )
    with pytest.raises(ArgumentError, match=r'reads weights[^"]*\s*"3.weight"'):
        sx.to_torch(model, training=True)
    with pytest.raises(ArgumentError, match="reads weights"):
        sx.to_torch_source(model, tmp_path, training=True)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", sampled(OF_TORCH))
def test_a_loop_in_torch_continues_the_record(name: str, how: str) -> None:
    continued(net_of(name, how), in_torch)


def test_the_state_dict_holds_the_slots() -> None:
    torch = pytest.importorskip("torch")
    rep = sx.prepare_training(net_of("adamw", "plain"), threads=1)
    for i in range(3):
        rep.step({"x": XS[i], "label": YS[i]})
    module, _, optimizer, _ = sx.to_torch(rep.to_model(), training=True)
    state, slots = optimizer.state_dict()["state"], rep.state()
    names = [n for n, _ in module.named_parameters()]
    assert len(state) == len(names) == 4
    for place, name in enumerate(names):
        assert int(state[place]["step"]) == 3
        first, second = state[place]["exp_avg"].numpy(), state[place]["exp_avg_sq"].numpy()
        np.testing.assert_allclose(first, slots[f"{name}/adam_m"] * 0.1, rtol=1e-6)
        np.testing.assert_allclose(second, slots[f"{name}/adam_v"] * 0.001, rtol=1e-6)
    fresh = torch.optim.AdamW(module.parameters())
    fresh.load_state_dict(optimizer.state_dict())  # any other optimizer of torch takes it


def test_a_new_record_gives_a_new_optimizer() -> None:
    pytest.importorskip("torch")
    _, loss, optimizer, scheduler = sx.to_torch(net_of("adam", "plain"), training=True)
    assert not optimizer.state_dict()["state"] and scheduler.last_epoch == 0
    assert str(loss) == "CrossEntropyLoss()"


def test_batch_statistics_and_frozen_parameters() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    source = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    )
    model = sx.from_torch(source.eval(), (torch.from_numpy(XS[0]),))
    net = sx.trainable(model, "cross_entropy", sx.optim.adamw(1e-2), freeze="0.*")
    label = "label"
    rep = sx.prepare_training(net, threads=1)
    name = next(v.name for v in rep.step_inputs if v.name != label)
    for i in range(3):
        rep.step({name: XS[i], label: YS[i]})
    module, loss, optimizer, _ = sx.to_torch(rep.to_model(), training=True)
    frozen = {n for n, p in module.named_parameters() if not p.requires_grad}
    assert frozen == {"0.weight", "0.bias"}
    for i in range(3, 15):
        optimizer.zero_grad()
        value = loss(module(torch.from_numpy(XS[i])), torch.from_numpy(YS[i]))
        value.backward()
        optimizer.step()
        ours = float(rep.step({name: XS[i], label: YS[i]})["loss"])
        assert value.item() == pytest.approx(ours, rel=1e-6)
    tuned = sx.with_weights(net, module, optimizer=optimizer)
    for statistic in ("1.running_mean", "1.running_var"):
        array = tuned.initializer(statistic).numpy()
        np.testing.assert_allclose(array, rep.state()[statistic], rtol=1e-5)


def test_frozen_statistics_stay() -> None:
    torch = pytest.importorskip("torch")
    source = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3))
    model = sx.from_torch(source.eval(), (torch.from_numpy(XS[0]),))
    net = sx.trainable(model, "cross_entropy", batch_norm="frozen")
    module, *_ = sx.to_torch(net, training=True)
    x = torch.from_numpy(XS[0])
    torch.testing.assert_close(module(x), source(x))
    assert not module.get_buffer("1.running_mean").any()


LOSSES: dict[str, tuple[Any, Any]] = {
    "weighted": (sx.loss.cross_entropy(weight=[1.0, 2.0, 0.5], ignore_index=1), YS[0]),
    "smoothed": (sx.loss.cross_entropy(label_smoothing=0.1), YS[0]),
    "mse": (sx.loss.mse(), None),
    "huber": (sx.loss.huber(0.3), None),
    "binary": (sx.loss.binary_cross_entropy(pos_weight=2.0), None),
    "hinge": (sx.loss.hinge(), None),
    "cosine": (sx.loss.cosine(), None),
    "probabilities": (sx.loss.cross_entropy(probabilities=True), None),
}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_losses(kind: str, framework: str) -> None:
    pytest.importorskip(framework)
    loss, label = LOSSES[kind]
    label = RNG.random((8, 3), np.float32) if label is None else label
    net = sx.trainable(mlp(), loss, sx.optim.sgd(0.1))
    expected = float(sx.prepare_training(net, threads=1).step({"x": XS[0], "label": label})["loss"])
    if framework == "torch":
        import torch

        module, compute, *_ = sx.to_torch(net, training=True)
        value = compute(module(torch.from_numpy(XS[0])), torch.from_numpy(label)).item()
    else:
        apply, params, compute, *_ = sx.to_jax(net, training=True)
        value = float(compute(apply(params, XS[0]), label))
    assert value == pytest.approx(expected, rel=1e-5)


def test_the_module_gives_what_the_loss_takes() -> None:
    torch = pytest.importorskip("torch")
    net = sx.trainable(_with_softmax(), "cross_entropy", "sgd")
    module, loss, *_ = sx.to_torch(net, training=True)
    x = torch.from_numpy(XS[0])
    expected = float(sx.prepare_training(net).step({"x": XS[0], "label": YS[0]})["loss"])
    assert loss(module(x), torch.from_numpy(YS[0])).item() == pytest.approx(expected, rel=1e-5)


def _with_softmax() -> Any:
    return network(
        "g (float[N,6] x) => (float[N,3] p) { z = MatMul(x, w) p = Softmax<axis=1>(z) }",
        {"w": RNG.normal(size=(6, 3))},
    )


@pytest.mark.parametrize("framework", ["torch"])
def test_what_torch_cannot_hold_is_refused_at_once(framework: str) -> None:
    pytest.importorskip("torch")
    net = sx.trainable(mlp(), "cross_entropy", accumulate=2, ema=0.99, l2=0.1)
    with pytest.raises(ArgumentError, match="no counterpart in torch's objects") as caught:
        sx.to_torch(net, training=True)
    assert [row[0] for row in caught.value.where] == ['"accumulate"', '"ema"', '"l2"']
    for name in ("lion", "lamb", "onnx_adam"):
        with pytest.raises(ArgumentError, match=f"torch has no optimizer {name}"):
            sx.to_torch(sx.trainable(mlp(), "cross_entropy", name), training=True)
    with pytest.raises(ArgumentError, match="0 training records"):
        sx.to_torch(mlp(), training=True)


def test_a_schedule_needs_the_count_that_sgd_has_not() -> None:
    torch = pytest.importorskip("torch")
    net = net_of("sgd", "schedule, groups and clipping")
    module = sx.to_torch(net)
    with pytest.raises(ArgumentError, match="how many updates"):
        sx.with_weights(net, module, optimizer=torch.optim.SGD(module.parameters(), 0.1))


SCHEDULES = {
    "cosine": sx.schedule.cosine(7, end=0.2),
    "warm-up": WARM_UP,
    "step": sx.schedule.step(3, 0.5),
    "exponential": sx.schedule.exponential(0.9),
    "one cycle": sx.schedule.one_cycle(10),
    "table": sx.schedule.table([1.0, 0.5, 0.25], every=2, ratio=0.5),
    "sequence": sx.schedule.sequence([sx.schedule.constant(), sx.schedule.step(2)], [3]),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_factors_in_numbers_are_those_of_the_record(kind: str) -> None:
    text = "g (float[N,1] x) => (float[N,1] y) { y = Mul(x, w) }"
    model = network(text, {"w": np.zeros(1)})
    optimizer = sx.optim.sgd(1.0, schedule=SCHEDULES[kind])
    net = sx.trainable(model, sx.loss.custom(lambda op, z, y: op.ReduceMean(z, keepdims=0)),
                       optimizer, train="w")  # fmt: skip
    rep = sx.prepare_training(net, threads=1)
    feeds = {"x": np.ones((1, 1), np.float32), "label": np.ones((1, 1), np.float32)}
    before = 0.0
    for step in range(12):
        rep.step(feeds)
        now = float(rep.state()["w"].item())
        assert before - now == pytest.approx(factor_at(SCHEDULES[kind], step), abs=2e-6)
        before = now


# -- jax --------------------------------------------------------------------------------------


def in_jax(model: Any, steps: range) -> tuple[list[float], Any]:
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    apply, params, loss, tx, opt_state = sx.to_jax(model, training=True)
    assert isinstance(tx, optax.GradientTransformation)

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: loss(apply(p, x), y))(params)
        updates, state = tx.update(gradients, state, params)
        return value, optax.apply_updates(params, updates), state

    losses = []
    for i in steps:
        value, params, opt_state = step(params, opt_state, XS[i], YS[i])
        losses.append(float(value))
    return losses, sx.with_weights(model, params, optimizer=opt_state)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", sampled(sx.optim.MAKERS))
def test_a_loop_in_jax_continues_the_record(name: str, how: str) -> None:
    continued(net_of(name, how), in_jax)


def test_a_record_that_accumulates_and_averages_continues_in_jax() -> None:
    net = sx.trainable(mlp(), "cross_entropy", "adamw", accumulate=3, ema=0.9, clip_value=0.05)
    continued(net, in_jax)


def test_the_state_of_optax_holds_the_slots() -> None:
    pytest.importorskip("optax")
    rep = sx.prepare_training(net_of("adamw", "plain"), threads=1)
    for i in range(3):
        rep.step({"x": XS[i], "label": YS[i]})
    *_, opt_state = sx.to_jax(rep.to_model(), training=True)
    import jax

    kinds = {"ScaleByAdamState"}
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda s: type(s).__name__ in kinds)
    (adam,) = [s for s in leaves if type(s).__name__ in kinds]
    assert int(adam.count) == 3
    expected = rep.state()["fc0.weight/adam_m"] * 0.1
    np.testing.assert_allclose(adam.mu["fc0.weight"], expected, rtol=1e-6)


def test_layers_with_state_are_refused_in_jax() -> None:
    pytest.importorskip("optax")
    net = sx.trainable(cnn(), "cross_entropy")
    with pytest.raises(ArgumentError, match="trains in this record") as caught:
        sx.to_jax(net, training=True)
    assert [row[0] for row in caught.value.where] == ["BatchNormalization", "Dropout"]
    frozen = sx.trainable(cnn(), "cross_entropy", batch_norm="frozen", dropout="frozen")
    apply, params, *_ = sx.to_jax(frozen, training=True)
    x = RNG.normal(size=(2, 3, 8, 8)).astype(np.float32)
    (expected,) = sx.prepare_training(frozen).run({"x": x}).values()
    np.testing.assert_allclose(apply(params, x), expected, rtol=1e-4, atol=1e-5)


# -- a script -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
def test_the_script_trains_as_the_record_says(how: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    net = net_of("adamw", how)
    data = {"x": XS.reshape(-1, 6), "label": YS.reshape(-1)}
    np.savez(tmp_path / "data.npz", **data)
    sx.to_torch_source(net, tmp_path, training=True)
    command = [sys.executable, "-I", "-c", RUN_SCRIPT, "data.npz", "--epochs", "1"]
    command += ["--batch-size", "8", "--no-shuffle"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    run = sx.train(net, data, epochs=1, batch_size=8, shuffle=False)
    np.testing.assert_allclose(losses, run.losses, rtol=1e-6)
    tuned = sx.with_weights(net, tmp_path)
    np.testing.assert_allclose(
        tuned.initializer("fc0.weight").numpy(), run.model.initializer("fc0.weight").numpy(),
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip


RUN_SCRIPT = """
import runpy, sys
sys.path.insert(0, ".")
assert "sardonyx" not in sys.modules
runpy.run_path("train.py", run_name="__main__")
"""

"""Trainings through `from_torch`, many settings at once, against torch going on.

    python -m tests.sweeps.torch_trainings                    300 combinations
    python -m tests.sweeps.torch_trainings --count 50 --seed 7
    python -m tests.sweeps.torch_trainings --only 7:12        one combination, with its settings

A combination is a small network, an optimizer with settings of its own, and several of groups,
a scheduler, clipping, accumulation, moving averages, frozen parameters, parameters that no group
has, a group that is added late, and updates that torch makes before the import. Most are float64,
so that what differs is a setting and not rounding: losses of every step, then parameters, running
statistics and moving averages. Fails where one combination is off or is refused.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as schedulers

import sardonyx as sx

COUNT, STEPS, ROWS = 300, 9, 6
TOLERANCE = {"float64": 1e-8, "float32": 2e-4}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.scale = (
            nn.Linear(5, 5),
            nn.LayerNorm(5),
            nn.Parameter(torch.ones(1)),
        )
        self.head = nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(torch.tanh(self.up(torch.tanh(self.up(x)))) * self.scale))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.cell(x[..., None])[0][:, -1])


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
    "norms": lambda: nn.Sequential(
        nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)
    ),
    "tied": Tied,
    "gru": Recurrent,
}
LOSSES: dict[str, Callable[[], Any]] = {
    "cross entropy": nn.CrossEntropyLoss,
    "smoothed": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    "squared": lambda: squared,
}


def squared(outputs: Any, label: Any) -> Any:
    return ((outputs - nn.functional.one_hot(label, 3)) ** 2).sum(1).mean()


# Each optimizer, and the values of settings that are drawn for it.
OPTIMIZERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {"momentum": (0.0, 0.9), "dampening": (0.0, 0.2), "weight_decay": (0.0, 0.01),
            "nesterov": (False, True), "maximize": (False, True)},
    "Adam": {"betas": ((0.9, 0.999), (0.8, 0.95)), "weight_decay": (0.0, 0.01), "eps": (1e-8, 1e-4),
             "amsgrad": (False, True), "maximize": (False, True),
             "decoupled_weight_decay": (False, True)},
    "AdamW": {"weight_decay": (0.01, 0.2), "amsgrad": (False, True), "betas": ((0.9, 0.99),)},
    "Adagrad": {"lr_decay": (0.0, 0.1), "weight_decay": (0.0, 0.01),
                "initial_accumulator_value": (0.0, 0.1)},
    "RMSprop": {"alpha": (0.99, 0.9), "centered": (False, True), "momentum": (0.0, 0.9),
                "weight_decay": (0.0, 0.01), "eps": (1e-8, 1e-3)},
    "Adafactor": {"weight_decay": (0.0, 0.01), "beta2_decay": (-0.8, -0.5), "d": (1.0, 2.0)},
    "NAdam": {"weight_decay": (0.0, 0.01), "decoupled_weight_decay": (False, True),
              "momentum_decay": (4e-3, 1e-2)},
    "RAdam": {"weight_decay": (0.0, 0.01), "decoupled_weight_decay": (False, True)},
    "Adamax": {"weight_decay": (0.0, 0.01), "betas": ((0.9, 0.999), (0.8, 0.95))},
    "Adadelta": {"rho": (0.9, 0.8), "weight_decay": (0.0, 0.01)},
    "Rprop": {"etas": ((0.5, 1.2), (0.6, 1.1)), "step_sizes": ((1e-6, 50), (1e-4, 0.05))},
    "ASGD": {"t0": (2, 1e6), "lambd": (1e-4, 1e-2), "weight_decay": (0.0, 0.01)},
}  # fmt: skip
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda e: 0.9**e),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda e: 0.9 + 0.01 * (e % 3)),
    "StepLR": lambda o: schedulers.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 5], 0.3),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.2, 4),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.1, 1.0, 6),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 20, 2.0),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 5, 1e-4),
    "WarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3, 2),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 3), schedulers.CosineAnnealingLR(o, 9)], [3]
    ),
    "Chained": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.3, 3), schedulers.ExponentialLR(o, 0.9)]
    ),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-3, 1e-2, 3, cycle_momentum=_has_momentum(o)),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(
        o, 1e-2, total_steps=60, cycle_momentum=_has_momentum(o)
    ),
}


def _has_momentum(optimizer: Any) -> bool:
    """Whether a scheduler can cycle the momentum by a formula that the record has."""
    if isinstance(optimizer, (optim.Adam, optim.AdamW)):
        return True
    return isinstance(optimizer, optim.SGD) and optimizer.param_groups[0]["momentum"] > 0


@dataclass(frozen=True)
class Combination:
    """One training: every field is a setting."""

    network: str
    loss: str
    dtype: str
    optimizer: str
    settings: tuple[tuple[str, Any], ...]
    groups: str  # one, two, three
    scheduler: str
    clip_norm: float | None
    clip_value: float | None
    accumulate: int
    ema: float | None
    frozen: str  # no, listed, unlisted
    partial: bool
    late: bool
    before: int
    verify: bool


def drawn(seed: int, index: int) -> Combination:
    """The combination of this number."""
    draw = random.Random(f"{seed}:{index}")
    optimizer = draw.choice(list(OPTIMIZERS))
    settings = {n: draw.choice(values) for n, values in OPTIMIZERS[optimizer].items()}
    if settings.get("nesterov"):
        settings |= {"momentum": 0.9, "dampening": 0.0}
    if not settings.get("momentum", 1):
        settings.pop("dampening", None)
    clip = draw.choice(("no", "no", "norm", "value", "both"))
    late, name = draw.random() < 0.15, draw.choice(list(NETWORKS))  # no float64 kernel of GRU
    return Combination(
        network=name,
        loss=draw.choice(list(LOSSES)),
        dtype="float32" if name == "gru" else draw.choice(("float64",) * 3 + ("float32",)),
        optimizer=optimizer,
        settings=tuple(settings.items()),
        groups=draw.choice(("one", "two", "three")),
        scheduler="" if late else draw.choice(("", *SCHEDULERS)),
        clip_norm=0.05 if clip in ("norm", "both") else None,
        clip_value=0.02 if clip in ("value", "both") else None,
        accumulate=draw.choice((1, 1, 2, 3)),
        ema=draw.choice((None, None, 0.9)),
        frozen=draw.choice(("no", "no", "listed", "unlisted")),
        partial=draw.random() < 0.2,
        late=late,
        before=draw.choice((0, 1, 3)) or int(late),
        verify=draw.random() < 0.5,
    )


# -- in torch ---------------------------------------------------------------------------


class Run:
    """A training in torch."""

    def __init__(self, c: Combination):
        torch.manual_seed(0)
        self.c, self.net = c, NETWORKS[c.network]().to(getattr(torch, c.dtype))
        names = [n for n, _ in self.net.named_parameters()]
        if c.frozen != "no":
            self.net.get_parameter(names[1]).requires_grad_(False)
        skipped = {names[-1]} if c.partial else set()
        skipped |= {names[1]} if c.frozen == "unlisted" else set()
        parameters = [p for n, p in self.net.named_parameters() if n not in skipped]
        rate = 0.5 if c.optimizer == "Adadelta" else 1e-2
        groups = _groups(parameters, c.groups, rate)
        self.later = groups.pop() if c.late and len(groups) > 1 else None
        self.loss = LOSSES[c.loss]()
        self.optimizer: Any = getattr(optim, c.optimizer)(groups, lr=rate, **dict(c.settings))
        self.scheduler = SCHEDULERS[c.scheduler](self.optimizer) if c.scheduler else None
        self.average: dict[str, Any] = {}

    def update(self, batches: list[Any]) -> list[float]:
        """One update of as many batches as are accumulated; their losses."""
        c, values = self.c, []
        self.optimizer.zero_grad()
        for x, label in batches:
            loss = self.loss(self.net(x), label)
            (loss / len(batches)).backward()
            values.append(float(loss.detach()))
        parameters = [p for g in self.optimizer.param_groups for p in g["params"]]
        if c.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, c.clip_value)
        if c.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, c.clip_norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        if c.ema is not None:
            for name, value in self.average.items():
                new = self.net.get_parameter(name).detach()
                self.average[name] = c.ema * value + (1 - c.ema) * new
        return values

    def tensors(self) -> dict[str, np.ndarray]:
        """Parameters, statistics and averages."""
        state = {n: v.numpy() for n, v in self.net.state_dict().items()}
        return state | {f"{n}/ema": a.numpy() for n, a in self.average.items()}


def _groups(parameters: list[Any], how: str, rate: float) -> list[dict[str, Any]]:
    if how == "one" or len(parameters) < 3:
        return [{"params": parameters}]
    if how == "two":
        return [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": rate / 2}]
    return [
        {"params": parameters[:1], "name": "first"},
        {"params": parameters[1:2], "name": "second", "lr": rate / 2},
        {"params": parameters[2:], "name": "third", "lr": rate / 4},
    ]


def data(c: Combination, seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 5, generator=generator, dtype=torch.float64)
    label = torch.randint(0, 3, (ROWS,), generator=generator)
    return x.to(getattr(torch, c.dtype)), label


# -- the comparison ---------------------------------------------------------------------


def judge(c: Combination) -> str:
    """What is wrong with a combination; nothing if all is as in torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _judged(c)
        except sx.SardonyxError as error:
            return f"{type(error).__name__}: {error}"


def _judged(c: Combination) -> str:
    run = Run(c)
    for count in range(c.before):
        if count and run.later is not None:
            run.optimizer.add_param_group(run.later)
            run.later = None
        run.update([data(c, 100 * count + i) for i in range(c.accumulate)])
    x, label = data(c, 1)
    more = {"clip_norm": c.clip_norm, "clip_value": c.clip_value, "ema": c.ema}
    more = {n: v for n, v in more.items() if v is not None}
    model = sx.from_torch(
        run.net, x, loss=run.loss, labels=label, optimizer=run.optimizer, scheduler=run.scheduler,
        verify=c.verify, accumulate=c.accumulate, **more,
    )  # fmt: skip
    rep = sx.prepare_training(model)
    if c.ema is not None:
        ends = [n.removesuffix("/ema") for n in rep.state() if n.endswith("/ema")]
        run.average = {n: run.net.get_parameter(n).detach().clone() for n in ends}
        trained = [n for n, p in run.net.named_parameters() if _is_trained(run, p)]
        if sorted(ends) != sorted(trained):
            return f"averages of {ends}, not of {trained}"
    losses, expected = [], []
    for count in range(STEPS // c.accumulate):
        batches = [data(c, 1000 + 10 * count + i) for i in range(c.accumulate)]
        expected += run.update(batches)
        for x, label in batches:
            result = rep.step({model.inputs[0].name: x.numpy(), "label": label.numpy()})
            losses.append(float(result["loss"]))
    pairs: dict[str, tuple[Any, Any]] = {"loss": (losses, np.array(expected))}
    state, served = rep.state(), {n: v.numpy() for n, v in run.net.state_dict().items()}
    for name, value in run.tensors().items():
        if name in state:
            pairs[name] = state[name], value
        elif name in served and name in model.graph.initializers:
            pairs[name] = model.initializer(name).numpy(), value
    for name, (ours, value) in pairs.items():
        error = float(np.abs(np.asarray(ours) - value).max() / max(np.abs(value).max(), 1e-3))
        if not error < TOLERANCE[c.dtype]:
            return f"{name} is off by {error:.2g}"
    return ""


def _is_trained(run: Run, parameter: Any) -> bool:
    listed = [p for g in run.optimizer.param_groups for p in g["params"]]
    return parameter.requires_grad and any(p is parameter for p in listed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="seed:index of one combination")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then none is begun")
    arguments = parser.parse_args()
    seed, indices = arguments.seed, list(range(arguments.start, arguments.start + arguments.count))
    if arguments.only:
        seed, index = (int(n) for n in arguments.only.split(":"))
        indices = [index]
    counts: Counter[tuple[str, str]] = Counter()
    off, begin = 0, time.monotonic()
    for index in indices:
        if time.monotonic() - begin > arguments.seconds:
            break
        combination = drawn(seed, index)
        problem = judge(combination)
        off += bool(problem)
        for field in fields(combination):
            if field.name != "settings":
                counts[field.name, str(getattr(combination, field.name))] += 1
        if problem or arguments.only:
            print(f"{seed}:{index:<5} {problem or 'same'}\n      {combination}", flush=True)
    for (name, value), times in sorted(counts.items()):
        print(f"{name:12} {value:20} {times:5}")
    done = sum(n for (name, _), n in counts.items() if name == "network")
    print(f"{done} combinations in {time.monotonic() - begin:.0f} s, {off} off")
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())

"""A training record as torch's own objects: module, loss, optimizer and scheduler.

The optimizer holds the slots of the record, so that a loop in torch goes on where the record
stands; `with_weights(model, module, optimizer=optimizer)` takes weights and state back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.engines.native import SWITCHED, Switch, native
from sardonyx.engines.torch.convert import SWITCHES, OnnxModule, module_of
from sardonyx.engines.torch.xp import arrays, torch
from sardonyx.errors import ArgumentError
from sardonyx.model import Model
from sardonyx.record.modes import mode_of
from sardonyx.record.reading import (
    Group,
    Reading,
    loss_model,
    mode_of_layers,
    predicting,
    read_record,
    refuse,
)
from sardonyx.record.schedule import Schedule, factor_at
from sardonyx.record.torch_state import RULES, UPDATES, Rule

NOT_HELD = ("accumulate", "ema", "l1", "l2")  # they belong to a loop, or to no object of torch


def training_objects(model: Model, share: bool | None, fallback: str) -> tuple[Any, ...]:
    """`(module, loss, optimizer, scheduler)` of the only record of a model."""
    reading = read_record(model)
    refuse(reading, "torch", NOT_HELD)
    class_name(reading.optimizer)
    module = _module(reading, share, fallback)
    optimizer = _optimizer(reading, module)
    return module, loss_of(reading), optimizer, _scheduler(reading, optimizer)


def _module(reading: Reading, share: bool | None, fallback: str) -> OnnxModule:
    """The served model in training mode; what the record does not train asks for no gradient."""
    modes = mode_of_layers(reading)
    switches = {name: _switched(name, modes[name]) for name in SWITCHED}
    parts = native(predicting(reading), switches, fallback=fallback)
    module = module_of(parts, share).train()
    trained = {module.names[name] for name in reading.parameters}
    for key, parameter in module.named_parameters():
        parameter.requires_grad_(key in trained)
    return module


def _switched(name: str, mode: Any) -> Switch:
    """What makes a layer train, unless the record keeps it frozen."""
    switch = {**SWITCHED, **SWITCHES}[name]
    return lambda op, node, kinds: (
        {} if mode_of(node, mode) == "frozen" else switch(op, node, kinds)
    )


# -- the loss -----------------------------------------------------------------------------

PLAIN: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "cross_entropy": lambda s: torch.nn.CrossEntropyLoss(
        weight=None if s.get("weight") is None else torch.tensor(s["weight"]),
        ignore_index=-100 if s.get("ignore_index") is None else s["ignore_index"],
        reduction=s["reduction"],
        label_smoothing=s["label_smoothing"],
    ),
    "binary_cross_entropy": lambda s: torch.nn.BCEWithLogitsLoss(
        pos_weight=None if s.get("pos_weight") is None else torch.tensor(s["pos_weight"]),
        reduction=s["reduction"],
    ),
    "mse": lambda s: torch.nn.MSELoss(reduction=s["reduction"]),
    "l1": lambda s: torch.nn.L1Loss(reduction=s["reduction"]),
    "huber": lambda s: torch.nn.HuberLoss(reduction=s["reduction"], delta=s["delta"]),
    "kl_divergence": lambda s: torch.nn.KLDivLoss(
        reduction=s["reduction"], log_target=s["log_target"]
    ),
}


def loss_of(reading: Reading) -> torch.nn.Module:
    """A loss of torch, where it has this one; otherwise the record's as a module.

    It takes the predictions, then the labels.
    """
    term = reading.terms[0] if len(reading.terms) == 1 else None
    settings = {} if term is None else term.loss.settings
    if term is not None and term.weight == 1.0 and is_plain(term.loss.name, settings):
        return PLAIN[term.loss.name](settings)  # type: ignore[no-any-return]
    return module_of(native(loss_model(reading), fallback="error"), None).train()


def is_plain(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether a loss of torch computes the same from the same arguments."""
    if name == "cross_entropy":
        return settings.get("axis") in (None, 1) and not settings.get("probabilities")
    return name in PLAIN


# -- the optimizer --------------------------------------------------------------------------

SAME = ("weight_decay", "maximize", "eps", "momentum", "nesterov", "amsgrad", "alpha", "centered",
        "lr_decay", "rho", "momentum_decay", "beta2_decay", "dampening")  # fmt: skip
RENAMED: dict[str, dict[str, str]] = {
    "adagrad": {"initial": "initial_accumulator_value"},
    "adafactor": {"clip": "d"},
    "asgd": {"decay": "lambd", "power": "alpha", "start": "t0"},
    "muon": {"coefficients": "ns_coefficients", "steps": "ns_steps", "adjust": "adjust_lr_fn"},
    "nadam": {"decoupled": "decoupled_weight_decay"},
    "radam": {"decoupled": "decoupled_weight_decay"},
}
PAIRS: dict[str, tuple[str, str]] = {
    "betas": ("b1", "b2"), "etas": ("shrink", "grow"), "step_sizes": ("smallest", "largest"),
}  # fmt: skip
UNCOUNTED = ("SGD", "Muon")  # whose state has no number of steps


def class_name(optimizer: str) -> str:
    """The class of `torch.optim` that is an optimizer of ours."""
    for name, rule in RULES.items():
        if rule.name == optimizer:
            return name
    raise ArgumentError(
        f"torch has no optimizer {optimizer}",
        hint=f"it has {', '.join(sorted(r.name for r in RULES.values()))}",
    )


def keywords(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a class of `torch.optim` for our settings."""
    chosen = {k: v for k, v in settings.items() if v is not None}
    names = {**{n: n for n in SAME}, **RENAMED.get(name, {}), "lr": "lr"}
    result = {names[k]: v for k, v in chosen.items() if k in names}
    for pair, (first, second) in PAIRS.items():
        if first in chosen:
            result[pair] = (chosen[first], chosen[second])
    if name == "adafactor":
        result["eps"] = (chosen.get("eps1"), chosen["eps2"])
    if name == "muon" and "ns_coefficients" in result:
        result["ns_coefficients"] = tuple(result["ns_coefficients"])
    return result


def _optimizer(reading: Reading, module: OnnxModule) -> torch.optim.Optimizer:
    name = class_name(reading.optimizer)
    parameters = dict(module.named_parameters())
    groups = []
    for group in reading.groups:
        members = [parameters[module.names[n]] for n in group.names]
        settings = keywords(reading.optimizer, group.settings)
        groups.append({"params": members, **settings, "initial_lr": settings["lr"]})
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(
        groups, **{k: v for k, v in groups[-1].items() if k not in ("params", "initial_lr")}
    )
    for group in reading.groups:
        for member in group.names:
            state = slots_for_torch(RULES[name], member, group, reading)
            if state and name not in UNCOUNTED:
                state["step"] = torch.tensor(float(group.updates), dtype=torch.float32)
            if state:
                optimizer.state[parameters[module.names[member]]] = state
    _clip(reading, optimizer)
    _count(optimizer, reading)
    return optimizer


def slots_for_torch(rule: Rule, name: str, group: Group, reading: Reading) -> dict[str, Any]:
    """The state of one parameter as torch holds it; none before its first update."""
    if not group.updates:
        return {}
    settings = keywords(reading.optimizer, group.settings)
    settings["cycled"] = group.settings.get("momentum_schedule") is not None
    state = {}
    for slot, (theirs, divisor) in rule.slots.items():
        array = reading.state.get(f"{name}/{slot}")
        if array is not None:
            tensor = arrays("cpu").asarray(array)
            factor = divisor(settings)
            state[theirs] = tensor if factor == 1.0 else (tensor.double() * factor).to(tensor.dtype)
    return state


def _clip(reading: Reading, optimizer: torch.optim.Optimizer) -> None:
    """Clip gradients before each step, as the record does."""
    limit, norm = reading.settings.get("clip_value"), reading.settings.get("clip_norm")
    if limit is None and norm is None:
        return

    def clip(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if limit is not None:
            torch.nn.utils.clip_grad_value_(parameters, limit)
        if norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, norm)

    optimizer.register_step_pre_hook(clip)


def _count(optimizer: torch.optim.Optimizer, reading: Reading) -> None:
    """Count the updates, which the state of SGD and Muon does not show, in the groups."""
    for group, read in zip(optimizer.param_groups, reading.groups, strict=True):
        group[UPDATES] = read.updates

    def count(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            group[UPDATES] += 1

    optimizer.register_step_post_hook(count)


# -- the scheduler ----------------------------------------------------------------------------


class ScheduleOfRateAndMomentum(torch.optim.lr_scheduler.LambdaLR):
    """LambdaLR that also sets the momentum, or the first of the betas, as OneCycleLR does."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        factors: Sequence[Callable[[int], float]],
        momenta: Sequence[Callable[[int], float] | None],
        last_epoch: int,
    ):
        self.momenta = momenta
        super().__init__(optimizer, list(factors), last_epoch=last_epoch)

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        for group, momentum in zip(self.optimizer.param_groups, self.momenta, strict=True):
            if momentum is None:
                continue
            now = momentum(self.last_epoch)
            if "betas" in group:
                group["betas"] = (now, group["betas"][1])
            else:
                group["momentum"] = now

    def state_dict(self) -> dict[str, Any]:
        """Without the functions, as LambdaLR has it."""
        return {k: v for k, v in super().state_dict().items() if k != "momenta"}


def _scheduler(reading: Reading, optimizer: torch.optim.Optimizer) -> Any:
    """The schedules of all groups, from where the record stands."""
    done = max(group.updates for group in reading.groups)
    factors = [_changing(group.schedule, group.updates - done, 1.0) for group in reading.groups]
    momenta = [
        None if schedule is None else _changing(schedule, group.updates - done, _momentum(group))
        for group in reading.groups
        for schedule in [group.settings.get("momentum_schedule")]
    ]
    if not any(momenta):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, factors, last_epoch=done - 1)
    return ScheduleOfRateAndMomentum(optimizer, factors, momenta, done - 1)


def _changing(schedule: Schedule | None, offset: int, base: float) -> Callable[[int], float]:
    """A setting by the number of updates; `offset` more of them were made in this group."""
    return lambda updates: base * float(factor_at(schedule, updates + offset))


def _momentum(group: Group) -> float:
    return float(group.settings["b1" if "b1" in group.settings else "momentum"])

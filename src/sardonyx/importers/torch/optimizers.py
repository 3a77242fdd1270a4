"""The user's `torch.optim` object: its class, groups and hyperparameters as an optimizer of ours,
its state as the slots of the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sardonyx.errors import ArgumentError, ImportRefused, quote
from sardonyx.importers.torch.schedulers import Timetable
from sardonyx.importers.torch.traced_update import traced_optimizer
from sardonyx.record import optim
from sardonyx.record.torch_state import RULES, Rule, Settings, count_of, number, slots_of

REFUSED = {
    "LBFGS": "it evaluates the loss several times in one step",
    "SparseAdam": "it needs sparse gradients, which ONNX does not have",
}


@dataclass
class Reading:
    """What was read from an optimizer.

    optimizer -- ours, with the settings of the first group
    groups    -- of `trainable`: the settings of the other groups
    names     -- the parameters that it updates
    slots     -- the state, by the names of our slots
    done      -- how many updates it has made
    notes     -- what was decided or left out: (what, value, why)
    """

    optimizer: optim.Optimizer
    groups: dict[str, dict[str, Any]]
    names: list[str]
    slots: dict[str, np.ndarray]
    done: int
    notes: list[tuple[str, str, str]] = field(default_factory=list)


def read_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    reached: Sequence[str],
    timetable: Timetable,
) -> Reading:
    """Read an optimizer over the named parameters of a module.

    reached -- the names of parameters that the loss depends on; torch leaves the others alone
    """
    rule = rule_of(optimizer)
    names = names_of(optimizer, parameters)
    if rule is None:
        return _traced(optimizer, parameters, reached, names, timetable)
    name = "adamw" if rule.name == "adam" and _is_decoupled(optimizer) else rule.name
    parts: list[tuple[str, int, Settings, list[str]]] = []
    slots: dict[str, np.ndarray] = {}
    for index, group in enumerate(optimizer.param_groups):
        schedules = timetable.schedules(index)
        members = [
            (names[id(p)], p)
            for p in group["params"]
            if p.requires_grad and names[id(p)] in reached
        ]
        marked = {**group, "cycled": "momentum_schedule" in schedules}
        by_count: dict[int, list[str]] = {}
        for member, parameter in members:
            state = optimizer.state.get(parameter, {})
            by_count.setdefault(count_of(state), []).append(member)
            slots |= slots_of(rule, member, parameter, state, marked)
        for count, group_names in by_count.items():
            label = str(group.get("name", f"group {index}"))
            settings = {"lr": number(group["lr"]), **rule.settings(group)}
            settings |= _changing(rule, timetable.placed(index, count), optimizer)
            parts.append((label, count, settings, group_names))
    if not parts:
        raise ArgumentError(
            "no gradient of the loss arrives at a parameter of the optimizer",
            [[quote(n)] for n in names.values()],
            hint="what .item(), .detach() or float() made of a tensor is a constant to the loss",
        )
    return _reading(name, parts, slots, timetable, optimizer, parameters, reached, names)


def _changing(rule: Rule, settings: Settings, optimizer: torch.optim.Optimizer) -> Settings:
    """The settings that change over the updates, in the words of our optimizer."""
    if "momentum_schedule" in settings:
        if not rule.cycled:
            name = type(optimizer).__name__
            raise ImportRefused(
                f"the scheduler cycles the momentum of {name}, which has no formula for it",
                hint="make the scheduler with cycle_momentum=False",
            )
        settings["b1" if rule.cycled == "betas" else "momentum"] = settings.pop("momentum")
    if rule.name == "rprop" and settings:
        settings = {}  # its rate is the first step size only
    return settings


def _reading(
    name: str,
    parts: list[tuple[str, int, Settings, list[str]]],
    slots: dict[str, np.ndarray],
    timetable: Timetable,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    reached: Sequence[str],
    names: Mapping[int, str],
) -> Reading:
    steps = max(count for _, count, _, _ in parts)
    groups: dict[str, dict[str, Any]] = {}
    for place, (label, count, settings, members) in enumerate(parts):
        if place == 0 and count == steps and len(parts) == 1:
            continue
        key = label
        while key in groups:
            key += "+"
        groups[key] = {**settings, "parameters": members, "offset": count - steps}
    base = optim.named(name, **parts[0][2])
    reading = Reading(base, groups, [n for part in parts for n in part[3]], slots, steps)
    reading.notes += _notes(optimizer, parameters, reached, names, reading, timetable)
    return reading


def _is_decoupled(optimizer: torch.optim.Optimizer) -> bool:
    flags = {bool(g.get("decoupled_weight_decay", False)) for g in optimizer.param_groups}
    return flags == {True}


def rule_of(optimizer: torch.optim.Optimizer) -> Rule | None:
    """The rule for an optimizer's class; a subclass with a `step` of its own has none."""
    for base in type(optimizer).__mro__:
        is_stock = getattr(torch.optim, base.__name__, None) is base
        if is_stock and base.__name__ in REFUSED:
            raise ImportRefused(
                f"{base.__name__} cannot become a training record: {REFUSED[base.__name__]}",
                hint="train with another optimizer, e.g. torch.optim.AdamW",
            )
        if is_stock and base.__name__ in RULES and type(optimizer).step is vars(base).get("step"):
            return RULES[base.__name__]
        if "step" in vars(base):
            break
    return None


def _traced(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    reached: Sequence[str],
    names: Mapping[int, str],
    timetable: Timetable,
) -> Reading:
    """An optimizer that we have no formula for: its update is captured."""
    name = type(optimizer).__name__
    if timetable.rates:
        raise ImportRefused(
            f"the optimizer {quote(name)} is captured with its present rate, which a scheduler "
            "would change",
            hint=f"pass no scheduler, or train with one of {', '.join(sorted(RULES))}",
        )
    members = {
        n: p for n, p in parameters.items() if id(p) in names and n in reached and p.requires_grad
    }
    chain, slots = traced_optimizer(optimizer, members)
    reading = Reading(chain, {}, list(members), slots, 0)
    reading.notes = _notes(optimizer, parameters, reached, names, reading, timetable)
    why = "there is no formula for it; its settings are constants of the record"
    reading.notes.append(("optimizer", f"{name}, captured from its step()", why))
    return reading


def names_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[int, str]:
    """The name of every parameter of the optimizer, by identity."""
    by_id = {id(p): n for n, p in parameters.items()}
    rows = [
        [f"group {i}, parameter {j}", f"{p.dtype} {list(p.shape)}".replace("torch.", "")]
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
        if id(p) not in by_id
    ]
    if rows:
        raise ArgumentError(
            "the optimizer has parameters that are not the module's",
            rows,
            hint="make it from module.parameters(), after module.to(…) and after loading weights",
        )
    return {id(p): by_id[id(p)] for g in optimizer.param_groups for p in g["params"]}


def _notes(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    reached: Sequence[str],
    names: Mapping[int, str],
    reading: Reading,
    timetable: Timetable,
) -> list[tuple[str, str, str]]:
    """What was not taken over, in words."""
    notes = [("optimizer's state", f"{len(reading.slots)} tensors after {reading.done} updates",
              f"as torch's {type(optimizer).__name__} has it")]  # fmt: skip
    owned = set(names.values())
    frozen = [n for n, p in parameters.items() if not p.requires_grad]
    outside = [n for n, p in parameters.items() if p.requires_grad and n not in owned]
    unread = [n for n in owned if n not in reached and parameters[n].requires_grad]
    for listed, why in (
        (frozen, "requires_grad is False"),
        (outside, "no group of the optimizer has it"),
        (unread, "the loss does not depend on it"),
    ):
        if listed:
            more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
            text = ", ".join(quote(n) for n in listed[:3]) + more
            notes.append(("not trained", text, why))
    return notes + timetable.notes

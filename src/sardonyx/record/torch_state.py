"""The optimizers of `torch.optim` in the words of ours: settings of groups, and state as slots.

torch itself is not needed here: groups are mappings, and tensors are read through their methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Settings = dict[str, Any]
State = Mapping[str, Any]


@dataclass
class Rule:
    """How one class of `torch.optim` is read.

    name     -- of our optimizer
    settings -- its settings, from those of a group
    slots    -- our slots: torch's name for each, and by what torch's number is divided
    cycled   -- the setting that a scheduler may cycle with the rate
    """

    name: str
    settings: Callable[[Mapping[str, Any]], Settings]
    slots: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float]]]
    cycled: str = ""


def _one(group: Mapping[str, Any]) -> float:
    return 1.0


def _first(group: Mapping[str, Any]) -> float:
    """Adam's first slot holds m/(1-b1), unless b1 changes over the updates."""
    return 1.0 if group.get("cycled") else 1.0 - float(group["betas"][0])


def _second(group: Mapping[str, Any]) -> float:
    return 1.0 - float(group["betas"][1])


def _plain(*names: str) -> dict[str, tuple[str, Callable[[Mapping[str, Any]], float]]]:
    return {name: (name, _one) for name in names}


def _read(*names: str, **renamed: str) -> Callable[[Mapping[str, Any]], Settings]:
    """A reader of settings under the same names, under others, and of pairs such as betas."""

    def read(group: Mapping[str, Any]) -> Settings:
        settings = {n: number(group[n]) for n in names if n in group}
        settings |= {ours: number(group[theirs]) for ours, theirs in renamed.items()}
        if "betas" in group:
            settings |= {"b1": number(group["betas"][0]), "b2": number(group["betas"][1])}
        return settings

    return read


def number(value: Any) -> Any:
    """A setting as a plain number, also where it is a tensor of one."""
    return value.item() if hasattr(value, "item") else value


ADAM_SLOTS = {
    "adam_m": ("exp_avg", _first),
    "adam_v": ("exp_avg_sq", _second),
    "adam_v_max": ("max_exp_avg_sq", _second),
}
DECOUPLED = "decoupled_weight_decay"
_ADAM = _read("eps", "weight_decay", "amsgrad", "maximize")


def _adafactor(group: Mapping[str, Any]) -> Settings:
    eps1, eps2 = group["eps"]
    settings = _read("beta2_decay", "weight_decay", "maximize", clip="d")(group)
    return {**settings, "eps1": eps1, "eps2": eps2}


def _rprop(group: Mapping[str, Any]) -> Settings:
    shrink, grow = group["etas"]
    smallest, largest = group["step_sizes"]
    sizes = {"smallest": smallest, "largest": largest}
    return {"shrink": shrink, "grow": grow, **sizes, "maximize": group["maximize"]}


RULES = {
    "SGD": Rule(
        "sgd",
        _read("momentum", "nesterov", "dampening", "weight_decay", "maximize"),
        {"momentum": ("momentum_buffer", _one)},
        "momentum",
    ),
    "Adam": Rule("adam", _ADAM, ADAM_SLOTS, "betas"),
    "AdamW": Rule("adamw", _ADAM, ADAM_SLOTS, "betas"),
    "Adagrad": Rule(
        "adagrad",
        _read("lr_decay", "eps", "weight_decay", "maximize", initial="initial_accumulator_value"),
        {"sum_of_squares": ("sum", _one)},
    ),
    "RMSprop": Rule(
        "rmsprop",
        _read("alpha", "eps", "momentum", "centered", "weight_decay", "maximize"),
        {**_plain("square_avg", "grad_avg"), "momentum": ("momentum_buffer", _one)},
    ),
    "Adafactor": Rule("adafactor", _adafactor, _plain("row_var", "col_var", "variance")),
    "NAdam": Rule(
        "nadam",
        _read("eps", "weight_decay", "momentum_decay", "maximize", decoupled=DECOUPLED),
        _plain("exp_avg", "exp_avg_sq", "mu_product"),
    ),
    "RAdam": Rule(
        "radam",
        _read("eps", "weight_decay", "maximize", decoupled=DECOUPLED),
        _plain("exp_avg", "exp_avg_sq"),
    ),
    "Adamax": Rule(
        "adamax", _read("eps", "weight_decay", "maximize"), _plain("exp_avg", "exp_inf")
    ),
    "Adadelta": Rule(
        "adadelta",
        _read("rho", "eps", "weight_decay", "maximize"),
        _plain("square_avg", "acc_delta"),
    ),
    "Rprop": Rule("rprop", _rprop, _plain("prev", "step_size")),
    "ASGD": Rule(
        "asgd",
        _read("weight_decay", "maximize", decay="lambd", power="alpha", start="t0"),
        _plain("eta", "mu", "ax"),
    ),
    "Muon": Rule(
        "muon",
        _read(
            "weight_decay", "momentum", "nesterov", "eps",
            coefficients="ns_coefficients", steps="ns_steps", adjust="adjust_lr_fn",
        ),
        _plain("momentum_buffer"),
    ),
}  # fmt: skip


UPDATES = "updates"  # the key under which `to_torch` counts them in a group of parameters


def count_of(state: State, group: Mapping[str, Any] | None = None) -> int:
    """How many updates a parameter has had, where its state or its group shows it."""
    if "step" in state:
        return int(number(state["step"]))
    if group is not None and UPDATES in group:
        return int(group[UPDATES])
    return int(any(hasattr(v, "detach") for v in state.values()))


def slots_of(
    rule: Rule, name: str, parameter: Any, state: State, group: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The slots of one parameter, by their names in the record."""
    slots = {}
    for slot, (theirs, divisor) in rule.slots.items():
        tensor: Any = state.get(theirs)
        if hasattr(tensor, "detach"):
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            wide = whole.detach().cpu().double().numpy() / divisor(group)
            is_scalar = tensor.dim() == 0 and parameter.dim() > 0
            kind = str(parameter.dtype).removeprefix("torch.")
            kind = "float32" if is_scalar and kind != "float64" else kind
            slots[f"{name}/{slot}"] = wide.astype(TYPES.get(kind) or np.dtype(kind))
    return slots


TYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16}

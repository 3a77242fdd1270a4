"""The optimizers of Keras in the words of ours: which are the same, and names for their state.

Keras itself is not needed here: optimizers and variables are read through their attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sardonyx.record.builder import RATE, STEP

ITERATION = "optimizer/iteration"


@dataclass(frozen=True)
class Rule:
    """How one class of Keras's optimizers is read, where it computes what one of ours does.

    name     -- of our optimizer
    settings -- our settings, by Keras's names for them
    slots    -- our slots, by Keras's names for them
    refused  -- settings of Keras that must be off
    """

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()


# Others have formulas of their own: SGD keeps the rate inside its momentum, RMSprop and Adagrad
# have epsilon inside the root, Adam's corrections are numbers of 32 bits.
RULES = {
    "SGD": Rule("sgd", refused=("momentum",)),
    "Lion": Rule("lion", {"beta_1": "b1", "beta_2": "b2"}, {"momentum": "lion_m"}),
    "Adadelta": Rule(
        "adadelta",
        {"rho": "rho", "epsilon": "eps"},
        {"accumulated_grad": "square_avg", "accumulated_delta_var": "acc_delta"},
    ),
}
# What any optimizer of Keras may do beside its formula.
BESIDE = (
    "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "loss_scale_factor",
    "gradient_accumulation_steps",
)  # fmt: skip


def rule_of(optimizer: Any) -> Rule | None:
    """The rule of an optimizer that computes exactly what one of ours does."""
    rule = RULES.get(type(optimizer).__name__)
    if rule is None or not type(optimizer).__module__.startswith("keras."):
        return None
    beside = (getattr(optimizer, name, None) for name in (*BESIDE, *rule.refused))
    has_variable = hasattr(getattr(optimizer, "_learning_rate", None), "assign")
    return None if any(beside) or not has_variable else rule


def slot_names(optimizer: Any, variables: Sequence[Any], names: Sequence[str]) -> list[str]:
    """A name for each variable of an optimizer: the parameter's name and what it is for it.

    variables, names -- the trained variables, and what the model calls them
    """
    stems = {v.path.replace("/", "_"): n for v, n in zip(variables, names, strict=True)}
    longest = sorted(stems, key=len, reverse=True)
    rate = getattr(optimizer, "_learning_rate", None)
    result: list[str] = []
    for variable in optimizer.variables:
        label = variable.name
        stem = next((s for s in longest if label.startswith(f"{s}_")), None)
        if variable is rate:
            name = RATE
        elif stem is not None:
            name = f"{stems[stem]}/{label[len(stem) + 1 :]}"
        else:
            name = f"optimizer/{label}"
        base, count = name, 0
        while name in result or name in names:
            count += 1
            name = f"{base}_{count}"
        result.append(name)
    return result


def our_name(rule: Rule, name: str) -> str:
    """What a record of ours calls the state that `slot_names` calls `name`."""
    if name == ITERATION:
        return STEP
    stem, _, kind = name.rpartition("/")
    return f"{stem}/{rule.slots[kind]}" if kind in rule.slots else name

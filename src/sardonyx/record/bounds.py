"""The range of each numeric setting: a learning rate is not negative, b1 of Adam is below one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from sardonyx.errors import ArgumentError, quote


@dataclass(frozen=True)
class Bound:
    """Numbers from `low` on, below `high`; `above` and `whole` narrow that."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False  # `low` itself is excluded
    whole: bool = False

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, Integral if self.whole else Real) or isinstance(value, bool):
            return False
        number = float(value)
        return self.low <= number < self.high and not (self.above and number == self.low)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low = f"{'above' if self.above else 'from'} {self.low:g}"
        return f"{kind} {low}{'' if math.isinf(self.high) else f' and below {self.high:g}'}"


NOT_NEGATIVE, SHARE = Bound(), Bound(high=1.0)
BOUNDS = {
    "lr": NOT_NEGATIVE, "weight_decay": NOT_NEGATIVE, "momentum": NOT_NEGATIVE,
    "lr_decay": NOT_NEGATIVE, "eps": NOT_NEGATIVE, "alpha": NOT_NEGATIVE, "initial": NOT_NEGATIVE,
    "b1": SHARE, "b2": SHARE, "ema": SHARE, "l1": NOT_NEGATIVE, "l2": NOT_NEGATIVE,
    "clip_norm": Bound(above=True), "clip_value": Bound(above=True),
    "accumulate": Bound(1, whole=True), "seed": Bound(-(2**63), 2**63, whole=True),
}  # fmt: skip


def check_numbers(settings: Mapping[str, Any], of: str) -> None:
    """Raise an error that names every setting which is out of range."""
    wrong = [
        [quote(name), f"is {BOUNDS[name]}, not {value!r}"]
        for name, value in settings.items()
        if name in BOUNDS and value is not None and value not in BOUNDS[name]
    ]
    if wrong:
        raise ArgumentError(f"settings of {of} are out of range", wrong)

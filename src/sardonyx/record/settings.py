"""The settings of a record and of the training loop: what each holds in a configuration file, and
the range of its numbers. `trainable` has an argument for each of `RECORD`, `train` of `LOOP`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Setting:
    """The value of a setting in words, its types in a configuration file, its range."""

    what: str
    types: type | tuple[type, ...]
    bound: Bound | None = None

    def holds(self, value: Any) -> bool:
        types = self.types if isinstance(self.types, tuple) else (self.types,)
        return isinstance(value, types) and (bool in types or not isinstance(value, bool))


NOT_NEGATIVE, POSITIVE, SHARE = Bound(), Bound(above=True), Bound(high=1.0)
NUMBER, WHOLE = Setting("a number", (int, float)), Setting("a whole number", int)
NAME, NAMES = Setting("a name", str), Setting("a list of names", list)
FLAG = Setting("true or false", bool)
NAME_OR_TABLE = Setting("a name or a table", (str, dict))
PATTERNS = Setting("a pattern or a list of them", (str, list))
MODES = Setting("a mode, or a table of modes by pattern", (str, dict))
RECORD = {
    "loss": Setting("a name, a table, or several", (str, dict, list)),
    "optimizer": NAME_OR_TABLE,
    "train": PATTERNS, "freeze": PATTERNS,
    "lr": replace(NUMBER, bound=NOT_NEGATIVE),
    "prediction": NAME, "labels": NAMES, "class_axis": WHOLE,
    "groups": Setting("tables by pattern", dict),
    "batch_norm": MODES, "dropout": MODES,
    "clip_norm": replace(NUMBER, bound=POSITIVE), "clip_value": replace(NUMBER, bound=POSITIVE),
    "l1": replace(NUMBER, bound=NOT_NEGATIVE), "l2": replace(NUMBER, bound=NOT_NEGATIVE),
    "accumulate": replace(WHOLE, bound=Bound(1, whole=True)),
    "ema": replace(NUMBER, bound=SHARE),
    "initialize": Setting("a table by pattern", dict),
    "seed": replace(WHOLE, bound=Bound(-(2**63), 2**63, whole=True)),
    "form": NAME, "name": NAME,
}  # fmt: skip
LOOP = {
    "epochs": WHOLE, "steps": WHOLE, "batch_size": WHOLE,
    "validation": Setting("a share of the rows or a file", (int, float, str)),
    "metrics": NAMES, "engine": NAME, "device": NAME, "precision": NAME,
    "devices": WHOLE, "shard": NAME, "mesh": Setting("a table of numbers by axis", dict),
    "drop_last": FLAG,
    "shuffle": Setting('true, false or "hash"', (bool, str)),
    "patience": WHOLE, "watch": NAME, "every_steps": WHOLE, "every_minutes": NUMBER,
    "fields": Setting("a table of fields by input", dict), "columns": NAMES,
    "constants": Setting("a table of values by input", dict),
    "batch_axes": Setting("a table of axes by input", dict),
    "preprocess": NAME_OR_TABLE, "recompute": FLAG,
}  # fmt: skip
OPTIMIZER = {  # the ranges of what only optimizers have
    "weight_decay": NOT_NEGATIVE, "momentum": NOT_NEGATIVE, "lr_decay": NOT_NEGATIVE,
    "eps": NOT_NEGATIVE, "alpha": NOT_NEGATIVE, "initial": NOT_NEGATIVE, "b1": SHARE, "b2": SHARE,
}  # fmt: skip
BOUNDS = OPTIMIZER | {name: s.bound for name, s in RECORD.items() if s.bound}


def check_numbers(settings: Mapping[str, Any], of: str) -> None:
    """Raise an error that names every setting which is out of range."""
    wrong = [
        [quote(name), f"is {BOUNDS[name]}, not {value!r}"]
        for name, value in settings.items()
        if name in BOUNDS and value is not None and value not in BOUNDS[name]
    ]
    if wrong:
        raise ArgumentError(f"settings of {of} are out of range", wrong)

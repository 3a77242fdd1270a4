"""Variables that a model assigns in inference: inputs and outputs of the imported model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from sardonyx.importers.jax import trees


def next_name(name: str) -> str:
    """The output that has the new value of a variable."""
    return f"{name}/next"


def with_states(outputs: Any, values: Mapping[str, Any], moving: Sequence[str]) -> Any:
    """The outputs, then the new values of the variables in `moving`, all by name."""
    if not moving:
        return outputs
    leaves = jax.tree.leaves(outputs)
    names = trees.output_names(outputs, set(moving))
    new = [(next_name(name), values[name]) for name in moving]
    return OrderedDict([*zip(names, leaves, strict=True), *new])

"""What a source keeps between calls, as the metadata of a model that takes and returns it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

STATE = "sardonyx.state"


def described(variables: Mapping[str, tuple[str, np.ndarray]]) -> str:
    """Variables as JSON: the name of the input → the output, and the first value or its filler."""
    state = {}
    for name, (output, values) in variables.items():
        uniform = values.size and (values == values.reshape(-1)[0]).all()
        first = values.reshape(-1)[0].item() if uniform else values.tolist()
        state[name] = {"output": output, "first": first}
    return json.dumps(state)

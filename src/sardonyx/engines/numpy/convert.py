"""`to_numpy`: an ONNX model as a function of numpy arrays, exact in double precision if asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sardonyx.engines.native import bind
from sardonyx.engines.numpy.backend import Runner
from sardonyx.model import Model, load


def to_numpy(model: Model | str | Path, *, float64: bool = False) -> Callable[..., Any]:
    """An ONNX model as a function of numpy arrays, given in order or by name: slow, and exact.

    float64 -- compute in double what the model computes in single precision

    >>> import numpy as np, sardonyx as sx
    >>> sx.to_numpy("model.onnx")(np.zeros((2, 8), np.float32)).shape
    (2, 3)
    """
    runner = Runner(load(model), float64=float64)
    names = runner.inputs

    def run(*given: Any, **named: Any) -> Any:
        found = tuple(runner(bind(names, given, named)).values())
        return found[0] if len(found) == 1 else found

    return run

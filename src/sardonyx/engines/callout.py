"""Regions that run on another engine: their values and gradients over numpy arrays.

How a region becomes part of a framework's own graph is in that framework's `callout.py`. The
gradient of a region is a region again, made from the ONNX gradient of its model: it runs on the
same engine, and so do gradients of any order.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.engines.loading import PluginRunner, load_engine
from sardonyx.errors import UnsupportedOp
from sardonyx.grad import grad
from sardonyx.lower.partition import Region
from sardonyx.lower.xp import Arrays, is_symbolic


@contextlib.contextmanager
def refused(framework: str) -> Iterator[None]:
    """Refuse nodes of other engines, all of them named, in a model that is written to a file."""
    try:
        yield
    except UnsupportedOp as error:
        raise UnsupportedOp(
            f"a {framework} file cannot call another engine, but {error.what}",
            error.where,
            hint=f"sardonyx.to_{framework}(model) runs them in numpy, without a file",
        ) from error


def run(region: Region, values: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a region for numpy arrays, lists of them, or text."""
    if "rep" not in region.cache:
        loaded = load_engine(region.engine)
        backend = getattr(loaded, "Backend", None)
        region.cache["rep"] = backend.prepare(region.model) if backend else None
        region.cache["runner"] = None if backend else PluginRunner(region.engine, region.model)
    if region.cache["rep"] is not None:
        return tuple(region.cache["rep"].run(list(values)))
    names = [v.name or "" for v in region.model.graph.inputs]
    return tuple(region.cache["runner"](dict(zip(names, values, strict=True))).values())


def run_at_once(xp: Arrays, region: Region, values: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a region for arrays of `xp`, or lists of them, outside of any graph."""

    def to_numpy(value: Any, dtype: np.dtype | None) -> Any:
        if isinstance(value, list):
            return [to_numpy(v, dtype) for v in value]
        return xp.to_numpy(value, dtype) if xp.is_array(value) else value

    def from_numpy(value: Any) -> Any:
        if isinstance(value, list):
            return [from_numpy(v) for v in value]
        is_text = not isinstance(value, np.ndarray) or value.dtype == object
        return value if is_text else xp.asarray(value)

    arrays = [to_numpy(v, t) for v, t in zip(values, region.input_types, strict=True)]
    return tuple(from_numpy(v) for v in run(region, arrays))


def gradient(region: Region) -> Region | None:
    """The region that takes inputs, then cotangents of its float outputs, and gives those of its
    float inputs; None where there is nothing to differentiate.
    """
    graph = region.model.graph
    starts, ends = region.floats(graph.inputs), region.floats(graph.outputs)
    if not starts or not ends:
        return None
    if "gradient" not in region.cache:
        with warnings.catch_warnings():
            # An input that no output depends on has a gradient of zero, which is right here.
            warnings.simplefilter("ignore", UserWarning)
            model = grad(
                region.model,
                of=[graph.outputs[i].name or "" for i in ends],
                wrt=[graph.inputs[i].name or "" for i in starts],
                seeds="input",
                outputs=False,
            )
        region.cache["gradient"] = Region(region.engine, region.placements, model, starts)
    backward: Region = region.cache["gradient"]
    return backward


def inline_constants(region: Region, values: Sequence[Any]) -> tuple[Region, list[Any]]:
    """The region with its known integer inputs as constants, since sizes may depend on them."""
    constants = {
        i: np.asarray(v)
        for i, v in enumerate(values)
        if isinstance(v, (np.ndarray, np.generic)) and v.dtype.kind in "iub" and not is_symbolic(v)
    }
    if not constants:
        return region, list(values)
    return region.with_known(constants), [v for i, v in enumerate(values) if i not in constants]

"""Regions that run on another engine: their values and gradients over numpy arrays.

How a region becomes part of a framework's own graph is in that framework's `outside.py`. The
gradient of a region is a region again, made from the ONNX gradient of its model: it runs on the
same engine, and so do gradients of any order.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import UnsupportedOp
from sardonyx.grad import grad
from sardonyx.lower.partition import Region
from sardonyx.lower.xp import is_symbolic


@contextlib.contextmanager
def refused(framework: str) -> Iterator[None]:
    """Around what is written to a file: nodes that run elsewhere are refused, all of them named."""
    try:
        yield
    except UnsupportedOp as error:
        raise UnsupportedOp(
            f"a file of {framework} holds no other engine, but {error.what}",
            error.where,
            hint=f"sardonyx.to_{framework}(model) runs them in numpy, without a file",
        ) from error


def run(region: Region, values: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a region for numpy arrays, lists of them, or text."""
    if "rep" not in region.held:
        backend = importlib.import_module(f"sardonyx.engines.{region.engine}").Backend
        region.held["rep"] = backend.prepare(region.model)
    found = region.held["rep"].run(list(values))
    return tuple(found)


def gradient(region: Region) -> Region | None:
    """The region that takes inputs, then cotangents of its float outputs, and gives those of its
    float inputs; None where there is nothing to differentiate.
    """
    graph = region.model.graph
    starts, ends = region.floats(graph.inputs), region.floats(graph.outputs)
    if not starts or not ends:
        return None
    if "gradient" not in region.held:
        with warnings.catch_warnings():
            # An input that no output depends on: its gradient is zero, which is what is asked for.
            warnings.simplefilter("ignore", UserWarning)
            model = grad(
                region.model,
                of=[graph.outputs[i].name or "" for i in ends],
                wrt=[graph.inputs[i].name or "" for i in starts],
                seeds="input",
                outputs=False,
            )
        region.held["gradient"] = Region(region.engine, region.placements, model, starts)
    made: Region = region.held["gradient"]
    return made


def settled(region: Region, values: Sequence[Any]) -> tuple[Region, list[Any]]:
    """A region about to become part of a graph: integers that are known go inside, since sizes may
    depend on them.
    """
    known = {
        i: np.asarray(v)
        for i, v in enumerate(values)
        if isinstance(v, (np.ndarray, np.generic)) and v.dtype.kind in "iub" and not is_symbolic(v)
    }
    if not known:
        return region, list(values)
    return region.with_known(known), [v for i, v in enumerate(values) if i not in known]

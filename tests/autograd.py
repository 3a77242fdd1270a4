"""torch's own differentiation of a model: an oracle that shares no gradient rule with us.

The model runs node by node over torch's arrays, and torch differentiates the operations it ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sardonyx.lower.program import Program
from sardonyx.model import Model

Arrays = dict[str, np.ndarray]


def autograd(
    model: Model, feeds: Mapping[str, np.ndarray], wrt: Sequence[str], seeds: Arrays
) -> Arrays:
    """The gradients of the outputs in `seeds`, by inputs or initializers of a normalized model."""
    import torch

    from sardonyx.engines.torch import backend  # noqa: F401  (registers the kernels)
    from sardonyx.engines.torch.xp import arrays

    weights = [n for n in wrt if n in model.graph.initializers]
    held = {n: torch.tensor(model.initializer(n).numpy(), requires_grad=True) for n in weights}
    inputs = {n: torch.tensor(a, requires_grad=n in wrt) for n, a in feeds.items()}
    program = Program(model, arrays("cpu"), parameters=weights)
    outputs = dict(zip(program.outputs, program(inputs, held), strict=True))
    reached = [n for n in seeds if outputs[n].requires_grad]
    leaves = {**inputs, **held}
    result = torch.autograd.grad(
        [outputs[n] for n in reached],
        [leaves[n] for n in wrt],
        [torch.tensor(seeds[n]) for n in reached],
        materialize_grads=True,
        allow_unused=True,
    )
    return {n: g.numpy() for n, g in zip(wrt, result, strict=True)}

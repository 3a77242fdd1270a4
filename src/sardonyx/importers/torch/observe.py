"""What a module does in training mode only, seen in one forward pass.

The graph is captured in evaluation mode, where the dropout of attention is off and stochastic depth
does not exist. One pass in training mode shows the ratios of the former, and what of the random
draws the graph lacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.importers.torch.capture import Source, quiet

aten = torch.ops.aten
RANDOM_CALLS = {
    aten.bernoulli_.float, aten.bernoulli.default, aten.bernoulli.p, aten.rand.default,
    aten.rand_like.default, aten.randn.default, aten.randn_like.default, aten.uniform_.default,
    aten.normal_.default, aten.randperm.default, aten.randint.default, aten.randint.low,
    aten.native_dropout.default, aten.multinomial.default, aten.rrelu_with_noise.default,
    aten.rrelu_with_noise_functional.default,
}  # fmt: skip


@dataclass
class Observation:
    """What one forward pass in training mode showed.

    attention -- the dropout ratio of each attention, in the order of calls
    draws     -- (operator, shape) of every random draw
    problem   -- why the module does not run in training mode
    """

    attention: list[float] = field(default_factory=list)
    draws: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    problem: str = ""


class _Draws(TorchDispatchMode):
    def __init__(self, observation: Observation):
        super().__init__()
        self.observation = observation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in RANDOM_CALLS:
            shape = tuple(getattr(result, "shape", ()))
            self.observation.draws.append((str(func), shape))
        return result


class _Attention(TorchFunctionMode):
    def __init__(self, observation: Observation):
        super().__init__()
        self.observation = observation

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            ratio = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            self.observation.attention.append(float(ratio))
        return func(*args, **kwargs)


def observe(source: Source) -> Observation:
    """One forward pass with the loss in training mode; the module is as before afterwards."""
    observation = Observation()
    with _restored(source.module), torch.random.fork_rng(devices=[]), torch.no_grad(), quiet():
        for part in source.module.modules():
            part.training = True
        try:
            with _Attention(observation), _Draws(observation):
                source.run(source.module, {})
        except Exception as error:  # the user's own code: it may need a gradient, or more rows
            observation.problem = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return observation


@contextlib.contextmanager
def _restored(module: torch.nn.Module) -> Iterator[None]:
    """Put the modes and buffers of a module back as they were."""
    modes = {m: m.training for m in module.modules()}
    buffers = {b: b.detach().clone() for b in module.buffers()}
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)

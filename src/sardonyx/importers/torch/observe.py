"""What a module does in training mode only, seen in one forward pass.

The graph is captured in evaluation mode, where the dropout of attention is off and stochastic depth
does not exist. One pass in training mode shows the ratios of the former, which modules do the
latter, and what of the random draws the graph lacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.errors import SardonyxError
from sardonyx.importers.torch.capture import (
    attributes_restored,
    plain_branches,
    quiet,
    user_line,
)
from sardonyx.importers.torch.source import Source
from sardonyx.importers.torch.stochastic_depth import RowDropout, ranks, row_dropout

aten = torch.ops.aten
ATTENTION = functional.scaled_dot_product_attention
RANDOM_CALLS = {
    aten.bernoulli_.float, aten.bernoulli.default, aten.bernoulli.p, aten.rand.default,
    aten.rand_like.default, aten.randn.default, aten.randn_like.default, aten.uniform_.default,
    aten.normal_.default, aten.randperm.default, aten.randint.default, aten.randint.low,
    aten.native_dropout.default, aten.multinomial.default, aten.rrelu_with_noise.default,
    aten.rrelu_with_noise_functional.default,
}  # fmt: skip


@dataclass(frozen=True)
class Draw:
    """One random draw: the operator, the shape of the result, and the line that asked for it."""

    operator: str
    shape: tuple[int, ...]
    line: str


@dataclass
class Observation:
    """What one forward pass in training mode showed.

    attention -- the dropout ratio of each attention, in the order of calls
    draws     -- every random draw
    changes   -- the buffers that it changed
    rescaled  -- the weights of which it shortened rows in place (`max_norm`), and the lines
    depth     -- the modules that drop whole rows of what they are given
    functions -- what was called of `torch.autograd.Function`, with gradients of its own
    problem   -- why the module does not run in training mode
    """

    attention: list[float] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    rescaled: list[tuple[str, str]] = field(default_factory=list)
    depth: dict[torch.nn.Module, RowDropout] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    problem: str = ""


class _Draws(TorchDispatchMode):
    def __init__(self, observation: Observation, module: torch.nn.Module):
        super().__init__()
        self.observation, self.module = observation, module

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in RANDOM_CALLS:
            shape = tuple(getattr(result, "shape", ()))
            self.observation.draws.append(Draw(str(func), shape, user_line()))
        if func is aten.embedding_renorm_.default:
            names = {p.data_ptr(): n for n, p in self.module.named_parameters()}
            self.observation.rescaled.append((names.get(args[0].data_ptr(), ""), user_line()))
        return result


class _Attention(TorchFunctionMode):
    def __init__(self, observation: Observation):
        super().__init__()
        self.observation = observation

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._note(*args, **kwargs)
        if func is functional.multi_head_attention_forward:  # the calls inside it are not shown
            with mock.patch.object(functional, "scaled_dot_product_attention", self._noted):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _note(self, *args: Any, **kwargs: Any) -> None:
        ratio = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        self.observation.attention.append(float(ratio))

    def _noted(self, *args: Any, **kwargs: Any) -> Any:
        self._note(*args, **kwargs)
        return ATTENTION(*args, **kwargs)


@contextlib.contextmanager
def _functions(observation: Observation) -> Iterator[None]:
    """Inside, the user's own functions with gradients are noted."""
    original = vars(torch.autograd.Function)["apply"].__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            observation.functions.append(cls.__qualname__)
        return original(cls, *args, **kwargs)

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)):
        yield


def observe(source: Source) -> Observation:
    """One forward pass with the loss in training mode; the module is as before afterwards."""
    observation = Observation()
    module = source.module
    with _restored(module) as before, torch.random.fork_rng(devices=[]), torch.no_grad(), quiet():
        for part in module.modules():
            part.training = True
        try:
            part_ranks: dict[torch.nn.Module, int] = {}
            watching = _Attention(observation), _Draws(observation, module), _functions(observation)
            with contextlib.ExitStack() as stack:
                for context in (*watching, ranks(module, part_ranks), plain_branches()):
                    stack.enter_context(context)
                source.run(source.module, {})
            dropouts = {part: row_dropout(part, rank) for part, rank in part_ranks.items()}
            observation.depth = {p: how for p, how in dropouts.items() if how is not None}
        except SardonyxError:
            raise
        except Exception as error:  # the user's own code: it may need a gradient, or more rows
            observation.problem = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        observation.changes = [
            n for n, b in module.named_buffers() if n in before and not torch.equal(b, before[n])
        ]
    return observation


@contextlib.contextmanager
def _restored(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Put a module back as it was; copies of its buffers are at hand inside."""
    modes = {m: m.training for m in module.modules()}
    try:
        with attributes_restored(module):
            yield {n: b.detach().clone() for n, b in module.named_buffers()}
    finally:
        for part, mode in modes.items():
            part.training = mode

"""The update of an optimizer without a formula of ours, captured as a graph.

One `step()` is exported as a function of parameters, gradients and state. Settings such as the rate
become constants of the graph. State must consist of tensors: a number of Python's that changes
would be frozen at its present value, and is refused by its name.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from sardonyx.build import Builder, constant
from sardonyx.errors import ImportRefused, quote
from sardonyx.importers.torch.capture import Program, quiet, refused, silent
from sardonyx.importers.torch.copies import copied
from sardonyx.importers.torch.translate import translated
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.passes.functions import copy_nodes
from sardonyx.record import optim
from sardonyx.record.transform import Parameter, UpdateContext

State = dict[tuple[str, str], torch.Tensor]  # by the names of a parameter and of its entry


def traced_optimizer(
    optimizer: torch.optim.Optimizer, members: Mapping[str, torch.nn.Parameter]
) -> tuple[optim.Optimizer, dict[str, np.ndarray]]:
    """The optimizer as a chain of one captured update, and its state by the names of slots."""
    _refuse_numbers(optimizer, members)
    state = _tensors(optimizer, members)
    model = _captured(optimizer, members, state)
    arrays = {f"{n}/{k}": np.array(t.detach().cpu().numpy()) for (n, k), t in state.items()}

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        slots = {key: step.builder.slot(key, array) for key, array in arrays.items()}
        by_name = {p.name: p for p in parameters}
        values = [by_name[n].value for n in members] + [by_name[n].update for n in members]
        values += [slots[key].value for key in arrays]
        results = _inlined(step.op, model, values)
        for name, value in zip(members, results, strict=False):
            by_name[name].final = value
        for key, value in zip(arrays, results[len(members) :], strict=True):
            slots[key].next = value

    return optim.Optimizer((update,), type(optimizer).__name__), arrays


def _tensors(optimizer: torch.optim.Optimizer, members: Mapping[str, torch.nn.Parameter]) -> State:
    return {
        (name, key): value
        for name, parameter in members.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def _refuse_numbers(
    optimizer: torch.optim.Optimizer, members: Mapping[str, torch.nn.Parameter]
) -> None:
    """Refuse state that is not made of tensors, by taking two steps with a copy."""
    name = type(optimizer).__name__
    parameters, other = copied((list(members.values()), optimizer))
    generator = torch.Generator().manual_seed(0)
    before, new_keys = _plain(other), set(_tensors(optimizer, members))
    for count in range(2):
        for parameter in parameters:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.grad = noise.to(parameter.dtype) * 1e-3
        try:
            with quiet():
                other.step()
        except Exception as error:
            raise ImportRefused(
                f"the optimizer {quote(name)} cannot take a step by itself: {error}",
                hint="an optimizer whose step needs a closure cannot become a record",
            ) from error
        keys = set(_tensors(other, dict(zip(members, parameters, strict=True))))
        if count == 0 and keys != new_keys:
            raise ImportRefused(
                f"the optimizer {quote(name)} has no state yet",
                hint="take one training step in torch before the import",
            )
    after = _plain(other)
    rows = [[where, "is a number of Python's, and changes"] for where in sorted(after)
            if before.get(where) != after[where]]  # fmt: skip
    if rows:
        raise ImportRefused(
            f"the state of the optimizer {quote(name)} is not made of tensors",
            rows,
            hint="keep it as tensors: state['step'] = torch.tensor(0.0)",
        )


def _plain(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """What an optimizer holds beside tensors, in words."""
    words: dict[str, str] = {}
    for index, group in enumerate(optimizer.param_groups):
        settings = {k: v for k, v in group.items() if k != "params"}
        words |= {f"group {index}, {quote(k)}": repr(v) for k, v in settings.items()}
    entries = optimizer.state.items()
    for place, (owner, state) in enumerate(entries):
        listed = state.items() if isinstance(owner, torch.Tensor) else [(str(owner), state)]
        for key, value in listed:
            if not isinstance(value, torch.Tensor):
                words[f"state {place}, {quote(key)}"] = repr(value)
    return words


class _Update(torch.nn.Module):
    """One step of an optimizer as a function of tensors."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, members: Mapping[str, Any], keys: Sequence[Any]
    ):
        super().__init__()
        self.optimizer, self.members, self.keys = optimizer, list(members.items()), list(keys)

    def forward(self, *values: torch.Tensor) -> list[torch.Tensor]:
        count = len(self.members)
        copies = [v.clone() for v in values[:count]]
        names = [name for name, _ in self.members]
        stand_ins = {id(p): c for (_, p), c in zip(self.members, copies, strict=True)}
        for stand_in, gradient in zip(copies, values[count : 2 * count], strict=True):
            stand_in.grad = gradient.clone()
        shell = copy.copy(self.optimizer)
        shell.param_groups = [
            {**g, "params": [stand_ins[id(p)] for p in g["params"] if id(p) in stand_ins]}
            for g in self.optimizer.param_groups
        ]
        shell.state = defaultdict(dict)
        by_name = dict(zip(names, copies, strict=True))
        originals = dict(self.members)
        for name in names:
            rest = self.optimizer.state.get(originals[name], {})
            plain = {k: v for k, v in rest.items() if not isinstance(v, torch.Tensor)}
            shell.state[by_name[name]] = plain
        for (name, key), value in zip(self.keys, values[2 * count :], strict=True):
            shell.state[by_name[name]][key] = value.clone()
        with torch.no_grad():
            type(shell).step(shell)
        return copies + [shell.state[by_name[n]][k] for n, k in self.keys]


def _captured(
    optimizer: torch.optim.Optimizer, members: Mapping[str, torch.nn.Parameter], state: State
) -> Model:
    weights = [p.detach().clone() for p in members.values()]
    values = [*weights, *(torch.full_like(w, 1e-3) for w in weights)]
    values += [t.detach().clone() for t in state.values()]
    module = _Update(optimizer, members, list(state))
    with quiet(), silent(), refused(optimizer), torch.no_grad():
        exported = torch.export.export(module, tuple(values), strict=False)
        inputs = [f"in_{i}" for i in range(len(values))]
        outputs = [f"out_{i}" for i in range(len(weights) + len(state))]
        return normalize(translated(Program(exported, inputs, outputs), module))


def _inlined(op: Builder, model: Model, arguments: Sequence[ir.Value]) -> list[ir.Value]:
    """The outputs of a model on `arguments`, its nodes copied behind them."""
    graph = model.graph
    values: dict[ir.Value, ir.Value | None] = dict(zip(model.inputs, arguments, strict=True))
    for value in graph.initializers.values():
        array = constant(value)
        values[value] = op.const(array, value.dtype) if array is not None else None
    prefix = op.prefix or "update"
    op.nodes.extend(copy_nodes(graph, values, {}, lambda name: op.fresh(f"{prefix}/{name}")))
    results = [values.get(v, v) for v in graph.outputs]
    return [v for v in results if v is not None]

"""The state of a torch optimizer, put into the training record of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from sardonyx.engines.torch.convert import OnnxModule, unwrapped
from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model, Record
from sardonyx.record.builder import STEP
from sardonyx.record.describe import descriptions
from sardonyx.record.torch_state import RULES, UPDATES, count_of, slots_of


def with_optimizer_state(
    model: Model, module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Model:
    """A copy of `model` whose record goes on where the optimizer stands."""
    if len(model.records) != 1:
        raise ArgumentError(f"the model has {len(model.records)} training records, not one")
    copy, arguments = model.copy(), descriptions(model)[0].get("arguments", {})
    record = copy.records[0]
    name = type(optimizer).__name__
    rule = RULES.get(name)
    ours = arguments.get("optimizer", {}).get("name")
    if rule is None or ours not in (rule.name, "adamw" if rule.name == "adam" else ""):
        raise ArgumentError(f"the record's optimizer is {ours}, not torch's {name}")
    cycled = "momentum_schedule" in arguments.get("optimizer", {})
    slots, counts = _state(module, optimizer, rule, cycled)
    updates = max(counts.values(), default=0)
    _refuse_uncounted(optimizer, rule, record)
    problems = [[quote(n), "is no slot of the record"] for n in slots if n not in record.state]
    problems += [
        [quote(n), f"{list(record.state[n].shape.numpy())} ← {list(a.shape)}"]
        for n, a in slots.items()
        if n in record.state and tuple(record.state[n].shape.numpy()) != a.shape
    ]
    offsets = {n: o for n, o in _offsets(arguments).items() if n in counts}
    problems += [
        [quote(n), f"has had {count} updates, the others {updates}"]
        for n, count in counts.items()
        if count - updates != offsets.get(n, 0)
    ]
    if problems:
        raise ArgumentError("the state of the optimizer does not fit the record", problems)
    for slot, array in slots.items():
        record.state[slot] = ir.Tensor(array, name=slot, shape=ir.Shape(array.shape))
    if STEP in record.state:
        count = np.asarray(updates * int(arguments.get("accumulate", 1)), np.int64)
        record.state[STEP] = ir.Tensor(count, name=STEP, shape=ir.Shape(()))
    return copy


def _state(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, rule: Any, cycled: bool
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The slots by name, and how many updates each parameter has had."""
    module = unwrapped(module)
    keys = module.names if isinstance(module, OnnxModule) else {}
    renamed = {key: name for name, key in keys.items()}
    names = {id(p): renamed.get(n, n) for n, p in module.named_parameters()}
    slots: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    foreign = []
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                foreign.append([f"group {index}, parameter {place}", str(list(parameter.shape))])
                continue
            state = optimizer.state.get(parameter, {})
            if state or UPDATES in group:
                name = names[id(parameter)]
                slots |= slots_of(rule, name, parameter, state, {**group, "cycled": cycled})
                counts[name] = count_of(state, group)
    if foreign:
        raise ArgumentError("the optimizer has parameters that are not the module's", foreign)
    return slots, counts


def _refuse_uncounted(optimizer: torch.optim.Optimizer, rule: Any, record: Record) -> None:
    """Refuse to guess where a schedule stands: SGD does not know how many updates it has made."""
    counted = rule.name not in ("sgd", "muon") or all(UPDATES in g for g in optimizer.param_groups)
    if counted or STEP not in record.state or not _is_scheduled(record):
        return
    raise ArgumentError(
        f"torch's {type(optimizer).__name__} does not say how many updates it has made, which the "
        "schedule of the record depends on",
        hint=f'write it into its groups: group["{UPDATES}"] = scheduler.last_epoch',
    )


def _is_scheduled(record: Record) -> bool:
    return any("train/schedule" in (node.name or "") for node in record.algorithm)


def _offsets(arguments: dict[str, Any]) -> dict[str, int]:
    groups = (arguments.get("groups") or {}).values()
    return {n: g.get("offset", 0) for g in groups for n in g.get("parameters", ())}

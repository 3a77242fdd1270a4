"""`train.py` beside a generated module: loss, optimizer and schedule of a record as a script."""

from __future__ import annotations

import pprint
from collections.abc import Mapping
from typing import Any

from sardonyx.engines.torch.objects import NOT_HELD, class_name, is_plain, keywords
from sardonyx.engines.torch.source.layers import Tensor
from sardonyx.errors import ArgumentError
from sardonyx.record.reading import Group, Reading, refuse
from sardonyx.record.schedule import Schedule

SCRIPT = "train.py"
LOSSES = {
    "cross_entropy": ("CrossEntropyLoss", ("weight", "ignore_index", "label_smoothing")),
    "binary_cross_entropy": ("BCEWithLogitsLoss", ("pos_weight",)),
    "mse": ("MSELoss", ()),
    "l1": ("L1Loss", ()),
    "huber": ("HuberLoss", ("delta",)),
    "kl_divergence": ("KLDivLoss", ("log_target",)),
}
DEFAULTS = {"reduction": "mean", "label_smoothing": 0.0, "delta": 1.0, "log_target": False}

TEMPLATE = '''"""Train the model beside this file: python train.py data.npz [--epochs 3]

The data is an .npz file with the fields {fields}. {about}
"""

import argparse
import math

import numpy as np
import torch
from safetensors.torch import save_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import model

INPUTS = {inputs}
LABELS = {labels}


def make_loss() -> nn.Module:
    return {loss}


def make_optimizer(network: nn.Module) -> torch.optim.Optimizer:
    parameters = dict(network.named_parameters())
{freeze}    groups = [
{groups}    ]
    return torch.optim.{optimizer}(groups)


def factor(updates: int) -> float:
    """What the learning rate is multiplied by after so many updates."""
    return {factor}


def train(path: str, epochs: int, batch_size: int, shuffle: bool, device: str) -> None:
    data = np.load(path)
    rows = TensorDataset(*(torch.from_numpy(data[name]) for name in (*INPUTS, *LABELS)))
    batches = DataLoader(rows, batch_size, shuffle=shuffle)
    network = model.load().to(device).train()
    loss, optimizer = make_loss().to(device), make_optimizer(network)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for epoch in range(epochs):
        for batch in batches:
            tensors = [tensor.to(device) for tensor in batch]
            optimizer.zero_grad()
            value = loss({prediction}, {label})
            value.backward()
{clip}            optimizer.step()
            scheduler.step()
            print(f"epoch {{epoch + 1}}  loss {{value.item():.8g}}")
    save_model(network, "model.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--no-shuffle", action="store_true")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    train(args.data, args.epochs, args.batch_size, not args.no_shuffle, args.device)
'''


def training_script(reading: Reading, state: Mapping[str, Tensor]) -> str:
    """The text of the script.

    state -- the tensors of the generated module by their keys
    """
    refuse(reading, "torch", (*NOT_HELD, "momentum_schedule"))
    inputs = [v.name or "" for v in reading.model.inputs]
    loss = _loss(reading)
    prediction, label = _comparison(reading, len(inputs))
    has_steps = any(group.updates for group in reading.groups)
    about = "The optimizer starts anew, not where the record stands. " if has_steps else ""
    trained, groups = _groups(reading, state)
    frozen = [k for k, t in state.items() if not t.is_buffer and k not in trained]
    return TEMPLATE.format(
        fields=", ".join((*inputs, *reading.labels)),
        about=f"{about}The weights are written to model.safetensors.",
        inputs=inputs,
        labels=reading.labels,
        loss=loss,
        freeze="".join(f"    parameters[{k!r}].requires_grad_(False)\n" for k in frozen),
        groups=groups,
        optimizer=class_name(reading.optimizer),
        factor=_factor(reading),
        prediction=prediction,
        label=label,
        clip=_clip(reading),
    )


def _loss(reading: Reading) -> str:
    term = reading.terms[0] if len(reading.terms) == 1 else None
    chosen = {} if term is None else term.loss.settings
    settings = {k: v for k, v in chosen.items() if v is not None}
    plain = term is not None and is_plain(term.loss.name, {**settings, "axis": None})
    if term is None or term.weight != 1.0 or not plain:
        raise ArgumentError(
            "the loss of this record has no counterpart in torch.nn",
            hint="sx.to_torch(model, training=True) gives it as a module",
        )
    name, arguments = LOSSES[term.loss.name]
    texts = []
    for key in (*arguments, "reduction"):
        value = settings.get(key)
        if value is None or DEFAULTS.get(key) == value:
            continue
        texts.append(f"{key}={_tensor(value) if key.endswith('weight') else repr(value)}")
    return f"nn.{name}({', '.join(texts)})"


def _tensor(value: Any) -> str:
    return f"torch.tensor({value!r})"


def _comparison(reading: Reading, count: int) -> tuple[str, str]:
    """What the loss takes, in terms of the tensors of a batch."""
    if len(reading.labels) != 1:
        raise ArgumentError("a script is written for losses with one label")
    prediction = f"network(*tensors[:{count}])" if count != 1 else "network(tensors[0])"
    axis = reading.terms[0].loss.settings.get("axis")
    if reading.terms[0].loss.name == "cross_entropy" and axis not in (None, 1):
        prediction += f".movedim({axis}, 1)"
    return prediction, "tensors[-1]"


def _groups(reading: Reading, state: Mapping[str, Tensor]) -> tuple[set[str], str]:
    """The keys that are trained, and the groups of parameters as text."""
    numbers = {name: i for i, group in enumerate(reading.groups) for name in group.names}
    members: dict[int, list[str]] = {}
    for key, tensor in state.items():
        chosen = {numbers.get(v.name or "", -1) for v in tensor.sources}
        if len(chosen) > 1:
            raise ArgumentError(f"the parameter {key!r} is made of tensors of different groups")
        if not tensor.is_buffer and chosen and chosen != {-1}:
            members.setdefault(chosen.pop(), []).append(key)
    text = ""
    for number, keys in sorted(members.items()):
        settings = keywords(reading.optimizer, reading.groups[number].settings)
        arguments = ", ".join(f'"{name}": {value!r}' for name, value in settings.items())
        listed = pprint.pformat(keys, width=84).replace("\n", "\n            ")
        text += f'        {{"params": [parameters[key] for key in {listed}],\n'
        text += f"         {arguments}}},\n"
    return {k for keys in members.values() for k in keys}, text


def _clip(reading: Reading) -> str:
    limit, norm = reading.settings.get("clip_value"), reading.settings.get("clip_norm")
    indent = " " * 12
    text = ""
    if limit is not None:
        text += f"{indent}nn.utils.clip_grad_value_(network.parameters(), {limit!r})\n"
    if norm is not None:
        text += f"{indent}nn.utils.clip_grad_norm_(network.parameters(), {norm!r})\n"
    return text


# -- schedules --------------------------------------------------------------------------------


def _factor(reading: Reading) -> str:
    texts = {_expression(_settings(group), "updates") for group in reading.groups}
    if len(texts) > 1:
        raise ArgumentError("a script is written for one schedule of all parameters")
    return texts.pop()


def _settings(group: Group) -> dict[str, Any]:
    return {"name": "constant"} if group.schedule is None else group.schedule.settings


def _of(schedule: Any) -> dict[str, Any]:
    return schedule.settings if isinstance(schedule, Schedule) else dict(schedule)


def _expression(s: Mapping[str, Any], t: str) -> str:
    """A schedule as an expression of the number of updates."""
    name = s.get("name")
    if name == "constant":
        return "1.0"
    if name == "linear_warmup":
        ramp = f"min(({t} + 1) / {s['steps']}, 1.0)"
        if s.get("after") is None:
            return ramp
        later = f"max({t} - {s['steps']}, 0)"
        return f"{ramp} * ({_expression(_of(s['after']), later)})"
    if name == "cosine":
        wave = f"0.5 * (1 + math.cos(math.pi * min({t} / {s['steps']}, 1.0)))"
        return f"{s['end']} + {1.0 - s['end']!r} * {wave}" if s.get("end") else wave
    if name == "step":
        return f"{s['gamma']!r} ** ({t} // {s['every']})"
    if name == "exponential":
        return f"{s['gamma']!r} ** {t}"
    if name == "sequence":
        text = _expression(_of(s["schedules"][0]), t)
        for begin, later in zip(s["starts"], s["schedules"][1:], strict=True):
            following = _expression(_of(later), f"max({t} - {begin}, 0)")
            text = f"({text} if {t} < {begin} else {following})"
        return text
    if name == "table" and s["every"] == 1 and s["ratio"] == 1.0 and not s["start"]:
        return f"{s['factors']!r}[min({t}, {len(s['factors']) - 1})]"
    raise ArgumentError(f"the schedule {name or 'of this record'} cannot be written as a script")


__all__ = ["SCRIPT", "training_script"]

"""What is imported: a module, how it is called, and how its loss is computed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sardonyx.errors import ArgumentError, ImportRefused, quote
from sardonyx.importers.torch.leaves import Call, outputs_by_name, rebuilt, tensors

LOSS = "loss"
LABELS = "labels"
Loss = Callable[..., torch.Tensor]


@dataclass
class Source:
    """What is imported: the module, how it is called, and how its loss is computed.

    labels -- example labels: arguments of `loss`, or of the module where it returns its loss
    """

    module: torch.nn.Module
    call: Call
    loss: Loss | None = None
    labels: Any = None

    @property
    def returns_loss(self) -> bool:
        return self.loss is None and self.labels is not None

    def label_tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the labels by their names."""
        if isinstance(self.labels, Mapping):
            return tensors(self.labels)
        return tensors(self.labels, LABELS if self.returns_loss else "label")

    def with_labels(self, values: Mapping[str, Any]) -> Any:
        """The labels with other tensors."""
        path = "" if isinstance(self.labels, Mapping) else LABELS if self.returns_loss else "label"
        return rebuilt(self.labels, path, lambda name, leaf: values.get(name, leaf))

    def run(
        self, module: torch.nn.Module, values: Mapping[str, Any]
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """The outputs by name, and the loss, of `module` on tensors by name."""
        call = self.call.with_tensors(values)
        if self.labels is None:
            return outputs_by_name(call(module)), None
        labels = self.with_labels(values)
        if self.loss is not None:
            result = call(module)
            with _unwritten({**outputs_by_name(result), **values, **tensors(labels, "label")}):
                return outputs_by_name(result), _loss_value(self.loss, result, labels)
        more = labels if isinstance(labels, Mapping) else {LABELS: labels}
        outputs = outputs_by_name(call(module, **more))
        name = LOSS if LOSS in outputs else next(iter(outputs), "")
        if name not in outputs or outputs[name].numel() != 1:
            raise ArgumentError(
                "the module does not return its loss",
                [[quote(n), f"has the shape {list(v.shape)}"] for n, v in outputs.items()],
                hint="pass loss=, a function of what the module returns and of the labels",
            )
        return {n: v for n, v in outputs.items() if n != name}, outputs[name].reshape(())


@contextlib.contextmanager
def _unwritten(values: Mapping[str, Any]) -> Iterator[None]:
    """Refuse a loss that writes to tensors in place: they would be served as it leaves them."""
    before = {n: v._version for n, v in values.items() if _has_version(v)}
    yield
    rows = [[quote(n)] for n, version in before.items() if values[n]._version != version]
    if rows:
        raise ImportRefused(
            "the loss writes in place to what it is given",
            rows,
            hint="compute with a copy: outputs = outputs.clone()",
        )


def _has_version(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_inference()


def _loss_value(loss: Loss, result: Any, labels: Any) -> torch.Tensor:
    if isinstance(labels, Mapping) and not _takes_whole(loss, labels):
        value = loss(result, **labels)
    elif isinstance(labels, tuple):
        value = loss(result, *labels)
    else:
        value = loss(result, labels)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shape = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise ArgumentError(
            f"the loss is {shape}, not one number", hint='reduction="mean" or "sum" makes it one'
        )
    return value.reshape(())


def _takes_whole(loss: Loss, labels: Mapping[str, Any]) -> bool:
    """Whether a loss takes a dict of labels as one argument, and not by their names."""
    function = loss.forward if isinstance(loss, torch.nn.Module) else loss
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C
        return False
    return not _binds(signature, **labels) and _binds(signature, labels)


def _binds(signature: inspect.Signature, *labels: Any, **by_name: Any) -> bool:
    try:
        signature.bind(None, *labels, **by_name)
    except TypeError:
        return False
    return True

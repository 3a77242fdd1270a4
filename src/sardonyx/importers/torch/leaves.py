"""Arguments and results of modules: nested tuples, dicts and dataclasses, tensor by tensor.

A tensor's name is its path: `x`, `batch.ids`, `logits`, `hidden_states.2`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from sardonyx.errors import ArgumentError, quote

Visit = Callable[[str, Any], Any]
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def rebuilt(value: Any, path: str, visit: Visit) -> Any:
    """The same structure with `visit(path, leaf)` in the place of every leaf."""
    if isinstance(value, (torch.Tensor, *PLAIN)):
        return visit(path, value)
    if isinstance(value, Mapping):
        parts = {k: rebuilt(v, _joined(path, k), visit) for k, v in value.items()}
        return type(value)(**parts) if dataclasses.is_dataclass(value) else _like(value, parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value) if f.init]
        parts = {n: rebuilt(getattr(value, n), _joined(path, n), visit) for n in names}
        return dataclasses.replace(value, **parts)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        return type(value)(*(rebuilt(v, _joined(path, n), visit) for n, v in pairs))
    if isinstance(value, (tuple, list)):
        return type(value)(rebuilt(v, _joined(path, i), visit) for i, v in enumerate(value))
    if type(value) in pytree.SUPPORTED_NODES:
        children, spec = pytree.tree_flatten(value)
        changed = [rebuilt(c, _joined(path, i), visit) for i, c in enumerate(children)]
        return pytree.tree_unflatten(changed, spec)
    return visit(path, value)


def _like(value: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    return parts if type(value) is dict or not hasattr(value, "copy") else _filled(value, parts)


def _filled(value: Any, parts: dict[Any, Any]) -> Any:
    copy = value.copy()
    for key, part in parts.items():
        copy[key] = part
    return copy


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of a structure by its path."""
    table: dict[str, Any] = {}
    rebuilt(value, path, lambda name, leaf: table.setdefault(name, leaf))
    return table


def tensors(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of a structure by its path."""
    return {n: v for n, v in leaves(value, path).items() if isinstance(v, torch.Tensor)}


def outputs_by_name(result: Any) -> dict[str, torch.Tensor]:
    """The tensors that a module returned: `output` where it is one, `output.0`, … in a tuple."""
    is_named = isinstance(result, Mapping) or dataclasses.is_dataclass(result)
    is_named |= hasattr(result, "_fields")
    return tensors(result, "" if is_named else "output")


@dataclasses.dataclass
class Call:
    """The example arguments of a module, as the caller passes them, and their names."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]  # of the positional arguments

    @classmethod
    def of(cls, module: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Call:
        """The call `module(*args, **kwargs)`; a tensor is one argument, and so is a dict, unless
        its keys are arguments of the module.
        """
        parameters = _parameters(module)
        keywords = dict(kwargs or {})
        if isinstance(args, Mapping) and parameters and set(args) <= {p.name for p in parameters}:
            args, keywords = (), {**args, **keywords}
        if args is None and keywords:
            args = ()
        if not isinstance(args, (tuple, list)) or hasattr(args, "_fields"):
            args = (args,)
        names = _positional_names(parameters, len(args))
        twice = [[quote(n)] for n in names if n in keywords]
        if twice:
            raise ArgumentError("arguments are given by place and by name", twice)
        call = cls(tuple(args), keywords, tuple(names))
        return call.mapped(lambda _, leaf: as_tensor(leaf))

    def mapped(self, visit: Visit) -> Call:
        """The call with other leaves."""
        args = tuple(rebuilt(a, n, visit) for n, a in zip(self.names, self.args, strict=True))
        kwargs = {n: rebuilt(a, n, visit) for n, a in self.kwargs.items()}
        return Call(args, kwargs, self.names)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of the arguments by its path."""
        table: dict[str, torch.Tensor] = {}

        def collect(name: str, leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                table[name] = leaf
            return leaf

        self.mapped(collect)
        return table

    def with_tensors(self, values: Mapping[str, Any]) -> Call:
        """The call with other tensors under their names; names that are absent stay."""
        return self.mapped(lambda name, leaf: values.get(name, leaf))

    def __call__(self, module: Any, **more: Any) -> Any:
        return module(*self.args, **self.kwargs, **more)


def as_tensor(leaf: Any) -> Any:
    """Arrays become tensors, and tensors plain ones of their own memory; other leaves stay.

    The strides of an example would otherwise become part of what torch exports.
    """
    is_array = type(leaf).__module__ == "numpy" and hasattr(leaf, "dtype")
    leaf = torch.as_tensor(leaf) if is_array else leaf
    return leaf.detach().contiguous() if isinstance(leaf, torch.Tensor) else leaf


def _parameters(module: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(getattr(module, "forward", module)).parameters.values())
    except (TypeError, ValueError):
        return []


def _positional_names(parameters: Sequence[inspect.Parameter], count: int) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds]
    rest = next((p.name for p in parameters if p.kind == inspect.Parameter.VAR_POSITIONAL), "args")
    return (names + [f"{rest}.{i}" for i in range(max(count - len(names), 0))])[:count]

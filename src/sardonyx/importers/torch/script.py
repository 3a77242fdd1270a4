"""TorchScript modules, scripted or traced, as Python modules that `torch.export` can capture.

The archive's own interpreter would turn free sizes into numbers. Here the graph of `forward`, with
all calls inlined, is computed node by node in Python: `script_nodes.py` has the operators.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sardonyx.errors import ImportRefused, quote
from sardonyx.importers.torch.script_nodes import ATTRIBUTE, function_of

TRAINING = "training"
CONSTANTS = "constants"  # the part that holds tensors which are constants of the code
DROPOUTS = ("aten::dropout", "aten::dropout_", "aten::feature_dropout", "aten::alpha_dropout")


@dataclass
class Step:
    """One node: what computes it, and the numbers of the values that it reads and writes."""

    kind: str
    inputs: list[int]
    outputs: list[int]
    function: Any = None
    value: Any = None
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Block:
    """Steps with the values that go in and come out."""

    inputs: list[int]
    outputs: list[int]
    steps: list[Step] = field(default_factory=list)

    def __deepcopy__(self, memo: Any) -> Block:
        return self  # it holds no tensors: they are parameters and buffers of the module


class Part(torch.nn.Module):
    """The parameters and buffers of one module of the archive."""


@dataclass(frozen=True)
class Reference:
    """The path of a tensor in the module."""

    path: str

    def __deepcopy__(self, memo: Any) -> Reference:
        return self


class Scripted(Part):
    """A TorchScript module, computed node by node."""

    def __init__(self, script: torch.jit.ScriptModule):
        super().__init__()
        reader = _Reader(script, _Tree(self, script))
        self.block = reader.block(script.inlined_graph)
        self.fixed_statistics = sorted(reader.fixed_statistics)
        if reader.problems:
            raise ImportRefused(
                "operators of this TorchScript module cannot be read",
                [list(row) for row in dict.fromkeys(reader.problems)],
                hint="import the module that it was scripted or traced from",
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(self.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        values: dict[int, Any] = dict(zip(self.block.inputs, (self, *bound.arguments.values())))
        outputs = self._run(self.block, values)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _run(self, block: Block, values: dict[int, Any]) -> list[Any]:
        for step in block.steps:
            inputs = [values[i] for i in step.inputs]
            if step.kind == "prim::If":
                results = self._run(step.blocks[0 if inputs[0] else 1], values)
            elif step.kind == "prim::Loop":
                results = self._loop(step.blocks[0], inputs, values)
            elif step.kind == "prim::Constant":
                results = [self._resolved(step.value)]
            elif step.kind == TRAINING:
                results = [self.get_submodule(step.value).training]
            else:
                result = step.function(*inputs)
                several = len(step.outputs) != 1
                results = list(result or ()) if several else [result]
            values.update(zip(step.outputs, results, strict=True))
        return [values[i] for i in block.outputs]

    def _loop(self, body: Block, inputs: Sequence[Any], values: dict[int, Any]) -> list[Any]:
        count, goes_on, *carried = inputs
        index = 0
        while goes_on and index < count:
            values.update(zip(body.inputs, (index, *carried), strict=True))
            goes_on, *carried = self._run(body, values)
            index += 1
        return carried

    def _resolved(self, value: Any) -> Any:
        """A value with the tensors that its references stand for."""
        if isinstance(value, Reference):
            *path, name = value.path.split(".")
            return getattr(self.get_submodule(".".join(path)), name)
        if isinstance(value, (list, tuple)):
            return type(value)(self._resolved(v) for v in value)
        if isinstance(value, dict):
            return {k: self._resolved(v) for k, v in value.items()}
        return value


def scripted(script: torch.jit.ScriptModule) -> torch.nn.Module:
    """A TorchScript module as a module whose class has its name and the arguments of `forward`."""
    arguments = script.forward.schema.arguments

    def forward(self: Scripted, *args: Any, **kwargs: Any) -> Any:
        return Scripted.forward(self, *args, **kwargs)

    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                a.name,
                kinds,
                default=a.default_value if a.has_default_value() else inspect.Parameter.empty,
            )
            for a in arguments
        ]
    )
    cls = type(script.original_name, (Scripted,), {"forward": forward})
    module: torch.nn.Module = cls(script)
    for name, part in script.named_modules():
        module.get_submodule(name).training = part.training
    return module


class _Tree:
    """The parts of a script module, and where each of its tensors is."""

    def __init__(self, root: Scripted, script: torch.jit.ScriptModule):
        self.root = root
        self.places: dict[tuple[Any, ...], str] = {}
        for path, part in script.named_modules(remove_duplicate=False):
            target = root if not path else self._new(path)
            prefix = f"{path}." if path else ""
            for name, tensor in part.named_parameters(recurse=False, remove_duplicate=False):
                if not isinstance(tensor, torch.nn.Parameter):
                    tensor._is_param = True  # the same object, which an optimizer may have
                target._parameters[name] = tensor
                self._place(tensor, prefix + name)
            for name, tensor in part.named_buffers(recurse=False, remove_duplicate=False):
                target.register_buffer(name, tensor)
                self._place(tensor, prefix + name)

    def _new(self, path: str) -> Part:
        *outer, name = path.split(".")
        part = Part()
        self.root.get_submodule(".".join(outer)).add_module(name, part)
        return part

    def _place(self, tensor: torch.Tensor, path: str) -> None:
        self.places.setdefault(_key(tensor), path)

    def referred(self, value: Any) -> Any:
        """A value whose tensors are replaced by references to the module's."""
        if isinstance(value, torch.Tensor):
            if _key(value) not in self.places:
                self._keep(value)
            return Reference(self.places[_key(value)])
        if isinstance(value, (list, tuple)):
            return type(value)(self.referred(v) for v in value)
        if isinstance(value, dict):
            return {k: self.referred(v) for k, v in value.items()}
        return value

    def _keep(self, tensor: torch.Tensor) -> None:
        """A constant of the code becomes a buffer."""
        if not hasattr(self.root, CONSTANTS):
            self.root.add_module(CONSTANTS, Part())
        holder = self.root.get_submodule(CONSTANTS)
        name = f"value_{len(list(holder.buffers()))}"
        holder.register_buffer(name, tensor.detach(), persistent=False)
        self._place(tensor, f"{CONSTANTS}.{name}")


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


class _Reader:
    """Graphs of TorchScript as blocks of steps; what cannot be read is collected."""

    def __init__(self, script: torch.jit.ScriptModule, tree: _Tree):
        self.script, self.tree = script, tree
        self.problems: list[tuple[str, str]] = []
        self.fixed_statistics: set[str] = set()

    def block(self, graph: Any) -> Block:
        inputs = [v.unique() for v in graph.inputs()]
        outputs = [v.unique() for v in graph.outputs()]
        return Block(inputs, outputs, [self._step(n) for n in graph.nodes()])

    def _step(self, node: Any) -> Step:
        kind = node.kind()
        inputs = [v.unique() for v in node.inputs()]
        step = Step(kind, inputs, [v.unique() for v in node.outputs()])
        if kind in ("prim::If", "prim::Loop"):
            step.blocks = [self.block(b) for b in node.blocks()]
        elif kind == "prim::Constant":
            step.value = self.tree.referred(_plain(node.output().toIValue()))
        elif kind == ATTRIBUTE:
            self._read_attribute(step, _path(node))
        elif self._is_off(node):
            step.function = lambda x, *_: x
        else:
            step.function = function_of(node)
        if kind.startswith("aten::batch_norm"):
            self._note_statistics(node)
        is_control = step.blocks or step.kind in ("prim::Constant", TRAINING)
        if not is_control and step.function is None:
            self.problems.append((kind, _line(node)))
        return step

    def _read_attribute(self, step: Step, path: str) -> None:
        """An attribute is constant, but for the mode of a module."""
        *outer, name = path.split(".")
        if name == "training":
            step.kind, step.value = TRAINING, ".".join(outer)
            return
        value = functools.reduce(getattr, path.split("."), self.script)
        is_part = isinstance(value, torch.nn.Module)
        step.kind = "prim::Constant"
        step.value = None if is_part else self.tree.referred(value)

    def _is_off(self, node: Any) -> bool:
        """Whether a node is dropout that tracing has switched off for good."""
        if node.kind() not in DROPOUTS:
            return False
        *_, train = node.inputs()
        return train.node().kind() == "prim::Constant" and train.toIValue() is False

    def _note_statistics(self, node: Any) -> None:
        """Statistics that tracing has fixed stay as they are in training too."""
        inputs = list(node.inputs())
        mean, training = inputs[3], inputs[5]
        is_fixed = training.node().kind() == "prim::Constant" and training.toIValue() is False
        if is_fixed and mean.node().kind() == ATTRIBUTE:
            self.fixed_statistics.add(_path(mean.node()))


def _plain(value: Any) -> Any:
    """A constant; tracing has made tensors of whole numbers, with which sizes are computed."""
    is_number = isinstance(value, torch.Tensor) and value.dim() == 0
    return value.item() if is_number and value.dtype == torch.int64 else value


def _path(node: Any) -> str:
    """The path of an attribute from the module."""
    names = []
    while node.kind() == ATTRIBUTE:
        names.append(node.s("name"))
        node = node.input().node()
    return ".".join(reversed(names))


def _line(node: Any) -> str:
    """The user's line that made a node."""
    text = node.sourceRange().strip().splitlines()
    return text[0].strip() if text else quote(node.kind())

"""An fx graph of an update, recorded without torch's tracer.

An update does the same few operations with every parameter. torch's tracer works out the result of
each of them anew, a millisecond at a time, several seconds for a large network. Here tensors only
note what happens to them; what an operation gives is asked once for operands of the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sardonyx.engines.torch.xp import torch

Node: TypeAlias = torch.fx.Node
Fake: TypeAlias = Any  # a tensor of torch's that has sizes and no memory


class NotRecorded(Exception):
    """An operation that this way of recording does not take."""


class Recorder:
    """The graph under construction, and what operations on given operands have given."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.owner = torch.nn.Module()
        self.graph = torch.fx.Graph()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.results: dict[Any, Any] = {}
        self.fakes: dict[Any, Fake] = {}
        self.constants: dict[int, tuple[Any, Node]] = {}  # the tensor is kept: its id stays taken

    def input(self, value: Any, number: int) -> Noted:
        """An input of the graph that is like a tensor."""
        fake = self.fake(value)
        node = self.graph.placeholder(f"input_{number}")
        node.meta["val"] = fake
        return Noted(fake, node, self)

    def fake(self, value: Any) -> Fake:
        key = _kind(value)
        if key not in self.fakes:
            with self.mode:
                self.fakes[key] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=value.device
                )
        return self.fakes[key]

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Note an operation; what it gives are tensors of the graph again."""
        if function._schema.is_mutable or torch.Tag.nondeterministic_seeded in function.tags:
            raise NotRecorded(f"{function} changes something")
        flat, spec = torch.utils._pytree.tree_flatten((args, kwargs))
        key = (function, spec, *map(_kind, flat))
        if key not in self.results:
            self.results[key] = self.result(function, flat, spec)
        result = self.results[key]
        if not isinstance(result, torch.Tensor):
            raise NotRecorded(f"{function} gives no tensor")
        nodes = [self.node(v) if isinstance(v, torch.Tensor) else v for v in flat]
        node_args, node_kwargs = torch.utils._pytree.tree_unflatten(nodes, spec)
        node = self.graph.call_function(function, node_args, node_kwargs)
        node.meta["val"] = result
        return Noted(result, node, self)

    def result(self, function: Any, flat: Sequence[Any], spec: Any) -> Any:
        """What an operation gives, without values."""
        tensors = [self.fake(v) if isinstance(v, torch.Tensor) else v for v in flat]
        args, kwargs = torch.utils._pytree.tree_unflatten(tensors, spec)
        try:
            with self.mode:
                return function(*args, **kwargs)
        except Exception as error:  # it depends on values
            raise NotRecorded(f"{function}: {error}") from error

    def node(self, value: Any) -> Node:
        """The node of a tensor; one that is not of the graph is a constant."""
        if isinstance(value, Noted):
            return value.node
        if id(value) not in self.constants:
            name = f"_tensor_constant{len(self.constants)}"
            self.owner.register_buffer(name, value)
            node = self.graph.get_attr(name)
            node.meta["val"] = self.fake(value)
            self.constants[id(value)] = value, node
        return self.constants[id(value)][1]


class Noted(torch.Tensor):
    """A tensor without values, whose operations become nodes."""

    node: Node
    recorder: Recorder

    @staticmethod
    def __new__(cls, fake: Fake, node: Node, recorder: Recorder) -> Noted:
        tensor: Noted = torch.Tensor._make_wrapper_subclass(
            cls, fake.shape, strides=fake.stride(), dtype=fake.dtype, device=fake.device
        )
        tensor.node, tensor.recorder = node, recorder
        return tensor

    def __init__(self, fake: Fake, node: Node, recorder: Recorder):
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat = torch.utils._pytree.tree_leaves((args, kwargs))
        recorder = next(v.recorder for v in flat if isinstance(v, Noted))
        return recorder.call(func, args, kwargs or {})


def _kind(value: Any) -> Any:
    """What a result depends on: the sizes of a tensor, or a value itself and its type."""
    if isinstance(value, torch.Tensor):
        if not value.is_sparse and value.layout == torch.strided:
            return value.dtype, value.device, value.shape, value.stride()
        raise NotRecorded("a sparse tensor")
    return type(value), value


def recorded(function: Callable[..., Sequence[Any]], values: Sequence[Any]) -> torch.fx.GraphModule:
    """`function(*values)` as a graph for tensors of these sizes; raises `NotRecorded`.

    What does not depend on the values is computed while recording, and a constant of the graph. A
    function that makes random numbers of its own must not be recorded.
    """
    if any(type(v) not in (torch.Tensor, torch.nn.Parameter) for v in values):
        raise NotRecorded("a tensor of a class of its own")
    recorder = Recorder()
    inputs = [recorder.input(value, number) for number, value in enumerate(values)]
    with torch.no_grad():
        results = function(*inputs)
    recorder.graph.output([recorder.node(v) for v in results])
    graph = torch.fx.GraphModule(recorder.owner, recorder.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph

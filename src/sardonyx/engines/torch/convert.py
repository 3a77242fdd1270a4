"""`to_torch`: an ONNX model as a torch module."""

from __future__ import annotations

import functools
import inspect
import io
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.engines.callout import refused
from sardonyx.engines.native import Native, Stored, bind, native
from sardonyx.engines.torch import backend  # noqa: F401  (registers the kernels)
from sardonyx.engines.torch.fast_dispatch import quicken
from sardonyx.engines.torch.memory import Memory, Sharing
from sardonyx.engines.torch.trace import argument_names, exported, named, retarget, trace
from sardonyx.engines.torch.xp import Torch, arrays, torch
from sardonyx.errors import EngineError, quote
from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.program import Program
from sardonyx.lower.xp import is_integer
from sardonyx.model import Model, ModelSource, load


def _train_batch_norm(op: Builder, node: ir.Node, kinds: Mapping[str, str]) -> dict[str, ir.Value]:
    """Use torch's own kernel, which updates the running statistics itself."""
    momentum = node.attributes.get_float("momentum", 0.9)
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    node.domain = NATIVE
    node.attributes.clear()
    node.attributes.add(ir.AttrFloat32("epsilon", epsilon))
    node.attributes.add(ir.AttrFloat32("momentum", momentum))
    return {}


SWITCHES = {"BatchNormalization": _train_batch_norm}


class Scope(torch.nn.Module):
    """One level of the dotted names of a model's tensors: it holds tensors and computes nothing."""

    def extra_repr(self) -> str:
        tensors = {**self._parameters, **self._buffers}
        return ", ".join(f"{n}: {list(t.shape)}" for n, t in tensors.items() if t is not None)


class OnnxModule(Scope):
    """An ONNX model as a torch module; made by `sardonyx.to_torch`.

    served, training_graph -- the fx graphs that run in evaluation and in training mode (the second
                              is None where the modes do not differ)
    names     -- ONNX name → key of the state dict
    untraced  -- why the model runs node by node rather than as a graph; empty for a graph
    """

    served: Any
    training_graph: Any

    def __init__(self, parts: Native, share: bool | None):
        super().__init__()
        memory = Memory(share)
        self.names = keys(parts.kinds)
        self.input_names = [v.name or "" for v in parts.inputs]
        self.output_names = parts.outputs
        self.untraced = ""
        for name, kind in parts.kinds.items():
            self._register(self.names[name], memory.tensor(parts.array(name)), kind)
        self._held = [self.names[n] for n in parts.kinds]
        self._updated = [self.names[n] for n in parts.updates]
        self._places = [self._place_of(key) for key in self._held]
        self._build(parts, memory)
        self.eval()

    def _register(self, key: str, tensor: Any, kind: str) -> None:
        owner: torch.nn.Module = self
        *path, last = key.split(".")
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, Scope())
            owner = owner._modules[part]  # type: ignore[assignment]
        if kind == "weight" and tensor.dtype.is_floating_point:
            owner.register_parameter(last, torch.nn.Parameter(tensor))
        else:
            owner.register_buffer(last, tensor)

    def _build(self, parts: Native, memory: Memory) -> None:
        tensors = dict(zip(parts.kinds, self._tensors(), strict=True))
        models = [parts.served, *([] if parts.training is None else [parts.training])]
        functions = [function_of(model, parts, Sharing(memory)) for model in models]
        try:
            names = [*self._held, *self.input_names]
            functions = [
                named(quicken(trace(function, tensors, parts.inputs)), names)
                for function in functions
            ]
        except EngineError as error:
            self.untraced = str(error)
            # torch.compile cannot trace it either: it goes around.
            functions = [torch.compiler.disable(function) for function in functions]
        self.served, self.training_graph = (*functions, None)[:2]

    def _tensors(self) -> list[Any]:
        return [self._tensor(key) for key in self._held]

    def _quick_tensors(self) -> list[Any]:
        """The same without a walk through modules, which is most of the time of a small call."""
        if torch.compiler.is_compiling():
            return self._tensors()
        try:
            return [
                (owner._parameters if is_weight else owner._buffers)[name]
                for owner, is_weight, name in self._places
            ]
        except KeyError:  # torch.nn.utils.parametrize and the like move parameters
            return self._tensors()

    def _place_of(self, key: str) -> tuple[torch.nn.Module, bool, str]:
        path, _, name = key.rpartition(".")
        owner = self.get_submodule(path)
        return owner, name in owner._parameters, name

    def _tensor(self, key: str) -> Any:
        owner: Any = self
        for part in key.split("."):
            owner = getattr(owner, part)
        return owner

    def forward(self, *inputs: Any, **named: Any) -> Any:
        by_tracing = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
        if by_tracing and not self.untraced:
            # A program made for several rows takes one as well: reshapes assume nothing of sizes.
            with torch.fx.experimental._config.patch(backed_size_oblivious=True):
                return self._called(inputs, named)
        return self._called(inputs, named)

    def _called(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        feeds = self._given(inputs, named)
        if self.training and self.training_graph is not None:
            outputs = self.training_graph(*self._quick_tensors(), *feeds)
            count = len(self.output_names)
            for key, value in zip(self._updated, outputs[count:]):
                self._tensor(key).copy_(value.detach())
            outputs = outputs[:count]
        else:
            outputs = self.served(*self._quick_tensors(), *feeds)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _given(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The inputs in order."""
        if not named and len(inputs) == len(self.input_names):
            return inputs
        spelled = dict(zip(argument_names(self.input_names), self.input_names))
        feeds = bind(self.input_names, inputs, {spelled.get(n, n): v for n, v in named.items()})
        return tuple(feeds[name] for name in self.input_names)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _empty, (tuple(self.input_names),), self.__dict__.copy()

    def extra_repr(self) -> str:
        rows = [f"{', '.join(self.input_names)} -> {', '.join(self.output_names)}"]
        return "\n".join(filter(None, [*rows, super().extra_repr()]))

    def _apply(self, function: Any, recurse: bool = True) -> Any:
        before = self._place()
        super()._apply(function, recurse)
        device, dtype = self._place()
        if (device, dtype) != before and device is not None:
            floats = {before[1]: dtype} if dtype is not None else {}
            for graph in (self.served, self.training_graph):
                if isinstance(graph, torch.fx.GraphModule):
                    retarget(graph, device, floats)
        return self

    def _place(self) -> tuple[Any, Any]:
        """Where the weights are, and the type of the floats among them."""
        tensors = self._tensors()
        floats = [t.dtype for t in tensors if t.dtype.is_floating_point]
        return (tensors[0].device if tensors else None), (floats[0] if floats else None)


@functools.cache
def class_of(inputs: tuple[str, ...]) -> type[OnnxModule]:
    """`OnnxModule` with the inputs' names in the signature of `forward`: torch.export reads them,
    for the sizes that are free and for the names of its own inputs.
    """

    def forward(self: OnnxModule, *inputs: Any, **named: Any) -> Any:
        return OnnxModule.forward(self, *inputs, **named)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ["self", *argument_names(inputs)]
    parameters = [inspect.Parameter(name, kind) for name in names]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return type("OnnxModule", (OnnxModule,), {"forward": forward, "__module__": __name__})


def _empty(inputs: tuple[str, ...]) -> OnnxModule:
    """A module without content, which `pickle` or `copy` fills."""
    cls = class_of(inputs)
    return cls.__new__(cls)


def module_of(parts: Native, share: bool | None) -> OnnxModule:
    return class_of(tuple(v.name or "" for v in parts.inputs))(parts, share)


def function_of(model: Model, parts: Native, xp: Torch) -> Any:
    """The outputs of a graph as a function of the module's tensors, then of the model's inputs."""
    program = Program(model, xp, parameters=parts.kinds, **parts.options)
    names = [v.name or "" for v in parts.inputs]
    count = len(parts.kinds)

    def run(*values: Any) -> list[Any]:
        feeds = dict(zip(names, values[count:], strict=True))
        outputs = map(program.convert, program(feeds, dict(zip(parts.kinds, values))))
        return [_typed(xp, v, t) for v, t in zip(outputs, program.output_types, strict=True)]

    return run


def _typed(xp: Torch, value: Any, dtype: np.dtype | None) -> Any:
    """Integers as the model has them: sizes are computed in 64 bits, whatever it says."""
    if dtype is None or not is_integer(dtype) or not isinstance(value, torch.Tensor):
        return value
    return value if value.dtype.is_floating_point else xp.cast(value, dtype)


def keys(names: Mapping[str, Any]) -> dict[str, str]:
    """A key of a state dict for each ONNX name: the name itself, wherever torch allows it."""
    state_keys: dict[str, str] = {}
    prefixes = {n[: m.start()] for n in names for m in re.finditer(r"\.", n)}
    for name in names:
        parts = name.split(".")
        is_fit = all(parts) and name not in prefixes and not any(map(_is_taken, parts[:1]))
        key = name if is_fit else re.sub(r"\.", "_", name).strip() or "_"
        while key in state_keys.values() or (not is_fit and (key in names or _is_taken(key))):
            key += "_"
        state_keys[name] = key
    return state_keys


def _is_taken(part: str) -> bool:
    return hasattr(torch.nn.Module, part) or part in _OWN


_OWN = frozenset(
    [
        "training",
        "served",
        "training_graph",
        "names",
        "untraced",
        "input_names",
        "output_names",
        "_held",
        "_places",
        "_updated",
    ]
)


def to_torch(
    model: ModelSource,
    *,
    share: bool | None = None,
    fallback: str = "warn",
    place: Mapping[str, str] | None = None,
    training: bool = False,
) -> Any:
    """An ONNX model as a torch module: every weight a parameter, differentiable, compilable.

    The module comes in evaluation mode; `train()` lets BatchNormalization and Dropout train. Keys
    of its state dict are the names of the model's tensors. It takes the model's inputs in order or
    by name.

    share    -- None: weights in external data are the file's own pages until they are written to,
                which changes neither file nor model; others are copied. True: those of a model in
                memory are not copied either, and change with the module. False: all are copied
    fallback -- nodes that torch cannot run are run in NumPy, with a warning ("warn") or without
                ("allow"), or are refused ("error")
    place    -- pattern of names or operators → the engine to which nodes are sent by choice
    training -- give `(module, loss, optimizer, scheduler)` of the model's training record, as
                torch's own objects: a loop in torch goes on where the record stands. The module
                gives what the loss takes; gradients are clipped before each step of the optimizer,
                where the record does so. Dropout draws torch's masks

    >>> import torch, sardonyx as sx
    >>> module = sx.to_torch("model.onnx")
    >>> sorted(module.state_dict())
    ['body.bias', 'body.weight', 'head.bias', 'head.weight']
    >>> module(torch.zeros(2, 8)).shape
    torch.Size([2, 3])
    >>> net = sx.trainable("model.onnx", "cross_entropy", sx.optim.adamw(1e-3))
    >>> module, loss, optimizer, scheduler = sx.to_torch(net, training=True)
    >>> loss
    CrossEntropyLoss()
    """
    if training:
        from sardonyx.engines.torch.objects import training_objects

        return training_objects(load(model), share, fallback)
    parts = native(model, SWITCHES, fallback=fallback, place=place)
    _warn_of_training(parts.served)
    return module_of(parts, share)


def _warn_of_training(served: Model) -> None:
    """A node may be in training mode in the file itself; then it stays so after `eval()`."""
    rows = []
    for node in served.graph:
        if node.domain == "" and _trains(node):
            rows.append(f"{node.op_type} {quote(node.name or node.outputs[0].name)}")
    if rows:
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        warnings.warn(
            f"training mode is set in the file: {rows[0]}{more} trains even after eval(), as in "
            "every runtime; export the model for inference, and call train() to train it",
            stacklevel=3,
        )


def _trains(node: ir.Node) -> bool:
    if node.op_type == "BatchNormalization":
        return node.attributes.get_int("training_mode") == 1
    mode = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
    tensor = None if mode is None else mode.const_value
    return tensor is not None and bool(tensor.numpy().any())


WRAPPERS = (
    torch.nn.DataParallel,
    torch.nn.parallel.DistributedDataParallel,
    torch.optim.swa_utils.AveragedModel,
)


def weight_arrays(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """The weights of a module by the names of the ONNX model."""
    module = unwrapped(module)
    state = module.state_dict()
    names = module.names if isinstance(module, OnnxModule) else {key: key for key in state}
    return {name: array_of(state[key]) for name, key in names.items()}


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module that torch.compile, parallel training or an average of weights is around."""
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif isinstance(module, WRAPPERS):
            module = module.module
        else:
            return module


def array_of(tensor: Any) -> np.ndarray:
    """A torch tensor, wherever it is, as a numpy array; all of it, if processes hold parts."""
    whole = getattr(tensor, "full_tensor", None)
    return arrays("cpu").to_numpy(tensor if whole is None else whole())


def store(model: ModelSource, path: Path) -> Stored:
    """Write a model as an exported program of torch (.pt2), with the free sizes of the model."""
    parts = native(model, SWITCHES, fallback="error")
    with refused("torch"):
        module = module_of(parts, share=True)
    if module.untraced:
        raise EngineError(f"the model cannot be exported: {module.untraced}")
    program = exported(module, parts.inputs)
    program._example_inputs = None  # they would be written too, and may be larger than the model
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()  # torch aborts the process when a disk is full
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())
    loaded = torch.export.load(path).module()

    def run(*arrays: Any) -> Any:
        with torch.no_grad():
            return loaded(*(torch.from_numpy(np.array(a)) for a in arrays))

    shapes = {
        n.name: list(n.meta["val"].shape) for n in program.graph.nodes if n.op == "placeholder"
    }
    users = program.graph_signature.user_inputs
    rows = [
        [f"input {quote(v.name)}", str(shapes[n])] for v, n in zip(parts.inputs, users, strict=True)
    ]
    count = sum(p.numel() for p in module.parameters())
    rows.append(["parameters", f"{count:,} in {len(list(module.parameters()))} tensors"])
    rows.append(["to load it", f"torch.export.load({str(path)!r}).module()"])
    return Stored(path, run, rows)

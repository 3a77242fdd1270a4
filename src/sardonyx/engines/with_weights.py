"""`with_weights`: the weights of any framework, or of a file, put back into the ONNX graph."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError, MissingExtra, quote
from sardonyx.limits.archives import check_archive
from sardonyx.model import Model, ModelSource, load
from sardonyx.weights import weights

# The package that a class comes from → the framework that reads its weights.
FRAMEWORKS = {
    "torch": "torch",
    "flax": "jax",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "keras": "keras",
}
# What a framework counts for itself and no ONNX graph has.
BOOKKEEPING = ("num_batches_tracked", "seed_generator_state")


def with_weights(
    model: ModelSource,
    source: Any,
    *,
    optimizer: Any = None,
    partial: bool = False,
    cast: bool = False,
) -> Model:
    """A copy of `model` with the weights of `source`, bit for bit; everything else stays.

    Running statistics that `source` does not have keep their values.

    source  -- a torch module or state dict; JAX params (nested or by name) or an NNX module; a
               tf.Module or Keras model; a mapping of arrays by name; an .npz or .safetensors file;
               the folder that `to_torch_source` wrote
    optimizer -- the torch optimizer of the module, the optax state of JAX params, or True for the
               optimizer of a compiled Keras model: its state becomes that of the training record;
               settings, such as the rate, stay those of the record
    partial -- accept weights that `source` lacks (they keep their values) and names that the model
               lacks (they are left out); otherwise both are errors
    cast    -- convert weights of another type, for instance after `module.half()`

    >>> import torch, sardonyx as sx
    >>> module = sx.to_torch("model.onnx")
    >>> _ = torch.nn.init.zeros_(module.head.bias)
    >>> tuned = sx.with_weights("model.onnx", module)
    >>> tuned.initializer("head.bias").numpy()
    array([0., 0., 0.], dtype=float32)
    """
    loaded = load(model)
    tuned = _replaced(loaded, _arrays(source, loaded, partial), partial, cast)
    return tuned if optimizer is None else _with_optimizer(tuned, source, optimizer)


def _with_optimizer(model: Model, module: Any, optimizer: Any) -> Model:
    """The model with the state of an optimizer in its record."""
    if framework_of(optimizer) == "torch" and framework_of(module) == "torch":
        package = importlib.import_module("sardonyx.engines.torch.optimizer_state")
        copy: Model = package.with_optimizer_state(model, module, optimizer)
        return copy
    if isinstance(optimizer, tuple):
        slots = importlib.import_module("sardonyx.engines.jax.objects").slots_of(model, optimizer)
        return with_slots(model, slots)
    if framework_of(module) == "keras":
        package = importlib.import_module("sardonyx.engines.keras.optimizer_state")
        tuned: Model = package.with_optimizer_state(model, module, optimizer)
        return tuned
    states = isinstance(optimizer, Mapping) and "param_groups" in optimizer
    raise ArgumentError(
        "optimizer= takes a torch optimizer with its module, a state of optax with its params, or "
        "True with a compiled Keras model",
        hint="load the state dicts into the module and the optimizer of "
        "sx.to_torch(model, training=True), and give these"
        if states
        else "",
    )


def with_slots(model: Model, slots: Mapping[str, np.ndarray]) -> Model:
    """A copy of a model whose only record has other state; an error names what does not fit."""
    copy = model.copy()
    (record,) = copy.records
    problems = [[quote(n), "is no slot of the record"] for n in slots if n not in record.state]
    problems += [
        [quote(n), f"{list(record.state[n].shape.numpy())} ← {list(a.shape)}"]
        for n, a in slots.items()
        if n in record.state and tuple(record.state[n].shape.numpy()) != a.shape
    ]
    if problems:
        raise ArgumentError("the state of the optimizer does not fit the record", problems)
    for name, array in slots.items():
        record.state[name] = ir.Tensor(array, name=name, shape=ir.Shape(array.shape))
    return copy


def framework_of(thing: Any) -> str | None:
    """The framework whose class `thing` is an instance of; nothing is imported to find out."""
    roots = (base.__module__.partition(".")[0] for base in type(thing).__mro__)
    return next((FRAMEWORKS[root] for root in roots if root in FRAMEWORKS), None)


# -- reading ------------------------------------------------------------------------------


def _arrays(source: Any, model: Model, partial: bool) -> dict[str, np.ndarray]:
    if isinstance(source, (str, Path)):
        return _stored(Path(source), model, partial)
    if isinstance(source, Mapping):
        return _unprefixed({name: _array(value) for name, value in _flat(source)}, model)
    framework = framework_of(source)
    if framework is None:
        raise ArgumentError(
            f"cannot read weights from {quote(type(source).__name__)}",
            hint="give a module, a state dict, params, a mapping of arrays, or a file of weights",
        )
    return importlib.import_module(f"sardonyx.engines.{framework}.convert").weight_arrays(source)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings; the keys on the way to a leaf are joined by dots."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# What torch puts before the names of a module that it compiles or trains in parallel.
PREFIXES = ("module.", "_orig_mod.")


def _unprefixed(arrays: dict[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
    """Arrays by the names of the module inside, where a state dict is that of a wrapper."""
    while arrays and not any(n in model.graph.initializers for n in arrays):
        prefix = next((p for p in PREFIXES if all(n.startswith(p) for n in arrays)), None)
        if prefix is None:
            break
        arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    return arrays


def _array(value: Any) -> np.ndarray:
    framework = framework_of(value)
    if framework in (None, "jax"):
        return np.array(value)
    return importlib.import_module(f"sardonyx.engines.{framework}.convert").array_of(value)


def _stored(path: Path, model: Model, partial: bool) -> dict[str, np.ndarray]:
    if path.suffix == ".npz" and path.is_file():
        check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    if path.suffix == ".safetensors" and path.is_file():
        try:
            from safetensors.numpy import load_file
        except ImportError as error:
            raise MissingExtra("safetensors", "torch") from error
        return load_file(str(path))
    if path.is_dir():
        return importlib.import_module("sardonyx.engines.torch.source.read_weights").arrays_of(
            path, model, partial
        )
    raise ArgumentError(
        f"there are no weights in {quote(path.name)}",
        hint="give an .npz or .safetensors file, or the folder that to_torch_source wrote",
    )


# -- writing ------------------------------------------------------------------------------


def _replaced(model: Model, arrays: Mapping[str, np.ndarray], partial: bool, cast: bool) -> Model:
    copy = model.copy()
    constants = {
        node.outputs[0].name: node
        for node in copy.graph
        if node.op_type == "Constant" and node.domain == "" and "value" in node.attributes
    }
    problems = [] if partial else _missing(model, arrays)
    if partial and not any(n in copy.graph.initializers or n in constants for n in arrays):
        rows = [["the source has", ", ".join(map(quote, list(arrays)[:5])) or "no arrays"]]
        raise ArgumentError("none of these weights has the name of a tensor of the model", rows)
    for name, array in arrays.items():
        initializer, constant = copy.graph.initializers.get(name), constants.get(name)
        if initializer is not None and initializer.const_value is not None:
            tensor = initializer.const_value
        elif constant is not None:
            tensor = constant.attributes["value"].as_tensor()
        else:
            if not (partial or name.endswith(BOOKKEEPING) or _is_tied(array, arrays, copy)):
                problems.append([quote(name), "is no tensor of the model"])
            continue
        misfit = _misfit(tensor, array, cast)
        if misfit:
            problems.append([quote(name), misfit])
            continue
        replacement = ir.Tensor(
            np.array(array, tensor.dtype.numpy()),
            tensor.dtype,
            shape=ir.Shape(array.shape),
            name=name,
        )
        if initializer is not None:
            initializer.const_value = replacement
        else:
            assert constant is not None
            constant.attributes.add(ir.AttrTensor("value", replacement))
    if problems:
        hints = [] if cast else ["cast=True converts types"]
        hints += [] if partial else ["partial=True accepts missing and unknown names"]
        raise ArgumentError("these weights do not fit the model", problems, "; ".join(hints))
    return copy


def _is_tied(array: np.ndarray, arrays: Mapping[str, np.ndarray], model: Model) -> bool:
    """Whether an array lies in the memory of one that the model has under another name."""
    names = (name for name in arrays if name in model.graph.initializers)
    return any(np.shares_memory(array, arrays[name]) for name in names if array.size)


def _missing(model: Model, arrays: Mapping[str, np.ndarray]) -> list[list[str]]:
    # Running statistics may be absent: the params of `to_jax` are what is trained, nothing else.
    names = (w.name for w in weights(model) if w.kind == "weight")
    return [[quote(n), "is missing"] for n in names if n not in arrays]


def _misfit(tensor: ir.TensorProtocol, array: np.ndarray, cast: bool) -> str:
    """How an array differs from the tensor whose place it takes; empty where it does not."""
    if tuple(tensor.shape.numpy()) != array.shape:
        return f"{list(tensor.shape.numpy())} ← {list(array.shape)}"
    dtype = np.dtype(tensor.dtype.numpy())
    return f"{dtype} ← {array.dtype}" if dtype != array.dtype and not cast else ""

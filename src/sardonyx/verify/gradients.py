"""Gradients as subjects: of ONNX models ours, of modules and functions those of their framework.

What is differentiated is a weighted sum of all float outputs: the plain sum of a softmax is 1
whatever it reads, and so is hardly a test. The weights are multiples of 1/32, exact in every width.
An engine runs the gradient graph; a torch module, a JAX or a TensorFlow function is differentiated
by its own framework, which shares nothing with our rules. Frameworks are not imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import FLOATS
from sardonyx.errors import ArgumentError, UnsupportedOp, quote
from sardonyx.grad import grad
from sardonyx.grad.transform import builder_for
from sardonyx.model import Model
from sardonyx.normalize import regular_copy
from sardonyx.verify.converted import applied, held_names
from sardonyx.verify.exact import is_float
from sardonyx.verify.subjects import (
    FunctionSubject,
    ModuleSubject,
    OnnxSubject,
    Subject,
    array_of,
    reported,
    torch_tensor,
)

PERIOD, STRIDE, SCALE = 61, 7, 32
FRAMEWORKS = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "tensorflow": "tensorflow"}


class NotDifferentiable(UnsupportedOp):
    """A function whose framework, if it has one, cannot differentiate it."""


def gradients_of(subjects: Sequence[Subject]) -> list[Subject]:
    """The same subjects, differentiated by inputs and by the weights that all of them have."""
    first = next((s.model for s in subjects if s.model is not None), None)
    if first is None:
        raise ArgumentError("gradients are compared with those of an ONNX model", hint="name one")
    shapes = _weights(first)
    shared = [n for n in shapes if all(_has(s, n, shapes[n]) for s in subjects)]
    return [_gradient(s, shared) for s in subjects]


def _has(item: Subject, name: str, shape: tuple[int, ...]) -> bool:
    if item.model is not None:
        return _weights(item.model).get(name) == shape
    return name in held_names(item)


def _gradient(item: Subject, weights: list[str]) -> Subject:
    label = f"gradient of {item.name}"
    if isinstance(item, OnnxSubject):
        assert item.model is not None
        return OnnxSubject(gradient_model(item.model, weights), item.engine, label)
    if isinstance(item, ModuleSubject):
        return ModuleGradient(item, weights, label)
    if isinstance(item, FunctionSubject):
        return FunctionGradient(item, weights, label)
    raise ArgumentError(f"{quote(item.name)} cannot be differentiated", hint="saved numbers cannot")


def _weights(model: Model) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(value.const_value.shape.numpy())
        for name, value in model.graph.initializers.items()
        if value.dtype in FLOATS and value not in model.inputs and value.const_value is not None
    }


def gradient_model(model: Model, weights: Sequence[str]) -> Model:
    """The gradient of the weighted sum by every float input and by `weights`, as a model."""
    work = regular_copy(model)
    op = builder_for(work)
    names = []
    with op:
        for value in list(work.outputs):
            if value.dtype in FLOATS and isinstance(value.type, ir.TensorType):
                count = op.Size(value)
                place = op.Range(0, op.Mul(count, STRIDE), STRIDE)
                weight = op.cast(op.Mod(place, PERIOD) - PERIOD // 2, value.dtype)
                weight = op.reshape_like(weight, value)
                total = op.ReduceSum(op.Mul(value, weight) / float(SCALE), keepdims=0)
                total.name = op.fresh(f"weighted/{value.name}")
                names.append(total.name)
                work.graph.outputs.append(total)
    if not names:
        raise ArgumentError("the model has no float outputs to differentiate")
    work.graph.extend(op.nodes)
    for constant in op.constants.values():
        work.graph.register_initializer(constant)
    inputs = [v.name or "" for v in model.inputs if v.dtype in FLOATS]
    return grad(work, of=names, wrt=[*inputs, *weights], outputs=False)


def weighting(count: int) -> np.ndarray:
    """The weights of a flattened output, as `gradient_model` has them."""
    return (np.arange(count) * STRIDE % PERIOD - PERIOD // 2) / SCALE


class ModuleGradient(ModuleSubject):
    """A torch module differentiated by torch."""

    def __init__(self, item: ModuleSubject, weights: Sequence[str], name: str):
        super().__init__(item.module, name)
        self.weights = list(weights)

    def _call(self, module: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
        torch = sys.modules["torch"]
        with reported(self.name):
            tensors = {k: torch_tensor(v) for k, v in feeds.items()}
            floats = {k: t for k, t in tensors.items() if is_float(feeds[k])}
            wrt = {k: t.requires_grad_() for k, t in floats.items()}
            parameters = dict(module.named_parameters())
            wrt |= {name: parameters[module.names[name]] for name in self.weights}
            total = sum(
                (y.reshape(-1) * torch.from_numpy(weighting(y.numel())).to(y.dtype)).sum()
                for y in _listed(module(*tensors.values()))
                if y.is_floating_point()
            )
            gradients = torch.autograd.grad(total, list(wrt.values()), materialize_grads=True)
        return {f"grad/{k}": array_of(g) for k, g in zip(wrt, gradients, strict=True)}


def _listed(result: Any) -> Sequence[Any]:
    """What a module or function returned, as a sequence."""
    return result if isinstance(result, (tuple, list)) else (result,)


class FunctionGradient(Subject):
    """A function differentiated by the framework whose arrays it returns."""

    lenient = True

    def __init__(self, item: FunctionSubject, weights: Sequence[str], name: str):
        super().__init__(name)
        self.function, self.weights = item.function, list(weights)
        self.engine, self.version = item.engine, item.version

    def __call__(self, feeds: Mapping[str, Any], run: str = "") -> dict[str, Any]:
        with reported(self.name):
            first = _listed(self.function(*feeds.values()))[0]
        kind = FRAMEWORKS.get(type(first).__module__.split(".")[0])
        if kind not in ("jax", "tensorflow"):
            raise NotDifferentiable(
                f"no framework differentiates a function that returns a {type(first).__name__}"
            )
        with reported(self.name):
            gradients = (self._by_jax if kind == "jax" else self._by_tensorflow)(dict(feeds))
        return {f"grad/{k}": array_of(g) for k, g in gradients.items()}

    def _by_jax(self, feeds: dict[str, Any]) -> dict[str, Any]:
        jax = sys.modules["jax"]
        apply, params = applied(self.function)
        wrt: dict[str, Any] = {k: v for k, v in feeds.items() if is_float(v)}
        weights = {n: params[n] for n in self.weights}

        def total(wrt: dict[str, Any], weights: dict[str, Any]) -> Any:
            arguments = [wrt.get(k, v) for k, v in feeds.items()]
            outputs = (
                apply({**params, **weights}, *arguments)
                if params is not None
                else apply(*arguments)
            )
            floats = [
                y for y in _listed(outputs) if jax.numpy.issubdtype(y.dtype, jax.numpy.floating)
            ]
            return sum((y.reshape(-1) * weighting(y.size).astype(y.dtype)).sum() for y in floats)

        by_inputs, by_weights = jax.grad(total, argnums=(0, 1))(wrt, weights)
        return {**by_inputs, **by_weights}

    def _by_tensorflow(self, feeds: dict[str, Any]) -> dict[str, Any]:
        tf = sys.modules["tensorflow"]
        tensors = {k: tf.convert_to_tensor(v) for k, v in feeds.items()}
        wrt = {k: t for k, t in tensors.items() if t.dtype.is_floating}
        wrt |= {n: self.function.weights[n] for n in self.weights}  # type: ignore[attr-defined]
        with tf.GradientTape() as tape:
            tape.watch(list(wrt.values()))
            parts = []
            for y in _listed(self.function(*tensors.values())):
                if not y.dtype.is_floating:
                    continue
                weight = tf.cast(weighting(int(tf.size(y))), y.dtype)
                parts.append(tf.reduce_sum(tf.reshape(y, [-1]) * weight))
            total = tf.add_n(parts)
        unconnected = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(total, list(wrt.values()), unconnected_gradients=unconnected)
        return dict(zip(wrt, map(tf.convert_to_tensor, gradients), strict=True))

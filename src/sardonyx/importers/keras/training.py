"""A compiled Keras model as a training record.

The pure functions of Keras's trainer are traced: the forward pass of training with the losses, the
penalties of regularizers and the metrics of a batch; then the optimizer's update with clipping,
weight decay, averages and constraints. The record differentiates between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import keras
import numpy as np
import onnx_ir as ir
from keras.src.backend.common import masking

from sardonyx.build import Builder, constant
from sardonyx.importers.jax import trees
from sardonyx.importers.jax.step import attach
from sardonyx.importers.jax.trace import Tracer, trace
from sardonyx.importers.keras.names import BATCH, sizes
from sardonyx.importers.keras.optimizers import RATE_VARIABLE, symbolic
from sardonyx.importers.keras.source import Source
from sardonyx.model import Model
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import names as all_names
from sardonyx.passes.nesting import reads
from sardonyx.record import loss as losses
from sardonyx.record.builder import RATE
from sardonyx.record.describe import describe, descriptions
from sardonyx.record.keras_state import slot_names
from sardonyx.record.optim import Optimizer, Parameter, UpdateContext
from sardonyx.record.trainable import trainable

NEW, METRIC, PREDICTION = "/new", "metric/", "prediction/"
STEPS, PIXELS = 4, 16  # of free sizes, for the batches that are compared


@dataclass(frozen=True)
class DeclaredLabel(losses.Label):
    """A label whose type and shape Keras's loss decides."""

    dtype: ir.DataType = ir.DataType.FLOAT
    shape: tuple[int | str, ...] = ()

    def of(self, prediction: ir.Value) -> tuple[ir.DataType, list[Any]]:
        return self.dtype, list(self.shape)


def _remove_masks(outputs: Any) -> None:
    """Forget which steps of outputs are masked: on JAX, the metrics of Keras do not see it."""
    for output in jax.tree.leaves(outputs):
        masking.set_keras_mask(output, None)


class Training:
    """The training of one compiled model: as pure functions of JAX, and as a record."""

    def __init__(self, source: Source, served: Model):
        self.source, self.served, self.model = source, served, source.model
        self.labels = source.labels()
        shapes = self._label_shapes()
        every = trees.structs(
            [*source.shapes, *shapes],
            [*source.dtypes, *(x.dtype for x in self.labels.all)],
            source.constraints(),
        )
        self.inputs, self.label_structs = every[: len(source.shapes)], every[len(source.shapes) :]
        names = {*source.names, *source.input_names, *(v.name or "" for v in served.outputs)}
        self.label_names = [_free(label.name, names) for label in self.labels.all]
        self.label_shapes = shapes
        self._build()
        optimizer = self.model.optimizer
        self.slots = [v.value for v in optimizer.variables]
        self.slot_names = slot_names(optimizer, source.trained, source.trained_names)
        self.metrics = self._fresh_metrics()

    def _label_shapes(self) -> list[list[int | str]]:
        """The sizes of labels; those that an output has as well have its names."""
        outputs = [list(v.shape or ()) for v in self.served.outputs]
        weights = self.labels.all[-1] if self.labels.weight_shape is not None else None
        places = self.labels.places if len(self.labels.places) == len(outputs) else []
        shapes = []
        for label in self.labels.all:
            place = next((i for i, p in enumerate(places) if p is label), None)
            output = outputs[place] if place is not None and not label.is_sequence else []
            if label == weights:  # of each step, maybe, of the first output
                output = outputs[0]
            texts = [str(getattr(d, "value", d)) for d in output]
            names = sizes(label.name, label.shape)
            for axis, size in enumerate(label.shape[: len(output)]):
                if size is None and texts[axis] != "None":
                    own = output[axis]
                    names[axis] = own if isinstance(own, int) else texts[axis]
            shapes.append(names)
        return shapes

    def _build(self) -> None:
        """Create the variables of metrics and optimizer, as Keras does before its first step."""
        feeds = self.draw(0)
        inputs = [feeds[n] for n in self.source.input_names]
        labels, weight = self.labels.arguments([feeds[n] for n in self.label_names])
        batch = (self.source.arguments(inputs), labels, weight)
        self.model._symbolic_build(data_batch=batch)

    def _fresh_metrics(self) -> list[Any]:
        """The variables of all metrics as they are at the beginning of an epoch."""
        with keras.StatelessScope() as scope:
            for metric in self.model.metrics:
                metric.reset_state()
        variables = self.model.metrics_variables
        values = [scope.get_current_value(v) for v in variables]
        return [v.value if x is None else x for v, x in zip(variables, values, strict=True)]

    # -- in JAX --------------------------------------------------------------------------

    def objective(
        self, trained: Any, frozen: Any, slots: Any, inputs: Any, labels: Any
    ) -> tuple[Any, Any]:
        """The loss that is differentiated, then: the loss, other variables, metrics, outputs."""
        x = self.source.arguments(inputs)
        y, weight = self.labels.arguments(labels)
        total, (loss, outputs, frozen, metrics) = self.model.compute_loss_and_updates(
            trained, frozen, self.metrics, x, y, weight, training=True, optimizer_variables=slots
        )
        if not self.source.masked_metrics:
            _remove_masks(outputs)
        logs, _ = self.model._update_metrics_variables(metrics, loss, x, y, outputs, weight)
        logs = {k: v for k, v in logs.items() if k != "loss"}
        return total, (loss, list(frozen), logs, jax.tree.leaves(outputs))

    def update(self, gradients: Any, slots: Any, trained: Any) -> Any:
        """The new values of trained variables and of the optimizer's."""
        return self.model.optimizer.stateless_apply(slots, gradients, trained)

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        """One whole step."""
        trained, frozen, slots = state
        if self.has_own_step:
            return self._own_step(state, batch)
        differentiate = jax.value_and_grad(self.objective, has_aux=True)
        (_, (loss, frozen, metrics, _)), gradients = differentiate(trained, frozen, slots, *batch)
        trained, slots = self.update(gradients, slots, trained)
        return (trained, frozen, slots), {"loss": loss, **metrics}

    def _own_step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        """One step of a user's own `train_step`."""
        inputs, labels = batch
        y, weight = self.labels.arguments(labels)
        data = (self.source.arguments(inputs), y, weight)
        logs, (trained, frozen, slots, _) = self.model.train_step((*state, self.metrics), data)
        return (list(trained), list(frozen), list(slots)), dict(logs)

    @property
    def has_own_step(self) -> bool:
        return type(self.model).train_step is not keras.Model.train_step

    @property
    def state(self) -> tuple[list[Any], list[Any], list[Any]]:
        values = self.source.values()
        count = len(self.source.trained)
        return values[:count], values[count:], list(self.slots)

    @property
    def state_names(self) -> list[str]:
        return [*self.source.names, *self.slot_names]

    @property
    def batch(self) -> tuple[list[Any], list[Any]]:
        return list(self.inputs), list(self.label_structs)

    @property
    def batch_names(self) -> list[str]:
        return [*self.source.input_names, *self.label_names]

    def draw(self, seed: int, batch: int = 3) -> dict[str, np.ndarray]:
        """Arrays for one step: inputs of any kind, labels that every loss takes."""
        rng = np.random.default_rng(seed)
        structs = [*self.inputs, *self.label_structs]
        symbols = {s for x in structs for d in x.shape if not isinstance(d, int)
                   for s in d._get_vars()}  # fmt: skip
        free = PIXELS if any(len(x.shape) > 3 for x in self.inputs) else STEPS
        numbers = {symbol: batch if symbol == BATCH else free for symbol in symbols}
        shapes = [
            [d if isinstance(d, int) else int(d._evaluate(numbers)) for d in x.shape]
            for x in structs
        ]
        count = len(self.inputs)
        feeds = {
            name: _drawn(rng, shape, np.dtype(x.dtype))
            for name, shape, x in zip(self.source.input_names, shapes, self.inputs, strict=False)
        }
        for name, label, shape in zip(
            self.label_names, self.labels.all, shapes[count:], strict=True
        ):
            feeds[name] = label.draw(rng, shape)
        return feeds

    # -- as a step -----------------------------------------------------------------------

    def whole_step(self) -> Model:
        """The whole step, differentiated by JAX, as the record."""
        traced = trace(self.step, self.state, self.batch)
        tracer = Tracer("train")
        tracer.op.reserve(all_names(self.served.graph))
        leaves = [leaf for part in (*self.state, *self.batch) for leaf in part]
        names = [*self.state_names, *self.batch_names]
        operands = [tracer.input(n, leaf) for n, leaf in zip(names, leaves, strict=True)]
        results = tracer.read(traced, operands)
        count = len(self.state_names)
        new = zip(self.state_names, results[:count], strict=True)
        moved = {n: v for n, v in new if v is not tracer.inputs[n]}
        metrics = [n if n == "loss" else f"metrics/{n}" for n in sorted(traced.result[1])]
        outputs = dict(zip(metrics, results[count:], strict=True))
        outputs = {**outputs, **{f"{n}/next": v for n, v in moved.items()}}
        graph = tracer.finish(list(outputs.values()), list(outputs), "train")
        arrays = dict(zip(self.state_names, map(trees.array, leaves), strict=False))
        return attach(self.served, graph, arrays, list(moved), [RATE_VARIABLE])

    @property
    def needs_step(self) -> bool:
        """Whether what is differentiated is not the loss alone, or gradients are not descended."""
        optimizer = self.model.optimizer
        scaled = type(optimizer).scale_loss is not keras.Optimizer.scale_loss
        scaled = scaled or getattr(optimizer, "loss_scale_factor", None) is not None
        special = any(getattr(v, "overwrite_with_gradient", False) for v in self.source.trained)
        return self.has_own_step or scaled or special

    # -- as a record ---------------------------------------------------------------------

    def record(self) -> Model:
        """The traced losses, differentiated here, and the update of the optimizer."""
        graph = self._loss_graph()
        initializers = self.served.graph.initializers
        trained = [n for n in self._reached(graph) if n in initializers]
        read = [v.name or "" for v in graph.inputs if v.name not in self.label_names]
        self.private = [n for n in read if n in self.source.names and n not in initializers]
        kinds = tuple(
            DeclaredLabel(
                "declared", dtype=ir.DataType.from_numpy(np.dtype(label.dtype)), shape=tuple(shape)
            )
            for label, shape in zip(self.labels.all, self.label_shapes, strict=True)
        )
        self.read = [n for n in read if n not in self.private]
        self.graph = graph
        loss = losses.Loss(
            _title(self.model), self._written, kinds, names=tuple(self.label_names),
            reads=tuple(self.read),
        )  # fmt: skip
        update = self._symbolic() if len(trained) == len(self.source.trained) else None
        update = update or Optimizer((self._traced_update,), type(self.model.optimizer).__name__)
        optimizer = Optimizer((*update.updates, self._assign), update.text, update.settings)
        net = trainable(
            self.served,
            loss=[losses.Term(loss, labels=self.label_names)],
            optimizer=optimizer,
            train=trained,
            batch_norm="frozen",
            dropout="frozen",
        )
        names = [v.name or "" for v in self.served.outputs]
        copies = {n: self.results[f"{PREDICTION}{n}"].name or "" for n in names}
        _correct_description(net, copies)
        return net

    def _symbolic(self) -> Optimizer | None:
        """The optimizer as one of ours, whose names for its state are used from then on."""
        _, _, slots = self.state
        same = symbolic(self.model.optimizer, self.source.trained, slots, self.slot_names)
        if same is None:
            return None
        optimizer, self.slot_names = same
        return optimizer

    def _loss_graph(self) -> ir.Graph:
        """The forward pass of training with the losses, as a graph of weights and data."""
        trained, frozen, _ = self.state
        traced = trace(self._flat_objective, trained, frozen, self.inputs, self.label_structs)
        tracer = Tracer("", differentiated=True)
        leaves = [*trained, *frozen, *self.inputs, *self.label_structs]
        names = [*self.source.names, *self.batch_names]
        operands = [tracer.input(n, leaf) for n, leaf in zip(names, leaves, strict=True)]
        self.metric_names = sorted(traced.result[2])
        new = [f"{n}{NEW}" for n in self.source.frozen_names]
        predictions = [f"{PREDICTION}{v.name}" for v in self.served.outputs]
        metrics = [f"{METRIC}{n}" for n in self.metric_names]
        outputs = ["loss_value", *new, *metrics, *predictions]
        tracer.op.reserve(outputs)
        results = tracer.read(traced, operands)
        moved = [
            (value, name)
            for value, name, old in zip(
                results, outputs, [None, *operands[len(trained) :], *([None] * len(outputs))],
                strict=False,
            )
            if value is not old
        ]  # fmt: skip
        graph = tracer.finish([v for v, _ in moved], [n for _, n in moved], "loss")
        return _pruned(graph)

    def _flat_objective(self, trained: Any, frozen: Any, inputs: Any, labels: Any) -> Any:
        _, results = self.objective(trained, frozen, self.slots, inputs, labels)
        return results

    def _reached(self, graph: ir.Graph) -> list[str]:
        """The trained variables that the loss depends on."""
        pending, seen = [graph.outputs[0]], set()
        while pending:
            value = pending.pop()
            if value not in seen:
                seen.add(value)
                node = value.producer()
                pending += reads(node) if node is not None else []
        names = {v.name for v in seen}
        return [n for n in self.source.trained_names if n in names]

    def _written(self, op: Builder, prediction: ir.Value, *values: ir.Value) -> ir.Value:
        """Write the loss graph; its other results wait for `_assign`."""
        by_name = dict(zip([*self.read, *self.label_names], values, strict=True))
        self.placeholders = {}
        for value in self.graph.inputs:
            name = value.name or ""
            if name in self.private:
                self.placeholders[name] = by_name[name] = ir.Value(
                    name=name, type=value.type, shape=value.shape
                )
        results = inlined(op, self.graph, [by_name[v.name or ""] for v in self.graph.inputs])
        names = [v.name or "" for v in self.graph.outputs]
        self.results = dict(zip(names, results, strict=True))
        return self.results["loss_value"]

    def _assign(self, step: UpdateContext, parameters: list[Parameter]) -> None:
        """Bind the new values of variables that are not trained, and report the metrics."""
        builder = step.builder
        frozen = dict(zip(self.source.frozen_names, self.state[1], strict=True))
        slots = {name: builder.slot(name, trees.array(frozen[name])) for name in self.placeholders}
        for name, placeholder in self.placeholders.items():
            for node, index in list(placeholder.uses()):
                node.replace_input_with(index, slots[name].value)
        for key, value in self.results.items():
            name = key.removesuffix(NEW)
            if name not in frozen or not key.endswith(NEW):
                continue
            if name in slots:
                slots[name].next = value
            elif name in self.served.graph.initializers:
                builder.updates[name] = value
                builder.roles[name] = "statistic"
            else:  # assigned, and never read
                builder.slot(name, trees.array(frozen[name])).next = value
        for name in self.metric_names:
            label = builder.local(f"metrics/{name}")
            builder.output(label, self.results[f"{METRIC}{name}"])
            builder.roles[label] = "metric"

    def _traced_update(self, step: UpdateContext, parameters: list[Parameter]) -> None:
        """Write Keras's own update; the optimizer's variables are the slots of the record."""
        by_name = {p.name: p for p in parameters}
        trained, _, slots = self.state
        traced = trace(self.update, trained, slots, trained)
        tracer = Tracer()
        names = self.source.trained_names
        keys = [*(f"gradient/{n}" for n in names), *self.slot_names, *names]
        leaves = [*trained, *slots, *trained]
        operands = [tracer.input(n, leaf) for n, leaf in zip(keys, leaves, strict=True)]
        results = tracer.read(traced, operands)
        unmoved = {n for n, r in zip([*names, *self.slot_names], results, strict=True)
                   if r is tracer.inputs[n]}  # fmt: skip
        outputs = [f"{n}{NEW}" for n in (*names, *self.slot_names)]
        tracer.op.reserve(outputs)
        graph = _pruned(tracer.finish(results, outputs, "update"))
        values: list[ir.Value] = []
        state = dict(zip(self.slot_names, slots, strict=True))
        for value in graph.inputs:
            name = value.name or ""
            stem = name.removeprefix("gradient/")
            if name == RATE_VARIABLE:
                values.append(step.builder.hyper(RATE, float(state[name]), np.float32))
            elif name in state:
                values.append(step.builder.slot(name, trees.array(state[name])).value)
            elif name.startswith("gradient/"):
                values.append(by_name[stem].update if stem in by_name else _zeros(step, value))
            else:
                values.append(self._parameter(step, by_name, name))
        new = inlined(step.op, graph, values)
        for name, value in zip([*names, *self.slot_names], new, strict=True):
            if name in by_name:
                by_name[name].final = value
            elif name in unmoved:
                continue
            elif name in state:
                step.builder.slot(name, trees.array(state[name])).next = value
            else:
                step.builder.updates[name] = value

    def _parameter(
        self, step: UpdateContext, by_name: Mapping[str, Parameter], name: str
    ) -> ir.Value:
        if name in by_name:
            return by_name[name].value
        return step.builder.model.graph.initializers[name]


def inlined(op: Builder, graph: ir.Graph, arguments: Sequence[ir.Value]) -> list[ir.Value]:
    """The outputs of a graph on `arguments`, its nodes copied behind them."""
    values: dict[ir.Value, ir.Value | None] = dict(zip(graph.inputs, arguments, strict=True))
    for value in graph.initializers.values():
        values[value] = op.const(constant(value), value.dtype)
    op.nodes.extend(copy_nodes(graph, values, {}, lambda name: op.fresh(f"{op.prefix}/{name}")))
    results = [values[v] for v in graph.outputs]
    assert all(v is not None for v in results)
    return [v for v in results if v is not None]


def _correct_description(net: Model, copies: Mapping[str, str]) -> None:
    """Say what trains: the forward pass is Keras's own, not that of the switched operators.

    copies -- the tensors of training that an evaluation replaces by those that are served
    """
    (description,) = descriptions(net)[-1:]
    for key in ("batch_norm", "dropout"):
        description["arguments"].pop(key, None)
    others = ("BatchNormalization", "Dropout", "prediction")
    why = "batch statistics, masks and random states are Keras's own"
    row = ["forward pass", "that of Keras in training mode", why]
    description["choices"] = [r for r in description["choices"] if r[0] not in others] + [row]
    description["forward"] = dict(copies)
    describe(net, description)


def _pruned(graph: ir.Graph) -> ir.Graph:
    """The graph without inputs that nothing reads."""
    graph.inputs[:] = [v for v in graph.inputs if v.uses() or v.is_graph_output()]
    return graph


def _zeros(step: UpdateContext, value: ir.Value) -> ir.Value:
    assert value.dtype is not None and value.shape is not None
    return step.op.const(np.zeros([int(d) for d in value.shape], value.dtype.numpy()))  # type: ignore[arg-type]


def _drawn(rng: np.random.Generator, shape: list[int], dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = f"train/{name}"
    return name


def _title(model: keras.Model) -> str:
    """The losses of a model in words."""
    compiled = getattr(model, "_compile_loss", None)
    if compiled is None:
        return "loss"
    leaves = keras.tree.flatten(compiled._user_loss)
    names = [
        leaf
        if isinstance(leaf, str)
        else getattr(leaf, "name", None) or getattr(leaf, "__name__", "")
        for leaf in leaves
        if leaf is not None
    ]
    return " + ".join(dict.fromkeys(n for n in names if n)) or "loss"

"""A loss and an optax optimizer with a function of JAX: the training of the imported model.

As a record, the traced loss is differentiated by this package's rules, and `optimizer.update` is
the record's update. As a step, JAX differentiates, and the whole step is read as it stands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import onnx_ir as ir
from jax import tree_util
from jax._src.interpreters import partial_eval

from sardonyx.build import constant
from sardonyx.errors import ArgumentError, ImportDiffers, quote
from sardonyx.importers.jax import trees
from sardonyx.importers.jax.check import JaxSide, require_same_training
from sardonyx.importers.jax.finish import as_model, forward, settle_names
from sardonyx.importers.jax.optax_chain import Chain, ChainSide, read_chain
from sardonyx.importers.jax.shorten import shorten
from sardonyx.importers.jax.step import attach
from sardonyx.importers.jax.trace import Tracer, trace
from sardonyx.model import Model
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import names as all_names
from sardonyx.record.loss import graph as graph_loss
from sardonyx.record.optim import Optimizer, Parameter, UpdateContext
from sardonyx.record.trainable import trainable
from sardonyx.versions import fit

SLOTS = "optimizer"
SHOWN = 3


def with_training(
    function: Callable[..., Any],
    params: Any,
    example: tuple[Any, ...],
    loss: Callable[..., Any],
    optimizer: Any,
    state: Any,
    how: str,
) -> Model:
    """The model of `function` with a record that trains it."""
    count = len(example) - label_count(loss, len(example))
    inputs, labels = example[:count], example[count:]
    model = forward(function, params, inputs, differentiated=how == "record")
    training = Training(function, params, inputs, loss, labels, optimizer, state, model)
    side = JaxSide(training.jax_step, training.state, training.batch, training.batch_names)
    chain = read_chain(optimizer, training.slots) if how == "record" else None
    if chain is not None:
        try:
            trained = fit(training.symbolic_record(chain))
            require_same_training(trained, training.in_our_words(side, chain), training.fed)
            return trained
        except ImportDiffers:  # a formula of another version of optax: its own is traced
            side = JaxSide(training.jax_step, training.state, training.batch, training.batch_names)
    trained = fit(training.record()) if how == "record" else training.step()
    side.state_names = training.state_names
    require_same_training(trained, side, training.fed)
    return trained


def label_count(loss: Callable[..., Any], most: int) -> int:
    """How many labels a loss takes after the outputs: its parameters without a default."""
    try:
        parameters = list(inspect.signature(loss).parameters.values())
    except (TypeError, ValueError):
        return 1
    required = [
        p for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]  # fmt: skip
    count = max(len(required) - 1, 0)
    if count > most:
        raise ArgumentError(
            f"the loss takes {count} labels, and the example has {most} arrays in all",
            hint="give examples of the labels after those of the inputs",
        )
    return count


def settled_slots(optimizer: Any, params: Any, state: Any) -> Any:
    """The state of an optimizer: a new one, or the one that is given if it fits."""
    try:
        slots = optimizer.init(params)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArgumentError(
            "the optimizer does not fit the parameters",
            [[type(error).__name__, line] for line in str(error).strip().splitlines()[:SHOWN]],
            hint="masks and labels of parameters have the structure of `params`",
        ) from error
    if state is None:
        return slots
    shapes, others = trees.named_leaves(slots), trees.named_leaves(state)
    texts = {n: _text(leaf) for n, leaf in shapes.items()}
    other_texts = {n: _text(leaf) for n, leaf in others.items()}
    rows = [
        [quote(n), f"{other_texts.get(n, 'is not there')}, the optimizer's is "
         f"{texts.get(n, 'not there')}"]
        for n in {**texts, **other_texts}
        if texts.get(n) != other_texts.get(n)
    ]  # fmt: skip
    if rows or tree_util.tree_structure(slots) != tree_util.tree_structure(state):
        raise ArgumentError(
            "`state` is not a state of this optimizer and these parameters",
            rows,
            hint="state= is what optimizer.init(params) or its last update has returned",
        )
    return state


def _text(leaf: Any) -> str:
    return str(jax.typeof(leaf).str_short())


class Training:
    """One training of an imported model: its step in JAX, and as a record."""

    def __init__(
        self,
        function: Callable[..., Any],
        params: Any,
        inputs: tuple[Any, ...],
        loss: Callable[..., Any],
        labels: tuple[Any, ...],
        optimizer: Any,
        state: Any,
        model: Model,
    ):
        if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
            raise ArgumentError(
                f"{quote(type(optimizer).__name__)} is no optimizer of optax",
                hint="optimizer=optax.adamw(1e-3)",
            )
        self.function, self.loss, self.optimizer, self.model = function, loss, optimizer, model
        self.params = params
        self.slots = settled_slots(optimizer, params, state)
        self.state = {"params": params, "slots": self.slots}
        self.batch = (inputs, labels)
        self.weights = trees.named_leaves(params)
        self.slot_leaves = trees.named_leaves(self.slots, SLOTS)
        trees.require_arrays(self.slot_leaves, "the optimizer's state")
        self.state_names = [*self.weights, *self.slot_leaves]
        names = trees.argument_names(function, len(inputs), 1)
        self.inputs = settle_names(trees.input_leaves(names, inputs), self.weights)
        label_names = trees.argument_names(loss, len(labels), 1)
        used_names = {*self.weights, *self.inputs, *(v.name or "" for v in model.outputs)}
        self.labels = settle_names(trees.input_leaves(label_names, labels), used_names)
        self.fed = {**self.inputs, **self.labels}
        self.batch_names = list(self.fed)
        self._require_used_labels()

    # -- in JAX --------------------------------------------------------------------------

    def jax_step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        inputs, labels = batch

        def objective(params: Any) -> Any:
            return self.loss(self.function(params, *inputs), *labels)

        value, gradients = jax.value_and_grad(objective)(state["params"])
        more = {"value": value, "grad": gradients, "value_fn": objective}
        more = more if self._takes_more() else {}
        params, slots = self.jax_update(gradients, state["slots"], state["params"], **more)
        return {"params": params, "slots": slots}, value

    def jax_update(self, gradients: Any, slots: Any, params: Any, **more: Any) -> Any:
        updates, slots = self.optimizer.update(gradients, slots, params, **more)
        return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates), slots

    def _takes_more(self) -> bool:
        """Whether the optimizer may ask for the loss, as line searches do."""
        return any(c.__name__.endswith("ExtraArgs") for c in type(self.optimizer).__mro__)

    def _require_used_labels(self) -> None:
        """Raise for a loss that is no number, or that ignores its labels."""
        outputs = jax.eval_shape(self.function, self.params, *self.batch[0])
        traced = trace(self.loss, outputs, *self.batch[1])
        shapes = tree_util.tree_leaves(traced.result)
        if len(shapes) != 1 or shapes[0].shape != ():
            raise ArgumentError(
                f"the loss returns {[tuple(s.shape) for s in shapes]}, not one number",
                hint="take the mean: loss=lambda y, label: my_loss(y, label).mean()",
            )
        self.traced_loss, self.outputs = traced, outputs
        count = len(tree_util.tree_leaves(outputs))
        reads = partial_eval.dce_jaxpr(traced.jaxpr.jaxpr, [True])[1]
        rows = [[quote(n)] for n, is_read in zip(self.labels, reads[count:], strict=True)
                if not is_read]  # fmt: skip
        if rows:
            raise ArgumentError("the loss ignores its labels", rows)
        if not any(reads[:count]):
            raise ArgumentError("the loss ignores what the function returns")

    # -- as a step -----------------------------------------------------------------------

    def step(self) -> Model:
        """The whole step, differentiated by JAX, as the record."""
        traced = trace(self.jax_step, self.state, self.batch)
        tracer = Tracer("train")
        tracer.op.reserve(all_names(self.model.graph))
        leaves = {**self.weights, **self.slot_leaves, **self.fed}
        operands = [tracer.input(n, leaf) for n, leaf in leaves.items()]
        results = tracer.read(traced, operands)
        new = dict(zip(self.state_names, results, strict=False))
        moved = {n: v for n, v in new.items() if v is not tracer.inputs[n]}
        outputs = {"loss": results[-1], **{f"{n}/next": v for n, v in moved.items()}}
        graph = tracer.finish(list(outputs.values()), list(outputs), "train")
        shorten(graph, list(leaves), all_names(self.model.graph))
        arrays = {n: trees.array(leaf) for n, leaf in leaves.items() if n in self.state_names}
        return attach(self.model, graph, arrays, list(moved))

    # -- as a record ---------------------------------------------------------------------

    def record(self) -> Model:
        """The traced loss, differentiated here, and the traced update of the optimizer."""
        return self._record(Optimizer((self.traced_update,), "optax"))

    def symbolic_record(self, chain: Chain) -> Model:
        """The traced loss, differentiated here, and our optimizer with the state of optax's."""
        model = self._record(chain.optimizer, clip_value=chain.clip_value)
        state = model.records[-1].state
        for name, array in chain.arrays(self.weights).items():
            if name in state:
                state[name] = ir.Tensor(array, name=name, shape=ir.Shape(array.shape))
        return model

    def in_our_words(self, side: JaxSide, chain: Chain) -> JaxSide:
        """The step of JAX with the state of its optimizer under the names of our slots."""
        return ChainSide(side, chain, self.optimizer, self.weights)

    def _record(self, optimizer: Optimizer, **settings: Any) -> Model:
        if len(tree_util.tree_leaves(self.outputs)) != 1:
            raise ArgumentError(
                "the function has several outputs, and a record has one prediction",
                [[quote(v.name)] for v in self.model.outputs],
                hint='how="step" takes any loss',
            )
        return trainable(
            self.model,
            loss=graph_loss(self.loss_model()),
            optimizer=optimizer,
            train=list(self.weights),
            labels=list(self.labels) or None,
            **settings,
        )

    def loss_model(self) -> Model:
        """The loss as a model of the prediction and the labels."""
        tracer = Tracer("", differentiated=True)
        (prediction,) = tree_util.tree_leaves(self.outputs)
        leaves = {"prediction": prediction, **self.labels}
        operands = [tracer.input(n, leaf) for n, leaf in leaves.items()]
        results = tracer.read(self.traced_loss, operands)
        name = getattr(self.loss, "__name__", "loss").strip("<>")
        return as_model(tracer.finish(results, ["loss_value"], name))

    def traced_update(self, step: UpdateContext, parameters: list[Parameter]) -> None:
        """Write `optimizer.update` into the record; the optimizer's state are its slots."""
        by_name = {p.name: p for p in parameters}
        try:
            traced = trace(self.jax_update, self.params, self.slots, self.params)
        except TypeError as error:
            raise ArgumentError(
                f"the optimizer needs more than gradients: {error}",
                hint='how="step" gives it the loss as well',
            ) from error
        tracer = Tracer()
        names = [*(f"gradient/{n}" for n in self.weights), *self.slot_leaves, *self.weights]
        leaves = [*self.weights.values(), *self.slot_leaves.values(), *self.weights.values()]
        operands = [tracer.input(n, leaf) for n, leaf in zip(names, leaves, strict=True)]
        results = tracer.read(traced, operands)
        outputs = [f"{n}/new" for n in self.state_names]
        tracer.op.reserve(outputs)
        graph = tracer.finish(results, outputs, "update")
        values: dict[ir.Value, ir.Value | None] = {}
        slots = {}
        for value in graph.inputs:
            name = value.name or ""
            if name in self.slot_leaves:
                slots[name] = step.builder.slot(name, trees.array(self.slot_leaves[name]))
                values[value] = slots[name].value
            elif name.startswith("gradient/"):
                values[value] = by_name[name.removeprefix("gradient/")].update
            else:
                values[value] = by_name[name].value
        for value in graph.initializers.values():
            values[value] = step.op.const(constant(value), value.dtype)
        op = step.op
        op.nodes.extend(copy_nodes(graph, values, {}, lambda name: op.fresh(f"{op.prefix}/{name}")))
        for name, result in zip(self.state_names, graph.outputs, strict=True):
            if name in by_name:
                by_name[name].final = values[result]
            else:
                slots[name].next = values[result]

"""The graph of a whole training: a Loop over epochs, and in it a Loop over batches; or one Loop.

    once          checks of the data, preparation, the rows to train on and those held back
    each epoch    the order of the rows, the steps, the validation, what is the best so far
    each batch    its rows, and the step as `record/step.py` compiles it

Names of inputs and outputs are collected in `Description`, which the file carries as metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.engines.onnxruntime.session import moves_integers
from sardonyx.engines.onnxruntime.step_session import level
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.passes.nesting import names as all_names
from sardonyx.record.builder import ROLE
from sardonyx.record.hash_order import VALIDATION, ordered
from sardonyx.train.whole.batch import Batches
from sardonyx.train.whole.guards import Guards
from sardonyx.train.whole.loops import Body, Values, Writer, branch, chosen, embed, loop
from sardonyx.train.whole.parts import Parts, Settings
from sardonyx.train.whole.standardize import MEASURES, measured, standard
from sardonyx.train.whole.validation import Validation

T = ir.DataType
DONE, OUT_OF_PATIENCE, NOT_FINITE = 0, 1, 2  # why a training ended
INF = float("inf")
LARGE = 1 << 22  # bytes of state; a step then takes far longer than a copy of the order


@dataclass
class Description:
    """The inputs and outputs of the file by role."""

    data: dict[str, str] = field(default_factory=dict)  # field → input
    control: dict[str, str] = field(default_factory=dict)  # epochs, seed, … → input
    hyper: dict[str, Any] = field(default_factory=dict)  # hyperparameter → default
    state: dict[str, str] = field(default_factory=dict)  # variable → input
    starts: dict[str, str] = field(default_factory=dict)  # variable → its first value
    last: dict[str, str] = field(default_factory=dict)  # variable → output
    best: dict[str, str] = field(default_factory=dict)
    history: dict[str, str] = field(default_factory=dict)  # metric → output, a number an epoch
    results: dict[str, str] = field(default_factory=dict)  # losses, stopped, … → output
    standardize: dict[str, list[str]] = field(default_factory=dict)  # input → mean, deviation
    optimization: str = ""  # the level at which onnxruntime runs a step in the least memory


class Whole:
    """The graph under construction."""

    def __init__(self, parts: Parts, settings: Settings, defaults: bool):
        self.parts, self.settings, self.defaults = parts, settings, defaults
        self.op = Writer("train")
        self.description = Description(optimization=_optimization(parts))
        self.inputs: list[ir.Value] = []
        self.optional: dict[ir.Value, np.ndarray] = {}
        self.measures: dict[str, tuple[ir.Value, ir.Value]] = {}  # mean and deviation
        self.op.reserve([*parts.inputs, *parts.hyper, *parts.state])
        if parts.front is not None:
            self.op.reserve(all_names(parts.front.model.graph))

    def model(self) -> Model:
        """The model, with everything in it."""
        batches = Batches(self.parts, self.settings)
        raw = self._data()
        self._controls()
        self.guards = Guards(self.op, self.parts, self.settings)
        self.rows = self.guards.rows(raw, self.epochs, self.batch_size)
        self._split()
        self._sizes()
        self.batches = batches.over(self._features(raw))
        carried = {f"last/{n}": v for n, v in self._start().items()}
        if self._is_flat():
            return self._finished(*self._flat(carried))
        carried |= self._judged(carried)
        end, collected = loop(
            self.op, "epochs", self.epochs, self._may_go(carried), carried, self._epoch
        )
        return self._finished(end, collected)

    # -- inputs ----------------------------------------------------------------------

    def _input(self, name: str, dtype: ir.DataType, shape: Any, default: Any = None) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.inputs.append(value)
        if default is not None and self.defaults:
            self.optional[value] = np.asarray(default, dtype.numpy())
        return value

    def _data(self) -> Values:
        front = self.parts.front
        values = dict(self.parts.inputs)
        if front is not None:
            values = {n: v for n, v in values.items() if n not in front.features}
            values = {v.name or "": v for v in front.model.inputs} | values
        raw = {}
        for name, value in values.items():
            if name in self.settings.constants:
                continue
            dims: list[Any] = [d if isinstance(d, int) else None for d in value.shape or ()]
            if value.shape is None or value.dtype is None:
                raise AssertionError(name)
            del dims[self.settings.axes.get(name, 0) : self.settings.axes.get(name, 0) + 1]
            free = [d if d is not None else f"{name}/{i}" for i, d in enumerate(dims)]
            raw[name] = self._input(name, value.dtype, ["rows", *free])
            self.description.data[name] = name
        return raw

    def _control(self, name: str, dtype: ir.DataType, default: Any = None) -> ir.Value:
        value = self._input(self.op.fresh(name), dtype, [], default)
        self.description.control[name] = value.name or ""
        return value

    def _controls(self) -> None:
        self.epochs, self.batch_size, self.seed = (
            self._control(n, T.INT64) for n in ("epochs", "batch_size", "seed")
        )
        self.first_epoch = self._control("first_epoch", T.INT64, 0)
        if self.settings.keeps_best:
            self.best_value = self._control("best_value", T.DOUBLE, INF)
            self.waited = self._control("waited", T.INT64, 0)
        self.hyper = {}
        for name, default in self.parts.hyper.items():
            dtype = T.from_numpy(default.dtype)
            self.hyper[name] = self._input(name, dtype, default.shape, default)
            self.description.hyper[name] = default.tolist()

    # -- once ------------------------------------------------------------------------

    def _features(self, raw: Values) -> Values:
        """The fields that steps read: raw data, or what preparation makes of it."""
        front, op = self.parts.front, self.op
        fields = dict(raw)
        for name in self.settings.standardize:
            self.measures[name] = measured(op, name, raw[name], self.training)
            fields[name] = op.typed(standard(op, raw[name], *self.measures[name]), raw[name])
        if front is None:
            return fields
        feeds = {v.name or "": raw[v.name or ""] for v in front.model.inputs}
        features = embed(op, "prepare", normalize(front.model), feeds)
        return {n: v for n, v in {**fields, **features}.items() if n in self.parts.inputs}

    def _split(self) -> None:
        """The numbers of the rows to train on, and of those held back, both in ascending order."""
        op = self.op
        self.held_back: ir.Value | None = None
        if self.settings.share is None:
            self.training, self.count = op.Range(0, op.Squeeze(self.rows), 1), self.rows
            return
        order = ordered(op, self.seed, op.const(0, T.INT64), self.rows, VALIDATION)
        share = op.const(self.settings.share, T.DOUBLE)
        count = op.cast(op.Round(op.Mul(op.cast(self.rows, T.DOUBLE), share)), T.INT64)
        held = self.guards.batches(op.Max(count, [1]), "held back", drop_last=False)
        self.count = op.Sub(self.rows, held)
        parts = [op.Slice(order, [0], held), op.Slice(order, held, self.rows)]
        self.held_back, self.training = (
            op.TopK(part, n, largest=0, sorted=1, outputs=2)[0]
            for part, n in zip(parts, (held, self.count), strict=True)
        )

    def _sizes(self) -> None:
        """The number of batches in an epoch and of the rows in them."""
        op = self.op
        drop_last = self.settings.drop_last
        self.count = self.guards.batches(self.count, "to train on", drop_last)
        self.size = op.Reshape(self.batch_size, [1])
        whole = op.Div(self.count, self.size)
        if not self.settings.drop_last:
            whole = op.Div(op.Sub(op.Add(self.count, self.size), [1]), self.size)
        self.steps = op.Max(whole, [1])
        self.taken = op.Min(op.Mul(self.steps, self.size), self.count)

    def _start(self) -> Values:
        """Where the state starts: what is fed or, where that is empty, what the file holds."""
        op = self.op
        start: Values = {}
        for name, array in self.parts.state.items():
            dtype = T.from_numpy(array.dtype)
            shape = [f"{name}/{i}" for i in range(array.ndim)] or ["one"]
            empty = np.zeros([0] * len(shape), array.dtype)
            fed = self._input(name, dtype, shape, empty)
            self.description.state[name] = name
            is_empty = op.Equal(op.Size(fed), 0)
            here, other = (Writer(f"start/{name}", op) for _ in range(2))
            stored = here.graph("stored", [], [self._stored(here, name, array, fed)])
            value = other.Reshape(fed, np.array(array.shape, np.int64))
            value.shape = ir.Shape(array.shape)
            taken = other.graph("fed", [], [value])
            start |= chosen(op, f"start/{name}", is_empty, stored, taken, [name])
            start[name].shape = ir.Shape(array.shape)
        return start

    def _stored(self, op: Writer, name: str, array: np.ndarray, fed: ir.Value) -> ir.Value:
        """What the file holds."""
        if self.parts.model.metadata.get(f"{ROLE}{name}") == "seed":
            return op.Identity(self.seed)
        bits = np.ascontiguousarray(array).view(f"u{array.itemsize}") if array.size else array
        if array.size > 16 and (bits == bits.flat[0]).all():
            one = ir.tensor(np.ascontiguousarray(array).reshape(-1)[:1].copy())
            start = op.ConstantOfShape(_sizes_in_a_run(op, array, fed), value=one)
        else:
            value = op.weight(f"start/{name}/value", array)
            self.description.starts[name] = value.name or ""
            if not array.ndim:
                return op.Identity(value)
            start = op.Reshape(value, _sizes_in_a_run(op, array, fed), allowzero=1)
        start.type, start.shape = ir.TensorType(T.from_numpy(array.dtype)), ir.Shape(array.shape)
        return start

    def _judged(self, carried: Values) -> Values:
        """What is carried from epoch to epoch beside the state."""
        op = self.op
        rest = {"stopped": op.const(DONE, T.INT64)}
        if not self.settings.keeps_best:
            return rest
        best = {f"best/{n}": carried[f"last/{n}"] for n in self.parts.served}
        rest |= {"best_value": self.best_value, "waited": self.waited}
        return {**best, **rest, "best_epoch": op.const(0, T.INT64)}

    def _may_go(self, carried: Values) -> ir.Value | None:
        if self.settings.patience is None:
            return None
        return self.op.Less(self.waited, self.settings.patience)

    # -- one loop ------------------------------------------------------------------------

    def _is_flat(self) -> bool:
        """NOTE [one loop]: a Loop keeps what it was given until its iteration ends, so that two
        nested ones hold the state of the beginning of the epoch too. Where that is large and
        nothing happens between epochs, one Loop over the batches of all epochs carries the order
        of the rows along, which costs a copy of it at every step.
        """
        size = sum(array.nbytes for array in self.parts.state.values())
        return size >= LARGE and not self.settings.keeps_best

    def _flat(self, carried: Values) -> tuple[Values, Values]:
        op, names = self.op, self.parts.metrics
        zero, steps = op.const(np.float64(0)), op.Squeeze(self.steps)
        before = {n.removeprefix("last/"): v for n, v in carried.items()}
        before |= {f"sum/{n}": zero for n in names} | {"finite": op.const(True)}
        rows = op.parameter("rows", self.training)
        rows.shape = ir.Shape(["training"])
        before["order"] = op.typed(op.Identity(self.training), rows)

        def step(body: Writer, number: ir.Value, inside: Values) -> Body:
            index = body.Mod(number, steps)
            first = body.Equal(index, 0)
            order = self._order_at(body, first, body.Div(number, steps), inside["order"])
            fresh = {f"sum/{n}": body.Where(first, zero, inside[f"sum/{n}"]) for n in names}
            after = self._step(body, index, {**inside, **fresh}, order)
            sums = {f"sums/{n}": body.Reshape(after.carried[f"sum/{n}"], [1]) for n in names}
            return Body(after.again, {**after.carried, "order": order}, after.collected | sums)

        trips = op.Mul(self.epochs, steps)
        end, collected = loop(op, "batches", trips, None, before, step)
        done = op.Shape(op.Reshape(collected["losses"], [-1]))
        epochs = op.Div(op.Sub(op.Add(done, self.steps), [1]), self.steps)
        numbers = op.Range(1, op.Add(op.Squeeze(epochs), 1), 1)
        last = op.Sub(op.Min(op.Mul(numbers, self.steps), done), [1])  # steps that end an epoch
        total = op.cast(self.taken, T.DOUBLE)
        results = {}
        for name in names:
            sums = op.Gather(op.Reshape(collected[f"sums/{name}"], [-1]), last)
            results[f"history/{name}"] = op.Div(sums, total)
        losses = self._padded(op, collected["losses"], op.Mul(epochs, self.steps))
        grid = op.Concat(epochs, self.steps, axis=0)
        results["losses"] = op.Reshape(losses, grid, allowzero=1)
        results["losses"].shape = ir.Shape(["epochs", "steps"])
        finite, done, failed = end["finite"], *(op.const(n, T.INT64) for n in (DONE, NOT_FINITE))
        state = {f"last/{n}": end[n] for n in self.parts.state}
        return {**state, "stopped": op.Where(finite, done, failed)}, results

    def _order_at(self, op: Writer, first: ir.Value, number: ir.Value, order: ir.Value) -> ir.Value:
        """The order of an epoch: computed for its first batch, carried along for the others."""
        if not self.settings.shuffle:
            return order
        new, same = (Writer(f"{op.prefix}/order", op) for _ in range(2))
        epoch = new.Add(self.first_epoch, number)
        rows = new.typed(
            new.Gather(self.training, ordered(new, self.seed, epoch, self.count)), order
        )
        bodies = new.graph("new", [], [rows]), same.graph("same", [], [order])
        return chosen(op, "order", first, *bodies, names=["order"])["order"]

    # -- an epoch ----------------------------------------------------------------------

    def _epoch(self, op: Writer, number: ir.Value, carried: Values) -> Body:
        epoch = op.Add(self.first_epoch, number)
        rows = self.training
        if self.settings.shuffle:
            rows = op.Gather(self.training, ordered(op, self.seed, epoch, self.count))
        state = {n: carried[f"last/{n}"] for n in self.parts.state}
        zero = op.const(np.float64(0))
        sums = {f"sum/{n}": zero for n in self.parts.metrics}

        def step(body: Writer, index: ir.Value, inside: Values) -> Body:
            return self._step(body, index, inside, rows)

        before = {**state, **sums, "finite": op.const(True)}
        after, collected = loop(op, "batches", op.Squeeze(self.steps), None, before, step)
        total = op.cast(op.Squeeze(self.taken), T.DOUBLE)
        history = {n: op.Div(after[f"sum/{n}"], total) for n in self.parts.metrics}
        state = {n: after[n] for n in self.parts.state}
        if self.held_back is not None:
            checked = Validation(self.parts, self.settings, self.batches, self.hyper, self.size)
            metrics = checked.write(op, state, self.held_back)
            history |= {f"val_{n}": v for n, v in metrics.items()}
        losses = self._padded(op, collected["losses"], self.steps)
        new, again = self._judge(op, carried, state, history, epoch, after["finite"])
        # NOTE [vectors]: ONNX's reference evaluator collects numbers as columns, vectors as rows.
        scans = {f"history/{n}": op.Reshape(v, [1]) for n, v in history.items()}
        scans["losses"] = losses
        return Body(again, {**{f"last/{n}": v for n, v in state.items()}, **new}, scans)

    def _step(self, op: Writer, index: ir.Value, carried: Values, rows: ir.Value) -> Body:
        """One batch: its rows, and one step of every record."""
        feeds, count = self.batches.take(op, rows, op.Mul(index, self.batch_size), self.size)
        state = {n: carried[n] for n in self.parts.state}
        metrics: Values = {}
        for number, graph in enumerate(self.parts.steps):
            needs = {v.name or "": v for v in graph.model.graph.inputs}
            everything = {**self.hyper, **feeds, **state}
            name = "step" if len(self.parts.steps) == 1 else f"step{number}"
            outputs = embed(op, name, graph.model, {n: everything[n] for n in needs})
            for variable, output in graph.updates.items():
                state[variable] = op.typed(outputs[output], carried[variable])
            metrics |= {n: _number(op, outputs[n]) for n in graph.metrics}
        weight = op.cast(op.Squeeze(count), T.DOUBLE)
        sums = {
            f"sum/{n}": op.Add(carried[f"sum/{n}"], op.Mul(v, weight)) for n, v in metrics.items()
        }
        total = op.const(np.float64(0))
        for value in metrics.values():
            total = op.Add(total, op.Mul(value, 0.0))  # not a number where one is not finite
        finite = op.Equal(total, 0.0)
        loss = op.Reshape(metrics[self.parts.loss] if self.parts.loss else total, [1])
        return Body(finite, {**state, **sums, "finite": finite}, {"losses": loss})

    def _padded(self, op: Writer, losses: ir.Value, count: ir.Value) -> ir.Value:
        """As many numbers in every epoch: where a step was not finite, the rest is missing."""
        losses = op.Reshape(losses, [-1])  # NOTE [vectors]
        missing = op.Sub(count, op.Shape(losses))
        rest = op.Expand(op.const(np.float64("nan")), missing)
        padded = op.Concat(losses, rest, axis=0)
        padded.shape = ir.Shape(["steps"])
        return padded

    def _judge(
        self,
        op: Writer,
        carried: Values,
        state: Values,
        history: Values,
        epoch: ir.Value,
        finite: ir.Value,
    ) -> tuple[Values, ir.Value]:
        """What is carried on beside the state, and whether another epoch may follow."""
        stopped = op.Where(finite, op.const(DONE, T.INT64), op.const(NOT_FINITE, T.INT64))
        if not self.settings.keeps_best:
            return {"stopped": stopped}, finite
        value = history[self.settings.watch]
        value = value if self.settings.lower else op.Neg(value)
        best = carried["best_value"]
        improved = op.And(finite, op.Or(op.Less(value, best), op.IsInf(best, detect_negative=0)))
        served = {f"best/{n}": state[n] for n in self.parts.served}
        before = {n: carried[n] for n in served}
        new = branch(op, "best", improved, served, before) if served else {}
        new["best_value"] = op.Where(improved, value, best)
        new["best_epoch"] = op.Where(improved, op.Add(epoch, 1), carried["best_epoch"])
        new["waited"] = op.Where(improved, op.const(0, T.INT64), op.Add(carried["waited"], 1))
        again = finite
        if self.settings.patience is not None:
            hopeful = op.Less(new["waited"], self.settings.patience)
            again = op.And(finite, hopeful)
            patient = op.const(OUT_OF_PATIENCE, T.INT64)
            stopped = op.Where(hopeful, stopped, op.Max(stopped, patient))
        return {**new, "stopped": stopped}, again

    # -- outputs -----------------------------------------------------------------------

    def _finished(self, end: Values, collected: Values) -> Model:
        outputs: list[ir.Value] = []

        def give(value: ir.Value, name: str) -> str:
            if value.name != name or value in outputs:
                value.name = self.op.fresh(name)
            outputs.append(value)
            return value.name or ""

        description = self.description
        for key, value in collected.items():
            if key.startswith("history/"):
                numbers = self.op.Reshape(value, [-1])  # NOTE [vectors]
                description.history[key.removeprefix("history/")] = give(numbers, key)
            else:
                description.results[key] = give(value, key)
        for key, value in end.items():
            role, _, name = key.partition("/")
            if role in ("last", "best") and name:
                getattr(description, role)[name] = give(value, key)
            else:
                description.results[key] = give(
                    value, f"{key}/end" if key in description.control else key
                )
        for name, values in self.measures.items():
            names = [
                give(v, f"standardize/{name}/{m}") for v, m in zip(values, MEASURES, strict=True)
            ]
            description.standardize[name] = names
        graph = ir.Graph(
            self.inputs, outputs, nodes=self.op.nodes, opset_imports={"": opset.OPSET}, name="train"
        )
        for value in (*self.op.constants.values(), *self.op.initializers):
            graph.register_initializer(value)
        for value, array in self.optional.items():
            value.const_value = ir.Tensor(array, name=value.name, shape=ir.Shape(array.shape))
            graph.register_initializer(value)
        models: list[Model] = [g.model for g in (*self.parts.steps, *self.parts.evaluations)]
        models += [self.parts.front.model] if self.parts.front is not None else []
        domains = {node.domain for node in graph.all_nodes()} - {""}
        for part in models:
            imports = part.ir.opset_imports
            graph.opset_imports.update({d: v for d, v in imports.items() if d in domains})
        return Model(ir.Model(graph, ir_version=10, producer_name="sardonyx"))


def _optimization(parts: Parts) -> str:
    if any(moves_integers(node) for step in parts.steps for node in step.model.graph):
        return "ORT_ENABLE_BASIC"
    levels = {level(step.model.graph).name for step in parts.steps}
    return next(iter(levels)) if len(levels) == 1 else "ORT_ENABLE_ALL"


def _sizes_in_a_run(op: Writer, array: np.ndarray, fed: ir.Value) -> ir.Value:
    """The sizes of an array, known only in a run: onnxruntime would compute a start of constant
    sizes when it opens the file, and keep it beside the constant it has. They are joined with an
    empty vector, `Shape` of nothing of an input.
    """
    return op.Concat(op.const(array.shape, T.INT64), op.Shape(fed, start=0, end=0), axis=0)


def _number(op: Writer, value: ir.Value) -> ir.Value:
    """A metric as one double."""
    if value.shape is None or len(value.shape):
        value = op.ReduceMean(value, keepdims=0)
    return op.cast(value, T.DOUBLE)

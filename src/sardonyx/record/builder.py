"""RecordBuilder collects the parts of a training step, which become a `Record`.

It hands out the step's inputs (labels, hyperparameters), its state (slots, counters) and roles, and
turns the nodes that its builder collected into the `algorithm` graph of a TrainingInfoProto.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import partial
from sardonyx.build import Builder
from sardonyx.model import Model, Record
from sardonyx.passes.nesting import names as all_names

ROLE = "sardonyx.role."
STEP = "train/step"
SEED = "train/seed"
# Names that a record may give to what it adds; a model may have tensors that are called so.
OWN = ("loss", "grad_norm", "learning_rate", "weight_decay", "momentum", STEP, SEED)
RATE = "learning_rate"


@dataclass
class Slot:
    """One state variable of the algorithm: its value, where it starts, what it becomes."""

    value: ir.Value
    start: np.ndarray
    next: ir.Value | None = None


@dataclass
class RecordBuilder:
    """One training step under construction.

    model  -- the inference model, at the opset inside; read, never changed
    op     -- builds the nodes of the algorithm; it may read any value of the model's graph
    name   -- what the record is called
    prefix -- of the names of its state, hyperparameters and metrics, which keeps records apart
    """

    model: Model
    op: Builder
    name: str = "train"
    prefix: str = ""
    inputs: dict[str, ir.Value] = field(default_factory=dict)
    defaults: dict[str, np.ndarray] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    updates: dict[str, ir.Value] = field(default_factory=dict)
    results: dict[str, ir.Value] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)

    @classmethod
    def on(cls, model: Model, name: str = "train") -> RecordBuilder:
        """A builder for one more record of `model`."""
        others = {record.algorithm.name for record in model.records}
        while name in others:
            name += "_2"
        op = Builder("train")
        names = all_names(model.graph)
        for record in model.records:
            names |= all_names(record.algorithm)
        prefix = _prefix(name, names, bool(model.records))
        op.reserve([*names, *(prefix + own for own in OWN)])
        return cls(model, op, name, prefix)

    def local(self, name: str) -> str:
        """`name` with the prefix of this record."""
        return self.prefix + name

    # -- inputs ----------------------------------------------------------------

    def input(self, name: str, dtype: ir.DataType, shape: Any, role: str) -> ir.Value:
        """A tensor that the caller feeds at every step, such as a label."""
        if name not in self.inputs:
            self.op.reserve([name])
            self.inputs[name] = ir.Value(
                name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape)
            )
            self.roles[name] = role
        return self.inputs[name]

    def hyper(self, name: str, value: float, dtype: Any = np.float32) -> ir.Value:
        """A scalar that the caller may feed, with a default: a learning rate, a weight decay."""
        name = self.local(name)
        if name not in self.inputs:
            kind = ir.DataType.from_numpy(np.dtype(dtype))
            self.input(name, kind, [], "hyperparameter")
            self.defaults[name] = np.asarray(value, dtype)
        return self.inputs[name]

    # -- state -----------------------------------------------------------------

    def slot(self, name: str, start: np.ndarray, role: str = "slot") -> Slot:
        """A state variable that starts at `start`; set `.next` to its value after a step."""
        name = self.local(name)
        if name not in self.slots:
            self.op.reserve([name])
            kind = ir.TensorType(ir.DataType.from_numpy(start.dtype))
            value = ir.Value(name=name, type=kind, shape=ir.Shape(start.shape))
            self.slots[name] = Slot(value, start)
            self.roles[name] = role
        return self.slots[name]

    def count(self) -> ir.Value:
        """How many steps have been taken: 0 in the first."""
        slot = self.slot(STEP, np.asarray(0, np.int64), "step")
        if slot.next is None:
            with self.op.named("train/step"):
                slot.next = self.op.Add(slot.value, 1)
        return slot.value

    def seed(self) -> ir.Value:
        """The seed of all random draws, part of the state."""
        slot = self.slot(SEED, np.asarray(0, np.int64), "seed")
        if slot.next is None:
            slot.next = self.op.Identity(slot.value)
        return slot.value

    # -- the record --------------------------------------------------------------

    def record(self) -> Record:
        """The finished training record."""
        bindings: list[tuple[str, str]] = []
        changed = {name: s.next for name, s in self.slots.items() if s.next is not None}
        for name, value in {**self.updates, **changed}.items():
            self.output(f"{name}/next", value)
            bindings.append((name, f"{name}/next"))
        inputs, outputs = list(self.inputs.values()), list(self.results.values())
        graph = ir.Graph(inputs, outputs, nodes=self.op.nodes, name=self.name)
        partial.detach(graph)
        state: dict[str, ir.TensorProtocol] = {
            name: _tensor(name, s.start) for name, s in self.slots.items()
        }
        state.update({name: _tensor(name, a) for name, a in self.defaults.items()})
        for constant in self.op.constants.values():
            assert constant.name and constant.const_value is not None
            state[constant.name] = constant.const_value
        return Record(graph, state, update_binding=bindings)

    def output(self, name: str, value: ir.Value) -> ir.Value:
        """Make `value` an output of the algorithm called `name`."""
        self.op.reserve([name])
        if value in self._final or value.producer() not in self._own_nodes():
            kind, shape = value.type, value.shape
            value = self.op.Identity(value)
            value.type, value.shape = kind, ir.Shape(shape) if shape is not None else None
        value.name = name
        self.results[name] = value
        self._final.add(value)
        return value

    def _own_nodes(self) -> set[ir.Node]:
        self._seen.update(self.op.nodes[len(self._seen) :])
        return self._seen

    def __post_init__(self) -> None:
        self._final: set[ir.Value] = set()
        self._seen: set[ir.Node] = set()


def _prefix(name: str, names: Collection[str], is_further: bool) -> str:
    """What keeps the names of a record apart from those of the model and of other records."""
    prefix = f"{name}/" if is_further else ""
    while any(prefix + own in names for own in OWN):
        name = f"{name}_2" if prefix else name
        prefix = f"{name}/"
    return prefix


def _tensor(name: str, array: np.ndarray) -> ir.Tensor:
    return ir.Tensor(array, name=name, shape=ir.Shape(array.shape))

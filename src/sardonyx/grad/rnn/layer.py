"""A whole recurrent node: cut into directions, run forward with a tape, then backward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim
from sardonyx.errors import ArgumentError, quote
from sardonyx.grad.driver import add, attributes
from sardonyx.grad.rnn.activation import activations
from sardonyx.grad.rnn.cell import Cell, Lstm, Named, Run, product, run_forward, split

Gradients = Sequence[ir.Value | None]


class Layer:
    """A recurrent node: cut into directions, run forward with a tape, then backward."""

    def __init__(self, node: ir.Node, cell: Cell):
        self.node, self.cell = node, cell
        self.attributes = attributes(node)
        self.layout = int(self.attributes["layout"] or 0)
        self.count = 2 if self.attributes["direction"] == "bidirectional" else 1
        inputs = list(node.inputs) + [None] * 8
        self.x, self.w, self.r = (v for v in inputs[:3] if v is not None)
        self.b, self.lengths = inputs[3:5]
        self.initial = inputs[5 : 5 + cell.states]
        self.p = inputs[7] if cell.states == 2 else None
        self.hidden = self._hidden()
        self.runs: list[Run] = []

    def _hidden(self) -> int:
        size = self.attributes["hidden_size"]
        if size is None and self.r.shape is not None and isinstance(self.r.shape[2], int):
            size = self.r.shape[2]
        if size is None:
            raise ArgumentError(
                f"the hidden size of {self.node.op_type} {quote(self.node.name)} is not known",
                hint="set the attribute hidden_size",
            )
        return int(size)

    def forward(self, op: Builder) -> list[ir.Value]:
        """Build the forward Scans; the outputs Y, Y_h and Y_c."""
        x = op.Transpose(self.x, perm=[1, 0, 2]) if self.layout else self.x
        mask = self._mask(op, x)
        functions = activations(self.node, self.attributes, self.cell.functions, self.count)
        per = len(self.cell.functions)
        weights = [self._each(op, v, 0) for v in (self.w, self.r, self.b, self.p)]
        initial = [self._each(op, v, 1 if self.layout else 0) for v in self.initial]
        outputs = []
        for d in range(self.count):
            w, r, b, p = (v[d] for v in weights)
            assert w is not None and r is not None
            run = Run(
                x=x,
                w=w,
                r=r,
                peepholes=None if p is None else list(split(op, p, 3, self.hidden, axis=0)),
                initial=[v[d] or self._zeros(op, x) for v in initial],
                mask=mask,
                activations=functions[d * per : (d + 1) * per],
                hidden=self.hidden,
                backwards=d if self.count == 2 else int(self.attributes["direction"] == "reverse"),
                settings=dict(self.attributes),
            )
            self._weights(op, run, b)
            outputs.append(run_forward(op, self.cell, run))
            self.runs.append(run)
        return self._outputs(op, outputs)

    def _weights(self, op: Builder, run: Run, b: ir.Value | None) -> None:
        if b is not None:
            at_input, at_state = split(op, b, 2, self.cell.gates * run.hidden, axis=0)
            early, run.state_bias = self.cell.state_bias(op, run, at_state)
            run.input_bias = at_input + early
        self.cell.prepare(op, run)

    def _each(self, op: Builder, value: ir.Value | None, axis: int) -> list[ir.Value | None]:
        """The slices of `value` that belong to each direction."""
        if value is None:
            return [None] * self.count
        if self.count == 1:
            return [op.Squeeze(value, [axis])]
        halves = op.Split(value, [1, 1], axis=axis, outputs=2)
        return [op.Squeeze(v, [axis]) for v in halves]

    def _zeros(self, op: Builder, x: ir.Value) -> ir.Value:
        assert x.dtype is not None
        dims: list[Dim] = [op.dim(x, 1), self.hidden]
        out = op.ConstantOfShape(op.join(dims), value=ir.tensor(np.zeros(1, x.dtype.numpy())))
        batch = x.shape[1] if x.shape is not None else None
        out.shape = ir.Shape([batch, self.hidden])
        return out

    def _mask(self, op: Builder, x: ir.Value) -> ir.Value | None:
        if self.lengths is None:
            return None
        steps = op.dim(x, 0)
        if isinstance(steps, int):
            index = op.const(np.arange(steps))
        else:
            index = op.Range(op.const(np.int64(0)), op.Squeeze(steps, [0]), op.const(np.int64(1)))
        lengths = op.cast(self.lengths, ir.DataType.INT64)
        return op.Unsqueeze(op.Less(op.Unsqueeze(index, [1]), op.Unsqueeze(lengths, [0])), [2])

    def _outputs(self, op: Builder, final: list[list[ir.Value]]) -> list[ir.Value]:
        states = [run.masked(op, run.tape["h"]) for run in self.runs]
        y = self._joined(op, states, 1)
        last = [self._joined(op, [f[i] for f in final], 0) for i in range(self.cell.states)]
        if self.layout:
            y = op.Transpose(y, perm=[2, 0, 1, 3])
            last = [op.Transpose(v, perm=[1, 0, 2]) for v in last]
        return [y, *last]

    def _joined(self, op: Builder, parts: Sequence[ir.Value], axis: int) -> ir.Value:
        single = [op.Unsqueeze(v, [axis]) for v in parts]
        return single[0] if len(single) == 1 else op.Concat(*single, axis=axis)

    def backward(self, op: Builder, gs: Gradients) -> dict[ir.Value, ir.Value]:
        dy, *last = (list(gs) + [None] * 3)[: 1 + self.cell.states]
        if dy is not None and self.layout:
            dy = op.Transpose(dy, perm=[1, 2, 0, 3])
        dys = self._each(op, dy, 1)
        lasts = [self._each(op, v, 1 if self.layout else 0) for v in last]
        parts: dict[str, list[ir.Value]] = {}
        for d, run in enumerate(self.runs):
            cotangent = dys[d]
            dy = None if cotangent is None else run.masked(op, cotangent)
            start = [v[d] or op.zeros_like(s) for v, s in zip(lasts, run.initial, strict=True)]
            gradients = self.cell.back(op, run, dy, start)
            for name, value in self._gradients(op, run, gradients).items():
                parts.setdefault(name, []).append(value)
        return self._collected(op, parts)

    def _gradients(self, op: Builder, run: Run, gradients: Named) -> Named:
        at_input, at_state = gradients["input"], gradients["state"]
        before = run.previous(op, run.tape["h"], run.initial[0])
        out = {
            "x": op.MatMul(at_input, run.w),
            "w": product(op, at_input, run.x),
            "r": self.cell.d_state_weight(op, run, at_state, before),
            "h": gradients["h"],
        }
        if self.b is not None:
            sums = [op.total(at_input, [0, 1])]
            sums.append(sums[0] if at_state is at_input else op.total(at_state, [0, 1]))
            out["b"] = op.Concat(*sums, axis=0)
        if isinstance(self.cell, Lstm):
            out["c"] = gradients["c"]
            if run.peepholes is not None:
                out["p"] = self.cell.d_peepholes(op, run, at_state)
        return out

    def _collected(self, op: Builder, parts: dict[str, list[ir.Value]]) -> dict[ir.Value, ir.Value]:
        names = {"x": self.x, "w": self.w, "r": self.r, "b": self.b, "p": self.p}
        names.update(zip(("h", "c"), self.initial, strict=False))
        pulled: dict[ir.Value, ir.Value] = {}
        for name, value in names.items():
            if value is None or name not in parts:
                continue
            if name == "x":
                g = parts[name][0] if self.count == 1 else op.Add(*parts[name])
                g = op.Transpose(g, perm=[1, 0, 2]) if self.layout else g
            else:
                axis = 1 if self.layout and name in "hc" else 0
                g = self._joined(op, parts[name], axis)
            g.shape = None if value.shape is None else ir.Shape(value.shape)
            pulled[value] = g if value not in pulled else add(op, [pulled[value], g])
        return pulled

"""The equations of RNN, LSTM and GRU: one step forward, one step back, for one direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.grad.controlflow import body_of, like, results_of
from sardonyx.grad.rnn.activation import Activation, Tape, where

Named = dict[str, ir.Value]


@dataclass
class Run:
    """One direction of a recurrent node: its tensors, and on the tape its values at each step."""

    x: ir.Value  # [steps, batch, inputs]
    w: ir.Value
    r: ir.Value
    peepholes: list[ir.Value] | None  # i, o, f
    initial: list[ir.Value]  # h, and c of an LSTM
    mask: ir.Value | None  # [steps, batch, 1], bool
    activations: list[Activation]
    hidden: int
    backwards: int
    settings: dict[str, Any]
    input_bias: ir.Value | None = None
    state_bias: ir.Value | None = None
    gates_and_new: Sequence[ir.Value] = ()  # r of a GRU, cut in front of the new state
    tape: Tape = field(default_factory=dict)

    def previous(self, op: Builder, states: ir.Value, initial: ir.Value) -> ir.Value:
        """The state before each step, from those after it."""
        first = op.Unsqueeze(initial, [0])
        if self.backwards:
            return op.Concat(op.Slice(states, [1], [np.iinfo(np.int64).max], [0]), first, axis=0)
        return op.Concat(first, op.Slice(states, [0], [-1], [0]), axis=0)

    def masked(self, op: Builder, factor: ir.Value, other: float = 0) -> ir.Value:
        """`factor` at the steps within a sequence, `other` beyond its end."""
        return factor if self.mask is None else where(op, self.mask, factor, factor, other)

    def gate(
        self, op: Builder, name: str, function: Activation, x: ir.Value, tape: Tape
    ) -> ir.Value:
        """The value of a gate; the tape gets it, and what its slope needs."""
        if function.keeps_input:
            tape[f"in_{name}"] = x
        tape[name] = function(op, x)
        return tape[name]


Step = Callable[[Builder, list[ir.Value], list[ir.Value]], tuple[list[ir.Value], Named]]


def _scan(
    op: Builder, initial: Sequence[ir.Value], read: Sequence[ir.Value], step: Step, backwards: int
) -> tuple[list[ir.Value], Named]:
    """A Scan over the first axis of `read`: the last states, and what each step wrote, by name."""
    inner = Builder(op.prefix, parent=op)
    states = [like(op, v, "state") for v in initial]
    slices = [like(op, v, "slice", None if v.shape is None else list(v.shape)[1:]) for v in read]
    with inner:
        after, written = step(inner, states, slices)
    outputs = results_of(inner, [*after, *written.values()])
    body = body_of(inner, "step", [*states, *slices], outputs)
    scan_outputs = op.call(
        "Scan",
        [*initial, *read],
        {
            "body": ir.AttrGraph("body", body),
            "num_scan_inputs": len(read),
            "scan_input_directions": [backwards] * len(read),
            "scan_output_directions": [backwards] * len(written),
        },
        outputs=len(outputs),
    )
    steps = read[0].shape[0] if read[0].shape is not None else None
    count = len(initial)
    for i, (value, out) in enumerate(zip([*initial, *written.values()], scan_outputs, strict=True)):
        out.type = value.type
        lead = [] if i < count else [steps]
        out.shape = None if value.shape is None else ir.Shape([*lead, *value.shape])
    return list(scan_outputs[:count]), dict(zip(written, scan_outputs[count:], strict=True))


def _projection(op: Builder, run: Run) -> ir.Value:
    """The inputs of all gates at all steps, but for what comes from the state."""
    flat = op.reshape(run.x, [-1, op.dim(run.x, 2)])
    bias = [] if run.input_bias is None else [run.input_bias]
    product = op.Gemm(flat, run.w, *bias, transB=1)
    return op.reshape(product, [op.dim(run.x, 0), op.dim(run.x, 1), op.dim(run.w, 0)])


def run_forward(op: Builder, cell: Cell, run: Run) -> list[ir.Value]:
    """Emit the forward Scan of one direction; its steps' values are on the tape of `run`."""
    read = [_projection(op, run)]
    if run.mask is not None:
        read.append(run.mask)

    def step(op: Builder, states: list[ir.Value], slices: list[ir.Value]) -> Any:
        tape: Tape = {}
        after = cell.step(op, run, slices[0], states, tape)
        if run.mask is not None:
            after = [op.Where(slices[1], new, old) for new, old in zip(after, states, strict=True)]
        tape.update(zip(("h", "c"), after, strict=False))
        return after, tape

    final, run.tape = _scan(op, run.initial, read, step, run.backwards)
    return final


# -- the cells ------------------------------------------------------------------------


class Cell:
    """An operator's equations: gates, one step, and its way back."""

    gates: int
    functions: Sequence[str]
    states = 1

    def step(
        self, op: Builder, run: Run, a: ir.Value, states: list[ir.Value], tape: Tape
    ) -> list[ir.Value]:
        raise NotImplementedError

    def back(self, op: Builder, run: Run, dy: ir.Value | None, last: list[ir.Value]) -> Named:
        """Cotangents: `h`, `c` of the initial states, `input`, `state` of the gates' inputs."""
        raise NotImplementedError

    def prepare(self, op: Builder, run: Run) -> None:
        """What the steps need besides: made once, outside the Scan."""

    def d_state_weight(self, op: Builder, run: Run, da: ir.Value, before: ir.Value) -> ir.Value:
        return product(op, da, before)

    def state_bias(self, op: Builder, run: Run, bias: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """What of the state's bias adds to the inputs of the gates at once, and what does not."""
        return bias, None


def _sum(op: Builder, dy: Sequence[ir.Value], carried: ir.Value) -> ir.Value:
    return op.Add(dy[0], carried) if dy else carried


def _rest(op: Builder, run: Run, slices: list[ir.Value], dh: ir.Value, back: ir.Value) -> ir.Value:
    """Beyond the end of a sequence the cotangent of the state goes through unchanged."""
    return back if run.mask is None else op.Where(slices[-1], back, dh)


class Rnn(Cell):
    gates, functions = 1, ("Tanh",)

    def step(
        self, op: Builder, run: Run, a: ir.Value, states: list[ir.Value], tape: Tape
    ) -> list[ir.Value]:
        x = op.Gemm(states[0], run.r, a, transB=1)
        return [run.gate(op, "new", run.activations[0], x, tape)]

    def back(self, op: Builder, run: Run, dy: ir.Value | None, last: list[ir.Value]) -> Named:
        slope = run.masked(op, run.activations[0].slope(op, run.tape, "new"))
        cotangents = [dy] if dy is not None else []
        masks = [run.mask] if run.mask is not None else []

        def step(op: Builder, states: list[ir.Value], slices: list[ir.Value]) -> Any:
            dh = _sum(op, slices[: len(cotangents)], states[0])
            da = op.Mul(dh, slices[len(cotangents)])
            return [_rest(op, run, slices, dh, op.MatMul(da, run.r))], {"da": da}

        (dh,), wrote = _scan(op, last, [*cotangents, slope, *masks], step, 1 - run.backwards)
        return {"h": dh, "input": wrote["da"], "state": wrote["da"]}


class Lstm(Cell):
    gates, functions, states = 4, ("Sigmoid", "Tanh", "Tanh"), 2

    def step(
        self, op: Builder, run: Run, a: ir.Value, states: list[ir.Value], tape: Tape
    ) -> list[ir.Value]:
        h, c = states
        f, g, out = run.activations
        ai, ao, af, ag = split(op, op.Gemm(h, run.r, a, transB=1), 4, run.hidden, axis=1)
        if run.peepholes is not None:
            ai, af = ai + c * run.peepholes[0], af + c * run.peepholes[2]
        i = run.gate(op, "i", f, ai, tape)
        forget = 1.0 - i if run.settings["input_forget"] else run.gate(op, "f", f, af, tape)
        c = forget * c + i * run.gate(op, "g", g, ag, tape)
        if run.peepholes is not None:
            ao = ao + c * run.peepholes[1]
        squashed = run.gate(op, "s", Activation(out.name, out.alpha, out.beta, None), c, tape)
        return [run.gate(op, "o", f, ao, tape) * squashed, c]

    def back(self, op: Builder, run: Run, dy: ir.Value | None, last: list[ir.Value]) -> Named:
        factor, through_c, forget = self._factors(op, run)
        cotangents = [dy] if dy is not None else []
        masks = [run.mask] if run.mask is not None else []

        def step(op: Builder, states: list[ir.Value], slices: list[ir.Value]) -> Any:
            dh = _sum(op, slices[: len(cotangents)], states[0])
            all_gates, out, keep = slices[len(cotangents) : len(cotangents) + 3]
            dc = op.Add(states[1], op.Mul(dh, out))
            da = op.Mul(op.Concat(dc, dh, dc, dc, axis=1), all_gates)
            return [_rest(op, run, slices, dh, op.MatMul(da, run.r)), op.Mul(dc, keep)], {"da": da}

        read = [*cotangents, factor, through_c, forget, *masks]
        (dh, dc), wrote = _scan(op, last, read, step, 1 - run.backwards)
        return {"h": dh, "c": dc, "input": wrote["da"], "state": wrote["da"]}

    def _factors(self, op: Builder, run: Run) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Of the gates' inputs (i, f, g by dc, o by dh), of dc by dh, of the next dc by dc."""
        tape = run.tape
        f, g, out = run.activations
        out = Activation(out.name, out.alpha, out.beta, None)
        before = run.previous(op, tape["c"], run.initial[1])
        ki = f.slope(op, tape, "i") * tape["g"]
        kg = g.slope(op, tape, "g") * tape["i"]
        ko = f.slope(op, tape, "o") * tape["s"]
        if run.settings["input_forget"]:
            ki, kf = f.slope(op, tape, "i") * (tape["g"] - before), op.zeros_like(ki)
            forget = 1.0 - tape["i"]
        else:
            kf, forget = f.slope(op, tape, "f") * before, tape["f"]
        through_c = tape["o"] * out.slope(op, tape, "s")
        if run.peepholes is not None:
            pi, po, pf = run.peepholes
            through_c = through_c + ko * po
            forget = forget + ki * pi + kf * pf
        factor = op.Concat(ki, ko, kf, kg, axis=2)
        return run.masked(op, factor), run.masked(op, through_c), run.masked(op, forget, 1)

    def d_peepholes(self, op: Builder, run: Run, da: ir.Value) -> ir.Value:
        before = run.previous(op, run.tape["c"], run.initial[1])
        di, do, df, _ = split(op, da, 4, run.hidden, axis=2)
        parts = [di * before, do * run.tape["c"], df * before]
        return op.Concat(*(op.total(p, [0, 1]) for p in parts), axis=0)


class Gru(Cell):
    gates, functions = 3, ("Sigmoid", "Tanh")

    def prepare(self, op: Builder, run: Run) -> None:
        if not run.settings["linear_before_reset"]:
            sizes = [2 * run.hidden, run.hidden]
            run.gates_and_new = op.Split(run.r, sizes, axis=0, outputs=2)

    def state_bias(self, op: Builder, run: Run, bias: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        if not run.settings["linear_before_reset"]:
            return bias, None
        z, r, h = split(op, bias, 3, run.hidden, axis=0)
        zeros = op.zeros_like(h)
        return op.Concat(z, r, zeros, axis=0), op.Concat(zeros, zeros, h, axis=0)

    def step(
        self, op: Builder, run: Run, a: ir.Value, states: list[ir.Value], tape: Tape
    ) -> list[ir.Value]:
        (h,) = states
        f, g = run.activations
        if run.settings["linear_before_reset"]:
            bias = [] if run.state_bias is None else [run.state_bias]
            az, ar, ah = split(op, a, 3, run.hidden, axis=1)
            rz, rr, tape["n"] = split(op, op.Gemm(h, run.r, *bias, transB=1), 3, run.hidden, axis=1)
            z = run.gate(op, "z", f, az + rz, tape)
            reset = run.gate(op, "r", f, ar + rr, tape)
            new = run.gate(op, "new", g, ah + reset * tape["n"], tape)
        else:
            rzr, rh = run.gates_and_new
            azr, ah = op.Split(a, [2 * run.hidden, run.hidden], axis=1, outputs=2)
            az, ar = split(op, op.Gemm(h, rzr, azr, transB=1), 2, run.hidden, axis=1)
            z, reset = run.gate(op, "z", f, az, tape), run.gate(op, "r", f, ar, tape)
            new = run.gate(op, "new", g, op.Gemm(reset * h, rh, ah, transB=1), tape)
        return [new + z * (h - new)]

    def back(self, op: Builder, run: Run, dy: ir.Value | None, last: list[ir.Value]) -> Named:
        f, g = run.activations
        tape = run.tape
        before = run.previous(op, tape["h"], run.initial[0])
        kz = run.masked(op, (before - tape["new"]) * f.slope(op, tape, "z"))
        kh = run.masked(op, (1.0 - tape["z"]) * g.slope(op, tape, "new"))
        kr, keep = f.slope(op, tape, "r"), run.masked(op, tape["z"], 1)
        cotangents = [dy] if dy is not None else []
        if run.settings["linear_before_reset"]:
            return self._back_linear(op, run, cotangents, last, (kz, kr * tape["n"] * kh, kh, keep))
        return self._back_reset(op, run, cotangents, last, (kz, kr * before, kh, keep))

    def _back_linear(
        self, op: Builder, run: Run, cotangents: list[ir.Value], last: list[ir.Value], factors: Any
    ) -> Named:
        kz, kr, kh, keep = factors
        factor = op.Concat(kz, kr, kh * run.tape["r"], axis=2)

        def step(op: Builder, states: list[ir.Value], slices: list[ir.Value]) -> Any:
            dh = _sum(op, slices[: len(cotangents)], states[0])
            all_gates, through = slices[len(cotangents) :]
            da = op.Mul(op.Concat(dh, dh, dh, axis=1), all_gates)
            return [op.Add(op.MatMul(da, run.r), op.Mul(dh, through))], {"da": da, "dh": dh}

        (dh,), wrote = _scan(op, last, [*cotangents, factor, keep], step, 1 - run.backwards)
        dz, dr, _ = split(op, wrote["da"], 3, run.hidden, axis=2)
        at_input = op.Concat(dz, dr, wrote["dh"] * kh, axis=2)
        return {"h": dh, "input": at_input, "state": wrote["da"]}

    def _back_reset(
        self, op: Builder, run: Run, cotangents: list[ir.Value], last: list[ir.Value], factors: Any
    ) -> Named:
        rzr, rh = run.gates_and_new

        def step(op: Builder, states: list[ir.Value], slices: list[ir.Value]) -> Any:
            dh = _sum(op, slices[: len(cotangents)], states[0])
            kz, kr, kh, keep, reset = slices[len(cotangents) :]
            dah = op.Mul(dh, kh)
            dq = op.MatMul(dah, rh)
            dzr = op.Concat(op.Mul(dh, kz), op.Mul(dq, kr), axis=1)
            parts = [op.MatMul(dzr, rzr), op.Mul(dh, keep), op.Mul(dq, reset)]
            return [op.Sum(*parts)], {"da": op.Concat(dzr, dah, axis=1)}

        read = [*cotangents, *factors, run.tape["r"]]
        (dh,), wrote = _scan(op, last, read, step, 1 - run.backwards)
        return {"h": dh, "input": wrote["da"], "state": wrote["da"]}

    def d_state_weight(self, op: Builder, run: Run, da: ir.Value, before: ir.Value) -> ir.Value:
        if run.settings["linear_before_reset"]:
            return product(op, da, before)
        dzr, dah = op.Split(da, [2 * run.hidden, run.hidden], axis=2, outputs=2)
        return op.Concat(product(op, dzr, before), product(op, dah, run.tape["r"] * before), axis=0)


def split(op: Builder, x: ir.Value, count: int, size: int, axis: int) -> Sequence[ir.Value]:
    return op.Split(x, [size] * count, axis=axis, outputs=count)


def product(op: Builder, da: ir.Value, x: ir.Value) -> ir.Value:
    """The sum over steps and batch of the outer products of `da` and `x`."""
    flat = [op.reshape(v, [-1, op.dim(v, 2)]) for v in (da, x)]
    return op.Gemm(*flat, transA=1)

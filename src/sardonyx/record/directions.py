"""Directions of further optimizers, as `torch.optim` has them: links of chains, see `transform.py`.

NAdam, RAdam, Adamax, Adadelta, Rprop, ASGD and Muon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.errors import ArgumentError, quote
from sardonyx.record.builder import Slot
from sardonyx.record.schedule import Schedule
from sardonyx.record.transform import DOUBLE, FLOAT, Parameter, Update, UpdateContext, rate

BFLOAT16 = ir.DataType.BFLOAT16


def negate() -> Update:
    """Turn gradients round: the objective is maximized."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        for p in parameters:
            p.update = step.op.Neg(p.update)

    return update


def _moments(step: UpdateContext, p: Parameter, b1: float, b2: float) -> tuple[Slot, Slot]:
    m, v = step.slot(p, "exp_avg"), step.slot(p, "exp_avg_sq")
    m.next = m.value * b1 + p.update * (1.0 - b1)
    v.next = v.value * b2 + p.update * p.update * (1.0 - b2)
    return m, v


def _scalar(step: UpdateContext, p: Parameter, kind: str, start: float) -> Slot:
    """A slot of one number, in the type of the parameter but never narrower than float32."""
    wide = np.float64 if p.value.dtype == DOUBLE else np.float32
    return step.slot(p, kind, np.asarray(start, wide))


def scale_by_nadam(b1: float, b2: float, eps: float, momentum_decay: float) -> Update:
    """NAdam's direction: Nesterov's momentum with a warm-up of its own."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            t = step.steps()
            bc2 = 1.0 - op.Pow(op.const(b2, DOUBLE), t)
            base = op.const(0.96, DOUBLE)
            mu = (1.0 - op.Pow(base, t * momentum_decay) * 0.5) * b1
            following = (1.0 - op.Pow(base, (t + 1.0) * momentum_decay) * 0.5) * b1
            for p in parameters:
                product = _scalar(step, p, "mu_product", 1.0)
                product.next = product.value * op.cast(mu, product.value.dtype)
                wide = op.cast(product.next, DOUBLE)
                m, v = _moments(step, p, b1, b2)
                denominator = op.Sqrt(v.next / step.like(bc2, p)) + eps
                now = step.like((1.0 - mu) / (1.0 - wide), p)
                later = step.like(following / (1.0 - wide * following), p)
                p.update = (p.update * now + m.next * later) / denominator

    return update


def scale_by_radam(b1: float, b2: float, eps: float) -> Update:
    """RAdam's direction: momentum alone, until the variance of the second moment is tractable."""
    longest = 2.0 / (1.0 - b2) - 1.0

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            t = step.steps()
            power = op.Pow(op.const(b2, DOUBLE), t)
            bc1, bc2 = 1.0 - op.Pow(op.const(b1, DOUBLE), t), 1.0 - power
            length = longest - t * 2.0 * power / bc2
            is_tractable = op.Greater(length, 5.0)
            safe = op.Where(is_tractable, length, 6.0)
            share = (safe - 4.0) * (safe - 2.0) * longest / safe
            rectified = op.Sqrt(share / ((longest - 4.0) * (longest - 2.0))) * op.Sqrt(bc2)
            for p in parameters:
                m, v = _moments(step, p, b1, b2)
                adaptive = step.like(rectified, p) / (op.Sqrt(v.next) + eps)
                factor = op.Where(is_tractable, adaptive, 1.0)
                p.update = m.next / step.like(bc1, p) * factor

    return update


def scale_by_adamax(b1: float, b2: float, eps: float) -> Update:
    """Adamax's direction: Adam with the infinity norm."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            bc1 = 1.0 - op.Pow(op.const(b1, DOUBLE), step.steps())
            for p in parameters:
                m, u = step.slot(p, "exp_avg"), step.slot(p, "exp_inf")
                m.next = m.value * b1 + p.update * (1.0 - b1)
                u.next = op.Max(u.value * b2, op.Abs(p.update) + eps)
                p.update = m.next / u.next
                p.scale = 1.0 / bc1

    return update


def scale_by_adadelta(rho: float, eps: float) -> Update:
    """Adadelta's direction."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                v, d = step.slot(p, "square_avg"), step.slot(p, "acc_delta")
                v.next = v.value * rho + p.update * p.update * (1.0 - rho)
                p.update = op.Sqrt(d.value + eps) / op.Sqrt(v.next + eps) * p.update
                d.next = d.value * rho + p.update * p.update * (1.0 - rho)

    return update


def scale_by_rprop(
    lr: float, shrink: float, grow: float, smallest: float, largest: float
) -> Update:
    """Rprop: a step size for each number, which grows while the sign of its gradient stays."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                dims = [int(d) for d in p.value.shape]  # type: ignore[union-attr,arg-type]
                kind = p.value.dtype.numpy()  # type: ignore[union-attr]
                previous = step.slot(p, "prev")
                size = step.slot(p, "step_size", np.full(dims, lr, kind))
                agreement = p.update * previous.value
                turned = op.Less(agreement, 0.0)
                one = step.like(op.const(1.0, DOUBLE), p)
                factor = op.Where(op.Greater(agreement, 0.0), grow, one)
                factor = op.Where(turned, shrink, factor)
                size.next = op.Clip(size.value * factor, smallest, largest)
                previous.next = op.Where(turned, 0.0, p.update)
                p.final = p.value - op.Sign(previous.next) * size.next

    return update


def averaged_descent(
    lr: float, decay: float, power: float, start: float, schedule: Schedule | None
) -> Update:
    """ASGD: a falling rate, and the average of the parameters in the slot `ax`."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            t = step.steps()
            now = rate(step, lr, schedule)
            next_eta = now / op.Pow(1.0 + now * decay * t, op.const(power, DOUBLE))
            next_mu = 1.0 / op.Max(t - start, 1.0)
            for p in parameters:
                eta, mu = _scalar(step, p, "eta", lr), _scalar(step, p, "mu", 1.0)
                average = step.slot(p, "ax")
                # the first rate is that of the schedule at this update, as in torch
                wide = op.Where(op.Equal(t, 1.0), now, op.cast(eta.value, DOUBLE))
                shrunk = p.value * step.like(1.0 - wide * decay, p)
                p.final = shrunk - p.update * step.like(wide, p)
                share = step.like(op.cast(mu.value, DOUBLE), p)
                moved = average.value + (p.final - average.value) * share
                average.next = op.Where(op.Equal(mu.value, 1.0), p.final, moved)
                eta.next = op.cast(next_eta, eta.value.dtype)
                mu.next = op.cast(next_mu, mu.value.dtype)

    return update


# -- Muon -------------------------------------------------------------------------------


def scale_by_muon(
    momentum: float, nesterov: bool, coefficients: Sequence[float], steps: int, eps: float
) -> Update:
    """Muon's direction: the momentum of a matrix, brought near to an orthogonal matrix."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        others = [
            [quote(p.name), f"{rank(p.value)} axes"] for p in parameters if rank(p.value) != 2
        ]
        if others:
            hint = "name the matrices with train=, or choose another optimizer"
            raise ArgumentError("muon updates matrices alone", others, hint=hint)
        op = step.op
        with op:
            for p in parameters:
                m = step.slot(p, "momentum_buffer")
                # In the form of torch's lerp: one bit more or less shows after bfloat16.
                m.next = m.value + (p.update - m.value) * (1.0 - momentum)
                look = m.next - (m.next - p.update) * (1.0 - momentum) if nesterov else m.next
                p.update = op.cast(_orthogonal(op, look, coefficients, steps, eps), p.value.dtype)

    return update


def _rounded(op: Builder, x: ir.Value) -> ir.Value:
    """The number in bfloat16, kept as float32, in which every engine can compute."""
    return op.cast(op.cast(x, BFLOAT16), FLOAT)


def _orthogonal(
    op: Builder, x: ir.Value, coefficients: Sequence[float], steps: int, eps: float
) -> ir.Value:
    """Newton-Schulz as torch computes it: products of bfloat16 numbers, added up in float32."""
    a, b, c = coefficients
    rows, columns = (int(d) for d in x.shape)  # type: ignore[union-attr,arg-type]
    x = _rounded(op, op.cast(x, FLOAT))
    x = op.Transpose(x, perm=[1, 0]) if rows > columns else x
    norm = _rounded(op, op.Sqrt(op.ReduceSumSquare(x, keepdims=0)))
    x = _rounded(op, x / op.Max(norm, float(np.float32(eps))))
    for _ in range(steps):
        gram = _rounded(op, op.MatMul(x, op.Transpose(x, perm=[1, 0])))
        change = _rounded(op, gram * b + op.MatMul(gram, gram) * c)
        x = _rounded(op, x * a + op.MatMul(change, x))
    return op.Transpose(x, perm=[1, 0]) if rows > columns else x


def descend_by_shape(
    lr: float, adjust: str | None, weight_decay: float, schedule: Schedule | None
) -> Update:
    """Subtract the update times the rate, which Muon adjusts to the shape of the matrix."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            now = rate(step, lr, schedule)
            shrink = 1.0 - now * step.hyper("weight_decay", weight_decay)
            for p in parameters:
                rows, columns = (int(d) for d in p.value.shape)  # type: ignore[union-attr,arg-type]
                ratio = math.sqrt(max(1.0, rows / columns))
                if adjust == "match_rms_adamw":
                    ratio = 0.2 * math.sqrt(max(rows, columns))
                p.final = p.value * step.like(shrink, p) - p.update * step.like(now * ratio, p)

    return update

"""Lowerings of ai.onnx.preview.training: Adam, Adagrad and Momentum.

Gradient has none: it names tensors of the graph around it, and becomes plain operators before a
model gets here (`grad/training.py`).
"""

from __future__ import annotations

from sardonyx.lower.driver import lowering

DOMAIN = "ai.onnx.preview.training"


def updated(xp, rate, steps, tensors, count, update):
    """Apply `update` to the tensors of each parameter; `count` tensors belong to one."""
    parameters = len(tensors) // count
    results = []
    for i in range(parameters):
        x, *rest = tensors[i::parameters]
        scalars = (xp.cast(xp.reshape(v, []), xp.dtype(x)) for v in (rate, steps))
        results.append(update(*scalars, x, *rest))
    return tuple(results[i][slot] for slot in range(count - 1) for i in range(parameters))


def regularized(x, g, coefficient):
    return g if not coefficient else coefficient * x + g


@lowering("Adagrad", domain=DOMAIN)
def adagrad(xp, rate, steps, *tensors, decay_factor, epsilon, norm_coefficient):
    def update(rate, steps, x, g, h):
        g = regularized(x, g, norm_coefficient)
        h = h + g * g
        rate = rate / (1 + steps * decay_factor)
        return x - rate * g / (xp.sqrt(h) + epsilon), h

    return updated(xp, rate, steps, tensors, 3, update)


@lowering("Momentum", domain=DOMAIN)
def momentum(xp, rate, steps, *tensors, alpha, beta, mode, norm_coefficient):
    def update(rate, steps, x, g, v):
        g = regularized(x, g, norm_coefficient)
        later = xp.greater(steps, xp.scalar(0, steps))
        v = alpha * v + g * xp.where(later, xp.scalar(beta, x), xp.scalar(1, x))
        return x - rate * (g + alpha * v if mode == "nesterov" else v), v

    return updated(xp, rate, steps, tensors, 3, update)


@lowering("Adam", domain=DOMAIN)
def adam(xp, rate, steps, *tensors, alpha, beta, epsilon, norm_coefficient, norm_coefficient_post):
    def update(rate, steps, x, g, v, h):
        g = regularized(x, g, norm_coefficient)
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        # Nothing is corrected before the first step; the power at 1 there, so that no 0 / 0 arises.
        power = xp.maximum(steps, xp.scalar(1, x))
        first, second = (1 - xp.power(xp.scalar(base, x), power) for base in (alpha, beta))
        later = xp.greater(steps, xp.scalar(0, steps))
        rate = xp.where(later, rate * xp.sqrt(second) / first, rate)
        x = x - rate * v / (xp.sqrt(h) + epsilon)
        return x * (1 - norm_coefficient_post) if norm_coefficient_post else x, v, h

    return updated(xp, rate, steps, tensors, 4, update)

"""sardonyx on jax: compiled where a graph can be built; gradients by jax.grad.

Node by node jax compiles every node for every shape, which takes three times as long.
"""

from typing import Any

import numpy as np

import sardonyx
from sardonyx.engines.jax import prepare
from sardonyx.engines.jax.xp import arrays, enable_x64, jax
from sardonyx.errors import EngineError
from sardonyx.lower.xp import is_integer, is_string
from sardonyx.score import ours
from sardonyx.score.ours import used  # noqa: F401  (the worker asks for it)

XP = arrays()
version, _, train = ours.functions("jax")


def run(model, inputs):
    rep = prepare(sardonyx.load(model), **ours.SETTINGS)
    runner: Any = rep.runner
    runner.program = _Compiled(runner.program)
    return rep.run(inputs)


class _Compiled:
    """A program that runs as one compiled function."""

    def __init__(self, program):
        self.program = program

    def __getattr__(self, name):
        return getattr(self.program, name)

    def __call__(self, feeds):
        return compiled(self.program, feeds)


def gradient(model, inputs, seeds, wrt):
    loaded = sardonyx.load(model)
    apply, params = sardonyx.to_jax(loaded)
    outputs = [v.name for v in loaded.outputs]

    def objective(variables, others):
        out = apply(params, **variables, **others)
        out = dict(zip(outputs, out if isinstance(out, tuple) else (out,), strict=True))
        return sum(jax.numpy.sum(out[name] * seed) for name, seed in seeds.items())

    def differentiated(values):
        others = {name: value for name, value in values.items() if name not in wrt}
        return jax.grad(objective)({name: values[name] for name in wrt}, others)

    with enable_x64(True):
        gradients = compiled(differentiated, inputs)
        return {name: np.asarray(value) for name, value in gradients.items()}


def compiled(function, feeds):
    """`function(feeds)`, compiled if possible.

    First all arrays are arguments, then only those that hold no sizes, axes or scales. What still
    has sizes that depend on values, or texts, runs node by node.
    """
    traced = {
        n: v for n, v in feeds.items() if isinstance(v, np.ndarray) and not is_string(v.dtype)
    }
    large = {n: v for n, v in traced.items() if v.ndim > 1 and not is_integer(v.dtype)}
    for arguments in (traced, large):
        held = {n: XP.asarray(v) if n in traced else v for n, v in feeds.items()}
        program = jax.jit(lambda values, held=held: function({**held, **values}))
        try:
            # Waited for while the function lives: what it holds is freed with it, in use or not.
            return jax.block_until_ready(program(arguments))
        except (EngineError, TypeError):  # jax's errors about values that are not there are both
            continue
    return function({n: XP.asarray(v) if n in traced else v for n, v in feeds.items()})

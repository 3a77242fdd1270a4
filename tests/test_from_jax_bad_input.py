"""Bad input of `from_jax`: one error each, which names the line, the variable or the leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, ImportRefused, SardonyxError

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy

X = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)), jnp.float32)
Y = jnp.asarray(np.random.default_rng(1).standard_normal((3, 4)), jnp.float32)
CALLS = 0


def params() -> Any:
    return {"w": jnp.full((4, 4), 0.3), "b": jnp.zeros(4)}


def predict(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def squared(z: Any, y: Any) -> Any:
    return jnp.mean((z - y) ** 2)


def step_with(aside: Callable[..., Any], metrics: Callable[..., Any] | None = None) -> Any:
    """A step that calls `aside(state)` and scales its loss by the result, or reports `metrics`."""

    def step(state: Any, batch: Any) -> Any:
        factor = aside(state)

        def objective(params: Any) -> Any:
            return squared(predict(params, batch["x"]), batch["y"]) * factor

        value, gradients = jax.value_and_grad(objective)(state)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, state, gradients)
        return new, {"loss": value} if metrics is None else {"loss": metrics(value)}

    return sx.from_jax_step(step, params(), {"x": X, "y": Y})


def leaks_into_a_list() -> Any:
    kept: list[Any] = []
    return step_with(lambda state: kept.append(state["w"]) or 1.0)


def leaks_into_a_dict() -> Any:
    last: dict[str, Any] = {}
    return step_with(lambda state: last.update(w=state["w"].sum()) or 1.0)


def appends() -> Any:
    log: list[int] = []
    return step_with(lambda state: log.append(1) or 1.0)


def counts_globally() -> Any:
    def aside(state: Any) -> float:
        global CALLS
        CALLS += 1
        return 1.0

    return step_with(aside)


def counts_in_an_array() -> Any:
    counts = np.zeros(3)

    def aside(state: Any) -> float:
        counts[0] += 1
        return 1.0

    return step_with(aside)


def keeps_in_itself() -> Any:
    class Trainer:
        def __init__(self) -> None:
            self.last: Any = None

        def step(self, state: Any, batch: Any) -> Any:
            self.last = state["w"]
            return {n: v * 0.9 for n, v in state.items()}, {"loss": batch["x"].sum()}

    return sx.from_jax_step(Trainer().step, params(), {"x": X})


def draws() -> Any:
    return step_with(lambda state: float(np.random.rand()))


def draws_for_a_metric() -> Any:
    return step_with(lambda state: 1.0, lambda value: value * float(np.random.rand()))


def a_function_that_counts() -> Any:
    calls = [0]

    def function(params: Any, x: Any) -> Any:
        calls[0] += 1
        return predict(params, x) * calls[0]

    return sx.from_jax(function, params(), X)


def a_function_that_draws() -> Any:
    return sx.from_jax(lambda p, x: predict(p, x) * np.random.rand(), params(), X)


def a_loss_that_draws() -> Any:
    def loss(z: Any, y: Any) -> Any:
        return squared(z, y) * np.random.rand()

    return sx.from_jax(predict, params(), X, Y, loss=loss, optimizer=optax.sgd(0.1))


IMPURE = {
    leaks_into_a_list: '"kept".*of the trace',
    leaks_into_a_dict: '"last".*of the trace',
    appends: '"log".*is changed',
    counts_globally: '"CALLS".*is changed',
    counts_in_an_array: '"counts".*is changed',
    keeps_in_itself: '"self.last".*of the trace',
    draws: "the step is not pure",
    draws_for_a_metric: "the step is not pure",
    a_function_that_counts: '"calls".*is changed',
    a_function_that_draws: "the function is not pure",
    a_loss_that_draws: "the loss is not pure",
}


@pytest.mark.parametrize("function", IMPURE, ids=lambda f: f.__name__)
def test_what_is_not_pure_is_refused(function: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError, match=IMPURE[function]) as caught:
        function()
    assert "not pure" in str(caught.value)


def test_a_memory_of_constants_is_no_side_effect() -> None:
    tables: dict[int, Any] = {}

    def function(params: Any, x: Any) -> Any:
        size = x.shape[1]
        if size not in tables:
            tables[size] = np.arange(size, dtype=np.float32)
        return predict(params, x + tables[size])

    assert sx.from_jax(function, params(), X).inputs


# -- what cannot be traced --------------------------------------------------------------


def writes(params: Any, x: Any) -> Any:
    x[0] = 0.0  # writes in place
    return x


def chooses(params: Any, x: Any) -> Any:
    return x[x[:, 0] > 0]  # a size that depends on values


def branches(params: Any, x: Any) -> Any:
    if x.sum() > 0:  # a branch on values
        return x
    return -x


@pytest.mark.parametrize(
    ("function", "line"),
    [(writes, "writes in place"), (chooses, "depends on values"), (branches, "branch on values")],
)
def test_what_cannot_be_traced_is_refused_with_its_line(function: Any, line: str) -> None:
    with pytest.raises(ImportRefused, match=line):
        sx.from_jax(function, params(), X)


# -- losses and optimizers --------------------------------------------------------------


def dead(z: Any, y: Any) -> Any:
    _ = y * 2
    return jnp.mean(z)


def training(**options: Any) -> Any:
    settings = {"loss": squared, "optimizer": optax.adam(0.1), **options}
    return sx.from_jax(predict, params(), X, Y, **settings)


TRAININGS: dict[str, tuple[Callable[[], Any], str]] = {
    "a label whose use is dead": (lambda: training(loss=dead), 'ignores its labels\n.*"y"'),
    "a label inside jit": (lambda: training(loss=jax.jit(lambda z, y: z.sum())), '"y"'),
    "no output in a record": (lambda: training(loss=lambda z, y: y.sum()), "ignores what"),
    "no output in a step": (
        lambda: training(loss=lambda z, y: y.sum(), how="step"),
        "ignores what",
    ),
    "the state of another optimizer": (
        lambda: training(state=optax.sgd(0.1, momentum=0.9).init(params())),
        '"0.mu.w"',
    ),
    "the state of other parameters": (
        lambda: training(state=optax.adam(0.1).init({"q": jnp.ones(3)})),
        '"0.mu.q"',
    ),
    "a mask of other parameters": (
        lambda: training(optimizer=optax.masked(optax.adam(0.1), {"q": True})),
        "does not fit",
    ),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_does_not_fit_is_refused(name: str) -> None:
    import_it, words = TRAININGS[name]
    with pytest.raises(SardonyxError, match=words):
        import_it()

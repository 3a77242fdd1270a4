"""Bad input of `from_jax`: one error each, which names the line, the variable or the leaf."""

from __future__ import annotations

import collections
import functools
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


class Holder:
    """What a user keeps results in."""

    last: Any = None


KEPT = Holder()


def keeps_in_an_object() -> Any:
    holder = Holder()
    return step_with(lambda state: setattr(holder, "last", state["w"]) or 1.0)


def keeps_in_a_global_object() -> Any:
    def aside(state: Any) -> float:
        KEPT.last = state["w"]
        return 1.0

    return step_with(aside)


def keeps_in_a_class() -> Any:
    def aside(state: Any) -> float:
        Holder.last = state["w"]
        return 1.0

    return step_with(aside)


def keeps_in_a_default() -> Any:
    def aside(state: Any, memory: list[Any] = []) -> float:  # noqa: B006
        memory.append(state["w"])
        return 1.0

    return step_with(aside)


def keeps_in_an_argument() -> Any:
    def step(log: list[Any], state: Any, batch: Any) -> Any:
        log.append(state["w"])
        return {n: v * 0.9 for n, v in state.items()}, {"loss": batch["x"].sum()}

    return sx.from_jax_step(functools.partial(step, []), params(), {"x": X})


def keeps_in_a_function() -> Any:
    def aside(state: Any) -> float:
        aside.last = state["w"]  # type: ignore[attr-defined]
        return 1.0

    return step_with(aside)


def keeps_in_a_tuple() -> Any:
    box: tuple[Any, ...] = ()

    def aside(state: Any) -> float:
        nonlocal box
        box = (state["w"],)
        return 1.0

    return step_with(aside)


def keeps_in_a_queue() -> Any:
    queue: Any = collections.deque(maxlen=3)
    return step_with(lambda state: queue.append(state["w"] * 2) or 1.0)


def counts_in_an_object() -> Any:
    holder = Holder()
    holder.last = 0

    def aside(state: Any) -> float:
        holder.last += 1
        return 1.0

    return step_with(aside)


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
    keeps_in_an_object: '"holder.last".*of the trace',
    keeps_in_a_global_object: '"KEPT.last".*of the trace',
    keeps_in_a_class: '"Holder.last".*of the trace',
    keeps_in_a_default: '"memory".*of the trace',
    keeps_in_an_argument: '"argument 0".*of the trace',
    keeps_in_a_function: '"aside.last".*of the trace',
    keeps_in_a_tuple: '"box".*of the trace',
    keeps_in_a_queue: rf"keeps values of its trace(.|\n)*float32\[4,4\] of {__file__}",
    counts_in_an_object: '"holder.last".*is changed',
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


def test_what_was_kept_before_is_not_blamed() -> None:
    kept: list[Any] = []
    jax.make_jaxpr(lambda x: kept.append(x) or x)(X)
    assert sx.from_jax(predict, params(), X).inputs
    assert len(kept) == 1


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


def complex_inside(params: Any, x: Any) -> Any:
    return jnp.abs(jnp.fft.fft(predict(params, x)))


def test_complex_numbers_are_refused_with_their_lines() -> None:
    for import_it in (
        lambda: sx.from_jax(complex_inside, params(), X),
        lambda: sx.from_jax(lambda p, x: predict(p, x.real), params(), X + 1j),
        lambda: sx.from_jax(lambda p, x: predict(p, x) * 1j, params(), X),
        lambda: step_with(lambda state: jnp.abs(state["b"] * 1j).sum()),
    ):
        with pytest.raises(ImportRefused, match=f"complex numbers.*{__file__}"):
            import_it()


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

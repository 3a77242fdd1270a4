"""Trainings through `from_jax`, many settings of optax at once, against `jax.jit`.

    python -m tests.sweeps.jax_trainings                    200 combinations
    python -m tests.sweeps.jax_trainings --only 7:12        one combination, with its settings

A combination is a small function, a loss, and a chain of optax: clipping, an optimizer with
settings, decayed weights with a mask, a schedule, averaging, several steps in one, groups of
parameters; its state after some updates in JAX; and the way of the import. Losses of ten steps, and
the parameters afterwards, are compared. Fails where one combination is off or is refused.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sardonyx as sx

COUNT, STEPS = 200, 10
TOLERANCE = 5e-5
OPTIMIZERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "sgd": {"momentum": (None, 0.9), "nesterov": (False, True)},
    "adam": {"b1": (0.9, 0.8), "eps": (1e-8, 1e-4), "nesterov": (False, True)},
    "adamw": {"weight_decay": (1e-4, 0.1), "b2": (0.999, 0.95)},
    "adamax": {"b1": (0.9, 0.7)},
    "amsgrad": {"b2": (0.999, 0.9)},
    "adagrad": {"initial_accumulator_value": (0.1, 0.5)},
    "adafactor": {"multiply_by_parameter_scale": (True, False)},
    "adabelief": {"b1": (0.9, 0.8)},
    "yogi": {"b1": (0.9, 0.8)},
    "nadam": {"b1": (0.9, 0.8)},
    "radam": {"threshold": (5.0, 2.0)},
    "lamb": {"weight_decay": (0.0, 0.1)},
    "lars": {"weight_decay": (0.0, 0.01)},
    "rmsprop": {"decay": (0.9, 0.5), "momentum": (None, 0.9), "eps": (1e-3,)},
    "novograd": {"b1": (0.9, 0.8)},
}
SCHEDULES: dict[str, Callable[[float], Any]] = {
    "constant": lambda rate: rate,
    "cosine": lambda rate: optax.cosine_decay_schedule(rate, 12),
    "warmup": lambda rate: optax.warmup_cosine_decay_schedule(0.0, rate, 3, 14),
    "exponential": lambda rate: optax.exponential_decay(rate, 3, 0.8, staircase=True),
    "piecewise": lambda rate: optax.piecewise_constant_schedule(rate, {4: 0.5, 8: 0.1}),
    "linear": lambda rate: optax.linear_schedule(rate, rate / 10, 9),
}
CLIPS: dict[str, Callable[[], list[Any]]] = {
    "no": list,
    "value": lambda: [optax.clip(0.05)],
    "norm": lambda: [optax.clip_by_global_norm(0.3)],
    "block": lambda: [optax.clip_by_block_rms(0.1)],
    "adaptive": lambda: [optax.adaptive_grad_clip(0.1)],
    "zero nans": lambda: [optax.zero_nans()],
}
MASK = {"up": {"kernel": True, "bias": False}, "down": {"kernel": True, "bias": False}}
LABELS = {"up": {"kernel": "a", "bias": "b"}, "down": {"kernel": "a", "bias": "b"}}


@dataclass(frozen=True)
class Combination:
    """One training: every field is a setting."""

    optimizer: str
    settings: tuple[tuple[str, Any], ...]
    schedule: str
    clip: str
    decay: str  # no, all, masked
    around: str  # no, every, groups, frozen, injected, finite, lookup
    before: int
    how: str
    loss: str


def drawn(seed: int, index: int) -> Combination:
    """The combination of this number."""
    draw = random.Random(f"{seed}:{index}")
    optimizer = draw.choice(list(OPTIMIZERS))
    settings = {n: draw.choice(values) for n, values in OPTIMIZERS[optimizer].items()}
    return Combination(
        optimizer=optimizer,
        settings=tuple((n, v) for n, v in settings.items() if v is not None),
        schedule=draw.choice(list(SCHEDULES)),
        clip=draw.choice(list(CLIPS)),
        decay=draw.choice(("no", "all", "masked")),
        around=draw.choice(("no", "no", "every", "groups", "frozen", "injected", "finite", "ema")),
        before=draw.choice((0, 1, 4)),
        how=draw.choice(("record", "record", "step")),
        loss=draw.choice(list(LOSSES)),
    )


def transformation(c: Combination) -> Any:
    """The chain of a combination."""
    schedule = SCHEDULES[c.schedule](1e-2)
    maker, settings = getattr(optax, c.optimizer), dict(c.settings)
    if c.around == "injected":
        # A shape depends on this one, which JAX therefore takes as a number of Python only.
        fixed = ("min_dim_size_to_factor",) if c.optimizer == "adafactor" else ()
        inject = optax.inject_hyperparams(maker, static_args=fixed)
        inner = inject(learning_rate=schedule, **settings)
    else:
        inner = maker(schedule, **settings)
    decays = {"no": [], "all": [optax.add_decayed_weights(0.01)],
              "masked": [optax.add_decayed_weights(0.01, MASK)]}[c.decay]  # fmt: skip
    chain = optax.chain(*CLIPS[c.clip](), *decays, inner)
    if c.around == "every":
        return optax.MultiSteps(chain, 2)
    if c.around == "groups":
        return optax.multi_transform({"a": chain, "b": optax.sgd(1e-2)}, LABELS)
    if c.around == "frozen":
        return optax.multi_transform({"a": chain, "b": optax.set_to_zero()}, LABELS)
    if c.around == "finite":
        return optax.apply_if_finite(chain, 3)
    return optax.chain(chain, optax.ema(0.8)) if c.around == "ema" else chain


# -- the training -----------------------------------------------------------------------


def predict(params: Any, x: Any) -> Any:
    h = jax.nn.gelu(x @ params["up"]["kernel"] + params["up"]["bias"])
    return h @ params["down"]["kernel"] + params["down"]["bias"]


def cross_entropy(logits: Any, label: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()


def huber(logits: Any, label: Any) -> Any:
    return optax.huber_loss(logits, jax.nn.one_hot(label, 3)).sum(1).mean()


def focal(logits: Any, label: Any) -> Any:
    return optax.sigmoid_focal_loss(logits, jax.nn.one_hot(label, 3)).mean()


LOSSES: dict[str, Callable[..., Any]] = {
    "cross entropy": cross_entropy, "huber": huber, "focal": focal,
}  # fmt: skip


def parameters() -> Any:
    keys = jax.random.split(jax.random.key(0), 4)
    return {
        "up": {"kernel": 0.5 * jax.random.normal(keys[0], (5, 7)),
               "bias": 0.1 * jax.random.normal(keys[1], (7,))},
        "down": {"kernel": 0.5 * jax.random.normal(keys[2], (7, 3)),
                 "bias": 0.1 * jax.random.normal(keys[3], (3,))},
    }  # fmt: skip


def data(seed: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    x = jnp.asarray(generator.standard_normal((6, 5)), jnp.float32)
    return x, jnp.asarray(generator.integers(0, 3, 6), jnp.int32)


def judge(c: Combination) -> str:
    """What is wrong with a combination; nothing if all is as in JAX."""
    try:
        return _judged(c)
    except sx.SardonyxError as error:
        return f"{type(error).__name__}: {error}"


def _judged(c: Combination) -> str:
    tx, loss, params = transformation(c), LOSSES[c.loss], parameters()
    slots = tx.init(params)

    @jax.jit
    def step(params: Any, slots: Any, x: Any, label: Any) -> Any:
        value, g = jax.value_and_grad(lambda p: loss(predict(p, x), label))(params)
        updates, slots = tx.update(g, slots, params)
        return optax.apply_updates(params, updates), slots, value

    for count in range(c.before):
        params, slots, _ = step(params, slots, *data(count))
    x, label = data(50)
    state = slots if c.before else None
    model = sx.from_jax(predict, params, x, label, loss=loss, optimizer=tx, state=state, how=c.how)
    training = sx.prepare_training(model)
    for count in range(STEPS):
        x, label = data(100 + count)
        params, slots, value = step(params, slots, x, label)
        ours = training.step({"x": np.asarray(x), "label": np.asarray(label)})["loss"]
        if np.isnan(ours) and np.isnan(value):
            return ""
        if not abs(float(ours) - float(value)) <= TOLERANCE * max(abs(float(value)), 1e-2):
            return f"loss of step {count} is {float(ours)}, not {float(value)}"
    after = training.state()
    for name, leaf in {
        f"{part}.{n}": leaf for part, leaves in params.items() for n, leaf in leaves.items()
    }.items():
        if name not in after:
            continue
        error = float(np.abs(after[name] - np.asarray(leaf)).max())
        if not error <= 20 * TOLERANCE * float(np.abs(leaf).max()):
            return f"{name} is off by {error:.2g}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="seed:index of one combination")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then none is begun")
    arguments = parser.parse_args()
    seed, indices = arguments.seed, list(range(arguments.start, arguments.start + arguments.count))
    if arguments.only:
        seed, index = (int(n) for n in arguments.only.split(":"))
        indices = [index]
    off = done = 0
    begin = time.monotonic()
    for index in indices:
        if time.monotonic() - begin > arguments.seconds:
            break
        combination = drawn(seed, index)
        problem = judge(combination)
        off, done = off + bool(problem), done + 1
        if problem or arguments.only:
            print(f"{seed}:{index:<5} {problem or 'same'}\n      {combination}", flush=True)
    print(f"{done} combinations in {time.monotonic() - begin:.0f} s, {off} off")
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())

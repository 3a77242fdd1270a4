"""Chains of optax in the words of our optimizers: settings, and state as slots.

optax builds closures: the name of an update function tells which transformation it is, and its
closure holds the settings. Only chains whose formula is exactly one of ours are read; the imported
training is compared with JAX afterwards in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import tree_util

from sardonyx.importers.jax import trees
from sardonyx.importers.jax.check import JaxSide
from sardonyx.record import optim
from sardonyx.record.builder import STEP

Settings = Mapping[str, Any]


@dataclass
class Link:
    """One transformation of a chain: its name in optax, its settings and its state."""

    name: str
    settings: Settings
    state: Any


@dataclass
class Chain:
    """A chain that is one of our optimizers.

    slots -- by the path of a state in the chain's state: our slot, and by what optax's is divided
    """

    optimizer: optim.Optimizer
    clip_value: float | None
    links: list[Link]
    slots: dict[str, tuple[str, float]] = field(default_factory=dict)

    def arrays(self, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The state by the names of our slots, and the number of updates made."""
        arrays = {}
        for link in self.links:
            for name, (slot, divisor) in self.slots.items():
                if name in _fields(link.state):
                    leaves = tree_util.tree_leaves(getattr(link.state, name))
                    for weight, leaf in zip(weights, leaves, strict=True):
                        array = trees.array(leaf)
                        arrays[f"{weight}/{slot}"] = array / array.dtype.type(divisor)
            if "count" in _fields(link.state):
                arrays[STEP] = np.asarray(trees.array(link.state.count), np.int64)
        return arrays


def read_chain(optimizer: Any, state: Any) -> Chain | None:
    """The chain as one of our optimizers, or None where no formula of ours is exactly the same."""
    links = _links(optimizer.update, state)
    if links is None:
        return None
    links = [link for link in links if link.name != "identity"]
    clip_value = None
    if links and links[0].name == "clip":
        clip_value = _number(links[0].settings.get("max_delta"))
        if clip_value is None:
            return None
        links = links[1:]
    for pattern, (maker, slots) in PATTERNS.items():
        if tuple(link.name for link in links) == pattern:
            settings = _settings(links)
            chain = None if settings is None else maker(settings)
            if chain is None:
                return None
            divisors = {n: (slot, divide(settings or {})) for n, (slot, divide) in slots.items()}
            return Chain(chain, clip_value, links, divisors)
    return None


def _links(update: Callable[..., Any], state: Any) -> list[Link] | None:
    """The transformations of a chain, nested chains included; None where one is not known."""
    name, _, rest = getattr(update, "__qualname__", "").partition(".<locals>.")
    if not getattr(update, "__module__", "").startswith("optax.") or not rest:
        return None
    variables = _closure(update)
    if name == "with_extra_args_support":
        return _links(variables["tx"].update, state)
    if name == "chain":
        links: list[Link] = []
        for part, inner in zip(variables["update_fns"], state, strict=True):
            inner_links = _links(part, inner)
            if inner_links is None:
                return None
            links += inner_links
        return links
    return [Link(name, variables, state)]


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    code: Any = function.__code__
    cells = function.__closure__ or ()
    return {n: c.cell_contents for n, c in zip(code.co_freevars, cells, strict=True)}


def _fields(state: Any) -> tuple[str, ...]:
    """The names of a state's parts: states of optax are named tuples."""
    return getattr(state, "_fields", ())


def _number(value: Any) -> float | None:
    """A setting that is one number; None for a schedule, an array or something else."""
    return float(value) if isinstance(value, (int, float, np.floating, np.integer)) else None


# Settings whose formula is ours only at this value.
PLAIN = {
    "eps_root": 0.0, "mu_dtype": None, "accumulator_dtype": None, "min_norm": 0.0,
    "trust_coefficient": 1.0, "eps_in_sqrt": False, "bias_correction": False,
    "initial_scale": 0.0,
}  # fmt: skip
READ = {
    "scale_by_adam": {"b1": "b1", "b2": "b2", "eps": "eps", "adam_nesterov": "nesterov"},
    "scale_by_lion": {"b1": "b1", "b2": "b2"},
    "scale_by_adamax": {"b1": "b1", "b2": "b2", "eps": "eps"},
    "scale_by_adadelta": {"rho": "rho", "eps": "eps"},
    "scale_by_rms": {"alpha": "decay", "eps": "eps"},
    "scale_by_trust_ratio": {"ratio_eps": "eps"},
    "trace": {"momentum": "decay", "nesterov": "nesterov"},
    "add_decayed_weights": {"weight_decay": "weight_decay"},
    "scale": {"step_size": "step_size"},
}


def _settings(links: list[Link]) -> dict[str, Any] | None:
    """The settings of all links in our words; None where one has no equivalent."""
    settings: dict[str, Any] = {}
    for link in links:
        for name, value in PLAIN.items():
            if name in link.settings and link.settings[name] != value:
                return None
        for ours, theirs in READ[link.name].items():
            value = link.settings.get(theirs)
            number = bool(value) if theirs == "nesterov" else _number(value)
            if number is None:
                return None
            settings[ours] = number
    rate = -settings.pop("step_size")
    if rate <= 0 or settings.pop("adam_nesterov", False) or settings.pop("ratio_eps", 0.0):
        return None
    return {"lr": rate, **settings}


def _make(name: str) -> Callable[[Settings], optim.Optimizer | None]:
    def make(settings: Settings) -> optim.Optimizer | None:
        settings_of_maker = set(optim.MAKERS[name].__code__.co_varnames)
        if not set(settings) <= settings_of_maker:
            return None
        defaults = {"weight_decay": 0.0} if "weight_decay" in settings_of_maker else {}
        return optim.named(name, **{**defaults, **settings})

    return make


def _one(settings: Settings) -> float:
    return 1.0


ADAM = {
    "mu": ("adam_m", lambda s: 1.0 - s["b1"]),
    "nu": ("adam_v", lambda s: 1.0 - s["b2"]),
}
SCALE, DECAY = "scale", "add_decayed_weights"
PATTERNS: dict[tuple[str, ...], tuple[Any, dict[str, Any]]] = {
    (SCALE,): (_make("sgd"), {}),
    (DECAY, SCALE): (_make("sgd"), {}),
    ("trace", SCALE): (_make("sgd"), {"trace": ("momentum", _one)}),
    (DECAY, "trace", SCALE): (_make("sgd"), {"trace": ("momentum", _one)}),
    ("scale_by_adam", SCALE): (_make("adam"), ADAM),
    (DECAY, "scale_by_adam", SCALE): (_make("adam"), ADAM),
    ("scale_by_adam", DECAY, SCALE): (_make("adamw"), ADAM),
    ("scale_by_adam", DECAY, "scale_by_trust_ratio", SCALE): (_make("lamb"), ADAM),
    ("scale_by_lion", DECAY, SCALE): (_make("lion"), {"mu": ("lion_m", _one)}),
    ("scale_by_lion", SCALE): (_make("lion"), {"mu": ("lion_m", _one)}),
    ("scale_by_rms", SCALE): (_make("rmsprop"), {"nu": ("square_avg", _one)}),
    ("scale_by_adamax", SCALE): (
        _make("adamax"),
        {"mu": ("exp_avg", _one), "nu": ("exp_inf", _one)},
    ),
    (DECAY, "scale_by_adadelta", SCALE): (
        _make("adadelta"),
        {"e_g": ("square_avg", _one), "e_x": ("acc_delta", _one)},
    ),
}


class ChainSide(JaxSide):
    """A step of JAX whose optimizer's state has the names of our slots."""

    def __init__(self, side: JaxSide, chain: Chain, optimizer: Any, weights: Mapping[str, Any]):
        self.__dict__.update(side.__dict__)
        self.chain, self.optimizer, self.weights = chain, optimizer, list(weights)
        self.state_names = list(weights)

    def step(self, inputs: Mapping[str, Any]) -> None:
        super().step(inputs)
        if STEP in self.others:  # a chain without a counter of its own
            self.others[STEP] = np.asarray(self.others[STEP] + 1, np.int64)

    def state(self) -> dict[str, np.ndarray]:
        params = tree_util.tree_leaves(self.tree["params"])
        values = {n: trees.array(p) for n, p in zip(self.weights, params, strict=True)}
        chain = read_chain(self.optimizer, self.tree["slots"])
        assert chain is not None
        return {**self.others, **values, **chain.arrays(dict.fromkeys(self.weights))}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.others.update(state)
        params, structure = tree_util.tree_flatten(self.tree["params"])
        pairs = zip(self.weights, params, strict=True)
        new = [np.asarray(state.get(n, p), p.dtype) for n, p in pairs]
        self.tree = {
            "params": tree_util.tree_unflatten(structure, new),
            "slots": self._filled(self.tree["slots"], state),
        }

    def _filled(self, slots: Any, state: Mapping[str, np.ndarray]) -> Any:
        """The optimizer's state with the values of our slots in it."""
        if isinstance(slots, tuple) and not hasattr(slots, "_fields"):
            return tuple(self._filled(part, state) for part in slots)
        changes = {}
        for name in _fields(slots):
            if name == "count" and STEP in state:
                changes[name] = np.asarray(state[STEP], slots.count.dtype)
            if name in self.chain.slots:
                slot, divisor = self.chain.slots[name]
                leaves, structure = tree_util.tree_flatten(getattr(slots, name))
                values = [
                    np.asarray(state[f"{weight}/{slot}"] * divisor, leaf.dtype)
                    for weight, leaf in zip(self.weights, leaves, strict=True)
                ]
                changes[name] = tree_util.tree_unflatten(structure, values)
        return slots._replace(**changes) if changes else slots

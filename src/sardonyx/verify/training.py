"""Training compared: the same record on two engines, or two records, step by step.

A trajectory amplifies rounding, so that two correct runs drift apart. Each step is therefore also
*forced*: every side starts it from the reference's state, and only what one step does is judged.
Three numbers result: the first step, the median of the forced steps, and the free run at its end.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sardonyx import plugins
from sardonyx.engines.prepare import prepare_training
from sardonyx.errors import ArgumentError, DataError, quote
from sardonyx.model import Model, ModelSource, load
from sardonyx.record.info import state_names, state_tensor
from sardonyx.record.step import StepGraph, compile_step
from sardonyx.verify.datasets import read_npz
from sardonyx.verify.exact import Reference, widened
from sardonyx.verify.flips import SIGNS, has_signs, with_sign
from sardonyx.verify.inputs import sample, size_choices
from sardonyx.verify.jitter import moved
from sardonyx.verify.noise import DIFFERENT, GRADIENT_BANDS, LOOK, SAME, UNKNOWN, band, measure
from sardonyx.verify.report import EXIT, shown
from sardonyx.verify.subjects import runner

BATCH = 8
TRIALS = 8  # of a step from perturbed numbers, where one differs
SECONDS = 30.0  # after which no further one begins
State = dict[str, np.ndarray]


class Side(Protocol):
    """Anything that makes training steps; TrainingRep of every engine does."""

    def step(self, inputs: Mapping[str, Any]) -> Any: ...
    def state(self) -> State: ...
    def load_state(self, state: Mapping[str, np.ndarray]) -> None: ...


@dataclass
class Variable:
    """How one state variable fared: ratios of the forced steps, and of the free run."""

    name: str
    forced: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.forced)


@dataclass
class Trajectory:
    """The comparison of one candidate's training with the exact one."""

    label: str
    bands: tuple[float, float]
    variables: list[Variable]
    flipped: bool = False  # whether rounding decided a sign, by which a step goes, or a Relu

    @property
    def first(self) -> float:
        return max(v.forced[0] for v in self.variables)

    @property
    def forced(self) -> float:
        return max(v.median for v in self.variables)

    @property
    def forced_max(self) -> float:
        return max(max(v.forced) for v in self.variables)

    @property
    def free(self) -> float:
        return max(v.free[-1] for v in self.variables)

    @property
    def verdict(self) -> str:
        low, high = self.bands
        if max(self.first, self.forced) > high:
            return DIFFERENT
        # A free run that leaves the path counts only where no single step can have flipped.
        drifted = self.free > low and self.forced_max <= low and not self.flipped
        return LOOK if max(self.first, self.forced) > low or drifted else SAME

    @property
    def parted(self) -> tuple[int, str] | None:
        """The first forced step (from 1) at which a variable is beyond the upper band."""
        worst = max(self.variables, key=lambda v: v.median)
        if self.verdict != DIFFERENT:
            return None
        candidates = [worst] if worst.median > self.bands[1] else self.variables
        crossings = [
            (step, v.name)
            for v in candidates
            for step, r in enumerate(v.forced)
            if r > self.bands[1]
        ]
        step, name = min(crossings)
        return step + 1, name

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]

    def as_dict(self) -> dict[str, Any]:
        def plain(x: float) -> Any:
            return x if math.isfinite(x) else "infinite"

        rows = [asdict(v) for v in self.variables]
        for row in rows:
            row["forced"], row["free"] = map(plain, row["forced"]), map(plain, row["free"])
            row["forced"], row["free"] = list(row["forced"]), list(row["free"])
        return {
            "label": self.label,
            "verdict": self.verdict,
            "bands": list(self.bands),
            "variables": rows,
        }

    def __str__(self) -> str:
        lines = [f"training  {self.label}, {len(self.variables[0].forced)} steps"]
        rows = [["variable", "step 1", "forced median", "forced max", "free at end", "verdict"]]
        for v in sorted(self.variables, key=lambda v: -v.median):
            numbers = [v.forced[0], v.median, max(v.forced), v.free[-1]]
            rows.append([v.name, *map(shown, numbers), band(max(numbers[:2]), self.bands)])
        widths = [max(len(r[i]) for r in rows) for i in range(6)]
        lines += ["  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows]
        if self.parted:
            lines.append(f"parted    at step {self.parted[0]}, in {quote(self.parted[1])}")
        return "\n".join([*lines, f"verdict   {self.verdict}"])


@dataclass
class Trajectories:
    """One trajectory per candidate; the worst decides."""

    parts: list[Trajectory]

    @property
    def verdict(self) -> str:
        verdicts = [p.verdict for p in self.parts]
        return next((v for v in (DIFFERENT, LOOK, SAME) if v in verdicts), UNKNOWN)

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "trajectories": [p.as_dict() for p in self.parts]}

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.parts)


def verify_training(
    model: ModelSource,
    *others: Any,
    data: Any = None,
    steps: int = 20,
    bands: tuple[float, float] | None = None,
    seed: int = 0,
) -> Trajectories:
    """Compare trainings: the model's record, exactly, against engines, other files or trainers.

    model  -- a model with a training record
    others -- an engine's name, another model or file (on onnxruntime, or a pair of it and an
              engine's name), or anything with `step`, `state` and `load_state`
    data   -- a list of batches, arrays by name, or an .npz (cut into batches); random if not given
    steps  -- how many steps

    >>> import sardonyx as sx
    >>> net = sx.trainable("model.onnx", loss="cross_entropy", optimizer=sx.optim.sgd(0.1))
    >>> sx.verify_training(net, "onnxruntime", steps=3).verdict
    'same'
    """
    loaded = load(model)
    if not loaded.records:
        raise ArgumentError(
            "the model carries no training record", hint="make one with sardonyx.trainable"
        )
    graphs = [compile_step(loaded, record) for record in loaded.records]
    batches = list(_batches(graphs, data, steps, seed))
    start = _start(loaded)
    trajectories = []
    exact, plain = _Graphs(graphs, start, _exactly), _Graphs(graphs, start, _plainly)
    flips = _Flips(graphs, start)
    for other in others or ("onnxruntime",):
        label, side = _side(other, loaded, graphs)
        sides = _Sides(side, exact, plain, flips, bands or GRADIENT_BANDS)
        trajectories.append(sides.compared(label, start, batches))
    return Trajectories(trajectories)


def _exactly(model: Model) -> Any:
    return Reference(model, exact=True)


def _plainly(model: Model) -> Any:
    return Reference(model, exact=False)


class _Graphs:
    """The compiled steps on any runner, with the state kept here."""

    def __init__(self, graphs: Sequence[StepGraph], state: State, build: Callable[[Model], Any]):
        self.graphs = graphs
        self.runners = [build(g.model) for g in graphs]
        self.values: State = dict(state)

    def step(self, inputs: Mapping[str, Any]) -> None:
        for graph, run in zip(self.graphs, self.runners):
            feeds = {n: inputs[n] for n in graph.inputs}
            feeds |= {n: np.asarray(inputs.get(n, v)) for n, v in graph.hyper.items()}
            feeds |= {n: self.values[n] for n in graph.state}
            outputs = run(feeds)
            self.values.update({n: np.asarray(outputs[out]) for n, out in graph.updates.items()})

    def state(self) -> State:
        return dict(self.values)

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.values.update(state)


def _start(model: Model) -> State:
    state = {}
    for record in model.records:
        for name in state_names(model, record):
            tensor = state_tensor(model, record, name)
            assert tensor is not None
            state[name] = np.array(tensor.numpy())
    return state


def _side(other: Any, model: Model, graphs: Sequence[StepGraph]) -> tuple[str, Side]:
    if all(hasattr(other, name) for name in ("step", "state", "load_state")):
        return type(other).__module__, other
    engine, label = "onnxruntime", ""
    if isinstance(other, str) and other in plugins.names():
        engine = label = other
    else:
        if isinstance(other, tuple):
            other, engine = other
        model, label = load(other), _name(other, engine)
        graphs = [compile_step(model, record) for record in model.records]
    if engine not in plugins.FRAMEWORKS:
        return label, prepare_training(model, engine)
    return label, _Graphs(graphs, _start(model), runner(engine))


def _name(other: Any, engine: str) -> str:
    name = Path(other).name if isinstance(other, (str, Path)) else "the other model"
    return name if engine == "onnxruntime" else f"{name} on {engine}"


class _Flips:
    """The exact step with either sign where rounding decides one; built where a step differs."""

    def __init__(self, graphs: Sequence[StepGraph], state: State):
        self.graphs, self.start = graphs, state
        self.has_signs = any(has_signs(g.model) for g in graphs)
        self._steps: list[_Graphs] = []

    def states(self, before: State, inputs: Mapping[str, Any]) -> list[State]:
        """What the step gives with each sign; nothing where no update goes by one."""
        if self.has_signs and not self._steps:
            self._steps = [_Graphs(self.graphs, self.start, with_sign(sign)) for sign in SIGNS]
        for step in self._steps:
            step.load_state(before)
            step.step(inputs)
        return [step.state() for step in self._steps]


def _without_flips(c: State, r: State, signed: Sequence[State]) -> State:
    """`c` less what other signs would add to `r`, where that is nearer to it."""
    out = {n: np.asarray(a) for n, a in c.items()}
    for state in signed:
        for name in out.keys() & state.keys():
            other, exact, array = np.asarray(state[name]), np.asarray(r[name]), out[name]
            if array.dtype.kind == "f" and array.shape == exact.shape == other.shape:
                shifted = array.astype(np.float64) - (other - exact)
                is_nearer = np.abs(shifted - exact) < np.abs(array - exact)
                out[name] = np.where(is_nearer, shifted, array).astype(array.dtype)
    return out


@dataclass
class _Sides:
    """A candidate, the exact step, the plain one, and the exact one by other signs."""

    side: Side
    exact: _Graphs
    plain: _Graphs
    flips: _Flips
    bands: tuple[float, float]
    flipped: bool = False

    def compared(
        self, label: str, start: State, batches: Sequence[Mapping[str, Any]]
    ) -> Trajectory:
        missing = [[quote(n)] for n in start if n not in self.side.state()]
        if missing:
            raise ArgumentError(f"{label} lacks state variables", missing)
        variables = {n: Variable(n) for n in start}
        state = start
        for batch in batches:  # forced: every step begins where the exact one of before ended
            self._load(state)
            self._advance(batch, variables, start, "forced")
            state = {n: np.asarray(a).astype(start[n].dtype) for n, a in self.exact.state().items()}
        self._load(start)
        for batch in batches:
            self._advance(batch, variables, start, "free")
        return Trajectory(label, self.bands, list(variables.values()), self.flipped)

    def _load(self, state: State) -> None:
        self.side.load_state(state)
        self.exact.load_state({n: widened(a) for n, a in state.items()})
        self.plain.load_state(state)

    def _advance(
        self,
        batch: Mapping[str, Any],
        variables: Mapping[str, Variable],
        start: State,
        kind: str,
    ) -> None:
        before = self.exact.state()
        for side in (self.side, self.exact, self.plain):
            side.step(batch)
        c, r, b = (side.state() for side in (self.side, self.exact, self.plain))
        ratios = self._ratios(variables, c, r, [b], start)
        signed: list[State] = []
        if max(ratios.values()) > self.bands[0]:
            signed = self.flips.states(before, batch)
        if signed:
            c = _without_flips({n: c[n] for n in variables}, r, signed)
            others = self._ratios(variables, c, r, [b], start)
            self.flipped = self.flipped or others != ratios
            ratios = others
        if kind == "forced" and max(ratios.values()) > self.bands[0]:
            ratios = self._with_perturbed(ratios, before, batch, c, r, b, start, signed)
        for name, variable in variables.items():
            getattr(variable, kind).append(ratios[name])

    def _with_perturbed(
        self,
        ratios: dict[str, float],
        before: State,
        batch: Mapping[str, Any],
        c: State,
        r: State,
        b: State,
        start: State,
        signed: Sequence[State],
    ) -> dict[str, float]:
        """The ratios with the noise of perturbed steps, as many as it takes."""
        baselines = [b]
        for other in self._perturbed(before, batch, start):
            baselines.append(_without_flips(other, r, signed))
            ratios = self._ratios(ratios, c, r, baselines, start)
            if max(ratios.values()) <= self.bands[0]:
                self.flipped = True
                break
        self.plain.load_state(b)
        return ratios

    def _perturbed(self, before: State, batch: Mapping[str, Any], start: State) -> Iterator[State]:
        """The plain step from numbers that are off by a rounding, several times.

        A Relu or MaxPool whose input lies on a threshold up to rounding takes either side: that
        moves gradients by more than rounding does elsewhere, and a single run may not show it.
        """
        began = time.monotonic()
        for trial in range(TRIALS):
            rng = np.random.default_rng(trial)
            state = {n: np.asarray(a).astype(start[n].dtype) for n, a in before.items()}
            self.plain.load_state({n: moved(a, rng) for n, a in state.items()})
            self.plain.step({n: moved(np.asarray(a), rng) for n, a in batch.items()})
            yield self.plain.state()
            if time.monotonic() - began > SECONDS:
                return

    def _ratios(
        self,
        variables: Iterable[str],
        c: State,
        r: State,
        baselines: Sequence[State],
        start: State,
    ) -> dict[str, float]:
        return {
            n: measure(("", n, ""), c[n], r[n], [b[n] for b in baselines], start[n].dtype).ratio
            for n in variables
        }


def _batches(
    graphs: Sequence[StepGraph], data: Any, steps: int, seed: int
) -> Iterator[Mapping[str, Any]]:
    names = list(dict.fromkeys(n for g in graphs for n in g.inputs))
    if isinstance(data, (str, Path)):
        data = read_npz(Path(data))
    if isinstance(data, Mapping):
        lacking = [[quote(n)] for n in names if n not in data]
        if lacking:
            raise DataError("the data lacks what a step reads", lacking)
        count = min(len(data[n]) for n in names)
        for step in range(steps):
            rows = (np.arange(BATCH) + step * BATCH) % count
            yield {n: np.asarray(data[n])[rows] for n in names}
        return
    if data is not None:
        yield from list(data)[:steps]
        return
    for step in range(steps):
        batch: dict[str, Any] = {}
        for graph in graphs:
            sizes = next(size_choices(graph.model, seed))
            feeds = sample(graph.model, seed + step, sizes)
            batch |= {n: feeds[n] for n in graph.inputs}
        yield batch

"""Which installed engine trains a model fastest: a short trial of each, on real rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import plugins
from sardonyx.engines.prepare import prepare_training
from sardonyx.errors import EngineError, SardonyxError
from sardonyx.model import Model

WARM_UP = 2  # the first step compiles
STEPS = 5
PATIENCE = 30.0  # an engine that takes longer than this to warm up has lost

Batch = Mapping[str, np.ndarray]


def fastest(
    model: Model,
    batch: Batch,
    engines: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Any, list[str]]:
    """The fastest of `engines`, at its first step, and a row to display: its name and why."""
    prepared: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name in plugins.contenders() if engines is None else engines:
        try:
            rep = prepare_training(model, name, **(options or {}))
            seconds[name] = _trial(rep, batch)
            prepared[name] = rep
        except SardonyxError as error:
            refused[name] = str(error).splitlines()[0]
    if not seconds:
        raise EngineError(
            "no installed engine can train this model", [[n, why] for n, why in refused.items()]
        )
    best = min(seconds, key=lambda name: seconds[name])
    times = [f"{n} {s * 1e3:.3g} ms" for n, s in sorted(seconds.items(), key=lambda item: item[1])]
    times += [f"{n} cannot" for n in refused]
    return prepared[best], ["engine", best, f"fastest in a trial: {', '.join(times)} a step"]


def _trial(rep: Any, batch: Batch) -> float:
    """Seconds of one step; the state is as before afterwards."""
    state = rep.state()
    times = []
    started = time.perf_counter()
    for step in range(WARM_UP + STEPS):
        step_started = time.perf_counter()
        rep.step(batch)
        if step >= WARM_UP or step_started - started > PATIENCE:
            times.append(time.perf_counter() - step_started)
        if time.perf_counter() - started > PATIENCE:
            break
    rep.load_state(state)
    return min(times or [time.perf_counter() - started])

"""Training settings, many at once, against torch: a seeded random walk, and the table.

    python tests/sweeps/settings.py                    1,000 combinations
    python tests/sweeps/settings.py --count 50 --seed 7
    python tests/sweeps/settings.py --only 7:12        one combination, with its settings
    python tests/sweeps/settings.py --keep done.txt    in parts: what is in the file is not repeated
    python tests/sweeps/settings.py --processes 16 --without tensorflow

A combination is a small network as one of torch's exporters writes it, an optimizer, a loss, and
several of accumulation, clipping, a schedule, groups, moving averages, penalties, frozen weights,
frozen normalization and a file written and read halfway, on one engine. Everything is float64, so
that what differs is a setting and not rounding: losses of every step, then parameters, running
statistics and moving averages.

Where a loss has a corner (the penalty l1 at zero), rounding alone can decide which way a training
goes. A number that is off is therefore compared with torch itself, run again with every parameter
moved by one unit in the last place after each update: what those runs differ by is rounding, and
the table counts such combinations. Fails where one combination is off by more.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import io
import math
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F

import sardonyx as sx

STEPS = 10
ROWS = 6
CLASSES = 3
TOLERANCE = 1e-8
RUNS_WITH_NOISE = 8
NOISE_RATIO = 3  # the same, up to rounding: docs/concepts/noise-ratio.md
COUNT = 1000


# -- networks ---------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Twice(nn.Module):
    """A layer, with its normalization, that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(5, 5, bias=False), nn.BatchNorm1d(5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.tanh(self.norm(self.inner(x)))
        return self.head(x)


class Tokens(nn.Module):
    """Scores for every position of a sequence: the classes are the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(7, 5), nn.LayerNorm(5)
        self.up, self.norm2, self.head = nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm2(torch.tanh(self.up(self.norm(self.table(x))))))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def normalized() -> nn.Module:
    """A bias before a normalization has no gradient but rounding, which Adam would enlarge."""
    return nn.Sequential(
        nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(),
        nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3),
    )  # fmt: skip


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, CLASSES, 1),
    )  # fmt: skip


# The network, the shape of one row, what the scores of one row have behind the class axis.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (perceptron, (5,)),
    "norms": (normalized, (5,)),
    "cnn": (convolutional, (2, 6, 6)),
    "twice": (Twice, (5,)),
    "tokens": (Tokens, (4,)),
    "lstm": (lambda: Recurrent(nn.LSTM), (7, 4)),
    "gru": (lambda: Recurrent(nn.GRU), (7, 4)),
}
EXPORTERS = ("script", "script training", "dynamo", "dynamo optimized")


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name][0]().double()


def batch(name: str, loss: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels; the classes of convolutions are axis 1, of products the last."""
    generator = torch.Generator().manual_seed(step)
    shape = (ROWS, *NETWORKS[name][1])
    if name == "tokens":
        x = torch.randint(0, 7, shape, generator=generator)
    else:
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
    scores = {"tokens": (ROWS, 4, CLASSES), "cnn": (ROWS, CLASSES, 1, 1)}.get(name, (ROWS, CLASSES))
    if loss.startswith("cross_entropy"):
        axis = -1 if name == "tokens" else 1
        kept = [d for i, d in enumerate(scores) if i != axis % len(scores)]
        return x, torch.randint(0, CLASSES, kept, generator=generator)
    target = torch.rand(scores, generator=generator, dtype=torch.float64)
    return x, target


@functools.cache
def exported(name: str, exporter: str) -> onnx.ModelProto:
    module, x = network(name), batch(name, "mse", 0)[0]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter.startswith("dynamo"):
            program = torch.onnx.export(
                module.eval(), (x,), dynamo=True, verbose=False, input_names=["x"],
                optimize=exporter.endswith("optimized"),
            )  # fmt: skip
            proto: onnx.ModelProto = program.model_proto
            return proto
        mode: dict[str, Any] = {"training": torch.onnx.TrainingMode.EVAL}
        if exporter.endswith("training"):
            # The export runs the network: statistics move unless the momentum is 0 meanwhile.
            for norm in norms(module):
                norm.momentum = 0.0
            mode = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
        torch.onnx.export(module, (x,), file, dynamo=False, input_names=["x"], **mode)
    proto = onnx.load_from_string(file.getvalue())
    for node in proto.graph.node:
        for attribute in node.attribute:
            if node.op_type == "BatchNormalization" and attribute.name == "momentum":
                attribute.f = 0.9
    return proto


def norms(module: nn.Module) -> list[Any]:
    return [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


# -- combinations -----------------------------------------------------------------------

O = torch.optim
OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "sgd": (sx.optim.sgd(0.05), lambda p: O.SGD(p, 0.05)),
    "momentum": (sx.optim.sgd(0.05, 0.9), lambda p: O.SGD(p, 0.05, 0.9)),
    "nesterov": (
        sx.optim.sgd(0.05, 0.9, nesterov=True, weight_decay=0.1),
        lambda p: O.SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.1),
    ),
    "dampening": (
        sx.optim.sgd(0.05, 0.8, dampening=0.3),
        lambda p: O.SGD(p, 0.05, 0.8, dampening=0.3),
    ),
    "adam": (sx.optim.adam(0.01), lambda p: O.Adam(p, 0.01)),
    "adam decay": (
        sx.optim.adam(0.01, 0.8, 0.99, 1e-4, 0.1),
        lambda p: O.Adam(p, 0.01, (0.8, 0.99), 1e-4, 0.1),
    ),
    "adamw": (sx.optim.adamw(0.01, weight_decay=0.2), lambda p: O.AdamW(p, 0.01, weight_decay=0.2)),
    "adagrad": (
        sx.optim.adagrad(0.05, 0.1, initial=0.1),
        lambda p: O.Adagrad(p, 0.05, 0.1, initial_accumulator_value=0.1),
    ),
    "rmsprop": (
        sx.optim.rmsprop(0.01, momentum=0.5, centered=True),
        lambda p: O.RMSprop(p, 0.01, momentum=0.5, centered=True),
    ),
}
SCHEDULES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "warm-up": (sx.schedule.linear_warmup(4), lambda t: min((t + 1) / 4, 1.0)),
    "cosine": (
        sx.schedule.cosine(8, 0.1),
        lambda t: 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(t / 8, 1))),
    ),
    "step": (sx.schedule.step(2, 0.5), lambda t: 0.5 ** (t // 2)),
    "exponential": (sx.schedule.exponential(0.8), lambda t: 0.8**t),
}
LOSSES: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "cross_entropy": ("cross_entropy", F.cross_entropy),
    "cross_entropy smoothed": (
        sx.loss.cross_entropy(label_smoothing=0.1, weight=[0.5, 1.0, 2.0]),
        lambda z, y: F.cross_entropy(
            z, y, torch.tensor([0.5, 1.0, 2.0]).double(), label_smoothing=0.1
        ),
    ),
    "mse": ("mse", F.mse_loss),
    "huber": (sx.loss.huber(0.5), lambda z, y: F.huber_loss(z, y, delta=0.5)),
    "binary_cross_entropy": ("binary_cross_entropy", F.binary_cross_entropy_with_logits),
    "mse + l1": (
        [sx.loss.Term(sx.loss.mse()), sx.loss.Term(sx.loss.l1(), weight=0.5)],
        lambda z, y: F.mse_loss(z, y) + 0.5 * F.l1_loss(z, y),
    ),
}
ENGINES = ("onnxruntime", "torch", "jax", "tensorflow")


@dataclass(frozen=True)
class Combination:
    """One walk: a network with its exporter, and the settings of its record."""

    network: str
    exporter: str
    optimizer: str
    loss: str
    engine: str = "onnxruntime"
    form: str = "symbolic"
    accumulate: int = 1
    schedule: str | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    groups: dict[str, dict[str, float]] = field(default_factory=dict)
    ema: float | None = None
    l1: float = 0.0
    l2: float = 0.0
    freeze: str | None = None
    batch_norm: str = "train"
    reload: bool = False

    def __str__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        first = " ".join(str(values.pop(n)) for n in ("network", "exporter", "optimizer", "loss"))
        rest = ", ".join(
            f"{n} {v}"
            for n, v in values.items()
            if v not in (None, {}, 0.0, "onnxruntime", "symbolic", "train")
            and (n, v) != ("accumulate", 1)
        )
        return f"{first}; {rest}" if rest else first


def drawn(seed: int, index: int) -> Combination:
    """The combination of this number; each setting is there in about half of them."""
    rng = np.random.default_rng([seed, index])
    pick = lambda options: list(options)[int(rng.integers(len(options)))]
    maybe = lambda value: value if rng.random() < 0.5 else None
    name, exporter = pick(NETWORKS), pick(EXPORTERS)
    if (name, exporter) == ("cnn", "script"):
        exporter = "script training"  # the other folds normalization into the convolutions
    if exporter == "dynamo optimized" and name in ("norms", "cnn", "twice", "tokens"):
        exporter = "dynamo"  # that one folds normalization and drops biases of zeros
    named = names_are_kept(name, exporter)
    engine = ENGINES[int(rng.choice(4, p=(0.76, 0.12, 0.08, 0.04)))]
    if name == "cnn" and engine == "onnxruntime":
        engine = "torch"  # onnxruntime has no Conv of float64
    clip = pick(("none", "norm", "value", "both"))
    group = pick(
        (
            {"*bias*": {"lr": 0.02}},
            {"*weight*": {"lr": 0.003, "weight_decay": 0.3}},
            {"*bias*": {"weight_decay": 0.0}, "*": {"lr": 0.003}},
        )
    )
    return Combination(
        name, exporter, pick(OPTIMIZERS), pick(LOSSES),
        engine=engine,
        form=pick(("symbolic", "expanded")),
        accumulate=pick((1, 1, 2, 3)),
        schedule=maybe(pick(SCHEDULES)),
        clip_norm=0.05 if clip in ("norm", "both") else None,
        clip_value=0.01 if clip in ("value", "both") else None,
        groups=group if named and rng.random() < 0.4 else {},
        ema=maybe(0.9), l1=maybe(1e-3) or 0.0, l2=maybe(1e-2) or 0.0,
        freeze="*bias*" if named and rng.random() < 0.2 and "*bias*" not in group else None,
        batch_norm="train" if rng.random() < 0.75 else "frozen",
        reload=bool(rng.random() < 0.3),
    )  # fmt: skip


def names_are_kept(name: str, exporter: str) -> bool:
    """Whether initializers have the names of parameters: folding makes tensors of other names."""
    return exporter in ("dynamo", "script training") or name in ("mlp", "cnn")


# -- both sides -------------------------------------------------------------------------


@dataclass
class Outcome:
    """Losses by step, and the tensors at the end by name: weights, statistics, averages."""

    losses: list[float]
    tensors: dict[str, np.ndarray]


def theirs(c: Combination, noise: torch.Generator | None = None) -> Outcome:
    """torch's own training, as its users write it; with `noise`, parameters move by rounding."""
    module = network(c.network).train()
    if c.batch_norm == "frozen":
        for norm in norms(module):
            norm.eval()
    named = {n: p for n, p in module.named_parameters() if not fnmatchcase(n, c.freeze or "")}
    optimizer = OPTIMIZERS[c.optimizer][1](_torch_groups(c, named))
    base = [g["lr"] for g in optimizer.param_groups]
    move_by_rounding(named, named, noise)
    average = {n: p.detach().clone() for n, p in named.items()}
    losses, updates = [], 0
    for step in range(STEPS):
        x, y = batch(c.network, c.loss, step)
        z = module(x)
        if c.network == "tokens" and c.loss.startswith("cross_entropy"):
            z = z.movedim(-1, 1)
        loss = LOSSES[c.loss][1](z, y)
        loss = loss + c.l1 * sum(p.abs().sum() for p in named.values())
        loss = loss + c.l2 / 2 * sum((p * p).sum() for p in named.values())
        losses.append(float(loss.detach()))
        (loss / c.accumulate).backward()
        if (step + 1) % c.accumulate:
            continue
        if c.clip_value is not None:
            nn.utils.clip_grad_value_(named.values(), c.clip_value)
        if c.clip_norm is not None:
            nn.utils.clip_grad_norm_(named.values(), c.clip_norm)
        factor = SCHEDULES[c.schedule][1](updates) if c.schedule else 1.0
        for group, rate in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = rate * factor
        before = {n: p.detach().clone() for n, p in named.items()}
        optimizer.step()
        move_by_rounding(named, before, noise)
        optimizer.zero_grad()
        updates += 1
        if c.ema is not None:
            average = {n: c.ema * average[n] + (1 - c.ema) * p.detach() for n, p in named.items()}
    tensors = {
        n: t.detach().numpy() for n, t in module.state_dict().items() if t.is_floating_point()
    }
    if c.ema is not None:
        tensors |= {f"{n}/ema": a.numpy() for n, a in average.items()}
    return Outcome(losses, tensors)


def move_by_rounding(
    named: dict[str, Any], before: dict[str, Any], noise: torch.Generator | None
) -> None:
    """Move every parameter by one unit in the last place, up or down.

    The unit is that of the larger number, before or after the update: where an update takes a
    parameter back to zero, what is left is the rounding of the numbers that cancelled.
    """
    if noise is None:
        return
    for name, parameter in named.items():
        size = torch.maximum(parameter.detach().abs(), before[name].detach().abs())
        side = torch.randint(0, 2, size.shape, generator=noise) * 2 - 1
        parameter.data += side * size * torch.finfo(size.dtype).eps


def _torch_groups(c: Combination, named: dict[str, Any]) -> list[dict[str, Any]]:
    rest, groups = dict(named), []
    for pattern, settings in c.groups.items():
        matching = [n for n in rest if fnmatchcase(n, pattern)]
        groups.append({"params": [rest.pop(n) for n in matching], **settings})
    return [*groups, *([{"params": list(rest.values())}] if rest else [])]


def trained(c: Combination) -> sx.Model:
    """The network of a combination with its record."""
    optimizer = OPTIMIZERS[c.optimizer][0]
    if c.schedule:
        optimizer = optimizer.schedule(SCHEDULES[c.schedule][0])
    settings: dict[str, Any] = {
        n: getattr(c, n)
        for n in ("accumulate", "clip_norm", "clip_value", "ema", "l1", "l2", "form", "batch_norm")
    }
    settings |= {"groups": copy.deepcopy(c.groups), "freeze": c.freeze or ()}
    return sx.trainable(exported(c.network, c.exporter), LOSSES[c.loss][0], optimizer, **settings)


def ours(c: Combination) -> Outcome:
    backend = importlib.import_module(f"sardonyx.engines.{c.engine}")
    options = {"threads": 1} if c.engine == "onnxruntime" else {}
    rep = backend.prepare_training(trained(c), **options)
    losses = []
    for step in range(STEPS):
        if c.reload and step == STEPS // 2:
            with tempfile.TemporaryDirectory() as folder:
                sx.save(rep.to_model(), Path(folder) / "half.onnx")
                rep = backend.prepare_training(
                    sx.load(Path(folder) / "half.onnx").copy(), **options
                )
        x, y = batch(c.network, c.loss, step)
        labels = ["label_0", "label_1"] if "+" in c.loss else ["label"]
        feeds = {"x": x.numpy(), **dict.fromkeys(labels, y.numpy())}
        losses.append(float(rep.step(feeds)["loss"]))
    return Outcome(losses, dict(rep.state()))


def judge(c: Combination) -> str:
    """What is off, in words; empty where both agree, `ROUNDING` and what where rounding decides."""
    expected = theirs(c)
    try:
        result = ours(c)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if names_are_kept(c.network, c.exporter):
        trained_names = [n for n in expected.tensors if not fnmatchcase(n, c.freeze or "")]
        if c.batch_norm == "frozen":
            trained_names = [n for n in trained_names if "running" not in n]
        missing = [n for n in trained_names if n not in result.tensors]
        if missing:
            return f"not trained: {', '.join(missing)}"
    off = {n: e for n, e in differences(result, expected).items() if not e < TOLERANCE}
    if not off:
        return ""
    noise = differences_by_rounding(c, expected)
    for name, error in off.items():
        if not error <= NOISE_RATIO * noise[name]:
            return f"{name} is off by {error:.2g}, rounding explains {noise[name]:.2g}"
    name = max(off, key=lambda n: off[n])
    return f"{ROUNDING}{name} is off by {off[name]:.2g}, torch's own by {noise[name]:.2g}"


ROUNDING = "rounding: "


def differences(result: Outcome, expected: Outcome) -> dict[str, float]:
    """By name: the largest difference, relative to the largest number."""
    pairs: dict[str, tuple[Any, Any]] = {
        f"loss {i}": p for i, p in enumerate(zip(result.losses, expected.losses, strict=True))
    }
    pairs |= {n: (result.tensors[n], t) for n, t in expected.tensors.items() if n in result.tensors}
    return {
        name: float(np.abs(np.asarray(a) - b).max() / max(float(np.abs(b).max()), 1e-3))
        for name, (a, b) in pairs.items()
    }


def differences_by_rounding(c: Combination, expected: Outcome) -> dict[str, float]:
    """By name: the largest difference of torch from itself under rounding, over several runs."""
    runs = [theirs(c, torch.Generator().manual_seed(seed)) for seed in range(RUNS_WITH_NOISE)]
    each = [differences(run, expected) for run in runs]
    return {name: max(run[name] for run in each) for name in each[0]}


def combinations(seed: int, count: int) -> Iterator[tuple[int, Combination]]:
    yield from ((index, drawn(seed, index)) for index in range(count))


def kept(path: Path | None) -> dict[str, str]:
    """Results of earlier runs by `seed:index`."""
    if path is None or not path.exists():
        return {}
    return dict(line.split("\t", 1) for line in path.read_text().splitlines())


def judged(key: str) -> tuple[str, str]:
    """The verdict on the combination `seed:index`, with its key."""
    torch.set_num_threads(1)
    return key, judge(drawn(*(int(n) for n in key.split(":"))))


def verdicts(keys: list[str], seconds: float, processes: int) -> Iterator[tuple[str, str]]:
    """Verdicts as they come, until the time is over."""
    begin = time.monotonic()
    if processes == 1:
        for key in keys:
            if time.monotonic() - begin > seconds:
                return
            yield judged(key)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for verdict in pool.imap_unordered(judged, keys):
            yield verdict
            if time.monotonic() - begin > seconds:
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="seed:index of one combination")
    parser.add_argument("--seconds", type=float, default=math.inf, help="then the walk ends")
    parser.add_argument("--keep", type=Path, help="a file of results: read, then added to")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--without", default="", help="an engine whose combinations are left out")
    arguments = parser.parse_args()
    seed, begin = arguments.seed, time.monotonic()
    todo = {f"{seed}:{i}": c for i, c in combinations(seed, arguments.count)}
    if arguments.only:
        todo = {arguments.only: drawn(*(int(n) for n in arguments.only.split(":")))}
    todo = {key: c for key, c in todo.items() if c.engine != arguments.without}
    results = {key: text for key, text in kept(arguments.keep).items() if key in todo}
    rest = [key for key in todo if key not in results]
    for key, verdict in verdicts(rest, arguments.seconds, arguments.processes):
        results[key] = verdict
        if arguments.keep:
            with arguments.keep.open("a") as file:
                file.write(f"{key}\t{verdict}\n")
        if verdict or arguments.only:
            print(f"{key:8} {verdict or 'same'}\n         {todo[key]}", flush=True)
    return summary(results, todo, time.monotonic() - begin)


def summary(results: dict[str, str], todo: dict[str, Combination], seconds: float) -> int:
    """Print how often each setting was tried, and the verdicts; 1 if one is off."""
    counts = Counter(
        (name, str(getattr(todo[key], name)))
        for key in results
        for name in ("network", "exporter", "engine", "optimizer", "accumulate", "schedule")
    )
    for (name, value), times in sorted(counts.items()):
        print(f"{name:12} {value:20} {times:5}")
    rounding = sum(text.startswith(ROUNDING) for text in results.values())
    off = sum(bool(text) for text in results.values()) - rounding
    print(
        f"{len(results)} combinations in {seconds:.0f} s, {off} off, "
        f"{rounding} where rounding decides"
    )
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())

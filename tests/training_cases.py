"""Makes the published training cases, `tests/data/training_cases`: records, data, oracles.

python -m tests.training_cases        write them anew

The records are ours or written by hand; what they must give comes from torch in float64, or, for
those by hand, from the formulas of ONNX's documentation in numpy. `tests/test_score_records.py`
computes the oracles again and holds the files against them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import torch

import sardonyx as sx
from sardonyx.model import Model
from tests.networks import lstm, mlp, network

FOLDER = Path(__file__).parent / "data" / "training_cases"
STEPS = 4
F = torch.nn.functional
O = torch.optim
Batches = list[dict[str, np.ndarray]]
Parameters = dict[str, torch.nn.Parameter]


class Case:
    """A record, its batches, and what is true after each step."""

    def __init__(self, model: onnx.ModelProto, batches: Batches, expected: Batches):
        self.model, self.batches, self.expected = model, batches, expected

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(self.model.SerializeToString(deterministic=True))
        for step, (batch, after) in enumerate(zip(self.batches, self.expected, strict=True)):
            inside = folder / f"test_data_set_{step}"
            inside.mkdir()
            for kind, values in (("input", batch), ("output", after)):
                for index, (name, value) in enumerate(values.items()):
                    narrow = value.astype(np.float32) if value.dtype == np.float64 else value
                    tensor = onnx.numpy_helper.from_array(np.asarray(narrow), name)
                    data = tensor.SerializeToString(deterministic=True)
                    (inside / f"{kind}_{index}.pb").write_bytes(data)


# -- the oracle in torch ------------------------------------------------------------------


def parameters_of(model: Model) -> Parameters:
    """The float weights of a model, in float64."""
    return {
        name: torch.nn.Parameter(torch.tensor(value.const_value.numpy().astype(np.float64)))
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.numpy().dtype.kind == "f"
    }


def followed(
    batches: Batches,
    parameters: Parameters,
    loss: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    before: Callable[[], Any] | None = None,
    also: Callable[[], dict[str, torch.Tensor]] = dict,
) -> Batches:
    """The loss of each step and the parameters after it."""
    result = []
    for batch in batches:
        inputs = {
            n: torch.tensor(a.astype(np.float64) if a.dtype == np.float32 else a)
            for n, a in batch.items()
        }
        optimizer.zero_grad()
        value = loss(inputs)
        value.backward()
        if before is not None:
            before()
        optimizer.step()
        after = {n: p for n, p in parameters.items() if p.requires_grad} | also()
        result.append(
            {"loss": value.detach().numpy().copy()}
            | {n: p.detach().numpy().copy() for n, p in after.items()}
        )
    return result


def batches(seed: int, **makers: Callable[[np.random.Generator], np.ndarray]) -> Batches:
    rng = np.random.default_rng(seed)
    return [{n: make(rng) for n, make in makers.items()} for _ in range(STEPS)]


def normal(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.normal(size=shape).astype(np.float32)


def classes(rows: int, count: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.integers(0, count, rows)


# -- multilayer perceptrons ------------------------------------------------------------------


def perceptron(p: Parameters, x: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(F.linear(x, p["fc0.weight"], p["fc0.bias"]))
    return F.linear(hidden, p["fc1.weight"], p["fc1.bias"])


def classified(ours: Any, theirs: Callable[[Any], Any], **settings: Any) -> Case:
    """A perceptron that learns classes, by an optimizer of ours and one of torch's."""
    model = mlp()
    p = parameters_of(model)
    if "train" in settings:
        for name in ("fc0.weight", "fc0.bias"):
            p[name].requires_grad_(False)
    trained = [v for v in p.values() if v.requires_grad]
    data = batches(1, x=normal(7, 6), label=classes(7, 3))
    clip = settings.get("clip_norm")
    expected = followed(
        data,
        p,
        lambda given: F.cross_entropy(perceptron(p, given["x"]), given["label"]),
        theirs(trained),
        before=(lambda: torch.nn.utils.clip_grad_norm_(trained, clip)) if clip else None,
    )
    return Case(sx.trainable(model, "cross_entropy", ours, **settings).proto(), data, expected)


def regressed(name: str, loss: Callable[..., torch.Tensor]) -> Case:
    """A perceptron that learns numbers, by one of several losses."""
    model = mlp()
    p = parameters_of(model)
    data = batches(2, x=normal(7, 6), label=normal(7, 3))
    expected = followed(
        data,
        p,
        lambda given: loss(perceptron(p, given["x"]), given["label"]),
        O.SGD(p.values(), 0.1),
    )
    return Case(sx.trainable(model, name, sx.optim.sgd(0.1)).proto(), data, expected)


def binary() -> Case:
    model = mlp()
    p = parameters_of(model)
    coin = lambda rng: rng.integers(0, 2, (7, 3)).astype(np.float32)
    data = batches(3, x=normal(7, 6), label=coin)
    expected = followed(
        data,
        p,
        lambda g: F.binary_cross_entropy_with_logits(perceptron(p, g["x"]), g["label"]),
        O.Adam(p.values(), 0.01),
    )
    net = sx.trainable(model, "binary_cross_entropy", sx.optim.adam(0.01))
    return Case(net.proto(), data, expected)


# -- other networks ---------------------------------------------------------------------------


def convolution() -> Case:
    """Convolution and batch normalization, whose statistics are updated by the record too."""
    rng = np.random.default_rng(4)
    weights = {
        "conv.weight": rng.normal(size=(4, 3, 3, 3)) * 0.3,
        "bn.weight": rng.uniform(0.5, 1.5, 4),
        "bn.bias": rng.normal(size=4) * 0.1,
        "bn.mean": rng.normal(size=4) * 0.1,
        "bn.var": rng.uniform(0.5, 1.5, 4),
        "fc.weight": rng.normal(size=(3, 4)),
        "fc.bias": rng.normal(size=3) * 0.1,
    }
    text = """cnn (float[N,3,8,8] x) => (float[N,3] scores) {
        c = Conv <pads = [1, 1, 1, 1]> (x, conv.weight)
        b = BatchNormalization <momentum = 0.9> (c, bn.weight, bn.bias, bn.mean, bn.var)
        t = Tanh (b)
        p = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (t)
        g = GlobalAveragePool (p)
        f = Flatten (g)
        scores = Gemm <transB = 1> (f, fc.weight, fc.bias)
    }"""
    model = network(text, weights)
    p = parameters_of(model)
    mean, variance = (p.pop(n).detach().clone() for n in ("bn.mean", "bn.var"))

    def loss(given: dict[str, torch.Tensor]) -> torch.Tensor:
        x = F.conv2d(given["x"], p["conv.weight"], padding=1)
        # The record updates the statistics as torch does: the variance is the unbiased one.
        x = F.batch_norm(x, mean, variance, p["bn.weight"], p["bn.bias"], True, 0.1, 1e-5)
        x = F.avg_pool2d(torch.tanh(x), 2).mean((2, 3))
        return F.cross_entropy(F.linear(x, p["fc.weight"], p["fc.bias"]), given["label"])

    data = batches(4, x=normal(5, 3, 8, 8), label=classes(5, 3))
    optimizer = O.SGD(p.values(), 0.1, 0.9)
    statistics = lambda: {"bn.mean": mean.clone(), "bn.var": variance.clone()}
    expected = followed(data, p, loss, optimizer, also=statistics)
    net = sx.trainable(model, "cross_entropy", sx.optim.sgd(0.1, 0.9))
    return Case(net.proto(), data, expected)


def recurrence() -> Case:
    """An LSTM; torch orders its gates i, f, g, o and ONNX i, o, f, g."""
    model = lstm()
    p = parameters_of(model)
    order = torch.tensor([0, 2, 3, 1])

    def gates(name: str) -> torch.Tensor:
        w = p[name][0]
        return w.reshape(4, 4, -1)[order].reshape(w.shape[0], -1)

    def loss(given: dict[str, torch.Tensor]) -> torch.Tensor:
        first, second = p["lstm.bias"][0].reshape(2, 4, 4)[:, order].reshape(2, 16)
        weights = [gates("lstm.weight"), gates("lstm.recurrence"), first, second]
        zero = torch.zeros(1, given["x"].shape[0], 4, dtype=torch.float64)
        _, state, _ = torch._VF.lstm(
            given["x"].transpose(0, 1), (zero, zero), weights, True, 1, 0.0, False, False, False
        )
        return F.cross_entropy(F.linear(state[0], p["fc.weight"], p["fc.bias"]), given["label"])

    data = batches(5, x=normal(5, 6, 3), label=classes(5, 3))
    expected = followed(data, p, loss, O.SGD(p.values(), 0.2))
    return Case(sx.trainable(model, "cross_entropy", sx.optim.sgd(0.2)).proto(), data, expected)


def embedding() -> Case:
    """A table of words, of which a batch touches few rows."""
    rng = np.random.default_rng(6)
    weights = {"embed.weight": rng.normal(size=(11, 4)), "fc.weight": rng.normal(size=(3, 4))}
    text = """words (int64[N,T] ids) => (float[N,3] scores) {
        e = Gather (embed.weight, ids)
        axis = Constant <value_ints = [1]> ()
        m = ReduceMean <keepdims = 0> (e, axis)
        scores = Gemm <transB = 1> (m, fc.weight)
    }"""
    model = network(text, weights)
    p = parameters_of(model)
    data = batches(6, ids=lambda rng: rng.integers(0, 11, (5, 3)), label=classes(5, 3))
    expected = followed(
        data,
        p,
        lambda g: F.cross_entropy(
            F.linear(p["embed.weight"][g["ids"]].mean(1), p["fc.weight"]), g["label"]
        ),
        O.Adam(p.values(), 0.05),
    )
    return Case(sx.trainable(model, "cross_entropy", sx.optim.adam(0.05)).proto(), data, expected)


# -- records by hand ---------------------------------------------------------------------------

SERVED = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>
served (float[N,3] x) => (float[N,1] y) <float[3,1] w = {0.5, -1, 0.25}> { y = MatMul(x, w) }"""
LOSS = """d = Sub(y, label)
    s = Mul(d, d)
    loss = ReduceMean<keepdims = 0>(s)
    g = ai.onnx.preview.training.Gradient<xs = ["w"], y = "loss">(w)"""
PLAIN = f"""train (float[N,1] label) => (float loss, float[3,1] w_new) <float rate = {{0.1}}> {{
    {LOSS}
    u = Mul(g, rate)
    w_new = Sub(w, u)
}}"""


def optimized(op: str, slots: str, attributes: str) -> str:
    """A record whose update is one operator of ONNX, with a counter and slots."""
    inputs = "".join(f", float[3,1] {s} = {{0, 0, 0}}" for s in slots.split())
    after = ", ".join(f"{s}_new" for s in ("w", *slots.split()))
    types = ", ".join(f"float[3,1] {s}_new" for s in ("w", *slots.split()))
    return f"""train (float[N,1] label) => (float loss, {types}, int64 count_new)
    <float rate = {{0.1}}, int64 count = {{0}}, int64 one = {{1}}{inputs}> {{
        {LOSS}
        {after} = ai.onnx.preview.training.{op}<{attributes}>
            (rate, count, w, g, {", ".join(slots.split())})
        count_new = Add(count, one)
    }}"""


def by_hand(record: str, update: Callable[..., tuple[Any, ...]], slots: str = "") -> Case:
    """A linear model under squared loss; `update(t, w, g, *slots)` is the formula."""
    model = onnx.parser.parse_model(SERVED)
    names = ["w", *slots.split()]
    pairs = [(n, f"{n}_new") for n in names] + ([("count", "count_new")] if slots else [])
    info = onnx.helper.make_training_info(onnx.parser.parse_graph(record), pairs, None, None)
    model.training_info.append(info)
    state = [np.array([[0.5], [-1.0], [0.25]]), *(np.zeros((3, 1)) for _ in slots.split())]
    data = batches(7, x=normal(5, 3), label=normal(5, 1))
    expected = []
    for t, batch in enumerate(data):
        x, label = batch["x"].astype(np.float64), batch["label"].astype(np.float64)
        error = x @ state[0] - label
        gradient = 2 * x.T @ error / len(x)
        state = list(update(t, state[0], gradient, *state[1:]))
        after = {"loss": np.asarray((error**2).mean())} | dict(zip(names, state, strict=True))
        expected.append({n: np.array(a) for n, a in after.items()})
    return Case(model, data, expected)


def f32(value: float) -> float:
    """An attribute as a file stores it."""
    return float(np.float32(value))


RATE = f32(0.1)


def momentum(t: int, w: Any, g: Any, v: Any) -> tuple[Any, Any]:
    v = f32(0.9) * v + (f32(0.5) if t > 0 else 1.0) * g
    return w - RATE * v, v


def adam(t: int, w: Any, g: Any, v: Any, h: Any) -> tuple[Any, Any, Any]:
    a, b = f32(0.9), f32(0.99)
    v, h = a * v + (1 - a) * g, b * h + (1 - b) * g * g
    rate = RATE * np.sqrt(1 - b**t) / (1 - a**t) if t > 0 else RATE
    return w - rate * v / (np.sqrt(h) + f32(1e-4)), v, h


def adagrad(t: int, w: Any, g: Any, h: Any) -> tuple[Any, Any]:
    h = h + g * g
    return w - RATE / (1 + t * f32(0.1)) * g / (np.sqrt(h) + f32(1e-3)), h


# -- all of them ----------------------------------------------------------------------------------

optim = sx.optim
CASES: dict[str, Callable[[], Case]] = {
    "by_hand_gradient": lambda: by_hand(PLAIN, lambda t, w, g: (w - RATE * g,)),
    "by_hand_momentum": lambda: by_hand(
        optimized(
            "Momentum", "v", 'alpha = 0.9, beta = 0.5, mode = "standard", norm_coefficient = 0.0'
        ),
        momentum,
        "v",
    ),
    "by_hand_adam": lambda: by_hand(
        optimized("Adam", "v h", "alpha = 0.9, beta = 0.99, epsilon = 0.0001"), adam, "v h"
    ),
    "by_hand_adagrad": lambda: by_hand(
        optimized("Adagrad", "h", "decay_factor = 0.1, epsilon = 0.001"), adagrad, "h"
    ),
    "mlp_sgd": lambda: classified(optim.sgd(0.1), lambda p: O.SGD(p, 0.1)),
    "mlp_momentum": lambda: classified(optim.sgd(0.1, 0.9), lambda p: O.SGD(p, 0.1, 0.9)),
    "mlp_nesterov_decay": lambda: classified(
        optim.sgd(0.1, 0.9, nesterov=True, weight_decay=0.1),
        lambda p: O.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=0.1),
    ),
    "mlp_adam": lambda: classified(optim.adam(0.01), lambda p: O.Adam(p, 0.01)),
    "mlp_adamw": lambda: classified(
        optim.adamw(0.01, weight_decay=0.2), lambda p: O.AdamW(p, 0.01, weight_decay=0.2)
    ),
    "mlp_adagrad": lambda: classified(
        optim.adagrad(0.05, 0.1, initial=0.1), lambda p: O.Adagrad(p, 0.05, 0.1, 0, 0.1)
    ),
    "mlp_rmsprop": lambda: classified(optim.rmsprop(0.01), lambda p: O.RMSprop(p, 0.01)),
    "mlp_head_only": lambda: classified(optim.sgd(0.1), lambda p: O.SGD(p, 0.1), train="fc1.*"),
    "mlp_clipped": lambda: classified(optim.sgd(0.5), lambda p: O.SGD(p, 0.5), clip_norm=0.1),
    "mlp_expanded": lambda: classified(
        optim.adam(0.01), lambda p: O.Adam(p, 0.01), form="expanded"
    ),
    "mlp_mse": lambda: regressed("mse", F.mse_loss),
    "mlp_huber": lambda: regressed("huber", F.huber_loss),
    "mlp_binary": binary,
    "cnn_batch_norm": convolution,
    "lstm": recurrence,
    "embedding": embedding,
}


def made() -> Iterator[tuple[str, Case]]:
    for name, make in CASES.items():
        yield name, make()


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, case in made():
        case.write(FOLDER / name)
        print(name)


if __name__ == "__main__":
    main()

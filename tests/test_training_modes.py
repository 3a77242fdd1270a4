"""BatchNormalization and Dropout while training, against torch; and the hazards of stock
onnxruntime.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner, prepare_training
from sardonyx.model import Model

torch = pytest.importorskip("torch")

CHANNELS = 4


def network(
    norms: int = 1,
    dropout: float | None = None,
    fresh: bool = False,
    momentum: float = 0.9,
    channels: int = CHANNELS,
) -> Model:
    """Conv, then `norms` BatchNormalizations `bn0`, `bn1` …, Relu, Dropout, pooling, Gemm.

    fresh -- scale 1, shift 0, mean 0, variance 1: equal constants, which onnxruntime merges
    """
    rng = np.random.default_rng(0)
    weights = {
        "conv.weight": rng.normal(size=(channels, 3, 3, 3)) * 0.3,
        "conv.bias": rng.normal(size=channels) * 0.1,
        "fc.weight": rng.normal(size=(3, channels)),
        "fc.bias": rng.normal(size=3) * 0.1,
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], "conv", pads=[1] * 4)
    ]
    value = "c"
    for i in range(norms):
        start = (np.ones, np.zeros, np.zeros, np.ones)
        for name, make in zip(("scale", "shift", "mean", "var"), start, strict=True):
            drawn = rng.uniform(0.5, 1.5, channels)
            weights[f"bn{i}.{name}"] = make(channels) if fresh else drawn
        inputs = [value, *(f"bn{i}.{n}" for n in ("scale", "shift", "mean", "var"))]
        nodes.append(
            helper.make_node("BatchNormalization", inputs, [f"b{i}"], f"bn{i}", momentum=momentum)
        )
        value = f"b{i}"
    nodes.append(helper.make_node("Relu", [value], ["r"], "relu"))
    value = "r"
    if dropout is not None:
        weights["ratio"] = np.asarray(dropout)
        nodes.append(helper.make_node("Dropout", [value, "ratio"], ["dropped"], "drop"))
        value = "dropped"
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["scores"], "fc", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", 1, ["N", 3, 6, 6])],
        [helper.make_tensor_value_info("scores", 1, ["N", 3])],
        [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in weights.items()],
    )
    return sx.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


class Twin:
    """The same network in torch, in float64; `train` says which norms normalize by the batch."""

    def __init__(self, model: Model, train: set[str], trained: set[str] | None = None):
        self.train = train
        self.w = {
            n: torch.tensor(v.const_value.numpy().astype(np.float64))  # type: ignore[union-attr]
            for n, v in model.graph.initializers.items()
        }
        self.norms = sorted({n.split(".")[0] for n in self.w if n.startswith("bn")})
        statistics = {f"{b}.{s}" for b in self.norms for s in ("mean", "var")}
        names = trained if trained is not None else set(self.w) - statistics - {"ratio"}
        self.parameters = [self.w[n].requires_grad_() for n in sorted(names)]
        self.optimizer = torch.optim.SGD(self.parameters, 0.1, 0.9)

    def step(self, x: np.ndarray, y: np.ndarray, mask: np.ndarray | None = None) -> float:
        F, w = torch.nn.functional, self.w
        h = F.conv2d(
            torch.tensor(x.astype(np.float64)), w["conv.weight"], w["conv.bias"], padding=1
        )
        for b in self.norms:
            mean, var = w[f"{b}.mean"], w[f"{b}.var"]
            h = F.batch_norm(h, mean, var, w[f"{b}.scale"], w[f"{b}.shift"], b in self.train, 0.1)
        h = torch.relu(h)
        if mask is not None:
            h = h * torch.tensor(mask)
        z = h.mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"]
        loss = F.cross_entropy(z, torch.tensor(y))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def batches(count: int, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(5, 3, 6, 6)).astype(np.float32), rng.integers(0, 3, 5))
        for _ in range(count)
    ]


MODES: dict[str, tuple[object, set[str]]] = {
    "train": ("train", {"bn0", "bn1"}),
    "frozen": ("frozen", set()),
    "by pattern": ({"bn1": "train", "*": "frozen"}, {"bn1"}),
    "by pattern, others frozen": ({"bn0": "train"}, {"bn0"}),
}


@pytest.mark.parametrize("fresh", [False, True], ids=["", "equal constants"])
@pytest.mark.parametrize("mode", MODES)
def test_batch_normalization_as_in_torch(mode: str, fresh: bool) -> None:
    inputs, train = MODES[mode]
    model = network(2, fresh=fresh)
    net = sx.trainable(model, "cross_entropy", sx.optim.sgd(0.1, 0.9), batch_norm=inputs)  # type: ignore[arg-type]
    rep, twin = prepare_training(net, threads=1), Twin(model, train)
    for x, y in batches(15):
        result = rep.step({"x": x, "label": y})["loss"]
        np.testing.assert_allclose(result, twin.step(x, y), rtol=2e-4)
    served = rep.to_model()
    for name, value in twin.w.items():
        found_w = served.initializer(name).numpy()
        np.testing.assert_allclose(
            found_w, value.detach().numpy(), rtol=1e-3, atol=1e-4, err_msg=name
        )
    keys = {k for k, _ in net.records[0].update_binding}
    assert {k for k in keys if k.endswith((".mean", ".var"))} == {
        f"{b}.{s}" for b in train for s in ("mean", "var")
    }


def test_served_model_uses_the_running_statistics() -> None:
    model = network(1)
    rep = prepare_training(sx.trainable(model, "cross_entropy", sx.optim.sgd(0.1)), threads=1)
    for x, y in batches(5):
        rep.step({"x": x, "label": y})
    x = batches(1, seed=9)[0][0]
    state = rep.state()
    assert not np.array_equal(state["bn0.mean"], model.initializer("bn0.mean").numpy())
    result = rep.run({"x": x})["scores"]
    # onnxruntime folds constant statistics into the Conv before them: rounded elsewhere
    np.testing.assert_allclose(
        result, Runner(rep.to_model())({"x": x})["scores"], rtol=1e-5, atol=1e-6
    )
    one = rep.run({"x": x[:1]})["scores"]
    np.testing.assert_allclose(
        one, result[:1], rtol=1e-5, err_msg="inference does not depend on the batch"
    )


def test_served_graph_keeps_its_nodes_and_its_bits() -> None:
    model = network(2, dropout=0.5)
    net = sx.trainable(model, "cross_entropy")
    assert [n.op_type for n in net.graph] == [n.op_type for n in model.graph]
    x = batches(1)[0][0]
    before = onnxruntime.InferenceSession(model.proto().SerializeToString()).run(None, {"x": x})[0]
    assert np.array_equal(Runner(net)({"x": x})["scores"], before)


def test_dropout_scales_what_it_keeps_and_differs_from_step_to_step() -> None:
    identity = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "w"], ["m"]),
            helper.make_node("Dropout", ["m", "ratio"], ["y"], "drop"),
        ],
        "dropping",
        [helper.make_tensor_value_info("x", 1, ["N", 1000])],
        [helper.make_tensor_value_info("y", 1, ["N", 1000])],
        [
            numpy_helper.from_array(np.ones(1000, np.float32), "w"),
            numpy_helper.from_array(np.float32(0.3), "ratio"),
        ],
    )
    model = sx.load(
        helper.make_model(identity, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    sum_of = lambda op, z, y: op.ReduceSum(op.Mul(z, y), keepdims=0)
    rep = prepare_training(sx.trainable(model, sum_of, sx.optim.sgd(1.0), train="w"), threads=1)
    x = np.ones((1, 1000), np.float32)
    masks = []
    for _ in range(2):
        before = rep.state()["w"]
        rep.step({"x": x, "label": np.ones((1, 1000), np.float32)})
        masks.append(before - rep.state()["w"])
    for mask in masks:
        kept = mask > 0.5
        np.testing.assert_allclose(mask[kept], 1 / 0.7, rtol=1e-5)
        np.testing.assert_allclose(mask[~kept], 0, atol=1e-6)
        assert 0.64 < kept.mean() < 0.76, "four deviations around 0.7"
    assert not np.array_equal(masks[0] > 0.5, masks[1] > 0.5)
    assert np.array_equal(rep.run({"x": x})["y"], (x * rep.state()["w"]))


def test_dropout_frozen_is_absent_and_seeds_repeat() -> None:
    x, y = batches(1)[0]
    losses = lambda **k: [
        float(
            prepare_training(sx.trainable(network(0, 0.5), "cross_entropy", **k), threads=1).step(
                {"x": x, "label": y}
            )["loss"]
        )
        for _ in range(2)
    ]
    first, again = losses(seed=1)
    assert first == again
    assert losses(seed=2)[0] != first
    assert losses(dropout="frozen")[0] == pytest.approx(
        float(
            prepare_training(sx.trainable(network(0), "cross_entropy"), threads=1).step(
                {"x": x, "label": y}
            )["loss"]
        ),
        rel=1e-6,
    )


# -- hazards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [4, 8, 9, 64])
def test_equal_constants_are_not_merged_into_the_statistics(channels: int) -> None:
    """onnxruntime shares equal constants of up to 8 elements: the loss must not depend on that."""
    model = network(1, fresh=True, channels=channels)
    rep = prepare_training(sx.trainable(model, "cross_entropy", sx.optim.sgd(0.0)), threads=1)
    twin = Twin(model, {"bn0"})
    twin.optimizer = torch.optim.SGD(twin.parameters, 0.0)
    for x, y in batches(4):
        np.testing.assert_allclose(
            rep.step({"x": x, "label": y})["loss"], twin.step(x, y), rtol=1e-4
        )


def test_one_broken_batch_does_not_poison_the_session() -> None:
    net = sx.trainable(network(1, fresh=True), "cross_entropy", sx.optim.sgd(0.1, 0.9))
    rep, clean = prepare_training(net, threads=1), prepare_training(net, threads=1)
    data = batches(4)
    for x, y in data[:2]:
        rep.step({"x": x, "label": y})
        clean.step({"x": x, "label": y})
    kept = rep.state()
    broken = np.full_like(data[0][0], np.nan)
    assert np.isnan(rep.step({"x": broken, "label": data[0][1]})["loss"])
    rep.load_state(kept)
    for x, y in data[2:]:
        assert rep.step({"x": x, "label": y})["loss"] == clean.step({"x": x, "label": y})["loss"]
    for name, value in clean.state().items():
        assert np.array_equal(rep.state()[name], value), name


def test_two_sessions_of_one_model_do_not_share_state() -> None:
    net = sx.trainable(network(1), "cross_entropy", sx.optim.sgd(0.1))
    before = {n: v.const_value.numpy().copy() for n, v in net.graph.initializers.items()}  # type: ignore[union-attr]
    a, b = prepare_training(net, threads=1), prepare_training(net, threads=1)
    x, y = batches(1)[0]
    first = a.step({"x": x, "label": y})["loss"]
    a.step({"x": x, "label": y})
    assert b.step({"x": x, "label": y})["loss"] == first
    for name, value in net.graph.initializers.items():
        assert np.array_equal(value.const_value.numpy(), before[name]), (
            f"{name} of the model changed"
        )  # type: ignore[union-attr]


def test_the_callers_arrays_are_never_written() -> None:
    rep = prepare_training(sx.trainable(network(1), "cross_entropy"), threads=1)
    x, y = batches(1)[0]
    kept_x, kept_y = x.copy(), y.copy()
    state = rep.state()
    kept = {n: a.copy() for n, a in state.items()}
    rep.load_state(state)
    figures = [rep.step({"x": x, "label": y}) for _ in range(3)]
    assert np.array_equal(x, kept_x) and np.array_equal(y, kept_y)
    assert all(np.array_equal(state[n], kept[n]) for n in kept)
    assert len({float(f["loss"]) for f in figures}) == 3, (
        "a figure keeps its value after later steps"
    )


def test_new_weights_do_not_reach_readers_of_old_ones() -> None:
    """w is read by its own update and by that of v; both must see the value before the step."""
    from onnx.parser import parse_graph, parse_model

    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,600] x) => (float[N,600] y) { y = Identity(x) }"""
    )
    algorithm = parse_graph(
        """t () => (float[600,600] w_new, float[600,600] v_new) {
        w_new = Neg(w)
        a = MatMul(w, w)
        b = Add(a, w)
        v_new = Add(b, v)
        }"""
    )
    rng = np.random.default_rng(0)
    w = (rng.normal(size=(600, 600)) / 25).astype(np.float32)
    for name, value in (("w", w), ("v", np.zeros_like(w))):
        algorithm.initializer.append(numpy_helper.from_array(value, name))
    model.training_info.append(
        helper.make_training_info(algorithm, [("w", "w_new"), ("v", "v_new")], None, None)
    )
    rep = prepare_training(model, threads=2)
    v = np.zeros((600, 600))
    for _ in range(4):
        rep.step({})
        v = v + w.astype(np.float64) @ w + w
        w = -w
        assert np.array_equal(rep.state()["w"], w)
        np.testing.assert_allclose(rep.state()["v"], v, rtol=1e-3, atol=1e-4)

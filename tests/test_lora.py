"""Adapters against LoRA written by hand in torch or NumPy, and the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import ArgumentError
from sardonyx.model import Model

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test draws the same numbers, whichever tests ran before it in its process."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(5))


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(RNG.normal(size=shape), dtype)


def network(nodes: list[Any], weights: dict[str, np.ndarray], shape: list[Any]) -> Model:
    """A model of the input `x` and the output `y`."""
    floats = next(w.dtype for w in weights.values() if w.dtype.kind == "f")
    kind = helper.np_dtype_to_tensor_dtype(floats)
    graph = helper.make_graph(
        [helper.make_node(*n[:3], name=n[2][0], **(n[3] if len(n) > 3 else {})) for n in nodes],
        "network",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return sx.load(helper.make_model(graph, opset_imports=imports, ir_version=10))


def mlp() -> Model:
    return network(
        [
            ("Gemm", ["x", "w1", "b1"], ["h"], {"transB": 1}),
            ("Relu", ["h"], ["r"]),
            ("MatMul", ["r", "w2"], ["m"]),
            ("Add", ["m", "b2"], ["y"]),
        ],
        {"w1": normal(16, 12) / 4, "b1": normal(16), "w2": normal(16, 9) / 4, "b2": normal(9)},
        ["N", 12],
    )


def with_values(model: Model, seed: int = 7) -> tuple[Model, dict[str, np.ndarray]]:
    """A copy whose adapters are random, B too, and their values."""
    rng = np.random.default_rng(seed)
    arrays = {
        n: (rng.normal(size=v.const_value.shape.numpy()) * 0.3).astype(v.const_value.dtype.numpy())  # type: ignore[union-attr]
        for n, v in model.graph.initializers.items()
        if ".lora_" in n
    }
    return sx.with_weights(model, arrays, partial=True), arrays


def run(model: Model, x: np.ndarray) -> np.ndarray:
    return Runner(model)({"x": x})["y"]


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float = 1e-6) -> None:
    size = np.abs(expected).max()
    np.testing.assert_allclose(actual / size, expected / size, rtol=0, atol=tolerance)


# -- a network in training --------------------------------------------------------------


class Lora(torch.nn.Module):
    """x·W + b + alpha / rank · x·A·B, W as (in, out)."""

    def __init__(self, w: Any, b: Any, first: Any, second: Any, scale: float):
        super().__init__()
        self.w, self.b = torch.tensor(w), torch.tensor(b)
        self.first = torch.nn.Parameter(torch.tensor(first))
        self.second = torch.nn.Parameter(torch.tensor(second))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w + self.b + x @ self.first @ self.second * self.scale


def test_fifty_steps_are_those_of_torch() -> None:
    model = sx.lora(mlp(), rank=3, alpha=6)
    arrays = {n: v.const_value.numpy().copy() for n, v in model.graph.initializers.items()}  # type: ignore[union-attr]
    x, labels = normal(40, 12), RNG.integers(0, 9, 40)
    layers = [
        Lora(w, arrays[f"b{i}"], arrays[f"w{i}.lora_A"], arrays[f"w{i}.lora_B"], 2.0)
        for i, w in ((1, arrays["w1"].T.copy()), (2, arrays["w2"]))
    ]
    reference = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    optimizer = torch.optim.AdamW(reference.parameters(), 1e-2, weight_decay=0.01)
    rep = sx.prepare_training(sx.trainable(model, "cross_entropy", sx.optim.adamw(1e-2)))
    ours, theirs = [], []
    for start in range(50):
        rows = np.arange(start, start + 8) % 40
        ours.append(float(rep.step({"x": x[rows], "label": labels[rows]})["loss"]))
        loss = torch.nn.functional.cross_entropy(
            reference(torch.tensor(x[rows])), torch.tensor(labels[rows])
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    state = rep.state()
    for i, layer in ((1, layers[0]), (2, layers[1])):
        close(state[f"w{i}.lora_A"], layer.first.detach().numpy(), 1e-4)
        close(state[f"w{i}.lora_B"], layer.second.detach().numpy(), 1e-4)
    trained = rep.to_model()
    merged = sx.merge_lora(trained)
    close(run(merged, x), run(trained, x))
    for name in ("b1", "b2"):
        assert np.array_equal(merged.initializer(name).numpy(), arrays[name])
    assert list(merged.graph.initializers) == ["w1", "b1", "w2", "b2"]
    assert [v.name for v in merged.graph.inputs] == ["x"] and not merged.records


def test_only_adapters_are_trained() -> None:
    base = mlp()
    model = sx.lora(base, rank=2, dropout=0.1)
    data = {"x": normal(32, 12), "label": RNG.integers(0, 9, 32)}
    trained = sx.train(model, data, loss="cross_entropy", epochs=2, lr=0.1, display="quiet").model
    changed = [
        n
        for n, v in model.graph.initializers.items()
        if not np.array_equal(v.const_value.numpy(), trained.initializer(n).numpy())  # type: ignore[union-attr]
    ]
    assert sorted(changed) == ["w1.lora_A", "w1.lora_B", "w2.lora_A", "w2.lora_B"]


# -- every product ----------------------------------------------------------------------

IMAGE = ["N", 6, 7, 7]


def gemm(alpha: float = 1.0, **transposed: int) -> Any:
    return {"alpha": alpha, **transposed}


# name → nodes, weights, shape of x, the weight, (A, B) → the change of the weight
CASES: dict[str, Any] = {
    "MatMul": ([("MatMul", ["x", "w"], ["y"])], {"w": normal(6, 5)}, ["N", 6]),
    "MatMul, three axes": ([("MatMul", ["x", "w"], ["y"])], {"w": normal(6, 5)}, ["N", 3, 6]),
    "MatMul, float64": (
        [("MatMul", ["x", "w"], ["y"])],
        {"w": normal(6, 5, dtype=np.float64)},
        ["N", 6],
    ),
    "MatMul, a matrix for each head": (
        [("MatMul", ["x", "w"], ["y"])],
        {"w": normal(3, 6, 5)},
        ["N", 3, 2, 6],
    ),
    "MatMul, weight first": ([("MatMul", ["w", "x"], ["y"])], {"w": normal(5, 6)}, [6, 4]),
    "MatMul of a Transpose": (
        [("Transpose", ["w"], ["t"], {"perm": [1, 0]}), ("MatMul", ["x", "t"], ["y"])],
        {"w": normal(5, 6)},
        ["N", 6],
    ),
    "Gemm, alpha and beta": (
        [("Gemm", ["x", "w", "b"], ["y"], gemm(0.5, transB=1))],
        {"w": normal(5, 6), "b": normal(5)},
        ["N", 6],
    ),
    "Gemm, x transposed": (
        [("Gemm", ["x", "w"], ["y"], gemm(transA=1))],
        {"w": normal(6, 5)},
        [6, 4],
    ),
    "Gemm, weight first": (
        [("Gemm", ["w", "x"], ["y"], gemm(2.0, transA=1, transB=1))],
        {"w": normal(6, 5)},
        [4, 6],
    ),
    "Conv": (
        [("Conv", ["x", "w", "b"], ["y"], {"pads": [1, 1, 1, 1], "strides": [2, 2]})],
        {"w": normal(8, 6, 3, 3), "b": normal(8)},
        IMAGE,
    ),
    "Conv, dilated, one axis": (
        [("Conv", ["x", "w"], ["y"], {"dilations": [2], "pads": [2, 0]})],
        {"w": normal(8, 6, 3)},
        ["N", 6, 9],
    ),
    "Conv, grouped": (
        [("Conv", ["x", "w"], ["y"], {"group": 2, "pads": [0, 1, 1, 0]})],
        {"w": normal(8, 3, 3, 3)},
        IMAGE,
    ),
    "Conv, auto_pad": (
        [("Conv", ["x", "w"], ["y"], {"auto_pad": "SAME_UPPER", "strides": [2, 2]})],
        {"w": normal(8, 6, 3, 3)},
        IMAGE,
    ),
}


def changed_weight(name: str, w: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """W + 2·A·B, written out for each case."""
    if name.startswith("Conv"):
        groups = 2 if "grouped" in name else 1
        change = np.zeros_like(w)
        wide, rank = w.shape[0] // groups, b.shape[1]
        for group in range(groups):
            for out in range(wide):
                for k in range(rank):
                    o = group * wide + out
                    change[o] += b[o, k].reshape(()) * a[group * rank + k]
        return w + 2 * change
    product = np.matmul(b, a) if "weight first" in name else np.matmul(a, b)
    transposed = "Transpose" in name or "alpha and beta" in name or name == "Gemm, weight first"
    return w + 2 * (product.T if transposed else product)


@pytest.mark.parametrize("name", CASES)
def test_the_path_adds_the_product_of_the_factors(name: str, tmp_path: Path) -> None:
    nodes, weights, shape = CASES[name]
    model = network(nodes, weights, shape)
    x = normal(*(4 if d == "N" else d for d in shape), dtype=weights["w"].dtype)
    fresh = sx.lora(model, rank=2, alpha=4)
    assert np.array_equal(run(fresh, x), run(model, x))
    adapted, values = with_values(fresh)
    a, b = values["w.lora_A"], values["w.lora_B"]
    expected = network(nodes, {**weights, "w": changed_weight(name, weights["w"], a, b)}, shape)
    close(run(adapted, x), run(expected, x))
    file = sx.save(adapted, tmp_path / "adapted.onnx")
    onnx.checker.check_model(str(file), full_check=True)
    merged = sx.merge_lora(file)
    close(run(merged, x), run(adapted, x))
    assert not [n for n in merged.graph.initializers if "lora" in n]


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_the_factors_are_those_of_torch(name: str) -> None:
    nodes, weights, shape = CASES[name]
    x = normal(*(4 if d == "N" else d for d in shape), dtype=weights["w"].dtype)
    adapted, values = with_values(sx.lora(network(nodes, weights, shape), rank=2, alpha=4))
    step = sx.trainable(adapted, "mse", sx.optim.sgd(1.0))
    target = normal(*run(adapted, x).shape, dtype=x.dtype)
    rep = sx.prepare_training(step)
    rep.step({"x": x, "label": target})
    tensors = {n: t.requires_grad_() for n, t in _torch(values).items()}
    loss = torch.nn.functional.mse_loss(
        _torch_output(name, weights, tensors, torch.tensor(x)), torch.tensor(target)
    )
    loss.backward()
    for n, tensor in tensors.items():
        close(values[n] - rep.state()[n], tensor.grad.numpy(), 1e-5)  # type: ignore[union-attr]


def _torch(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {n: torch.tensor(a) for n, a in arrays.items()}


def _torch_output(name: str, weights: Any, factors: Any, x: torch.Tensor) -> Any:
    """The network in torch, with its weight replaced by W + 2·A·B."""
    a, b, w = factors["w.lora_A"], factors["w.lora_B"], torch.tensor(weights["w"])
    bias = torch.tensor(weights["b"]) if "b" in weights else None
    if name.startswith("Conv"):
        groups = 2 if "grouped" in name else 1
        parts = [
            torch.einsum("or,r...->o...", second.flatten(1), first)
            for first, second in zip(a.chunk(groups), b.chunk(groups), strict=True)
        ]
        w = w + 2 * torch.cat(parts)
        if w.ndim == 3:
            return torch.conv1d(torch.nn.functional.pad(x, [2, 0]), w, dilation=2)
        pads = {"grouped": [1, 0, 0, 1], "auto_pad": [1, 1, 1, 1]}
        pad = next((p for k, p in pads.items() if k in name), [1, 1, 1, 1])
        stride = 1 if "grouped" in name else 2
        padded = torch.nn.functional.pad(x, pad)
        return torch.conv2d(padded, w, bias, stride=stride, groups=groups)
    change = b @ a if "weight first" in name else a @ b
    if name == "MatMul, weight first":
        return (w + 2 * change) @ x
    if name == "Gemm, weight first":
        return 2.0 * (w + 2 * change.T).T @ x.T
    if name == "Gemm, x transposed":
        return x.T @ (w + 2 * change)
    if name == "Gemm, alpha and beta":
        return 0.5 * x @ (w + 2 * change.T).T + bias
    if name == "MatMul of a Transpose":
        return x @ (w + 2 * change.T).T
    return x @ (w + 2 * change)


# -- weights that are stored in another way, or read by several ---------------------------


def levels(bits: int, *shape: int) -> np.ndarray:
    import ml_dtypes

    half = 1 << (bits - 1)
    numbers = RNG.integers(-half, half, shape)
    return numbers.astype(np.int8 if bits == 8 else ml_dtypes.int4)


def dequantize(name: str, scale: str = "s", **attributes: Any) -> Any:
    return ("DequantizeLinear", [name, scale, "z"], ["d"], attributes)


QUANTIZED: dict[str, Any] = {
    "int8": (
        [dequantize("w", axis=1), ("MatMul", ["x", "d"], ["y"])],
        {"w": levels(8, 6, 5), "s": np.abs(normal(5)), "z": levels(8, 5)},
    ),
    "int8, axis left out": (
        [dequantize("w"), ("MatMul", ["x", "d"], ["y"])],
        {"w": levels(8, 6, 6), "s": np.abs(normal(6)), "z": levels(8, 6)},
    ),
    "int8, one scale": (
        [dequantize("w"), ("Gemm", ["x", "d"], ["y"], {"transB": 1})],
        {"w": levels(8, 5, 6), "s": np.float32(0.02).reshape(()), "z": levels(8)},
    ),
    "int4 in blocks": (
        [dequantize("w", axis=0, block_size=4), ("MatMul", ["x", "d"], ["y"])],
        {"w": levels(4, 8, 5), "s": np.abs(normal(2, 5)), "z": levels(4, 2, 5)},
    ),
    "int8, transposed": (
        [
            dequantize("w", axis=0),
            ("Transpose", ["d"], ["t"], {"perm": [1, 0]}),
            ("MatMul", ["x", "t"], ["y"]),
        ],
        {"w": levels(8, 5, 6), "s": np.abs(normal(5)), "z": levels(8, 5)},
    ),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_integer_weights_stay_integers_until_they_are_merged(name: str, tmp_path: Path) -> None:
    nodes, weights = QUANTIZED[name]
    inputs = 8 if "int4" in name else 6
    model, x = network(nodes, weights, ["N", inputs]), normal(16, inputs)
    adapted, values = with_values(sx.lora(model, rank=2, alpha=4))
    close(run(adapted, x), run(model, x) + 2 * x @ values["w.lora_A"] @ values["w.lora_B"])
    rep = sx.prepare_training(sx.trainable(adapted, "mse", sx.optim.sgd(1e-3)))
    losses = [float(rep.step({"x": x, "label": run(model, x)})["loss"]) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    trained = sx.load(sx.save(rep.to_model(), tmp_path / "trained.onnx"))
    stored = trained.initializer("w")
    assert np.array_equal(stored.numpy(), weights["w"]) and stored.dtype.is_integer()
    merged = sx.merge_lora(trained)
    close(run(merged, x), run(trained, x))
    assert all(v.dtype == 1 for v in merged.graph.initializers.values() if v.name != "z")


def test_a_weight_that_others_read_is_copied_when_merged() -> None:
    model = network(
        [
            ("MatMul", ["x", "w"], ["a"]),
            ("MatMul", ["a", "w"], ["b"]),
            ("Transpose", ["w"], ["t"], {"perm": [1, 0]}),
            ("MatMul", ["b", "t"], ["c"]),
            ("Add", ["c", "w"], ["y"]),
        ],
        {"w": normal(6, 6)},
        [6, 6],
    )
    x = normal(6, 6)
    adapted, values = with_values(sx.lora(model, rank=2))
    assert sorted(values) == ["w.2.lora_A", "w.2.lora_B", "w.lora_A", "w.lora_B"]
    w = model.initializer("w").numpy()
    first, second = (2 * values[f"{n}.lora_A"] @ values[f"{n}.lora_B"] * 4 for n in ("w", "w.2"))
    expected = x @ (w + first) @ (w + first) @ (w.T + second) + w
    close(run(adapted, x), expected)
    close(run(sx.merge_lora(adapted), x), expected)


def test_a_weight_that_is_an_input_with_a_default_is_adapted() -> None:
    """So `keep_initializers_as_inputs=True` of torch's exporter writes all weights."""
    model = network([("MatMul", ["x", "w"], ["y"], {})], {"w": normal(6, 5)}, ["N", 6])
    model.graph.inputs.append(model.graph.initializers["w"])
    x = normal(4, 6)
    rep = sx.prepare_training(sx.trainable(sx.lora(model, rank=2), "mse", sx.optim.sgd(1e-2)))
    before = run(model, x)
    for _ in range(3):
        rep.step({"x": x, "label": before + 1})
    trained = rep.to_model()
    a, b = (trained.initializer(f"w.lora_{end}").numpy() for end in "AB")
    weight = model.initializer("w").numpy()
    np.testing.assert_array_equal(trained.initializer("w").numpy(), weight)
    close(run(trained, x), x @ (weight + 8 * a @ b))
    merged = sx.merge_lora(trained)
    assert list(merged.graph.initializers) == ["w"]
    assert [v.name for v in merged.graph.inputs] == ["x", "w"]
    close(run(merged, x), run(trained, x))
    assert np.abs(run(merged, x) - before).max() > 1e-3


def test_a_product_in_a_branch_is_adapted() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,3] x) => (float[N,3] y) <float[3,3] w = {1,2,3,4,5,6,7,8,9}, float zero = {0}> {
      s = ReduceSum <keepdims=0> (x)
      c = Greater(s, zero)
      y = If (c) <then_branch = t () => (float[N,3] p) { p = MatMul(x, w) },
                  else_branch = e () => (float[N,3] q) { q = Identity(x) }>
    }"""
    model = sx.load(onnx.parser.parse_model(text))
    x = np.abs(normal(4, 3))
    adapted, values = with_values(sx.lora(model, rank=1, alpha=1))
    expected = x @ (model.initializer("w").numpy() + values["w.lora_A"] @ values["w.lora_B"])
    close(run(adapted, x), expected)
    close(run(sx.merge_lora(adapted), x), expected)


def test_a_new_head_is_trained_beside_the_adapters() -> None:
    model = sx.lora(sx.replace_head(mlp(), classes=4), rank=2)
    assert not [n for n in model.graph.initializers if n.startswith("head") and "lora" in n]
    data = {"x": normal(32, 12), "label": RNG.integers(0, 4, 32)}
    trained = sx.train(model, data, loss="cross_entropy", epochs=1, lr=0.1, display="quiet").model
    assert {n for r in trained.records for n, _ in r.update_binding if "/" not in n} == {
        "w1.lora_A",
        "w1.lora_B",
        "head.weight",
        "head.bias",
    }
    merged = sx.merge_lora(trained)
    close(run(merged, data["x"]), run(trained, data["x"]))
    assert [v.name for v in merged.graph.inputs] == ["x"]


def test_an_output_may_be_called_as_the_loss_of_a_record() -> None:
    """With dropout, the record has a tensor of its own for every output, and a loss."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,4] x) => (float[N,3] loss) { loss = MatMul(x, w) }"""
    )
    w = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    net = sx.trainable(sx.lora(model, rank=1, dropout=0.5), "cross_entropy")
    x = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
    metrics = sx.prepare_training(net).step({"x": x, "label": np.arange(8) % 3})
    assert np.isfinite(metrics["train/loss"])


def test_running_statistics_stay_as_they_are() -> None:
    model = network(
        [
            ("Conv", ["x", "w"], ["c"]),
            ("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
            ("GlobalAveragePool", ["n"], ["p"]),
            ("Flatten", ["p"], ["y"]),
        ],
        {"w": normal(8, 6, 3, 3), "s": normal(8), "b": normal(8), "m": normal(8)}
        | {"v": np.abs(normal(8))},
        IMAGE,
    )
    net = sx.trainable(sx.lora(model, rank=2), "cross_entropy")
    updated = {n for n, _ in net.records[0].update_binding if "/" not in n}
    assert updated == {"w.lora_A", "w.lora_B"}
    trained_model = sx.trainable(sx.lora(model, rank=2), "cross_entropy", batch_norm="train")
    assert {"m", "v"} < {n for n, _ in trained_model.records[0].update_binding}


# -- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ({"targets": "w9|*.bias"}, ['"w9"', '"*.bias"']),
        ({"targets": ["w1", "nothing"]}, ['"nothing"']),
        ({"targets": "Conv"}, ['"Conv"']),
        ({"targets": "Relu|LSTM"}, ['"Relu"', '"LSTM"']),
        ({"targets": "b1"}, ['"b1"']),
        ({"rank": 10}, ['"w2"']),
        ({"rank": 13}, ['"w1"', '"w2"']),
        ({"rank": 0, "alpha": 0, "dropout": 1.0}, ["rank", "alpha", "dropout"]),
        ({"seed": -1, "rank": 2.5}, ["rank", "seed"]),
        ({"alpha": True, "dropout": "a"}, ["alpha", "dropout"]),
        ({"targets": None}, ["None"]),
        ({"targets": ["w1", 1]}, ["['w1', 1]"]),
        ({"exclude": "w7"}, ['"w7"']),
        ({"exclude": ["w1", "w2"]}, ['"w1"', '"w2"']),
    ],
)
def test_one_error_names_everything(arguments: dict[str, Any], rows: list[str]) -> None:
    with pytest.raises(ArgumentError) as error:
        sx.lora(mlp(), **arguments)
    assert [row[0] for row in error.value.where] == rows


def test_settings_may_be_numbers_of_numpy() -> None:
    net = sx.lora(mlp(), rank=np.int64(2), alpha=np.float32(4), dropout=np.float64(0.5))  # type: ignore[arg-type]
    assert '"rank": 2, "alpha": 4.0, "dropout": 0.5' in net.metadata["sardonyx.lora"]


def test_adapters_come_once() -> None:
    with pytest.raises(ArgumentError, match="already"):
        sx.lora(sx.lora(mlp()))
    with pytest.raises(ArgumentError, match="no adapters"):
        sx.merge_lora(mlp())
    with pytest.raises(ArgumentError, match="without an adapter"):
        sx.replace_head(sx.lora(mlp()), classes=4)


def test_a_grouped_convolution_has_a_rank_in_each_group() -> None:
    depthwise = network(
        [("Conv", ["x", "w"], ["y"], {"group": 6})], {"w": normal(6, 1, 3, 3)}, IMAGE
    )
    with pytest.raises(ArgumentError, match="rank 2 is above"):
        sx.lora(depthwise, rank=2)
    assert sx.lora(depthwise, rank=1).initializer("w.lora_A").shape == (6, 1, 3, 3)


# -- onnxruntime's operators --------------------------------------------------------------


def fused(
    op_type: str, inputs: list[str], weights: dict[str, np.ndarray], shape: Any, **a: Any
) -> Any:
    return network([(op_type, inputs, ["y"], {"domain": "com.microsoft", **a})], weights, shape)


def few_bits(k: int, n: int, bits: int, zeros: bool, block: int = 16) -> Model:
    blocks, size = -(-k // block), block * bits // 8
    weights = {
        "w": RNG.integers(0, 256, (n, blocks, size), np.uint8),
        "s": np.abs(normal(n * blocks)),
    }
    if zeros:
        weights["z"] = RNG.integers(0, 256, n * -(-blocks * bits // 8), np.uint8)
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block}
    return fused("MatMulNBits", ["x", *weights], weights, ["N", k], **sizes)


IMAGES = {"w": normal(8, 3, 3, 3), "b": normal(8), "z": normal(1, 8, 5, 5)}
FUSED = {
    "4 bits": few_bits(32, 6, 4, False),
    "4 bits, zero points": few_bits(48, 6, 4, True),
    "4 bits, a part of a block": few_bits(40, 6, 4, True),
    "8 bits": few_bits(32, 6, 8, False),
    "8 bits, zero points": few_bits(40, 6, 8, True),
    "FusedMatMul": fused(
        "FusedMatMul", ["x", "w"], {"w": normal(5, 6)}, [4, 6], transB=1, alpha=0.5
    ),
    "FusedMatMul, x transposed": fused(
        "FusedMatMul", ["x", "w"], {"w": normal(6, 5)}, [2, 6, 4], transA=1
    ),
    "FusedGemm": fused(
        "FusedGemm",
        ["x", "w", "b"],
        {"w": normal(6, 5), "b": normal(5)},
        [4, 6],
        activation="LeakyRelu",
        activation_alpha=0.2,
        alpha=2.0,
    ),
    "FusedConv": fused(
        "FusedConv", ["x", "w", "b", "z"], IMAGES, [1, 6, 7, 7], activation="Relu", group=2
    ),
    "FusedConv, Clip": fused(
        "FusedConv",
        ["x", "w"],
        {"w": IMAGES["w"]},
        [2, 6, 7, 7],
        activation="Clip",
        activation_params=[-1.0, 2.0],
        group=2,
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_operators_with_weights_get_adapters(name: str) -> None:
    model = FUSED[name]
    shape = [4 if not isinstance(d, int) else d for d in model.inputs[0].shape or ()]
    x = normal(*shape)
    adapted = sx.lora(model, rank=2)
    close(run(adapted, x), run(model, x))
    rep = sx.prepare_training(sx.trainable(adapted, "mse", sx.optim.sgd(1e-4)))
    target = run(model, x) + 1
    losses = [float(rep.step({"x": x, "label": target})["loss"]) for _ in range(4)]
    assert losses[-1] < losses[0]
    trained = rep.to_model()
    close(run(sx.merge_lora(trained), x), run(trained, x))

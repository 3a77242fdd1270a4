"""What onnxruntime fuses in transformers: the plain forms against its kernels, and trained."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.engines import numpy as numpy_engine

RNG = np.random.default_rng(0)
B, S, T, D, HEADS = 2, 5, 7, 8, 2


def f32(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.normal(size=shape) * scale).astype(np.float32)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


X, W, BIAS = f32(B, S, D), f32(D, 3 * D, scale=0.5), f32(3 * D)
ROWS = i32([1, 1, 1, 0, 0], [1, 0, 1, 1, 1])
PAST = f32(2, B, HEADS, 2, D // HEADS)
LONGER = i32([1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1])
SQUARE = (RNG.random((B, S, S)) > 0.3).astype(np.int32)
Q, K, V = f32(B, S, D), f32(B, T, D), f32(B, T, D)
AHEAD = np.ones((B, 7), np.int32)
IDS = RNG.integers(0, 9, (B, S)).astype(np.int32)
SEGMENTS = RNG.integers(0, 2, (B, S)).astype(np.int32)
TABLES = f32(9, D), f32(S + 2, D), f32(2, D)
NORM = f32(D), f32(D)
# name → operator, inputs (None: left out), how many outputs, attributes
Case = tuple[str, tuple[Any, ...], int, dict[str, Any]]
CASES: dict[str, Case] = {
    "attention": ("Attention", (X, W, BIAS), 1, {}),
    "attention, causal": ("Attention", (X, W, BIAS), 1, {"unidirectional": 1}),
    "attention, scale": ("Attention", (X, W, BIAS), 1, {"scale": 0.3}),
    "attention, mask": ("Attention", (X, W, BIAS, ROWS), 1, {}),
    "attention, mask and causal": ("Attention", (X, W, BIAS, ROWS), 1, {"unidirectional": 1}),
    "attention, other filter": ("Attention", (X, W, BIAS, ROWS), 1, {"mask_filter_value": -3.0}),
    "attention, lengths": ("Attention", (X, W, BIAS, i32(3, 5)), 1, {}),
    "attention, ends and begins": ("Attention", (X, W, BIAS, i32(4, 5, 1, 0)), 1, {}),
    "attention, square mask": ("Attention", (X, W, BIAS, SQUARE), 1, {}),
    "attention, other sizes": (
        "Attention", (X, f32(D, 2 * D + 12), f32(2 * D + 12)), 1, {"qkv_hidden_sizes": [D, D, 12]}
    ),
    "attention, past": ("Attention", (X, W, BIAS, None, PAST), 2, {}),
    "attention, past and causal": (
        "Attention", (X, W, BIAS, LONGER, PAST), 2, {"unidirectional": 1}
    ),
    "attention, present": ("Attention", (X, W, BIAS), 2, {}),
    "attention, bias of scores": (
        "Attention", (X, W, BIAS, None, None, f32(1, HEADS, S, S)), 1, {}
    ),
    "heads": ("MultiHeadAttention", (Q, K, V), 1, {}),
    "heads, bias": ("MultiHeadAttention", (Q, K, V, f32(3 * D)), 1, {}),
    "heads, wider values": ("MultiHeadAttention", (Q, K, f32(B, T, 12), f32(2 * D + 12)), 1, {}),
    "heads, mask": ("MultiHeadAttention", (Q, K, V, None, LONGER), 1, {}),
    "heads, bias of scores": (
        "MultiHeadAttention", (Q, K, V, None, None, f32(B, HEADS, S, T)), 1, {"scale": 0.4}
    ),
    "heads, causal": ("MultiHeadAttention", (Q, Q, Q), 1, {"unidirectional": 1}),
    "heads, cross": (
        "MultiHeadAttention", (Q, f32(B, HEADS, T, 4), f32(B, HEADS, T, 4)), 1, {}
    ),
    "heads, past": (
        "MultiHeadAttention",
        (Q, Q, Q, None, None, None, f32(B, HEADS, 2, 4), f32(B, HEADS, 2, 4)),
        3,
        {},
    ),
    "skip": ("SkipLayerNormalization", (X, f32(B, S, D), *NORM), 1, {"epsilon": 1e-5}),
    "skip, bias": ("SkipLayerNormalization", (X, f32(B, S, D), *NORM, f32(D)), 1, {}),
    "skip, sum": ("SkipLayerNormalization", (X, f32(B, S, D), *NORM, f32(D)), 4, {}),
    "skip, no beta": ("SkipLayerNormalization", (X, f32(S, D), NORM[0]), 1, {}),
    "skip, simplified": (
        "SkipSimplifiedLayerNormalization", (X, f32(B, S, D), NORM[0], f32(D)), 4, {}
    ),
    "embeddings": (
        "EmbedLayerNormalization", (IDS, SEGMENTS, *TABLES, *NORM, ROWS), 2, {"epsilon": 1e-5}
    ),
    "embeddings, no segments": (
        "EmbedLayerNormalization", (IDS, None, *TABLES[:2], None, *NORM), 3, {}
    ),
    "embeddings, positions": (
        "EmbedLayerNormalization",
        (IDS, SEGMENTS, *TABLES, *NORM, None, RNG.integers(0, 6, (B, S)).astype(np.int32)),
        3,
        {},
    ),
    "gelu": ("Gelu", (X,), 1, {}),
    "gelu, bias": ("BiasGelu", (X, f32(D)), 1, {}),
    "gelu by tanh": ("FastGelu", (X,), 1, {}),
    "gelu by tanh, bias": ("FastGelu", (X, f32(D)), 1, {}),
    "gelu by sigmoid": ("QuickGelu", (X,), 1, {"alpha": 1.5}),
}  # fmt: skip


def single(op_type: str, inputs: tuple[Any, ...], outputs: int, **attributes: Any) -> Any:
    """A model of one node. Tensors with the rows of the first input are inputs, others stored."""
    if op_type in ("Attention", "MultiHeadAttention"):
        attributes["num_heads"] = HEADS
    names = ["" if a is None else f"i{n}" for n, a in enumerate(inputs)]
    results = [f"o{n}" for n in range(outputs)]
    if "Skip" in op_type and outputs == 4:
        results[1:3] = ["", ""]  # kept for the gradients of other runtimes
    node = helper.make_node(op_type, names, results, domain="com.microsoft", **attributes)
    arrays = {n: a for n, a in zip(names, inputs, strict=True) if n}
    fed = {n: a for n, a in arrays.items() if n == "i0" or a.ndim > 2 or a.dtype == np.int32}
    stored = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in fed]
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in fed.items()],
        [helper.make_empty_tensor_value_info(n) for n in results if n],
        stored,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), fed


@pytest.mark.parametrize("case", CASES)
def test_a_form_has_the_numbers_of_the_kernel(case: str) -> None:
    op_type, inputs, outputs, attributes = CASES[case]
    model, feeds = single(op_type, inputs, outputs, **attributes)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    regular = sx.normalize(sx.load(model))
    assert not any(node.domain for node in regular.graph), "it is written with standard operators"
    results = numpy_engine.Runner(regular)(feeds)
    for ours, right in zip(results.values(), expected, strict=True):
        assert ours.dtype == right.dtype and ours.shape == right.shape
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize(
    "op_type,inputs,outputs,attributes",
    [
        ("Attention", (X, W, BIAS), 1, {"do_rotary": 1}),
        ("MultiHeadAttention", (Q, K, V, None, i32(5, 7)), 1, {}),
        ("MultiHeadAttention", (f32(B, S, HEADS, 3, 4),), 1, {}),
        ("SkipLayerNormalization", (X, X, *NORM), 2, {}),
    ],
    ids=["rotary", "lengths of keys", "packed: no kernel on the CPU confirms it", "the mean"],
)
def test_what_has_no_plain_form_stays(
    op_type: str, inputs: Any, outputs: int, attributes: Any
) -> None:
    text = io.StringIO()
    model, _ = single(op_type, inputs, outputs, **attributes)
    print(sx.normalize(sx.load(model)).graph, file=text)
    assert op_type in text.getvalue()


def encoder() -> onnx.ModelProto:
    """Two layers as onnxruntime's optimizer writes them; no shapes between the nodes."""
    names: dict[str, np.ndarray] = {}
    nodes = []

    def stored(name: str, *shape: int) -> str:
        names[name] = f32(*shape, scale=0.4)
        return name

    def add(op_type: str, inputs: list[str], output: str, domain: str = "com.microsoft", **a: Any):
        nodes.append(helper.make_node(op_type, inputs, [output], domain=domain, **a))
        return output

    x = "x"
    for i in range(2):
        w, b = stored(f"{i}.qkv", D, 3 * D), stored(f"{i}.qkv_bias", 3 * D)
        if i == 0:
            a = add("Attention", [x, w, b, "mask"], f"a{i}", num_heads=HEADS)
        else:
            parts = [add("MatMul", [x, stored(f"{i}.{n}", D, D)], f"{n}{i}", "") for n in "qkv"]
            a = add("MultiHeadAttention", [*parts, b, "mask"], f"a{i}", num_heads=HEADS)
        o = add("MatMul", [a, stored(f"{i}.out", D, D)], f"o{i}", "")
        norm = [stored(f"{i}.gamma", D), stored(f"{i}.beta", D)]
        n = add("SkipLayerNormalization", [o, x, *norm, stored(f"{i}.bias", D)], f"n{i}")
        u = add("MatMul", [n, stored(f"{i}.up", D, 16)], f"u{i}", "")
        g = add("BiasGelu", [u, stored(f"{i}.up_bias", 16)], f"g{i}")
        d = add("MatMul", [g, stored(f"{i}.down", 16, D)], f"d{i}", "")
        x = add("SkipLayerNormalization", [d, n, *norm], f"x{i}" if i == 0 else "y")
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", S, D]),
            helper.make_tensor_value_info("mask", TensorProto.INT32, ["N", S]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", S, D])],
        [numpy_helper.from_array(a, n) for n, a in names.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def test_adapters_of_a_fused_transformer_are_trained_and_merged(tmp_path: Path) -> None:
    model = encoder()
    feeds = {"x": X, "mask": ROWS}

    def kernels(path: Path) -> np.ndarray:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        return ort.InferenceSession(path, options).run(["y"], feeds)[0]

    onnx.save(model, tmp_path / "fused.onnx")
    before = kernels(tmp_path / "fused.onnx")
    adapted = sx.lora(tmp_path / "fused.onnx", rank=2)
    weights = {n for n in adapted.graph.initializers if n.endswith(".lora_A")}
    expected = {"0.qkv", "0.out", "0.up", "0.down", "1.q", "1.k", "1.v", "1.out", "1.up", "1.down"}
    assert weights == {f"{n}.lora_A" for n in expected}
    path = sx.save(adapted, tmp_path / "adapted.onnx")
    np.testing.assert_allclose(kernels(path), before, rtol=1e-4, atol=1e-5)
    net = sx.trainable(adapted, "mse", sx.optim.adam(1e-2))
    batch = {**feeds, "label": f32(B, S, D)}
    losses = []
    for engine in ("onnxruntime", "torch"):
        rep = sx.prepare_training(net, engine=engine)
        losses.append([float(rep.step(batch)["loss"]) for _ in range(8)])
        if engine == "onnxruntime":
            trained = rep.to_model()
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][-1] < losses[0][0]
    tuned = kernels(sx.save(trained, tmp_path / "trained.onnx"))
    merged = kernels(sx.save(sx.merge_lora(trained), tmp_path / "merged.onnx"))
    np.testing.assert_allclose(merged, tuned, rtol=1e-5, atol=2e-6)
    assert np.abs(tuned - before).max() > 1e-3

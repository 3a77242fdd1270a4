"""Small networks for tests, as ONNX and, where an oracle is needed, as torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sardonyx.model import Model, load


def mlp(
    sizes: Sequence[int] = (6, 5, 3),
    dtype: type = np.float32,
    activation: str = "Tanh",
    seed: int = 0,
) -> Model:
    """Gemm layers `fc0`, `fc1`, … with weights (out, in), symbolic batch, output `scores`."""
    rng = np.random.default_rng(seed)
    nodes, initializers, x = [], [], "x"
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for i, (wide, narrow) in enumerate(itertools.pairwise(sizes)):
        weight = (rng.normal(size=(narrow, wide)) / np.sqrt(wide)).astype(dtype)
        bias = (rng.normal(size=narrow) * 0.1).astype(dtype)
        initializers += [
            numpy_helper.from_array(weight, f"fc{i}.weight"),
            numpy_helper.from_array(bias, f"fc{i}.bias"),
        ]
        last = i == len(sizes) - 2
        y = "scores" if last else f"h{i}"
        nodes.append(
            helper.make_node("Gemm", [x, f"fc{i}.weight", f"fc{i}.bias"], [y], f"fc{i}", transB=1)
        )
        x = y
        if not last:
            nodes.append(helper.make_node(activation, [x], [f"a{i}"], f"act{i}"))
            x = f"a{i}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", kind, ["N", sizes[0]])],
        [helper.make_tensor_value_info("scores", kind, ["N", sizes[-1]])],
        initializers,
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def torch_mlp(model: Model, activation: str = "Tanh"):  # type: ignore[no-untyped-def]
    """The same network in torch, with the same weights, parameters by ONNX name."""
    import torch

    parameters = {
        name: torch.nn.Parameter(torch.tensor(value.const_value.numpy().copy()))  # type: ignore[union-attr]
        for name, value in model.graph.initializers.items()
    }
    act = {"Tanh": torch.tanh, "Relu": torch.relu}[activation]

    def forward(x):  # type: ignore[no-untyped-def]
        layers = len(parameters) // 2
        for i in range(layers):
            x = torch.nn.functional.linear(
                x, parameters[f"fc{i}.weight"], parameters[f"fc{i}.bias"]
            )
            x = act(x) if i < layers - 1 else x
        return x

    return parameters, forward


def parse(text: str) -> Model:
    """A model from ONNX's text form."""
    return load(onnx.parser.parse_model(text))


FLOAT = TensorProto.FLOAT


def network(
    text: str, weights: dict[str, np.ndarray], opset: int = 22, dtype: type = np.float32
) -> Model:
    """A model from the text of its graph, and weights by name (floats in `dtype`).

    The text form has no dots in names; weights may have them.
    """
    plain = {name: name.replace(".", "__") for name in weights}
    for name in plain:
        text = text.replace(name, plain[name])
    header = f'<ir_version: 10, opset_import: ["": {opset}]>'
    proto = onnx.parser.parse_model(f"{header} {text}")
    names = {short: name for name, short in plain.items()}
    for node in proto.graph.node:
        node.input[:] = [names.get(i, i) for i in node.input]
        node.name = node.output[0]
    for name, array in weights.items():
        array = array.astype(dtype) if array.dtype.kind == "f" else array
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return load(proto)


def cnn(channels: int = 4, classes: int = 3, seed: int = 0) -> Model:
    """Conv, BatchNormalization, Relu, MaxPool, Dropout, Conv, mean, Gemm on 8 × 8 images."""
    rng = np.random.default_rng(seed)
    weights = {
        "conv1.weight": rng.normal(size=(channels, 3, 3, 3)) * 0.3,
        "conv1.bias": rng.normal(size=channels) * 0.1,
        "bn.weight": rng.uniform(0.5, 1.5, channels),
        "bn.bias": rng.normal(size=channels) * 0.1,
        "bn.mean": rng.normal(size=channels) * 0.1,
        "bn.var": rng.uniform(0.5, 1.5, channels),
        "ratio": np.asarray(0.25),
        "conv2.weight": rng.normal(size=(channels, channels, 3, 3)) * 0.3,
        "fc.weight": rng.normal(size=(classes, channels)),
        "fc.bias": rng.normal(size=classes) * 0.1,
    }
    text = f"""cnn (float[N,3,8,8] x) => (float[N,{classes}] scores) {{
        c = Conv <pads = [1, 1, 1, 1]> (x, conv1.weight, conv1.bias)
        b = BatchNormalization <momentum = 0.9> (c, bn.weight, bn.bias, bn.mean, bn.var)
        r = Relu (b)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        d = Dropout (p, ratio)
        c2 = Conv <pads = [1, 1, 1, 1]> (d, conv2.weight)
        r2 = Relu (c2)
        g = GlobalAveragePool (r2)
        f = Flatten (g)
        scores = Gemm <transB = 1> (f, fc.weight, fc.bias)
    }}"""
    return network(text, weights)


def transformer(width: int = 8, heads: int = 2, words: int = 11, seed: int = 0) -> Model:
    """One block over token ids (N, T): embedding, masked attention, feed-forward, scores of
    words.
    """
    rng = np.random.default_rng(seed)
    each = width // heads
    weights = {
        "embed.weight": rng.normal(size=(words, width)),
        "ln1.weight": rng.uniform(0.5, 1.5, width),
        "ln1.bias": rng.normal(size=width) * 0.1,
        "qkv.weight": rng.normal(size=(width, 3 * width)) / np.sqrt(width),
        "out.weight": rng.normal(size=(width, width)) / np.sqrt(width),
        "ln2.weight": rng.uniform(0.5, 1.5, width),
        "ln2.bias": rng.normal(size=width) * 0.1,
        "up.weight": rng.normal(size=(width, 2 * width)) / np.sqrt(width),
        "up.bias": rng.normal(size=2 * width) * 0.1,
        "down.weight": rng.normal(size=(2 * width, width)) / np.sqrt(width),
        "scale": np.asarray(each**-0.5),
        "far": np.asarray(-1e9),
        "split": np.asarray([0, 0, heads, each]),
        "merge": np.asarray([0, 0, width]),
        "zero": np.asarray(0),
        "one": np.asarray(1),
        "last": np.asarray([1]),
        "first": np.asarray([0]),
    }
    text = f"""transformer (int64[N,T] ids) => (float[N,T,{words}] scores) {{
        e = Gather (embed.weight, ids)
        n = LayerNormalization <axis = -1> (e, ln1.weight, ln1.bias)
        qkv = MatMul (n, qkv.weight)
        q, k, v = Split <axis = 2, num_outputs = 3> (qkv)
        qs = Reshape (q, split)  ks = Reshape (k, split)  vs = Reshape (v, split)
        qt = Transpose <perm = [0, 2, 1, 3]> (qs)
        kt = Transpose <perm = [0, 2, 3, 1]> (ks)
        vt = Transpose <perm = [0, 2, 1, 3]> (vs)
        dots = MatMul (qt, kt)
        scaled = Mul (dots, scale)
        steps = Shape <start = 1, end = 2> (ids)
        count = Squeeze (steps, first)
        place = Range (zero, count, one)
        row = Unsqueeze (place, last)
        later = Greater (place, row)
        masked = Where (later, far, scaled)
        share = Softmax <axis = -1> (masked)
        mixed = MatMul (share, vt)
        back = Transpose <perm = [0, 2, 1, 3]> (mixed)
        merged = Reshape (back, merge)
        projected = MatMul (merged, out.weight)
        h = Add (e, projected)
        m = LayerNormalization <axis = -1> (h, ln2.weight, ln2.bias)
        wide = MatMul (m, up.weight)
        biased = Add (wide, up.bias)
        active = Gelu (biased)
        narrow = MatMul (active, down.weight)
        y = Add (h, narrow)
        table = Transpose <perm = [1, 0]> (embed.weight)
        scores = MatMul (y, table)
    }}"""
    return network(text, weights)


def lstm(width: int = 3, hidden: int = 4, classes: int = 3, seed: int = 0) -> Model:
    """An LSTM over (T, N, width), its last state to scores."""
    rng = np.random.default_rng(seed)
    weights = {
        "lstm.weight": rng.normal(size=(1, 4 * hidden, width)) * 0.5,
        "lstm.recurrence": rng.normal(size=(1, 4 * hidden, hidden)) * 0.5,
        "lstm.bias": rng.normal(size=(1, 8 * hidden)) * 0.1,
        "fc.weight": rng.normal(size=(classes, hidden)),
        "fc.bias": rng.normal(size=classes) * 0.1,
        "first": np.asarray([0]),
    }
    text = f"""lstm (float[N,T,{width}] x) => (float[N,{classes}] scores) {{
        t = Transpose <perm = [1, 0, 2]> (x)
        all, state, cell = LSTM <hidden_size = {hidden}>
            (t, lstm.weight, lstm.recurrence, lstm.bias)
        h = Squeeze (state, first)
        scores = Gemm <transB = 1> (h, fc.weight, fc.bias)
    }}"""
    return network(text, weights)


def optimized(model: onnx.ModelProto, path: Path) -> Path:
    """A file as onnxruntime rewrites it: normalization folded into convolution, and the like."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return path

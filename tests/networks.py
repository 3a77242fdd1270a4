"""Small networks for tests, as ONNX and, where an oracle is needed, as torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sardonyx.model import Model, load


def mlp(sizes: Sequence[int] = (6, 5, 3), dtype: type = np.float32, activation: str = "Tanh", seed: int = 0) -> Model:
    """Gemm layers `fc0`, `fc1`, … with weights (out, in), symbolic batch, output `scores`."""
    rng = np.random.default_rng(seed)
    nodes, initializers, x = [], [], "x"
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for i, (wide, narrow) in enumerate(zip(sizes, sizes[1:], strict=False)):
        weight = (rng.normal(size=(narrow, wide)) / np.sqrt(wide)).astype(dtype)
        bias = (rng.normal(size=narrow) * 0.1).astype(dtype)
        initializers += [
            numpy_helper.from_array(weight, f"fc{i}.weight"),
            numpy_helper.from_array(bias, f"fc{i}.bias"),
        ]
        last = i == len(sizes) - 2
        y = "scores" if last else f"h{i}"
        nodes.append(helper.make_node("Gemm", [x, f"fc{i}.weight", f"fc{i}.bias"], [y], f"fc{i}", transB=1))
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
            x = torch.nn.functional.linear(x, parameters[f"fc{i}.weight"], parameters[f"fc{i}.bias"])
            x = act(x) if i < layers - 1 else x
        return x

    return parameters, forward


def parse(text: str) -> Model:
    """A model from ONNX's text form."""
    return load(onnx.parser.parse_model(text))


FLOAT = TensorProto.FLOAT

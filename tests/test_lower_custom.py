"""onnxruntime's Tokenizer, on every engine: values against onnxruntime."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

TEXTS = np.array(["hello my world", "a b", "ünï cödé_1"], object)


@pytest.mark.parametrize("name", ("numpy", "torch", "jax", "tensorflow"))
@pytest.mark.parametrize(
    "given",
    [
        {"tokenexp": "[a-zA-Z0-9_]+", "mark": 0, "mincharnum": 1},
        {"tokenexp": "[a-z]+", "mark": 1, "mincharnum": 2},
        {"separators": [" ", "m"], "mark": 1, "mincharnum": 2},
        {"separators": [""], "mark": 0, "mincharnum": 1},
    ],
)
@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_tokenizer(name: str, given: dict[str, Any], shape: tuple[int, ...]) -> None:
    domain = "com.microsoft"
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain=domain, pad_value="#", **given)
    info = helper.make_tensor_value_info("x", TensorProto.STRING, [None] * len(shape))
    result = helper.make_tensor_value_info("y", TensorProto.STRING, None)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph([node], "tokens", [info], [result])
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    x = TEXTS.reshape(shape)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    pytest.importorskip(name)
    runner = importlib.import_module(f"sardonyx.engines.{name}").Runner(model, fallback="allow")
    outcome = runner({"x": x})["y"]
    np.testing.assert_array_equal(outcome, session.run(None, {"x": x})[0])

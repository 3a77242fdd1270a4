"""Operators of onnxruntime-extensions, on the onnxruntime engine and sent there from others."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import EngineError
from sardonyx.model import Model, load

DOMAIN = "ai.onnx.contrib"
INSTALLED = importlib.util.find_spec("onnxruntime_extensions") is not None
needed = pytest.mark.skipif(not INSTALLED, reason="onnxruntime-extensions is not installed")


def model() -> Model:
    """Upper case, then its length: text goes in, numbers come out."""
    nodes = [
        helper.make_node("StringUpper", ["x"], ["up"], domain=DOMAIN, name="upper"),
        helper.make_node("StringLength", ["up"], ["n"], domain=DOMAIN, name="length"),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT, name="cast"),
        helper.make_node("Mul", ["f", "z"], ["y"], name="mul"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.STRING, ["N"]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N"]),
    ]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    # ONNX infers no types for this domain: what the file says counts.
    length = helper.make_tensor_value_info("n", TensorProto.INT64, ["N"])
    graph = helper.make_graph(nodes, "g", inputs, out, value_info=[length])
    return load(helper.make_model(graph, opset_imports=imports, ir_version=8))


FEEDS: dict[str, Any] = {
    "x": np.array(["one", "eleven"], object),
    "z": np.array([2, 0.5], np.float32),
}


@needed
def test_on_onnxruntime() -> None:
    np.testing.assert_array_equal(Runner(model())(FEEDS)["y"], [6, 3])


@needed
@pytest.mark.parametrize("name", ("numpy", "torch", "jax", "tensorflow"))
def test_sent_there_from_another_engine(name: str) -> None:
    pytest.importorskip(name)
    engine = importlib.import_module(f"sardonyx.engines.{name}")
    runner = engine.Runner(model(), fallback="allow")
    assert [p.node.op_type for p in runner.elsewhere] == ["StringUpper", "StringLength"]
    np.testing.assert_array_equal(runner(FEEDS)["y"], [6, 3])


CONSTANTS = {
    "Equal": ("bool", [False, True, False]),
    "StringConcat": ("string", ["ab", "bb", "cb"]),
}


@pytest.mark.parametrize("name", ("onnxruntime", "numpy", "torch", "jax", "tensorflow"))
@pytest.mark.parametrize("op", CONSTANTS)
def test_text_of_the_file_is_text_of_the_data(op: str, name: str) -> None:
    """Constants of a file are bytes; on every engine they equal the strings that are fed."""
    pytest.importorskip(name)
    kind, expected = CONSTANTS[op]
    out = helper.make_tensor_value_info("y", getattr(TensorProto, kind.upper()), ["N"])
    held = helper.make_tensor("held", TensorProto.STRING, [], [b"b"])
    for constant in (
        {"initializer": [held]},
        {"nodes": [helper.make_node("Constant", [], ["held"], value=held)]},
    ):
        nodes = [*constant.pop("nodes", []), helper.make_node(op, ["x", "held"], ["y"])]
        x = helper.make_tensor_value_info("x", TensorProto.STRING, ["N"])
        graph = helper.make_graph(nodes, "g", [x], [out], **constant)
        imports = [helper.make_opsetid("", 20)]
        loaded = load(helper.make_model(graph, opset_imports=imports, ir_version=9))
        options = {} if name == "onnxruntime" else {"fallback": "allow"}
        runner = importlib.import_module(f"sardonyx.engines.{name}").Runner(loaded, **options)
        assert runner({"x": np.array(["a", "b", "c"], object)})["y"].tolist() == expected


def test_what_lacks_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError) as raised:
        Runner(model())
    assert "StringUpper" in str(raised.value) and "StringLength" in str(raised.value)
    assert "pip install onnxruntime-extensions" in str(raised.value)

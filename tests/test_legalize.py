"""What stock onnxruntime refuses runs all the same: few bits at the ends, missing kernels."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from sardonyx.engines.onnxruntime import Backend

RNG = np.random.default_rng(0)


def model(nodes: list[onnx.NodeProto], ends: dict[str, tuple[int, list[int]]], outputs: list[str],
          opset: int) -> onnx.ModelProto:  # fmt: skip
    infos = {n: helper.make_tensor_value_info(n, kind, dims) for n, (kind, dims) in ends.items()}
    graph = helper.make_graph(
        nodes, "g", [i for n, i in infos.items() if n not in outputs], [infos[n] for n in outputs]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13)


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2"])
def test_few_bits_go_in_and_come_out(name: str) -> None:
    kind = getattr(onnx.TensorProto, name)
    dtype = getattr(ml_dtypes, name.lower())
    low, high = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
    x = RNG.integers(low, high + 1, (3, 5)).astype(dtype)  # an odd number: half a byte is left
    proto = model(
        [
            helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
            helper.make_node("Cast", ["x"], ["wide"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Identity", ["x"], ["same"]),
        ],
        {
            "x": (kind, [3, 5]),
            "turned": (kind, [5, 3]),
            "wide": (1, [3, 5]),
            "same": (kind, [3, 5]),
        },
        ["turned", "wide", "same"],
        25,
    )
    turned, wide, same = Backend.prepare(proto).run([x])
    assert turned.dtype == same.dtype == dtype
    np.testing.assert_array_equal(turned.astype(np.int8), x.T.astype(np.int8))
    np.testing.assert_array_equal(wide, x.astype(np.float32))
    np.testing.assert_array_equal(same.astype(np.int8), x.astype(np.int8))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64"])
def test_signed_numbers_are_shifted(kind: str, direction: str) -> None:
    bits = np.iinfo(kind).bits
    x = RNG.integers(np.iinfo(kind).min, np.iinfo(kind).max, 200, endpoint=True).astype(kind)
    y = RNG.integers(-2, bits + 3, 200).astype(kind)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    proto = model(
        [helper.make_node("BitShift", ["x", "y"], ["z"], direction=direction)],
        {"x": (code, [200]), "y": (code, [200]), "z": (code, [200])},
        ["z"],
        28,
    )
    (result,) = Backend.prepare(proto).run([x, y])
    # by Python's integers, which have no width: wrapped by hand
    expected = []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        if not 0 <= b < bits:
            expected.append(-1 if direction == "RIGHT" and a < 0 else 0)
        else:
            moved = a << b if direction == "LEFT" else a >> b
            expected.append((moved + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1))
    np.testing.assert_array_equal(result, np.array(expected, kind))


def test_sixteen_bits_are_widened_and_rounded_again() -> None:
    bfloat16 = onnx.TensorProto.BFLOAT16
    x = RNG.normal(size=(4, 6)).astype(ml_dtypes.bfloat16)
    proto = model(
        [
            helper.make_node("Celu", ["x"], ["c"], alpha=0.7),
            helper.make_node("Mul", ["c", "x"], ["y"]),
        ],
        {"x": (bfloat16, [4, 6]), "y": (bfloat16, [4, 6])},
        ["y"],
        24,
    )
    (result,) = Backend.prepare(proto).run([x])
    wide = x.astype(np.float64)
    celu = np.maximum(wide, 0) + np.minimum(0, 0.7 * np.expm1(np.minimum(wide, 0) / 0.7))
    once = celu.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(result.astype(np.float64), once * wide, rtol=2**-6, atol=1e-3)


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_with_the_batch_first(op_type: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    hidden, outputs = 3, ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    arrays = {
        "X": RNG.normal(size=(2, 5, 4)),
        "W": RNG.normal(size=(1, gates * hidden, 4)),
        "R": RNG.normal(size=(1, gates * hidden, hidden)),
    }
    shapes = {"Y": [2, 5, 1, hidden], "Y_h": [2, 1, hidden], "Y_c": [2, 1, hidden]}
    ends = {n: (1, list(a.shape)) for n, a in arrays.items()} | {o: (1, shapes[o]) for o in outputs}
    protos = [
        model(
            [
                helper.make_node(
                    op_type, ["X", "W", "R"], outputs, hidden_size=hidden, layout=layout
                )
            ],
            ends,
            outputs,
            22,
        )
        for layout in (1, 0)
    ]
    feeds = {n: a.astype(np.float32) for n, a in arrays.items()}
    result = Backend.prepare(protos[0]).run(list(feeds.values()))
    for info in (*protos[1].graph.input, *protos[1].graph.output):
        info.type.tensor_type.ClearField("shape")
    turned = {**feeds, "X": feeds["X"].transpose(1, 0, 2)}
    expected = ReferenceEvaluator(protos[1]).run(None, turned)
    np.testing.assert_allclose(result[0], expected[0].transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(result[1:], expected[1:], strict=True):
        np.testing.assert_allclose(ours, theirs.transpose(1, 0, 2), rtol=1e-5, atol=1e-6)

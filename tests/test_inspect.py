"""What `inspect` and `weights` say of a model: counted by hand, or by torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as helper
import onnx.numpy_helper as numpy_helper
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.errors import ArgumentError
from sardonyx.inspection import inspect
from sardonyx.model import load
from sardonyx.weights import TORCH_KIND, weights


def parsed(text: str, opset: int = 22) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> ' + text)


def with_tensors(text: str, **tensors: np.ndarray) -> onnx.ModelProto:
    proto = parsed(text)
    for name, array in tensors.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def kinds(proto: onnx.ModelProto) -> dict[str, str]:
    return {w.name: w.kind for w in weights(load(proto))}


def test_use_decides_what_is_a_weight() -> None:
    proto = with_tensors(
        """g (float[N,3,8,8] x) => (float[N,5] y) {
            c = Conv(x, conv_w, conv_b)
            n = BatchNormalization(c, gamma, beta, mean, var)
            r = Clip(n, low, high)
            s = Div(r, eps)
            p = GlobalAveragePool(s)
            f = Reshape(p, target)
            i = MatMul(f, eye)
            y = Gemm<transB=1>(i, fc_w, fc_b)
        }""",
        conv_w=floats(4, 3, 3, 3),
        conv_b=floats(4),
        gamma=floats(4),
        beta=floats(4),
        mean=floats(4),
        var=np.ones(4, np.float32),
        low=np.float32(0),
        high=np.float32(6),
        eps=np.float32(2),
        target=np.array([0, -1]),
        eye=np.eye(4, dtype=np.float32),
        fc_w=floats(5, 4),
        fc_b=floats(5),
        unused=floats(3),
    )
    expected = {
        **dict.fromkeys(("conv_w", "conv_b", "gamma", "beta", "fc_w", "fc_b"), "weight"),
        **dict.fromkeys(("mean", "var"), "statistic"),
        **dict.fromkeys(("low", "high", "eps", "target", "eye", "unused"), "constant"),
    }
    assert kinds(proto) == expected


def test_a_single_number_may_be_a_bias_or_a_slope() -> None:
    proto = with_tensors(
        """g (float[N,4] x) => (float[N,1] y) {
            h = PRelu(x, slope)
            p = MatMul(h, w)
            b = Add(p, bias)
            y = Add(b, shift)
        }""",
        slope=floats(1),
        w=floats(4, 1),
        bias=floats(1),
        shift=np.float32(3),
    )
    assert kinds(proto) == {"slope": "weight", "w": "weight", "bias": "weight", "shift": "constant"}


def test_weights_hide_in_constant_nodes() -> None:
    proto = parsed("g (float[N,4] x) => (float[N,2] y) { y = MatMul(x, w) }")
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(floats(4, 2)))
    proto.graph.node.insert(0, constant)
    assert kinds(proto) == {"w": "weight"}


def test_scales_of_quantized_models_are_constants() -> None:
    proto = with_tensors(
        """g (float[N,4] x) => (float[N,2] y) {
            w = DequantizeLinear<axis=1>(wq, w_scale)
            q = QuantizeLinear(x, x_scale, x_zero)
            d = DequantizeLinear(q, x_scale, x_zero)
            y = MatMul(d, w)
        }""",
        wq=np.ones((4, 2), np.int8),
        w_scale=np.array([0.5, 0.25], np.float32),
        x_scale=np.float32(0.1),
        x_zero=np.uint8(3),
    )
    assert set(kinds(proto).values()) == {"constant"}


def test_what_torch_wrote_goes_first() -> None:
    proto = with_tensors(
        "g (float[N,4] x) => (float[N,4] y) { h = Mul(x, scale) y = Add(h, table) }",
        scale=np.float32(2),
        table=floats(4),
    )
    for name, said in (("scale", "PARAMETER"), ("table", "BUFFER")):
        shape = [] if name == "scale" else [4]
        info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        info.metadata_props.add(key=TORCH_KIND, value=f"InputKind.{said}")
        proto.graph.value_info.append(info)
    assert kinds(proto) == {"scale": "weight", "table": "constant"}


def test_what_a_record_updates_is_a_weight() -> None:
    proto = with_tensors("g (float[2] x) => (float[2] y) { y = Mul(x, s) }", s=np.float32(2))
    assert kinds(proto) == {"s": "constant"}
    info = proto.training_info.add()
    info.algorithm.CopyFrom(helper.make_graph([helper.make_node("Neg", ["s"], ["t"])], "a", [], []))
    info.update_binding.add(key="s", value="t")
    assert kinds(proto) == {"s": "weight"}


def convolution() -> onnx.ModelProto:
    return with_tensors(
        """g (float[batch,3,16,16] x) => (float[batch,10] y) {
            c = Conv<pads=[1,1,1,1]>(x, w, b)
            r = Relu(c)
            p = GlobalAveragePool(r)
            f = Flatten(p)
            y = Gemm<transB=1>(f, v, u)
        }""",
        w=floats(8, 3, 3, 3),
        b=floats(8),
        v=floats(10, 8),
        u=floats(10),
    )


@pytest.mark.parametrize("batch", [1, 4])
def test_cost_counted_by_hand(batch: int) -> None:
    result = inspect(load(convolution()), {"batch": batch})
    pixels = batch * 8 * 16 * 16
    by_hand = pixels * (2 * 27 + 1) + pixels + pixels + batch * 10 * (2 * 8 + 1)
    assert result.cost.flops == by_hand
    activations = 4 * (pixels + pixels + batch * 8 + batch * 8 + batch * 10)
    assert result.cost.activation_bytes == activations
    # Both convolution and Relu results are alive when Relu runs; the input is gone by then.
    assert result.cost.peak_bytes == 4 * 2 * pixels
    assert result.parameters == 8 * 27 + 8 + 80 + 10
    assert result.cost.sizes == {"batch": batch} and result.cost.unknown_nodes == 0


def test_flops_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, bias=False),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 49, 5, bias=False),
    )
    with FlopCounterMode(display=False) as counter:
        layers(torch.zeros(2, 3, 16, 16))
    proto = with_tensors(
        """g (float[2,3,16,16] x) => (float[2,5] y) {
            c = Conv<strides=[2,2]>(x, w)
            f = Flatten(c)
            y = Gemm<transB=1>(f, v)
        }""",
        w=floats(8, 3, 3, 3),
        v=floats(5, 392),
    )
    assert inspect(load(proto)).cost.flops == counter.get_total_flops()


def test_an_unknown_size_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match='"batch"'):
        inspect(load(convolution()), {"time": 3})


def test_what_stops_training_is_named() -> None:
    proto = with_tensors(
        "g (float[N,4] x) => (float[N,2] y) { h = MatMul(x, w) y = acme.Mystery(h) }",
        w=floats(4, 2),
    )
    proto.opset_import.add(domain="acme", version=1)
    proto.graph.node[1].name = "odd one"
    (blocker,) = inspect(load(proto)).blockers
    assert (blocker.operator, blocker.node) == ("acme::Mystery", "odd one")
    assert inspect(load(convolution())).blockers == []


HOSTILE = "\x1b[31mred\x1b[0m [bold]x[/bold] \u202e\n\0<script>"


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sardonyx.cli", "inspect", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    tensor = numpy_helper.from_array(floats(2, 2), HOSTILE + "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", [HOSTILE, HOSTILE + "w"], ["y"], name=HOSTILE)],
        HOSTILE,
        [helper.make_tensor_value_info(HOSTILE, onnx.TensorProto.FLOAT, [HOSTILE, 2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, 2])],
        [tensor],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    proto.producer_name = HOSTILE
    path = tmp_path / "hostile.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_the_table_is_safe_for_terminals(hostile: Path) -> None:
    done = run_cli(str(hostile))
    assert done.returncode == 0, done.stderr
    assert not {"\x1b", "\0", "\u202e"} & set(done.stdout)
    assert "\\x1b[31mred" in done.stdout and "[bold]x" in done.stdout


def test_json_is_for_programs(hostile: Path) -> None:
    done = run_cli(str(hostile), "--json")
    result = json.loads(done.stdout)
    assert result["inputs"][0]["name"] == HOSTILE
    assert result["parameters"] == 4
    assert [w["kind"] for w in result["tensors"]] == ["weight"]


def test_a_tuned_model_names_loss_optimizer_and_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from .networks import mlp

    net = sx.trainable(mlp(), "mse", optimizer=sx.optim.adamw(1e-3))
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(8, 6)).astype(np.float32), "label": np.zeros((8, 3), np.float32)}
    tuned = sx.train(net, data, epochs=2, batch_size=4).model
    (record,) = sx.inspect(tuned).training
    assert record.loss == "mse" and record.optimizer.startswith("adamw") and record.step == 4
    sx.save(tuned, tmp_path / "tuned.onnx")
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "tuned.onnx")])
    printed = capsys.readouterr().out
    assert "loss mse" in printed and "4 steps made" in printed


def test_every_loss_of_a_record_is_named() -> None:
    from .networks import mlp

    terms = [sx.loss.Term("cross_entropy"), sx.loss.Term("mse", labels=["target"])]
    (record,) = sx.inspect(sx.trainable(mlp(), terms)).training
    assert record.loss == "cross_entropy + mse"


def test_nodes_names_and_pages_are_whole_when_piped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a/very/long/name/" * 12
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,2] y) {{
    [{name[:-1].replace("/", "_")}] h = Relu(x)
    y = Neg(h)}}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "m.onnx"), "--nodes", "--html", str(page)])
    printed = capsys.readouterr().out
    assert name[:-1].replace("/", "_") in printed and "2 nodes" in printed
    assert "─" not in printed, "no rules"
    written = page.read_text()
    assert "<svg" in written and written.count("<rect") == 4, "an input, two nodes, an output"
    assert "http" not in written.replace("http-equiv", "")
    result = sx.inspect(tmp_path / "m.onnx", nodes=True)
    assert [n.operator for n in result.graph] == ["Relu", "Neg"]
    assert result.graph[1].inputs == ("h",) and result.graph[1].shapes == (("N", 2),)
    assert len(repr(result)) < 120 and "<table" in result._repr_html_()

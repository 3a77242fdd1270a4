"""Dimensions that a file declares as -1, or by a placeholder, are free: from every way in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.cli.__main__ import main

W = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)


def paddle(*, names: bool = False) -> onnx.ModelProto:
    """y = x @ w over a batch that is declared as -1; with `names`, two sizes are called "?"."""
    size = "?" if names else -1
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, 2])]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size, 3])]
    if names:
        inputs.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [size, 2]))
        nodes.append(helper.make_node("Relu", ["a"], ["b"], "act"))
        outputs.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [size, 2]))
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(W, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("batch", [1, 5])
def test_every_framework_takes_any_batch(batch: int) -> None:
    import torch

    x = np.arange(2.0 * batch, dtype=np.float32).reshape(batch, 2)
    model = sx.load(paddle())
    apply, params = sx.to_jax(model)
    for out in (
        sx.to_numpy(model)(x),
        sx.to_torch(model)(torch.tensor(x)).detach().numpy(),
        np.asarray(apply(params, x)),
    ):
        np.testing.assert_allclose(out, x @ W, rtol=1e-6)


def test_inspect_shows_no_negative_number() -> None:
    result = sx.inspect(paddle())
    assert result.inputs[0].shape == (None, 2)
    assert result.cost.flops == 2 * 2 * 3 and result.cost.peak_bytes > 0
    assert sx.inspect(paddle(), {"x[0]": 10}).cost.flops == 10 * 2 * 2 * 3


def test_check_says_so_and_still_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(paddle(), tmp_path / "m.onnx")
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(tmp_path / "m.onnx")])
    assert not stopped.value.code
    printed = capsys.readouterr().out
    assert "treated as free" in printed and '"x"' in printed


def test_verify_gradient_and_training() -> None:
    from sardonyx.engines.numpy import Runner, prepare_training

    model = sx.load(paddle())
    assert sx.verify(model, "onnxruntime").verdict == "same"
    x = np.ones((3, 2), np.float32)
    gradient = Runner(sx.grad(model, of="y", wrt="x", outputs=False))({"x": x})["grad/x"]
    np.testing.assert_allclose(gradient, np.broadcast_to(W.sum(1), (3, 2)), rtol=1e-6)
    step = prepare_training(sx.trainable(model, "mse", optimizer=sx.optim.sgd(0.0)))
    loss = step.step({"x": x, "label": np.zeros((3, 3), np.float32)})["loss"]
    np.testing.assert_allclose(loss, np.mean((x @ W) ** 2), rtol=1e-6)


def test_two_sizes_of_one_placeholder_are_two_sizes() -> None:
    model = sx.load(paddle(names=True))
    x, a = np.ones((3, 2), np.float32), np.ones((7, 2), np.float32)
    y, b = sx.to_numpy(model)(x, a)
    assert y.shape == (3, 3) and b.shape == (7, 2)
    assert set(sx.inspect(model).cost.sizes) == {"x[0]", "a[0]"}


@pytest.mark.parametrize("form", ["symbolic", "expanded"])
@pytest.mark.parametrize("part", ["input", "output"])
def test_a_file_that_leaves_ranks_open_is_trained(part: str, form: str, tmp_path: Path) -> None:
    """onnxruntime takes such a file, although ONNX's checker does not."""
    import onnxruntime

    model, path = paddle(), tmp_path / "tuned.onnx"
    getattr(model.graph, part)[0].type.tensor_type.ClearField("shape")
    x, label = np.ones((4, 2), np.float32), np.zeros((4, 3), np.float32)
    data = {"x": x, "label": label}
    sgd = sx.optim.sgd(0.1)
    run = sx.train(model, data, steps=1, loss="mse", optimizer=sgd, form=form, output=path)
    np.testing.assert_allclose(run.losses, [np.mean((x @ W) ** 2)], rtol=1e-6)
    updated = W - 0.1 * x.T @ (2 * (x @ W) / 12)
    (served,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    np.testing.assert_allclose(served, x @ updated, rtol=1e-5)
    assert sx.check(path)

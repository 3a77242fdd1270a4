"""What a trained file serves is what was loaded: the same nodes, names, order and opset."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import sardonyx as sx
from sardonyx.record.describe import choices

torch = pytest.importorskip("torch")


def classifier(fresh: bool = False) -> Any:
    """A small image classifier; a fresh one has equal tensors, which exporters make one."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 8),
        torch.nn.Sigmoid(),
        torch.nn.Linear(8, 3),
        torch.nn.Softmax(-1),
    )
    if not fresh:
        torch.nn.init.normal_(module[1].bias)
        module[1].running_mean.uniform_(-1, 1)
        module[1].running_var.uniform_(0.5, 2)
    return module


def exported(opset: int, fresh: bool = False) -> onnx.ModelProto:
    """The classifier as torch's older exporter writes it at an opset."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            classifier(fresh).eval(),
            torch.zeros(2, 1, 8, 8),
            file,
            opset_version=opset,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "N"}, "y": {0: "N"}},
        )
    return onnx.load_from_string(file.getvalue())


def served(net: Any) -> list[str]:
    return [c.value for c in choices(net) if c.what in ("opset", "served graph")]


@pytest.mark.parametrize("form", ["symbolic", "expanded"])
@pytest.mark.parametrize("opset", [11, 13, 17, 20])
def test_nodes_and_opset_stay(opset: int, form: str, tmp_path: Path) -> None:
    before = exported(opset)
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(8, 1, 8, 8)).astype(np.float32), "label": rng.integers(0, 3, 8)}
    net = sx.trainable(before, loss="cross_entropy", form=form)
    run = sx.train(net, data, epochs=1, batch_size=4, engine_options={"threads": 1})
    after = onnx.load(sx.save(run.model, tmp_path / "tuned.onnx"))
    assert list(after.graph.node) == list(before.graph.node)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    version = {i.domain: i.version for i in after.opset_import}[""]
    if form == "expanded" and opset < 16:  # the gradient of a gather adds up, which came with 16
        assert version == 16 and served(net) == [f"{opset} → 16"]
    else:
        assert version == opset and not served(net)
    old, new = (
        {t.name: numpy_helper.to_array(t) for t in m.graph.initializer} for m in (before, after)
    )
    assert list(old) == list(new)
    changed = [name for name in old if not np.array_equal(old[name], new[name])]
    assert len(changed) == 10, "weights and running statistics"
    trained = sx.load(tmp_path / "tuned.onnx")
    session = onnxruntime.InferenceSession(after.SerializeToString())
    again = sx.prepare_training(trained, "onnxruntime", threads=1).run({"x": data["x"]})["y"]
    np.testing.assert_allclose(session.run(None, {"x": data["x"]})[0], again, rtol=1e-5, atol=1e-6)


def test_only_merged_statistics_are_rewritten() -> None:
    before = exported(17, fresh=True)
    after = sx.trainable(before, loss="cross_entropy").proto()
    assert {i.domain: i.version for i in after.opset_import}[""] == 17
    nodes = [n for n in before.graph.node if n.op_type != "Identity"]
    assert len(nodes) < len(before.graph.node)
    for old, new in zip(nodes, after.graph.node, strict=True):
        if old.op_type == "BatchNormalization":
            del old.input[3:], new.input[3:]
        assert old == new


DROPOUT = """<ir_version: 8, opset_import: ["": 13]>
g (float[N,4] x) => (float[N,2] y) <float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1},
    float[4,2] h = {1,2,3,4,5,6,7,8}, float p = {0.5}> {
    a = MatMul(x, w) d = Dropout(a, p) MIDDLE y = MatMul(d, h) }"""


def test_a_newer_opset_is_a_choice() -> None:
    """Masks of Dropout are drawn with bitwise operators, which came with opset 18."""
    model = parse_model(DROPOUT.replace("MIDDLE", ""))
    net = sx.trainable(model, loss="mse")
    assert net.opset == 18 and served(net) == ["13 → 18"]
    assert list(net.proto().graph.node) == list(sx.load(model).proto().graph.node)


def test_a_rewritten_graph_is_a_choice() -> None:
    """ReduceMean of opset 13 has its axes in an attribute, and that of opset 18 does not."""
    text = DROPOUT.replace("MIDDLE", "q = ReduceMean<axes = [1]>(d) z = Sub(d, q)")
    net = sx.trainable(parse_model(text.replace("MatMul(d, h)", "MatMul(z, h)")), loss="mse")
    (value,) = served(net)
    assert value.startswith("rewritten at opset")


def test_a_second_record_leaves_the_first_alone() -> None:
    one = sx.trainable(exported(17), loss="cross_entropy")
    with pytest.warns(UserWarning, match="more than one training record"):
        two = sx.trainable(one, loss="cross_entropy", name="other", optimizer="sgd")
    before, after = one.proto(), two.proto()
    assert after.training_info[0] == before.training_info[0]
    assert list(after.graph.node) == list(before.graph.node)


@pytest.mark.parametrize("opset", [11, 13])
def test_training_at_an_old_opset_is_that_of_torch(opset: int) -> None:
    """Normalization by batch statistics is written in plain operators there."""
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(8, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 8)
    net = sx.trainable(exported(opset), loss="cross_entropy", optimizer=sx.optim.sgd(0.1))
    rep = sx.prepare_training(net, "onnxruntime", threads=1)
    newer = sx.trainable(exported(17), loss="cross_entropy", optimizer=sx.optim.sgd(0.1))
    other = sx.prepare_training(newer, "onnxruntime", threads=1)
    module = classifier()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        rep.step({"x": x, "label": label})
        other.step({"x": x, "label": label})
        optimizer.zero_grad()
        scores = module[:-1](torch.tensor(x))
        torch.nn.functional.cross_entropy(scores, torch.tensor(label)).backward()
        optimizer.step()
    state, same = rep.state(), other.state()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(state[name], parameter.detach(), rtol=1e-4, atol=1e-6)
    for name in ("1.running_mean", "1.running_var"):
        np.testing.assert_allclose(state[name], same[name], rtol=1e-5, atol=1e-6)

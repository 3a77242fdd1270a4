"""Pages of models with several outputs, with a final activation, or with names of the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx as sx
from tests.test_export_step import node_modules
from tests.test_export_web import KEPT, finish, visited

TEXT = """<ir_version: 8, opset_import: ["": 17]>
net (float[N,5] x) => (float[N,6] loss, float[N,%d] probabilities)
<float[6,5] w, float[%d,6] v>
{
  hidden = Gemm<transB = 1>(x, w)
  loss = Tanh(hidden)
  scores = Gemm<transB = 1>(loss, v)
  probabilities = %s(scores)
}"""
SETTINGS = {"epochs": 3, "batch_size": 16}


def network(classes: int = 3, activation: str = "Softmax") -> onnx.ModelProto:
    """Two outputs; the first is called as the loss of a record is."""
    proto = onnx.parser.parse_model(TEXT % (classes, classes, activation))
    rng = np.random.default_rng(0)
    del proto.graph.initializer[:]
    for name, shape in {"w": (6, 5), "v": (classes, 6)}.items():
        values = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    return proto


def rows(classes: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    if classes == 1:
        return {"x": x, "label": (x[:, :1] > 0).astype(np.float32)}
    return {"x": x, "label": x[:, :classes].argmax(1)}


def exported(net: sx.Model, folder: Path, **options: Any) -> Path:
    runtime = node_modules() / "onnxruntime-web"
    return sx.export_web(net, folder, runtime=runtime, **SETTINGS, **options).parent


def python_run(net: sx.Model, data: Any) -> Any:
    return sx.train(net, data, validation=0.2, shuffle="hash", metrics=["accuracy"], **SETTINGS)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    net = sx.trainable(network(), "cross_entropy", sx.optim.sgd(0.1), prediction="probabilities")
    return exported(net, tmp_path / "site", data=rows())


def test_the_page_shows_the_probabilities_of_the_model(tmp_path: Path) -> None:
    net = sx.trainable(network(), "cross_entropy", sx.optim.sgd(0.1), prediction="probabilities")
    site = exported(net, tmp_path / "site", data=rows())
    manifest = json.loads((site / "manifest.json").read_text())
    assert manifest["prediction"]["name"] == "probabilities"
    assert manifest["prediction"]["kind"] == "probabilities"
    run = python_run(net, rows())
    with visited(site) as page:
        page.click("#start")
        finish(page)
        progress = page.evaluate(KEPT)
        np.testing.assert_allclose(progress["losses"], run.losses, rtol=0, atol=2e-6)
        assert progress["history"][-1]["val_accuracy"] == run.history[-1]["val_accuracy"]
        page.fill("#row", ",".join(map(str, rows()["x"][0])))
        page.click("#predict")
        page.wait_for_selector(".scores span")
        shown = [
            s.split(" %")[0] for s in page.locator(".scores > span:nth-child(3n)").all_inner_texts()
        ]
        weights = run.rep.state()
        scores = np.tanh(rows()["x"][0] @ weights["w"].T) @ weights["v"].T
        expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(
            [float(s) for s in shown], np.sort(100 * expected)[::-1], atol=0.06
        )


def test_a_loss_that_is_not_finite_leaves_the_weights(tmp_path: Path) -> None:
    proto = network()
    proto.graph.node[-1].op_type = "Identity"
    net = sx.trainable(proto, "mse", sx.optim.sgd(0.1), prediction="probabilities")
    data = {"x": rows()["x"], "label": rows()["x"][:, :3]}
    with visited(exported(net, tmp_path / "site", data=data)) as page:
        page.locator("#settings input").last.fill("1e30")
        page.click("#start")
        page.wait_for_selector("#problem:not([hidden])")
        assert "the loss of step" in page.text_content("#problem")
        with page.expect_download() as download:
            page.click("#download")
        download.value.save_as(tmp_path / "tuned.onnx")
    tuned = sx.load(tmp_path / "tuned.onnx")
    assert all(np.isfinite(tuned.initializer(n).numpy()).all() for n in "wv")


def test_lines_of_a_chart_have_different_numbers(tmp_path: Path) -> None:
    """A loss that hardly moves, in a model whose graph an exporter named."""
    proto = network()
    proto.graph.name = "main_graph"
    onnx.save(proto, tmp_path / "flowers.onnx")
    how = {"optimizer": sx.optim.sgd(1e-3), "prediction": "probabilities"}
    net = sx.trainable(tmp_path / "flowers.onnx", "cross_entropy", **how)
    with visited(exported(net, tmp_path / "site", data=rows())) as page:
        assert page.text_content("h1") == "flowers"
        page.fill("#set-batch_size", "60")
        page.click("#start")
        finish(page)
        losses = page.evaluate(KEPT)["losses"]
        numbers = page.locator("#steps text[text-anchor=end]").all_text_contents()[:5]
    assert len(losses) == 3 and 0 < (max(losses) - min(losses)) / max(losses) < 1e-2
    assert len(set(numbers)) == 5, numbers
    assert float(numbers[0]) == pytest.approx(min(losses), rel=1e-3)


@pytest.mark.parametrize("activation,threshold", [("Sigmoid", 0.5), ("Identity", 0.0)])
def test_two_classes_have_a_table(tmp_path: Path, activation: str, threshold: float) -> None:
    how = {"prediction": "probabilities", "optimizer": sx.optim.sgd(0.5)}
    net = sx.trainable(network(1, activation), "binary_cross_entropy", **how)
    site = exported(net, tmp_path / "site", data=rows(1))
    prediction = json.loads((site / "manifest.json").read_text())["prediction"]
    assert prediction["threshold"] == threshold
    run = python_run(net, rows(1))
    with visited(site) as page:
        page.click("#start")
        finish(page)
        history = page.evaluate(KEPT)["history"]
        assert [h["val_accuracy"] for h in history] == [h["val_accuracy"] for h in run.history]
        assert page.locator("#confusion td").count() == 4


@pytest.mark.parametrize("denied", ["--deny-permission-prompts", "--use-fake-ui-for-media-stream"])
def test_a_camera_that_is_not_there_is_said(tmp_path: Path, denied: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[N,3,4,4] x) => (float[N,3] y)
    <float[3,48] w> { flat = Flatten(x)  y = Gemm<transB = 1>(flat, w) }"""
    proto = onnx.parser.parse_model(text)
    del proto.graph.initializer[:]
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((3, 48), np.float32), "w"))
    net = sx.trainable(proto, "cross_entropy")
    site = exported(net, tmp_path / "site", input="webcam")
    with visited(site, denied) as page:
        page.click("#try button")
        page.wait_for_selector("#problem:not([hidden])")
        assert "no camera" in page.text_content("#problem")


@pytest.mark.parametrize(
    "loss",
    [
        sx.loss.cross_entropy(ignore_index=1, weight=[1.0, 1.0, 4.0]),
        sx.loss.cross_entropy(reduction="sum"),
        [
            sx.loss.Term(sx.loss.cross_entropy(ignore_index=2), "probabilities", ["label"]),
            sx.loss.Term("mse", "loss", ["wanted"], weight=0.5),
        ],
    ],
    ids=["weights and ignored", "sum", "two losses"],
)
def test_validation_counts_what_a_loss_counts(tmp_path: Path, loss: Any) -> None:
    """In several batches, each of which counts the weights of its labels, or is a sum."""
    data = rows()
    if isinstance(loss, list):
        data["wanted"] = np.tanh(data["x"][:, [0, 1, 2, 3, 4, 0]])
    net = sx.trainable(network(activation="Identity"), loss, sx.optim.sgd(0.02))
    how = {"epochs": 2, "batch_size": 7, "validation": 0.4}
    runtime = node_modules() / "onnxruntime-web"
    page_file = sx.export_web(net, tmp_path / "site", data, runtime=runtime, **how)
    with visited(page_file.parent) as page:
        page.click("#start")
        finish(page)
        history = page.evaluate(KEPT)["history"]
    run = sx.train(net, data, shuffle="hash", metrics=["accuracy"], **how)
    for mine, theirs in zip(history, run.history, strict=True):
        assert mine["val_loss"] == pytest.approx(theirs["val_train/loss"], rel=2e-6)
        assert mine["val_accuracy"] == pytest.approx(theirs["val_accuracy"])


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx"])
def test_a_file_that_the_server_lacks_is_named(site: Path, name: str) -> None:
    with visited(site, expected=["404"]) as page:
        page.route(f"**/{name}", lambda route: route.fulfill(status=404, body="not there"))
        page.reload()
        page.wait_for_selector("#problem:not([hidden])")
        assert f"the server has no file {name} (404)" in page.text_content("#problem")


def test_a_page_that_is_opened_as_a_file_says_what_it_needs(site: Path) -> None:
    with visited(site, expected=["file://", "ERR_FAILED"]) as page:
        page.goto((site / "index.html").as_uri())
        page.wait_for_selector("#problem:not([hidden])")
        assert "needs a web server" in page.text_content("#problem")


def test_classes_are_those_that_were_trained_after_a_reload(site: Path, tmp_path: Path) -> None:
    """A file of which a class is missing would number the others anew."""
    files = {"all": ["cat", "dog", "owl"] * 5, "few": ["dog", "owl"] * 5, "new": ["a"] * 9}
    for file, names in files.items():
        text = "\n".join(f"{i / 9},{i % 4 / 3},1,2,3,{name}" for i, name in enumerate(names))
        (tmp_path / f"{file}.csv").write_text(text)
    with visited(site) as page:
        page.set_input_files("#file", tmp_path / "all.csv")
        page.wait_for_function("document.getElementById('columns').textContent.startsWith('15 ')")
        page.click("#start")
        finish(page)
        page.reload()
        page.wait_for_selector("body[data-ready=yes]")
        page.set_input_files("#file", tmp_path / "few.csv")
        page.wait_for_function("document.getElementById('columns').textContent.startsWith('10 ')")
        page.fill("#set-epochs", "4")
        page.click("#start")
        finish(page)
        assert "cat" not in page.text_content("#confusion")
        assert "0" not in page.text_content("#confusion tr")
        page.set_input_files("#file", tmp_path / "new.csv")
        page.wait_for_selector("#problem:not([hidden])")
        assert '"a" is not a label of the model' in page.text_content("#problem")
        page.click("#reset")
        page.set_input_files("#file", [])
        page.set_input_files("#file", tmp_path / "new.csv")
        page.wait_for_function("document.getElementById('columns').textContent.startsWith('9 ')")

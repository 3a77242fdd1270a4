"""Pages for models that read text or columns of a table: trained in a browser as by `sx.train`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx as sx
from sardonyx.errors import SardonyxError
from tests.test_export_step import node_modules
from tests.test_export_web import BATCH, EPOCHS, KEPT, check_tuned, fake_runtime, finish, visited

__all__ = ["fake_runtime"]
WORDS = ["good", "bad", "fine", "awful", "film", "the"]
CLASSES = ("no", "yes")
TEXT = """<ir_version: 9, opset_import: ["": 20, "ai.onnx.ml": 4]>
review (string[N] text) => (float[N,2] scores)
<float[7,4] table, float[2,4] w, float[2] b, int64[1] axis = {1}>
{
  lower = StringNormalizer<case_change_action = "LOWER">(text)
  parts, count = StringSplit<delimiter = " ">(lower)
  ids = ai.onnx.ml.LabelEncoder<keys_strings = KEYS, values_int64s = VALUES, default_int64 = 6>(parts)
  words = Gather(table, ids)
  features = ReduceMean<keepdims = 0>(words, axis)
  scores = Gemm<transB = 1>(features, w, b)
}"""  # noqa: E501
TABLE = """<ir_version: 9, opset_import: ["": 20, "ai.onnx.ml": 4]>
flat (float[N,1] size, string[N,1] city) => (float[N,1] price)
<float[1,3] w, float[1] b>
{
  hot = ai.onnx.ml.OneHotEncoder<cats_strings = ["Ulm", "Rom"], zeros = 1>(city)
  shape = Constant<value_ints = [-1, 2]>()
  place = Reshape(hot, shape)
  both = Concat<axis = 1>(size, place)
  price = Gemm<transB = 1>(both, w, b)
}"""


def parsed(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    keys = "[" + ", ".join(f'"{w}"' for w in WORDS) + "]"
    text = text.replace("KEYS", keys).replace("VALUES", str([*range(len(WORDS))]))
    proto = onnx.parser.parse_model(text)
    kept = [t for t in proto.graph.initializer if t.name not in shapes]
    del proto.graph.initializer[:]
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = rng.normal(size=shape).astype(np.float32) / 2
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    proto.graph.initializer.extend(kept)
    return proto


def reviews() -> sx.Model:
    proto = parsed(TEXT, table=(7, 4), w=(2, 4), b=(2,))
    return sx.trainable(proto, loss="cross_entropy", optimizer=sx.optim.adamw(1e-2))


def flats() -> sx.Model:
    return sx.trainable(parsed(TABLE, w=(1, 3), b=(1,)), loss="mse", optimizer=sx.optim.sgd(1e-2))


def texts(count: int = 60) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    rows = [" ".join(rng.choice(WORDS, rng.integers(1, 6))) for _ in range(count)]
    marked = [row.title() if i % 3 else row for i, row in enumerate(rows)]
    return {"text": np.array(marked, object), "label": np.array(["good" in r for r in rows], int)}


def rooms(count: int = 50) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    size = rng.random((count, 1)).astype(np.float32)
    city = rng.choice(["Ulm", "Rom", "Bonn"], (count, 1)).astype(object)
    return {"size": size, "city": city, "label": 3 * size + (city == "Rom").astype(np.float32)}


def exported(net: sx.Model, data: Any, folder: Path, **options: Any) -> Path:
    runtime = node_modules() / "onnxruntime-web"
    options = {"epochs": EPOCHS, "batch_size": BATCH, "runtime": runtime, **options}
    return sx.export_web(net, folder, data, **options).parent


def python_run(net: sx.Model, data: Any) -> Any:
    how = {"epochs": EPOCHS, "batch_size": BATCH, "validation": 0.2, "shuffle": "hash"}
    return sx.train(net, data, **how)


def write_csv(path: Path, header: list[str], rows: list[tuple[Any, ...]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([header, *rows])
    return path


def test_the_way_to_try_follows_the_inputs(fake_runtime: Path, tmp_path: Path) -> None:
    def way(net: sx.Model, data: Any = None) -> Any:
        page = sx.export_web(net, tmp_path / "site", data, runtime=fake_runtime)
        return json.loads((page.parent / "manifest.json").read_text())["input"]

    assert way(reviews()) == {"kind": "text", "name": "text", "type": "string", "shape": []}
    assert [c["name"] for c in way(flats(), rooms())["columns"]] == ["size", "city"]


@pytest.mark.parametrize(
    ("network", "kind", "words"),
    [
        (flats, "text", "one input"),
        (reviews, "draw", "needs a model of images"),
        (reviews, "webcam", "needs a model of images"),
    ],
)
def test_a_way_that_makes_no_row_is_refused(network, kind, words, fake_runtime, tmp_path) -> None:
    with pytest.raises(SardonyxError, match=words):
        sx.export_web(network(), tmp_path / "site", input=kind, runtime=fake_runtime)
    assert not (tmp_path / "site").exists()


def test_numbers_are_no_text(fake_runtime: Path, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (int64[N,T] ids) => (float[N,2] y) <float[2,2] w = {1,2,3,4}, int64[1] axis = {1}>
    { words = Gather(w, ids) y = ReduceSum<keepdims = 0>(words, axis) }""")
    net = sx.trainable(proto, loss="cross_entropy")
    with pytest.raises(SardonyxError, match="reads one text"):
        sx.export_web(net, tmp_path / "site", input="text", runtime=fake_runtime)


def test_operators_of_other_libraries_are_refused(fake_runtime: Path, tmp_path: Path) -> None:
    proto = parsed(TEXT, table=(7, 4), w=(2, 4), b=(2,))
    (upper,) = (n for n in proto.graph.node if n.op_type == "StringNormalizer")
    upper.op_type, upper.domain = "StringUpper", "ai.onnx.contrib"
    del upper.attribute[:]
    proto.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
    net = sx.trainable(proto, loss="cross_entropy")
    with pytest.raises(SardonyxError, match="onnxruntime-web does not have") as error:
        sx.export_web(net, tmp_path / "site", runtime=fake_runtime)
    assert "StringUpper" in str(error.value)


def test_a_fixed_number_of_rows_is_refused(fake_runtime: Path, tmp_path: Path) -> None:
    net = sx.trainable(
        parsed(TEXT.replace("[N", "[4"), table=(7, 4), w=(2, 4), b=(2,)), loss="cross_entropy"
    )
    with pytest.raises(SardonyxError, match="4 rows, and no other"):
        sx.export_web(net, tmp_path / "site", runtime=fake_runtime)


def test_text_is_trained_as_in_python(tmp_path: Path) -> None:
    net = reviews()
    with visited(exported(net, texts(), tmp_path / "site", input="text")) as page:
        page.fill("#text", "The film, fine")
        page.click("#predict")
        page.wait_for_selector(".scores span")
        page.click("#start")
        finish(page)
        losses = page.evaluate(KEPT)["losses"]
        with page.expect_download() as download:
            page.click("#download")
        download.value.save_as(tmp_path / "tuned.onnx")
        shown = page.text_content("#result")
    run = python_run(net, texts())
    np.testing.assert_allclose(losses, run.losses, rtol=0, atol=2e-6)
    tuned = sx.predict(tmp_path / "tuned.onnx", {"text": np.array(["The film, fine"], object)})
    scores = np.exp(tuned["scores"][0]) / np.exp(tuned["scores"][0]).sum()
    assert f"{100 * scores.max():.1f} %" in shown
    check_tuned(tmp_path, run, texts())


def test_a_csv_file_of_texts(tmp_path: Path) -> None:
    rows = [(f'{t}, "so', CLASSES[y]) for t, y in zip(*texts().values(), strict=True)]
    path = write_csv(tmp_path / "reviews.csv", ["review", "liked"], rows)
    data = {"text": np.array([t for t, _ in rows], object), "label": texts()["label"]}
    net = reviews()
    with visited(exported(net, None, tmp_path / "site")) as page:
        (tmp_path / "wide.csv").write_text("a,b,c\n1,2,3\n")
        page.set_input_files("#file", tmp_path / "wide.csv")
        page.wait_for_selector("#problem:not([hidden])")
        assert "the model takes 1 value and a label" in page.text_content("#problem")
        page.set_input_files("#file", path)
        page.wait_for_function("document.getElementById('columns').textContent.startsWith('60 ')")
        assert page.text_content("#columns").endswith("review; label liked")
        page.click("#start")
        finish(page)
        losses = page.evaluate(KEPT)["losses"]
        table = page.text_content("#confusion")
    assert all(name in table for name in CLASSES)
    np.testing.assert_allclose(losses, python_run(net, data).losses, rtol=0, atol=2e-6)


def test_a_csv_file_of_columns(tmp_path: Path) -> None:
    data = rooms()
    columns = (data[n][:, 0].tolist() for n in ("city", "size", "label"))
    path = write_csv(
        tmp_path / "flats.csv", ["city", "size", "label"], [*zip(*columns, strict=True)]
    )
    net = flats()
    with visited(exported(net, data, tmp_path / "site")) as page:
        page.fill("#row", "0.5,Rom")
        page.click("#predict")
        page.wait_for_selector(".scores span")
        page.set_input_files("#file", path)  # the same rows, their columns in another order
        page.wait_for_function("document.getElementById('columns').textContent.startsWith('50 ')")
        page.click("#start")
        finish(page)
        losses = page.evaluate(KEPT)["losses"]
    np.testing.assert_allclose(losses, python_run(net, data).losses, rtol=0, atol=2e-6)

"""The page that trains: its files by onnx itself, its training by `sx.train`, in a real browser."""

from __future__ import annotations

import errno
import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx as sx
from sardonyx.errors import SardonyxError
from sardonyx.train.images import as_metadata, as_preprocessing, layout_of
from sardonyx.web.offsets import places
from sardonyx.web.runtime import FILES
from tests.test_export_step import node_modules
from tests.test_score_site import executable

TEXT = """<ir_version: 8, opset_import: ["": 17]> net (float[N,1,4,4] image) => (float[N,3] scores)
<float[6,16] w, float[6] b, float[3,6] v, float[3] c>
{
  flat = Flatten(image)
  hidden = Gemm<transB = 1>(flat, w, b)
  active = Relu(hidden)
  scores = Gemm<transB = 1>(active, v, c)
}"""
ROWS, EPOCHS, BATCH = 70, 3, 16


def network() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    del proto.graph.initializer[:]
    for name, shape in {"w": (6, 16), "b": (6,), "v": (3, 6), "c": (3,)}.items():
        values = rng.normal(size=shape).astype(np.float32) / 2
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    return proto


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    images = rng.random((ROWS, 1, 4, 4)).astype(np.float32)
    return {"image": images, "label": (images.sum((1, 2, 3)) * 3 // 8 % 3).astype(np.int64)}


@pytest.fixture
def trainable() -> sx.Model:
    return sx.trainable(network(), loss="cross_entropy", optimizer=sx.optim.adamw(1e-2))


@pytest.fixture
def fake_runtime(tmp_path: Path) -> Path:
    folder = tmp_path / "runtime"
    folder.mkdir()
    for name in FILES["webgpu"]:
        (folder / name).write_text("")
    return folder


def test_offsets_are_those_of_the_tensors(trainable: sx.Model, tmp_path: Path) -> None:
    path = sx.save(trainable, tmp_path / "model.onnx")
    content = path.read_bytes()
    proto = onnx.load(path)
    tensors = [*proto.graph.initializer, *proto.training_info[0].algorithm.initializer]
    where = places(content)
    assert {t.name for t in tensors} == set(where) and len(where) > 10
    for tensor in tensors:
        place = where[tensor.name]
        assert content[place.offset : place.offset + place.length] == tensor.raw_data


def test_the_folder_holds_everything(trainable, fake_runtime, tmp_path: Path) -> None:
    page = sx.export_web(trainable, tmp_path / "site", data(), runtime=fake_runtime)
    manifest = json.loads((page.parent / "manifest.json").read_text())
    assert manifest["input"] == {
        "kind": "draw", "name": "image", "type": "float32", "shape": [1, 4, 4],
    }  # fmt: skip
    assert manifest["labels"] == ["label"] and manifest["losses"] == ["loss"]
    assert manifest["prediction"] == {
        "name": "scores", "kind": "scores", "label": "label", "ignored": None,
    }  # fmt: skip
    fields = {f["name"]: f for f in manifest["data"]["fields"]}
    numbers = (page.parent / "data.bin").read_bytes()
    start = fields["label"]["offset"]
    assert np.array_equal(
        np.frombuffer(numbers, np.int64, ROWS, start), data()["label"]
    ) and numbers.startswith(data()["image"].tobytes())
    for name in ("index.html", "app.js", "csv.js", "worker.js", "style.css"):
        text = (page.parent / name).read_text()
        assert "http://" not in text and "https://" not in text  # nothing from elsewhere


def test_a_folder_that_cannot_be_written_is_said(
    trainable: sx.Model, fake_runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    for write in (
        lambda folder: sx.export_web(trainable, folder, runtime=fake_runtime),
        lambda folder: sx.export_step(trainable, folder),
        sx.verify(trainable, trainable).save,
    ):
        with pytest.raises(
            SardonyxError, match=r'cannot write into ".*taken": (file exists|not a directory)'
        ):
            write(taken)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)  # which shutil.copytree calls, too
    with pytest.raises(SardonyxError, match=r'cannot write into ".*site".*o space left'):
        sx.export_web(trainable, tmp_path / "site", runtime=fake_runtime)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input": "paint"}, "draw, image"),
        ({"target": "npu"}, "auto, wasm, webgpu"),
        ({"validation": 1.5}, "from 0 to below 1"),
        ({"validation": "a"}, "from 0 to below 1"),
        ({"epochs": 0}, "epochs  an integer of at least 1"),
        ({"batch_size": 2.5}, "batch size  an integer of at least 1"),
        ({"seed": 1.5}, "seed  an integer of at least 0"),
    ],
)
def test_wrong_arguments_are_refused(trainable, fake_runtime, tmp_path, options, words) -> None:
    with pytest.raises(SardonyxError, match=words):
        sx.export_web(trainable, tmp_path / "site", runtime=fake_runtime, **options)


def test_what_is_missing_is_said(trainable, fake_runtime, tmp_path, monkeypatch) -> None:
    with pytest.raises(SardonyxError, match="training record"):
        sx.export_web(network(), tmp_path / "site", runtime=fake_runtime)
    with pytest.raises(SardonyxError, match="does not hold onnxruntime-web"):
        sx.export_web(trainable, tmp_path / "site", runtime=tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SardonyxError, match="npm"):
        sx.export_web(trainable, tmp_path / "site")


# -- in a browser ---------------------------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


NO_GPU = "warning: No available adapters."  # what a browser without WebGPU says


@contextmanager
def visited(site: Path, *arguments: str, expected: Sequence[str] = (NO_GPU,)) -> Iterator[Any]:
    """The page of a folder, ready, in a browser that is started with these arguments.

    expected -- parts of what the browser may report
    """
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = executable()
    if path is None:
        pytest.skip("no browser is installed")
    handler = functools.partial(Quiet, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    problems: list[str] = []
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", *arguments]
        )
        page = browser.new_context().new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("body[data-ready=yes]", timeout=120_000)
        yield page
        browser.close()
    server.shutdown()
    server.server_close()
    assert not [p for p in problems if not any(e in p for e in expected)]


@pytest.fixture
def visit(trainable: sx.Model, tmp_path: Path) -> Iterator[Any]:
    page = sx.export_web(
        trainable, tmp_path / "site", data(), epochs=EPOCHS, batch_size=BATCH,
        runtime=node_modules() / "onnxruntime-web",
    )  # fmt: skip
    with visited(page.parent) as opened:
        yield opened


KEPT = """() => new Promise((resolve) => {
  const request = indexedDB.open("sardonyx", 1);
  request.onsuccess = () => {
    const all = request.result.transaction("runs").objectStore("runs").getAll();
    all.onsuccess = () => resolve(all.result[0].progress);
  };
})"""


def finish(page: Any) -> None:
    page.wait_for_function(
        "document.getElementById('status').textContent.startsWith('finished')", timeout=120_000
    )


def test_the_page_makes_the_steps_of_python(visit: Any, trainable: sx.Model, tmp_path) -> None:
    requests: list[str] = []
    visit.on("request", lambda request: requests.append(request.url))
    visit.click("#start")
    finish(visit)
    progress = visit.evaluate(KEPT)
    how = {"epochs": EPOCHS, "batch_size": BATCH, "validation": 0.2, "shuffle": "hash"}
    run = sx.train(trainable, data(), metrics=["accuracy"], **how)
    np.testing.assert_allclose(progress["losses"], run.losses, rtol=0, atol=2e-6)
    for mine, theirs in zip(progress["history"], run.history, strict=True):
        assert mine["val_loss"] == pytest.approx(theirs["val_loss"], abs=2e-6)
        assert mine["val_accuracy"] == pytest.approx(theirs["val_accuracy"])
    with visit.expect_download() as download:
        visit.click("#download")
    download.value.save_as(tmp_path / "tuned.onnx")
    assert not [url for url in requests if not url.startswith("blob:")]  # nothing after loading
    check_tuned(tmp_path, run)
    visit.reload()
    visit.wait_for_selector("body[data-ready=yes]")
    assert "continued from" in visit.text_content("#status")


def check_tuned(folder: Path, run: Any, rows: Any = None) -> None:
    """Only the numbers of the state differ from the exported file, and Python goes on with them."""
    original = (folder / "site" / "model.onnx").read_bytes()
    tuned = (folder / "tuned.onnx").read_bytes()
    where = places(original)
    mask = np.ones(len(original), bool)
    for name in run.rep.state():
        mask[where[name].offset : where[name].offset + where[name].length] = False
    assert len(original) == len(tuned)
    parts = (np.frombuffer(content, np.uint8)[mask] for content in (original, tuned))
    assert np.array_equal(*parts)
    onnx.checker.check_model(onnx.load(folder / "tuned.onnx"))
    rows = data() if rows is None else rows
    more = sx.train(folder / "tuned.onnx", rows, steps=3, shuffle="hash", batch_size=BATCH)
    assert more.position.step == 3
    tensors = sx.load(folder / "tuned.onnx").graph.initializers
    for name in (w.name for w in sx.weights(run.model) if w.name in run.rep.state()):
        numbers = tensors[name].const_value.numpy()
        np.testing.assert_allclose(numbers, run.rep.state()[name], atol=1e-5)


def test_a_user_draws_stops_and_goes_on(visit: Any) -> None:
    box = visit.query_selector("#pad").bounding_box()
    visit.mouse.move(box["x"] + 100, box["y"] + 40)
    visit.mouse.down()
    visit.mouse.move(box["x"] + 100, box["y"] + 200, steps=5)
    visit.mouse.up()
    visit.wait_for_selector(".scores span")
    assert "before" in visit.text_content("#result")
    visit.fill("#set-epochs", "500")
    visit.click("#start")
    visit.wait_for_function("document.getElementById('status').textContent.includes('epoch 2')")
    visit.click("#stop")
    visit.wait_for_function(
        "document.getElementById('status').textContent.startsWith('stopped')", timeout=60_000
    )
    steps = visit.evaluate(KEPT)["step"]
    visit.click("#start")
    visit.wait_for_function(
        f"Number(/step ([0-9,]+)/.exec(document.getElementById('status').textContent)?.[1]"
        f".replace(',', '')) > {steps}"
    )
    visit.click("#stop")
    visit.set_viewport_size({"width": 390, "height": 800})
    wide = visit.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390


TABLE = """() => {
  const cells = (name, tag) => `<th>${name}</th>` + `<${tag}>99</${tag}>`.repeat(10);
  document.getElementById("confusion-part").hidden = false;
  document.getElementById("confusion").innerHTML =
    `<tr>${cells("label \\ predicted", "th")}</tr>` + `<tr>${cells("9", "td")}</tr>`.repeat(10);
  const view = document.querySelector("#confusion-part .scroll");
  return view.scrollWidth - view.clientWidth;
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_a_table_of_ten_classes_is_seen_whole(visit: Any, width: int) -> None:
    visit.set_viewport_size({"width": width, "height": 800})
    assert visit.evaluate(TABLE) == 0


def test_data_of_ones_own(visit: Any, tmp_path: Path) -> None:
    rows = data()
    lines = [
        ",".join(map(str, [*x.ravel().tolist(), y]))
        for x, y in zip(rows["image"][:40], rows["label"][:40], strict=True)
    ]
    (tmp_path / "bad.csv").write_text("1,2,3\n")
    visit.set_input_files("#file", tmp_path / "bad.csv")
    visit.wait_for_selector("#problem:not([hidden])")
    assert "the model takes 16 numbers" in visit.text_content("#problem")
    (tmp_path / "good.csv").write_text("\n".join(lines))
    visit.set_input_files("#file", tmp_path / "good.csv")
    visit.wait_for_function("document.getElementById('columns').textContent.startsWith('40 rows')")
    visit.click("#start")
    finish(visit)
    assert visit.evaluate(KEPT)["step"] == EPOCHS * 2  # 32 of the 40 rows, 16 at a time


def test_data_waits_for_the_training_to_stop(visit: Any, tmp_path: Path) -> None:
    """Rows that are replaced while they are trained on would be mixed with the new ones."""
    (tmp_path / "few.csv").write_text("\n".join(["0.5," * 16 + str(i % 3) for i in range(5)]))
    visit.fill("#set-epochs", "5000")
    visit.click("#start")
    visit.wait_for_function("document.getElementById('status').textContent.includes('step')")
    visit.set_input_files("#file", tmp_path / "few.csv")
    visit.wait_for_selector("#problem:not([hidden])")
    assert "stop the training" in visit.text_content("#problem")
    visit.click("#stop")
    visit.wait_for_function(
        "document.getElementById('status').textContent.startsWith('stopped')", timeout=60_000
    )
    visit.set_input_files("#file", [])
    visit.set_input_files("#file", tmp_path / "few.csv")
    visit.wait_for_function("document.getElementById('columns').textContent.startsWith('5 rows')")
    visit.fill("#set-seed", "7")
    before = visit.evaluate(KEPT)
    visit.fill("#set-epochs", str(before["epoch"] + 2))
    visit.click("#start")
    finish(visit)
    assert visit.evaluate(KEPT)["step"] == before["step"] + 2  # one batch of the five rows each
    visit.reload()
    visit.wait_for_selector("body[data-ready=yes]")
    assert "trained on few.csv" in visit.text_content("#status")
    assert visit.input_value("#set-seed") == "7"


def test_a_folder_of_images(visit: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    rng = np.random.default_rng(3)
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 255, (8, 8), np.uint8)
            image.fromarray(pixels).save(tmp_path / "pets" / label / f"{i}.png")
    (tmp_path / "pets" / "notes.txt").write_text("no image")
    visit.set_input_files("#folder", tmp_path / "pets")
    visit.wait_for_function("document.getElementById('columns').textContent.startsWith('20')")
    assert visit.text_content("#columns") == "20 images of 2 classes: cat, dog"
    visit.click("#start")
    finish(visit)
    assert visit.evaluate(KEPT)["step"] == EPOCHS  # 16 of the 20 images at once
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no image")
    visit.set_input_files("#folder", tmp_path / "empty")
    visit.wait_for_selector("#problem:not([hidden])")
    assert "holds no images" in visit.text_content("#problem")


WHOLE_NUMBERS = """<ir_version: 8, opset_import: ["": 17]>
net (uint8[N,1,4,4] image) => (float[N,2] scores) <float[2,16] w, float[2] b>
{
  numbers = Cast<to = 1>(image)
  flat = Flatten(numbers)
  scores = Gemm<transB = 1>(flat, w, b)
}"""


def test_numbers_that_a_file_lists_become_bytes(fake_runtime: Path, tmp_path: Path) -> None:
    """Weights that protobuf keeps as a list have no bytes that a page could write over."""
    proto = onnx.parser.parse_model(WHOLE_NUMBERS)
    del proto.graph.initializer[:]
    proto.graph.initializer.append(onnx.helper.make_tensor("w", 1, [2, 16], [0.5] * 32))
    proto.graph.initializer.append(onnx.helper.make_tensor("b", 1, [2], [1.0, 2.0]))
    net = sx.trainable(proto, loss="cross_entropy")
    page = sx.export_web(net, tmp_path / "site", runtime=fake_runtime)
    content = (page.parent / "model.onnx").read_bytes()
    where = json.loads((page.parent / "manifest.json").read_text())["model"]["tensors"]
    assert np.frombuffer(content, np.float32, 2, where["b"]).tolist() == [1.0, 2.0]


def mean_of_pixels(kind: str) -> sx.Model:
    """A model of whole numbers, both of whose outputs are their mean."""
    proto = onnx.parser.parse_model(WHOLE_NUMBERS.replace("uint8", kind))
    del proto.graph.initializer[:]
    weights = {"w": np.full((2, 16), 1 / 16, np.float32), "b": np.zeros(2, np.float32)}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return sx.trainable(proto, loss="cross_entropy")


def test_pixels_of_a_model_of_whole_numbers(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.full((4, 4), 200, np.uint8)
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        image.fromarray(pixels).save(tmp_path / "pets" / label / "0.png")
    page = sx.export_web(
        mean_of_pixels("uint8"), tmp_path / "site", input="image",
        runtime=node_modules() / "onnxruntime-web",
    )  # fmt: skip
    manifest = json.loads((tmp_path / "site" / "manifest.json").read_text())
    manifest["prediction"]["kind"] = "numbers"
    (tmp_path / "site" / "manifest.json").write_text(json.dumps(manifest))
    with visited(page.parent) as opened:
        opened.set_input_files("#image", tmp_path / "pets" / "cat" / "0.png")
        opened.wait_for_selector(".scores span")
        assert "200.0" in opened.text_content("#result")
        opened.set_input_files("#folder", tmp_path / "pets")
        opened.wait_for_function("document.getElementById('columns').textContent.startsWith('2 ')")


PREPARED = {
    "imagenet": {"resize": [8], "center": 4, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
    "a part of another shape": {"resize": [6, 16], "center": [2, 6], "order": "BGR"},
    "a crop": {"center": [8, 12], "crop": 0.5, "scale": 0.01, "mean": 3.0, "std": 2.0},
}


@pytest.mark.parametrize("settings", PREPARED.values(), ids=PREPARED)
def test_pictures_are_prepared_as_in_training(tmp_path: Path, settings: dict[str, Any]) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    net (float[N,3,4,4] image) => (float[N,2] scores) <float[3,2] w = {1, 0, 0, 0, 0, 0}>
    { pooled = GlobalAveragePool(image) flat = Flatten(pooled) scores = MatMul(flat, w) }""")
    net = sx.trainable(proto, loss="cross_entropy")
    net.metadata.update(as_metadata(as_preprocessing(settings)))
    pixels = np.zeros((12, 16, 3), np.uint8)
    pixels[:, :, :] = 250, 130, 20
    pixels[2:10, 4:12] = 40, 90, 210
    image.fromarray(pixels).save(tmp_path / "picture.png")
    page = sx.export_web(
        net, tmp_path / "site", input="image", runtime=node_modules() / "onnxruntime-web"
    )
    with visited(page.parent) as opened:
        opened.set_input_files("#image", tmp_path / "picture.png")
        opened.wait_for_selector(".scores span")
        shown = opened.text_content("#result")
        image.fromarray(pixels[:7, :7]).save(tmp_path / "small.png")
        opened.set_input_files("#image", tmp_path / "small.png")
        if "resize" not in settings:
            opened.wait_for_selector("#problem:not([hidden])")
            assert "7 × 7 pixels is too small" in opened.text_content("#problem")
    expected = layout_of(net).pixels(image.open(tmp_path / "picture.png"))[0].mean()
    chance = 1 / (1 + np.exp(-float(expected)))
    assert f"{100 * max(chance, 1 - chance):.1f} %" in shown


@pytest.mark.parametrize("kind", ["bool", "int8"])
def test_types_that_hold_no_pixels_are_no_pictures(fake_runtime, tmp_path, kind: str) -> None:
    with pytest.raises(SardonyxError, match="needs a model of images"):
        sx.export_web(mean_of_pixels(kind), tmp_path / "site", input="image", runtime=fake_runtime)


def test_pictures_of_any_size_need_data(fake_runtime, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    net (float[N,3,H,W] image) => (float[N,3] scores)
    <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
    { pooled = GlobalAveragePool(image) flat = Flatten(pooled) scores = MatMul(flat, w) }""")
    net = sx.trainable(proto, loss="cross_entropy")
    with pytest.raises(SardonyxError, match="data shows it"):
        sx.export_web(net, tmp_path / "site", runtime=fake_runtime)


# -- on WebGPU ------------------------------------------------------------------------------------

# Chromium's own renderer: WebGPU on a machine without a GPU.
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
NORMALIZED = """<ir_version: 8, opset_import: ["": 17]>
net (float[N,1,4,4] image) => (float[N,3] scores)
<float[4,1,3,3] k, float[4] s, float[4] b, float[4] m, float[4] r, float[3,64] v, float[3] c>
{
  blurred = Conv<pads = [1, 1, 1, 1]>(image, k)
  normal = BatchNormalization(blurred, s, b, m, r)
  active = Relu(normal)
  flat = Flatten(active)
  scores = Gemm<transB = 1>(flat, v, c)
}"""


def normalized_network(**settings: Any) -> sx.Model:
    """A small CNN with batch normalization, and its training record."""
    proto = onnx.parser.parse_model(NORMALIZED)
    rng = np.random.default_rng(2)
    del proto.graph.initializer[:]
    for name, shape in {"k": (4, 1, 3, 3), "v": (3, 64)}.items():
        values = rng.normal(size=shape).astype(np.float32) / 4
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    for name, size, value in (("s", 4, 1), ("b", 4, 0), ("m", 4, 0), ("r", 4, 1), ("c", 3, 0)):
        values = np.full(size, value, np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    optimizer = sx.optim.adamw(1e-2)
    return sx.trainable(proto, loss="cross_entropy", optimizer=optimizer, **settings)


def exported_for_webgpu(folder: Path) -> tuple[sx.Model, Path]:
    net = normalized_network()
    page = sx.export_web(
        net, folder, data(), target="webgpu", epochs=EPOCHS, batch_size=BATCH,
        runtime=node_modules() / "onnxruntime-web",
    )  # fmt: skip
    return net, page.parent


def test_the_step_for_webgpu_has_no_batch_normalization_that_trains(tmp_path: Path) -> None:
    _, site = exported_for_webgpu(tmp_path / "site")
    proto = onnx.load(site / "step" / "train.onnx")
    onnx.checker.check_model(proto)
    norms = [n for n in proto.graph.node if n.op_type == "BatchNormalization"]
    assert norms and not [
        a for n in norms for a in n.attribute if a.name == "training_mode" and a.i
    ]


def test_double_precision_is_refused_on_webgpu(fake_runtime: Path, tmp_path: Path) -> None:
    text = TEXT.replace("float[", "double[")
    proto = onnx.parser.parse_model(text)
    del proto.graph.initializer[:]
    for tensor in network().graph.initializer:
        values = numpy_helper.to_array(tensor).astype(np.float64)
        proto.graph.initializer.append(numpy_helper.from_array(values, tensor.name))
    net = sx.trainable(proto, loss="cross_entropy")
    with pytest.raises(SardonyxError, match="no double precision"):
        sx.export_web(net, tmp_path / "site", target="webgpu", runtime=fake_runtime)


def test_a_norm_in_double_precision_is_refused_on_webgpu(fake_runtime, tmp_path: Path) -> None:
    net = normalized_network(clip_norm=1.0)
    with pytest.raises(SardonyxError, match="no double precision, in which"):
        sx.export_web(net, tmp_path / "site", target="webgpu", runtime=fake_runtime)
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("arguments", [SOFTWARE_GPU, ()], ids=["webgpu", "a browser without it"])
def test_training_on_webgpu(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    net, site = exported_for_webgpu(tmp_path / "site")
    with visited(site, *arguments) as page:
        if not page.evaluate("navigator.gpu?.requestAdapter().then(Boolean)"):
            assert "no WebGPU" in page.text_content("#status")
            assert "WebAssembly" in page.text_content("#facts")
        else:
            assert "on the GPU" in page.text_content("#facts")
        page.click("#start")
        finish(page)
        progress = page.evaluate(KEPT)
        with page.expect_download() as download:
            page.click("#download")
        download.value.save_as(tmp_path / "tuned.onnx")
    how = {"epochs": EPOCHS, "batch_size": BATCH, "validation": 0.2, "shuffle": "hash"}
    run = sx.train(net, data(), **how)
    np.testing.assert_allclose(progress["losses"], run.losses, rtol=0, atol=2e-6)
    check_tuned(tmp_path, run)

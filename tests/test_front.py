"""Text and foreign operators in front of a model: training equals training on what they give."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.cli import __main__ as cli
from sardonyx.engines.prepare import prepare_training
from sardonyx.record.front import separate

CONTRIB = "ai.onnx.contrib"
WORDS = ["red", "green", "blue", "car"]
ROWS = 24
RNG = np.random.default_rng(0)
TEXTS = np.array([" ".join(RNG.choice(WORDS, 2)) for _ in range(ROWS)], object)
LABELS = RNG.integers(0, 2, ROWS)
node = helper.make_node


def info(name: str, kind: int, *dims: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(dims))


def constant(name: str, *shape: int) -> onnx.TensorProto:
    values = np.random.default_rng(len(name)).normal(size=shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def network(
    front: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    behind: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    infos: list[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [*front, *behind, node("Gemm", ["features", "w", "b"], ["scores"], transB=1)],
        "text",
        inputs,
        [info("scores", TensorProto.FLOAT, "N", 2)],
        [constant("w", 2, 3), constant("b", 2), *constants],
        value_info=infos,
    )
    versions = [("", 20), ("ai.onnx.ml", 4), (CONTRIB, 1)]
    imports = [helper.make_opsetid(domain, version) for domain, version in versions]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


EMBED = [node("Gather", ["table", "ids"], ["features"])]
MEAN = [
    node("Gather", ["table", "ids"], ["words"]),
    node("ReduceMean", ["words", "axis"], ["features"], keepdims=0),
]
TABLE = constant("table", 9, 3)
AXIS = numpy_helper.from_array(np.array([1]), "axis")
BUCKETS = numpy_helper.from_array(np.array([8]), "buckets")
ENCODE = {"keys_strings": WORDS, "values_int64s": [0, 1, 2, 3], "default_int64": 4}
FRONTS: dict[str, tuple[list[onnx.NodeProto], list[onnx.NodeProto], int]] = {
    "split and encode": (
        [
            node("StringSplit", ["text"], ["parts", "count"], delimiter=" "),
            node("LabelEncoder", ["parts"], ["ids"], domain="ai.onnx.ml", **ENCODE),
        ],
        MEAN,
        2,
    ),
    "upper and hash": (
        [
            node("StringUpper", ["text"], ["upper"], domain=CONTRIB),
            node("StringToHashBucketFast", ["upper", "buckets"], ["ids"], domain=CONTRIB),
        ],
        EMBED,
        1,
    ),
    "length": (
        [
            node("StringLength", ["text"], ["length"], domain=CONTRIB),
            node("Mod", ["length", "buckets"], ["ids"]),
        ],
        EMBED,
        1,
    ),
}


def text_model(kind: str, declared: bool) -> onnx.ModelProto:
    front, behind, rank = FRONTS[kind]
    infos = [info("ids", TensorProto.INT64, *["N", "T"][:rank])] if declared else []
    return network(
        front, [info("text", TensorProto.STRING, "N")], behind, [TABLE, AXIS, BUCKETS], infos
    )


def number_model(kind: str) -> onnx.ModelProto:
    """The same network without its front."""
    _, behind, rank = FRONTS[kind]
    ids = info("ids", TensorProto.INT64, *["N", "T"][:rank])
    return network([], [ids], behind, [TABLE, AXIS], [])


def ids_of(kind: str, texts: np.ndarray) -> np.ndarray:
    """What the front gives, by onnxruntime alone."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    front, _, rank = FRONTS[kind]
    graph = helper.make_graph(
        front,
        "front",
        [info("text", TensorProto.STRING, "N")],
        [info("ids", TensorProto.INT64, *["N", "T"][:rank])],
        [BUCKETS],
    )
    imports = [helper.make_opsetid(d, v) for d, v in (("", 20), ("ai.onnx.ml", 4), (CONTRIB, 1))]
    options = ort.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {"text": texts})[0]


def losses(run: Any) -> list[float]:
    return [epoch["loss"] for epoch in run.history]


HOW: dict[str, Any] = {"loss": "cross_entropy", "optimizer": "sgd", "lr": 0.1, "batch_size": 8}


@pytest.mark.parametrize("engine", ["onnxruntime", "torch", "numpy"])
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("kind", FRONTS)
def test_losses_are_those_on_numbers(kind: str, declared: bool, engine: str) -> None:
    data = {"text": TEXTS, "label": LABELS}
    run = sx.train(text_model(kind, declared), data, epochs=2, engine=engine, **HOW)
    numbers = {"ids": ids_of(kind, TEXTS), "label": LABELS}
    expected = sx.train(number_model(kind), numbers, epochs=2, engine=engine, **HOW)
    assert losses(run) == losses(expected)
    served = run.model.initializer("w").numpy()
    assert np.array_equal(served, expected.model.initializer("w").numpy())
    assert sx.predict(run.model, data)["scores"].shape == (ROWS, 2)


@pytest.mark.parametrize("kind", FRONTS)
def test_resumes_evaluates_and_exports(kind: str, tmp_path: Path) -> None:
    data = {"text": TEXTS, "label": LABELS}
    whole = sx.train(text_model(kind, False), data, epochs=3, **HOW)
    path = tmp_path / "tuned.onnx"
    sx.train(text_model(kind, False), data, epochs=1, output=path, **HOW)
    resumed = sx.train(path, data, epochs=3, output=path, resume=True)
    assert losses(resumed) == losses(whole)
    numbers = {"ids": ids_of(kind, TEXTS), "label": LABELS}
    expected = sx.train(number_model(kind), numbers, epochs=3, **HOW)
    assert sx.evaluate(path, data) == sx.evaluate(expected.model, numbers)
    sx.export_step(resumed.model, tmp_path / "step")
    options = ort.SessionOptions()
    extensions = pytest.importorskip("onnxruntime_extensions")
    options.register_custom_ops_library(extensions.get_library_path())
    session = ort.InferenceSession(tmp_path / "step" / "train.onnx", options)
    rep = prepare_training(expected.model)
    feeds = {**data, **rep.state(), "learning_rate": np.array(0.1, np.float32)}
    names = {i.name for i in session.get_inputs()}
    loss, after = session.run(["loss", "w/next"], {n: a for n, a in feeds.items() if n in names})
    assert loss == pytest.approx(rep.step(numbers)["loss"], rel=1e-6)
    np.testing.assert_allclose(after, rep.state()["w"], rtol=1e-6)


def split_model() -> onnx.ModelProto:
    return text_model("split and encode", declared=True)


def test_rows_are_prepared_once_where_they_do_not_depend_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sardonyx.engines.training import TrainingRep

    calls = []
    features = TrainingRep.features

    def counted(self: TrainingRep, inputs: Any) -> Any:
        calls.append("text" in inputs)
        return features(self, inputs)

    monkeypatch.setattr(TrainingRep, "features", counted)
    sx.train(split_model(), {"text": TEXTS, "label": LABELS}, epochs=3, **HOW)
    once = calls.count(True)
    calls.clear()
    sx.train(split_model(), {"text": TEXTS, "label": LABELS}, epochs=6, **HOW)
    assert calls.count(True) == once
    assert calls.count(False) == 6 * 3


def test_text_that_is_padded_to_the_longest_of_a_batch_is_not_prepared_ahead() -> None:
    uneven = np.array(["red", "red green blue", *TEXTS[2:]], object)
    data = {"text": uneven, "label": LABELS}
    run = sx.train(split_model(), data, steps=3, shuffle=False, **HOW)
    batches = [
        {"ids": ids_of("split and encode", uneven[i : i + 8]), "label": LABELS[i : i + 8]}
        for i in (0, 8, 16)
    ]
    net = sx.trainable(number_model("split and encode"), "cross_entropy", "sgd", lr=0.1)
    rep = prepare_training(net)
    expected = [float(rep.step(batch)["loss"]) for batch in batches]
    assert run.losses == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("missing", [None, float("nan"), 3])
@pytest.mark.parametrize("function", [sx.train, sx.evaluate, sx.predict])
def test_missing_text_is_refused(missing: Any, function: Callable[..., Any]) -> None:
    texts = TEXTS.copy()
    texts[5] = missing
    how = {} if function is sx.predict else {"loss": "cross_entropy"}
    with pytest.raises(sx.errors.DataError, match="row 5"):
        function(split_model(), {"text": texts, "label": LABELS}, **how)


class Listed:
    """A data set by rows, of which only the first are looked at before training."""

    def __init__(self, texts: list[Any]):
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"text": self.texts[i], "label": int(LABELS[i % ROWS])}


def test_missing_text_far_into_a_data_set_is_refused() -> None:
    texts = list(TEXTS) * 4
    sx.train(split_model(), Listed(texts), **HOW, epochs=1)
    texts[80] = None
    with pytest.raises(sx.errors.DataError, match="holds None"):
        sx.train(split_model(), Listed(texts), **HOW, epochs=1)


@pytest.mark.parametrize("kind", ["fixed width", "bytes", "bytes as objects"])
def test_text_is_the_same_whatever_holds_it(kind: str) -> None:
    """Arrays of NumPy's own text, and the bytes that some files hold: not the words `b'red'`."""
    held = {
        "fixed width": TEXTS.astype(str),
        "bytes": np.array([t.encode() for t in TEXTS]),
        "bytes as objects": np.array([t.encode() for t in TEXTS], object),
    }[kind]
    runs = [
        sx.train(split_model(), {"text": texts, "label": labels}, epochs=2, **HOW)
        for texts, labels in ((TEXTS, LABELS), (held, np.array([b"a", b"b"], object)[LABELS]))
    ]
    assert losses(runs[1]) == losses(runs[0])
    ours, theirs = (sx.predict(runs[0].model, {"text": texts}) for texts in (held, TEXTS))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    wrong = np.array([b"\xff"] * ROWS, object)
    with pytest.raises(sx.errors.DataError, match="bytes that are no text"):
        sx.predict(runs[0].model, {"text": wrong})


def test_a_step_by_hand_takes_text_too() -> None:
    net = sx.trainable(split_model(), "cross_entropy", "sgd", lr=0.1)
    rep = prepare_training(net)
    assert {v.name for v in rep.step_inputs} == {"text", "label"}
    feeds = {"text": TEXTS, "label": LABELS}
    numbers = prepare_training(
        sx.trainable(number_model("split and encode"), "cross_entropy", "sgd", lr=0.1)
    )
    ids = {"ids": ids_of("split and encode", TEXTS), "label": LABELS}
    assert [rep.step(feeds)["loss"] for _ in range(3)] == [
        numbers.step(ids)["loss"] for _ in range(3)
    ]
    served = {"text": TEXTS}
    assert np.array_equal(rep.run(served)["scores"], numbers.run({"ids": ids["ids"]})["scores"])
    broken = TEXTS.copy()
    broken[3] = None
    with pytest.raises(sx.errors.DataError, match="takes text"):
        rep.step({"text": broken, "label": LABELS})


def test_a_model_of_numbers_has_no_front() -> None:
    assert separate(sx.load(number_model("length"))) is None


# -- audio --------------------------------------------------------------------------


def recording(pitch: float) -> tuple[np.ndarray, np.ndarray]:
    """A wave file of one channel as bytes, and its samples from -1 to 1."""
    samples = (np.sin(np.arange(200) * pitch) * 20000).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(samples.tobytes())
    return np.frombuffer(file.getvalue(), np.uint8), samples.astype(np.float32) / 32768


def audio_model(decodes: bool, declared: bool) -> onnx.ModelProto:
    front = [
        node("Squeeze", ["file", "first"], ["bytes"]),
        node("AudioDecoder", ["bytes"], ["samples"], domain=CONTRIB),
        node("Reshape", ["samples", "shape"], ["signal"]),
    ]
    behind = [
        node("Gemm", ["signal", "u", "c"], ["hidden"]),
        node("Tanh", ["hidden"], ["features"]),
    ]
    inputs = (
        [info("file", TensorProto.UINT8, 1, "L")]
        if decodes
        else [info("signal", TensorProto.FLOAT, 1, 200)]
    )
    infos = [info("samples", TensorProto.FLOAT, 1, "S"), info("signal", TensorProto.FLOAT, 1, 200)]
    constants = [
        numpy_helper.from_array(np.array([0]), "first"),
        numpy_helper.from_array(np.array([1, 200]), "shape"),
    ]
    weights = [constant("u", 200, 3), constant("c", 3)]
    return network(
        front if decodes else [], inputs, behind, [*(constants if decodes else []), *weights],
        infos if decodes and declared else [],
    )  # fmt: skip


@pytest.mark.parametrize("declared", [True, False])
def test_an_audio_decoder_trains_as_on_samples(declared: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_extensions")
    files, samples = zip(*(recording(0.05 + 0.3 * (k % 2)) for k in range(8)), strict=True)
    label = np.arange(8) % 2
    how = {**HOW, "batch_size": 1, "lr": 0.01}
    data = {"file": np.stack(files), "label": label}
    path = tmp_path / "tuned.onnx"
    sx.train(audio_model(True, declared), data, epochs=1, output=path, **how)
    resumed = sx.train(path, data, epochs=2, output=path, resume=True)
    numbers = {"signal": np.stack(samples), "label": label}
    expected = sx.train(audio_model(False, False), numbers, epochs=2, **how)
    np.testing.assert_allclose(losses(resumed), losses(expected), rtol=1e-6)
    ours = sx.evaluate(path, data, batch_size=1)
    theirs = sx.evaluate(expected.model, numbers, batch_size=1)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5)
    assert sx.export_step(path, tmp_path / "step")


# -- settings of a tokenizer that are floats -------------------------------------------


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message, of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def sentencepiece_file() -> bytes:
    """A unigram model as the package sentencepiece writes it: a list of pieces."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"\u2581{word}", -1.0 - k, 1) for k, word in enumerate(WORDS)]
    messages = (
        field(1, text.encode()) + b"\x15" + np.float32(score).tobytes() + bytes([0x18, kind])
        for text, score, kind in pieces
    )
    return b"".join(field(1, message) for message in messages)


SETTINGS = {
    "nbest": np.array([0]), "alpha": np.array([0.5], np.float32), "bos": np.array([True]),
    "eos": np.array([True]), "reverse": np.array([False]),
}  # fmt: skip


def sentencepiece_model(with_text: bool, declared: bool = False) -> onnx.ModelProto:
    """A text of two words, or the four ids that it is: <s>, a word, a word, </s>."""
    tokenizer = node(
        "SentencepieceTokenizer", ["text", *SETTINGS], ["tokens", "starts"],
        domain=CONTRIB, model=sentencepiece_file(),
    )  # fmt: skip
    front = [tokenizer, node("Cast", ["tokens"], ["ids"], to=TensorProto.INT64)]
    if not with_text:
        front = [node("Squeeze", ["row", "first"], ["ids"])]
    behind = [
        node("Gather", ["table", "ids"], ["words"]),
        node("ReduceMean", ["words", "first"], ["mean"], keepdims=0),
        node("Unsqueeze", ["mean", "first"], ["features"]),
    ]
    constants = [numpy_helper.from_array(np.array([0]), "first"), TABLE]
    if with_text:
        constants += [numpy_helper.from_array(value, name) for name, value in SETTINGS.items()]
    text, row = info("text", TensorProto.STRING, 1), info("row", TensorProto.INT64, 1, 4)
    infos = [info("ids", TensorProto.INT64, "T")] if declared else []
    return network(front, [text if with_text else row], behind, constants, infos)


def train_with_sentencepiece(declared: bool, engine: str, folder: Path) -> None:
    how = {**HOW, "batch_size": 1, "engine": engine}
    path = folder / "tuned.onnx"
    data = {"text": TEXTS, "label": LABELS}
    sx.train(sentencepiece_model(True, declared), data, epochs=1, output=path, **how)
    resumed = sx.train(path, data, epochs=2, output=path, resume=True, engine=engine)
    rows = [[1, *(3 + WORDS.index(word) for word in text.split()), 2] for text in TEXTS]
    numbers = {"row": np.array(rows), "label": LABELS}
    expected = sx.train(sentencepiece_model(False), numbers, epochs=2, **how)
    assert losses(resumed) == losses(expected)
    assert sx.evaluate(path, data, batch_size=1) == sx.evaluate(
        expected.model, numbers, batch_size=1
    )
    assert sx.export_step(path, folder / "step")


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent.parent, capture_output=True,
        text=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def sentencepiece_code(first: str, declared: bool, engine: str, folder: Path) -> str:
    """A program that loads a package before it trains behind a SentencePiece tokenizer."""
    return (
        f"{first}\n"
        "from pathlib import Path\n"
        "from tests.test_front import train_with_sentencepiece\n"
        f"train_with_sentencepiece({declared}, {engine!r}, Path({str(folder)!r}))"
    )


@pytest.mark.parametrize(
    "first, declared, engine",
    [("", True, "torch"), ("", False, "onnxruntime"), ("import tensorflow", False, "tensorflow")],
)
def test_sentencepiece_trains_as_on_ids(
    first: str, declared: bool, engine: str, tmp_path: Path
) -> None:
    """In a process of its own: with TensorFlow loaded before, it ended the process."""
    pytest.importorskip("onnxruntime_extensions")
    if engine != "onnxruntime":
        pytest.importorskip(engine)
    done = in_a_process(sentencepiece_code(first, declared, engine, tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]


def test_tensorflow_before_the_tokenizer_is_refused(tmp_path: Path) -> None:
    """Where another program imported both in the wrong order, nothing can keep it alive."""
    for name in ("onnxruntime_extensions", "tensorflow"):
        pytest.importorskip(name)
    first = "import tensorflow, onnxruntime_extensions"
    done = in_a_process(sentencepiece_code(first, True, "onnxruntime", tmp_path))
    assert done.returncode == 1  # an exception, not a signal
    assert "EngineError: onnxruntime-extensions was imported after TensorFlow" in done.stderr


# -- other engines for some nodes ------------------------------------------------------


@pytest.mark.parametrize("engine", ["torch", "numpy"])
def test_nodes_are_placed_on_another_engine_in_training(engine: str) -> None:
    ids = ids_of("length", TEXTS) if engine == "torch" else np.arange(ROWS) % 8
    data = {"ids": ids, "label": LABELS}
    model = number_model("length")
    run = sx.train(model, data, epochs=2, engine=engine, place={"Gemm": "onnxruntime"}, **HOW)
    expected = sx.train(model, data, epochs=2, engine=engine, **HOW)
    np.testing.assert_allclose(losses(run), losses(expected), rtol=1e-5)
    rep = sx.prepare_training(
        sx.trainable(model, "cross_entropy"), engine, place={"Gemm": "onnxruntime"}
    )
    rep.step({"ids": ids[:4], "label": LABELS[:4]})
    with pytest.raises(sx.errors.ArgumentError, match="no option 'place'"):
        sx.train(model, data, epochs=1, place={"Gemm": "torch"}, **HOW)


def test_the_command_places_nodes_too(tmp_path: Path) -> None:
    model, data = tmp_path / "m.onnx", tmp_path / "d.npz"
    onnx.save(number_model("length"), model)
    np.savez(data, ids=np.arange(ROWS) % 8, label=LABELS)
    common = ["--loss", "cross_entropy", "--engine", "numpy", "--steps", "3", "--json"]
    arguments = ["train", str(model), str(data), *common, "-o"]
    for name, more in (("numpy", ()), ("placed", ("--place", "Gemm=onnxruntime"))):
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, str(tmp_path / f"{name}.onnx"), *more])
        assert ended.value.code == 0
    weights = [sx.load(tmp_path / f"{name}.onnx").initializer("w") for name in ("numpy", "placed")]
    np.testing.assert_allclose(weights[0].numpy(), weights[1].numpy(), rtol=1e-5)
    for wrong in ("Gemm", "Zemm=torch", "Gemm=tortch"):
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, str(tmp_path / "wrong.onnx"), "--place", wrong])
        assert ended.value.code == 2 and not (tmp_path / "wrong.onnx").exists()

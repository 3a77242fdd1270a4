"""Saving: old or new, never half; links are replaced; names of files come from the model's name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from sardonyx.model import load
from sardonyx.save import save

from . import models
from .models import PLACES, as_initializer, graph, model, node


def linear(size: int = 32, value: float = 1.0, name: str = "w") -> ModelProto:
    weight = numpy_helper.from_array(np.full((size, size), value, np.float32), name)
    copy = graph([node("MatMul", "x", "y")], inputs=(), initializer=[weight])
    copy.node[0].input.append(name)
    copy.input.append(onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", size]))
    return model(copy)


def siblings(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


def session(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


# Imports once, then forks a process per line: each saves the named model over and over.
SAVER = """
import os, sys
from sardonyx.model import load
from sardonyx.save import save
for line in sys.stdin:
    model = load(line.strip())
    process = os.fork()
    while not process:
        save(model, sys.argv[1], external=True)
    print(process, flush=True)
    os.waitpid(process, 0)
"""


def test_sav_01_a_kill_leaves_a_whole_model(tmp_path: Path) -> None:
    sources = []
    for value in (1.0, 2.0):
        folder = tmp_path / f"source{value}"
        folder.mkdir()
        sources.append(save(load(linear(1024, value)), folder / "m.onnx", external=True))
    path = tmp_path / "out" / "m.onnx"
    path.parent.mkdir()
    save(load(sources[0]), path, external=True)
    command = [sys.executable, "-c", SAVER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as saver:
        assert saver.stdin is not None and saver.stdout is not None
        for attempt in range(12):
            print(sources[attempt % 2], file=saver.stdin, flush=True)
            process = int(saver.stdout.readline())
            time.sleep(0.003 + 0.007 * attempt)
            os.kill(process, signal.SIGKILL)
            result = load(path).initializer("w").numpy()
            assert result.min() == result.max() and result[0, 0] in (1.0, 2.0)
            session(path)
        saver.stdin.close()
    save(load(sources[0]), path, external=True)
    assert len(siblings(path)) == 2


def test_sav_01_the_temporary_file_lies_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(load(linear(value=1.0)), tmp_path / "m.onnx")
    real, seen = os.replace, []

    def watched(source, target):
        seen.append((Path(source).parent, Path(target)))
        assert load(path).initializer("w").numpy()[0, 0] == 1.0  # the old file is still whole
        return real(source, target)

    monkeypatch.setattr(os, "replace", watched)
    save(load(linear(value=2.0)), path)
    assert seen == [(tmp_path, path)]
    assert load(path).initializer("w").numpy()[0, 0] == 2.0


def test_sav_02_links_are_replaced_never_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim.onnx"
    victim.write_bytes(b"precious")
    for make in (os.symlink, os.link):
        path = tmp_path / "m.onnx"
        path.unlink(missing_ok=True)
        make(victim, path)
        save(load(linear()), path)
        assert victim.read_bytes() == b"precious" and not path.is_symlink()
        assert load(path).opset == 21


@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symlink", "hardlink"])
def test_sav_02_a_linked_data_file_is_left_alone(tmp_path: Path, make) -> None:
    """Data that lies where the new data would go is somebody else's."""
    victim = tmp_path / "victim.bin"
    victim.write_bytes(b"precious")
    path = save(load(linear()), tmp_path / "m.onnx", external=True)
    (data,) = (tmp_path / n for n in siblings(path) if n.endswith(".data"))
    model_ = load(path)
    data.unlink()
    make(victim, data)
    save(model_, path, external=True)
    assert victim.read_bytes() == b"precious"
    assert (load(path).initializer("w").numpy() == 1).all()


@pytest.mark.parametrize("name", ["../escape", "/absolute", "a/b", "..", "w\0", "CON"])
def test_sav_03_no_file_is_named_after_a_tensor(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    path = save(load(linear(name=name)), folder / "tuned.onnx", external=True)
    assert [p.name for p in tmp_path.iterdir()] == ["inside"]
    data, own = siblings(path)[1], siblings(path)[0]
    assert own == "tuned.onnx" and data.startswith("tuned.onnx.") and data.endswith(".data")
    assert len(siblings(path)) == 2


LARGE = np.arange(4000, dtype=np.float32)


@pytest.mark.parametrize("place", [p for p in PLACES if "sparse" not in p])
def test_sav_03_large_tensors_of_every_place_go_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Also those of Constant nodes in graphs, bodies and functions; the runtime reads them."""
    wide = onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, [LARGE.size])
    monkeypatch.setattr(models, "X", wide)
    inputs = PLACES[place](numpy_helper.from_array(LARGE, "w"))
    for value in inputs.graph.input:
        if value.name == "x":
            value.CopyFrom(wide)
    loaded = load(inputs)
    before = loaded.proto()
    path = save(loaded, tmp_path / "m.onnx", external=True)
    assert (
        path.stat().st_size < 1000 < LARGE.nbytes <= (tmp_path / siblings(path)[1]).stat().st_size
    )
    assert loaded.proto() == before  # the model in memory is as it was
    assert load(path).proto() == before
    if place != "training":
        feeds = {"x": np.ones(LARGE.size, np.float32), "c": np.array(True)}
        runner = session(path)
        expected = {i.name: feeds[i.name] for i in runner.get_inputs()}
        np.testing.assert_array_equal(runner.run(None, expected)[0], LARGE + 1)


def test_sav_03_constants_in_records_go_outside(tmp_path: Path) -> None:
    proto = as_initializer(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    record = proto.training_info.add()
    value = numpy_helper.from_array(LARGE, "k")
    steps = [node("Constant", "", "k", value=value), node("ReduceSum", "k", "s", keepdims=0)]
    record.algorithm.CopyFrom(graph([*steps, node("Add", "w s", "v")], "v", ()))
    record.update_binding.add(key="w", value="v")
    loaded = load(proto)
    path = save(loaded, tmp_path / "m.onnx", external=True)
    assert path.stat().st_size < 1000
    assert load(path).proto().training_info[0] == loaded.proto().training_info[0]


def test_sav_03_what_does_not_fit_into_one_file_goes_outside_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total decides, whatever holds the tensors: here, one Constant node."""
    import importlib

    monkeypatch.setattr(importlib.import_module("sardonyx.save"), "INLINE_TOTAL", 10_000)
    inputs = PLACES["constant"](numpy_helper.from_array(LARGE, "w"))
    path = save(load(inputs), tmp_path / "m.onnx")
    assert len(siblings(path)) == 2 and path.stat().st_size < 1000

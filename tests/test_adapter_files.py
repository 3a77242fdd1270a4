"""Adapter files: safetensors read by its own library, onnxruntime's adapters in stock sessions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import ArgumentError, ModelError

from .test_fresh_networks import exported
from .test_lora import close, mlp, normal, run, with_values


def stock(path: Path, x: np.ndarray, adapter: Path | None = None) -> np.ndarray:
    """What a session of onnxruntime gives, with an adapter or without."""
    options, quiet = ort.RunOptions(), ort.SessionOptions()
    quiet.log_severity_level = 3
    if adapter is not None:
        parameters = ort.LoraAdapter()
        parameters.Load(str(adapter))
        options.add_active_adapter(parameters)
    return ort.InferenceSession(str(path), quiet).run(None, {"x": x}, options)[0]


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx_adapter"])
def test_an_adapter_goes_through_a_file(suffix: str, tmp_path: Path) -> None:
    fresh = sx.lora(mlp(), rank=3)
    adapted, values = with_values(fresh)
    x = normal(5, 12)
    path = sx.save_adapter(adapted, tmp_path / f"adapter{suffix}")
    loaded = sx.load_adapter(fresh, path)
    assert np.array_equal(run(loaded, x), run(adapted, x))
    assert all(np.array_equal(loaded.initializer(n).numpy(), v) for n, v in values.items())


def test_onnxruntime_takes_the_adapter_in_a_stock_session(tmp_path: Path) -> None:
    base = sx.replace_head(mlp(), classes=5)
    adapted, _ = with_values(sx.lora(base, rank=3))
    adapted = sx.with_weights(adapted, {"head.weight": normal(16, 5)}, partial=True)
    x = normal(5, 12)
    file = sx.save(sx.lora(base, rank=3), tmp_path / "base.onnx")
    onnx.checker.check_model(str(file), full_check=True)
    adapter = sx.save_adapter(adapted, tmp_path / "a.onnx_adapter")
    assert np.array_equal(stock(file, x, adapter), stock(sx.save(adapted, tmp_path / "b.onnx"), x))
    assert not np.allclose(stock(file, x, adapter), stock(file, x))


def test_safetensors_reads_what_is_written(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    adapted, values = with_values(sx.lora(mlp(), rank=3))
    path = sx.save_adapter(adapted, tmp_path / "a.safetensors")
    theirs = safetensors.load_file(str(path))
    assert theirs.keys() == values.keys()
    assert all(np.array_equal(theirs[n], v) for n, v in values.items())


def test_adapters_are_added_to_a_model_without_any(tmp_path: Path) -> None:
    base = mlp()
    adapted, _ = with_values(sx.lora(base, rank=2, targets="w2", alpha=3))
    path = sx.save_adapter(adapted, tmp_path / "a.safetensors")
    x = normal(5, 12)
    loaded = sx.load_adapter(base, path)
    assert np.array_equal(run(loaded, x), run(adapted, x))
    close(run(sx.merge_lora(loaded), x), run(adapted, x))
    assert not [n for n in loaded.graph.initializers if n.startswith("w1.lora")]


def test_what_the_exporter_left_out_is_frozen_too(tmp_path: Path) -> None:
    """A fresh layer of torch has a bias of zeros, which a record puts back: it gets no gradient."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    module = torch.nn.Sequential(torch.nn.Embedding(11, 8), layer)
    base = exported(module, torch.randint(0, 11, (4, 6)), newer=True)
    name = base.inputs[0].name or ""
    data = {name: np.arange(96).reshape(16, 6) % 11, "target": normal(16, 6, 8)}
    net = sx.trainable(sx.lora(base, rank=2), "mse", labels=["target"])
    assert "restored" in {choice.what for choice in sx.choices(net)}
    trained = sx.train(net, data, epochs=1, batch_size=8, display="quiet").model
    updated = {n for n, _ in trained.records[0].update_binding}
    assert not [n for n in updated if n.endswith(".bias")]
    frozen = sx.trainable(sx.freeze(base, "1.self_attn.*"), "mse")
    assert not [n for n, _ in frozen.records[0].update_binding if n.startswith("1.self_attn.")]
    loaded = sx.load_adapter(base, sx.save_adapter(trained, tmp_path / "a.safetensors"))
    outputs = [Runner(model)({name: data[name]}) for model in (trained, loaded)]
    np.testing.assert_array_equal(*[next(iter(o.values())) for o in outputs])


def test_running_statistics_that_were_trained_are_in_the_file(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> net (float[N,6] x) => (float[N,3] y)
        <float[6,3] w> { h = MatMul(x, w)  y = BatchNormalization(h, s, b, m, v) }"""
    )
    del proto.graph.initializer[:]
    numbers = {"w": normal(6, 3), "s": normal(3), "b": normal(3), "m": normal(3)}
    for name, array in {**numbers, "v": np.abs(normal(3)) + 1}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    data = {"x": normal(32, 6), "label": np.arange(32) % 3}
    trained = sx.train(
        sx.lora(proto, rank=2), data, loss="cross_entropy", epochs=2, batch_norm="train",
        display="quiet",
    ).model  # fmt: skip
    loaded = sx.load_adapter(proto, sx.save_adapter(trained, tmp_path / "a.safetensors"))
    assert np.array_equal(run(loaded, data["x"]), run(trained, data["x"]))
    assert not np.allclose(loaded.initializer("m").numpy(), numbers["m"])
    with pytest.raises(ArgumentError, match="safetensors"):
        sx.save_adapter(trained, tmp_path / "a.onnx_adapter")


def test_a_large_file_is_hardly_more_than_its_tensors(tmp_path: Path) -> None:
    adapted, values = with_values(sx.lora(mlp(), rank=8))
    path = sx.save_adapter(adapted, tmp_path / "a.safetensors")
    overhead = path.stat().st_size - sum(v.nbytes for v in values.values())
    assert overhead < 300 * len(values)


# -- refusals -----------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    base = mlp()
    adapted = sx.lora(base, rank=2)
    both = [sx.save_adapter(adapted, tmp_path / f"a{s}") for s in (".safetensors", ".onnx_adapter")]
    other = sx.lora(base, rank=2, alpha=8)
    with pytest.raises(ArgumentError, match="other adapters") as error:
        sx.load_adapter(other, both[0])
    assert [row[0] for row in error.value.where] == ['"w1"', '"w2"']
    with pytest.raises(ArgumentError, match="others"):
        sx.load_adapter(other, both[1])
    with pytest.raises(ArgumentError, match="none"):
        sx.load_adapter(base, both[1])
    narrow = sx.replace_head(base, classes=4)
    with pytest.raises(ArgumentError, match="do not belong") as error:
        sx.load_adapter(narrow, both[0])
    assert [row[0] for row in error.value.where] == ['"w2"']
    head = sx.save_adapter(sx.lora(narrow, rank=2), tmp_path / "head.safetensors")
    with pytest.raises(ArgumentError, match="do not fit") as error:
        sx.load_adapter(base, head)
    assert [row[0] for row in error.value.where] == ['"head.weight"', '"head.bias"']
    with pytest.raises(ArgumentError, match="ends in"):
        sx.save_adapter(adapted, tmp_path / "a.bin")
    with pytest.raises(ArgumentError, match="cannot be written"):
        sx.save_adapter(adapted, tmp_path / "nowhere" / "a.safetensors")
    with pytest.raises(ArgumentError, match="no file"):
        sx.load_adapter(adapted, tmp_path / "b.safetensors")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    adapted = sx.lora(mlp(), rank=2)
    path = sx.save_adapter(adapted, tmp_path / "a.safetensors")
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["w1.lora_A"]["data_offsets"] = [0, 10**12]
    outside = json.dumps(header).encode()
    for damaged in (b"", content[:20], content[:-8], b"\xff" * 64, (2**62).to_bytes(8, "little")):
        path.write_bytes(damaged)
        with pytest.raises(ModelError):
            sx.load_adapter(adapted, path)
    path.write_bytes(len(outside).to_bytes(8, "little") + outside)
    with pytest.raises(ModelError):
        sx.load_adapter(adapted, path)
    for damaged in (b"", b"nothing" * 9):
        (tmp_path / "b.onnx_adapter").write_bytes(damaged)
        with pytest.raises(ModelError):
            sx.load_adapter(adapted, tmp_path / "b.onnx_adapter")


# -- commands -----------------------------------------------------------------------------


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = sx.save(mlp(), tmp_path / "base.onnx")
    np.savez(tmp_path / "data.npz", x=normal(40, 12), label=np.arange(40) % 9)
    tuned, adapter = tmp_path / "tuned.onnx", tmp_path / "a.safetensors"
    train = ("train", base, tmp_path / "data.npz", "-o", tuned, "--lora", 2, "--epochs", 1)
    assert command(*train, "--loss", "cross_entropy", "--lr", 0.1, "--quiet") == 0
    assert command("adapter", "extract", tuned, "-o", adapter) == 0
    capsys.readouterr()
    for file in (tuned, adapter):
        assert command("adapter", "inspect", file) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:3] for line in lines[1:]] == [
            ["w1", "Gemm", "2"],
            ["w2", "MatMul", "2"],
        ]
    merged, again = tmp_path / "merged.onnx", tmp_path / "again.onnx"
    assert command("adapter", "merge", tuned, "-o", merged) == 0
    assert command("adapter", "merge", base, "--adapter", adapter, "-o", again) == 0
    x = normal(5, 12)
    close(stock(merged, x), stock(tuned, x))
    assert np.array_equal(stock(again, x), stock(merged, x))
    assert not np.allclose(stock(merged, x), stock(base, x))
    capsys.readouterr()
    assert command("adapter", "merge", base, "-o", merged) == 2
    assert command("adapter", "merge", tuned) == 2
    assert command("adapter", "burn", tuned) == 2
    assert command("train", base, tmp_path / "data.npz", "-o", again, "--lora", 99) == 2
    assert "rank 99 is above" in capsys.readouterr().err

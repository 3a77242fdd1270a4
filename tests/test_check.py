"""`sardonyx check`: all findings, exit 1; nothing is run."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main

from .networks import mlp


def run(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, str]]]:
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(path), "--json"])
    return int(stopped.value.code or 0), json.loads(capsys.readouterr().out)


def test_a_sound_model_has_no_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sx.save(sx.trainable(mlp(), "mse"), tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", capsys) == (0, [])


def test_swapped_bindings_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = sx.trainable(mlp(), "mse")
    record = net.records[0]
    record.update_binding = [(value, key) for key, value in record.update_binding]
    (tmp_path / "m.onnx").write_bytes(net.proto().SerializeToString())
    code, findings = run(tmp_path / "m.onnx", capsys)
    assert code == 1
    assert any("swapped" in f["problem"] for f in findings)


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 40)
    code, findings = run(tmp_path / "m.onnx", capsys)
    assert code == 1 and findings[0]["stage"] == "load"


def test_an_operator_that_onnxruntime_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 28]> g (bfloat16[4] x, bool[4] c) => (bfloat16[n] y)'
    )
    model = onnx.parser.parse_model(text + " {y = Compress(x, c)}")
    onnx.save(model, tmp_path / "m.onnx")
    code, findings = run(tmp_path / "m.onnx", capsys)
    assert code == 1
    assert [f["stage"] for f in findings] == ["versions for onnxruntime"]


def test_node_names_that_repeat() -> None:
    """As onnxruntime, which is the judge here."""
    import onnxruntime

    model = mlp().proto()
    assert sx.check(model)
    for node in model.graph.node:
        node.name = "act"
    with pytest.raises(Exception, match="two nodes with same node name"):
        onnxruntime.InferenceSession(model.SerializeToString())
    problems = sx.check(model).problems
    assert [p.stage for p in problems] == ["node names"] and '"act"' in problems[0].problem

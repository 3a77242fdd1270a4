"""Reports of `verify`: the table, JSON, judged again, the page, the command line."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.errors import ArgumentError
from sardonyx.verify import Report
from sardonyx.verify.noise import DIFFERENT
from tests.mutants import NETWORKS, fault
from tests.networks import mlp


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(NETWORKS["cnn"](), "a.onnx")
    onnx.save(fault("cnn", "batch norm epsilon"), "b.onnx")
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["verify", *arguments])
    code = stopped.value.code
    return 0 if code is None else int(code)


def test_command_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.onnx", "--engine", "numpy", "--seeds", "1") == 0
    assert "verdict   same" in capsys.readouterr().out
    assert run("a.onnx", "b.onnx", "--save", "out", "--html", "page.html", "--seeds", "2") == 1
    printed = capsys.readouterr().out
    assert 'culprit   node 2 of 11, BatchNormalization "node/bn1"' in printed
    table = [line.split() for line in printed.splitlines() if line.endswith(("same", "different"))]
    assert table[0][-1] == "different"  # the worst stands first
    assert {p.name for p in (files / "out").iterdir()} == {
        "report.json",
        "test_data_set_0",
        "test_data_set_1",
        "repro.onnx",
        "repro.npz",
    }
    assert run("a.onnx", "no.onnx") == 2


def test_a_saved_report_is_judged_again(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("a.onnx", "b.onnx", "--save", "out", "--seeds", "1")
    first = capsys.readouterr().out
    assert run("out/report.json") == 1
    assert capsys.readouterr().out == first
    assert run("out/report.json", "--bands", "1e6,1e7") == 0
    assert run("out/report.json", "--bands", "2,1e7") == 4  # look
    with pytest.raises(ArgumentError, match="not a saved report"):
        Report.from_json('{"format": 1}')


def test_saved_test_data_can_be_run_again(files: Path) -> None:
    run("a.onnx", "--engine", "numpy", "--save", "out", "--seeds", "1")
    assert run("a.onnx", "--inputs", "out") == 0


def test_json_is_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("a.onnx", "b.onnx", "--json", "--seeds", "1")
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == DIFFERENT
    assert result["culprits"][0]["node"] == "node/bn1"
    assert all(len(s["sha256"]) == 64 for s in result["subjects"])


def test_page_is_self_contained_and_escapes_names(tmp_path: Path) -> None:
    right, wrong = NETWORKS["cnn"](), fault("cnn", "batch norm epsilon")
    for model in (right, wrong):
        for node in model.graph.node:
            node.name += "<script>alert(1)</script>"
    page = sx.verify(right, wrong, seeds=1).to_html(tmp_path / "page.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") >= 2


def test_command_line_gradients_and_slices(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.onnx", "--gradients", "--engine", "numpy", "--seeds", "1") == 0
    assert "grad/w1" in capsys.readouterr().out
    assert run("a.onnx", "b.onnx", "--gradients", "--seeds", "1") == 1
    capsys.readouterr()
    assert run("a.onnx", "b.onnx", "--sliced", "--seeds", "1") == 1
    assert "every node" in capsys.readouterr().out


def test_the_page_shows_what_reads_the_culprit(tmp_path: Path) -> None:
    report = sx.verify(NETWORKS["cnn"](), fault("cnn", "dilation ignored"), seeds=1)
    page = report.to_html(tmp_path / "page.html").read_text()
    drawing = page[page.index("the culprit and its neighbours") :].split("</svg>")[0]
    for name in ("node/pool1", "node/conv2", "node/bn2", "w2"):
        assert name in drawing


def test_command_line_training(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = sx.trainable(mlp(), loss="cross_entropy", optimizer=sx.optim.adam(1e-2))
    sx.save(net, "t.onnx")
    assert run("t.onnx", "--training", "3", "--engine", "numpy") == 0
    assert "forced median" in capsys.readouterr().out

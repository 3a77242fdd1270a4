"""The published training cases: what they expect is what the oracles say, and engines reach it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.errors import ArgumentError
from sardonyx.score import engines, records, run, scoreboard
from sardonyx.score.judge import Cell
from sardonyx.score.store import Store

pytest.importorskip("torch")
from tests import training_cases

NAMES = sorted(training_cases.CASES)


def test_every_case_is_published() -> None:
    assert [case.name for case in records.cases()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_files_are_what_the_oracle_says(name: str) -> None:
    made = training_cases.CASES[name]()
    case = next(c for c in records.cases() if c.name == name)
    assert len(case.steps()) == training_cases.STEPS
    for (batch, expected), fed, after in zip(
        case.steps(), made.batches, made.expected, strict=True
    ):
        assert batch.keys() == fed.keys()
        assert all(np.array_equal(batch[n], fed[n]) for n in fed)
        assert expected.keys() == after.keys()
        for n, value in after.items():
            np.testing.assert_allclose(expected[n], value, rtol=2e-7, atol=1e-9, err_msg=n)


@pytest.mark.parametrize("case", records.cases(), ids=lambda case: case.name)
def test_files_are_plain_onnx(case: records.RecordCase) -> None:
    model = onnx.load(case.model)
    onnx.checker.check_model(model)
    assert len(model.training_info) == 1
    first = case.steps()[0][1]
    assert "loss" in first and len(first) > 1
    start = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    trained = [n for n in first if n in start]
    assert trained and all(not np.array_equal(first[n], start[n]) for n in trained)


def test_where_the_cases_are_missing_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a wheel, which does not contain them."""
    monkeypatch.setenv("SARDONYX_TRAINING_CASES", str(tmp_path))
    records.cases.cache_clear()
    assert scoreboard.available_axes() == ["forward", "gradient"]
    with pytest.raises(ArgumentError, match="a wheel does not contain them") as raised:
        scoreboard.score("numpy", axes=["training"])
    assert "SARDONYX_TRAINING_CASES" in str(raised.value)
    case = training_cases.CASES["by_hand_gradient"]()
    case.write(tmp_path / "by_hand_gradient")
    assert [c.name for c in records.cases()] == ["by_hand_gradient"]
    assert scoreboard.available_axes() == ["forward", "gradient", "training"]
    records.cases.cache_clear()


def test_the_wheel_leaves_the_cases_out() -> None:
    package = Path(records.__file__).parents[1]
    assert not list(package.rglob("*.pb"))
    assert not list(package.rglob("*.onnx"))


@pytest.mark.parametrize("engine", ["onnxruntime", "numpy"])
def test_engines_pass(engine: str, tmp_path: Path) -> None:
    job = run.Job({"training": list(records.cases())}, store=Store(tmp_path / "kept.sqlite"))
    (column,) = run.score([engines.ours_of(engine)], job).columns
    bad = {n: c for n, c in column.cells["training"].items() if c != Cell("pass")}
    assert not bad


def test_wrong_training_is_wrong(tmp_path: Path) -> None:
    """An engine that never updates, and one that forgets the loss."""
    for name, body, words in (
        ("idle", "return [{**start, 'loss': 0.0} for _ in batches]", "off by"),
        ("mute", "return [start for _ in batches]", "loss is missing"),
        ("short", "return []", "0 steps"),
    ):
        adapter = tmp_path / f"{name}.py"
        adapter.write_text(
            "import onnx, onnx.numpy_helper\ndef train(model, batches):\n"
            "    held = onnx.load(model).graph.initializer\n"
            "    start = {t.name: onnx.numpy_helper.to_array(t) for t in held}\n"
            f"    {body}\n"
        )
        case = next(c for c in records.cases() if c.name == "mlp_sgd")
        job = run.Job({"training": [case]}, store=Store(tmp_path / "kept.sqlite"))
        (column,) = run.score([engines.given(adapter)], job).columns
        cell = column.cells["training"]["mlp_sgd"]
        assert cell.kind == "wrong numbers" and words in cell.message


def test_export(tmp_path: Path) -> None:
    folder = records.export(tmp_path / "cases")
    assert (folder / "mlp_sgd" / "test_data_set_0" / "input_0.pb").is_file()
    with pytest.raises(Exception, match="not empty"):
        records.export(folder)

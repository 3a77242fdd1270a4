"""`sardonyx ops` and the coverage that it prints."""

from __future__ import annotations

import json

import onnx.defs
import pytest

from sardonyx.cli.__main__ import main
from sardonyx.operator_support import GRADIENT, coverage, markdown, summary


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["ops", *arguments])
    assert not stopped.value.code
    return capsys.readouterr().out


def test_every_live_operator_is_listed_once() -> None:
    names = [c.operator for c in coverage() if not c.domain]
    assert len(names) == len(set(names))
    newest = [s for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated]
    assert set(names) == {s.name for s in newest}


def test_every_operator_that_onnx_tags_differentiable_is_covered() -> None:
    tagged = [c for c in coverage() if c.tagged]
    assert len(tagged) == 120
    assert not [c.operator for c in tagged if c.gradient == "missing"]


@pytest.mark.parametrize(
    ("operator", "gradient"),
    [
        ("MatMul", "rule"),
        ("FlexAttention", "body"),
        ("Floor", "none"),
        ("QLinearMatMul", "missing"),
    ],
)
def test_how_an_operator_is_differentiated(operator: str, gradient: str) -> None:
    (result,) = coverage(operator)
    assert result.gradient == gradient


def test_json_has_one_object_per_operator(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(printed(capsys, "Softmax", "--json"))
    assert rows == [
        {"operator": "Softmax", "domain": "", "family": "math", "gradient": "rule", "tagged": True}
    ]


def test_pattern_and_gradient_select(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(printed(capsys, "Arg*", "--gradient", "none", "--json"))
    assert [row["operator"] for row in rows] == ["ArgMax", "ArgMin"]


def test_table_names_each_operator(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "Reduce*")
    for result in coverage("Reduce*"):
        assert result.operator in out
    assert summary(coverage("Reduce*")).partition(":")[0] in out


def test_page_has_a_row_per_operator() -> None:
    page = markdown(coverage())
    assert page.count("\n| ") == len(coverage()) + len(GRADIENT) + 2


def test_unknown_gradient_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["ops", "--gradient", "some"])
    assert stopped.value.code == 2
    assert "rule, body, none, missing" in capsys.readouterr().err

"""Every defect in `defects.toml` has tests that exist and code that can be undone.

`python -m tests.sweeps.defects` shows that the tests fail without the code.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
DEFECTS: list[dict[str, Any]] = tomllib.loads((TESTS / "defects.toml").read_text())["defect"]


def test_numbers_have_no_gaps() -> None:
    assert [d["number"] for d in DEFECTS] == list(range(1, len(DEFECTS) + 1))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: str(d["number"]))
def test_its_tests_exist(defect: dict[str, Any]) -> None:
    assert defect["tests"]
    for test in defect["tests"]:
        file, _, name = test.partition("::")
        text = (TESTS / file).read_text()
        assert f"def {name}(" in text if name else "def test_" in text, test


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: str(d["number"]))
def test_the_mended_code_is_there_once(defect: dict[str, Any]) -> None:
    if "file" in defect:
        text = (TESTS.parent / defect["file"]).read_text()
        assert text.count(defect["mended"]) == 1, defect["file"]

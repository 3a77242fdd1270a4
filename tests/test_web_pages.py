"""Pages of many networks and settings, trained in a browser, against `sx.train`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeps.web_pages import CASES, difference

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("name", CASES)
def test_a_page_trains_as_python_does(name: str, tmp_path: Path) -> None:
    assert difference(name, tmp_path) <= 2e-6

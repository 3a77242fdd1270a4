"""Networks of libraries and of our own, imported with their training: the sweep as tests."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from sardonyx.importers.torch import compare  # noqa: E402
from tests.sweeps import torch_imports, torch_networks  # noqa: E402

# torch's exporter refuses these: branches on values inside the library's own code.
REFUSED = {"Deberta", "DebertaV2"}


@pytest.fixture(autouse=True)
def ten_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "STEPS", torch_imports.STEPS)
    torch_networks.define_operators()


def check(family: str, name: str, make: Any) -> None:
    result = torch_imports.one(family, name, make)
    expected = "ImportRefused" if name in REFUSED else "same"
    assert result.verdict == expected, result.reason
    assert result.training in ("same", "look", ""), result.reason


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "make"), list(torch_networks.own_networks()))
def test_a_network_of_our_own(name: str, make: Any) -> None:
    check("own", name, make)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "make"), list(torch_networks.transformers_networks()))
def test_a_network_of_transformers(name: str, make: Any) -> None:
    torch_networks.define_operators()
    pytest.importorskip("transformers")
    check("transformers", name, make)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "make"), list(torch_networks.timm_networks()))
def test_a_network_of_timm(name: str, make: Any) -> None:
    torch_networks.define_operators()
    pytest.importorskip("timm")
    check("timm", name, make)

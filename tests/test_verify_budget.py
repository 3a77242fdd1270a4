"""Time and memory of a comparison are bounded, and the report says what did not fit."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx.engines.numpy import Runner
from sardonyx.errors import EngineError
from sardonyx.lower.run_limits import LimitReached, run_limits
from sardonyx.verify import budget
from sardonyx.verify.noise import SAME, UNKNOWN
from tests.mutants import NETWORKS, fault
from tests.networks import parse

CONVOLUTION = """<ir_version: 9, opset_import: ["": 20]>
g (float[N,16,128,128] x, float[16,16,3,3] w) => (float[N,16,128,128] y)
{ y = Conv<pads: ints = [1,1,1,1]>(x, w) }"""


def test_inputs_that_no_time_is_left_for_are_left_out() -> None:
    report = sx.verify(NETWORKS["cnn"](), "numpy", seconds=0.0)
    assert report.verdict == SAME
    assert len(report.runs) == len(report.data) == 1
    assert "1 of 3 inputs were compared: the time budget of 0 s is used up" in report.notes


def test_a_float64_run_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is judged by moved inputs; a model alone has nothing left to be judged by."""
    monkeypatch.setattr(budget, "LEAST", 0.0)
    alone = sx.verify(NETWORKS["cnn"](), seeds=1, seconds=0.0)
    assert alone.verdict == UNKNOWN
    assert any("no float64 run: stopped after 0 s" in note for note in alone.notes)
    both = sx.verify(NETWORKS["cnn"](), lambda x: x, seeds=1, seconds=0.0)
    assert "moving its inputs" in both.reference


def test_a_search_that_takes_too_long_ends_early() -> None:
    report = sx.verify(NETWORKS["cnn"](), fault("cnn", "batch norm epsilon"), seeds=1, seconds=0.0)
    assert report.verdict == "different" and report.culprit is None
    assert any("ended early: the time budget" in note for note in report.notes)
    report = sx.verify(NETWORKS["cnn"](), "numpy", seeds=1, seconds=0.0, sliced=True)
    assert report.verdict == UNKNOWN and "after 0 of 11 nodes" in "".join(report.notes)


def test_a_fault_is_searched_for_before_all_time_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later input without a float64 run takes nothing away from the earlier ones."""
    from sardonyx.verify import compare

    wrong = fault("cnn", "batch norm epsilon")
    with monkeypatch.context() as patch:
        patch.setattr(compare, "SEARCHING", 2.0)
        report = sx.verify(NETWORKS["cnn"](), wrong)
    assert report.culprit is not None and len(report.runs) == 1
    assert any("is kept for the search" in note for note in report.notes)

    exact, calls = compare._Job._reference_values, []

    def once(job: Any, run: Any) -> Any:
        calls.append(run)
        if len(calls) > 1:
            with job.budget.within():
                raise budget.OutOfTime("stopped after 1 s")
        return exact(job, run)

    monkeypatch.setattr(compare._Job, "_reference_values", once)
    report = sx.verify(NETWORKS["cnn"](), wrong)
    assert report.culprit is not None and len(calls) == 2 and len(report.runs) == 1
    assert any(note.startswith("1 of 3 inputs were compared") for note in report.notes)


def test_the_memory_of_a_comparison_does_not_grow_with_the_depth() -> None:
    """Thirty convolutions: neither the float64 run nor the search keeps all that they computed."""
    layers = " ".join(f"h{i + 1} = Conv<pads: ints = [1,1,1,1]>(h{i}, w)" for i in range(30))
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[1,8,64,64] h0) => (float[1,8,64,64] y)
    { LAYERS y = ACTIVATION(h30) }""".replace("LAYERS", layers)
    kernel = np.random.default_rng(0).normal(size=(8, 8, 3, 3)).astype(np.float32) / 9
    models = []
    for activation in ("Relu", "Abs"):
        model = onnx.parser.parse_model(text.replace("ACTIVATION", activation))
        model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "w"))
        models.append(model)
    tracemalloc.start()
    report = sx.verify(*models, seeds=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.verdict == "different"
    assert report.culprit is not None and report.culprit.replay.op == "Abs"
    exact = 8 * 8 * 64 * 64  # bytes of one result in float64, of which there are thirty
    assert peak < 12 * exact + 4e6, peak / exact


def test_a_limit_inside_another_does_not_suspend_it() -> None:
    run = Runner(sx.load(NETWORKS["cnn"]()))
    shape = [d if isinstance(d, int) else 2 for d in sx.load(NETWORKS["cnn"]()).inputs[0].shape]
    feeds = {sx.load(NETWORKS["cnn"]()).inputs[0].name: np.zeros(shape, np.float32)}
    with (
        run_limits(nodes=3),
        run_limits(seconds=60.0),
        pytest.raises(LimitReached, match="3 nodes"),
    ):
        run(feeds)


def test_a_batch_of_one_has_to_do_where_a_run_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.verify import draw

    monkeypatch.setattr(draw, "LONG", 0.0)
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N,T,3] x) => (float[N,T,3] y)
    { y = Softmax(x) }"""
    shapes = [r["shapes"]["x"] for r in sx.verify(parse(text), "numpy", seeds=2).runs]
    assert [s[0] for s in shapes] == [1, 1] and all(s[1] > 1 for s in shapes)
    fixed = sx.verify(parse(text), "numpy", seeds=1, sizes={"N": 4})
    assert fixed.runs[0]["shapes"]["x"][0] == 4


def test_sizes_that_fill_the_memory_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only squares of 64 and more fit: 1600 x 2000 and 16000 x 17600 stand before those."""
    from sardonyx.verify import draw

    drawn, sample = [], draw.sample

    def recorded(*arguments: Any, **options: Any) -> dict[str, Any]:
        drawn.append(sample(*arguments, **options))
        return drawn[-1]

    monkeypatch.setattr(draw, "sample", recorded)
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N,3,H,W] x) => (float[N,3,a,b] y)
    { t = Transpose<perm: ints = [0,1,3,2]>(x) s = Add(x, t)
      y = MaxPool<kernel_shape: ints = [50, 50]>(s) }"""
    report = sx.verify(parse(text), "numpy", seeds=1)
    assert report.verdict == SAME, str(report)
    assert report.runs[0]["shapes"]["x"][2:] == [64, 64]
    assert max(feeds["x"].size for feeds in drawn) <= 1 << 22


def test_a_convolution_takes_little_more_than_its_output() -> None:
    x = np.random.default_rng(0).normal(size=(8, 16, 128, 128)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(16, 16, 3, 3)).astype(np.float32)
    run = Runner(parse(CONVOLUTION))
    tracemalloc.start()
    (y,) = run({"x": x, "w": w}).values()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < y.nbytes + 24e6  # all at once, in float64, would be twelve times the output
    import torch

    exact = torch.nn.functional.conv2d(
        torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=1
    )
    assert np.abs(y - exact.numpy()).max() < 1e-5


def test_a_failure_that_is_not_a_matter_of_time_stays_one() -> None:
    with pytest.raises(EngineError, match="no"), budget.Budget(60.0).within():
        raise EngineError("no")
    with pytest.raises(budget.OutOfTime):
        budget.Budget(0.0).check()

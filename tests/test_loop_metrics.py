"""Metrics of the loop against scikit-learn, and what uses them: watching, events, reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sklearn import metrics as sk

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import ArgumentError
from sardonyx.train import metrics
from sardonyx.train.batches import AHEAD, Prefetch
from sardonyx.train.run import Run

from .networks import mlp

rng = np.random.default_rng(1)
SCORES = rng.normal(size=(101, 5)).astype(np.float32)
CLASSES = rng.integers(0, 5, 101)
LOGITS = np.round(rng.normal(size=101), 1).astype(np.float32)  # with ties
SIDES = rng.integers(0, 2, 101).astype(np.float32)
X = rng.normal(size=(90, 6)).astype(np.float32)
DATA = {"x": X, "label": (X[:, 0] > 0).astype(np.int64)}
CROSS = {"loss": "cross_entropy", "settings": {}}


def measured(
    name: object, prediction: np.ndarray, label: np.ndarray, loss_term: dict[str, object] = CROSS
) -> float:
    made = metrics.make([name])
    for rows in np.array_split(np.arange(len(label)), 4):  # added up batch by batch
        metrics.add_all(made, loss_term, prediction[rows], label[rows])
    return made[0].value()


def probabilities(scores: np.ndarray) -> np.ndarray:
    shares = np.exp(scores.astype(np.float64))
    return shares / shares.sum(1, keepdims=True)


def test_of_classes() -> None:
    result = SCORES.argmax(1)
    assert measured("accuracy", SCORES, CLASSES) == sk.accuracy_score(CLASSES, result)
    assert measured("f1", SCORES, CLASSES) == pytest.approx(
        sk.f1_score(CLASSES, result, average="macro")
    )
    for k in (1, 2, 3):
        expected = sk.top_k_accuracy_score(CLASSES, SCORES, k=k, labels=range(5))
        assert measured(f"top{k}", SCORES, CLASSES) == pytest.approx(expected)
    expected = sk.roc_auc_score(CLASSES, probabilities(SCORES), multi_class="ovr")
    assert measured("auc", SCORES, CLASSES) == pytest.approx(expected)
    assert measured("auc", probabilities(SCORES), CLASSES) == pytest.approx(expected)
    expected = np.exp(sk.log_loss(CLASSES, probabilities(SCORES), labels=range(5)))
    assert measured("perplexity", SCORES, CLASSES) == pytest.approx(expected)


def test_of_two_sides_and_of_quantities() -> None:
    binary = {"loss": "binary_cross_entropy", "settings": {}}
    assert measured("auc", LOGITS, SIDES, binary) == pytest.approx(sk.roc_auc_score(SIDES, LOGITS))
    assert measured("accuracy", LOGITS, SIDES, binary) == sk.accuracy_score(SIDES, LOGITS > 0)
    two = np.stack([np.zeros_like(LOGITS), LOGITS], 1)
    assert measured("auc", two, SIDES.astype(np.int64)) == pytest.approx(
        sk.roc_auc_score(SIDES, LOGITS)
    )
    assert measured("mae", LOGITS, SIDES, {"loss": "mse", "settings": {}}) == pytest.approx(
        sk.mean_absolute_error(SIDES, LOGITS)
    )


def test_a_metric_of_numbers_does_not_suit_classes() -> None:
    with pytest.raises(ArgumentError, match="'mae' does not suit"):
        measured("mae", SCORES, CLASSES)


def test_labels_that_are_ignored_do_not_count() -> None:
    positions = np.reshape(SCORES[:100], (20, 5, 5))  # 20 rows, 5 positions, 5 classes last
    label = CLASSES[:100].reshape(20, 5).copy()
    label[::3, 2] = -1
    used = label.reshape(-1) != -1
    loss_term = {"loss": "cross_entropy", "settings": {"axis": 2, "ignore_index": -1}}
    flat, kept = SCORES[:100][used], CLASSES[:100][used]
    assert measured("accuracy", positions, label, loss_term) == sk.accuracy_score(
        kept, flat.argmax(1)
    )
    expected = np.exp(sk.log_loss(kept, probabilities(flat), labels=range(5)))
    assert measured("perplexity", positions, label, loss_term) == pytest.approx(expected)


def test_label_probabilities_count_by_their_largest() -> None:
    shares = probabilities(rng.normal(size=(101, 5)))
    loss_term = {"loss": "cross_entropy", "settings": {"probabilities": True}}
    expected = sk.accuracy_score(shares.argmax(1), SCORES.argmax(1))
    assert measured("accuracy", SCORES, shares, loss_term) == expected


def test_a_function_sees_everything_and_may_be_watched() -> None:
    def right(scores: np.ndarray, label: np.ndarray) -> float:
        seen.append((scores.shape, label.shape))
        return float((scores.argmax(1) == label).mean())

    seen: list[tuple[tuple[int, ...], ...]] = []
    right.better = "higher"  # type: ignore[attr-defined]
    settings = {"validation": DATA, "metrics": [right, "accuracy"], "watch": "val_right"}
    run = sx.train(mlp(), DATA, epochs=3, lr=0.05, **settings)  # type: ignore[arg-type]
    assert seen == [((90, 3), (90,))] * 3
    assert all(h["val_right"] == h["val_accuracy"] for h in run.history)
    values = [h["val_right"] for h in run.history]
    assert run.position.best_epoch == values.index(max(values)) + 1


def test_a_loss_under_another_name_counts_the_labels_that_count() -> None:
    """An output of the model is called `loss`: the record's loss is `train/loss`."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[N,6] x) => (float[N,3] loss) { loss = MatMul(x, w) }""")
    w = np.random.default_rng(3).normal(size=(6, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    net = sx.trainable(proto, sx.loss.cross_entropy(ignore_index=2))
    label = np.arange(90) % 5 % 3
    found = sx.evaluate(net, {"x": X, "label": label}, batch_size=7)
    kept = label != 2
    expected = sk.log_loss(label[kept], probabilities(X[kept] @ w), labels=range(3))
    assert found["train/loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_loss_is_reduced_over_all_batches(reduction: str) -> None:
    net = sx.trainable(mlp(), sx.loss.cross_entropy(reduction=reduction))
    scores = Runner(mlp())({"x": X})["scores"].astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    losses = -logs[np.arange(len(X)), DATA["label"]]
    expected = losses.sum() if reduction == "sum" else losses.mean()
    for size in (90, 32, 7):  # the last batch has fewer rows
        value = sx.evaluate(net, DATA, batch_size=size)["loss"]
        assert value == pytest.approx(expected, rel=1e-5), size


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no metric is called"):
        sx.train(mlp(), DATA, steps=1, metrics=["accurracy"])
    with pytest.raises(ArgumentError, match="no metric"):
        sx.train(mlp(), DATA, epochs=1, watch="val_loss")


def test_last_batch_is_dropped_if_asked() -> None:
    assert sx.train(mlp(), DATA, epochs=1, batch_size=32).position.step == 3
    assert sx.train(mlp(), DATA, epochs=1, batch_size=32, drop_last=True).position.step == 2


def test_batches_are_made_ahead_and_errors_arrive_where_they_belong() -> None:
    made = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for i in range(10):
            made.release()
            yield i
            if i == 7:
                raise ValueError("no more")

    feeder = Prefetch(items())
    for _ in range(AHEAD + 1):  # nobody has asked for any yet
        assert made.acquire(timeout=10)
    seen = []
    with pytest.raises(ValueError, match="no more"):
        for item in feeder:
            seen.append(item)
    assert seen == list(range(8))
    assert not feeder.thread.is_alive()


def test_validation_data_is_checked_too() -> None:
    for other, words in (
        ({"x": X[:, :4], "label": DATA["label"]}, "rows of"),
        ({"x": X}, "no field"),
        ({"x": X, "label": DATA["label"] + 2}, "label 3, not from 0 to 2"),
    ):
        with pytest.raises(sx.SardonyxError, match=words):
            sx.train(mlp(), DATA, steps=1, validation=other)


def test_tensorboard_reads_every_step_and_every_epoch(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from sardonyx.train.tensorboard import events

    run = sx.train(
        mlp(), DATA, epochs=2, batch_size=30, validation=0.2, callbacks=[events(tmp_path)]
    )
    read = EventAccumulator(str(tmp_path)).Reload()
    steps = [(e.step, e.value) for e in read.Scalars("loss")]
    np.testing.assert_allclose(steps, list(enumerate(run.losses, 1)), rtol=1e-6)
    ends = [(e.step, e.value) for e in read.Scalars("epoch/val_accuracy")]
    expected = [(h["step"], h["val_accuracy"]) for h in run.history]
    np.testing.assert_allclose(ends, expected, rtol=1e-6)


def test_report_shows_what_happened(tmp_path: Path) -> None:
    run = sx.train(mlp(), DATA, epochs=2, validation=0.2, train="fc1.*", seed=5)
    page = sx.write_report(run, tmp_path / "out" / "report.html").read_text()
    for words in (
        f"{run.history[-1]['val_accuracy']:.4f}",
        "fc0.weight",
        "frozen",
        "by pattern",
        "a safe default",
        "arrays in memory",
        "waiting for data",
        "engine: onnxruntime",
        "72, 3 batches of 32",
    ):
        assert words in page, words
    assert "http" not in page  # nothing is fetched
    pictures = {p.name for p in (tmp_path / "out").glob("*.png")}
    assert pictures == {"report.steps.png", "report.loss.png", "report.accuracy.png"}


def test_quiet_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    sx.train(mlp(), DATA, epochs=1)
    assert capfd.readouterr() == ("", "")


def test_callbacks_stop_the_run_and_are_told_the_end() -> None:
    class Watch:
        calls = 0
        ended = ""

        def __call__(self, run: Run) -> None:
            self.calls += 1
            if run.position.step == 2:
                run.stop("enough")

        def end(self, run: Run) -> None:
            self.ended = run.stopped

    watch = Watch()
    run = sx.train(mlp(), DATA, epochs=9, callbacks=[watch])
    assert (watch.calls, watch.ended, run.position.step) == (2, "enough", 2)
    assert not run.position.finished


def test_the_report_names_file_date_best_epoch_and_confusions(tmp_path: Path) -> None:
    from datetime import date

    names = np.array(["ape", "bee", "cat"])
    data = {"x": DATA["x"], "label": names[DATA["label"]]}
    run = sx.train(mlp(), data, epochs=2, validation=data, output=tmp_path / "tuned.onnx")
    scores = sx.predict(run.model, {"x": DATA["x"]})["scores"].argmax(1)
    for label, predicted in np.ndindex(3, 3):
        both = int(((DATA["label"] == label) & (scores == predicted)).sum())
        assert run.confusion.get((label, predicted), 0) == both
    page = sx.write_report(run, tmp_path / "report.html").read_text()
    for words in ("tuned.onnx", date.today().isoformat(), "best epoch", "Confusion matrix", "bee"):
        assert words in page


def test_scores_that_are_no_numbers_are_never_right() -> None:
    """argmax takes a NaN for the largest score: the first class would win."""
    scores, label = SCORES.copy(), CLASSES.copy()
    label[:40] = 0
    scores[:40] = np.nan
    scores[40:50, 3] = np.nan  # one of a row
    result = scores.argmax(1)
    result[:50] = 99  # a class that no label has
    assert measured("accuracy", scores, label) == sk.accuracy_score(label, result)
    expected = sk.f1_score(label, result, average="macro", labels=range(5), zero_division=0)
    assert measured("f1", scores, label) == pytest.approx(expected)
    hits = (np.argsort(-scores[50:], 1)[:, :2] == label[50:, None]).any(1).sum()
    assert measured("top2", scores, label) == pytest.approx(hits / len(label))
    assert np.isnan(measured("auc", scores, label))


def test_a_row_without_numbers_has_no_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sardonyx.cli.__main__ import main

    run = sx.train(mlp(), DATA, steps=1, batch_size=8, loss="cross_entropy", display="quiet")
    sx.save(run.model, tmp_path / "m.onnx")
    rows = X[:3].copy()
    rows[1, 2] = np.nan
    np.savez(tmp_path / "d.npz", x=rows)
    with pytest.raises(SystemExit) as stopped:
        main(["predict", str(tmp_path / "m.onnx"), str(tmp_path / "d.npz"),
              "-o", str(tmp_path / "p.csv")])  # fmt: skip
    assert not stopped.value.code
    assert "NaN in 1 row, the first is 1" in capsys.readouterr().err
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[2] == "1,,nan" and all(line.split(",")[1] for line in (lines[1], lines[3]))


LOSSES: dict[str, tuple[Any, Any]] = {
    "weights of classes": (
        lambda: sx.loss.cross_entropy(weight=[0.1, 1.0, 5.0]),
        {"weight": [0.1, 1.0, 5.0]},
    ),
    "labels to be ignored": (lambda: sx.loss.cross_entropy(ignore_index=2), {"ignore_index": 2}),
    "both, smoothed": (
        lambda: sx.loss.cross_entropy(weight=[3.0, 1.0, 5.0], ignore_index=0, label_smoothing=0.1),
        {"weight": [3.0, 1.0, 5.0], "ignore_index": 0, "label_smoothing": 0.1},
    ),
}


@pytest.mark.parametrize("batch_size", [1, 4, 7, 23])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_over_data_does_not_depend_on_the_batch_size(name: str, batch_size: int) -> None:
    """Against torch over all rows at once; of one row, batches without any label are among them."""
    torch = pytest.importorskip("torch")
    make, settings = LOSSES[name]
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(23, 6)).astype(np.float32), rng.integers(0, 3, 23)
    scores = torch.from_numpy(Runner(mlp())({"x": x})["scores"])
    weight = torch.tensor(settings["weight"]) if "weight" in settings else None
    expected = torch.nn.functional.cross_entropy(
        scores, torch.from_numpy(label), **{**settings, "weight": weight}
    )
    data = {"x": x, "label": label}
    values = sx.evaluate(mlp(), data, loss=make(), batch_size=batch_size)
    assert values["loss"] == pytest.approx(float(expected), rel=1e-5)
    # The same beside a second term and a penalty.
    terms = [sx.loss.Term(make(), weight=2.0), sx.loss.Term(sx.loss.cross_entropy())]
    both = {"x": x, "label_0": label, "label_1": label}
    net = sx.trainable(mlp(), terms, l2=0.1)
    plain = torch.nn.functional.cross_entropy(scores, torch.from_numpy(label))
    weights = [w.const_value.numpy() for w in net.graph.initializers.values() if w.name[:2] == "fc"]
    penalty = 0.05 * sum(float((w.astype(np.float64) ** 2).sum()) for w in weights)
    values = sx.evaluate(net, both, batch_size=batch_size)
    assert values["loss"] == pytest.approx(float(2 * expected + plain) + penalty, rel=1e-5)

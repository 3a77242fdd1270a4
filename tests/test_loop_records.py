"""A model that carries its record is trained as the file says; options change it and say what."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.build import Builder
from sardonyx.errors import ArgumentError
from sardonyx.model import Model, record_proto
from sardonyx.record.describe import descriptions, settings_of
from sardonyx.record.override import override
from sardonyx.train.display import Json, Lines

from .networks import mlp

X = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
DATA = {"x": X, "label": (X[:, 0] > 0).astype(np.int64)}
WARM = sx.schedule.linear_warmup(4, sx.schedule.sequence([sx.schedule.cosine(9)], []))
TOLD = {
    "loss": sx.loss.cross_entropy(weight=[1.0, 2.0, 3.0], label_smoothing=0.1),
    "optimizer": sx.optim.adam(0.01, schedule=WARM),
    "train": "fc*",
    "freeze": ["fc0.bias"],
    "groups": {"*.bias": {"lr": 0.001}},
    "clip_norm": 1.5,
    "l2": 1e-4,
    "accumulate": 2,
    "ema": 0.99,
    "initialize": {"fc1.*": sx.Initializer("normal", 0.1)},
    "seed": 7,
}


def same(a: Model, b: Model) -> bool:
    return [record_proto(r) for r in a.records] == [record_proto(r) for r in b.records]


def test_what_the_file_says_is_enough_to_make_the_record_again(tmp_path: Path) -> None:
    sx.save(sx.trainable(mlp(), **TOLD), tmp_path / "net.onnx")  # type: ignore[arg-type]
    kept, rows = override(sx.load(tmp_path / "net.onnx"), {"clip_norm": 1.5})
    assert rows == [] and kept.records
    changed, rows = override(sx.load(tmp_path / "net.onnx"), {"clip_norm": 9.0})
    assert rows[:-1] == [["clip_norm", "1.5", "9"]]
    assert same(changed, sx.trainable(mlp(), **{**TOLD, "clip_norm": 9.0}))  # type: ignore[arg-type]


OVERRIDES = {
    "lr": ({"lr": 0.5}, ["optimizer.lr", "0.01", "0.5"]),
    "loss": ({"loss": "mse"}, ["loss", "cross_entropy", "mse"]),
    "optimizer": ({"optimizer": sx.optim.sgd(0.1)}, ["optimizer", "adam", "sgd"]),
    "train": ({"train": ["fc1.*"]}, ["train", "fc*", "fc1.*"]),
    "groups": (
        {"groups": {"fc1.*": {"lr": 1.0}}},
        ["groups.*.bias.lr", "0.001", "not set"],
    ),
    "batch_norm": ({"batch_norm": "frozen"}, ["batch_norm", "not set", "frozen"]),
    "seed": ({"seed": 8}, ["seed", "7", "8"]),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_one_option_changes_one_setting(name: str) -> None:
    inputs, row = OVERRIDES[name]
    told = {k: v for k, v in TOLD.items() if name != "train" or k != "freeze"}
    made, rows = override(sx.trainable(mlp(), **told), inputs)  # type: ignore[arg-type]
    assert row in rows
    expected = {**told, **inputs}
    if name == "lr":
        expected = {**told, "optimizer": sx.optim.adam(0.5, schedule=WARM)}
    assert same(made, sx.trainable(mlp(), **expected))  # type: ignore[arg-type]


def test_a_configuration_file_changes_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('l1 = 0.5\n[optimizer]\nname = "sgd"\nlr = 2.0\n')
    made, rows = override(
        sx.trainable(mlp(), "mse", clip_norm=1.0), {"config": tmp_path / "t.toml"}
    )
    assert ["l1", "not set", "0.5"] in rows and ["optimizer.lr", "0.001", "2"] in rows
    assert same(made, sx.trainable(mlp(), "mse", sx.optim.sgd(2.0), clip_norm=1.0, l1=0.5))


def test_state_is_kept_while_the_optimizer_is_the_same(tmp_path: Path) -> None:
    begun = sx.train(sx.trainable(mlp(), "mse", sx.optim.adam(0.01)), LIKE, steps=5).model
    slots = {n: t.tobytes() for n, t in begun.records[0].state.items() if "/m" in n or "step" in n}
    assert slots
    kept, rows = override(begun, {"lr": 0.5})
    assert rows[-1][2] == "kept"
    assert {n: kept.records[0].state[n].tobytes() for n in slots} == slots
    fresh, rows = override(begun, {"optimizer": "lion"})
    assert rows[-1][2] == "starts afresh"
    for name in fresh.records[0].state:
        if name in slots:
            assert not fresh.records[0].state[name].numpy().any()
    assert begun.graph.initializers["fc0.weight"].const_value.tobytes() == (  # type: ignore[union-attr]
        kept.graph.initializers["fc0.weight"].const_value.tobytes()  # type: ignore[union-attr]
    )


LIKE = {"x": X, "label": X[:, :3]}


def half_squares(op: Builder, y: object, label: object) -> object:
    return op.Mul(op.ReduceSumSquare(op.Sub(y, label), keepdims=0), 0.5)  # type: ignore[arg-type]


def test_a_loss_of_ones_own_has_to_be_given_again() -> None:
    net = sx.trainable(mlp(), half_squares, "sgd")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="does not describe the whole record") as caught:
        override(net, {"lr": 0.5})
    assert "half_squares" in str(caught.value) and "pass loss again" in str(caught.value)
    made, rows = override(net, {"lr": 0.5, "loss": half_squares})
    assert rows[0] == ["optimizer.lr", "0.01", "0.5"]
    assert same(made, sx.trainable(mlp(), half_squares, sx.optim.sgd(0.5)))  # type: ignore[arg-type]


def test_a_record_made_elsewhere_is_replaced_whole_or_not_at_all() -> None:
    net = sx.trainable(mlp(), "mse")
    del net.metadata["sardonyx.training"]
    with pytest.raises(ArgumentError, match="made elsewhere"):
        sx.train(net, LIKE, steps=1, lr=0.5)
    run = sx.train(net, LIKE, steps=1, loss="l1", lr=0.5)
    assert run.position.overrides == [["record", "made elsewhere", "made anew"]]


def test_options_for_one_record_do_not_fit_two() -> None:
    net = sx.trainable(sx.trainable(mlp(), "mse", train="fc0.*"), "l1", train="fc1.*", name="two")
    with pytest.raises(ArgumentError, match="carries 2 training records"):
        sx.train(net, LIKE, steps=1, lr=0.5)


def test_every_record_is_described() -> None:
    net = sx.trainable(sx.trainable(mlp(), "mse", train="fc0.*"), "l1", train="fc1.*", name="two")
    assert [d["name"] for d in descriptions(net)] == ["train", "two"]
    assert [m["loss"] for m in settings_of(net)["loss_terms"]] == ["mse", "l1"]
    assert ["two: loss", "l1", "as asked"] in settings_of(net)["choices"]
    result = sx.evaluate(net, {"x": X, "label": X[:, :3]})
    scores = sx.predict(net, {"x": X})["scores"].astype(np.float64)
    assert result["loss"] == pytest.approx(np.square(scores - X[:, :3]).mean(), rel=1e-5)
    assert result["two/loss"] == pytest.approx(np.abs(scores - X[:, :3]).mean(), rel=1e-5)


def test_what_is_overridden_is_shown_everywhere(tmp_path: Path) -> None:
    sx.save(sx.trainable(mlp(), "cross_entropy", sx.optim.sgd(0.5)), tmp_path / "net.onnx")
    lines, objects = Lines(io.StringIO()), Json(io.StringIO())
    for display in (lines, objects):
        run = sx.train(tmp_path / "net.onnx", DATA, steps=2, lr=0.25, display=display)
    assert "overrides the file: optimizer.lr: 0.5 → 0.25" in lines.stream.getvalue()  # type: ignore[attr-defined]
    begin = json.loads(objects.stream.getvalue().splitlines()[0])  # type: ignore[attr-defined]
    assert ["optimizer.lr", "0.5", "0.25"] in begin["overrides"]
    page = sx.write_report(run, tmp_path / "report.html").read_text()
    assert "in the file" in page and "<td>0.5</td><td>0.25</td>" in page
    expected = sx.train(mlp(), DATA, steps=2, loss="cross_entropy", optimizer=sx.optim.sgd(0.25))
    assert run.losses == expected.losses

"""A whole training in one file gives the numbers of `sx.train(shuffle="hash")`, bit for bit."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
import pytest

import sardonyx as sx
from sardonyx.engines.training import with_state
from sardonyx.errors import ArgumentError, DataError, TrainingStopped
from sardonyx.record.hash_order import VALIDATION, hash_order
from sardonyx.train.run import Run
from sardonyx.train.whole import graph
from tests.networks import cnn, lstm, mlp, network, parse, transformer
from tests.test_record_forms import gan

RNG = np.random.default_rng(0)
X = RNG.normal(size=(83, 6)).astype(np.float32)
DATA = {"x": X, "label": (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.5)}


def session(path: Path) -> ort.InferenceSession:
    onnx.checker.check_model(path, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return ort.InferenceSession(path, options)


def feeds(data: Any, epochs: int = 3, batch_size: int = 16, seed: int = 5) -> dict[str, Any]:
    numbers = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
    return {**data, **{n: np.array(v, np.int64) for n, v in numbers.items()}}


def trained(path: Path, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    opened = session(path)
    return dict(zip([v.name for v in opened.get_outputs()], opened.run(None, inputs), strict=True))


def assert_same(outputs: dict[str, np.ndarray], run: Run) -> None:
    """Losses, curves, the last state and the best weights, to the bit."""
    assert outputs["losses"].ravel().tolist() == list(run.losses)
    for name in (n for n in run.history[0] if n not in ("epoch", "step")):
        assert outputs[f"history/{name}"].tolist() == [h[name] for h in run.history], name
    for name, array in run.rep.state().items():
        np.testing.assert_array_equal(outputs[f"last/{name}"], array, strict=True)
    best = {n: a for n, a in outputs.items() if n.startswith("best/")}
    if best:
        assert run.best is not None
        for name, array in best.items():
            np.testing.assert_array_equal(array, run.best[0][name.removeprefix("best/")])
        assert outputs["best_epoch"] == run.position.best_epoch


def compared(folder: Path, model: Any, data: Any, exported: Any = None, **settings: Any) -> None:
    """Train in both ways and compare; `exported` has the settings that are in the file."""
    exported = exported or {}
    how = {k: v for k, v in settings.items() if k not in ("epochs", "batch_size", "seed")}
    path = sx.export_training(model, folder / "whole.onnx", **how, **exported)
    loop = {k: settings.get(k, d) for k, d in (("epochs", 3), ("batch_size", 16), ("seed", 5))}
    outputs = trained(path, feeds(data, **loop))
    shuffle = "hash" if exported.get("shuffle", True) else False
    rest = {k: v for k, v in exported.items() if k != "shuffle"}
    options = {"engine_options": {"threads": 1}, "shuffle": shuffle}
    if not shuffle and "validation" in rest:
        data, rest["validation"] = held_back(data, rest["validation"], loop["seed"])
    assert_same(outputs, sx.train(model, data, **how, **loop, **rest, **options))


def held_back(data: Any, share: float, seed: int) -> tuple[Any, Any]:
    """The rows that a file trains on, and those that it holds back: by hash, also in order."""
    count = len(next(iter(data.values())))
    order = hash_order(seed, 0, count, VALIDATION)
    size = max(1, round(count * share))
    parts = np.sort(order[size:]), np.sort(order[:size])
    training, validation = ({n: a[rows] for n, a in data.items()} for rows in parts)
    return training, validation


@pytest.mark.parametrize(
    "exported",
    [
        {},
        {"validation": 0.2},
        {
            "validation": 0.3,
            "patience": 1,
            "watch": "val_accuracy",
            "metrics": ["accuracy", "top2"],
        },
        {"patience": 2},
        {"drop_last": True, "validation": 0.1},
        {"shuffle": False},
    ],
    ids=str,
)
def test_settings_of_the_loop(tmp_path: Path, exported: Any) -> None:
    compared(tmp_path, mlp(), DATA, exported, optimizer=sx.optim.adam(0.02), epochs=6)


@pytest.mark.parametrize("batch_size", [1, 7, 83, 200])
def test_batches_of_any_size(tmp_path: Path, batch_size: int) -> None:
    compared(tmp_path, mlp(), DATA, {"validation": 0.2}, batch_size=batch_size)
    compared(tmp_path, mlp(), DATA, {"drop_last": True}, batch_size=batch_size, epochs=1)


# -- networks and records ---------------------------------------------------------------------


def images(rows: int = 26) -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(rows, 3, 8, 8)).astype(np.float32)
    return {"x": x, "label": np.arange(rows) % 3}


def words(rows: int = 21) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(2).integers(0, 11, (rows, 5))
    return {"ids": ids, "label": np.roll(ids, -1, 1)}


def series(rows: int = 19) -> dict[str, np.ndarray]:
    x = np.random.default_rng(3).normal(size=(rows, 4, 3)).astype(np.float32)
    return {"x": x, "label": np.arange(rows) % 3}


SMALL = {"cnn": (cnn, images), "transformer": (transformer, words), "lstm": (lstm, series)}
VALIDATED = {"validation": 0.25, "patience": 5}


@pytest.mark.parametrize("name", SMALL)
def test_networks(tmp_path: Path, name: str) -> None:
    make, data = SMALL[name]
    compared(tmp_path, make(), data(), VALIDATED, batch_size=8, loss="cross_entropy")


@pytest.mark.parametrize("batch_size", [2, 5])
def test_gradients_of_a_weight_that_is_used_twice(tmp_path: Path, batch_size: int) -> None:
    """onnxruntime would fuse their sum with a product in the file, but does not in the loop."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[N,6] x, float[N,6] z) => (float[N,4] y) {
        a = MatMul(x, w) b = MatMul(z, w) c = Mul(a, b) d = Tanh(c) y = MatMul(d, v) }""")
    rng = np.random.default_rng(1)
    for name, shape in (("w", (6, 5)), ("v", (5, 4))):
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    x, z = (rng.normal(size=(23, 6)).astype(np.float32) for _ in range(2))
    adapted = sx.lora(model, rank=1, dropout=0.1)
    data = {"x": x, "z": z, "label": rng.integers(0, 4, 23)}
    how = {"loss": "cross_entropy", "optimizer": sx.optim.adamw(2e-2), "batch_size": batch_size}
    compared(tmp_path, adapted, data, **how)


@pytest.mark.parametrize("group", [1, 16])
def test_convolutions_that_training_writes_in_blocks_of_channels(
    tmp_path: Path, group: int
) -> None:
    """A file has plain convolutions, which round otherwise; they are what both ways compute."""
    rng = np.random.default_rng(4)
    shapes = {"conv": (16, 16 // group, 3, 3), "w": (16, 3)}
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=s).astype(np.float32) / 4, n)
        for n, s in shapes.items()
    ]
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 20]>
    g (float[8,16,16,16] x) => (float[8,3] scores) {{
        a = Conv<pads=[1,1,1,1], group={group}>(x, conv) b = Relu(a) c = GlobalAveragePool(b)
        d = Flatten(c) scores = MatMul(d, w)}}""")
    model.graph.initializer.extend(weights)
    x = rng.normal(size=(24, 16, 16, 16)).astype(np.float32)
    data = {"x": x, "label": np.arange(24) % 3}
    compared(tmp_path, model, data, {"drop_last": True}, batch_size=8, loss="cross_entropy")


def test_a_sum_beside_a_convolution(tmp_path: Path) -> None:
    """At its default level, onnxruntime would let the convolution of the file add it."""
    rng = np.random.default_rng(5)
    shapes = {"first": (8, 3, 3, 3), "second": (8, 8, 1, 1), "bias": (8,), "w": (8, 3)}
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=s).astype(np.float32) / 3, n)
        for n, s in shapes.items()
    ]
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[N,3,8,8] x) => (float[N,3] scores) {
        a = Conv<pads=[1,1,1,1]>(x, first) b = Relu(a) c = Conv(b, second, bias) d = Add(b, c)
        e = Relu(d) f = GlobalAveragePool(e) g = Flatten(f) scores = MatMul(g, w) }""")
    model.graph.initializer.extend(weights)
    compared(tmp_path, model, images(), VALIDATED, batch_size=8, loss="cross_entropy")
    path = tmp_path / "whole.onnx"
    at_once = trained(path, feeds(images(), batch_size=8))
    run = sx.run_training(path, images(), epochs=3, batch_size=8, seed=5, threads=1)
    assert [h["val_loss"] for h in run.history] == at_once["history/val_loss"].tolist()


def test_a_regression_in_double(tmp_path: Path) -> None:
    """The mean absolute error is a sum of doubles, which NumPy and onnxruntime add in another
    order.
    """
    x = X.astype(np.float64)
    data = {"x": x, "label": x[:, :2] @ np.array([[1.0, 2.0], [-1.0, 0.5]])}
    model = mlp((6, 5, 2), np.float64)
    compared(tmp_path, model, data, {"validation": 0.2, "metrics": []}, loss="mse")
    path = sx.export_training(model, tmp_path / "mae.onnx", validation=0.2, loss="mse")
    outputs = trained(path, feeds(data))
    run = sx.train(
        model, data, loss="mse", validation=0.2, shuffle="hash", seed=5, epochs=3, batch_size=16
    )
    errors = [h["val_mae"] for h in run.history]
    np.testing.assert_allclose(outputs["history/val_mae"], errors, rtol=1e-14)


def test_one_score_for_two_classes(tmp_path: Path) -> None:
    data = {"x": X, "label": (X[:, :1] > 0).astype(np.float32)}
    compared(tmp_path, mlp((6, 4, 1)), data, VALIDATED, loss="binary_cross_entropy")


def test_labels_to_ignore_and_soft_labels(tmp_path: Path) -> None:
    ignored = {**words(), "label": np.where(words()["ids"] > 7, -100, words()["label"])}
    compared(
        tmp_path, transformer(), ignored, VALIDATED, loss=sx.loss.cross_entropy(ignore_index=-100)
    )
    soft = np.random.default_rng(0).dirichlet(np.ones(3), len(X)).astype(np.float32)
    loss = sx.loss.cross_entropy(probabilities=True)
    compared(tmp_path, mlp(), {"x": X, "label": soft}, VALIDATED, loss=loss)


@pytest.mark.parametrize(
    "loss",
    [
        sx.loss.cross_entropy(ignore_index=0),
        sx.loss.cross_entropy(ignore_index=2, weight=[1.0, 0.25, 4.0]),
        sx.loss.cross_entropy(reduction="sum"),
    ],
    ids=["ignored", "weights of classes", "sum"],
)
def test_validation_counts_what_a_loss_counts(tmp_path: Path, loss: Any) -> None:
    """In several batches, each of which counts the weights of its labels, or is a sum."""
    exported = {"validation": 0.4, "patience": 2}
    compared(tmp_path, mlp(), DATA, exported, loss=loss, batch_size=5)


def test_validation_of_several_losses(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[N,6] x) => (float[N,3] a, float[N,2] b) { a = MatMul(x, va) b = MatMul(x, vb) }""")
    for name, width in (("va", 3), ("vb", 2)):
        array = np.random.default_rng(width).normal(size=(6, width)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    data = {"x": X, "la": DATA["label"], "lb": X[:, :2] * 2}
    terms = [
        sx.loss.Term(sx.loss.cross_entropy(ignore_index=0), "a", ["la"]),
        sx.loss.Term("mse", "b", ["lb"], weight=0.5),
    ]
    exported = {"validation": 0.4, "metrics": []}
    compared(tmp_path, model, data, exported, loss=terms, l2=0.01, batch_size=5)


RECORD = {
    "accumulate": {"accumulate": 3},
    "schedule": {"optimizer": sx.optim.sgd(0.1, 0.9, schedule=sx.schedule.cosine(20))},
    "ema": {"ema": 0.9},
    "clip": {"clip_norm": 0.5, "clip_value": 0.1},
    "penalties": {"l1": 1e-3, "l2": 1e-2},
    "groups": {"groups": {"fc.*": {"lr": 0.1}}, "freeze": "conv1.*"},
    "frozen": {"batch_norm": "frozen", "dropout": "frozen", "form": "expanded"},
}
PAIRS = list(itertools.combinations(RECORD, 2))


@pytest.mark.parametrize("first,second", PAIRS[::7], ids="-".join)
def test_pairs_of_settings(tmp_path: Path, first: str, second: str) -> None:
    settings = {**RECORD[first], **RECORD[second]}
    compared(tmp_path, cnn(), images(), VALIDATED, batch_size=8, **settings)


@pytest.mark.nightly
@pytest.mark.parametrize("first,second", PAIRS, ids="-".join)
def test_all_pairs_of_settings(tmp_path: Path, first: str, second: str) -> None:
    settings = {**RECORD[first], **RECORD[second]}
    for exported in ({}, VALIDATED, {"drop_last": True}, {"shuffle": False, "validation": 0.2}):
        compared(tmp_path, cnn(), images(), exported, batch_size=8, **settings)


def test_two_records_in_turn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = {"z": rng.normal(size=(25, 2)), "real": rng.normal(2.0, 1.0, size=(25, 1))}
    compared(tmp_path, gan(), {n: a.astype(np.float32) for n, a in data.items()}, batch_size=5)


# -- the file ------------------------------------------------------------------------------------


def test_a_state_can_be_fed_to_continue(tmp_path: Path) -> None:
    path = sx.export_training(mlp(), tmp_path / "whole.onnx", validation=0.2, ema=0.9)
    whole = trained(path, feeds(DATA, epochs=5))
    first = trained(path, feeds(DATA, epochs=2))
    state = {n.removeprefix("last/"): a for n, a in first.items() if n.startswith("last/")}
    position = {"first_epoch": np.array(2), "best_value": first["best_value/end"]}
    fed = {n: np.atleast_1d(a) for n, a in state.items()}
    second = trained(path, {**feeds(DATA, epochs=3), **position, **fed})
    for name, array in whole.items():
        if name.startswith("last/"):
            np.testing.assert_array_equal(second[name], array)
        elif name.startswith(("history/", "losses")):
            np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), array)
    nothing = trained(path, feeds(DATA, epochs=0))
    np.testing.assert_array_equal(
        nothing["last/fc0.weight"], mlp().graph.initializers["fc0.weight"].const_value.numpy()
    )


def test_a_rate_can_be_fed_and_all_inputs_can_be_required(tmp_path: Path) -> None:
    how: dict[str, Any] = {"lr": 0.1, "optimizer": "sgd"}
    path = sx.export_training(mlp(), tmp_path / "whole.onnx", **how)
    slow = trained(path, {**feeds(DATA), "learning_rate": np.array(0.01, np.float32)})
    options = {"shuffle": "hash", "seed": 5, "epochs": 3, "batch_size": 16}
    assert slow["losses"].ravel().tolist() == list(
        sx.train(mlp(), DATA, lr=0.01, optimizer="sgd", **options).losses
    )
    path = sx.export_training(mlp(), tmp_path / "all.onnx", **how, defaults=False)
    opened = session(path)
    assert not opened.get_overridable_initializers()
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    names = [v for v in opened.get_inputs() if v.name not in feeds(DATA)]
    empty = {v.name: np.zeros([0] * len(v.shape), types[v.type]) for v in names if v.shape}
    numbers = {"first_epoch": np.array(0), "learning_rate": np.array(0.1, np.float32)}
    outputs = trained(path, {**feeds(DATA), **empty, **numbers})
    run = sx.train(mlp(), DATA, **how, **options)
    assert outputs["losses"].ravel().tolist() == list(run.losses)


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path: Path) -> None:
    model = mlp(activation="Relu")
    path = sx.export_training(model, tmp_path / "whole.onnx", optimizer=sx.optim.sgd(1e30))
    outputs = trained(path, feeds(DATA, epochs=4))
    assert outputs["stopped"] == 2 and outputs["losses"].shape == (1, 6)
    finite = np.isfinite(outputs["losses"][0])
    assert finite[0] and not finite[-1]
    with pytest.raises(TrainingStopped, match="not finite at step"):
        sx.run_training(path, DATA, batch_size=16)


@pytest.mark.parametrize(
    "change,words",
    [
        ({"label": DATA["label"][:-1]}, "label must have as many rows as x"),
        ({"label": DATA["label"] + 1}, "labels in label must be from 0 to 2"),
        ({"x": X[:0], "label": DATA["label"][:0]}, "there must be at least 2 rows"),
        ({"batch_size": np.array(0)}, "batch_size must be at least 1"),
        ({"epochs": np.array(-1)}, "epochs must be at least 0"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_data_that_does_not_fit_fails_with_a_reason(
    tmp_path: Path, change: Any, words: str
) -> None:
    path = sx.export_training(mlp(), tmp_path / "whole.onnx", validation=0.2)
    with pytest.raises(Exception, match=words):
        trained(path, {**feeds(DATA), **change})


def test_batches_of_a_fixed_size_must_be_full(tmp_path: Path) -> None:
    proto = mlp().proto()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 8
    data = {"x": X[:40], "label": DATA["label"][:40]}
    compared(tmp_path, proto, data, {"validation": 0.2}, batch_size=8)
    path = tmp_path / "whole.onnx"
    with pytest.raises(Exception, match="batch_size must be 8"):
        trained(path, feeds(data, batch_size=4))
    with pytest.raises(Exception, match="rows held back must divide into batches of 8"):
        trained(path, feeds({n: a[:32] for n, a in data.items()}, batch_size=8))


def test_onnx_reference_agrees(tmp_path: Path) -> None:
    path = sx.export_training(mlp(), tmp_path / "whole.onnx", validation=0.2, patience=2)
    expected = trained(path, feeds(DATA, epochs=2))
    evaluator = onnx.reference.ReferenceEvaluator(onnx.load(path))
    outputs = evaluator.run(None, feeds(DATA, epochs=2))
    for name, array in zip(evaluator.output_names, outputs, strict=True):
        np.testing.assert_allclose(array, expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


# -- preparation ------------------------------------------------------------------------------


def test_inputs_are_standardized_over_the_rows_to_train_on(tmp_path: Path) -> None:
    data = {**DATA, "x": X * np.arange(6, dtype=np.float32) + 7}  # one column is constant
    path = sx.export_training(mlp(), tmp_path / "whole.onnx", validation=0.2, standardize=True)
    outputs = trained(path, feeds(data))
    held_back = hash_order(5, 0, len(X), VALIDATION)[: round(len(X) * 0.2)]
    rows = np.delete(data["x"], held_back, 0).astype(np.float64)
    np.testing.assert_allclose(outputs["standardize/x/mean"][0], rows.mean(0), rtol=1e-6)
    deviation = np.where(rows.std(0) > 0, rows.std(0), 1)
    np.testing.assert_allclose(outputs["standardize/x/deviation"][0], deviation, rtol=1e-6)
    x = (data["x"] - outputs["standardize/x/mean"]) / outputs["standardize/x/deviation"]
    options = {"shuffle": "hash", "seed": 5, "epochs": 3, "batch_size": 16, "validation": 0.2}
    assert_same(outputs, sx.train(mlp(), {**data, "x": x}, **options))
    run = sx.run_training(path, data, epochs=3, batch_size=16, seed=5, output=tmp_path / "t.onnx")
    raw = sx.predict(tmp_path / "t.onnx", {"x": data["x"]})["scores"]
    weights = {n: outputs[f"last/{n}"] for n in run.rep.file.description["best"]}
    served = with_state(mlp(), weights)
    np.testing.assert_allclose(raw, sx.predict(served, {"x": x})["scores"], rtol=1e-5, atol=1e-6)


def test_channels_of_images_are_standardized(tmp_path: Path) -> None:
    path = sx.export_training(cnn(), tmp_path / "whole.onnx", standardize=True)
    outputs = trained(path, feeds(images()))
    mean = images()["x"].astype(np.float64).mean((0, 2, 3))
    np.testing.assert_allclose(outputs["standardize/x/mean"].ravel(), mean, rtol=1e-5, atol=1e-7)


def test_preparation_inside_a_model_runs_once(tmp_path: Path) -> None:
    preparation = parse(
        """<ir_version: 8, opset_import: ["": 17]> p (float[N,6] raw) => (float[N,6] x)
        <float[1] two = {2.0}> {x = Mul(raw, two)}"""
    )
    model = sx.compose(preparation, mlp())
    compared(tmp_path, model, {"raw": X, "label": DATA["label"]}, VALIDATED)


# -- one epoch at a time ------------------------------------------------------------------------


def test_running_it_gives_the_files_of_train(tmp_path: Path) -> None:
    how = {"validation": 0.2, "patience": 3}
    path = sx.export_training(mlp(), tmp_path / "whole.onnx", **how)
    loop = {"epochs": 4, "batch_size": 16, "seed": 5}
    run = sx.run_training(path, DATA, **loop, output=tmp_path / "ours.onnx")
    options = {"shuffle": "hash", "engine_options": {"threads": 1}, **how, **loop}
    stepwise = sx.train(mlp(), DATA, **options, output=tmp_path / "theirs.onnx")
    assert run.history == stepwise.history and list(run.losses) == list(stepwise.losses)
    for tail in (".onnx", ".best.onnx"):
        ours, theirs = ((tmp_path / f"{n}{tail}").read_bytes() for n in ("ours", "theirs"))
        assert ours == theirs


def test_either_continues_what_the_other_began(tmp_path: Path) -> None:
    path = sx.export_training(mlp(), tmp_path / "whole.onnx", validation=0.2)
    loop = {"batch_size": 16, "seed": 5, "resume": True}
    whole = sx.run_training(path, DATA, epochs=4, batch_size=16, seed=5)
    for first, second in itertools.permutations(("file", "loop")):
        output = tmp_path / f"{first}.onnx"
        for epochs, way in ((2, first), (4, second)):
            if way == "file":
                run = sx.run_training(path, DATA, epochs=epochs, output=output, **loop)
            else:
                how = {"shuffle": "hash", "validation": 0.2, "engine_options": {"threads": 1}}
                run = sx.train(mlp(), DATA, epochs=epochs, output=output, **loop, **how)
        assert run.history == whole.history
    with pytest.raises(ArgumentError, match="not a model of this training"):
        other = sx.export_training(mlp((6, 4, 3, 3)), tmp_path / "o.onnx", validation=0.2)
        sx.run_training(other, DATA, epochs=9, output=output, **loop)


def test_a_run_can_be_stopped_between_epochs(tmp_path: Path) -> None:
    path = sx.export_training(mlp(), tmp_path / "whole.onnx")
    run = sx.run_training(path, DATA, epochs=9, callbacks=[lambda run: run.stop("enough")])
    assert run.position.epoch == 1 and run.stopped == "enough"


def test_what_is_no_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="not a whole training"):
        sx.run_training(mlp(), DATA)
    path = sx.export_training(mlp(), tmp_path / "whole.onnx")
    with pytest.raises(ArgumentError, match="no such hyperparameters"):
        sx.run_training(path, DATA, hyper={"rate": 1.0})
    for rate in ("x", [1.0], None):
        with pytest.raises(ArgumentError, match=r"numbers\n  \"learning_rate\"  is no number"):
            sx.run_training(path, DATA, hyper={"learning_rate": rate})
    for threads in ("x", -1, 1.5):
        with pytest.raises(ArgumentError, match="threads is a whole number"):
            sx.run_training(path, DATA, threads=threads)
        with pytest.raises(ArgumentError, match="threads is a whole number"):
            sx.train(mlp(), DATA, engine_options={"threads": threads})
    with pytest.raises(DataError, match="stream"):
        sx.run_training(path, lambda: iter([DATA]))
    with pytest.raises(ArgumentError, match="does not measure"):
        sx.export_training(mlp(), tmp_path / "f1.onnx", validation=0.2, metrics=["f1"])
    with pytest.raises(ArgumentError, match="no such inputs"):
        sx.export_training(mlp(), tmp_path / "c.onnx", constants={"y": 1})
    with pytest.raises(ArgumentError, match="no float inputs"):
        how = {"loss": "cross_entropy", "standardize": True}
        sx.export_training(transformer(), tmp_path / "s.onnx", **how)


@pytest.mark.parametrize(
    "how,words",
    [
        ({"validation": "a"}, "a share above 0 and below 1"),
        ({"watch": 3}, "there is no metric"),
        ({"constants": {"x": "a"}}, "is no FLOAT"),
        ({"batch_axes": {"x": 5}}, "axis 5"),
        ({"batch_axes": {"x": "a"}}, "axis 'a'"),
        ({"seed": 1.5}, "an integer of at least 0"),
        ({"standardize": "x"}, "True or False"),
        ({"drop_last": 3}, "True or False"),
        ({"shuffle": "sorted"}, 'True, False or "hash"'),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(tmp_path: Path, how: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        sx.export_training(mlp(), tmp_path / "w.onnx", loss="cross_entropy", **how)


def test_the_command_writes_the_same_file(tmp_path: Path) -> None:
    sx.save(mlp(), tmp_path / "model.onnx")
    words = "export-training model.onnx -o whole.onnx --validation 0.2 --patience 3 --lr 0.01"
    command = [sys.executable, "-m", "sardonyx", *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "whole.onnx"
    expected = sx.export_training(
        tmp_path / "model.onnx", tmp_path / "other.onnx", validation=0.2, patience=3, lr=0.01
    )
    assert (tmp_path / "whole.onnx").read_bytes() == expected.read_bytes()


@pytest.mark.parametrize("exported", [{}, {"drop_last": True}, {"shuffle": False}], ids=str)
def test_a_large_state_is_trained_in_one_loop(
    tmp_path: Path, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "LARGE", 0)
    compared(tmp_path, cnn(), images(), exported, batch_size=8)
    nodes = onnx.load(tmp_path / "whole.onnx").graph.node
    (loop,) = (node for node in nodes if node.op_type == "Loop")
    body = next(a.g for a in loop.attribute if a.name == "body")
    assert "Loop" not in {node.op_type for node in body.node}
    outputs = trained(tmp_path / "whole.onnx", feeds(images(), epochs=0))
    assert outputs["losses"].size == 0 and outputs["stopped"] == 0
    path = sx.export_training(
        mlp(activation="Relu"), tmp_path / "nan.onnx", optimizer=sx.optim.sgd(1e30)
    )
    outputs = trained(path, feeds(DATA, epochs=4))
    assert outputs["stopped"] == 2 and outputs["losses"].shape == (1, 6)
    assert np.isfinite(outputs["losses"][0, 0]) and not np.isfinite(outputs["losses"][0, -1])


def test_where_the_state_starts_is_held_once(tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(64, 512))}
    model = network("line (float[N,64] x) => (float[N,512] y) { y = MatMul(x, w) }", weights)
    path = sx.export_training(model, tmp_path / "whole.onnx", loss="mse")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(path, options)
    optimized = (tmp_path / "optimized.onnx").stat().st_size
    assert optimized < path.stat().st_size + 64 * 512 * 2  # neither the weight nor a slot again


def test_a_file_names_the_level_of_optimization_of_its_step(tmp_path: Path) -> None:
    def level(**how: Any) -> str:
        path = sx.export_training(cnn(), tmp_path / "whole.onnx", loss="cross_entropy", **how)
        return str(json.loads(sx.load(path).metadata["sardonyx.whole"])["optimization"])

    assert level() == "ORT_ENABLE_EXTENDED"  # no layout in blocks for kernels that change
    assert level(freeze="conv1*") == "ORT_ENABLE_ALL"

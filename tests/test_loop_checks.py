"""What can be known to be wrong is refused before anything is compiled, with one clear error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, DataError, EngineError, SardonyxError
from sardonyx.train import loop
from sardonyx.train.display import Lines, make_display
from sardonyx.train.run import Run

from .networks import mlp

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 6)).astype(np.float32)
LABEL = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)
DATA = {"x": X, "label": LABEL}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "batch size 0": ({"batch_size": 0}, "batch size"),
    "negative batch size": ({"batch_size": -3}, "an integer of at least 1, not -3"),
    "negative epochs": ({"epochs": -1}, "epochs"),
    "steps": ({"steps": 0}, "steps"),
    "patience": ({"patience": 0}, "patience"),
    "every steps": ({"every_steps": 0}, "every steps"),
    "negative seed": ({"seed": -1}, "an integer of at least 0, not -1"),
    "share": ({"validation": 1.5}, "validation"),
    "watch": ({"watch": "val_accuracy", "validation": 0.2, "metrics": ["f1"]}, "val_f1"),
    "metric": ({"validation": 0.2, "metrics": ["accurracy"]}, "did you mean accuracy"),
    "metric without validation": ({"metrics": ["accuracy"]}, "--validation"),
    "loss": ({"loss": "cross_entrpy"}, "did you mean cross_entropy"),
    "optimizer": ({"optimizer": "adamm"}, "did you mean adam"),
    "argument": ({"batchsize": 3}, "that it does not have"),
    "input": ({"fields": {"y": "label"}}, "no such inputs"),
    "field": ({"fields": {"x": "nothing"}}, 'no field "nothing"'),
    "engine": ({"engine": "onnxruntim"}, "did you mean onnxruntime"),
    "engine option": ({"engine_options": {"devise": "CPU"}}, "no option 'devise'"),
    "device": ({"engine_options": {"device": "CUDA"}}, "no device"),
    "display": ({"display": "line"}, "did you mean lines"),
    "preprocessing": ({"preprocess": {"means": 1}}, "did you mean mean"),
    "columns": ({"columns": ["x"]}, "columns cannot be chosen"),
}


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often an engine was asked to compile."""
    count = []
    prepare = loop.prepare_training

    def counting(*arguments: Any, **options: Any) -> Any:
        count.append(1)
        return prepare(*arguments, **options)

    monkeypatch.setattr(loop, "prepare_training", counting)
    return lambda: len(count)


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_refused_before_compiling(
    kind: str, compiles: Callable[[], int], tmp_path: Path
) -> None:
    settings, words = WRONG[kind]
    with pytest.raises(SardonyxError) as caught:
        sx.train(mlp(), DATA, output=tmp_path / "o.onnx", **settings)
    assert isinstance(caught.value, ArgumentError | EngineError)
    assert words in str(caught.value)
    assert compiles() <= (kind == "engine option")  # which only the engine itself knows
    assert not list(tmp_path.iterdir())


def test_an_output_that_cannot_be_written_is_refused_before_compiling(
    compiles: Callable[[], int], tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    sx.save(mlp(), model)
    before = model.read_bytes()
    for output, words in (
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "o.onnx", "there is no folder"),
        (model, "is the model itself"),
    ):
        with pytest.raises(ArgumentError, match=words):
            sx.train(model, DATA, steps=1, output=output)
    assert (compiles(), model.read_bytes()) == (0, before)
    sx.train(model, DATA, steps=1, output=model, in_place=True)
    assert model.read_bytes() != before


def test_a_field_with_one_value_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", rate=np.int64(16000), **DATA)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="--constant rate=VALUE"):
        sx.train(mlp(), tmp_path / "d.npz", steps=1)


@pytest.mark.parametrize(
    "loss, labels, allowed",
    [
        ("binary_cross_entropy", [-1, 1], "not 0 to 1"),
        ("hinge", [0, 1], "not -1 or 1"),
        ("kl_divergence", [-0.5, 1.5], "not from 0"),
    ],
)
def test_labels_without_meaning_for_the_loss_are_refused(
    loss: str, labels: list[float], allowed: str, compiles: Callable[[], int]
) -> None:
    data = {"x": X, "label": rng.choice(np.array(labels, np.float32), (40, 3))}
    with pytest.raises(DataError, match=allowed):
        sx.train(mlp(), data, loss=loss, steps=1)
    assert compiles() == 0
    data["label"] = {"hinge": 2 * LABEL[:, None].clip(0, 1) - 1}.get(loss, X[:, :3] > 0)
    data["label"] = np.broadcast_to(data["label"], (40, 3)).astype(np.float32)
    assert np.isfinite(sx.train(mlp(), data, loss=loss, steps=1).losses[0])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.float16])
def test_labels_of_every_type_are_taken(dtype: type) -> None:
    labels = {"x": X, "label": LABEL.astype(dtype)}
    expected = sx.train(mlp(), {"x": X, "label": LABEL}, loss="cross_entropy", steps=1).losses
    assert sx.train(mlp(), labels, loss="cross_entropy", steps=1).losses == expected


@pytest.mark.parametrize("wrap", [lambda x: {"x": x, "label": LABEL}, lambda x: (x, LABEL)])
def test_masks_of_arrays_are_not_ignored(wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(DataError, match="masked elements"):
        sx.train(mlp(), wrap(np.ma.masked_array(X, X > 1)), steps=1)
    assert len(sx.train(mlp(), wrap(np.ma.masked_array(X, X > 1e9)), steps=1).losses) == 1


HEADER = '<ir_version: 8, opset_import: ["": 17]> g '
WEIGHT = "<float[6,3] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18}, int64 i = {0}>"


@pytest.mark.parametrize(
    "graph, message",
    [
        ("(seq(float[N,6]) x) => (float[N,3] y) {W} {e = SequenceAt(x, i) y = MatMul(e, w)}",
         "takes a sequence, which rows of data cannot feed"),
        ("(float[N,6] x) => (int64[N] y) {W} {s = MatMul(x, w) y = ArgMax<axis=1,keepdims=0>(s)}",
         'names a tensor inside, such as "s"'),
        ("(bfloat16[N,6] x) => (bfloat16[N,3] y) {W} {c = Cast<to=16>(w) y = MatMul(x, c)}",
         "does not train weights of these types"),
    ],
)  # fmt: skip
def test_models_that_no_step_takes_are_refused(graph: str, message: str) -> None:
    proto = onnx.parser.parse_model(HEADER + graph.replace("{W}", WEIGHT))
    if "Cast" in graph:  # the parser reads no numbers of this type
        weight = ir.tensor(np.ones((6, 3), ir.DataType.BFLOAT16.numpy()), name="w")
        proto.graph.initializer[0].CopyFrom(ir.to_proto(weight))
        proto.graph.node[1].input[1] = "w"
        del proto.graph.node[0]
    with pytest.raises(SardonyxError, match=message):
        sx.train(proto, DATA, loss="cross_entropy", steps=1)


def test_fields_of_an_archive_are_chosen_by_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", other=X[:, 0], **DATA)  # type: ignore[arg-type]
    chosen = sx.train(mlp(), tmp_path / "d.npz", steps=2, columns=["x", "label"])
    assert chosen.losses == sx.train(mlp(), DATA, steps=2).losses
    with pytest.raises(DataError, match='lacks the columns "y"'):
        sx.train(mlp(), tmp_path / "d.npz", steps=1, columns=["x", "y"])


# -- what is shown -------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], **settings: Any) -> str:
    sx.train(mlp(), DATA, display="lines", **settings)
    return capsys.readouterr().err


def test_compiling_is_announced_and_epochs_count_from_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(capsys, epochs=2).splitlines()
    assert lines[0].startswith("compiling the training step for onnxruntime")
    assert [line.split("  ")[0] for line in lines if line.startswith("epoch ")] == [
        "epoch 1",
        "epoch 2",
    ]
    assert "2 epochs, best epoch" in lines[-1]


def test_a_run_of_steps_ends_with_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    words = shown(capsys, steps=1, batch_size=16, validation=0.2).splitlines()[-1]
    assert "after 1 step, 0 epochs" in words
    assert "  loss " in words and "val_loss " in words and "val_accuracy " in words


def test_displays_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live in a terminal, lines in a notebook, quiet elsewhere."""

    class Stream:
        def __init__(self, terminal: bool):
            self.terminal = terminal

        def isatty(self) -> bool:
            return self.terminal

        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            pass

    class Shell:
        config = {"IPKernelApp": {}}

    class IPython:
        get_ipython = staticmethod(Shell)

    monkeypatch.setattr(sys, "stderr", Stream(False))
    assert type(make_display(None)).__name__ == "Display"
    assert type(make_display("auto")).__name__ == "Lines"
    monkeypatch.setattr(sys, "stderr", Stream(True))
    assert type(make_display(None)).__name__ == "Live"
    monkeypatch.setitem(sys.modules, "IPython", IPython)  # type: ignore[arg-type]
    assert type(make_display(None)) is Lines


def test_a_run_shows_itself() -> None:
    run = sx.train(mlp(), DATA, epochs=1, batch_size=16)
    assert repr(run).startswith("Run(1 epoch, 3 steps, loss ")
    assert "<table" in run._repr_html_() and "Run(1 epoch" in run._repr_html_()


# -- the command -----------------------------------------------------------------------------------


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "sardonyx", *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_settings_of_the_loop_stand_in_a_configuration_file(tmp_path: Path) -> None:
    text = "epochs = 2\nbatch_size = 10\nvalidation = 0.2\nshuffle = false\nlr = 0.01\nseed = 3"
    (tmp_path / "train.toml").write_text(text)
    by_file = sx.train(mlp(), DATA, config=tmp_path / "train.toml")
    by_hand = sx.train(
        mlp(), DATA, epochs=2, batch_size=10, validation=0.2, shuffle=False, lr=0.01, seed=3
    )
    assert by_file.history == by_hand.history and len(by_file.history) == 2
    shorter = sx.train(mlp(), DATA, epochs=1, config=tmp_path / "train.toml")
    assert shorter.history == by_hand.history[:1]
    (tmp_path / "train.toml").write_text("epoch = 2\nbatch_size = 'many'")
    with pytest.raises(ArgumentError, match="did you mean epochs") as caught:
        sx.train(mlp(), DATA, config=tmp_path / "train.toml")
    assert "is a whole number, not 'many'" in str(caught.value)


def test_predictions_go_to_the_file_that_is_named(tmp_path: Path) -> None:
    sx.save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", pixels=X)
    done = command(tmp_path, "predict", "m.onnx", "d.npz", "-o", "p.csv", "--field", "x=pixels")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "row,scores_0,scores_1,scores_2"
    expected = sx.predict(mlp(), {"x": X})["scores"]
    numbers = np.array([line.split(",")[1:] for line in lines[1:]], np.float32)
    np.testing.assert_array_equal(numbers, expected)
    refused = command(tmp_path, "predict", "m.onnx", "d.npz", "-o", "p.txt")
    assert (refused.returncode, "not to" in refused.stderr) == (2, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.npz", "m.onnx", "p.csv"]


def test_a_run_that_is_longer_already_says_how_to_go_on(tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    sx.train(mlp(), DATA, epochs=4, output=output)
    with pytest.raises(ArgumentError, match=r"4 epochs already") as caught:
        sx.train(mlp(), DATA, epochs=3, output=output, resume=True)
    assert "--epochs 7" in str(caught.value)

    class Words(Lines):
        def _print(self, text: str) -> None:
            words.append(text)

    words: list[str] = []
    sx.train(mlp(), DATA, epochs=4, output=output, resume=True, display=Words())
    assert words[-1].startswith("nothing left to do")


def test_losses_are_the_total_of_several_terms() -> None:
    terms = [
        sx.loss.Term(sx.loss.cross_entropy(), labels=["label"]),
        sx.loss.Term(sx.loss.mse(), labels=["target"], weight=0.5),
    ]
    data = {**DATA, "target": np.zeros((40, 3), np.float32)}
    totals: list[float] = []

    def note(run: Run) -> None:
        totals.append(run.position.sums["loss"])

    run = sx.train(mlp(), data, steps=1, loss=terms, callbacks=[note])
    assert list(run.losses) == [pytest.approx(totals[0] / 32)]
    assert run.losses[0] != run.partial["loss/0/cross_entropy"]

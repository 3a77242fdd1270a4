"""The exported step trains to the same losses as sardonyx, in Python and in Node, without
sardonyx.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.errors import ArgumentError

from .networks import mlp
from .public_models import cache_folder
from .test_record_forms import gan
from .test_training_modes import batches as image_batches
from .test_training_modes import network

EXAMPLES = Path(__file__).parent.parent / "examples" / "export_step"
PACKAGE = "onnxruntime-web@1.30.0"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("step")
    subprocess.run([sys.executable, EXAMPLES / "make.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def losses(exported: Path) -> list[float]:
    """What sardonyx itself computes on the batches of the example."""
    rep = prepare_training(sx.load(exported / "trainable.onnx"), threads=1)
    found = []
    for batch in json.loads((exported / "batches.json").read_text()):
        x = np.array(batch["x"]["data"], np.float32).reshape(batch["x"]["shape"])
        found.append(float(rep.step({"x": x, "label": np.array(batch["label"]["data"])})["loss"]))
    assert found[-1] < found[0] / 2
    return found


def test_python_without_sardonyx_trains_alike(
    exported: Path, losses: list[float], tmp_path: Path
) -> None:
    script = shutil.copy(EXAMPLES / "python" / "train.py", tmp_path)
    blocked = "import sys; sys.modules['sardonyx'] = None; sys.modules['onnx'] = None\n"
    Path(script).write_text(blocked + Path(script).read_text())
    done = subprocess.run(
        [sys.executable, script, exported], check=True, capture_output=True, text=True
    )
    np.testing.assert_allclose(json.loads(done.stdout), losses, rtol=1e-5)


def node_modules() -> Path:
    """onnxruntime-web, installed once into the cache; a test that cannot have it is skipped."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    version = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, check=True
    ).stdout
    if int(version.strip().lstrip("v").split(".")[0]) < 20:
        pytest.skip(f"node {version.strip()} is older than 20")
    folder = cache_folder() / "node" / PACKAGE
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            command = [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                "--prefix",
                folder,
                PACKAGE,
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                pytest.skip(
                    f"npm cannot install {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}"
                )
            (folder / "installed").touch()
    return folder / "node_modules"


def test_node_trains_alike(exported: Path, losses: list[float], tmp_path: Path) -> None:
    modules = node_modules()
    script = shutil.copy(EXAMPLES / "node" / "train.mjs", tmp_path)
    os.symlink(modules, tmp_path / "node_modules")
    done = subprocess.run(["node", script, exported], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), losses, rtol=1e-4)


# -- the files themselves -------------------------------------------------------------------


class Exported:
    """Runs exported files with onnxruntime alone, as `step.json` says."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.step = json.loads((folder / "step.json").read_text())
        values = self.run(self.step["initialize"]["file"], {})
        self.state = {n: values[o] for n, o in self.step["initialize"]["state"].items()}

    def run(self, file: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(self.folder / file, options)
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    def call(self, part: dict[str, Any], data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        hyper = {h["name"]: np.array(h["default"], h["type"]) for h in part["hyperparameters"]}
        feeds = {i["name"]: np.asarray(data[i["name"]], i["type"]) for i in part["inputs"]}
        found = self.run(
            part["file"], {**hyper, **feeds, **{n: self.state[n] for n in part["state"]}}
        )
        self.state.update({n: found[o] for n, o in part["updates"].items()})
        return {f["name"]: found[f["name"]] for f in part["metrics"]}


def test_batch_norm_and_dropout_through_all_four_files(tmp_path: Path) -> None:
    net = sx.trainable(
        network(1, dropout=0.5), "cross_entropy", sx.optim.sgd(0.1, 0.9), clip_norm=1.0
    )
    sx.export_step(net, tmp_path)
    ours, theirs = prepare_training(net, threads=1), Exported(tmp_path)
    (part,) = theirs.step["steps"]
    for x, y in image_batches(5):
        found, expected = (
            theirs.call(part["train"], {"x": x, "label": y}),
            ours.step({"x": x, "label": y}),
        )
        assert found.keys() == expected.keys() == {"loss", "grad_norm"}
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    for name, value in ours.state().items():
        np.testing.assert_allclose(theirs.state[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    x, y = image_batches(1, seed=7)[0]
    served = ours.run({"x": x})["scores"]
    np.testing.assert_allclose(
        theirs.call(theirs.step["infer"], {"x": x})["scores"], served, rtol=1e-4, atol=1e-5
    )
    before = dict(theirs.state)
    evaluated = theirs.call(part["evaluate"], {"x": x, "label": y})
    np.testing.assert_allclose(evaluated["scores"], served, rtol=1e-4, atol=1e-5)
    shifted = served - served.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    np.testing.assert_allclose(evaluated["loss"], -logs[np.arange(5), y].mean(), rtol=1e-4)
    assert all(theirs.state[n] is before[n] for n in before), "evaluation updates nothing"


def test_description_names_everything_the_files_take(tmp_path: Path) -> None:
    net = sx.trainable(mlp(), "mse", sx.optim.adamw(1e-3))
    step = json.loads(sx.export_step(net, tmp_path).read_text())
    (part,) = step["steps"]
    for entry in (part["train"], part["evaluate"], step["infer"]):
        proto = onnx.load(tmp_path / entry["file"])
        onnx.checker.check_model(proto, full_check=True)
        assert {n.domain for n in proto.graph.node} <= {""}
        assert proto.ir_version <= 10 and proto.opset_import[0].version <= 21
        named = {i["name"] for i in (*entry["inputs"], *entry["hyperparameters"])} | set(
            entry["state"]
        )
        assert {i.name for i in proto.graph.input} == named
        given = {f["name"] for f in entry["metrics"]} | set(entry["updates"].values())
        assert {o.name for o in proto.graph.output} == given
    rates = {h["name"]: h["default"] for h in part["train"]["hyperparameters"]}
    assert rates == {"learning_rate": pytest.approx(1e-3), "weight_decay": pytest.approx(0.01)}
    assert {s["name"] for s in step["state"]} == set(step["initialize"]["state"])
    x = next(i for i in part["train"]["inputs"] if i["name"] == "x")
    assert x == {"name": "x", "type": "float32", "shape": ["N", 6]}


def test_learning_rate_can_be_fed(tmp_path: Path) -> None:
    sx.export_step(sx.trainable(mlp(), "mse", sx.optim.sgd(0.1)), tmp_path)
    theirs = Exported(tmp_path)
    part = theirs.step["steps"][0]["train"]
    part["hyperparameters"][0]["default"] = 0.0
    before = theirs.state["fc0.weight"].copy()
    data = {"x": np.ones((2, 6)), "label": np.zeros((2, 3))}
    theirs.call(part, data)
    assert np.array_equal(theirs.state["fc0.weight"], before)


def test_start_afresh_or_as_it_is(tmp_path: Path) -> None:
    net = sx.trainable(mlp(), "mse", sx.optim.sgd(0.1, 0.9), initialize={"fc0.weight": "kaiming"})
    rep = prepare_training(net, threads=1)
    rep.step({"x": np.ones((2, 6), np.float32), "label": np.zeros((2, 3), np.float32)})
    now = rep.to_model()
    sx.export_step(now, tmp_path / "fresh")
    sx.export_step(now, tmp_path / "now", current=True)
    fresh, current = Exported(tmp_path / "fresh").state, Exported(tmp_path / "now").state
    for name, value in rep.state().items():
        assert np.array_equal(current[name], value), name
    assert not fresh["fc0.weight/momentum"].any()
    assert fresh["train/step"] == 0
    assert np.abs(fresh["fc0.weight"]).max() <= np.sqrt(2) * np.sqrt(3 / 6)
    assert np.array_equal(fresh["fc1.weight"], rep.state()["fc1.weight"]), (
        "not bound: as in the file"
    )


def test_several_records(tmp_path: Path) -> None:
    sx.export_step(sx.load(gan()), tmp_path)
    ours, theirs = prepare_training(gan(), threads=1), Exported(tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(3):
        data = {
            "z": rng.normal(size=(5, 2)).astype(np.float32),
            "real": rng.normal(size=(5, 1)).astype(np.float32),
        }
        expected = ours.step(data)
        for part in theirs.step["steps"]:
            for name, value in theirs.call(part["train"], data).items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-5)


def test_command(tmp_path: Path) -> None:
    path = sx.save(sx.trainable(mlp(), "mse"), tmp_path / "net.onnx")
    command = [sys.executable, "-m", "sardonyx.cli", "export-step", path, "-o", tmp_path / "out"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "out" / "step.json")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {"train.onnx", "evaluate.onnx", "initialize.onnx", "infer.onnx", "step.json"}


def test_model_without_a_record(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no training record"):
        sx.export_step(mlp(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_relay_passes_through_the_web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    modules = node_modules()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES.parent))
    relay = importlib.import_module("relay")
    losses = relay.main(modules, engines=("onnxruntime",))
    straight = losses.pop("uninterrupted")
    assert "onnxruntime-web" in losses
    handed_on = [loss for leg in losses.values() for loss in leg]
    np.testing.assert_allclose(handed_on, straight, atol=2e-6, rtol=0)


def trained_by_hand(folder: Path, batches: list[dict[str, np.ndarray]]) -> list[float]:
    """The losses of an exported step in plain onnxruntime."""
    described = json.loads((folder / "step.json").read_text())
    start = onnxruntime.InferenceSession(folder / "initialize.onnx")
    names = [o.name for o in start.get_outputs()]
    outputs = dict(zip(names, start.run(None, {}), strict=True))
    state = {n: outputs[o] for n, o in described["initialize"]["state"].items()}
    (step,) = described["steps"]
    session = onnxruntime.InferenceSession(folder / "train.onnx")
    names = [o.name for o in session.get_outputs()]
    losses = []
    for batch in batches:
        fed = {n: state[n] for n in step["train"]["state"]}
        defaults = {
            h["name"]: np.array(h["default"], h["type"]) for h in step["train"]["hyperparameters"]
        }
        values = dict(zip(names, session.run(None, {**batch, **fed, **defaults}), strict=True))
        state |= {n: values[o] for n, o in step["train"]["updates"].items()}
        losses.append(float(values["loss"]))
    return losses


@pytest.mark.parametrize("options", [{"plain": True}, {"batch": 5}, {"plain": True, "batch": 5}])
def test_plain_and_static_steps_train_alike(tmp_path: Path, options: dict[str, Any]) -> None:
    net = sx.trainable(network(dropout=0.2), "cross_entropy", optimizer=sx.optim.adamw(1e-2))
    batches = [{"x": x, "label": label} for x, label in image_batches(3)]
    sx.export_step(net, tmp_path / "as_is", current=True)
    expected = trained_by_hand(tmp_path / "as_is", batches)
    sx.export_step(net, tmp_path / "step", current=True, **options)
    np.testing.assert_allclose(trained_by_hand(tmp_path / "step", batches), expected, rtol=1e-5)
    for path in (tmp_path / "step").glob("*.onnx"):
        proto = onnx.load(path)
        onnx.checker.check_model(proto)
        ops = {n.op_type for n in proto.graph.node}
        if options.get("plain"):
            assert not ops & {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "CastLike"}
        inputs = [v.type.tensor_type.shape.dim for v in proto.graph.input]
        if options.get("batch"):
            assert not [d.dim_param for dims in inputs for d in dims if d.dim_param]


def test_a_batch_has_rows(tmp_path: Path) -> None:
    net = sx.trainable(mlp(), "cross_entropy")
    with pytest.raises(ArgumentError, match="at least one row"):
        sx.export_step(net, tmp_path, batch=0)

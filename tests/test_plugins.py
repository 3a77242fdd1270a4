"""Engines of other packages: the example in a folder of its own, and packages that are broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from sardonyx import plugins
from sardonyx.engines.loading import load_engine
from sardonyx.engines.numpy import Runner
from sardonyx.errors import ArgumentError, EngineError
from tests.test_docs import fixture_files

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "engine_plugin"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example is installed, as pip does it, without a network."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "plugin")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def add(site: Path, name: str, module: str, target: str = "", distribution: str = "") -> None:
    """A package with an engine, written as pip leaves it."""
    package = (distribution or f"sardonyx-{name}").replace("-", "_")
    (site / f"{package}.py").write_text(module)
    info = site / f"{package}-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution or f'sardonyx-{name}'}\nVersion: 2.5\n"
    )
    (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {target or package}\n")


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of packages, and the files that the guides use."""
    fixture_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def reference(site: Path, added: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(site))
    return added


def command(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    line = [sys.executable, "-m", "sardonyx", *arguments]
    return subprocess.run(line, capture_output=True, text=True, env=environment)


# -- the names -----------------------------------------------------------------------------------


def test_entry_points_of_the_project_are_its_own_engines() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"][plugins.GROUP]
    assert declared == {name: engine.target for name, engine in plugins.BUILT_IN.items()}


def test_listing_engines_imports_none() -> None:
    script = (
        "import sys; from sardonyx import plugins; plugins.listed(); plugins.contenders()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert not set(done.stdout.split()) & {"torch", "jax", "tensorflow", "onnxruntime", "numpy"}


def test_the_guide_is_the_example() -> None:
    guide = (ROOT / "docs/guides/add-an-engine.md").read_text()
    for name in ("sardonyx_reference.py", "pyproject.toml"):
        assert f'title="{name}"\n{(EXAMPLE / name).read_text()}```' in guide


def test_nobody_lists_the_engines_again() -> None:
    others = {"plugins.py"}
    for path in sorted((ROOT / "src" / "sardonyx").rglob("*.py")):
        text = path.read_text()
        if '"torch", "jax", "tensorflow"' in text:
            others.add(path.name)
    # The docstring of `train` is a sentence for users, environments.py names packages.
    assert others <= {"plugins.py", "loop.py", "environments.py"}


# -- the example -----------------------------------------------------------------------------------


def test_it_trains_as_onnxruntime_does(reference: Path) -> None:
    assert "reference" in plugins.names() and "reference" in plugins.contenders()
    data = dict(np.load("data.npz"))
    runs = {
        engine: sx.train(
            "model.onnx", data, loss="cross_entropy", steps=5, engine=engine, validation=0.25
        )
        for engine in ("reference", "onnxruntime")
    }
    np.testing.assert_allclose(runs["reference"].losses, runs["onnxruntime"].losses, rtol=1e-5)
    sx.write_report(runs["reference"], "report.html")
    assert "engine: reference" in Path("report.html").read_text()


def test_it_is_an_engine_of_verify_placement_and_score(reference: Path) -> None:
    assert sx.verify("model.onnx", "reference", seeds=1).verdict == "same"
    net = sx.trainable("model.onnx", "cross_entropy")
    trajectory = sx.verify_training(net, "reference", steps=2)
    assert trajectory.verdict == "same"
    placed = sx.placement("model.onnx", "numpy", place={"Relu": "reference"})
    assert [row[2] for row in placed.nodes] == ["on reference"]
    x = np.load("data.npz")["x"]
    placed_runner = Runner("model.onnx", place={"Relu": "reference"})
    (y,) = placed_runner({"x": x}).values()
    np.testing.assert_allclose(y, sx.to_numpy("model.onnx")(x), rtol=1e-6)


def test_commands_know_it(site: Path, added: Path) -> None:
    helped = command(site, "train", "--help")
    assert "reference" in helped.stdout
    done = command(
        site,
        *("train", "model.onnx", "data.npz", "--loss", "cross_entropy", "--steps", "3"),
        *("--engine", "reference", "-o", "tuned.onnx"),
    )
    assert done.returncode == 0, done.stderr
    done = command(site, "verify", "model.onnx", "--engine", "reference", "--seeds", "1")
    assert done.returncode == 0, done.stderr
    case = ("--case", "^test_relu$", "--axis", "forward", "--fresh")
    done = command(site, "score", "--engine", "reference", *case)
    assert done.returncode == 0 and "reference" in done.stdout, done.stderr


# -- broken packages -------------------------------------------------------------------------------


def test_a_package_that_cannot_be_imported_is_one_error(added: Path) -> None:
    add(added, "broken", "import no_such_module_anywhere\n")
    assert "broken" in plugins.names()  # a listing imports nothing
    with pytest.raises(EngineError, match=r"sardonyx-broken 2\.5 cannot be loaded") as error:
        sx.train("model.onnx", "data.npz", loss="cross_entropy", steps=1, engine="broken")
    assert "no_such_module_anywhere" in str(error.value)
    with pytest.raises(EngineError, match="cannot be loaded"):
        sx.verify("model.onnx", "broken")
    assert sx.train("model.onnx", "data.npz", loss="cross_entropy", steps=1).losses


def test_the_command_says_it_in_one_message(added: Path) -> None:
    add(added, "broken", "raise SystemExit('go away')\n")
    data = ("model.onnx", "data.npz", "--loss", "cross_entropy", "--steps", "1")
    done = command(added, "train", *data, "--engine", "broken", "-o", "tuned.onnx")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("EngineError: the engine")
    assert command(added, "--help").returncode == 0
    assert command(added, "train", "--help").returncode == 0


def test_auto_passes_over_a_broken_one(added: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(added, "broken", "raise ValueError('later')\n")
    monkeypatch.setattr(plugins, "contenders", lambda: ["broken", "onnxruntime"])
    run = sx.train("model.onnx", "data.npz", loss="cross_entropy", steps=1, engine="auto")
    assert run.engine == "onnxruntime"


FAILING = """
import sardonyx as sx
def prepare(model):
    raise RuntimeError("no memory of it")
class Training(sx.TrainingRep):
    def variable(self, array):
        raise RuntimeError("no room for it")
def prepare_training(model):
    return Training(model)
"""


def test_what_it_raises_at_work_is_one_error(added: Path) -> None:
    add(added, "failing", FAILING)
    with pytest.raises(EngineError, match=r'"failing" failed to prepare .*no room for it'):
        sx.prepare_training(sx.trainable("model.onnx", "cross_entropy"), "failing")
    report = sx.verify("model.onnx", "failing", seeds=1)
    assert report.exit_code == 6 and "no memory of it" in str(report)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("", "offers neither prepare nor prepare_training"),
        ("def prepare(model): ...\n", "cannot train"),
        ("def prepare_training(model): return 3\n", "returns a int"),
        ("def prepare_training(model): raise KeyError('x')\n", "failed to prepare the training"),
    ],
)
def test_incomplete_packages(added: Path, module: str, words: str) -> None:
    name = f"partial{len(module)}"  # Python keeps a module that it has imported
    add(added, name, module)
    with pytest.raises((EngineError, ArgumentError), match=words):
        sx.prepare_training(sx.trainable("model.onnx", "cross_entropy"), name)


def test_outputs_that_do_not_fit_are_refused(added: Path) -> None:
    rep = "class Rep:\n    def run(self, feeds): return {}\n".format
    add(added, "empty", rep("{}") + "def prepare(model): return Rep()\n")
    add(added, "many", rep("[1, 2]") + "def prepare(model): return Rep()\n")
    assert "gives no output" in str(sx.verify("model.onnx", "empty", seeds=1))
    assert "gives 2 outputs" in str(sx.verify("model.onnx", "many", seeds=1))


def test_names_are_not_taken_twice(added: Path) -> None:
    module = "def prepare(model): ...\n"
    add(added, "twin", module, distribution="first-twin")
    add(added, "twin", module, distribution="second-twin")
    add(added, "numpy", "raise RuntimeError('not me')\n", distribution="usurper")
    with pytest.raises(EngineError, match="2 packages add an engine") as error:
        load_engine("twin")
    assert "first-twin 2.5" in str(error.value) and "second-twin 2.5" in str(error.value)
    assert load_engine("numpy").__name__ == "sardonyx.engines.numpy"


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(ArgumentError, match="did you mean torch"):
        load_engine("torhc")


def test_operators_are_declared(capsys: pytest.CaptureFixture[str]) -> None:
    from sardonyx.cli.__main__ import program
    from sardonyx.engines.declared import declared

    assert declared("torch", "Conv") == "kernel"
    assert declared("torch", "Softmax") in ("kernel", "rule")
    assert declared("onnxruntime", "Conv") == "whole"
    program()(["ops", "Relu", "--engine", "numpy"], standalone_mode=False)
    assert capsys.readouterr().out.split() == ["Relu", "rule"]

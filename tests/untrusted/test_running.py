"""Running what nobody vouches for: a child with limits, and limits of our own interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.cli import subprocess_limits, untrusted
from sardonyx.errors import ArgumentError, EngineError
from sardonyx.lower.run_limits import run_limits

from .bombs import BOMBS
from .measure import COMMANDS
from .models import PLACES, chain, external, graph, model, node

ROOT = Path(__file__).parents[2]
TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,3] y)
    <float[2,3] w = {1, 2, 3, 4, 5, 6}> {h = MatMul(x, w)  y = Relu(h)}"""


def sardonyx_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sardonyx.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)


def saved(folder: Path, proto: onnx.ModelProto) -> str:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return str(path)


def test_run_01_every_command_that_runs_a_model_has_the_option() -> None:
    from sardonyx.cli.__main__ import _load

    for name in untrusted.COMMANDS:
        options = {o for p in _load(name).params for o in getattr(p, "opts", ())}
        assert {"--untrusted", "--limit"} <= options, name
    assert {"verify", "train", "predict", "evaluate"} <= untrusted.COMMANDS


def test_run_01_a_verified_model_gives_its_verdict(tmp_path: Path) -> None:
    path = saved(tmp_path, onnx.parser.parse_model(TEXT))
    done = sardonyx_command("verify", path, "--engine", "numpy", "--untrusted", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "same"


def test_run_01_engines_are_scored_in_the_child() -> None:
    only = ["--case", "^test_relu$", "--axis", "forward", "--jobs", "1"]
    done = sardonyx_command("score", "--untrusted", "--engine", "numpy", *only, "--json")
    assert done.returncode == 0, done.stderr
    assert '"test_relu"' in done.stdout


def test_run_01_a_model_is_trained_in_the_child(tmp_path: Path) -> None:
    path = saved(tmp_path, onnx.parser.parse_model(TEXT))
    data, output = tmp_path / "data.npz", tmp_path / "tuned.onnx"
    np.savez(data, x=np.ones((8, 2), np.float32), label=np.zeros((8, 3), np.float32))
    done = sardonyx_command(
        *("train", path, str(data), "-o", str(output), "--loss", "mse", "--steps", "2"),
        *("--batch-size", "4", "--quiet", "--untrusted", "--limit", "memory=4"),
    )
    assert done.returncode == 0, done.stderr
    before = sardonyx.load(path).initializer("w").numpy()
    assert not np.array_equal(sardonyx.load(output).initializer("w").numpy(), before)


def test_run_01_endless_time_is_an_answer(tmp_path: Path) -> None:
    """BOMB-16 in the runtime itself, which knows no limits."""
    path = saved(tmp_path, BOMBS["BOMB-16"])
    done = sardonyx_command(
        "verify", path, "--engine", "numpy", "--untrusted", "--limit", "processor=4"
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "it took more than 4 s of processor time" in done.stderr
    assert "--limit processor=" in done.stderr and "Traceback" not in done.stderr


ENDLESS = """<ir_version: 8, opset_import: ["": 17]> g (float[N,3] x) => (float[N,3] y)
    <float[3] w = {1, 2, 3}, int64 trips = {1152921504606846976}, bool go = {1}> {
        z = Mul(x, w)
        y = Loop (trips, go, z) <body = b (int64 i, bool c, float[N,3] s)
            => (bool d, float[N,3] t) { d = Identity(c)  t = Sin(s) }> }"""


@pytest.mark.parametrize("command", ["train", "predict"])
def test_run_01_an_endless_loop_ends_in_every_command(command: str, tmp_path: Path) -> None:
    """A loop of 2^60 iterations ends at the limit, and no file is written."""
    path = saved(tmp_path, onnx.parser.parse_model(ENDLESS))
    ones = np.ones((4, 3), np.float32)
    np.savez(tmp_path / "data.npz", x=ones, y=ones)
    output = tmp_path / ("out.onnx" if command == "train" else "out.npz")
    options = ["--loss", "mse", "--epochs", "1"] if command == "train" else []
    arguments = [command, path, str(tmp_path / "data.npz"), "-o", str(output), *options]
    done = sardonyx_command(*arguments, "--untrusted", "--limit", "seconds=6")
    assert done.returncode == 2, done.stderr
    assert "the run was stopped" in done.stderr and "Traceback" not in done.stderr
    assert not output.exists()


def test_run_01_too_much_memory_is_an_answer(tmp_path: Path) -> None:
    """BOMB-05 run by the runtime: 2 GB where one is allowed."""
    path = saved(tmp_path, BOMBS["BOMB-05"])
    done = sardonyx_command(
        *("verify", path, "--engine", "numpy", "--untrusted", "--limit", "memory=1"),
        *("--limit", "seconds=200"),
    )
    # No inputs can be run, so the verdict is "could not tell", and it names the reason.
    assert done.returncode == 5, done.stdout
    assert "Unable to allocate" in done.stdout and "could not tell" in done.stdout
    assert "Traceback" not in done.stderr


CRASHES = {"crash": signal.SIGSEGV, "abort": signal.SIGABRT}


@pytest.mark.parametrize("case", CRASHES)
def test_run_01_a_crash_is_an_answer(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"import os; os.kill(os.getpid(), {int(CRASHES[case])})"
    with pytest.raises(EngineError, match=f"crashed .{CRASHES[case].name}"):
        run_instead(script, monkeypatch)


def run_instead(script: str, monkeypatch: pytest.MonkeyPatch, **limits: float) -> int:
    """What the parent makes of a child that does this."""
    start = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda _, **options: start([sys.executable, "-c", script], **options)
    )
    return subprocess_limits.run_again(["verify"], subprocess_limits.SubprocessLimits(**limits))


def test_run_01_time_and_memory_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="more than 1 s"):
        run_instead("import time; time.sleep(60)", monkeypatch, seconds=1)
    monkeypatch.undo()
    with pytest.raises(EngineError, match=r"more than 0.1 GB of memory"):
        run_instead(
            "import time; held = bytearray(300_000_000); time.sleep(60)", monkeypatch, memory=0.1
        )


def test_run_01_what_a_child_leaves_behind_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "grandchild"
    script = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(note)!r}, "w").write(str(child.pid))
"""
    assert run_instead(script, monkeypatch) == 0
    process = Path(f"/proc/{note.read_text()}/stat")
    for _ in range(200):
        if not process.exists() or process.read_text().split()[2] in "ZX":
            return
        time.sleep(0.05)
    pytest.fail("the grandchild still runs")


@pytest.mark.parametrize("text", ["memory", "memory=", "memory=-1", "memory=nan", "disk=3"])
def test_run_01_limits_are_read_or_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="cannot read the limit"):
        subprocess_limits.read_limits([text])


@pytest.mark.parametrize("bomb", ["BOMB-16", "BOMB-17"])
def test_run_02_loops_stop_at_the_trips_allowed(bomb: str) -> None:
    run = sardonyx.to_numpy(sardonyx.load(BOMBS[bomb]))
    with run_limits(trips=1000) as used, pytest.raises(EngineError, match="more than 1,000 trips"):
        run(np.zeros(2, np.float32))
    assert used.trips == 1001


def test_run_02_nodes_and_seconds_are_limited() -> None:
    run = sardonyx.to_numpy(sardonyx.load(chain(50)))
    x = np.ones(2, np.float32)
    with run_limits(nodes=50):
        run(x)
    with run_limits(nodes=49), pytest.raises(EngineError, match="more than 49 nodes run"):
        run(x)
    with run_limits(seconds=0.05), pytest.raises(EngineError, match=r"more than 0.05 seconds"):
        sardonyx.to_numpy(sardonyx.load(BOMBS["BOMB-16"]))(x)
    run(x)  # outside of it, there is no limit


def test_run_02_memory_of_the_interpreter_is_limited(tmp_path: Path) -> None:
    """In the child, what numpy asks for beyond the limit is refused by the system."""
    script = """
import os, json, sys
from sardonyx.cli import subprocess_limits
limits = dict(memory=1.0, seconds=60, processor=60, trips=9, nodes=9)
os.environ[subprocess_limits.LIMITS] = json.dumps(limits)
subprocess_limits.enter()
import numpy as np, sardonyx
from sardonyx.errors import EngineError
run = sardonyx.to_numpy(sys.argv[1])
try:
    run(np.ones(1, np.float32))
except EngineError as error:
    print(error.what)
"""
    path = saved(tmp_path, BOMBS["BOMB-05"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert "Unable to allocate" in done.stdout, done.stderr[-500:]


def test_run_03_check_lists_all_findings_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sardonyx.cli.__main__ import main
    from sardonyx.lower.program import GraphProgram

    def ran(*arguments: object) -> None:
        raise AssertionError("check ran a model")

    monkeypatch.setattr(GraphProgram, "run", ran)
    bad = [external(f"t{i}", location="../x") for i in range(3)]
    proto = model(graph([node("Sum", " ".join(t.name for t in bad), "y")], initializer=bad))
    with pytest.raises(SystemExit) as stopped:
        main(["check", "--untrusted", saved(tmp_path, proto)])
    assert stopped.value.code == 1
    shown = capsys.readouterr().out
    assert all(f'"t{i}"' in shown for i in range(3))


@pytest.mark.parametrize("place", ["initializer", "constant"])
def test_run_03_check_untrusted_is_quiet_about_a_sound_model(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sardonyx.cli.__main__ import main

    (tmp_path / "w.bin").write_bytes(bytes(8))
    proto = PLACES[place](external(location="w.bin"))
    with pytest.raises(SystemExit) as stopped:
        main(["check", "--untrusted", saved(tmp_path, proto)])
    assert (stopped.value.code or 0, capsys.readouterr().out) == (0, "nothing found\n")
    assert "check" in COMMANDS


@pytest.mark.parametrize("rows", [2**30, 2**40, 2**62])
def test_run_01_a_declared_size_is_not_allocated(rows: int) -> None:
    """Sixty bytes of a file ask for gigabytes: inputs of a fixed, absurd size are refused."""
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
    with pytest.raises(ArgumentError, match=f"{2 * rows:,} elements"):
        sardonyx.verify(proto, "numpy")
    with pytest.raises(ArgumentError, match=f"exactly {rows:,} rows"):
        sardonyx.predict(proto, {"x": np.ones((4, 2), np.float32)})

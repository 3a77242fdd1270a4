"""Training on several devices, and in several processes: the losses are those of one device.

Devices are those that XLA makes of a CPU; processes are started by torchrun and meet over gloo.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.errors import ArgumentError, EngineError
from sardonyx.train.batches import epoch_blocks
from sardonyx.train.fields import Link
from sardonyx.train.processes import Processes
from sardonyx.train.tables import Stream, Table
from tests.networks import cnn, mlp

pytest.importorskip("jax")
ROWS = 100
HOST = "--xla_force_host_platform_device_count="

ON_FOUR = """
import json, sys
import numpy as np, jax
import sardonyx as sx
from tests.networks import cnn, mlp

assert len(jax.devices()) == 4
rng = np.random.default_rng(0)
WAYS = {
    "one": {}, "two": {"devices": 2}, "four": {"devices": 4},
    "copies": {"devices": 4, "shard": "replicate"},
    "state": {"devices": 4, "shard": "state"},
    "mesh": {"mesh": {"data": 2, "model": 2}},
    "both": {"mesh": {"data": 2, "model": 2}, "shard": "state"},
}
results = {}
CASES = {
    "mlp float32": (mlp((8, 16, 4)), (8,), ["one", "two", "copies", "state", "mesh", "both"]),
    "mlp float64": (mlp((8, 16, 4), dtype=np.float64), (8,), ["one", "state"]),
    "cnn float32": (cnn(), (3, 8, 8), ["one", "four", "state"]),
}
for name, (model, shape, ways) in CASES.items():
    net = sx.trainable(model, "cross_entropy", sx.optim.adamw(1e-2), clip_norm=1.0)
    kind = np.dtype(name.split()[1])
    xs, ys = rng.normal(size=(20, 16, *shape)).astype(kind), rng.integers(0, 3, (20, 16))
    for way in ways:
        rep = sx.prepare_training(net, "jax", **WAYS[way])
        batches = [*zip(xs, ys), (xs[0][:7], ys[0][:7])]
        losses = [float(rep.step({"x": x, "label": y})["loss"]) for x, y in batches]
        shards = [s for v in rep.variables.values() for s in v.value.addressable_shards]
        first = sum(s.data.nbytes for s in shards if s.device == jax.devices()[0])
        sums = {n: float(np.abs(a).sum()) for n, a in rep.state().items()}
        results[f"{name} {way}"] = losses, first, sums
print(json.dumps(results))
"""


def environment(count: int = 1) -> dict[str, str]:
    return {
        **os.environ,
        "XLA_FLAGS": f"{HOST}{count}",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ON_FOUR],
        env=environment(4), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.slow
def test_losses_are_those_of_one_device(results: dict[str, Any]) -> None:
    """With batch statistics, masks and clipping, also of a batch that does not divide."""
    assert len(results) == 11
    for case, (losses, _, sums) in results.items():
        name, _, way = case.rpartition(" ")
        expected, _, sums_of_one = results[f"{name} one"]
        bound = 1e-11 if "64" in name else 5e-6
        np.testing.assert_allclose(losses, expected, rtol=0, atol=bound, err_msg=case)
        assert sums == pytest.approx(sums_of_one, rel=1e-4), way


@pytest.mark.slow
def test_spread_state_takes_a_share_of_the_memory(results: dict[str, Any]) -> None:
    whole = results["mlp float32 one"][1]
    assert results["mlp float32 copies"][1] == whole
    assert results["mlp float32 state"][1] <= 1.05 / 4 * whole
    assert results["mlp float32 mesh"][1] <= 1.05 / 2 * whole
    assert results["cnn float32 state"][1] <= 1.05 / 4 * results["cnn float32 one"][1]


ON_TWO = """
import numpy as np, sardonyx as sx
from tests.networks import cnn

rng = np.random.default_rng(0)
data = {"x": rng.normal(size=(22, 3, 8, 8)).astype(np.float32), "label": rng.integers(0, 3, 22)}
how = dict(engine="jax", epochs=2, batch_size=8, loss="cross_entropy")
one, two = (sx.train(cnn(), data, **how, **more) for more in ({}, {"devices": 2}))
np.testing.assert_allclose(two.losses, one.losses, rtol=0, atol=5e-6)
"""


def test_a_run_on_two_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ON_TWO],
        env=environment(2), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "engine": ({"engine": "numpy", "devices": 2}, "are for the engines jax and torch"),
    "default engine": ({"mesh": {"data": 2}}, "are for the engines jax and torch"),
    "processes": ({"engine": "torch", "devices": 2}, "1 processes train on 1 devices, not 2"),
    "axis of torch": ({"engine": "torch", "mesh": {"data": 1, "model": 1}}, "axis data alone"),
    "shard of torch": ({"engine": "torch", "shard": "state"}, "needs several processes"),
    "too many": ({"engine": "jax", "devices": 4096}, "jax has"),
    "no number": ({"engine": "jax", "devices": 0}, "a number from 1"),
    "axis": ({"engine": "jax", "mesh": {"rows": 1}}, "not 'rows'"),
    "product": ({"engine": "jax", "devices": 1, "mesh": {"data": 2}}, "has 2 devices, not 1"),
    "shard": ({"engine": "jax", "devices": 1, "shard": "all"}, "shard is one of"),
    "shard alone": ({"engine": "jax", "shard": "state"}, "needs several devices"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_before_the_model_is_read(case: str) -> None:
    settings, words = REFUSED[case]
    with pytest.raises((ArgumentError, EngineError), match=words):
        sx.train("absent.onnx", {"x": np.zeros((2, 6), np.float32)}, **settings)


def test_the_command_takes_devices_and_a_mesh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 6)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, label=rng.integers(0, 3, 8))
    sx.save(mlp(), tmp_path / "model.onnx")
    arguments = ["train", tmp_path / "model.onnx", tmp_path / "data.npz", "--engine", "jax"]
    arguments += ["-o", tmp_path / "o.onnx", "--loss", "cross_entropy", "--mesh"]
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in (*arguments, "data=1,model=1", "--devices", 1)])
    assert not done.value.code
    assert "devices: 1 (data 1, model 1)" in capsys.readouterr().err
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in (*arguments, "data:1")])
    assert done.value.code == 2 and "--mesh takes" in capsys.readouterr().err


def test_shares_of_a_batch() -> None:
    second = Processes(1, 2, pieces=4)
    assert second.share(16) == slice(8, 16)
    assert second.share(6) is None  # four devices cannot part six rows
    assert Processes().share(16) is None and Processes(1, 2, pieces=0).share(16) is None


def test_a_constant_has_all_rows_in_every_process() -> None:
    """Only what comes from the data is parted; a stream is read whole, and told by its rows."""
    link = Link("x", "x", np.dtype(np.float32), (3,), "the name", cast=False)
    mask = replace(link, input="mask", constant=np.array(1, np.float32))
    links, second = [link, mask], Processes(1, 2, pieces=2)
    whole = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
    ways = Table(whole, "the data"), Stream(lambda _: iter([whole]), "the stream")
    for source in ways:
        (block,) = epoch_blocks(source, links, 4, seed=None, epoch=0, processes=second)
        (part,) = block
        assert part.total == 4 and not part.is_whole and part["mask"].shape == (4, 3)
        np.testing.assert_array_equal(part["x"], whole["x"][2:])
        assert (part.digest is None) == isinstance(source, Table)
    odd = Processes(1, 3, pieces=3)
    (block,) = epoch_blocks(ways[0], links, 4, seed=None, epoch=0, processes=odd)
    assert block[0].is_whole and block[0].digest is not None and len(block[0]["x"]) == 4


def test_other_engines_refuse_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ArgumentError, match="trains in one process"):
        sx.train("absent.onnx", {"x": np.zeros((2, 6), np.float32)}, engine="numpy")


# -- processes ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, label=rng.integers(0, 3, ROWS))
    sx.save(sx.trainable(cnn(), "cross_entropy", sx.optim.adamw(1e-2)), tmp_path / "net.onnx")
    return tmp_path


def command(world: int, port: int, *more: str, engine: str = "jax") -> list[str]:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    launch += ["--master-port", str(port), "-m"]
    program = ["sardonyx", "train", "net.onnx", "data.npz", "--engine", engine, "--json"]
    start = launch if world > 1 else ["-m"]
    return [sys.executable, "-W", "ignore", *start, *program, "--batch-size", "16", *more]


def losses_of(world: int, port: int, folder: Path, *more: str, engine: str = "jax") -> list[float]:
    done = subprocess.run(
        command(world, port, *more, engine=engine), cwd=folder, env=environment(),
        capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines if line["event"] == "epoch"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize("shard", ["auto", "state"])
def test_processes_train_as_one(engine: str, shard: str, folder: Path) -> None:
    """With batch statistics and masks, and a last batch that two processes share."""
    pytest.importorskip("torch")
    port = 29700 + 20 * (engine == "torch") + 5 * (shard == "state")

    def losses(world: int, number: int, *more: str) -> list[float]:
        spread = ["--shard", shard] if world > 1 else []
        return losses_of(world, port + number, folder, *more, *spread, engine=engine)

    expected = losses(1, 0, "-o", "one.onnx", "--epochs", "4")
    ours = losses(2, 1, "-o", "two.onnx", "--epochs", "4")
    np.testing.assert_allclose(ours, expected, rtol=0, atol=5e-6)
    # what two processes wrote, one continues, and the reverse
    losses(2, 2, "-o", "first.onnx", "--epochs", "2")
    later = losses(1, 0, "-o", "first.onnx", "--epochs", "4", "--resume")
    np.testing.assert_allclose(later, expected[2:], rtol=0, atol=5e-6)
    losses(1, 0, "-o", "second.onnx", "--epochs", "2")
    later = losses(2, 3, "-o", "second.onnx", "--epochs", "4", "--resume")
    np.testing.assert_allclose(later, expected[2:], rtol=0, atol=5e-6)


SEVERAL = """
import json, os, sys, warnings
import numpy as np
import sardonyx as sx
from sardonyx.errors import ArgumentError, DataError

warnings.simplefilter("ignore")
engine, rank = sys.argv[1], int(os.environ["RANK"])
how = {"batch_size": 16, "engine": engine, "shard": "state"}
report = {}

class Stop:  # on the first process alone, as every callback
    def __call__(self, run):
        if len(run.losses) == 5:
            run.stop("enough")

run = sx.train("net.onnx", "data.npz", epochs=4, output="stopped.onnx", callbacks=[Stop()], **how)
report["stopped"] = run.position.step, run.stopped
if rank == 0:  # which reads the model when the others have gone on
    weights = run.model.graph.initializers.values()
    report["whole"] = all(np.isfinite(w.const_value.numpy()).all() for w in weights)

run = sx.train("net.onnx", "data.npz", steps=3, output=f"{rank}.onnx", **how)
sx.save(run.model, f"{rank}.onnx")
if rank == 1:
    os.unlink("1.onnx")  # as on a machine that does not share the folder
arrays = dict(np.load("data.npz"))

def stream(shift=0, rows=100):  # in batches of 16, the last of 4 rows
    def batches():
        for start in range(0, rows, 16):
            yield {n: np.roll(a, shift, 0)[start : start + 16] for n, a in arrays.items()}
    return batches

class Items:  # rows that are computed when they are asked for
    def __init__(self, shift):
        self.shift = shift
    def __len__(self):
        return 100
    def __getitem__(self, i):
        return tuple(arrays[n][i - self.shift] for n in ("x", "label"))

run = sx.train("net.onnx", stream(), epochs=2, **how)
report["stream"] = [epoch["loss"] for epoch in run.history]
for name, arguments in {
    "other stream": {"data": stream(rank), "steps": 3},
    "longer stream": {"data": stream(rows=48 + 16 * rank), "epochs": 1},
    "validation": {"validation": {n: a[rank:] for n, a in arrays.items()}, "steps": 3},
    "longer validation": {"validation": stream(rows=48 + 16 * rank), "epochs": 1},
    "items": {"data": Items(rank), "steps": 3},
    "position": {"output": f"{rank}.onnx", "resume": True, "epochs": 4},
    "data": {"data": {n: a[rank:] for n, a in np.load("data.npz").items()}, "steps": 3},
    "settings": {"steps": 3 + rank},
    "weights": {"model": f"net{rank}.onnx", "steps": 3},
}.items():
    try:
        sx.train(**{"model": "net.onnx", "data": "data.npz", **how, **arguments})
        report[name] = "trained"
    except (ArgumentError, DataError) as error:
        report[name] = str(error)
print(json.dumps(report) if rank == 0 else "", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_processes_that_do_not_agree_are_refused_and_stop_together(
    engine: str, folder: Path
) -> None:
    pytest.importorskip("torch")
    (folder / "several.py").write_text(SEVERAL)
    net = sx.load(folder / "net.onnx")
    for rank in range(2):
        weight = next(iter(net.graph.initializers.values()))
        weight.const_value = ir.tensor(weight.const_value.numpy() + rank, name=weight.name)
        sx.save(net, folder / f"net{rank}.onnx")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *launch, str(29735 + (engine == "jax")), "several.py",
         engine], cwd=folder, env=environment(), capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(next(t for t in done.stdout.splitlines() if t.startswith("{")))
    assert report["stopped"] == [5, "enough"] and report["whole"]
    assert "starts after 0 steps, the first after 3" in report["position"]
    assert f"has {ROWS - 1} rows of data, the first {ROWS}" in report["data"]
    assert "process 1  has other settings" in report["settings"]
    assert "process 1  has other weights" in report["weights"]
    assert "process 1  has other data" in report["items"]
    assert "process 1  has other validation data" in report["validation"]
    assert "in all of them\n  process 1  has other rows in it" in report["other stream"]
    assert "process 1  has more batches than the first" in report["longer stream"]
    assert "process 1  has more batches than the first" in report["longer validation"]
    alone = {n: np.asarray(a) for n, a in np.load(folder / "data.npz").items()}
    in_order = sx.train(folder / "net.onnx", alone, epochs=2, batch_size=16, shuffle=False)
    expected = [epoch["loss"] for epoch in in_order.history]
    np.testing.assert_allclose(report["stream"], expected, rtol=0, atol=5e-6)


@pytest.mark.slow
def test_the_first_process_speaks_for_all(folder: Path) -> None:
    pytest.importorskip("torch")
    arguments = ["-o", "two.onnx", "--epochs", "1", "--shard", "state", "--report", "report.html"]
    run = [part for part in command(2, 29739, *arguments, engine="torch") if part != "--json"]
    done = subprocess.run(
        run, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines().count("two.onnx") == 1
    assert (folder / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_a_killed_process_ends_the_others_and_the_run_comes_back(engine: str, folder: Path) -> None:
    pytest.importorskip("torch")
    expected = losses_of(1, 0, folder, "-o", "one.onnx", "--epochs", "40", engine=engine)
    options = ["-o", "two.onnx", "--epochs", "40", "--every-steps", "20", "--resume"]
    port = 29711 + 30 * (engine == "torch")
    run = subprocess.Popen(
        command(2, port, *options, engine=engine), cwd=folder, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while not (folder / "two.onnx").exists() and run.poll() is None:
        time.sleep(0.02)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    run.communicate(timeout=200)
    assert run.returncode
    later = losses_of(2, port + 1, folder, *options, engine=engine)
    assert 0 < len(later) < 40
    np.testing.assert_allclose(later, expected[-len(later) :], rtol=0, atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_torchrun_brings_a_run_back_after_a_kill(engine: str) -> None:
    """`--max-restarts`: the losses and the bytes of the file are those of a run without a kill."""
    pytest.importorskip("torch")
    from tests.sweeps.kills import sweep

    (row,) = sweep(1, [engine], [2], seed=3, epochs=40)
    late = [words for words in row["wrong"] if not words.startswith("came back after")]
    assert not late, row


@pytest.mark.nightly
def test_random_kills() -> None:
    pytest.importorskip("torch")
    from tests.sweeps.kills import sweep

    rows = sweep(20, ["torch", "jax"], [2], seed=0)
    assert not [row for row in rows if row["wrong"]]


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_any_number_of_processes_continues_what_any_other_wrote(
    engine: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from tests.sweeps.kills import prepare
    from tests.sweeps.worlds import sweep

    prepare(tmp_path)
    rows = sweep(engine, [1, 2, 4], tmp_path)
    assert len(rows) == 9 and not [r for r in rows if r["apart"] > 5e-6 or not r["same"]]


@pytest.mark.nightly
def test_every_network_on_several_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.sweeps.devices"],
        env=environment(4), capture_output=True, text=True, check=False,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_each_attempt_of_torchrun_meets_by_names_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torchrun keeps its store, and in it the addresses of processes that have ended."""
    torch = pytest.importorskip("torch")
    from sardonyx.engines.torch import processes

    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True)
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "RANK": "0"}
    settings |= {"WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    first = processes._meeting_place()
    first["store"].set("address", "of a process that has ended")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    second = processes._meeting_place()
    assert not second["store"].check(["address"]) and first["store"].check(["address"])
    assert (second["rank"], second["world_size"]) == (0, 1)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert processes._meeting_place() == {}

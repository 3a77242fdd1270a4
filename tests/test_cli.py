"""The program itself: version, usage errors, and how a failure reaches the user."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

import sardonyx
from sardonyx import html_page
from sardonyx.cli import __main__ as cli
from sardonyx.errors import ModelError, SardonyxError

from .networks import mlp


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sardonyx.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"sardonyx {sardonyx.__version__}\n")


def test_unknown_command_is_a_usage_error_on_stderr() -> None:
    done = run("no-such-command")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-command" in done.stderr


def failing_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command `inspect` be one that raises `error`."""
    app = typer.Typer()

    @app.command()
    def inspect() -> None:
        raise error

    row = ("__main__:inspect", "Raise an error.")
    monkeypatch.setattr(cli, "COMMANDS", {"inspect": row})
    monkeypatch.setattr(cli, "_load", lambda name: typer.main.get_command(app))


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            ModelError("it is broken", hint="mend it"),
            2,
            "ModelError: it is broken\n\nhint: mend it\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
    ids=["a problem with the model", "Ctrl-C"],
)
def test_failure_becomes_a_message_and_an_exit_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing_with(error, monkeypatch)
    with pytest.raises(SystemExit) as exit:
        cli.main(["inspect"])
    printed = capsys.readouterr()
    assert exit.value.code == code
    assert printed.out == ""
    assert message in printed.err


def test_a_defect_is_one_line_with_a_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_with(ZeroDivisionError("a\nbug"), monkeypatch)
    with pytest.raises(SystemExit) as exit:
        cli.main(["inspect"])
    printed = capsys.readouterr()
    assert (exit.value.code, printed.out) == (3, "")
    assert printed.err.count("\n") == 1
    assert "ZeroDivisionError: a" in printed.err and "--traceback" in printed.err


@pytest.mark.parametrize("place", (0, 1))
def test_traceback_may_stand_before_and_after_the_command(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_TRACEBACK", "")
    failing_with(ZeroDivisionError("a bug"), monkeypatch)
    arguments = ["inspect"]
    arguments.insert(place, "--traceback")
    with pytest.raises(ZeroDivisionError):
        cli.main(arguments)


def test_help_is_short_and_flags_have_no_type() -> None:
    assert run("-h").stdout == run("--help").stdout
    words = run("train", "-h").stdout
    assert "--resume" in words and "<bool>" not in words and "list[" not in words


@pytest.mark.parametrize(
    ("words", "options"),
    [("sardonyx tr", {"train", "trainable"}), ("sardonyx train --ep", {"--epochs"})],
)
def test_shell_completion_knows_commands_and_their_options(words: str, options: set[str]) -> None:
    request = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    environment = {**os.environ, **request, "_SARDONYX_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "sardonyx"], capture_output=True, text=True, env=environment
    )
    assert set(done.stdout.split()) == options


# -- without the frameworks ---------------------------------------------------------------------

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "jax", "jaxlib", "tensorflow", "flax", "keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def without_frameworks(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_public_names_exist_without_any_framework() -> None:
    done = without_frameworks("""
import inspect
import sardonyx as sx
names = {name for name, _ in inspect.getmembers(sx)}
assert names >= set(sx.__all__) and set(dir(sx)) >= set(sx.__all__)
for name in ("to_torch", "to_jax", "to_tensorflow", "to_torch_source"):
    assert hasattr(sx, name) and getattr(sx, name).__name__ == name
    try:
        getattr(sx, name)("model.onnx")
    except sx.errors.MissingExtra as error:
        print(error.extra)
""")
    assert done.stderr == ""
    assert done.stdout.split() == ["torch", "jax", "tensorflow", "torch"]


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["train", "MODEL", "DATA", "-o", "OUT", "--engine", "torch"], "torch"),
        (["train", "MODEL", "DATA", "-o", "OUT", "--engine", "jax"], "jax"),
        (["train", "MODEL", "DATA", "-o", "OUT", "--engine", "tensorflow"], "tensorflow"),
        (["convert", "MODEL", "--to", "torch-source", "-o", "OUT"], "torch"),
        (["convert", "MODEL", "--to", "jax", "-o", "OUT"], "jax"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else value,
)
def test_commands_name_the_extra_that_is_missing(
    command: list[str], extra: str, tmp_path: Path
) -> None:
    files = {"MODEL": "m.onnx", "DATA": "d.npz", "OUT": "out"}
    sardonyx.save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 6), np.float32), label=np.zeros(4, np.int64))
    arguments = [str(tmp_path / files[word]) if word in files else word for word in command]
    done = without_frameworks("from sardonyx.cli.__main__ import main\nmain()", *arguments)
    assert done.returncode == 2
    assert f'hint: pip install "sardonyx[{extra}]"' in done.stderr
    assert "MissingExtra" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_traceback_is_shown_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_TRACEBACK", "1")
    failing_with(ModelError("it is broken"), monkeypatch)
    with pytest.raises(ModelError):
        cli.main(["inspect"])


def test_a_disk_that_is_full_is_no_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failing_with(OSError(28, "No space left on device", str(tmp_path)), monkeypatch)
    with pytest.raises(SystemExit) as exit:
        cli.main(["inspect"])
    words = capsys.readouterr().err
    assert exit.value.code == 2
    assert "No space left on device" in words and str(tmp_path) in words and "defect" not in words


def test_a_page_is_written_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = html_page.write(tmp_path / "page.html", "the old one")

    def fail(path: Path, *arguments: object, **options: object) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(SardonyxError, match=r'cannot write the page ".*page.html": No space'):
        html_page.write(page, "the new one")
    assert page.read_text() == "the old one" and list(tmp_path.iterdir()) == [page]


ABSURD = {
    "a setting of adapters without adapters": ("--lora-alpha", "8"),
    "targets of adapters without adapters": ("--lora-targets", "Conv"),
    "settings that are no text": ("--config", "data.npz"),
    "events into a file": ("--tensorboard", "data.npz"),
    "more classes than there are numbers": ("--replace-head", "99999999999999999999"),
    "a prediction that is an input": ("--prediction", "x"),
    "no number": ("--lr", "nan"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_options_are_refused_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sardonyx.save(mlp(), "model.onnx")
    data = {"x": np.zeros((8, 6), np.float32), "label": np.zeros(8, np.int64)}
    np.savez("data.npz", **data)  # type: ignore[arg-type]
    files = set(tmp_path.iterdir())
    with pytest.raises(SystemExit) as end:
        cli.main(
            ["train", "model.onnx", "data.npz", "-o", "tuned.onnx", "--steps", "1", *ABSURD[name]]
        )
    assert end.value.code == 2
    assert "Error: " in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == files


def test_outputs_and_operators_without_a_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sardonyx.save(mlp(), tmp_path / "model.onnx")
    for arguments in (["convert", str(tmp_path / "model.onnx"), "--to", "torch-source", "-o", ""],
                      ["ops", "NoSuchOperator"]):  # fmt: skip
        with pytest.raises(SystemExit) as end:
            cli.main(arguments)
        assert end.value.code == 2
        assert "ArgumentError: " in capsys.readouterr().err


REPLACED = {
    "train: data": ("train", "m.onnx", "d.npz", "-o", "d.npz"),
    "train: validation": ("train", "m.onnx", "d.npz", "-o", "v.npz", "--validation", "v.npz"),
    "train: settings": ("train", "m.onnx", "d.npz", "-o", "s.toml", "--config", "s.toml"),
    "train: constant": ("train", "m.onnx", "d.npz", "-o", "c.npy", "--constant", "k=c.npy"),
    "train: report": ("train", "m.onnx", "d.npz", "-o", "o.onnx", "--report", "d.npz"),
    "trainable: another file": ("trainable", "m.onnx", "-o", "d.npz", "--loss", "mse"),
    "grad: another file": ("grad", "m.onnx", "-o", "d.npz"),
    "verify: page": ("verify", "m.onnx", "onnxruntime", "--html", "m.onnx"),
    "verify: folder": ("verify", "m.onnx", "onnxruntime", "--save", "m.onnx"),
    "inspect: page": ("inspect", "m.onnx", "--html", "m.onnx"),
    "quantize: data": ("quantize", "m.onnx", "d.npz", "-o", "d.npz"),
    "quantize: trained": ("quantize", "m.onnx", "d.npz", "-o", "o.onnx", "--trained", "m.onnx"),
    "predict: model": ("predict", "m.onnx", "d.npz", "-o", "m.onnx"),
    "import: source": ("import", "m.pmml", "-o", "m.pmml"),
}


@pytest.mark.parametrize("arguments", REPLACED.values(), ids=REPLACED)
def test_what_a_command_reads_is_not_replaced(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    sardonyx.save(mlp(), "m.onnx")
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(9, 6)).astype(np.float32), "label": rng.integers(0, 3, 9)}
    for name in ("d.npz", "v.npz"):
        np.savez(name, **data)
    np.save("c.npy", data["x"])
    Path("s.toml").write_text("epochs = 1\n")
    Path("m.pmml").write_text("<PMML/>")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as done:
        cli.main(list(arguments))
    assert done.value.code == 2
    said = capsys.readouterr().err
    assert " itself" in said or "is written to an .onnx file" in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "options",
    [
        ("-o", "o.onnx", "--trained", "o.onnx", "--epochs", "1"),
        ("-o", "o.onnx", "--trained", "./o.onnx", "--epochs", "1"),
        ("-o", "o.onnx", "--trained", "t.onnx"),
    ],
)
def test_a_file_that_would_not_be_written_is_refused(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sardonyx.save(mlp(), "m.onnx")
    np.savez("d.npz", x=np.zeros((9, 6), np.float32), label=np.zeros(9, np.int64))
    with pytest.raises(SystemExit) as done:
        cli.main(["quantize", "m.onnx", "d.npz", *options])
    assert done.value.code == 2
    assert not list(tmp_path.glob("[ot].onnx"))


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (("train", "-o", "o.onnx", "--lora", "2"), "o.onnx"),
        (("quantize", "-o", "o.onnx", "--trained", "t.onnx"), "t.onnx"),
    ],
    ids=["adapters", "integers"],
)
def test_an_edited_model_is_trained_as_its_record_says(
    command: tuple[str, ...], result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss and its optimizer, where an option does not replace them."""
    monkeypatch.chdir(tmp_path)
    optimizer = sardonyx.optim.sgd(0.25, momentum=0.5)
    sardonyx.save(sardonyx.trainable(mlp(), "huber", optimizer, accumulate=2), "m.onnx")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 6)).astype(np.float32)
    np.savez("d.npz", x=x, label=np.abs(x[:, :3]))
    name, *options = command
    with contextlib.suppress(SystemExit):
        cli.main([name, "m.onnx", "d.npz", *options, "--epochs", "1", "--lr", "0.125", "-q"])
    chosen = {choice.what: choice.value for choice in sardonyx.choices(result)}
    assert chosen["loss"] == "huber" and "0.125" in chosen["optimizer"]
    assert "momentum 0.5" in chosen["optimizer"] and "sgd" in chosen["optimizer"]
    assert "one update in 2 steps" in chosen["optimizer"]

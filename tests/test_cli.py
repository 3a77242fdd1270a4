"""The program itself: version, usage errors, and how a failure reaches the user."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

import sardonyx
from sardonyx.cli import __main__ as cli
from sardonyx.errors import ModelError


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
        (KeyboardInterrupt(), 130, ""),
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


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_with(ZeroDivisionError("a bug"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        cli.main(["inspect"])


def test_traceback_is_shown_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_TRACEBACK", "1")
    failing_with(ModelError("it is broken"), monkeypatch)
    with pytest.raises(ModelError):
        cli.main(["inspect"])

"""`sardonyx check`: everything that is wrong with a model, without running it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def check(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Accepted for symmetry: no model is ever run here.")
    ] = False,
) -> None:
    """List everything that is wrong with a model, without running it; 1 if there is anything."""
    findings = find(model)
    if as_json:
        print(json.dumps(findings, indent=1))
    for finding in [] if as_json else findings:
        print(f"{finding['stage']}: {finding['problem']}")
    if not findings and not as_json:
        print("nothing found")
    if findings:
        raise typer.Exit(1)


def find(path: Path) -> list[dict[str, str]]:
    """The problems that each stage reports; the stages after a failed one are skipped."""
    from sardonyx.errors import SardonyxError
    from sardonyx.model import load
    from sardonyx.normalize import normalize
    from sardonyx.record.info import check as check_records
    from sardonyx.versions import fit

    findings: list[dict[str, str]] = []

    def stage(name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except SardonyxError as error:
            findings.append({"stage": name, "problem": str(error)})
            return None

    model = stage("load", lambda: load(path))
    if model is None:
        return findings
    if model.records:
        stage("training records", lambda: check_records(model))
    if stage("normalize", lambda: normalize(model)) is None:
        return findings
    stage("versions for onnxruntime", lambda: fit(model))
    return findings

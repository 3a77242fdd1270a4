"""Modules in files: exported programs (.pt2), and pickled modules where the caller trusts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sardonyx.errors import ArgumentError, ImportRefused, quote


def read_module(source: Any, trust: bool) -> torch.nn.Module:
    """The module that `source` is or holds."""
    if isinstance(source, (str, Path)):
        source = _from_file(Path(source), trust)
    if isinstance(source, torch.export.ExportedProgram):
        return source.module()
    if isinstance(source, torch.jit.ScriptModule):
        raise ImportRefused(
            "a TorchScript module has no Python code that torch.export could capture",
            hint="import the module that it was scripted or traced from",
        )
    if not isinstance(source, torch.nn.Module):
        raise ArgumentError(
            f"{quote(type(source).__name__)} is not a torch module",
            hint="pass an nn.Module, a torch.export.ExportedProgram or a .pt2 file",
        )
    return source


def _from_file(path: Path, trust: bool) -> Any:
    if not path.is_file():
        raise ArgumentError(f"there is no file {quote(path)}")
    if path.suffix == ".pt2":
        try:
            return torch.export.load(path)
        except Exception as error:
            raise ImportRefused(
                f"{quote(path.name)} is not an exported program: {error}"
            ) from error
    if _is_script(path):
        return torch.jit.load(str(path), map_location="cpu")
    if not trust:
        raise ImportRefused(
            f"{quote(path.name)} is a pickle, and unpickling runs the code that it contains",
            hint="trust=True, if you know where it comes from; or torch.export.save(…, 'net.pt2')",
        )
    return torch.load(path, map_location="cpu", weights_only=False)


def _is_script(path: Path) -> bool:
    """Whether a file is an archive of TorchScript, which holds code but no pickled classes."""
    import zipfile

    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())

"""Modules in files: exported programs (.pt2), TorchScript, pickles where the caller trusts them."""

from __future__ import annotations

import weakref
import zipfile
from pathlib import Path
from typing import Any

import torch

from sardonyx.errors import ArgumentError, ImportRefused, quote
from sardonyx.importers.torch.capture import quiet
from sardonyx.importers.torch.script import scripted

# The example arguments of modules that were read from exported programs.
EXAMPLES: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def read_module(source: Any, trust: bool) -> torch.nn.Module:
    """The module that `source` is or holds."""
    if isinstance(source, (str, Path)):
        source = _from_file(Path(source), trust)
    if isinstance(source, torch.export.ExportedProgram):
        module = source.module()
        EXAMPLES[module] = source.example_inputs
        return module
    if isinstance(source, torch.jit.ScriptModule):
        return scripted(source)
    if not isinstance(source, torch.nn.Module):
        raise ArgumentError(
            f"{quote(type(source).__name__)} is not a torch module",
            hint="pass an nn.Module, an exported program (.pt2) or a TorchScript archive (.pt)",
        )
    return source


def own_example(module: torch.nn.Module) -> tuple[Any, Any]:
    """The example arguments that an exported program was captured with."""
    example = EXAMPLES.get(module)
    if example is None or not (example[0] or example[1]):
        raise ArgumentError(
            f"{quote(type(module).__name__)} needs example arguments",
            hint="pass args=, as the module takes them; on the command line, --data example.npz",
        )
    return example


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
    if is_script(path):
        _refuse_script(path, trust)
        try:
            with quiet():
                return torch.jit.load(str(path), map_location="cpu")
        except Exception as error:
            what = str(error).strip().splitlines()
            raise ImportRefused(
                f"{quote(path.name)} is not a TorchScript archive: {what[0] if what else error}"
            ) from error
    if not trust:
        raise ImportRefused(
            f"{quote(path.name)} is a pickle, and unpickling runs the code that it contains",
            hint="trust=True, if you know where it comes from; or torch.export.save(…, 'net.pt2')",
        )
    return torch.load(path, map_location="cpu", weights_only=False)


def is_script(path: Path) -> bool:
    """Whether a file is an archive of TorchScript, which holds code but no pickled classes."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return any("/code/" in n for n in names) and any(n.endswith("/data.pkl") for n in names)


def _refuse_script(path: Path, trust: bool) -> None:
    """Refuse archives that run code while they are loaded, or that are larger than they look.

    The code of `forward` is read, not run: `script.py` computes it node by node.
    """
    if trust:
        return
    rows = []
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > 2 * path.stat().st_size + 2**20:
            rows.append([f"it unpacks to {size:,} bytes, and torch does not compress archives"])
        for entry in archive.infolist():
            is_code = "/code/" in entry.filename and entry.filename.endswith(".py")
            if not rows and is_code and b"def __setstate__" in archive.read(entry):
                rows.append([f"{entry.filename} has __setstate__, which runs while it is loaded"])
    if rows:
        raise ImportRefused(
            f"{quote(path.name)} is not read without trust",
            rows,
            hint="trust=True, if you know where it comes from",
        )

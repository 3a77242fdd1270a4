"""Tensor data that lies in other files: which may be read, and the bytes of each tensor.

A location is looked up from an open directory handle, component by component, without following
links; what was opened is what is checked and mapped, so that no name is looked up twice. A link is
followed by hand, and only to a file inside the model's directory or beside the model's real file,
which is how download caches lay out models. There is no protection against another process that
truncates a mapped file while it is in use. What tensors must look like is in `wellformed.py`.
"""

from __future__ import annotations

import copy
import errno
import functools
import hashlib
import mmap
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from .errors import ArgumentError, ExternalDataError, LimitExceeded, quote
from .limits import Limits
from .limits.wellformed import Problems, byte_count, inside, node_label, shape_problem

_KEYS = ("location", "offset", "length", "checksum")
_DECIMAL = re.compile(r"[0-9]{1,20}", re.ASCII)
_SHA1 = re.compile(r"[0-9a-fA-F]{40}", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_FILE_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    _FILE_FLAGS |= getattr(os, _name, 0)
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_HANDLES = bool(_NOFOLLOW) and os.open in os.supports_dir_fd

# Before Python 3.13 a mapping holds a file descriptor, and models of thousands of files exist.
_HOLDS_FILES = sys.version_info < (3, 13)
_UNTRACKED: dict[str, Any] = {} if _HOLDS_FILES else {"trackfd": False}
_MAPPED_FILES = 256
_READ_BELOW = 1 << 16

_MOVE = "move the data beside the model"
_TRUST = 'load(..., trust="local") if you trust this directory'


class _Refused(Exception):
    """Why one location is refused, and whether `trust="local"` would allow it."""

    def __init__(self, why: str, trustable: str = ""):
        super().__init__(why)
        self.why, self.trustable = why, trustable


@dataclass(frozen=True)
class _Entry:
    location: str
    offset: int
    length: int | None
    checksum: str | None


class _File:
    """The bytes of one opened file, and its checksum, computed on first use."""

    def __init__(self, data: Any, size: int):
        self.data, self.size = data, size
        self._sha1: str | None = None

    def sha1(self) -> str:
        if self._sha1 is None:
            self._sha1 = hashlib.sha1(self.data, usedforsecurity=False).hexdigest()
        return self._sha1


class _Mapped(mmap.mmap):
    """A file mapped for reading, which can be mapped a second time for private writes."""

    open_again: Callable[[], int]
    identity: tuple[int, ...]

    def private(self) -> np.ndarray | None:
        """The bytes in a mapping whose writes stay in this process; None where that cannot be."""
        try:
            handle = self.open_again()
        except (_Refused, OSError):
            return None
        try:
            if _identity(os.fstat(handle)) != self.identity:
                return None
            return np.frombuffer(mmap.mmap(handle, len(self), **_PRIVATE, **_UNTRACKED), np.uint8)
        except OSError:
            return None
        finally:
            os.close(handle)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size


def _private_access() -> dict[str, Any]:
    """How to map a file for writes that stay here. Memory for them is not set aside beforehand,
    where Python has the flag: a model may be larger than the memory.
    """
    if not hasattr(mmap, "MAP_NORESERVE"):
        return {"access": mmap.ACCESS_COPY}
    flags = mmap.MAP_PRIVATE | mmap.MAP_NORESERVE
    return {"flags": flags, "prot": mmap.PROT_READ | mmap.PROT_WRITE}


_PRIVATE = _private_access()


class Private:
    """Mapped tensors as memory to write to: the pages of the file, until a page is written to.

    Writes touch neither the file nor the model. Tensors of one file share one mapping, which lives
    as long as any of them.
    """

    def __init__(self) -> None:
        self._files: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}

    def array(self, array: np.ndarray) -> np.ndarray | None:
        """The same values, writable; None for an array that is not a plain part of a file."""
        mapped = _mapping_of(array)
        if mapped is None or not array.flags.c_contiguous or not array.size:
            return None
        if id(mapped) not in self._files:
            self._files[id(mapped)] = np.frombuffer(mapped, np.uint8), mapped.private()
        read, private = self._files[id(mapped)]
        if private is None:
            return None
        offset = array.ctypes.data - read.ctypes.data
        return private[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array is a part of a mapped file, which is read-only."""
    return _mapping_of(array) is not None


def _mapping_of(array: np.ndarray) -> _Mapped | None:
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    return owner if isinstance(owner, _Mapped) else None


class ExternalData:
    """The files beside one model, each opened once and mapped read-only.

    `directory` is where locations start (default: the folder of `model_path`); without either,
    every external tensor is refused. `trust="local"` allows links of every kind in that folder.
    """

    def __init__(
        self,
        directory: Path | None,
        model_path: Path | None = None,
        trust: str | None = None,
        limits: Limits | None = None,
    ):
        if trust not in (None, "local"):
            raise ArgumentError(f"trust is {trust!r}", hint='use trust="local" or leave it out')
        self._trusted = trust == "local"
        self._limits = limits or Limits()
        if directory is None and model_path is not None:
            directory = Path(model_path).parent
        self._directory = None if directory is None else os.path.realpath(directory)
        self._model_folder = (
            None if model_path is None else os.path.dirname(os.path.realpath(model_path))
        )
        self._files: dict[str, _File | _Refused] = {}
        self._mapped = 0

    def check_all(self, proto: onnx.ModelProto) -> None:
        """Open the data of every external tensor of `proto`; raise one error for all problems."""
        problems, total = Problems(), 0
        advice: dict[str, None] = {}
        for tensor, where in tensors(proto):
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            try:
                total += self._locate(tensor)[2]
            except _Refused as refused:
                problems.add(*_row(tensor, where, refused))
                advice[refused.trustable] = None
        problems.raise_if_any(
            ExternalDataError,
            "a tensor names external data that cannot be read",
            "{} tensors name external data that cannot be read",
            self._hint(advice),
        )
        limit = self._limits.external_bytes
        if limit is not None and total > limit:
            row = ["all external tensors", f"external_bytes is {total:,}", f"limit {limit:,}"]
            hint = "load(..., limits=Limits(external_bytes=...)) if you trust this file"
            raise LimitExceeded("the model exceeds a limit", [row], hint)

    def array(self, tensor: TensorProto, where: str) -> np.ndarray:
        """Return the packed bytes of an external tensor, as a read-only view of its mapped file."""
        try:
            file, offset, size = self._locate(tensor)
        except _Refused as refused:
            what = "a tensor names external data that cannot be read"
            hint = self._hint({refused.trustable: None})
            raise ExternalDataError(what, [_row(tensor, where, refused)], hint) from None
        if not size:
            return np.frombuffer(b"", dtype=np.uint8)
        return np.frombuffer(file.data, dtype=np.uint8, count=size, offset=offset)

    def _hint(self, advice: dict[str, None]) -> str:
        if self._directory is None:
            return "load the model from its path, or pass the directory of its data"
        ways = [way for way in advice if way]
        return f"{', '.join(ways or [_MOVE])}, or {_TRUST}" if ways else _MOVE

    def _locate(self, tensor: TensorProto) -> tuple[_File, int, int]:
        """Return the file, offset and size of a tensor's data."""
        if len(tensor.dims) > self._limits.tensor_rank:
            raise _Refused(f"is of a tensor with {len(tensor.dims)} dimensions")
        problem = shape_problem(tensor.data_type, tensor.dims)
        if problem or tensor.data_type == TensorProto.STRING:
            raise _Refused(f"is of a tensor that {problem or 'holds strings'}")
        size = byte_count(tensor.data_type, tensor.dims)
        entry = _entry(tensor)
        if entry.length not in (None, size):
            raise _Refused(f"has length {entry.length:,} where the tensor needs {size:,} bytes")
        file = self._file(entry.location)
        if entry.offset + size > file.size:
            span = f"bytes {entry.offset:,} to {entry.offset + size:,}"
            raise _Refused(f"has {file.size:,} bytes, and the tensor {span}")
        if entry.checksum is not None and file.sha1() != entry.checksum:
            raise _Refused("has a SHA-1 checksum that differs from the model's")
        return file, entry.offset, size

    def _file(self, location: str) -> _File:
        file = self._files.get(location)
        if file is None:
            try:
                file = self._open(location)
            except _Refused as refused:
                file = refused
            self._files[location] = file
        if isinstance(file, _Refused):
            raise _Refused(file.why, file.trustable)
        return file

    def _open(self, location: str) -> _File:
        if self._directory is None:
            raise _Refused("lies in another file, and the model has no directory")
        where = self._directory, _components(location)
        handle = self._opened(*where)
        try:
            return self._map(handle, functools.partial(self._alone()._opened, *where))
        except OSError as error:
            raise _Refused(_reason(error)) from None
        finally:
            os.close(handle)

    def _alone(self) -> ExternalData:
        """The same rules without the files: a mapping must not keep them alive."""
        twin = copy.copy(self)
        twin._files = {}
        return twin

    def _opened(self, directory: str, parts: list[str]) -> int:
        try:
            return self._handle(directory, parts)
        except FileNotFoundError:
            return self._beside_the_real_model(parts)
        except OSError as error:
            raise _Refused(_reason(error)) from None

    def _beside_the_real_model(self, parts: list[str]) -> int:
        """Open data that lies beside the file to which the caller's own link leads."""
        if self._model_folder is not None and self._model_folder != self._directory:
            try:
                return self._handle(self._model_folder, parts)
            except OSError as error:
                raise _Refused(_reason(error)) from None
        raise _Refused("is missing")

    def _handle(self, folder: str, parts: list[str]) -> int:
        if self._trusted:
            return _open_checked(os.path.join(folder, *parts), follow=True)
        try:
            return _open_beneath(folder, parts)
        except _Link:
            return self._follow(os.path.join(folder, *parts))

    def _follow(self, link: str) -> int:
        """Open the final target of a link, if it lies where a plain name could have led."""
        directory = str(self._directory)
        name = quote(f"{os.path.basename(directory)}/")
        why = f"is a link to a file outside {name} and not beside the model's real file"
        outside = _Refused(why, _MOVE)
        try:
            target = os.path.realpath(link, strict=True)
        except OSError as error:
            broken = "is a broken link" if error.errno == errno.ENOENT else "is a link without end"
            raise _Refused(broken) from None
        beneath = os.path.relpath(target, directory).split(os.sep)
        if beneath[0] not in (os.pardir, os.curdir):
            root, rest = directory, beneath
        elif os.path.dirname(target) == self._model_folder:
            root, rest = os.path.split(target)[0], [os.path.basename(target)]
        else:
            raise outside
        try:
            return _open_beneath(root, rest)
        except _Link:
            raise outside from None

    def _map(self, handle: int, open_again: Callable[[], int]) -> _File:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _Refused(f"is {_kind(status.st_mode)}, not a regular file")
        if status.st_nlink > 1 and not self._trusted:
            why = f"has {status.st_nlink} names (hard links), of which any may lie elsewhere"
            raise _Refused(why, "replace the hard link by a copy (cp FILE COPY; mv COPY FILE)")
        size = status.st_size
        if size < _READ_BELOW or (_HOLDS_FILES and self._mapped >= _MAPPED_FILES):
            data = _read(handle, size)
            return _File(data, len(data))
        self._mapped += 1
        mapped = _Mapped(handle, size, access=mmap.ACCESS_READ, **_UNTRACKED)
        mapped.open_again, mapped.identity = open_again, _identity(status)
        return _File(mapped, size)


class _Link(Exception):
    """The last component of a location is a symbolic link."""


def _row(tensor: TensorProto, where: str, refused: _Refused) -> list[str]:
    locations = [e.value for e in tensor.external_data if e.key == "location"]
    if not locations:
        return [where, "no location", refused.why]
    location = locations[0]
    if isinstance(location, str) and _is_absolute(location):
        location = "/…/" + re.split(r"[/\\]", location)[-1]
    return [where, f"location {quote(location)}", refused.why]


def _is_absolute(location: str) -> bool:
    return location.startswith("/") or _DRIVE.match(location) is not None


def _entry(tensor: TensorProto) -> _Entry:
    entries: dict[str, str] = {}
    for pair in tensor.external_data:
        key, value = pair.key, pair.value
        if key not in _KEYS:
            raise _Refused(f"comes with the unknown key {quote(key)}")
        if key in entries:
            raise _Refused(f"comes with {key} twice")
        if isinstance(value, bytes):
            raise _Refused(f"comes with a {key} that is not valid UTF-8")
        entries[key] = value
    if "location" not in entries:
        raise _Refused("has no location")
    for key in ("offset", "length"):
        if key in entries and not _DECIMAL.fullmatch(entries[key]):
            raise _Refused(f"has the {key} {quote(entries[key])}, which is no plain number")
    checksum = entries.get("checksum")
    if checksum is not None and not _SHA1.fullmatch(checksum):
        raise _Refused("has a checksum that is no SHA-1 in hexadecimal")
    length = int(entries["length"]) if "length" in entries else None
    offset = int(entries.get("offset", "0"))
    return _Entry(entries["location"], offset, length, checksum and checksum.lower())


def _components(location: str) -> list[str]:
    """Return the components of a relative path in `/` form; the rules hold on every platform."""
    if not location:
        raise _Refused("is empty")
    if _CONTROL.search(location):
        raise _Refused("has a control character")
    if "\\" in location:
        raise _Refused("has a backslash")
    if _is_absolute(location):
        raise _Refused("is an absolute path")
    parts = location.split("/")
    for part in parts:
        if part in ("", ".", ".."):
            raise _Refused(f'has a "{part}" component' if part else "has an empty component")
    return parts


def _open_beneath(folder: str, parts: list[str]) -> int:
    """Return a handle of the file `parts` in `folder`; `_Link` if its last component is a link."""
    if not _HANDLES:
        return _open_without_handles(folder, parts)
    at = os.open(folder, _FOLDER_FLAGS)
    try:
        for part in parts[:-1]:
            if stat.S_ISLNK(os.stat(part, dir_fd=at, follow_symlinks=False).st_mode):
                raise _Refused("leads through a linked directory", _MOVE)
            inner = os.open(part, _FOLDER_FLAGS | _NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        return _open_checked(parts[-1], follow=False, at=at)
    finally:
        os.close(at)


def _open_checked(path: str, follow: bool, at: int | None = None) -> int:
    """Open a regular file; a look before keeps devices from being opened, `fstat` decides."""
    mode = os.stat(path, dir_fd=at, follow_symlinks=follow).st_mode
    if stat.S_ISLNK(mode):
        raise _Link
    if not stat.S_ISREG(mode):
        raise _Refused(f"is {_kind(mode)}, not a regular file")
    return os.open(path, _FILE_FLAGS & ~_NOFOLLOW if follow else _FILE_FLAGS, dir_fd=at)


def _open_without_handles(folder: str, parts: list[str]) -> int:
    """The same where the system has no directory handles: look, open, then compare."""
    path = folder
    for part in parts[:-1]:
        path = os.path.join(path, part)
        if os.path.realpath(path) != path:
            raise _Refused("leads through a linked directory", _MOVE)
    path = os.path.join(path, parts[-1])
    handle = _open_checked(path, follow=False)
    if not os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False)):
        os.close(handle)
        raise _Refused("was replaced while it was opened")
    return handle


def _read(handle: int, size: int) -> bytes:
    with os.fdopen(os.dup(handle), "rb") as file:
        return file.read(size)


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "is missing"
    if error.errno == errno.ELOOP:
        return "became a link while it was opened"
    return f"cannot be opened: {error.strerror or type(error).__name__}"


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def tensors(proto: onnx.ModelProto) -> Iterator[tuple[TensorProto, str]]:
    """Yield every tensor of a model, with its location: graphs, functions, training records."""
    queue: deque[tuple[Any, str]] = deque([(proto.graph, "")])
    for function in proto.functions:
        label = f"function {quote(function.name)}"
        queue.append((function, label))
        for attribute in function.attribute_proto:
            yield from _attribute_tensors(attribute, label, queue)
    for index, record in enumerate(proto.training_info):
        for part in ("initialization", "algorithm"):
            if record.HasField(part):
                queue.append((getattr(record, part), f"training record {index}, {part}"))
    while queue:
        graph, label = queue.popleft()
        if isinstance(graph, onnx.GraphProto):
            for tensor in graph.initializer:
                yield tensor, inside(label, f"initializer {quote(tensor.name)}")
            for sparse in graph.sparse_initializer:
                where = inside(label, f"sparse initializer {quote(sparse.values.name)}")
                yield sparse.values, f"{where}, values"
                yield sparse.indices, f"{where}, indices"
        for index, node in enumerate(graph.node):
            if node.attribute:
                where = inside(label, node_label(node.name, node.op_type, index))
                for attribute in node.attribute:
                    yield from _attribute_tensors(attribute, where, queue)


def _attribute_tensors(
    attribute: onnx.AttributeProto, label: str, queue: deque[tuple[Any, str]]
) -> Iterator[tuple[TensorProto, str]]:
    """Yield the tensors of one attribute; its graphs wait in `queue`."""
    where = f"{label}, {quote(attribute.name)}"
    for tensor in [attribute.t] if attribute.HasField("t") else attribute.tensors:
        yield tensor, where
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else ()
    for tensor in sparse or attribute.sparse_tensors:
        yield tensor.values, f"{where}, values"
        yield tensor.indices, f"{where}, indices"
    for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
        queue.append((graph, where))

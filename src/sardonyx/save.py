"""`save` writes a model that its runtime accepts, atomically, external data included.

The file appears whole or not at all: new external data goes to a new file beside the model, then
the model is written under a temporary name and renamed, then data that only the old file named is
removed. Whatever stops the process, the old pair or the new pair is there. Links are replaced,
never written through. Names of files come from the model's file name alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError, ModelError, SardonyxError, quote
from sardonyx.model import Model, ModelSource, load
from sardonyx.normalize import regular_copy
from sardonyx.passes.layout.nhwc import add_functions, turn_images
from sardonyx.versions import fit

try:
    import fcntl
except ImportError:  # Windows; there, an open file cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

INLINE_TOTAL = 1_800_000_000  # protobuf ends at 2 GiB; the graph needs room as well
PROTOBUF_BYTES = 2**31 - 1
EXTERNAL_BYTES = 1024
ALIGNMENT = 4096  # onnxruntime maps a tensor from the file only at a page boundary
CHUNK = 16 * 2**20
FREE_BYTES = 2**20  # less free space than this is taken for the reason why a write failed


Holdings = list[tuple[Any, ir.TensorProtocol]]  # what holds a tensor, and the tensor
Places = dict[int, ir.ExternalTensor]


def save(
    model: ModelSource,
    path: str | Path,
    *,
    runtime: str | None = "onnxruntime",
    opset: int | None = None,
    external: bool | int | None = None,
    layout: str | None = None,
) -> Path:
    """Write `model` to `path`: the lowest versions that it needs, none above what the target takes.

    runtime   -- the runtime that will read it: "onnxruntime", "onnxruntime==1.20"; None: any
    opset     -- the highest version of the standard operators, instead of what `runtime` takes
    external  -- True: weights in a file beside the model; a number: only tensors of at least so
                 many bytes; False: all in one file; None: in one file if it stays below 2 GB
    layout    -- "nhwc": images have their channels last, by functions of the domain sardonyx.nhwc
                 that a runtime has kernels for, or inlines

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model(
    ...     '''<ir_version: 14, opset_import: ["": 28]>
    ...     g (float[2] x) => (float[2] y) {y = Relu(x)}'''))
    >>> sx.load(sx.save(model, "relu.onnx", runtime="onnxruntime==1.20")).opset
    13
    """
    path = Path(path)
    source = load(model) if layout is None else _channels_last(load(model), layout)
    fitted = fit(source, runtime=runtime, opset=opset)
    if layout is not None:
        add_functions(fitted.ir)
    holdings = [(holder, t) for holder, t in _tensors(fitted) if t.dtype != ir.DataType.STRING]
    tensors = _outside(holdings, external)
    with _reported(path), _Files(path) as files:
        places = files.write_data(tensors) if tensors else {}
        files.write_model(_serialize(fitted, holdings, places))
    return path


def _channels_last(model: Model, layout: str) -> Model:
    """A copy of a model whose images have their channels last."""
    if layout != "nhwc":
        raise ArgumentError(f"there is no layout {layout!r}", hint="'nhwc', or None: as it is")
    if model.records:
        raise ArgumentError("a model with a training record keeps its layout")
    copy = regular_copy(model)
    turn_images(copy.ir)
    return Model(copy.ir, [], model.source)


def _outside(holdings: Holdings, external: bool | int | None) -> list[ir.TensorProtocol]:
    """The tensors that go to a file of their own, each once."""
    distinct = {id(tensor): tensor for _, tensor in holdings}
    if external is None:
        external = sum(t.nbytes for t in distinct.values()) > INLINE_TOTAL
    if external is False:
        return []
    least = EXTERNAL_BYTES if external is True else int(external)
    return [t for t in distinct.values() if t.nbytes >= least]


def _tensors(model: Model) -> Iterator[tuple[Any, ir.TensorProtocol]]:
    """Every tensor that may lie in another file, with what holds it."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value
        for node in graph:
            for attr in node.attributes.values():
                if attr.type == ir.AttributeType.TENSOR and not attr.is_ref():
                    yield (node, attr.name), attr.value
    for record in model.records:
        for name, tensor in record.state.items():
            yield (record.state, name), tensor


def _serialize(model: Model, holdings: Holdings, places: Places) -> bytes:
    """The model as bytes, in which the tensors of `places` are named, not contained."""
    swapped = [(holder, t) for holder, t in holdings if id(t) in places]
    try:
        for holder, tensor in swapped:
            _put(holder, places[id(tensor)])
        proto = model.proto()
    finally:
        for holder, tensor in swapped:
            _put(holder, tensor)
    size = proto.ByteSize()
    if size > PROTOBUF_BYTES or size < 0:
        raise ModelError(
            "the model does not fit into one file of 2 GB", hint="save(..., external=True)"
        )
    return proto.SerializeToString()


def _put(holder: Any, tensor: ir.TensorProtocol) -> None:
    if isinstance(holder, ir.Value):
        holder.const_value = tensor
    elif isinstance(holder[0], ir.Node):
        holder[0].attributes.add(ir.AttrTensor(holder[1], tensor))
    else:
        state, name = holder
        state[name] = tensor


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SardonyxError(
            f"cannot write {quote(path)}: {reason}",
            hint="the file that was there before is unchanged",
        ) from error


@contextlib.contextmanager
def folder_reported(folder: str | Path) -> Iterator[None]:
    """Around writing the files of a folder: what the system refuses is one error."""
    try:
        yield
    except OSError as error:
        # shutil collects what it cannot copy in an error without a number
        reason = _no_room(error) or error.strerror or _no_room_in(folder) or str(error)
        raise SardonyxError(
            f"cannot write into {quote(folder)}: {reason[0].lower()}{reason[1:]}",
            hint="the files in it may not belong together; write them again",
        ) from error


@contextlib.contextmanager
def full_disk_reported(folder: str | Path) -> Iterator[None]:
    """Around work of other libraries in `folder`: where there is no room, an error says so.

    What they raise themselves may speak of something else: onnxruntime of a protobuf that cannot be
    serialized.
    """
    try:
        yield
    except Exception as error:
        known = isinstance(error, SardonyxError) and error.__cause__ is None
        reason = _no_room(error) or ("" if known else _no_room_in(folder))
        if reason:
            raise SardonyxError(
                f"cannot write into {quote(folder)}: {reason}",
                hint="free the disk; TMPDIR in the environment names another temporary folder",
            ) from error
        raise


def _no_room(error: BaseException | None) -> str:
    """The system's words for a full disk, or for a limit on sizes, from which an error came."""
    numbers = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    while error is not None:
        told = re.search(r"\(os error (\d+)\)", str(error))  # as libraries in Rust write it
        number = error.errno if isinstance(error, OSError) else int(told[1]) if told else None
        if number is not None and number in numbers:
            words = os.strerror(number)
            return words[0].lower() + words[1:]
        error = error.__cause__
    return ""


def _no_room_in(folder: str | Path) -> str:
    """The same where a small file cannot be written now: a full disk, a quota, or a limit."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(FREE_BYTES))
            file.flush()
    except OSError as error:
        return _no_room(error)
    return ""


class _Files:
    """The files of one save: written under new names, then renamed into place, or removed."""

    def __init__(self, path: Path):
        self.path = path
        self.tag = secrets.token_hex(3)
        self.data_name = f"{path.name}.{self.tag}.data"
        self.created: list[Path] = []
        self.open: list[IO[bytes]] = []
        self.placed = False

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.open:
            with contextlib.suppress(OSError):  # on a full disk, it tries to write the rest again
                file.close()
        for path in () if self.placed else self.created:
            with contextlib.suppress(OSError):
                path.unlink()

    def _create(self, name: str) -> IO[bytes]:
        """A new file, locked during this save, so that no other save takes it for a leftover."""
        path = self.path.with_name(name)
        file = open(path, "xb")  # noqa: SIM115  (closed in __exit__, after the rename)
        self.created.append(path)
        self.open.append(file)
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def write_data(self, tensors: list[ir.TensorProtocol]) -> Places:
        """Write the tensors one after the other; where each of them is."""
        file = self._create(self.data_name)
        places = {}
        for tensor in tensors:
            if tensor.nbytes >= ALIGNMENT:
                file.seek(-file.tell() % ALIGNMENT, os.SEEK_CUR)
            offset = file.tell()
            for chunk in _chunks(tensor):
                file.write(chunk)
            places[id(tensor)] = ir.ExternalTensor(
                self.data_name,
                offset,
                file.tell() - offset,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=tensor.name or "",
            )
        _sync(file)
        return places

    def write_model(self, data: bytes) -> None:
        """Write the model under a temporary name, then make it the model."""
        temporary = f".{self.path.name}.{self.tag}.tmp"
        file = self._create(temporary)
        file.write(data)
        with contextlib.suppress(OSError):
            status = self.path.lstat()
            if stat.S_ISREG(status.st_mode):
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
        _sync(file)
        os.replace(self.path.with_name(temporary), self.path)
        self.placed = True
        _sync_folder(self.path.parent)
        self._remove_old_parts()

    def _remove_old_parts(self) -> None:
        """Remove data that no model names any more, and what an interrupted save left behind."""
        name = re.escape(self.path.name)
        generated = re.compile(rf"{name}\.[0-9a-f]{{6}}\.data|\.{name}\.[0-9a-f]{{6}}\.tmp")
        current = {path.name for path in self.created}
        for other in self.path.parent.iterdir():
            if (
                generated.fullmatch(other.name)
                and other.name not in current
                and not _is_in_use(other)
            ):
                with contextlib.suppress(OSError):
                    other.unlink()


def _is_in_use(path: Path) -> bool:
    if fcntl is None or path.is_symlink():
        return False
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _chunks(tensor: ir.TensorProtocol) -> Iterator[memoryview | bytes]:
    """The bytes of a tensor in pieces; a tensor over a mapped file is read as it is written."""
    if tensor.dtype.bitwidth < 8:
        yield tensor.tobytes()
        return
    flat = np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
    for start in range(0, flat.size, CHUNK):
        yield flat[start : start + CHUNK].data


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

"""Untrusted files: the resources that a model may use, and the scan that enforces them.

`parse` turns bytes into a message, `scan` goes over the message once, before anything transforms
it: by explicit stacks, in time linear in the file, never expanding to count. The pass itself is in
`scanner.py`, data in other files in `external.py`. Nothing here opens a file but `read_file`, the
model itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from sardonyx.errors import LimitExceeded, ModelError, quote

from .names import check_names
from .scanner import Counts, Scanner


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a model may cost before it is refused; give a larger number to trust a file further.

    >>> Limits(nodes=2_000_000).nodes
    2000000
    """

    file_bytes: int = 2**31
    """Bytes of the model file itself; protobuf ends at 2 GiB."""
    external_bytes: int | None = None
    """Bytes of all external tensors together, each counted; None: any amount, as it is mapped."""
    nodes: int = 1_000_000
    """Nodes after inlining all local functions."""
    expansion: int = 256
    """Nodes after inlining for each node in the file, where there are more than 4,096 in all."""
    inlined_bytes: int = 2**31
    """Names and attributes of all nodes after inlining."""
    call_depth: int = 32
    """Local functions that call local functions."""
    subgraph_depth: int = 32
    """Nesting of graphs in nodes, continued through calls."""
    type_depth: int = 16
    """Nesting of sequence, optional and map types."""
    name_bytes: int = 4096
    """Bytes of one name."""
    total_name_bytes: int = 64 * 2**20
    """Bytes of all names together."""
    node_inputs: int = 65_536
    """Inputs of one node."""
    node_outputs: int = 65_536
    """Outputs of one node."""
    node_attributes: int = 1024
    """Attributes of one node."""
    opset_imports: int = 256
    """Operator sets that a model or a function imports."""
    tensor_rank: int = 64
    """Dimensions of one tensor; numpy ends at 64."""
    dense_bytes: int = 128 * 2**20
    """Bytes of all sparse tensors together once they are dense."""
    fold_tensor_bytes: int = 16 * 2**20
    """Bytes of one constant that is folded, beyond the elements of its inputs."""
    fold_total_bytes: int = 64 * 2**20
    """Bytes of all folded constants, beyond those in the file."""
    propagated_elements: int = 1024
    """Elements of an integer tensor whose values take part in shape inference."""


_META = "sardonyx.limits"
_FREED = "sardonyx.freed_dimensions"
_AS_LOADED = "sardonyx.as_loaded"


def set_limits(graph: ir.Graph, limits: Limits) -> None:
    """Keep the limits under which a graph was loaded; copies of the graph keep them as well."""
    graph.meta[_META] = limits


def set_as_loaded(graph: ir.Graph, as_loaded: bool) -> None:
    """Keep whether the types of a graph are those of a file, or were changed for a comparison."""
    graph.meta[_AS_LOADED] = as_loaded


def is_as_loaded(graph: ir.Graph) -> bool:
    """Whether the types of a graph are those of the file that it was loaded from."""
    return bool(graph.meta.get(_AS_LOADED))


def set_freed(graph: ir.Graph, labels: tuple[str, ...]) -> None:
    """Keep which values had a dimension that is negative or a placeholder, and is now free."""
    if labels:
        graph.meta[_FREED] = labels


def freed_dimensions(graph: ir.Graph) -> tuple[str, ...]:
    """The values of a loaded graph with a dimension that was negative or a placeholder."""
    labels: tuple[str, ...] = graph.meta.get(_FREED) or ()
    return labels


def limits_of(graph: ir.Graph) -> Limits:
    """The limits under which a graph was loaded, or the defaults."""
    limits: Limits = graph.meta.get(_META) or Limits()
    return limits


_SIGNATURES = (
    (0, b"version https://git-lfs", "a Git LFS pointer: fetch the file itself with git lfs pull"),
    (0, b"PK\x03\x04", "a zip archive (PyTorch, Keras and numpy write those)"),
    (0, b"\x89HDF", "an HDF5 file (older Keras models are)"),
    (0, b"\x1f\x8b", "a gzip archive: unpack it first"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ORTM", "a model in the ORT format: convert from the original ONNX file"),
    (0, b"<", "an HTML or XML page"),
    (0, b"{", "JSON"),
)


def read_file(path: Path, limits: Limits) -> bytes:
    """Return the bytes of a model file: opened once, never a pipe, a device or too large."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"cannot open the model {quote(path)}: {reason}") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"the model {quote(path)} is not a regular file")
        _check_file_bytes(status.st_size, limits)
        # Not to the end: a file that grows meanwhile is read no further than it was.
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(status.st_size)
    except OSError as error:
        raise ModelError(f"cannot read the model {quote(path)}: {error.strerror}") from error
    finally:
        os.close(handle)


def parse(data: bytes | bytearray | memoryview, limits: Limits, file: str = "") -> onnx.ModelProto:
    """Return the model in `data`, or raise a `ModelError` that keeps protobuf's as its cause.

    file -- where the bytes came from, for the error
    """
    where = [[f"file {quote(file)}"]] if file else []
    _check_file_bytes(len(data), limits)
    if not len(data):
        raise ModelError("the model is empty (0 bytes)", where, "was the download interrupted?")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data if isinstance(data, bytes) else bytes(data))
    except (DecodeError, ValueError, RecursionError, MemoryError) as error:
        what = "this is not an ONNX model, or not a whole one"
        raise ModelError(what, where, _guess(data)) from error
    if not proto.HasField("graph"):
        raise ModelError("this is not an ONNX model: it has no graph", where, _guess(data))
    return proto


def _check_file_bytes(size: int, limits: Limits) -> None:
    if size > limits.file_bytes:
        row = ["the model", f"file_bytes is {size:,}", f"limit {limits.file_bytes:,}"]
        raise LimitExceeded("the model exceeds a limit", [row], _raise_hint(["file_bytes"]))


def _guess(data: bytes | bytearray | memoryview) -> str:
    head = bytes(data[:64])
    for start, signature, meaning in _SIGNATURES:
        if head[start:].startswith(signature):
            return f"it looks like {meaning}"
    if head.isascii() and head.replace(b"\n", b"").replace(b"\r", b"").decode().isprintable():
        return "it looks like text; the textual form of ONNX is read by onnx.parser"
    return "the file may be cut off, or nest graphs more than 32 deep"


def _raise_hint(fields: Iterable[str]) -> str:
    settings = ", ".join(f"{name}=..." for name in fields)
    return f"load(..., limits=Limits({settings})) if you trust this file"


def scan(proto: onnx.ModelProto, limits: Limits) -> Counts:
    """Check `proto` against `limits` and its own claims; raise one error with all that is wrong.

    Texts that are not valid UTF-8, which Python can neither store nor print, are replaced in
    place by their escaped form. Declared dimensions that are negative (Paddle writes -1), or that
    have a placeholder such as "?" for a name, become free. Nothing else is changed.
    """
    scanner = Scanner(proto, limits)
    scanner.walk()
    counts = scanner.inlined()
    scanner.over.raise_if_any(
        LimitExceeded,
        "the model exceeds a limit",
        "the model exceeds limits in {} places",
        _raise_hint(scanner.exceeded),
    )
    check_names(scanner.scopes, scanner.problems)
    scanner.problems.raise_if_any(
        ModelError,
        "the model is malformed",
        "the model is malformed in {} places",
        "the file is damaged, or its exporter has a defect: export it again",
    )
    return counts

"""Checks of one tensor, sparse tensor, attribute or type of an untrusted file.

Each function looks at one message and returns what is wrong with it, or None. Sizes are counted
in unbounded integers against the data present, and nothing is allocated from a size that a file
merely claims. Names, nesting and budgets are in `scanner.py`; external data in `external.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, SparseTensorProto, TensorProto, TypeProto

from sardonyx.errors import SHOWN, ModelError, quote

# Nothing addressable is larger; numpy refuses such a shape even when another dimension is 0.
ADDRESSABLE = 2**63

CELL_WIDTH = 240
TABLE_BYTES = 3200

_BITS_BY_NAME = {
    2: ("UINT2", "INT2"),
    4: ("UINT4", "INT4", "FLOAT4E2M1"),
    6: ("FLOAT6E2M3", "FLOAT6E3M2"),
    8: (
        *("BOOL", "UINT8", "INT8", "FLOAT8E8M0"),
        *("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    ),
    16: ("UINT16", "INT16", "FLOAT16", "BFLOAT16"),
    32: ("FLOAT", "INT32", "UINT32"),
    64: ("DOUBLE", "INT64", "UINT64", "COMPLEX64"),
    128: ("COMPLEX128",),
}
_NUMBER = dict(TensorProto.DataType.items())
# Older onnx packages lack the newest types, so that the table is made of the names they have.
BITS = {_NUMBER[n]: bits for bits, names in _BITS_BY_NAME.items() for n in names if n in _NUMBER}
TYPE_NAME = {number: name for name, number in _NUMBER.items()}

_TYPED_FIELD = {
    "FLOAT": "float_data",
    "COMPLEX64": "float_data",
    "DOUBLE": "double_data",
    "COMPLEX128": "double_data",
    "INT64": "int64_data",
    "UINT32": "uint64_data",
    "UINT64": "uint64_data",
    "STRING": "string_data",
}
_DATA_FIELDS = frozenset({*_TYPED_FIELD.values(), "int32_data", "raw_data"})
_ENTRIES_PER_ELEMENT = {"COMPLEX64": (2, 1), "COMPLEX128": (2, 1)} | {
    name: (1, 8 // bits) for bits in (2, 4) for name in _BITS_BY_NAME[bits]
}

CONTENT_FIELD = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_CONTENT_FIELDS = frozenset(CONTENT_FIELD.values())
# A writer that leaves out zeros and empty texts cannot have left out one of these.
_NEVER_OMITTED = frozenset({"t", "g", "sparse_tensor", "tp"})


class Problems:
    """Rows of one kind of problem: all are counted, the first ones kept for the message."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.count = 0

    def add(self, *row: str) -> None:
        self.count += 1
        if len(self.rows) < SHOWN - 1:
            self.rows.append(list(row))

    def raise_if_any(self, error: type[ModelError], one: str, many: str, hint: str) -> None:
        """Raise `error` if there was a problem; `many` holds a `{}` for the count."""
        if not self.count:
            return
        rows_shown = self._fitting()
        more = self.count - len(rows_shown)
        rows = [*rows_shown, [f"… and {more:,} more"]] if more else rows_shown
        raise error(one if self.count == 1 else many.format(f"{self.count:,}"), rows, hint)

    def _fitting(self) -> list[list[str]]:
        """The first rows whose table stays short, because names may be as long as they like."""
        fitting: list[list[str]] = []
        widths: dict[int, int] = {}
        for row in self.rows:
            cells = [c if len(c) <= CELL_WIDTH else f"{c[: CELL_WIDTH - 1]}…" for c in row]
            for column, cell in enumerate(cells):
                widths[column] = max(widths.get(column, 0), len(cell.encode()))
            if fitting and (len(fitting) + 1) * sum(widths.values()) > TABLE_BYTES:
                break
            fitting.append(cells)
        return fitting


def amount(number: int) -> str:
    """A number as text, short however large it is."""
    return f"{number:,}" if number < 10**15 else f"about 2^{number.bit_length() - 1}"


def node_label(name: str, op_type: str, index: int) -> str:
    return f"node {quote(name) if name else index} ({quote(op_type)[1:-1]})"


def inside(label: str, piece: str) -> str:
    """Return the place `piece` inside `label`, of which only the innermost level is kept."""
    if not label:
        return piece
    levels = label.split(" › ")
    return " › ".join((["…", levels[-1]] if len(levels) > 1 else levels) + [piece])


def element_count(dims: Iterable[int]) -> int:
    return math.prod(dims)


def byte_count(data_type: int, dims: Iterable[int]) -> int:
    """Return the bytes of a packed tensor of that type and shape."""
    return (BITS[data_type] * element_count(dims) + 7) // 8


def shape_problem(data_type: int, dims: Sequence[int]) -> str | None:
    return _kind_problem(data_type, dims) or _span_problem(data_type, dims)


def _kind_problem(data_type: int, dims: Sequence[int]) -> str | None:
    if data_type != TensorProto.STRING and data_type not in BITS:
        return f"has the unknown data type {data_type}"
    negative = next((d for d in dims if d < 0), None)
    return None if negative is None else f"has the negative dimension {negative}"


def _span_problem(data_type: int, dims: Sequence[int]) -> str | None:
    span = math.prod(d for d in dims if d) * BITS.get(data_type, 64) // 8
    return f"has dimensions that make {amount(span)} bytes" if span >= ADDRESSABLE else None


def tensor_problem(tensor: TensorProto, data: dict[str, int]) -> str | None:
    """Return what is wrong with `tensor`, whose data fields have the lengths `data`."""
    dims, data_type = tensor.dims, tensor.data_type
    if tensor.HasField("segment"):
        return "is only a segment of a tensor"
    if tensor.data_location == TensorProto.EXTERNAL:
        if data:
            return "has data both in the file and outside"
        if data_type == TensorProto.STRING:
            return "holds strings, which cannot lie in another file"
        return shape_problem(data_type, dims)
    if len(data) > 1:
        return f"has its data twice, in {' and '.join(sorted(data))}"
    return (
        _kind_problem(data_type, dims)
        or _data_problem(data_type, dims, data)
        or _span_problem(data_type, dims)
    )


def _data_problem(data_type: int, dims: Sequence[int], data: dict[str, int]) -> str | None:
    name = TYPE_NAME[data_type]
    typed = _TYPED_FIELD.get(name, "int32_data")
    field, present = next(iter(data.items()), (typed, 0))
    if field == "raw_data" and data_type != TensorProto.STRING:
        needed, unit = byte_count(data_type, dims), "bytes"
    elif field == typed:
        per, of = _ENTRIES_PER_ELEMENT.get(name, (1, 1))
        needed, unit = -(-element_count(dims) * per // of), "entries"
    else:
        return f"is of type {name} but has its data in {field}"
    if present == needed:
        return None
    return f"needs {amount(needed)} {unit} of data and has {amount(present)}"


def data_lengths(fields: Mapping[str, Any]) -> dict[str, int]:
    """Return the length of every data field among a tensor's fields that is not empty."""
    lengths = {name: len(value) for name, value in fields.items() if name in _DATA_FIELDS}
    return {name: length for name, length in lengths.items() if length}


def sparse_problem(sparse: SparseTensorProto) -> str | None:
    """Return what is wrong with a sparse tensor whose two tensors are sound by themselves."""
    values, indices, dims = sparse.values, sparse.indices, list(sparse.dims)
    problem = shape_problem(values.data_type, dims)
    if problem:
        return problem
    if len(values.dims) != 1:
        return f"has values of rank {len(values.dims)} instead of 1"
    count = values.dims[0]
    if indices.data_type != TensorProto.INT64 and (count or indices.dims):
        return "has indices that are not INT64"
    flat = list(indices.dims) == [count]
    if count and not flat and list(indices.dims) != [count, len(dims)]:
        return f"has {count} values and indices of shape {list(indices.dims)}"
    if count and indices.data_location != TensorProto.EXTERNAL:
        bound = [element_count(dims)] if flat else dims
        return index_problem(_int64_data(indices).reshape(count, -1), bound)
    return None


def index_problem(indices: np.ndarray, bound: Sequence[int]) -> str | None:
    """Return what is wrong with the indices (one row per value) of a sparse tensor."""
    if (indices < 0).any() or (indices >= np.array(bound, dtype=np.int64)).any():
        return "has an index outside its dimensions"
    return None


def _int64_data(tensor: TensorProto) -> np.ndarray:
    if tensor.raw_data:
        return np.frombuffer(tensor.raw_data, dtype="<i8")
    return np.fromiter(tensor.int64_data, np.int64, len(tensor.int64_data))


def attribute_problem(fields: dict[str, Any], in_function: bool) -> str | None:
    """Return what is wrong with an attribute's type tag, content and reference."""
    if not fields.get("name"):
        return "has no name"
    present = sorted(_CONTENT_FIELDS & fields.keys())
    if fields.get("ref_attr_name"):
        if not in_function:
            return "refers to an attribute of a function, outside any function"
        return "has both a reference and a value" if present else None
    tag = fields.get("type", 0)
    expected = CONTENT_FIELD.get(tag)
    if expected is None:
        return "has no type" if not present else f"has a value in {present[0]!r} but no type"
    wrong = [p for p in present if p != expected]
    if wrong:
        tag_name = AttributeProto.AttributeType.Name(tag)
        return f"is tagged {tag_name} but has a value in {' and '.join(map(repr, wrong))}"
    if not present and expected in _NEVER_OMITTED:
        return f"is tagged {AttributeProto.AttributeType.Name(tag)} but has no value"
    return None


def type_levels(declared: TypeProto) -> Iterator[TypeProto]:
    """Yield a type and the types nested in it, outermost first."""
    while True:
        yield declared
        kind = declared.WhichOneof("value")
        if kind in ("sequence_type", "optional_type"):
            declared = getattr(declared, kind).elem_type
        elif kind == "map_type":
            declared = declared.map_type.value_type
        else:
            return


def element_problem(declared: TypeProto, is_nested: bool) -> str | None:
    """Return what is wrong with one level of a type; data type 0 is one not yet inferred."""
    kind = declared.WhichOneof("value")
    number = 0
    if kind in ("tensor_type", "sparse_tensor_type"):
        number = getattr(declared, kind).elem_type
    elif kind == "map_type":
        number = declared.map_type.key_type
    if is_nested and not number and kind in (None, "tensor_type", "sparse_tensor_type"):
        return "has a type without its elements' type"
    return None if number in TYPE_NAME else f"has the unknown data type {number}"

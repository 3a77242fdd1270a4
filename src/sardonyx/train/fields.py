"""Which field of the data feeds which input of the model; checked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import DataError, quote
from sardonyx.train.data import Field, Rows, Source, Stream, Subset, Table

LABELS = ("label", "labels", "y", "target", "targets", "class", "classes")
INPUTS = ("x", "input", "inputs", "image", "images", "pixels", "features", "data")
CHECKED_ROWS = 4096


@dataclass(frozen=True)
class Link:
    """One input and the field that feeds it."""

    input: str
    field: str
    dtype: np.dtype[Any]
    shape: tuple[Any, ...] | None  # of one row; names for sizes that are not fixed
    why: str
    cast: bool


def link(
    wanted: Sequence[ir.Value],
    labels: Sequence[str],
    fields: Mapping[str, Field],
    given: Mapping[str, str] | None,
) -> list[Link]:
    """Choose a field for every wanted input; one error with every misfit.

    given -- {input: field}, for what cannot be guessed
    """
    chosen = _chosen(wanted, labels, fields, given)
    links: list[Link] = []
    problems: list[list[str]] = []
    for value in wanted:
        made = _fit(value, chosen.get(value.name or ""), fields)
        if isinstance(made, Link):
            links.append(made)
        else:
            problems.append(made)
    if problems:
        have = ", ".join(
            f"{quote(n)} {_word(f.dtype)} {list(f.shape or ())}" for n, f in fields.items()
        )
        raise DataError(
            f"the data does not fit the model ({len(problems)} problem{'s' * (len(problems) > 1)})",
            problems,
            hint=f"the data has {have}; --field input=field, or fields={{'input': 'field'}}, links "
            "them by hand",
        )
    return links


def _chosen(
    wanted: Sequence[ir.Value],
    labels: Sequence[str],
    fields: Mapping[str, Field],
    given: Mapping[str, str] | None,
) -> dict[str, tuple[str, str]]:
    """Each input's field, and why it: asked for, of the same name, of a usual name, left over."""
    chosen: dict[str, tuple[str, str]] = {}
    free = [f for f in fields if f not in (given or {}).values()]
    for value in wanted:
        name = value.name or ""
        if given and name in given:
            chosen[name] = (given[name], "as asked")
        elif name in free:
            chosen[name] = (name, "same name")
            free.remove(name)
    for names, stems, role in (
        ([n for n in labels if n not in chosen], LABELS, "a name for labels"),
        (
            [v.name or "" for v in wanted if v.name not in labels and v.name not in chosen],
            INPUTS,
            "a name for inputs",
        ),
    ):
        for name in names:
            found = next((f for s in stems for f in free if f.lower() == s), None)
            if found is not None:
                chosen[name] = (found, role)
                free.remove(found)
    left = [v.name or "" for v in wanted if v.name not in chosen]
    if len(left) == 1 and len(free) == 1:
        chosen[left[0]] = (free.pop(), "the only one left")
    return chosen


def _fit(
    value: ir.Value, choice: tuple[str, str] | None, fields: Mapping[str, Field]
) -> Link | list[str]:
    name = value.name or ""
    dims = (
        [d if isinstance(d, int) else str(d) for d in value.shape]
        if value.shape is not None
        else None
    )
    want = f"{value.dtype} {dims}"
    if choice is None:
        return [f"input {quote(name)}", want, "no field of the data fits it"]
    field_name, why = choice
    if field_name not in fields:
        return [f"input {quote(name)}", want, f"there is no field {quote(field_name)}"]
    found, dtype = fields[field_name], value.dtype.numpy()  # type: ignore[union-attr]
    if not _castable(found.dtype, np.dtype(dtype)):
        return [f"input {quote(name)}", want, f"field {quote(field_name)} is {_word(found.dtype)}"]
    shape = tuple(dims[1:]) if dims else None
    if shape is not None and found.shape is not None and not _same(shape, found.shape):
        return [
            f"input {quote(name)}",
            want,
            f"rows of {quote(field_name)} have the shape {list(found.shape)}",
        ]
    return Link(name, field_name, np.dtype(dtype), shape, why, found.dtype != dtype)


def _word(dtype: np.dtype[Any]) -> str:
    return "text" if dtype.kind in "USO" else str(dtype)


def _castable(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    if have == want:
        return True
    if want.kind in "fV":  # numbers become floats; "V" is bfloat16
        return have.kind in "fiub"
    if want.kind in "iu":
        return have.kind in "iub"
    return have.kind == want.kind


def _same(want: tuple[Any, ...], have: tuple[int, ...]) -> bool:
    """Equal, up to sizes that are not fixed and axes of size 1 that one side leaves out."""
    fits = len(want) == len(have) and all(
        not isinstance(w, int) or w == h for w, h in zip(want, have, strict=True)
    )
    return fits or _squeezed(want) == _squeezed(have)


def _squeezed(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(d for d in shape if d != 1)


def convert(rows: Rows, links: Sequence[Link]) -> Rows:
    """A batch as the model takes it: types cast, axes of size 1 as the input has them."""
    fed = {}
    for item in links:
        array = rows[item.field]
        if item.cast:
            array = array.astype(item.dtype)
        if item.shape is not None and array.ndim - 1 != len(item.shape):
            array = array.reshape(
                array.shape[0], *(d if isinstance(d, int) else -1 for d in item.shape)
            )
        fed[item.input] = array
    return fed


def check_values(
    source: Source, links: Sequence[Link], classes: Mapping[str, tuple[int, int | None]]
) -> None:
    """Refuse NaN, infinities and labels out of range before training.

    classes -- label input → (number of classes, label that is ignored or None)
    A table of plain arrays is read whole; of mapped files, images and streams the first rows.
    """
    problems: list[list[str]] = []
    for item in links:
        array = _sample(source, item)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            problems.append(
                [
                    f"field {quote(item.field)}",
                    f"row {row}",
                    f"holds {array[~np.isfinite(array)][0]}",
                ]
            )
        if item.input in classes:
            count, ignored = classes[item.input]
            bad = (array < 0) | (array >= count)
            if ignored is not None:
                bad &= array != ignored
            if bad.any():
                row = int(np.argwhere(bad)[0][0])
                problems.append(
                    [
                        f"field {quote(item.field)}",
                        f"row {row}",
                        f"label {array[bad][0]}, not from 0 to {count - 1}",
                    ]
                )
    if problems:
        raise DataError("the data holds values that cannot be trained on", problems)


def _sample(source: Source, item: Link) -> np.ndarray:
    if isinstance(source, Stream):
        return next(iter(source.batches()))[item.field]
    table = source.table if isinstance(source, Subset) else source  # rows as people count them
    column = table.columns.get(item.field) if type(table) is Table else None
    if type(column) is np.ndarray:
        return column
    return source.take(np.arange(min(len(source), CHECKED_ROWS)))[item.field]

"""Which field of the data feeds which input of the model; checked before anything is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError, DataError, counted, did_you_mean, quote
from sardonyx.train.images import Images
from sardonyx.train.tables import LABELS, Field, Rows, Source, Stream, Subset, Table

INPUTS = ("x", "input", "inputs", "image", "images", "pixels", "features", "data")
TEXT = "OUS"  # kinds of NumPy types that hold text
SHOWN = 8  # columns in a message


@dataclass(frozen=True)
class Feeding:
    """What the user says about feeding the model.

    fields     -- input → field of the data, for what cannot be guessed
    constants  -- input → a value that is the same for all rows
    batch_axes -- input → the axis of its rows, where that is not the first
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    batch_axes: Mapping[str, int] = field(default_factory=dict)

    def refuse_unknown(self, inputs: Sequence[str]) -> None:
        """An error that names every input which the model does not have."""
        options = {"field": self.fields, "constant": self.constants, "batch axis": self.batch_axes}
        rows = [
            [option, quote(name), did_you_mean(name, inputs)]
            for option, names in options.items()
            for name in names
            if name not in inputs
        ]
        if rows:
            raise ArgumentError("the model has no such inputs to feed", rows)


@dataclass(frozen=True)
class Link:
    """One input and what feeds it: a field of the data, or a constant.

    shape    -- of one row; names for sizes that are not fixed
    axis     -- of the rows in the input
    batch    -- the number of rows that the input takes, where the model fixes it
    classes  -- the names of the classes, where the field holds names instead of numbers
    constant -- the value, where it is the same for all rows; one number fills the input
    """

    input: str
    field: str
    dtype: np.dtype[Any]
    shape: tuple[Any, ...] | None
    why: str
    cast: bool
    axis: int = 0
    batch: int | None = None
    classes: tuple[str, ...] = ()
    constant: np.ndarray | None = None

    def filled(self, rows: int) -> np.ndarray:
        """The constant as it is fed with so many rows."""
        assert self.constant is not None
        if self.constant.ndim or self.shape is None:
            return self.constant
        dims = list(self.shape)
        if self.batch != 0:
            dims.insert(self.axis, self.batch or rows)
        return np.full(dims, self.constant)


def link(
    inputs: Sequence[ir.Value],
    labels: Sequence[str],
    source: Source,
    feeding: Feeding | None = None,
    classes: Sequence[str] = (),
) -> list[Link]:
    """Choose a field for every input; one error with every misfit.

    classes -- the names of the classes that the model was trained on
    """
    feeding = feeding or Feeding()
    fields = source.fields
    fed = [v for v in inputs if v.name not in feeding.constants]
    choices = _choices(fed, labels, fields, feeding.fields)
    size = batch_dim([v for v in fed if v.name not in labels])
    links: list[Link] = []
    problems: list[list[str]] = []
    for value in inputs:
        name = value.name or ""
        axis = feeding.batch_axes.get(name, row_axis(value, size))
        rank = len(_dims(value) or ())
        item: Link | str
        if not is_axis(axis, rank):
            item = f"has no axis {axis!r}"
        elif name in feeding.constants:
            item = _constant(value, feeding.constants[name], axis)
        elif name in labels:  # whose shape follows from that of an output, as it is declared
            item = _fit(value, choices.get(name), fields, axis, is_label=True)
        elif rank and name not in feeding.batch_axes and (why := _no_rows(value, axis, size)):
            item = why
        else:
            item = _fit(value, choices.get(name), fields, axis, is_label=False)
        if isinstance(item, Link):
            links.append(item)
        else:
            problems.append([f"input {quote(name)}", f"{value.dtype} {_dims(value)}", item])
    if problems:
        raise DataError(
            f"the data does not fit the model ({counted(len(problems), 'problem')})",
            problems,
            hint=f"the data has {_listed(fields)}; --field input=field (fields=) links them, "
            "--constant input=value (constants=) feeds the same value with every row"
            f"{_of_columns(source)}",
        )
    return [_with_classes(item, source, fields, classes) for item in links]


def is_axis(axis: Any, rank: int) -> bool:
    """Whether an input of so many axes (0: unknown) may have its rows along `axis`."""
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        return False
    return not rank or bool(-rank <= axis < rank)


def _of_columns(source: Source) -> str:
    """Of which columns of a file the field `x` consists."""
    names = source.x_columns if isinstance(source, Table) else ()
    if not names:
        return ""
    listing = ", ".join(map(quote, names[:SHOWN])) + " …" * (len(names) > SHOWN)
    return f'; "x" consists of the columns {listing}: --columns a,b,label (columns=) chooses others'


def _listed(fields: Mapping[str, Field]) -> str:
    return ", ".join(
        f"{quote(n)} {_word(f.dtype)} {list(f.shape or ())}" for n, f in fields.items()
    )


def _dims(value: ir.Value) -> list[Any] | None:
    if value.shape is None:
        return None
    return [d if isinstance(d, int) else str(d) for d in value.shape]


def batch_dim(inputs: Sequence[ir.Value]) -> Any:
    """The size that the first axes of most inputs share: a name, or a number if all are fixed."""
    first = [dims[0] for v in inputs if (dims := _dims(v))]
    free = [d for d in first if isinstance(d, str)]
    names = [d for d in free if d != "None"]
    return Counter(names or free or first).most_common(1)[0][0] if first else None


def row_axis(value: ir.Value, size: Any) -> int:
    """The first axis, unless that is fixed and another one has the size of the batch."""
    dims = _dims(value) or []
    moved = dims and isinstance(dims[0], int) and dims[0] != size and dims.count(size) == 1
    return dims.index(size) if moved else 0


def _no_rows(value: ir.Value, axis: int, size: Any) -> str:
    """Why an axis cannot be that of the rows: it is fixed, and the batch is not, or otherwise."""
    name, dim = value.name, (_dims(value) or [])[axis]
    if not isinstance(dim, int) or dim == size:
        return ""
    return (
        f"axis {axis} has the fixed size {dim}, the batch of other inputs {size}: "
        f"--batch-axis {name}=AXIS, or --constant {name}=VALUE"
    )


def _choices(
    inputs: Sequence[ir.Value],
    labels: Sequence[str],
    fields: Mapping[str, Field],
    by_hand: Mapping[str, str],
) -> dict[str, tuple[str, str]]:
    """Each input's field, and why: by hand, the same name, a usual name, the only one left."""
    choices: dict[str, tuple[str, str]] = {}
    free = [f for f in fields if f not in by_hand.values()]
    for value in inputs:
        name = value.name or ""
        if name in by_hand:
            choices[name] = (by_hand[name], "as requested")
        elif name in free:
            choices[name] = (name, "same name")
            free.remove(name)
    names = [v.name or "" for v in inputs if v.name not in choices]
    for group, usual, role in (
        ([n for n in labels if n in names], LABELS, "a name for labels"),
        ([n for n in names if n not in labels], INPUTS, "a name for inputs"),
    ):
        for name in group:
            match = next((f for s in usual for f in free if f.lower() == s), None)
            if match is not None:
                choices[name] = (match, role)
                free.remove(match)
    left = [n for n in names if n not in choices]
    if len(left) == 1 and len(free) == 1:
        choices[left[0]] = (free.pop(), "the only one left")
    return choices


def _fit(
    value: ir.Value,
    choice: tuple[str, str] | None,
    fields: Mapping[str, Field],
    axis: int,
    is_label: bool,
) -> Link | str:
    """The link of an input, or what is wrong with it."""
    name, dims = value.name or "", _dims(value)
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        kind = "sequence" if isinstance(value.type, ir.SequenceType) else "value that may be absent"
        return f"takes a {kind}, which rows of data cannot feed"
    if dims == []:
        return f"takes one value, not rows: --constant {name}=VALUE, constants={{{name!r}: value}}"
    if choice is None:
        return "no field of the data fits it"
    field_name, why = choice
    if field_name not in fields:
        return f"there is no field {quote(field_name)}"
    have, dtype = fields[field_name], np.dtype(value.dtype.numpy())  # type: ignore[union-attr]
    numbered = is_label and dtype.kind in "iu" and have.dtype.kind in f"{TEXT}f"
    if not numbered and not _castable(have.dtype, dtype):
        return f"field {quote(field_name)} is {_word(have.dtype)}"
    batch, shape = None, None
    if dims is not None:
        axis %= len(dims)
        shape = tuple(dims[:axis] + dims[axis + 1 :])
        batch = dims[axis] if isinstance(dims[axis], int) and not is_label else None
    if shape is not None and have.shape is not None and not _same(shape, have.shape):
        return f"rows of {quote(field_name)} have the shape {list(have.shape)}"
    return Link(name, field_name, dtype, shape, why, have.dtype != dtype, axis, batch)


def _constant(value: ir.Value, content: Any, axis: int) -> Link | str:
    """A constant for an input, or what is wrong with it."""
    dims, dtype = _dims(value), np.dtype(value.dtype.numpy())  # type: ignore[union-attr]
    try:
        array = np.asarray(content).astype(dtype)
    except (TypeError, ValueError):
        return f"the constant {content!r} is no {value.dtype}"
    if dtype.kind in "iub" and np.any(array != np.asarray(content)):
        return f"the constant {content!r} is no {value.dtype}"
    name = value.name or ""
    if array.ndim == 0 and dims:
        by_row = not isinstance(dims[axis], int)
        rest = dims[:axis] + dims[axis + 1 :] if by_row else dims
        free = [d for d in rest if not isinstance(d, int)]
        if free:
            return f"the size {quote(free[0])} is free: give an array of its full shape"
        batch = None if by_row else 0
        return Link(name, "", dtype, tuple(rest), "constant", False, axis, batch, (), array)
    fits = dims is None or (
        array.ndim == len(dims)
        and all(not isinstance(d, int) or d == n for d, n in zip(dims, array.shape, strict=True))
    )
    if not fits:
        return f"the constant has the shape {list(array.shape)}"
    return Link(name, "", dtype, None, "constant", False, axis, None, (), array)


def _with_classes(
    item: Link, source: Source, fields: Mapping[str, Field], classes: Sequence[str]
) -> Link:
    """A label field that holds names: their numbers are those of the model, or in sorted order."""
    if item.constant is not None or item.dtype.kind not in "iu":
        return item
    if fields[item.field].dtype.kind not in TEXT:
        return item
    if not classes and isinstance(source, Stream):
        raise DataError(
            f"the labels of {source.origin} are names, which cannot be numbered in a stream",
            hint="pass numbers as labels, or data that is not a stream",
        )
    labels = source.sample(item.field) if isinstance(source, Stream) else source.whole(item.field)
    missing = np.array([v is None or v != v or v in ("", b"") for v in labels.flat], bool)
    if missing.any():
        rows = missing.reshape(labels.shape)
        raise DataError(
            f"{source.origin} lacks {counted(int(rows.sum()), 'label')}",
            [[*_where(item, rows), "holds no class"]],
            hint="leave these rows out, or give them a class",
        )
    names = classes or sorted(set(map(text_of, labels.tolist())))
    return Link(**{**vars(item), "classes": tuple(names)})


def _word(dtype: np.dtype[Any]) -> str:
    return "text" if dtype.kind in TEXT else str(dtype)


def _castable(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    if have == want:
        return True
    if want.kind in "fV":  # numbers become floats; "V" is bfloat16
        return have.kind in "fiub"
    if want.kind in "iu":
        return have.kind in "iub"
    return have.kind == want.kind or (have.kind in TEXT and want.kind in TEXT)


def _same(want: tuple[Any, ...], have: tuple[int, ...]) -> bool:
    """Equal, up to sizes that are not fixed and axes of size 1 that one side leaves out."""
    fits = len(want) == len(have) and all(
        not isinstance(w, int) or w == h for w, h in zip(want, have, strict=True)
    )
    return fits or _squeezed(want) == _squeezed(have)


def _squeezed(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(d for d in shape if d != 1)


# -- batches -----------------------------------------------------------------------------------


def field_names(links: Sequence[Link]) -> set[str]:
    """The fields of the data that feed anything."""
    return {item.field for item in links if item.constant is None}


def convert(rows: Rows, links: Sequence[Link]) -> Rows:
    """Rows as the model takes them, by input: types cast, axes of size 1 as the input has them."""
    inputs = {}
    for item in links:
        if item.constant is not None:
            continue
        array = rows[item.field]
        if item.classes:
            array = _numbered(array, item)
        elif item.dtype.kind in TEXT:
            array = _texts(array, item)
        elif item.cast:
            array = _cast(array, item)
        if item.shape is not None and array.ndim - 1 != len(item.shape):
            array = array.reshape(
                array.shape[0], *(d if isinstance(d, int) else -1 for d in item.shape)
            )
        inputs[item.input] = array
    return inputs


def _texts(array: np.ndarray, item: Link) -> np.ndarray:
    """Text as strings, whatever holds it; a row that `check_text` did not see may hold none."""
    if array.dtype.kind == "U":
        return array.astype(object)
    kinds = set(map(type, array.flat))
    if kinds <= {str}:
        return array
    if not all(issubclass(kind, (str, bytes)) for kind in kinds):
        raise _no_text([_problem(array, item)])
    result = np.empty(array.size, object)
    try:
        result[:] = [text_of(value) for value in array.flat]
    except UnicodeDecodeError as error:
        raise DataError(
            f"field {quote(item.field)} holds bytes that are no text: {error.object[:20]!r}",
            hint="give strings, or bytes in UTF-8",
        ) from None
    return result.reshape(array.shape)


def text_of(value: Any) -> str:
    """A text or a name as a string: files of some kinds hold the bytes of their texts."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _cast(array: np.ndarray, item: Link) -> np.ndarray:
    """Another type; labels may be whole numbers that are stored as floats.

    Floats may be rounded. A number that is another one in the new type is refused.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(item.dtype)
    if item.dtype.kind in "iub":
        changed = cast != array
    else:
        changed = np.isinf(cast) & np.isfinite(array) if item.dtype.kind == "f" else np.False_
    if changed.any():
        wrong = array[changed].flat[0]
        if array.dtype.kind == "f" and item.dtype.kind in "iu" and wrong != np.rint(wrong):
            reason = f"holds the label {wrong}, not a whole number"
        else:
            reason = f"holds {wrong}, which {item.dtype} does not hold"
        raise DataError(f"field {quote(item.field)} {reason}")
    return cast


def _numbered(names: np.ndarray, item: Link) -> np.ndarray:
    numbers = {name: i for i, name in enumerate(item.classes)}
    try:
        places = [numbers[text_of(n)] for n in names.reshape(-1)]
        return np.array(places, item.dtype).reshape(names.shape)
    except KeyError as error:
        raise _unknown_class(item, error.args[0]) from None


def _unknown_class(item: Link, name: str) -> DataError:
    return DataError(
        f"field {quote(item.field)} holds the class {quote(name)}, which the model does not know",
        hint=f"it knows {', '.join(map(quote, item.classes))}",
    )


def special_links(links: Sequence[Link]) -> list[Link]:
    """The links that `feeds` has work with: constants, and rows that are not on the first axis."""
    return [item for item in links if item.axis or item.constant is not None]


def feeds(batch: Rows, special: Sequence[Link]) -> Rows:
    """A batch as it is fed: rows on their axis, constants added."""
    if not special:
        return batch
    rows = len(next(iter(batch.values())))
    fed = dict(batch)
    for item in special:
        if item.constant is not None:
            fed[item.input] = item.filled(rows)
        else:
            fed[item.input] = np.ascontiguousarray(np.moveaxis(batch[item.input], 0, item.axis))
    return fed


def row_count(batch: Rows, links: Sequence[Link]) -> int:
    """The number of rows in a batch as it is fed."""
    item = next(i for i in links if i.constant is None and i.input in batch)
    return batch[item.input].shape[item.axis]


def fixed_batch(links: Sequence[Link]) -> int | None:
    """The number of rows that the model takes at once, where it takes no other."""
    return next((item.batch for item in links if item.constant is None and item.batch), None)


# -- values ------------------------------------------------------------------------------------


def check_text(source: Source, links: Sequence[Link]) -> None:
    """Refuse missing values and numbers where the model takes text."""
    problems: list[list[str]] = []
    for item in links:
        if item.constant is not None or item.classes or item.dtype.kind not in TEXT:
            continue
        array = source.sample(item.field)
        if problem := _problem(array, item):
            problems.append(problem)
    if problems:
        raise _no_text(problems)


def _problem(array: np.ndarray, item: Link) -> list[str]:
    """The first row that holds no text, and what it holds; nothing if all do."""
    if array.dtype.kind != "O":
        return []
    wrong = np.array([not isinstance(v, (str, bytes)) for v in array.flat], bool)
    wrong = wrong.reshape(array.shape)
    return [*_where(item, wrong), f"holds {array[wrong][0]!r}"] if wrong.any() else []


def _no_text(problems: list[list[str]]) -> DataError:
    return DataError(
        "the model takes text where the data has none",
        problems,
        hint="replace missing values by a text, such as an empty one",
    )


@dataclass(frozen=True)
class LabelRange:
    """The labels that a loss has a meaning for: from `low` to `high`, or these two alone."""

    low: float
    high: float
    ends_only: bool = False

    def __str__(self) -> str:
        if np.isinf(self.high):
            return f"from {self.low:g}"
        return f"{self.low:g} {'or' if self.ends_only else 'to'} {self.high:g}"

    def excludes(self, array: np.ndarray) -> np.ndarray:
        if self.ends_only:
            return (array != self.low) & (array != self.high)
        return (array < self.low) | (array > self.high)


def check_values(
    source: Source,
    links: Sequence[Link],
    classes: Mapping[str, tuple[int, int | None]],
    ranges: Mapping[str, LabelRange],
) -> None:
    """Refuse NaN, infinities, labels out of range and unreadable images before training.

    classes -- label input → (number of classes, label that is ignored or None)
    ranges  -- label input → the numbers that its loss takes
    A table of plain arrays is read whole; of mapped files, images and streams the first rows.
    """
    table = source.table if isinstance(source, Subset) else source
    if isinstance(table, Images) and (files := table.unreadable()):
        raise DataError(
            f"{counted(len(files), 'image')} cannot be read", files, hint="replace or remove them"
        )
    problems: list[list[str]] = []
    for item in links:
        if item.constant is not None:
            continue
        array = source.sample(item.field)
        if item.classes:
            array = _numbered(array, item)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            wrong = ~np.isfinite(array)
            problems.append([*_where(item, wrong), f"holds {array[wrong][0]}"])
        elif array.dtype.kind == "f" and item.dtype.kind in "iu":
            array = _cast(array, item)
        if item.input in classes:
            count, ignored = classes[item.input]
            wrong = (array < 0) | (array >= count)
            if ignored is not None:
                wrong &= array != ignored
            if wrong.any():
                words = f"label {array[wrong][0]}, not from 0 to {count - 1}"
                problems.append([*_where(item, wrong), words])
        if item.input in ranges and array.dtype.kind in "iufb":
            allowed = ranges[item.input]
            wrong = allowed.excludes(array)
            if wrong.any():
                words = f"label {array[wrong][0]:g}, not {allowed}, which the loss is made for"
                problems.append([*_where(item, wrong), words])
    if problems:
        raise DataError("the data holds values that cannot be trained on", problems)


def _where(item: Link, wrong: np.ndarray) -> list[str]:
    return [f"field {quote(item.field)}", f"row {int(np.argwhere(wrong)[0][0])}"]

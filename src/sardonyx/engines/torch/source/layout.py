"""How operators of layout, indexing and types are written in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.engines.torch.source.expression import Dim, Expression, Literal, Size, build, joined
from sardonyx.engines.torch.source.reading import Reader, Unwritten, op

TYPES = {
    ir.DataType.FLOAT: ("torch.float32", "float"),
    ir.DataType.DOUBLE: ("torch.float64", "double"),
    ir.DataType.FLOAT16: ("torch.float16", "half"),
    ir.DataType.BFLOAT16: ("torch.bfloat16", "bfloat16"),
    ir.DataType.INT64: ("torch.int64", "long"),
    ir.DataType.INT32: ("torch.int32", "int"),
    ir.DataType.INT16: ("torch.int16", "short"),
    ir.DataType.INT8: ("torch.int8", ""),
    ir.DataType.UINT8: ("torch.uint8", ""),
    ir.DataType.BOOL: ("torch.bool", "bool"),
}


def many(items: Sequence[Any], hint: str = "size") -> Any:
    """Numbers and sizes with commas between them."""
    return joined(v.parts if isinstance(v, Size) else (Literal(v, hint),) for v in items)


@op("Cast")
def cast(reader, node, x, *, to, **_):
    spelling = TYPES.get(ir.DataType(to))
    if spelling is None:
        raise Unwritten("a type that torch lacks")
    whole, short = spelling
    if x.dtype == ir.DataType(to):
        if x in reader.conditions:
            reader.conditions.add(node.outputs[0])
        return build("{0}", x)
    if reader.is_float(x) and to not in (1, 10, 11, 16, 9):
        return build(f"{{0}}.to({whole})", x)
    return build(f"{{0}}.{short}()" if short else f"{{0}}.to({whole})", x)


@op("CastLike")
def cast_like(reader, node, x, like, **_):
    return build("{0}.to({1}.dtype)", x, like)


@op("Reshape")
def reshape(reader, node, x, shape, *, allowzero):
    sizes = reader.listed(shape)
    if not allowzero and shape not in reader.known:  # where it says 0, x decides
        rank = reader.rank(x)
        sizes = [
            Size(("(", *s.parts, " or ", Dim(x, i), ")")) if isinstance(s, Size) and i < rank else s
            for i, s in enumerate(sizes)
        ]
    elif not allowzero:
        input_sizes = reader.sizes(x) if any(map(_is_zero, sizes)) else []
        if any(_is_zero(s) and i >= len(input_sizes) for i, s in enumerate(sizes)):
            raise Unwritten("the rank of an input is not known")
        sizes = [input_sizes[i] if _is_zero(s) else s for i, s in enumerate(sizes)]
    flat = _flattened(reader, x, node.outputs[0], sizes)
    return flat or build("{0}.reshape({1})", x, many(sizes))


def _is_zero(size: int | Size) -> bool:
    return isinstance(size, int) and size == 0


def _flattened(
    reader: Reader, x: ir.Value, y: ir.Value, sizes: list[int | Size]
) -> Expression | None:
    """Where the last axes become one: `x.flatten(2)`."""
    ids, rank = reader.ids.get(x, ()), len(sizes)
    if rank < 1 or rank >= len(ids):
        return None
    before = [s.atom for s in sizes[:-1] if isinstance(s, Size)]
    same = all(
        (s == i)
        if isinstance(s, int)
        else s.atom is not None and reader.ids[s.atom.value][s.atom.axis] == i
        for s, i in zip(sizes[:-1], ids)
    )
    batch = sizes[0] == -1 and all(isinstance(s, int) for s in sizes) and not before
    if batch and rank == 2 and isinstance(sizes[1], int):
        rest = ids[1:]
        count = 1
        for i in rest:
            count = count * i if isinstance(i, int) else 0
        if count == sizes[1]:
            return build("{0}.flatten(1)", x)
    if not same:
        return None
    return build("{0}.flatten({1})", x, Literal(rank - 1, "start")) if rank > 1 else None


@op("Transpose")
def transpose(reader, node, x, *, perm):
    perm = range(reader.rank(x))[::-1] if perm is None else perm
    moved = [i for i, p in enumerate(perm) if i != p]
    if not moved:
        return build("{0}", x)
    if len(moved) == 2:
        last = len(perm) - 2
        pair = (-2, -1) if moved == [last, last + 1] and last > 0 else tuple(moved)
        return build("{0}.transpose({1})", x, many(pair, "dim"))
    return build("{0}.permute({1})", x, many([int(p) for p in perm], "dim"))


@op("Unsqueeze")
def unsqueeze(reader, node, x, axes):
    numbers = reader.integers(axes)
    if x.shape is None and len(numbers) == 1:
        return build("{0}.unsqueeze({1})", x, Literal(numbers[0], "dim"))
    rank = reader.rank(x)
    places = sorted(a % (rank + len(numbers)) for a in numbers)
    if len(places) == 1:
        last = places[0] == rank
        return build("{0}.unsqueeze({1})", x, Literal(-1 if last else places[0], "dim"))
    parts = ["None" if i in places else ":" for i in range(rank + len(places))]
    return build(f"{{0}}[{', '.join(parts)}]", x)


@op("Squeeze")
def squeeze(reader, node, x, axes=None):
    if axes is None:
        return build("{0}.squeeze()", x)
    dims = reader.axes(x, reader.integers(axes))
    dim = dims[0] if len(dims) == 1 else tuple(dims)
    return build("{0}.squeeze({1})", x, Literal(dim, "dim"))


@op("Flatten")
def flatten(reader, node, x, *, axis):
    rank = reader.rank(x)
    axis = axis % rank if axis != rank else rank
    if axis in (0, rank):
        return build("{0}.reshape(1, -1)" if axis == 0 else "{0}.reshape(-1, 1)", x)
    if axis == 1:
        return build("{0}.flatten(1)", x)
    return build("{0}.flatten({1}).flatten(0, {2})", x, Literal(axis), Literal(axis - 1))


@op("Concat")
def concat(reader, node, *xs, axis):
    dim = reader.last_or_front(node.outputs[0], axis)
    places = ", ".join(f"{{{i}}}" for i in range(len(xs)))
    return build(f"torch.cat(({places}), dim={{{len(xs)}}})", *xs, Literal(dim, "dim"))


@op("Split")
def split(
    reader, node, x, sizes = None, *, axis,
    num_outputs = None
):  # fmt: skip
    rank, count = reader.rank(x), len(node.outputs)
    dim = Literal(-1 if axis % rank == rank - 1 else axis % rank, "dim")
    whole = reader.sizes(x)[axis % rank]
    lengths = None if sizes is None else reader.integers(sizes)
    even = lengths is None or len(set(lengths)) == 1
    if count == 1:
        return build("{0}", x)
    if even and (lengths is not None or (isinstance(whole, int) and whole % count == 0)):
        return [build("{0}.chunk({1}, dim={2})", x, Literal(count, "parts"), dim)]
    if lengths is None:
        raise Unwritten("parts whose size depends on data")
    return [build("{0}.split({1}, dim={2})", x, Literal(tuple(lengths), "sizes"), dim)]


@op("Slice")
def slice_(
    reader, node, x, starts, ends,
    axes = None, steps = None
):  # fmt: skip
    begin, stop = reader.listed(starts), reader.listed(ends)
    where = list(range(len(begin))) if axes is None else reader.axes(x, reader.integers(axes))
    if min(where, default=0) < 0:
        raise Unwritten("the rank of an input is not known")
    by = [1] * len(begin) if steps is None else reader.integers(steps)
    turned = [a for a, s in zip(where, by) if s < 0]
    cuts: dict[int, Any] = {}
    for axis, a, b, s in zip(where, begin, stop, by):
        if s < 0:
            if s != -1 or not (_is_whole(a, b) or _is_front(a, b)):
                raise Unwritten("a part of an axis backwards")
            if not _is_whole(a, b):
                cuts[axis] = _cut(0, a + 1, 1)
        elif not (_is_zero(a) and _reaches_end(b) and s == 1):
            cuts[axis] = _cut(a, b, s)
    sliced = build("{0}", x)
    if cuts:
        parts: list[Any] = []
        for axis in range(max(cuts) + 1):
            parts.append(cuts.get(axis, (":",)))
        sliced = build("{0}[{1}]", x, joined(parts))
    return build("{0}.flip({1})", sliced, many(turned, "dim")) if turned else sliced


def _is_whole(a: int | Size, b: int | Size) -> bool:
    return (
        isinstance(a, int)
        and a in (-1, 2**63 - 1, 2**31 - 1)
        and isinstance(b, int)
        and b < -(2**30)
    )


def _is_front(a: int | Size, b: int | Size) -> bool:
    """Whether a slice goes backwards from an element to the first one."""
    return isinstance(a, int) and a >= 0 and isinstance(b, int) and b < -(2**30)


def _reaches_end(b: int | Size) -> bool:
    return isinstance(b, int) and b >= 2**31 - 1


def _cut(a: int | Size, b: int | Size, step: int) -> tuple[Any, ...]:
    begin = () if _is_zero(a) else many([a], "start")
    stop = () if _reaches_end(b) else many([b], "stop")
    return (*begin, ":", *stop, *((":", Literal(step, "step")) if step != 1 else ()))


@op("Gather")
def gather(reader, node, x, ids, *, axis):
    axis %= reader.rank(x)
    front = ":, " * axis
    indices = reader.known.get(ids)
    if indices is not None and indices.ndim == 0:
        return build(f"{{0}}[{front}{{1}}]", x, reader.operand(ids))
    if indices is not None and indices.size <= 8 and indices.ndim == 1 and x not in reader.known:
        chosen = many([int(v) for v in indices], "index")
        return build(f"{{0}}[{front}[{{1}}]]", x, chosen)
    return build(f"{{0}}[{front}{{1}}]", x, ids)


@op("GatherElements")
def gather_elements(reader, node, x, ids, *, axis):
    return build("torch.take_along_dim({0}, {1}, dim={2})", x, ids, Literal(axis, "dim"))


@op("Expand")
def expand(reader, node, x, shape):
    sizes = reader.listed(shape)
    new = len(sizes) - reader.rank(x)
    if new < 0:
        sizes, new = [*([-1] * -new), *sizes], 0
    targets = [-1 if isinstance(s, int) and s == 1 and i >= new else s for i, s in enumerate(sizes)]
    value = reader.operand(x)
    if isinstance(value, ir.Value) and shape not in reader.known:  # where it says 1, x decides
        text = "{0}.expand(torch.broadcast_shapes({0}.shape, ({1},)))"
        return build(text, value, many(reader.listed(shape)))
    if isinstance(value, ir.Value):
        return build("{0}.expand({1})", value, many(targets))
    dtype, _ = TYPES.get(x.dtype or ir.DataType.UNDEFINED, (None, None))
    if dtype is None:
        raise Unwritten("a type that torch lacks")
    return _full(reader, sizes, value, dtype)


def _full(reader: Reader, sizes: Sequence[Any], value: Any, dtype: str) -> Expression:
    device = reader.device(sizes)
    comma = "," if len(sizes) == 1 else ""
    return build(
        f"torch.full(({{0}}{comma}), {{1}}, dtype={dtype}, {{2}})", many(sizes), value, device
    )


@op("ConstantOfShape")
def constant_of_shape(reader, node, shape, *, value=None):
    number = 0.0 if value is None else value.reshape(-1)[0].item()
    dtype, _ = TYPES[node.outputs[0].dtype or ir.DataType.FLOAT]
    return _full(reader, reader.listed(shape), Literal(number, "value"), dtype)


@op("Range")
def range_(reader, node, start, limit, delta, **_):
    items = [_bound(reader, v) for v in (start, limit, delta)]
    device = reader.device(items)
    if not isinstance(items[2], Size) and items[2] == 1:
        items = items[1:2] if not isinstance(items[0], Size) and items[0] == 0 else items[:2]
    return build("torch.arange({0}, {1})", many(items), device)


def _bound(reader: Reader, value: ir.Value) -> Any:
    if value not in reader.known:
        return reader.listed(value)[0]
    item = reader.array(value).reshape(-1)[0]
    return item.item() if hasattr(item, "item") else item


@op("Shape")
def shape(reader, node, x, *, start=0, end=None):
    whole = not start and end is None
    part = "" if whole else f"[{start}:{'' if end is None else end}]"
    return build(f"torch.tensor({{0}}.shape{part}, device={{0}}.device)", x)


@op("NonZero")
def nonzero(reader, node, x):
    return build("torch.nonzero({0}).T", x)


@op("Tile")
def tile(reader, node, x, repeats):
    return build("{0}.repeat({1})", x, many(reader.listed(repeats), "repeats"))


@op("Pad")
def pad(
    reader, node, x, pads, value = None, axes = None,
    *, mode
):  # fmt: skip
    amounts, rank = reader.listed(pads), reader.rank(x)
    where = list(range(rank)) if axes is None else [a % rank for a in reader.integers(axes)]
    begin = dict(zip(where, amounts[: len(where)]))
    end = dict(zip(where, amounts[len(where) :]))
    pairs = [(begin.get(a, 0), end.get(a, 0)) for a in range(rank)]
    while pairs and pairs[0] == (0, 0):
        pairs = pairs[1:]
    names = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if not pairs:
        return build("{0}", x)
    if mode != "constant":
        return _padded(x, rank, pairs, names[mode])
    numbers = _reversed(pairs)
    number = Literal(0) if value is None else reader.operand(value)
    if isinstance(number, Literal) and number.value == 0:
        return build("F.pad({0}, ({1}))", x, numbers)
    number = build("{0}.item()", number) if isinstance(number, ir.Value) else number
    return build("F.pad({0}, ({1}), value={2})", x, numbers, number)


def _reversed(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Pads as torch takes them: those of the last axis first."""
    return many([p for pair in reversed(pairs) for p in pair], "pad")


def _padded(x: ir.Value, rank: int, pairs: list[tuple[Any, Any]], mode: str) -> Expression:
    """Padding with what is there: torch pads all axes but the first two."""
    pairs = [(0, 0)] * (rank - 2 - len(pairs)) + pairs
    if len(pairs) > 3:
        raise Unwritten(f"{mode} padding of {len(pairs)} axes")
    missing = len(pairs) + 2 - rank
    text = f'F.pad({{0}}{"[None]" if missing == 1 else ""}, ({{1}}), mode="{mode}")'
    if missing == 2:
        text = text.replace("{0}", "{0}[None, None]")
    text += {0: "", 1: ".squeeze(0)", 2: ".squeeze((0, 1))"}[missing]
    return build(text, x, _reversed(pairs))


@op("Trilu")
def trilu(reader, node, x, k=None, *, upper):
    name = "triu" if upper else "tril"
    shift = 0 if k is None else int(reader.number(k))
    text = f"torch.{name}({{0}})" if not shift else f"torch.{name}({{0}}, {{1}})"
    return build(text, x, Literal(shift, "diagonal"))


@op("DepthToSpace")
def depth_to_space(reader, node, x, *, blocksize, mode):
    if mode != "CRD":
        raise Unwritten("depth first")
    return build("F.pixel_shuffle({0}, {1})", x, Literal(blocksize, "factor"))


@op("OneHot")
def one_hot(reader, node, ids, depth, values, *, axis):
    pair = reader.array(values).reshape(-1).tolist()
    last = axis in (-1, reader.rank(ids))
    if pair != [0, 1] or not last or values.dtype not in TYPES:
        raise Unwritten("other values than 0 and 1, or another axis")
    dtype, _ = TYPES[values.dtype]
    count = Literal(int(reader.number(depth)), "classes")
    whole = "" if ids.dtype == ir.DataType.INT64 else ".long()"
    return build(f"F.one_hot({{0}}{whole}, {{1}}).to({dtype})", ids, count)

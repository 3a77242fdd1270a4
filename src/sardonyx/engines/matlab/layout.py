"""Operators that move elements: shapes, slices, indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.engines.matlab.elementwise import bool_word, wrapped
from sardonyx.engines.matlab.function import (
    FLOAT_CLASSES,
    Call,
    Refused,
    _number,
    check_exact,
    literal,
    matlab,
    row,
)


@matlab("Constant")
def constant_node(m, **attributes):
    value = attributes.get("value")
    if not isinstance(value, np.ndarray) or value.ndim > 1:
        raise Refused("a constant that is not a tensor")
    check_exact(value)
    return literal(value)


@matlab("ConstantOfShape")
def constant_of_shape(m, shape, *, value):
    array = np.zeros(1, np.float32) if value is None else np.asarray(value)
    kind = literal(array.reshape(()))
    return f"repmat({kind}, [fliplr({shape}(:)'), 1, 1])" if m.rank() else kind


def fixed(count: int) -> Callable[..., str]:
    """The output has that many axes, whatever the inputs have."""
    return lambda m, *inputs, **attributes: str(count)


def same(m: Call, *inputs: Any, **attributes: Any) -> str:
    """The output has as many axes as the first input."""
    return str(m.rank())


@matlab("Shape", ranks=fixed(1))
def shape(m, x, *, start, end):
    rank = m.rank()
    if isinstance(rank, str):
        if start or end is not None:
            raise Refused("some sizes of a tensor whose number of axes is not known")
        return f"onnx_shape({x}, {rank}, 0, {rank})"
    first, last, _ = slice(start, end).indices(rank)
    return f"onnx_shape({x}, {rank}, {first}, {max(first, last)})"


@matlab("Size", ranks=fixed(0))
def size(m, x):
    return f"numel({x})"


def sizes_text(shape: np.ndarray) -> str | None:
    """Sizes that are all known, in MATLAB's order; None if one is not."""
    if (shape <= 0).any() or shape.size < 2:
        return None
    return row(shape[::-1].tolist())


@matlab("Reshape")
def reshape(m, x, shape, *, allowzero):
    constant = m.known(1)
    if constant is not None and (text := sizes_text(constant)):
        return f"reshape({x}, {text})"
    return f"onnx_reshape({x}, {m.rank()}, {shape}, {bool_word(allowzero)})"


@matlab("Flatten")
def flatten(m, x, *, axis):
    rank = m.rank()
    axis = axis + rank if axis < 0 else axis
    if axis == 0:
        return f"reshape({x}, [], 1)"
    if axis == rank:
        return f"reshape({x}, 1, [])"
    inner = ", ".join(f"size({x}, {d})" for d in range(1, rank - axis + 1))
    return f"reshape({x}, prod([{inner}]), [])"


def _squeezed(m: Call, x: str, axes: Any = None) -> str:
    return f"{m.rank()} - {len(m.numbers(1, 'axes'))}" if axes is not None else ""


@matlab("Squeeze", ranks=_squeezed)
def squeeze(m, x, axes=None):
    rank = m.rank()
    if axes is not None:
        return f"onnx_drop({x}, {rank}, {row(m.dims(m.numbers(1, 'axes'), rank))})"
    (result,) = m.node.outputs
    shape = m.node.inputs[0].shape
    if shape is None or not all(isinstance(d, int) for d in shape):
        count = m.function.names.fresh(f"{m.function.name(result)}_rank")
        m.emit(m.function.name(result), count, expression=f"onnx_squeeze({x}, {rank})")
        return m.function.count_axes(result, count)
    numbers = [i for i, d in enumerate(shape) if d == 1]
    return f"onnx_drop({x}, {rank}, {row(m.dims(numbers, rank))})"


def _unsqueezed(m: Call, x: str, axes: Any) -> str:
    return f"{m.rank()} + {len(m.numbers(1, 'axes'))}"


@matlab("Unsqueeze", ranks=_unsqueezed)
def unsqueeze(m, x, axes):
    numbers = m.numbers(1, "axes")
    rank = m.rank()
    total = f"{rank} + {len(numbers)}" if isinstance(rank, str) else rank + len(numbers)
    return f"onnx_add({x}, {rank}, {row(m.dims(numbers, total))}, {total})"


@matlab("Transpose")
def transpose(m, x, *, perm):
    rank = m.rank()
    order = list(perm) if perm is not None else list(range(rank))[::-1]
    if rank < 2:
        return x
    if rank == 2:
        return f"{x}.'" if order == [1, 0] else x
    dims = [rank - order[rank - j] for j in range(1, rank + 1)]
    return f"permute({x}, {row(dims)})"


@matlab("Concat", ranks=same)
def concat(m, *values, axis):
    rank = m.rank()
    empty = [v for v in m.node.inputs if v.shape is not None and 0 in v.shape]
    if len(empty) == len(values) and empty:
        raise Refused("tensors without elements")
    return f"cat({m.dim(axis, rank)}, {', '.join(values)})"


@matlab("Split")
def split(m, x, sizes=None, *, axis, num_outputs):
    rank = m.rank()
    dim = m.dim(axis, rank)
    count = len(m.node.outputs)
    if sizes is None:
        part = f"ceil(size({x}, {dim}) / {count})"
        rest = f"size({x}, {dim}) - {count - 1} * {part}"
        sizes = f"[repmat({part}, 1, {count - 1}), {rest}]"
    m.emit(*m.outputs(), expression=f"onnx_split({x}, {rank}, {dim}, {sizes})")


@matlab("Slice", ranks=same)
def slices(m, x, starts, ends, axes=None, steps=None):
    rank = m.rank()
    count = m.node.inputs[1].shape
    if axes is not None:
        numbers = m.numbers(3, "axes")
    elif count is not None and isinstance(count[0], int):
        numbers = list(range(count[0]))
    else:
        raise Refused("the number of axes that it cuts is not known")
    dims = row([m.dim(int(a), rank) for a in numbers])
    step = f"ones(1, {len(numbers)})" if steps is None else steps
    return f"onnx_slice({x}, {rank}, {dims}, {starts}, {ends}, {step})"


@matlab("Gather")
def gather(m, x, indices, *, axis):
    rank = m.rank()
    return f"onnx_gather({x}, {rank}, {indices}, {m.rank(1)}, {m.dim(axis, rank)})"


@matlab("GatherElements")
def gather_elements(m, x, indices, *, axis):
    rank = m.rank()
    return f"onnx_gather_elements({x}, {rank}, {indices}, {m.dim(axis, rank)})"


@matlab("GatherND")
def gather_nd(m, x, indices, *, batch_dims):
    return f"onnx_gather_nd({x}, {m.rank()}, {indices}, {m.rank(1)}, {batch_dims})"


KEEPING = ("none", "max", "min")  # reductions that give one of the elements


@matlab("ScatterElements")
def scatter_elements(m, x, indices, updates, *, axis, reduction):
    rank = m.rank()
    dim = m.dim(axis, rank)
    words = f"{x}, {rank}, {indices}, {updates}, {dim}, '{reduction}'"
    text = f"onnx_scatter_elements({words})"
    return text if reduction in KEEPING else wrapped(m, text)


@matlab("ScatterND")
def scatter_nd(m, x, indices, updates, *, reduction):
    words = f"{x}, {m.rank()}, {indices}, {m.rank(1)}, {updates}, '{reduction}'"
    text = f"onnx_scatter_nd({words})"
    return text if reduction in KEEPING else wrapped(m, text)


@matlab("Expand")
def expand(m, x, shape):
    return f"onnx_expand({x}, {m.rank()}, {shape})"


@matlab("Tile")
def tile(m, x, repeats):
    return f"onnx_tile({x}, {repeats})"


@matlab("Pad")
def pad(m, x, pads, value=None, axes=None, *, mode):
    rank = m.rank()
    chosen = m.numbers(3, "axes") if axes is not None else list(range(rank))
    if m.known(1) is None and chosen == list(range(rank)):
        first, last = (f"fliplr({pads}({part})')" for part in _halves(rank))
        return f"onnx_pad({x}, {rank}, {first}, {last}, '{mode}', {value or 0})"
    numbers = m.numbers(1, "pads")
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(chosen):
        before[m.dim(int(axis), rank) - 1] = int(numbers[i])
        after[m.dim(int(axis), rank) - 1] = int(numbers[i + len(chosen)])
    return f"onnx_pad({x}, {rank}, {row(before)}, {row(after)}, '{mode}', {value or 0})"


def _halves(rank: int) -> tuple[str, str]:
    return f"1:{rank}", f"{rank + 1}:{2 * rank}"


@matlab("Range")
def span(m, start, limit, delta, **attributes):
    dtype = m.type()
    if dtype in FLOAT_CLASSES:
        count = f"max(ceil(({limit} - {start}) / {delta}), 0)"
        return f"{start} + {FLOAT_CLASSES[dtype]}((0:double({count}) - 1)') * {delta}"
    step = m.known(2)
    if step is not None and step.size == 1 and int(step.reshape(-1)[0]) == 1:
        return f"({start}:{limit} - 1)'"
    return f"({start}:{delta}:{limit} - sign({delta}))'"


@matlab("OneHot")
def one_hot(m, indices, depth, values, *, axis):
    rank = m.rank() + 1
    return f"onnx_onehot({indices}, {m.rank()}, {m.dim(axis, rank)}, {depth}, {values})"


@matlab("CumSum")
def cumulative(m, x, axis, *, exclusive, reverse):
    rank = m.rank()
    dim = m.dim(m.numbers(1, "axis")[0], rank)
    words = f"{x}, {rank}, {dim}, 'sum', {bool_word(exclusive)}, {bool_word(reverse)}"
    return wrapped(m, f"onnx_accumulate({words})")


@matlab("TopK")
def top_k(m, x, k, *, axis, largest, sorted):
    rank = m.rank()
    expression = f"onnx_topk({x}, {rank}, {m.dim(axis, rank)}, {k}, {bool_word(largest)})"
    m.emit(*m.outputs(), expression=expression)


@matlab("NonZero")
def non_zero(m, x):
    if not m.rank():
        raise Refused("a tensor without axes")
    return f"onnx_nonzero({x}, {m.rank()})"


@matlab("Trilu")
def trilu(m, x, k=None, *, upper):
    offset = m.numbers(1, "k")[0] if k is not None else 0
    return f"onnx_trilu({x}, {m.rank()}, {offset}, {bool_word(upper)})"


@matlab("EyeLike")
def eye_like(m, x, *, dtype, k):
    kind = m.node.outputs[0].dtype
    name = FLOAT_CLASSES.get(kind, "double")
    # MATLAB counts diagonals the other way round where rows are columns.
    text = f"{name}(diag(ones(1, max(size({x}))), {-int(k)}))"
    return f"onnx_slice({text}, 2, [1, 2], [0, 0], [size({x}, 1), size({x}, 2)], [1, 1])"


@matlab("DepthToSpace")
def depth_to_space(m, x, *, blocksize, mode):
    return f"onnx_depth_to_space({x}, {blocksize}, '{mode}')"


@matlab("SpaceToDepth")
def space_to_depth(m, x, *, blocksize, **attributes):
    if attributes.get("mode") not in (None, "DCR"):
        raise Refused("its mode")
    return f"onnx_space_to_depth({x}, {blocksize})"


@matlab("ReverseSequence")
def reverse_sequence(m, x, counts, *, batch_axis, time_axis):
    rank = m.rank()
    time, batch = m.dim(time_axis, rank), m.dim(batch_axis, rank)
    return f"onnx_reverse_sequence({x}, {rank}, {counts}, {time}, {batch})"


@matlab("Resize")
def resize(m, x, roi=None, scales=None, sizes=None, **attributes):
    rank = m.rank()
    if m.type() not in FLOAT_CLASSES and attributes["mode"] != "nearest":
        raise Refused("integers between integers")
    if attributes["antialias"] or attributes["coordinate_transformation_mode"] not in (
        *("half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners"),
    ):
        raise Refused("its coordinate mode")
    if attributes["keep_aspect_ratio_policy"] != "stretch":
        raise Refused("its policy for sizes")
    axes = attributes["axes"] if attributes["axes"] is not None else list(range(rank))
    words = [f"'{attributes['mode']}'", f"'{attributes['coordinate_transformation_mode']}'"]
    words += [f"'{attributes['nearest_mode']}'", _number(attributes["cubic_coeff_a"])]
    words.append(bool_word(attributes["exclude_outside"]))
    numbers = m.known(2) if scales is not None else m.known(3)
    shape = m.node.inputs[0].shape
    if numbers is None or not all(isinstance(shape[a], int) for a in axes):
        if list(axes) != list(range(rank)):
            raise Refused("sizes of some axes that are not constant")
        return _resized(x, rank, scales, sizes, words)
    if not all(0 < number < 2**53 for number in numbers.tolist()):
        raise Refused("scales or sizes that are not positive numbers")
    factors, new = [1.0] * rank, [f"size({x}, {d + 1})" for d in range(rank)]
    for axis, number in zip(axes, numbers.tolist(), strict=True):
        d, n = m.dim(int(axis), rank) - 1, shape[axis]
        factors[d] = float(number) if scales is not None else number / n
        new[d] = str(int(np.floor(n * np.float32(number)) if scales is not None else number))
    return f"onnx_resize({x}, {rank}, {row(factors)}, [{', '.join(new)}], {', '.join(words)})"


def _resized(x: str, rank: int, scales: str | None, sizes: str | None, words: list[str]) -> str:
    """A resize whose sizes are known only when it runs."""
    if scales is not None:
        factors = f"fliplr(double({scales}).')"
        new = f"floor(onnx_size({x}, {rank}) .* {factors})"
    else:
        new = f"fliplr({sizes}.')"
        factors = f"{new} ./ onnx_size({x}, {rank})"
    return f"onnx_resize({x}, {rank}, {factors}, {new}, {', '.join(words)})"


@matlab("Compress")
def compress(m, x, condition, *, axis):
    if axis is None:
        return f"onnx_gather(reshape({x}, [], 1), 1, find({condition}(:)) - 1, 1, 1)"
    rank = m.rank()
    return f"onnx_gather({x}, {rank}, find({condition}(:)) - 1, 1, {m.dim(axis, rank)})"


@matlab("CumProd")
def cumulative_product(m, x, axis, *, exclusive, reverse):
    if m.type() not in FLOAT_CLASSES:
        raise Refused("products of integers")
    rank = m.rank()
    dim = m.dim(m.numbers(1, "axis")[0], rank)
    words = f"{x}, {rank}, {dim}, 'prod', {bool_word(exclusive)}, {bool_word(reverse)}"
    return f"onnx_accumulate({words})"


@matlab("Einsum")
def einsum(m, *values, equation):
    """Two matrices or less: other products are written as such by their exporters."""
    if m.type() not in FLOAT_CLASSES:
        raise Refused("products of integers")
    text = equation.replace(" ", "")
    terms, _, result = text.partition("->")
    parts = terms.split(",")
    if "." in text or "->" not in text or any(len(set(p)) < len(p) for p in (*parts, result)):
        raise Refused("this equation")
    letters = sorted(set("".join(parts)))
    aligned = []
    for value, part in zip(values, parts, strict=True):
        order = [part.index(c) for c in letters if c in part]
        aligned.append(_aligned(value, len(part), order, [c in part for c in letters]))
    rank = len(letters)
    text = " .* ".join(aligned)
    summed_axes = [rank - i for i, c in enumerate(letters) if c not in result]
    kept = [c for c in letters if c in result]
    if summed_axes:
        text = f"onnx_reduce({text}, {rank}, {row(sorted(summed_axes))}, 'sum', false)"
    order = [kept.index(c) for c in result]
    size = len(kept)
    dims = [size - order[size - j] for j in range(1, size + 1)]
    return f"onnx_permute({text}, {row(dims)})" if size > 1 and dims != sorted(dims) else text


def _aligned(value: str, rank: int, order: list[int], present: list[bool]) -> str:
    """A factor with its axes in alphabetical order, and axes of one element for other letters."""
    dims = [rank - order[rank - j] for j in range(1, rank + 1)]
    text = f"onnx_permute({value}, {row(dims)})" if rank > 1 and dims != sorted(dims) else value
    total = len(present)
    missing = sorted(total - i for i, here in enumerate(present) if not here)
    return f"onnx_add({text}, {rank}, {row(missing)}, {total})" if missing else text

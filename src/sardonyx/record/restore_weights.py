"""Weights that an exporter computed from others, or left out, restored for training.

The exporters compute what follows from parameters alone. The first step of an RNN, whose state is
0, becomes a bias for every row; the head of a language model becomes a transposed copy of its
embedding, although both are one parameter; the first token of a vision transformer becomes one for
every image of a batch. The newer exporter also leaves a bias of zeros out, which is where training
of a fresh layer begins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.edit import torch_names
from sardonyx.edit.merged import is_uniform
from sardonyx.edit.surgery import FROZEN, ROLE
from sardonyx.errors import quote
from sardonyx.model import Model
from sardonyx.passes.nesting import names as all_names
from sardonyx.record.describe import Choices
from sardonyx.weights import TORCH_KIND, classified

SHOWN = 6
LARGEST_COPY = 2**20  # elements
# Names of results of torch's functions that repeat a tensor.
REPEATING = re.compile(r"(broadcast_to|expand|expand_as|repeat|tile)(_\d+)?")
Rewrites = list[tuple[ir.Value, ir.Value, ir.Value]]  # what was computed, its source, what replaces
_Content = tuple[tuple[int, ...], str, bytes]  # of a matrix: its shape, its type, its first column


def restore_weights(model: Model, choices: Choices) -> None:
    """Compute from weights what was computed from them, and add biases that were left out."""
    biases = [quote(name) for name in _biases(model)]
    op = Builder("restore")
    op.reserve(all_names(model.graph))
    rewrites: Rewrites = [*_copies(model, op), *_transposes(model, op)]
    rewrites += _repeats(model, op, {value for value, _, _ in rewrites})
    for value, _, replacement in rewrites:
        value.replace_all_uses_with(replacement)
        del model.graph.initializers[value.name or ""]
    if rewrites:
        for constant_value in op.constants.values():
            model.graph.register_initializer(constant_value)
        model.graph.insert_before(model.graph[0], op.nodes)
        pairs = [f"{quote(v.name)} from {quote(source.name)}" for v, source, _ in rewrites]
        why = "the exporter had computed it from the weight alone, and training changes the weight"
        choices.add("restored", _listed(pairs), why)
    if biases:
        choices.add("restored", _listed(biases), "the exporter had left out a bias of zeros")


def _listed(entries: list[str]) -> str:
    more = f" and {len(entries) - SHOWN} more" * (len(entries) > SHOWN)
    return ", ".join(entries[:SHOWN]) + more


def _freeze_like(model: Model, weight: ir.Value, name: str) -> None:
    """What is restored beside a frozen weight, or in its place, is frozen too."""
    if model.metadata.get(f"{ROLE}{weight.name}") == FROZEN:
        model.metadata[f"{ROLE}{name}"] = FROZEN


# -- a vector in every row --------------------------------------------------------------


def _copies(model: Model, op: Builder) -> Rewrites:
    """Tensors that repeat a weight in every row."""
    tensors = classified(model.graph)
    vectors = _by_content(
        model.graph.initializers.get(w.name)
        for w in tensors
        if w.kind == "weight" and len(w.shape) == 1
    )
    rows = [w for w in tensors if w.kind != "statistic" and len(w.shape) > 1]
    rewrites: Rewrites = []
    for tensor in (w for w in rows if 0 < w.size <= LARGEST_COPY):
        value = model.graph.initializers.get(tensor.name)
        source = _repeated(value, vectors)
        if value is not None and source is not None and not value.is_graph_output():
            rewrites.append((value, source, op.Expand(source, list(tensor.shape))))
    return rewrites


def _by_content(vectors: Iterable[ir.Value | None]) -> dict[tuple[str, bytes], ir.Value]:
    """The first vector of each content, those left out that others may equal by chance."""
    first: dict[tuple[str, bytes], ir.Value] = {}
    for vector in vectors:
        array = constant(vector)
        if vector is None or array is None:
            continue
        if _is_drawn(array) if array.size == 1 else not is_uniform(vector):
            first.setdefault(_content(array), vector)
    return first


def _is_drawn(array: np.ndarray) -> bool:
    """Whether a number has more digits than people write, as numbers drawn at random have."""
    with np.errstate(all="ignore"):
        return bool((array.astype(np.float16).astype(array.dtype) != array).all())


def _repeated(
    value: ir.Value | None, vectors: Mapping[tuple[str, bytes], ir.Value]
) -> ir.Value | None:
    """The vector that every row of a tensor is."""
    table = constant(value)
    if table is None or table.ndim == 0:
        return None
    vector = vectors.get(_content(table.reshape(-1, table.shape[-1])[0]))
    return vector if vector is not None and bool((table == constant(vector)).all()) else None


def _content(row: np.ndarray) -> tuple[str, bytes]:
    """Type and bytes of an array, the same for arrays of equal numbers: zero has no sign."""
    return row.dtype.name, np.where(row == 0, np.zeros((), row.dtype), row).tobytes()


# -- transposes -------------------------------------------------------------------------


def _transposes(model: Model, op: Builder) -> Rewrites:
    """Matrices that are another weight, transposed: both are one parameter of the network."""
    weights = [
        model.graph.initializers[w.name]
        for w in classified(model.graph)
        if w.kind == "weight" and len(w.shape) == 2 and w.name in model.graph.initializers
    ]
    computed = [v for v in weights if torch_names.is_computed(v)]
    sources: dict[_Content, list[ir.Value]] = {}
    for source in weights if computed else ():
        if not torch_names.is_computed(source):
            sources.setdefault(_first_column(source), []).append(source)
    rewrites: Rewrites = []
    for value in (v for v in computed if not is_uniform(v)):
        alike = sources.get(_first_column(value, transposed=True), [])
        tied = next((s for s in alike if _is_transpose(value, s) and _tied(value, s)), None)
        if tied is None or value.is_graph_output():
            # another may be its transpose
            sources.setdefault(_first_column(value), []).append(value)
        else:
            rewrites.append((value, tied, op.Transpose(tied, perm=[1, 0])))
    return rewrites


def _first_column(value: ir.Value, transposed: bool = False) -> _Content:
    """Shape and first column of a matrix: what to look it up by, without comparing all numbers."""
    array = constant(value)
    if array is None or value.shape is None:
        return (), "", b""
    array = array.T if transposed else array
    return array.shape, *_content(np.ascontiguousarray(array[:, :1]))


def _is_transpose(value: ir.Value, source: ir.Value) -> bool:
    a, b = constant(value), constant(source)
    return a is not None and b is not None and np.array_equal(a.T, b)


def _tied(computed: ir.Value, source: ir.Value) -> bool:
    """Whether a transpose was computed from this weight, and not from one of equal numbers.

    The newer exporter names what it computed it from, or the parameter of its call. In files of the
    older one, a layer that is a copy of another reads from a module of its own, unless the weight
    is the table of an embedding.
    """
    origins = torch_names.origins(computed)
    if origins:
        return not origins.isdisjoint({source.name, *torch_names.origins(source)})
    if torch_names.is_computed(source):
        return False
    readers = [node for node, _ in computed.uses()]
    names = [torch_names.parameters(node) for node in readers]
    if any(names):
        return all(torch_names.spelled(source.name) in n for n in names)
    if any(node.op_type == "Gather" for node, _ in source.uses()):
        return True
    owner = (source.name or "").rpartition(".")[0]
    paths = [".".join((node.name or "").split("/")[1:-1]) for node in readers]
    return all(f"{owner}.".startswith(f"{path}.") or not path for path in paths)


# -- a weight for every row -------------------------------------------------------------


def _repeats(model: Model, op: Builder, done: Collection[ir.Value]) -> Rewrites:
    """Weights that the newer exporter repeated along an axis, and whose source is not in the file:
    it is put back, under its name.
    """
    rewrites: Rewrites = []
    initializers = model.graph.initializers
    names = [
        w.name for w in classified(model.graph) if w.kind == "weight" and w.name in initializers
    ]
    for value in map(initializers.__getitem__, names):
        origins, array = torch_names.origins(value), constant(value)
        if len(origins) != 1 or value in done or value.is_graph_output():
            continue
        if array is None or value.dtype is None or not 0 < array.size <= LARGEST_COPY:
            continue
        (name,) = origins
        # One number throughout shows no axis: then the name of the function that repeats tells.
        uniform = is_uniform(value)
        if uniform and not REPEATING.fullmatch(value.name or ""):
            continue
        first = _without_repeats(array, _rows(model) if uniform else None)
        if first.shape == array.shape or name in initializers:
            continue
        source = ir.Value(name=name, const_value=ir.tensor(first, name=name))
        source.shape, source.dtype = ir.Shape(first.shape), value.dtype
        source.metadata_props[TORCH_KIND] = "PARAMETER"
        model.graph.register_initializer(source)
        _freeze_like(model, value, name)
        rewrites.append((value, source, op.Expand(source, list(array.shape))))
    return rewrites


def _without_repeats(array: np.ndarray, rows: int | None) -> np.ndarray:
    """The first part of an array along each axis on which all parts are equal. In an array of one
    number every axis is such a one: there the first of the size `rows` counts.
    """
    for axis, size in enumerate(array.shape):
        first = array.take([0], axis)
        if size > 1 and rows in (None, size) and bool((array == first).all()):
            array = first
            if rows is not None:
                break
    return array


def _rows(model: Model) -> int:
    """The number of rows that the file is made for; 0 where it is free."""
    shapes = [v.shape for v in model.graph.inputs if v.shape]
    sizes = {shape[0] for shape in shapes if len(shape)}
    return next((s for s in sizes if isinstance(s, int) and len(sizes) == 1), 0)


# -- biases -----------------------------------------------------------------------------


def _biases(model: Model) -> Iterator[str]:
    """Add the biases that calls of torch name and their nodes lack; the names of them."""
    names = {torch_names.spelled(n) for n in model.graph.initializers}
    for node in model.graph:
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if weight is None or (len(node.inputs) > 2 and node.inputs[2] is not None):
            continue
        size, name = _bias_size(node, weight), _bias_name(node, weight)
        if size is None or not name or weight.dtype is None:
            continue
        value = model.graph.initializers.get(name)
        if value is None:
            if torch_names.spelled(name) in names:
                continue
            zeros = np.zeros(size, weight.dtype.numpy())
            value = ir.Value(name=name, const_value=ir.tensor(zeros, name=name))
            value.shape, value.dtype = ir.Shape([size]), weight.dtype
            model.graph.register_initializer(value)
            _freeze_like(model, weight, name)
            yield name
        node.resize_inputs(3)
        node.replace_input_with(2, value)


def _bias_size(node: ir.Node, weight: ir.Value) -> int | None:
    if node.domain != "" or weight.shape is None or not weight.is_initializer():
        return None
    attribute = lambda name, default: a.as_int() if (a := node.attributes.get(name)) else default
    shape = weight.shape.numpy()
    match node.op_type, torch_names.operator(node):
        case "Gemm", "linear" | "addmm":
            return int(shape[0 if attribute("transB", 0) else 1])
        case "Conv", "convolution" | "conv1d" | "conv2d" | "conv3d":
            return int(shape[0])
        case "ConvTranspose", "convolution" | "conv_transpose1d" | "conv_transpose2d":
            return int(shape[1]) * int(attribute("group", 1))
        case _:
            return None


def _bias_name(node: ir.Node, weight: ir.Value) -> str:
    """The second parameter of a call whose node reads one, under the path of the first. Where the
    weight is a result of other parameters, it is the only one.
    """
    names, is_computed = torch_names.parameters(node), torch_names.is_computed(weight)
    spelling = torch_names.spelled(weight.name)
    is_sum = torch_names.operator(node) == "addmm"
    if len(names) == 1 and is_computed:
        bias = torch_names.argument(node, 0 if is_sum else 2)
    elif len(names) == 2 and names[0] != names[1] and (spelling in names or is_computed):
        bias = names[0] if spelling == names[1] or is_sum else names[1]
    else:
        bias = ""
    if not bias:
        return ""
    path = (weight.name or "").rpartition(".")[0] or torch_names.module_path(node)
    prefix = f"{torch_names.spelled(path)}_" if path else ""
    return f"{path}.{bias[len(prefix) :]}" if prefix and bias.startswith(prefix) else bias

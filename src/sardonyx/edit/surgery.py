"""Surgery: cut, insert, remove and replace parts of a model, start weights afresh, freeze and tie
them.

Every operation returns a new model that shares the weights it did not touch, and checks what came
out. Those that change nodes work on the normalized form, in which functions are inlined and shapes
are known.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir

from sardonyx.build import FLOATS, Builder, same_shape
from sardonyx.edit.head import Head, find_head, new_weights, resize_reshapes
from sardonyx.errors import ArgumentError, quote
from sardonyx.initializer import Initializer, as_initializer, as_used, draw
from sardonyx.model import Model, ModelSource, load
from sardonyx.normalize import regular_copy
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.nesting import names as all_names
from sardonyx.passes.shapes import infer_shapes
from sardonyx.passes.validity import check_whole

Block = Callable[[Builder, ir.Value], ir.Value]
ROLE = "sardonyx.role."
FROZEN = "frozen"
ADAPTERS = "sardonyx.lora"  # the adapters of a model, as JSON in its metadata
FRESH = "fresh"  # a weight that `replace_head` made: adapters leave it to be trained itself


# -- nodes ------------------------------------------------------------------------------


def replace_head(
    model: ModelSource,
    classes: int,
    *,
    output: str | None = None,
    name: str = "head",
    init: str | Initializer = "kaiming_uniform",
    seed: int = 0,
) -> Model:
    """Give a classifier another number of classes: its last layer gets fresh weights of the new
    size.

    output  -- the output whose head is meant; the first of floating point if not given
    name    -- the new weights are called `<name>.weight` and `<name>.bias`
    init    -- how the weight starts; a bias starts at 0

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1,2,3,4,5,6}> {y = MatMul(x, w)}'''))
    >>> sx.replace_head(model, classes=10).initializer("head.weight").shape
    Shape([2, 10])
    """
    work, op = open_model(model)
    if not 1 <= classes < 2**31:
        raise ArgumentError(f"a head has from 1 to {2**31 - 1:,} classes, not {classes}")
    end = _output(work, output)
    head = _head(work, end)
    before = head.classes
    weight, bias = new_weights(head, classes, as_initializer(init), _random(seed, name))
    head_weights = {f"{name}.weight": op.weight(f"{name}.weight", weight)}
    head.node.replace_input_with(1, head_weights[f"{name}.weight"])
    if head.bias is not None and bias is not None:
        node, position = head.bias
        head_weights[f"{name}.bias"] = op.weight(f"{name}.bias", bias)
        node.replace_input_with(position, head_weights[f"{name}.bias"])
    for node, target in resize_reshapes(head, classes):
        node.replace_input_with(1, op.const(target))
    changed = [head.node, *([head.bias[0]] if head.bias else []), *head.after]
    _forget_shapes(changed)
    finish(work, op, f"the head {quote(head.node.name)} cannot have {classes} classes")
    _rename(work.graph, head_weights)
    work.metadata.update({f"{ROLE}{v.name}": FRESH for v in head_weights.values()})
    if (
        end.shape is not None
        and before != classes
        and before in end.shape
        and classes not in end.shape
    ):
        raise ArgumentError(
            f"{quote(end.name)} still has the shape {end.shape} after its head was replaced",
            [[n.op_type, f"node {quote(n.name)}"] for n in head.after],
            hint="cut the model before these nodes, then insert a layer: sx.cut, sx.insert",
        )
    return work


def cut(
    model: ModelSource,
    at: str | Sequence[str] | None = None,
    *,
    start: str | Sequence[str] = (),
) -> Model:
    """The part of a model before the tensors `at`, which become its outputs, and after those of
    `start`.

    at     -- the new outputs; those of the model if not given
    start  -- tensors that become inputs, in place of what computes them

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Tanh(a) y = Sigmoid(b)}'''))
    >>> [node.op_type for node in sx.cut(model, "b").graph]
    ['Relu', 'Tanh']
    """
    work, op = open_model(model)
    values = _values(work)
    ends = [v.name or "" for v in work.outputs] if at is None else _listed(at)
    starts = _listed(start)
    _known(values, (*ends, *starts), "the model cannot be cut")
    graph = work.graph
    for name in starts:
        _become_input(work, values[name])
    values = _values(work)
    graph.outputs.clear()
    graph.outputs.extend(values[n] for n in dict.fromkeys(ends))
    remove_dead(graph)
    if starts or at is not None:
        _drop_unread_inputs(graph)
    finish(work, op, "the model cannot be cut there")
    return work


def insert(model: ModelSource, at: str, block: Block) -> Model:
    """Put a block behind the tensor `at`: what read it now reads `block(op, x)`.

    block  -- a function of the builder and the tensor; `op.weight(name, array)` makes a parameter

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,4] x) => (float[N,4] y) {a = Relu(x) y = Sigmoid(a)}'''))
    >>> [n.op_type for n in sx.insert(model, "a", lambda op, x: op.Softmax(x, axis=1)).graph]
    ['Relu', 'Softmax', 'Sigmoid']
    """
    work, op = open_model(model)
    values = _values(work)
    _known(values, [at], "nothing can be inserted there")
    value = values[at]
    readers = list(value.uses())
    with op, op.named(f"insert/{at}"):
        result = block(op, value)
    if not isinstance(result, ir.Value):
        raise ArgumentError(f"the block returned {type(result).__name__}, not a value of `op`")
    nodes, op.nodes = op.nodes, []
    _place(work.graph, value, nodes)
    for node, position in readers:
        node.replace_input_with(position, result)
    if value.is_graph_output():
        _take_over(work.graph, value, result, op)
    _forget_shapes([n for n in work.graph if n not in nodes])
    finish(work, op, f"the block does not fit behind {quote(at)}")
    return work


def remove(model: ModelSource, nodes: str | Sequence[str]) -> Model:
    """Take out layers: what read a node's output reads its input instead.

    nodes  -- names of nodes, or patterns; each must leave the shape of its input as it is

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,4] x) => (float[N,4] y) {[act] a = Relu(x) [out] y = Sigmoid(a)}'''))
    >>> [n.op_type for n in sx.remove(model, "act").graph]
    ['Sigmoid']
    """
    work, op = open_model(model)
    removed = _matching_nodes(work.graph, _listed(nodes))
    refused = [[n.op_type, f"node {quote(n.name)}", why] for n in removed if (why := _stays(n))]
    if refused:
        raise ArgumentError(
            f"{len(refused)} nodes cannot be taken out",
            refused,
            hint="sx.cut and sx.insert rebuild a part",
        )
    for node in removed:
        before, after = node.inputs[0], node.outputs[0]
        assert before is not None
        for user, position in list(after.uses()):
            user.replace_input_with(position, before)
        if after.is_graph_output():
            _take_over(work.graph, after, before, op)
    remove_dead(work.graph)
    finish(work, op, "the model does not hold together without these nodes")
    return work


# -- weights ----------------------------------------------------------------------------


def reinitialize(
    model: ModelSource,
    patterns: str | Sequence[str] | Mapping[str, str | Initializer],
    init: str | Initializer = "kaiming_uniform",
    seed: int = 0,
) -> Model:
    """Start the weights that match `patterns` afresh; a mapping gives each pattern its own start.

    Where a start needs the fans of a layer, biases start at 0 and scales of normalizations at 1.

    >>> import sardonyx as sx
    >>> sx.reinitialize("mlp.onnx", {"*.weight": "xavier", "*.bias": "zeros"})  # doctest: +SKIP
    """
    work = load(model).copy()
    by_pattern = patterns if isinstance(patterns, Mapping) else {}
    initializers = by_pattern or dict.fromkeys(_listed(patterns), init)  # type: ignore[arg-type]
    for pattern, initializer in initializers.items():
        for value in _matching(work, [pattern]):
            start, input_first = as_used(initializer, value)
            tensor = value.const_value
            assert tensor is not None
            shape = tuple(tensor.shape.numpy())
            drawn_shape = (*shape[:-2], shape[-1], shape[-2]) if input_first else shape
            numbers = draw(start, drawn_shape, _random(seed, value.name or ""))
            numbers = np.swapaxes(numbers, -1, -2) if input_first else numbers
            array = np.ascontiguousarray(numbers, tensor.dtype.numpy()).reshape(shape)
            value.const_value = ir.Tensor(
                array, tensor.dtype, shape=ir.Shape(shape), name=value.name
            )
    return work


def freeze(model: ModelSource, patterns: str | Sequence[str]) -> Model:
    """Mark weights that `trainable` does not train, unless they are named.

    The mark is the role of the tensor in the file's metadata.

    >>> import sardonyx as sx
    >>> sx.freeze("resnet.onnx", "layer1.*")  # doctest: +SKIP
    """
    work = load(model).copy()
    for value in _matching(work, _listed(patterns)):
        work.metadata[f"{ROLE}{value.name}"] = FROZEN
    return work


def unfreeze(model: ModelSource, patterns: str | Sequence[str] = "*") -> Model:
    """Take back what `freeze` marked.

    >>> import sardonyx as sx
    >>> sx.unfreeze(sx.freeze("resnet.onnx", "*"), "head.*")  # doctest: +SKIP
    """
    work = load(model).copy()
    for name in frozen(work):
        if any(fnmatchcase(name, p) for p in _listed(patterns)):
            del work.metadata[f"{ROLE}{name}"]
    return work


def frozen(model: Model) -> list[str]:
    """The weights that are marked as frozen."""
    return [
        k.removeprefix(ROLE)
        for k, v in model.metadata.items()
        if k.startswith(ROLE) and v == FROZEN
    ]


def tie(model: ModelSource, names: Sequence[str]) -> Model:
    """Make several weights one: all readers read the first; matrices may be transposes of each
    other.

    >>> import sardonyx as sx
    >>> sx.tie("gpt.onnx", ["embedding.weight", "lm_head.weight"])  # doctest: +SKIP
    """
    work, op = open_model(model)
    unknown = [n for n in names if n not in work.graph.initializers]
    if unknown or len(set(names)) < 2:
        raise ArgumentError(
            "`tie` needs the names of at least two weights",
            [[quote(n), "is not a weight"] for n in unknown],
        )
    first, *others = (work.graph.initializers[n] for n in names)
    refused = [v for v in others if not _can_share(first, v)]
    if refused:
        raise ArgumentError(
            f"{quote(first.name)} cannot be shared",
            [
                [quote(v.name), f"{v.dtype} {v.shape}", f"not {first.dtype} {first.shape}"]
                for v in refused
            ],
        )
    for other in others:
        shared = first if same_shape(first, other) else op.Transpose(first, perm=[1, 0])
        for node, position in list(other.uses()):
            node.replace_input_with(position, shared)
    nodes, op.nodes = op.nodes, []
    _place(work.graph, first, nodes)
    remove_dead(work.graph)
    finish(work, op, "the weights cannot be tied")
    return work


def untie(model: ModelSource, patterns: str | Sequence[str] = "*") -> Model:
    """Give every node its own copy of weights that several nodes read, `w`, `w.2`, `w.3`, ….

    Exporters make tensors one that happen to be equal, such as the scales of fresh normalizations.

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,2,3,4}>
    ... {a = MatMul(x, w) y = MatMul(a, w)}'''))
    >>> list(sx.untie(model, "w").graph.initializers)
    ['w', 'w.2']
    """
    work, op = open_model(model)
    order = {node: index for index, node in enumerate(work.graph.all_nodes())}
    for value in _matching(work, _listed(patterns)):
        readers = sorted({node for node, _ in value.uses()}, key=order.__getitem__)
        # torch writes an Identity for each name that it made one: its output has the lost name
        renamed = [n for n in readers if n.op_type == "Identity" and _is_plain(n.outputs[0])]
        direct = [n for n in readers if n not in renamed]
        for node in renamed[len(direct) == 0 :]:
            name, after = node.outputs[0].name or "", node.outputs[0]
            after.name = op.fresh(f"{name}/tied")
            after.replace_all_uses_with(copy_weight(work, value, name))
        for count, node in enumerate(direct[1:], 2):
            copy = copy_weight(work, value, op.fresh(f"{value.name}.{count}"))
            for position in [p for n, p in value.uses() if n is node]:
                node.replace_input_with(position, copy)
    finish(work, op, "the weights cannot be parted")
    return work


def _is_plain(value: ir.Value) -> bool:
    return bool(value.uses()) and not value.is_graph_output()


def copy_weight(model: Model, value: ir.Value, name: str) -> ir.Value:
    """A new initializer called `name` with the numbers of another."""
    tensor = value.const_value
    assert tensor is not None
    copy = ir.Value(name=name, type=value.type, shape=value.shape)
    copy.const_value = ir.Tensor(tensor.numpy().copy(), tensor.dtype, name=name)
    copy.metadata_props.update(value.metadata_props)  # such as torch's mark of a parameter
    if model.metadata.get(f"{ROLE}{value.name}") == FROZEN:
        model.metadata[f"{ROLE}{name}"] = FROZEN
    model.graph.register_initializer(copy)
    return copy


def _can_share(first: ir.Value, other: ir.Value) -> bool:
    if first.dtype != other.dtype or first is other or other.is_graph_output():
        return False
    ours, theirs = (list(v.shape or ()) for v in (first, other))
    return ours == theirs or (len(ours) == 2 and ours == theirs[::-1])


# -- what all of them need ------------------------------------------------------------------


def open_model(model: ModelSource) -> tuple[Model, Builder]:
    loaded = load(model)
    if loaded.records:
        raise ArgumentError(
            "the model carries a training record, which describes the graph as it is",
            hint="edit first, then call `sx.trainable`; model.records.clear() drops the record",
        )
    work = regular_copy(loaded)
    op = Builder("surgery")
    op.reserve(all_names(work.graph))
    return work, op


def _listed(patterns: str | Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _random(seed: int, name: str) -> np.random.Generator:
    """A stream of its own for every tensor: another pattern does not change what this one draws."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _values(model: Model) -> dict[str, ir.Value]:
    graph = model.graph
    values = {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
    values.update({v.name: v for node in graph for v in node.outputs})
    return {name: v for name, v in values.items() if name}


def _known(values: Mapping[str, ir.Value], names: Sequence[str], what: str) -> None:
    unknown = [n for n in names if n not in values]
    if unknown:
        raise ArgumentError(
            f"{what}: {len(unknown)} tensor{'s' * (len(unknown) > 1)} not in this model",
            [[quote(n)] for n in unknown],
            hint="`sardonyx inspect` lists the model's tensors",
        )


def _output(model: Model, name: str | None) -> ir.Value:
    floats = [v for v in model.outputs if v.dtype in FLOATS]
    for value in floats:
        if name in (None, value.name):
            return value
    raise ArgumentError(
        f"the model has no floating-point output {quote(name)}"
        if name
        else "the model has no scores",
        [[quote(v.name), str(v.dtype)] for v in model.outputs],
    )


def _head(model: Model, output: ir.Value) -> Head:
    """The head before an output; one that has an adapter is an error that says so."""
    try:
        return find_head(output)
    except ArgumentError as error:
        if ADAPTERS not in model.metadata:
            raise
        hint = "call sx.replace_head first, then sx.lora; sx.merge_lora folds adapters in"
        what = f"no head without an adapter was found before {quote(output.name)}"
        raise ArgumentError(what, error.where, hint=hint) from error


def _matching(model: Model, patterns: Sequence[str]) -> list[ir.Value]:
    """The float initializers that match; every pattern must match one."""
    floats = {n: v for n, v in model.graph.initializers.items() if v.dtype in FLOATS}
    missed = [p for p in patterns if not any(fnmatchcase(n, p) for n in floats)]
    if missed:
        raise ArgumentError(
            f"no weight matches {', '.join(quote(p) for p in missed)}", [[quote(n)] for n in floats]
        )
    return [v for n, v in floats.items() if any(fnmatchcase(n, p) for p in patterns)]


def _matching_nodes(graph: ir.Graph, patterns: Sequence[str]) -> list[ir.Node]:
    missed = [p for p in patterns if not any(fnmatchcase(n.name or "", p) for n in graph)]
    if missed:
        raise ArgumentError(
            f"no node matches {', '.join(quote(p) for p in missed)}",
            [[n.op_type, quote(n.name)] for n in graph if n.name],
        )
    return [n for n in graph if any(fnmatchcase(n.name or "", p) for p in patterns)]


def _stays(node: ir.Node) -> str | None:
    """Why a node cannot be bypassed, or None."""
    before = node.inputs[0] if node.inputs else None
    if before is None:
        return "reads nothing that could take its place"
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "has more than one output in use"
    after = node.outputs[0]
    if before.dtype != after.dtype:
        return f"turns {before.dtype} into {after.dtype}"
    if before.shape is not None and after.shape is not None and not same_shape(before, after):
        return f"turns {before.shape} into {after.shape}"
    return None


def _place(graph: ir.Graph, value: ir.Value, nodes: Sequence[ir.Node]) -> None:
    """Put new nodes behind the producer of `value`."""
    producer = value.producer()
    if producer is not None:
        graph.insert_after(producer, nodes)
    elif len(graph):
        graph.insert_before(graph[0], nodes)
    else:
        graph.extend(nodes)


def _take_over(graph: ir.Graph, old: ir.Value, new: ir.Value, op: Builder) -> None:
    """Make `new` the output that `old` was, under its name: a served model keeps its interface."""
    name = old.name
    old.name = op.fresh(f"{name}/before")
    if new.producer() is None or new.is_graph_output():
        with op.named("surgery"):
            new = op.Identity(new)
        graph.extend(op.nodes)
        op.nodes = []
    new.name = name
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new


def _become_input(model: Model, value: ir.Value) -> None:
    """Put an input of the same name in the place of a computed value."""
    if value.producer() is None:
        return
    name = value.name
    value.name = f"{name}/computed"
    added = ir.Value(name=name, type=value.type, shape=value.shape and ir.Shape(value.shape))
    value.replace_all_uses_with(added, replace_graph_outputs=True)
    model.graph.inputs.append(added)


def _rename(graph: ir.Graph, weights: Mapping[str, ir.Value]) -> None:
    """Give new weights the names that the old ones have left."""
    for name, value in weights.items():
        if value.name != name and name not in all_names(graph):
            del graph.initializers[value.name]  # type: ignore[arg-type]
            value.name = name
            graph.register_initializer(value)


def _drop_unread_inputs(graph: ir.Graph) -> None:
    inputs = [v for v in graph.inputs if v.uses() or v.is_graph_output()]
    graph.inputs.clear()
    graph.inputs.extend(inputs)


def _forget_shapes(nodes: Sequence[ir.Node]) -> None:
    for node in nodes:
        for value in node.outputs:
            value.shape = None
            value.meta.pop("content", None)


def finish(model: Model, op: Builder, what: str) -> None:
    """Register what was built, infer shapes anew, and let ONNX's checker look at the whole."""
    for value in op.constants.values():
        model.graph.register_initializer(value)
    remove_dead(model.graph)
    infer_shapes(model.graph, model.skeleton)
    check_whole(model, what)

"""`grad` and `jvp`: whole models in, whole models out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import Builder
from sardonyx.collector import paused
from sardonyx.errors import ArgumentError, quote, translated
from sardonyx.grad.controlflow.unroll import unroll_growing_loops
from sardonyx.grad.driver import backward, blocked, is_differentiable, path
from sardonyx.grad.sequence import fill_sequence
from sardonyx.model import Model, ModelSource, load
from sardonyx.normalize import constants_to_initializers, regular_copy
from sardonyx.passes.cse import merge_common
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold
from sardonyx.passes.functions import expand
from sardonyx.passes.nesting import bodies, names
from sardonyx.passes.shapes import forget_shapes, infer_shapes


@translated("the gradient of the model cannot be made")
@paused()
def grad(
    model: ModelSource,
    of: str | Sequence[str] | None = None,
    wrt: str | Sequence[str] | None = None,
    *,
    seeds: str | None = None,
    stop: Iterable[str] = (),
    outputs: bool = True,
) -> Model:
    """The gradient of `of` with respect to `wrt`, as an ONNX model of standard operators.

    of       -- outputs (or any tensors) to differentiate; all float outputs if not given
    wrt      -- inputs, weights or intermediate tensors; all float inputs if not given
    seeds    -- None: the gradient of the sum of `of`; "input": one more input `seed/<name>` each
    stop     -- tensors that count as constants
    outputs  -- keep the values of `of` as outputs, before the gradients `grad/<name>`
                (`grad/grad/<name>` where one of `of` has that name itself)

    >>> import sardonyx as sx
    >>> [v.name for v in sx.grad("model.onnx", of="scores", wrt="x").outputs]
    ['scores', 'grad/x']
    """
    work = regular_copy(load(model))
    unroll_growing_loops(work)
    values = _values(work)
    ends = _named(values, _names(of, _floats(work.outputs)), "of")
    starts = _named(values, _names(wrt, _floats(work.inputs)), "wrt")
    stops = _named(values, list(stop), "stop", floats=False)
    expand_bodies(work, ends, starts, stops)
    op = builder_for(work)
    cotangents = {}
    for end in ends:
        with op.named(f"seed/{end.name}"):
            cotangents[end] = _seed_input(work, op, end) if seeds == "input" else _fill(op, 1, end)
    of_names, wrt_names = ([v.name or "" for v in group] for group in (ends, starts))
    gradients = backward(op, list(work.graph), cotangents, starts, stops)
    # A rule may have replaced a forward node (LSTM by a Scan): names last, values do not.
    values = _values(work)
    ends, starts = ([values[name] for name in group] for group in (of_names, wrt_names))
    results = [_or_zeros(op, g, x, ends) for g, x in zip(gradients, starts, strict=True)]
    named = {f"grad/{name}": g for name, g in zip(wrt_names, results, strict=True)}
    finish(work, op, ends if outputs else [], named)
    return work


def jvp(
    model: ModelSource,
    of: str | Sequence[str] | None = None,
    wrt: str | Sequence[str] | None = None,
) -> Model:
    """The directional derivative of `of` along tangents of `wrt`: inputs `tangent/<name>`, outputs
    `jvp/<name>`.

    Forward mode falls out of reverse mode: the gradient is linear in its seed, so its own gradient
    with respect to the seed, seeded with the tangents, is the Jacobian times the tangents.

    >>> import sardonyx as sx
    >>> [v.name for v in sx.jvp("model.onnx", wrt="x").inputs]
    ['x', 'tangent/x']
    """
    work = regular_copy(load(model))
    unroll_growing_loops(work)
    values = _values(work)
    ends = _named(values, _names(of, _floats(work.outputs)), "of")
    starts = _named(values, _names(wrt, _floats(work.inputs)), "wrt")
    expand_bodies(work, ends, starts, [])
    op = builder_for(work)
    seeds = {end: op.zeros_like(end) for end in ends}
    of_names, wrt_names = ([v.name or "" for v in group] for group in (ends, starts))
    pulled = backward(op, list(work.graph), dict(seeds), starts)
    values = _values(work)
    ends, starts = ([values[name] for name in group] for group in (of_names, wrt_names))
    tangents: dict[ir.Value, ir.Value] = {}
    for x, g in zip(starts, pulled, strict=True):
        if g is not None:
            tangent = _input_like(work, f"tangent/{x.name}", x)
            # The two inputs of an Add have one cotangent, which then has two tangents.
            tangents[g] = op.Add(tangents[g], tangent) if g in tangents else tangent
    pushed = backward(op, list(op.nodes), tangents, list(seeds.values()))
    results = [_or_zeros(op, t, y, starts) for t, y in zip(pushed, ends, strict=True)]
    finish(work, op, [], {f"jvp/{y.name}": t for y, t in zip(ends, results, strict=True)})
    return work


def expand_bodies(
    model: Model, ends: list[ir.Value], starts: list[ir.Value], stops: list[ir.Value]
) -> None:
    """Replace nodes on the path that have no rule but a function body by that body.

    The lists of values are changed: an output of such a node is another value afterwards.
    """
    namer = builder_for(model)
    while True:
        between, values = path(list(model.graph), starts, ends, stops)
        bodied = [n for n in blocked(between, values) if opset.has_body(n.op_type, n.domain)]
        called = [[v.name or "" for v in group] for group in (ends, starts, stops)]
        expanded = [expand(node, namer) or [] for node in bodied]
        if not any(expanded):
            return
        if any(bodies(node) for nodes in expanded for node in nodes):
            _settle_shapes(model)
        values_by_name = _values(model)
        for group, group_names in zip((ends, starts, stops), called, strict=True):
            group[:] = [values_by_name[name] for name in group_names]


def _settle_shapes(model: Model) -> None:
    """Infer the shapes inside bodies, which are known where their shape arithmetic is."""
    constants_to_initializers(model.graph)
    forget_shapes(model.graph)
    infer_shapes(model.graph, model.skeleton)
    fold(model.graph)


def builder_for(model: Model) -> Builder:
    """A builder whose new names clash with nothing in `model`."""
    op = Builder()
    op.reserve(names(model.graph))
    return op


def finish(
    model: Model, op: Builder, outputs: Sequence[ir.Value], results: Mapping[str, ir.Value]
) -> None:
    """Put what `op` built into the graph, with `kept` and `results` as its outputs; drop the
    rest.
    """
    for value in op.constants.values():
        model.graph.register_initializer(value)
    model.graph.extend(op.nodes)
    named = []
    output_names = {v.name for v in outputs}
    values = _values(model)
    for name, value in results.items():
        while name in output_names:  # the gradient of a gradient that stays an output
            name = f"grad/{name}"
        if name in values:
            values[name].name = op.fresh(name)
        with op.named(name):
            output = op.call("Identity", [value])
        model.graph.append(op.nodes[-1])
        output.name = name
        output.type, output.shape = value.type, value.shape
        named.append(output)
    model.graph.outputs.clear()
    model.graph.outputs.extend([*outputs, *named])
    fold(model.graph)
    remove_dead(model.graph)
    merge_common(model.graph)
    model.ir.graph.opset_imports[""] = opset.OPSET


def _floats(values: Sequence[ir.Value]) -> list[ir.Value]:
    return [v for v in values if v.type is not None and is_differentiable(v)]


def _names(names: str | Sequence[str] | None, default: Sequence[ir.Value]) -> list[str]:
    if names is None:
        return [v.name or "" for v in default]
    return [names] if isinstance(names, str) else list(names)


def _values(model: Model) -> dict[str, ir.Value]:
    graph = model.graph
    values = {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
    values.update({v.name: v for node in graph for v in node.outputs})
    return {name: v for name, v in values.items() if name}


def _named(
    values: dict[str, ir.Value], names: Sequence[str], role: str, floats: bool = True
) -> list[ir.Value]:
    unknown = [n for n in names if n not in values]
    if unknown:
        raise ArgumentError(
            f"{len(unknown)} tensor{'s' * (len(unknown) > 1)} of `{role}` not in this model",
            [[quote(n)] for n in unknown],
            hint="`sardonyx inspect` lists the model's tensors",
        )
    values_found = [values[n] for n in names]
    wrong = [v for v in values_found if floats and not is_differentiable(v)]
    if wrong:
        raise ArgumentError(
            f"only floating-point tensors have gradients (`{role}`)",
            [[quote(v.name), str(v.type)] for v in wrong],
        )
    untyped = [v for v in values_found if role == "of" and v.type is None]
    if untyped:
        raise ArgumentError(
            "the types of tensors to differentiate are not known",
            [[quote(v.name)] for v in untyped],
            hint="declare them: as outputs, or in the model's value_info",
        )
    if floats and not values_found:
        raise ArgumentError(
            f"the model has no floating-point tensor for `{role}`", hint=f"name one: {role}=[…]"
        )
    return values_found


def _seed_input(model: Model, op: Builder, end: ir.Value) -> ir.Value:
    return _input_like(model, f"seed/{end.name}", end)


def _input_like(model: Model, name: str, like: ir.Value) -> ir.Value:
    value = ir.Value(name=name, type=like.type, shape=like.shape and ir.Shape(like.shape))
    model.graph.inputs.append(value)
    return value


def _or_zeros(op: Builder, g: ir.Value | None, x: ir.Value, others: Sequence[ir.Value]) -> ir.Value:
    if g is not None:
        return g
    listed = ", ".join(quote(v.name) for v in others)
    warnings.warn(f"{quote(x.name)} and {listed} do not depend on each other: zeros", stacklevel=3)
    return _fill(op, 0, x)


def _fill(op: Builder, value: float, like: ir.Value) -> ir.Value:
    is_sequence = isinstance(like.type, ir.SequenceType)
    return fill_sequence(op, value, like) if is_sequence else op.fill(value, like)

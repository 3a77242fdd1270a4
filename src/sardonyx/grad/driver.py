"""Reverse mode, from ONNX to ONNX: walks a graph backwards, with one rule per operator.

The driver does everything that is the same for all operators: it finds the path from the wanted
tensors to the outputs, fills in attribute defaults, adds up cotangents, undoes broadcasting, casts,
and drops gradients that are not needed. The derivatives are in the rules (`math/`, `nn/`, …).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import FLOATS, Builder, constant, infer, is_static, same_dim, same_shape, static
from sardonyx.errors import UnsupportedOp, quote
from sardonyx.passes.nesting import reads
from sardonyx.registry import OpId, Registry, Rule, op_name

# What a rule may ask for besides attributes: the forward outputs, and the forward node itself.
GRADIENT_RULES = Registry("gradient rule", leading=2, special=("out", "node"))
NO_GRADIENT: set[OpId] = set()
STOPPED = "sardonyx.stop_gradient"  # metadata of a node whose outputs count as constants

Cotangents = dict[ir.Value, ir.Value]

# Sums over leading axes of matrices from this many columns, up to this many rows, become products.
MATRIX_COLUMNS = 16
MATRIX_ROWS = 1 << 16
Path = tuple[list[ir.Node], set[ir.Value]]
Inside = Callable[[ir.Node, set[ir.Value]], list[Path]]


def gradient_rule(
    *ops: str,
    domain: str = "",
    needs: int = 0,
    broadcasts: bool = False,
    structural: bool = False,
    refuses: Sequence[int] | Callable[[ir.Node], Sequence[int]] = (),
    carries: Callable[[ir.Value], bool] | None = None,
    inside: Inside | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a gradient rule.

    The rule gets the builder, the cotangent `g` of the first output (or `gs`, those of all outputs,
    None where there is none), then the inputs by schema position and the attributes by schema name.
    It returns one cotangent per input, None for no gradient.

    needs       -- how many outputs the forward node must have for the rule; missing ones are added
    broadcasts  -- inputs are broadcast to the output: the driver sums over what was broadcast
    structural  -- the rule gets `(op, gs, node, targets)` and returns {value: cotangent}: for
                   operators with bodies, whose bodies read values from outside
    refuses     -- positions of inputs that have a derivative which the rule does not give: an error
                   where one is wanted; or a function of the node that returns them
    carries     -- whether an output of integers passes cotangents on all the same
                   (straight-through)
    inside      -- of a structural rule: given the node and the values on the path, the nodes and
                   values on the path inside each of its bodies

    >>> import sardonyx as sx
    >>> @sx.gradient_rule("Double", domain="com.acme")
    ... def double(op, g, x):
    ...     return op.Mul(g, 2.0)
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        many = not structural and list(inspect.signature(function).parameters)[1] == "gs"
        for name in ops:
            if structural:
                GRADIENT_RULES.rules[opset.domain_name(domain), name] = Rule(
                    function, None, frozenset(), True, {"structural": True, "inside": inside}
                )
            else:
                GRADIENT_RULES.register(
                    function,
                    name,
                    domain,
                    needs=needs,
                    broadcasts=broadcasts,
                    many=many,
                    refuses=refuses,
                    carries=carries,
                )
        return function

    return decorate


def no_gradient(*ops: str, domain: str = "") -> None:
    """State that operators have no gradient on purpose: their derivative is zero everywhere."""
    NO_GRADIENT.update((opset.domain_name(domain), name) for name in ops)


def formulas(table: dict[str, Callable[..., Any]], module: str) -> None:
    """Register one-line rules `(op, g, x, y)` of operators with one input, x, and one output, y."""
    for name, formula in table.items():

        def rule(op: Builder, g: ir.Value, x: ir.Value, *, out: Any, _f: Any = formula) -> Any:
            return _f(op, g, x, out[0])

        rule.__name__, rule.__module__ = name.lower(), module
        rule.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p for p in inspect.signature(rule).parameters.values() if p.name != "_f"]
        )
        gradient_rule(name)(rule)


def is_differentiable(value: ir.Value) -> bool:
    """Whether gradients can flow through `value`: floats, and sequences and optionals of them."""
    kind: Any = value.type
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        kind = kind.elem_type
    return kind is None or kind.dtype in FLOATS


def passes(value: ir.Value) -> bool:
    """Whether cotangents arrive at what computed `value`: it is differentiable, or its rule says
    so.
    """
    if is_differentiable(value):
        return True
    node = value.producer()
    rule = None if node is None else GRADIENT_RULES.rules.get(op_id(node))
    carries = rule and rule.options.get("carries")
    return carries is not None and bool(carries(value))  # type: ignore[operator]


# -- the walk ---------------------------------------------------------------------


def path(
    nodes: Sequence[ir.Node],
    wrt: Collection[ir.Value],
    of: Collection[ir.Value],
    stop: Collection[ir.Value],
) -> tuple[list[ir.Node], set[ir.Value]]:
    """The nodes between `wrt` and `of`, and the values on the way, `wrt` included."""
    reached: set[ir.Value] = set(wrt)
    forward: list[ir.Node] = []
    # Only nodes that `of` depends on are asked whether they pass cotangents: asking may warn.
    for node in _leading_to(nodes, of):
        if op_id(node) in NO_GRADIENT or STOPPED in node.metadata_props:
            continue
        if any(v in reached for v in reads(node)):
            forward.append(node)
            reached.update(v for v in node.outputs if passes(v) and v not in stop)
    needed: set[ir.Value] = set(of)
    between: list[ir.Node] = []
    for node in reversed(forward):
        if any(v in needed and v in reached for v in node.outputs):
            between.append(node)
            needed.update(v for v in reads(node) if v in reached)
    between.reverse()
    return between, reached & needed


def _leading_to(nodes: Sequence[ir.Node], of: Collection[ir.Value]) -> list[ir.Node]:
    """The nodes on which `of` depends, in order."""
    needed: set[ir.Value] = set(of)
    ancestors: list[ir.Node] = []
    for node in reversed(nodes):
        if any(v in needed for v in node.outputs):
            ancestors.append(node)
            needed.update(reads(node))
    ancestors.reverse()
    return ancestors


def op_id(node: ir.Node) -> OpId:
    return opset.domain_name(node.domain), node.op_type


def paths_inside(nodes: Iterable[ir.Node], values: set[ir.Value]) -> list[Path]:
    """A path, then those through the bodies of its nodes, at any depth."""
    paths: list[Path] = [(list(nodes), values)]
    for node in nodes:
        rule = GRADIENT_RULES.rules.get(op_id(node))
        inside = rule and rule.options.get("inside")
        for inner in inside(node, values) if inside else ():
            paths += paths_inside(*inner)
    return paths


def blocked(nodes: Iterable[ir.Node], values: set[ir.Value]) -> list[ir.Node]:
    """The nodes on a path that have no rule, also inside bodies."""
    every = (node for inner, _ in paths_inside(nodes, values) for node in inner)
    return [node for node in every if op_id(node) not in GRADIENT_RULES]


def require_gradient(
    nodes: Sequence[ir.Node], of: Sequence[ir.Value], wrt: Sequence[ir.Value]
) -> None:
    """Raise what `backward` would raise, before anything is built."""
    between, values = path(nodes, wrt, of, ())
    require_rules(between, values, of, wrt, expanded=False)
    require_paths(between, values)


def require_rules(
    nodes: Sequence[ir.Node],
    values: set[ir.Value],
    of: Sequence[ir.Value],
    wrt: Sequence[ir.Value],
    expanded: bool = True,
) -> None:
    """Raise one UnsupportedOp that names every node without a rule, and the path it blocks.

    expanded -- whether nodes that ONNX defines by a function have been replaced by it already
    """
    missing = [
        (node, outer)
        for outer in nodes
        for node in blocked([outer], values)
        if expanded or not opset.has_body(node.op_type, node.domain)
    ]
    if not missing:
        return
    ends = _ends(nodes, values, of, wrt)
    ops = sorted({op_name(op_id(n)) for n, _ in missing})
    raise UnsupportedOp(
        f"{len(ops)} op{'s' * (len(ops) > 1)} in this model ha{'ve' if len(ops) > 1 else 's'} no "
        f"gradient rule",
        [
            [
                op_name(op_id(n)),
                f"node {quote(n.name or n.outputs[0].name)}",
                f"on the path from {quote(ends[outer][0].name)} to {quote(ends[outer][1].name)}",
            ]
            for n, outer in missing
        ],
        hint=f"cut the path with grad(model, stop=[{quote(missing[0][1].outputs[0].name)}]), which "
        "is --stop of the command sardonyx grad, "
        f"or add a rule with @sardonyx.gradient_rule({quote(missing[0][0].op_type)})",
    )


def _ends(
    nodes: Sequence[ir.Node], values: set[ir.Value], of: Sequence[ir.Value], wrt: Sequence[ir.Value]
) -> dict[ir.Node, tuple[ir.Value, ir.Value]]:
    """The first of `of` and the first of `wrt` between which each node of a path lies."""
    begins = {v: v for v in reversed(wrt)}
    for node in nodes:
        first = next(begins[v] for v in reads(node) if v in begins)
        for value in node.outputs:
            if value in values:
                begins.setdefault(value, first)
    ends = {v: v for v in reversed(of)}
    ends_by_node = {}
    for node in reversed(nodes):
        last = next(ends[v] for v in node.outputs if v in ends)
        for value in reads(node):
            if value in values:
                ends.setdefault(value, last)
        ends_by_node[node] = last, next(begins[v] for v in reads(node) if v in begins)
    return ends_by_node


def require_paths(nodes: Iterable[ir.Node], values: set[ir.Value]) -> None:
    """Raise one UnsupportedOp that names every input on the way to which a rule gives no
    gradient.
    """
    rows, first = [], None
    inside = [(n, on) for inner, on in paths_inside(nodes, values) for n in inner]
    for node, on_the_way in inside:
        rule = GRADIENT_RULES.rules.get(op_id(node))
        if rule is None:
            continue
        refuses = rule.options.get("refuses", ())
        for i in refuses(node) if callable(refuses) else refuses:
            x = node.inputs[i] if i < len(node.inputs) else None
            if x is not None and x in on_the_way:
                name = opset.schema(node.op_type, node.domain).inputs[i].name  # type: ignore[union-attr]
                where = f"node {quote(node.name or node.outputs[0].name)}"
                rows.append([op_name(op_id(node)), where, f"input {name}: {quote(x.name)}"])
                first = first or x
    if first is not None:
        quantized = any("Quantize" in operator for operator, *_ in rows)
        raise UnsupportedOp(
            f"{len(rows)} input{'s' * (len(rows) > 1)} on the path "
            f"ha{'ve' if len(rows) > 1 else 's'} no gradient",
            rows,
            hint=f"cut the path with grad(model, stop=[{quote(first.name)}]), which is --stop of "
            "the command sardonyx grad"
            + ", or take sx.dequantize(model), whose weights are floats"
            * quantized,
        )


def backward(
    op: Builder,
    nodes: Sequence[ir.Node],
    cotangents: Cotangents,
    wrt: Sequence[ir.Value],
    stop: Collection[ir.Value] = (),
    checked: bool = False,
) -> list[ir.Value | None]:
    """Build the cotangents of `wrt`, given those of some values that `nodes` compute.

    nodes   -- a graph's nodes in order, normalized; `op` collects the new ones. None: no path.
    checked -- it is known that every node on the way has a rule: those of a body, from outside
    """
    between, values = path(nodes, wrt, list(cotangents), stop)
    if not checked:
        require_rules(between, values, list(cotangents), wrt)
        require_paths(between, values)
    pending: dict[ir.Value, list[ir.Value]] = {v: [g] for v, g in cotangents.items()}
    for node in reversed(between):
        gs = [_collect(op, pending, v) for v in node.outputs]
        for value, g in zip(node.outputs, gs, strict=True):
            if g is not None:
                pending[value] = [g]
        if all(g is None for g in gs):
            continue
        with op.named(f"grad/{node.name or node.outputs[0].name}"):
            for value, dx in _pull(op, node, gs, values).items():
                if value in values:
                    pending.setdefault(value, []).append(dx)
    return [_collect(op, pending, v) for v in wrt]


def _collect(
    op: Builder, pending: dict[ir.Value, list[ir.Value]], value: ir.Value
) -> ir.Value | None:
    """The sum of all contributions to the cotangent of `value`, in the order they came."""
    parts = pending.get(value)
    if not parts:
        return None
    if len(parts) > 1:
        pending[value] = parts = [add(op, parts)]
    return parts[0]


def add(op: Builder, parts: Sequence[ir.Value]) -> ir.Value:
    """The sum of cotangents of one value."""
    if isinstance(parts[0].type, ir.SequenceType):
        from sardonyx.grad.sequence import add_sequences

        return add_sequences(op, parts)
    whole = _tiled(parts)
    if whole is not None:
        return op.Concat(*whole[0], axis=whole[1])
    return op.Add(*parts) if len(parts) == 2 else op.Sum(*parts)


def _tiled(parts: Sequence[ir.Value]) -> tuple[list[ir.Value], int] | None:
    """The pieces and their axis, where the parts are pieces padded with zeros that tile the whole.

    So end the gradients of slices that together take all of a tensor, as of queries, keys and
    values.
    """
    pieces: list[tuple[int, int, int, ir.Value]] = []
    for part in parts:
        node = part.producer()
        if (
            node is None
            or node.op_type != "Pad"
            or len(node.inputs) > 2
            or "mode" in node.attributes
        ):
            return None
        inner, pads = node.inputs[0], constant(node.inputs[1])
        if inner is None or pads is None or not is_static(inner) or not is_static(part):
            return None
        count = len(pads) // 2
        axes = [a for a in range(count) if pads[a] or pads[a + count]]
        if len(axes) != 1 or min(pads) < 0:
            return None
        begin, size = int(pads[axes[0]]), static(inner)[axes[0]]
        pieces.append((begin, begin + size, axes[0], inner))
    pieces.sort(key=lambda p: p[0])
    axis = pieces[0][2]
    ends = [0, *(end for _, end, _, _ in pieces)]
    fits = all(a == axis and begin == ends[i] for i, (begin, _, a, _) in enumerate(pieces))
    return ([p[3] for p in pieces], axis) if fits and ends[-1] == static(parts[0])[axis] else None


def _pull(
    op: Builder, node: ir.Node, gs: list[ir.Value | None], values: set[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Call the rule of `node`: the cotangents of what it reads."""
    rule = GRADIENT_RULES.rules[op_id(node)]
    if rule.options.get("structural"):
        with op:
            return rule.function(op, gs, node, values)
    complete(node, rule.options["needs"])
    gs += [None] * (len(node.outputs) - len(gs))
    lead = tuple(gs) if rule.options["many"] else gs[0]
    if lead is None:
        return {}
    with op:
        gradients = rule.function(op, lead, *arguments(rule, node), **keywords(rule, node))
    gradients = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
    out: dict[ir.Value, ir.Value] = {}
    for x, dx in zip(node.inputs, gradients, strict=False):
        if x is None or dx is None or x not in values:
            continue
        dx = fit(op, dx, x, rule.options["broadcasts"])
        out[x] = dx if x not in out else add(op, [out[x], dx])
    return out


def complete(node: ir.Node, needs: int) -> None:
    """Give a forward node the optional outputs that its rule needs."""
    if len(node.outputs) < needs:
        node.resize_outputs(needs)
        stem = node.name or node.outputs[0].name
        for i, value in enumerate(node.outputs):
            if not value.name:
                value.name = f"{stem}:{i}"
        infer(node)


def arguments(rule: Rule, node: ir.Node) -> list[ir.Value | None]:
    """The inputs of `node` as the rule takes them: by schema position, None where omitted."""
    inputs = list(node.inputs)
    if rule.tensors is None:
        return inputs
    return (inputs + [None] * rule.tensors)[: rule.tensors]


def attributes(node: ir.Node) -> dict[str, Any]:
    """The attributes of `node` as plain Python values, defaults filled in."""
    settings = dict(opset.attribute_defaults(node.op_type, node.domain))
    for name, attr in node.attributes.items():
        settings[name] = attr.value
    return settings


def keywords(rule: Rule, node: ir.Node) -> dict[str, Any]:
    """Attributes, and the other keyword arguments that the rule declares."""
    settings = attributes(node)
    if "out" in rule.keywords:
        settings["out"] = tuple(node.outputs)
    if "node" in rule.keywords:
        settings["node"] = node
    if rule.takes_all_keywords:
        return settings
    return {k: v for k, v in settings.items() if k in rule.keywords}


# -- broadcasting undone ------------------------------------------------------------


def fit(op: Builder, dx: ir.Value, x: ir.Value, broadcasts: bool) -> ir.Value:
    """`dx` with the shape and type of `x`: sums over the axes along which `x` was broadcast."""
    if not isinstance(x.type, (ir.TensorType, type(None))):
        return dx
    if not same_shape(dx, x):
        dx = _unbroadcast(op, dx, x, broadcasts)
    if x.dtype in FLOATS and dx.dtype is not None:
        dx = op.cast(dx, x.dtype)
    if x.shape is not None and (dx.shape is None or not same_shape(dx, x)):
        dx.shape = ir.Shape(x.shape)
    return dx


def _unbroadcast(op: Builder, dx: ir.Value, x: ir.Value, broadcasts: bool) -> ir.Value:
    if dx.shape is None or x.shape is None:
        return _unbroadcast_at_run_time(op, dx, x) if broadcasts else dx
    lead = len(dx.shape) - len(x.shape)
    if lead < 0:
        return dx
    summed, unknown = [], False
    for axis, (d, s) in enumerate(zip(dx.shape[lead:], x.shape, strict=True)):
        if same_dim(d, s):
            continue
        if s == 1:
            summed.append(lead + axis)
        elif not isinstance(s, int) and d != 1:
            unknown = True
    if unknown and broadcasts:
        return _unbroadcast_at_run_time(op, dx, x)
    if summed:
        dx = op.total(dx, summed, keepdims=True)
    if lead:
        dx = _sum_leading(op, dx, lead)
    return dx


def _sum_leading(op: Builder, dx: ir.Value, lead: int) -> ir.Value:
    """The sum over the first `lead` axes, as of a bias: a row of ones times a matrix is fastest."""
    if not is_static(dx) or dx.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return op.total(dx, list(range(lead)))
    sizes = static(dx)
    rows, columns = math.prod(sizes[:lead]), math.prod(sizes[lead:])
    if columns < MATRIX_COLUMNS or not 0 < rows <= MATRIX_ROWS:
        return op.total(dx, list(range(lead)))
    ones = op.const(np.ones((1, rows), dx.dtype.numpy()))
    return op.reshape(op.MatMul(ones, op.reshape(dx, [rows, columns])), list(sizes[lead:]))


def _unbroadcast_at_run_time(op: Builder, dx: ir.Value, x: ir.Value) -> ir.Value:
    """Sum over the axes whose sizes differ, found while running."""
    ours, theirs = op.Shape(x), op.Shape(dx)
    missing = op.Sub(op.Shape(theirs), op.Shape(ours))
    one = ir.tensor(np.ones(1, np.int64))
    padded = op.Concat(op.ConstantOfShape(missing, value=one), ours, axis=0)
    axes = op.Reshape(op.NonZero(op.Not(op.Equal(padded, theirs))), [-1])
    out = op.Reshape(op.total(dx, axes, keepdims=True), ours, allowzero=1)
    out.shape = ir.Shape(x.shape) if x.shape is not None else None
    return out

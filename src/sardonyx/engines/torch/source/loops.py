"""Loop and Scan as loops of Python: the body is a module that is called once per iteration."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.engines.torch.source.expression import Expression, Literal, Size, build
from sardonyx.engines.torch.source.reading import Cycle, Reader, Statement, Unwritten
from sardonyx.engines.torch.source.scopes import Path

Values = list[ir.Value]
ENDLESS = 2**31  # a trip count that is as good as none


def read_loop(reader: Reader, node: ir.Node, path: Path) -> None:
    """The statements of the body, in a scope of its own, then the loop."""
    body = node.attributes["body"].as_graph()
    (_loop if node.op_type == "Loop" else _scan)(reader, node, body, path)


def _loop(reader: Reader, node: ir.Node, body: ir.Graph, path: Path) -> None:
    count, condition, *rest = node.inputs
    starts = [v for v in rest if v is not None]
    number, going, *states = body.inputs
    goes_on, *results = body.outputs
    if len(starts) < len(rest):
        raise Unwritten("a state without a first value")
    for value in body.inputs:
        reader.declare(value)
    is_true = condition is None or _is_true(reader, condition)
    is_endless = _same(goes_on, going) or _is_constant_true(goes_on)
    has_condition = not (is_true and is_endless and _is_passed_on(going, goes_on))
    if has_condition:
        if condition is None:
            raise Unwritten("a condition without a first value")
        starts, states = [condition, *starts], [going, *states]
        results = [goes_on, *results]
    expression = _count(reader, count, number, has_condition)
    outputs = list(node.outputs)
    _drop_constant_states(reader, path, starts, states, results, outputs, int(has_condition))
    if has_condition:
        outputs = [ir.Value(name=f"{node.outputs[0].name}/condition"), *outputs]
    axes = [0] * (len(results) - len(states))
    is_some = not has_condition and count is not None and _is_positive(reader, count)
    cycle = Cycle([number] if number.uses() else [], states, starts, has_condition, axes)
    cycle.may_be_empty = not is_some
    _add(reader, node, path, expression, cycle, results, outputs)


def _drop_constant_states(
    reader: Reader, path: Path, starts: Values, states: Values, results: Values,
    outputs: Values, first: int,
) -> None:  # fmt: skip
    """States that the body returns unchanged, as weights are carried: what they start as."""
    for k in reversed(range(first, len(states))):
        state, start, output = states[k], starts[k], outputs[k - first]
        others = [r for i, r in enumerate(results) if i != k]
        if not _same(results[k], state) or any(r is state for r in others):
            continue
        for use in list(state.uses()):
            use.node.replace_input_with(use.idx, start)
        same = Statement([output], path, "Identity", build("{0}", start), branch=reader.branch)
        reader.statements.append(same)
        for values, place in ((starts, k), (states, k), (results, k), (outputs, k - first)):
            del values[place]


def _count(
    reader: Reader, count: ir.Value | None, number: ir.Value, has_condition: bool
) -> Expression:
    """What the loop iterates over; nothing where only its condition ends it."""
    trips = None if count is None else reader.listed(count)[0]
    if trips is None or (not isinstance(trips, Size) and trips >= ENDLESS):
        if number.uses() or not has_condition:
            raise Unwritten("a loop without a count of iterations")
        return Expression(())
    amount = trips if isinstance(trips, Size) else Literal(trips, "count")
    if not number.uses():
        return build("range({0})", amount)
    return build("torch.arange({0}, {1})", amount, reader.device([trips]))


def _scan(reader: Reader, node: ir.Node, body: ir.Graph, path: Path) -> None:
    if len(node.inputs) != len(body.inputs):
        raise Unwritten("a Scan of an old version")
    width = node.attributes.get_int("num_scan_inputs", 1)
    split = len(body.inputs) - width
    for value in body.inputs:
        reader.declare(value)
    sequences = [v for v in node.inputs[split:] if v is not None]
    starts = [v for v in node.inputs[:split] if v is not None]
    if len(sequences) + len(starts) != len(node.inputs):
        raise Unwritten("a state without a first value")
    options = node.attributes
    axes = list(options.get_ints("scan_input_axes", ())) or [0] * width
    backward = list(options.get_ints("scan_input_directions", ())) or [0] * width
    texts = [f"{{{i}}}.unbind({axis})" for i, axis in enumerate(axes)]
    texts = [f"reversed({text})" if back else text for text, back in zip(texts, backward)]
    text = texts[0] if width == 1 else f"zip({', '.join(texts)})"
    results = list(body.outputs)
    stacked = list(options.get_ints("scan_output_axes", ())) or [0] * (len(results) - split)
    cycle = Cycle(list(body.inputs[split:]), list(body.inputs[:split]), starts, False, stacked)
    cycle.turned = [bool(back) for back in options.get_ints("scan_output_directions", ())]
    _add(reader, node, path, build(text, *sequences), cycle, results, list(node.outputs))


def _add(
    reader: Reader, node: ir.Node, path: Path, expression: Expression, cycle: Cycle,
    results: list[ir.Value], outputs: list[ir.Value],
) -> None:  # fmt: skip
    for word, values in (("step", cycle.items), ("state", cycle.states)):
        for value in values:
            value.meta["argument"] = word
    for state, result in zip(cycle.states, results):
        if not _fits(state, result):
            raise Unwritten("a state whose size changes")
    body = reader.branch_of(node.attributes["body"].as_graph(), path, "step", results)
    if not body.outputs:
        raise Unwritten("a body without results")
    statement = Statement(outputs, path, node.op_type, expression, branch=reader.branch)
    statement.branches, statement.cycle = [body], cycle
    reader.statements.append(statement)


def _is_positive(reader: Reader, count: ir.Value) -> bool:
    trips = reader.listed(count)[0]
    return not isinstance(trips, Size) and trips > 0


def _fits(a: ir.Value, b: ir.Value) -> bool:
    if a.shape is None or b.shape is None:
        return True
    pairs = list(zip(a.shape, b.shape))
    numbers = [(m, n) for m, n in pairs if isinstance(m, int) and isinstance(n, int)]
    return len(a.shape) == len(b.shape) and all(m == n for m, n in numbers)


def _same(value: ir.Value, other: ir.Value) -> bool:
    """Whether a value is another one, passed through Identity."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value is other


def _is_passed_on(going: ir.Value, goes_on: ir.Value) -> bool:
    """Whether nothing in the body reads the condition but what passes it on."""
    nodes = [use.node for use in going.uses()]
    return all(n.op_type == "Identity" and n.outputs[0] is goes_on for n in nodes)


def _is_true(reader: Reader, value: ir.Value) -> bool:
    return value in reader.known and reader.known[value].tolist() in (True, [True])


def _is_constant_true(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.numpy().tolist() in (True, [True])

"""Branches and loops: their bodies are statements of the function that they are in."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.matlab.function import (
    TYPES,
    Call,
    Refused,
    constant,
    matlab,
    rank_of,
    row,
)


def _in_branches(m: Call, *inputs: Any, **attributes: Any) -> str:
    return ""  # each branch says how many axes its results have


@matlab("If", ranks=_in_branches)
def branches(m, condition, *, then_branch, else_branch):
    """Both branches write the same variables; what they hold beside is their own."""
    outputs = [m.function.output(v) for v in m.node.outputs]
    bodies = [("if", f" {condition}", then_branch), ("else", "", else_branch)]
    for word, rest, body in bodies:
        m.function.lines.append(f"{word}{rest}")
        m.function.write_body(body, outputs, m.node.outputs)
    m.function.lines.append("end")


@matlab("Loop")
def loop(m, most=None, condition=None, *values, body):
    """Steps while a condition holds: the body's statements, and its states before them."""
    function, count = m.function, len(values)
    number, going, *carried = body.inputs
    states = _begin(m, carried, values, body.outputs[1 : 1 + count])
    step = function.name(number, "step")
    m.emit(step, expression="0")
    words = [] if most is None else [f"{step} < {most}"]
    pairs = list(zip(states, body.outputs[1 : 1 + count], strict=True))
    if going.uses() or not (_holds(m.node.inputs[1]) and _holds(body.outputs[0])):
        words.insert(0, function.name(going, "going"))
        m.emit(words[0], expression=condition or "true")
        pairs.insert(0, (words[0], body.outputs[0]))
    function.lines.append(f"while {' && '.join(words) or 'true'}")
    start = len(function.lines)
    for node in body:
        function.write(node)
    ends = zip(body.outputs[1 + count :], m.node.outputs[count:], strict=True)
    parts = [_kept(m, value, result, 0, f"{step} + 1") for value, result in ends]
    _next(m, pairs)
    m.emit(step, expression=f"{step} + 1")
    _finish(m, states, parts, start)


def _holds(condition: ir.Value | None) -> bool:
    """Whether a condition is left out, or a constant that holds."""
    if condition is None:
        return True
    array = constant(condition)
    return array is not None and bool(array.all())


@matlab("Scan")
def scan(m, *values, body, num_scan_inputs, **attributes):
    """A loop over the elements along an axis: the body's statements, and its states before them."""
    function, count = m.function, len(values) - num_scan_inputs
    scanned = range(count, len(values))
    axes = _axes(attributes["scan_input_axes"], num_scan_inputs)
    dims = [m.dim(a, m.rank(i)) for a, i in zip(axes, scanned, strict=True)]
    states = _begin(m, body.inputs[:count], values[:count], body.outputs[:count])
    step = function.names.fresh("step")
    total = f"size({values[count]}, {dims[0]})"
    function.lines.append(f"for {step} = 1:{total}")
    start = len(function.lines)
    backwards = _axes(attributes["scan_input_directions"], num_scan_inputs)
    for i, dim, back in zip(scanned, dims, backwards, strict=True):
        place = f"{total} + 1 - {step}" if back else step
        expression = f"onnx_at({values[i]}, {m.rank(i)}, {dim}, {place})"
        m.emit(function.name(body.inputs[i]), expression=expression)
    for node in body:
        function.write(node)
    pairs = list(zip(body.outputs[count:], m.node.outputs[count:], strict=True))
    ends = _axes(attributes["scan_output_axes"], len(pairs))
    turns = _axes(attributes["scan_output_directions"], len(pairs))
    parts = [
        _kept(m, value, result, axis, f"{total} + 1 - {step}" if back else step)
        for (value, result), axis, back in zip(pairs, ends, turns, strict=True)
    ]
    _next(m, list(zip(states, body.outputs[:count], strict=True)))
    _finish(m, states, parts, start)


def _axes(numbers: Any, count: int) -> list[int]:
    return [int(n) for n in numbers] if numbers is not None else [0] * count


def _begin(m: Call, inner: Any, values: Any, after: Any) -> list[str]:
    """The variables of the states, which hold the values that they begin with."""
    states = [m.function.name(v) for v in inner]
    first = len(m.node.inputs) - len(values)
    first = 0 if m.node.op_type == "Scan" else first
    outer = m.node.inputs[first : first + len(values)]
    for value, *others in zip(outer, inner, after, m.node.outputs, strict=False):
        if any(rank_of(v) != rank_of(value) for v in others):
            raise Refused("a state whose number of axes changes")
    for name, value in zip(states, values, strict=True):
        m.emit(name, expression=value)
    return states


Part = tuple[str, int, str, str, str]


def _kept(m: Call, value: ir.Value, result: ir.Value, axis: int, place: str) -> Part | None:
    """The statement that keeps an element of a result; what is needed to put these together."""
    function = m.function
    y = function.output(result)
    if y == "~":
        return None
    rank = rank_of(value)
    if rank + 1 != rank_of(result):
        raise Refused("a result of another rank")
    dim, text = m.dim(axis, rank + 1), function.expression(value)
    if dim != rank + 1:
        text = f"onnx_add({text}, {rank}, {dim}, {rank + 1})"
    cells = function.names.fresh(f"{y}_parts")
    function.lines.append(f"{cells}{{{place}}} = {text};")
    sizes = [d if isinstance(d, int) else np.nan for d in reversed(list(value.shape or ()))]
    kind = TYPES[value.dtype]  # type: ignore[index]
    kind = kind if kind in ("single", "logical") else "double"
    return y, dim, cells, row(sizes), kind


def _next(m: Call, pairs: list[tuple[str, ir.Value]]) -> None:
    """States take their next values; all are read before any is written where one is another."""
    names = [name for name, _ in pairs]
    texts = [m.function.expression(v) or "[]" for _, v in pairs]
    if set(texts) & set(names):
        later = [m.function.names.fresh(f"{name}_next") for name in names]
        for name, text in zip(later, texts, strict=True):
            m.emit(name, expression=text)
        texts = later
    for name, text in zip(names, texts, strict=True):
        m.emit(name, expression=text)


def _finish(m: Call, states: list[str], parts: list[Part | None], start: int) -> None:
    """The end of a loop whose body begins at line `start`, and its results."""
    function, present = m.function, [part for part in parts if part is not None]
    function.indent(start)
    function.lines.append("end")
    for part in present:  # a loop inside another one begins anew each time
        function.lines.insert(start - 1, f"{part[2]} = {{}};")
    for name, value in zip(states, m.node.outputs, strict=False):
        if (y := function.output(value)) != "~":
            m.emit(y, expression=name)
    for y, dim, cells, sizes, kind in present:
        m.emit(y, expression=f"onnx_stack({cells}, {dim}, {sizes}, '{kind}')")

"""A module with its example arguments becomes an exported program with free sizes.

The module and the loss are captured together, in evaluation mode, as one function of tensors;
what is only there for the loss is separated afterwards (`split.py`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import linecache
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.export import Dim
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from sardonyx import errors
from sardonyx.errors import ImportRefused, SardonyxError, quote
from sardonyx.importers.torch.replacements import Replacing
from sardonyx.importers.torch.sizes import free_sizes, one_name_each, refuse_fixed
from sardonyx.importers.torch.source import LOSS, Source
from sardonyx.importers.torch.stochastic_depth import RowDropout, write

INSTALLED = ("site-packages", "dist-packages")
INTERNAL = (str(Path(torch.__file__).parent), str(Path(errors.__file__).parent))
MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))


@dataclass
class Program:
    """A captured program and the names of what goes in and comes out, in order."""

    exported: torch.export.ExportedProgram
    inputs: list[str]
    outputs: list[str]
    free: dict[tuple[str, int], str] = field(default_factory=dict)  # (input, axis) → its name

    def sizes(self) -> dict[tuple[str, int], Any]:
        """The sizes of the inputs, by (input, axis): numbers where they are fixed, else symbols."""
        holders = [n for n in self.exported.graph.nodes if n.op == "placeholder"]
        users = holders[len(holders) - len(self.inputs) :]
        return {
            (name, axis): int(size) if str(size).isdigit() else size
            for name, holder in zip(self.inputs, users, strict=True)
            for axis, size in enumerate(getattr(holder.meta.get("val"), "shape", ()))
        }


class _Whole(torch.nn.Module):
    """The module and its loss as a function of a flat list of tensors."""

    def __init__(self, source: Source, names: Sequence[str], report: Callable[[list[str]], None]):
        super().__init__()
        self.model = source.module
        if isinstance(source.loss, torch.nn.Module):
            self.criterion = source.loss
        self.source, self.names, self.report = source, list(names), report

    def forward(self, *values: torch.Tensor) -> list[torch.Tensor]:
        feeds = dict(zip(self.names, values, strict=True))
        with Replacing(), _assignments_written(self.model):
            outputs, loss = self.source.run(self.model, feeds)
        if loss is not None:
            outputs = {**outputs, _free(LOSS, outputs): loss}
        self.report(list(outputs))  # torch resets attributes that are assigned while it exports
        return list(outputs.values())


@contextlib.contextmanager
def _assignments_written(module: torch.nn.Module) -> Iterator[None]:
    """Write tensors that a module assigns to its buffers into these buffers: torch sees that."""
    before = [(m, dict(m._buffers)) for m in module.modules()]
    yield
    for part, buffers in before:
        for name, buffer in buffers.items():
            value = part._buffers.get(name)
            if buffer is not None and value is not None and value is not buffer:
                buffer.copy_(value)
                part._buffers[name] = buffer


def _free(name: str, names: Mapping[str, Any]) -> str:
    while name in names:
        name = f"train/{name}"
    return name


def captured(
    source: Source, dynamic: Any, depth: Mapping[torch.nn.Module, RowDropout] | None = None
) -> Program:
    """The exported program of a source, in evaluation mode; its own mode is restored.

    depth -- the modules that drop rows in training mode
    """
    values = {**source.call.tensors(), **source.label_tensors()}
    refuse_values(source, values)
    free = free_sizes(source, values, dynamic)
    only_rows = isinstance(dynamic, str)  # with "all", an axis of 1 may have to stay so
    program = _of_several_rows(source, values, free, depth, only_rows)
    if program is None:
        program = _exported(source, values, free, depth)
    if isinstance(dynamic, str) and dynamic == "batch":
        program = _with_free_batch(program, source, values, depth)
    _refuse_complex_outputs(program)
    refuse_fixed(program.free, program.sizes(), dynamic)
    program.free = one_name_each(program.free, program.sizes())
    return program


def _of_several_rows(
    source: Source,
    values: Mapping[str, torch.Tensor],
    free: dict[tuple[str, int], str],
    depth: Mapping[torch.nn.Module, RowDropout] | None,
    only_rows: bool,
) -> Program | None:
    """The program of an example of one row, captured with two: torch takes a size of 1 for fixed.

    None where there is none, or the network does not take two.
    """
    ones = {place for place in free if values[place[0]].shape[place[1]] == 1}
    ones = {place for place in ones if free[place] == "batch" or not only_rows}
    if not ones:
        return None
    twice = dict(values)
    for name, axis in ones:
        twice[name] = twice[name].repeat_interleave(2, axis)
    try:
        return _exported(source, twice, free, depth)
    except ImportRefused:
        return None


def _exported(
    source: Source,
    values: Mapping[str, torch.Tensor],
    free: dict[tuple[str, int], str],
    depth: Mapping[torch.nn.Module, RowDropout] | None,
) -> Program:
    outputs: list[str] = []
    whole = _Whole(source, list(values), lambda names: outputs.__setitem__(slice(None), names))
    shapes = tuple({axis: Dim.AUTO for name, axis in free if name == n} or None for n in values)
    lines = functools.partial(_written_weights, source)
    with evaluation_mode(source.module), quiet(), silent(), refused(source.module, lines):
        write(depth or {})
        exported = torch.export.export(
            whole, tuple(values.values()), dynamic_shapes=(shapes,), strict=False
        )
    return Program(exported, list(values), outputs, free)


def _with_free_batch(
    program: Program,
    source: Source,
    values: Mapping[str, torch.Tensor],
    depth: Mapping[torch.nn.Module, RowDropout] | None,
) -> Program:
    """Where the network has fixed the batch: with the batch free at other axes of inputs, too.

    The first state of a recurrent layer has its rows along axis 1.
    """
    sizes = program.sizes()
    first = next(iter(program.free), None)
    if first is None or not isinstance(sizes[first], int):
        return program
    axes = {place: "batch" for place, size in sizes.items() if size == sizes[first]}
    if axes.keys() <= program.free.keys():
        return program
    try:
        other = _exported(source, values, axes, depth)
    except ImportRefused:
        return program
    sizes = other.sizes()
    other.free = {place: "batch" for place in axes if str(sizes[place]) == str(sizes[first])}
    return program if isinstance(sizes[first], int) else other


def _written_weights(source: Source, text: str) -> list[list[str]]:
    """The parameters that a call changes, where torch says that it has lost one of its tensors."""
    if "found a fake tensor" not in text:
        return []
    weights = dict(source.module.named_parameters())
    before = {n: p.detach().clone() for n, p in weights.items()}
    lines = _Unseen()
    with torch.no_grad(), lines:
        source.run(source.module, {})
    with torch.no_grad():
        changes = [n for n, p in weights.items() if not torch.equal(p, before[n])]
        for name in changes:
            weights[name].copy_(before[name])
    rows = [[f"parameter {quote(n)}", "is written to in place"] for n in changes]
    return rows or [[line, ".data"] for line in lines.places]


class _Unseen(TorchFunctionMode):
    """Notes the user's lines that reach for `.data`, behind which torch's exporter does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, None] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            self.places[user_line()] = None
        return func(*args, **(kwargs or {}))


def user_line() -> str:
    """The innermost line that runs now outside of torch and of this package."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(("<", *INTERNAL)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def refuse_values(source: Source, values: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors that ONNX has no form for, before any work."""
    named = {**values, **dict(source.module.named_parameters())}
    named |= dict(source.module.named_buffers())
    rows = [[quote(n), f"is {v.dtype}"] for n, v in named.items() if v.is_complex()]
    rows += [[quote(n), "is sparse"] for n, v in named.items() if v.layout != torch.strided]
    rows += [[quote(n), "is on the meta device"] for n, v in named.items() if v.is_meta]
    rows += [[quote(n), "is quantized"] for n, v in named.items() if v.is_quantized]
    if rows:
        hint = "torch.view_as_real gives complex numbers as pairs of real ones"
        raise ImportRefused("these tensors have no ONNX form", rows, hint)


def _refuse_complex_outputs(program: Program) -> None:
    nodes = list(program.exported.graph.nodes)[-1].all_input_nodes
    names = {n.name: n.meta.get("val") for n in nodes}
    results = program.exported.graph_signature.user_outputs
    rows = [
        [f"output {quote(name)}", f"is {names[result].dtype}"]
        for name, result in zip(program.outputs, results, strict=False)
        if isinstance(names.get(str(result)), torch.Tensor) and names[result].is_complex()
    ]
    if rows:
        hint = "return torch.view_as_real(…), pairs of real numbers"
        raise ImportRefused("these tensors have no ONNX form", rows, hint)


# -- modes and errors -------------------------------------------------------------------


@contextlib.contextmanager
def evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode, and every part of it back."""
    modes = {m: m.training for m in module.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        for part in modes:
            part.training = False
        torch.backends.mha.set_fastpath_enabled(False)  # a fused layer has no translation
        with attributes_restored(module):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part, mode in modes.items():
            part.training = mode


@contextlib.contextmanager
def attributes_restored(module: torch.nn.Module) -> Iterator[None]:
    """Put back buffers, what a module assigns to itself, and what it adds to its containers.

    Some keep results of evaluation mode for the next call: here, of a call with the tensors of a
    trace, or with those of float64.
    """
    buffers = [(m, dict(m._buffers)) for m in module.modules()]
    values = {b: b.detach().clone() for b in module.buffers()}
    before = [(m, _plain_attributes(m)) for m in module.modules()]
    contents = [
        (value, copy.copy(value))
        for _, attributes in before
        for value in attributes.values()
        if type(value) in (dict, list, set)
    ]
    try:
        yield
    finally:
        for part, attributes in before:
            for name in _plain_attributes(part).keys() - attributes.keys():
                del vars(part)[name]
            vars(part).update(attributes)
        for part, tensors_of_part in buffers:
            part._buffers.update(tensors_of_part)
        with torch.no_grad():
            for buffer, number in values.items():
                buffer.copy_(number)
        for value, content in contents:
            value.clear()
            value.extend(content) if isinstance(value, list) else value.update(content)


def _plain_attributes(module: torch.nn.Module) -> dict[str, Any]:
    return {n: v for n, v in vars(module).items() if n not in MODULE_ATTRIBUTES}


@contextlib.contextmanager
def plain_branches() -> Iterator[None]:
    """Inside, `torch.cond` is plain torch: as it is, it is compiled, and no mode sees into it.

    With gradients, both sides are computed: parameters of the other side get zeros, not nothing.
    """

    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        if not torch.is_grad_enabled():
            return (true_fn if bool(pred) else false_fn)(*operands)
        flag = torch.as_tensor(pred)
        sides = true_fn(*operands), false_fn(*operands)
        return pytree.tree_map(lambda a, b: torch.where(flag, a, b), *sides)

    with mock.patch.object(torch, "cond", cond):
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, torch's remarks about its own exporter are not shown."""
    level = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(level)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Inside, nothing is printed: torch prints whole programs beside some of its errors."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def refused(
    module: torch.nn.Module, lines: Callable[[str], list[list[str]]] | None = None
) -> Iterator[None]:
    """Turn what torch's exporter raises into one error that names the user's line.

    lines -- the user's lines of which the text of an error speaks, where its traceback has none
    """
    try:
        yield
    except SardonyxError:
        raise
    except Exception as error:
        what, hint = _reason(error)
        name = type(module).__name__
        rows = _places(error) or ([] if lines is None else lines(_text(error)))
        raise ImportRefused(f"torch cannot export {quote(name)}: {what}", rows, hint) from error


def refusal(what: str, error: BaseException, hint: str = "") -> ImportRefused:
    """An error of the user's own code, in one that names the line."""
    reason = next((line for line in str(error).splitlines() if line.strip()), "")
    return ImportRefused(
        f"{what}: {type(error).__name__}: {reason.strip()[:300]}", _places(error), hint
    )


HINTS = (
    ("data-dependent", "Python code branches on the values of tensors: write it with torch.where "
     "or torch.cond; where a loss does that the module returns, pass loss= instead of labels="),
    ("but got FakeTensor", "a size depends on the values of tensors, as in packed sequences: run "
     "the layer over padded rows, and mask or gather what it returns"),
    ("compatible OpOverload", "torch's exporter finds no operator for these types: compute with "
     "tensors of one dtype"),
    ("unbacked", "a size depends on the values of tensors: write it with masks of a fixed size"),
    ("Constraints violated", "the network fixes a size that dynamic= leaves free: pass "
     "torch's dynamic_shapes, or dynamic=None"),
    ("DynamicCache", "pass use_cache=False, or set config.use_cache = False"),
    ("found a fake tensor", "the module writes in place to a view of a weight, or keeps a tensor "
     "between calls: compute with a copy, x = x.clone()"),
    ("is mutated in the forward", "register it as a buffer, or compute with a copy"),
    ("complex", "complex numbers have no ONNX form: compute with real and imaginary parts"),
    ("No ONNX function found", "torch's exporter has no ONNX form of this operator: write it with "
     "others, or pass the part of the network without it"),
)  # fmt: skip


def _reason(error: BaseException) -> tuple[str, str]:
    """The first line of what torch says, and a hint."""
    chain = _chain(error)
    lines = (line.strip() for line in str(chain[-1]).splitlines())
    first = next((line for line in lines if line), type(error).__name__)
    lowered = _text(error).lower()
    hint = next((h for key, h in HINTS if key.lower() in lowered), "")
    return f"{type(chain[-1]).__name__}: {first[:300]}", hint or (
        "torch.export.export(module.eval(), args) shows the same; rewrite the line, or pass the "
        "part of the network that exports"
    )


def _text(error: BaseException) -> str:
    return "\n".join(str(e) for e in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    return chain


def _places(error: BaseException) -> list[list[str]]:
    """The innermost line of the user's own code, else of the library that the module is from."""
    frames = [f for e in _chain(error) for f in traceback.extract_tb(e.__traceback__)]
    outside = [f for f in frames if not f.filename.startswith(("<", *INTERNAL))]
    user_frames = [f for f in outside if not any(part in f.filename for part in INSTALLED)]
    chosen = (user_frames or outside)[-1:]
    return [
        [
            f"{f.filename}:{f.lineno}",
            (f.line or linecache.getline(f.filename, f.lineno or 0)).strip(),
        ]
        for f in chosen
    ]

"""`to_matlab_source`: a folder with functions, their weights, and the functions that they call."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.edit.merged import separate_merged
from sardonyx.engines.matlab import (  # noqa: F401  (rules)
    controlflow,
    elementwise,
    forms,
    layers,
    layout,
    mat_file,
    signal,
)
from sardonyx.engines.matlab import text as text_rules  # noqa: F401
from sardonyx.engines.matlab.blocks import Part, repeated
from sardonyx.engines.matlab.function import (
    FLOAT_CLASSES,
    INTEGERS,
    RULES,
    TEXT,
    TYPES,
    Function,
    Refused,
    constant,
    refuse,
    wrapped,
)
from sardonyx.engines.matlab.names import Names
from sardonyx.errors import ArgumentError, quote
from sardonyx.grad import grad
from sardonyx.lower.driver import array_of
from sardonyx.model import Model, ModelSource, load
from sardonyx.normalize import constants_to_initializers, normalize, regular_copy
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold
from sardonyx.passes.functions import expand
from sardonyx.passes.nesting import graphs
from sardonyx.passes.nesting import names as all_names
from sardonyx.passes.pinning import pinned
from sardonyx.passes.shapes import infer_shapes
from sardonyx.record.describe import Choices
from sardonyx.record.restore_weights import restore_weights
from sardonyx.save import full_disk_reported
from sardonyx.weights import weights as weights_of

LIBRARY = Path(__file__).parent / "library"
WEIGHTS = "params.mat"
CALLED = re.compile(r"\bonnx_\w+")


def to_matlab_source(
    model: ModelSource,
    folder: str | Path,
    *,
    gradients: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Path:
    """Write a model as MATLAB code that needs no toolbox, nor sardonyx; the path of `model.m`.

    The folder then holds `model.m`, one function for each part of the model that is repeated,
    `params.mat` with the weights, and in `private` the functions that these call. GNU Octave runs
    it too. Arrays have their axes in the reverse order of ONNX's: `[W, H, C, N]`.

    gradients -- write `gradients.m` as well: the gradients of all weights, for training
    sizes     -- numbers for free sizes of the model, such as {"N": 32}; more can be written then

    >>> import sardonyx as sx
    >>> path = sx.to_matlab_source("model.onnx", "matlab")
    >>> print(path.read_text())  # doctest: +ELLIPSIS
    function scores = model(x, params)...
    """
    program = generate(_sized(load(model), sizes or {}), gradients)
    target = Path(folder)
    with full_disk_reported(target.absolute().parent):
        (target / "private").mkdir(parents=True, exist_ok=True)
        for name, text in program.functions.items():
            (target / f"{name}.m").write_text(text, encoding="utf-8")
        for name in sorted(program.library):
            source = (LIBRARY / f"{name}.m").read_text(encoding="utf-8")
            (target / "private" / f"{name}.m").write_text(source, encoding="utf-8")
        with open(target / WEIGHTS, "wb") as file:
            # Octave cannot load a file without variables.
            mat_file.write(file, program.params or {"weight_count": np.zeros(1)})
    return target / "model.m"


@dataclass
class Program:
    """Everything that is written: functions by name, weights, and the library's functions."""

    functions: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    model: Model | None = None

    @property
    def library(self) -> set[str]:
        names: set[str] = set()
        pending = set(CALLED.findall("\n".join(self.functions.values())))
        while pending:
            name = pending.pop()
            names.add(name)
            text = (LIBRARY / f"{name}.m").read_text(encoding="utf-8")
            pending |= set(CALLED.findall(text)) - names
        return names


def generate(model: Model, gradients: bool = False) -> Program:
    """The functions and the weights of a model; an error, before anything is written, if a part of
    it cannot be.
    """
    title, choices = _title(model), Choices()
    if gradients:
        model = _with_own_weights(model, choices)
    served = written_form(model)
    program = Program(model=served)
    writer = Writer(served, program, title)
    writer.write()
    if gradients:
        GradientWriter(model, writer, choices).write()
    return program


def _with_own_weights(model: Model, choices: Choices) -> Model:
    """A copy in which each layer has weights of its own, also where an exporter had merged equal
    ones, as `trainable` makes it.
    """
    copy = regular_copy(Model(model.ir.clone(), [], model.source))
    separate_merged(copy, choices.add)
    restore_weights(copy, choices)
    return copy


def written_form(model: Model) -> Model:
    """A model in operators that have rules; all that cannot be written is one error."""
    normal = normalize(Model(model.ir.clone(), [], model.source))
    work = normal.copy()
    graph = work.graph
    if any(v.is_initializer() for v in graph.inputs):
        _fix_defaults(graph)
    # A weight stays in the parameters as it is: who changes it must change all that it is used for.
    kept = held(model)
    for name in kept:
        if name in graph.initializers:
            graph.initializers[name].meta["held"] = True
    namer = Builder()
    namer.reserve(all_names(graph))
    forms.rewrite(graph, namer)
    fold(graph, keep=kept)
    if _expand_bodies(graph, namer):
        constants_to_initializers(graph)
        infer_shapes(graph, work.skeleton)
    for _ in range(4):
        problems = _problems(graph)
        expansions = [node for node, _ in problems if expand(node, namer) is not None]
        if not expansions:
            break
        constants_to_initializers(graph)
        infer_shapes(graph, work.skeleton)
        fold(graph, keep=kept)
        remove_dead(graph)
    refuse(problems)
    _check_ends(work)
    return work


def held(model: Model) -> list[str]:
    """The names of weights and running statistics: what the parameters hold in any case."""
    return [w.name for w in weights_of(model) if w.kind != "constant"]


def _expand_bodies(graph: ir.Graph, namer: Builder) -> bool:
    """Write operators inside branches by their definitions where they have no rule."""
    inner = [node for part in graphs(graph) if part is not graph for node in part]
    missing = [node for node in inner if RULES.get(node.op_type, node.domain) is None]
    expansions = [expand(node, namer) for node in missing]
    return any(nodes is not None for nodes in expansions)


def _sized(model: Model, sizes: Mapping[str, int]) -> Model:
    """A model with numbers in place of some of its free sizes."""
    dims = {v.name or "": list(v.shape) for v in model.inputs if v.shape is not None}
    names = {d.value for shape in dims.values() for d in shape if not isinstance(d, int)}
    unknown = [[quote(name)] for name in sizes if name not in names]
    if unknown:
        free = ", ".join(sorted(n for n in names if n))
        raise ArgumentError("the inputs have no such free size", unknown, hint=f"they have {free}")
    if not sizes:
        return model
    shapes = {
        name: [d if isinstance(d, int) else sizes.get(d.value or "", d) for d in shape]
        for name, shape in dims.items()
    }
    copy = pinned(normalize(Model(model.ir.clone(), [], model.source)), shapes, held(model))
    return Model(copy.ir, [], model.source)


def _fix_defaults(graph: ir.Graph) -> None:
    """Inputs that have a default are constants of the code."""
    graph.inputs[:] = [v for v in graph.inputs if not v.is_initializer()]


def _problems(graph: ir.Graph) -> list[tuple[ir.Node, str]]:
    problems: list[tuple[ir.Node, str]] = []
    function = Function(list(graph.inputs), list(graph.outputs), lambda value: "params.value")
    for node in graph:
        try:
            function.write(node)
        except Refused as reason:
            problems.append((node, str(reason)))
    return problems


def _check_ends(model: Model) -> None:
    wrong = [
        [quote(v.name), str(v.type)]
        for v in (*model.graph.inputs, *model.graph.outputs)
        if not isinstance(v.type, ir.TensorType) or v.dtype not in TYPES or v.shape is None
    ]
    if wrong:
        raise ArgumentError("MATLAB code takes and gives arrays of known rank", wrong)
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            mat_file.check_size(value.name or "", array_of(value.const_value))


class Writer:
    """The functions of one graph, and the weights that they take."""

    def __init__(self, model: Model, program: Program, title: str):
        self.graph, self.program, self.title = model.graph, program, title
        self.groups = repeated(self.graph)
        self.files = Names(("model", "gradients", "params"))
        self.fields = Names()
        self.field_of: dict[ir.Value, str] = {}
        self.calls: dict[int, tuple[str, str, Part]] = {}  # start → function, field, part

    def write(self) -> None:
        for group in self.groups:
            self._write_block(group)
        inputs = list(self.graph.inputs)
        function = Function(inputs, list(self.graph.outputs), self.weight, self.files.taken)
        position, nodes = 0, list(self.graph)
        while position < len(nodes):
            if position in self.calls:
                name, struct, part = self.calls[position]
                arguments = [function.expression(v) or "[]" for v in part.inputs]
                arguments += [f"params.{struct}"] * bool(part.weights)
                results = [function.name(v) for v in part.outputs]
                function.assign(results, f"{name}({', '.join(arguments)})")
                position = part.stop
            else:
                function.write(nodes[position])
                position += 1
        ends = [_end(function, v) for v in self.graph.outputs]
        about = [self.title, "", *_usage(function, inputs, list(self.graph.outputs), ends)]
        casts = [_taken(function.values[v], v.dtype) for v in inputs]
        self.program.functions["model"] = text_of(
            "model", ends, [*function.arguments, "params"], about, [*casts, *function.lines]
        )

    def weight(self, value: ir.Value) -> str:
        """How the main function reaches a weight; it is stored when it is first asked for."""
        if value not in self.field_of:
            name = self.fields.fresh(value.name or "", "weight")
            self.field_of[value] = f"params.{name}"
            self.program.params[name] = constant(value)
        return self.field_of[value]

    def _write_block(self, group: list[Part]) -> None:
        first = group[0]
        name = self.files.fresh(_block_name(first), "block")
        names = Names()
        fields = [names.fresh(_last(v.name or ""), "weight") for v in first.weights]
        inside = dict(zip(first.weights, fields, strict=True))
        function = Function(first.inputs, first.outputs, lambda v: f"p.{inside[v]}", ["p"])
        for node in first.nodes:
            function.write(node)
        ends = [function.values[v] for v in first.outputs]
        arguments = [*function.arguments, *(["p"] * bool(first.weights))]
        about = [f"A part of the model that occurs {len(group)} times."]
        self.program.functions[name] = text_of(name, ends, arguments, about, function.lines)
        for number, part in enumerate(group, 1):
            struct = self.fields.fresh(part.scope or f"{name}_{number}", "block")
            values = [constant(v) for v in part.weights]
            if part.weights:
                self.program.params[struct] = dict(zip(fields, values, strict=True))
            for value, inner in zip(part.weights, fields, strict=True):
                self.field_of.setdefault(value, f"params.{struct}.{inner}")
            self.calls[part.start] = (name, struct, part)


class GradientWriter:
    """`gradients.m`: from inputs and the gradient of the loss by the outputs, that of weights."""

    def __init__(self, model: Model, writer: Writer, choices: Choices):
        self.model, self.writer, self.choices = model, writer, choices
        self.places = {v.name: text for v, text in writer.field_of.items()}
        self.arrays = {v.name: constant(v) for v in writer.field_of}

    def write(self) -> None:
        work = written_form(self._graph())
        weights = {v: self.places[v.name] for v in work.graph.inputs if v.name in self.places}
        inputs = [v for v in work.graph.inputs if v not in weights]
        function = Function(inputs, list(work.graph.outputs), self._constant, ["grads"])
        function.values.update(weights)
        for node in work.graph:
            function.write(node)
        ends = {v.name or "": _end(function, v) for v in work.graph.outputs}
        lines = [_taken(function.values[v], v.dtype) for v in inputs] + function.lines
        for name, end in ends.items():
            place = self.places[name.removeprefix("grad/")]
            lines.append(f"grads.{place.removeprefix('params.')} = {end};")
        about = [
            f"The gradients of the weights of {self.writer.title}",
            "",
            "The last arguments but one are the gradients of the loss by the outputs of model.m.",
            "The result has a field for each weight, as params has.",
            *(f"{row.value} ({row.why})" for row in self.choices.rows),
        ]
        arguments = [*function.arguments, "params"]
        self.writer.program.functions["gradients"] = text_of(
            "gradients", ["grads"], arguments, about, lines
        )

    def _constant(self, value: ir.Value) -> str:
        """How a constant is reached: where model.m has it, or in a field of its own."""
        array, other = constant(value), self.arrays.get(value.name)
        if array is not None and other is not None and np.array_equal(array, other):
            return self.places[value.name]
        return self.writer.weight(value)

    def _graph(self) -> Model:
        """The gradients as a model. Weights are inputs of it: to a pass, an initializer is a
        constant, and what is computed from a constant would not follow when it changes.
        """
        copy = self.model.copy()
        states = [name for name in held(self.model) if name in self.places]
        for name in states:
            value = copy.graph.initializers.pop(name)
            value.const_value = None
            copy.graph.inputs.append(value)
        outputs = [v.name or "" for v in copy.outputs if v.dtype in FLOAT_CLASSES]
        trained = [w.name for w in weights_of(self.model) if w.kind == "weight"]
        trained = [name for name in trained if name in states]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a weight that does not count
            return grad(copy, of=outputs, wrt=trained, seeds="input", outputs=False)


# -- text ----------------------------------------------------------------------------------------


def text_of(
    name: str, ends: list[str], arguments: list[str], about: list[str], lines: list[str]
) -> str:
    """The text of a function file."""
    left = ends[0] if len(ends) == 1 else f"[{', '.join(ends)}]"
    head = wrapped(f"function {left} = {name}({', '.join(arguments)})")
    comment = [f"% {line}".rstrip() for line in about]
    return "\n".join([head, *comment, *lines, "end", ""])


def _usage(
    function: Function, inputs: list[ir.Value], outputs: list[ir.Value], ends: list[str]
) -> list[str]:
    left = ends[0] if len(ends) == 1 else f"[{', '.join(ends)}]"
    call = f"{left} = model({', '.join([*function.arguments, 'params'])})"
    rows = [
        "Usage: params = load('params.mat');",
        f"       {call};",
        "",
        "Sizes are in the reverse",
    ]
    rows[-1] += " order of ONNX's:"
    rows += [f"  {function.values[v]}  {_kind(v)}" for v in inputs]
    return rows + [f"  {name}  {_kind(v)}  (result)" for v, name in zip(outputs, ends)]


def _kind(value: ir.Value) -> str:
    dims = [str(d) if isinstance(d, int) else str(d.value or "?") for d in value.shape or ()]
    text = f"{TYPES[value.dtype]} [{', '.join(reversed(dims))}]"  # type: ignore[index]
    classes = value.meta.get(forms.CLASSES)
    return text if classes is None else f"{text}, the scores of {', '.join(map(str, classes))}"


def _taken(name: str, dtype: ir.DataType | None) -> str:
    """The statement that brings an argument to the class in which it is computed."""
    if dtype in (ir.DataType.INT64, ir.DataType.UINT64):
        return f"{name} = onnx_whole({name});"
    if dtype == TEXT:
        return f"{name} = onnx_text({name});"
    kind = TYPES[dtype]  # type: ignore[index]
    return f"{name} = {'double' if dtype in INTEGERS else kind}({name});"


def _end(function: Function, value: ir.Value) -> str:
    """The name of an output; one that is no result of a node, or an integer, gets a statement."""
    name = function.expression(value) or ""
    is_own = value.producer() is not None and value in function.values
    kind = INTEGERS.get(value.dtype)  # type: ignore[arg-type]
    if is_own and kind is None:
        return name
    result = function.names.fresh(value.name or "", "y")
    function.lines.append(f"{result} = {f'{kind}({name})' if kind else name};")
    return result


def _title(model: Model) -> str:
    stem = model.source.stem if model.source is not None else ""
    return f"{stem or model.graph.name or 'A model'}, converted from ONNX."


def _block_name(part: Part) -> str:
    """A name from the scope: `layers.0` reads `layers`."""
    text = re.sub(r"[._]?\d+$", "", part.scope)
    return text.rpartition(".")[2] if text else "block"


def _last(name: str) -> str:
    """The last two components of the name of a weight, without numbers."""
    parts = [p for p in re.split(r"[./]", name) if p and not p.isdigit()]
    return "_".join(parts[-2:])

"""The registry of lowerings, and the search for the one that an operator gets in a framework.

Order: the framework's own kernel → the shared rule → ONNX's function body → `UnsupportedOp`, which
names everything that is missing at once, before anything runs. How rules are run is `program.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import Builder
from sardonyx.errors import ArgumentError, UnsupportedOp, quote
from sardonyx.lower.partition import Placement, Region, chosen, partition
from sardonyx.lower.xp import is_string
from sardonyx.model import Model
from sardonyx.normalize import constants_to_initializers
from sardonyx.passes.functions import expand
from sardonyx.passes.nesting import graphs, names
from sardonyx.plugins import FRAMEWORKS
from sardonyx.registry import Registry, Rule

# Keywords of rules besides attributes: the number of the node's outputs, and their types.
SPECIAL = ("count", "dtypes")
LOWERINGS = Registry("lowering", leading=1, special=SPECIAL)
MANY = 256  # the most inputs of a variadic parameter that may come as numpy arrays
KERNELS = {name: Registry(f"{name} kernel", leading=1, special=SPECIAL) for name in FRAMEWORKS}


def lowering(
    *ops: str,
    domain: str = "",
    static: Sequence[str] = (),
    either: Sequence[str] = (),
    only: str | None = None,
    sizes: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a lowering.

    The rule gets `xp`, then the inputs by schema position (None where omitted) and the attributes
    by schema name, defaults filled in; a body is a function of its inputs. It returns the output,
    or a tuple of them.

    static -- names of inputs that must be known while building: they come as numpy arrays, whose
              elements are symbolic scalars where only the framework knows a size
    either -- names of inputs that come as numpy arrays where they are known, else as arrays of
              the framework
    only   -- the framework that has this kernel in place of the shared rule
    sizes  -- the rule also runs on arrays of symbolic sizes (numpy's object arrays)

    >>> import sardonyx as sx
    >>> @lowering("Double", domain="com.acme")
    ... def double(xp, x):
    ...     return xp.add(x, x)
    """
    if only is not None and only not in KERNELS:
        raise ArgumentError(f"there is no engine {only!r} to lower to", hint=f"one of {FRAMEWORKS}")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function).parameters
        parameters = list(signature)[1:]
        unknown = [name for name in (*static, *either) if name not in parameters]
        if unknown:
            raise ArgumentError(f"{function.__name__} has no parameter {unknown}")
        positions = frozenset(parameters.index(name) for name in static)
        rest = [n for n in either if signature[n].kind is inspect.Parameter.VAR_POSITIONAL]
        loose = {parameters.index(name) for name in either}
        loose.update(i for name in rest for i in range(parameters.index(name), MANY))
        registry = LOWERINGS if only is None else KERNELS[only]
        for name in ops:
            registry.register(
                function, name, domain, static=positions, either=frozenset(loose), sizes=sizes
            )
        return function

    return decorate


def table(formulas: dict[str, Callable[..., Any]], module: str, **options: Any) -> None:
    """Register one-line rules of operators without attributes."""
    for name, formula in formulas.items():
        formula.__module__ = module
        lowering(name, **options)(formula)


def find(op: str, domain: str, framework: str) -> Rule | None:
    """The rule that `op` gets in a framework: its own kernel, else the shared one."""
    return KERNELS[framework].get(op, domain) or LOWERINGS.get(op, domain)


def attributes(node: ir.Node) -> dict[str, Any]:
    """The attributes of `node` as plain Python values, defaults filled in; bodies stay graphs."""
    values = dict(opset.attribute_defaults(node.op_type, node.domain))
    for name, attr in node.attributes.items():
        values[name] = attr.value
    for name, value in values.items():
        if isinstance(value, ir.TensorProtocol):
            values[name] = array_of(value)
        elif type(value).__name__ == "TensorProto":
            values[name] = array_of(ir.serde.deserialize_tensor(value))
    return values


def array_of(tensor: ir.TensorProtocol) -> np.ndarray:
    """A tensor of the file as an array; its texts are strings, as those of the data are."""
    if tensor.dtype != ir.DataType.STRING:
        return tensor.numpy()
    flat = tensor.string_data() if isinstance(tensor, ir.StringTensor) else tensor.numpy().flat
    array = np.empty(tuple(tensor.shape.numpy()), object)
    array.reshape(-1)[:] = [t.decode() if isinstance(t, bytes) else str(t) for t in flat]
    return array


# -- what runs where ----------------------------------------------------------------


@dataclass
class Prepared:
    """A model in which every node has a rule, or is a region that runs on another engine."""

    model: Model
    regions: dict[ir.Node, Region]

    @property
    def placements(self) -> list[Placement]:
        return [p for region in self.regions.values() for p in region.placements]


def prepare(
    model: Model,
    framework: str,
    strings: bool,
    place: Mapping[str, str] | None = None,
    fed: Collection[str] = (),
    more: Callable[[ir.Graph], Mapping[ir.Node, Placement]] | None = None,
) -> Prepared:
    """A copy of a normalized model in which every node has a rule or is part of a region.

    strings -- whether the framework has arrays of strings
    place   -- pattern of node names or operators → the engine that runs these nodes
    fed     -- names of initializers whose values are passed at each call
    more    -- a function that returns further nodes to run on other engines
    """
    copy = model.copy()
    elsewhere = chosen(copy.graph, place, framework) if place else {}
    _expand_missing(copy.graph, framework, elsewhere)
    missing = []
    for node in [node for graph in graphs(copy.graph) for node in graph]:
        native = find(node.op_type, node.domain, framework)
        if node in elsewhere:
            continue
        if native is None and find(node.op_type, node.domain, "numpy") is None:
            # PyFunction calls a function of the process by a name that the file chooses.
            if node.domain in opset.EXTENSIONS and node.op_type != "PyFunction":
                why = "an operation of onnxruntime-extensions"
                elsewhere[node] = Placement(node, why, "onnxruntime")
            else:
                missing.append(node)
        elif native is None:
            elsewhere[node] = Placement(node, f"{framework} has no such operation")
        elif not strings and any(_is_text(v, elsewhere) for v in (*node.inputs, *node.outputs)):
            elsewhere[node] = Placement(node, f"{framework} has no strings")
    if missing:
        _refuse(missing, framework)
    if more is not None:
        elsewhere = {**more(copy.graph), **elsewhere}
    return Prepared(copy, partition(copy, elsewhere, fed))


def _is_text(value: ir.Value | None, elsewhere: Mapping[ir.Node, Placement]) -> bool:
    kind: Any = None if value is None else value.type
    if value is not None and kind is None:
        # ONNX infers no types for other domains: the output of such a node may be text.
        return value.producer() in elsewhere
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        kind = kind.elem_type
    return isinstance(kind, ir.TensorType) and is_string(kind.dtype.numpy())


def _expand_missing(graph: ir.Graph, framework: str, skip: Collection[ir.Node]) -> None:
    """Replace what has no rule by its function body, until nothing changes."""
    namer = Builder()
    namer.reserve(names(graph))
    pending = [node for part in graphs(graph) for node in part]
    changed = False
    while pending:
        node = pending.pop()
        if find(node.op_type, node.domain, framework) is None and node not in skip:
            new = expand(node, namer)
            pending.extend(new or ())
            changed |= new is not None
    if changed:
        constants_to_initializers(graph)


def _refuse(nodes: Iterable[ir.Node], framework: str) -> None:
    rows = [Placement(node, "").row[:2] for node in nodes]
    ops = sorted({row[0] for row in rows})
    raise UnsupportedOp(
        f"{len(ops)} op{'s' * (len(ops) > 1)} in this model ha{'ve' if len(ops) > 1 else 's'} "
        f"no lowering to {framework}",
        rows,
        hint=f"add one with @sardonyx.lowering({quote(ops[0])}), or a function body to the model; "
        f'an engine that has it can run it: place={{{quote(ops[0])}: "onnxruntime"}}',
    )

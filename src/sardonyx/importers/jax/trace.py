"""A function of JAX as an ONNX graph: tracing, reading, and the end of the graph."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax import tree_util
from jax._src import core
from jax._src.core import ShapedArray

from sardonyx.errors import ImportRefused, counted
from sardonyx.importers.jax import keys
from sardonyx.importers.jax.driver import Reader, dtype_of
from sardonyx.importers.jax.writer import Writer, shape_of
from sardonyx.lower.precompute import compute
from sardonyx.passes.broadcast import drop_broadcasts
from sardonyx.passes.cse import merge_common
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold

LIBRARIES = (
    "<", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"),
    str(Path(__file__).parents[2]),
)  # fmt: skip
UNTRACEABLE = (
    jax.errors.JAXTypeError, jax.errors.JAXIndexError, jax.errors.UnexpectedTracerError,
)  # fmt: skip
FREE_SIZES = ("_DimExpr", "Shape polymorphism")  # in JAX's errors about them
FOLDED = 1 << 16  # elements of a constant that may be folded


@dataclass
class Traced:
    """A function of flat leaves, as JAX sees it."""

    jaxpr: Any
    result: Any  # the tree of the results, of shapes and types


def trace(function: Callable[..., Any], *arguments: Any) -> Traced:
    """The jaxpr of `function`; what cannot be traced is refused with JAX's reason."""
    try:
        jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    except core.InconclusiveDimensionOperation as error:
        raise ImportRefused(
            "the function cannot be traced with symbolic sizes",
            [[str(error).strip().splitlines()[0], user_line(error)]],
            hint="give arrays as the example, or write the function without this comparison",
        ) from error
    except UNTRACEABLE as error:
        raise ImportRefused(
            "the function cannot be traced: its Python code looks at values",
            [[type(error).__name__, _first_line(error)], [user_line(error)]],
            hint="use jnp.where, jax.lax.cond or jax.lax.scan where a value decides",
        ) from error
    except (TypeError, ValueError) as error:
        if any(word in str(error) for word in FREE_SIZES):
            raise ImportRefused(
                "JAX cannot trace the function with symbolic sizes",
                [[_first_line(error), user_line(error)]],
                hint="give arrays as the example, or write this part with other functions",
            ) from error
        if "immutable" not in str(error):
            raise
        raise ImportRefused(
            "the function writes to an array in place",
            [[user_line(error)]],
            hint="x = x.at[index].set(value) makes a new array",
        ) from error
    except NotImplementedError as error:
        raise ImportRefused(
            "JAX cannot trace the function",
            [[_first_line(error), user_line(error)]],
            hint="with free sizes, some functions of JAX are not implemented: fix the sizes",
        ) from error
    if jaxpr.effects:
        names = sorted(str(effect) for effect in jaxpr.effects)
        raise ImportRefused(
            "the function has side effects",
            [[n] for n in names],
            hint="remove prints and callbacks",
        )
    return Traced(jaxpr, result)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def user_line(error: BaseException) -> str:
    """The innermost line of the user's own code that raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f for f in frames if not f.filename.startswith(LIBRARIES)]
    return f"{lines[-1].filename}:{lines[-1].lineno}  {lines[-1].line}" if lines else ""


class Tracer:
    """Builds one graph from traced functions.

    `inputs` are the values that the graph reads, in order; weights are among them until the graph
    is finished, so that no pass takes them for constants.
    """

    def __init__(self, prefix: str = "", differentiated: bool = False) -> None:
        self.op = Writer(prefix)
        self.reader = Reader(self.op, differentiated)
        self.inputs: dict[str, ir.Value] = {}

    def input(self, name: str, leaf: Any) -> ir.Value:
        """An input of the type and shape of a leaf."""
        aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
        physical = keys.physical(_as_aval(aval))
        self.op.reserve([name])
        value = ir.Value(
            name=name,
            type=ir.TensorType(dtype_of(physical)),  # type: ignore[arg-type]
            shape=shape_of(physical.shape),
        )
        value.meta["aval"] = physical
        self.inputs[name] = value
        return value

    def find_symbols(self) -> None:
        """Make sizes of the symbols in the shapes of inputs."""
        for value in self.inputs.values():
            self.op.remember_sizes(value)
            for axis, dim in enumerate(value.meta["aval"].shape):
                symbol, factor, more = _linear(dim)
                if symbol is None or symbol in self.op.symbols:
                    continue
                size = self.op.Shape(value, start=axis, end=axis + 1)
                size = self.op.Sub(size, [more]) if more else size
                self.op.symbols[symbol] = self.op.Div(size, [factor]) if factor != 1 else size

    def read(self, traced: Traced, operands: Sequence[ir.Value]) -> list[ir.Value]:
        self.find_symbols()
        self._require_symbols(traced)
        return self.reader.closed(self.op, traced.jaxpr, operands)

    def _require_symbols(self, traced: Traced) -> None:
        missing = set()
        for value in self.inputs.values():
            for dim in value.meta["aval"].shape:
                if not isinstance(dim, int):
                    missing |= set(dim._get_vars()) - set(self.op.symbols)
        if missing:
            raise ImportRefused(
                f"{counted(len(missing), 'symbolic size')} cannot be read off an input",
                [[name] for name in sorted(missing)],
                hint="give each symbol alone, or as 2*n + 1, to one axis of one input",
            )

    def finish(self, results: Sequence[ir.Value], names: Sequence[str], name: str) -> ir.Graph:
        """The graph, with results under `names`; it is simplified, its weights still inputs."""
        self.reader.refuse()
        outputs: list[ir.Value] = []
        produced = {v for node in self.op.nodes for v in node.outputs}
        for value, label in zip(results, names, strict=True):
            if value not in produced or value in outputs:
                kind, shape = value.type, value.shape
                value = self.op.Identity(value)
                value.type, value.shape = kind, shape
            value.name = label
            outputs.append(value)
        graph = ir.Graph(
            list(self.inputs.values()), outputs, nodes=self.op.nodes, name=name,
            initializers=list(self.op.constants.values()),
        )  # fmt: skip
        simplify(graph)
        return graph


def _linear(dim: Any) -> tuple[str | None, int, int]:
    """The symbol, factor and summand of a size such as 4*h + 1; no symbol for any other."""
    if isinstance(dim, int) or len(dim._get_vars()) != 1:
        return None, 1, 0
    (symbol,) = dim._get_vars()
    more = int(dim._evaluate({symbol: 0}))
    factor = int(dim._evaluate({symbol: 1})) - more
    straight = factor > 0 and int(dim._evaluate({symbol: 7})) == 7 * factor + more
    return (symbol, factor, more) if straight and len(dim._sorted_terms) <= 2 else (None, 1, 0)


def simplify(graph: ir.Graph) -> None:
    """Compute what reads only constants; drop what nothing needs, or was computed before."""
    remove_dead(graph)
    fold(graph, elements=FOLDED, compute=compute)
    drop_broadcasts(graph)
    merge_common(graph)
    remove_dead(graph)


def _as_aval(aval: Any) -> Any:
    if isinstance(aval, jax.ShapeDtypeStruct):
        return ShapedArray(aval.shape, aval.dtype)
    return aval


def settle_weights(graph: ir.Graph, arrays: Mapping[str, np.ndarray]) -> None:
    """Make initializers of the inputs that have the names of `arrays`."""
    for value in [v for v in graph.inputs if v.name in arrays]:
        graph.inputs.remove(value)
        if not value.uses() and not value.is_graph_output():
            continue
        array = arrays[value.name]  # type: ignore[index]
        value.const_value = ir.Tensor(array, name=value.name, shape=ir.Shape(array.shape))
        graph.register_initializer(value)


def flat(function: Callable[..., Any], *trees: Any) -> Callable[..., list[Any]]:
    """`function` of the leaves of its arguments, all in one list; it returns leaves."""
    structures = [tree_util.tree_structure(tree) for tree in trees]

    def of_leaves(*leaves: Any) -> list[Any]:
        rest = list(leaves)
        arguments = []
        for structure in structures:
            part, rest = rest[: structure.num_leaves], rest[structure.num_leaves :]
            arguments.append(tree_util.tree_unflatten(structure, part))
        return tree_util.tree_leaves(function(*arguments))

    return of_leaves

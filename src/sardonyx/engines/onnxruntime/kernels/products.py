"""Products of two matrices that our own kernel computes faster than onnxruntime's (product.h).

These are products of a transposed matrix, the gradients of weights, which onnxruntime computes at
four fifths of the speed of others (bench/products.py); products of few rows with a large matrix,
which take little longer than reading that matrix (few_rows.h); those in the body of a loop with
a matrix from outside, as recurrent layers have them, which onnxruntime copies for every step; and
all large ones where the processor multiplies tiles (split.h).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from sardonyx.build import is_static, static
from sardonyx.engines.c_library import instructions
from sardonyx.engines.onnxruntime.kernels.program import DOMAIN
from sardonyx.passes.nesting import bodies

UNKNOWN = 32  # how large an unknown dimension is taken to be
LEAST = 1 << 22  # multiplications of a product
SHORTEST = 32  # of the axes of a product
MOST_ROWS = 128  # of a matrix that is not transposed, without tiles
LARGE = 1 << 18  # numbers of the matrix that such rows are multiplied with
LOOPS = ("Scan", "Loop")
TILES = {"amx_bf16", "avx512_bf16"}  # the instructions of split.h


def choose_products(graph: ir.Graph) -> dict[ir.Node, ir.Node]:
    """Nodes of a graph → what computes them faster; not yet in the graph."""
    return {node: new for node in graph if (new := _product(node)) is not None}


def choose_repeated(graph: ir.Graph, taken: set[ir.Graph]) -> dict[ir.Node, ir.Node]:
    """Nodes in bodies of loops → products with a matrix that is packed once, before the loop.

    The new nodes read their matrix as it is: `pack` puts the packed one in its place.
    taken -- bodies that are left out
    """
    loops = [body for node in graph if node.op_type in LOOPS for body in bodies(node)]
    inner = [n for body in loops if body not in taken for n in body]
    return {node: new for node in inner if (new := _repeated(node, graph)) is not None}


def _repeated(node: ir.Node, outer: ir.Graph) -> ir.Node | None:
    transposed = _transposed(node)
    if transposed is None or transposed[0] or len(node.inputs) > 3:
        return None
    a, b, *rest = [v for v in node.inputs if v is not None]
    if b.is_initializer() or not _is_of(b, outer) or not is_static(b):
        return None
    if any(v.dtype != ir.DataType.FLOAT or v.shape is None for v in (a, b, *rest)):
        return None
    columns, ranks = _columns(b, transposed[1]), [len(v.shape or ()) for v in (a, b, *rest)]
    if ranks[0] != 2 or ranks[1] != 2 or columns < SHORTEST:
        return None
    # a matrix that is added has the shape of the result, otherwise it is one row
    if rest and not (_is_row(rest[0], columns) or _is_like(rest[0], node.outputs[0])):
        return None
    settings = [0, int(transposed[1]), columns]
    attribute = ir.AttrInt64s("product", settings)
    name = f"{node.name}/product"
    return ir.Node(DOMAIN, "Product", [a, b, *rest], [attribute], num_outputs=1, name=name)


def _is_row(value: ir.Value, columns: int) -> bool:
    """Whether a value is added to every row alike; a column has as many numbers, perhaps."""
    if not is_static(value):
        return False
    *others, last = (1, *static(value))
    return last == columns and all(d == 1 for d in others)


def _is_like(value: ir.Value, other: ir.Value) -> bool:
    return is_static(value) and is_static(other) and static(value) == static(other)


def _is_of(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether a value belongs to a graph, not to a body in it."""
    maker = value.producer()
    return maker.graph is graph if maker is not None else value in graph.inputs


def pack(graph: ir.Graph, products: Iterable[ir.Node]) -> None:
    """Give products in loops their matrix in panels, each made once in the graph."""
    packed: dict[tuple[ir.Value, int], ir.Value] = {}
    for node in products:
        b, transposed = node.inputs[1], node.attributes.get_ints("product")[1]
        assert b is not None
        if (b, transposed) not in packed:
            attribute = ir.AttrInt64s("product", [0, transposed, 0])
            maker = ir.Node(DOMAIN, "Pack", [b], [attribute], num_outputs=1)
            maker.name = f"{b.name}/pack_{transposed}"
            (value,) = maker.outputs
            value.name, value.type = f"{b.name}/packed_{transposed}", b.type
            graph.append(maker)
            packed[b, transposed] = value
        node.replace_input_with(1, packed[b, transposed])


def multiplications(node: ir.Node) -> int:
    """How many multiplications a chosen product takes, where an unknown size is a common batch."""
    a, b = node.inputs[0], node.inputs[1]
    assert a is not None and b is not None
    return _size(a) * _size(b) // _depth(node)


def _product(node: ir.Node) -> ir.Node | None:
    transposed = _transposed(node)
    if transposed is None:
        return None
    a, b, *rest = [v for v in node.inputs if v is not None]
    values = (a, b, *rest, node.outputs[0])
    if any(v.dtype != ir.DataType.FLOAT or v.shape is None for v in values):
        return None
    if any(v.is_initializer() for v in (a, b)):
        return None
    ranks = [len(v.shape) for v in (a, b) if v.shape is not None]
    if ranks[0] < 2 or ranks[1] != 2 or (transposed[0] and ranks[0] != 2):
        return None
    if rest and (len(rest) > 1 or not _is_row(rest[0], _columns(b, transposed[1]))):
        return None
    new = ir.Node(
        DOMAIN,
        "Product",
        [a, b, *rest],
        [ir.AttrInt64s("product", [*map(int, transposed), 0])],
        num_outputs=1,
        name=f"{node.name}/product",
    )
    if _pays(new, *transposed):
        return new
    for index in range(len(new.inputs)):
        new.replace_input_with(index, None)
    return None


def _transposed(node: ir.Node) -> tuple[bool, bool] | None:
    """Whether the matrices of a plain product are transposed."""
    if node.op_type == "MatMul" and node.domain == "":
        return False, False
    if (node.domain, node.op_type) not in (("", "Gemm"), ("com.microsoft", "FusedMatMul")):
        return None
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    batches = [node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB")]
    if factors != [1.0, 1.0] or any(batches):
        return None
    flags = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
    return bool(flags[0]), bool(flags[1])


def _columns(b: ir.Value, transposed: bool) -> int:
    size = b.shape[0 if transposed else 1] if b.shape is not None else 0
    return size if isinstance(size, int) else 0


def _depth(node: ir.Node) -> int:
    a = node.inputs[0]
    transposed = node.attributes.get_ints("product")[0]
    assert a is not None and a.shape is not None
    size = a.shape[0] if transposed else a.shape[len(a.shape) - 1]
    return size if isinstance(size, int) else UNKNOWN


def _size(value: ir.Value) -> int:
    dims = value.shape if value.shape is not None else ()
    return math.prod(d if isinstance(d, int) else UNKNOWN for d in dims)


def _pays(node: ir.Node, transposed_a: bool, transposed_b: bool) -> bool:
    a, b = node.inputs[0], node.inputs[1]
    assert a is not None and b is not None
    if _columns(b, transposed_b) < SHORTEST or _depth(node) < SHORTEST:
        return False
    has_few_rows = _size(a) // _depth(node) <= MOST_ROWS
    if not transposed_a and (_size(b) < LARGE if has_few_rows else not instructions() >= TILES):
        return False
    return multiplications(node) >= LEAST

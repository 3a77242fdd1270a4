"""Sequences of the parts of a tensor, as torch's exporter writes them, become those tensors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant


def splits(graph: ir.Graph) -> None:
    """A sequence of the parts of a tensor that is only read part by part is those tensors."""
    for node in list(graph):
        if node.op_type != "SplitToSequence" or node.domain != "":
            continue
        readers = [use.node for use in node.outputs[0].uses()]
        numbers = [_number(n.inputs[1]) if n.op_type == "SequenceAt" else None for n in readers]
        sizes = _part_sizes(node)
        if sizes is None or node.outputs[0].is_graph_output() or None in numbers:
            continue
        places = [number for number in numbers if number is not None]
        if any(not -len(sizes) <= place < len(sizes) for place in places):
            continue
        _split(graph, node, sizes, list(zip(readers, places, strict=True)))


def _part_sizes(node: ir.Node) -> list[int] | None:
    """The sizes of the parts that a SplitToSequence makes, where they are known."""
    (x, *rest), axis = node.inputs, node.attributes.get_int("axis", 0)
    array = constant(rest[0]) if rest and rest[0] is not None else None
    total = x.shape[axis] if x is not None and x.shape is not None else None
    if array is None or not isinstance(total, int):
        return None
    if array.ndim:
        return [int(size) for size in array]
    step = int(array)
    return [min(step, total - begin) for begin in range(0, total, step)]


def _split(
    graph: ir.Graph, node: ir.Node, sizes: list[int], readers: list[tuple[ir.Node, int]]
) -> None:
    (x, *_), (sequence,) = node.inputs, node.outputs
    assert x is not None and x.shape is not None
    axis = node.attributes.get_int("axis", 0) % len(x.shape)
    lengths = ir.Value(name=f"{sequence.name}/sizes", type=ir.TensorType(ir.DataType.INT64))
    lengths.const_value = ir.Tensor(np.array(sizes, np.int64), name=lengths.name)
    lengths.shape = ir.Shape([len(sizes)])
    graph.register_initializer(lengths)
    attrs = [ir.AttrInt64("axis", axis)]
    split = ir.Node("", "Split", [x, lengths], attrs, num_outputs=len(sizes), name=node.name)
    split.metadata_props.update(node.metadata_props)
    for number, (size, part) in enumerate(zip(sizes, split.outputs, strict=True)):
        part.name, part.type = f"{sequence.name}/{number}", x.type
        part.shape = ir.Shape([*x.shape[:axis], size, *x.shape[axis + 1 :]])
    graph.insert_before(node, split)
    for reader, place in readers:
        (old,) = reader.outputs
        old.replace_all_uses_with(split.outputs[place], replace_graph_outputs=True)
        graph.remove(reader, safe=True)
    graph.remove(node, safe=True)


def _number(value: ir.Value | None) -> int | None:
    array = None if value is None else constant(value)
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

"""Lines of a captured program whose ONNX form may compute something else than torch does.

torch's exporter gives every tensor memory of its own, and writes complex numbers as pairs of real
ones. Where a module writes to memory that two tensors share, or computes with complex numbers in a
way that the exporter gets wrong, only a comparison shows it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from sardonyx.errors import ImportRefused
from sardonyx.importers.torch.capture import INTERNAL

aten = torch.ops.aten
REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
COPIED = (aten.detach.default, aten.dropout.default, aten.feature_dropout.default)
LARGEST = 1 << 22  # elements of a view whose places in memory are listed
Row = list[str]


@dataclass
class Doubts:
    """Rows of an error, by what is doubtful: the operator, and the user's line."""

    shared: list[Row] = field(default_factory=list)
    complex: list[Row] = field(default_factory=list)

    def refuse(self, cause: Exception | None = None) -> None:
        """Refuse what is doubtful, where a comparison failed (`cause`) or is not wanted."""
        if self.shared:
            raise ImportRefused(
                "the module writes in place to memory that another tensor shares",
                self.shared,
                hint="write to a copy: x = x.clone()",
            ) from cause
        if self.complex:
            raise ImportRefused(
                "complex numbers have no ONNX form, and torch's exporter gets some of them wrong",
                self.complex,
                hint="compute with real and imaginary parts" if cause else "leave out verify=False",
            ) from cause


def doubts_of(program: torch.export.ExportedProgram) -> Doubts:
    """What is doubtful in a program, as torch has captured it."""
    nodes = list(_in_order(program.graph_module))
    return Doubts(_unique(_shared_writes(nodes)), _unique(_complex(nodes)))


def lines_of_operator(program: torch.export.ExportedProgram, text: str) -> list[Row]:
    """The user's lines that called the operator of which torch's exporter speaks in an error."""
    match = re.search(r"<OpOverload\(op='([\w.]+)', overload='(\w+)'\)>", text)
    nodes = list(_in_order(program.graph_module))
    if match is not None:
        name = f"{match.group(1)}.{match.group(2)}"
        rows = [[name, line_of(n)] for n in nodes if str(n.target) == name and line_of(n)]
        if rows:
            return _unique(rows)
    return _unique(_complex(nodes)) if "complex" in text else []


def line_of(node: torch.fx.Node) -> str:
    """The user's line that made a node, where torch has kept it."""
    text = node.stack_trace or node.meta.get("stack_trace") or ""
    lines = re.findall(r'File "([^"]+)", line (\d+)', text)
    lines = [f"{path}:{n}" for path, n in lines if not path.startswith(("<", *INTERNAL))]
    return lines[-1] if lines else ""


def _unique(rows: list[Row]) -> list[Row]:
    return [list(row) for row in dict.fromkeys(map(tuple, rows))]


def _in_order(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The calls of a program, those inside of regions where they run."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is REGION:
            inner = getattr(module, str(node.args[1].target), None)
            if isinstance(inner, torch.fx.GraphModule):
                yield from _in_order(inner)
        if node.op in ("call_function", "placeholder", "output"):
            yield node


def _complex(nodes: list[torch.fx.Node]) -> list[Row]:
    tensors = [(n, n.meta.get("val")) for n in nodes if n.op == "call_function"]
    return [
        [str(n.target), line_of(n)]
        for n, value in tensors
        if isinstance(value, torch.Tensor) and value.is_complex()
    ]


# -- memory -----------------------------------------------------------------------------


def _shared_writes(nodes: list[torch.fx.Node]) -> list[Row]:
    """Writes to memory that is read under another name, which the exporter takes for a copy."""
    names = _Names(nodes)
    rows = []
    for node in nodes:
        for target in _written(node):
            others = [n for n in node.all_input_nodes if n is not target]
            if names.is_stale_after(node, target) or any(_overlap(target, n) for n in others):
                rows.append([str(node.target), line_of(node)])
    return rows


class _Names:
    """The tensors of a program by their memory, and the copies that the exporter makes of it."""

    def __init__(self, nodes: list[torch.fx.Node]):
        self.order = {n: i for i, n in enumerate(nodes)}
        self.shared = _shared_memory(nodes)
        self.of_memory: dict[int, list[torch.fx.Node]] = {}
        self.copy: dict[torch.fx.Node, torch.fx.Node | None] = {}  # that a name comes from
        self.above: dict[torch.fx.Node, torch.fx.Node | None] = {}  # the one before such a copy
        for node in nodes:
            memory = self.memory(node)
            if memory is None:
                continue
            operands = [n for n in node.all_input_nodes if self.memory(n) == memory]
            above = next((self.copy[n] for n in operands if n in self.copy), None)
            self.copy[node], self.above[node] = (node if _is_copied(node) else above), above
            self.of_memory.setdefault(memory, []).append(node)

    def memory(self, node: torch.fx.Node) -> int | None:
        memory = _memory(node)
        return None if memory is None else self.shared.get(memory, memory)

    def is_stale_after(self, write: torch.fx.Node, target: torch.fx.Node) -> bool:
        """Whether memory that is written to is read afterwards under a name of another copy."""
        time = self.order[write]
        return any(
            self._copy_at(name, time) is not self.copy.get(target)
            and any(self.order.get(user, -1) > time for user in name.users)
            for name in self.of_memory.get(self.memory(target) or 0, [])
        )

    def _copy_at(self, name: torch.fx.Node, time: int) -> torch.fx.Node | None:
        """The copy that a name comes from; one that is made later has what was written before."""
        copy = self.copy[name]
        while copy is not None and self.order[copy] > time:
            copy = self.above[copy]
        return copy


def _shared_memory(nodes: list[torch.fx.Node]) -> dict[int, int]:
    """The memory of what dropout is given, by that of its result: in evaluation mode it is one."""
    shared: dict[int, int] = {}
    for node in nodes:
        if node.target in COPIED and isinstance(node.args[0], torch.fx.Node):
            result, operand = _memory(node), _memory(node.args[0])
            if result is not None and operand is not None:
                shared[result] = shared.get(operand, operand)
    return shared


def _is_copied(node: torch.fx.Node) -> bool:
    is_of_region = node.target is operator.getitem and node.args[0].target is REGION  # type: ignore[union-attr]
    return node.target in COPIED or is_of_region


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    arguments = zip(schema.arguments, node.args, strict=False)
    return [
        a
        for slot, a in arguments
        if isinstance(a, torch.fx.Node) and slot.alias_info is not None and slot.alias_info.is_write
    ]


def _memory(node: torch.fx.Node) -> int | None:
    value = node.meta.get("val")
    while isinstance(value, torch.Tensor) and is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)  # inside of torch.vmap
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _overlap(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Whether two views have some of their elements in common, at other places of each."""
    if _memory(a) is None or _memory(a) != _memory(b):
        return False
    first, second = _layout(a.meta["val"]), _layout(b.meta["val"])
    if first == second or math.prod(first[0]) > LARGEST or math.prod(second[0]) > LARGEST:
        return False
    return bool(np.intersect1d(_places(*first), _places(*second)).size)


def _layout(value: torch.Tensor) -> tuple[list[int], list[int], int]:
    return (
        [_hint(s) for s in value.shape],
        [_hint(s) for s in value.stride()],
        _hint(value.storage_offset()),
    )


def _hint(size: Any) -> int:
    """A size at the example, of one that may be free."""
    return int(size) if isinstance(size, int) else int(size.node.hint)


def _places(shape: list[int], strides: list[int], offset: int) -> np.ndarray:
    places = np.asarray(offset)
    for size, stride in zip(shape, strides, strict=True):
        places = places[..., None] + np.arange(size) * stride
    return places.ravel()

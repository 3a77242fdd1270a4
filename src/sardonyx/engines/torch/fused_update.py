"""An update as few kernels, each of which reads the tensors of all parameters once; those of GPUs.

torch's `_foreach_` functions launch little, but each of a dozen passes over all parameters, their
slots and gradients. Here the elementwise operations that belong together become the text of one
CUDA kernel, which torch compiles with NVRTC. Parameters whose operations are the same share a
kernel and a launch. Every element is computed by the same operations in the same order, and no
product is merged with a sum, so that the numbers are those of `Grouped`.

New values of variables are written over the old ones where nothing else reads those.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sardonyx.engines.torch.foreach import Grouped
from sardonyx.engines.torch.xp import torch

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node
Compile: TypeAlias = Callable[[str, str], Callable[..., Any]]
TYPES = {torch.float32: "float", torch.float64: "double", torch.bool: "bool"}
CHUNK = 1 << 14  # elements of a tensor that one block of threads computes
THREADS = 256
WIDTH = 4  # elements that a thread reads at once
NAME = "update"

FORMULAS: dict[Any, str] = {
    aten.abs.default: "fabs({0})",
    aten.add.Tensor: "{0} + {1}",
    aten.clamp_max.default: "least({0}, {1})",
    aten.clamp_min.default: "greatest({0}, {1})",
    aten.div.Tensor: "{0} / {1}",
    aten.eq.Tensor: "{0} == {1}",
    aten.exp.default: "exp({0})",
    aten.ge.Tensor: "{0} >= {1}",
    aten.gt.Tensor: "{0} > {1}",
    aten.isnan.default: "{0} != {0}",
    aten.le.Tensor: "{0} <= {1}",
    aten.logical_and.default: "{0} && {1}",
    aten.logical_not.default: "!{0}",
    aten.lt.Tensor: "{0} < {1}",
    aten.maximum.default: "greatest({0}, {1})",
    aten.minimum.default: "least({0}, {1})",
    aten.mul.Tensor: "{0} * {1}",
    aten.neg.default: "-{0}",
    aten.sqrt.default: "sqrt({0})",
    aten.sub.Tensor: "{0} - {1}",
    aten.where.self: "{0} ? {1} : {2}",
}

# What is not a number stays so, as in torch.
PREAMBLE = """
template <typename T> __device__ __forceinline__ T greatest(T a, T b) {
  return a != a ? a : b != b ? b : a > b ? a : b;
}
template <typename T> __device__ __forceinline__ T least(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? a : b;
}
template <typename T, int W> struct alignas(sizeof(T) * W > 16 ? 16 : sizeof(T) * W) Pack {
  T at[W];
};
"""


@dataclass
class Part:
    """Operations on tensors of one shape that belong together, in order.

    tensors -- what they read, of that shape
    numbers -- tensors of one number that they read
    results -- those of their values that something else reads
    lines   -- the statements of the kernel for one element
    """

    nodes: list[Node]
    tensors: list[Node] = field(default_factory=list)
    numbers: list[Node] = field(default_factory=list)
    results: list[Node] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        names: dict[Node, str] = {}
        inside = set(self.nodes)
        for node in self.nodes:
            operands = [self._operand(a, node, names) for a in node.args]
            names[node] = f"v{len(self.lines)}"
            formula = FORMULAS[node.target].format(*operands)
            self.lines.append(f"const {type_name(node)} {names[node]} = {formula};")
        for node in self.nodes:
            if any(user not in inside for user in node.users):
                self.lines.append(f"r{len(self.results)}.at[k] = {names[node]};")
                self.results.append(node)

    def _operand(self, value: Any, node: Node, names: dict[Node, str]) -> str:
        """How a formula names a value; what comes from outside is listed."""
        if not isinstance(value, torch.fx.Node):
            other = next(a for a in node.args if isinstance(a, torch.fx.Node) and not _is_flag(a))
            return f"({type_name(other)}){float(value).hex()}"
        if value not in names:
            group = self.numbers if value.meta["val"].ndim == 0 else self.tensors
            letter = "n" if group is self.numbers else "t"
            names[value] = f"{letter}{len(group)}" + (".at[k]" if letter == "t" else "")
            group.append(value)
        return names[value]

    def key(self) -> Any:
        """What parts of one kernel have in common."""
        types = tuple(type_name(n) for n in (*self.tensors, *self.results))
        return tuple(self.lines), types, tuple(self.numbers)

    def declarations(self) -> tuple[list[tuple[str, str]], ...]:
        """Names and types of what the lines read, of what they write, and of the numbers."""
        groups = {"t": self.tensors, "r": self.results, "n": self.numbers}
        return tuple(
            [(f"{letter}{i}", type_name(n)) for i, n in enumerate(nodes)]
            for letter, nodes in groups.items()
        )

    def source(self) -> str:
        """The kernel in CUDA C++."""
        reads, writes, numbers = self.declarations()
        columns = [*reads, *writes]
        parameters = [f"{kind}* p_{name}" for name, kind in columns]
        parameters += [f"const {kind} {name}" for name, kind in numbers]
        body = [f"const auto {n} = *(const Pack<{k}, W>*)(p_{n} + i);" for n, k in reads]
        body += [f"Pack<{k}, W> {n};" for n, k in writes]
        body += ["#pragma unroll", "for (int k = 0; k < W; k++) {", *self.lines, "}"]
        body += [f"*(Pack<{k}, W>*)(p_{n} + i) = {n};" for n, k in writes]
        values = [
            f"{kind}* p_{name} = ({kind}*)pointers[{i} * count + tensor];"
            for i, (name, kind) in enumerate(columns)
        ]
        values += [f"const {kind} {name} = *a_{name};" for name, kind in numbers]
        arguments = ", ".join(["", *(f"p_{n}" for n, _ in columns), *(n for n, _ in numbers)])
        addresses = "".join(f", const {kind}* a_{name}" for name, kind in numbers)
        lines = "\n    ".join(body)
        return f"""{PREAMBLE}
template <int W> __device__ __forceinline__ void elements(
    const long long begin, const long long end, {", ".join(parameters)}) {{
  for (long long i = begin + W * threadIdx.x; i < end; i += W * blockDim.x) {{
    {lines}
  }}
}}
extern "C" __global__ void {NAME}(
    const long long* pointers, const long long* chunks, const int count,
    const int wide{addresses}) {{
  const int tensor = (int)chunks[3 * blockIdx.x];
  const long long begin = chunks[3 * blockIdx.x + 1], end = chunks[3 * blockIdx.x + 2];
  {" ".join(values)}
  const long long middle = wide ? end - (end - begin) % {WIDTH} : begin;
  elements<{WIDTH}>(begin, middle{arguments});
  elements<1>(middle, end{arguments});
}}
"""


def type_name(node: Node) -> str:
    return TYPES[node.meta["val"].dtype]


def _is_flag(node: Node) -> bool:
    return bool(node.meta["val"].dtype == torch.bool)


class Fused(Grouped):
    """An fx graph whose elementwise operations on tensors run in few kernels.

    over    -- place of an output → place of the input that it may be written over
    compile -- a kernel of the name that is given, from its source
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        over: Mapping[int, int],
        compile: Compile,
    ):
        self.compile = compile
        self.kernels: dict[Node, list[Part]] = {}  # the first node of a kernel → its parts
        self.over = _targets(graph, over)
        super().__init__(graph)

    def groups_of(self, nodes: list[Node]) -> list[list[Node]]:
        """Phase by phase: operations that are not fused, one by one, then the kernels."""
        phases = _phases(nodes)
        last = max(phases.values(), default=0)
        groups: list[list[Node]] = []
        for phase in range(last + 1):
            here = [n for n in nodes if phases[n] == phase]
            groups += [[n] for n in here if not _is_fusable(n)]
            by_key: dict[Any, list[Part]] = {}
            for members in _connected([n for n in here if _is_fusable(n)]):
                part = Part(members)
                by_key.setdefault(part.key(), []).append(part)
            for parts in by_key.values():
                group = [n for part in parts for n in part.nodes]
                self.kernels[group[0]] = parts
                groups.append(group)
        return groups

    def call_of(self, group: list[Node], dead: set[int]) -> Callable[[list[Any]], None]:
        parts = self.kernels.get(group[0])
        if parts is None:
            return super().call_of(group, dead)
        over = {
            node: self.over[node] for p in parts for node in p.results if self._may_replace(node, p)
        }
        return self.launch(parts, over)

    def launch(self, parts: list[Part], over: Mapping[Node, Node]) -> Launch:
        """One kernel for these parts."""
        return Launch(parts, self.places, over, self.compile(parts[0].source(), NAME))

    def replace(self, allowed: bool) -> None:
        """Whether the next call may write new values over the old ones."""
        for call in self.calls:
            if isinstance(call, Launch):
                call.replaces = allowed

    def _may_replace(self, node: Node, part: Part) -> bool:
        """Whether the old value that a result replaces is read in this part alone."""
        old = self.over.get(node)
        return (
            old in part.tensors and set(old.users) <= set(part.nodes) if old is not None else False
        )


def _targets(graph: torch.fx.GraphModule, over: Mapping[int, int]) -> dict[Node, Node]:
    """Output nodes → the inputs that they may be written over."""
    nodes = list(graph.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    (output,) = [n for n in nodes if n.op == "output"]
    outputs = list(output.args[0])
    return {
        outputs[new]: inputs[old]
        for new, old in over.items()
        if outputs.count(outputs[new]) == 1 and inputs[old] not in outputs
    }


def _is_fusable(node: Node) -> bool:
    """Whether a node computes each element of a tensor from those at its place, and numbers."""
    value = node.meta.get("val")
    if node.target not in FORMULAS or node.kwargs or not isinstance(value, torch.Tensor):
        return False
    if value.ndim == 0 or value.dtype not in TYPES:
        return False
    return all(_is_operand(a, value) for a in node.args) and _agree(node)


def _is_operand(argument: Any, result: Any) -> bool:
    if not isinstance(argument, torch.fx.Node):
        return isinstance(argument, (int, float)) and math.isfinite(argument)
    value = argument.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in TYPES:
        return False
    return value.device == result.device and (value.ndim == 0 or value.shape == result.shape)


def _agree(node: Node) -> bool:
    """Whether all operands that are no flags have one type: then C converts nothing."""
    operands = [a for a in node.args if isinstance(a, torch.fx.Node)]
    types = {type_name(a) for a in operands if not _is_flag(a)}
    if not _is_flag(node):
        types.add(type_name(node))
    flags = node.target in (aten.logical_and.default, aten.logical_not.default)
    return len(types) == 1 or (flags and not types)


def _phases(nodes: Iterable[Node]) -> dict[Node, int]:
    """When a node can run: a kernel waits for what other operations make of earlier kernels."""
    phases: dict[Node, int] = {}
    for node in nodes:
        fusable = _is_fusable(node)
        phases[node] = max(
            (
                phases[n] + (not fusable and _is_fusable(n))
                for n in node.all_input_nodes
                if n in phases
            ),
            default=0,
        )
    return phases


def _connected(nodes: Sequence[Node]) -> list[list[Node]]:
    """The nodes by what is connected, each list in order."""
    inside, part_of = set(nodes), dict[Node, int]()
    for number, node in enumerate(nodes):
        if node in part_of:
            continue
        pending = [node]
        while pending:
            member = pending.pop()
            if member in inside and member not in part_of:
                part_of[member] = number
                pending += [*member.all_input_nodes, *member.users]
    parts: dict[int, list[Node]] = {}
    for node in nodes:
        parts.setdefault(part_of[node], []).append(node)
    return list(parts.values())


class Launch:
    """One kernel over the tensors of its parts."""

    def __init__(
        self,
        parts: list[Part],
        places: Mapping[Node, int],
        over: Mapping[Node, Node],
        kernel: Callable[..., Any],
    ):
        self.kernel, self.parts, self.places = kernel, parts, places
        slots = range(len(parts[0].tensors))
        self.reads = [[places[part.tensors[slot]] for part in parts] for slot in slots]
        columns = range(len(parts[0].results))
        self.writes = [[places[part.results[column]] for part in parts] for column in columns]
        # the place of the tensor that a result is written over; None for a new one
        self.over = [
            [
                places[over[node]] if (node := part.results[column]) in over else None
                for part in parts
            ]
            for column in columns
        ]
        self.replaces = True
        self.numbers = [places[n] for n in parts[0].numbers]
        self.chunks: Any = None
        self.grid = 0
        self.table: Any = None  # of pointers, on the device
        self.addresses: list[int] = []  # what is in it
        self.wide = 0  # whether all addresses suit packs of elements

    def __call__(self, env: list[Any]) -> None:
        tensors = [env[place] for column in self.reads for place in column]
        if not all(t.is_contiguous() for t in tensors):
            self._one_by_one(env)
            return
        for column, targets, kinds in zip(self.writes, self.over, self._kinds(), strict=True):
            for place, target, like in zip(column, targets, tensors, strict=False):
                if target is None or not self.replaces:
                    env[place] = torch.empty_like(like, dtype=kinds)
                else:
                    env[place] = env[target]
        tensors += [env[place] for column in self.writes for place in column]
        self.start(tensors, [t.data_ptr() for t in tensors], [env[n] for n in self.numbers])

    def start(self, tensors: list[Any], addresses: list[int], numbers: list[Any]) -> None:
        """Compute all elements: what is read and written, column by column, and where it lies."""
        device = tensors[0].device
        if self.chunks is None:
            rows = chunks(tensors[: len(self.parts)], CHUNK)
            self.grid = len(rows)
            self.chunks = torch.tensor(rows, dtype=torch.int64, device=device).reshape(-1)
        if addresses != self.addresses:
            self.table, self.addresses = _on_device(addresses, device), addresses
            self.wide = int(not any(address % 16 for address in addresses))
        arguments = [self.table, self.chunks, len(self.parts), self.wide, *numbers]
        if self.grid:  # all tensors may be empty
            with current(device):
                self.kernel(grid=(self.grid, 1, 1), block=(THREADS, 1, 1), args=arguments)

    def _kinds(self) -> list[Any]:
        return [node.meta["val"].dtype for node in self.parts[0].results]

    def _one_by_one(self, env: list[Any]) -> None:
        """Tensors in other layouts: the operations as they are."""
        values: dict[Node, Any] = {}

        def value(node: Node) -> Any:
            return values[node] if node in values else env[self.places[node]]

        for part in self.parts:
            for node in part.nodes:
                values[node] = node.target(*torch.fx.node.map_arg(node.args, value))
            for node in part.results:
                env[self.places[node]] = values[node]


def chunks(tensors: Sequence[Any], size: int) -> list[tuple[int, int, int]]:
    """All elements of tensors in pieces: the tensor, its first element, the one after its last."""
    return [
        (index, begin, min(begin + size, tensor.numel()))
        for index, tensor in enumerate(tensors)
        for begin in range(0, tensor.numel(), size)
    ]


def current(device: Any) -> contextlib.AbstractContextManager[Any]:
    """Kernels are compiled for the current device, and start on its stream."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _on_device(numbers: list[int], device: Any) -> Any:
    """Numbers on a device, from pinned memory, so that nobody waits for it."""
    tensor = torch.tensor(numbers, dtype=torch.int64)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def compile_for_gpu(source: str, name: str) -> Callable[..., Any]:
    """A kernel by NVRTC. Sums and products stay apart, as in single operations."""
    kernel: Callable[..., Any] = torch.cuda._compile_kernel(
        source, name, nvcc_options=["--fmad=false"]
    )
    return kernel

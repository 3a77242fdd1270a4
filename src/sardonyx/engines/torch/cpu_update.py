"""An update on a CPU as loops in C: each reads the tensors of all parameters once.

The elements are computed as on a GPU (`fused_update.py`). Threads take pieces of the tensors; where
there is no compiler, the update runs by torch's functions over lists of tensors.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from sardonyx.engines.c_library import compile_library
from sardonyx.engines.torch.foreach import Grouped, inline_numbers
from sardonyx.engines.torch.fused_update import (
    NAME,
    Fused,
    Launch,
    Node,
    Part,
    chunks,
)
from sardonyx.engines.torch.merge import merge_operations
from sardonyx.engines.torch.xp import torch

SMALLEST = 1 << 15  # elements of all parameters: below, compiling takes longer than it saves
CHUNK = 1 << 14  # elements that a thread computes at a time
ALONE = 1 << 17  # elements that one thread computes sooner than several

# What is not a number stays so, as in torch.
PREAMBLE = """
#include <stdbool.h>
#include <stdint.h>
#include <tgmath.h>
#define EXTREMES(type, name) \\
  static inline type greatest_##name(type a, type b) { \\
    return a != a ? a : b != b ? b : a > b ? a : b; \\
  } \\
  static inline type least_##name(type a, type b) { \\
    return a != a ? a : b != b ? b : a < b ? a : b; \\
  }
EXTREMES(float, float)
EXTREMES(double, double)
#define greatest(a, b) _Generic((a), float : greatest_float, double : greatest_double)(a, b)
#define least(a, b) _Generic((a), float : least_float, double : least_double)(a, b)
"""


class NoLibrary(Exception):
    """A kernel could not be compiled."""


def source(part: Part) -> str:
    """The kernel in C.

    It computes pieces `first` to `last` of `count` tensors, which lie side by side in each column
    of `pointers`.
    """
    reads, writes, numbers = part.declarations()
    columns = [
        f"{kind} *{name} = ({kind} *)pointers[{i} * count + tensor];"
        for i, (name, kind) in enumerate([*reads, *writes])
    ]
    values = [
        f"const {kind} {name} = *(const {kind} *)numbers[{i}];"
        for i, (name, kind) in enumerate(numbers)
    ]
    body = [line.replace(".at[k]", "[k]") for line in part.lines]
    newline = "\n    "
    return f"""{PREAMBLE}
__attribute__((visibility("default"))) void {NAME}(
    void *const *pointers, const void *const *numbers, const int64_t *chunks,
    const int64_t count, const int64_t first, const int64_t last) {{
  {newline.join(values)}
  for (int64_t piece = first; piece < last; piece++) {{
    const int64_t tensor = chunks[3 * piece];
    const int64_t begin = chunks[3 * piece + 1], end = chunks[3 * piece + 2];
    {newline.join(columns)}
#pragma omp simd
    for (int64_t k = begin; k < end; k++) {{
      {newline.join(body)}
    }}
  }}
}}
"""


def compile_for_cpu(text: str, name: str) -> Any:
    """A kernel from its source."""
    path = compile_library(text)
    if path is None:
        raise NoLibrary
    return getattr(ctypes.CDLL(path), name)


@cache
def _threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, "sardonyx-update")


if hasattr(os, "register_at_fork"):  # a child has none of these threads
    os.register_at_fork(after_in_child=_threads.cache_clear)


class Loop(Launch):
    """One kernel over the tensors of its parts, in as many threads as torch uses."""

    def start(self, tensors: list[Any], addresses: list[int], numbers: list[Any]) -> None:
        if self.chunks is None:
            rows = chunks(tensors[: len(self.parts)], CHUNK)
            self.grid = len(rows)
            self.chunks = (ctypes.c_int64 * (3 * self.grid))(*(x for row in rows for x in row))
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        values = (ctypes.c_void_p * len(numbers))(*(n.data_ptr() for n in numbers))
        count = ctypes.c_int64(len(self.parts))

        def run(first: int, last: int) -> None:
            ends = ctypes.c_int64(first), ctypes.c_int64(last)
            self.kernel(pointers, values, self.chunks, count, *ends)

        threads = min(torch.get_num_threads(), self.grid * CHUNK // ALONE)
        if threads < 2:
            run(0, self.grid)
            return
        places = [self.grid * i // threads for i in range(threads + 1)]
        pool = _threads(torch.get_num_threads() - 1)
        others = [pool.submit(run, *places[i : i + 2]) for i in range(1, threads)]
        run(*places[:2])
        for other in others:
            other.result()


class Compiled(Fused):
    """An fx graph whose elementwise operations on tensors run in few loops of C."""

    def launch(self, parts: list[Part], over: Mapping[Node, Node]) -> Launch:
        return Loop(parts, self.places, over, self.compile(source(parts[0]), NAME))


def on_cpu(graph: torch.fx.GraphModule, over: Mapping[int, int]) -> Grouped:
    """The graph as loops in C; by functions over lists of tensors where it is small."""
    values = [n.meta.get("val") for n in graph.graph.nodes if n.op == "placeholder"]
    if sum(v.numel() for v in values if isinstance(v, torch.Tensor)) >= SMALLEST:
        try:
            return Compiled(graph, over, compile_for_cpu)
        except NoLibrary:
            pass
    inline_numbers(graph)
    merge_operations(graph)
    return Grouped(graph)

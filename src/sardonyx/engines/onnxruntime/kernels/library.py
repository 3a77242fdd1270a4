"""The kernels of a step as a library that onnxruntime loads."""

from __future__ import annotations

from pathlib import Path

from sardonyx.engines.c_library import compile_library

SOURCES = Path(__file__).parent
NO_LOOPS = "static LoopBody loop_body(int64_t number) { return (void)number, (LoopBody)0; }"
TEXT = """#include "runtime.h"
#include "elementwise.h"
{bodies}
#include "program.h"
#include "product.h"
#include "turn.h"
#include "pool.h"
#include "winograd.h"
#include "correlate.h"
#include "loop.h"
{loops}
#include "register.h"
"""


def library(bodies: str, loops: str = NO_LOOPS) -> str | None:
    """The path of a library with these functions of blocks and of loops.

    None where it cannot be built.
    """
    return compile_library(TEXT.format(bodies=bodies, loops=loops), SOURCES)

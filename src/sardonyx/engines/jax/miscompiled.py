"""Versions of jaxlib whose compiler for CPUs gives wrong numbers, and the option that avoids it.

jaxlib 0.10.2 computes a product and the sum over its result in one kernel of its library YNN. With
equal weights, as in the official suite's light models, that kernel reads memory that was freed: the
sum is zero, infinite or NaN, another one after each compilation. With small matrices and many rows
it leaves rows out (github.com/jax-ml/jax/issues/39103).
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings

VERSIONS = ("0.10.2", "0.11.0")
OPTION = "--xla_cpu_experimental_ynn_fusion_type"
SAFE = f"{OPTION}=-reduce"


def avoid() -> None:
    """Switch the wrong kernels off in this process, if jaxlib has them and compiled nothing yet."""
    flags = os.environ.get("XLA_FLAGS")
    if importlib.metadata.version("jaxlib") not in VERSIONS or OPTION in (flags or ""):
        return
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        warnings.warn(
            "this jaxlib can give wrong sums of products on CPUs, and was in use before Sardonyx "
            f"could switch that off: convert a model before other work, or set XLA_FLAGS={SAFE}",
            stacklevel=2,
        )
        return
    from jaxlib import _jax

    # jaxlib reads the variable once. Others that read it, such as TensorFlow, end the process at
    # an option that they do not have: the variable is changed for this one moment only.
    os.environ["XLA_FLAGS"] = f"{flags or ''} {SAFE}".strip()
    try:
        _jax.CompileOptions()
    finally:
        if flags is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = flags

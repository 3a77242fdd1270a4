"""Models on jax: the shared lowerings over its adapter, and its own kernels."""

from __future__ import annotations

from sardonyx.engines.jax.backend import Backend, Runner, prepare, run_model, run_node

__all__ = ["Backend", "Runner", "prepare", "run_model", "run_node"]

"""Where each operator runs on an engine, as far as the engine itself declares it."""

from __future__ import annotations

from sardonyx import plugins
from sardonyx.engines.loading import load_engine
from sardonyx.lower.driver import KERNELS, find
from sardonyx.opset import has_body

MEANINGS = {
    "kernel": "by an operation of the framework, written for it alone",
    "rule": "by array operations that all frameworks share",
    "body": "through the function body by which ONNX defines it",
    "here": "in the engine, for the types that it computes exactly",
    "partly": "in the engine for some settings, elsewhere for others",
    "elsewhere": "on another engine: a call-out",
    "whole": "the engine takes or refuses whole models",
}


def declared(engine: str, op: str, domain: str = "") -> str:
    """Where an operator runs on an engine: a key of `MEANINGS`.

    >>> declared("numpy", "Relu"), declared("onnxruntime", "Relu")
    ('rule', 'whole')
    """
    loaded = load_engine(engine)
    if engine in plugins.FRAMEWORKS:
        if KERNELS[engine].get(op, domain) is not None:
            return "kernel"
        if find(op, domain, engine) is not None:
            return "rule"
        return "body" if has_body(op, domain) else "elsewhere"
    runtime = getattr(getattr(loaded, "Runner", None), "runtime", None)
    if runtime is None:
        return "whole"
    return str(runtime.declares(op, domain))

"""Custom operators: a body in ONNX operators carries one everywhere.

`define` gives an operator its body: values on every engine and gradients of any order follow from
it, and saved files need nothing else. `check_operator` compares a lowering (`sardonyx.lowering`) or
a gradient rule (`sardonyx.gradient_rule`) registered for the operator with that body.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import plugins
from sardonyx.edit.widen import widen
from sardonyx.engines.loading import runner
from sardonyx.errors import ArgumentError, EngineError, quote
from sardonyx.grad import GRADIENT_RULES, grad
from sardonyx.lower.driver import FRAMEWORKS, find
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, normalize
from sardonyx.passes.functions import DEFINED
from sardonyx.testing import Case, _check, feeds_of, model_of, wrt_of

NOISE = 1e-4  # of single precision, relative to the largest value


def define(function: str | onnx.FunctionProto) -> tuple[str, str]:
    """Give a custom operator its body, in ONNX operators; its domain and name.

    function -- ONNX's text of a function, or a FunctionProto

    >>> import sardonyx as sx
    >>> sx.define('''<domain: "com.acme", opset_import: ["": 22]>
    ... Smooth (x) => (y) {s = Sigmoid(x) y = Mul(x, s)}''')
    ('com.acme', 'Smooth')
    >>> sx.check_operator(sx.testing.case("Smooth", (2, 3), domain="com.acme"))
    >>> sx.undefine("com.acme", "Smooth")
    """
    proto = onnx.parser.parse_function(function) if isinstance(function, str) else function
    definition = ir.serde.deserialize_function(proto)
    key = definition.identifier()
    if key[0] in ("", "ai.onnx"):
        raise ArgumentError(f"{quote(key[1])} needs a domain other than that of ONNX")
    if key in DEFINED:
        raise ArgumentError(f"{key[0]}::{key[1]} is defined already", hint="undefine it first")
    DEFINED[key] = definition
    return key[0], key[1]


def undefine(domain: str, op: str) -> None:
    """Remove the body that `define` registered.

    >>> import sardonyx as sx
    >>> sx.undefine("com.acme", "NeverDefined")
    """
    for key in [k for k in DEFINED if k[:2] == (domain, op)]:
        del DEFINED[key]


def check_operator(case: Case) -> None:
    """Raise `EngineError` unless all ways to compute a custom operator agree on a case.

    Its body runs on onnxruntime and on every framework that is installed; its gradient is compared
    with differences, up to the case's order; lowerings and gradients registered for it are compared
    with the body.

    case -- made by `sardonyx.testing.case(op, *inputs, domain=…)`

    >>> import sardonyx as sx
    >>> _ = sx.define('''<domain: "com.acme", opset_import: ["": 22]>
    ... Half (x) => (y) {two = Constant<value_float = 2.0>() y = Div(x, two)}''')
    >>> sx.check_operator(sx.testing.case("Half", (2, 3), domain="com.acme"))
    >>> sx.undefine("com.acme", "Half")
    """
    if (case.domain, case.op) not in {key[:2] for key in DEFINED}:
        raise ArgumentError(f"{case.domain}::{case.op} has no body", hint="give it one: define(…)")
    single = normalize(model_of(case, np.float32))
    feeds = feeds_of(case, np.float32)
    exact = run("numpy", single, feeds, float64=True)
    wrong = []
    for engine in (e for e in (plugins.DEFAULT, *FRAMEWORKS) if plugins.engine(e).is_installed):
        wrong += differences(f"its body on {engine}", run(engine, single, feeds), exact)
        if engine in FRAMEWORKS and find(case.op, case.domain, engine) is not None:
            wrong += differences(
                f"its rule on {engine}", run(engine, bare(case, single), feeds), exact
            )
    wrong += _gradients(case, single, feeds)
    if wrong:
        raise EngineError(f"{case.domain}::{case.op} is not the same everywhere", wrong)


def run(engine: str, model: Model, feeds: dict[str, Any], **settings: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        outputs: dict[str, Any] = runner(engine)(model, **settings)(feeds)
    return outputs


def bare(case: Case, typed: Model) -> NormalizedModel:
    """The operator as one node that is never inlined; its outputs have the types of its body's."""
    model = model_of(case, np.float32)
    for value, like in zip(model.outputs, typed.outputs, strict=True):
        value.type, value.shape = like.type, like.shape
    return NormalizedModel.of(model)


def differences(what: str, outputs: dict[str, Any], expected: dict[str, Any]) -> list[list[str]]:
    """Rows for the outputs that differ by more than rounding."""
    rows = []
    for name, exact in expected.items():
        value = np.asarray(outputs[name])
        if value.shape != exact.shape:
            rows.append([what, quote(name), f"{value.shape}, not {exact.shape}"])
            continue
        error = float(np.max(np.abs(value - exact), initial=0.0))
        scale = float(np.max(np.abs(exact), initial=1.0))
        if not error <= NOISE * scale:
            rows.append([what, quote(name), f"differs by {error:.3g} of {scale:.3g}"])
    return rows


def _gradients(case: Case, single: Model, feeds: dict[str, Any]) -> list[list[str]]:
    wrt = wrt_of(case)
    try:
        _check(case, widen(single), feeds_of(case), wrt, case.order, 1)
    except AssertionError as error:
        return [["the gradient of its body", str(error)]]
    if GRADIENT_RULES.get(case.op, case.domain) is None or not wrt:
        return []
    from_rule, from_body = (
        run("numpy", grad(model, wrt=wrt, outputs=False), feeds)
        for model in (bare(case, single), single)
    )
    return differences("its own gradient", from_rule, from_body)

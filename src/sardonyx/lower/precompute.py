"""Nodes computed by numpy's rules while a model is prepared, within the budget of `passes.folding`.

What exceeds the budget is computed at each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.lower.driver import attributes, find
from sardonyx.lower.numpy_xp import numpy_arrays
from sardonyx.lower.partition import element_type
from sardonyx.lower.xp import Arrays
from sardonyx.passes.cse import is_random
from sardonyx.passes.folding import Budget
from sardonyx.registry import Rule

GROWTH = 1 << 16  # elements that a precomputed result may have beyond those of its inputs


def compute(node: ir.Node, values: Sequence[Any], budget: Budget) -> tuple[Any, ...] | None:
    """The results of `node` on constant `values`; None where it has no rule, or does not fit."""
    rule = find(node.op_type, node.domain, "numpy")
    if rule is None or is_random(node):
        return None
    special = {"count": len(node.outputs), "dtypes": tuple(map(element_type, node.outputs))}
    try:
        return within(budget, node, values, rule, accepted(rule, {**attributes(node), **special}))
    except Exception:  # it is reported where the node runs
        return None


def within(
    budget: Budget,
    node: ir.Node,
    values: Sequence[Any],
    rule: Rule,
    keywords: Mapping[str, Any],
) -> tuple[Any, ...] | None:
    """The results of numpy's rule for `node` if the budget takes them; passes on its exceptions."""
    return call(rule, numpy_arrays(), values, keywords) if budget.takes(node, values) else None


def accepted(rule: Rule | None, keywords: dict[str, Any]) -> dict[str, Any]:
    """The keywords that a rule takes."""
    if rule is None:
        return {}
    if rule.takes_all_keywords:
        return {
            k: v for k, v in keywords.items() if k not in ("count", "dtypes") or k in rule.keywords
        }
    return {k: v for k, v in keywords.items() if k in rule.keywords}


def call(
    rule: Rule | None, xp: Arrays, values: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The outputs of a rule, as a tuple of arrays (or lists of them)."""
    assert rule is not None
    if xp.name == "numpy":
        with np.errstate(all="ignore"):
            results = rule.function(xp, *values, **keywords)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(
            v if v is None or isinstance(v, (list, dict)) else xp.result(v) for v in results
        )
    results = rule.function(xp, *values, **keywords)
    return results if isinstance(results, tuple) else (results,)

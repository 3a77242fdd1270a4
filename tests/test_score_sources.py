"""Which results a change of our sources makes stale: those that depend on it, and no others."""

from __future__ import annotations

import pytest

from sardonyx.grad import GRADIENT_RULES
from sardonyx.lower.driver import KERNELS, LOWERINGS
from sardonyx.registry import op_name
from sardonyx.score import sources


def test_every_rule_is_found_by_reading() -> None:
    import sardonyx.engines.numpy  # noqa: F401  (registers its kernels)

    kernels = {op_name(key) for key in KERNELS["numpy"]}
    for package, registry in (("lower", LOWERINGS), ("grad", GRADIENT_RULES)):
        known = {op_name(key) for key in registry}
        result = set(sources.rules(package, "numpy"))
        assert result - kernels <= known
        # Those two are made by a function, in a loop; they count for all.
        assert known - result <= {"ReduceMax", "ReduceMin"}


def keys(*ops: str) -> dict[str, str]:
    for cached in (sources.rules, sources.shared, sources._orphans, sources._named_by):
        cached.cache_clear()
    result = {op: sources.of_rules("torch", [op]) for op in ops}
    return {**result, "all": sources.shared("torch", "gradient")}


@pytest.mark.parametrize(
    ("module", "old", "stale"),
    [
        # a rule that another engine's kernel calls; a line of a table; a formula of one
        ("lower.nn.pool", "total = window_sum(", {"AveragePool"}),
        ("lower.math.elementwise", "xp.abs(x)", {"Abs"}),
        ("grad.math.elementwise", "g * op.Sign(x)", {"Abs"}),
        # a function that several rules share
        ("lower.nn.window", "def window_of(", {"AveragePool", "MaxPool", "Conv"}),
        # what everything goes through
        ("lower.program", "class Program", {"all"}),
        ("engines.torch.xp", "def asarray(", {"all"}),
        # another engine's
        ("engines.jax.xp", "def asarray(", set()),
    ],
)
def test_a_change_makes_stale_what_depends_on_it(
    module: str, old: str, stale: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = ("AveragePool", "MaxPool", "Conv", "Abs", "Relu")
    before = keys(*ops)
    name = f"sardonyx.{module}"
    result = dict(sources.modules())
    text = result[name].text
    at = text.index(old)
    line = text.index("\n", at)
    result[name] = sources.read(name, f"{text[:line]}  # changed{text[line:]}")
    monkeypatch.setattr(sources, "modules", lambda: result)
    now = keys(*ops)
    monkeypatch.undo()
    keys()
    assert {op for op in now if now[op] != before[op]} == stale

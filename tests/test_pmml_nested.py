"""PMML models inside models and predicates inside predicates, against rules written in Python."""

from __future__ import annotations

from typing import Any

import pytest

import sardonyx as sx
from sardonyx.errors import SardonyxError
from tests.test_pmml import NAN, X, Y, document, run, same, schema

Z = '<DataField name="z" optype="continuous" dataType="double"/>'
TEXT = '<DataField name="s" optype="categorical" dataType="string"/>'


def simple(field: str, operator: str, value: Any) -> str:
    return f'<SimplePredicate field="{field}" operator="{operator}" value="{value}"/>'


def compound(operator: str, *parts: str) -> str:
    return f'<CompoundPredicate booleanOperator="{operator}">{"".join(parts)}</CompoundPredicate>'


def fork(test: str, strategy: str = "none") -> str:
    """A tree that gives 1 where the test holds, else 0."""
    return f"""<TreeModel functionName="regression" missingValueStrategy="{strategy}">
    {schema("s", "x")}<Node score="-1"><True/><Node score="1">{test}</Node>
    <Node score="0"><True/></Node></Node></TreeModel>"""


def test_many_alternatives_of_one_field_are_one_set() -> None:
    words = [f'a "{i}" \\' for i in range(60)]
    parts = [simple("s", "equal", w.replace('"', "&quot;")) for w in words]
    either = compound("or", *parts, simple("x", "greaterThan", 2))
    out = run(document(fork(either), TEXT + X + Y), s=[words[7], "b", "b", "", ""],
              x=[0.0, 3.0, 1.0, 3.0, NAN])  # fmt: skip
    same(out["y"], [1.0, 1.0, 0.0, 1.0, 0.0])
    parts = [simple("s", "notEqual", w.replace('"', "&quot;")) for w in words]
    neither = compound("and", *parts, simple("x", "greaterThan", 2))
    out = run(document(fork(neither, "lastPrediction"), TEXT + X + Y),
              s=[words[7], "b", "b", "", ""], x=[3.0, 3.0, 1.0, 3.0, 1.0])  # fmt: skip
    same(out["y"], [0.0, 1.0, 0.0, -1.0, 0.0])


@pytest.mark.parametrize("operator", ["and", "or", "xor", "surrogate"])
def test_predicates_with_many_parts(operator: str) -> None:
    """A tree of tests would have two to the power of their number."""
    names = [f"x{i}" for i in range(40)]
    fields = "".join(X.replace('"x"', f'"{name}"') for name in names)
    test = compound(operator, *(simple(name, "greaterThan", i) for i, name in enumerate(names)))
    model = fork(test, "lastPrediction").replace(schema("s", "x"), schema(*names))
    rows = [[1.0] * 40, [0.0] * 40, [1.0] + [0.0] * 39, [NAN] + [1.0] * 39, [NAN] * 40]
    rows = [[v + i for i, v in enumerate(row)] for row in rows]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    expected = {
        "and": [1.0, 0.0, 0.0, -1.0, -1.0],
        "or": [1.0, 0.0, 1.0, 1.0, -1.0],
        "xor": [0.0, 0.0, 1.0, -1.0, -1.0],
        "surrogate": [1.0, 0.0, 1.0, 1.0, -1.0],
    }
    same(run(document(model, fields + Y), **columns)["y"], expected[operator])


def ladder(depth: int, settings: str, test: Any) -> bytes:
    """A tree in which the default child of each node has a default child, and so on."""

    def node(level: int, predicate: str) -> str:
        if level == 0:
            return f'<Node id="n0" score="0">{predicate}</Node>'
        yes, no = test(level)
        return (
            f'<Node id="n{level}" defaultChild="n{level - 1}">{predicate}{node(level - 1, yes)}'
            f'<Node id="m{level}" score="{level}">{no}</Node></Node>'
        )

    return document(
        f'<TreeModel functionName="regression" missingValueStrategy="defaultChild"{settings}>'
        f"{schema('x', 'z')}{node(depth, '<True/>')}</TreeModel>",
        X + Z + Y,
    )


def test_opposite_surrogates_are_one_test() -> None:
    """Each level asked twice would be 2 to the power of 40 tests."""

    def test(level: int) -> tuple[str, str]:
        return tuple(  # type: ignore[return-value]
            compound("surrogate", simple("x", o, level), simple("z", o, level))
            for o in ("lessThan", "greaterOrEqual")
        )

    out = run(ladder(40, "", test), x=[5.5, NAN, NAN, 0.0, 50.0], z=[0.0, 7.5, NAN, 50.0, 0.0])
    same(out["y"], [5.0, 7.0, 0.0, 0.0, 40.0])


def test_a_tree_whose_tests_would_be_copied_without_end_is_refused() -> None:
    def test(level: int) -> tuple[str, str]:
        return simple("x", "lessThan", level), simple("x", "greaterOrEqual", level)

    with pytest.raises(SardonyxError, match="copied"):
        sx.from_pmml(ladder(40, ' missingValuePenalty="0.5"', test))

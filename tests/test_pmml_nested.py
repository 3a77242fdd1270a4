"""PMML models inside models and predicates inside predicates, against rules written in Python."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pandas
import pytest

import sardonyx as sx
from sardonyx.errors import SardonyxError
from tests.test_pmml import CLASS, NAN, X, Y, document, run, same, schema

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


def segment(predicate: str, model: str) -> str:
    return f"<Segment>{predicate}{model}</Segment>"


CLASSES = """<TreeModel functionName="classification"><MiningSchema><MiningField name="x"/>
</MiningSchema><Output><OutputField name="kind" feature="predictedValue"/></Output>
<Node><True/><Node score="low"><SimplePredicate field="x" operator="lessThan" value="0"/></Node>
<Node score="high"><SimplePredicate field="x" operator="greaterOrEqual" value="0"/></Node></Node>
</TreeModel>"""


def test_a_chain_of_numbers_with_a_class_before_them() -> None:
    segments = segment("<True/>", CLASSES) + "".join(
        segment(
            simple("kind", "equal", kind),
            f'<RegressionModel functionName="regression">{schema("x")}<RegressionTable '
            f'intercept="{value}"><NumericPredictor name="x" coefficient="1"/></RegressionTable>'
            "</RegressionModel>",
        )
        for kind, value in (("low", 100), ("high", 200))
    )
    model = (
        f'<MiningModel functionName="regression">{schema("x")}<Segmentation '
        f'multipleModelMethod="modelChain">{segments}</Segmentation></MiningModel>'
    )
    same(run(document(model), x=[-1.0, 2.0, NAN])["y"], [99.0, 202.0, NAN])


def test_classes_of_a_model_without_a_target_are_text() -> None:
    out = run(document(CLASSES, X), x=[-1.0, 2.0, NAN])
    assert out["kind"] == ["low", "high", ""]
    votes = (
        f'<MiningModel functionName="classification"><MiningSchema><MiningField name="x"/>'
        f'</MiningSchema><Segmentation multipleModelMethod="majorityVote">'
        f"{segment('<True/>', CLASSES)}</Segmentation></MiningModel>"
    )
    assert run(document(votes, X), x=[-1.0, 2.0])["predictedValue"] == ["low", "high"]


NEIGHBOURS = """<NearestNeighborModel functionName="classification" numberOfNeighbors="1">
<MiningSchema><MiningField name="x"/><MiningField name="s"/>
<MiningField name="y" usageType="target"/></MiningSchema>
<LocalTransformations>
<DerivedField name="tenth" optype="continuous" dataType="double"><NormContinuous field="x">
<LinearNorm orig="0" norm="0"/><LinearNorm orig="10" norm="1"/></NormContinuous></DerivedField>
<DerivedField name="is_a" optype="continuous" dataType="double"><NormDiscrete field="s" value="a"/>
</DerivedField></LocalTransformations>
<TrainingInstances isTransformed="{transformed}"><InstanceFields>
<InstanceField field="x" column="c1"/><InstanceField field="s" column="c2"/>
<InstanceField field="y" column="c3"/></InstanceFields><InlineTable>{rows}</InlineTable>
</TrainingInstances><ComparisonMeasure kind="distance"><euclidean/></ComparisonMeasure>
<KNNInputs><KNNInput field="tenth"/><KNNInput field="is_a"/></KNNInputs></NearestNeighborModel>"""


def test_training_rows_are_transformed_as_the_rows_to_be_scored() -> None:
    points = [(0, "a", "no"), (9, "b", "yes"), (2, "b", "no"), (12, "a", "yes")]
    rows = "".join(f"<row><c1>{x}</c1><c2>{s}</c2><c3>{y}</c3></row>" for x, s, y in points)
    source = document(NEIGHBOURS.format(transformed="false", rows=rows), X + TEXT + CLASS)
    cells = list(itertools.product([-3.0, 4.0, 5.9, 6.1, 20.0], ["a", "b", "zebra"]))

    def nearest(x: float, s: str) -> str:
        far = [((x - p) / 10) ** 2 + ((s == "a") - (t == "a")) ** 2 for p, t, _ in points]
        return points[far.index(min(far))][2]

    out = run(source, x=[c[0] for c in cells], s=[c[1] for c in cells])
    assert out["y"] == [nearest(*c) for c in cells]
    with pytest.raises(SardonyxError, match="the training rows have no field 'tenth'"):
        sx.from_pmml(document(NEIGHBOURS.format(transformed="true", rows=rows), X + TEXT + CLASS))


def tree_of(target: str, score: Any) -> str:
    return f"""<TreeModel functionName="regression">{schema("x", target=target)}
    <Node score="{score}"><True/></Node></TreeModel>"""


@pytest.mark.parametrize("method", ["modelChain", "multiModelChain"])
def test_targets_of_segments_that_take_no_part_are_missing(method: str) -> None:
    """As JPMML: several segments may speak of one target, and a row gets what those say of it."""
    negative, large = simple("x", "lessThan", 0), simple("x", "greaterThan", 9)
    between = compound("and", simple("x", "greaterOrEqual", 0), simple("x", "lessOrEqual", 9))
    segments = segment(negative, tree_of("y", 1)) + segment(large, tree_of("y", 5))
    segments += segment(between, tree_of("z", 7))
    schema_of_two = schema("x").replace(
        "</MiningSchema>", '<MiningField name="z" usageType="target"/></MiningSchema>'
    )
    model = (
        f'<MiningModel functionName="regression">{schema_of_two}<Segmentation '
        f'multipleModelMethod="{method}">{segments}</Segmentation></MiningModel>'
    )
    out = run(document(model, X + Z + Y), x=[-1.0, 2.0, 20.0])
    same(out["y"], [1.0, NAN, 5.0])
    same(out["z"], [NAN, 7.0, NAN])


def test_the_version_may_be_in_the_name_space_alone() -> None:
    source = document(tree_of("y", 1)).replace(
        b'<PMML version="4.4"', b'<PMML xmlns="http://www.dmg.org/PMML-4_2"'
    )
    same(run(source, x=[0.0])["y"], [1.0])


def test_residuals_of_what_was_observed() -> None:
    """Observed less predicted, for frames with the column of the target; without it, missing."""
    fields = "".join(
        f'<OutputField name="{name}" feature="{feature}"{settings}/>'
        for name, feature, settings in (
            ("p", "probability", ' value="yes"'),
            ("r_yes", "residual", ' value="yes"'),
            ("r", "residual", ""),
        )
    )
    model = f"""<RegressionModel functionName="classification" normalizationMethod="logit">
    {schema("x")}<Output>{fields}</Output><RegressionTable targetCategory="yes" intercept="1">
    <NumericPredictor name="x" coefficient="-1"/></RegressionTable>
    <RegressionTable targetCategory="no" intercept="0"/></RegressionModel>"""
    source = document(model, X + CLASS)
    out = run(source, x=[0.0, 0.0, 3.0, 0.0], actual_y=["yes", "no", "no", ""])
    yes, no = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-2))
    same(out["p"], [yes, yes, 1 - no, yes])
    same(out["r_yes"], [1 - yes, -yes, no - 1, NAN])
    same(out["r"], [1 - yes, -yes, 1 - no, NAN])
    frame = pandas.DataFrame({"x": [0.0, 3.0], "y": ["no", "no"]})
    feeds = sx.from_pmml(source).feeds(frame)
    assert feeds["actual_y"].tolist() == ["no", "no"]
    assert sx.from_pmml(source).feeds(frame[["x"]])["actual_y"].tolist() == ["", ""]
    table = '<RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/>'
    numbers = f"""<RegressionModel functionName="regression">{schema("x")}<Output>
    <OutputField name="r" feature="residual"/></Output>{table}</RegressionTable>
    </RegressionModel>"""
    same(run(document(numbers), x=[1.0, 1.0], actual_y=[5.0, NAN])["r"], [2.0, NAN])

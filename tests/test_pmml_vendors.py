"""What model elements say about zeros, ties and gaps, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ImportRefused, ModelError
from tests.test_pmml import CLASS, NAN, S, X, Y, document, run, same, schema

Z = '<DataField name="z" optype="continuous" dataType="double"/>'


def probability(name: str) -> str:
    return f'<Output><OutputField name="p" feature="probability" value="{name}"/></Output>'


def counts(yes: float, no: float) -> str:
    return (
        f'<TargetValueCounts><TargetValueCount value="yes" count="{yes}"/>'
        f'<TargetValueCount value="no" count="{no}"/></TargetValueCounts>'
    )


def bayes(inputs: str, active: str) -> str:
    return f"""<NaiveBayesModel functionName="classification" threshold="0.3">{schema(active)}
    {probability("yes")}<BayesInputs>{inputs}</BayesInputs>
    <BayesOutput fieldName="y">{counts(10, 5)}</BayesOutput></NaiveBayesModel>"""


def test_the_threshold_of_bayes_stands_for_counts_of_zero_only() -> None:
    inputs = f"""<BayesInput fieldName="s"><PairCounts value="a">{counts(1, 5)}</PairCounts>
    <PairCounts value="b">{counts(9, 0)}</PairCounts></BayesInput>"""
    out = run(document(bayes(inputs, "s"), S + CLASS), s=["a", "b", ""])
    first = 10 * 1 / 10 / (10 * 1 / 10 + 5 * 5 / 5)  # 1 of 10 is less than 0.3, and no zero
    second = 10 * 9 / 10 / (10 * 9 / 10 + 5 * 0.3)
    same(out["p"], [first, second, 10 / 15])


def test_bayes_of_counts_by_poisson() -> None:
    inputs = """<BayesInput fieldName="x"><TargetValueStats>
    <TargetValueStat value="yes"><PoissonDistribution mean="2"/></TargetValueStat>
    <TargetValueStat value="no"><PoissonDistribution mean="1"/></TargetValueStat>
    </TargetValueStats></BayesInput>"""
    model = bayes(inputs, "x").replace("0.3", "0")
    out = run(document(model, X + CLASS), x=[0.0, 3.0, NAN])
    pairs = [
        tuple(m**k * math.exp(-m) / math.factorial(k) * n for m, n in ((2, 10), (1, 5)))
        for k in (0, 3)
    ]
    same(out["p"], [*(a / (a + b) for a, b in pairs), 10 / 15])


def neighbours(rows: list[tuple[float, str]], count: int) -> str:
    cells = "".join(f"<row><x>{x}</x><y>{y}</y></row>" for x, y in rows)
    return f"""<NearestNeighborModel functionName="classification" numberOfNeighbors="{count}"
    categoricalScoringMethod="majorityVote">{schema("x")}
    <Output><OutputField name="nearest" feature="entityId" dataType="string"/></Output>
    <TrainingInstances><InstanceFields><InstanceField field="x" column="x"/>
    <InstanceField field="y" column="y"/></InstanceFields><InlineTable>{cells}</InlineTable>
    </TrainingInstances><ComparisonMeasure kind="distance"><euclidean/></ComparisonMeasure>
    <KNNInputs><KNNInput field="x"/></KNNInputs></NearestNeighborModel>"""


def test_of_equal_votes_the_more_frequent_category_wins_then_the_first_in_the_alphabet() -> None:
    rows = [(0.0, "yes"), (1.0, "no"), (9.0, "no"), (11.0, "yes"), (30.0, "yes")]
    out = run(document(neighbours(rows, 2), X + CLASS), x=[0.4, NAN])
    assert out["y"] == ["yes", ""]  # three rows are yes
    assert out["nearest"] == ["1", ""]
    out = run(document(neighbours(rows[:4], 2), X + CLASS), x=[0.4])
    assert out["y"] == ["no"]


def general(settings: str, cells: str, betas: str) -> str:
    return f"""<GeneralRegressionModel functionName="regression" {settings}>{schema("x", "s")}
    <ParameterList><Parameter name="p0"/><Parameter name="p1"/></ParameterList>
    <FactorList><Predictor name="s"/></FactorList><CovariateList><Predictor name="x"/>
    </CovariateList><PPMatrix>{cells}</PPMatrix><ParamMatrix>{betas}</ParamMatrix>
    </GeneralRegressionModel>"""


CELLS = (
    '<PPCell value="1" predictorName="x" parameterName="p1"/>'
    '<PPCell value="a" predictorName="s" parameterName="p1"/>'
)
BETAS = '<PCell parameterName="p0" beta="0.5"/><PCell parameterName="p1" beta="2"/>'


def test_a_covariate_does_not_matter_where_its_factor_is_another() -> None:
    model = general('modelType="generalLinear"', CELLS, BETAS)
    out = run(document(model, X + S + Y), x=[3.0, NAN, NAN, 3.0], s=["a", "b", "a", ""])
    same(out["y"], [6.5, 0.5, NAN, NAN])


@pytest.mark.parametrize(("kind", "factor"), [("generalLinear", 1.0), ("generalizedLinear", 7.0)])
def test_trials_belong_to_generalized_models(kind: str, factor: float) -> None:
    model = general(f'modelType="{kind}" linkFunction="identity" trialsValue="7"', CELLS, BETAS)
    same(run(document(model, X + S + Y), x=[3.0], s=["a"])["y"], [6.5 * factor])


def test_an_offset_of_a_multinomial_model_is_refused() -> None:
    model = general(
        'modelType="multinomialLogistic" offsetValue="1"',
        CELLS,
        BETAS.replace("<PCell ", '<PCell targetCategory="yes" '),
    ).replace('"regression"', '"classification"')
    with pytest.raises(ImportRefused, match="offset"):
        sx.from_pmml(document(model, X + S + CLASS))


def test_before_the_first_time_there_is_no_hazard() -> None:
    model = f"""<GeneralRegressionModel functionName="regression" modelType="CoxRegression"
    endTimeVariable="z">{schema("x", "z")}
    <ParameterList><Parameter name="p1" referencePoint="1"/></ParameterList>
    <CovariateList><Predictor name="x"/></CovariateList>
    <PPMatrix><PPCell value="1" predictorName="x" parameterName="p1"/></PPMatrix>
    <ParamMatrix><PCell parameterName="p1" beta="0.5"/></ParamMatrix>
    <BaseCumHazardTables maxTime="9"><BaselineCell time="2" cumHazard="0.1"/>
    <BaselineCell time="5" cumHazard="0.4"/></BaseCumHazardTables></GeneralRegressionModel>"""
    out = run(document(model, X + Z + Y), x=[3.0, NAN, 3.0, 3.0], z=[1.0, 1.0, 4.0, 10.0])
    same(out["y"], [0.0, 0.0, 0.1 * math.exp(1.0), NAN])


def test_an_array_of_another_length_than_it_declares_is_an_error() -> None:
    node = """<Node score="{}"><SimpleSetPredicate field="s" booleanOperator="isIn">
    <Array n="{}" type="string">a b</Array></SimpleSetPredicate></Node>"""
    for count in (2, 3):
        model = f"""<TreeModel functionName="regression">{schema("s")}<Node score="0"><True/>
        {node.format(1, count)}</Node></TreeModel>"""
        if count == 2:
            same(run(document(model, S + Y), s=["a", "b"])["y"], [1.0, 1.0])
            continue
        with pytest.raises(ModelError, match="declares 3 entries and has 2"):
            sx.from_pmml(document(model, S + Y))


def test_a_category_without_confidence_has_none() -> None:
    leaf = """<Node score="yes">{}<ScoreDistribution value="yes" recordCount="3" {}/>
    <ScoreDistribution value="no" recordCount="1"/></Node>"""
    nodes = leaf.format('<SimplePredicate field="x" operator="lessThan" value="0"/>', "")
    nodes += leaf.format(
        '<SimplePredicate field="x" operator="greaterOrEqual" value="0"/>', 'confidence="0.6"'
    )
    outputs = "".join(
        f'<OutputField name="c_{n}" feature="confidence" value="{n}"/>' for n in ("yes", "no")
    )
    model = f"""<TreeModel functionName="classification">{schema("x")}<Output>{outputs}</Output>
    <Node><True/>{nodes}</Node></TreeModel>"""
    out = run(document(model, X + CLASS), x=[1.0])
    same(out["c_yes"], [0.6])
    same(out["c_no"], [0.0])
    assert np.isfinite(out["c_yes"]).all()


def test_a_scorecard_whose_reasons_nobody_asks_for() -> None:
    attributes = "".join(
        f'<Attribute partialScore="{points}"><SimplePredicate field="x" operator="{operator}" '
        'value="0"/></Attribute>'
        for points, operator in ((4, "lessThan"), (9, "greaterOrEqual"))
    )
    model = f"""<Scorecard functionName="regression" initialScore="3">{schema("x")}
    <Characteristics><Characteristic>{attributes}</Characteristic></Characteristics></Scorecard>"""
    same(run(document(model), x=[-1.0, 2.0, NAN])["y"], [7.0, 12.0, NAN])


def test_a_segment_that_takes_no_part_has_no_result() -> None:
    tree = f"""<TreeModel functionName="regression">{schema("x")}
    <Node score="{{}}"><True/></Node></TreeModel>"""
    outputs = "".join(
        f'<OutputField name="o{i}" feature="predictedValue" segmentId="{i}"/>' for i in (1, 2)
    )
    model = f"""<MiningModel functionName="regression">{schema("x")}<Output>{outputs}</Output>
    <Segmentation multipleModelMethod="selectFirst"><Segment id="1"><SimplePredicate field="x"
    operator="lessThan" value="0"/>{tree.format(5)}</Segment><Segment id="2"><True/>
    {tree.format(6)}</Segment></Segmentation></MiningModel>"""
    out = run(document(model), x=[-1.0, 2.0])
    same(out["y"], [5.0, 6.0])
    same(out["o1"], [5.0, NAN])
    same(out["o2"], [NAN, 6.0])


def test_extensions_and_taxonomies_describe_only() -> None:
    table = '<RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/>'
    model = f"""<RegressionModel functionName="regression">{schema("x")}
    <p:Extension name="a"><Unheard of="q"/></p:Extension>{table}</RegressionTable>
    </RegressionModel>"""
    taxonomy = '<Taxonomy name="t"><ChildParent childColumn="a" parentColumn="b"/></Taxonomy>'
    same(run(document(model, X + Y + taxonomy), x=[3.0])["y"], [7.0])


def test_display_values_of_the_data_dictionary() -> None:
    field = CLASS.replace('value="yes"', 'value="yes" displayValue="Yes!"')
    model = f"""<TreeModel functionName="classification">{schema("x")}<Output><OutputField name="o"
    feature="predictedDisplayValue"/></Output><Node score="yes"><True/>
    <ScoreDistribution value="yes" recordCount="1"/></Node></TreeModel>"""
    assert run(document(model, X + field), x=[1.0])["o"] == ["Yes!"]


def test_the_confidence_is_that_of_the_rule_with_the_largest_weight() -> None:
    rules = "".join(
        f'<SimpleRule score="{score}" weight="{weight}" confidence="{trust}">'
        f'<SimplePredicate field="x" operator="lessThan" value="{value}"/></SimpleRule>'
        for score, weight, trust, value in (
            ("yes", 0.2, 0.9, 3), ("no", 0.7, 0.25, 2), ("no", 0.8, 0.1, 1), ("no", 0.8, 0.3, 1),
        )
    )  # fmt: skip
    outputs = "".join(
        f'<OutputField name="{n}" feature="confidence" {v}/>'
        for n, v in (("trust", ""), ("of_no", 'value="no"'))
    )
    model = f"""<RuleSetModel functionName="classification">{schema("x")}
    <Output>{outputs}</Output><RuleSet defaultScore="no" defaultConfidence="0.5">
    <RuleSelectionMethod criterion="weightedMax"/>{rules}</RuleSet></RuleSetModel>"""
    out = run(document(model, X + CLASS), x=[0.0, 1.0, 2.0, 3.0])
    assert out["y"] == ["no", "no", "yes", "no"]
    same(out["trust"], [0.1, 0.25, 0.9, 0.5])
    same(out["of_no"], [0.1, 0.25, 0.0, 0.5])


def test_aggregated_counts_leave_the_confidence_of_a_leaf_that_is_reached_alone() -> None:
    leaf = """<Node score="yes">{}<ScoreDistribution value="yes" recordCount="3" {}/>
    <ScoreDistribution value="no" recordCount="1" {}/></Node>"""
    nodes = leaf.format(
        '<SimplePredicate field="x" operator="lessThan" value="0"/>',
        'confidence="0.6"', 'confidence="0.4"',
    )  # fmt: skip
    nodes += leaf.format('<SimplePredicate field="x" operator="greaterOrEqual" value="0"/>', "", "")
    model = f"""<TreeModel functionName="classification" missingValueStrategy="aggregateNodes">
    {schema("x")}<Output><OutputField name="trust" feature="confidence" value="yes"/></Output>
    <Node><True/>{nodes}</Node></TreeModel>"""
    out = run(document(model, X + CLASS), x=[-1.0, 1.0, NAN])
    same(out["trust"], [0.6, 0.75, 0.75])

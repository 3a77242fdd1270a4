"""Each model element of PMML, against the same model written in numpy."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ImportDiffers, ImportRefused
from tests.test_pmml import CLASS, NAN, S, X, Y, document, run, same, schema

Z = '<DataField name="z" optype="continuous" dataType="double"/>'
XS = [0.5, -1.0, 2.0, 0.0]
ZS = [1.0, 3.0, -2.0, 0.5]
NO_YES = ("no", "yes")


def probabilities(*names: str) -> str:
    fields = (f'<OutputField name="p_{n}" feature="probability" value="{n}"/>' for n in names)
    return f"<Output>{''.join(fields)}</Output>"


def table(category: str, intercept: float, x: float, z: float) -> str:
    return (
        f'<RegressionTable targetCategory="{category}" intercept="{intercept}">'
        f'<NumericPredictor name="x" coefficient="{x}"/>'
        f'<NumericPredictor name="z" coefficient="{z}"/></RegressionTable>'
    )


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("logit", lambda a, b: 1 / (1 + math.exp(-a))),
        ("softmax", lambda a, b: math.exp(a) / (math.exp(a) + math.exp(b))),
        ("cloglog", lambda a, b: 1 - math.exp(-math.exp(a))),
        ("loglog", lambda a, b: math.exp(-math.exp(-a))),
        ("cauchit", lambda a, b: 0.5 + math.atan(a) / math.pi),
        ("probit", lambda a, b: 0.5 * math.erfc(-a / math.sqrt(2))),
    ],
)
def test_normalizations_of_regression(method: str, rule: Any) -> None:
    model = f"""<RegressionModel functionName="classification" normalizationMethod="{method}">
    {schema("x", "z")}{probabilities("yes", "no")}{table("yes", 0.1, 1, -0.5)}
    {table("no", 0, 0.25, 0.1)}</RegressionModel>"""
    out = run(document(model, X + Z + CLASS), x=XS, z=ZS)
    first = [0.1 + x - 0.5 * z for x, z in zip(XS, ZS, strict=True)]
    second = [0.25 * x + 0.1 * z for x, z in zip(XS, ZS, strict=True)]
    expected = [rule(a, b) for a, b in zip(first, second, strict=True)]
    same(out["p_yes"], expected)
    same(out["p_no"], [1 - p for p in expected])
    assert out["y"] == ["yes" if p > 1 - p else "no" for p in expected]


def test_a_field_with_a_coefficient_of_zero_counts_if_missing() -> None:
    """A table that names a field has no sum without it; one that does not name it has."""
    model = f"""<RegressionModel functionName="classification" normalizationMethod="softmax">
    {schema("x", "z")}{probabilities("yes", "no")}{table("yes", 0.1, 1, 0)}
    <RegressionTable targetCategory="no" intercept="0"/></RegressionModel>"""
    out = run(document(model, X + Z + CLASS), x=[0.4, 0.4], z=[NAN, 3.0])
    assert out["y"] == ["", "yes"]
    same(out["p_yes"], [NAN, math.exp(0.5) / (1 + math.exp(0.5))])


@pytest.mark.parametrize(
    ("link", "rule"),
    [
        ("identity", lambda e: e),
        ("log", math.exp),
        ("logit", lambda e: 1 / (1 + math.exp(-e))),
        ("cloglog", lambda e: 1 - math.exp(-math.exp(e))),
    ],
)
def test_links_of_general_regression(link: str, rule: Any) -> None:
    model = f"""<GeneralRegressionModel functionName="regression" modelType="generalizedLinear"
    linkFunction="{link}">{schema("x", "s")}<ParameterList><Parameter name="p0"/>
    <Parameter name="p1"/><Parameter name="p2"/></ParameterList>
    <FactorList><Predictor name="s"/></FactorList><CovariateList><Predictor name="x"/>
    </CovariateList><PPMatrix><PPCell value="2" predictorName="x" parameterName="p1"/>
    <PPCell value="b" predictorName="s" parameterName="p2"/>
    <PPCell value="1" predictorName="x" parameterName="p2"/></PPMatrix>
    <ParamMatrix><PCell parameterName="p0" beta="0.5"/><PCell parameterName="p1" beta="-0.25"/>
    <PCell parameterName="p2" beta="2"/></ParamMatrix></GeneralRegressionModel>"""
    texts = ["a", "b", "b", ""]
    out = run(document(model, X + S + Y), x=XS, s=texts)
    etas = [0.5 - 0.25 * x * x + (2 * x if s == "b" else 0) for x, s in zip(XS, texts, strict=True)]
    same(out["y"], [*(rule(e) for e in etas[:3]), NAN])


def stump(low: float, high: float, field: str = "x") -> str:
    return f"""<TreeModel functionName="regression">{schema("x", "z")}<Node score="0"><True/>
    <Node score="{low}"><SimplePredicate field="{field}" operator="lessThan" value="0"/></Node>
    <Node score="{high}"><SimplePredicate field="{field}" operator="greaterOrEqual" value="0"/>
    </Node></Node></TreeModel>"""


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("average", lambda v, w: np.mean(v)),
        ("weightedAverage", lambda v, w: np.average(v, weights=w)),
        ("sum", lambda v, w: np.sum(v)),
        ("weightedSum", lambda v, w: np.dot(v, w)),
        ("x-weightedSum", lambda v, w: np.dot(v, w)),
        ("median", lambda v, w: np.median(v)),
        ("max", lambda v, w: np.max(v)),
    ],
)
@pytest.mark.parametrize("treatment", ["continue", "skipSegment"])
def test_segments_of_a_regression(method: str, rule: Any, treatment: str) -> None:
    weights = [1.0, 2.0, 5.0]
    models = [stump(1, 2), stump(3, 4, "z"), stump(-1, 7)]
    segments = "".join(
        f'<Segment weight="{w}"><True/>{m}</Segment>' for w, m in zip(weights, models, strict=True)
    )
    model = f"""<MiningModel functionName="regression">{schema("x", "z")}
    <Segmentation multipleModelMethod="{method}" missingPredictionTreatment="{treatment}">
    {segments}</Segmentation></MiningModel>"""
    xs, zs = [0.5, -1.0, 0.5], [-1.0, 2.0, NAN]
    expected = []
    for x, z in zip(xs, zs, strict=True):
        values = [(1, 2)[x >= 0], NAN if math.isnan(z) else (3, 4)[z >= 0], (-1, 7)[x >= 0]]
        kept = [i for i, v in enumerate(values) if not math.isnan(v)]
        if len(kept) < 3 and treatment == "continue":
            expected.append(NAN)
        else:
            expected.append(float(rule([values[i] for i in kept], [weights[i] for i in kept])))
    same(run(document(model, X + Z + Y), x=xs, z=zs)["y"], expected)


def test_the_first_segment_with_a_prediction() -> None:
    model = f"""<MiningModel functionName="regression">{schema("x", "z")}
    <Segmentation multipleModelMethod="selectFirst" missingPredictionTreatment="skipSegment">
    <Segment><True/>{stump(1, 2)}</Segment><Segment><True/>{stump(3, 4, "z")}</Segment>
    </Segmentation></MiningModel>"""
    xs, zs = [0.5, NAN, NAN], [-1.0, 2.0, NAN]
    same(run(document(model, X + Z + Y), x=xs, z=zs)["y"], [2.0, 4.0, NAN])


def test_a_weighted_median_of_nothing_is_missing() -> None:
    model = f"""<MiningModel functionName="regression">{schema("x", "z")}
    <Segmentation multipleModelMethod="weightedMedian" missingPredictionTreatment="skipSegment">
    <Segment weight="2"><True/>{stump(1, 2)}</Segment>
    <Segment weight="1"><True/>{stump(3, 4, "z")}</Segment></Segmentation></MiningModel>"""
    xs, zs = [0.5, NAN, NAN], [-1.0, 2.0, NAN]
    same(run(document(model, X + Z + Y), x=xs, z=zs)["y"], [2.0, 4.0, NAN])


@pytest.mark.parametrize(("kind", "constant"), [("generalLinear", 0.0), ("generalizedLinear", 4.0)])
def test_offsets_belong_to_generalized_models(kind: str, constant: float) -> None:
    model = f"""<GeneralRegressionModel functionName="regression" modelType="{kind}"
    linkFunction="identity" offsetValue="4">{schema("x")}<ParameterList><Parameter name="p"/>
    </ParameterList><CovariateList><Predictor name="x"/></CovariateList><PPMatrix>
    <PPCell value="1" predictorName="x" parameterName="p"/></PPMatrix><ParamMatrix>
    <PCell parameterName="p" beta="2"/></ParamMatrix></GeneralRegressionModel>"""
    same(run(document(model), x=XS)["y"], [2 * x + constant for x in XS])


def test_a_threshold_of_nothing_is_missing() -> None:
    model = f"""<NeuralNetwork functionName="regression" activationFunction="threshold">
    {schema("x")}<NeuralInputs><NeuralInput id="a"><DerivedField optype="continuous"
    dataType="double"><FieldRef field="x"/></DerivedField></NeuralInput></NeuralInputs>
    <NeuralLayer><Neuron id="n"><Con from="a" weight="2"/></Neuron></NeuralLayer><NeuralOutputs>
    <NeuralOutput outputNeuron="n"><DerivedField optype="continuous" dataType="double">
    <FieldRef field="y"/></DerivedField></NeuralOutput></NeuralOutputs></NeuralNetwork>"""
    same(run(document(model), x=[-1.0, 2.0, NAN])["y"], [0.0, 1.0, NAN])


def test_a_chain_passes_its_outputs_on() -> None:
    first = f"""<RegressionModel functionName="regression">{schema("x", "z")}
    <Output><OutputField name="u" feature="predictedValue"/></Output>
    <RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/></RegressionTable>
    </RegressionModel>"""
    second = f"""<RegressionModel functionName="regression">{schema("u", "z")}
    <Output><OutputField name="v" feature="transformedValue" dataType="double"
    optype="continuous"><Apply function="*"><FieldRef field="u"/><Constant>10</Constant></Apply>
    </OutputField></Output><RegressionTable intercept="0">
    <NumericPredictor name="u" coefficient="3"/><NumericPredictor name="z" coefficient="1"/>
    </RegressionTable></RegressionModel>"""
    model = f"""<MiningModel functionName="regression">{schema("x", "z")}
    <Segmentation multipleModelMethod="modelChain"><Segment id="1"><True/>{first}</Segment>
    <Segment id="2"><True/>{second}</Segment></Segmentation></MiningModel>"""
    out = run(document(model, X + Z + Y), x=XS, z=ZS)
    same(out["y"], [3 * (1 + 2 * x) + z for x, z in zip(XS, ZS, strict=True)])
    same(out["v"], [10 * (1 + 2 * x) for x in XS])


VECTORS = np.array([[0.5, 1.0], [-1.0, 2.0], [0.0, 3.0]])
ALPHAS = np.array([1.0, -2.0, 0.5])


@pytest.mark.parametrize(
    ("kernel", "rule"),
    [
        ("<LinearKernelType/>", lambda x: VECTORS @ x),
        (
            '<PolynomialKernelType gamma="0.5" coef0="1" degree="2"/>',
            lambda x: (0.5 * VECTORS @ x + 1) ** 2,
        ),
        (
            '<RadialBasisKernelType gamma="0.3"/>',
            lambda x: np.exp(-0.3 * ((VECTORS - x) ** 2).sum(1)),
        ),
        (
            '<SigmoidKernelType gamma="0.1" coef0="0.2"/>',
            lambda x: np.tanh(0.1 * VECTORS @ x + 0.2),
        ),
    ],
)
def test_kernels_of_support_vectors(kernel: str, rule: Any) -> None:
    instances = "".join(
        f'<VectorInstance id="v{i}"><Array type="real">{v[0]} {v[1]}</Array></VectorInstance>'
        for i, v in enumerate(VECTORS)
    )
    support = "".join(f'<SupportVector vectorId="v{i}"/>' for i in range(3))
    coefficients = "".join(f'<Coefficient value="{a}"/>' for a in ALPHAS)
    model = f"""<SupportVectorMachineModel functionName="regression">{schema("x", "z")}{kernel}
    <VectorDictionary><VectorFields><FieldRef field="x"/><FieldRef field="z"/></VectorFields>
    {instances}</VectorDictionary><SupportVectorMachine><SupportVectors>{support}</SupportVectors>
    <Coefficients absoluteValue="0.25">{coefficients}</Coefficients></SupportVectorMachine>
    </SupportVectorMachineModel>"""
    expected = [float(rule(np.array(p)) @ ALPHAS + 0.25) for p in zip(XS, ZS, strict=True)]
    same(run(document(model, X + Z + Y), x=XS, z=ZS)["y"], expected)


def test_a_neural_network() -> None:
    hidden, output = np.array([[0.3, -0.2], [0.5, 0.7]]), np.array([[1.0, -1.0], [0.5, 2.0]])
    bias = np.array([0.1, -0.3])

    def layer(name: str, before: str, weights: np.ndarray, settings: str) -> str:
        neurons = "".join(
            f'<Neuron id="{name}{j}" bias="{bias[j]}">'
            + "".join(f'<Con from="{before}{i}" weight="{weights[i, j]}"/>' for i in range(2))
            + "</Neuron>"
            for j in range(2)
        )
        return f"<NeuralLayer {settings}>{neurons}</NeuralLayer>"

    inputs = "".join(
        f'<NeuralInput id="i{k}"><DerivedField optype="continuous" dataType="double">'
        f'<FieldRef field="{name}"/></DerivedField></NeuralInput>'
        for k, name in enumerate(("x", "z"))
    )
    outputs = "".join(
        f'<NeuralOutput outputNeuron="o{k}"><DerivedField optype="continuous" dataType="double">'
        f'<NormDiscrete field="y" value="{name}"/></DerivedField></NeuralOutput>'
        for k, name in enumerate(NO_YES)
    )
    fields = '<OutputField name="neuron" feature="entityId"/>'
    fields += "".join(
        f'<OutputField name="p_{n}" feature="probability" value="{n}"/>' for n in NO_YES
    )
    model = f"""<NeuralNetwork functionName="classification" activationFunction="tanh">
    {schema("x", "z")}<Output>{fields}</Output><NeuralInputs>{inputs}</NeuralInputs>
    {layer("h", "i", hidden, "")}{
        layer("o", "h", output, 'activationFunction="identity" normalizationMethod="softmax"')
    }
    <NeuralOutputs>{outputs}</NeuralOutputs></NeuralNetwork>"""
    out = run(document(model, X + Z + CLASS), x=[*XS, NAN], z=[*ZS, 1.0])
    scores = np.tanh(np.c_[XS, ZS] @ hidden + bias) @ output + bias
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    same(out["p_no"], [*expected[:, 0], NAN])
    same(out["p_yes"], [*expected[:, 1], NAN])
    assert out["y"] == [*(NO_YES[k] for k in expected.argmax(1)), ""]
    assert out["neuron"] == [*(f"o{k}" for k in expected.argmax(1)), ""]


def test_naive_bayes() -> None:
    counts = '<TargetValueCounts><TargetValueCount value="no" count="{}"/>'
    counts += '<TargetValueCount value="yes" count="{}"/></TargetValueCounts>'
    pairs = {"a": (3, 1), "b": (1, 4), "c": (2, 0)}
    rows = "".join(
        f'<PairCounts value="{k}">{counts.format(*v)}</PairCounts>' for k, v in pairs.items()
    )
    model = f"""<NaiveBayesModel functionName="classification" threshold="0.01">
    {schema("x", "s")}{probabilities("yes")}<BayesInputs><BayesInput fieldName="s">{rows}
    </BayesInput><BayesInput fieldName="x"><TargetValueStats>
    <TargetValueStat value="no"><GaussianDistribution mean="0" variance="2"/></TargetValueStat>
    <TargetValueStat value="yes"><GaussianDistribution mean="1" variance="0.5"/></TargetValueStat>
    </TargetValueStats></BayesInput></BayesInputs>
    <BayesOutput fieldName="y">{counts.format(6, 5)}</BayesOutput></NaiveBayesModel>"""
    texts = ["a", "c", "", "b"]
    xs = [0.5, -1.0, 2.0, NAN]
    out = run(document(model, X + S + CLASS), x=xs, s=texts)
    expected = []
    for x, s in zip(xs, texts, strict=True):
        weights = [6.0, 5.0]
        for k, (mean, variance, total) in enumerate(((0, 2, 6), (1, 0.5, 5))):
            if s:
                weights[k] *= max(pairs[s][k] / total, 0.01)
            if not math.isnan(x):
                density = math.exp(-((x - mean) ** 2) / (2 * variance))
                weights[k] *= max(density / math.sqrt(2 * math.pi * variance), 0.01)
        expected.append(weights[1] / sum(weights))
    same(out["p_yes"], expected)


CENTRES = np.array([[0.0, 0.5], [1.0, 2.0], [-1.0, 3.0]])


@pytest.mark.parametrize(
    ("measure", "rule"),
    [
        ("euclidean", lambda d: np.sqrt((d**2).sum(1))),
        ("squaredEuclidean", lambda d: (d**2).sum(1)),
        ("cityBlock", lambda d: np.abs(d).sum(1)),
        ("chebychev", lambda d: np.abs(d).max(1)),
        ('minkowski p-parameter="3"', lambda d: (np.abs(d) ** 3).sum(1) ** (1 / 3)),
    ],
)
def test_clusters(measure: str, rule: Any) -> None:
    clusters = "".join(
        f'<Cluster id="c{i}" name="cluster {i}"><Array type="real">{c[0]} {c[1]}</Array></Cluster>'
        for i, c in enumerate(CENTRES)
    )
    model = f"""<ClusteringModel functionName="clustering" modelClass="centerBased"
    numberOfClusters="3"><MiningSchema><MiningField name="x"/><MiningField name="z"/>
    </MiningSchema><Output><OutputField name="id" feature="predictedValue"/>
    <OutputField name="name" feature="predictedDisplayValue"/>
    <OutputField name="near" feature="affinity"/></Output>
    <ComparisonMeasure kind="distance"><{measure}/></ComparisonMeasure>
    <ClusteringField field="x"/><ClusteringField field="z"/>{clusters}</ClusteringModel>"""
    out = run(document(model, X + Z), x=XS, z=ZS)
    distances = [rule(CENTRES - np.array(p)) for p in zip(XS, ZS, strict=True)]
    assert out["id"] == [f"c{d.argmin()}" for d in distances]
    assert out["name"] == [f"cluster {d.argmin()}" for d in distances]
    same(out["near"], [float(d.min()) for d in distances])


def test_ranks_of_clusters() -> None:
    """Centres are doubles, also of a field of floats; where all is missing, no cluster is near."""
    clusters = "".join(
        f'<Cluster id="c{i}"><Array type="real">{c}</Array></Cluster>'
        for i, c in enumerate((-1.519, 0.3, 2.0))
    )
    fields = "".join(
        f'<OutputField name="{feature}{rank}" feature="{feature}" rank="{rank}"/>'
        for feature in ("entityId", "affinity")
        for rank in (1, 2)
    )
    model = f"""<ClusteringModel functionName="clustering" modelClass="centerBased"
    numberOfClusters="3"><MiningSchema><MiningField name="x"/></MiningSchema>
    <Output>{fields}</Output><ComparisonMeasure kind="distance"><cityBlock/></ComparisonMeasure>
    <ClusteringField field="x"/>{clusters}</ClusteringModel>"""
    out = run(document(model, X.replace("double", "float")), x=[-1.5, 1.0, NAN])
    assert out["entityId1"] == ["c0", "c1", ""]
    assert out["entityId2"] == ["c1", "c2", ""]
    same(out["affinity1"], [0.019, 0.7, NAN])
    same(out["affinity2"], [1.8, 1.0, NAN])


def test_nearest_neighbours() -> None:
    points, targets = np.array([0.0, 1.0, -1.0, 0.4]), np.array([1.0, 2.5, -1.0, 4.0])
    rows = "".join(f"<row><a>{p}</a><b>{t}</b></row>" for p, t in zip(points, targets, strict=True))
    model = f"""<NearestNeighborModel functionName="regression" numberOfNeighbors="2">
    {schema("x", outliers="asExtremeValues", lowValue="-0.5", highValue="9")}
    <Output><OutputField name="first" feature="entityId" rank="1"/>
    <OutputField name="third" feature="entityId" rank="3"/></Output>
    <TrainingInstances><InstanceFields><InstanceField field="x" column="a"/>
    <InstanceField field="y" column="b"/></InstanceFields><InlineTable>{rows}</InlineTable>
    </TrainingInstances><ComparisonMeasure kind="distance"><euclidean/></ComparisonMeasure>
    <KNNInputs><KNNInput field="x"/></KNNInputs></NearestNeighborModel>"""
    out = run(document(model), x=XS)
    # Raw training rows are clipped as well, and a rank may lie beyond the neighbours that count.
    clipped = np.maximum(points, -0.5)
    order = [np.argsort(np.abs(clipped - max(x, -0.5)), kind="stable") for x in XS]
    same(out["y"], [float(targets[o[:2]].mean()) for o in order])
    assert out["first"] == [str(o[0] + 1) for o in order]
    assert out["third"] == [str(o[2] + 1) for o in order]


def test_a_scorecard_with_reasons() -> None:
    model = f"""<Scorecard functionName="regression" initialScore="10" baselineScore="3"
    reasonCodeAlgorithm="pointsBelow">{schema("x", "s")}
    <Output><OutputField name="first" feature="reasonCode" rank="1"/>
    <OutputField name="second" feature="reasonCode" rank="2"/></Output><Characteristics>
    <Characteristic name="a" reasonCode="RX" baselineScore="5">
    <Attribute partialScore="1"><SimplePredicate field="x" operator="isMissing"/></Attribute>
    <Attribute partialScore="4"><SimplePredicate field="x" operator="lessThan" value="0"/>
    </Attribute><Attribute partialScore="9"><True/></Attribute></Characteristic>
    <Characteristic name="b" reasonCode="RS"><Attribute partialScore="2">
    <SimplePredicate field="s" operator="equal" value="a"/></Attribute>
    <Attribute partialScore="-1"><True/></Attribute></Characteristic></Characteristics>
    </Scorecard>"""
    out = run(document(model, X + S + Y), x=[NAN, -1.0, 2.0], s=["a", "b", "a"])
    same(out["y"], [13.0, 13.0, 21.0])
    assert out["first"] == ["RX", "RS", "RS"]
    assert out["second"] == ["RS", "RX", ""]
    only = model.replace('<Attribute partialScore="-1"><True/></Attribute>', "")
    out = run(document(only, X + S + Y), x=[NAN, -1.0], s=["a", "b"])
    same(out["y"], [13.0, NAN])  # no attribute holds: there is no score, and no reason for it
    assert out["first"] == ["RX", ""]


def test_rules() -> None:
    model = f"""<RuleSetModel functionName="classification">{schema("x", "s")}
    <Output><OutputField name="rule" feature="entityId"/>
    <OutputField name="trust" feature="confidence"/></Output>
    <RuleSet defaultScore="no" defaultConfidence="0.1"><RuleSelectionMethod criterion="firstHit"/>
    <CompoundRule><SimplePredicate field="x" operator="greaterThan" value="0"/>
    <SimpleRule id="r1" score="yes" confidence="0.9">
    <SimplePredicate field="s" operator="equal" value="a"/></SimpleRule></CompoundRule>
    <SimpleRule id="r2" score="no" confidence="0.6">
    <SimplePredicate field="s" operator="equal" value="b"/></SimpleRule></RuleSet></RuleSetModel>"""
    out = run(document(model, X + S + CLASS), x=[1.0, -1.0, 1.0, NAN], s=["a", "a", "b", "b"])
    assert out["y"] == ["yes", "no", "no", "no"]
    assert out["rule"] == ["r1", "", "r2", "r2"]
    same(out["trust"], [0.9, 0.1, 0.6, 0.6])


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        # x = 1: "yes" and "no" both have 0.5; the rule for "yes" fires first.
        # x = -1: the rule for "no" fires first; x = 3: 0.75 for "no".
        ("weightedSum", ["yes", "no", "no"]),
        ("weightedMax", ["yes", "no", "no"]),
    ],
)
def test_of_equal_weights_the_rule_that_fires_first_decides(
    criterion: str, expected: list[str]
) -> None:
    def rule(score: str, weight: float, operator: str, value: float) -> str:
        return (
            f'<SimpleRule score="{score}" weight="{weight}">'
            f'<SimplePredicate field="x" operator="{operator}" value="{value}"/></SimpleRule>'
        )

    rules = (
        rule("no", 0.5, "lessThan", 0), rule("yes", 0.5, "lessThan", 2),
        rule("no", 0.5, "greaterThan", 0), rule("no", 0.25, "greaterThan", 2),
    )  # fmt: skip
    model = f"""<RuleSetModel functionName="classification">{schema("x")}<RuleSet>
    <RuleSelectionMethod criterion="{criterion}"/>{"".join(rules)}</RuleSet></RuleSetModel>"""
    assert run(document(model, X + CLASS), x=[1.0, -1.0, 3.0])["y"] == expected


def test_weights_without_a_sum_are_refused() -> None:
    segment = f"<Segment weight='0'><True/>{stump(1, 2)}</Segment>"
    model = f"""<MiningModel functionName="regression">{schema("x")}
    <Segmentation multipleModelMethod="weightedAverage">{segment}</Segmentation></MiningModel>"""
    with pytest.raises(ImportRefused, match="no positive sum"):
        sx.from_pmml(document(model))


def test_targets_rescale_and_round() -> None:
    model = f"""<RegressionModel functionName="regression">{schema("x")}
    <Targets><Target field="y" min="-1" max="1.5" rescaleFactor="2" rescaleConstant="0.2"
    castInteger="round"/></Targets><RegressionTable intercept="0">
    <NumericPredictor name="x" coefficient="1"/></RegressionTable></RegressionModel>"""
    same(run(document(model), x=[-5.0, 0.3, 9.0, NAN])["y"], [-2.0, 1.0, 3.0, NAN])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ('missingValueReplacement="3"', [1.0, 3.0, 9.0]),
        ('outliers="asExtremeValues" lowValue="2" highValue="4"', [2.0, NAN, 4.0]),
        ('outliers="asMissingValues" lowValue="2" highValue="4"', [NAN, NAN, NAN]),
        (
            'outliers="asMissingValues" lowValue="0" highValue="4" missingValueReplacement="7"',
            [1.0, 7.0, 7.0],
        ),
    ],
)
def test_treatments_of_numbers(settings: str, expected: list[float]) -> None:
    model = f"""<RegressionModel functionName="regression"><MiningSchema>
    <MiningField name="x" {settings}/><MiningField name="y" usageType="target"/></MiningSchema>
    <RegressionTable intercept="0"><NumericPredictor name="x" coefficient="1"/></RegressionTable>
    </RegressionModel>"""
    same(run(document(model), x=[1.0, NAN, 9.0])["y"], expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", [1.0, NAN, NAN]),
        ('invalidValueTreatment="asIs"', [1.0, NAN, NAN]),
        ('invalidValueTreatment="asMissing" missingValueReplacement="7"', [1.0, 7.0, 7.0]),
        ('invalidValueTreatment="asValue" invalidValueReplacement="4"', [1.0, 4.0, NAN]),
    ],
)
def test_fractions_are_no_integers(settings: str, expected: list[float]) -> None:
    model = f"""<RegressionModel functionName="regression"><MiningSchema>
    <MiningField name="i" {settings}/><MiningField name="y" usageType="target"/></MiningSchema>
    <RegressionTable intercept="0"><NumericPredictor name="i" coefficient="1"/></RegressionTable>
    </RegressionModel>"""
    field = '<DataField name="i" optype="continuous" dataType="integer"/>'
    same(run(document(model, field + Y), i=[1.0, 1.5, NAN])["y"], expected)


def test_invalid_values_that_are_kept_are_no_outliers() -> None:
    model = """<RegressionModel functionName="regression"><MiningSchema>
    <MiningField name="x" invalidValueTreatment="asIs" outliers="asExtremeValues" lowValue="1"
    highValue="3"/><MiningField name="y" usageType="target"/></MiningSchema>
    <RegressionTable intercept="0"><NumericPredictor name="x" coefficient="1"/></RegressionTable>
    </RegressionModel>"""
    field = """<DataField name="x" optype="continuous" dataType="double">
    <Interval closure="closedClosed" leftMargin="0" rightMargin="5"/></DataField>"""
    same(run(document(model, field + Y), x=[-1.0, 0.5, 2.0, 4.0, 9.0])["y"], [-1, 1, 2, 3, 9.0])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", [5.0, NAN, 0.0]),
        ('invalidValueTreatment="asIs"', [5.0, 0.0, 0.0]),
        ('invalidValueTreatment="asMissing"', [5.0, 0.0, 0.0]),
        ('invalidValueTreatment="asMissing" missingValueReplacement="b"', [5.0, 5.0, 5.0]),
        ('invalidValueTreatment="asValue" invalidValueReplacement="b"', [5.0, 5.0, 0.0]),
        ('missingValueTreatment="returnInvalid"', [5.0, NAN, NAN]),
    ],
)
def test_treatments_of_text(settings: str, expected: list[float]) -> None:
    model = f"""<RegressionModel functionName="regression"><MiningSchema>
    <MiningField name="s" {settings}/><MiningField name="y" usageType="target"/></MiningSchema>
    <RegressionTable intercept="0"><CategoricalPredictor name="s" value="b" coefficient="5"/>
    </RegressionTable></RegressionModel>"""
    same(run(document(model, S + Y), s=["b", "zebra", ""])["y"], expected)


def verified(expected: float) -> bytes:
    return document(
        f"""<RegressionModel functionName="regression">{schema("x")}
        <RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/>
        </RegressionTable><ModelVerification><VerificationFields>
        <VerificationField field="x" column="a"/><VerificationField field="y" column="b"/>
        </VerificationFields><InlineTable><row><a>3</a><b>{expected}</b></row></InlineTable>
        </ModelVerification></RegressionModel>"""
    )


def test_a_document_tests_itself() -> None:
    assert sx.from_pmml(verified(7.0)).outputs
    with pytest.raises(ImportDiffers, match="own test"):
        sx.from_pmml(verified(7.1))


def test_unknown_elements_and_extensions_are_refused() -> None:
    model = f"""<RegressionModel functionName="regression" x-oracle="1">{schema("x")}
    <Oracle/><RegressionTable intercept="1"/></RegressionModel>"""
    with pytest.raises(ImportRefused) as error:
        sx.from_pmml(document(model))
    assert {row[1] for row in error.value.where} == {"Oracle", "RegressionModel"}


def test_a_model_without_fields_has_an_input_for_its_rows() -> None:
    model = f"""<RegressionModel functionName="regression">{schema()}
    <RegressionTable intercept="4"/></RegressionModel>"""
    same(run(document(model, Y), rows=[0.0, NAN])["y"], [4.0, 4.0])


def test_cox_regression() -> None:
    model = f"""<GeneralRegressionModel functionName="regression" modelType="CoxRegression"
    endTimeVariable="z">{schema("x", "z")}<ParameterList>
    <Parameter name="p" referencePoint="0.3"/></ParameterList><CovariateList>
    <Predictor name="x"/></CovariateList><PPMatrix>
    <PPCell value="1" predictorName="x" parameterName="p"/></PPMatrix>
    <ParamMatrix><PCell parameterName="p" beta="0.7"/></ParamMatrix>
    <BaseCumHazardTables maxTime="6"><BaselineCell time="1" cumHazard="0.1"/>
    <BaselineCell time="3" cumHazard="0.25"/></BaseCumHazardTables></GeneralRegressionModel>"""
    times = [0.5, 1.0, 4.0, 7.0]
    out = run(document(model, X + Z + Y), x=XS, z=times)
    hazards = [0.0, 0.1, 0.25, NAN]
    expected = [h * math.exp(0.7 * (x - 0.3)) for h, x in zip(hazards, XS, strict=True)]
    same(out["y"], expected)


@pytest.mark.parametrize("seed", range(40))
def test_broken_documents_end_in_an_error_of_ours(seed: int) -> None:
    """A document with a part removed or garbled is imported or refused, and never crashes."""
    draw = np.random.default_rng(seed)
    text = verified(7.0).decode()
    for _ in range(int(draw.integers(1, 4))):
        parts = re.findall(r'\w+="[^"]*"|<\w+[^>]*/>|\w+', text)
        part = parts[int(draw.integers(len(parts)))]
        text = text.replace(part, ("", "zebra", part[:-2] + '-"')[int(draw.integers(3))], 1)
    with contextlib.suppress(sx.SardonyxError):
        sx.from_pmml(text.encode())

"""PMML documents from the specification's rarer corners, held against JPMML.

    python -m tests.sweeps.pmml_documents [part of a name ...]

Each document is small and varies one thing; the rows have missing, invalid and extreme values.
Prints the documents that are not right, and totals. JPMML refuses some documents as well.
"""

from __future__ import annotations

import itertools
import sys

from tests.sweeps.pmml_judges import Documents, judge
from tests.sweeps.pmml_text import CLASS, NUMBER, PROBABILITIES, SCHEMA, TARGET, line, pmml

# -- fields ------------------------------------------------------------------------------


def treatments() -> Documents:
    invalid = ("", "returnInvalid", "asIs", "asMissing", "asValue")
    missing = ("", ' missingValueReplacement="7"', ' missingValueTreatment="returnInvalid"')
    outliers = (
        "",
        ' outliers="asMissingValues" lowValue="-1" highValue="3"',
        ' outliers="asExtremeValues" lowValue="-1" highValue="3"',
    )
    inner = {
        "closedClosed": '<Interval closure="closedClosed" leftMargin="-2" rightMargin="4"/>',
        "openOpen": '<Interval closure="openOpen" leftMargin="-2" rightMargin="4"/>',
        "openClosed": '<Interval closure="openClosed" rightMargin="4"/>',
        "closedOpen": '<Interval closure="closedOpen" leftMargin="-2"/>',
        "values": '<Value value="-9" property="missing"/><Value value="9" property="invalid"/>',
        "none": "",
    }
    for kind, how, gone, far in itertools.product(inner, invalid, missing, outliers):
        if kind not in ("closedClosed", "values") and (gone or far):
            continue
        settings = f' invalidValueTreatment="{how}"' if how else ""
        settings += ' invalidValueReplacement="2"' if how == "asValue" else ""
        data = (
            f'<DataField name="x" optype="continuous" dataType="double">{inner[kind]}</DataField>'
        )
        field = f'<MiningField name="x"{settings}{gone}{far}/>{TARGET}'
        yield f"number {kind} {how}{gone}{far}", pmml(line("x", field), fields=data)
    for how, gone in itertools.product(invalid, ("", ' missingValueReplacement="b"')):
        settings = f' invalidValueTreatment="{how}"' if how else ""
        settings += ' invalidValueReplacement="c"' if how == "asValue" else ""
        table = "".join(
            f'<CategoricalPredictor name="s" value="{v}" coefficient="{k}"/>'
            for k, v in enumerate("abc", 1)
        )
        yield (
            f"text {how}{gone}",
            pmml(
                f'<RegressionModel functionName="regression"><MiningSchema><MiningField name="s"'
                f'{settings}{gone}/>{TARGET}</MiningSchema><RegressionTable intercept="1">{table}'
                "</RegressionTable></RegressionModel>"
            ),
        )
        settings = settings.replace('"c"', '"3"')
        gone = gone.replace('"b"', '"5"')
        field = f'<MiningField name="i"{settings}{gone}/>{TARGET}'
        yield f"integer {how}{gone}", pmml(line("i", field))


def transformations() -> Documents:
    bins = {
        closure: "".join(
            f'<DiscretizeBin binValue="{k}"><Interval closure="{closure}" leftMargin="{a}" '
            f'rightMargin="{a + 1}"/></DiscretizeBin>'
            for k, a in enumerate((-1, 0, 1))
        )
        for closure in ("openOpen", "openClosed", "closedOpen", "closedClosed")
    }
    points = "".join(
        f'<LinearNorm orig="{a}" norm="{b}"/>' for a, b in ((-1, 0), (0, 2), (1, 2.5), (3, -1))
    )
    table = "<InlineTable>" + "".join(
        f"<row><a>{a}</a><b>{b}</b><out>{k}</out></row>"
        for k, (a, b) in enumerate((("a", 0), ("a", 1), ("b", 2)))
    ) + "</InlineTable>"  # fmt: skip
    pairs = '<FieldColumnPair field="s" column="a"/><FieldColumnPair field="i" column="b"/>' + table
    expressions = {
        **{f"bins {c}{d}{m}": f'<Discretize field="x"{d}{m}>{b}</Discretize>'
           for (c, b), d, m in itertools.product(
               bins.items(), ("", ' defaultValue="8"'), ("", ' mapMissingTo="9"'))},
        **{f"norm {o}{m}": f'<NormContinuous field="x" outliers="{o}"{m}>{points}</NormContinuous>'
           for o, m in itertools.product(
               ("asIs", "asMissingValues", "asExtremeValues"), ("", ' mapMissingTo="9"'))},
        **{f"discrete{m}": f'<NormDiscrete field="s" value="b"{m}/>'
           for m in ("", ' mapMissingTo="0.5"')},
        **{f"map {d}{m}": f'<MapValues outputColumn="out"{d}{m}>{pairs}</MapValues>'
           for d, m in itertools.product(("", ' defaultValue="8"'), ("", ' mapMissingTo="9"'))},
        "reference": '<FieldRef field="x" mapMissingTo="4"/>',
        "constant missing": '<Constant missing="true"/>',
    }  # fmt: skip
    unary = "abs exp ln log10 sqrt floor ceil round sin cos tan asin acos atan sinh cosh tanh " \
            "expm1 ln1p rint isMissing isNotMissing isValid isNotValid"  # fmt: skip
    binary = "+ - * / min max sum avg median product pow modulo atan2 hypot threshold " \
             "equal notEqual lessThan greaterOrEqual"  # fmt: skip
    for name in unary.split():
        expressions[f"function {name}"] = f'<Apply function="{name}"><FieldRef field="x"/></Apply>'
    for name, at in itertools.product(
        binary.split(), ("", ' mapMissingTo="3"', ' defaultValue="6"')
    ):
        expressions[f"function {name}{at}"] = (
            f'<Apply function="{name}"{at}><FieldRef field="x"/><FieldRef field="z"/></Apply>'
        )
    comparison = '<Apply function="greaterThan"><FieldRef field="x"/><Constant>0</Constant></Apply>'
    other = '<Apply function="lessThan"><FieldRef field="z"/><Constant>1</Constant></Apply>'
    expressions["if"] = (
        f'<Apply function="if">{comparison}<FieldRef field="z"/><Constant>5</Constant></Apply>'
    )
    expressions["if without else"] = (
        f'<Apply function="if">{comparison}<FieldRef field="z"/></Apply>'
    )
    for name in ("and", "or"):
        expressions[f"if {name}"] = (
            f'<Apply function="if"><Apply function="{name}">{comparison}{other}</Apply>'
            "<Constant>1</Constant><Constant>0</Constant></Apply>"
        )
    expressions["isIn"] = (
        '<Apply function="if"><Apply function="isIn"><FieldRef field="s"/><Constant>a</Constant>'
        "<Constant>c</Constant></Apply><Constant>1</Constant><Constant>0</Constant></Apply>"
    )
    for name, expression in expressions.items():
        for kind in ("double", "integer"):
            if kind == "integer" and not name.startswith(("bins", "map", "function round", "if")):
                continue
            derived = (
                f'<LocalTransformations><DerivedField name="d" optype="continuous" '
                f'dataType="{kind}">{expression}</DerivedField></LocalTransformations>'
            )
            yield f"derived {kind} {name}", pmml(line("d", SCHEMA, derived))


# -- trees -------------------------------------------------------------------------------


def distribution(*counts: int) -> str:
    return "".join(
        f'<ScoreDistribution value="{c}" recordCount="{n}"/>'
        for c, n in zip(("low", "mid", "high"), counts)
    )


def node(number: int, predicate: str, counts: tuple[int, ...], inner: str = "", more: str = ""):
    label = ("low", "mid", "high")[max(range(3), key=lambda k: counts[k])]
    return (
        f'<Node id="n{number}" score="{label}" recordCount="{sum(counts)}"{more}>{predicate}'
        f"{distribution(*counts)}{inner}</Node>"
    )


def simple(field: str, operator: str, value: object) -> str:
    return f'<SimplePredicate field="{field}" operator="{operator}" value="{value}"/>'


PREDICATES = {
    "simple": (simple("x", "lessThan", 0.5), simple("x", "greaterOrEqual", 0.5)),
    "set": (
        '<SimpleSetPredicate field="s" booleanOperator="isIn"><Array type="string" n="2">a "b"'
        "</Array></SimpleSetPredicate>",
        '<SimpleSetPredicate field="s" booleanOperator="isNotIn"><Array type="string">a b</Array>'
        "</SimpleSetPredicate>",
    ),
    "missing": (
        '<SimplePredicate field="x" operator="isMissing"/>',
        '<SimplePredicate field="x" operator="isNotMissing"/>',
    ),
    **{
        kind: (
            f'<CompoundPredicate booleanOperator="{kind}">{simple("x", "lessOrEqual", 0.5)}'
            f"{simple('z', 'greaterThan', 0)}</CompoundPredicate>",
            f'<CompoundPredicate booleanOperator="{kind}">{simple("x", "greaterThan", 0.5)}'
            f"{simple('z', 'lessOrEqual', 0)}</CompoundPredicate>",
        )
        for kind in ("and", "or", "xor", "surrogate")
    },
}


def trees() -> Documents:
    strategies = ("none", "lastPrediction", "nullPrediction", "defaultChild",
                  "weightedConfidence", "aggregateNodes")  # fmt: skip
    outputs = (
        f'<Output>{PROBABILITIES}<OutputField name="node" feature="entityId" optype="categorical" '
        'dataType="string"/></Output>'
    )
    for strategy, (kind, (yes, no)), last, penalty in itertools.product(
        strategies, PREDICATES.items(), ("returnNullPrediction", "returnLastPrediction"),
        ("", ' missingValuePenalty="0.8"'),
    ):  # fmt: skip
        if penalty and (strategy not in ("defaultChild", "none") or kind != "simple"):
            continue
        inner = node(3, simple("z", "lessThan", 0), (5, 2, 3)) + node(
            4, simple("z", "greaterOrEqual", 0), (1, 6, 3)
        )
        more = ' defaultChild="n4"' if strategy == "defaultChild" else ""
        root = node(1, yes, (6, 8, 6), inner, more) + node(2, no, (2, 3, 5))
        more = ' defaultChild="n2"' if strategy == "defaultChild" else ""
        yield (
            f"tree {strategy} {kind} {last}{penalty}",
            pmml(
                f'<TreeModel functionName="classification" missingValueStrategy="{strategy}" '
                f'noTrueChildStrategy="{last}"{penalty}>{SCHEMA}{outputs}'
                f"{node(0, '<True/>', (8, 11, 11), root, more)}</TreeModel>",
                CLASS,
            ),
        )


# -- ensembles -----------------------------------------------------------------------------


def leaf_tree(low: float, high: float, field: str, at: float, function: str = "regression") -> str:
    return (
        f'<TreeModel functionName="{function}" missingValueStrategy="nullPrediction">{SCHEMA}'
        f'<Node><True/><Node score="{low}">{simple(field, "lessThan", at)}</Node>'
        f'<Node score="{high}">{simple(field, "greaterOrEqual", at)}</Node></Node></TreeModel>'
    )


def class_tree(first: tuple[int, ...], second: tuple[int, ...], field: str, at: float) -> str:
    return (
        f'<TreeModel functionName="classification" missingValueStrategy="nullPrediction">{SCHEMA}'
        f"<Node>"
        f"<True/>{node(1, simple(field, 'lessThan', at), first)}"
        f"{node(2, simple(field, 'greaterOrEqual', at), second)}</Node></TreeModel>"
    )


def ensembles() -> Documents:
    numbers = ("average", "weightedAverage", "median", "weightedMedian", "sum",
               "weightedSum", "max", "selectFirst")  # fmt: skip
    classes = ("majorityVote", "weightedMajorityVote", "average", "weightedAverage", "median",
               "max", "selectFirst")  # fmt: skip
    treatments = (
        "",
        ' missingPredictionTreatment="returnMissing"',
        ' missingPredictionTreatment="skipSegment"',
        ' missingPredictionTreatment="skipSegment" missingThreshold="0.4"',
        ' missingPredictionTreatment="continue"',
    )
    weights = (0.5, 2, 1)
    for method, treatment in itertools.product(numbers, treatments):
        models = (leaf_tree(1, 2, "x", 0.5), leaf_tree(-3, 5, "z", 0), leaf_tree(7, 4, "x", 1.5))
        tests = ("<True/>", simple("s", "notEqual", "b"), simple("z", "lessThan", 1))
        segments = "".join(
            f'<Segment id="{k}" weight="{w}">{t}{m}</Segment>'
            for k, (w, t, m) in enumerate(zip(weights, tests, models))
        )
        yield (
            f"ensemble of numbers {method}{treatment}",
            pmml(
                f'<MiningModel functionName="regression">{SCHEMA}<Segmentation '
                f'multipleModelMethod="{method}"{treatment}>{segments}</Segmentation></MiningModel>'
            ),
        )
    for method, treatment in itertools.product(classes, treatments):
        models = (
            class_tree((5, 2, 3), (1, 6, 3), "x", 0.5),
            class_tree((1, 1, 8), (4, 4, 2), "z", 0),
            class_tree((2, 5, 3), (6, 1, 3), "x", 1.5),
        )
        segments = "".join(
            f'<Segment id="{k}" weight="{w}">{t}{m}</Segment>'
            for k, (w, t, m) in enumerate(zip(weights, tests, models))
        )
        yield (
            f"ensemble of classes {method}{treatment}",
            pmml(
                f'<MiningModel functionName="classification">{SCHEMA}'
                f"<Output>{PROBABILITIES}</Output>"
                f'<Segmentation multipleModelMethod="{method}"{treatment}>{segments}</Segmentation>'
                "</MiningModel>",
                CLASS,
            ),
        )


# -- equations -----------------------------------------------------------------------------


def regressions() -> Documents:
    for method in ("none", "softmax", "logit", "probit", "cloglog", "exp", "loglog", "cauchit"):
        for function, count in (("regression", 1), ("classification", 2), ("classification", 3)):
            tables = "".join(
                f'<RegressionTable intercept="{0.3 * k}" targetCategory="{c}">'
                f'<NumericPredictor name="x" coefficient="{0.5 - k}"/>'
                f'<NumericPredictor name="z" exponent="2" coefficient="0.2"/>'
                f'<CategoricalPredictor name="s" value="a" coefficient="0.4"/>'
                f'<PredictorTerm coefficient="-0.1"><FieldRef field="x"/><FieldRef field="z"/>'
                "</PredictorTerm></RegressionTable>"
                for k, c in zip(range(count), ("low", "mid", "high"))
            )
            if count == 1:
                tables = tables.replace(' targetCategory="low"', "")
            target = CLASS.replace('<Value value="high"/>', "") if count == 2 else CLASS
            names = ("low", "mid", "high")[:count]
            chances = "".join(
                f'<OutputField name="p_{c}" optype="continuous" dataType="double" '
                f'feature="probability" value="{c}"/>' for c in names
            )  # fmt: skip
            output = f"<Output>{chances}</Output>" if count > 1 else ""
            yield (
                f"regression {method} {function} {count}",
                pmml(
                    f'<RegressionModel functionName="{function}" normalizationMethod="{method}">'
                    f"{SCHEMA}{output}{tables}</RegressionModel>",
                    target if count > 1 else NUMBER,
                ),
            )


def general_regressions() -> Documents:
    head = (
        '<ParameterList><Parameter name="p0" label="one"/><Parameter name="p1"/>'
        '<Parameter name="p2"/></ParameterList><FactorList><Predictor name="s"/></FactorList>'
        '<CovariateList><Predictor name="x"/></CovariateList>'
        '<PPMatrix><PPCell value="1" predictorName="x" parameterName="p1"/>'
        '<PPCell value="b" predictorName="s" parameterName="p2"/></PPMatrix>'
    )
    single = "".join(
        f'<PCell parameterName="p{k}" beta="{b}"/>' for k, b in enumerate((0.3, -0.4, 0.2))
    )
    links = ("cloglog", "identity", "log", "logc", "logit", "loglog", "negbin", "oddspower",
             "power", "probit", "inverse", "sqrt", "cauchit")  # fmt: skip
    for link, kind, offset in itertools.product(
        links, ("generalizedLinear", "generalLinear", "regression"), ("", ' offsetValue="0.5"')
    ):
        extra = (
            ' linkParameter="2" distParameter="2"'
            if link in ("negbin", "power", "oddspower")
            else ""
        )
        if kind != "generalizedLinear" and link != "identity":
            continue
        yield (
            f"general {kind} {link}{offset}",
            pmml(
                f'<GeneralRegressionModel functionName="regression" modelType="{kind}" '
                f'linkFunction="{link}"{extra}{offset}>{SCHEMA}{head}<ParamMatrix>{single}'
                "</ParamMatrix></GeneralRegressionModel>"
            ),
        )
    several = "".join(
        f'<PCell targetCategory="{c}" parameterName="p{k}" beta="{b + (1.1 - 0.15 * k) * j}"/>'
        for j, c in enumerate(("low", "mid"))
        for k, b in enumerate((0.3, -0.4, 0.2))
    )
    ordinal = "".join(
        f'<PCell targetCategory="{c}" parameterName="p0" beta="{b}"/>'
        for c, b in (("low", -0.5), ("mid", 0.7))
    ) + "".join(f'<PCell parameterName="p{k}" beta="{b}"/>' for k, b in ((1, -0.4), (2, 0.2)))
    ordered = CLASS.replace("categorical", "ordinal")
    yield "general multinomial", pmml(
        f'<GeneralRegressionModel functionName="classification" modelType="multinomialLogistic" '
        f'targetReferenceCategory="high">{SCHEMA}<Output>{PROBABILITIES}</Output>{head}'
        f"<ParamMatrix>{several}</ParamMatrix></GeneralRegressionModel>", CLASS)  # fmt: skip
    for link in ("logit", "probit", "cloglog", "loglog", "cauchit"):
        yield f"general ordinal {link}", pmml(
            f'<GeneralRegressionModel functionName="classification" modelType="ordinalMultinomial" '
            f'cumulativeLink="{link}">{SCHEMA}<Output>{PROBABILITIES}</Output>{head}'
            f"<ParamMatrix>{ordinal}</ParamMatrix></GeneralRegressionModel>", ordered)  # fmt: skip


# -- distances -----------------------------------------------------------------------------


def clusters() -> Documents:
    measures = ("euclidean", "squaredEuclidean", "chebychev", "cityBlock",
                'minkowski p-parameter="3"')  # fmt: skip
    compare = ("absDiff", "gaussSim", "delta", "equal")
    output = (
        '<Output><OutputField name="id" feature="entityId" optype="categorical" dataType="string"/>'
        '<OutputField name="a1" feature="affinity" value="1" '
        'optype="continuous" dataType="double"/>'
        '<OutputField name="a" feature="affinity" optype="continuous" dataType="double"/>'
        "</Output>"
    )
    active = '<MiningSchema><MiningField name="x"/><MiningField name="z"/></MiningSchema>'
    centers = "".join(
        f'<Cluster id="{k + 1}" name="c{k}"><Array type="real" n="2">{a} {b}</Array></Cluster>'
        for k, (a, b) in enumerate(((0, 0), (1.5, -1), (-2, 3)))
    )
    for measure, how, weight, holes in itertools.product(
        measures, compare, ("", ' fieldWeight="2"'),
        ("", '<MissingValueWeights><Array type="real" n="2">1 2</Array></MissingValueWeights>'),
    ):  # fmt: skip
        scale = ' similarityScale="1.5"' if how == "gaussSim" else ""
        yield f"clusters {measure} {how}{weight}{bool(holes)}", pmml(
            '<ClusteringModel functionName="clustering" modelClass="centerBased" '
            f'numberOfClusters="3">{active}{output}<ComparisonMeasure kind="distance" '
            f'compareFunction="{how}"><{measure}/></ComparisonMeasure>'
            f'<ClusteringField field="x"{weight}{scale}/><ClusteringField field="z"{scale}/>{holes}'
            f"{centers}</ClusteringModel>", "",
        )  # fmt: skip


# -- the others -----------------------------------------------------------------------------


def targets() -> Documents:
    settings = ("", ' castInteger="round"', ' castInteger="ceiling"', ' castInteger="floor"')
    for cast, bound, scale in itertools.product(
        settings, ("", ' min="-1"', ' max="3"', ' min="-1" max="3"'),
        ("", ' rescaleFactor="2"', ' rescaleConstant="0.5"', ' rescaleFactor="-1" rescaleConstant="2"'),  # noqa: E501
    ):  # fmt: skip
        model = line("x", SCHEMA, f'<Targets><Target field="y"{cast}{bound}{scale}/></Targets>')
        yield f"target{cast}{bound}{scale}", pmml(model)


def scorecards() -> Documents:
    for algorithm, baseline, method in itertools.product(
        ("pointsAbove", "pointsBelow"),
        ("min", "max", "mean", "neutral", "other"),
        ("true", "false"),
    ):
        attributes = "".join(
            f'<Attribute partialScore="{points}"{reason}>{predicate}</Attribute>'
            for points, reason, predicate in (
                (10, ' reasonCode="RX1"', simple("x", "lessThan", 0)),
                (25, "", simple("x", "greaterOrEqual", 0)),
                (5, ' reasonCode="RX9"', '<SimplePredicate field="x" operator="isMissing"/>'),
            )
        )
        second = "".join(
            f'<Attribute partialScore="{points}" reasonCode="{reason}">{simple("s", "equal", v)}'
            "</Attribute>"
            for points, reason, v in ((12, "RA", "a"), (20, "RB", "b"), (3, "RC", "c"))
        )
        output = '<Output><OutputField name="score" feature="predictedValue" optype="continuous" ' \
                 'dataType="double"/>' + "".join(
            f'<OutputField name="r{k}" feature="reasonCode" rank="{k}" optype="categorical" '
            'dataType="string"/>' for k in (1, 2)) + "</Output>"  # fmt: skip
        yield (
            f"scorecard {algorithm} {baseline} {method}",
            pmml(
                f'<Scorecard functionName="regression" initialScore="5" useReasonCodes="{method}" '
                f'reasonCodeAlgorithm="{algorithm}" baselineMethod="{baseline}">{SCHEMA}'
                f"{output if method == 'true' else ''}<Characteristics>"
                f'<Characteristic name="one" reasonCode="RX" baselineScore="18">{attributes}'
                f'</Characteristic><Characteristic name="two" baselineScore="9">{second}'
                "</Characteristic></Characteristics></Scorecard>"
            ),
        )


def rules() -> Documents:
    for criterion, score_, confidence in itertools.product(
        ("firstHit", "weightedSum", "weightedMax"), ("", ' defaultScore="mid" defaultConfidence="0.3"'),  # noqa: E501
        ("", ' confidence="0.7"'),
    ):  # fmt: skip
        listed = (
            f'<SimpleRule id="r1" score="low" weight="0.5"{confidence}>{simple("x", "lessThan", 0)}'
            f'</SimpleRule><SimpleRule id="r2" score="high" weight="0.9">'
            f"{simple('z', 'greaterThan', 0)}</SimpleRule>"
            f'<CompoundRule>{simple("s", "equal", "a")}<SimpleRule id="r3" '
            f'score="mid" weight="0.9">'
            f"{simple('x', 'greaterThan', -1)}</SimpleRule></CompoundRule>"
            f'<SimpleRule id="r4" score="low" weight="0.4">{simple("x", "greaterThan", 1)}'
            "</SimpleRule>"
        )
        output = (
            '<Output><OutputField name="rule" feature="entityId" optype="categorical" '
            'dataType="string"/><OutputField name="c" feature="confidence" value="low" '
            'optype="continuous" dataType="double"/></Output>'
        )
        yield (
            f"rules {criterion}{score_}{confidence}",
            pmml(
                f'<RuleSetModel functionName="classification">{SCHEMA}{output}<RuleSet{score_}>'
                f'<RuleSelectionMethod criterion="{criterion}"/>{listed}</RuleSet></RuleSetModel>',
                CLASS,
            ),
        )


def networks() -> Documents:
    activations = ("threshold", "logistic", "tanh", "identity", "exponential", "reciprocal",
                   "square", "Gauss", "sine", "cosine", "Elliott", "arctan",
                   "rectifier")  # fmt: skip
    for activation, normal in itertools.product(activations, ("none", "softmax", "simplemax")):
        hidden = "".join(
            f'<Neuron id="h{k}" bias="{0.1 * k}"><Con from="a" weight="{0.5 + k}"/>'
            f'<Con from="b" weight="{-0.3 - k}"/></Neuron>' for k in range(2)
        )  # fmt: skip
        last = "".join(
            f'<Neuron id="o{k}" bias="{0.2 - 0.1 * k}"><Con from="h0" weight="{0.4 * k + 0.1}"/>'
            f'<Con from="h1" weight="{0.3 - k}"/></Neuron>' for k in range(3)
        )  # fmt: skip
        outputs = "".join(
            f'<NeuralOutput outputNeuron="o{k}"><DerivedField optype="categorical" '
            f'dataType="string"><NormDiscrete field="y" value="{c}"/></DerivedField></NeuralOutput>'
            for k, c in enumerate(("low", "mid", "high"))
        )
        inputs = (
            '<NeuralInputs><NeuralInput id="a"><DerivedField optype="continuous" dataType="double">'
            '<NormContinuous field="x" outliers="asExtremeValues"><LinearNorm orig="-2" norm="-1"/>'
            '<LinearNorm orig="2" norm="1"/></NormContinuous></DerivedField></NeuralInput>'
            '<NeuralInput id="b"><DerivedField optype="continuous" dataType="double">'
            '<NormDiscrete field="s" value="b"/></DerivedField></NeuralInput></NeuralInputs>'
        )
        yield f"network {activation} {normal}", pmml(
            f'<NeuralNetwork functionName="classification" activationFunction="{activation}" '
            f'threshold="0.2">{SCHEMA}<Output>{PROBABILITIES}</Output>{inputs}'
            f'<NeuralLayer>{hidden}</NeuralLayer><NeuralLayer activationFunction="identity" '
            f'normalizationMethod="{normal}">{last}</NeuralLayer><NeuralOutputs>{outputs}'
            "</NeuralOutputs></NeuralNetwork>", CLASS,
        )  # fmt: skip


def all_documents() -> Documents:
    for family in (treatments, transformations, trees, ensembles, regressions, general_regressions,
                   clusters, targets, scorecards, rules, networks):  # fmt: skip
        yield from family()


if __name__ == "__main__":
    sys.exit(1 if judge(all_documents)["wrong"] else 0)

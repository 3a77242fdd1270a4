"""PMML documents in the styles of KNIME, RapidMiner, R, SPSS and SAS, held against JPMML.

    python -m tests.sweeps.pmml_vendors [part of a name ...]

Model elements that `tests.sweeps.pmml_documents` leaves out, older versions, and forms of XML.
Where JPMML refuses a document or differs, PMML4S (pypmml) is asked as well.
"""

from __future__ import annotations

import itertools
import re
import sys

from tests.sweeps.pmml_documents import distribution, node, simple
from tests.sweeps.pmml_equations import (
    NAMES,
    Documents,
    cox,
    general_regressions,
    in_version,
    networks,
    number_output,
    output,
    regressions,
    text_output,
)
from tests.sweeps.pmml_judges import judge
from tests.sweeps.pmml_text import CLASS, NUMBER, PROBABILITIES, SCHEMA, line, pmml

# -- naive Bayes ---------------------------------------------------------------------------


def counts(values: tuple[float, ...], names: tuple[str, ...] = NAMES) -> str:
    cells = "".join(
        f'<TargetValueCount value="{c}" count="{n}"/>' for c, n in zip(names, values, strict=False)
    )
    return f"<TargetValueCounts>{cells}</TargetValueCounts>"


def bayes() -> Documents:
    text = '<BayesInput fieldName="s">' + "".join(
        f'<PairCounts value="{v}">{counts(row)}</PairCounts>'
        for v, row in (("a", (3, 0, 5)), ("b", (1, 4, 2)), ("c", (6, 2, 0)))
    ) + "</BayesInput>"  # fmt: skip
    bins = (
        '<BayesInput fieldName="i"><DerivedField optype="categorical" dataType="string">'
        '<Discretize field="i"><DiscretizeBin binValue="few"><Interval closure="openClosed" '
        'rightMargin="0.5"/></DiscretizeBin><DiscretizeBin binValue="many"><Interval '
        'closure="openOpen" leftMargin="0.5"/></DiscretizeBin></Discretize></DerivedField>'
        f'<PairCounts value="few">{counts((2, 3, 4))}</PairCounts>'
        f'<PairCounts value="many">{counts((7, 3, 1))}</PairCounts></BayesInput>'
    )

    def stats(field: str, kind: str) -> str:
        rows = {
            "Gaussian": '<GaussianDistribution mean="{m}" variance="{v}"/>',
            "Poisson": '<PoissonDistribution mean="{v}"/>',
        }
        cells = "".join(
            f'<TargetValueStat value="{c}">{rows[kind].format(m=m, v=v)}</TargetValueStat>'
            for c, m, v in zip(NAMES, (-1.0, 0.5, 2.0), (0.5, 1.5, 3.0), strict=True)
        )
        return f'<BayesInput fieldName="{field}"><TargetValueStats>{cells}</TargetValueStats></BayesInput>'  # noqa: E501

    inputs = {
        "text": text,
        "bins": bins,
        "normal": stats("x", "Gaussian"),
        "Poisson": stats("i", "Poisson"),
        "all": text + bins + stats("x", "Gaussian"),
    }
    for (name, body), least, prior in itertools.product(
        inputs.items(), ("0", "0.001", "0.3"), ((10, 6, 7), (0, 6, 7))
    ):
        yield f"bayes {name} {least} {prior[0]}", pmml(
            f'<NaiveBayesModel functionName="classification" threshold="{least}">{SCHEMA}'
            f"<Output>{PROBABILITIES}</Output><BayesInputs>{body}</BayesInputs>"
            f'<BayesOutput fieldName="y">{counts(prior)}</BayesOutput></NaiveBayesModel>', CLASS,
        )  # fmt: skip


# -- neighbours ----------------------------------------------------------------------------


def neighbors() -> Documents:
    rows = [(-1, 0, "a", "low", 1.5), (0.4, 1.2, "b", "mid", -2), (2, 2, "a", "high", 4),
            (1, -1, "c", "mid", 0.5), (-2, 2.5, "b", "low", 3), (3, 0, "a", "high", 8)]  # fmt: skip
    cells = "".join(
        f"<row><id>r{k}</id><X>{x}</X><Z>{z}</Z><S>{s}</S><c>{c}</c><n>{n}</n></row>"
        for k, (x, z, s, c, n) in enumerate(rows)
    )
    measures = ("euclidean", "squaredEuclidean", "chebychev", "cityBlock",
                'minkowski p-parameter="3"')  # fmt: skip
    for measure, kind, text, k, ident in itertools.product(
        measures, ("vote", "weighted vote", "mean", "median", "weighted mean"), (False, True),
        (1, 3, 4), (False, True),
    ):  # fmt: skip
        if (ident or k == 1) and measure != "euclidean":
            continue
        classes = "vote" in kind
        column = "c" if classes else "n"
        method = {
            "vote": 'categoricalScoringMethod="majorityVote"',
            "weighted vote": 'categoricalScoringMethod="weightedMajorityVote"',
            "mean": 'continuousScoringMethod="average"',
            "median": 'continuousScoringMethod="median"',
            "weighted mean": 'continuousScoringMethod="weightedAverage"',
        }[kind]
        fields = "".join(
            f'<InstanceField field="{f}" column="{c}"/>'
            for f, c in (("x", "X"), ("z", "Z"), ("s", "S"), ("y", column), ("id", "id"))
        )
        inputs = (
            '<KNNInput field="x" compareFunction="absDiff"/><KNNInput field="z" fieldWeight="2"/>'
        )
        inputs += '<KNNInput field="s" compareFunction="delta"/>' if text else ""
        many = "".join(
            text_output(f"e{r}", "entityId", rank=r) + number_output(f"a{r}", "affinity", rank=r)
            for r in range(1, k + 1)
        )
        more = ' instanceIdVariable="id"' if ident else ""
        function = "classification" if classes else "regression"
        yield f"neighbours {measure} {kind} {text} {k} {ident}", pmml(
            f'<NearestNeighborModel functionName="{function}" numberOfNeighbors="{k}" {method}'
            f"{more}>{SCHEMA}{output(many)}<TrainingInstances><InstanceFields>{fields}"
            f"</InstanceFields><InlineTable>{cells}</InlineTable></TrainingInstances>"
            f'<ComparisonMeasure kind="distance"><{measure}/></ComparisonMeasure><KNNInputs>'
            f"{inputs}</KNNInputs></NearestNeighborModel>", CLASS if classes else NUMBER,
        )  # fmt: skip


# -- support vectors -----------------------------------------------------------------------

VECTORS = [(0.5, -1, 1), (1, 2, 0), (-2, 0.3, 0), (0, 0, 1)]
KERNELS = {
    "linear": "<LinearKernelType/>",
    "poly": '<PolynomialKernelType gamma="0.5" coef0="1" degree="2"/>',
    "rbf": '<RadialBasisKernelType gamma="0.3"/>',
    "sigmoid": '<SigmoidKernelType gamma="0.2" coef0="0.1"/>',
}


def machine(alphas: tuple[float, ...], shift: float, settings: str) -> str:
    support = "".join(f'<SupportVector vectorId="v{k}"/>' for k in range(len(alphas)))
    cells = "".join(f'<Coefficient value="{a}"/>' for a in alphas)
    return (
        f'<SupportVectorMachine{settings}><SupportVectors numberOfSupportVectors="{len(alphas)}">'
        f'{support}</SupportVectors><Coefficients absoluteValue="{shift}" '
        f'numberOfCoefficients="{len(alphas)}">{cells}</Coefficients></SupportVectorMachine>'
    )


def dictionary(kind: str) -> str:
    vectors = ""
    for k, vector in enumerate(VECTORS):
        places = [i for i, v in enumerate(vector, 1) if v]
        if kind == "sparse":
            cells = (
                f'<REAL-SparseArray n="3"><Indices>{" ".join(map(str, places))}</Indices>'
                f"<REAL-Entries>{' '.join(str(v) for v in vector if v)}</REAL-Entries>"
                "</REAL-SparseArray>"
            )
        else:
            cells = f'<Array type="real" n="3">{" ".join(map(str, vector))}</Array>'
        vectors += f'<VectorInstance id="v{k}">{cells}</VectorInstance>'
    fields = (
        '<FieldRef field="x"/><FieldRef field="z"/>'
        '<CategoricalPredictor name="s" value="b" coefficient="1"/>'
    )
    return (
        '<VectorDictionary numberOfVectors="4"><VectorFields numberOfFields="3">'
        f"{fields}</VectorFields>{vectors}</VectorDictionary>"
    )


ALPHAS = ((0.5, -1, 0.7, 0.2), (1.5, 0.3, -0.8, -0.4), (-0.6, 0.9, 0.1, 0.4))


def machines() -> Documents:
    for (name, kernel), form in itertools.product(KERNELS.items(), ("dense", "sparse")):
        yield (
            f"machine regression {name} {form}",
            pmml(
                f'<SupportVectorMachineModel functionName="regression">{SCHEMA}{kernel}'
                f"{dictionary(form)}{machine(ALPHAS[0], 0.3, '')}</SupportVectorMachineModel>"
            ),
        )
    scores = dict(zip(NAMES, ALPHAS, strict=True))
    pairs = (("low", "mid"), ("low", "high"), ("mid", "high"))
    for name, method, wins, limit, version in itertools.product(
        ("linear", "rbf"), ("OneAgainstOne", "OneAgainstAll"), ("", "true", "false"),
        ("", "0.4"), ("3.2", "4.4"),
    ):  # fmt: skip
        settings = f' classificationMethod="{method}"' if method else ""
        settings += f' maxWins="{wins}"' if wins else ""
        settings += f' threshold="{limit}"' if limit else ""
        if limit and wins == "true":
            continue  # votes in a circle, which evaluators settle in their own ways
        # Differences of three scores, so that no three machines vote in a circle.
        body = "".join(
            machine(
                tuple(q - p for p, q in zip(scores[a], scores[b], strict=True)),
                0.0,
                f' targetCategory="{a}"'
                + (f' alternateTargetCategory="{b}"' if method != "OneAgainstAll" else ""),
            )
            for a, b in pairs
        )
        if method == "OneAgainstAll":
            body = "".join(
                machine(alpha, 0.1, f' targetCategory="{c}"')
                for alpha, c in zip(ALPHAS, NAMES, strict=True)
            )
        document = pmml(
            f'<SupportVectorMachineModel functionName="classification"{settings}>{SCHEMA}'
            f"{KERNELS[name]}{dictionary('dense')}{body}</SupportVectorMachineModel>", CLASS,
        )  # fmt: skip
        yield f"machines {name} {method} {wins} {limit} {version}", in_version(document, version)
    for method, other, wins, outputs in itertools.product(
        ("OneAgainstOne", "OneAgainstAll", ""), (False, True), ("", "true"), (False, True)
    ):
        settings = f' classificationMethod="{method}"' if method else ""
        settings += f' maxWins="{wins}"' if wins else ""
        more = ' alternateTargetCategory="mid"' if other else ""
        body = machine(ALPHAS[0], 0.3, f' targetCategory="low"{more}')
        extra = "".join(number_output(f"p_{c}", "probability", value=c) for c in ("low", "mid"))
        yield f"machine of two {method} {other} {wins} {outputs}", pmml(
            f'<SupportVectorMachineModel functionName="classification"{settings}>{SCHEMA}'
            f"{output(extra) if outputs else ''}{KERNELS['rbf']}{dictionary('dense')}{body}"
            "</SupportVectorMachineModel>", CLASS.replace('<Value value="high"/>', ""),
        )  # fmt: skip
    weights = (
        '<SupportVectorMachine{}><Coefficients absoluteValue="0.4" numberOfCoefficients="3">'
        '<Coefficient value="0.5"/><Coefficient value="-1"/><Coefficient value="2"/>'
        "</Coefficients></SupportVectorMachine>"
    )
    yield (
        "machine by coefficients",
        pmml(
            '<SupportVectorMachineModel functionName="regression" svmRepresentation="Coefficients">'
            f"{SCHEMA}{KERNELS['linear']}{dictionary('dense')}{weights.format('')}"
            "</SupportVectorMachineModel>"
        ),
    )


# -- trees of several vendors --------------------------------------------------------------


def members(field: str, *values: str, kind: str = "string", operator: str = "isIn") -> str:
    return (
        f'<SimpleSetPredicate field="{field}" booleanOperator="{operator}">'
        f'<Array n="{len(values)}" type="{kind}">{" ".join(values)}</Array></SimpleSetPredicate>'
    )


def surrogate(*parts: str) -> str:
    return f'<CompoundPredicate booleanOperator="surrogate">{"".join(parts)}</CompoundPredicate>'


def trees() -> Documents:
    styles = {
        "rpart": (
            surrogate(simple("x", "lessThan", 0.4), simple("z", "greaterOrEqual", 1), "<False/>"),
            surrogate(simple("x", "greaterOrEqual", 0.4), simple("z", "lessThan", 1), "<True/>"),
        ),
        "rpart last": (
            surrogate(members("s", '"a"', '"c"'), simple("x", "lessThan", 1)),
            surrogate(members("s", '"b"'), simple("x", "greaterOrEqual", 1)),
        ),
        "chaid": (
            members("i", "0", "1", kind="int"),
            members("i", "2", kind="int"),
        ),
        "numbers": (
            members("x", "-1", "0.5", "3", kind="real"),
            members("x", "-1", "0.5", "3", kind="real", operator="isNotIn"),
        ),
        "empty": (members("s"), members("s", operator="isNotIn")),
        "escaped": (
            members("s", '"a"', '"say \\"so\\""'),
            members("s", '"b"', "c", '"two words"'),
        ),
        "or of missing": (
            '<CompoundPredicate booleanOperator="or"><SimplePredicate field="x" '
            f'operator="isMissing"/>{simple("x", "lessOrEqual", 0)}</CompoundPredicate>',
            simple("x", "greaterThan", 0),
        ),
        "and of ranges": (
            '<CompoundPredicate booleanOperator="and">'
            f"{simple('x', 'greaterThan', -1)}{simple('x', 'lessOrEqual', 1)}</CompoundPredicate>",
            '<CompoundPredicate booleanOperator="or">'
            f"{simple('x', 'lessOrEqual', -1)}{simple('x', 'greaterThan', 1)}</CompoundPredicate>",
        ),
        "nested": (
            '<CompoundPredicate booleanOperator="and"><CompoundPredicate booleanOperator="or">'
            f"{simple('x', 'lessThan', 0)}{simple('s', 'equal', 'b')}</CompoundPredicate>"
            f"{simple('z', 'notEqual', 2.5)}</CompoundPredicate>",
            "<True/>",
        ),
    }
    trust = output(PROBABILITIES, text_output("node", "entityId"),
                 *(number_output(f"c_{c}", "confidence", value=c) for c in NAMES))  # fmt: skip
    for (name, (yes, no)), strategy, last, form in itertools.product(
        styles.items(), ("none", "lastPrediction", "nullPrediction", "defaultChild"),
        ("returnNullPrediction", "returnLastPrediction"), ("classes", "numbers", "no scores"),
    ):  # fmt: skip
        out = trust
        default = ' defaultChild="n2"' if strategy == "defaultChild" else ""
        settings = f'missingValueStrategy="{strategy}" noTrueChildStrategy="{last}"'
        if form == "numbers":
            body = (
                f'<Node id="n0" score="1.5"{default}><True/><Node id="n1" score="-2">{yes}</Node>'
                f'<Node id="n2" score="4" recordCount="7">{no}</Node></Node>'
            )
            yield (
                f"tree {name} {strategy} {last} {form}",
                pmml(f'<TreeModel functionName="regression" {settings}>{SCHEMA}{body}</TreeModel>'),
            )
            continue
        body = node(
            0, "<True/>", (8, 11, 11), node(1, yes, (6, 1, 3)) + node(2, no, (2, 3, 5)), default
        )
        if form == "no scores":
            body = body.replace(' score="mid"', "", 1).replace(distribution(8, 11, 11), "")
            out = output(PROBABILITIES, text_output("node", "entityId"))
        else:
            body = re.sub(r'recordCount="(\d)"/>', r'recordCount="\1" confidence="0.\1"/>', body)
        yield (
            f"tree {name} {strategy} {last} {form}",
            pmml(
                f'<TreeModel functionName="classification" {settings}>{SCHEMA}{out}{body}'
                "</TreeModel>",
                CLASS,
            ),
        )


# -- XML and versions ------------------------------------------------------------------------


def forms() -> Documents:
    document = pmml(line("x"))
    for version in ("3.0", "3.1", "3.2", "4.0", "4.1", "4.2", "4.2.1", "4.3", "4.4", "4.4.1"):
        yield f"version {version}", in_version(document, version)
    heads = {
        "declared": '<?xml version="1.0" encoding="UTF-8"?>\n',
        "comment": "<!-- exported -->",
        "instruction": '<?xml-stylesheet type="text/xsl" href="a.xsl"?>',
        "standalone": '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n',
        "type": "<!DOCTYPE PMML>",
        "type of a file": '<!DOCTYPE PMML PUBLIC "PMML 2.0" "pmml-2-0.dtd">',
    }
    for name, head in heads.items():
        yield f"head {name}", head + document
    yield "no namespace", document.replace(' xmlns="http://www.dmg.org/PMML-4_4"', "")
    prefixed = document.replace("xmlns=", "xmlns:p=").replace("</", "</p:").replace("<", "<p:")
    yield "prefix", prefixed.replace("<p:/p:", "</p:")
    schema = ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="a b"'
    yield "schema location", document.replace(" xmlns=", f"{schema} xmlns=")
    extension = (
        '<Extension name="a" extender="b" value="c"><X-Note xmlns="q">k</X-Note></Extension>'
    )
    yield (
        "extensions",
        document.replace("<MiningSchema>", f"{extension}<MiningSchema>")
        .replace("<DataDictionary>", f"<DataDictionary>{extension}")
        .replace("<RegressionTable ", f"{extension}<RegressionTable "),
    )


def all_documents() -> Documents:
    for family in (bayes, neighbors, machines, general_regressions, cox, trees, regressions,
                   networks, forms):  # fmt: skip
        yield from family()


if __name__ == "__main__":
    sys.exit(1 if judge(all_documents)["wrong"] else 0)

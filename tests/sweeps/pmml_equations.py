"""Regressions, Cox models and networks for `tests.sweeps.pmml_vendors`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.sweeps.pmml_text import CLASS, NUMBER, PROBABILITIES, SCHEMA, pmml

Documents = Iterator[tuple[str, str]]
NAMES = ("low", "mid", "high")


def output(*fields: str) -> str:
    return f"<Output>{''.join(fields)}</Output>"


def number_output(name: str, feature: str, **settings: object) -> str:
    more = "".join(f' {k}="{v}"' for k, v in settings.items())
    return (
        f'<OutputField name="{name}" optype="continuous" dataType="double" feature="{feature}"'
        f"{more}/>"
    )


def text_output(name: str, feature: str, **settings: object) -> str:
    more = "".join(f' {k}="{v}"' for k, v in settings.items())
    return (
        f'<OutputField name="{name}" optype="categorical" dataType="string" feature="{feature}"'
        f"{more}/>"
    )


def in_version(document: str, version: str) -> str:
    return document.replace('version="4.4"', f'version="{version}"').replace(
        "PMML-4_4", f"PMML-{version.replace('.', '_')}"
    )


# -- general regression --------------------------------------------------------------------

MANY = (
    '<ParameterList><Parameter name="p0" label="Intercept"/><Parameter name="p1"/>'
    '<Parameter name="p2"/><Parameter name="p3"/><Parameter name="p4"/></ParameterList>'
    '<FactorList><Predictor name="s"/><Predictor name="i"/></FactorList>'
    '<CovariateList><Predictor name="x"/><Predictor name="z"/></CovariateList>'
    '<PPMatrix><PPCell value="1" predictorName="x" parameterName="p1"/>'
    '<PPCell value="b" predictorName="s" parameterName="p2"/>'
    '<PPCell value="1" predictorName="i" parameterName="p3"/>'
    '<PPCell value="c" predictorName="s" parameterName="p3"/>'
    '<PPCell value="2" predictorName="z" parameterName="p4"/>'
    '<PPCell value="a" predictorName="s" parameterName="p4"/></PPMatrix>'
)
BETAS = (0.3, -0.4, 0.2, 0.7, -0.15)


def cells(betas: tuple[float, ...], category: str | None = None) -> str:
    name = "" if category is None else f' targetCategory="{category}"'
    return "".join(
        f'<PCell{name} parameterName="p{k}" df="1" beta="{b}"/>' for k, b in enumerate(betas)
    )


def general(function: str, kind: str, more: str, matrix: str, target: str, out: str = "") -> str:
    return pmml(
        f'<GeneralRegressionModel functionName="{function}" modelType="{kind}"{more}>{SCHEMA}{out}'
        f"{MANY}<ParamMatrix>{matrix}</ParamMatrix></GeneralRegressionModel>", target,
    )  # fmt: skip


def general_regressions() -> Documents:
    extras = ("", ' offsetValue="0.5"', ' offsetVariable="z"', ' trialsValue="7"',
              ' trialsVariable="i"', ' offsetVariable="z" trialsVariable="i"')  # fmt: skip
    for kind, link, extra in itertools.product(
        ("generalizedLinear", "generalLinear", "regression"), ("identity", "log", "logit"), extras
    ):
        if kind != "generalizedLinear" and link != "identity":
            continue
        more = (
            f' linkFunction="{link}" distribution="normal"' if kind == "generalizedLinear" else ""
        )
        yield (
            f"factors {kind} {link}{extra}",
            general("regression", kind, more + extra, cells(BETAS), NUMBER),
        )
    two = CLASS.replace('<Value value="high"/>', "")
    halves = output(*(number_output(f"p_{c}", "probability", value=c) for c in ("low", "mid")))
    thirds = output(PROBABILITIES)
    for link, category, reference, extra in itertools.product(
        ("logit", "probit", "cloglog"), ("low", "mid", None), ("low", "mid", None), extras[:3]
    ):
        if category is not None and category == reference:
            continue
        more = f' linkFunction="{link}"{extra}'
        more += f' targetReferenceCategory="{reference}"' if reference else ""
        yield (
            f"binomial {link} {category} {reference}{extra}",
            general("classification", "generalizedLinear", more, cells(BETAS, category), two,
                    halves),
        )  # fmt: skip
    for kind, reference, extra in itertools.product(
        ("multinomialLogistic",), (True, False), extras[:3]
    ):
        more = ' targetReferenceCategory="high"' if reference else ""
        matrix = cells(BETAS, "low") + cells(BETAS[::-1], "mid")
        yield (
            f"multinomial {kind} {reference}{extra}",
            general("classification", kind, more + extra, matrix, CLASS, thirds),
        )
        if reference:
            yield (
                f"logistic of two {kind}{extra}",
                general("classification", kind, ' targetReferenceCategory="mid"' + extra,
                        cells(BETAS, "low"), two, halves),
            )  # fmt: skip
    for link, extra, tail in itertools.product(
        ("logit", "probit", "cloglog", "loglog", "cauchit"), extras[:3], ("all", "last")
    ):
        matrix = "".join(
            f'<PCell targetCategory="{c}" parameterName="p0" beta="{b}"/>'
            for c, b in (("low", -0.5), ("mid", 0.7))
        )
        matrix += "".join(
            f'<PCell parameterName="p{k}" beta="{b}"/>' for k, b in enumerate(BETAS) if k
        ) if tail == "all" else ""  # fmt: skip
        if tail == "last":
            matrix += '<PCell parameterName="p1" beta="0.4"/>'
        yield (
            f"ordinal {link}{extra} {tail}",
            general("classification", "ordinalMultinomial", f' cumulativeLink="{link}"{extra}',
                    matrix, CLASS.replace("categorical", "ordinal"), thirds),
        )  # fmt: skip


def cox() -> Documents:
    table = "".join(
        f'<BaselineCell time="{t}" cumHazard="{h}"/>'
        for t, h in ((-1, 0.05), (0, 0.1), (0.5, 0.2), (1.5, 0.6))
    )
    tables = {
        "plain": f'<BaseCumHazardTables maxTime="3">{table}</BaseCumHazardTables>',
        "strata": "<BaseCumHazardTables>" + "".join(
            f'<BaselineStratum value="{v}" label="[s={v}]" maxTime="{m}">{table}</BaselineStratum>'
            for v, m in (("a", 2), ("b", 9))
        ) + "</BaseCumHazardTables>",
    }  # fmt: skip
    for (kind, body), outputs in itertools.product(tables.items(), (False, True)):
        more = ' endTimeVariable="x"' + (' baselineStrataVariable="s"' if kind == "strata" else "")
        survival = output(
            number_output("hazard", "predictedValue"),
            '<OutputField name="survival" feature="transformedValue" optype="continuous" '
            'dataType="double"><Apply function="exp"><Apply function="*"><Constant>-1.0</Constant>'
            '<FieldRef field="hazard"/></Apply></Apply></OutputField>',
        )
        yield f"cox {kind} {outputs}", pmml(
            f'<GeneralRegressionModel functionName="regression" modelType="CoxRegression"{more}>'
            f'{SCHEMA}{survival if outputs else ""}<ParameterList><Parameter name="p0" '
            'referencePoint="1.5"/><Parameter name="p1" referencePoint="0"/></ParameterList>'
            '<FactorList><Predictor name="i"/></FactorList><CovariateList><Predictor name="z"/>'
            '</CovariateList><PPMatrix><PPCell value="1" predictorName="z" parameterName="p0"/>'
            '<PPCell value="1" predictorName="i" parameterName="p1"/></PPMatrix><ParamMatrix>'
            '<PCell parameterName="p0" df="1" beta="0.4"/><PCell parameterName="p1" df="1" '
            f'beta="-0.3"/></ParamMatrix>{body}</GeneralRegressionModel>'
        )  # fmt: skip


# -- regressions, networks -------------------------------------------------------------------


def regressions() -> Documents:
    table = '<RegressionTable intercept="{}"{}>{}</RegressionTable>'
    numeric = '<NumericPredictor name="x" exponent="1" coefficient="{}"/>'
    text = "".join(
        f'<CategoricalPredictor name="s" value="{v}" coefficient="{k}"/>'
        for k, v in enumerate("abc")
    )
    terms = {
        "number": numeric.format(0.5),
        "powers": numeric.format(0.5) + '<NumericPredictor name="x" exponent="3" coefficient="1"/>',
        "text": text,
        "category of integers": '<CategoricalPredictor name="i" value="1" coefficient="2.5"/>',
        "term": '<PredictorTerm coefficient="0.5"><FieldRef field="x"/><FieldRef field="i"/>'
        "</PredictorTerm>",
        "none": "",
    }
    for (name, body), version in itertools.product(terms.items(), ("3.0", "3.2", "4.1", "4.4")):
        more = ' modelType="linearRegression" targetFieldName="y"' if version < "4" else ""
        yield f"regression {name} {version}", in_version(pmml(
            f'<RegressionModel functionName="regression"{more}>{SCHEMA}'
            f"{table.format(1.5, '', body)}</RegressionModel>"
        ), version)  # fmt: skip
    for (name, body), method, optype in itertools.product(
        terms.items(), ("softmax", "logit", "simplemax", "cloglog", "none"),
        ("categorical", "ordinal"),
    ):  # fmt: skip
        if optype == "ordinal" and method in ("softmax", "simplemax"):
            continue
        tables = "".join(
            table.format(0.2 * k, f' targetCategory="{c}"', body if k < 2 else "")
            for k, c in enumerate(NAMES)
        )
        yield (
            f"classes {name} {method} {optype}",
            pmml(
                f'<RegressionModel functionName="classification" normalizationMethod="{method}">'
                f"{SCHEMA}<Output>{PROBABILITIES}</Output>{tables}</RegressionModel>",
                CLASS.replace("categorical", optype),
            ),
        )


def networks() -> Documents:
    inputs = (
        '<NeuralInputs numberOfInputs="3"><NeuralInput id="0,0"><DerivedField optype="continuous" '
        'dataType="double"><NormContinuous field="x"{}><LinearNorm orig="-2" norm="0"/>'
        '<LinearNorm orig="0" norm="0.3"/><LinearNorm orig="2" norm="1"/></NormContinuous>'
        '</DerivedField></NeuralInput><NeuralInput id="0,1"><DerivedField optype="continuous" '
        'dataType="double"><NormDiscrete field="s" value="b"{}/></DerivedField></NeuralInput>'
        '<NeuralInput id="0,2"><DerivedField optype="continuous" dataType="double">'
        '<FieldRef field="z"/></DerivedField></NeuralInput></NeuralInputs>'
    )
    hidden = "".join(
        f'<Neuron id="1,{k}" bias="{0.1 * k}"{{}}><Con from="0,0" weight="{0.5 + k}"/>'
        f'<Con from="0,1" weight="{-0.3 - k}"/><Con from="0,2" weight="0.2"/></Neuron>'
        for k in range(2)
    )
    backs = {
        "reference": '<FieldRef field="y"/>',
        "two points": '<NormContinuous field="y"><LinearNorm orig="-10" norm="0"/><LinearNorm '
        'orig="30" norm="1"/></NormContinuous>',
        "three points": '<NormContinuous field="y"{}><LinearNorm orig="-10" norm="0"/><LinearNorm '
        'orig="5" norm="0.4"/><LinearNorm orig="30" norm="1"/></NormContinuous>',
        "falling": '<NormContinuous field="y"><LinearNorm orig="-10" norm="1"/><LinearNorm '
        'orig="30" norm="0"/></NormContinuous>',
    }
    for function, (back, body), missing, outliers in itertools.product(
        ("logistic", "tanh", "radialBasis"), backs.items(), ("", ' mapMissingTo="0.5"'),
        ("", ' outliers="asExtremeValues"', ' outliers="asMissingValues"'),
    ):  # fmt: skip
        radial = ' width="1.5" altitude="0.9"' if function == "radialBasis" else ""
        last = (
            '<NeuralLayer activationFunction="identity"><Neuron id="2,0" bias="0.2"><Con '
            'from="1,0" weight="0.4"/><Con from="1,1" weight="0.3"/></Neuron></NeuralLayer>'
        )
        yield f"network {function} {back}{missing}{outliers}", pmml(
            f'<NeuralNetwork functionName="regression" activationFunction="{function}">{SCHEMA}'
            f"{inputs.format(missing + outliers, missing)}<NeuralLayer>"
            f'{hidden.format(radial, radial)}</NeuralLayer>{last}<NeuralOutputs>'
            '<NeuralOutput outputNeuron="2,0"><DerivedField '
            f'optype="continuous" dataType="double">{body.replace("{}", outliers)}</DerivedField>'
            "</NeuralOutput></NeuralOutputs></NeuralNetwork>"
        )  # fmt: skip
    for whole, layer, count in itertools.product(
        ("", "softmax", "simplemax", "none"), ("", "softmax", "none"), (2, 3)
    ):
        last = "".join(
            f'<Neuron id="2,{k}" bias="{0.2 - 0.1 * k}"><Con from="1,0" weight="{0.4 * k + 0.1}"/>'
            f'<Con from="1,1" weight="{0.3 + k}"/></Neuron>' for k in range(count)
        )  # fmt: skip
        outputs = "".join(
            f'<NeuralOutput outputNeuron="2,{k}"><DerivedField optype="categorical" '
            f'dataType="string"><NormDiscrete field="y" value="{c}"/></DerivedField></NeuralOutput>'
            for k, c in zip(range(count), NAMES, strict=False)
        )
        settings = f' normalizationMethod="{whole}"' if whole else ""
        inner = f' normalizationMethod="{layer}"' if layer else ""
        yield (
            f"network classes {whole} {layer} {count}",
            pmml(
                '<NeuralNetwork functionName="classification" activationFunction="logistic"'
                f"{settings}>{SCHEMA}<Output>{PROBABILITIES}</Output>"
                f"{inputs.format('', '')}<NeuralLayer>{hidden.format('', '')}</NeuralLayer>"
                f"<NeuralLayer{inner}>{last}</NeuralLayer><NeuralOutputs>{outputs}</NeuralOutputs></NeuralNetwork>",
                CLASS,
            ),
        )

"""Fields, expressions, outputs, targets and chains of PMML, held against JPMML and PMML4S.

python -m tests.sweeps.pmml_fields [part of a name ...]
"""

from __future__ import annotations

import itertools
import sys

from tests.sweeps.pmml_documents import class_tree, leaf_tree, node, simple
from tests.sweeps.pmml_equations import Documents, number_output, output, text_output
from tests.sweeps.pmml_judges import judge
from tests.sweeps.pmml_text import (
    CLASS,
    NUMBER,
    PLAIN,
    PROBABILITIES,
    SCHEMA,
    TARGET,
    line,
    pmml,
)

WORDS = ("Ab", " b c ", "x", "Zoo9")
EXTRA = (
    '<DataField name="w" optype="categorical" dataType="string">'
    + "".join(f'<Value value="{w}"/>' for w in WORDS)
    + '</DataField><DataField name="b" optype="categorical" dataType="boolean"/>'
    '<DataField name="d" optype="continuous" dataType="date"/>'
    '<DataField name="t" optype="continuous" dataType="dateTime"/>'
)
ALL = "".join(
    f'<MiningField name="{n}" invalidValueTreatment="asMissing"/>'
    for n in ("x", "z", "i", "s", "w", "b", "d", "t")
)
EVERYTHING = f"<MiningSchema>{ALL}{TARGET}</MiningSchema>"


def ref(name: str) -> str:
    return f'<FieldRef field="{name}"/>'


def const(value: object, kind: str | None = None) -> str:
    return f"<Constant{f' dataType={chr(34)}{kind}{chr(34)}' if kind else ''}>{value}</Constant>"


def call(function: str, *arguments: str, **settings: str) -> str:
    more = "".join(f' {k}="{v}"' for k, v in settings.items())
    return f'<Apply function="{function}"{more}>{"".join(arguments)}</Apply>'


def derived(kind: str, expression: str, optype: str = "continuous", name: str = "q") -> str:
    return (
        f'<DerivedField name="{name}" optype="{optype}" dataType="{kind}">{expression}'
        "</DerivedField>"
    )


def of_number(expression: str, kind: str = "double", before: str = "") -> str:
    """A line through one derived number."""
    local = f"<LocalTransformations>{before}{derived(kind, expression)}</LocalTransformations>"
    return pmml(line("q", EVERYTHING, local), fields=PLAIN + EXTRA)


def of_text(expression: str, values: tuple[str, ...], kind: str = "string") -> str:
    """A sum over the categories of one derived text."""
    local = (
        f"<LocalTransformations>{derived(kind, expression, 'categorical')}</LocalTransformations>"
    )
    table = "".join(
        f'<CategoricalPredictor name="q" value="{v}" coefficient="{k}"/>'
        for k, v in enumerate(values, 1)
    )
    return pmml(
        f'<RegressionModel functionName="regression">{EVERYTHING}{local}<RegressionTable '
        f'intercept="0.5">{table}</RegressionTable></RegressionModel>',
        fields=PLAIN + EXTRA,
    )


def texts() -> Documents:
    functions = {
        "uppercase": (call("uppercase", ref("w")), tuple(w.upper() for w in WORDS)),
        "lowercase": (call("lowercase", ref("w")), tuple(w.lower() for w in WORDS)),
        "trimBlanks": (call("trimBlanks", ref("w")), tuple(w.strip() for w in WORDS)),
        "substring": (call("substring", ref("w"), const(1), const(1)), ("A", " ", "x", "Z")),
        "substring middle": (call("substring", ref("w"), const(2), const(5)), ("b", "b c ", "")),
        "replace": (call("replace", ref("w"), const("[a-z]"), const("_")), ("A_", " _ _ ", "_")),
        "replace group": (
            call("replace", ref("w"), const("(o+)"), const("[$1]")),
            ("Z[oo]9", "Ab"),
        ),
        "concat": (call("concat", ref("w"), const("-"), ref("s")), ("Ab-a", "x-b", "Zoo9-c")),
        "concat number": (call("concat", ref("s"), ref("i")), ("a0", "b1", "c2", "a1", "b")),
        "concat three": (
            call("concat", ref("s"), const(1, "integer"), ref("s")),
            ("a1a", "b1b"),
        ),
        "if": (
            call("if", call("equal", ref("s"), const("a")), ref("w"), const("other")),
            ("Ab", "other"),
        ),
        "if missing": (
            call("if", call("isMissing", ref("s")), const("none"), ref("s")),
            ("none", "a"),
        ),
        "map missing": (call("uppercase", ref("s"), mapMissingTo="GONE"), ("A", "B", "GONE")),
        "default": (call("uppercase", ref("s"), defaultValue="D"), ("A", "B", "D")),
        "of a number": (ref("i"), ("0", "1", "2")),
        "of a double": (ref("x"), ("0.5", "-1.0", "3", "1")),
        "of a boolean": (call("lessThan", ref("x"), const(0.5)), ("true", "false")),
        "trim of lower": (
            call("trimBlanks", call("lowercase", ref("w"))),
            ("ab", "b c", "x", "zoo9"),
        ),
    }
    for name, (expression, values) in functions.items():
        yield f"text {name}", of_text(expression, values)
    numbers = {
        "stringLength": call("stringLength", ref("w")),
        "matches": call("if", call("matches", ref("w"), const("^[A-Z].*")), const(1), const(0)),
        "matches part": call("if", call("matches", ref("w"), const("o")), const(1), const(0)),
        "length of lower": call("stringLength", call("lowercase", ref("w"))),
        "equal": call("if", call("equal", ref("w"), const("x")), const(1), const(0)),
        "not equal": call("if", call("notEqual", ref("w"), ref("s")), const(1), const(0)),
        "is in": call("if", call("isIn", ref("w"), const("x"), const("Ab")), const(1), const(0)),
        "is not in": call("if", call("isNotIn", ref("w"), const("x")), const(1), const(0)),
    }
    for name, expression in numbers.items():
        yield f"number of text {name}", of_number(expression)


def dates() -> Documents:
    for year, (field, kind) in itertools.product(
        (1960, 1970, 2000), (("d", "date"), ("t", "dateTime"))
    ):
        yield f"days {kind} {year}", of_number(call("dateDaysSinceYear", ref(field), const(year)))
        if field == "t":
            yield (
                f"seconds {kind} {year}",
                of_number(call("dateSecondsSinceYear", ref(field), const(year))),
            )
    yield "midnight", of_number(call("dateSecondsSinceMidnight", ref("t")))
    yield "as integer", of_number(call("dateDaysSinceYear", ref("d"), const(1960)), "integer")
    for form, field in (("%Y", "d"), ("%m", "d"), ("%d.%m.%Y", "d"), ("%H", "t"), ("%j", "d")):
        yield (
            f"format {form}",
            of_text(call("formatDatetime", ref(field), const(form)), ("2020", "02", "29.02.2020")),
        )
    for year, field in itertools.product((1960, 1970, 1980), ("d", "t")):
        kind = f"dateDaysSince[{year}]"
        yield f"typed {kind} {field}", of_number(
            ref("e"), "double", f'<DerivedField name="e" optype="continuous" dataType="{kind}">'
            f"{ref(field)}</DerivedField>",
        )  # fmt: skip


def logic() -> Documents:
    low, high = call("lessThan", ref("x"), const(0.5)), call("greaterThan", ref("z"), const(0))
    truths = {
        "and": call("and", low, high),
        "or": call("or", low, high),
        "not": call("not", low),
        "not and": call("not", call("and", low, high)),
        "three": call("or", low, high, call("equal", ref("s"), const("a"))),
        "boolean field": ref("b"),
        "boolean equal": call("equal", ref("b"), const("true")),
        "boolean not": call("not", ref("b")),
        "boolean or": call("or", ref("b"), low),
        "is missing": call("isMissing", ref("x")),
        "is not missing": call("and", call("isNotMissing", ref("x")), low),
        "is valid": call("isValid", ref("i")),
        "is not valid": call("isNotValid", ref("i")),
        "text": call("equal", ref("s"), ref("w")),
    }
    for name, truth in truths.items():
        yield f"if {name}", of_number(call("if", truth, const(1.5), const(-2)))
        yield f"if only {name}", of_number(call("if", truth, const(1.5)))
        yield f"truth {name}", of_text(truth, ("true", "false"), "boolean")
    numbers = {
        "integers": call("/", ref("i"), const(2)),
        "integers of doubles": call("/", ref("i"), const("2.0")),
        "difference": call("-", ref("i"), ref("x")),
        "power of integers": call("pow", ref("i"), const(3)),
        "minimum": call("min", ref("i"), ref("x"), const(2)),
        "sum of three": call("sum", ref("x"), ref("z"), ref("i")),
        "mean of three": call("avg", ref("x"), ref("z"), ref("i")),
        "product of three": call("product", ref("x"), ref("z"), ref("i")),
        "rounding": call("round", call("*", ref("x"), const("1.7"))),
        "mapped": call("+", ref("x"), ref("z"), mapMissingTo="-5"),
        "default": call("ln", ref("x"), defaultValue="-5"),
        "both": call("+", ref("x"), ref("z"), mapMissingTo="-5", defaultValue="7"),
        "root of a negative": call("sqrt", ref("x")),
        "division by zero": call("/", ref("z"), ref("x")),
        "log of zero": call("ln", call("abs", ref("x"))),
        "threshold": call("threshold", ref("x"), ref("z")),
        "modulo": call("modulo", ref("x"), const("1.5")),
        "modulo of integers": call("modulo", ref("i"), const(2)),
        "normal": call("normalCDF", ref("x"), const("0.5"), const(2)),
        "density": call("normalPDF", ref("x"), const("0.5"), const(2)),
        "standard": call("stdNormalCDF", ref("x")),
        "constant": const("4.5"),
        "negative constant": const("-4"),
        "exponent": const("1e-3"),
    }
    for name, expression in numbers.items():
        for kind in ("double", "float", "integer"):
            if kind == "integer" and name in ("normal", "density", "constant", "exponent"):
                continue
            yield f"number {name} {kind}", of_number(expression, kind)
    bodies = {
        "plain": (derived_function("f", "double", ("p", "r"), call("-", ref("p"), ref("r")))),
        "typed": derived_function("f", "integer", ("p", "r"), call("+", ref("p"), const(1))),
    }
    for name, body in bodies.items():
        local = f"<LocalTransformations>{derived('double', call('f', ref('x'), ref('i')))}</LocalTransformations>"  # noqa: E501
        yield (
            f"defined {name}",
            pmml(
                line("q", EVERYTHING, local),
                fields=PLAIN + EXTRA,
                before=f"<TransformationDictionary>{body}</TransformationDictionary>",
            ),
        )


def derived_function(name: str, kind: str, parameters: tuple[str, ...], body: str) -> str:
    fields = "".join(f'<ParameterField name="{p}" optype="continuous"/>' for p in parameters)
    return (
        f'<DefineFunction name="{name}" optype="continuous" dataType="{kind}">{fields}{body}'
        "</DefineFunction>"
    )


def tables() -> Documents:
    bins = {
        "words": (("low", "openClosed", None, 0), ("mid", "openOpen", 0, 2),
                  ("high", "closedOpen", 2, None)),
        "gaps": (("low", "closedClosed", -2, -1), ("high", "closedClosed", 1, 3)),
        "overlap": (("low", "closedClosed", -2, 1), ("high", "closedClosed", 0, 3)),
    }  # fmt: skip
    for (name, cells), default, missing in itertools.product(
        bins.items(), ("", "other"), ("", "gone")
    ):
        body = ""
        for value, closure, left, right in cells:
            ends = "" if left is None else f' leftMargin="{left}"'
            ends += "" if right is None else f' rightMargin="{right}"'
            body += (
                f'<DiscretizeBin binValue="{value}"><Interval closure="{closure}"{ends}/>'
                "</DiscretizeBin>"
            )
        more = (f' defaultValue="{default}"' if default else "") + (
            f' mapMissingTo="{missing}"' if missing else ""
        )
        yield (
            f"bins {name} {default} {missing}",
            of_text(
                f'<Discretize field="x"{more}>{body}</Discretize>',
                ("low", "mid", "high", "other", "gone"),
            ),
        )
    rows = {
        "one": ([("s", "in")], [{"in": "a", "out": "P"}, {"in": "b", "out": "Q"}]),
        "two": (
            [("s", "one"), ("i", "two")],
            [{"one": "a", "two": "0", "out": "P"}, {"one": "b", "two": "1", "out": "Q"}],
        ),
        "repeated": ([("s", "in")], [{"in": "a", "out": "P"}, {"in": "a", "out": "Q"}]),
        "numbers": ([("x", "in")], [{"in": "0.5", "out": "P"}, {"in": "-1.0", "out": "Q"}]),
        "integers": ([("i", "in")], [{"in": "1", "out": "P"}, {"in": "2", "out": "Q"}]),
        "boolean": ([("b", "in")], [{"in": "true", "out": "P"}, {"in": "false", "out": "Q"}]),
        "hole": ([("s", "in")], [{"in": "a"}, {"in": "b", "out": "Q"}]),
    }
    for (name, (pairs, cells)), default, missing, prefix in itertools.product(
        rows.items(), ("", "R"), ("", "M"), ("", "d:")
    ):
        names = "".join(f'<FieldColumnPair field="{f}" column="{prefix}{c}"/>' for f, c in pairs)
        table = "".join(
            "<row>" + "".join(f"<{prefix}{k}>{v}</{prefix}{k}>" for k, v in row.items()) + "</row>"
            for row in cells
        )
        more = f' defaultValue="{default}"' if default else ""
        more += f' mapMissingTo="{missing}"' if missing else ""
        space = ' xmlns:d="http://jpmml.org/jpmml-model/InlineTable"' if prefix else ""
        yield (
            f"map {name} {default} {missing} {prefix}",
            of_text(
                f'<MapValues outputColumn="{prefix}out" dataType="string"{more}>{names}'
                f"<InlineTable{space}>{table}</InlineTable></MapValues>",
                ("P", "Q", "R", "M"),
            ),
        )


def fields() -> Documents:
    def categories(field: str, data: str, values: tuple[str, ...], treatment: str) -> str:
        table = "".join(
            f'<CategoricalPredictor name="{field}" value="{v}" coefficient="{k}"/>'
            for k, v in enumerate(values, 1)
        )
        more = f' invalidValueTreatment="{treatment}"' if treatment else ""
        return pmml(
            f'<RegressionModel functionName="regression"><MiningSchema><MiningField name="{field}"'
            f'{more}/>{TARGET}</MiningSchema><RegressionTable intercept="0.5">{table}'
            "</RegressionTable></RegressionModel>", fields=data,
        )  # fmt: skip

    kinds = {
        "integer": ("i", "integer", ("0", "1", "2")),
        "integer as double": ("i", "double", ("0", "1", "2")),
        "integer as double with points": ("i", "double", ("0.0", "1.0", "2.0")),
        "integer as float": ("i", "float", ("0", "1", "1.5")),
        "integer as text": ("i", "string", ("0", "1", "2")),
        "boolean": ("b", "boolean", ("true", "false")),
        "text": ("s", "string", ("a", "b")),
    }
    for (name, (field, kind, values)), optype, listed, treatment in itertools.product(
        kinds.items(), ("categorical", "ordinal"), (True, False),
        ("", "asIs", "asMissing", "returnInvalid"),
    ):  # fmt: skip
        inner = "".join(f'<Value value="{v}"/>' for v in values[:2]) if listed else ""
        data = f'<DataField name="{field}" optype="{optype}" dataType="{kind}">{inner}</DataField>'
        yield (
            f"field {name} {optype} {listed} {treatment}",
            categories(field, data, values, treatment),
        )
    for operator, kind in itertools.product(
        ("lessThan", "lessOrEqual", "greaterThan", "greaterOrEqual", "equal", "notEqual"),
        ("s", "i"),
    ):
        middle = "b" if kind == "s" else "1"
        values = ("c", "b", "a") if kind == "s" else ("2", "0", "1")
        data = (
            f'<DataField name="{kind}" optype="ordinal" '
            f'dataType="{"string" if kind == "s" else "integer"}">'
            + "".join(f'<Value value="{v}"/>' for v in values)
            + "</DataField>"
        )
        yield f"order {operator} {kind}", pmml(
            '<TreeModel functionName="regression"><MiningSchema><MiningField '
            f'name="{kind}" invalidValueTreatment="asMissing"/>{TARGET}</MiningSchema>'
            f'<Node score="9"><True/><Node score="1">{simple(kind, operator, middle)}</Node>'
            '<Node score="2"><True/></Node></Node></TreeModel>', fields=data,
        )  # fmt: skip


def outputs() -> Documents:
    body = node(
        0, "<True/>", (8, 11, 11),
        node(1, simple("x", "lessThan", 0.5), (6, 1, 3))
        + node(2, simple("x", "greaterOrEqual", 0.5), (2, 3, 5)),
    )  # fmt: skip
    shown = CLASS.replace('value="low"', 'value="low" displayValue="Low!"')
    out = {
        "predicted": text_output("o", "predictedValue"),
        "predicted again": text_output("o", "predictedValue") + text_output("p", "predictedValue"),
        "display": text_output("o", "predictedDisplayValue"),
        "winner": number_output("o", "probability"),
        "entity": text_output("o", "entityId"),
        "affinity": number_output("o", "affinity"),
        "residual": number_output("o", "residual"),
        "confidence": number_output("o", "confidence"),
        "warning": text_output("o", "warning"),
        "rule": text_output("o", "ruleValue"),
        "transformed": number_output("p", "probability", value="low")
        + '<OutputField name="o" feature="transformedValue" optype="continuous" dataType="double">'
        + call("*", ref("p"), const(100))
        + "</OutputField>",
        "decision": number_output("p", "probability", value="low")
        + '<OutputField name="o" feature="decision" optype="categorical" dataType="string">'
        + '<Decisions><Decision value="yes"/><Decision value="no"/></Decisions>'
        + call("if", call("greaterThan", ref("p"), const(0.5)), const("yes"), const("no"))
        + "</OutputField>",
        "of an input": '<OutputField name="o" feature="transformedValue" optype="continuous" '
        f'dataType="double">{call("+", ref("x"), const(1))}</OutputField>',
        "rounded": number_output("p", "probability", value="low")
        + '<OutputField name="o" feature="transformedValue" optype="continuous" dataType="integer">'
        + call("round", call("*", ref("p"), const(10)))
        + "</OutputField>",
        "not final": text_output("o", "predictedValue", isFinalResult="false"),
        "rank two": text_output("o", "predictedValue", rank=2),
    }
    for (name, inner), target in itertools.product(out.items(), (CLASS, shown)):
        if target is shown and name not in ("display", "predicted"):
            continue
        yield f"output {name} {target is shown}", pmml(
            '<TreeModel functionName="classification" missingValueStrategy="nullPrediction">'
            f"{SCHEMA}{output(inner)}{body}</TreeModel>", target,
        )  # fmt: skip
    for priors, display in itertools.product((True, False), (True, False)):
        values = "".join(
            f'<TargetValue value="{c}"'
            + (f' priorProbability="{p}"' if priors else "")
            + (f' displayValue="{c.upper()}"' if display else "") + "/>"
            for c, p in (("low", 0.2), ("mid", 0.5), ("high", 0.3))
        )  # fmt: skip
        yield f"priors {priors} {display}", pmml(
            '<TreeModel functionName="classification" missingValueStrategy="nullPrediction">'
            f"{SCHEMA}{output(PROBABILITIES, out['display'])}<Targets><Target field=\"y\">{values}"
            f"</Target></Targets>{body}</TreeModel>", CLASS,
        )  # fmt: skip
    for default, cast in itertools.product(("", ' defaultValue="3.7"'), ("", "round", "floor")):
        more = f' castInteger="{cast}"' if cast else ""
        inner = f"<TargetValue{default}/>" if default else ""
        yield (
            f"default target {default} {cast}",
            pmml(line("x", SCHEMA, f'<Targets><Target field="y"{more}>{inner}</Target></Targets>')),
        )
    for kind, field in itertools.product(
        ("integer", "float", "double", "string"), ("y", "predicted")
    ):
        one = f'<OutputField name="{field}_o" feature="predictedValue" optype="continuous" dataType="{kind}"/>'  # noqa: E501
        yield f"number as {kind} {field}", pmml(
            line("x", SCHEMA, output(one)),
            NUMBER.replace("double", kind) if field == "y" else NUMBER,
        )  # fmt: skip


def chains() -> Documents:
    first = leaf_tree(1, 2, "x", 0.5).replace(
        SCHEMA, SCHEMA + output(number_output("score", "predictedValue"))
    )
    last = (
        '<RegressionModel functionName="regression"><MiningSchema><MiningField name="{}"/>'
        f'{TARGET}</MiningSchema><RegressionTable intercept="0.5"><NumericPredictor name="{{}}" '
        'coefficient="3"/></RegressionTable></RegressionModel>'
    )
    stages = {
        "numbers": (first, last.format("score", "score")),
    }
    tests = {"always": "<True/>", "sometimes": simple("z", "lessThan", 1)}
    for (name, (one, two)), (when, test) in itertools.product(stages.items(), tests.items()):
        yield (
            f"chain {name} {when}",
            pmml(
                f'<MiningModel functionName="regression">{SCHEMA}<Segmentation '
                f'multipleModelMethod="modelChain"><Segment id="1">{test}{one}</Segment>'
                f'<Segment id="2"><True/>{two}</Segment></Segmentation></MiningModel>'
            ),
        )
    for method, ident in itertools.product(
        ("selectFirst", "average", "sum", "majorityVote"), (False, True)
    ):
        classes = method == "majorityVote"
        models = (
            (class_tree((5, 2, 3), (1, 6, 3), "x", 0.5), class_tree((1, 1, 8), (4, 4, 2), "z", 0))
            if classes
            else (leaf_tree(1, 2, "x", 0.5), leaf_tree(-3, 5, "z", 0))
        )
        segments = f'<Segment id="A">{simple("s", "equal", "a")}{models[0]}</Segment>'
        segments += f'<Segment id="B"><True/>{models[1]}</Segment>'
        kind = text_output if classes else number_output
        more = output(kind("oA", "predictedValue", segmentId="A"),
                      kind("oB", "predictedValue", segmentId="B")) if ident else ""  # fmt: skip
        yield f"segments {method} {ident}", pmml(
            f'<MiningModel functionName="{"classification" if classes else "regression"}">{SCHEMA}'
            f'{more}<Segmentation multipleModelMethod="{method}">{segments}</Segmentation>'
            "</MiningModel>", CLASS if classes else NUMBER,
        )  # fmt: skip


def similarities() -> Documents:
    measures = (
        "simpleMatching", "jaccard", "tanimoto",
        'binarySimilarity c00-parameter="0.5" c01-parameter="1" c10-parameter="1" '
        'c11-parameter="2" d00-parameter="1" d01-parameter="1" d10-parameter="1" d11-parameter="3"',
    )  # fmt: skip
    data = (
        "".join(
            f'<DataField name="{n}" optype="continuous" dataType="double"/>' for n in ("x", "z")
        )
        + '<DataField name="i" optype="continuous" dataType="integer"/>'
    )
    for measure, centers in itertools.product(measures, (((1, 0, 1), (0, 1, 0), (1, 1, 1)),)):
        body = "".join(
            f'<Cluster id="k{k}"><Array n="3" type="int">{" ".join(map(str, c))}</Array></Cluster>'
            for k, c in enumerate(centers)
        )
        active = "".join(
            f'<MiningField name="{n}" missingValueReplacement="0" invalidValueTreatment="asMissing"/>'  # noqa: E501
            for n in ("x", "z", "i")
        )
        yield f"similarity {measure.split()[0]}", pmml(
            '<ClusteringModel functionName="clustering" modelClass="centerBased" '
            f'numberOfClusters="3"><MiningSchema>{active}</MiningSchema>'
            f"{output(text_output('id', 'entityId'), number_output('a', 'affinity'))}"
            f'<ComparisonMeasure kind="similarity"><{measure}/></ComparisonMeasure>'
            '<ClusteringField field="x"/><ClusteringField field="z"/><ClusteringField field="i"/>'
            f"{body}</ClusteringModel>", "", data,
        )  # fmt: skip


def all_documents() -> Documents:
    for family in (texts, dates, logic, tables, fields, outputs, chains, similarities):
        yield from family()


if __name__ == "__main__":
    sys.exit(1 if judge(all_documents)["wrong"] else 0)

"""PMML documents drawn at random, held against JPMML and PMML4S.

    python -m tests.sweeps.pmml_random [first seed] [how many]

A document has fields of any type with treatments of missing, invalid and outlying values, derived
fields of nested expressions, a model of any kind behind them, targets and outputs. What matters
here are pairs of settings that the other sweeps, which vary one thing at a time, do not have.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.sweeps.pmml_equations import NAMES, in_version
from tests.sweeps.pmml_judges import rows, tried
from tests.sweeps.pmml_pipelines import start_java
from tests.sweeps.pmml_text import CLASS, NUMBER, PROBABILITIES, TARGET

CLOSURES = ("openOpen", "openClosed", "closedOpen", "closedClosed")
QUOTE, SQUARE = '"', ' exponent="2"'
VERSIONS = ("3.2", "4.0", "4.1", "4.2", "4.3", "4.4")


class Writer:
    """Draws the parts of one document."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.numbers = ["x", "z", "i"]
        self.texts = ["s"]
        self.local: list[str] = []  # the fields of local transformations

    def one(self, *choices: str) -> str:
        return self.draw.choice(choices)

    def number(self) -> str:
        return self.one("-2", "-1", "0", "0.5", "1", "1.5", "2.5", "3", "0.1", "4")

    # -- fields --------------------------------------------------------------------------

    def data_fields(self) -> str:
        kind = self.one("double", "double", "float")
        inside = self.one("", "", f'<Interval closure="{self.one(*CLOSURES)}" leftMargin="-2" '
                          'rightMargin="4"/>', '<Value value="-9" property="missing"/>',
                          '<Value value="9" property="invalid"/>')  # fmt: skip
        numeric = self.one("continuous", "continuous", "categorical")
        if numeric == "categorical":  # which has no order
            self.numbers.remove("i")
        values = "".join(f'<Value value="{v}"/>' for v in (0, 1, 2)) * (numeric == "categorical")
        order = self.one("categorical", "ordinal")
        more = self.one("", '<Value value="d" property="invalid"/>',
                        '<Value value="d" property="missing"/>')  # fmt: skip
        letters = "".join(f'<Value value="{v}"/>' for v in "abc")
        return (
            f'<DataField name="x" optype="continuous" dataType="{kind}">{inside}</DataField>'
            '<DataField name="z" optype="continuous" dataType="double"/>'
            f'<DataField name="i" optype="{numeric}" dataType="integer">{values}</DataField>'
            f'<DataField name="s" optype="{order}" dataType="string">{letters}{more}</DataField>'
        )

    def mining_fields(self) -> str:
        parts = []
        for name in ("x", "z", "i", "s"):
            text = name == "s"
            # A row with an invalid value has no result where something uses the field. Evaluators
            # notice it only where they come across the field, which models here do not follow.
            settings = ' invalidValueTreatment="asMissing"'
            if name in ("x", "s"):
                settings = self.one(settings, ' invalidValueTreatment="asIs"')
            value = "b" if text else self.one("1", "2", "0")
            settings += self.one("", "", f' missingValueReplacement="{value}" '
                                 f'missingValueTreatment="{self.one("asMean", "asValue")}"',
                                 f' missingValueReplacement="{value}"')  # fmt: skip
            if name in ("x", "z"):
                settings += self.one("", "", ' outliers="asExtremeValues" lowValue="-1.5" '
                                     'highValue="2"', ' outliers="asMissingValues" lowValue="-1" '
                                     'highValue="3"')  # fmt: skip
            settings += self.one("", "", f' importance="0.{self.draw.randint(1, 9)}"')
            settings += self.one("", "", ' usageType="active"')
            parts.append(f'<MiningField name="{name}"{settings}/>')
        return "".join(parts)

    # -- expressions ---------------------------------------------------------------------

    def apply(self, function: str, *arguments: str, more: str = "") -> str:
        return f'<Apply function="{function}"{more}>{"".join(arguments)}</Apply>'

    def numeric(self, depth: int) -> str:
        """An expression whose result is a number."""
        field = f'<FieldRef field="{self.draw.choice(self.numbers)}"/>'
        if depth == 0:
            constant = f'<Constant dataType="double">{self.number()}</Constant>'
            return self.one(field, field, constant)
        kind = self.draw.randrange(9)
        if kind == 0:
            return self.apply(
                self.one("abs", "exp", "floor", "ceil", "round", "sqrt"), self.numeric(depth - 1)
            )
        if kind <= 2:
            more = self.one("", "", ' mapMissingTo="3"', ' defaultValue="6"')
            if self.draw.random() < 0.15:  # by a constant: what is divided by zero is unsettled
                divisor = f'<Constant dataType="double">{self.one("-2", "0.5", "3")}</Constant>'
                return self.apply("/", self.numeric(depth - 1), divisor, more=more)
            if self.draw.random() < 0.15:  # finite, as those of 0 to a negative power are not
                exponent = f'<Constant dataType="double">{self.one("2", "3")}</Constant>'
                return self.apply("pow", self.numeric(depth - 1), exponent, more=more)
            return self.apply(self.one("+", "-", "*", "min", "max"),
                              self.numeric(depth - 1), self.numeric(depth - 1), more=more)  # fmt: skip # noqa: E501
        if kind == 3:
            many = [self.numeric(depth - 1) for _ in range(self.draw.randint(1, 3))]
            return self.apply(self.one("sum", "avg", "min", "max", "product"), *many)
        if kind == 4:
            other = [self.numeric(depth - 1)] * self.draw.randint(0, 1)
            return self.apply(
                "if", self.logical(depth - 1), self.numeric(depth - 1), *other,
                more=self.one("", "", ' mapMissingTo="0"', ' defaultValue="5"'),
            )  # fmt: skip
        if kind == 5:
            missing = self.one("", ' mapMissingTo="9"')
            outliers = self.one("asIs", "asMissingValues", "asExtremeValues")
            points = "".join(f'<LinearNorm orig="{a}" norm="{b}"/>'
                             for a, b in ((-1, 0), (0, 2), (1, 2.5), (3, -1)))  # fmt: skip
            name = self.one("x", "z")
            return f'<NormContinuous field="{name}" outliers="{outliers}"{missing}>{points}</NormContinuous>'  # noqa: E501
        if kind == 6:
            missing = self.one("", ' mapMissingTo="0.5"')
            return f'<NormDiscrete field="{self.draw.choice(self.texts)}" value="{self.one(*"abc")}"{missing}/>'  # noqa: E501
        if kind == 7:
            return self.binned(("1", "2", "3"), ("8", "9"))
        return self.mapped(("1", "2.5", "-3"), ("8", "9"))

    def binned(self, bins: tuple[str, ...], others: tuple[str, str]) -> str:
        closure = self.one(*CLOSURES)
        settings = ' dataType="double"' * bins[0].isdigit()  # without it JPMML takes texts
        settings += self.one("", f' defaultValue="{others[0]}"')
        settings += self.one("", f' mapMissingTo="{others[1]}"')
        cells = "".join(
            f'<DiscretizeBin binValue="{b}"><Interval closure="{closure}"'
            + (f' leftMargin="{k - 1}"' if k else self.one("", ' leftMargin="-3"'))
            + (f' rightMargin="{k}"' if k < 2 else "") + "/></DiscretizeBin>"
            for k, b in enumerate(bins)
        )  # fmt: skip
        return f'<Discretize field="{self.one("x", "z")}"{settings}>{cells}</Discretize>'

    def mapped(self, values: tuple[str, ...], others: tuple[str, str]) -> str:
        settings = ' dataType="double"' * values[0].isdigit()
        settings += self.one("", f' defaultValue="{others[0]}"')
        settings += self.one("", f' mapMissingTo="{others[1]}"')
        cells = "".join(
            f"<row><in>{a}</in><out>{v}</out></row>" for a, v in zip("abc", values, strict=True)
        )
        return (
            f'<MapValues outputColumn="out"{settings}><FieldColumnPair field="s" column="in"/>'
            f"<InlineTable>{cells}</InlineTable></MapValues>"
        )

    def textual(self, depth: int) -> str:
        """An expression whose result is one of a few texts."""
        kind = self.draw.randrange(5)
        if depth == 0 or kind == 0:
            return '<FieldRef field="s"/>'
        if kind == 1:
            return self.binned(("a", "b", "c"), ("b", "c"))
        if kind == 2:
            return self.mapped(("b", "c", "a"), ("a", "c"))
        if kind == 3:
            return self.apply("if", self.logical(depth - 1), self.textual(depth - 1),
                              f"<Constant>{self.one(*'abc')}</Constant>")  # fmt: skip
        return self.apply("lowercase", self.apply("uppercase", '<FieldRef field="s"/>'))

    def logical(self, depth: int) -> str:
        kind = self.draw.randrange(6 if depth > 0 else 4)
        if kind == 0:
            values = [f"<Constant>{v}</Constant>" for v in self.draw.sample("abc", 2)]
            return self.apply(self.one("isIn", "isNotIn"), '<FieldRef field="s"/>', *values)
        if kind == 1:
            return self.apply(self.one("isMissing", "isNotMissing"), '<FieldRef field="x"/>')
        if kind <= 3:
            function = self.one("lessThan", "lessOrEqual", "greaterThan", "greaterOrEqual",
                                "equal", "notEqual")  # fmt: skip
            return self.apply(function, self.numeric(max(depth - 1, 0)),
                              f'<Constant dataType="double">{self.number()}</Constant>')  # fmt: skip # noqa: E501
        if kind == 4:
            return self.apply("not", self.logical(depth - 1))
        return self.apply(self.one("and", "or"), self.logical(depth - 1), self.logical(depth - 1))

    def derived_fields(self, count: int) -> str:
        parts = []
        for _ in range(count):
            if self.draw.random() < 0.3:
                name, kind, optype = f"t{len(self.texts)}", "string", "categorical"
                expression = self.textual(2)
            else:
                name, optype = f"d{len(self.numbers)}", "continuous"
                kind = self.one("double", "double", "float", "integer")
                expression = self.numeric(self.draw.randint(1, 3))
            parts.append(f'<DerivedField name="{name}" optype="{optype}" dataType="{kind}">'
                         f"{expression}</DerivedField>")  # fmt: skip
            (self.texts if kind == "string" else self.numbers).append(name)
        return "".join(parts)

    # -- predicates ----------------------------------------------------------------------

    def predicate(self, depth: int = 1) -> str:
        kind = self.draw.randrange(8 if depth else 6)
        if kind <= 2:
            operator = self.one("lessThan", "lessOrEqual", "greaterThan", "greaterOrEqual")
            name = self.draw.choice(self.numbers)
            return (
                f'<SimplePredicate field="{name}" operator="{operator}" value="{self.number()}"/>'
            )
        if kind == 3:
            name, operator = self.draw.choice(self.texts), self.one("equal", "notEqual")
            return f'<SimplePredicate field="{name}" operator="{operator}" value="{self.one(*"abc")}"/>'  # noqa: E501
        if kind == 4:
            name, operator = self.draw.choice(self.texts), self.one("isIn", "isNotIn")
            some = " ".join(self.draw.sample("abc", self.draw.randint(1, 2)))
            return (f'<SimpleSetPredicate field="{name}" booleanOperator="{operator}">'
                    f'<Array type="string">{some}</Array></SimpleSetPredicate>')  # fmt: skip
        if kind == 5:
            name = self.draw.choice([*self.numbers, *self.texts])
            return f'<SimplePredicate field="{name}" operator="{self.one("isMissing", "isNotMissing")}"/>'  # noqa: E501
        operator = self.one("and", "or", "xor", "surrogate")
        parts = "".join(self.predicate(depth - 1) for _ in range(2))
        return f'<CompoundPredicate booleanOperator="{operator}">{parts}</CompoundPredicate>'

    def either(self) -> tuple[str, str]:
        """Two predicates for the children of a node, often opposite ones."""
        if self.draw.random() < 0.6:
            name, value = self.draw.choice(self.numbers), self.number()
            pair = self.draw.choice(
                [("lessThan", "greaterOrEqual"), ("lessOrEqual", "greaterThan")]
            )
            first, second = (
                f'<SimplePredicate field="{name}" operator="{o}" value="{value}"/>' for o in pair
            )
            return first, second
        return self.predicate(), self.one("<True/>", self.predicate())

    # -- models --------------------------------------------------------------------------

    def node(self, predicate: str, depth: int, classes: bool) -> str:
        name = f"n{self.draw.randrange(10**6)}"
        inner, default = "", ""
        if depth and self.draw.random() < 0.9:
            children = [self.node(p, depth - 1, classes) for p in self.either()]
            start = children[self.draw.randrange(2)]
            default = f' defaultChild="{start.split(QUOTE)[1]}"' * (self.draw.random() < 0.8)
            inner = "".join(children)
        if classes:
            counts = [self.draw.randint(0, 5) for _ in NAMES]
            counts[self.draw.randrange(3)] += 7
            score = NAMES[counts.index(max(counts))]
            shares = "".join(f'<ScoreDistribution value="{c}" recordCount="{n}"/>'
                             for c, n in zip(NAMES, counts, strict=True))  # fmt: skip
            count = f' recordCount="{sum(counts)}"'
        else:
            score, shares, count = f"{self.draw.gauss(0, 2):.3f}", "", ""
        return (
            f'<Node id="{name}" score="{score}"{count}{default}>{predicate}{shares}{inner}</Node>'
        )

    def tree(self, classes: bool, schema: str, extra: str = "", depth: int = 3) -> str:
        settings = self.one("", *(f' missingValueStrategy="{s}"' for s in (
            "none", "lastPrediction", "nullPrediction", "defaultChild")))  # fmt: skip
        settings += self.one("", ' noTrueChildStrategy="returnLastPrediction"',
                             ' noTrueChildStrategy="returnNullPrediction"')  # fmt: skip
        function = "classification" if classes else "regression"
        return (f'<TreeModel functionName="{function}"{settings} splitCharacteristic="multiSplit">'
                f"{schema}{extra}{self.node('<True/>', depth, classes)}</TreeModel>")  # fmt: skip

    def table(self, category: str = "") -> str:
        cells = "".join(
            f'<NumericPredictor name="{n}"{self.one("", "", SQUARE)} '
            f'coefficient="{self.draw.gauss(0, 1):.3f}"/>'
            for n in self.draw.sample(self.numbers, min(3, len(self.numbers)))
        )
        cells += "".join(f'<CategoricalPredictor name="{t}" value="{v}" coefficient="{k}.5"/>'
                         for t in self.texts[:2] for k, v in enumerate("abc"))  # fmt: skip
        if self.draw.random() < 0.3:
            cells += (f'<PredictorTerm coefficient="0.3"><FieldRef field="x"/>'
                      f'<FieldRef field="{self.draw.choice(self.numbers)}"/></PredictorTerm>')  # fmt: skip # noqa: E501
        name = f' targetCategory="{category}"' if category else ""
        return f'<RegressionTable intercept="{self.number()}"{name}>{cells}</RegressionTable>'

    def regression(self, classes: bool, schema: str, extra: str = "") -> str:
        if classes:
            tables = "".join(self.table(c) for c in NAMES[:2])
            tables += f'<RegressionTable intercept="0" targetCategory="{NAMES[2]}"/>'
            method = self.one("softmax", "simplemax", "logit", "none")
        else:
            tables, method = self.table(), self.one("none", "exp", "logit", "softmax", "none")
        function = "classification" if classes else "regression"
        return (f'<RegressionModel functionName="{function}" normalizationMethod="{method}">{schema}'  # noqa: E501
                f"{extra}{tables}</RegressionModel>")  # fmt: skip

    def ensemble(self, classes: bool, schema: str, extra: str = "") -> str:
        if classes:
            method = self.one("majorityVote", "weightedMajorityVote", "average", "weightedAverage",
                              "selectFirst")  # fmt: skip
        else:
            method = self.one("average", "weightedAverage", "sum", "median", "selectFirst",
                              "weightedSum")  # fmt: skip
        plain = self.draw.random() < 0.6
        # Fields of the dictionary are visible everywhere; JPMML finds none that a schema names.
        names = dict.fromkeys(["x", "z", "i", "s", *self.local])
        fields = "".join(f'<MiningField name="{name}"/>' for name in names)
        inner = f"<MiningSchema>{fields}{TARGET}</MiningSchema>"
        segments = "".join(
            f'<Segment id="s{k}"'
            + (f' weight="{self.one("0.5", "1", "1.5", "3")}"' if "eighted" in method else "")
            + f">{'<True/>' if plain else self.predicate()}{self.part(classes, inner)}</Segment>"
            for k in range(self.draw.randint(1, 4))
        )
        function = "classification" if classes else "regression"
        return (f'<MiningModel functionName="{function}">{schema}{extra}<Segmentation '
                f'multipleModelMethod="{method}">{segments}</Segmentation></MiningModel>')  # fmt: skip # noqa: E501

    def part(self, classes: bool, schema: str) -> str:
        if self.draw.random() < 0.75:
            return self.tree(classes, schema, depth=2)
        return self.regression(classes, schema)

    def scorecard(self, classes: bool, schema: str, extra: str = "") -> str:
        parts = ""
        for k in range(self.draw.randint(1, 3)):
            attributes = "".join(
                f'<Attribute partialScore="{self.draw.randint(-5, 20)}">{self.predicate()}'
                "</Attribute>"
                for _ in range(2)
            )
            last = f'<Attribute partialScore="{self.draw.randint(-5, 20)}"><True/></Attribute>'
            parts += f'<Characteristic name="c{k}">{attributes}{last}</Characteristic>'
        return (f'<Scorecard functionName="regression" initialScore="{self.number()}" '
                f'useReasonCodes="false">{schema}{extra}<Characteristics>{parts}</Characteristics>'
                "</Scorecard>")  # fmt: skip

    def rules(self, classes: bool, schema: str, extra: str = "") -> str:
        # Confidences rise with weights: evaluators differ in which of them decides.
        listed = "".join(
            f'<SimpleRule id="r{k}" score="{self.one(*NAMES)}" weight="0.{w}" confidence="0.{w}">'
            f"{self.predicate()}</SimpleRule>"
            for k, w in enumerate(self.draw.sample(range(1, 10), 4))
        )
        criterion = self.one("firstHit", "weightedSum", "weightedMax")
        default = self.one("", ' defaultScore="mid"')
        if PROBABILITIES in extra:  # of which rules have none
            extra = extra.replace(PROBABILITIES, "").replace("<Output></Output>", "")
        return (f'<RuleSetModel functionName="classification">{schema}{extra}<RuleSet{default}>'
                f'<RuleSelectionMethod criterion="{criterion}"/>{listed}</RuleSet></RuleSetModel>')  # fmt: skip # noqa: E501

    # -- around the model ----------------------------------------------------------------

    def around(self, classes: bool) -> str:
        if classes:
            return self.one("", f"<Output>{PROBABILITIES}</Output>", "<Output>"
                            '<OutputField name="o" feature="predictedValue" optype="categorical" '
                            f'dataType="string"/>{PROBABILITIES}</Output>')  # fmt: skip
        settings = self.one("", ' castInteger="round"', ' castInteger="floor"', ' min="-1" max="3"')
        settings += self.one("", ' rescaleFactor="2" rescaleConstant="-0.5"')
        inner = self.one("", '<TargetValue defaultValue="3.5"/>')
        targets = f'<Targets><Target field="y"{settings}>{inner}</Target></Targets>'
        outputs = (
            '<Output><OutputField name="o" feature="predictedValue" optype="continuous" '
            'dataType="double"/><OutputField name="q" feature="transformedValue" '
            'optype="continuous" dataType="double">'
            + self.apply("*", '<FieldRef field="o"/>', "<Constant>2</Constant>")
            + "</OutputField></Output>"
        )
        return self.one("", outputs) + self.one("", targets)


def document(seed: int) -> str:
    writer = Writer(seed)
    fields, mining = writer.data_fields(), writer.mining_fields()
    before = writer.derived_fields(writer.draw.randint(0, 2))
    dictionary = f"<TransformationDictionary>{before}</TransformationDictionary>" if before else ""
    names = {*writer.numbers, *writer.texts}
    local = writer.derived_fields(writer.draw.randint(0, 2))
    writer.local = [n for n in (*writer.numbers, *writer.texts) if n not in names]
    classes = writer.draw.random() < 0.5
    schema = f"<MiningSchema>{mining}{TARGET}</MiningSchema>"
    kinds = [writer.tree, writer.regression, writer.ensemble, writer.ensemble]
    kinds += [writer.rules] if classes else [writer.scorecard]
    extra = writer.around(classes)
    if local:
        extra += f"<LocalTransformations>{local}</LocalTransformations>"
    model = writer.draw.choice(kinds)(classes, schema, extra)
    text = (
        '<PMML version="4.4" xmlns="http://www.dmg.org/PMML-4_4"><Header/><DataDictionary>'
        f"{fields}{CLASS if classes else NUMBER}</DataDictionary>{dictionary}{model}</PMML>"
    )
    return in_version(text, writer.draw.choice(VERSIONS))


def main(first: int = 0, count: int = 300) -> Counter[str]:
    start_java()
    totals: Counter[str] = Counter()
    x = rows()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            verdict, reason = tried(document(seed), Path(folder) / "model.pmml", x)
            totals[verdict] += 1
            if verdict != "right":
                print(f"{seed:6} {verdict:14} {reason}", flush=True)
    print(dict(totals))
    return totals


if __name__ == "__main__":
    sys.exit(1 if main(*map(int, sys.argv[1:]))["wrong"] else 0)

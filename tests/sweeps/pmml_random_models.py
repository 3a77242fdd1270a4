"""PMML models of the rarer kinds, drawn at random, held against JPMML and PMML4S.

    python -m tests.sweeps.pmml_random_models [first seed] [how many] [part of a kind's name]

What `tests.sweeps.pmml_random` does for trees, rules and ensembles of them: general regressions,
support vectors, networks, naive Bayes, clusters, neighbours, scorecards with reasons, and chains,
behind the same fields and derived fields. Machines of support vectors with equal votes are "wrong"
here: JPMML takes the category that had a vote first, PMML4S another one, and this the one that
libsvm takes, the first in the order of its labels.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.sweeps.pmml_equations import NAMES, in_version, number_output, text_output
from tests.sweeps.pmml_judges import rows, tried
from tests.sweeps.pmml_pipelines import start_java
from tests.sweeps.pmml_random import VERSIONS, Writer
from tests.sweeps.pmml_text import CLASS, NUMBER, PROBABILITIES, TARGET

ACTIVATIONS = ("threshold", "logistic", "tanh", "identity", "exponential", "square", "Gauss",
               "sine", "cosine", "Elliott", "arctan", "rectifier", "radialBasis")  # fmt: skip
LINKS = ("identity", "log", "logc", "logit", "probit", "cloglog", "loglog")
DISTANCES = ("euclidean", "squaredEuclidean", "chebychev", "cityBlock", "minkowski")
SIMILARITIES = ("simpleMatching", "jaccard", "tanimoto", "binarySimilarity")


def models(tag: str, settings: str, *parts: str) -> str:
    return f"<{tag} {settings}>{''.join(parts)}</{tag}>"


class Models(Writer):
    """Draws models; each method gives the model element and whether its target is a class."""

    def real(self) -> str:
        return f"{self.draw.gauss(0, 1):.3f}"

    def some(self, names: list[str], most: int) -> list[str]:
        return self.draw.sample(names, self.draw.randint(1, min(most, len(names))))

    def outputs(self, *fields: str) -> str:
        chosen = [f for f in fields if self.draw.random() < 0.8]
        return f"<Output>{''.join(chosen)}</Output>" if chosen else ""

    # -- general regression ----------------------------------------------------------------

    def general_regression(self, schema: str, local: str) -> tuple[str, bool]:
        kind = self.one("regression", "generalLinear", "generalizedLinear", "generalizedLinear",
                        "multinomialLogistic", "ordinalMultinomial")  # fmt: skip
        classes = "ultinomial" in kind
        covariates, factors = self.some(self.numbers, 3), self.some(self.texts, 2)
        cells, names = "", ["p0"]
        for name in covariates:
            names.append(f"p{len(names)}")
            cells += self.cell(self.one("1", "1", "2"), name, names[-1])
        for name in factors:
            for value in self.draw.sample("abc", 2):
                names.append(f"p{len(names)}")
                cells += self.cell(value, name, names[-1])
                if self.draw.random() < 0.4:
                    cells += self.cell("1", self.draw.choice(covariates), names[-1])
        lists = "".join(
            f"<{tag}>{''.join(f'<Predictor name={chr(34)}{n}{chr(34)}/>' for n in items)}</{tag}>"
            for tag, items in (("FactorList", factors), ("CovariateList", covariates))
        )
        if kind == "multinomialLogistic":
            categories: list[str | None] = list(NAMES[:2])
        else:
            categories = list(NAMES[:2]) if classes else [None]
        matrix, shift = "", 0.0
        common = {n: self.real() for n in names}
        for category in categories:
            for n in names:
                beta = common[n] if kind == "ordinalMultinomial" and n != "p0" else self.real()
                if kind == "ordinalMultinomial" and n == "p0":
                    shift += 1.0
                    beta = f"{shift:.3f}"
                where = f' targetCategory="{category}"' if category else ""
                matrix += f'<PCell{where} parameterName="{n}" df="1" beta="{beta}"/>'
        settings = (
            f'modelType="{kind}" functionName="{"classification" if classes else "regression"}"'
        )
        if kind == "generalizedLinear":
            settings += f' linkFunction="{self.one(*LINKS)}"'
            settings += self.one(
                "", ' offsetValue="0.25"', f' offsetVariable="{self.one("x", "z")}"'
            )
            settings += self.one("", "", ' trialsValue="3"')
        if kind == "ordinalMultinomial":
            link = self.one("logit", "probit", "cloglog", "loglog", "cauchit")
            settings += f' cumulativeLink="{link}"'
        if kind == "multinomialLogistic":
            settings += f' targetReferenceCategory="{NAMES[2]}"' * (self.draw.random() < 0.5)
        parameters = "".join(f'<Parameter name="{n}"/>' for n in names)
        extra = self.outputs(PROBABILITIES) if classes else ""
        return models(
            "GeneralRegressionModel", settings, schema, extra, local,
            f"<ParameterList>{parameters}</ParameterList>{lists}<PPMatrix>{cells}</PPMatrix>"
            f"<ParamMatrix>{matrix}</ParamMatrix>",
        ), classes  # fmt: skip

    def cell(self, value: str, name: str, parameter: str) -> str:
        return f'<PPCell value="{value}" predictorName="{name}" parameterName="{parameter}"/>'

    # -- support vectors ---------------------------------------------------------------------

    def support_vectors(self, schema: str, local: str) -> tuple[str, bool]:
        classes = self.draw.random() < 0.6
        fields = self.some(self.numbers, 3)
        refs = "".join(f'<FieldRef field="{n}"/>' for n in fields)
        count = len(fields)
        if self.draw.random() < 0.4:
            refs += '<CategoricalPredictor name="s" value="b" coefficient="1"/>'
            count += 1
        vectors = ""
        for k in range(4):
            entries = [self.real() for _ in range(count)]
            if self.draw.random() < 0.5:
                body = f'<Array type="real" n="{count}">{" ".join(entries)}</Array>'
            else:
                places = sorted(self.draw.sample(range(count), self.draw.randint(1, count)))
                body = (
                    f'<REAL-SparseArray n="{count}"><Indices>{" ".join(str(p + 1) for p in places)}'
                    f"</Indices><REAL-Entries>{' '.join(entries[p] for p in places)}</REAL-Entries>"
                    "</REAL-SparseArray>"
                )
            vectors += f'<VectorInstance id="v{k}">{body}</VectorInstance>'
        kernel = self.one(
            "<LinearKernelType/>", '<RadialBasisKernelType gamma="0.3"/>',
            '<PolynomialKernelType gamma="0.5" coef0="1" degree="3"/>',
            '<PolynomialKernelType degree="2"/>', '<SigmoidKernelType gamma="0.2" coef0="0.1"/>',
        )  # fmt: skip
        by_coefficients = kernel.startswith("<Linear") and self.draw.random() < 0.5
        settings = f'functionName="{"classification" if classes else "regression"}"'
        settings += (
            f' svmRepresentation="{"Coefficients" if by_coefficients else "SupportVectors"}"'
        )
        one_against_one = self.draw.random() < 0.5
        pairs: list[tuple[str, str]] = [("", "")]
        if classes and one_against_one:
            pairs = [(NAMES[0], NAMES[1]), (NAMES[0], NAMES[2]), (NAMES[1], NAMES[2])]
        elif classes:
            pairs = [(n, "") for n in NAMES]
        if classes:
            settings += (
                f' classificationMethod="{"OneAgainstOne" if one_against_one else "OneAgainstAll"}"'
            )
            settings += self.one("", ' maxWins="true"', ' maxWins="false"')
            settings += self.one("", ' threshold="0.2"') if one_against_one else ""
        machines = "".join(self.machine(p, by_coefficients, count) for p in pairs)
        dictionary = (
            f'<VectorDictionary><VectorFields numberOfFields="{count}">{refs}</VectorFields>'
            f"{'' if by_coefficients else vectors}</VectorDictionary>"
        )
        return models(
            "SupportVectorMachineModel", settings, schema, local, kernel, dictionary, machines
        ), classes

    def machine(self, pair: tuple[str, str], by_coefficients: bool, count: int) -> str:
        names = zip(("targetCategory", "alternateTargetCategory"), pair, strict=True)
        where = "".join(f' {k}="{v}"' for k, v in names if v)
        numbers = count if by_coefficients else self.draw.randint(2, 4)
        support = "".join(f'<SupportVector vectorId="v{k}"/>' for k in range(numbers))
        held = "" if by_coefficients else f"<SupportVectors>{support}</SupportVectors>"
        values = "".join(f'<Coefficient value="{self.real()}"/>' for _ in range(numbers))
        return (f"<SupportVectorMachine{where}>{held}<Coefficients absoluteValue="
                f'"{self.real()}">{values}</Coefficients></SupportVectorMachine>')  # fmt: skip

    # -- networks ----------------------------------------------------------------------------

    def network(self, schema: str, local: str) -> tuple[str, bool]:
        classes = self.draw.random() < 0.5
        inputs, before = "", []
        for name in self.some(self.numbers, 3):
            before.append(f"i{len(before)}")
            inputs += self.input(before[-1], self.one(
                f'<FieldRef field="{name}"/>', f'<NormContinuous field="{name}"><LinearNorm '
                'orig="-1" norm="0"/><LinearNorm orig="3" norm="1"/></NormContinuous>',
            ))  # fmt: skip
        for value in self.draw.sample("abc", 2):
            before.append(f"i{len(before)}")
            inputs += self.input(before[-1], f'<NormDiscrete field="s" value="{value}" '
                                 'mapMissingTo="0"/>')  # fmt: skip
        layers, widths = "", [self.draw.randint(2, 3) for _ in range(self.draw.randint(0, 2))]
        widths.append(3 if classes else 1)
        default = self.one(*ACTIVATIONS[1:4])
        for depth, width in enumerate(widths):
            last = depth + 1 == len(widths)
            safe = [a for a in ACTIVATIONS if last or a not in ("exponential", "square")]
            function = self.one("", f' activationFunction="{self.one(*safe)}"')
            more = ' width="1.5" altitude="0.9"' if "radial" in function else ""
            if "threshold" in function:
                more = ' threshold="0.3"'
            method = self.one("", ' normalizationMethod="softmax"') if last and classes else ""
            names = [f"n{depth}_{k}" for k in range(width)]
            layers += f"<NeuralLayer{function}{more}{method}>"
            for name in names:
                links = "".join(f'<Con from="{b}" weight="{self.real()}"/>' for b in before)
                layers += f'<Neuron id="{name}" bias="{self.real()}">{links}</Neuron>'
            layers += "</NeuralLayer>"
            before = names
        fields = [f'<NormDiscrete field="y" value="{c}"/>' for c in NAMES]
        if not classes:
            fields = [self.one('<FieldRef field="y"/>', '<NormContinuous field="y"><LinearNorm '
                               'orig="-2" norm="0"/><LinearNorm orig="5" norm="1"/>'
                               "</NormContinuous>")]  # fmt: skip
        out = "".join(
            f'<NeuralOutput outputNeuron="{n}"><DerivedField optype="continuous" dataType="double">'
            f"{f}</DerivedField></NeuralOutput>"
            for n, f in zip(before, fields, strict=True)
        )
        settings = (f'functionName="{"classification" if classes else "regression"}" '
                    f'activationFunction="{default}"')  # fmt: skip
        extra = self.outputs(PROBABILITIES, text_output("e", "entityId")) if classes else ""
        return models("NeuralNetwork", settings, schema, extra, local,
                      f"<NeuralInputs>{inputs}</NeuralInputs>{layers}"
                      f"<NeuralOutputs>{out}</NeuralOutputs>"), classes  # fmt: skip

    def input(self, name: str, expression: str) -> str:
        return (f'<NeuralInput id="{name}"><DerivedField optype="continuous" dataType="double">'
                f"{expression}</DerivedField></NeuralInput>")  # fmt: skip

    # -- naive Bayes -------------------------------------------------------------------------

    def bayes(self, schema: str, local: str) -> tuple[str, bool]:
        inputs = ""
        for name in self.some(self.texts, 2):
            pairs = "".join(
                f'<PairCounts value="{v}">{self.counts(0.2)}</PairCounts>'
                for v in self.draw.sample("abc", self.draw.randint(2, 3))
            )
            inputs += f'<BayesInput fieldName="{name}">{pairs}</BayesInput>'
        for name in self.some(self.numbers, 2):
            stats = "".join(
                f'<TargetValueStat value="{c}"><GaussianDistribution mean="{self.real()}" '
                f'variance="{self.draw.uniform(0.2, 3):.3f}"/></TargetValueStat>' for c in NAMES
            )  # fmt: skip
            inputs += (f'<BayesInput fieldName="{name}"><TargetValueStats>{stats}'
                       "</TargetValueStats></BayesInput>")  # fmt: skip
        if self.draw.random() < 0.4:
            pairs = "".join(f'<PairCounts value="{v}">{self.counts(0.2)}</PairCounts>'
                            for v in ("lo", "hi"))  # fmt: skip
            inputs += (
                '<BayesInput fieldName="z"><DerivedField optype="categorical" dataType="string">'
                '<Discretize field="z"><DiscretizeBin binValue="lo"><Interval closure="openClosed" '
                'rightMargin="0"/></DiscretizeBin><DiscretizeBin binValue="hi"><Interval '
                'closure="openOpen" leftMargin="0"/></DiscretizeBin></Discretize></DerivedField>'
                f"{pairs}</BayesInput>"
            )
        settings = f'functionName="classification" threshold="{self.one("0.001", "0.1", "1e-6")}"'
        return models("NaiveBayesModel", settings, schema, self.outputs(PROBABILITIES), local,
                      f"<BayesInputs>{inputs}</BayesInputs>"
                      f'<BayesOutput fieldName="y">{self.counts(0)}</BayesOutput>'), True  # fmt: skip # noqa: E501

    def counts(self, empty: float) -> str:
        cells = "".join(
            f'<TargetValueCount value="{c}" '
            f'count="{0 if self.draw.random() < empty else self.draw.randint(1, 30)}"/>'
            for c in NAMES
        )
        return f"<TargetValueCounts>{cells}</TargetValueCounts>"

    # -- clusters and neighbours --------------------------------------------------------------

    def measure(self, texts: bool) -> str:
        kind = self.one(*DISTANCES)
        more = ' p-parameter="3"' if kind == "minkowski" else ""
        function = self.one("", ' compareFunction="absDiff"') if not texts else ""
        return f'<ComparisonMeasure kind="distance"{function}><{kind}{more}/></ComparisonMeasure>'

    def field_settings(self, name: str, scaled: bool = False) -> str:
        if name in self.texts:
            return self.one(' compareFunction="delta"', ' compareFunction="equal"')
        gauss = ' compareFunction="gaussSim" similarityScale="1.5"' if scaled else ""
        more = self.one("", gauss, ' compareFunction="absDiff"')
        return more + self.one("", ' fieldWeight="2"', ' fieldWeight="0.5"')

    def clusters(self, schema: str, local: str) -> tuple[str, bool]:
        if self.draw.random() < 0.25:
            return self.similar(schema), True
        fields = self.some(self.numbers, 3)
        held = "".join(
            f'<ClusteringField field="{n}"{self.field_settings(n, True)} isCenterField="true"/>'
            for n in fields
        )
        weights = ""
        if self.draw.random() < 0.4:
            entries = " ".join(self.one("0.5", "1", "2") for _ in fields)
            weights = (f'<MissingValueWeights><Array type="real" n="{len(fields)}">{entries}'
                       "</Array></MissingValueWeights>")  # fmt: skip
        groups = "".join(
            f'<Cluster id="c{k}" name="name{k}"><Array type="real" n="{len(fields)}">'
            f"{' '.join(self.real() for _ in fields)}</Array></Cluster>" for k in range(4)
        )  # fmt: skip
        extra = self.outputs(
            text_output("p", "predictedValue"), text_output("e", "entityId"),
            text_output("e2", "entityId", rank=2), number_output("a", "affinity"),
            number_output("a2", "affinity", rank=2), number_output("a3", "affinity", value="c3"),
            text_output("d", "predictedDisplayValue"),
        )  # fmt: skip
        settings = 'functionName="clustering" modelClass="centerBased" numberOfClusters="4"'
        return models("ClusteringModel", settings, schema.replace(TARGET, ""), extra, local,
                      self.measure(False), held, weights, groups), True  # fmt: skip

    def similar(self, schema: str) -> str:
        kind = self.one(*SIMILARITIES)
        more = "".join(
            f' {side}{cell}-parameter="{self.one("1", "2", "0.5")}"'
            for side in "cd" for cell in ("00", "01", "10", "11")
        ) * (kind == "binarySimilarity")  # fmt: skip
        names = ("i", "b0", "b1")
        derived = "".join(
            f'<DerivedField name="{n}" optype="continuous" dataType="double"><NormDiscrete '
            f'field="s" value="{v}" mapMissingTo="0"/></DerivedField>'
            for n, v in zip(names[1:], "ab", strict=True)
        )
        held = "".join(f'<ClusteringField field="{n}" compareFunction="absDiff"/>'
                       for n in names[1:])  # fmt: skip
        groups = "".join(
            f'<Cluster id="c{k}"><Array type="real" n="2">{k % 2} {k // 2}</Array></Cluster>'
            for k in range(3 + (kind == "simpleMatching"))
        ) if kind != "jaccard" else "".join(
            f'<Cluster id="c{k}"><Array type="real" n="2">{v}</Array></Cluster>'
            for k, v in enumerate(("1 0", "0 1", "1 1"))
        )  # fmt: skip
        return models(
            "ClusteringModel", 'functionName="clustering" modelClass="centerBased" '
            'numberOfClusters="3"', schema.replace(TARGET, ""),
            self.outputs(text_output("e", "entityId"), number_output("a", "affinity")),
            f"<LocalTransformations>{derived}</LocalTransformations>",
            f'<ComparisonMeasure kind="similarity"><{kind}{more}/></ComparisonMeasure>',
            held, groups,
        )  # fmt: skip

    def neighbours(self, schema: str, local: str) -> tuple[str, bool]:
        classes = self.draw.random() < 0.5
        fields = ["x", *self.draw.sample(["z", "s"], self.draw.randint(0, 2))]
        held = "".join(f'<KNNInput field="{n}"{self.field_settings(n)}/>' for n in fields)
        table = ""
        for k in range(9):
            cells = "".join(
                f"<{n}>{self.one(*'abc') if n == 's' else self.real()}</{n}>" for n in fields
            )
            value = self.one(*NAMES) if classes else self.real()
            table += f"<row><id>r{k}</id>{cells}<y>{value}</y></row>"
        places = "".join(f'<InstanceField field="{n}" column="{n}"/>' for n in ("id", *fields, "y"))
        method = (f' categoricalScoringMethod="{self.one("majorityVote", "weightedMajorityVote")}"'
                  if classes else f' continuousScoringMethod="{self.one("average", "median", "weightedAverage")}"')  # fmt: skip # noqa: E501
        settings = (f'functionName="{"classification" if classes else "regression"}" '
                    f'numberOfNeighbors="{self.one("1", "3", "4")}" instanceIdVariable="id"{method}'
                    + self.one("", ' threshold="0.05"'))  # fmt: skip
        extra = self.outputs(text_output("e", "entityId", rank=1), number_output("a", "affinity"),
                             text_output("e2", "entityId", rank=2))  # fmt: skip
        return models("NearestNeighborModel", settings, schema, extra, local,
                      f'<TrainingInstances isTransformed="false"><InstanceFields>{places}'
                      f"</InstanceFields><InlineTable>{table}</InlineTable></TrainingInstances>",
                      self.measure("s" in fields), f"<KNNInputs>{held}</KNNInputs>"), classes  # fmt: skip # noqa: E501

    # -- scorecards and chains -------------------------------------------------------------------

    def reasons(self, schema: str, local: str) -> tuple[str, bool]:
        parts = ""
        for k in range(self.draw.randint(2, 4)):
            own = self.draw.random() < 0.5
            attributes = ""
            for j in range(3):
                code = f' reasonCode="r{k}{j if self.draw.random() < 0.7 else 0}"' if own else ""
                test = "<True/>" if j == 2 else self.predicate()
                if self.draw.random() < 0.3:
                    score = f"<ComplexPartialScore>{self.numeric(2)}</ComplexPartialScore>"
                    attributes += f"<Attribute{code}>{test}{score}</Attribute>"
                else:
                    points = f' partialScore="{self.draw.randint(-5, 20)}"'
                    attributes += f"<Attribute{code}{points}>{test}</Attribute>"
            base = f' baselineScore="{self.draw.randint(-2, 12)}"'
            code = "" if own else f' reasonCode="{self.one("shared", f"R{k}")}"'
            parts += f'<Characteristic name="c{k}"{base}{code}>{attributes}</Characteristic>'
        algorithm = self.one("", *(f' reasonCodeAlgorithm="points{w}"' for w in ("Above", "Below")))
        settings = (f'functionName="regression" initialScore="{self.number()}" '
                    f'useReasonCodes="true"{algorithm}')  # fmt: skip
        extra = self.outputs(number_output("o", "predictedValue"),
                             *(text_output(f"c{k}", "reasonCode", rank=k) for k in (1, 2, 3)))  # fmt: skip # noqa: E501
        return models("Scorecard", settings, schema, extra, local,
                      f"<Characteristics>{parts}</Characteristics>"), False  # fmt: skip

    def chain(self, schema: str, local: str) -> tuple[str, bool]:
        fields = dict.fromkeys(["x", "z", "i", "s", *self.local])
        inner = "".join(f'<MiningField name="{n}"/>' for n in fields)
        first = self.tree(False, f"<MiningSchema>{inner}</MiningSchema>", "<Output>"
                          + number_output("first", "predictedValue") + "</Output>", depth=2)  # fmt: skip # noqa: E501
        second = self.regression(False, f"<MiningSchema>{inner}</MiningSchema>", "<Output>"
                                 + number_output("second", "predictedValue") + "</Output>")  # fmt: skip # noqa: E501
        self.numbers += ["first", "second"]
        classes = self.draw.random() < 0.5
        seen = inner + '<MiningField name="first"/><MiningField name="second"/>'
        last_schema = f"<MiningSchema>{seen}{TARGET}</MiningSchema>"
        kind = self.draw.choice([self.regression, self.tree])
        last = kind(classes, last_schema, f"<Output>{PROBABILITIES}</Output>" * classes)
        segments = "".join(
            f'<Segment id="{k}">{"<True/>" if k == 3 or self.draw.random() < 0.7 else self.predicate_early()}'  # noqa: E501
            f"{m}</Segment>" for k, m in enumerate((first, second, last), 1)
        )  # fmt: skip
        function = "classification" if classes else "regression"
        return (f'<MiningModel functionName="{function}">{schema}{local}<Segmentation '
                f'multipleModelMethod="modelChain">{segments}</Segmentation></MiningModel>'), classes  # fmt: skip # noqa: E501

    def predicate_early(self) -> str:
        return f'<SimplePredicate field="x" operator="lessThan" value="{self.number()}"/>'

    def all(self) -> list[Callable[[str, str], tuple[str, bool]]]:
        return [self.general_regression, self.support_vectors, self.network, self.bayes,
                self.clusters, self.neighbours, self.reasons, self.chain]  # fmt: skip


def document(seed: int, part: str = "") -> tuple[str, str]:
    """The name of the kind of model, and the document."""
    writer = Models(seed)
    fields, mining = writer.data_fields(), writer.mining_fields()
    before = writer.derived_fields(writer.draw.randint(0, 2))
    dictionary = f"<TransformationDictionary>{before}</TransformationDictionary>" if before else ""
    names = {*writer.numbers, *writer.texts}
    inner = writer.derived_fields(writer.draw.randint(0, 2))
    writer.local = [n for n in (*writer.numbers, *writer.texts) if n not in names]
    local = f"<LocalTransformations>{inner}</LocalTransformations>" if inner else ""
    kinds = [k for k in writer.all() if part in k.__name__]
    kind = writer.draw.choice(kinds)
    model, classes = kind(f"<MiningSchema>{mining}{TARGET}</MiningSchema>", local)
    text = (
        '<PMML version="4.4" xmlns="http://www.dmg.org/PMML-4_4"><Header/><DataDictionary>'
        f"{fields}{CLASS if classes else NUMBER}</DataDictionary>{dictionary}{model}</PMML>"
    )
    return kind.__name__, in_version(text, writer.draw.choice(VERSIONS))


def main(first: int = 0, count: int = 300, part: str = "") -> Counter[str]:
    start_java()
    totals: Counter[str] = Counter()
    x = rows()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            kind, text = document(seed, part)
            verdict, reason = tried(text, Path(folder) / "model.pmml", x)
            totals[verdict] += 1
            if verdict != "right":
                print(f"{seed:6} {kind:19} {verdict:14} {reason}", flush=True)
    print(dict(totals))
    return totals


if __name__ == "__main__":
    numbers = [int(a) for a in sys.argv[1:3]]
    sys.exit(1 if main(*numbers, *sys.argv[3:4])["wrong"] else 0)

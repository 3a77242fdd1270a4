"""Pipelines whose transformers, domains and wrappers are the point (see `pmml_cases`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.sweeps.pmml_cases import (
    NUMBERS,
    TEXTS,
    Case,
    columns,
    dense,
    frame,
    numbers_only,
    plain,
    pmml,
    targets,
    with_holes,
)


def _fixed(pipeline: Any, target: str, x: Any = None) -> Case:
    def case() -> tuple[Any, Any, Any]:
        rows = frame() if x is None else x
        return pipeline, rows, targets(frame())[target]

    return case


def _ridge() -> Any:
    from sklearn.linear_model import Ridge

    return Ridge()


def _tree(depth: int = 4) -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=depth, random_state=0)


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=500)


def cases() -> dict[str, Case]:
    return {**numbers(), **domains(), **selections(), **texts(), **expressions(), **wrappers()}


def numbers() -> dict[str, Case]:
    from sklearn import decomposition, impute, preprocessing

    steps = {
        "min max": preprocessing.MinMaxScaler(),
        "min max clip": preprocessing.MinMaxScaler((-1, 1), clip=True),
        "max abs": preprocessing.MaxAbsScaler(),
        "robust": preprocessing.RobustScaler(),
        "standard without mean": preprocessing.StandardScaler(with_mean=False),
        "normalizer": preprocessing.Normalizer(),
        "normalizer max": preprocessing.Normalizer("max"),
        "power": preprocessing.PowerTransformer(),
        "quantile": preprocessing.QuantileTransformer(n_quantiles=20),
        "polynomial": preprocessing.PolynomialFeatures(2),
        "polynomial interactions": preprocessing.PolynomialFeatures(
            3, interaction_only=True, include_bias=False
        ),
        "spline": preprocessing.SplineTransformer(4),
        "binarizer": preprocessing.Binarizer(threshold=30),
        "bins one hot": preprocessing.KBinsDiscretizer(
            4, encode="onehot-dense", quantile_method="averaged_inverted_cdf"
        ),
        "bins ordinal": preprocessing.KBinsDiscretizer(4, encode="ordinal", strategy="uniform"),
        "pca": decomposition.PCA(3),
        "pca whiten": decomposition.PCA(2, whiten=True),
        "incremental pca": decomposition.IncrementalPCA(2),
        "svd": decomposition.TruncatedSVD(2),
        "log1p": preprocessing.FunctionTransformer(np.log1p),
        "sqrt": preprocessing.FunctionTransformer(np.sqrt),
    }
    made = {f"{n} + ridge": _fixed(pmml(columns((s, NUMBERS)), _ridge()), "number")
            for n, s in steps.items() if n not in ("log1p", "sqrt")}  # fmt: skip
    for name in ("log1p", "sqrt"):
        made[name] = _fixed(pmml(columns((steps[name], ["income"])), _ridge()), "number")
    holes = with_holes(frame(), NUMBERS)
    for strategy in ("mean", "median", "most_frequent"):
        made[f"impute {strategy}"] = _fixed(
            pmml(columns((impute.SimpleImputer(strategy=strategy), NUMBERS)), _ridge()),
            "number", holes,
        )  # fmt: skip
    made["impute constant with indicator"] = _fixed(
        pmml(
            columns((impute.SimpleImputer(strategy="constant", fill_value=-1.0,
                                          add_indicator=True), NUMBERS)), _ridge(),
        ), "number", holes,
    )  # fmt: skip
    made["missing indicator"] = _fixed(
        pmml(columns((impute.MissingIndicator(), NUMBERS)), _tree()), "binary", holes
    )
    return made


def domains() -> dict[str, Case]:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder
    from sklearn2pmml.decoration import CategoricalDomain, ContinuousDomain, OrdinalDomain

    holes = with_holes(frame(), ["age", "income", "home"])
    made = {}
    for outlier in ("as_is", "as_missing_values", "as_extreme_values"):
        settings = {"missing_value_replacement": 33.0, "missing_value_treatment": "as_mean"}
        if outlier != "as_is":
            settings.update(outlier_treatment=outlier, low_value=25.0, high_value=70.0)
        made[f"continuous domain {outlier}"] = _fixed(
            pmml(columns((ContinuousDomain(**settings), ["age", "hours"])), _ridge()),
            "number", holes,
        )  # fmt: skip
    for treatment in ("as_is", "as_missing", "as_value"):
        settings = {"invalid_value_treatment": treatment, "missing_value_replacement": "own"}
        if treatment == "as_value":
            settings["invalid_value_replacement"] = "rent"
        made[f"categorical domain {treatment}"] = _fixed(
            pmml(
                columns((make_pipeline(CategoricalDomain(**settings),
                                       OneHotEncoder(handle_unknown="ignore")), ["home"])),
                _logistic(),
            ), "binary", holes,
        )  # fmt: skip
    made["ordinal domain"] = _fixed(
        pmml(columns((make_pipeline(OrdinalDomain(), OrdinalEncoder()), ["job"])), _tree()),
        "classes",
    )
    made["continuous domain as_asis tree"] = _fixed(
        pmml(columns((ContinuousDomain(with_statistics=True), NUMBERS)), _tree(6)), "classes"
    )
    return made


def selections() -> dict[str, Case]:
    from sklearn import ensemble, feature_selection
    from sklearn.preprocessing import StandardScaler
    from sklearn2pmml.feature_selection import SelectUnique

    steps = {
        "k best": feature_selection.SelectKBest(k=3),
        "percentile": feature_selection.SelectPercentile(percentile=50),
        "variance": feature_selection.VarianceThreshold(0.2),
        "from model": feature_selection.SelectFromModel(
            ensemble.RandomForestClassifier(5, random_state=0)
        ),
        "rfe": feature_selection.RFE(_tree(), n_features_to_select=3),
        "unique": SelectUnique(),
    }
    return {
        **{f"select {n}": _fixed(pmml(dense(), s, _logistic()), "binary")
           for n, s in steps.items()},
        "select then scale": _fixed(
            pmml(dense(), steps["k best"], StandardScaler(), _tree()), "classes"
        ),
    }  # fmt: skip


def texts() -> dict[str, Case]:
    from sklearn import naive_bayes
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import (
        LabelBinarizer,
        OneHotEncoder,
        OrdinalEncoder,
        TargetEncoder,
    )
    from sklearn2pmml.preprocessing import (
        ConcatTransformer,
        LookupTransformer,
        MatchesTransformer,
        MultiLookupTransformer,
        PMMLLabelBinarizer,
        PMMLLabelEncoder,
        ReplaceTransformer,
        StringLengthTransformer,
        StringNormalizer,
        SubstringTransformer,
    )

    encode = OneHotEncoder(sparse_output=False)
    holes = with_holes(frame(), TEXTS)
    made = {
        "ordinal + tree": columns((OrdinalEncoder(), TEXTS)),
        "one hot drop first": columns((OneHotEncoder(drop="first"), TEXTS)),
        "one hot if binary": columns((OneHotEncoder(drop="if_binary"), TEXTS)),
        "one hot infrequent": columns((OneHotEncoder(min_frequency=60, handle_unknown="ignore"),
                                       TEXTS)),
        "target encoder": columns((TargetEncoder(random_state=0), TEXTS)),
        "label binarizer": columns((LabelBinarizer(), "job")),
        "pmml label encoder": columns((PMMLLabelEncoder(), ["job"])),
        "pmml label binarizer": columns((PMMLLabelBinarizer(), ["job"])),
        "lookup": columns((LookupTransformer({"own": 1.0, "rent": 2.0}, 0.5), ["home"])),
        "multi lookup": columns((MultiLookupTransformer(
            {("own", "a"): 1.0, ("rent", "b"): 2.0, ("other", "c"): -1.5}, 0.0), TEXTS)),
        "upper case": columns((make_pipeline(StringNormalizer("uppercase"), encode), ["home"])),
        "substring": columns((make_pipeline(SubstringTransformer(0, 1), encode), ["home"])),
        "matches": columns((MatchesTransformer("^o"), ["home"])),
        "replace": columns((make_pipeline(ReplaceTransformer("o", "0"), encode), ["home"])),
        "length": columns((StringLengthTransformer(), ["home"])),
        "concat": columns((make_pipeline(ConcatTransformer("-"), encode), TEXTS)),
    }  # fmt: skip
    cases = {n: _fixed(pmml(step, _tree()), "binary") for n, step in made.items()}
    for name, model in {
        "bernoulli bayes": naive_bayes.BernoulliNB(),
        "multinomial bayes": naive_bayes.MultinomialNB(),
        "complement bayes": naive_bayes.ComplementNB(),
    }.items():
        cases[name] = _fixed(pmml(columns((encode, TEXTS)), model), "classes")
    cases["categorical bayes"] = _fixed(
        pmml(columns((OrdinalEncoder(), TEXTS)), naive_bayes.CategoricalNB()), "classes"
    )
    cases["missing texts as a category"] = _fixed(
        pmml(make_column_transformer((OneHotEncoder(), TEXTS)), _tree()), "binary", holes
    )
    return cases


def expressions() -> dict[str, Case]:
    from sklearn.pipeline import FeatureUnion, make_pipeline
    from sklearn.preprocessing import OneHotEncoder
    from sklearn2pmml.decoration import Alias
    from sklearn2pmml.expression import ExpressionClassifier, ExpressionRegressor
    from sklearn2pmml.preprocessing import (
        AggregateTransformer,
        CastTransformer,
        CutTransformer,
        ExpressionTransformer,
        PowerFunctionTransformer,
    )
    from sklearn2pmml.util import Expression

    formulas = {
        "ratio": "X['income'] / X['age']",
        "logs": "numpy.log(X['income']) + numpy.sqrt(X['age'])",
        "choice": "X['age'] if X['age'] > 40 else X['hours']",
        "nested": "1.0 if X['age'] > 60 else (2.0 if X['hours'] > 40 else 3.0)",
        "logic": "1 if (X['age'] > 40 and X['hours'] < 45) or X['count'] == 2 else 0",
        "texts": "1 if X['home'] == 'own' else 0",
        "membership": "1 if X['job'] in ['a', 'c'] else 0",
        "integers": "X['count'] % 3 + X['count'] // 2",
        "powers": "X['age'] ** 2 - abs(X['hours'] - 40)",
        "rounding": "numpy.floor(X['hours']) + numpy.ceil(X['age'] / 7)",
        "trigonometry": "numpy.sin(X['hours']) + numpy.arctan(X['age'])",
        "exponents": "numpy.exp(X['hours'] / 50) + numpy.expm1(X['age'] / 100)",
    }
    everything = [*NUMBERS, *TEXTS]
    made = {
        f"expression {n}": _fixed(
            pmml(columns((Alias(ExpressionTransformer(f), n), everything)), _ridge()), "number"
        )
        for n, f in formulas.items()
    }
    for function in ("min", "max", "mean", "sum", "prod"):
        made[f"aggregate {function}"] = _fixed(
            pmml(columns((AggregateTransformer(function), NUMBERS)), _ridge()), "number"
        )
    cut = CutTransformer(bins=[0, 30, 50, 100], labels=["young", "middle", "old"])
    made["cut labels"] = _fixed(
        pmml(columns((make_pipeline(cut, OneHotEncoder()), ["age"])), _ridge()), "number"
    )
    for right in (True, False):
        made[f"cut numbers right={right}"] = _fixed(
            pmml(columns((make_pipeline(CutTransformer([0, 30, 50, 100], labels=False, right=right),
                                        OneHotEncoder()), ["age"])), _ridge()),
            "number",
        )  # fmt: skip
    made["cast"] = _fixed(pmml(columns((CastTransformer(int), ["hours"])), _ridge()), "number")
    made["power function"] = _fixed(
        pmml(columns((PowerFunctionTransformer(3), ["hours"])), _ridge()), "number"
    )
    made["feature union"] = _fixed(
        pmml(numbers_only(), FeatureUnion([("a", PowerFunctionTransformer(2)),
                                           ("b", CastTransformer(float))]), _ridge()), "number",
    )  # fmt: skip
    for method in ("none", "exp"):
        made[f"expression regressor {method}"] = _fixed(
            pmml(ExpressionRegressor(Expression("X['age'] / 50 - X['hours'] / 40"), method)),
            "number",
        )
    made["expression classifier"] = _fixed(
        pmml(ExpressionClassifier({"yes": Expression("X['age'] / 50 - X['hours'] / 40")}, "logit")),
        "binary",
    )
    return made


def wrappers() -> dict[str, Case]:
    from sklearn import cluster, ensemble, multioutput
    from sklearn.linear_model import LinearRegression
    from sklearn2pmml.ensemble import (
        EstimatorChain,
        GBDTLMRegressor,
        GBDTLRClassifier,
        SelectFirstClassifier,
    )
    from sklearn2pmml.postprocessing import BusinessDecisionTransformer
    from sklearn2pmml.preprocessing import ExpressionTransformer
    from sklearn2pmml.ruleset import RuleSetClassifier

    decision = BusinessDecisionTransformer(
        ExpressionTransformer("'approve' if X[1] > 0.5 else 'decline'"),
        "What to do?",
        [("approve", "Approve"), ("decline", "Decline")],
        prefit=True,
    )
    return {
        "k means": _fixed(pmml(plain(), cluster.KMeans(3, n_init=3, random_state=0)), "number"),
        "mini batch k means": _fixed(
            pmml(plain(), cluster.MiniBatchKMeans(3, n_init=3, random_state=0)), "number"
        ),
        "several numbers": _fixed(
            pmml(dense(), multioutput.MultiOutputRegressor(_ridge())), "numbers"
        ),
        "chain of numbers": _fixed(
            pmml(dense(), multioutput.RegressorChain(_ridge(), order=[1, 0])), "numbers"
        ),
        "several flags": _fixed(
            pmml(dense(), multioutput.MultiOutputClassifier(_logistic())), "flags"
        ),
        "chain of flags": _fixed(pmml(dense(), multioutput.ClassifierChain(_logistic())), "flags"),
        "trees of several numbers": _fixed(pmml(dense(), LinearRegression()), "numbers"),
        "gbdt + lr": _fixed(
            pmml(dense(), GBDTLRClassifier(
                ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0), _logistic())),
            "binary",
        ),
        "gbdt + lm": _fixed(
            pmml(dense(), GBDTLMRegressor(
                ensemble.GradientBoostingRegressor(n_estimators=5, random_state=0),
                LinearRegression())),
            "number",
        ),
        "first that fits": _fixed(
            pmml(SelectFirstClassifier([
                ("old", pmml(numbers_only(), _tree(3)), "X['age'] > 50"),
                ("young", pmml(numbers_only(), _logistic()), "X['age'] <= 50"),
            ])),
            "binary",
        ),
        "estimator chain": _fixed(
            pmml(dense(), EstimatorChain([("a", _tree(3), str(True)), ("b", _tree(2), str(True))],
                                         multioutput=False)),
            "binary",
        ),
        "rules": _fixed(
            pmml(RuleSetClassifier([("X['age'] > 60", "yes"), ("X['hours'] < 35", "no")], "yes")),
            "binary",
        ),
        "scores after the model": _fixed(
            pmml(dense(), _logistic(),
                 predict_proba_transformer=ExpressionTransformer("numpy.log(X[1])")),
            "binary",
        ),
        "decision after the model": _fixed(
            pmml(dense(), _logistic(), predict_proba_transformer=decision), "binary"
        ),
    }  # fmt: skip

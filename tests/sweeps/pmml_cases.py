"""Pipelines for `tests.sweeps.pmml_pipelines`, by name: functions that give (pipeline, X, y).

They cover what sklearn2pmml converts: estimators of every family, transformers before them, domains
with treatments of missing, invalid and outlying values, ensembles of models, decisions after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ROWS = 240
Case = Callable[[], tuple[Any, Any, Any]]


def frame() -> Any:
    """Numbers, whole numbers, texts and a flag."""
    import pandas as pd

    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": draw.integers(18, 90, ROWS).astype(float),
            "income": draw.lognormal(10, 1, ROWS).round(2),
            "hours": draw.normal(40, 10, ROWS).round(1),
            "count": draw.integers(0, 6, ROWS),
            "home": draw.choice(["own", "rent", "other"], ROWS).astype(object),
            "job": draw.choice(["a", "b", "c", "d"], ROWS).astype(object),
        }
    )


def targets(x: Any) -> dict[str, Any]:
    import pandas as pd

    draw = np.random.default_rng(1)
    score = x.age / 20 + np.log(x.income) - 12 + (x.home == "own") + 0.3 * x["count"]
    score = score + 0.5 * draw.normal(size=len(x))
    return {
        "binary": pd.Series(np.where(score > score.median(), "yes", "no"), name="y"),
        "whole classes": (x["count"] // 2).rename("y"),
        "flag": pd.Series((score > score.median()).astype(int), name="y"),
        "classes": pd.Series(
            np.array(["low", "mid", "high"])[
                np.searchsorted(score.quantile([1 / 3, 2 / 3]), score)
            ],
            name="y",
        ),
        "number": pd.Series(score, name="y"),
        "positive": pd.Series(np.exp(score / 3), name="y"),
        "numbers": pd.DataFrame({"y1": score, "y2": score**2}),
        "flags": pd.DataFrame(
            {"y1": (score > 0).astype(int), "y2": (score > score.median()).astype(int)}
        ),
    }


NUMBERS, TEXTS = ["age", "income", "hours", "count"], ["home", "job"]


def columns(*steps: Any, remainder: str = "drop") -> Any:
    from sklearn.compose import ColumnTransformer

    return ColumnTransformer(
        [(f"s{i}", step, names) for i, (step, names) in enumerate(steps)], remainder=remainder
    )


def plain() -> Any:
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    return columns((StandardScaler(), NUMBERS), (OneHotEncoder(), TEXTS))


def numbers_only() -> Any:
    return columns(("passthrough", NUMBERS))


def dense() -> Any:
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    return columns((StandardScaler(), NUMBERS), (OneHotEncoder(sparse_output=False), TEXTS))


def pmml(*steps: Any, **settings: Any) -> Any:
    from sklearn2pmml.pipeline import PMMLPipeline

    return PMMLPipeline([(f"step{i}", step) for i, step in enumerate(steps)], **settings)


def made(estimator: Any, target: str, before: Callable[[], Any] = plain) -> Case:
    def case() -> tuple[Any, Any, Any]:
        x = frame()
        return (
            pmml(before(), estimator() if callable(estimator) else estimator),
            x,
            targets(x)[target],
        )

    return case


def with_holes(x: Any, names: list[str], share: float = 0.15) -> Any:
    draw = np.random.default_rng(2)
    x = x.copy()
    for name in names:
        x[name] = x[name].astype(object if name in TEXTS else float)
        x.loc[draw.random(len(x)) < share, name] = None if name in TEXTS else np.nan
    return x


# -- estimators ------------------------------------------------------------------------


def classifiers() -> dict[str, Any]:
    from sklearn import (
        calibration,
        discriminant_analysis,
        dummy,
        ensemble,
        linear_model,
        model_selection,
        multiclass,
        naive_bayes,
        neighbors,
        neural_network,
        svm,
        tree,
    )

    logistic, small_tree = linear_model.LogisticRegression, tree.DecisionTreeClassifier
    return {
        "logistic": lambda: logistic(max_iter=500),
        "logistic CV": lambda: linear_model.LogisticRegressionCV(
            Cs=3, max_iter=500, use_legacy_attributes=False, l1_ratios=(0.0,)
        ),
        "ridge classifier": linear_model.RidgeClassifier,
        "perceptron": linear_model.Perceptron,
        "sgd hinge": lambda: linear_model.SGDClassifier(random_state=0),
        "sgd log": lambda: linear_model.SGDClassifier(loss="log_loss", random_state=0),
        "sgd modified huber": lambda: linear_model.SGDClassifier(
            loss="modified_huber", random_state=0
        ),
        "linear svc": svm.LinearSVC,
        "svc rbf": svm.SVC,
        "svc poly": lambda: svm.SVC(kernel="poly", degree=2, coef0=1.0),
        "svc sigmoid": lambda: svm.SVC(kernel="sigmoid"),
        "svc ovo": lambda: svm.SVC(decision_function_shape="ovo"),
        "nu svc": lambda: svm.NuSVC(nu=0.3),
        "lda": discriminant_analysis.LinearDiscriminantAnalysis,
        "dummy prior": dummy.DummyClassifier,
        "dummy constant": lambda: dummy.DummyClassifier(strategy="most_frequent"),
        "knn": lambda: neighbors.KNeighborsClassifier(5),
        "knn manhattan": lambda: neighbors.KNeighborsClassifier(3, metric="manhattan"),
        "nearest centroid": neighbors.NearestCentroid,
        "mlp": lambda: neural_network.MLPClassifier((6,), max_iter=60, random_state=0),
        "mlp tanh": lambda: neural_network.MLPClassifier(
            (4, 3), activation="tanh", max_iter=60, random_state=0
        ),
        "mlp logistic": lambda: neural_network.MLPClassifier(
            (4,), activation="logistic", max_iter=60, random_state=0
        ),
        "tree": lambda: small_tree(max_depth=6, random_state=0),
        "extra tree": lambda: tree.ExtraTreeClassifier(max_depth=6, random_state=0),
        "forest": lambda: ensemble.RandomForestClassifier(9, max_depth=5, random_state=0),
        "extra trees": lambda: ensemble.ExtraTreesClassifier(9, max_depth=5, random_state=0),
        "gradient boosting": lambda: ensemble.GradientBoostingClassifier(
            n_estimators=9, random_state=0
        ),
        "gradient boosting init": lambda: ensemble.GradientBoostingClassifier(
            n_estimators=5, init="zero", random_state=0
        ),
        "bagging": lambda: ensemble.BaggingClassifier(
            small_tree(max_depth=4), n_estimators=5, max_features=0.7, random_state=0
        ),
        "bagging logistic": lambda: ensemble.BaggingClassifier(
            logistic(max_iter=500), n_estimators=3, random_state=0
        ),
        "voting hard": lambda: ensemble.VotingClassifier(
            [
                ("a", logistic(max_iter=500)),
                ("b", small_tree(max_depth=3, random_state=0)),
                ("c", dummy.DummyClassifier()),
            ]
        ),
        "voting soft": lambda: ensemble.VotingClassifier(
            [("a", logistic(max_iter=500)), ("b", small_tree(max_depth=3, random_state=0))],
            voting="soft",
            weights=[2, 1],
        ),
        "stacking": lambda: ensemble.StackingClassifier(
            [("a", logistic(max_iter=500)), ("b", small_tree(max_depth=3, random_state=0))],
            logistic(max_iter=500),
            cv=3,
        ),
        "stacking passthrough": lambda: ensemble.StackingClassifier(
            [("b", small_tree(max_depth=3, random_state=0))],
            logistic(max_iter=500),
            cv=3,
            passthrough=True,
        ),
        "one vs rest": lambda: multiclass.OneVsRestClassifier(logistic(max_iter=500)),
        "calibrated sigmoid": lambda: calibration.CalibratedClassifierCV(
            small_tree(max_depth=4, random_state=0), cv=3
        ),
        "calibrated isotonic": lambda: calibration.CalibratedClassifierCV(
            logistic(max_iter=500), method="isotonic", cv=3
        ),
        "calibrated whole": lambda: calibration.CalibratedClassifierCV(
            logistic(max_iter=500), ensemble=False, cv=3
        ),
        "grid search": lambda: model_selection.GridSearchCV(
            small_tree(random_state=0), {"max_depth": [2, 4]}, cv=3
        ),
        "gaussian bayes": naive_bayes.GaussianNB,
    }


def only_binary() -> dict[str, Any]:
    from sklearn import ensemble, linear_model, model_selection, tree

    return {
        "ada boost": lambda: ensemble.AdaBoostClassifier(
            tree.DecisionTreeClassifier(max_depth=2), n_estimators=5, random_state=0
        ),
        "gradient boosting exponential": lambda: ensemble.GradientBoostingClassifier(
            loss="exponential", n_estimators=6, random_state=0
        ),
        "fixed threshold": lambda: model_selection.FixedThresholdClassifier(
            linear_model.LogisticRegression(max_iter=500), threshold=0.3
        ),
        "balanced logistic": lambda: linear_model.LogisticRegression(
            max_iter=500, class_weight="balanced"
        ),
    }


def regressors() -> dict[str, Any]:
    from sklearn import (
        cross_decomposition,
        dummy,
        ensemble,
        kernel_ridge,
        linear_model,
        neighbors,
        neural_network,
        svm,
        tree,
    )

    small_tree = tree.DecisionTreeRegressor
    return {
        "linear": linear_model.LinearRegression,
        "ridge": linear_model.Ridge,
        "ridge CV": linear_model.RidgeCV,
        "lasso": lambda: linear_model.Lasso(0.01),
        "elastic net": lambda: linear_model.ElasticNet(0.01),
        "bayesian ridge": linear_model.BayesianRidge,
        "ard": linear_model.ARDRegression,
        "huber": lambda: linear_model.HuberRegressor(max_iter=1000),
        "lars": linear_model.Lars,
        "lasso lars": lambda: linear_model.LassoLars(0.01),
        "omp": linear_model.OrthogonalMatchingPursuit,
        "quantile": lambda: linear_model.QuantileRegressor(alpha=0.01),
        "sgd": lambda: linear_model.SGDRegressor(random_state=0),
        "theil sen": lambda: linear_model.TheilSenRegressor(random_state=0, max_subpopulation=200),
        "linear svr": lambda: svm.LinearSVR(random_state=0),
        "svr": svm.SVR,
        "nu svr": svm.NuSVR,
        "kernel ridge": lambda: kernel_ridge.KernelRidge(kernel="rbf"),
        "pls": cross_decomposition.PLSRegression,
        "dummy": dummy.DummyRegressor,
        "dummy quantile": lambda: dummy.DummyRegressor(strategy="quantile", quantile=0.3),
        "knn": neighbors.KNeighborsRegressor,
        "knn distance": lambda: neighbors.KNeighborsRegressor(4, weights="distance"),
        "mlp": lambda: neural_network.MLPRegressor(
            hidden_layer_sizes=(6,), max_iter=60, random_state=0
        ),
        "mlp identity": lambda: neural_network.MLPRegressor(
            hidden_layer_sizes=(3, 3), activation="identity", max_iter=60, random_state=0
        ),
        "tree": lambda: small_tree(max_depth=6, random_state=0),
        "extra tree": lambda: tree.ExtraTreeRegressor(max_depth=6, random_state=0),
        "forest": lambda: ensemble.RandomForestRegressor(9, max_depth=5, random_state=0),
        "extra trees": lambda: ensemble.ExtraTreesRegressor(9, max_depth=5, random_state=0),
        "gradient boosting": lambda: ensemble.GradientBoostingRegressor(
            n_estimators=9, random_state=0
        ),
        "ada boost": lambda: ensemble.AdaBoostRegressor(n_estimators=5, random_state=0),
        "bagging": lambda: ensemble.BaggingRegressor(
            small_tree(max_depth=4), n_estimators=5, random_state=0
        ),
        "voting": lambda: ensemble.VotingRegressor(
            [("a", linear_model.Ridge()), ("b", small_tree(max_depth=3, random_state=0))],
            weights=[1, 3],
        ),
        "stacking": lambda: ensemble.StackingRegressor(
            [("a", linear_model.Ridge()), ("b", small_tree(max_depth=3, random_state=0))],
            linear_model.Ridge(),
            cv=3,
        ),
    }


def positive_regressors() -> dict[str, Any]:
    from sklearn import compose, ensemble, linear_model

    return {
        "poisson": linear_model.PoissonRegressor,
        "gamma": linear_model.GammaRegressor,
        "tweedie": lambda: linear_model.TweedieRegressor(power=1.5),
        "tweedie identity": lambda: linear_model.TweedieRegressor(power=0),
        "hist poisson": lambda: ensemble.HistGradientBoostingRegressor(
            loss="poisson", max_iter=6, random_state=0
        ),
        "transformed target": lambda: compose.TransformedTargetRegressor(
            linear_model.Ridge(), func=np.log, inverse_func=np.exp
        ),
    }


def boosters() -> dict[str, Case]:
    import lightgbm
    import xgboost
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        IsolationForest,
    )
    from sklearn.svm import OneClassSVM

    few = {"n_estimators": 7, "random_state": 0}
    light = {**few, "verbose": -1, "num_leaves": 7}
    cases: dict[str, Case] = {}
    for kind in ("binary", "classes"):
        cases[f"lightgbm {kind}"] = made(
            lambda: lightgbm.LGBMClassifier(**light), kind, numbers_only
        )
        cases[f"lightgbm texts {kind}"] = made(lambda: lightgbm.LGBMClassifier(**light), kind)
        cases[f"hist {kind}"] = made(
            lambda: HistGradientBoostingClassifier(max_iter=6, random_state=0), kind, numbers_only
        )
    for kind in ("flag",):
        cases[f"xgboost {kind}"] = made(
            lambda: xgboost.XGBClassifier(max_depth=3, **few), kind, numbers_only
        )
    cases["xgboost classes"] = made(
        lambda: xgboost.XGBClassifier(max_depth=3, **few), "whole classes", numbers_only
    )
    cases["lightgbm dart"] = made(
        lambda: lightgbm.LGBMRegressor(boosting_type="dart", **light), "number", numbers_only
    )
    cases["lightgbm poisson"] = made(
        lambda: lightgbm.LGBMRegressor(objective="poisson", **light), "positive", numbers_only
    )
    cases["xgboost regression"] = made(
        lambda: xgboost.XGBRegressor(max_depth=3, **few), "number", dense
    )
    cases["xgboost gamma"] = made(
        lambda: xgboost.XGBRegressor(objective="reg:gamma", max_depth=3, **few), "positive", dense
    )
    cases["hist regression"] = made(
        lambda: HistGradientBoostingRegressor(max_iter=6, random_state=0), "number", numbers_only
    )
    cases["isolation forest"] = made(
        lambda: IsolationForest(n_estimators=7, random_state=0), "number", numbers_only
    )
    cases["one class svm"] = made(lambda: OneClassSVM(nu=0.2), "number")
    return cases


def all_cases() -> dict[str, Case]:
    from tests.sweeps import pmml_boosters, pmml_transformers

    cases: dict[str, Case] = {}
    for name, estimator in classifiers().items():
        before = dense if name in ("gaussian bayes", "nearest centroid", "lda") else plain
        for kind in ("binary", "classes"):
            cases[f"{name}, {kind}"] = made(estimator, kind, before)
    for name, estimator in only_binary().items():
        cases[f"{name}, binary"] = made(estimator, "binary")
    for name, estimator in regressors().items():
        cases[f"{name}, number"] = made(estimator, "number", dense)
    for name, estimator in positive_regressors().items():
        cases[f"{name}, positive"] = made(estimator, "positive", dense)
    return {**cases, **boosters(), **pmml_transformers.cases(), **pmml_boosters.cases()}

"""Boosted ensembles, settings of the converter, and rarer transformers (see `pmml_cases`)."""

from __future__ import annotations

from collections.abc import Callable
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


def cases() -> dict[str, Case]:
    return {**objectives(), **categories(), **settings(), **verified(), **more_domains(),
            **more_transformers(), **words()}  # fmt: skip


def _case(
    estimator: Callable[[], Any],
    target: str,
    before: Callable[[], Any] = numbers_only,
    x: Any = None,
    configure: dict[str, Any] | None = None,
    verify: int = 0,
) -> Case:
    def case() -> tuple[Any, Any, Any]:
        rows = frame() if x is None else x
        y = targets(frame())[target]
        pipeline = pmml(before(), estimator())
        if configure:
            pipeline.configure(**configure)
        if verify:
            pipeline.fit(rows[:200], y[:200])
            pipeline.verify(rows[:verify])
        return pipeline, rows, y

    return case


def objectives() -> dict[str, Case]:
    import lightgbm
    import xgboost

    few = {"n_estimators": 6, "random_state": 0}
    light = {**few, "verbose": -1, "num_leaves": 7}
    holes = with_holes(frame(), NUMBERS)
    made: dict[str, Case] = {}
    for objective in ("reg:squarederror", "reg:pseudohubererror", "reg:absoluteerror"):
        made[f"xgb {objective}"] = _case(
            lambda o=objective: xgboost.XGBRegressor(objective=o, max_depth=3, **few), "number"
        )
    for objective in ("count:poisson", "reg:tweedie", "reg:gamma", "reg:squaredlogerror"):
        made[f"xgb {objective}"] = _case(
            lambda o=objective: xgboost.XGBRegressor(objective=o, max_depth=3, **few), "positive"
        )
    for objective in ("binary:logistic", "binary:hinge", "reg:logistic"):
        made[f"xgb {objective}"] = _case(
            lambda o=objective: xgboost.XGBClassifier(objective=o, max_depth=3, **few), "flag"
        )
    for objective in ("multi:softprob", "multi:softmax"):
        made[f"xgb {objective}"] = _case(
            lambda o=objective: xgboost.XGBClassifier(objective=o, max_depth=3, **few),
            "whole classes",
        )
    for booster in ("gbtree", "dart", "gblinear"):
        made[f"xgb {booster}"] = _case(
            lambda b=booster: xgboost.XGBRegressor(booster=b, n_estimators=6), "number"
        )
    made["xgb forest"] = _case(lambda: xgboost.XGBRFRegressor(max_depth=3, **few), "number")
    made["xgb forest classes"] = _case(lambda: xgboost.XGBRFClassifier(max_depth=3, **few), "flag")
    made["xgb deep"] = _case(lambda: xgboost.XGBClassifier(max_depth=9, **few), "flag", dense)
    made["xgb holes"] = _case(
        lambda: xgboost.XGBClassifier(max_depth=4, **few), "flag", numbers_only, holes
    )
    made["xgb leafwise"] = _case(
        lambda: xgboost.XGBRegressor(grow_policy="lossguide", max_leaves=9, **few), "number"
    )
    made["xgb base score"] = _case(
        lambda: xgboost.XGBRegressor(base_score=1.25, max_depth=3, **few), "number"
    )
    for objective in ("regression", "regression_l1", "huber", "fair", "quantile", "mape"):
        made[f"lgbm {objective}"] = _case(
            lambda o=objective: lightgbm.LGBMRegressor(objective=o, **light), "number"
        )
    for objective in ("poisson", "gamma", "tweedie"):
        made[f"lgbm {objective}"] = _case(
            lambda o=objective: lightgbm.LGBMRegressor(objective=o, **light), "positive"
        )
    made["lgbm cross entropy"] = _case(
        lambda: lightgbm.LGBMRegressor(objective="cross_entropy", **light), "flag"
    )
    for kind in ("flag", "binary", "classes", "whole classes"):
        for objective in (
            ("binary",) if kind in ("flag", "binary") else ("multiclass", "multiclassova")
        ):
            made[f"lgbm {objective} {kind}"] = _case(
                lambda o=objective: lightgbm.LGBMClassifier(objective=o, **light), kind
            )
    made["lgbm forest"] = _case(
        lambda: lightgbm.LGBMRegressor(
            boosting_type="rf", bagging_freq=1, bagging_fraction=0.7, **light
        ), "number",
    )  # fmt: skip
    made["lgbm forest classes"] = _case(
        lambda: lightgbm.LGBMClassifier(
            boosting_type="rf", bagging_freq=1, bagging_fraction=0.7, **light
        ), "binary",
    )  # fmt: skip
    made["lgbm goss"] = _case(
        lambda: lightgbm.LGBMClassifier(data_sample_strategy="goss", **light), "binary"
    )
    made["lgbm holes"] = _case(
        lambda: lightgbm.LGBMClassifier(min_child_samples=3, **light), "binary", numbers_only, holes
    )
    made["lgbm zero as missing"] = _case(
        lambda: lightgbm.LGBMClassifier(zero_as_missing=True, min_child_samples=3, **light),
        "binary",
    )
    made["lgbm no missing"] = _case(
        lambda: lightgbm.LGBMRegressor(use_missing=False, min_child_samples=3, **light), "number"
    )
    return made


def categories() -> dict[str, Case]:
    import lightgbm
    import xgboost
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder
    from sklearn2pmml.decoration import CategoricalDomain, ContinuousDomain
    from sklearn2pmml.preprocessing import CastTransformer

    few = {"n_estimators": 6, "random_state": 0}
    light = {**few, "verbose": -1, "num_leaves": 7, "min_child_samples": 3}
    holes = with_holes(frame(), [*NUMBERS, *TEXTS])

    def cast() -> Any:
        step = columns(
            (ContinuousDomain(with_statistics=False), ["age"]),
            (ContinuousDomain(with_statistics=False), ["income"]),
            (make_pipeline(CategoricalDomain(), CastTransformer("category")), ["home"]),
            (make_pipeline(CategoricalDomain(), CastTransformer("category")), ["job"]),
        )
        return step.set_output(transform="pandas")

    def ordinal() -> Any:
        return columns(("passthrough", ["age", "income"]), (OrdinalEncoder(), TEXTS))

    made: dict[str, Case] = {}
    for name, x in (("", None), (" holes", holes)):
        made[f"lgbm categories{name}"] = _case(
            lambda: lightgbm.LGBMClassifier(**light), "binary", cast, x
        )
        made[f"lgbm categories classes{name}"] = _case(
            lambda: lightgbm.LGBMClassifier(**light), "classes", cast, x
        )
        made[f"xgb categories{name}"] = _case(
            lambda: xgboost.XGBClassifier(
                enable_categorical=True, tree_method="hist", max_depth=4, **few
            ), "flag", cast, x,
        )  # fmt: skip
        made[f"xgb categories sets{name}"] = _case(
            lambda: xgboost.XGBRegressor(
                enable_categorical=True, tree_method="hist", max_cat_to_onehot=1, max_depth=4, **few
            ), "number", cast, x,
        )  # fmt: skip
    made["hist categories"] = _case(
        lambda: HistGradientBoostingClassifier(
            categorical_features=[2, 3], max_iter=5, random_state=0
        ), "binary", ordinal,
    )  # fmt: skip
    made["hist categories number"] = _case(
        lambda: HistGradientBoostingRegressor(
            categorical_features=[2, 3], max_iter=5, random_state=0
        ), "number", ordinal,
    )  # fmt: skip
    made["hist holes"] = _case(
        lambda: HistGradientBoostingClassifier(max_iter=5, random_state=0),
        "classes",
        numbers_only,
        with_holes(frame(), NUMBERS),
    )
    return made


def settings() -> dict[str, Case]:
    import lightgbm
    import xgboost
    from sklearn import ensemble, tree

    models = {
        "tree": lambda: tree.DecisionTreeClassifier(max_depth=5, random_state=0),
        "forest": lambda: ensemble.RandomForestClassifier(5, max_depth=4, random_state=0),
        "number forest": lambda: ensemble.RandomForestRegressor(5, max_depth=4, random_state=0),
        "boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
        "xgb": lambda: xgboost.XGBClassifier(n_estimators=5, max_depth=3, random_state=0),
        "lgbm": lambda: lightgbm.LGBMClassifier(n_estimators=5, num_leaves=6, verbose=-1),
    }
    choices = (
        {"compact": True},
        {"compact": False},
        {"flat": True},
        {"flat": True, "compact": False},
        {"numeric": True},
        {"numeric": False},
        {"winner_id": True},
        {"node_extensions": True},
        {"prune": False},
        {"prune": True},
        {"node_score": True},
    )
    return {
        f"{name} {' '.join(f'{k}={v}' for k, v in choice.items())}": _case(
            model,
            "number" if "number" in name else "flag" if name in ("xgb",) else "classes",
            plain if name not in ("xgb", "lgbm") else numbers_only,
            configure=choice,
        )
        for name, model in models.items()
        for choice in choices
    }


def verified() -> dict[str, Case]:
    from sklearn import ensemble, linear_model, neural_network, svm, tree

    models = {
        "tree": (lambda: tree.DecisionTreeClassifier(max_depth=4, random_state=0), "classes"),
        "logistic": (lambda: linear_model.LogisticRegression(max_iter=500), "binary"),
        "forest": (
            lambda: ensemble.RandomForestRegressor(4, max_depth=4, random_state=0),
            "number",
        ),
        "network": (
            lambda: neural_network.MLPClassifier((5,), max_iter=50, random_state=0),
            "classes",
        ),
        "machine": (svm.SVR, "number"),
    }
    return {
        f"verified {name}": _case(model, target, plain, verify=12)
        for name, (model, target) in models.items()
    }


def more_domains() -> dict[str, Case]:
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
    from sklearn.tree import DecisionTreeClassifier
    from sklearn2pmml.decoration import CategoricalDomain, ContinuousDomain

    marked = frame()
    marked.loc[::7, "age"] = -999.0
    marked.loc[::5, "home"] = "N/A"
    holes = with_holes(frame(), [*NUMBERS, *TEXTS])

    def continuous(**more: Any) -> Callable[[], Any]:
        return lambda: columns((ContinuousDomain(**more), ["age", "hours", "income"]))

    def categorical(encoder: Any, **more: Any) -> Callable[[], Any]:
        return lambda: columns((make_pipeline(CategoricalDomain(**more), encoder), ["home"]))

    ignore = OneHotEncoder(handle_unknown="ignore")
    made = {
        "marked numbers": _case(
            Ridge, "number",
            continuous(missing_values=-999.0, missing_value_replacement=40.0), marked),
        "marked list": _case(
            Ridge, "number",
            continuous(missing_values=[-999.0, -1.0], missing_value_replacement=40.0), marked),
        "marked texts": _case(
            LogisticRegression, "binary",
            categorical(ignore, missing_values="N/A", missing_value_replacement="own"), marked),
        "return invalid": _case(
            Ridge, "number", continuous(missing_value_treatment="return_invalid")),
        "invalid as value": _case(
            Ridge, "number",
            continuous(invalid_value_treatment="as_value", invalid_value_replacement=30.0)),
        "invalid as missing": _case(
            Ridge, "number",
            continuous(invalid_value_treatment="as_missing", missing_value_replacement=30.0)),
        "invalid as is": _case(Ridge, "number", continuous(invalid_value_treatment="as_is")),
        "no data": _case(Ridge, "number", continuous(with_data=False, with_statistics=False)),
        "outliers and holes": _case(
            Ridge, "number",
            continuous(outlier_treatment="as_missing_values", low_value=20.0, high_value=60000.0,
                       missing_value_replacement=25.0), holes),
        "ordinal of holes": _case(
            lambda: DecisionTreeClassifier(max_depth=4, random_state=0), "binary",
            categorical(OrdinalEncoder(), missing_value_replacement="own"), holes),
        "impute and scale": _case(
            Ridge, "number",
            lambda: columns((make_pipeline(SimpleImputer(), StandardScaler()), NUMBERS)), holes),
        "impute indicator": _case(
            Ridge, "number",
            lambda: columns((SimpleImputer(add_indicator=True), NUMBERS)), holes),
        "impute texts": _case(
            LogisticRegression, "binary",
            lambda: columns((make_pipeline(
                SimpleImputer(strategy="most_frequent", missing_values=None), ignore), TEXTS)),
            holes),
    }  # fmt: skip
    return made


def more_transformers() -> dict[str, Case]:
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
    from sklearn2pmml.decoration import Alias, DateDomain, DateTimeDomain
    from sklearn2pmml.ensemble import SelectFirstRegressor
    from sklearn2pmml.preprocessing import (
        DaysSinceYearTransformer,
        ExpressionTransformer,
        SecondsSinceMidnightTransformer,
        SecondsSinceYearTransformer,
    )

    dated = frame()
    days = np.datetime64("1999-12-30") + (np.arange(len(dated)) * 17 % 9000).astype(
        "timedelta64[D]"
    )
    dated["day"] = days.astype("datetime64[ns]")
    dated["moment"] = (
        days.astype("datetime64[s]") + (np.arange(len(dated)) * 3607).astype("timedelta64[s]")
    ).astype("datetime64[ns]")

    def when(domain: Any, step: Any, name: str) -> Callable[[], Any]:
        return lambda: columns((make_pipeline(domain, step), [name]), ("passthrough", ["age"]))

    lambda: LogisticRegression(max_iter=300)
    made = {
        "days since year": _case(
            Ridge, "number", when(DateDomain(), DaysSinceYearTransformer(2000), "day"), dated),
        "seconds since year": _case(
            Ridge, "number",
            when(DateTimeDomain(), SecondsSinceYearTransformer(2000), "moment"), dated),
        "seconds since midnight": _case(
            Ridge, "number",
            when(DateTimeDomain(), SecondsSinceMidnightTransformer(), "moment"), dated),
    }  # fmt: skip
    formulas = {
        "where": "numpy.where(X['age'] > 40, X['hours'], X['income'])",
        "missing": "-1 if pandas.isnull(X['age']) else X['age']",
        "logarithms": "numpy.log10(X['income']) + numpy.log1p(X['age'])",
        "signs": "numpy.sign(X['hours'] - 40) * numpy.absolute(X['age'])",
        "square": "numpy.square(X['age']) + numpy.reciprocal(X['hours'])",
        "chained": "1 if 20 < X['age'] < 40 else 0",
        "power": "X['age'] ** 0.5",
        "modulo": "X['age'] % 7",
        "hyperbolic": "numpy.sinh(X['age'] / 100) + numpy.cosh(X['hours'] / 100)",
        "angles": "numpy.arcsin(X['age'] / 100) + numpy.arctan2(X['age'], X['hours'])",
        "degrees": "numpy.rad2deg(X['age']) + numpy.deg2rad(X['hours'])",
        "rounded": "numpy.rint(X['hours']) + round(X['age'] / 7)",
        "clipped": "numpy.clip(X['age'], 20, 60)",
        "hypotenuse": "numpy.hypot(X['age'], X['hours'])",
        "negative": "-X['age'] + +X['hours']",
        "logical": "numpy.logical_and(X['age'] > 40, X['hours'] < 45)",
        "not": "not (X['age'] > 40)",
        "minimum": "numpy.minimum(X['age'], X['hours']) + numpy.fmax(X['age'], 3)",
    }
    for name, formula in formulas.items():
        made[f"formula {name}"] = _case(
            LinearRegression,
            "number",
            lambda f=formula: columns((Alias(ExpressionTransformer(f), "f"), NUMBERS)),
            with_holes(frame(), ["age"]) if name == "missing" else None,
        )
    made["first regressor"] = _case(
        lambda: SelectFirstRegressor([
            ("a", DecisionTreeRegressor(max_depth=3), "X[0] > 50"),
            ("b", Ridge(), "X[0] <= 50"),
        ]), "number",
    )  # fmt: skip
    made["scaled tree"] = _case(
        lambda: DecisionTreeClassifier(max_depth=5), "classes",
        lambda: columns((StandardScaler(), NUMBERS), (OneHotEncoder(), TEXTS)),
    )  # fmt: skip
    made["remainder"] = _case(
        lambda: RandomForestRegressor(4, max_depth=4), "number",
        lambda: columns((OneHotEncoder(), TEXTS), remainder="passthrough"),
    )  # fmt: skip
    return made


def words() -> dict[str, Case]:
    import pandas as pd
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn2pmml.feature_extraction.text import Matcher, Splitter

    draw = np.random.default_rng(3)
    vocabulary = ["good", "bad", "film", "the", "a", "great", "boring", "plot", "very", "end"]
    lines = [
        " ".join(draw.choice(vocabulary, draw.integers(1, 9))) + draw.choice(["", ".", "!", " ?"])
        for _ in range(240)
    ]
    x = pd.Series([s.capitalize() if i % 3 else s for i, s in enumerate(lines)], name="text")
    y = pd.Series([int(("good" in s) or ("great" in s)) for s in lines], name="y")

    def case(step: Any, model: Any) -> Case:
        return lambda: (pmml(step, model), x.to_frame()["text"], y)

    logistic, forest = LogisticRegression(max_iter=300), RandomForestClassifier(5, max_depth=4)
    return {
        "words counted": case(CountVectorizer(tokenizer=Splitter(), token_pattern=None), logistic),
        "words binary": case(
            CountVectorizer(tokenizer=Splitter(), token_pattern=None, binary=True), forest
        ),
        "words weighted": case(
            TfidfVectorizer(tokenizer=Splitter(), token_pattern=None, norm=None), logistic
        ),
        "words stopped": case(
            CountVectorizer(tokenizer=Splitter(), token_pattern=None, stop_words="english"),
            logistic,
        ),
        "words matched": case(CountVectorizer(tokenizer=Matcher(), token_pattern=None), logistic),
        "words cased": case(
            CountVectorizer(tokenizer=Splitter(), token_pattern=None, lowercase=False), logistic
        ),
        "word pairs": case(
            CountVectorizer(tokenizer=Splitter(), token_pattern=None, ngram_range=(1, 2)), logistic
        ),
    }

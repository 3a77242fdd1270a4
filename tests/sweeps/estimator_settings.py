"""Settings of scikit-learn's estimators that the sweep tries: constructor arguments and data."""

from __future__ import annotations

from typing import Any

CLASSES = ["binary", "multiclass", "texts"]


def settings(name: str) -> list[tuple[dict[str, Any], str]]:
    """Keyword arguments and kinds of data on which an estimator is tried; the first is usual."""
    if name in TABLE:
        return TABLE[name]()
    from sklearn.utils import all_estimators

    kinds = {k for k in ("classifier", "regressor") if name in dict(all_estimators(type_filter=k))}
    if "classifier" in kinds:
        return [({}, kind) for kind in CLASSES]
    if "regressor" in kinds:
        return [({}, "regression")]
    return [({}, "binary")]


def _with(arguments: list[dict[str, Any]], *kinds: str) -> Any:
    return lambda: [(dict(a), k) for a in arguments for k in kinds]


def _base(name: str) -> Any:
    """A small estimator by its short name."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC, LinearSVC
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    return {
        "logistic": lambda: LogisticRegression(max_iter=500),
        "tree": lambda: DecisionTreeClassifier(max_depth=3, random_state=0),
        "forest": lambda: RandomForestClassifier(5, max_depth=3, random_state=0),
        "svc": lambda: SVC(),
        "linear svc": lambda: LinearSVC(random_state=0),
        "neighbors": lambda: KNeighborsClassifier(3),
        "ridge": lambda: Ridge(),
        "linear": lambda: LinearRegression(),
        "regression tree": lambda: DecisionTreeRegressor(max_depth=3, random_state=0),
    }[name]()


def _pairs(*names: str) -> list[tuple[str, Any]]:
    return [(n.replace(" ", "_"), _base(n)) for n in names]


def _voting_classifier() -> list:
    three = _pairs("logistic", "tree", "neighbors")
    return [
        ({"estimators": three}, "multiclass"),
        ({"estimators": three, "voting": "soft", "weights": [1, 2, 3]}, "texts"),
        ({"estimators": three, "voting": "soft"}, "binary"),
    ]


def _stacking_classifier() -> list:
    three = _pairs("logistic", "tree", "linear svc")
    return [
        ({"estimators": three}, "multiclass"),
        ({"estimators": three, "passthrough": True}, "binary"),
        ({"estimators": three, "final_estimator": _base("forest")}, "texts"),
    ]


def _over(argument: str, bases: list[str], *kinds: str, **more: Any) -> Any:
    return lambda: [({argument: _base(b), **more}, k) for b in bases for k in kinds]


def _column_transformer() -> list:
    from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

    return [
        ({"transformers": [("a", StandardScaler(), [0, 2]), ("b", MinMaxScaler(), [1])]}, "binary"),
        (
            {"transformers": [("a", StandardScaler(), slice(0, 2))], "remainder": "passthrough"},
            "binary",
        ),
        ({"transformers": [("a", OneHotEncoder(handle_unknown="ignore"), [0, 1])]}, "categories"),
    ]


def _pipeline() -> list:
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    return [
        ({"steps": [("scale", StandardScaler()), ("model", _base("logistic"))]}, "multiclass"),
        ({"steps": [("scale", StandardScaler()), ("pca", PCA(3))]}, "binary"),
        ({"steps": [("scale", StandardScaler()), ("model", _base("ridge"))]}, "regression"),
        ({"steps": [("scale", StandardScaler()), ("model", _base("forest"))]}, "texts"),
        (
            {
                "steps": [
                    ("hot", OneHotEncoder(handle_unknown="ignore")),
                    ("model", _base("logistic")),
                ]
            },
            "categories",
        ),
    ]


def _feature_union() -> list:
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    parts = [("a", StandardScaler()), ("b", PCA(2))]
    return [
        ({"transformer_list": parts}, "binary"),
        ({"transformer_list": parts, "transformer_weights": {"a": 2.0}}, "binary"),
    ]


def _transformed_target() -> list:
    import numpy as np
    from sklearn.preprocessing import PowerTransformer, StandardScaler

    return [
        ({"regressor": _base("ridge"), "func": np.log1p, "inverse_func": np.expm1}, "positive"),
        ({"regressor": _base("linear"), "transformer": StandardScaler()}, "regression"),
        ({"regressor": _base("linear"), "transformer": StandardScaler()}, "outputs"),
        ({"regressor": _base("linear"), "transformer": PowerTransformer()}, "regression"),
    ]


def _gaussian_process(kind: str) -> Any:
    def table() -> list:
        from sklearn.gaussian_process import kernels as k

        some = [
            None,
            k.RBF(2.0) + k.WhiteKernel(0.1),
            k.ConstantKernel(2.0) * k.Matern(1.5, nu=1.5),
            k.RationalQuadratic() + k.DotProduct(),
        ]
        kinds = ["binary", "multiclass"] if kind == "classifier" else ["regression", "outputs"]
        return [({"kernel": kernel}, data) for kernel in some for data in kinds]

    return table


def _function_transformer() -> list:
    import numpy as np

    return [({}, "binary"), ({"func": np.log1p}, "positive"), ({"func": np.square}, "binary")]


def _search(**more: Any) -> Any:
    def table() -> list:
        from sklearn.svm import SVC

        return [
            ({"estimator": _base("logistic"), **_grid(more, {"C": [0.1, 1.0]})}, "multiclass"),
            ({"estimator": SVC(), **_grid(more, {"C": [0.1, 1.0]})}, "binary"),
        ]

    return table


def _grid(more: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    name = "param_grid" if not more else "param_distributions"
    return {name: values, **more}


def _frozen() -> list:
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 5))
    return [({"estimator": _base("logistic").fit(x, x[:, 0] > 0)}, "binary")]


def _sparse_coder() -> list:
    import numpy as np

    dictionary = np.random.default_rng(0).normal(size=(4, 5))
    return [
        (
            {
                "dictionary": dictionary,
                "transform_algorithm": "threshold",
                "transform_alpha": 0.2,
            },
            "binary",
        ),
        ({"dictionary": dictionary}, "binary"),
    ]


ONE = {"n_estimators": 10}
TABLE: dict[str, Any] = {
    "AdaBoostClassifier": lambda: [
        *_with([ONE], *CLASSES)(),
        *_over("estimator", ["tree"], *CLASSES, n_estimators=5)(),
    ],
    "AdaBoostRegressor": _with([ONE, {**ONE, "loss": "square"}], "regression"),
    "AdditiveChi2Sampler": _with([{}, {"sample_steps": 3}], "positive"),
    "BaggingClassifier": lambda: [
        *_with([{}, {"max_features": 0.6}], *CLASSES)(),
        *_over("estimator", ["logistic", "linear svc", "svc"], *CLASSES, n_estimators=3)(),
    ],
    "BaggingRegressor": lambda: [
        *_with([{}, {"max_features": 0.6}], "regression", "outputs")(),
        *_over("estimator", ["ridge"], "regression", n_estimators=3)(),
    ],
    "BayesianGaussianMixture": _with(
        [{"n_components": 3, "covariance_type": c} for c in ("full", "diag", "tied", "spherical")],
        "binary",
    ),
    "BernoulliNB": _with([{}, {"binarize": 0.5}], *CLASSES),
    "Binarizer": _with([{}, {"threshold": 0.5}], "binary"),
    "CCA": _with([{}], "outputs"),
    "CalibratedClassifierCV": lambda: [
        *_with([{}, {"method": "isotonic"}, {"method": "temperature"}], *CLASSES)(),
        *_over("estimator", ["tree", "logistic"], *CLASSES, ensemble=False)(),
        *_over("estimator", ["tree"], *CLASSES, method="temperature")(),
    ],
    "CategoricalNB": _with([{}], "counts"),
    "ClassifierChain": lambda: [
        *_over("estimator", ["logistic", "tree"], "multilabel")(),
        *_over("estimator", ["logistic"], "multilabel", order=[2, 0, 1])(),
        *_over("estimator", ["logistic"], "multilabel", chain_method="predict_proba")(),
    ],
    "ColumnTransformer": _column_transformer,
    "ComplementNB": _with([{}, {"norm": True}], "counts"),
    "DecisionTreeClassifier": _with(
        [{}, {"max_depth": 3}, {"criterion": "entropy"}],
        *CLASSES, "multilabel", "holes", "sparse-like",
    ),
    "DecisionTreeRegressor": _with([{}, {"max_depth": 3}], "regression", "outputs"),
    "DictionaryLearning": _with(
        [
            {"n_components": 3, "transform_algorithm": "threshold", "max_iter": 5},
            {"n_components": 3, "max_iter": 5},
        ],
        "binary",
    ),
    "MiniBatchDictionaryLearning": _with(
        [{"n_components": 3, "transform_algorithm": "threshold", "max_iter": 5}], "binary"
    ),
    "DummyClassifier": _with(
        [{}, {"strategy": "most_frequent"}, {"strategy": "constant", "constant": 1}],
        "binary", "multilabel",
    ),
    "DummyRegressor": _with([{}, {"strategy": "median"}], "regression", "outputs"),
    "ElasticNet": _with([{}, {"alpha": 0.1}], "regression", "outputs"),
    "ExtraTreeClassifier": _with([{}], *CLASSES, "multilabel"),
    "ExtraTreeRegressor": _with([{}], "regression", "outputs"),
    "ExtraTreesClassifier": _with([ONE, {**ONE, "max_depth": 3}], *CLASSES, "multilabel"),
    "ExtraTreesRegressor": _with([ONE], "regression", "outputs"),
    "FastICA": _with([{}, {"n_components": 3}, {"whiten": False}], "binary"),
    "FeatureAgglomeration": _with([{"n_clusters": 2}], "binary"),
    "FeatureUnion": _feature_union,
    "FixedThresholdClassifier": lambda: [
        *_over("estimator", ["logistic"], "binary", threshold=0.7)(),
        *_over("estimator", ["linear svc"], "binary")(),
        *_over("estimator", ["logistic"], "binary", threshold=0.4, pos_label=0)(),
    ],
    "FrozenEstimator": _frozen,
    "FunctionTransformer": _function_transformer,
    "GammaRegressor": _with([{}], "positive"),
    "GaussianMixture": _with(
        [{"n_components": 3, "covariance_type": c} for c in ("full", "diag", "tied", "spherical")],
        "binary",
    ),
    "GaussianProcessClassifier": _gaussian_process("classifier"),
    "GaussianProcessRegressor": _gaussian_process("regressor"),
    "GaussianRandomProjection": _with([{"n_components": 3}], "binary"),
    "GenericUnivariateSelect": _with([{"mode": "k_best", "param": 2}], "binary"),
    "GradientBoostingClassifier": lambda: [
        *_with([ONE, {**ONE, "loss": "exponential"}], "binary")(),
        *_with([ONE, {**ONE, "init": "zero"}], "multiclass", "texts")(),
        *_over("init", ["logistic"], *CLASSES, n_estimators=5)(),
    ],
    "GradientBoostingRegressor": _with(
        [ONE, {**ONE, "loss": "huber"}, {**ONE, "loss": "quantile"}, {**ONE, "init": "zero"}],
        "regression",
    ),
    "GridSearchCV": _search(),
    "RandomizedSearchCV": _search(n_iter=2),
    "HistGradientBoostingClassifier": lambda: [
        *_with([{"max_iter": 5}], *CLASSES, "holes")(),
        *_with([{"max_iter": 5, "categorical_features": [0, 1]}], "counts")(),
    ],
    "HistGradientBoostingRegressor": lambda: [
        *_with([{"max_iter": 5}], "regression")(),
        *_with([{"max_iter": 5, "loss": n} for n in ("poisson", "gamma")], "positive")(),
        *_with([{"max_iter": 5, "loss": "quantile", "quantile": 0.3}], "regression")(),
    ],
    "IsotonicRegression": _with([{}, {"out_of_bounds": "clip"}], "line"),
    "IncrementalPCA": _with([{}, {"n_components": 2, "whiten": True}], "binary"),
    "KBinsDiscretizer": _with(
        [
            {"quantile_method": "averaged_inverted_cdf"},
            {"encode": "ordinal", "strategy": "uniform"},
            {"encode": "onehot-dense", "n_bins": 3, "strategy": "kmeans"},
        ],
        "binary",
    ),
    "KMeans": _with([{"n_clusters": 3}], "binary"),
    "MiniBatchKMeans": _with([{"n_clusters": 3}], "binary"),
    "BisectingKMeans": _with([{"n_clusters": 4}], "binary"),
    "KNNImputer": _with([{}, {"weights": "distance", "add_indicator": True}], "holes"),
    "KNeighborsClassifier": _with(
        [{}, {"weights": "distance"}, {"p": 1}, {"algorithm": "brute"}],
        *CLASSES, "multilabel",
    ),
    "KNeighborsRegressor": _with(
        [{}, {"weights": "distance"}, {"p": 1}, {"metric": "chebyshev"}], "regression", "outputs"
    ),
    "KernelCenterer": _with([{}], "kernel"),
    "KernelPCA": _with(
        [{"n_components": 3, "kernel": k} for k in ("linear", "rbf", "poly", "sigmoid", "cosine")],
        "binary",
    ),
    "KernelRidge": _with(
        [{"kernel": k} for k in ("linear", "rbf", "poly", "laplacian")], "regression", "outputs"
    ),
    "LabelBinarizer": _with([{}], *CLASSES),
    "LabelEncoder": _with([{}], *CLASSES),
    "LabelPropagation": _with([{"gamma": 2}, {"kernel": "knn"}], *CLASSES),
    "LabelSpreading": _with([{"gamma": 2}, {"kernel": "knn"}], *CLASSES),
    "LatentDirichletAllocation": _with([{"n_components": 2}], "counts"),
    "LinearDiscriminantAnalysis": _with(
        [{}, {"solver": "lsqr"}, {"solver": "eigen", "shrinkage": "auto"}], *CLASSES
    ),
    "LinearRegression": _with([{}, {"fit_intercept": False}], "regression", "outputs"),
    "LocalOutlierFactor": _with([{"novelty": True}], "binary"),
    "LocallyLinearEmbedding": _with([{}], "binary"),
    "LogisticRegression": _with([{}, {"C": 0.1}, {"solver": "newton-cg"}], *CLASSES),
    "MLPClassifier": _with(
        [{"max_iter": 20, "hidden_layer_sizes": (8, 4), "activation": a}
         for a in ("relu", "tanh", "logistic")],
        *CLASSES, "multilabel",
    ),
    "MLPRegressor": _with(
        [{"max_iter": 20, "hidden_layer_sizes": (8,)}], "regression", "outputs"
    ),
    "MaxAbsScaler": _with([{}], "binary", "holes"),
    "MinMaxScaler": _with([{}, {"clip": True, "feature_range": (-1, 2)}], "binary", "holes"),
    "MissingIndicator": _with([{}, {"features": "all"}], "holes"),
    "MultiOutputClassifier": _over("estimator", ["logistic", "tree", "svc"], "multilabel"),
    "MultiOutputRegressor": _over("estimator", ["ridge", "regression tree"], "outputs"),
    "MultiTaskElasticNet": _with([{}], "outputs"),
    "MultiTaskElasticNetCV": _with([{}], "outputs"),
    "MultiTaskLasso": _with([{}], "outputs"),
    "MultiTaskLassoCV": _with([{}], "outputs"),
    "MultinomialNB": _with([{}, {"fit_prior": False}], "counts"),
    "NMF": _with([{"n_components": 2}], "positive"),
    "MiniBatchNMF": _with([{"n_components": 2}], "positive"),
    "NearestCentroid": _with(
        [{}, {"metric": "manhattan"}, {"shrink_threshold": 0.2}, {"priors": "empirical"}], *CLASSES
    ),
    "Normalizer": _with([{}, {"norm": "l1"}, {"norm": "max"}], "binary", "sparse-like"),
    "NuSVC": _with([{"nu": 0.3}, {"nu": 0.3, "kernel": "poly"}], *CLASSES),
    "NuSVR": _with([{}, {"kernel": "linear"}], "regression"),
    "Nystroem": _with(
        [{"n_components": 10, "kernel": k} for k in ("rbf", "poly", "cosine")], "binary"
    ),
    "OneClassSVM": _with([{}, {"kernel": "poly"}], "binary"),
    "OneHotEncoder": lambda: [
        *_with([{"handle_unknown": "ignore"}, {"drop": "first"}, {"min_frequency": 25}],
               "categories")(),
        *_with([{"handle_unknown": "ignore"}, {"handle_unknown": "infrequent_if_exist",
                 "max_categories": 2}], "counts")(),
    ],
    "OneVsOneClassifier": _over("estimator", ["logistic", "linear svc", "tree"], *CLASSES),
    "OneVsRestClassifier": _over(
        "estimator", ["logistic", "linear svc", "tree"], *CLASSES, "multilabel"
    ),
    "OrdinalEncoder": lambda: [
        *_with([{"handle_unknown": "use_encoded_value", "unknown_value": -1}], "categories")(),
        *_with([{"handle_unknown": "use_encoded_value", "unknown_value": -1}], "counts")(),
    ],
    "OutputCodeClassifier": _over("estimator", ["logistic", "tree"], *CLASSES),
    "PCA": _with([{}, {"n_components": 2, "whiten": True}], "binary"),
    "PLSCanonical": _with([{}], "outputs"),
    "PLSRegression": _with([{}], "outputs", "regression"),
    "PLSSVD": _with([{}], "outputs"),
    "Pipeline": _pipeline,
    "PoissonRegressor": _with([{}], "positive"),
    "PolynomialCountSketch": _with([{"n_components": 8}, {"degree": 3, "coef0": 1}], "binary"),
    "PolynomialFeatures": _with(
        [{}, {"degree": 3, "interaction_only": True}, {"include_bias": False}], "binary"
    ),
    "PowerTransformer": lambda: [
        *_with([{}, {"standardize": False}], "binary")(),
        *_with([{"method": "box-cox"}], "positive")(),
    ],
    "QuadraticDiscriminantAnalysis": _with([{}, {"reg_param": 0.1}], *CLASSES),
    "QuantileTransformer": _with(
        [{"n_quantiles": 20}, {"n_quantiles": 20, "output_distribution": "normal"}],
        "binary", "sparse-like",
    ),
    "RANSACRegressor": _with([{}], "regression"),
    "RFE": _over("estimator", ["logistic", "tree"], *CLASSES),
    "RFECV": _over("estimator", ["logistic"], "binary"),
    "RadiusNeighborsClassifier": _with(
        [{"radius": 3.0, "outlier_label": "most_frequent"}], "binary", "multiclass", "texts"
    ),
    "RadiusNeighborsRegressor": _with([{"radius": 3.0}], "regression", "outputs"),
    "RadiusNeighborsTransformer": _with([{"radius": 2.0}], "binary"),
    "RandomForestClassifier": _with(
        [ONE, {**ONE, "max_depth": 3}], *CLASSES, "multilabel", "holes"
    ),
    "RandomForestRegressor": _with([ONE], "regression", "outputs"),
    "RandomTreesEmbedding": _with([{"n_estimators": 5, "max_depth": 3}], "binary"),
    "RegressorChain": _over("estimator", ["ridge", "regression tree"], "outputs"),
    "Ridge": _with([{}, {"alpha": 10}], "regression", "outputs"),
    "RidgeClassifier": _with([{}], *CLASSES, "multilabel"),
    "RidgeClassifierCV": _with([{}], *CLASSES, "multilabel"),
    "RobustScaler": _with([{}, {"with_centering": False}], "binary", "holes"),
    "SGDClassifier": _with(
        [{}, {"loss": "log_loss"}, {"loss": "modified_huber"}], *CLASSES
    ),
    "SGDRegressor": _with([{}, {"loss": "huber"}], "regression"),
    "SVC": _with(
        [{}, {"kernel": "linear"}, {"kernel": "poly"}, {"kernel": "sigmoid"},
         {"decision_function_shape": "ovo"}, {"break_ties": True}, {"probability": True}],
        *CLASSES,
    ),
    "SVR": _with([{"kernel": k} for k in ("rbf", "linear", "poly", "sigmoid")], "regression"),
    "SelectFdr": _with([{"alpha": 0.9}], "binary"),
    "SelectFpr": _with([{"alpha": 0.9}], "binary"),
    "SelectFwe": _with([{"alpha": 0.9}], "binary"),
    "SelectFromModel": _over("estimator", ["logistic", "forest"], "binary"),
    "SelectKBest": _with([{"k": 2}], "binary"),
    "SelfTrainingClassifier": _over("estimator", ["logistic"], "binary"),
    "SequentialFeatureSelector": _over("estimator", ["ridge"], "regression"),
    "SimpleImputer": lambda: [
        *_with([{}, {"strategy": "median", "add_indicator": True},
                {"strategy": "constant", "fill_value": 7}], "holes")(),
    ],
    "SkewedChi2Sampler": _with([{"n_components": 8}], "positive"),
    "SparseCoder": _sparse_coder,
    "SparseRandomProjection": _with([{"n_components": 3}], "binary"),
    "SplineTransformer": _with(
        [{}, {"degree": 2, "extrapolation": "linear"}, {"extrapolation": "periodic"},
         {"extrapolation": "continue", "include_bias": False}, {"knots": "quantile"}],
        "binary",
    ),
    "StackingClassifier": _stacking_classifier,
    "StackingRegressor": lambda: [
        ({"estimators": _pairs("ridge", "regression tree")}, "regression"),
        ({"estimators": _pairs("ridge", "regression tree"), "passthrough": True}, "regression"),
    ],
    "StandardScaler": _with([{}, {"with_mean": False}, {"with_std": False}], "binary", "holes"),
    "TargetEncoder": lambda: [
        ({}, "categories"),
        ({}, "counts"),
    ],
    "TfidfTransformer": _with([{}, {"sublinear_tf": True, "norm": "l1"}], "counts"),
    "TransformedTargetRegressor": _transformed_target,
    "TruncatedSVD": _with([{}, {"n_components": 3}], "binary"),
    "TunedThresholdClassifierCV": _over("estimator", ["logistic"], "binary"),
    "TweedieRegressor": _with([{"power": p} for p in (0, 1, 1.5, 2)], "positive"),
    "VotingClassifier": _voting_classifier,
    "VotingRegressor": lambda: [
        ({"estimators": _pairs("ridge", "regression tree")}, "regression"),
        ({"estimators": _pairs("ridge", "regression tree"), "weights": [1, 3]}, "regression"),
    ],
}  # fmt: skip

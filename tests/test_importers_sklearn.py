"""scikit-learn estimators as ONNX models, against scikit-learn on rows that were not given."""

from __future__ import annotations

import json
import warnings

import numpy as np
import onnx
import onnxruntime as ort
import pandas as pd
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, ImportDiffers, ImportRefused
from sardonyx.importers.rules import RULES
from tests.sweeps import estimators

pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLE = [
    "BernoulliNB", "CalibratedClassifierCV", "ColumnTransformer", "DecisionTreeClassifier",
    "GradientBoostingClassifier", "HistGradientBoostingClassifier", "IsolationForest",
    "KNeighborsClassifier", "KernelRidge", "LinearRegression", "MLPClassifier", "OneHotEncoder",
    "OneVsRestClassifier", "OrdinalEncoder", "Pipeline", "PowerTransformer", "QuantileTransformer",
    "RandomForestClassifier", "SVC", "SVR", "SimpleImputer", "SplineTransformer",
    "StackingClassifier", "StandardScaler", "TargetEncoder", "VotingClassifier",
]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
def test_an_estimator_is_right_in_both_precisions(name) -> None:
    ((_, outcome),) = estimators.sweep([name], quick=True)
    assert estimators.verdict(outcome) == "right", [r.reasons for r in outcome.values()]


@pytest.mark.nightly
def test_every_estimator_is_right_or_refused() -> None:
    words = {name: estimators.verdict(outcome) for name, outcome in estimators.sweep()}
    assert not [n for n, word in words.items() if word in ("wrong", "failed")]
    assert sum(word.startswith("right") for word in words.values()) >= 170


def session_of(model):
    onnx.checker.check_model(model.proto())
    return ort.InferenceSession(
        sx.save(model, "model.onnx").read_bytes(), providers=["CPUExecutionProvider"]
    )


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    data = pd.DataFrame(
        {
            "age": rng.normal(40, 10, rows),
            "income": rng.lognormal(3, 1, rows).astype(np.float32),
            "children": rng.integers(0, 4, rows),
            "city": rng.choice(["Oslo", "Rome", "Lima"], rows),
            "member": rng.random(rows) < 0.5,
        }
    )
    data.loc[data.index % 7 == 3, "age"] = np.nan
    data.loc[data.index % 11 == 5, "city"] = None
    return data


def frame_pipeline():
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = Pipeline([("fill", SimpleImputer(strategy="median")), ("scale", StandardScaler())])
    texts = Pipeline(
        [
            ("fill", SimpleImputer(strategy="most_frequent", missing_values=None)),
            ("hot", OneHotEncoder(handle_unknown="ignore")),
        ]
    )
    columns = ColumnTransformer(
        [("numbers", numbers, ["age", "income", "children"]), ("texts", texts, ["city"])],
        remainder="passthrough",
    )
    return Pipeline([("columns", columns), ("model", LogisticRegression())])


def test_a_frame_has_one_input_per_column(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    train, test = frame(120), frame(40, 1)
    train["city"] = train["city"].astype(object).where(train["city"].notna(), None)
    test["city"] = test["city"].astype(object).where(test["city"].notna(), None)
    target = np.where(train["children"] > 1, "many", "few")
    pipe = frame_pipeline().fit(train, target)
    model = sx.from_sklearn(pipe, train)
    session = session_of(model)
    types = {i.name: i.type for i in session.get_inputs()}
    assert types == {
        "age": "tensor(double)", "income": "tensor(float)", "children": "tensor(int64)",
        "city": "tensor(string)", "member": "tensor(bool)",
    }  # fmt: skip
    missing = model.metadata["missing_string"]
    test.loc[0, "city"] = "Atlantis"
    feeds = {n: test[[n]].to_numpy() for n in types if n != "city"}
    feeds["city"] = np.array([[missing if c is None else c] for c in test["city"]], object)
    label, probabilities = session.run(["label", "probabilities"], feeds)
    assert label.tolist() == pipe.predict(test).tolist()
    np.testing.assert_allclose(probabilities, pipe.predict_proba(test), rtol=1e-6)
    assert json.loads(model.metadata["classes"]) == ["few", "many"]
    assert "rows" in model.metadata["sardonyx.verified"]


@pytest.mark.parametrize(
    "seen, marked",
    [(seen, marked) for seen in (None, "Rome") for marked in (None, np.nan, pd.NA)]
    + [(np.nan, np.nan), (np.nan, pd.NA)],
)
def test_an_imputer_tells_None_from_NaN(seen, marked, tmp_path, monkeypatch) -> None:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    monkeypatch.chdir(tmp_path)
    cities = ["Oslo", "Rome", "Lima", "Oslo"]
    train = pd.DataFrame({"city": pd.Series([*cities, seen] * 4, dtype=object)})
    pipe = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="Lima", missing_values=marked),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    ).fit(train)
    model = sx.from_sklearn(pipe, train)
    other = "Rome" if marked is None else np.nan  # an imputer of None accepts no NaN
    rows = pd.DataFrame({"city": pd.Series(["Rome", None, other, "Lima", ""], dtype=object)})
    (actual,) = session_of(model).run(None, model.feeds(rows))
    np.testing.assert_array_equal(actual, pipe.transform(rows))


def test_None_may_be_the_most_frequent_value(tmp_path, monkeypatch) -> None:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    monkeypatch.chdir(tmp_path)
    cities = pd.Series(["Oslo", None, None, "Rome", None, "Lima"], dtype=object)
    train = pd.DataFrame({"city": cities, "code": [*"abcabc"]})
    pipe = make_pipeline(
        SimpleImputer(strategy="most_frequent"),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    ).fit(train)
    model = sx.from_sklearn(pipe, train)
    rows = pd.DataFrame({"city": pd.Series(["Rome", None, np.nan], dtype=object), "code": [*"abx"]})
    (actual,) = session_of(model).run(None, model.feeds(rows))
    np.testing.assert_array_equal(actual, pipe.transform(rows))


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_that_are_nearly_zero_are_not_scaled(norm, dtype, tmp_path, monkeypatch) -> None:
    from sklearn.preprocessing import Normalizer

    monkeypatch.chdir(tmp_path)
    sizes = [0, 1e-30, 2e-16, 1e-15, 3e-15, 1e-10, 1e-7, 1e-6, 2e-6, 1.0]
    x = np.outer(sizes, [0.6, -0.8]).astype(dtype)
    scaler = Normalizer(norm).fit(x)
    (actual,) = session_of(sx.from_sklearn(scaler, x)).run(None, {"X": x})
    np.testing.assert_allclose(actual, scaler.transform(x), rtol=1e-6)


@pytest.mark.parametrize("extrapolation", ["constant", "linear"])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_splines_of_several_columns(degree, extrapolation, tmp_path, monkeypatch) -> None:
    from sklearn.preprocessing import SplineTransformer

    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(80, 3))
    splines = SplineTransformer(4, degree, extrapolation=extrapolation).fit(x)
    rows = np.vstack([x - 1, x]) if (degree, extrapolation) == (0, "constant") else 3 * x
    rows = np.minimum(rows, x.max(0))  # beyond which scikit-learn cannot go on for a degree of 0
    rows = rows if degree == 0 else np.vstack([rows, 3 * x])
    (actual,) = session_of(sx.from_sklearn(splines, x)).run(None, {"X": rows})
    np.testing.assert_allclose(actual, splines.transform(rows), atol=1e-12)


def test_a_mean_in_float32_stays_on_the_edge_of_a_step(tmp_path, monkeypatch) -> None:
    from sklearn.impute import KNNImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import QuantileTransformer

    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(150, 1)).astype(np.float32)
    x[::3] = np.nan  # a third of the rows gets the mean, where the distribution has a step
    pipe = make_pipeline(KNNImputer(), QuantileTransformer(n_quantiles=20)).fit(x)
    (actual,) = session_of(sx.from_sklearn(pipe, x)).run(None, {"X": x})
    np.testing.assert_allclose(actual, pipe.transform(x), atol=1e-6)


def test_a_column_of_float32_does_not_round_the_others(tmp_path, monkeypatch) -> None:
    from sklearn.preprocessing import StandardScaler

    monkeypatch.chdir(tmp_path)
    x = pd.DataFrame({"a": np.arange(9, dtype=np.float32), "b": 1e5 + np.arange(9) / 3})
    scaler = StandardScaler().fit(x)
    model = sx.from_sklearn(scaler, x)
    (actual,) = session_of(model).run(None, model.feeds(x))
    np.testing.assert_allclose(actual, scaler.transform(x), rtol=1e-12, atol=1e-12)


def test_a_rule_of_the_user_is_used_and_verified() -> None:
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    class Halver(TransformerMixin, BaseEstimator):
        def fit(self, x, y=None):
            self.n_features_in_ = x.shape[1]
            return self

        def transform(self, x):
            return x / 2

    x = np.random.default_rng(0).normal(size=(30, 3))
    pipe = make_pipeline(StandardScaler(), Halver()).fit(x)
    with pytest.raises(ImportRefused, match=r"@sx\.importer") as refusal:
        sx.from_sklearn(pipe, x)
    name = f"{Halver.__module__}.{Halver.__qualname__}"
    assert name in str(refusal.value)
    try:
        sx.importer(name)(lambda op, estimator, x: op.Div(x, 2.0))
        assert sx.from_sklearn(pipe, x).metadata["sardonyx.importer"] == "sardonyx"
        sx.importer(name)(lambda op, estimator, x: op.Div(x, 3.0))
        with pytest.raises(ImportDiffers, match="halver"):
            sx.from_sklearn(pipe, x)
    finally:
        RULES.pop(name, None)


def test_unfitted_estimators_are_named_all_at_once() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    with pytest.raises(ImportRefused, match="is not fitted"):
        sx.from_sklearn(LogisticRegression())
    with pytest.raises(ImportRefused, match="is not fitted"):
        sx.from_sklearn(make_pipeline(StandardScaler(), LogisticRegression()))
    fitted = LogisticRegression().fit(np.eye(3), [0, 1, 1])
    with pytest.raises(ArgumentError, match="X has 2 columns, LogisticRegression was fitted on 3"):
        sx.from_sklearn(fitted, np.eye(2))
    with pytest.raises(ImportRefused, match="no method that scores new rows"):
        from sklearn.cluster import DBSCAN

        sx.from_sklearn(DBSCAN().fit(np.zeros((5, 2))))


@pytest.mark.parametrize("labels", [[True, False], [-1, 1], [1.0, 2.0], ["a", "b"], [3, 7]])
def test_labels_keep_their_type(labels) -> None:
    from sklearn.tree import DecisionTreeClassifier

    x = np.random.default_rng(0).normal(size=(40, 2))
    tree = DecisionTreeClassifier(random_state=0).fit(
        x, np.array(labels)[(x[:, 0] > 0).astype(int)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = sx.from_sklearn(tree)
    kinds = {bool: "BOOL", int: "INT64", float: "DOUBLE", str: "STRING"}
    assert model.outputs[0].dtype.name == kinds[type(labels[0])]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("settings", [{}, {"min_samples_leaf": 3}], ids=["pure", "mixed"])
def test_large_forests_have_faster_forms(classes, settings, monkeypatch) -> None:
    from sklearn.ensemble import ExtraTreesClassifier

    from sardonyx.importers.sklearn import tree
    from sardonyx.importers.trees import order

    monkeypatch.setattr(tree, "MANY_NODES", 500)
    monkeypatch.setattr(order, "MANY_TESTS", 500)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    y = rng.integers(classes, size=300)  # nothing to learn: the trees are large
    forest = ExtraTreesClassifier(21, random_state=0, **settings).fit(x, y)
    rows = rng.normal(size=(400, 4)).astype(np.float32)
    rows[::7, 1] = np.nan
    model = sx.from_sklearn(forest, x)
    label, probabilities = sx.to_numpy(model)(rows.astype(np.float64))
    want = forest.predict_proba(rows)
    np.testing.assert_allclose(np.asarray(probabilities), want, atol=1e-14)
    np.testing.assert_array_equal(np.asarray(label), forest.predict(rows))


def test_mahalanobis_distances_of_neighbours(tmp_path, monkeypatch) -> None:
    from sklearn.neighbors import KNeighborsRegressor

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, rows = rng.normal(size=(60, 3)), rng.normal(size=(40, 3))
    spread = np.cov(x.T)
    for parameters in ({"V": spread}, {"VI": np.linalg.inv(spread)}):
        model = KNeighborsRegressor(3, metric="mahalanobis", metric_params=parameters)
        model.fit(x, x[:, 0])
        actual = session_of(sx.from_sklearn(model, x)).run(["variable"], {"X": rows})[0]
        np.testing.assert_allclose(actual, model.predict(rows), rtol=1e-12)


def test_neighbours_at_equal_distances_are_an_error_that_says_so() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 6, size=(120, 3)).astype(float), rng.integers(0, 3, 120)
    with pytest.raises(ImportDiffers, match="the same distance"):
        sx.from_sklearn(KNeighborsClassifier(4).fit(x, y), x)


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_points_on_the_edge_of_a_radius(weights, tmp_path, monkeypatch) -> None:
    from sklearn.datasets import load_iris
    from sklearn.neighbors import RadiusNeighborsClassifier

    monkeypatch.chdir(tmp_path)
    x, y = load_iris(return_X_y=True)  # of one decimal: many pairs are at a distance of about 1
    model = RadiusNeighborsClassifier(1.0, weights=weights, outlier_label=0).fit(x[::2], y[::2])
    actual = session_of(sx.from_sklearn(model, x[::2])).run(["probabilities"], {"X": x[1::2]})[0]
    np.testing.assert_allclose(actual, model.predict_proba(x[1::2]), atol=1e-12)


def test_onnxruntime_reads_what_the_model_serializes_to() -> None:
    from sklearn.linear_model import LogisticRegression

    x = np.random.default_rng(0).normal(size=(40, 3))
    classifier = LogisticRegression().fit(x, x[:, 0] > 0)
    for trainable in (False, True):
        model = sx.from_sklearn(classifier, x, trainable=trainable)
        session = ort.InferenceSession(model.proto().SerializeToString())
        label = session.run(["label"], {session.get_inputs()[0].name: x})[0]
        assert label.tolist() == classifier.predict(x).tolist()

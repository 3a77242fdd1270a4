"""Records of imported estimators against scikit-learn's own `partial_fit`."""

from __future__ import annotations

import numpy as np
import pytest

import sardonyx as sx

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 20


def rows(count: int = 120, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4))
    return x, x @ rng.normal(size=(4, 3))


def weights(rep) -> dict[str, np.ndarray]:
    model = rep.to_model()
    return {
        n: v.const_value.numpy()
        for n, v in model.graph.initializers.items()
        if n.startswith(("coef", "intercept"))
    }


def same(actual, expected) -> None:
    np.testing.assert_allclose(actual.reshape(expected.shape), expected, rtol=1e-10, atol=1e-13)


RATES = [
    {"learning_rate": "optimal"}, {"learning_rate": "invscaling", "eta0": 0.05},
    {"learning_rate": "constant", "eta0": 0.01},
]  # fmt: skip
LOSSES = ["hinge", "log_loss", "modified_huber", "squared_hinge", "perceptron"]


@pytest.mark.parametrize("settings", RATES, ids=lambda s: s["learning_rate"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("count", [2, 3])
def test_sgd_classifier_goes_on(loss, settings, count) -> None:
    from sklearn.linear_model import SGDClassifier

    x, scores = rows()
    y = np.argmax(scores[:, :count], 1)
    estimator = SGDClassifier(loss=loss, shuffle=False, random_state=0, **settings)
    estimator.partial_fit(x[:60], y[:60], classes=np.arange(count))
    rep = sx.prepare_training(sx.from_sklearn(estimator, x, verify=False), threads=1)
    for i in range(60, 60 + STEPS):
        rep.step({"X": x[i : i + 1], "target": y[i : i + 1]})
        estimator.partial_fit(x[i : i + 1], y[i : i + 1])
    result = weights(rep)
    same(result["coef"], estimator.coef_)
    same(result["intercept"], estimator.intercept_)


SETTINGS = [
    {"penalty": "l1", "alpha": 0.05}, {"penalty": "elasticnet", "alpha": 0.05, "l1_ratio": 0.4},
    {"penalty": None, "fit_intercept": False}, {"loss": "huber", "penalty": "l1", "alpha": 0.01},
    {"loss": "squared_error", "class_weight": {0: 2.0, 1: 0.5, 2: 1.5}, "alpha": 0.1},
    {"loss": "log_loss", "class_weight": {0: 2.0, 1: 0.5, 2: 1.5}, "penalty": "elasticnet"},
    {"alpha": 20.0}, {"alpha": 2.0, "learning_rate": "constant", "eta0": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s)))
@pytest.mark.parametrize("count", [2, 3])
def test_penalties_and_weights_of_classes(settings, count) -> None:
    from sklearn.linear_model import SGDClassifier

    x, scores = rows()
    y = np.argmax(scores[:, :count], 1)
    if "class_weight" in settings:
        kept = {k: v for k, v in settings["class_weight"].items() if k < count}
        settings = {**settings, "class_weight": kept}
    estimator = SGDClassifier(shuffle=False, random_state=0, **settings)
    estimator.partial_fit(x[:60], y[:60], classes=np.arange(count))
    rep = sx.prepare_training(sx.from_sklearn(estimator, x, verify=False), threads=1)
    for i in range(60, 60 + STEPS):
        rep.step({"X": x[i : i + 1], "target": y[i : i + 1]})
        estimator.partial_fit(x[i : i + 1], y[i : i + 1])
    result = weights(rep)
    same(result["coef"], estimator.coef_)
    same(result["intercept"], estimator.intercept_)


@pytest.mark.parametrize("settings", RATES, ids=lambda s: s["learning_rate"])
@pytest.mark.parametrize("loss", ["squared_error", "huber", "epsilon_insensitive"])
def test_sgd_regressor_goes_on(loss, settings) -> None:
    from sklearn.linear_model import SGDRegressor

    x, scores = rows()
    y = scores[:, 0]
    estimator = SGDRegressor(loss=loss, shuffle=False, alpha=0.5, random_state=0, **settings)
    estimator.partial_fit(x[:60], y[:60])
    rep = sx.prepare_training(sx.from_sklearn(estimator, x, verify=False), threads=1)
    for i in range(60, 60 + STEPS):
        rep.step({"X": x[i : i + 1], "target": y[i : i + 1].reshape(1, 1)})
        estimator.partial_fit(x[i : i + 1], y[i : i + 1])
    result = weights(rep)
    same(result["coef"], estimator.coef_)
    same(result["intercept"], estimator.intercept_)


def test_perceptron_goes_on() -> None:
    from sklearn.linear_model import Perceptron

    x, scores = rows()
    y = (scores[:, 0] > 0).astype(int)
    estimator = Perceptron(shuffle=False).partial_fit(x[:60], y[:60], classes=[0, 1])
    rep = sx.prepare_training(sx.from_sklearn(estimator, x, verify=False), threads=1)
    for i in range(60, 60 + STEPS):
        rep.step({"X": x[i : i + 1], "target": y[i : i + 1]})
        estimator.partial_fit(x[i : i + 1], y[i : i + 1])
    same(weights(rep)["coef"], estimator.coef_)


@pytest.mark.parametrize("loss", ["perceptron", "hinge"])
def test_scores_on_the_very_margin_move(loss) -> None:
    """Of whole numbers, scores are often exactly 0 or 1."""
    from sklearn.linear_model import SGDClassifier

    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (60, 3)).astype(float)
    y = np.arange(60) % 2
    estimator = SGDClassifier(loss=loss, penalty=None, learning_rate="constant", eta0=1.0)
    estimator.partial_fit(x[:4], y[:4], classes=[0, 1])
    rep = sx.prepare_training(sx.from_sklearn(estimator, x, verify=False), threads=1)
    edge, on_edge = {"perceptron": 0.0, "hinge": 1.0}[loss], 0
    for i in range(4, 4 + STEPS):
        margin = estimator.decision_function(x[i : i + 1])[0] * (1 if y[i] else -1)
        on_edge += bool(margin == edge)
        rep.step({"X": x[i : i + 1], "target": y[i : i + 1]})
        estimator.partial_fit(x[i : i + 1], y[i : i + 1])
    assert on_edge
    same(weights(rep)["coef"], estimator.coef_)
    same(weights(rep)["intercept"], estimator.intercept_)


@pytest.mark.parametrize("kind", ["number", "numbers", "binary", "classes", "labels"])
@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_multi_layer_perceptrons_go_on(solver, kind) -> None:
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    x, scores = rows()
    y = {
        "number": scores[:, 0],
        "numbers": scores,
        "binary": (scores[:, 0] > 0).astype(int),
        "classes": np.argmax(scores, 1),
        "labels": (scores > 0).astype(int),
    }[kind]
    regression = kind.startswith("number")
    estimator = (MLPRegressor if regression else MLPClassifier)(
        hidden_layer_sizes=(6, 5),
        solver=solver,
        batch_size=30,
        shuffle=False,
        random_state=0,
        activation="tanh",
    )
    more = {} if regression else {"classes": np.unique(y)}
    if kind == "labels":
        more = {"classes": np.arange(3)}
    for start in (0, 30):
        estimator.partial_fit(x[start : start + 30], y[start : start + 30], **more)
    rep = sx.prepare_training(sx.from_sklearn(estimator, x, verify=False), threads=1)
    for i in range(STEPS):
        part = slice(30 * (i % 4), 30 * (i % 4) + 30)
        label = y[part].astype(float) if kind == "labels" else y[part]
        label = label.reshape(-1, 1) if kind == "number" else label
        rep.step({"X": x[part], "target": label})
        estimator.partial_fit(x[part], y[part])
    result = weights(rep)
    for i, (coef, bias) in enumerate(zip(estimator.coefs_, estimator.intercepts_)):
        same(result[f"coefs.{i}"], coef)
        same(result[f"intercepts.{i}"], bias)


def test_layers_of_one_class_go_on() -> None:
    from sklearn.neural_network import MLPClassifier

    x, y = rows()[0], np.full(120, 7)
    estimator = MLPClassifier((3,), solver="sgd", max_iter=2, random_state=0).fit(x[:60], y[:60])
    rep = sx.prepare_training(sx.from_sklearn(estimator, x, verify=False), threads=1)
    for i in range(60, 60 + STEPS):
        rep.step({"X": x[i : i + 1], "target": np.zeros(1, np.int64)})
        estimator.partial_fit(x[i : i + 1], y[i : i + 1])
    same(weights(rep)["coefs.0"], estimator.coefs_[0])


@pytest.mark.parametrize("count", [2, 3])
def test_logistic_regression_trains_on(count) -> None:
    from sklearn.linear_model import LogisticRegression

    x, scores = rows()
    y = np.argmax(scores[:, :count], 1)
    estimator = LogisticRegression(C=0.01).fit(x, y)
    rep = sx.prepare_training(sx.from_sklearn(estimator, x), threads=1)
    losses = [float(rep.step({"X": x, "target": y})["loss"]) for _ in range(STEPS)]
    proba = estimator.predict_proba(x)[np.arange(len(y)), y]
    assert losses[0] == pytest.approx(-np.log(proba).mean(), rel=1e-12)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_the_penalty_of_layers_is_shared_by_the_rows_of_a_step(solver, size) -> None:
    from sklearn.neural_network import MLPClassifier

    x, scores = rows(60 + STEPS * size)
    y = np.argmax(scores, 1)
    estimator = MLPClassifier((5,), solver=solver, alpha=0.5, shuffle=False, random_state=0)
    estimator.partial_fit(x[:60], y[:60], classes=np.arange(3))
    rep = sx.prepare_training(sx.from_sklearn(estimator, x, verify=False), threads=1)
    for start in range(60, len(x), size):
        part = slice(start, start + size)
        rep.step({"X": x[part], "target": y[part]})
        estimator.partial_fit(x[part], y[part])
    result = weights(rep)
    for i, (coef, bias) in enumerate(zip(estimator.coefs_, estimator.intercepts_)):
        same(result[f"coefs.{i}"], coef)
        same(result[f"intercepts.{i}"], bias)


@pytest.mark.parametrize("count", [2, 3])
def test_logistic_regression_keeps_the_weights_of_classes(count) -> None:
    from sklearn.linear_model import LogisticRegression

    x, scores = rows()
    y = np.argmax(scores[:, :count], 1)
    factors = {0: 3.0, 1: 0.25}
    estimator = LogisticRegression(class_weight=factors, fit_intercept=False).fit(x, y)
    rep = sx.prepare_training(sx.from_sklearn(estimator, x), threads=1)
    proba = estimator.predict_proba(x)[np.arange(len(y)), y]
    expected = np.mean([-np.log(p) * factors.get(c, 1.0) for p, c in zip(proba, y)])
    assert float(rep.step({"X": x, "target": y})["loss"]) == pytest.approx(expected, rel=1e-12)
    balanced = LogisticRegression(class_weight="balanced").fit(x, y)
    assert not sx.from_sklearn(balanced, x).records

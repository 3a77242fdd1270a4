"""PMML that sklearn2pmml writes, against the pipelines themselves and two other evaluators."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import sardonyx as sx

pytestmark = pytest.mark.nightly


def data() -> tuple[Any, Any]:
    """Numbers, texts and missing values, with a target that depends on them."""
    import pandas as pd

    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": draw.integers(18, 90, 300).astype(float),
            "income": draw.lognormal(10, 1, 300).round(2),
            "home": draw.choice(["own", "rent", "other"], 300).astype(object),
        }
    )
    score = frame.age / 20 + np.log(frame.income) - 12 + (frame.home == "own")
    target = (score + draw.normal(size=300) > 1).map({True: "yes", False: "no"})
    return frame, target.rename("good")


def pipeline(estimator: Any) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn2pmml.pipeline import PMMLPipeline

    columns = ColumnTransformer(
        [("text", OneHotEncoder(), ["home"]), ("number", StandardScaler(), ["age", "income"])]
    )
    return PMMLPipeline([("columns", columns), ("estimator", estimator)])


def estimators() -> dict[str, Callable[[], Any]]:
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC
    from sklearn.tree import DecisionTreeClassifier

    return {
        "tree": lambda: DecisionTreeClassifier(max_depth=6),
        "forest": lambda: RandomForestClassifier(20, max_depth=6),
        "boosting": lambda: GradientBoostingClassifier(n_estimators=20),
        "logistic": LogisticRegression,
        "bayes": GaussianNB,
        "neighbours": lambda: KNeighborsClassifier(5),
        "network": lambda: MLPClassifier((5,), max_iter=100),
        "support vectors": SVC,
    }


def score(path: Path, frame: Any) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(
        sx.from_pmml(path).proto().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {v.name: frame[v.name].to_numpy() for v in session.get_inputs()}
    return dict(zip([v.name for v in session.get_outputs()], session.run(None, feeds), strict=True))


KINDS = ("tree", "forest", "boosting", "logistic", "bayes", "neighbours", "network",
         "support vectors")  # fmt: skip


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_and_its_pmml(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sklearn2pmml = pytest.importorskip("sklearn2pmml")
    import sklearn.base

    # The converter refuses patch releases that came after it.
    release = sklearn.base.__version__.split(".")
    monkeypatch.setattr(sklearn.base, "__version__", ".".join([*release[:2], "0"]))
    frame, target = data()
    model = pipeline(estimators()[kind]())
    model.fit(frame, target)
    path = tmp_path / "model.pmml"
    try:
        sklearn2pmml.sklearn2pmml(model, str(path))
    except RuntimeError as error:  # a release of scikit-learn that it does not know
        pytest.skip(str(error))
    out = score(path, frame)
    assert list(out["good"]) == list(model.predict(frame))
    if "probability(yes)" in out and hasattr(model, "predict_proba"):
        expected = model.predict_proba(frame)[:, 1]
        np.testing.assert_allclose(out["probability(yes)"], expected, rtol=1e-9, atol=1e-12)


def test_pypmml_agrees_with_the_bench(tmp_path: Path) -> None:
    pytest.importorskip("pypmml")
    import importlib.util

    place = Path(__file__).parent.parent / "bench" / "pmml.py"
    spec = importlib.util.spec_from_file_location("bench_pmml", place)
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    path = tmp_path / "model.pmml"
    path.write_text(bench.document(10, 4))
    _, feeds, ours = bench.score(bench.to_onnx(path), 2000)
    _, theirs = bench.score_peer(path, feeds)
    np.testing.assert_allclose(ours[: len(theirs)], theirs, rtol=1e-12)


@pytest.mark.parametrize("sweep", ["pmml_documents", "pmml_fields", "pmml_vendors"])
def test_documents_agree_with_other_evaluators(sweep: str) -> None:
    """Each sweep starts a Java machine of its own, and fails where a document is wrong."""
    pytest.importorskip("jpmml_evaluator")
    pytest.importorskip("pypmml")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.sweeps.{sweep}"],
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]

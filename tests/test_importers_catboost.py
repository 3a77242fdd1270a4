"""CatBoost models as ONNX, against the library on rows that were not given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import sardonyx as sx
from sardonyx.errors import ImportRefused
from tests.test_importers_boosting import close, numbers, outputs, targets

catboost = pytest.importorskip("catboost", reason="CatBoost is no dependency of the default tests")
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
SETTINGS = {"iterations": 8, "depth": 3, "verbose": 0, "allow_writing_files": False}
REGRESSIONS = {
    "RMSE": "number", "MAE": "number", "Quantile:alpha=0.3": "number", "Poisson": "positive",
    "Tweedie:variance_power=1.5": "positive", "MultiRMSE": "two", "RMSEWithUncertainty": "number",
    "LogLinQuantile:alpha=0.5": "positive", "MAPE": "positive", "Huber:delta=1": "number",
    "Expectile:alpha=0.3": "number", "Lq:q=3": "number", "LogCosh": "number", "Cox": "number",
    "MultiQuantile:alpha=0.2,0.8": "number", "SurvivalAft:dist=Normal;scale=1": "two",
}  # fmt: skip
CLASSIFICATIONS = {
    "Logloss": "binary", "CrossEntropy": "binary", "MultiClass": "classes",
    "MultiClassOneVsAll": "classes", "MultiLogloss": "labels",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("policy", ["SymmetricTree", "Lossguide", "Depthwise"])
@pytest.mark.parametrize("loss", REGRESSIONS)
def test_regressions(loss, policy) -> None:
    several = ("MultiRMSE", "RMSEWithUncertainty", "MultiQuantile:alpha=0.2,0.8",
               "SurvivalAft:dist=Normal;scale=1")  # fmt: skip
    if policy != "SymmetricTree" and loss in several:
        pytest.skip("CatBoost has no such trees for several outputs")
    model = catboost.CatBoostRegressor(loss_function=loss, grow_policy=policy, **SETTINGS)
    model.fit(numbers(), targets()[REGRESSIONS[loss]])
    result = outputs(sx.from_catboost(model, raw=True), numbers(7))
    close(result["variable"], model.predict(numbers(7)), 1e-10)
    close(result["raw"], model.predict(numbers(7), prediction_type="RawFormulaVal"), 1e-10)


@pytest.mark.parametrize("loss", ["YetiRank", "QueryRMSE", "PairLogit"])
def test_rankings(loss) -> None:
    groups = np.repeat(np.arange(4), len(numbers()) // 4)
    model = catboost.CatBoostRanker(loss_function=loss, **SETTINGS)
    model.fit(numbers(), targets()["rank"], group_id=groups)
    result = outputs(sx.from_catboost(model), numbers(7))
    close(result["variable"], model.predict(numbers(7)), 1e-10)


@pytest.mark.parametrize("loss", CLASSIFICATIONS)
def test_classifications(loss) -> None:
    model = catboost.CatBoostClassifier(loss_function=loss, **SETTINGS)
    model.fit(numbers(), targets()[CLASSIFICATIONS[loss]])
    result = outputs(sx.from_catboost(model), numbers(7))
    close(result["probabilities"], model.predict_proba(numbers(7)), 1e-10)
    close(result["label"].ravel(), np.asarray(model.predict(numbers(7))).ravel(), 0)


def frame(seed: int = 0, rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": rng.normal(size=rows),
            "city": rng.choice(["Oslo", "Rome", "São Paulo", "東京", '"K\\'], rows),
            "kind": rng.choice(["k", "l", "m"], rows),
            "flag": rng.choice(["yes", "no"], rows),
        }
    )


@pytest.mark.parametrize("simple", [True, False], ids=["single", "combined"])
def test_categories(simple) -> None:
    data, rows = frame(), frame(3)
    y = ((data["a"] > 0) ^ (data["city"] == "Oslo") ^ (data["kind"] == "k")).astype(int)
    settings = {**SETTINGS, "iterations": 30, "cat_features": ["city", "kind", "flag"]}
    if simple:
        settings["max_ctr_complexity"] = 1
    model = catboost.CatBoostClassifier(**settings).fit(data, y)
    rows.loc[0, "city"] = "Atlantis"
    result = outputs(sx.from_catboost(model, data), rows)
    close(result["probabilities"], model.predict_proba(rows), 1e-10)
    with pytest.raises(ImportRefused, match="does not hold"):
        sx.from_catboost(model, data[data["city"] != "Oslo"])
    with pytest.raises(ImportRefused, match="hashes"):
        sx.from_catboost(model)


@pytest.mark.parametrize("dtype", [bool, object, "boolean", "category"])
def test_truths_as_categories(dtype) -> None:
    data, rows = (
        table.assign(flag=(table["flag"] == "yes").astype(dtype))[["a", "flag"]]
        for table in (frame(), frame(3))
    )
    y = data["a"] * (frame()["flag"] == "yes")
    model = catboost.CatBoostRegressor(**SETTINGS, cat_features=["flag"]).fit(data, y)
    close(outputs(sx.from_catboost(model, data), rows)["variable"], model.predict(rows), 1e-10)


def test_files_and_best_iteration() -> None:
    model = catboost.CatBoostRegressor(**{**SETTINGS, "iterations": 50}, od_wait=3)
    y = np.random.default_rng(3).normal(size=len(numbers()))
    model.fit(numbers(), y, eval_set=(numbers(3), y))
    model.save_model("model.cbm")
    model.save_model("model.bin", format="json")
    for name in ("model.cbm", "model.bin"):
        result = outputs(sx.from_catboost(name), numbers(7))
        close(result["variable"], model.predict(numbers(7)), 1e-10)


@pytest.mark.parametrize("largest", [2, 10])
def test_statistics_of_several_targets_are_refused(largest: int) -> None:
    """CatBoost writes one table for all targets; one-hot categories need none."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.normal(size=300), "color": rng.choice(list("rgbkwyz"), 300)})
    rows["color"] = rows["color"].astype(object)
    y = np.stack([rows.a + (rows.color == "r") * 2, (rows.color == "g") * 3 - rows.a**2], 1)
    model = catboost.CatBoostRegressor(
        loss_function="MultiRMSE", cat_features=["color"], one_hot_max_size=largest, **SETTINGS
    ).fit(rows, y)
    if largest == 2:
        with pytest.raises(ImportRefused, match="several targets"):
            sx.from_catboost(model, rows)
    else:
        close(outputs(sx.from_catboost(model, rows), rows)["variable"], model.predict(rows), 1e-10)

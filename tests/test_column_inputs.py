"""Frames as feeds of models whose inputs are columns: from PMML and from estimators."""

from __future__ import annotations

import tempfile

import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest

import sardonyx as sx
from sardonyx.errors import DataError

DOCUMENT = b"""<PMML version="4.4"><DataDictionary>
  <DataField name="x" optype="continuous" dataType="double"/>
  <DataField name="home" optype="categorical" dataType="string">
    <Value value="own"/><Value value="1"/></DataField>
  <DataField name="y" optype="continuous" dataType="double"/></DataDictionary>
  <RegressionModel functionName="regression"><MiningSchema>
    <MiningField name="x"/><MiningField name="home" missingValueReplacement="own"/>
    <MiningField name="y" usageType="target"/></MiningSchema>
  <RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/>
    <CategoricalPredictor name="home" value="own" coefficient="10"/></RegressionTable>
  </RegressionModel></PMML>"""


def scored(model: sx.Model, frame: pd.DataFrame) -> list[np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        session = ort.InferenceSession(sx.save(model, f"{folder}/model.onnx").read_bytes())
    return session.run(None, model.feeds(frame))


def test_cells_of_any_type_feed_a_pmml_model():
    model = sx.from_pmml(DOCUMENT)
    texts = pd.DataFrame({"x": ["1", None, "true", "2.5"], "home": ["own", "1", None, "1"]})
    assert scored(model, texts)[0].tolist() == pytest.approx([13, np.nan, 13, 6], nan_ok=True)
    numbers = pd.DataFrame({"x": pd.array([1, pd.NA, 3], "Int64"), "home": [1, 1, 1]})
    assert scored(model, numbers)[0].tolist() == pytest.approx([3, np.nan, 7], nan_ok=True)


def test_tools_find_the_file_beside_feeds():
    session = ort.InferenceSession(sx.from_pmml(DOCUMENT).model.SerializeToString())
    assert [i.name for i in session.get_inputs()] == ["x", "home"]


def test_a_column_that_the_table_of_a_pmml_model_lacks_is_missing():
    frame = pd.DataFrame({"x": [1.0, 2.0], "other": [0, 0]})
    assert scored(sx.from_pmml(DOCUMENT), frame)[0].tolist() == [13.0, 15.0]


def test_every_column_that_does_not_fit_is_named():
    frame = pd.DataFrame({"x": ["one"], "home": [1.5]})
    with pytest.raises(DataError, match=r'(?s)"x".*"one".*"home".*float'):
        sx.from_pmml(DOCUMENT).feeds(frame)


@pytest.mark.parametrize("gone", [None, np.nan])
@pytest.mark.parametrize("rare", [None, 4])
@pytest.mark.parametrize("kind", ["OneHotEncoder", "OrdinalEncoder"])
def test_empty_texts_and_both_kinds_of_missing_ones_are_what_scikit_learn_takes_them_for(
    kind, rare, gone
):
    from sklearn import preprocessing
    from sklearn.compose import make_column_transformer

    settings = {"handle_unknown": "ignore"}
    if kind == "OrdinalEncoder":
        settings = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
        settings |= {"encoded_missing_value": -2}
    encoder = getattr(preprocessing, kind)(min_frequency=rare, **settings)
    texts = [*"aaaaabbbbbccde", gone, gone, gone, gone, gone]
    frame = pd.DataFrame({"s": pd.Series(texts, dtype=object), "n": np.arange(19.0)})
    columns = make_column_transformer((encoder, ["s"]), ("passthrough", ["n"])).fit(frame)
    model = sx.from_sklearn(columns, frame)
    others = pd.Series(["a", "e", "", "new", None, np.nan, gone], dtype=object)
    frame = pd.DataFrame({"s": others, "n": np.arange(7.0)})
    expected = columns.transform(frame)
    expected = expected.toarray() if hasattr(expected, "toarray") else expected
    np.testing.assert_array_equal(scored(model, frame)[0], expected)


def test_functions_of_texts_get_empty_ones_as_they_are():
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

    def known(rows):
        return rows.assign(empty=(rows["s"] == "").astype(float))[["empty"]]

    columns = make_column_transformer(
        (FunctionTransformer(known), ["s"]), (OrdinalEncoder(), ["t"])
    )
    frame = pd.DataFrame({"s": ["a", np.nan, "b", "a"], "t": ["x", "y", "x", "y"]})
    columns.fit(frame)
    model = sx.from_sklearn(columns, frame)
    frame.loc[3, "s"] = ""
    np.testing.assert_array_equal(scored(model, frame)[0], columns.transform(frame))


def test_a_frame_feeds_the_model_of_an_estimator():
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OrdinalEncoder

    frame = pd.DataFrame({"n": [1, 2, 3], "f": [0.5, np.nan, 2.0], "s": ["a", None, "b"]})
    columns = make_column_transformer(
        ("passthrough", ["n"]), (SimpleImputer(), ["f"]),
        (OrdinalEncoder(encoded_missing_value=-1), ["s"]),
    )  # fmt: skip
    expected = columns.fit_transform(frame)
    model = sx.from_sklearn(columns, frame)
    np.testing.assert_allclose(scored(model, frame)[0], expected, rtol=1e-15)
    with pytest.raises(DataError, match=r'"s".*is missing'):
        model.feeds(frame[["n", "f"]])
    with pytest.raises(DataError, match=r'"n".*int64'):
        model.feeds(frame.assign(n=[1.5, 2, 3]))

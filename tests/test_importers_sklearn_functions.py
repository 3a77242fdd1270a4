"""FunctionTransformer over Python functions of arrays and of data frames."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.errors import ImportRefused

pytest.importorskip("sklearn")
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler


def rows(dtype=np.float64) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=(40, 4)) * 3).astype(dtype)


def assign_columns(x):
    x = x.copy()
    x[:, 0] = np.log1p(np.abs(x[:, 0]))
    x[:, [1, 2]] = x[:, [2, 1]]
    return x


def assign_masks(x):
    x = x.copy()
    x[x < 0] = 0
    x[np.isnan(x)] = -1
    x[x[:, 0] > 1, 2] = 5
    return x


def in_place(x):
    x = x * 1.0
    x += 1
    x /= 3
    return x


def more_columns(x):
    ratio = x[:, 0] / (np.abs(x[:, 1]) + 1)
    return np.column_stack([x, ratio, x.sum(axis=1), x.std(axis=1), x.max(axis=1)])


def powers(x, degree=2):
    return np.hstack([x**k for k in range(1, degree + 1)])


FUNCTIONS = {
    "ufunc": np.log1p,
    "columns": lambda x: x[:, [0, 2]] * 2,
    "steps": lambda x: x[:, ::2] - x[:, -1:],
    "assigned columns": assign_columns,
    "assigned masks": assign_masks,
    "in place": in_place,
    "more columns": more_columns,
    "powers": powers,
    "where": lambda x: np.where(x > 0.1, x, -x * 0.3),
    "clip": lambda x: x.clip(-0.5, 0.5),
    "remainder": lambda x: np.concatenate([x % 0.7, x // 0.7, x % -2], axis=1),
    "waves": lambda x: np.concatenate([np.sin(x / 24), np.cos(x / 24)], axis=1),
    "one column": lambda x: x[:, 0].reshape(-1, 1) + x[:, 1][:, None],
    "missing": lambda x: np.isnan(x).astype(float),
    "no missing": np.nan_to_num,
    "truth": lambda x: ((x > 0) & (x < 1)) | ~(x < -1),
    "round": lambda x: np.round(x, 2),
    "shape": lambda x: x.reshape(-1, 4) - x.mean(axis=1, keepdims=True),
    "constants": lambda x: x - np.array([1.0, 2.0, 3.0, 4.0]),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_arrays_gives_what_numpy_gives(name, dtype, tmp_path) -> None:
    x = rows(dtype)
    model = sx.from_sklearn(FunctionTransformer(FUNCTIONS[name]).fit(x), x)
    assert model.metadata["sardonyx.importer"] == "sardonyx"
    session = onnxruntime.InferenceSession(sx.save(model, tmp_path / "model.onnx"))
    for part in (x, x[:1], x[:0]):
        (result,) = session.run(None, {"X": part})
        with np.errstate(all="ignore"):
            want = FUNCTIONS[name](part)
        assert result.dtype == want.dtype
        tolerance = 1e-13 if dtype == np.float64 else 2e-6
        np.testing.assert_allclose(result, want, rtol=tolerance, atol=tolerance)


def test_integers_stay_integers() -> None:
    x = np.arange(-10, 10).reshape(5, 4)
    transformer = FunctionTransformer(lambda x: np.hstack([x % 3, x // 3, x**2, -x, abs(x)])).fit(x)
    model = sx.from_sklearn(transformer, x)
    assert str(model.outputs[0].dtype) == "INT64"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x - x.mean(axis=0), "mean over the rows of a batch"),
        (lambda x: x if x[:, 0] > 0 else -x, "decides by values"),
        (lambda x: x[:5], "rows by their position"),
        (lambda x: x[x[:, 0] > 0], "chooses rows by their values"),
        (lambda x: np.ones((len(x), 1)), "does not depend on its input"),
        (lambda x: x + np.arange(len(x))[:, None], "as long as the rows"),
        (lambda x: np.linalg.svd(x)[0], "np.svd"),
        (lambda x: np.asarray(x) + 1, "reads values"),
    ],
)
def test_what_has_no_faithful_graph_is_refused(function, reason) -> None:
    x = rows()
    with pytest.raises(ImportRefused, match=reason):
        sx.from_sklearn(FunctionTransformer(function).fit(x), x)


def test_arguments_and_inverse_functions(tmp_path) -> None:
    x, y = np.abs(rows()), np.abs(rows()[:, 0]) + 1
    transformer = FunctionTransformer(powers, kw_args={"degree": 3})
    inner = make_pipeline(transformer, LinearRegression())
    whole = TransformedTargetRegressor(
        inner, func=lambda y: np.log1p(y), inverse_func=lambda y: np.expm1(y)
    )
    model = sx.from_sklearn(whole.fit(x, y), x)
    session = onnxruntime.InferenceSession(sx.save(model, tmp_path / "model.onnx"))
    (result,) = session.run(None, {"X": x})
    np.testing.assert_allclose(result.ravel(), whole.predict(x), rtol=1e-11)


# -- data frames -----------------------------------------------------------------------------------


def frame():
    pd = pytest.importorskip("pandas")
    return pd.DataFrame(
        {
            "age": [20.0, np.nan, 40.0, 33.0],
            "fare": [1.5, 2.0, 3.0, 0.0],
            "count": [1, 2, 3, 4],
            "sex": ["m", "f", None, "m"],
        }
    )


def features(df):
    df = df.copy()
    df["share"] = df["fare"] / (df["count"] + 1)
    df["old"] = (df["age"] > 30).astype(int)
    df["age"] = df["age"].fillna(-1)
    df["male"] = df["sex"] == "m"
    return df[["age", "share", "old", "count", "male"]]


def test_a_function_of_a_frame() -> None:
    df = frame()
    model = sx.from_sklearn(FunctionTransformer(features).fit(df), df)
    assert [v.name for v in model.inputs] == ["age", "fare", "count", "sex"]


def test_texts_pass_through_a_function() -> None:
    df = frame()
    pick = FunctionTransformer(lambda df: df[["sex"]])
    whole = make_pipeline(pick, OneHotEncoder(handle_unknown="ignore")).fit(df)
    assert sx.from_sklearn(whole, df).metadata["sardonyx.importer"] == "sardonyx"


def test_functions_inside_a_column_transformer() -> None:
    df = frame()
    columns = make_column_transformer(
        (FunctionTransformer(lambda part: part.fillna(0)), ["age"]),
        (make_pipeline(FunctionTransformer(np.log1p), StandardScaler()), ["fare", "count"]),
        (OneHotEncoder(handle_unknown="ignore"), ["sex"]),
    )
    squares = FunctionTransformer(lambda x: np.hstack([x, x[:, :1] ** 2]))
    whole = make_pipeline(columns, squares, LogisticRegression()).fit(df, [0, 1, 0, 1])
    assert sx.from_sklearn(whole, df).metadata["sardonyx.importer"] == "sardonyx"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda df: df[["fare"]] - df["fare"].mean(), "fare.mean"),
        (lambda df: df[["sex"]].apply(lambda c: c.str.upper()), "characters of column 'sex'"),
        (lambda df: df[["fare"]].shift(1), "order"),
    ],
)
def test_state_of_a_batch_is_refused(function, reason) -> None:
    df = frame()
    with pytest.raises(ImportRefused, match=reason):
        sx.from_sklearn(FunctionTransformer(function).fit(df), df)

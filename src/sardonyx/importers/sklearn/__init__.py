"""scikit-learn: fitted estimators and pipelines as ONNX models in double precision.

driver.py   looks up the rule of an estimator · table.py   the values between steps
inputs.py   graph inputs for X · outputs.py   outputs by method · labels.py   labels from scores
rows.py, check.py   the verification against the estimator · fallback.py   what skl2onnx can do
training.py   records that continue an estimator
The rules: linear, svm, kernel, tree, neighbors, bayes, gaussian_process, neural, cluster,
decomposition, preprocessing, encoders, impute, compose, meta
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ImportDiffers, ImportRefused, MissingExtra
from sardonyx.importers.assembly import assemble
from sardonyx.importers.rules import public_name, rule_of
from sardonyx.importers.sklearn.inputs import Schema, schema_of
from sardonyx.model import Model
from sardonyx.versions import fit

MODULES = (
    "bayes", "cluster", "compose", "decomposition", "encoders", "gaussian_process", "impute",
    "linear", "meta", "neighbors", "neural", "preprocessing", "svm", "tree",
)  # fmt: skip


def from_sklearn(
    estimator: Any, X: Any = None, *, verify: bool = True, trainable: bool = True
) -> Model:
    """Import a fitted scikit-learn estimator or pipeline, and verify it against the estimator.

    X       -- example rows: they give the type of the input (float32, float64, texts), and are
               compared. A data frame becomes one input per column. Without X, the input is what
               the estimator was fitted on, in float64.
    verify  -- compare the model with the estimator on given and generated rows
    trainable -- add a training record that continues the estimator, where it is a linear model or
               a perceptron: one step is what `partial_fit` does

    The outputs are `label` and `probabilities` (or `scores`), `variable`, or `transformed`. The
    metadata has the names of the classes, and what was compared.

    >>> import sardonyx as sx
    >>> from sklearn.linear_model import LogisticRegression
    >>> classifier = LogisticRegression().fit([[0.0], [1.0], [2.0]], ["no", "no", "yes"])
    >>> model = sx.from_sklearn(classifier)
    >>> [output.name for output in model.outputs], model.metadata["classes"]
    (['label', 'probabilities'], '["no", "yes"]')
    """
    _load_rules()
    _check_parts(estimator)
    schema = schema_of(estimator, X)
    from sardonyx.importers.boosting.steps import has_xgboost
    from sardonyx.importers.sklearn.check import verify as compare
    from sardonyx.importers.sklearn.outputs import wanted

    outputs = wanted(estimator)
    if not outputs:
        raise ImportRefused(
            f"{public_name(type(estimator))} has no method that scores new rows",
            hint="predict, transform, decision_function or score_samples",
        )
    verify = verify or has_xgboost(estimator)  # how it reads zeros shows in the comparison only
    try:
        model = convert(estimator, schema, outputs)
        verdict = compare(estimator, model, schema, X, outputs) if verify else None
    except ImportRefused as refusal:
        return _fallback(estimator, schema, X, outputs, refusal)
    except ImportDiffers as difference:
        model, verdict = _without_zeros(estimator, schema, X, outputs, difference)
    model.metadata["sardonyx.importer"] = "sardonyx"
    if verdict is not None:
        model.metadata["sardonyx.verified"] = str(verdict)
    # onnxruntime reads what `proto()` gives, as it does models of the other importers.
    return fit(_with_record(model, estimator) if trainable else model)


def _with_record(model: Model, estimator: Any) -> Model:
    """The model with a record that continues the estimator, where there is one."""
    from sardonyx.importers.sklearn.training import continued

    net = continued(model, estimator)
    return model if net is None else net


def _load_rules() -> None:
    try:
        importlib.import_module("sklearn")
    except ImportError as error:
        raise MissingExtra("scikit-learn", "sklearn") from error
    for name in MODULES:
        importlib.import_module(f"sardonyx.importers.sklearn.{name}")
    importlib.import_module("sardonyx.importers.boosting.steps")


def convert(estimator: Any, schema: Schema, outputs: dict[str, str]) -> Model:
    """The model of an estimator, without verification."""
    from sardonyx.importers.sklearn.driver import methods
    from sardonyx.importers.sklearn.encoders import missing_kinds, missing_text
    from sardonyx.importers.sklearn.outputs import classes_of
    from sardonyx.importers.sklearn.table import matrix

    op = Builder()
    table = schema.table()
    op.reserve([*schema.names, *outputs])
    text, kinds = missing_text.set(schema.missing), missing_kinds.set(schema.kinds)
    try:
        result = methods(op, estimator, table)
    finally:
        missing_text.reset(text)
        missing_kinds.reset(kinds)
    missing = [m for m in outputs.values() if m not in result]
    if missing:
        name = public_name(type(estimator))
        raise ImportRefused(f"{name} has no rule for {', '.join(missing)}")
    values: dict[str, ir.Value] = {}
    for name, method in outputs.items():
        value = result[method]
        if isinstance(value, list):
            values.update({f"{name}_{i}": v for i, v in enumerate(value)})
        else:
            values[name] = value if isinstance(value, ir.Value) else matrix(op, value)
    metadata = {"source": public_name(type(estimator))}
    classes = classes_of(estimator)
    if classes is not None:
        metadata["classes"] = json.dumps(classes, default=str)
    metadata |= schema.metadata()
    return assemble(op, schema.values, values, type(estimator).__name__, metadata)


def _check_parts(estimator: Any) -> None:
    """All reasons why an estimator cannot be imported that can be seen before it is."""
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise ImportRefused(
            f"{type(estimator).__name__} is not a scikit-learn estimator", hint="give a fitted one"
        )
    problems = []
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        problems.append([public_name(type(estimator)), "is not fitted: call fit first"])
    except TypeError:
        pass
    problems += [[p, "is not fitted"] for p in _unfitted_steps(estimator)] if not problems else []
    for path, part in _steps(estimator):
        if rule_of(part) is None and not type(part).__module__.startswith("sklearn."):
            name = public_name(type(part))
            problems.append([path, f'{name} has no rule; add one with @sx.importer("{name}")'])
    if problems:
        raise ImportRefused(
            f"{public_name(type(estimator))} cannot be imported",
            problems,
            hint="a rule for a class of your own: @sx.importer, see the guide on scikit-learn",
        )


def _steps(estimator: Any, path: str = "") -> list[tuple[str, Any]]:
    """An estimator and those in its pipelines, unions and column transformers, with their paths."""
    path = path or type(estimator).__name__
    out = [(path, estimator)]
    pairs = list(getattr(estimator, "steps", None) or [])
    pairs += list(getattr(estimator, "transformer_list", None) or [])
    pairs += [(n, t) for n, t, _ in getattr(estimator, "transformers_", None) or []]
    for name, part in pairs:
        if part is not None and not isinstance(part, str):
            out += _steps(part, f"{path} › {name}")
    return out


def _unfitted_steps(estimator: Any) -> list[str]:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    unfitted = []
    for path, part in _steps(estimator)[1:]:
        try:
            check_is_fitted(part)
        except NotFittedError:
            unfitted.append(path)
        except TypeError:
            continue
    return unfitted


def _fallback(estimator, schema, X, outputs, refusal: ImportRefused) -> Model:
    """skl2onnx's model where it has one and it passes the same verification."""
    from sardonyx.importers.sklearn.check import verify as compare
    from sardonyx.importers.sklearn.fallback import converted

    model = converted(estimator, schema, outputs)
    if model is None:
        raise refusal
    try:
        verdict = compare(estimator, model, schema, X, outputs)
    except Exception:
        raise refusal from None
    model.metadata["sardonyx.importer"] = "skl2onnx"
    model.metadata["sardonyx.verified"] = str(verdict)
    return fit(model)


def _without_zeros(estimator, schema, X, outputs, difference: ImportDiffers) -> tuple[Model, Any]:
    """A second try where XGBoost is a part: the zeros of a sparse matrix are missing for it."""
    from sardonyx.importers.boosting.steps import has_xgboost, zeros_are_missing
    from sardonyx.importers.sklearn.check import verify as compare

    if not has_xgboost(estimator):
        raise _located(estimator, schema, X, difference) from difference
    token = zeros_are_missing.set(True)
    try:
        model = convert(estimator, schema, outputs)
        return model, compare(estimator, model, schema, X, outputs)
    except ImportDiffers:
        raise _located(estimator, schema, X, difference) from difference
    finally:
        zeros_are_missing.reset(token)


def _located(estimator, schema, X, difference: ImportDiffers) -> ImportDiffers:
    """The difference, with the first step of a pipeline whose own result differs."""
    from sardonyx.importers.sklearn.check import verify as compare

    steps = getattr(estimator, "steps", None)
    if not steps or X is None:
        return difference
    fault = steps[-1][0]
    for count in range(1, len(steps)):
        part = estimator[:count]
        try:
            methods = {"transformed": "transform"}
            compare(part, convert(part, schema, methods), schema, X, methods)
        except ImportDiffers:
            fault = steps[count - 1][0]
            break
        except Exception:
            continue
    return ImportDiffers(
        f"{difference.what}; the first step that does is {fault!r}",
        difference.where,
        difference.hint,
    )

"""The driver: from a document to a graph, model by model."""

from __future__ import annotations

import json
from dataclasses import replace

import onnx_ir as ir

from sardonyx.errors import ImportRefused, ModelError
from sardonyx.importers.assembly import assemble, graph_input
from sardonyx.limits import Limits
from sardonyx.model import Model
from sardonyx.versions import fit

from . import (  # noqa: F401  (each registers the rules of its elements)
    bayes,
    clustering,
    general_regression,
    mining,
    neighbors,
    neural,
    regression,
    rules,
    scorecard,
    svm,
    texts,
    trees,
)
from .document import Element
from .elements import check_elements
from .fields import data_type, local, nested_scope, target_fields, top_scope, transformations
from .graph import MISSING_TEXT, Column, Graph, constant, is_open, strings
from .outputs import output_columns
from .refusal import Refusal, Refusals
from .results import MODELS, Job, Result, Target, target_of
from .scope import Document, Scope
from .targets import apply_targets
from .verification import verify_rows

FUNCTIONS = ("regression", "classification", "clustering", "mixed")
REFUSED = {
    "AssociationModel": "association rules are sets, not columns",
    "TimeSeriesModel": "a time series depends on other rows",
    "SequenceModel": "sequences are not columns",
    "TextModel": "documents are not columns",
    "BaselineModel": "baselines depend on other rows",
    "BayesianNetworkModel": "Bayesian networks are not supported",
    "GaussianProcessModel": "Gaussian processes are not supported",
    "AnomalyDetectionModel": "anomaly detection models are not supported",
}
ROWS = "rows"  # the input of a model without fields: any values, one for each row
VERSIONS = ("3.", "4.0", "4.1", "4.2", "4.3", "4.4")


def build(
    document: Document, around: Scope, element: Element, target: Target
) -> tuple[Result, dict[str, Column]]:
    """A model inside another: its result, and the columns of its Output."""
    scope = nested_scope(document, around, element)
    return _build(document, scope, element, target_of(document, element, target))


def _build(
    document: Document, scope: Scope, element: Element, target: Target
) -> tuple[Result, dict[str, Column]]:
    if element.tag in REFUSED:
        raise Refusal(element, REFUSED[element.tag])
    if element.tag not in MODELS:
        raise Refusal(element, "this model is not one of PMML 4.4")
    if element.get("functionName") not in FUNCTIONS:
        raise Refusal(element, f"functionName {element.get('functionName')} is not supported")
    if element.get("isScorable") == "false":
        raise Refusal(element, "the document says that this model is not scorable")
    job = Job(document, scope, element, target)
    with document.g.part("model"):
        result = apply_targets(job, MODELS[element.tag](job))
        outputs = output_columns(job, result)
        for name, column in result.exports.items():
            outputs.setdefault(name, column)
        return replace(result, exports=outputs), outputs


def translate(root: Element, limits: Limits) -> Model:
    """The ONNX model of a document."""
    version = root.get("version") or root.get("xmlns", "").rpartition("PMML-")[2].replace("_", ".")
    if not version.startswith(VERSIONS):
        raise ImportRefused(
            f"PMML version {version!r} is not supported", hint="versions 3.0 to 4.4 are"
        )
    document = Document(root, Graph(), Refusals())
    check_elements(root, document.refusals)
    _declare(document)
    models = [c for c in root.children if c.tag in MODELS or c.tag in REFUSED]
    if not models:
        raise ModelError("the document has no model")
    element = models[0]
    _reserve(document, element)
    scope, inputs = top_scope(document, element)
    if not inputs:
        inputs.append(graph_input(ROWS, ir.DataType.DOUBLE, ["N"]))
        document.g.rows = inputs[0]
    transformations(scope, local(element))
    outputs: dict[str, ir.Value] = {}
    single: set[str] = set()
    with document.refusals.collected():
        result, columns = _build(document, scope, element, target_of(document, element))
        with document.g.part("model"):
            named = _named(document, element, result, columns)
            outputs = {name: _output(document.g, element, name, c) for name, c in named.items()}
        single = {name for name, column in named.items() if column.dtype == "float"}
    document.refusals.check()
    model = _assembled(document, element, inputs, outputs)
    verify_rows(model, element, single)
    return model


def _declare(document: Document) -> None:
    dictionary = document.root.child("DataDictionary")
    for element in dictionary.all("DataField") if dictionary is not None else ():
        document.data_fields[element.get("name")] = element
    transformation = document.root.child("TransformationDictionary")
    for element in transformation.all("DefineFunction") if transformation is not None else ():
        document.functions[element.get("name")] = element


def _reserve(document: Document, element: Element) -> None:
    """Keep the names of inputs and outputs away from inner values."""
    names = set(document.data_fields)
    output = element.child("Output")
    if output is not None:
        names |= {field.get("name") for field in output.all("OutputField")}
    document.g.reserve({name for name in names if name})


def _named(
    document: Document, element: Element, result: Result, columns: dict[str, Column]
) -> dict[str, Column]:
    """The columns that the graph gives: each target, then each OutputField."""
    named: dict[str, Column] = {}
    for field in target_fields(element):
        name = field.get("name")
        owner = result.others.get(name, result if result.target.name in (name, None) else None)
        if name in columns:
            continue
        if owner is not None:
            named[name] = owner.value
        elif name in document.data_fields:  # a target of which no segment says anything
            named[name] = constant(document.g, None, data_type(document.data_fields[name]))
    for name, column in columns.items():
        named.setdefault(name, column)
    if not named:
        named["predictedValue"] = result.value
    return named


def _output(g: Graph, element: Element, name: str, column: Column) -> ir.Value:
    if column.is_text:
        if is_open(column) and column.text is None:
            raise Refusal(element, f"output {name!r} is text that no table lists")
        value = strings(g, column)
        if g.invalid:
            from .dates import text_constant

            value = g.Where(_invalid(g), text_constant(g, MISSING_TEXT), value)
        return value
    value = g.column(column.numbers)
    if g.invalid:
        value = g.Where(_invalid(g), g.number(float("nan")), value)
    return value


def _invalid(g: Graph) -> ir.Value:
    if len(g.invalid) > 1:
        g.invalid[:] = [g.any(g.invalid)]
    return g.invalid[0]


def _assembled(
    document: Document, element: Element, inputs: list[ir.Value], outputs: dict[str, ir.Value]
) -> Model:
    g = document.g
    g.finish()
    names = {value.name for value in inputs}
    unique = {name if name not in names else f"{name}_1": v for name, v in outputs.items()}
    metadata = {"missing_string": MISSING_TEXT, "source": f"PMML {document.root.get('version')}"}
    if document.columns:
        metadata["input_columns"] = json.dumps(document.columns)
    model = assemble(g, inputs, unique, element.get("modelName") or element.tag, metadata)
    _settle_stages(model)
    for value in model.graph.outputs:
        value.shape = ir.Shape(["N"])
    return fit(model, runtime="onnxruntime")


def _settle_stages(model: Model) -> None:
    """Preprocessing is what depends on no part of the model."""
    for node in model.graph:
        before = [v.producer() for v in node.inputs if v is not None]
        if any(p is not None and p.metadata_props.get("stage") == "model" for p in before):
            node.metadata_props["stage"] = "model"


__all__ = ["build", "translate"]

"""NeuralNetwork: layers as matrix products, with PMML's activation functions."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from .document import Element
from .expressions import derived_field, interpolated
from .graph import Column, Graph, missing
from .refusal import Refusal
from .regression import softmax
from .results import Job, Literal, Result, literal, model, winner
from .special import arctangent


class Layers:
    """The neurons that are there already: each a column of one of several matrices."""

    def __init__(self, g: Graph):
        self.g = g
        self.matrices: list[ir.Value] = []
        self.widths: list[int] = []
        self.places: dict[str, tuple[int, int]] = {}

    def add(self, ids: list[str], matrix: ir.Value) -> None:
        for i, name in enumerate(ids):
            self.places[name] = (len(self.matrices), i)
        self.matrices.append(matrix)
        self.widths.append(len(ids))

    def place(self, name: str, element: Element) -> tuple[int, int]:
        if name not in self.places:
            raise Refusal(element, f"neuron {name!r} is not defined before it is used")
        return self.places[name]

    def column(self, name: str, element: Element) -> ir.Value:
        layer, i = self.place(name, element)
        return self.g.pick(self.matrices[layer], i)


@model("NeuralNetwork")
def neural_network(job: Job) -> Result:
    g, element = job.g, job.element
    layers = Layers(g)
    inputs = element.child("NeuralInputs")
    if inputs is None:
        raise job.refuse("there are no NeuralInputs")
    neurons = inputs.all("NeuralInput")
    with g.part("preprocessing"):
        columns = [_input(job, neuron) for neuron in neurons]
        matrix = g.matrix(columns)
    if job.is_single:
        matrix = g.single(matrix)
    layers.add([n.get("id") for n in neurons], matrix)
    hidden = element.all("NeuralLayer")
    for layer in hidden:
        _layer(job, layers, layer)
    return _result(job, layers)


def _input(job: Job, neuron: Element) -> ir.Value:
    field = neuron.child("DerivedField")
    if field is None:
        raise Refusal(neuron, "the input has no DerivedField")
    column = derived_field(job.scope, field)
    if column.is_text:
        raise Refusal(field, "text is fed to a neuron")
    return column.numbers


def _setting(job: Job, layer: Element, name: str, default: str | None = None) -> str | None:
    value = layer.get(name)
    return job.element.get(name, default) if value is None else value


def _layer(job: Job, layers: Layers, layer: Element) -> None:
    g = job.g
    neurons = layer.all("Neuron")
    links = [(con, layers.place(con.get("from"), con)) for n in neurons for con in n.all("Con")]
    used = sorted({place[0] for _, place in links})
    offsets, width = {}, 0
    for i in used:
        offsets[i] = width
        width += layers.widths[i]
    weights = np.zeros((width, len(neurons)))
    linked = np.zeros((width, len(neurons)))
    for j, neuron in enumerate(neurons):
        for con in neuron.all("Con"):
            at, column = layers.place(con.get("from"), con)
            weights[offsets[at] + column, j] += float(con.get("weight"))
            linked[offsets[at] + column, j] = 1.0
    parts = [layers.matrices[i] for i in used]
    x = parts[0] if len(parts) == 1 else g.Concat(*parts, axis=1)
    bias = np.array([[float(n.get("bias", 0)) for n in neurons]])
    function = _setting(job, layer, "activationFunction")
    if function == "radialBasis":
        z = _distances(job, layer, neurons, x, weights, linked)
    else:
        z = g.Add(g.MatMul(x, g.const(weights)), g.number(bias))
    if job.is_single:
        z = g.single(z)
    y = _activation(job, layer, function, z)
    method = _setting(job, layer, "normalizationMethod")
    layers.add([n.get("id") for n in neurons], _normalization(job, layer, method, y))


def _activation(job: Job, layer: Element, function: str | None, z: ir.Value) -> ir.Value:
    g = job.g
    one = g.number(1.0)
    fit = g.single if job.is_single else (lambda x: x)
    if function == "threshold":
        limit = float(_setting(job, layer, "threshold", "0") or 0)
        step = g.Where(g.Greater(z, g.number(limit)), one, g.number(0.0))
        return g.Where(g.IsNaN(z), z, step)
    if function == "logistic":
        return fit(g.Div(one, fit(g.Add(one, fit(g.Exp(g.Neg(z)))))))
    rules = {
        "tanh": lambda: g.Tanh(z),
        "identity": lambda: z,
        "exponential": lambda: g.Exp(z),
        "reciprocal": lambda: g.Div(one, z),
        "square": lambda: g.Mul(z, z),
        "Gauss": lambda: g.Exp(g.Neg(g.Mul(z, z))),
        "sine": lambda: g.Sin(z),
        "cosine": lambda: g.Cos(z),
        "Elliott": lambda: g.Div(z, g.Add(one, g.Abs(z))),
        "arctan": lambda: g.Mul(arctangent(g, z), g.number(2.0 / math.pi)),
        "rectifier": lambda: g.Where(g.Less(z, g.number(0.0)), g.number(0.0), z),
        "radialBasis": lambda: g.Exp(z),
    }
    if function not in rules:
        raise Refusal(layer, f"activationFunction {function} is not one of PMML")
    return fit(rules[function]())


def _distances(
    job: Job,
    layer: Element,
    neurons: list[Element],
    x: ir.Value,
    weights: np.ndarray,
    linked: np.ndarray,
) -> ir.Value:
    """The exponents of radial basis functions: fan-in times log(altitude), less the distance."""
    g = job.g
    difference = g.Sub(g.Unsqueeze(x, [2]), g.number(weights[None]))
    squares = g.Mul(g.Mul(difference, difference), g.number(linked[None]))
    total = g.ReduceSum(squares, [1], keepdims=0)
    width, shift = [], []
    for i, neuron in enumerate(neurons):
        size = neuron.get("width") or _setting(job, layer, "width")
        if size is None or float(size) == 0:
            raise Refusal(neuron, "a radial basis function needs a width")
        altitude = float(neuron.get("altitude") or _setting(job, layer, "altitude", "1") or 1)
        width.append(2.0 * float(size) ** 2)
        shift.append(linked[:, i].sum() * math.log(altitude))
    return g.Sub(g.number(np.array([shift])), g.Div(total, g.number(np.array([width]))))


def _normalization(job: Job, layer: Element, method: str | None, y: ir.Value) -> ir.Value:
    if method in (None, "none"):
        return y
    if method == "softmax":
        return softmax(job, y)
    if method == "simplemax":
        return job.g.Div(y, job.g.ReduceSum(y, [1], keepdims=1))
    raise Refusal(layer, f"normalizationMethod {method} is not one of PMML")


def _result(job: Job, layers: Layers) -> Result:
    outputs = job.element.child("NeuralOutputs")
    if outputs is None:
        raise job.refuse("there are no NeuralOutputs")
    items = outputs.all("NeuralOutput")
    fields = [item.child("DerivedField") for item in items]
    if any(f is None for f in fields):
        raise Refusal(outputs, "an output has no DerivedField")
    if not job.is_classification:
        if len(items) != 1:
            raise Refusal(outputs, "a regression with several outputs is not supported")
        y = layers.column(items[0].get("outputNeuron"), items[0])
        return Result(job.target, Column(_denormalized(job, fields[0], y), "double"))  # type: ignore[arg-type]
    return _classification(job, layers, items, fields)  # type: ignore[arg-type]


def _classification(
    job: Job, layers: Layers, items: list[Element], fields: list[Element]
) -> Result:
    g = job.g
    classes: list[Literal] = []
    for field in fields:
        norm = _resolved(job, field)
        if norm.tag != "NormDiscrete":
            raise Refusal(norm, "an output of a classification is a NormDiscrete")
        classes.append(literal(job.target, norm, norm.get("value")))
    columns = [layers.column(item.get("outputNeuron"), item) for item in items]
    matrix = g.matrix(columns)
    value = winner(g, job.target, classes, matrix)
    names = [item.get("outputNeuron") for item in items]
    index = g.ArgMax(matrix, axis=1, keepdims=0)
    codes = g.Gather(g.number([g.code(n) for n in names]), index, axis=0)
    codes = g.Where(missing(g, value), g.number(float("nan")), codes)
    entity = Column(codes, "string", finite=tuple(names))
    if len(classes) == 1:
        raise job.refuse("a classification by one neuron is not supported")
    return Result(job.target, value, classes, matrix, entity=entity, entities=names)


def _resolved(job: Job, field: Element) -> Element:
    """The expression of an output, through a reference to a derived field."""
    expression = field.child("NormDiscrete", "NormContinuous", "FieldRef", "Apply", "Constant")
    if expression is None:
        raise Refusal(field, "the output has no expression")
    if expression.tag == "FieldRef":
        for holder in ("LocalTransformations", "TransformationDictionary"):
            parent = job.element if holder == "LocalTransformations" else job.document.root
            derived = parent.child(holder)
            for other in derived.all("DerivedField") if derived is not None else ():
                if other.get("name") == expression.get("field"):
                    return _resolved(job, other)
    return expression


def _denormalized(job: Job, field: Element, y: ir.Value) -> ir.Value:
    """The target of which a neuron gives the normalized value."""
    expression = _resolved(job, field)
    if expression.tag == "FieldRef":
        return y
    if expression.tag != "NormContinuous":
        raise Refusal(expression, "this expression cannot be inverted")
    points = [(float(p.get("norm")), float(p.get("orig"))) for p in expression.all("LinearNorm")]
    norms = [p[0] for p in points]
    steps = [b - a for a, b in pairwise(norms)]
    if not (all(s > 0 for s in steps) or all(s < 0 for s in steps)):
        raise Refusal(expression, "the normalization is not monotonic")
    return interpolated(job.g, y, points, "asIs")

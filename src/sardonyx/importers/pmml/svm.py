"""SupportVectorMachineModel: kernels between a row and the support vectors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .document import Element, reals
from .expressions import derived_field
from .graph import Graph
from .refusal import Refusal
from .regression import numeric_column
from .results import Job, Literal, Result, distinct, literal, model, regressed, winner

KERNELS = (
    "LinearKernelType", "PolynomialKernelType", "RadialBasisKernelType", "SigmoidKernelType",
)  # fmt: skip


@model("SupportVectorMachineModel")
def support_vector_machine_model(job: Job) -> Result:
    machines = job.element.all("SupportVectorMachine")
    if not machines:
        raise job.refuse("there is no SupportVectorMachine")
    x, vectors = _dictionary(job)
    values = _machines(job, machines, x, vectors)
    if not job.is_classification:
        if len(machines) != 1:
            raise job.refuse("a regression has one SupportVectorMachine")
        return regressed(job, job.g.pick(values, 0))
    return _classification(job, machines, values)


def _dictionary(job: Job) -> tuple[ir.Value, dict[str, list[float]]]:
    """The matrix of the fields, and the support vectors by id."""
    dictionary = job.element.child("VectorDictionary")
    fields = dictionary.child("VectorFields") if dictionary is not None else None
    if dictionary is None or fields is None:
        raise job.refuse("there is no VectorDictionary with VectorFields")
    columns = [_field(job, f) for f in fields.children]
    vectors = {}
    for instance in dictionary.all("VectorInstance"):
        entries = instance.child("Array", "REAL-SparseArray")
        if entries is None:
            raise Refusal(instance, "the vector has no entries")
        vector = reals(entries)
        if len(vector) > len(columns):
            raise Refusal(instance, "the vector has more entries than there are fields")
        vectors[instance.get("id")] = vector + [0.0] * (len(columns) - len(vector))
    if not columns:
        raise Refusal(fields, "there are no fields")
    return job.g.matrix(columns), vectors


def _field(job: Job, ref: Element) -> ir.Value:
    g = job.g
    if ref.tag == "FieldRef":
        return numeric_column(job.scope, ref, ref.get("field")).numbers
    if ref.tag == "CategoricalPredictor":
        column = job.scope.column(ref.get("name"), ref)
        from .predicates import threshold

        code = threshold(g, ref, column, ref.get("value"), "equal")
        hit = g.Where(g.Equal(column.numbers, g.number(code)), g.number(1.0), g.number(0.0))
        factor = float(ref.get("coefficient", 1))
        return hit if factor == 1 else g.Mul(hit, g.number(factor))
    if ref.tag == "DerivedField":
        return derived_field(job.scope, ref).numbers
    raise Refusal(ref, "this is not a field of a vector")


def _machines(
    job: Job, machines: list[Element], x: ir.Value, vectors: dict[str, list[float]]
) -> ir.Value:
    """The values of all machines: [N, machines]."""
    representation = job.element.get("svmRepresentation", "SupportVectors")
    if representation == "Coefficients":
        return _by_coefficients(job, machines, x)
    if representation != "SupportVectors":
        raise job.refuse(f"svmRepresentation {representation} is not one of PMML")
    names = distinct([v.get("vectorId") for m in machines for v in _support(m)])
    unknown = [n for n in names if n not in vectors]
    if unknown:
        raise job.refuse(f"vector {unknown[0]!r} is not in the VectorDictionary")
    places = {name: i for i, name in enumerate(names)}
    alphas = np.zeros((len(names), len(machines)))
    intercepts = np.zeros((1, len(machines)))
    for j, machine in enumerate(machines):
        coefficients = machine.child("Coefficients")
        if coefficients is None:
            raise Refusal(machine, "the machine has no Coefficients")
        intercepts[0, j] = float(coefficients.get("absoluteValue", 0))
        numbers = [float(c.get("value", 0)) for c in coefficients.all("Coefficient")]
        support = _support(machine)
        if len(numbers) != len(support):
            raise Refusal(machine, "the coefficients do not fit the support vectors")
        for vector, number in zip(support, numbers, strict=True):
            alphas[places[vector.get("vectorId")], j] += number
    if not names:
        zero = job.g.Mul(job.g.ReduceSum(x, [1], keepdims=1), job.g.number(0.0))
        return job.g.Add(zero, job.g.number(intercepts))
    kernel = _kernel(job, x, np.array([vectors[n] for n in names]))
    return job.g.Add(job.g.MatMul(kernel, job.g.const(alphas)), job.g.number(intercepts))


def _support(machine: Element) -> list[Element]:
    holder = machine.child("SupportVectors")
    return holder.all("SupportVector") if holder is not None else []


def _by_coefficients(job: Job, machines: list[Element], x: ir.Value) -> ir.Value:
    kernel = job.element.child(*KERNELS)
    if kernel is not None and kernel.tag != "LinearKernelType":
        raise Refusal(kernel, "coefficients of fields go with a linear kernel")
    columns, intercepts = [], []
    for machine in machines:
        holder = machine.child("Coefficients")
        if holder is None:
            raise Refusal(machine, "the machine has no Coefficients")
        columns.append([float(c.get("value", 0)) for c in holder.all("Coefficient")])
        intercepts.append(float(holder.get("absoluteValue", 0)))
    weights = np.array(columns).T
    return job.g.Add(job.g.MatMul(x, job.g.const(weights)), job.g.number([intercepts]))


def _kernel(job: Job, x: ir.Value, vectors: np.ndarray) -> ir.Value:
    """The kernel between rows and support vectors: [N, vectors]."""
    g = job.g
    element = job.element.child(*KERNELS)
    if element is None:
        raise job.refuse("there is no kernel")
    gamma = float(element.get("gamma", 1))
    if element.tag == "RadialBasisKernelType":
        return g.Exp(g.Mul(g.number(-gamma), squared_distances(g, x, vectors)))
    products = g.MatMul(x, g.const(np.ascontiguousarray(vectors.T)))
    if element.tag == "LinearKernelType":
        return products
    shift = float(element.get("coef0", 1))
    inner = g.Add(g.Mul(g.number(gamma), products), g.number(shift))
    if element.tag == "SigmoidKernelType":
        return g.Tanh(inner)
    degree = float(element.get("degree", 1))
    return inner if degree == 1 else g.Pow(inner, g.number(degree))


def squared_distances(g: Graph, x: ir.Value, points: np.ndarray) -> ir.Value:
    """Field after field: the expansion of the square would cancel."""
    total: ir.Value | None = None
    for i in range(points.shape[1]):
        column = g.Gather(x, np.array([i], np.int64), axis=1)
        difference = g.Sub(column, g.number(points[None, :, i]))
        square = g.Mul(difference, difference)
        total = square if total is None else g.Add(total, square)
    assert total is not None
    return total


def _classification(job: Job, machines: list[Element], values: ir.Value) -> Result:
    alternates = [m.get("alternateTargetCategory") for m in machines]
    method = job.element.get("classificationMethod")
    if method is None:
        # Before PMML 4.0, and in R's files, machines with an alternative are one against one.
        method = "OneAgainstOne" if all(a is not None for a in alternates) else "OneAgainstAll"
    if any(m.get("targetCategory") is None for m in machines):
        raise job.refuse("a machine has no targetCategory")
    if len(machines) == 1 and alternates[0] is None:
        return _one_machine(job, machines[0], values)
    if method == "OneAgainstOne":
        if any(a is None for a in alternates):
            raise job.refuse("a machine has no alternateTargetCategory")
        return _one_against_one(job, machines, values)
    if method != "OneAgainstAll":
        raise job.refuse(f"classificationMethod {method} is not one of PMML")
    if len(machines) == 1:
        return _one_against_one(job, machines, values)
    classes = [literal(job.target, m, m.get("targetCategory")) for m in machines]
    least = job.element.get("maxWins", "false") != "true"
    value = winner(job.g, job.target, classes, values, least=least)
    return Result(job.target, value, classes, affinities=values,
                  entities=[str(c) for c in classes], largest_affinity=not least)  # fmt: skip


def _one_machine(job: Job, machine: Element, values: ir.Value) -> Result:
    category = literal(job.target, machine, machine.get("targetCategory"))
    rest = [c for c in job.target.categories if c != category]
    if len(rest) != 1:
        raise job.refuse("one machine needs a target of two categories")
    return _votes(job, [(category, rest[0], machine)], values)


def _one_against_one(job: Job, machines: list[Element], values: ir.Value) -> Result:
    pairs = [
        (
            literal(job.target, m, m.get("targetCategory")),
            literal(job.target, m, m.get("alternateTargetCategory")),
            m,
        )
        for m in machines
    ]
    return _votes(job, pairs, values)


def _votes(job: Job, pairs: list[tuple[Literal, Literal, Element]], values: ir.Value) -> Result:
    """Each machine votes for its category below the threshold (above, where the largest wins)."""
    g = job.g
    # Of equal votes the first decides in the order of the machines, which is that of libsvm's
    # labels, and so what scikit-learn and R give. JPMML and PMML4S choose two other ways.
    classes = distinct([c for pair in pairs for c in pair[:2]])
    default = float(job.element.get("threshold", 0))
    limits = [float(m.get("threshold", default)) for _, _, m in pairs]
    largest = job.element.get("maxWins", "false") == "true"
    compare = g.Greater if largest else g.Less
    hits = compare(values, g.number([limits]))
    first = np.zeros((len(pairs), len(classes)))
    second = np.zeros((len(pairs), len(classes)))
    for i, (a, b, _) in enumerate(pairs):
        first[i, classes.index(a)] = 1.0
        second[i, classes.index(b)] = 1.0
    yes = g.cast(hits, ir.DataType.DOUBLE)
    votes = g.Add(
        g.MatMul(yes, g.const(first)), g.MatMul(g.Sub(g.number(1.0), yes), g.const(second))
    )
    is_missing = g.IsNaN(g.ReduceSum(values, [1], keepdims=1))
    votes = g.Where(is_missing, g.number(float("nan")), votes)
    value = winner(g, job.target, classes, votes)
    shares = g.Div(votes, g.number(float(len(pairs))))
    return Result(job.target, value, classes, shares)

"""ClusteringModel: the cluster whose centre is nearest, or most alike."""

from __future__ import annotations

import numpy as np

from .document import array, reals
from .graph import Column
from .literals import parse
from .measures import axis_of, compare, is_similarity
from .refusal import Refusal
from .results import Job, Result, Target, model, number, winner


@model("ClusteringModel")
def clustering_model(job: Job) -> Result:
    g, element = job.g, job.element
    if element.get("modelClass", "centerBased") != "centerBased":
        raise job.refuse("clusters by distribution are not supported")
    measure = element.child("ComparisonMeasure")
    fields = [f for f in element.all("ClusteringField") if f.get("isCenterField") != "false"]
    clusters = element.all("Cluster")
    if measure is None or not fields or not clusters:
        raise job.refuse("the measure, the fields or the clusters are missing")
    rows = []
    for cluster in clusters:
        entries = cluster.child("Array")
        if entries is None:
            raise Refusal(cluster, "the cluster has no centre")
        rows.append(array(entries))
        if len(rows[-1]) != len(fields):
            raise Refusal(cluster, "the centre does not fit the fields")
    weights = element.child("MissingValueWeights")
    missing = [1.0] * len(fields)
    if weights is not None and weights.child("Array") is not None:
        missing = reals(weights.child("Array"))  # type: ignore[arg-type]
    axes = []
    for i, field in enumerate(fields):
        column = job.scope.column(field.get("field"), field)
        # A centre is written in double, also where the field holds floats of 32 bits.
        kind = "double" if column.dtype == "float" else column.dtype
        points = [number(g, parse(field, row[i], kind)) for row in rows]
        axes.append(axis_of(measure, field, column, np.array(points), missing[i]))
    affinities = compare(g, measure, axes)
    ids = [c.get("id") or str(i + 1) for i, c in enumerate(clusters)]
    target = Target(job.target.name, "string")
    similar = is_similarity(measure)
    value = winner(g, target, ids, affinities, least=not similar)
    display = {i: c.get("name") for i, c in zip(ids, clusters, strict=True) if c.get("name")}
    ranked, distances = _ranked(job, ids, affinities, similar)
    return Result(
        job.target, value, list(ids), entity=value, entities=ids, affinities=affinities,
        largest_affinity=similar, display=display, ranked=ranked,
        ranked_affinities=distances,
    )  # fmt: skip


def _ranked(
    job: Job, ids: list[str], affinities, largest: bool
) -> tuple[list[Column], list[Column]]:  # type: ignore[no-untyped-def]
    """The entities by rank, where an output asks for another than the first."""
    g = job.g
    output = job.element.child("Output")
    ranks = [int(f.get("rank", 1)) for f in output.all("OutputField")] if output else []
    most = min(max(ranks, default=1), len(ids))
    if most <= 1:
        return [], []
    size = g.const(np.array([most], np.int64))
    values, index = g.call(
        "TopK", [affinities, size], {"axis": 1, "largest": int(largest)}, outputs=2
    )
    codes = g.Gather(g.number([g.code(i) for i in ids]), index, axis=0)
    codes = g.Where(g.IsNaN(values), g.number(float("nan")), codes)
    columns = [Column(g.pick(codes, i), "string", finite=tuple(ids)) for i in range(most)]
    return columns, [Column(g.pick(values, i), "double") for i in range(most)]

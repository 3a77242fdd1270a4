"""Everything that is wrong with a model, found without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from sardonyx import opset
from sardonyx.collector import paused
from sardonyx.errors import SardonyxError, quote
from sardonyx.html_page import table, text
from sardonyx.limits import freed_dimensions
from sardonyx.model import Model, ModelSource, load
from sardonyx.normalize import normalize, regularize
from sardonyx.passes.nesting import graphs
from sardonyx.passes.shapes import crashes_inference
from sardonyx.passes.validity import inference_problems
from sardonyx.record.info import check as check_records
from sardonyx.versions import fit


@dataclass(frozen=True)
class Problem:
    """One problem, and the stage that reports it."""

    stage: str
    problem: str


@dataclass
class Check:
    """The result of `check`: problems, and notes on what was repaired; true if nothing is wrong."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        lines = [f"{p.stage}: {p.problem}" for p in self.problems] or ["no problems"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        rows = [[p.stage, p.problem] for p in self.problems] + [["note", n] for n in self.notes]
        return table(["stage", "problem"], rows) if rows else f"<p>{text('no problems')}</p>"


@paused()
def check(model: ModelSource) -> Check:
    """List everything that is wrong with a model, without running it.

    The stages are loading, training records, normalization; then types and shapes, the versions
    that onnxruntime takes and operators that ONNX does not have (skipped if normalization fails),
    and names of nodes; all are skipped if loading fails.

    >>> import onnx, sardonyx as sx
    >>> text = '''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[2] x) => (float[2] y) {y = Relu<axis=1>(x)}'''
    >>> result = sx.check(onnx.parser.parse_model(text))
    >>> bool(result), result.problems[0].stage
    (False, 'normalize')
    """
    result = Check()

    def stage(name: str, work: Callable[[], Any], problems: list[Problem]) -> Any:
        try:
            return work()
        except SardonyxError as error:
            problems.append(Problem(name, str(error)))
            return None

    loaded = stage("load", lambda: load(model), result.problems)
    if loaded is None:
        return result
    free = freed_dimensions(loaded.graph)
    if free:
        more = f" and {len(free) - 3:,} more" if len(free) > 3 else ""
        result.notes.append(
            "a dimension that is negative or named by a placeholder is treated as free: "
            f"{', '.join(free[:3])}{more}"
        )
    if loaded.records:
        stage("training records", lambda: check_records(loaded), result.problems)
    unknown = _unknown_operators(loaded)
    # onnxruntime turns every Constant into an initializer before it looks at names.
    names = Counter(n.name for n in loaded.graph if n.name and n.op_type != "Constant")
    versions: list[Problem] = []
    stage("versions for onnxruntime", lambda: fit(loaded), versions)
    sizes = [] if crashes_inference(loaded.graph) else inference_problems(loaded)
    # Last, because a model that was loaded here is normalized in place.
    regular = normalize if loaded is model else regularize
    if stage("normalize", lambda: regular(loaded), result.problems) is not None:
        result.problems += [*(Problem("types and shapes", line) for line in sizes), *versions]
        result.problems += unknown
    for name, count in names.items():
        if count > 1:
            problem = f"{quote(name)} is the name of {count} nodes: onnxruntime refuses the file"
            result.problems.append(Problem("node names", problem))
    return result


def _unknown_operators(model: Model) -> list[Problem]:
    """Nodes of ONNX's own domains whose operator ONNX does not have at the model's version."""
    functions = {(domain, name) for domain, name, _ in model.ir.functions}
    problems = []
    for part in graphs(model.graph):
        for node in part:
            domain = opset.domain_name(node.domain)
            if domain not in opset.INSIDE or (node.domain, node.op_type) in functions:
                continue
            version = model.ir.opset_imports.get(node.domain, opset.INSIDE[domain])
            if not opset.exists(node.op_type, domain, version):
                name = node.name or (node.outputs[0].name if node.outputs else "")
                text = f"{quote(node.op_type)} is no operator of ONNX at version {version}"
                problems.append(Problem("operators", f"node {quote(name or '')}: {text}"))
    return problems

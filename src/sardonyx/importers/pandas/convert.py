"""`from_pandas`: record a function, build its graph, and hold it against pandas."""

from __future__ import annotations

import datetime
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir
import pandas as pd

from sardonyx.collector import paused
from sardonyx.errors import ArgumentError, ImportRefused, SardonyxError
from sardonyx.frames import FROZEN, KEY, Result, Schema, plain_categories
from sardonyx.frames import Column as SchemaColumn
from sardonyx.importers.pandas import polars_plan, proof, rules
from sardonyx.importers.pandas.column import Column, is_column
from sardonyx.importers.pandas.emission import Emission, Rep, input_rep, is_nullable, output_tensor
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.namespace import rebound
from sardonyx.importers.pandas.recorder import (
    Place,
    Rows,
    Step,
    Trace,
    holds_booleans,
    raised_at,
    recording,
)
from sardonyx.model import Model

OPSET, ML_OPSET, IR_VERSION = 21, 4, 10
FORMS = {"chars": "characters"}
SHOWN = 2000  # characters of a frozen value in the metadata


@dataclass
class Recording:
    """What running the function on proxies gave."""

    trace: Trace
    inputs: dict[Step, Any]  # the columns of the frame
    results: list[tuple[str, Any, dict[Any, Column]]]  # kind, name, columns

    @property
    def columns(self) -> list[tuple[Any, Column]]:
        return [pair for _, _, columns in self.results for pair in columns.items()]


def from_pandas(
    function: Callable[[Any], Any],
    frame: Any,
    *,
    dynamic: Sequence[str] = (),
    order_dependent: bool = False,
    verify: bool = True,
) -> Model:
    """The ONNX model of a function of pandas, from a frame to a frame (or series, or several).

    function        -- ordinary pandas code; it is run, not parsed
    frame           -- the training frame: what is computed over its rows becomes a constant
    dynamic         -- reductions that stay over the rows of each batch: "mean", "Age.max"
    order_dependent -- accept operations that depend on the order of rows; the model says so
    verify          -- compare the graph with pandas before it is returned

    `model.feeds(df)` makes the inputs of new rows, `model.frame(outputs)` the resulting frame.

    Experimental: with a frame of polars, the function gets a lazy frame and returns one.

    >>> import pandas as pd, sardonyx as sx
    >>> train = pd.DataFrame({"age": [20.0, None, 40.0]})
    >>> model = sx.from_pandas(lambda df: df.fillna(df.mean()), train)
    >>> [v.name for v in model.inputs]
    ['age']
    """
    if polars_plan.is_polars(frame):
        options: Any = {"dynamic": dynamic, "order_dependent": order_dependent, "verify": verify}
        inner = polars_plan.pandas_function(function, frame)
        model = from_pandas(inner, frame.to_pandas(), **options)
        if verify:
            polars_plan.prove(model, function, frame)
        return model
    if not isinstance(frame, pd.DataFrame):
        raise ArgumentError("from_pandas needs the training frame", hint="pass a pandas DataFrame")
    if not len(frame) or not frame.columns.is_unique:
        raise ArgumentError("the training frame needs rows, and columns of different names")
    rules.load()
    training = frame.reset_index(drop=True)
    with warnings.catch_warnings(), np.errstate(all="ignore"), paused():
        warnings.simplefilter("ignore")
        recorded = record(function, training, dynamic, order_dependent)
        model, emission = build(recorded)
        if verify:
            prove(function, training, recorded, model, emission)
    return model


# -- recording ----------------------------------------------------------------------


def record(
    function: Callable[[Any], Any], training: pd.DataFrame, dynamic: Sequence[str], order: bool
) -> Recording:
    trace = Trace(order_dependent=order, dynamic=frozenset(dynamic))
    rows = Rows()
    inputs, columns = {}, {}
    with recording(trace):
        for name in training.columns:
            step = _input(training[name], name, rows)
            inputs[step] = name
            columns[name] = Column(step, name)
        try:
            result = rebound(function)(Frame(columns, rows, len(training)))
        except SardonyxError:
            raise
        except Exception as error:
            _explain(function, training, error)
        if trace.refusals:
            raise trace.refusals[0]
        results = _results(result)
    return Recording(trace, inputs, results)


def _explain(function: Callable[[Any], Any], training: pd.DataFrame, error: Exception) -> NoReturn:
    """Where pandas itself takes the frame, code that takes no proxies is at fault: refuse it."""
    _run(function, training)  # raises what the function raises on the frame itself
    where = raised_at(error)
    raise ImportRefused(
        "the function has a line of pandas that cannot become ONNX",
        [[str(where), where.text, f"{type(error).__name__}: {error}"[:300]]],
        hint="use functions of pandas and NumPy on columns",
    ) from error


def _input(values: pd.Series, name: Any, rows: Rows) -> Step:
    def emit(em: Emission) -> Rep:
        return input_rep(em, step, str(name))

    step = Step("input", (), lambda: values, emit, values, rows, Place("", 0))
    return step


def _results(result: Any) -> list[tuple[str, Any, dict[Any, Column]]]:
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    results: list[tuple[str, Any, dict[Any, Column]]] = []
    for part in parts:
        if isinstance(part, Frame):
            results.append(("frame", None, dict(part.series)))
        elif is_column(part):
            results.append(("series", part.label, {part.label: part}))
        else:
            raise ImportRefused(
                f"the function returns a {type(part).__name__}, which does not depend on the rows",
                hint="return a frame or a series computed from the frame",
            )
    if not any(columns for _, _, columns in results):
        raise ImportRefused("the function returns a frame without columns")
    return results


# -- building -----------------------------------------------------------------------


def needed(recorded: Recording) -> list[Step]:
    """The steps that the results need, each after its inputs."""
    order: dict[Step, None] = {}
    pending = [(c.step, False) for _, c in reversed(recorded.columns)]
    while pending:
        step, is_complete = pending.pop()
        if step in order:
            continue
        if is_complete:
            order[step] = None
            continue
        pending.append((step, True))
        more = list(step.inputs)
        if step.of_index:
            more += conditions_of(step.rows)
        pending.extend((s, False) for s in more if s not in order)
    return list(order)


def conditions_of(rows: Rows) -> list[Step]:
    """The conditions that chose a set of rows."""
    outer = [] if rows.base is None else conditions_of(rows.base)
    inner = [s for part in rows.parts for s in conditions_of(part)]
    return [*outer, *inner, *([] if rows.keep is None else [rows.keep])]


def is_text(step: Step) -> bool:
    dtype = step.value.dtype
    if isinstance(dtype, pd.StringDtype):
        return True
    return dtype == np.dtype(object) and not holds_booleans(step.value)


def in_characters(steps: list[Step]) -> set[Step]:
    """The string columns that must be characters: those read by a step that needs them."""
    chosen: set[Step] = set()
    while True:
        before = len(chosen)
        for step in steps:
            texts = [s for s in step.inputs if is_text(s)]
            if step.chars or step in chosen or any(s in chosen for s in texts):
                if (
                    step.chars
                    or is_text(step)
                    or (any(s in chosen for s in texts) and len(texts) > 1)
                ):
                    chosen.update(texts)
                if is_text(step):
                    chosen.add(step)
        if len(chosen) == before:
            return chosen


def build(recorded: Recording) -> tuple[Model, Emission]:
    steps = needed(recorded)
    emission = Emission(in_characters(steps))
    labels = ["result" if n is None else str(n) for n, _ in recorded.columns]
    emission.op.reserve([*map(str, recorded.inputs.values()), *labels])
    read = [s for s in steps if s in recorded.inputs]
    for step in read or list(recorded.inputs)[:1]:
        emission.rep(step)
    problems: list[list[Any]] = []
    reps: dict[Step, Rep] = {}
    hint = None
    for _, column in recorded.columns:
        try:
            reps[column.step] = emission.rep(column.step)
        except ImportRefused as error:
            hint = hint or error.hint
            problems += [row for row in error.where if row not in problems]
    if problems:
        raise ImportRefused(
            f"the function has {len(problems)} lines of pandas that cannot become ONNX"
            if len(problems) > 1
            else "the function has a line of pandas that cannot become ONNX",
            problems,
            hint,
        )
    return assemble(recorded, emission, reps), emission


def assemble(recorded: Recording, em: Emission, reps: dict[Step, Rep]) -> Model:
    used_names = {v.name for v in em.inputs.values()}
    outputs, results = [], []
    for kind, name, columns in recorded.results:
        described = []
        for label, column in columns.items():
            rep = reps[column.step]
            if em.rank(rep) == 0:
                rep = em.expand(rep, column.rows)
            tensor = em.op.Identity(output_tensor(em, rep))
            stem = str(label) if label is not None else "result"
            while stem in used_names:
                stem = em.op.fresh(f"{stem}.out")
            used_names.add(stem)
            tensor.name = stem
            shape = ["rows"] if rep.kind != "chars" else ["rows", f"length of {stem}"]
            tensor.shape = ir.Shape(shape)
            outputs.append(tensor)
            described.append(describe(label, stem, column.step.value, rep))
        results.append(Result(kind, _json_name(name), described))
    inputs = [
        describe(recorded.inputs[s], str(v.name), s.value, em.reps[s]) for s, v in em.inputs.items()
    ]
    graph = ir.Graph(
        list(em.inputs.values()),
        outputs,
        nodes=live(em.op.nodes, outputs),
        initializers=list(em.op.constants.values()),
        opset_imports={"": OPSET, "ai.onnx.ml": ML_OPSET},
        name="preparation",
    )
    for name, value in list(graph.initializers.items()):
        if not value.uses():
            graph.initializers.pop(name)
    for node in graph.all_nodes():
        node.metadata_props["stage"] = "preprocessing"
    model = Model(ir.Model(graph, ir_version=IR_VERSION, producer_name="sardonyx"))
    uses_order = recorded.trace.uses_order
    model.metadata[KEY] = Schema(inputs, results, uses_order).text()
    model.metadata[FROZEN] = json.dumps(frozen_rows(recorded.trace), ensure_ascii=False)
    return model


def live(nodes: list[ir.Node], outputs: list[ir.Value]) -> list[ir.Node]:
    """The nodes that the outputs need; the others are taken apart."""
    values, live_nodes = set(outputs), []
    for node in reversed(nodes):
        if not any(v in values for v in node.outputs):
            for place in range(len(node.inputs)):
                node.replace_input_with(place, None)
            continue
        live_nodes.append(node)
        bodies = [a.value for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
        inner = [node, *(n for body in bodies for n in body)]
        values.update(v for n in inner for v in n.inputs if v is not None)
    return live_nodes[::-1]


def _json_name(name: Any) -> Any:
    return name.item() if isinstance(name, np.generic) else name


def describe(label: Any, tensor: str, value: pd.Series, rep: Rep) -> SchemaColumn:
    """The entry of a column in the schema."""
    levels, levels_dtype = plain_categories(rep.categories) if rep.kind == "category" else ([], "")
    nullable = rep.kind in ("int", "bool") and rep.missing is not None
    dtype = str(value.dtype)
    if rep.kind in ("text", "chars") and holds_days(value):
        dtype = "date"
    if nullable and not is_nullable(value.dtype):
        dtype = "object"
    return SchemaColumn(
        _json_name(label), tensor, FORMS.get(rep.kind, rep.kind), dtype, nullable, rep.unit,
        rep.timezone, levels, levels_dtype, rep.ordered,
    )  # fmt: skip


def holds_days(value: pd.Series) -> bool:
    """Whether a column of objects holds dates of Python."""
    present = value.dropna() if value.dtype == np.dtype(object) else []
    return len(present) > 0 and all(type(v) is datetime.date for v in present)


def frozen_rows(trace: Trace) -> list[dict[str, Any]]:
    """What was frozen, as plain data: the line, the call, the value."""
    return [
        {"line": f.place.line, "code": f.place.text, "call": f.call, "value": _shown(f.value)}
        for f in trace.frozen
    ]


def _shown(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if isinstance(value, (pd.Series, pd.DataFrame)) and len(value) <= 50:
        return json.loads(value.to_json(orient="split", date_format="iso", default_handler=str))
    if isinstance(value, (list, tuple, np.ndarray, pd.Index)) and len(value) <= 200:
        return [_shown(v) for v in value]
    text = str(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


# -- proof --------------------------------------------------------------------------


def prove(
    function: Callable[[Any], Any], training: pd.DataFrame, recorded: Recording, model: Model,
    em: Emission,
) -> None:  # fmt: skip
    """The graph against pandas: training rows, odd rows at once and alone, and no rows."""
    from sardonyx.verify.subjects import OnnxSubject

    subject = OnnxSubject(model)
    steps = [c.step for _, c in recorded.columns]
    names = [n for n, _ in recorded.columns]
    places = [f"{c.step.place}" for _, c in recorded.columns]
    used = [recorded.inputs[s] for s in em.inputs]

    def again(rows: pd.DataFrame, only: int | None = None) -> list[pd.Series]:
        chosen = steps if only is None else steps[only : only + 1]
        return proof.replay(chosen, recorded.inputs, rows)

    def graph(rows: pd.DataFrame) -> list[pd.Series]:
        outputs = model.frame(subject(model.feeds(rows[used])))
        return columns_of(outputs)

    def check(
        label: str,
        rows: pd.DataFrame,
        expected: Sequence[Any],
        actual: Sequence[Any],
        by_row: bool = True,
    ) -> None:
        proof.compare(label, rows, names, expected, actual, places, again, by_row)

    truth = columns_of(_run(function, training))
    if len(truth) != len(names):
        raise ImportRefused(
            "the function returns something else than frames and series",
            hint="return a frame, a series, or several of them",
        )
    repeated = columns_of(_run(function, training))
    for name, a, b in zip(names, truth, repeated, strict=True):
        if proof.first_difference(a, b) is not None:
            raise ImportRefused(
                "the function gives something else each time it is called",
                [[f"column {name!r}"]],
                hint="random numbers and clocks have no graph",
            )
    check("the training frame", training, truth, again(training), False)
    check("the training frame", training, truth, graph(training))
    if recorded.trace.uses_order:
        return
    prove_odd_rows(function, training, recorded, used, again, graph, check)


def prove_odd_rows(
    function: Any, training: Any, recorded: Recording, used: Any, again: Any, graph: Any, check: Any
) -> None:
    constants = proof.constants_of(function)
    base = training.sample(min(len(training), 3), random_state=0)
    moves = any(not c.rows.are_fed for _, c in recorded.columns)
    for rows in proof.usable(proof.odd_rows(base, used, constants), again):
        expected, actual = again(rows), graph(rows)
        check("rows with odd values", rows, expected, actual)
        if not recorded.trace.frozen and proof.works(function, rows.copy()):
            direct = columns_of(_run(function, rows))
            if [len(d) for d in direct] == [len(e) for e in expected]:
                check("rows with odd values", rows, direct, expected, False)
                check("rows with odd values", rows, direct, actual)
        for number in range(0, len(rows), max(1, len(rows) // 12)):
            row = rows.iloc[[number]].reset_index(drop=True)
            alone = graph(row)
            if not moves:
                check("a row alone", row, [a.iloc[[number]] for a in actual], alone)
    if any(len(e) for e in graph(training.iloc[:0])):
        raise SardonyxError("the graph gives rows for none")


def _run(function: Callable[[Any], Any], frame: pd.DataFrame) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return function(frame.copy())


def columns_of(result: Any) -> list[pd.Series]:
    """The columns of a frame, a series, or several of them."""
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    columns: list[pd.Series] = []
    for part in parts:
        if isinstance(part, pd.DataFrame):
            columns += [part.iloc[:, i] for i in range(part.shape[1])]
        else:
            columns.append(pd.Series(part))
    return columns

"""The culprit: which node makes a candidate differ, found by replaying each node alone.

Every piece of the candidate runs on the reference's own values, so that no error is carried on, and
is judged by its own noise ratio. A piece is what lies between values that both graphs know by name:
a node, or several where an optimizer fused them. No output is marked, so that an engine's fusion
stays as it is. Bodies of If, Loop and Scan are entered, and the node that holds them is replayed
after what is inside. Memory is bounded: a value is kept until the last piece that reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.passes.cse import is_random
from sardonyx.passes.nesting import bodies
from sardonyx.verify.coarse import has_coarse
from sardonyx.verify.exact import (
    CONTROL,
    Reference,
    Walk,
    exact_form,
    is_float,
    onnx_kernel,
    widened,
)
from sardonyx.verify.noise import Measurement, finite_rms, measure
from sardonyx.verify.segments import between, boundary, is_constant, piece
from sardonyx.verify.ties import (
    QUANTIZERS,
    REACH,
    bias_step,
    explained,
    is_jump,
    on_threshold,
    requantized,
    tied,
)

ITERATIONS = 8  # of a body; a fault inside shows in the first


@dataclass
class Replay:
    """One piece, replayed alone: its last node, how far off it was, and why."""

    index: int
    total: int
    op: str
    node: str
    path: tuple[str, ...]
    ratio: float
    problem: str = ""
    fused: int = 1
    doubtful: bool = False  # the two exact references disagree on this piece
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    readers: tuple[tuple[str, str], ...] = ()  # operator and name of what reads them


@dataclass
class Search:
    """What a search found: every replay, the culprit's if there is one, and its case."""

    replays: list[Replay] = field(default_factory=list)
    culprit: Replay | None = None
    not_compared: list[str] = field(default_factory=list)
    near_ties: int = 0
    case: Case | None = None

    @property
    def worst(self) -> float:
        return max((r.ratio for r in self.replays if not r.doubtful), default=0.0)


@dataclass
class Case:
    """The culprit as a model of its own, its inputs, and what exact arithmetic makes of them."""

    model: Model
    feeds: dict[str, Any]
    expected: dict[str, Any]

    def save(self, folder: Path) -> list[Path]:
        """Write `repro.onnx` and `repro.npz` (`input/<name>`, `expected/<name>`)."""
        from sardonyx.save import save

        folder.mkdir(parents=True, exist_ok=True)
        model = save(self.model, folder / "repro.onnx")
        arrays = {f"input/{k}": np.asarray(v) for k, v in self.feeds.items()}
        arrays |= {f"expected/{k}": np.asarray(v) for k, v in self.expected.items()}
        np.savez(folder / "repro.npz", **arrays)  # type: ignore[arg-type]
        return [model, folder / "repro.npz"]


@dataclass
class _Piece:
    """Nodes of the candidate, and those of the reference that make the same `outputs`.

    Both begin at values that either graph knows by name; those are what they need.
    """

    nodes: list[ir.Node]
    source: list[ir.Node]
    exact: list[ir.Node]
    needs: list[str]
    outputs: list[str]

    @property
    def last(self) -> ir.Node:
        return self.nodes[-1]


class Finder:
    """Replays a candidate against a reference, on one set of inputs after the other.

    reference, candidate -- the two models; the same one where only the engine differs
    run                  -- builds a runner of the candidate's engine for a model
    """

    def __init__(
        self,
        reference: Model,
        candidate: Model,
        run: Callable[[Model], Callable[[Mapping[str, Any]], dict[str, Any]]],
        bands: tuple[float, float],
        progress: Callable[[str], None] | None = None,
    ):
        self.exact = exact_form(reference)
        self.plain = normalize(reference)
        self.as_written, self.regular = candidate, normalize(candidate)
        self.run = run
        self.bands = bands
        self.progress = progress or (lambda _: None)
        self.check: Callable[[], None] = lambda: None  # raises where the search must end
        self.whole = self.ties_only = self.segments = False
        self.runs_whole = False  # then a piece that the engine refuses says nothing
        self.search = Search()

    @property
    def candidate(self) -> Model:
        """Segments are cut from the file as it is: engines fuse what they know, by its version."""
        return self.as_written if self.segments else self.regular

    def __call__(
        self,
        feeds: Mapping[str, Any],
        *,
        whole: bool = False,
        ties_only: bool = False,
        segments: bool = False,
    ) -> Search:
        """Search on one set of inputs.

        whole     -- go on after the culprit, to the end
        ties_only -- replay only what rounds to integers, on values exactly half-way
        segments  -- replay from quantizer to quantizer: what engines compute in integers, as one
        """
        self.whole, self.ties_only, self.segments = whole, ties_only, segments
        self.search = Search()
        renamed = _input_names(self.candidate, feeds)
        level = _Level(self, self.exact.graph, self.plain.graph, self.candidate.graph, (), renamed)
        walk = Walk(self.exact, level.visit)
        with contextlib.suppress(_Found):
            walk({k: widened(v) for k, v in feeds.items()})
        return self.search


class _Found(Exception):
    """The culprit is known."""


class _Level:
    """One graph (the whole, or a body) of reference and candidate, replayed along a walk."""

    def __init__(
        self,
        finder: Finder,
        exact: ir.Graph,
        plain: ir.Graph,
        candidate: ir.Graph,
        path: tuple[str, ...],
        renamed: Mapping[str, str],
    ):
        self.finder, self.path, self.renamed = finder, path, dict(renamed)
        self.exact = {v.name: v for node in exact for v in node.outputs if v.name}
        self.plain = {v.name: v for node in plain for v in node.outputs if v.name}
        self.inputs = {v.name or "" for v in candidate.inputs}
        self.reference_inputs = {v.name or "" for v in plain.inputs}
        self.pieces = self._plan(candidate)
        self.order = {node: i for i, node in enumerate(candidate)}
        self.values: dict[str, Any] = {}
        self.uses: dict[str, int] = {}
        self.waiting: dict[str, list[int]] = {}  # a value's name → the pieces that wait for it
        self.missing: list[int] = []  # for how many each of them waits
        for place, part in enumerate(self.pieces):
            for name in (*part.needs, *part.outputs):
                self.uses[name] = self.uses.get(name, 0) + 1
            computed = {n for n in (*part.needs, *part.outputs) if n in self.exact}
            self.missing.append(len(computed))
            for name in computed:
                self.waiting.setdefault(name, []).append(place)
        self.inner: dict[tuple[str, ...], _Level] = {}
        self.control = {n.name or n.outputs[0].name: n for n in candidate if n.op_type in CONTROL}
        self.control_exact = {n.name or n.outputs[0].name: n for n in exact if n.op_type in CONTROL}
        self.control_plain = {n.name or n.outputs[0].name: n for n in plain if n.op_type in CONTROL}

    def _plan(self, graph: ir.Graph) -> list[_Piece]:
        """The candidate's pieces, in its order; what only one side has a name for is no border."""
        pieces, search = [], self.finder.search
        produced = {v.name for node in graph for v in node.outputs if v.name}
        common = produced & set(self.exact)
        if self.finder.segments:
            common = self._quantized(common) | {v.name for v in graph.outputs if v.name} & common
        for node in graph:
            outputs = [v.name or "" for v in node.outputs if v.name in common]
            if not outputs and self.finder.segments:
                continue
            if not outputs:
                search.not_compared.append(node.name or node.outputs[0].name or "")
                continue
            parts = [
                between([side[n] for n in outputs], lambda v: v.name in common)
                for side in ({v.name: v for v in node.outputs}, self.plain, self.exact)
            ]
            needs = dict.fromkeys(v.name or "" for part in parts[:2] for v in boundary(part))
            pieces.append(_Piece(parts[0], parts[1], parts[2], list(needs), outputs))
        return pieces

    def _with_pairs(
        self, nodes: list[ir.Node], feeds: dict[str, Any]
    ) -> tuple[list[ir.Node], dict[str, Any]]:
        """A segment together with the pairs of quantizers before it, which change nothing.

        An engine chooses its integer kernels by the pairs at both ends.
        """
        pair_feeds, selection = dict(feeds), set(nodes)
        for value in boundary(nodes):
            after = value.producer()
            before = _quantizer_of(after)
            if after is None or before is None or value.name not in feeds:
                continue
            source = before.inputs[0]
            parameters = [v for node in (before, after) for v in node.inputs[1:] if v is not None]
            if source is None or not source.name or source.name in feeds:
                continue
            if all(map(is_constant, parameters)):
                pair_feeds[source.name] = pair_feeds.pop(value.name or "")
                selection |= {before, after}
        return [node for node in self.order if node in selection], pair_feeds

    def _quantized(self, common: set[str]) -> set[str]:
        """Where segments end: behind pairs of quantizers, and what else quantizers make."""
        borders: set[str] = set()
        for name in common:
            node = self.exact[name].producer()
            if node is None:
                continue
            last = node.op_type in QUANTIZERS and not any(
                _quantizer_of(reader) for v in node.outputs for reader, _ in v.uses()
            )
            if _quantizer_of(node) is not None or last:
                borders.add(name)
        return borders

    def visit(self, path: tuple[str, ...], node: ir.Node, env: Mapping[str, Any]) -> None:
        """A step of the reference is done: replay what can be replayed now."""
        self.finder.check()
        if path != self.path:
            self._visit_inside(path, node, env)
            return
        for value in node.outputs:
            if value.name in self.uses:
                self.values[value.name or ""] = env[value.name or ""]
        for part in self._ready(node):
            if not all(self._has(n, env) for n in (*part.needs, *part.outputs)):
                continue
            self._replay(part, {n: self._value(n, env) for n in part.needs})
            for name in (*part.needs, *part.outputs):
                self.uses[name] -= 1
                if not self.uses[name]:
                    self.values.pop(name, None)

    def _ready(self, node: ir.Node) -> list[_Piece]:
        """The pieces whose last missing value this node made, in the candidate's order."""
        places = []
        for value in node.outputs:
            for place in self.waiting.pop(value.name or "", ()):
                self.missing[place] -= 1
                if not self.missing[place]:
                    places.append(place)
        return [self.pieces[place] for place in sorted(places)]

    def _has(self, name: str, env: Mapping[str, Any]) -> bool:
        return name in self.values or (
            name not in self.exact and self.renamed.get(name, name) in env
        )

    def _value(self, name: str, env: Mapping[str, Any]) -> Any:
        return self.values[name] if name in self.values else env[self.renamed.get(name, name)]

    # -- one piece ---------------------------------------------------------------------

    def _replay(self, part: _Piece, wide: dict[str, Any]) -> None:
        finder = self.finder
        if any(is_random(node) for node in part.nodes) or any(v is None for v in wide.values()):
            finder.search.not_compared.append(part.last.name or part.outputs[0])
            return
        feeds = {n: _narrowed(x, self._dtype(n, part)) for n, x in wide.items()}
        if finder.ties_only and not _put_ties(part.source, feeds):
            return
        finder.progress(f"replaying node {self.order[part.last] + 1} of {len(self.order)}")
        replay, case = self._judge(part, feeds)
        if finder.runs_whole and replay.problem.startswith("fails"):
            finder.search.not_compared.append(replay.node)
            return
        finder.search.replays.append(replay)
        if finder.search.culprit is None and not replay.ratio <= finder.bands[1]:
            if replay.doubtful:
                return
            finder.search.culprit, finder.search.case = replay, case
            if not finder.whole:
                raise _Found

    def _dtype(self, name: str, part: _Piece) -> np.dtype | None:
        value = self.plain.get(name)
        if value is None:
            value = next(
                (v for v in (*boundary(part.source), *boundary(part.nodes)) if v.name == name), None
            )
        kind = value.dtype if value is not None else None
        return None if kind is None else np.dtype(kind.numpy())

    def _judge(self, part: _Piece, candidate_feeds: dict[str, Any]) -> tuple[Replay, Case]:
        finder = self.finder
        feeds = {
            n: candidate_feeds[n]
            for n in candidate_feeds
            if n not in self.inputs or n in self.reference_inputs
        }
        for name, reference_name in self.renamed.items():
            if name in candidate_feeds:
                feeds[reference_name] = candidate_feeds[name]
        wide_feeds = {k: widened(v) for k, v in feeds.items()}
        exact_piece = piece(finder.exact, part.exact, wide_feeds, part.outputs)
        r = Reference(exact_piece, exact=False)(wide_feeds)
        plain_piece = piece(finder.plain, part.source, feeds, part.outputs)
        b = [Reference(plain_piece, exact=False)(feeds)]
        if has_coarse(plain_piece.graph):
            b.append(Reference(plain_piece, exact=False, coarsely=True)(feeds))
        nodes = part.nodes
        if finder.segments:
            nodes, candidate_feeds = self._with_pairs(nodes, candidate_feeds)
        model = piece(finder.candidate, nodes, candidate_feeds, part.outputs)
        candidate_feeds = {v.name or "": candidate_feeds[v.name or ""] for v in model.inputs}
        wide_given = {k: widened(v) for k, v in candidate_feeds.items()}
        replay = self._described(part)
        try:
            c = finder.run(model)(candidate_feeds)
        except SardonyxError as error:
            replay.ratio, replay.problem = float("inf"), f"fails: {error.what[:200]}"
            return replay, Case(model, candidate_feeds, r)
        wide = {**wide_feeds, **wide_given}
        fused = len(part.nodes) > 1 and any(n.op_type in QUANTIZERS for n in part.exact)
        for name in part.outputs:
            if fused and not finder.ties_only:  # ties are what those are about
                self._weigh_segment(replay, name, c.get(name), r[name], b[0][name], part, feeds)
            else:
                self._weigh(replay, name, c.get(name), r[name], [x[name] for x in b], part, wide)
        if replay.ratio > finder.bands[1] and not replay.problem.startswith("fails"):
            replay.doubtful = _is_doubtful(exact_piece, wide_feeds, r, b[0])
        return replay, Case(model, candidate_feeds, r)

    def _described(self, part: _Piece) -> Replay:
        """A replay of a piece, before it is judged."""
        node = part.last
        return Replay(
            self.order[node] + 1,
            len(self.order),
            node.op_type,
            node.name or node.outputs[0].name or "",
            self.path,
            0.0,
            fused=len(part.nodes),
            inputs=tuple(v.name or "" for v in node.inputs if v is not None),
            outputs=tuple(v.name or "" for v in node.outputs if v.name),
            readers=_readers(node),
        )

    def _weigh(
        self,
        replay: Replay,
        name: str,
        c: Any,
        r: Any,
        b: list[Any],
        part: _Piece,
        feeds: dict[str, Any],
    ) -> None:
        measurement = measure(("", name, ""), c, r, b)
        node = part.last
        if is_jump(node) and not self.finder.ties_only:
            inputs = [_input(v, feeds) for v in node.inputs]
            slack = [_slack(x) for x in inputs]
            near = on_threshold(node, inputs, slack) if len(part.nodes) == 1 else None
            self.finder.search.near_ties += int(near.sum()) if near is not None else 1
            if measurement.wrong and len(part.nodes) == 1:
                place = [v.name for v in node.outputs].index(name)
                filled = [None] * len(node.outputs)
                actual, expected = list(filled), list(filled)
                actual[place], expected[place] = c, r
                measurement.wrong, measurement.flipped = explained(
                    node, inputs, slack, actual, expected
                )
        if measurement.ratio > replay.ratio or (measurement.problem and not replay.problem):
            replay.ratio, replay.problem = measurement.ratio, measurement.problem

    def _weigh_segment(
        self,
        replay: Replay,
        name: str,
        c: Any,
        r: Any,
        b: Any,
        part: _Piece,
        feeds: dict[str, Any],
    ) -> None:
        """Integers between two quantizers: a result may be one step off where it lies on a tie."""
        measurement = measure(("", name, ""), c, r, [b])
        quantizer = next((n for n in reversed(part.exact) if n.op_type in QUANTIZERS), None)
        if measurement.problem or measurement.ratio <= self.finder.bands[1] or quantizer is None:
            replay.ratio = max(replay.ratio, measurement.ratio)
            replay.problem = replay.problem or measurement.problem
            return
        x, slack = self._before(quantizer, part, feeds)
        inputs = [x, *(_input(v, feeds) for v in quantizer.inputs[1:])]
        if inputs[1] is None:  # a scale that is computed
            replay.ratio = max(replay.ratio, measurement.ratio)
            return
        wrong, flipped = requantized(quantizer, inputs, slack, np.asarray(c), np.asarray(r))
        self.finder.search.near_ties += flipped
        if wrong > flipped:
            replay.ratio = float("inf")
            replay.problem = f"{wrong - flipped} of {x.size} elements off by more than a tie"

    def _before(
        self, quantizer: ir.Node, part: _Piece, feeds: dict[str, Any]
    ) -> tuple[np.ndarray, float]:
        """What a quantizer of a segment reads, exactly, and how far rounding moves it."""
        name = quantizer.inputs[0].name or ""  # type: ignore[union-attr]
        if name in feeds:
            x = np.asarray(widened(feeds[name]))
            return x, _slack(x)
        wide = {k: widened(v) for k, v in feeds.items()}
        finder = self.finder
        exact = piece(finder.exact, part.exact, wide, [name])
        plain = piece(finder.plain, part.source, feeds, [name])
        x = np.asarray(Reference(exact, exact=False)(wide)[name])
        noise = finite_rms(Reference(plain, exact=False)(feeds)[name], x)
        return x, max(noise, _slack(x), bias_step(part.exact) / REACH)

    # -- bodies -------------------------------------------------------------------------

    def _visit_inside(self, path: tuple[str, ...], node: ir.Node, env: Mapping[str, Any]) -> None:
        """A step inside a body: the level of that body takes it, made when it is first met."""
        depth = len(self.path)
        if path[:depth] != self.path or len(path) < depth + 2:
            return
        key = path[: depth + 2]
        if key not in self.inner:
            if sum(k[depth] == key[depth] for k in self.inner) >= ITERATIONS:
                return
            level = self._level_of(key)
            if level is None:
                return
            self.inner[key] = level
        self.inner[key].visit(path, node, env)

    def _level_of(self, key: tuple[str, ...]) -> _Level | None:
        label, part = key[-2], key[-1]
        attr = part if part.endswith("_branch") else "body"
        holders = [m.get(label) for m in (self.control_exact, self.control_plain, self.control)]
        if any(h is None or attr not in h.attributes for h in holders):
            return None
        exact, plain, candidate = (h.attributes[attr].as_graph() for h in holders if h is not None)
        names = [v.name or "" for v in candidate.inputs]
        renamed = dict(zip(names, (v.name or "" for v in exact.inputs)))
        return _Level(self.finder, exact, plain, candidate, key, {**self.renamed, **renamed})


def _quantizer_of(node: ir.Node | None) -> ir.Node | None:
    """The quantizer whose result a node makes floats of again; None for anything else."""
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return None
    source = node.inputs[0].producer()
    return source if source is not None and source.op_type in QUANTIZERS else None


def _readers(node: ir.Node) -> tuple[tuple[str, str], ...]:
    readers = dict.fromkeys(reader for v in node.outputs for reader, _ in v.uses())
    return tuple((n.op_type, n.name or n.outputs[0].name or "") for n in readers)


def _input_names(candidate: Model, feeds: Mapping[str, Any]) -> dict[str, str]:
    """The candidate's input names → those of the feeds, where they differ."""
    names = [v.name or "" for v in candidate.inputs]
    free = [k for k in feeds if k not in names]
    return dict(zip([n for n in names if n not in feeds], free))


def _narrowed(value: Any, dtype: np.dtype | None) -> Any:
    """An exact value as the model holds it."""
    if isinstance(value, list):
        return [_narrowed(v, dtype) for v in value]
    if dtype is None or not is_float(value):
        return value
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def _input(value: ir.Value | None, feeds: Mapping[str, Any]) -> Any:
    if value is None:
        return None
    if is_constant(value):
        assert value.const_value is not None
        return value.const_value.numpy()
    node = value.producer()
    if value.name not in feeds and node is not None and node.op_type == "Mul":
        parts = [_input(v, feeds) for v in node.inputs]  # a scale with a factor that was trained
        return None if any(p is None for p in parts) else parts[0] * parts[1]
    return feeds.get(value.name or "")


def _put_ties(nodes: list[ir.Node], feeds: dict[str, Any]) -> bool:
    """Replace what the only node rounds by values exactly half-way; False where it does not."""
    node = nodes[0]
    value = node.inputs[0] if node.inputs else None
    if len(nodes) != 1 or value is None or value.name not in feeds:
        return False
    ties = tied(node, [_input(v, feeds) for v in node.inputs])
    if ties is None:
        return False
    feeds[value.name] = ties
    return True


def _slack(x: Any) -> float:
    """Inside one node only its own arithmetic rounds."""
    return 2.0**-24 * float(np.max(np.abs(x), initial=0.0)) if is_float(x) else 0.0


def _is_doubtful(model: Model, feeds: dict[str, Any], r: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether ONNX's own reference, which shares no rule with ours, contradicts the result."""
    if any(bodies(node) for node in model.graph):
        return False
    try:
        other = onnx_kernel(model)(feeds)
    except SardonyxError:
        return False
    parts: list[Measurement] = []
    for name, value in r.items():
        dtype = np.asarray(b[name]).dtype if not isinstance(b[name], list) else None
        parts.append(
            measure(("", name, ""), other.get(name), value, [b[name]], dtype, lenient=True)
        )
    return any(m.ratio > 10.0 for m in parts)

"""Where it differs: the search in each candidate, ties that inputs do not reach, and slices.

How one candidate is replayed is in `culprit.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sardonyx.errors import ArgumentError, SardonyxError
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.verify.budget import Budget, OutOfTime
from sardonyx.verify.converted import as_onnx
from sardonyx.verify.culprit import Finder, Search
from sardonyx.verify.datasets import DataSet
from sardonyx.verify.noise import FAILS, Measurement
from sardonyx.verify.report import Culprit, Report
from sardonyx.verify.subjects import ConversionSubject, OnnxSubject, Subject, runner
from sardonyx.verify.ties import QUANTIZERS, has_ties

AMPLIFIED = 10.0


@dataclass
class Locator:
    """Searches the candidates of one comparison.

    reference -- the model whose float64 run is the exact one; None where there is none
    twins     -- subjects whose outputs were those of the first, to the bit: what is found of it
                 holds for them
    """

    report: Report
    reference: Model | None
    progress: Callable[[str], None]
    budget: Budget
    twins: Collection[str] = ()

    def find(self, candidates: Sequence[tuple[str, Subject]], runs: Sequence[DataSet]) -> None:
        """Replay every candidate that differs, and the jumps of those that do not."""
        if self.reference is None:
            if any(not m.ratio <= self.report.bands[1] for m in self.report.measurements):
                self.report.notes.append(
                    "no node can be named: there is no exact run of the first model"
                )
            return
        for label, item in candidates:
            mine = [m for m in self.report.measurements if m.subject == label]
            bad = [m for m in mine if not m.ratio <= self.report.bands[1]]
            inside = as_onnx(item, self.reference)
            if bad and label in self.twins:
                self._like_the_first(label, candidates[0][0], mine)
            elif bad and inside is None:
                self.report.notes.append(
                    f"{label} cannot be opened, only its outputs are compared: no node is named"
                )
            elif bad and inside is not None:
                names = [m.run for m in bad]
                run = next(r for r in runs if r.name in names)
                self._search(label, inside, run, bad, _cause(item, inside))
            elif mine and inside is not None and has_ties(normalize(self.reference).graph):
                self._probe(label, inside, runs[0])

    def _like_the_first(self, label: str, first: str, mine: list[Measurement]) -> None:
        """A program that gives the bits of the first one is as right as that."""
        others = {(m.output, m.run): m for m in self.report.measurements if m.subject == first}
        for part in mine:
            other = others.get((part.output, part.run))
            if other is not None:
                part.forced, part.problem = other.forced, other.problem
        self.report.notes.append(f"{label} gives the numbers of {first}, to the bit")

    def _finder(self, inside: OnnxSubject) -> Finder:
        assert self.reference is not None and inside.model is not None
        run = functools.partial(runner(inside.engine), **inside.settings)
        finder = Finder(self.reference, inside.model, run, self.report.bands, self.progress)
        finder.check = self.budget.check
        return finder

    def _search(
        self,
        label: str,
        item: OnnxSubject,
        run: DataSet,
        bad: list[Measurement],
        cause: str,
    ) -> None:
        finder = self._finder(item)
        finder.runs_whole = not any(m.outcome == FAILS for m in bad)
        try:
            search = finder(run.inputs)
        except SardonyxError as error:
            self.report.notes.append(f"the search in {label} ended early: {error.what}")
            search = finder.search
        has_quantizers = any(node.op_type in QUANTIZERS for node in finder.plain.graph.all_nodes())
        if search.culprit is None and has_quantizers and finder.runs_whole:
            # Alone, each node rounds right; engines compute what lies between two quantizers in
            # integers, as one. Their ties may flip too, but nothing else may happen there.
            fused = finder(run.inputs, segments=True)
            search.replays += fused.replays
            search.near_ties += fused.near_ties
            search.culprit, search.case = fused.culprit, fused.case
        self._conclude(label, search, bad, cause)

    def _probe(self, label: str, item: OnnxSubject, run: DataSet) -> None:
        """Rounding modes show half-way between two steps only: feed such values to what rounds."""
        finder = self._finder(item)
        finder.runs_whole = True
        try:
            search = finder(run.inputs, ties_only=True)
        except SardonyxError:
            return  # the whole runs agree; that a piece cannot be probed alone says nothing
        if search.culprit is None:
            return
        part = Measurement(label, search.culprit.outputs[0], "exact ties", [], "")
        part.problem = "rounds half-way values to another side"
        self.report.measurements.append(part)
        self.report.replays[label] = search.replays
        self.report.culprits.append(Culprit.of(label, search))

    def _conclude(self, label: str, search: Search, bad: list[Measurement], cause: str) -> None:
        self.report.replays[label] = search.replays
        if search.culprit is not None:
            self.report.culprits.append(Culprit.of(label, search))
            return
        doubtful = [r for r in search.replays if r.doubtful]
        if doubtful:
            first = doubtful[0]
            self.report.notes.append(
                f"the exact references disagree on {first.op} {first.node!r}: could not tell"
            )
            self.report.comparable = False
        elif self._is_explained(label, search) and not any(m.problem for m in bad):
            for part in bad:
                part.forced = search.worst
            self.report.notes.append(
                f"{label}: values on the line of a jump took another side; "
                f"node by node it agrees (at most {search.worst:.2g})"
            )
        else:
            for part in bad:
                # Rounding alone can be blown up so far; a fault would show at its node.
                limit = AMPLIFIED * self.report.bands[1]
                part.amplified = search.worst <= self.report.bands[0] and part.ratio <= limit
            self.report.notes.append(
                f"{label}: no single node is wrong alone ({len(search.replays)} replayed, at most "
                f"{search.worst:.2g}): {cause}"
            )

    def _is_explained(self, label: str, search: Search) -> bool:
        """Whether jumps explain a difference: values lie on their lines; or another model gives the
        same bits as the first one, and every node and every fused segment is right alone.
        """
        if search.near_ties:
            return True
        assert self.reference is not None
        is_first = bool(self.report.measurements) and self.report.measurements[0].subject == label
        right = search.worst <= self.report.bands[0]
        return bool(self.twins) and is_first and right and has_ties(normalize(self.reference).graph)

    def slices(self, candidates: Sequence[tuple[str, Subject]], runs: Sequence[DataSet]) -> None:
        """Judge by replays alone: neither side is ever run whole."""
        if self.reference is None:
            raise ArgumentError("only ONNX models can be verified in slices")
        for label, item in candidates:
            inside = as_onnx(item, self.reference)
            if inside is None:
                raise ArgumentError(
                    f"{label} cannot be opened", hint="only ONNX models can be sliced"
                )
            for run in runs:
                self._slice(label, inside, run)
        self.report.runs = [{"name": r.name} for r in runs]
        self.report.data = list(runs)

    def _slice(self, label: str, inside: OnnxSubject, run: DataSet) -> None:
        finder = self._finder(inside)
        try:
            search = finder(run.inputs, whole=True)
        except OutOfTime as error:
            search = finder.search
            count = sum(1 for _ in finder.plain.graph.all_nodes())
            self.report.notes.append(
                f"{label}: {error.what} after {len(search.replays)} of {count} nodes"
            )
            self.report.comparable = False
        part = Measurement(label, "every node", run.name, [len(search.replays)], "")
        part.problem = next((r.problem for r in search.replays if r.problem), "")
        part.forced = float("inf") if part.problem else search.worst
        self.report.measurements.append(part)
        self.report.replays[label] = search.replays
        is_named = any(c.subject == label for c in self.report.culprits)
        if search.culprit is not None and not is_named:
            self.report.culprits.append(Culprit.of(label, search))


def _cause(item: Subject, inside: OnnxSubject) -> str:
    """What may be wrong where every node is right alone."""
    if isinstance(item, ConversionSubject):
        return "the fault is in the conversion as a whole"
    if inside is not item:
        return "the graph of the conversion was changed, not its weights"
    return "accumulation, fusion, or a changed graph"

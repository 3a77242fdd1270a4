"""One comparison from end to end: subjects, inputs, exact run, baseline, verdict, culprit."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.diff import diff
from sardonyx.errors import (
    ArgumentError,
    DataError,
    EngineError,
    MissingExtra,
    SardonyxError,
    UnsupportedOp,
)
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, normalize
from sardonyx.passes.cse import is_random
from sardonyx.passes.nesting import graphs
from sardonyx.verify import datasets
from sardonyx.verify.budget import SECONDS, Budget, OutOfTime
from sardonyx.verify.coarse import has_coarse
from sardonyx.verify.datasets import DataSet
from sardonyx.verify.draw import BLIND, CONSTANT, Drawer, rated
from sardonyx.verify.exact import Reference, Walk, is_float, widened
from sardonyx.verify.gradients import NotDifferentiable, gradients_of
from sardonyx.verify.interface import common_sizes, interface_mismatch
from sardonyx.verify.jitter import Jitter, moved, moved_weights
from sardonyx.verify.locate import Locator
from sardonyx.verify.noise import (
    BANDS,
    DIFFERENT,
    FAILS,
    GRADIENT_BANDS,
    NOT_COMPARABLE,
    PLACES,
    UNKNOWN,
    Measurement,
    finite_rms,
    measure,
)
from sardonyx.verify.report import Report
from sardonyx.verify.subjects import (
    MOVED,
    SavedSubject,
    Subject,
    distinct_names,
    on_engine,
    subject,
)
from sardonyx.verify.ties import SELECTIONS, explained, has_jumps

FEW = 64  # outputs with fewer elements tell little of the noise: more samples are drawn
SAMPLES = 4
MORE = 8
SEARCHING = 0.5  # the share of the time that is left to the search for the node at fault
SLOW = 3.0  # seconds: then more noise is drawn on suspicion only
SUSPICIOUS = 1000.0  # up to here, more samples of the noise may clear a candidate
ULP_OF_ONE = 2.0**-20  # several units in the last place of a sigmoid, whatever its result is
SUSPECT = 1e-2  # a float32 baseline so far from the exact run means that one of the two is wrong


def verify(
    first: Any,
    *others: Any,
    engine: str | Sequence[str] | None = None,
    inputs: Any = None,
    seeds: int | Sequence[int] = 3,
    rtol: float | None = None,
    atol: float | None = None,
    bands: tuple[float, float] | None = None,
    sizes: Mapping[str, int] | None = None,
    gradients: bool = False,
    culprit: bool = True,
    sliced: bool = False,
    seconds: float = SECONDS,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Compare programs: the same numbers up to rounding, or not, and then which node.

    Training steps are compared by `verify_training`.

    first, others -- an ONNX file or model, an engine's name (for the first model), a torch module,
                     a JAX or TensorFlow function, any function of arrays, saved outputs (.npz or a
                     model-zoo folder)
    engine    -- engines to run the first model on as well
    inputs    -- arrays by name, an .npz, a function of a seed, a model-zoo folder; else random
    seeds     -- how many random inputs, or their seeds
    rtol/atol -- judge by tolerances instead of the noise ratio
    bands     -- up to the first number the same, above the second different
    sizes     -- numbers for symbolic dimensions
    gradients -- compare the gradients by float inputs and weights; of torch modules, JAX and
                 TensorFlow functions those of their own framework
    culprit   -- search the node when something differs
    sliced    -- never run a whole model: replay node by node, in bounded memory
    seconds   -- a time budget: what does not fit is left out, and the report says so
    progress  -- called with a line of text now and then

    >>> import sardonyx as sx
    >>> sx.verify("model.onnx", "numpy").verdict
    'same'
    """
    judging = (bands or (GRADIENT_BANDS if gradients else BANDS), rtol, atol)
    subjects = _subjects(first, others, engine)
    if gradients:
        subjects = gradients_of(subjects)
    budget = Budget(seconds)
    job = _Job(subjects, judging, progress or (lambda _: None), sliced, budget)
    job.runs(inputs, list(range(seeds)) if isinstance(seeds, int) else list(seeds), sizes)
    candidates = list(zip(job.labels, subjects))
    locator = Locator(job.report, job.reference_model, job.progress, budget)
    if sliced:
        locator.slices(candidates, list(job.data))
        return job.report
    job.compare()
    job.note_other_weights()
    locator.reference = job.reference_model  # gone where the float64 run failed
    others_models = {n for n, s in candidates if s.model is not None and s.model is not job.model}
    locator.twins = others_models - job.apart
    if culprit and job.tolerances is None:
        locator.find(candidates, job.report.data)
    return job.report


def _same_bits(outputs: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether two programs gave the same arrays, to the bit."""
    if outputs.keys() != others.keys() or not outputs:
        return False
    pairs = [(outputs[n], others[n]) for n in outputs]
    return all(
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and (a.dtype, a.shape) == (b.dtype, b.shape)
        and a.dtype != object
        and a.tobytes() == b.tobytes()
        for a, b in pairs
    )


def _subjects(
    first: Any, others: Sequence[Any], engine: str | Sequence[str] | None
) -> list[Subject]:
    subjects = [subject(first)]
    if isinstance(subjects[0], SavedSubject):
        raise ArgumentError(
            "saved outputs cannot come first", hint="name the model, then the outputs"
        )
    subjects += [subject(thing, subjects[0]) for thing in others]
    engines = [engine] if isinstance(engine, str) else list(engine or ())
    return subjects + [on_engine(name, subjects[0]) for name in engines]


class _Job:
    """The state of one comparison."""

    def __init__(
        self,
        subjects: list[Subject],
        judging: tuple[tuple[float, float], float | None, float | None],
        progress: Callable[[str], None],
        sliced: bool,
        budget: Budget,
    ):
        bands, rtol, atol = judging
        self.subjects, self.progress, self.sliced = subjects, progress, sliced
        self.budget = budget
        self.labels = distinct_names(subjects)
        self.tolerances = None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
        self.model = next((s.model for s in subjects if s.model is not None), None)
        self.report = Report.of(subjects, self.labels, bands, self.tolerances)
        self.exact: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
        self.baselines: list[Callable[[Mapping[str, Any]], dict[str, Any]]] = []
        self.noise: dict[str, float] = {}
        self.coarse: dict[str, dict[str, Any]] = {}
        self.coarse_runner: list[Reference] | None = None
        self.first: dict[str, Any] = {}  # the outputs of the first subject in this run
        self.apart: set[str] = set()  # subjects whose outputs are not those, to the bit
        self.trials: dict[tuple[str, int, bool], dict[str, float]] = {}
        self.data: Iterator[DataSet] = iter(())
        self.count, self.is_drawn = 0, False  # of the data; whether it is random
        self._choose_reference()

    def _choose_reference(self) -> None:
        """Exact run and baseline belong to the first subject that can be computed in float64."""
        for label, item in zip(self.labels, self.subjects):
            wide_run = item.exact()
            if wide_run is not None:
                self.exact, self.baselines = wide_run, [item]
                self.reference_model, by = None, f"{label}, in float64"
                break
            if item.model is not None:
                regular = normalize(item.model)
                if _is_random(regular):
                    self.report.notes.append(f"{label} draws random numbers: not comparable")
                    self.report.comparable = False
                self.exact, self.baselines = _references(regular)
                self.reference_model, by = regular, f"{label}, in float64 on numpy"
                break
        else:
            self.reference_model, by = None, "none"
        self.report.reference = by

    # -- inputs -------------------------------------------------------------------------

    def runs(self, inputs: Any, seeds: list[int], sizes: Mapping[str, int] | None) -> None:
        """Find out what to run on: `data` and how many there are of them."""
        saved = [s for s in self.subjects if isinstance(s, SavedSubject)]
        sets = next((s.sets for s in saved if any(part.inputs for part in s.sets)), None)
        if inputs is not None:
            sets = datasets.read(inputs, self.model, seeds)
        if sets is not None:
            self.data, self.count = iter(sets), len(sets)
        elif self.model is None:
            raise ArgumentError(
                "random inputs need an ONNX model among the subjects", hint="pass inputs="
            )
        elif saved:
            raise DataError(
                "saved outputs belong to inputs",
                hint="pass the inputs that they were computed from: inputs=",
            )
        elif not seeds:
            raise ArgumentError(
                "nothing can be compared on 0 random inputs", hint="draw at least 1"
            )
        else:
            self.report.seeds, self.is_drawn = seeds, True
            self.data, self.count = self._drawn(self.model, seeds, sizes), len(seeds)

    def _drawn(
        self, model: Model, seeds: list[int], sizes: Mapping[str, int] | None
    ) -> Iterator[DataSet]:
        """Random inputs, one after the other: what no time is left for is not drawn."""
        first = next(s for s in self.subjects if s.model is not None)
        drawer = Drawer(first, self.budget, self.sliced)
        others = [s.model for s in self.subjects if s.model not in (None, model)]
        fits = [m for m in others if m is not None and not interface_mismatch(m, model)]
        sizes = common_sizes(model, fits) | dict(sizes or {})
        try:
            for seed in seeds:
                yield drawer(seed, sizes)
        except EngineError as error:
            self._note(f"{error.what}; {error.hint}")

    # -- the comparison -----------------------------------------------------------------

    def compare(self) -> None:
        for run in self.data:
            self.progress(run.name)
            try:
                self._compare_on(run)
            except OutOfTime:
                self._note_left_out("is used up")
                break
            self.report.data.append(run)
            shapes = {k: _shape(v) for k, v in run.inputs.items()}
            self.report.runs.append({"name": run.name, "shapes": shapes})
            if len(self.report.runs) == self.count:
                break
            if self.budget.is_over:
                self._note_left_out("is used up")
                break
            if self.budget.left < SEARCHING * self.budget.seconds and self._differs:
                self._note_left_out("is kept for the search")
                break

    @property
    def _differs(self) -> bool:
        return any(m.verdict(self.report.bands) == DIFFERENT for m in self.report.measurements)

    def _note_left_out(self, what: str) -> None:
        self._note(
            f"{len(self.report.runs)} of {self.count} inputs were compared: "
            f"the time budget of {self.budget.seconds:g} s {what}"
        )

    def _compare_on(self, run: DataSet) -> None:
        start = time.monotonic()
        exact, baselines = self._reference_values(run)
        slow = time.monotonic() - start > SLOW
        self._note_what_shows_little(exact)
        small = [n for n, v in exact.items() if is_float(v) and 0 < v.size < FEW]
        is_moved = bool(small) and not slow and _has_floats(run)
        samples = [self._more_noise(run, t) for t in range(SAMPLES) if is_moved]
        self.noise = {n: max(d.get(n, 0.0) for d in samples) for n in small if samples}
        for label, item in zip(self.labels, self.subjects):
            self._measure(label, item, run, exact, baselines)
        if run.outputs and not any(isinstance(s, SavedSubject) for s in self.subjects):
            self._judge(f"outputs of {run.name}", run.outputs, run, exact, baselines, True)

    def _note_what_shows_little(self, exact: dict[str, Any]) -> None:
        for name, value in exact.items():
            if rated(value) == CONSTANT:
                self._note(f"output {name} is constant on these inputs: little is proven")
            elif rated(value) == BLIND:
                self._note(f"output {name} is empty or not finite on these inputs; give inputs=")

    def _reference_values(self, run: DataSet) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if self.exact is not None:
            try:
                with self.budget.within(0.5):
                    exact = self.exact(run.inputs)
                    baselines = [b(run.inputs) for b in self.baselines]
                self._check_plausible(exact, baselines, run.name)
                return exact, baselines
            except (UnsupportedOp, EngineError) as error:
                if isinstance(error, OutOfTime) and self.report.runs:
                    raise  # the inputs before had a float64 run, and so has the search
                self._note(f"no float64 run: {error.what}")
                self.exact = self.reference_model = None
                if len(self.subjects) == 1 and not run.outputs:
                    self._note("nothing is left to compare the only subject with")
                    self.report.comparable = False
        jitter = Jitter(self.subjects[0], self.model)
        self.report.reference = (
            f"{self.labels[0]} itself; noise by moving its inputs and weights by one unit"
        )
        return jitter(run.inputs)

    def _more_noise(
        self, run: DataSet, trial: int, coarsely: Sequence[Reference] = ()
    ) -> dict[str, float]:
        """The noise of every output on numbers moved in the last place: rounding drawn anew.

        Small outputs tell little of the noise, and those of a wide range are ruled by few elements.
        """
        key = (run.name, trial, bool(coarsely))
        if key not in self.trials:
            self.trials[key] = {}
            if self.exact is not None and _has_floats(run):
                rng = np.random.default_rng(trial)
                feeds = {k: moved(v, rng) for k, v in run.inputs.items()}
                with contextlib.suppress(OutOfTime), self.budget.within(0.2):
                    self.budget.check()
                    baselines = [side(feeds) for side in self.baselines]
                    baselines += [side(feeds) for side in coarsely]
                    self.trials[key] = _noise(self.exact(feeds), baselines)
            elif self.exact is not None:
                with contextlib.suppress(OutOfTime), self.budget.within(0.2):
                    self.trials[key] = self._noise_of_weights(run, trial)
        return self.trials[key]

    def _noise_of_weights(self, run: DataSet, trial: int) -> dict[str, float]:
        """The noise with weights moved in the last place: for inputs that are whole numbers."""
        self.budget.check()
        for item in self.subjects:
            twin = item.nudged(trial)
            wide_run = twin.exact() if twin is not None else None
            if twin is not None and wide_run is not None:
                return _noise(wide_run(run.inputs), [twin(run.inputs)])
            if item.model is not None:
                exact, baselines = _references(normalize(moved_weights(item.model, trial, MOVED)))
                if exact is not None:
                    return _noise(exact(run.inputs), [b(run.inputs) for b in baselines])
        return {}

    def _coarsely(self) -> list[Reference]:
        """The baseline that computes some nodes as coarsely as engines do, where there are such."""
        model = self.reference_model
        if self.coarse_runner is None:
            coarse = model is not None and has_coarse(model.graph)
            self.coarse_runner = (
                [Reference(model, exact=False, coarsely=True)] if model and coarse else []
            )
        return self.coarse_runner

    def _check_plausible(
        self, exact: dict[str, Any], baselines: list[dict[str, Any]], run: str
    ) -> None:
        """Note where the baseline is so far from the exact run that it would hide faults."""
        if self.reference_model is None or has_jumps(self.reference_model.graph):
            return
        for name, value in exact.items():
            other = baselines[0].get(name)
            if (
                isinstance(other, np.ndarray)
                and other.dtype == np.float32
                and value.shape == other.shape
            ):
                measurement = measure(("", name, run), other, value, [])
                if measurement.rms_error > SUSPECT * max(measurement.largest, 1e-30):
                    self._note(f"float32 and float64 disagree on {name}: ill-conditioned inputs")

    def _measure(
        self,
        label: str,
        item: Subject,
        run: DataSet,
        exact: dict[str, Any],
        baselines: list[dict[str, Any]],
    ) -> None:
        mismatch = "" if item is self.subjects[0] else self._mismatch(item)
        if mismatch:
            self._add_outcome(label, run, NOT_COMPARABLE, mismatch)
            return
        try:
            with self.budget.within():
                item.prepare()
                outputs = item(run.inputs, run.name)
        except OutOfTime as error:
            self.apart.add(label)
            self._add_outcome(label, run, UNKNOWN, error.what)
            return
        except (MissingExtra, NotDifferentiable) as error:
            self._note(f"{label}: {error.what}" + (f"; {error.hint}" if error.hint else ""))
            self.report.comparable = False
            return
        except SardonyxError as error:
            self.apart.add(label)
            self._add_outcome(label, run, FAILS, _first_line(error.what))
            return
        self._judge(label, outputs, run, exact, baselines, item.lenient)
        if item is self.subjects[0]:
            self.first = outputs
        elif not _same_bits(outputs, self.first):
            self.apart.add(label)
        if item is self.subjects[0]:
            self._add_baseline(label, outputs, run, baselines)

    def _mismatch(self, item: Subject) -> str:
        """How the inputs or outputs of a subject's model differ from the first one's."""
        if item.model is None or self.model is None or item.model is self.model:
            return ""
        return interface_mismatch(item.model, self.model)

    def _add_outcome(self, label: str, run: DataSet, outcome: str, problem: str) -> None:
        self.report.measurements.append(
            Measurement(label, "all", run.name, [], "", problem=problem, outcome=outcome)
        )

    def _add_baseline(
        self, label: str, outputs: dict[str, Any], run: DataSet, baselines: list[dict[str, Any]]
    ) -> None:
        """Take the first subject's result as a further baseline, unless it is wrong itself."""
        mine = [m for m in self.report.measurements if (m.subject, m.run) == (label, run.name)]
        if len(self.subjects) > 1 and all(m.ratio <= self.report.bands[1] for m in mine):
            for m in mine:
                if m.ratio > self.report.bands[0]:
                    self._note(f"{label} is itself noisier than the baseline ({m.ratio:.1f})")
                    m.accepted = True
            baselines.append({m.output: outputs[m.output] for m in mine if m.output in outputs})

    def note_other_weights(self) -> None:
        """Say so where a model that differs has the nodes of the first one and other weights."""
        for label, item in zip(self.labels, self.subjects):
            verdicts = [m.verdict() for m in self.report.measurements if m.subject == label]
            other = item.model
            if DIFFERENT in verdicts and self.model and other and other is not self.model:
                changes = diff(self.model, other)
                weights = [c for c in changes.of("weight") if c.what == "changed"]
                if weights and not changes.of("node"):
                    most = max(weights, key=lambda c: c.size).where
                    self._note(
                        f"{label} has the same nodes, but {len(weights)} of "
                        f"{changes.matched_weights} weights have other values, as after training; "
                        f"the most changed is {most}"
                    )

    def _note(self, text: str) -> None:
        text = " ".join(text.split())  # what an engine says may have many lines
        if text not in self.report.notes:
            self.report.notes.append(text)

    def _judge(
        self,
        label: str,
        outputs: dict[str, Any],
        run: DataSet,
        exact: dict[str, Any],
        baselines: list[dict[str, Any]],
        lenient: bool,
    ) -> None:
        pairs = _paired(outputs, exact)
        if pairs is None:
            text = f"{len(outputs)} outputs, not {len(exact)}"
            self._add_outcome(label, run, NOT_COMPARABLE, text)
            return
        for name, output_name in pairs.items():
            others = [b[name] for b in baselines if b.get(name) is not None]
            part = measure(
                (label, name, run.name),
                outputs[output_name],
                exact[name],
                others,
                tolerances=self.tolerances,
                lenient=lenient,
                noise=self.noise.get(name, 0.0),
            )
            if self.is_drawn and rated(exact[name]) == BLIND and part.problem in ("", PLACES):
                part.outcome = UNKNOWN  # the model may not be made for these random numbers
            if part.wrong and self.reference_model is not None:
                self._explain(part, name, outputs[output_name], run)
            # The result of a sigmoid may be all error, and small: a ratio says nothing then.
            is_small = part.ratio < SUSPICIOUS or part.peak_error < ULP_OF_ONE
            if self.report.bands[0] < part.ratio < math.inf and is_small and part.eps:
                self._reconsider(part, exact[name], run)
            self.report.measurements.append(part)

    def _reconsider(self, part: Measurement, exact: Any, run: DataSet) -> None:
        """Measure the baseline's noise better: compute it coarsely, and on moved inputs."""
        for coarsely in self._coarsely():
            if run.name not in self.coarse:
                self.coarse[run.name] = {}
                with contextlib.suppress(OutOfTime), self.budget.within(0.2):
                    self.coarse[run.name] = coarsely(run.inputs)
            other: Any = self.coarse[run.name].get(part.output)
            if np.shape(other) == np.shape(exact):
                part.rms_noise = max(part.rms_noise, finite_rms(other, exact))
        for trial in range(MORE):
            if part.ratio <= self.report.bands[0]:
                return
            more = self._more_noise(run, trial, self._coarsely())
            part.rms_noise = max(part.rms_noise, more.get(part.output, 0.0))

    def _explain(self, part: Measurement, name: str, output: Any, run: DataSet) -> None:
        """Indices may differ where they point at values that are equal up to rounding."""
        assert self.reference_model is not None
        value = next(v for v in self.reference_model.outputs if v.name == name)
        node = value.producer()
        if node is None or node.op_type not in SELECTIONS:
            return
        source = node.inputs[0]
        traces: list[Any] = []
        for exact in (True, False):
            reference = Reference(self.reference_model, exact=exact)
            feeds = {k: widened(v) for k, v in run.inputs.items()} if exact else run.inputs
            values: dict[str, Any] = {}

            def keep(
                path: Any, step: Any, env: Mapping[str, Any], values: dict[str, Any] = values
            ) -> None:
                if not path and source is not None and source.name in env:
                    values["x"] = env[source.name or ""]
                    if any(v.name == name for v in step.outputs):
                        values["y"] = env[name]

            Walk(reference.model, keep)(feeds)
            traces.append(values)
        if "x" not in traces[0] or not is_float(traces[0]["x"]):
            return
        x, x_plain = np.asarray(traces[0]["x"]), np.asarray(traces[1]["x"], np.float64)
        slack = max(
            float(np.sqrt(np.mean((x_plain - x) ** 2))), 2.0**-24 * float(np.abs(x).max(initial=0))
        )
        place = [v.name for v in node.outputs].index(name)
        blank: list[Any] = [None] * len(node.outputs)
        actual, expected = list(blank), list(blank)
        actual[place], expected[place] = np.asarray(output), traces[0]["y"]
        part.wrong, part.flipped = explained(node, [x], [slack], actual, expected)


def _references(model: Model) -> tuple[Any, list[Any]]:
    try:
        exact: Any = Reference(model, exact=True)
    except SardonyxError:
        return None, []
    baselines: list[Any] = [Reference(model, exact=False)]
    return exact, baselines


def _has_floats(run: DataSet) -> bool:
    return any(map(is_float, run.inputs.values()))


def _noise(exact: Mapping[str, Any], baselines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How far the baselines are from an exact run, by output: the farthest counts."""
    noise: dict[str, float] = {}
    for baseline in baselines:
        for name in baseline:
            r: Any = exact.get(name)
            b = baseline[name]
            if is_float(r) and is_float(b) and np.shape(b) == np.shape(r):
                noise[name] = max(noise.get(name, 0.0), finite_rms(b, r))
    return noise


def _first_line(text: str) -> str:
    """What fits into a row of a table: torch's errors go on with hints and tracebacks."""
    return next(iter(text.strip().splitlines()), "")[:300]


def _shape(value: Any) -> list[int]:
    return [len(value)] if isinstance(value, list) else list(np.shape(value))


def _paired(outputs: Mapping[str, Any], exact: Mapping[str, Any]) -> dict[str, str] | None:
    """The exact run's output names → the candidate's: by name, else by place."""
    if set(exact) <= set(outputs):
        return {n: n for n in exact}
    if len(outputs) != len(exact):
        return None
    return dict(zip(exact, outputs))


def _is_random(model: NormalizedModel) -> bool:
    return any(is_random(node) for part in graphs(model.graph) for node in part)

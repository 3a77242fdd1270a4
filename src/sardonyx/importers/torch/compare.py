"""The imported model held against the module: outputs, and two steps of training.

Outputs are judged by `verify`: the module in float64 is exact, the module itself shows the rounding
noise. Training steps are judged alike: two steps of a copy of the module and its optimizer in
float64 and in their own type, and two steps of the record in onnxruntime.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sardonyx.errors import ImportDiffers, ImportRefused, quote
from sardonyx.importers.torch.capture import evaluation_mode, plain_branches, quiet, refusal
from sardonyx.importers.torch.copies import copied
from sardonyx.importers.torch.data import array_of
from sardonyx.importers.torch.leaves import outputs_by_name
from sardonyx.importers.torch.masks import Masks, ratios_of, sites_of, unread_masks
from sardonyx.importers.torch.source import Source
from sardonyx.model import Model
from sardonyx.verify.compare import verify
from sardonyx.verify.noise import BANDS, DIFFERENT, FAILS, GRADIENT_BANDS, SAME, measure
from sardonyx.verify.report import Report
from sardonyx.verify.subjects import Subject, nudged_copy, reported, torch_tensor
from sardonyx.verify.training import prepare_training

SECONDS = 120.0
APART = 1e-3  # relative: no rounding makes so much of two runs of one module
STEPS = 2
NUDGES, NUDGE = 4, 4.0  # further runs where one is not enough, and by how many roundings they move
MORE_NUDGES, SUSPICIOUS = 16, 1000.0  # where a ratio is too large still, but not beyond this
WIDE = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}
# What asks for a property of a tensor, and need not convert it.
INQUIRIES = ("__get__", "size", "dim", "numel", "stride", "is_floating_point", "is_complex")


def grouped_mm(
    mat_a: Any, mat_b: Any, *, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Products of groups of rows, each with its own matrix, of which torch has none in float64."""
    assert offs is not None and mat_a.dim() == 2 and mat_b.dim() == 3
    bounds = [0, *offs.tolist()]
    parts = [mat_a[a:b] @ mat_b[i] for i, (a, b) in enumerate(itertools.pairwise(bounds))]
    result = torch.cat([*parts, mat_a.new_zeros(mat_a.shape[0] - bounds[-1], mat_b.shape[2])])
    return result if bias is None else result + bias


WITHOUT_WIDE_KERNEL: dict[Any, Callable[..., Any]] = {}
if hasattr(torch, "_grouped_mm"):
    WITHOUT_WIDE_KERNEL[torch._grouped_mm] = grouped_mm

# -- outputs ----------------------------------------------------------------------------


class _WideOperators(TorchDispatchMode):
    """Every operator computes in float64: weights are widened where they are read."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.embedding.default:  # the rows are widened, not the whole table
            return _widened(func(*args, **(kwargs or {})))
        args, kwargs = _mapped(_widened, (args, kwargs or {}))
        return func(*args, **kwargs)


class _WideFunctions(TorchFunctionMode):
    """The same one level higher: functions of several operators check types before they run."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch: dict[torch.Size, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_choice = func is torch.nn.functional.embedding and "max_norm" not in (kwargs or {})
        is_choice = is_choice and (len(args) < 4 or args[3] is None)  # it would scale the rows
        if func is torch.nn.functional.linear and len(args) > 1 and not torch.is_grad_enabled():
            args = (args[0], self._wide_weight(args[1]), *args[2:])
        if getattr(func, "__name__", "") not in INQUIRIES and not is_choice:
            args, kwargs = _mapped(_widened, (args, kwargs or {}))
        result = WITHOUT_WIDE_KERNEL.get(func, func)(*args, **(kwargs or {}))
        return WIDE.get(result, result) if isinstance(result, torch.dtype) else result

    def _wide_weight(self, weight: Any) -> Any:
        """The weight of a linear layer in memory that the next one of its shape uses again.

        Fresh memory costs more than the conversion, and a product keeps nothing of its factors.
        """
        if type(weight) is not torch.nn.Parameter or weight.dtype not in WIDE:
            return weight
        with _disable_current_modes():
            if weight.shape not in self.scratch:
                self.scratch[weight.shape] = torch.empty(weight.shape, dtype=torch.float64)
            return self.scratch[weight.shape].copy_(weight.detach())


class _SingleAttributes(TorchDispatchMode):
    """Numbers of operators whose ONNX attributes are float32 are rounded so: epsilons, slopes."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(part in str(func) for part in ("norm", "elu")):
            args, kwargs = _mapped(_as_single, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _as_single(value: Any) -> Any:
    is_small = isinstance(value, float) and abs(value) < np.finfo(np.float32).max
    return float(np.float32(value)) if is_small else value


def _as_onnx_holds_it(module: torch.nn.Module) -> Any:
    """For a module of float64, whose rounding would show nothing: its numbers as attributes."""
    is_wide = any(p.dtype == torch.float64 for p in module.parameters())
    return _SingleAttributes() if is_wide else contextlib.nullcontext()


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Inside, torch computes in float64; weights are widened one at a time, where they are read."""
    with _double_by_default(), _WideFunctions(), _WideOperators():
        yield


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in WIDE:
        return value.double()
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The leaves of arguments, changed; torch's own function for this is slow for plain ones."""
    if type(value) in (tuple, list):
        return type(value)([_mapped(change, part) for part in value])
    if type(value) is dict:
        return {key: _mapped(change, part) for key, part in value.items()}
    if value is None or isinstance(value, (torch.Tensor, int, float, str)):
        return change(value)
    return pytree.tree_map(change, value)


class ModuleSource(Subject):
    """The module as a subject of `verify`, called as the user calls it, in evaluation mode."""

    lenient = True
    engine = "torch"

    def __init__(self, source: Source, names: Mapping[str, str], outputs: Sequence[str]):
        super().__init__(type(source.module).__name__)
        self.source, self.names, self.outputs = source, dict(names), list(outputs)
        self.version = torch.__version__
        self._last: tuple[list[Any], dict[str, Any]] | None = None

    def __call__(self, feeds: Mapping[str, Any], run: str = "") -> dict[str, Any]:
        arrays = list(feeds.values())
        if not self._is_last(arrays):  # it is the baseline and a subject
            self._last = arrays, self._run(feeds, contextlib.nullcontext())
        assert self._last is not None
        return self._last[1]

    def _is_last(self, arrays: Sequence[Any]) -> bool:
        """Whether these are the very arrays of the last call, which are kept for this."""
        before = [] if self._last is None else self._last[0]
        return len(before) == len(arrays) and all(a is b for a, b in zip(before, arrays))

    def twice(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The outputs of two calls, between which nothing is put back."""
        first, second = self._runs(feeds, contextlib.nullcontext(), calls=2)
        self._last = list(feeds.values()), first
        return first, second

    def exact(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        return functools.partial(self._run, mode=None)

    def nudged(self, seed: int) -> Subject:
        module = nudged_copy(self.source.module, seed)
        source = Source(module, self.source.call, self.source.loss, self.source.labels)
        return ModuleSource(source, self.names, self.outputs)

    def _run(self, feeds: Mapping[str, Any], mode: Any) -> dict[str, Any]:
        if mode is not None:
            return self._runs(feeds, mode, calls=1)[0]
        with reported(f"{self.name} in float64"):  # not every kernel of torch has one
            return self._runs(feeds, mode, calls=1)[0]

    def _runs(self, feeds: Mapping[str, Any], mode: Any, calls: int) -> list[dict[str, Any]]:
        values = {self.names.get(n, n): torch_tensor(v) for n, v in feeds.items()}
        with evaluation_mode(self.source.module), plain_branches(), torch.no_grad(), quiet():
            if mode is not None:
                with _as_onnx_holds_it(self.source.module):
                    results = [self._arrays(self._outputs(values)) for _ in range(calls)]
            else:
                with exactly():
                    wide = {n: _widened(v) for n, v in values.items()}
                    results = [self._arrays(self._outputs(wide))]
        return results

    def _arrays(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        renamed = {v: k for k, v in self.names.items()}
        arrays = {renamed.get(n, n): array_of(v) for n, v in outputs.items()}
        if set(arrays) != set(self.outputs) and len(arrays) == len(self.outputs):
            return dict(zip(self.outputs, arrays.values(), strict=True))  # (loss, …) or (None, …)
        return arrays

    def _outputs(self, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """What the module returns, without labels unless it computes its outputs from them."""
        if any(name in values for name in self.source.label_tensors()):
            return self.source.run(self.source.module, values)[0]
        call = self.source.call.with_tensors(values)
        return outputs_by_name(call(self.source.module))


@contextlib.contextmanager
def _double_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(before)


def compare_outputs(
    model: Model,
    source: Source,
    names: Mapping[str, str],
    sets: Sequence[Mapping[str, Any]],
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> Report:
    """Hold the outputs of the model against those of the module; a difference is an error.

    others -- arrays of sizes that torch's exporter has not considered, by words for them
    """
    inputs = {v.name for v in model.inputs}
    feeds = [{n: a for n, a in s.items() if n in inputs} for s in sets]
    subject = ModuleSource(source, names, [v.name or "" for v in model.outputs])
    first = _require_repeatable(subject, feeds[0])
    feeds = [feeds[0], *(f for f in feeds[1:] if _runs(subject, f))]
    others = {w: {n: a for n, a in s.items() if n in inputs} for w, s in (others or {}).items()}
    others = {w: f for w, f in others.items() if _runs(subject, f, first)}
    report = verify(subject, model, inputs=[*feeds, *others.values()], seconds=SECONDS)
    if report.verdict in (DIFFERENT, FAILS) and others:
        _refuse_sizes(subject, model, feeds, others)
    if report.verdict == FAILS:
        raise ImportDiffers(
            f"the imported model of {quote(type(source.module).__name__)} does not run",
            [[line] for line in str(report).splitlines()],
            hint="onnxruntime has few kernels for float64 and 16-bit floats: module.float()",
        )
    if report.verdict == DIFFERENT:
        raise ImportDiffers(
            f"the imported model gives other numbers than {quote(type(source.module).__name__)}",
            [[line] for line in str(report).splitlines()],
            hint="verify=False returns the model all the same; please report it",
        )
    return report


def _require_repeatable(subject: ModuleSource, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of the module, which must be the same whenever it is called."""
    try:
        first, second = subject.twice(feeds)
    except Exception as error:
        raise refusal("the module does not run on its example", error) from error
    rows = [[f"output {quote(n)}"] for n in first if not _alike(first[n], second[n])]
    if rows:
        raise ImportRefused(
            "the module gives other numbers each time that it is called, in evaluation mode too",
            rows,
            hint="random numbers of Python or NumPy, and what the module counts, have no place in "
            "a graph: pass them as inputs",
        )
    return first


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are the same but for rounding."""
    if a.shape != b.shape or a.dtype.kind in "biu" or not a.size:
        return np.array_equal(a, b)
    wide = a.astype(np.float64), b.astype(np.float64)
    size = np.max(np.abs(np.nan_to_num(wide[0], posinf=0, neginf=0)))
    return np.allclose(*wide, rtol=0, atol=APART * size, equal_nan=True)


def _runs(subject: ModuleSource, feeds: Mapping[str, Any], like: Any = None) -> bool:
    """Whether the module itself takes these arrays; `like`: and has outputs of the same ranks."""
    try:
        outputs = subject(feeds)
    except Exception:  # the user's own code, on arrays that the user has not given
        return False
    return like is None or all(outputs[n].ndim == a.ndim for n, a in like.items())


def _refuse_sizes(
    subject: ModuleSource, model: Model, sets: Sequence[Any], others: Mapping[str, Any]
) -> None:
    """Refuse a network that computes something else for some sizes, if it is right for others."""
    if verify(subject, model, inputs=list(sets), seconds=SECONDS).verdict in (DIFFERENT, FAILS):
        return
    reports = {w: verify(subject, model, inputs=[f], seconds=SECONDS) for w, f in others.items()}
    rows = [[w, r.verdict] for w, r in reports.items() if r.verdict in (DIFFERENT, FAILS)]
    raise ImportRefused(
        "the network computes something else where a free size is another one",
        rows,
        hint="a branch on a size has one side in a graph: pass dynamic=None, or leave out this "
        "axis in torch's dynamic_shapes",
    )


# -- training ---------------------------------------------------------------------------


@dataclass
class Trainer:
    """Everything that takes part in a training step in torch."""

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    loss: Any
    clip_norm: float | None = None
    clip_value: float | None = None

    def copied(self, wide: bool) -> Trainer:
        """An independent copy, in float64 where `wide`."""
        parts = (self.module, self.optimizer, self.scheduler, self.loss)
        module, optimizer, scheduler, loss = copied(parts)
        if not module.training:
            module.train()
        if wide:
            module.double()
            if isinstance(loss, torch.nn.Module):
                loss.double()
            for state in optimizer.state.values():
                state.update({k: _widened(v) if k != "step" else v for k, v in state.items()})
        return Trainer(module, optimizer, scheduler, loss, self.clip_norm, self.clip_value)

    def nudged(self, seed: int) -> tuple[Trainer, dict[str, np.ndarray]]:
        """A copy whose parameters are moved by a few roundings, and by how much they are."""
        trainer = self.copied(wide=False)
        generator = torch.Generator().manual_seed(seed)
        offsets = {}
        with torch.no_grad():
            for name, parameter in trainer.module.named_parameters():
                if parameter.is_floating_point():
                    before = parameter.double()
                    noise = torch.randn(parameter.shape, generator=generator)
                    size = NUDGE * torch.finfo(parameter.dtype).eps
                    parameter.mul_(1.0 + size * noise.to(parameter.dtype))
                    offsets[name] = (parameter.double() - before).numpy()
        return trainer, offsets


def torch_steps(
    source: Source,
    trainer: Trainer,
    batches: Sequence[Mapping[str, Any]],
    masks: Masks,
    every: int = 1,
    seed: int = 0,
    wide: bool = False,
) -> dict[str, np.ndarray]:
    """The parameters and buffers after a training step on each batch.

    seed -- of torch's generator, for what draws random numbers beside dropout
    wide -- whether everything is computed in float64, whatever type the module asks for; if not, a
            module of float64 computes with the numbers that attributes of ONNX hold
    """
    with torch.random.fork_rng(devices=[]), plain_branches():
        torch.manual_seed(seed)
        return _torch_steps(source, trainer, batches, masks, every, wide)


def _torch_steps(
    source: Source,
    trainer: Trainer,
    batches: Sequence[Mapping[str, Any]],
    masks: Masks,
    every: int,
    wide: bool,
) -> dict[str, np.ndarray]:
    run = Source(trainer.module, source.call, trainer.loss, source.labels)
    mode = contextlib.nullcontext() if wide else _as_onnx_holds_it(trainer.module)
    trainer.optimizer.zero_grad()
    with _double_by_default() if wide else contextlib.nullcontext():
        for count, batch in enumerate(batches):
            values = {n: torch_tensor(a) for n, a in batch.items()}
            values = {n: _widened(v) if wide else v for n, v in values.items()}
            with masks, mode:
                with _WideFunctions() if wide else contextlib.nullcontext():
                    _, loss = run.run(trainer.module, values)
                assert loss is not None
                (loss / every).backward()
            masks.next_step()
            if (count + 1) % every == 0:
                _update(trainer)
    named = {**dict(trainer.module.named_parameters()), **dict(trainer.module.named_buffers())}
    return {n: array_of(v) for n, v in named.items()}


def _update(trainer: Trainer) -> None:
    parameters = [p for g in trainer.optimizer.param_groups for p in g["params"]]
    if trainer.clip_value is not None:
        torch.nn.utils.clip_grad_value_(parameters, trainer.clip_value)
    if trainer.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, trainer.clip_norm)
    with quiet():
        trainer.optimizer.step()
        if trainer.scheduler is not None:
            trainer.scheduler.step()
    trainer.optimizer.zero_grad()


def _unread_masks(
    source: Source, trainer: Trainer, batch: Mapping[str, Any], count: int
) -> frozenset[int]:
    copy = trainer.copied(wide=False)
    run = Source(copy.module, source.call, copy.loss, source.labels)
    values = {n: torch_tensor(a) for n, a in batch.items()}

    def results() -> list[torch.Tensor]:
        outputs, loss = run.run(copy.module, {n: _cloned(v) for n, v in values.items()})
        return [v.clone() for v in (*outputs.values(), loss) if v is not None]

    with plain_branches(), quiet():
        return unread_masks(results, count)


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


@contextlib.contextmanager
def _runs_in_float64() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the user's own code, in a type that it may not know
        raise refusal(
            "the module does not train in float64, which its training is compared with",
            error,
            hint="verify=False returns the record without this comparison",
        ) from error


def _judged(
    ours: Mapping[str, Any], exact: Mapping[str, Any], baselines: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, float], list[list[str]]]:
    """The noise ratio of every tensor, and rows about those that differ."""
    ratios, rows = {}, []
    for name in [n for n in ours if n in exact]:
        others = [b[name] for b in baselines]
        result = measure(("record", name, ""), ours[name], exact[name], others)
        ratios[name] = result.ratio
        if result.verdict(GRADIENT_BANDS) not in (SAME, "look"):
            rows.append([quote(name), f"{result.ratio:.3g} x rounding {result.problem}".strip()])
    return ratios, rows


def _left_alone(
    ours: Mapping[str, Any], exact: Mapping[str, Any], module: torch.nn.Module
) -> list[list[str]]:
    """Rows about parameters that torch changes and the record does not have."""
    others = {n: p for n, p in module.named_parameters() if n in exact and n not in ours}
    return [
        [quote(name), "torch trains it, and the record does not"]
        for name, parameter in others.items()
        if not np.array_equal(exact[name], array_of(parameter.double()), equal_nan=True)
    ]


def compare_steps(
    model: Model,
    source: Source,
    trainer: Trainer,
    sets: Sequence[Mapping[str, Any]],
    every: int = 1,
    names: Mapping[str, str] | None = None,
    steps: int | None = None,
    draws: bool = False,
    uniform: bool = False,
) -> dict[str, float]:
    """Noise ratios of parameters and statistics after some updates; a difference is an error.

    names -- what the model calls the arguments of the module, where it is something else
    draws -- whether the module draws more random numbers in training mode than the model
    uniform -- whether some of its masks are uniform numbers, which it rounds
    """
    names, steps = names or {}, steps or STEPS
    batches = [sets[i % len(sets)] for i in range(steps * every)]
    rep = prepare_training(model)
    start = int(rep.state()["train/step"]) if "train/step" in rep.variables else 0
    seed = int(rep.state().get("train/seed", 0))
    inputs = {v.name for v in rep.step_inputs}
    for batch in batches:
        feeds = {names.get(n, n): a for n, a in batch.items()}
        rep.step({n: a for n, a in feeds.items() if n in inputs})
    ours, sites = rep.state(), sites_of(model)
    shares = ratios_of(model) if uniform else {}
    unread = _unread_masks(source, trainer, batches[0], len(sites)) if draws else ()

    def taken(trainer: Trainer, wide: bool = False, seed_of_draws: int = 0) -> dict[str, Any]:
        masks = Masks(sites, seed, start, shares, unread)
        return torch_steps(source, trainer, batches, masks, every, seed_of_draws, wide)

    plain = taken(trainer.copied(False))
    with _runs_in_float64():
        exact = taken(trainer.copied(True), wide=True)
    if draws or not all(_alike(exact[n], plain[n]) for n in plain):
        # two runs with other draws, or other counts of calls, would pass for rounding
        other = taken(trainer.copied(False), seed_of_draws=int(draws))
        if any(not np.array_equal(plain[n], other[n], equal_nan=True) for n in plain):
            raise ImportDiffers(
                "no two trainings of the module in torch are the same",
                hint="random numbers, and what the module or the loss counts in Python, have no "
                "place in a record: pass them as inputs",
            )
    ratios, rows = _judged(ours, exact, [plain])
    if max(ratios.values(), default=0.0) > BANDS[0] or rows:
        # NOTE [kinks]: where an activation is zero but for rounding, relu and max pooling pass a
        # gradient on or do not. One run shows one choice: more runs show what rounding may do.
        nearby = []
        for number in range(MORE_NUDGES):
            if number >= NUDGES and (not rows or max(ratios.values()) > SUSPICIOUS):
                break
            nudged, offsets = trainer.nudged(number)
            values = taken(nudged)
            nearby.append({n: v - offsets[n] if n in offsets else v for n, v in values.items()})
            ratios, rows = _judged(ours, exact, [plain, *nearby])
    rows += _left_alone(ours, exact, trainer.module)
    if rows:
        raise ImportDiffers(
            f"{len(rows)} of {len(exact)} tensors differ from torch's after {steps} updates",
            rows,
            hint="hooks, what Python counts, and what only training mode does (a branch on "
            "self.training) have no place in a record; verify=False returns the model all the "
            "same; please report it",
        )
    return ratios

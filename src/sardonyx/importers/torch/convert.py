"""`from_torch`: a torch module, its loss, its optimizer and its state as one ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from sardonyx.collector import paused
from sardonyx.edit.merged import IMPORTED
from sardonyx.errors import ArgumentError, ImportDiffers, ImportRefused, quote
from sardonyx.grad.driver import path
from sardonyx.importers.torch.capture import captured
from sardonyx.importers.torch.compare import Trainer, compare_outputs, compare_steps
from sardonyx.importers.torch.data import data_sets, other_sizes
from sardonyx.importers.torch.doubts import doubts_of
from sardonyx.importers.torch.files import own_example, read_module
from sardonyx.importers.torch.leaves import Call, as_tensor, rebuilt
from sardonyx.importers.torch.losses import example_labels
from sardonyx.importers.torch.masks import dropouts
from sardonyx.importers.torch.observe import Observation, observe
from sardonyx.importers.torch.operators import mark_attention
from sardonyx.importers.torch.optimizers import Reading, read_optimizer
from sardonyx.importers.torch.refuse import (
    SWITCHES,
    TORCH_OPTIMIZER,
    parameters_of,
    refuse_arguments,
    refuse_changes,
    refuse_rescaled,
)
from sardonyx.importers.torch.schedulers import ReduceLROnPlateau, read_scheduler
from sardonyx.importers.torch.source import LOSS, Source
from sardonyx.importers.torch.split import Split, split
from sardonyx.importers.torch.translate import scopes_of, translated
from sardonyx.model import Model
from sardonyx.record import loss as losses
from sardonyx.record.builder import STEP
from sardonyx.record.describe import describe, descriptions
from sardonyx.record.trainable import refuse_unknown, trainable

LARGE = 64 * 2**20  # bytes of weights: one comparison then has to do, with one row more


def from_torch(
    module: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    labels: Any = None,
    dynamic: Any = "batch",
    names: Mapping[str, str] | None = None,
    verify: bool = True,
    trust: bool = False,
    **training: Any,
) -> Model:
    """A torch module as an ONNX model; with its loss, as one that trains on where torch stopped.

    The served graph is that of evaluation mode; the record is that of training mode. The result is
    compared with the module before it is returned: outputs, and two training steps.

    module    -- an `nn.Module`, an exported program or a TorchScript module, or the file of one
                 (.pt2, .pt); a pickled module only where the file is trusted
    args      -- example arguments: a tensor, a tuple of them, or a dict of keyword arguments; an
                 exported program has its own
    kwargs    -- keyword arguments
    loss      -- a module or function of (outputs, labels) in torch; a name or a `sx.loss.…`
    labels    -- example labels of `loss`; without `loss`, what the module takes to return its
                 loss itself, as those of Hugging Face do
    optimizer -- the `torch.optim` object, whose groups, settings and state are taken over; a name
                 or a `sx.optim.…`
    scheduler -- of this optimizer, taken over at its present position
    dynamic   -- which sizes are free: "batch", "all", or torch's `dynamic_shapes`
    names     -- other names for inputs, outputs and labels
    verify    -- compare the result with the module
    trust     -- unpickle files, which runs code that they contain
    training  -- what `trainable` takes: clip_norm, accumulate, ema, seed, …

    >>> import torch, sardonyx as sx
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> model = sx.from_torch(net, torch.randn(2, 4))
    >>> [value.name for value in model.inputs + model.outputs]
    ['input', 'output']
    """
    refuse_unknown(training, "from_torch")
    module = read_module(module, trust)
    if args is None and not kwargs:
        args, kwargs = own_example(module)
    source = _source(module, args, kwargs, loss, labels)
    wants_record = source.labels is not None or loss is not None
    refuse_arguments(source, wants_record, optimizer, scheduler, training)
    with paused():
        observation = observe(source) if wants_record else Observation()
        refuse_rescaled(observation.rescaled)
        program = captured(source, dynamic, observation.depth)
        doubts = doubts_of(program.exported)
        if not verify:
            doubts.refuse()
        unmatched = mark_attention(program.exported, observation.attention)
        whole = translated(program, module, source)
    label_names = list(source.label_tensors())
    parts = split(whole, program.outputs[-1], label_names) if source.labels is not None else None
    served = parts.served if parts is not None else whole
    renamed = _rename(served, parts, names or {})
    sets = [_named(s, renamed) for s in data_sets(source, program.free)]
    sources = {new: old for old, new in renamed.items()}
    served.metadata[IMPORTED] = f"torch {torch.__version__}"
    if verify:
        size = sum(p.numel() * p.element_size() for p in module.parameters())
        others = other_sizes(program, data_sets(source, {})[0], one=size <= LARGE)
        others = {words: _named(s, renamed) for words, s in others.items()}
        few = sets[-1:] if size > LARGE else sets
        try:
            with paused():
                report = compare_outputs(served, source, sources, few, others)
        except ImportDiffers as error:
            doubts.refuse(error)
            raise
        served.metadata[IMPORTED] += f", {report.verdict}"
    if not wants_record:
        return served
    refuse_changes(module, served, observation.changes)
    net, reading = _with_record(served, parts, source, loss, optimizer, scheduler, training)
    _say(net, reading, observation, unmatched)
    if verify and parts is not None and isinstance(optimizer, TORCH_OPTIMIZER):
        stepped = None if isinstance(scheduler, ReduceLROnPlateau) else scheduler
        trainer = Trainer(
            module, optimizer, stepped, source.loss,
            training.get("clip_norm"), training.get("clip_value"),
        )  # fmt: skip
        every = int(training.get("accumulate", 1))
        named_sets = [_named(s, sources) for s in sets]
        draws = len(observation.draws) > sum(n.op_type == "Dropout" for n in net.graph)
        try:
            uniform = any(how.uniform for how in observation.depth.values())
            ratios = compare_steps(
                net, source, trainer, named_sets, every, renamed, draws=draws, uniform=uniform
            )
        except ImportDiffers as error:
            _explain(net, observation, error)
            raise
        net.metadata[IMPORTED] += f", training {max(ratios.values(), default=0.0):.2f} x rounding"
    return net


def _named(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(n, n): v for n, v in values.items()}


# -- arguments --------------------------------------------------------------------------


def _source(module: torch.nn.Module, args: Any, kwargs: Any, loss: Any, labels: Any) -> Source:
    call = Call.of(module, args, kwargs)
    if loss is not None and not callable(loss):
        return Source(module, call)
    if isinstance(loss, losses.Loss):
        return Source(module, call)
    source = Source(module, call, loss, _as_tensors(labels))
    if loss is not None and labels is None:
        source.labels = example_labels(source)
    return source


def _as_tensors(labels: Any) -> Any:
    labels = tuple(labels) if isinstance(labels, list) else labels
    return rebuilt(labels, "", lambda _, leaf: as_tensor(leaf))


def _explain(net: Model, observation: Observation, error: ImportDiffers) -> None:
    """Explain a difference: gradients of the user's own, or random draws that the graph lacks."""
    if observation.functions:
        raise ImportRefused(
            "the module has gradients of its own, which are not those of what it computes",
            [[quote(name), "torch.autograd.Function"] for name in set(observation.functions)],
            hint="write a changed gradient as x + (y - x).detach(), which is taken over",
        ) from error
    if len(observation.draws) <= sum(n.op_type == "Dropout" for n in net.graph):
        return
    rows = [[draw.operator, str(list(draw.shape)), draw.line] for draw in observation.draws]
    rows = [row for row in rows if "dropout" not in row[2]] or rows
    raise ImportRefused(
        "the module draws random numbers in training mode that a record does not draw",
        [list(row) for row in dict.fromkeys(map(tuple, rows))],
        hint="switch them off, e.g. drop_path_rate=0 or layerdrop=0; with verify=False the record "
        "trains without",
    ) from error


def _rename(served: Model, parts: Split | None, names: Mapping[str, str]) -> dict[str, str]:
    """Rename inputs, outputs and labels; the names of before and after."""
    values = {v.name: v for v in (*served.inputs, *served.outputs)}
    loss_values = {v.name: v for v in parts.loss.inputs} if parts is not None else {}
    unknown = [[quote(n)] for n in names if n not in values and n not in loss_values]
    if unknown:
        listing = ", ".join(quote(n) for n in {**values, **loss_values})
        raise ArgumentError(
            "names are given for what is not there", unknown, f"there are {listing}"
        )
    for old, new in names.items():
        for table in (values, loss_values):
            if old in table:
                table[old].name = new
    if parts is not None:
        parts.reads = [names.get(n, n) for n in parts.reads]
    return dict(names)


# -- the record -------------------------------------------------------------------------


def _with_record(
    served: Model,
    parts: Split | None,
    source: Source,
    loss: Any,
    optimizer: Any,
    scheduler: Any,
    training: Mapping[str, Any],
) -> tuple[Model, Reading | None]:
    parameters = parameters_of(source)
    term: Any = loss
    prediction = training.get("prediction")
    if parts is not None:
        title = getattr(loss, "__name__", type(loss).__name__) if loss is not None else LOSS
        term = losses.graph(parts.loss, name=title, reads=parts.reads[1:])
        prediction = parts.reads[0]
    reached = _reached(served, parts, parameters)
    settings: dict[str, Any] = {
        "train": [n for n in reached if parameters[n].requires_grad],
        **_modes(source.module, served),
        **training,
        "prediction": prediction,
    }
    reading = None
    if isinstance(optimizer, TORCH_OPTIMIZER):
        timetable = read_scheduler(optimizer, scheduler)
        reading = read_optimizer(optimizer, parameters, reached, timetable)
        optimizer = reading.optimizer
        settings |= {"train": reading.names, "groups": reading.groups or None}
    net = trainable(served, term, optimizer, **settings)
    if reading is not None:
        _put_state(net, reading, int(training.get("accumulate", 1)))
    return net, reading


def _reached(served: Model, parts: Split | None, parameters: Mapping[str, Any]) -> list[str]:
    """The parameters that gradients of the loss arrive at, tied ones once.

    Torch has no gradients for the others, and leaves them alone.
    """
    initializers = served.graph.initializers
    if parts is None:
        return [n for n in parameters if n in initializers and initializers[n].uses()]
    values = {v.name: v for n in served.graph for v in n.outputs}
    values |= {v.name: v for v in initializers.values()}
    graph = parts.loss.graph
    _, of_loss = path(list(graph), graph.inputs, graph.outputs, ())
    pairs = zip(graph.inputs, parts.reads, strict=False)  # labels come after what is read
    ends = [values[name] for value, name in pairs if value in of_loss and name in values]
    trained = [initializers[n] for n in parameters if n in initializers]
    _, reached = path(list(served.graph), trained, ends, ())
    return [v.name or "" for v in trained if v in reached]


def _modes(module: torch.nn.Module, served: Model) -> dict[str, Any]:
    """Layers that the user keeps in evaluation mode while the module trains stay so."""
    frozen = list(getattr(module, "fixed_statistics", ()))
    if module.training:
        parts = [n for n, m in module.named_modules() if isinstance(m, SWITCHES) and not m.training]
        frozen += [f"{n}.running_mean" for n in parts]
    norms = [n for n in served.graph if n.op_type == "BatchNormalization"]
    means = {v.name for n in norms for v in n.inputs if v is not None}
    patterns = {n: "frozen" for n in frozen if n in means}
    modes = {"batch_norm": {**patterns, "*": "train"}} if patterns else {}
    off = {n.name or "": "frozen" for n in dropouts(served) if not _trains(module, n)}
    return modes | ({"dropout": {**off, "*": "train"}} if off else {})


def _trains(module: torch.nn.Module, node: ir.Node) -> bool:
    """Whether the part of a module that a node is from is in the module's own mode."""
    *_, path, _ = ["", "", *scopes_of(node)]
    try:
        return module.get_submodule(path.partition("@")[0]).training or not module.training
    except AttributeError:  # a scope is no part of the module where torch has named it otherwise
        return True


def _put_state(net: Model, reading: Reading, every: int) -> None:
    """The optimizer's state in the place of the record's own start."""
    record = net.records[-1]
    missing = [[quote(n)] for n in reading.slots if n not in record.state]
    if missing:
        raise ArgumentError("state of the optimizer has no place in the record", missing)
    for name, array in reading.slots.items():
        record.state[name] = ir.Tensor(array, name=name, shape=ir.Shape(array.shape))
    if STEP in record.state:
        count = np.asarray(reading.done * every, np.int64)
        record.state[STEP] = ir.Tensor(count, name=STEP, shape=ir.Shape(()))


def _say(
    net: Model, reading: Reading | None, observation: Observation, unmatched: Sequence[float]
) -> None:
    """Add what was taken over, and what was not, to the choices of the record."""
    rows = [list(note) for note in reading.notes] if reading is not None else []
    count = sum(n.op_type == "Dropout" for n in net.graph)
    if observation.problem:
        why = "so it is not known what it does there only"
        rows.append(["note", f"it does not run in training mode: {observation.problem}", why])
    elif len(observation.draws) > count:
        more = len(observation.draws) - count
        kinds = ", ".join(sorted({draw.operator for draw in observation.draws}))
        value = f"{more} random draws of training mode ({kinds})"
        why = "the graph is that of evaluation mode: stochastic depth and the like are off"
        rows.append(["not taken over", value, why])
    if observation.functions:
        names = ", ".join(quote(n) for n in sorted(set(observation.functions)))
        why = "its gradient is that of what it computes, which the comparison of steps confirms"
        rows.append(["note", f"torch.autograd.Function {names}", why])
    if unmatched:
        value = f"dropout of attention ({', '.join(f'{r:g}' for r in sorted(set(unmatched)))})"
        rows.append(["not taken over", value, "the graph has other calls of attention"])
    (description,) = descriptions(net)[-1:]
    if rows and description:
        description["choices"] = [*description["choices"], *rows]
        describe(net, description)

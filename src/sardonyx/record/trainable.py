"""`trainable`: an inference model in, the same model with its training record out.

What a person must give is the minimum; every default is chosen here, with its reason, and can be
changed. The record is written in the symbolic form (`Gradient` and the rest), or expanded to plain
operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Never

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.edit import surgery
from sardonyx.errors import ArgumentError, did_you_mean, quote
from sardonyx.grad.driver import is_differentiable
from sardonyx.initializer import Initializer
from sardonyx.model import Model, load
from sardonyx.normalize import NormalizedModel, regular_copy
from sardonyx.opset import TRAINING_DOMAIN
from sardonyx.passes.activation import ACTIVATIONS, final_activation
from sardonyx.record import info, optim
from sardonyx.record import loss as losses
from sardonyx.record.bounds import check_numbers
from sardonyx.record.builder import ROLE, SEED, RecordBuilder
from sardonyx.record.config import RENAMED, with_config
from sardonyx.record.describe import Choices, as_table, describe
from sardonyx.record.expand import expand_records, upgrade_record
from sardonyx.record.initialize import write_initialization
from sardonyx.record.merged import separate_merged
from sardonyx.record.modes import Mode, serve_in_inference_mode, training_forward
from sardonyx.record.notes import add_notes
from sardonyx.weights import weights

LossLike = str | Path | losses.Loss | Callable[..., ir.Value] | Mapping[str, Any] | onnx.ModelProto
Term = losses.Term


def trainable(
    model: Model | str | Path,
    loss: LossLike | Sequence[Term] | None = None,
    optimizer: str | optim.Optimizer | None = None,
    train: str | Sequence[str] | None = None,
    *,
    lr: float | None = None,
    freeze: str | Sequence[str] = (),
    prediction: str | None = None,
    labels: Sequence[str] | None = None,
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    batch_norm: Mode = "train",
    dropout: Mode = "train",
    clip_norm: float | None = None,
    clip_value: float | None = None,
    l1: float = 0.0,
    l2: float = 0.0,
    accumulate: int = 1,
    ema: float | None = None,
    initialize: Mapping[str, str | Initializer] | None = None,
    seed: int = 0,
    form: str = "symbolic",
    name: str = "train",
    config: str | Path | None = None,
    **unknown: Never,
) -> Model:
    """Add a training record to a model; the file still serves inference as before.

    loss        -- a name ("cross_entropy", "mse", …), a `sx.loss.…` object, a function of
                   `(op, prediction, label)`, an ONNX model, function or file of such a graph, or
                   several `Term`s; guessed where the model shows it
    optimizer   -- a name or a `sx.optim.…` object; AdamW if not given
    lr          -- its learning rate, where the optimizer is not an object that has one
    train       -- patterns of the parameters to train ("head.*"); all weights if not given
    freeze      -- patterns of parameters that stay as they are
    prediction  -- the tensor that the loss compares with the label; the first output if not given
    labels      -- names for the label inputs
    groups      -- settings by pattern: {"head.*": {"lr": 1e-2}, "*.bias": {"weight_decay": 0}}
    batch_norm, dropout -- "train" or "frozen", or by pattern of the node's name
    clip_norm, clip_value, l1, l2, accumulate, ema -- as they say
    initialize  -- starting values by pattern, for `initialize()`: {"head.*": "kaiming"}
    form        -- "symbolic" (Gradient and optimizer operators) or "expanded" (plain operators)
    config      -- a TOML or YAML file with any of these; arguments given here come before it

    >>> import sardonyx as sx
    >>> net = sx.trainable("model.onnx", loss="cross_entropy", optimizer=sx.optim.adamw(1e-3))
    >>> len(net.records)
    1
    """
    asked = {k: v for k, v in locals().items() if k not in ("model", "config", "unknown")}
    refuse_unknown(unknown, "trainable")
    if config is not None:
        return trainable(model, **with_config(config, trainable, asked))
    if form not in ("symbolic", "expanded"):
        raise ArgumentError(f"form is symbolic or expanded, not {form!r}")
    check_numbers(asked, "the record")
    base = _base(load(model))
    choices = Choices()
    if not base.records:
        separate_merged(base, choices)
        serve_in_inference_mode(base, choices)
    builder = RecordBuilder.on(base, name)
    parameters = choose_parameters(base, train, freeze, choices)
    add_notes(base, parameters, choices)
    values, switched = training_forward(builder, batch_norm, dropout)
    for node, mode in switched:
        choices.add(
            node.op_type,
            f"{quote(node.name)} {mode}",
            "running statistics and masks while training",
        )
    terms = _terms(base, loss, prediction, labels, choices)
    total, loss_terms = _losses(builder, values, terms, choices)
    total = _penalties(builder, total, parameters, l1, l2)
    total = builder.output(builder.local("loss"), total)
    builder.roles[builder.local("loss")] = "loss"
    gradients = _gradient(builder, total, parameters)
    chosen = _optimizer(optimizer, lr, accumulate, choices)
    _update(builder, chosen, parameters, gradients, groups, clip_norm, clip_value, ema)
    builder.seed()
    builder.slots[builder.local(SEED)].start = np.asarray(seed, np.int64)
    record = builder.record()
    write_initialization(record, base, builder, initialize or {})
    base.records.append(record)
    base.ir.opset_imports[TRAINING_DOMAIN] = 1
    for tensor, role in builder.roles.items():
        base.metadata[f"{ROLE}{tensor}"] = role
    described: dict[str, Any] = {
        "name": builder.name,
        "loss_terms": loss_terms,
        "forward": {v.name: t.name for v, t in values.items()},
        "choices": [[c.what, c.value, c.why] for c in choices.rows],
        "arguments": as_table(terms, chosen, _rest(asked)),
    }
    describe(base, described)
    info.check(base)
    return expand_records(base) if form == "expanded" else base


def refuse_unknown(names: Iterable[str], function: str) -> None:
    """An error that names every argument which `trainable` does not have."""
    arguments = [
        n for n in inspect.signature(trainable).parameters if n not in ("model", "unknown")
    ]
    rows = [
        [quote(name), RENAMED.get(name) or did_you_mean(name, arguments)]
        for name in names
        if name not in arguments
    ]
    if rows:
        count = f"{len(rows)} argument{'s' * (len(rows) > 1)}"
        raise ArgumentError(f"{function} got {count} that it does not have", rows)


def _rest(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not defaults; loss and optimizer are kept as what became of them."""
    defaults = {n: p.default for n, p in inspect.signature(trainable).parameters.items()}
    told = {k: v for k, v in asked.items() if k not in ("loss", "optimizer", "lr")}
    return {k: v for k, v in told.items() if v is not defaults[k] and v != defaults[k]}


def _base(model: Model) -> NormalizedModel:
    base = NormalizedModel.of(regular_copy(model))
    base.metadata.update(model.metadata)
    if base.records and model.opset != base.opset:
        base.records = [upgrade_record(model, record) for record in model.records]
    if any(v.domain == TRAINING_DOMAIN for v in base.graph):
        raise ArgumentError("the inference graph itself contains training operators")
    return base


# -- parameters ---------------------------------------------------------------------


def _patterns(given: str | Sequence[str] | None) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


def choose_parameters(
    model: Model, train: str | Sequence[str] | None, freeze: str | Sequence[str], choices: Choices
) -> list[ir.Value]:
    """The initializers to train: the model's weights, narrowed or widened by patterns."""
    wanted, frozen = _patterns(train), _patterns(freeze)
    initializers = model.graph.initializers
    floats = [n for n, v in initializers.items() if is_differentiable(v) and v.type is not None]
    known = {w.name: w for w in weights(model)}
    for pattern in (*wanted, *frozen):
        if not any(fnmatchcase(n, pattern) for n in floats):
            raise ArgumentError(
                f"no parameter matches {quote(pattern)}",
                [[quote(n)] for n in floats],
                hint="`sardonyx inspect` lists weights and constants",
            )
    if wanted:
        # The data moves statistics, not the loss: a pattern does not reach them, their name does.
        chosen = [
            n
            for n in floats
            if n in wanted or (matches(n, wanted) and known[n].kind != "statistic")
        ]
    else:
        marked = set(surgery.frozen(model))
        chosen = [n for n in floats if n in known and known[n].kind == "weight" and n not in marked]
    chosen = [n for n in chosen if not matches(n, frozen)]
    if not chosen:
        raise ArgumentError(
            "there is nothing to train in this model",
            hint="train=['pattern'] (--train pattern) names weights",
        )
    count = sum([initializers[n].const_value.size for n in chosen])  # type: ignore[misc, union-attr]
    why = "by pattern" if wanted or frozen else "float initializers that are weights by their use"
    choices.add("trained", f"{len(chosen)} of {len(floats)} float tensors, {count:,} numbers", why)
    return [initializers[n] for n in chosen]


# -- losses ---------------------------------------------------------------------------


def _terms(
    model: Model,
    loss: LossLike | Sequence[Term] | None,
    prediction: str | None,
    labels: Sequence[str] | None,
    choices: Choices,
) -> list[Term]:
    if isinstance(loss, Sequence) and not isinstance(loss, str):
        for term in loss:
            share = "" if term.weight == 1.0 else f" × {term.weight:g}"
            choices.add("loss", f"{term.loss.name}{share}", "as asked")
        alone = labels if len(loss) == 1 else None
        return [
            replace(t, prediction=t.prediction or prediction, labels=t.labels or alone)
            for t in loss
        ]
    if loss is None:
        value = _prediction(model, prediction)
        guessed, why = guess_loss(value)
        choices.add("loss", guessed, why)
        return [Term(losses.named(guessed, **_class_axis(guessed, value)), value.name, labels)]
    made = as_loss(loss)
    choices.add("loss", made.name, "as asked")
    return [Term(made, prediction, labels)]


def as_loss(given: LossLike) -> losses.Loss:
    """A loss out of a name, a mapping {"name": …, settings}, an ONNX graph or a function of
    `op`.
    """
    if isinstance(given, losses.Loss):
        return given
    if isinstance(given, (Path, onnx.ModelProto, onnx.FunctionProto, Model)) or (
        isinstance(given, str) and given.endswith(".onnx")
    ):
        return losses.graph(given)
    if isinstance(given, str):
        return losses.named(given)
    if isinstance(given, Mapping):
        settings = dict(given)
        return losses.named(settings.pop("name"), **settings)
    return losses.custom(given)


def _prediction(model: Model, name: str | None) -> ir.Value:
    floats = [v for v in model.outputs if is_differentiable(v)]
    if name is None:
        if not floats:
            raise ArgumentError("the model has no floating-point output to compare with a label")
        return floats[0]
    for value in (*model.outputs, *(v for n in model.graph for v in n.outputs)):
        if value.name == name:
            return value
    raise ArgumentError(
        f"the model has no tensor {quote(name)}",
        [[quote(v.name)] for v in model.outputs],
        hint="its outputs are these",
    )


def guess_loss(prediction: ir.Value) -> tuple[str, str]:
    """The loss that a model's last operator and shape suggest, and why."""
    last = final_activation(prediction)
    if last is not None:
        guessed = "binary_cross_entropy" if last.kind == "Sigmoid" else "cross_entropy"
        return guessed, f"the model ends with {last.words}"
    shape = prediction.shape
    if shape is not None and len(shape) == 2 and isinstance(shape[1], int):
        if shape[1] == 1:
            return "mse", "one column without activation: taken for a quantity"
        return "cross_entropy", f"{shape[1]} columns without activation: taken for class scores"
    raise ArgumentError(
        f"the loss cannot be guessed from {quote(prediction.name)} of shape {shape}",
        hint='name one: loss="mse" (--loss mse)',
    )


def _class_axis(guessed: str, prediction: ir.Value) -> dict[str, int]:
    """The axis of the classes, where the model's Softmax shows that it is not the second."""
    last = prediction.producer()
    if guessed != "cross_entropy" or last is None or last.op_type not in ACTIVATIONS:
        return {}
    count = rank(prediction)
    axis = last.attributes.get_int("axis", -1) % count
    return {"axis": axis} if axis != 1 else {}


def _losses(
    builder: RecordBuilder,
    values: Mapping[ir.Value, ir.Value],
    terms: Sequence[Term],
    choices: Choices,
) -> tuple[ir.Value, list[dict[str, Any]]]:
    """The total loss, and which tensor of the served graph meets which labels in each part of
    it.
    """
    op, parts, loss_terms = builder.op, [], []
    for index, term in enumerate(terms):
        served = _logits(_prediction(builder.model, term.prediction), term.loss, choices)
        prediction = values.get(served, served)
        names = term.labels or _label_names(
            builder.model, term.loss, index if len(terms) > 1 else None
        )
        if len(names) != len(term.loss.labels):
            raise ArgumentError(
                f"{term.loss.name} takes {len(term.loss.labels)} labels, not {len(names)}"
            )
        given = [
            builder.input(name, *label.of(prediction), role="label")
            for name, label in zip(names, term.loss.labels, strict=True)
        ]
        loss_terms.append(
            {
                "loss": term.loss.name,
                "settings": _plain(term.loss.settings),
                "prediction": served.name,
                "labels": list(names),
            }
        )
        for label in given:
            choices.add(
                "label",
                f"{quote(label.name)} {label.dtype} {label.shape}",
                f"what {term.loss.name} compares with {quote(prediction.name)}",
            )
        with op.named("train/loss"), op:
            part = _computed(term.loss, op, prediction, given)
            parts.append(part if term.weight == 1.0 else part * term.weight)
        if len(terms) > 1:
            parts[-1] = builder.output(builder.local(f"loss/{index}/{term.loss.name}"), parts[-1])
    return (parts[0] if len(parts) == 1 else op.Sum(*parts)), loss_terms


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if isinstance(v, (str, int, float, bool))}


def _computed(
    loss: losses.Loss, op: Builder, prediction: ir.Value, labels: Sequence[ir.Value]
) -> ir.Value:
    """The value of a loss, which may be a function of the user's."""
    try:
        inspect.signature(loss.compute).bind(op, prediction, *labels)
    except TypeError as error:
        wanted = ", ".join(["op", "prediction", *(v.name or "" for v in labels)])
        raise ArgumentError(
            f"the loss {loss.name} does not take ({wanted}): {error}",
            hint="sx.loss.custom(function, labels=[…]) says which labels a loss has",
        ) from error
    value = loss.compute(op, prediction, *labels)
    if not isinstance(value, ir.Value):
        raise ArgumentError(
            f"the loss {loss.name} gives {type(value).__name__}, not a tensor",
            hint="build it with op: op.ReduceMean(op.Abs(op.Sub(prediction, label)), keepdims=0)",
        )
    _scalar(value, loss.name)
    return value


def _scalar(value: ir.Value, name: str) -> None:
    if value.shape is not None and any(d != 1 for d in value.shape):
        raise ArgumentError(
            f"the loss {name} has the shape {value.shape}, not one number",
            hint="reduce it with op.ReduceMean(…, keepdims=0)",
        )


def _label_names(model: Model, loss: losses.Loss, index: int | None) -> list[str]:
    stems = list(loss.names) or ["label", "label_length", "label_2"][: len(loss.labels)]
    taken = {v.name for v in model.graph.inputs}
    tail = "" if index is None else f"_{index}"
    return [f"{s}{tail}" if f"{s}{tail}" not in taken else f"train/{s}{tail}" for s in stems]


def _logits(prediction: ir.Value, loss: losses.Loss, choices: Choices) -> ir.Value:
    """The tensor before a final Softmax or Sigmoid, where the loss wants that."""
    last = final_activation(prediction)
    if loss.logits and last is not None and last.kind == loss.logits:
        choices.add(
            "prediction",
            quote(last.logits.name),
            f"before the final {last.words}: {loss.name} applies it itself, without overflow",
        )
        return last.logits
    choices.add("prediction", quote(prediction.name), "the model's output")
    return prediction


def _penalties(
    builder: RecordBuilder, total: ir.Value, parameters: Sequence[ir.Value], l1: float, l2: float
) -> ir.Value:
    op = builder.op
    with op.named("train/penalty"), op:
        if l1:
            total = total + losses.l1_penalty(op, parameters, l1)
        if l2:
            total = total + losses.l2_penalty(op, parameters, l2)
    return total


# -- gradients and updates --------------------------------------------------------------


def _gradient(
    builder: RecordBuilder, total: ir.Value, parameters: Sequence[ir.Value]
) -> list[ir.Value]:
    op = builder.op
    with op.named("train"):
        found = op.call(
            "Gradient",
            list(parameters),
            {"xs": [p.name for p in parameters], "y": total.name},
            domain=TRAINING_DOMAIN,
            outputs=len(parameters),
        )
    for g, p in zip(found, parameters, strict=True):
        g.name = op.fresh(f"grad/{p.name}")
        g.type, g.shape = p.type, ir.Shape(p.shape)  # type: ignore[arg-type]
    return list(found)


def _optimizer(
    given: str | optim.Optimizer | None, lr: float | None, accumulate: int, choices: Choices
) -> optim.Optimizer:
    why = "as asked"
    if given is None:
        given, why = optim.adamw(), "a safe default for most networks"
    chosen = optim.named(given) if isinstance(given, str) else given
    if lr is not None:
        chosen = chosen.with_(lr=lr)
        why = why if why == "as asked" else f"{why}; lr as asked"
    if accumulate != 1:
        chosen = optim.accumulate(chosen, accumulate)
    shown = {k: getattr(v, "text", v) for k, v in chosen.settings.items() if v is not None}
    settings = ", ".join(
        f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in shown.items()
        if v is not False
    )
    choices.add("optimizer", f"{chosen.text} ({settings})" if settings else chosen.text, why)
    return chosen


def _update(
    builder: RecordBuilder,
    optimizer: optim.Optimizer,
    values: Sequence[ir.Value],
    gradients: Sequence[ir.Value],
    groups: Mapping[str, Mapping[str, Any]] | None,
    clip_norm: float | None,
    clip_value: float | None,
    ema: float | None,
) -> None:
    parameters = [
        optim.Parameter(v.name or "", v, g, v.const_value.numpy)  # type: ignore[union-attr]
        for v, g in zip(values, gradients, strict=True)
    ]
    double = any(v.dtype == ir.DataType.DOUBLE for v in values)
    whole = optim.UpdateContext(builder, "", optimizer.every, np.float64 if double else np.float32)
    stages: list[tuple[optim.Update, optim.UpdateContext, list[optim.Parameter]]] = []
    if clip_value is not None:
        stages.append((optim.clip_by_value(clip_value), whole, parameters))
    if clip_norm is not None:
        stages.append((optim.clip_by_global_norm(clip_norm), whole, parameters))
    for settings, context, group in _groups(whole, parameters, groups or {}):
        stages.append((optimizer.with_(**settings) if settings else optimizer, context, group))
    if ema is not None:
        stages.append((optim.ema(ema), whole, parameters))

    def write() -> None:
        for stage, context, group in stages:
            stage(context, group)

    builder.updates.update(optim.apply(builder, parameters, optimizer.every, write))
    builder.roles.update(dict.fromkeys((p.name for p in parameters), "parameter"))


def _groups(
    whole: optim.UpdateContext,
    parameters: Sequence[optim.Parameter],
    groups: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], optim.UpdateContext, list[optim.Parameter]]]:
    """The parameters of each pattern with its settings, the first match counts; then the rest."""
    rest = list(parameters)
    for pattern, settings in groups.items():
        group = [p for p in rest if fnmatchcase(p.name, pattern)]
        if not group:
            raise ArgumentError(f"no trained parameter matches the group {quote(pattern)}")
        rest = [p for p in rest if p not in group]
        yield settings, replace(whole, group=pattern), group
    if rest:
        yield {}, whole, rest

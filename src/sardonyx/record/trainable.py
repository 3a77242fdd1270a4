"""`trainable`: an inference model in, the same model with its training record out.

Every argument but the model has a default; what is chosen is written down with its reason, and can
be changed. The record is written in the symbolic form (`Gradient` and the optimizer operators), or
expanded to plain operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Never

import numpy as np
import onnx_ir as ir

from sardonyx.collector import paused
from sardonyx.edit import surgery
from sardonyx.edit.merged import IMPORTED, separate_merged
from sardonyx.errors import ArgumentError, did_you_mean, quote
from sardonyx.grad.driver import is_differentiable, path, require_gradient
from sardonyx.grad.quantization import keep_switch
from sardonyx.initializer import Initializer
from sardonyx.model import Model, ModelSource, load
from sardonyx.normalize import NormalizedModel, regular_copy
from sardonyx.opset import TRAINING_DOMAIN
from sardonyx.passes.nesting import names as all_names
from sardonyx.record import info, optim
from sardonyx.record.builder import ROLE, SEED, RecordBuilder
from sardonyx.record.config import RENAMED, with_config
from sardonyx.record.describe import Choice, Choices, as_table, describe
from sardonyx.record.expand import expand_records, upgrade_record
from sardonyx.record.initialize import write_initialization
from sardonyx.record.modes import Mode, serve_in_inference_mode, training_forward
from sardonyx.record.notes import add_notes
from sardonyx.record.padding import keep_padding_rows
from sardonyx.record.restore_weights import restore_weights
from sardonyx.record.served import as_loaded
from sardonyx.record.settings import check_numbers
from sardonyx.record.terms import (
    LossLike,
    Term,
    add_penalties,
    choose_terms,
    write_losses,
)
from sardonyx.weights import weights

SHOWN = 6


@paused()
def trainable(
    model: ModelSource,
    loss: LossLike | Sequence[Term] | None = None,
    optimizer: str | optim.Optimizer | None = None,
    train: str | Sequence[str] | None = None,
    *,
    lr: float | None = None,
    freeze: str | Sequence[str] = (),
    prediction: str | None = None,
    labels: str | Sequence[str] | None = None,
    class_axis: int | None = None,
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    batch_norm: Mode | None = None,
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
    class_axis  -- the axis of the prediction along which cross entropy finds the classes; if not
                   given, the graph shows it: the last one of products, axis 1 of convolutions
    groups      -- settings by pattern: {"head.*": {"lr": 1e-2}, "*.bias": {"weight_decay": 0}};
                   with a list of names as `parameters`, the key is only the group's name
    batch_norm, dropout -- "train" or "frozen", or by pattern of the node's name; "train" if not
                   given, but "frozen" where `lora` has added adapters to the model
    clip_norm   -- scale the gradients of an update together to a norm of at most this
    clip_value  -- clip every element of the gradients to ± this
    l1, l2      -- add the sum of absolute values, or half the sum of squares, of all trained
                   parameters times this to the loss
    accumulate  -- make one update from the mean gradient of so many steps
    ema         -- keep moving averages of the parameters in `<name>/ema`; this share of the old
                   average stays at every update
    initialize  -- starting values by pattern, for `initialize()`: {"head.*": "kaiming"}
    form        -- "symbolic" (Gradient and optimizer operators) or "expanded" (plain operators)
    config      -- a TOML or YAML file with any of these; arguments given here come before it

    >>> import sardonyx as sx
    >>> net = sx.trainable("model.onnx", loss="cross_entropy", optimizer=sx.optim.adamw(1e-3))
    >>> len(net.records)
    1
    """
    arguments = {k: v for k, v in locals().items() if k not in ("model", "config", "unknown")}
    refuse_unknown(unknown, "trainable")
    if config is not None:
        return trainable(model, **with_config(config, trainable, arguments))
    if form not in ("symbolic", "expanded"):
        raise ArgumentError(f"form is symbolic or expanded, not {form!r}")
    check_numbers(arguments, "the record")
    original = load(model)
    base = _base(original)
    choices = Choices()
    if not base.records:
        _edit_served(base, choices)
    served = _edited_alike(original, choices) if choices.rows else original
    builder = RecordBuilder.on(base, name)
    builder.op.reserve(all_names(original.graph))
    parameters, reason_of_choice = choose_parameters(base, train, freeze)
    position_of_choice = len(choices.rows)
    add_notes(base, parameters, choices)
    modes_of_norms = _batch_norm(base, batch_norm, choices)
    values, modes = training_forward(builder, modes_of_norms, dropout)
    for node, mode in modes:
        reason = "running statistics and masks while training"
        choices.add(node.op_type, f"{quote(node.name)} {mode}", reason)
    _refuse_statistics(parameters, builder.updates)
    terms = choose_terms(base, loss, prediction, labels, class_axis, choices)
    total, loss_terms = write_losses(builder, values, terms, choices)
    parameters = _reached(builder, total, parameters, choices)
    choices.rows.insert(position_of_choice, _trained(parameters, *reason_of_choice))
    total = add_penalties(builder, total, parameters, l1, l2)
    total = builder.output(builder.local("loss"), total)
    builder.roles[builder.local("loss")] = "loss"
    gradients = _gradient(builder, total, parameters)
    update_rule = _optimizer(optimizer, lr, accumulate, choices)
    _update(builder, update_rule, parameters, gradients, groups, clip_norm, clip_value, ema)
    builder.seed()
    builder.slots[builder.local(SEED)].start = np.asarray(seed, np.int64)
    record = builder.record()
    write_initialization(record, base, builder, initialize or {})
    base.records.append(record)
    base.ir.opset_imports[TRAINING_DOMAIN] = 1
    net = _served(original, served, base, form, choices)
    for tensor, role in builder.roles.items():
        net.metadata[f"{ROLE}{tensor}"] = role
    description: dict[str, Any] = {
        "name": builder.name,
        "loss_terms": loss_terms,
        "total": builder.local("loss"),
        "forward": {v.name: t.name for v, t in values.items()},
        "choices": [[c.what, c.value, c.why] for c in choices.rows],
        "arguments": as_table(terms, update_rule, _rest(arguments)),
    }
    describe(net, description)
    info.check(net)
    return net


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


def _batch_norm(model: Model, mode: Mode | None, choices: Choices) -> Mode:
    """The mode of batch normalizations: as asked, or by whether the model has adapters."""
    if mode is not None:
        return mode
    if surgery.ADAPTERS not in model.metadata or not any(
        n.op_type == "BatchNormalization" for n in model.graph
    ):
        return "train"
    choices.add("batch_norm", "frozen", "adapters hold no running statistics")
    return "frozen"


def _rest(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not defaults; `as_table` describes the loss and the optimizer."""
    defaults = {n: p.default for n, p in inspect.signature(trainable).parameters.items()}
    settings = {
        k: v for k, v in arguments.items() if k not in ("loss", "optimizer", "lr", "class_axis")
    }
    return {k: v for k, v in settings.items() if v is not defaults[k] and v != defaults[k]}


def _base(model: Model) -> NormalizedModel:
    base = NormalizedModel.of(regular_copy(model))
    base.metadata.update(model.metadata)
    if any(v.domain == TRAINING_DOMAIN for v in base.graph):
        raise ArgumentError("the inference graph itself contains training operators")
    return base


def _edit_served(model: Model, choices: Choices) -> None:
    """The changes of the served graph without which training would go wrong."""
    if IMPORTED not in model.metadata:  # then its weights are those of the source, tied as there
        separate_merged(model, choices.add)
        restore_weights(model, choices)
        keep_padding_rows(model, choices)
    serve_in_inference_mode(model, choices)


def _edited_alike(original: Model, choices: Choices) -> Model | None:
    """The model as it was loaded with the changes of `choices`; None where they come out
    otherwise than in its normalized form.
    """
    edited, alike = original.copy(), Choices()
    _edit_served(edited, alike)
    return edited if alike.rows == choices.rows else None


def _served(
    original: Model, served: Model | None, base: Model, form: str, choices: Choices
) -> Model:
    """The model with its records: as it was loaded (`served`), or else in normalized form."""
    if served is None:
        value = f"rewritten at opset {base.opset}"
        choices.add("served graph", value, "its changes were found in the normalized form only")
    elif form == "symbolic":
        net = as_loaded(served, base, base.records[-1:], choices)
        if net is not None:
            net.ir.opset_imports[TRAINING_DOMAIN] = 1
            net.metadata.update(base.metadata)
            return net
    if original.records and original.opset != base.opset:
        earlier = [upgrade_record(original, record) for record in original.records]
        base.records = [*earlier, base.records[-1]]
    if form == "symbolic":
        return base
    expanded, net = expand_records(base), None
    if served is not None:
        bare = served.copy()
        bare.records = []
        net = as_loaded(bare, base, expanded.records, choices)
    if net is None:
        return expanded
    net.ir.opset_imports.pop(TRAINING_DOMAIN, None)
    net.metadata.update(base.metadata)
    return net


# -- parameters ---------------------------------------------------------------------


def _patterns(patterns: str | Sequence[str] | None) -> list[str]:
    if patterns is None:
        return []
    return [patterns] if isinstance(patterns, str) else list(patterns)


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


def choose_parameters(
    model: Model, train: str | Sequence[str] | None, freeze: str | Sequence[str]
) -> tuple[list[ir.Value], tuple[int, str]]:
    """The initializers to train: the model's weights, narrowed or widened by patterns. With them,
    of how many float tensors they were chosen, and why these.
    """
    patterns, frozen_patterns = _patterns(train), _patterns(freeze)
    initializers = model.graph.initializers
    floats = [n for n, v in initializers.items() if is_differentiable(v) and v.type is not None]
    kinds = {w.name: w.kind for w in weights(model)}
    for pattern in (*patterns, *frozen_patterns):
        if not any(fnmatchcase(n, pattern) for n in floats):
            raise ArgumentError(
                f"no parameter matches {quote(pattern)}",
                [[quote(n)] for n in floats],
                hint="`sardonyx inspect` lists weights and constants",
            )
    if patterns:
        # The data moves statistics, not the loss: a pattern does not reach them, their name does.
        names = [
            n
            for n in floats
            if n in patterns or (matches(n, patterns) and kinds.get(n) != "statistic")
        ]
    else:
        frozen_names = set(surgery.frozen(model))
        names = [n for n in floats if kinds.get(n) == "weight" and n not in frozen_names]
    names = [n for n in names if not matches(n, frozen_patterns)]
    if not names:
        raise ArgumentError(
            "there is nothing to train in this model",
            hint="train=['pattern'] (--train pattern) names weights; "
            "sx.dequantize(model) makes float weights of quantized ones",
        )
    why = (
        "by pattern"
        if patterns or frozen_patterns
        else "float initializers that are weights by their use"
    )
    return [initializers[n] for n in names], (len(floats), why)


def _trained(parameters: Sequence[ir.Value], floats: int, why: str) -> Choice:
    count = sum([p.const_value.size for p in parameters])  # type: ignore[misc, union-attr]
    return Choice("trained", f"{len(parameters)} of {floats} float tensors, {count:,} numbers", why)


def _refuse_statistics(parameters: Sequence[ir.Value], updates: Mapping[str, ir.Value]) -> None:
    rows = [[quote(v.name)] for v in parameters if v.name in updates]
    if rows:
        raise ArgumentError(
            "running statistics are updated from the data and cannot be trained as well",
            rows,
            hint='batch_norm="frozen" leaves them to the optimizer',
        )


# -- gradients and updates --------------------------------------------------------------


def _reached(
    builder: RecordBuilder, total: ir.Value, parameters: Sequence[ir.Value], choices: Choices
) -> list[ir.Value]:
    """The parameters that the loss depends on: the others have no gradient and stay unchanged."""
    _, values = path([*builder.model.graph, *builder.op.nodes], parameters, [total], ())
    apart = [quote(p.name) for p in parameters if p not in values]
    if len(apart) == len(parameters):
        raise ArgumentError(
            "the loss depends on none of the trained parameters",
            [[name] for name in apart],
            hint="prediction= (--prediction) names the tensor that the loss compares",
        )
    if apart:
        more = f" and {len(apart) - SHOWN} more" * (len(apart) > SHOWN)
        why = "the loss does not depend on it"
        choices.add("not trained", ", ".join(apart[:SHOWN]) + more, why)
    return [p for p in parameters if p in values]


def _gradient(
    builder: RecordBuilder, total: ir.Value, parameters: Sequence[ir.Value]
) -> list[ir.Value]:
    op = builder.op
    require_gradient([*builder.model.graph, *op.nodes], [total], parameters)
    with op.named("train"):
        gradients = op.call(
            "Gradient",
            list(parameters),
            {"xs": [p.name for p in parameters], "y": total.name},
            domain=TRAINING_DOMAIN,
            outputs=len(parameters),
        )
    node = gradients[0].producer()
    assert node is not None
    keep_switch(node)
    for g, p in zip(gradients, parameters, strict=True):
        g.name = op.fresh(f"grad/{p.name}")
        g.type, g.shape = p.type, ir.Shape(p.shape)  # type: ignore[arg-type]
    return list(gradients)


def _optimizer(
    optimizer: str | optim.Optimizer | None, lr: float | None, accumulate: int, choices: Choices
) -> optim.Optimizer:
    """The optimizer of the arguments, by default AdamW; it is added to the choices."""
    reason = "as asked"
    if optimizer is None:
        optimizer, reason = optim.adamw(), "a safe default for most networks"
    elif isinstance(optimizer, str):
        optimizer = optim.named(optimizer)
    if lr is not None:
        optimizer = optimizer.with_(lr=lr)
        reason = reason if reason == "as asked" else f"{reason}; lr as asked"
    if accumulate != 1:
        optimizer = optim.accumulate(optimizer, accumulate)
    values = {k: getattr(v, "text", v) for k, v in optimizer.settings.items()}
    words = [
        f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in values.items()
        if v is not None and v is not False
    ]
    if optimizer.every != 1:
        words.append(f"one update in {optimizer.every} steps")
    choices.add(
        "optimizer", f"{optimizer.text} ({', '.join(words)})" if words else optimizer.text, reason
    )
    return optimizer


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
    for pattern, group_settings in groups.items():
        settings = dict(group_settings)
        names, offset = settings.pop("parameters", None), settings.pop("offset", 0)
        if names is None:
            group = [p for p in rest if fnmatchcase(p.name, pattern)]
        else:
            group = [p for p in rest if p.name in set(names)]
        if not group:
            raise ArgumentError(f"no trained parameter matches the group {quote(pattern)}")
        rest = [p for p in rest if p not in group]
        yield settings, replace(whole, group=pattern, offset=offset), group
    if rest:
        yield {}, whole, rest

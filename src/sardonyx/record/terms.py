"""Loss terms: which loss compares which tensor of the model with which labels.

What is not given is chosen here: the tensor (before a final Softmax or ZipMap), the loss that it
suggests, the axis of its classes, the names of the label inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.errors import ArgumentError, ModelError, counted, quote
from sardonyx.grad.driver import is_differentiable
from sardonyx.model import Model
from sardonyx.passes.activation import final_activation
from sardonyx.passes.nesting import names as all_names
from sardonyx.record import loss as losses
from sardonyx.record.builder import RecordBuilder
from sardonyx.record.describe import Choices
from sardonyx.record.loss.class_axis import class_axis as shown_class_axis

LossLike = str | Path | losses.Loss | Callable[..., ir.Value] | Mapping[str, Any] | onnx.ModelProto
Term = losses.Term


def choose_terms(
    model: Model,
    loss: LossLike | Sequence[Term] | None,
    prediction: str | None,
    labels: Sequence[str] | None,
    class_axis: int | None,
    choices: Choices,
) -> list[Term]:
    """The loss terms of the arguments of `trainable`, each with its tensor and class axis."""
    if loss is None:
        value = find_prediction(model, prediction, choices)
        name, reason = guess_loss(value)
        choices.add("loss", name, reason)
        terms = [Term(losses.named(name), value.name, labels)]
    elif isinstance(loss, Sequence) and not isinstance(loss, str):
        only = labels if len(loss) == 1 else None
        strange = [t for t in loss if not isinstance(t, Term)]
        if strange:
            raise ArgumentError(
                f"a list of losses holds sx.loss.Term objects, not {type(strange[0]).__name__}",
                hint='loss=[sx.loss.Term("mse", prediction="a"), sx.loss.Term("l1", "b")]',
            )
        terms = [
            replace(
                t,
                loss=as_loss(t.loss),
                prediction=t.prediction or prediction,
                labels=t.labels or only,
            )
            for t in loss
        ]
    else:
        terms = [Term(as_loss(loss), prediction, labels)]
    if class_axis is not None and not any(t.loss.name == "cross_entropy" for t in terms):
        raise ArgumentError("class_axis is given, and no loss has classes along an axis")
    for index, term in enumerate(terms):
        if loss is not None:
            share = "" if term.weight == 1.0 else f" × {term.weight:g}"
            choices.add("loss", f"{term.loss.name}{share}", "as asked")
        value = find_prediction(model, term.prediction, choices if loss is not None else None)
        terms[index] = replace(
            _with_class_axis(term, value, class_axis, choices), prediction=value.name
        )
    return terms


def _with_class_axis(
    term: Term, prediction: ir.Value, class_axis: int | None, choices: Choices
) -> Term:
    """A term of cross entropy with the axis of the classes: the one given, or the one shown."""
    settings = term.loss.settings
    if term.loss.name != "cross_entropy" or not settings:
        return term
    axis, reason = class_axis, "as asked"
    if axis is None and settings.get("axis") is not None:
        axis = settings["axis"]
    elif axis is None:
        axis, reason = shown_class_axis(prediction)
    if prediction.shape is None:
        return replace(term, loss=losses.named("cross_entropy", **{**settings, "axis": axis}))
    count = rank(prediction)
    if not -count <= axis < count and count > 1:
        raise ArgumentError(
            f"the axis of the classes is {axis}, and {quote(prediction.name)} has {count} axes",
            [[quote(prediction.name), f"{prediction.dtype} {prediction.shape}"]],
        )
    if count > 2:
        choices.add("class axis", f"{axis % count} of {prediction.shape}", reason)
    return replace(
        term, loss=losses.named("cross_entropy", **{**settings, "axis": axis % max(count, 2)})
    )


def as_loss(source: LossLike) -> losses.Loss:
    """A loss from a name, a mapping {"name": …, settings}, an ONNX graph or a function of `op`."""
    if isinstance(source, losses.Loss):
        return source
    if isinstance(source, (Path, onnx.ModelProto, onnx.FunctionProto, Model)) or (
        isinstance(source, str) and source.endswith(".onnx")
    ):
        return losses.graph(source)
    if isinstance(source, str):
        return losses.named(source)
    if isinstance(source, Mapping):
        settings = dict(source)
        return losses.named(settings.pop("name"), **settings)
    return losses.custom(source)


def find_prediction(model: Model, name: str | None, choices: Choices | None = None) -> ir.Value:
    """The tensor called `name`, or the first output that a loss can compare with labels."""
    if name is not None:
        return _before_zip_map(_tensor(model, name), choices)
    outputs = [_before_zip_map(v, choices) for v in model.outputs]
    floats = [v for v in outputs if is_differentiable(v)]
    if not floats:
        raise ArgumentError(
            "the model has no floating-point output to compare with a label",
            hint=f"prediction= (--prediction) names a tensor inside{_before_integers(outputs)}",
        )
    return floats[0]


def _before_integers(outputs: Sequence[ir.Value]) -> str:
    """The scores that an ArgMax or TopK at the end reads, as an example for a hint."""
    nodes = [v.producer() for v in outputs]
    scores = [n.inputs[0] for n in nodes if n is not None and n.inputs]
    names = [v.name or "" for v in scores if v is not None and is_differentiable(v)]
    return f", such as {quote(names[0])}" if names else ""


def _tensor(model: Model, name: str) -> ir.Value:
    """The tensor called `name`: one that is computed, an input or a weight."""
    graph = model.graph
    values = (*model.outputs, *(v for n in graph for v in n.outputs), *graph.inputs)
    for value in (*values, *graph.initializers.values()):
        if value.name == name:
            return value
    raise ArgumentError(
        f"the model has no tensor {quote(name)}",
        [[quote(v.name)] for v in model.outputs],
        hint="its outputs are these",
    )


def _before_zip_map(value: ir.Value, choices: Choices | None) -> ir.Value:
    """The scores that a ZipMap turns into dictionaries, as scikit-learn's converter ends models."""
    node = value.producer()
    if node is None or node.op_type != "ZipMap" or node.inputs[0] is None:
        return value
    if choices is not None:
        reason = f"{quote(value.name)} ends in ZipMap: training cut at its input"
        choices.add("prediction", quote(node.inputs[0].name), reason)
    return node.inputs[0]


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


def write_losses(
    builder: RecordBuilder,
    values: Mapping[ir.Value, ir.Value],
    terms: Sequence[Term],
    choices: Choices,
) -> tuple[ir.Value, list[dict[str, Any]]]:
    """The total loss, and a description of each term: its loss, prediction and labels."""
    op, parts, descriptions = builder.op, [], []
    for index, term in enumerate(terms):
        served = _logits(find_prediction(builder.model, term.prediction), term.loss, choices)
        prediction = values.get(served, served)
        if prediction.dtype is None:
            raise ModelError(
                f"the type of {quote(prediction.name)} is not known, and a loss compares numbers",
                hint="`sardonyx check` says what is wrong with the file; or name another tensor: "
                "prediction=",
            )
        names = _label_names(builder.model, term, index if len(terms) > 1 else None)
        labels = [
            builder.input(name, *label.of(prediction), role="label")
            for name, label in zip(names, term.loss.labels, strict=True)
        ]
        descriptions.append(
            {
                "loss": term.loss.name,
                "settings": _plain(term.loss.settings),
                "prediction": served.name,
                "labels": names,
                **_classes(term.loss, prediction),
            }
        )
        for label in labels:
            choices.add(
                "label",
                f"{quote(label.name)} {label.dtype} {label.shape}",
                f"what {term.loss.name} compares with {quote(prediction.name)}",
            )
        with op.named("train/loss"), op:
            others = [_tensor(builder.model, name) for name in term.loss.reads]
            tensors = [values.get(v, v) for v in others]
            part = _computed(term.loss, op, prediction, [*tensors, *labels])
            parts.append(part if term.weight == 1.0 else part * term.weight)
        if len(terms) > 1:
            parts[-1] = builder.output(builder.local(f"loss/{index}/{term.loss.name}"), parts[-1])
    return (parts[0] if len(parts) == 1 else op.Sum(*parts)), descriptions


def _classes(loss: losses.Loss, prediction: ir.Value) -> dict[str, int]:
    """The number of classes of a cross entropy, as inferred: files declare wrong shapes."""
    axis, shape = loss.settings.get("axis", 1), prediction.shape
    if loss.name != "cross_entropy" or shape is None or not -len(shape) <= axis < len(shape):
        return {}
    return {"classes": shape[axis]} if isinstance(shape[axis], int) else {}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if isinstance(v, (str, int, float, bool))}


def _computed(
    loss: losses.Loss, op: Builder, prediction: ir.Value, labels: Sequence[ir.Value]
) -> ir.Value:
    """The value of a loss, which may be a user's function."""
    try:
        inspect.signature(loss.compute).bind(op, prediction, *labels)
    except TypeError as error:
        signature = ", ".join(["op", "prediction", *(v.name or "" for v in labels)])
        raise ArgumentError(
            f"the loss {loss.name} does not take ({signature}): {error}",
            hint="sx.loss.custom(function, labels=[…]) lists the labels of a loss",
        ) from error
    value = loss.compute(op, prediction, *labels)
    if not isinstance(value, ir.Value):
        raise ArgumentError(
            f"the loss {loss.name} returns {type(value).__name__}, not a tensor",
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


def _label_names(model: Model, term: Term, index: int | None) -> list[str]:
    """The names of a term's labels: as given, or free ones."""
    count, tensor_names = len(term.loss.labels), all_names(model.graph)
    if term.labels:
        labels = [term.labels] if isinstance(term.labels, str) else list(term.labels)
        collisions = [[quote(n), "is a tensor"] for n in labels if n in tensor_names]
        if collisions:
            raise ArgumentError("labels need names of their own", collisions)
        if len(labels) != count:
            expected = counted(count, "label")
            raise ArgumentError(f"{term.loss.name} takes {expected}, not {len(labels)}")
        return labels
    stems = list(term.loss.names) or ["label", "label_length", "label_2"][:count]
    tail = "" if index is None else f"_{index}"
    names = []
    for name in (f"{stem}{tail}" for stem in stems):
        while name in tensor_names:
            name = f"train/{name}"
        names.append(name)
    return names


def _logits(prediction: ir.Value, loss: losses.Loss, choices: Choices) -> ir.Value:
    """The tensor before a final Softmax or Sigmoid, where the loss applies that itself."""
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


def add_penalties(
    builder: RecordBuilder, total: ir.Value, parameters: Sequence[ir.Value], l1: float, l2: float
) -> ir.Value:
    """The loss with the penalties for large parameters."""
    op = builder.op
    with op.named("train/penalty"), op:
        if l1:
            total = total + losses.l1_penalty(op, parameters, l1)
        if l2:
            total = total + losses.l2_penalty(op, parameters, l2)
    return total

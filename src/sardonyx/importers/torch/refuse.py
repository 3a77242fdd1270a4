"""What `from_torch` refuses of arguments and modules, each kind by one error that names it all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sardonyx.errors import ArgumentError, ImportRefused, quote
from sardonyx.importers.torch.capture import attributes_restored, evaluation_mode, quiet
from sardonyx.importers.torch.leaves import outputs_by_name
from sardonyx.importers.torch.optimizers import names_of
from sardonyx.importers.torch.script import Part
from sardonyx.importers.torch.source import Source
from sardonyx.importers.torch.split import CRITERION
from sardonyx.model import Model
from sardonyx.record.optim import Optimizer

SWITCHES = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)
TORCH_OPTIMIZER = torch.optim.Optimizer
APART = 1e-3  # relative: no rounding of two runs of one module makes so much


def refuse_arguments(
    source: Source, wants_record: bool, optimizer: Any, scheduler: Any, training: Mapping[str, Any]
) -> None:
    """Refuse arguments that do not fit together, before any work."""
    if isinstance(source.module, torch.nn.parallel.DistributedDataParallel):
        raise ImportRefused(
            "the module is wrapped for several processes",
            [["DistributedDataParallel"]],
            hint="pass what is inside, module.module; its optimizer has the same parameters",
        )
    if not wants_record:
        arguments = {"optimizer": optimizer, "scheduler": scheduler, **training}
        rows = [[quote(n)] for n, v in arguments.items() if v is not None]
        if rows:
            hint = "loss= is a function of outputs and labels; labels= are examples of them"
            raise ArgumentError("these arguments are for training, which needs a loss", rows, hint)
        _refuse_training_mode(source)
        return
    if isinstance(optimizer, TORCH_OPTIMIZER):
        names_of(optimizer, parameters_of(source))
        _refuse_hooks(source, optimizer)
    elif scheduler is not None:
        raise ArgumentError("a torch scheduler needs its optimizer: pass optimizer=")
    elif not isinstance(optimizer, (str, Optimizer, type(None))):
        kind = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise ArgumentError(
            f"{quote(kind)} is no optimizer of torch",
            hint="optimizer=torch.optim.AdamW(module.parameters(), 1e-3), or a name such as adamw",
        )


def parameters_of(source: Source) -> dict[str, torch.nn.Parameter]:
    """The parameters by name: the module's, and those of the loss."""
    parameters = dict(source.module.named_parameters())
    if isinstance(source.loss, torch.nn.Module):
        of_loss = source.loss.named_parameters()
        parameters |= {f"{CRITERION}{n}": p for n, p in of_loss}
    return parameters


# -- the mode ---------------------------------------------------------------------------


def _refuse_training_mode(source: Source) -> None:
    """A module in training mode has no one result: batch statistics, masks, branches on it."""
    parts = source.module.named_modules()
    rows = [
        [quote(n or "the module"), type(m).__name__]
        for n, m in parts
        if isinstance(m, SWITCHES) and m.training
    ]
    if not rows and any(m.training for m in source.module.modules()):
        rows = [[f"output {quote(n)}", "is another one"] for n in _outputs_of_mode(source)]
    if rows:
        raise ArgumentError(
            "the module is in training mode",
            rows,
            hint="module.eval() before the import; with loss=, the record trains in training mode",
        )


def _outputs_of_mode(source: Source) -> list[str]:
    """The outputs that training mode changes."""

    def outputs() -> dict[str, torch.Tensor]:
        call = source.call.mapped(lambda _, v: v.clone() if isinstance(v, torch.Tensor) else v)
        return outputs_by_name(call(source.module))

    with torch.random.fork_rng(devices=[]), torch.no_grad(), quiet():
        try:
            with attributes_restored(source.module):
                trained = outputs()
            with evaluation_mode(source.module):
                return unlike(trained, outputs())
        except Exception:  # the user's own code: what is wrong with it shows where it is captured
            return []


def unlike(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of tensors that are not the same in both, rounding aside."""
    names = [n for n in (*first, *second) if n not in first or n not in second]
    for name in [n for n in first if n in second]:
        a, b = first[name], second[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            names.append(name)
        elif a.numel() and not a.is_floating_point():
            names += [] if torch.equal(a, b) else [name]
        elif a.numel():
            size = b.double().abs().nan_to_num(0, 0, 0).max()
            far = ~torch.isclose(
                a.double(), b.double(), rtol=0, atol=float(APART * size), equal_nan=True
            )
            names += [name] if far.any() else []
    return names


# -- gradients --------------------------------------------------------------------------


def _refuse_hooks(source: Source, optimizer: torch.optim.Optimizer) -> None:
    """Refuse what changes gradients or updates outside of the module, the loss and the class."""
    rows = [
        [f"parameter {quote(n)}", "register_hook"]
        for n, p in parameters_of(source).items()
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
    ]
    rows += [
        [f"module {quote(n or type(m).__name__)}", "register_full_backward_hook"]
        for n, m in source.module.named_modules()
        if m._backward_hooks or m._backward_pre_hooks
    ]
    kind = type(optimizer).__name__
    hooks = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
    if any(getattr(optimizer, name, None) for name in hooks):
        rows.append([f"optimizer {quote(kind)}", "register_step_pre_hook or _post_hook"])
    step = vars(optimizer).get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        rows.append([f"optimizer {quote(kind)}", "another function is assigned to its step"])
    if rows:
        raise ImportRefused(
            "hooks change gradients or updates, and a record has no place for them",
            rows,
            hint="remove the hooks; clip_norm= and clip_value= clip gradients in the record",
        )


# -- buffers and weights ----------------------------------------------------------------


def refuse_rescaled(weights: Sequence[tuple[str, str]]) -> None:
    """Refuse to train weights of which rows are shortened in place when they are read."""
    rows = [[f"parameter {quote(name)}", "max_norm", line] for name, line in weights]
    if rows:
        raise ImportRefused(
            "rows of these embeddings are rescaled in place when they are read, and a record "
            "changes weights by its updates only",
            [list(row) for row in dict.fromkeys(map(tuple, rows))],
            hint="leave out max_norm, and normalize the rows that are read instead",
        )


def refuse_changes(module: torch.nn.Module, served: Model, changes: Sequence[str]) -> None:
    """Refuse buffers that training mode changes by other rules than those of the record."""
    norms = [n for n in served.graph if n.op_type == "BatchNormalization"]
    moving = [n for n in norms if n.attributes.get_float("momentum", 0.9) < 1.0]
    statistics = {v.name for n in moving for v in n.inputs if v is not None}
    rows = []
    for name in changes:
        path, _, buffer = name.rpartition(".")
        part = module.get_submodule(path)
        is_norm = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
        is_of_archive = isinstance(part, Part)
        by_record = (
            is_of_archive or (is_norm and part.momentum is not None)
        ) and name in statistics
        if not (by_record or buffer == "num_batches_tracked"):
            why = CHANGES.get(_kind(part), "")
            if is_norm and part.momentum is not None:
                why = "does not run in evaluation mode, whose graph is imported"
            rows.append([quote(name), f"of {type(part).__name__}", why])
    if rows:
        raise ImportRefused(
            "the module changes buffers in training mode, by rules that a record does not have",
            rows,
            hint="import it without its loss, or give these parts other settings",
        )


def _kind(part: torch.nn.Module) -> str:
    is_norm = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
    return "BatchNorm" if is_norm else type(part).__name__.rstrip("123d")


CHANGES = {
    "BatchNorm": "momentum=None averages over all batches: set a number",
    "InstanceNorm": "set track_running_stats=False",
    "_SpectralNorm": "spectral_norm iterates in training mode",
    "SpectralNorm": "spectral_norm iterates in training mode",
}

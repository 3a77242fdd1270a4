"""Notes on what an exporter has done to a network that matters for training.

They are added to the choices of a record: weights that several layers share, normalization that was
folded into convolutions, names that folding has lost, single numbers, padding rows and possible
buffers that are trained, tensors computed from parameters that are not, weights stored as integers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.edit import torch_names
from sardonyx.edit.merged import is_uniform
from sardonyx.errors import quote
from sardonyx.model import Model
from sardonyx.record.describe import Choices
from sardonyx.record.restore_weights import LARGEST_COPY
from sardonyx.weights import (
    ARITHMETIC,
    BY_NUMBERS,
    ELEMENTWISE,
    EXPORTER_CONSTANT,
    FACTORIES,
    FLOATS,
    KIND,
    NAMED_NUMBER,
    NORMALIZATIONS,
    OLDER_EXPORTER,
    RECURRENT,
    TORCH_KIND,
    classified,
    named_origins,
)

SHOWN = 3


def add_notes(model: Model, trained: Sequence[ir.Value], choices: Choices) -> None:
    """Add notes for whoever trains this model to the choices."""
    notes = (
        _shared(trained), _merged_norms(model), _nameless(trained), _derived(trained),
        _numbers(model, trained), _outside_layers(model, trained), _computed(model, trained),
        _padding_rows(trained), _integers(model), _tables(model, trained), _removed(model),
        _detached(model),
    )  # fmt: skip
    for note in notes:
        if note is not None:
            choices.add("note", *note)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(quote(n) for n in names[:SHOWN]) + more


def _shared(trained: Sequence[ir.Value]) -> tuple[str, str] | None:
    """Tensors that several layers read; equal numbers throughout are a sign of merging."""
    several = [v for v in trained if len({node for node, _ in v.uses()}) > 1]
    if not several:
        return None
    alike = [v.name or "" for v in several if is_uniform(v)]
    names = [v.name or "" for v in several]
    count = f"{len(several)} weight{'s' * (len(several) > 1)} shared by several nodes"
    why = "training updates what is shared together"
    if alike:
        why += (
            f"; {_listed(alike)} holds one number throughout: exporters merge equal tensors, "
            "and sx.untie separates them"
        )
    return f"{count}: {_listed(names)}", why


def _merged_norms(model: Model) -> tuple[str, str] | None:
    """Normalization that export for inference has made part of the weights.

    The newer exporter still names the operator; the older one leaves convolutions whose weight and
    bias it has computed. A file of neither may have convolutions with a bias, and nothing else.
    """
    without = (
        "training goes on without it; an export in training mode, or with optimize=False, keeps it"
    )
    folded = [n for n in model.graph if _holds_norm(n)]
    if folded:
        kinds = " and ".join(sorted({n.op_type for n in folded}))
        layers = f"{len(folded)} {kinds} layer{'s' * (len(folded) > 1)}"
        why = "its scale and statistics are part of the weights and cannot be recovered"
        return f"BatchNormalization was folded into {layers}", f"{why}; {without}"
    kinds_of_all = {node.op_type for node in model.graph if node.domain == ""}
    biased = [n for n in model.graph if n.op_type == "Conv" and len(n.inputs) > 2 and n.inputs[2]]
    if len(biased) < 2 or kinds_of_all & {*NORMALIZATIONS, "LpNormalization"}:
        return None
    why = "if the network had BatchNormalization, the export has folded it into the weights"
    return f"no normalization beside {len(biased)} Conv layers", f"{why}, and {without}"


def _holds_norm(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return False
    if "batch_norm" in torch_names.operator(node):
        return True
    weights = [v for v in node.inputs[1:3] if v is not None and v.is_initializer()]
    return (
        node.op_type == "Conv" and len(weights) == 2 and all(map(torch_names.is_computed, weights))
    )


def _nameless(trained: Sequence[ir.Value]) -> tuple[str, str] | None:
    names = [v.name or "" for v in trained if torch_names.is_computed(v)]
    if not names:
        return None
    count = f"{len(names)} weight{'s' * (len(names) > 1)} without a name of the network"
    why = "the exporter computed and renamed them: patterns have to match these names"
    return f"{count}: {_listed(names)}", why


def _derived(trained: Sequence[ir.Value]) -> tuple[str, str] | None:
    """Weights that are a result of parameters, or parts of one parameter that overlap."""
    found: list[ir.Value] = []
    by_origin: dict[str, list[ir.Value]] = {}
    for value in trained:
        origins = torch_names.origins(value)
        names = {re.sub(r"_\d+$", "", n) for n in (*origins, value.name or "")}
        if len([n for n in origins if "." in n]) > 1 or names & ARITHMETIC:
            found.append(value)
        for name in origins:
            by_origin.setdefault(name, []).append(value)
    found += [v for part in by_origin.values() if _overlap(part) for v in part if v not in found]
    if not found:
        return None
    listed = _listed([v.name or "" for v in found])
    count = f"{len(found)} weight{'s' * (len(found) > 1)} trained as the exporter computed"
    why = "their parameters are not in the file; export with optimize=False to train those"
    return f"{count} {'them' if len(found) > 1 else 'it'}: {listed}", why


def _overlap(values: Sequence[ir.Value]) -> bool:
    """Whether tensors have numbers in common, as overlapping parts of one parameter have."""
    arrays = [v.const_value.numpy() for v in values if v.const_value is not None]
    parts = [np.unique(a) for a in arrays if 0 < a.size <= LARGEST_COPY]
    return len(parts) > 1 and len(np.unique(np.concatenate(parts))) < sum(map(len, parts))


def _numbers(model: Model, trained: Sequence[ir.Value]) -> tuple[str, str] | None:
    """Single numbers that are trained because of their names."""
    single = {v.name for v in trained if v.const_value is not None and v.const_value.size == 1}
    if not single:  # most networks: the graph need not be classified again
        return None
    reasons = {w.name: w.reason for w in classified(model.graph) if w.name in single}
    names = [n for n, reason in reasons.items() if reason == NAMED_NUMBER]
    if not names:
        return None
    count = f"{len(names)} single number{'s' * (len(names) > 1)} trained: {_listed(names)}"
    why = "the module has them under these names; if one is a buffer, freeze it"
    return count, why


def _outside_layers(model: Model, trained: Sequence[ir.Value]) -> tuple[str, str] | None:
    """Tensors of no layer in a file of torch's older exporter, which marks no buffers."""
    if model.graph.name not in OLDER_EXPORTER:
        return None
    candidates = {
        v.name
        for v in trained
        if (v.name or "").rpartition(".")[2] not in ("weight", "bias")
        and v.const_value is not None
        and v.const_value.size > 1
        and any(n.op_type in (*ELEMENTWISE, *RECURRENT, "Slice", "Expand") for n, _ in v.uses())
    }
    if not candidates:
        return None
    operators = tuple(f"of {op_type}" for op_type in (*ELEMENTWISE, *RECURRENT))
    reasons = {w.name: w.reason.split(",")[0] for w in classified(model.graph)}
    names = [n for n in reasons if n in candidates and reasons[n].endswith(operators)]
    if not names:
        return None
    count = f"{len(names)} tensor{'s' * (len(names) > 1)} outside of layers trained"
    why = "the file does not tell parameters from buffers; if one is a buffer, freeze it"
    if any(torch_names.is_computed(model.graph.initializers[n]) for n in names):
        why += "; do_constant_folding=False keeps what an exporter computed from a parameter"
    return f"{count}: {_listed(names)}", why


def _computed(model: Model, trained: Sequence[ir.Value]) -> tuple[str, str] | None:
    """Tensors that torch's newer exporter computed, from parameters perhaps, and no layer reads."""
    tensors = model.graph.initializers.values()
    if not any("PARAMETER" in v.metadata_props.get(TORCH_KIND, "") for v in tensors):
        return None
    constants = {w.name for w in classified(model.graph) if w.kind == "constant"}
    names = [
        v.name or ""
        for v in tensors
        if v.name in constants
        and v.dtype in FLOATS
        and v not in trained
        and v.uses()
        and not v.metadata_props.get(TORCH_KIND)
        and not v.metadata_props.get(KIND)
        and not FACTORIES.fullmatch(v.name or "")
        and (not EXPORTER_CONSTANT.fullmatch(v.name or "") or named_origins(v))
    ]
    if not names:
        return None
    count = f"{len(names)} tensor{'s' * (len(names) > 1)} that the exporter computed not trained"
    origins = sorted({n for v in tensors if v.name in names for n in named_origins(v)})
    of = f" ({', '.join(map(quote, origins[:SHOWN]))})" if origins else ""
    why = (
        f"if it was computed from a parameter{of}, export with optimize=False, or name it in train="
    )
    return f"{count}: {_listed(names)}", why


def _padding_rows(trained: Sequence[ir.Value]) -> tuple[str, str] | None:
    """Tables of embeddings with one row of zeros: torch never trains the row of padding_idx."""
    rows = []
    for value in trained:
        gathers = [n for n, position in value.uses() if n.op_type == "Gather" and position == 0]
        if gathers and all(map(_leaves_out_rows, gathers)):
            continue
        if not gathers or value.const_value is None or len(value.const_value.shape) != 2:
            continue
        zeros = np.flatnonzero(~value.const_value.numpy().any(axis=1))
        if len(zeros) == 1 and value.const_value.shape[0] != 1:
            rows.append(f"row {zeros[0]} of {quote(value.name or '')}")
    if not rows:
        return None
    why = "torch keeps the row of padding_idx as it is, which an ONNX file does not say"
    return f"{', '.join(rows[:SHOWN])} holds zeros and is trained like the others", why


def _leaves_out_rows(gather: ir.Node) -> bool:
    """Whether rows of a table are chosen by an index after they were read, as `from_torch` does."""
    return any(node.op_type == "Where" and i > 0 for node, i in gather.outputs[0].uses())


def _tables(model: Model, trained: Sequence[ir.Value]) -> tuple[str, str] | None:
    """Tensors that are no weights by their numbers alone."""
    names = [
        w.name
        for w in classified(model.graph)
        if w.reason.endswith(BY_NUMBERS) and model.graph.initializers.get(w.name) not in trained
    ]
    if not names:
        return None
    count = f"{len(names)} tensor{'s' * (len(names) > 1)} not trained: {_listed(names)}"
    why = "masks, sines and cosines, and frequencies are no weights; name one in train= if it is"
    return count, why


def _removed(model: Model) -> tuple[str, str] | None:
    """Products and sums that calls of torch read and that are not in the file.

    The newer exporter removes factors of 1 and terms of 0, which fresh parameters are.
    """
    values = {v.name for node in model.graph for v in node.outputs}
    read = {name for node in model.graph for name in torch_names.operands(node)}
    names = sorted(n for n in read - values if re.fullmatch(r"(add|div|mul|sub)(_\d+)?", n))
    if not names:
        return None
    count = f"{len(names)} operation{'s' * (len(names) > 1)} left out by the exporter"
    why = "a factor of 1 or a term of 0 may be a parameter that is not in the file; export with "
    return f"{count}: {_listed(names)}", f"{why}optimize=False to train it"


def _detached(model: Model) -> tuple[str, str] | None:
    """Results that calls of torch read without a gradient, which an ONNX file does not say."""
    readers = [
        quote(node.outputs[0].name or "")
        for node in model.graph
        if any(re.fullmatch(r"detach_?(_\d+)?", name) for name in torch_names.operands(node))
    ]
    if not readers:
        return None
    readers = list(dict.fromkeys(readers))
    why = "the exporter leaves detach out, so that gradients flow there; sx.from_torch keeps it"
    return f"{len(readers)} result{'s' * (len(readers) > 1)} of detached tensors: " + ", ".join(
        readers[:SHOWN]
    ), why


def _integers(model: Model) -> tuple[str, str] | None:
    """Quantized weights: integers behind DequantizeLinear."""
    names = [
        node.inputs[0].name or ""
        for node in model.graph
        if node.op_type == "DequantizeLinear"
        and node.inputs[0] is not None
        and node.inputs[0].const_value is not None
    ]
    if not names:
        return None
    count = f"{len(names)} quantized tensor{'s' * (len(names) > 1)}: {_listed(names)}"
    return count, "integers are not trained; sx.dequantize(model) makes float weights of them"

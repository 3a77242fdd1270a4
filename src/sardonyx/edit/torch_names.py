"""What torch's exporters wrote beside a node: its module, and the parameters that it reads.

The newer exporter keeps the call that a node comes from, such as
`aten.linear.default](args = (%x, %p_head_weight, %p_head_bias)`; parameters there have the prefix
`p_` and buffers `b_`, and dots have become underscores. What the exporter merged, computed or left
out afterwards is still named there.
"""

from __future__ import annotations

import ast
import re

import onnx_ir as ir

from sardonyx.weights import FOLDED, folded_from

SCOPES = "pkg.torch.onnx.name_scopes"
CALL = "pkg.torch.onnx.fx_node"
OPERATOR = re.compile(r"target=torch\.ops\.aten\.(\w+)")
PARAMETER = re.compile(r"%p_(\w+)")
BUFFER = re.compile(r"%b_(\w+)")
COMPUTED = re.compile(r"(onnx::|val_|_onnx_)\w+$")  # names of tensors that an exporter computed


def module_path(node: ir.Node) -> str:
    """The path of the torch module that a node comes from, where the newer exporter wrote it."""
    try:
        scopes = ast.literal_eval(node.metadata_props.get(SCOPES, "[]"))
    except (ValueError, SyntaxError):
        return ""
    return str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else ""


def operator(node: ir.Node) -> str:
    """The operator of torch that a node comes from, such as "linear"; empty if not known."""
    match = OPERATOR.search(node.metadata_props.get(CALL, ""))
    return match[1] if match else ""


def parameters(node: ir.Node) -> tuple[str, ...]:
    """The parameters that the operator of a node reads, in the spelling of `spelled`."""
    return tuple(PARAMETER.findall(node.metadata_props.get(CALL, "")))


def operands(node: ir.Node) -> tuple[str, ...]:
    """The results that the call of a node reads."""
    _, found, arguments = node.metadata_props.get(CALL, "").partition("](args = ")
    return tuple(re.findall(r"%(\w+)", arguments)) if found else ()


def argument(node: ir.Node, position: int, pattern: re.Pattern[str] = PARAMETER) -> str:
    """The parameter that the call of a node has as its argument at this position; else empty."""
    _, found, arguments = node.metadata_props.get(CALL, "").partition("](args = (")
    parts = re.sub(r"\[[^]]*\]", "", arguments.partition("), kwargs")[0]).split(", ")
    match = pattern.fullmatch(parts[position]) if found and position < len(parts) else None
    return match[1] if match else ""


def statistic(node: ir.Node, position: int) -> str:
    """The buffer that the call of a BatchNormalization has as this running statistic."""
    return argument(node, position, BUFFER)


def lacks_parameters(node: ir.Node) -> bool:
    """Whether the call of a normalization reads neither a scale nor a shift: its further tensors
    are buffers, which have the prefix `b_`, and sizes.
    """
    if "norm" not in operator(node):
        return False
    return all(name.startswith(("b_", "sym_size")) for name in operands(node)[1:])


def spelled(name: str | None) -> str:
    """The name of a parameter as calls spell it: "head.weight" is "head_weight"."""
    return (name or "").replace(".", "_")


def respelled(spelling: str, pattern: str) -> str:
    """A spelling with the dots of a similar name: "h_1_to_q" is "h.1.to_q" beside "h.0.to_q"."""
    separators = [*re.findall(r"[._]", pattern), ""]
    words = spelling.split("_")
    if len(words) != len(separators):
        return spelling
    return "".join(word + separator for word, separator in zip(words, separators, strict=True))


def is_computed(value: ir.Value) -> bool:
    """Whether an exporter computed a tensor: it has a name that no parameter has."""
    if COMPUTED.match(value.name or "") or FOLDED in value.metadata_props:
        return True
    result = re.compile(rf"%{re.escape(value.name or '')}\b")
    return any(result.search(node.metadata_props.get(CALL, "")) for node, _ in value.uses())


def origins(value: ir.Value) -> frozenset[str]:
    """What the newer exporter computed a tensor from, constants of its own left out."""
    return frozenset(n for n in folded_from(value) if not COMPUTED.match(n))

"""The module of the original model that each node was in, from what exporters record.

torch.onnx with dynamo: metadata `pkg.torch.onnx.name_scopes` and `class_hierarchy`. The older
exporter: names of nodes, `/encoder/layer.0/attention/MatMul`. Others: names of weights,
`encoder.layer.0.attention.weight`. A path is a tuple of components; one with a dot ("layer.0") is
an item of a list that is never called itself.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

import onnx_ir as ir

from sardonyx.engines.torch.xp import torch

Path = tuple[str, ...]
SCOPES = "pkg.torch.onnx.name_scopes"
CLASSES = "pkg.torch.onnx.class_hierarchy"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*|[0-9]+")
LONGEST = 10_000
DEEPEST = 32  # components; a longer path cannot be that of a module


def attribute(name: str) -> str:
    """The name of a child or a tensor of a module."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:60] or "part"
    text = f"layer{text}" if text[0].isdigit() else text
    is_taken = keyword.iskeyword(text) or hasattr(torch.nn.Module, text) or text == "training"
    return f"{text}_" if is_taken else text


def cleaned(parts: Iterable[str]) -> Path:
    """A path whose components are names of attributes, or numbers."""
    return tuple(
        ".".join(p if p.isdigit() else attribute(p) for p in part.split(".")) for part in parts
    )


def dotted(path: Iterable[str]) -> str:
    return ".".join(path)


def split(name: str) -> Path:
    """The path of a dotted name: numbers belong to the list before them."""
    parts: list[str] = []
    for part in name.split("."):
        if part.isdigit() and parts and not parts[-1].rpartition(".")[2].isdigit():
            parts[-1] += f".{part}"
        else:
            parts.append(part)
    return tuple(parts)


def common(paths: Iterable[Path]) -> Path:
    """The longest common beginning."""
    rows = list(paths)
    beginning: list[str] = []
    for parts in zip(*rows):
        if len(set(parts)) > 1:
            break
        beginning.append(parts[0])
    return tuple(beginning)


def scopes_of(graph: ir.Graph, weights: Iterable[str]) -> tuple[dict[ir.Node, Path], bool]:
    """The path of each node, and whether the nodes record it, not only names of weights.

    A node without a path takes that of its neighbours.
    """
    paths: dict[ir.Node, Path] = {}
    names = set(weights)
    for node in graph:
        path = _recorded_path(node)
        if path is not None and len(path) <= DEEPEST:
            paths[node] = path
    has_scopes = any(paths.values())
    if not has_scopes:
        paths = {n: p for n in graph if (p := _of_weights(n, names)) is not None}
    for _ in range(3):
        for node in graph:
            if node not in paths:
                near = _neighbours(node, paths)
                if near:
                    paths[node] = common(near)
    return {node: paths.get(node, ()) for node in graph}, has_scopes


def classes_of(graph: ir.Graph) -> dict[str, str]:
    """Class names of the original by dotted path, where the exporter wrote them."""
    class_names: dict[str, str] = {}
    for node in graph:
        scopes, classes = (_listed(node.metadata_props.get(k, "")) for k in (SCOPES, CLASSES))
        if scopes and classes and len(scopes) == len(classes):
            for scope, kind in zip(scopes[:-1], classes[:-1]):
                class_names.setdefault(dotted(cleaned([scope])) if scope else "", kind)
    return class_names


def _listed(text: str) -> list[str]:
    """The words of a list as Python prints it; words with quotes or escapes are not modules."""
    if not text.startswith("[") or len(text) > LONGEST:
        return []
    return [a or b for a, b in re.findall(r"""'([^'"\\]*)'|"([^'"\\]*)\"""", text)]


def _recorded_path(node: ir.Node) -> Path | None:
    listed = _listed(node.metadata_props.get(SCOPES, ""))
    if listed and listed[0] == "":
        return _checked(_relative(listed[:-1]))
    if not listed and (node.name or "").startswith("/"):
        return _checked(_script_path(node.name or ""))
    return None


def _relative(scopes: list[str]) -> list[str]:
    parts, before = [], ""
    for scope in scopes[1:]:
        inside = before + "." if before else ""
        if not scope.startswith(inside):
            break
        parts.append(scope[len(inside) :])
        before = scope
    return parts


def _script_path(name: str) -> list[str]:
    """`/layer1/layer1.0/conv1/Conv`: an item of a Sequential repeats the name of what it is in."""
    parts: list[str] = []
    before = ""
    for part in name.split("/")[1:-1]:
        parts.append(part[len(before) + 1 :] if before and part.startswith(f"{before}.") else part)
        before = part
    return parts


def _checked(parts: list[str]) -> Path | None:
    return cleaned(parts) if all(NAME.fullmatch(p) for p in parts) else None


def _of_weights(node: ir.Node, weights: set[str]) -> Path | None:
    names = [v.name or "" for v in node.inputs if v is not None and v.name in weights]
    paths = [_checked(list(split(n.rpartition(".")[0]))) for n in names if "." in n]
    good = [p for p in paths if p is not None]
    return good[0] if good else None


def _neighbours(node: ir.Node, paths: dict[ir.Node, Path]) -> list[Path]:
    before = [v.producer() for v in node.inputs if v is not None]
    after = [use.node for v in node.outputs for use in v.uses()]
    return [paths[n] for n in (*before, *after) if n is not None and n in paths]

"""Modules as classes: modules of one form share a class, whose arguments are what differs.

Also the whole file: imports, classes from the inside out, and the function that loads the weights.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.torch.source.expression import Literal
from sardonyx.engines.torch.source.forward import Line, Token, Writer, identifier
from sardonyx.engines.torch.source.layers import Layer
from sardonyx.engines.torch.source.reading import Statement
from sardonyx.engines.torch.source.scopes import attribute, dotted
from sardonyx.engines.torch.source.structure import Call, Module

COLUMNS = 100
# Names that exporters invent for tensors.
MADE_UP = (
    r"(val|onnx|const|lifted|Constant|output)?_?.*?_?output_\d+|(val|const|[A-Z][A-Za-z]*)_?\d*"
)
OPTIONS = {"kernel_size", "stride", "padding", "dilation", "groups", "output_padding", "eps"}
LONGEST = 40  # letters of a tensor's name that are used
# Functions that have a layer without weights: for nn.Sequential.
AS_LAYER = {
    "F.relu({})": "nn.ReLU()",
    "F.gelu({})": "nn.GELU()",
    'F.gelu({}, approximate="tanh")': 'nn.GELU(approximate="tanh")',
    "F.silu({})": "nn.SiLU()",
    "F.mish({})": "nn.Mish()",
    "F.hardswish({})": "nn.Hardswish()",
    "F.softplus({})": "nn.Softplus()",
    "torch.sigmoid({})": "nn.Sigmoid()",
    "torch.tanh({})": "nn.Tanh()",
    "{}.flatten(1)": "nn.Flatten()",
}


@dataclass
class ModuleText:
    """A module as text: the constructor's lines, the forward method's, and all numbers in them."""

    module: Module
    setup: list[Line]
    forward: list[Line]
    arguments: list[str]

    @property
    def lines(self) -> list[Line]:
        return [*self.setup, *self.forward]

    @property
    def numbers(self) -> list[Literal]:
        return [t for _, tokens in self.lines for t in tokens if isinstance(t, Literal)]

    @property
    def form(self) -> tuple[Any, ...]:
        """The text without its numbers: modules with the same form can be one class."""
        marks = [
            (depth, *("#" if isinstance(t, Literal) else t for t in tokens))
            for depth, tokens in self.lines
        ]
        return (*marks, tuple(self.arguments), len(self.setup))


@dataclass
class Class:
    name: str
    example: ModuleText
    parameters: list[str] = field(default_factory=list)
    columns: dict[int, str] = field(default_factory=dict)  # position of a number -> parameter
    ties: list[str] = field(default_factory=list)
    about: str = ""


class ClassWriter:
    """Writes the classes of a tree of modules."""

    def __init__(self, root: Module, names: list[str], classes: dict[str, str], title: str):
        self.root, self.input_names, self.known_classes = root, names, classes
        self.title = title
        self.arguments: dict[int, list[str]] = {}
        self.makers: dict[int, list[Token]] = {}  # how an instance is made, by id of its module
        self.classes: list[Class] = []
        self.used: set[str] = {"nn", "F", "Path"}

    def write(self) -> list[Class]:
        levels: dict[int, list[Module]] = {}
        for module in self.root.every():
            levels.setdefault(self._height(module), []).append(module)
        for height in sorted(levels):
            self._level(levels[height])
        return self.classes

    def _height(self, module: Module) -> int:
        inner = [self._height(c) for c in module.children.values() if isinstance(c, Module)]
        return 1 + max(inner, default=0)

    def _level(self, modules: list[Module]) -> None:
        groups: dict[Any, list[ModuleText]] = {}
        for module in modules:
            self._name_held(module)
            tokens = None if module is self.root else self._sequential(module)
            if tokens is not None:
                self.makers[id(module)] = tokens
                self.arguments[id(module)] = ["x"]
                continue
            names = self.input_names if module is self.root else None
            text = Writer(module, self.arguments, names).write()
            self.arguments[id(module)] = text.arguments
            module_text = ModuleText(module, self._setup(module), text.lines, text.arguments)
            groups.setdefault(module_text.form, []).append(module_text)
        for group in groups.values():
            self._class(group)

    # -- constructors

    def _name_held(self, module: Module) -> None:
        used = {attribute(name.split(".")[0]) for name in module.children}
        for value in module.held:
            last = re.split(r"[./:]", value.name or "")[-1]
            plain = name = attribute(last)
            is_odd = not re.search("[A-Za-z]{3}", last) or len(last) > LONGEST
            if is_odd or re.fullmatch(MADE_UP, last):
                plain = name = "constant"
            if plain == "constant" and _counts_up(value):
                plain = name = "positions"
            name = _unused(name, used)
            used.add(name)
            module.held[value] = name

    def _setup(self, module: Module) -> list[Line]:
        lines: list[Line] = []
        for value, name in module.held.items():
            lines.append((0, _declared(name, value)))
        for name, child in grown(module.children).items():
            start = f"self.{attribute(name)} = "
            lines.append((0, [start, *self._made(child)]))
        return lines

    def _made(self, child: Any) -> list[Token]:
        if isinstance(child, Layer):
            return layer_tokens(child)
        if isinstance(child, Module):
            return self.makers[id(child)]
        if all(name.isdigit() for name in child):
            # Other items of the list held nothing, or were folded away: the rest keep their places.
            made_of = {int(name): self._made(c) for name, c in child.items()}
            places = [made_of.get(i, ["nn.Identity()"]) for i in range(max(made_of) + 1)]
            return ["nn.ModuleList(", *listed(places), ")"]
        items = [self._made(c) for c in child.values()]
        parts: list[Token] = ["nn.ModuleDict({"]
        for i, (name, expression) in enumerate(zip(child, items)):
            parts += [", "] if i else []
            parts += [f'"{attribute(name)}": ', *expression]
        return [*parts, "})"]

    def _sequential(self, module: Module) -> list[Token] | None:
        """`nn.Sequential(…)` for a chain of numbered children and functions without weights."""
        if module.held or len(module.inputs) != 1 or len(module.outputs) != 1:
            return None
        if not module.children or not all(n.isdigit() for n in module.children):
            return None
        items: list[list[Token]] = []
        value = module.inputs[0]
        renamed: dict[str, Module | Layer] = {}
        for element in module.body:
            if list(element.reads) != [value] or len(element.outputs) != 1:
                return None
            (value,) = element.outputs
            if isinstance(element, Statement):
                parts = element.expression.parts
                text = "".join(p if isinstance(p, str) else "{}" for p in parts)
                if text not in AS_LAYER:
                    return None
                items.append([AS_LAYER[text]])
            elif isinstance(element, Call):
                renamed[str(len(items))] = element.child
                items.append(self._made(element.child))
            else:
                return None
        if value is not module.outputs[0]:
            return None
        module.children, module.is_sequential = renamed, True
        return ["nn.Sequential(", *listed(items, star=True), ")"]

    # -- classes

    def _class(self, group: list[ModuleText]) -> None:
        first = group[0]
        rows = [[n.value for n in one.numbers] for one in group]
        columns_of_numbers: dict[tuple[Any, ...], list[str]] = {}
        places: dict[int, tuple[Any, ...]] = {}
        for i, literal in enumerate(first.numbers):
            column = tuple(_key(row[i]) for row in rows)
            if len(set(column)) > 1:
                columns_of_numbers.setdefault(column, []).append(literal.hint)
                places[i] = column
        names: dict[tuple[Any, ...], str] = {}
        # Widths come first, options after them and by keyword: Block(64, 128, stride=2).
        for column, hints in sorted(
            columns_of_numbers.items(), key=lambda item: item[1][0] in OPTIONS
        ):
            names[column] = _unused(identifier(_meaning(hints)), names.values())
        columns = {i: names[column] for i, column in places.items()}
        new_class = Class(self._class_name(group), first, list(names.values()), columns)
        self.classes.append(new_class)
        for one in group:
            values = {name: one.numbers[i].value for i, name in columns.items()}
            call: list[Token] = [f"{new_class.name}("]
            for i, name in enumerate(new_class.parameters):
                lead = f"{name}=" if name in OPTIONS else ""
                call += [", "] if i else []
                call.append(Literal(values[name], name, lead))
            self.makers[id(one.module)] = [*call, ")"]

    def _class_name(self, group: list[ModuleText]) -> str:
        module = group[0].module
        original = self.known_classes.get(dotted(module.path), "")
        name = original.rpartition(".")[2] if not original.startswith("torch.nn.") else ""
        if not re.fullmatch(r"[A-Z][A-Za-z0-9]{1,60}", name) or keyword.iskeyword(name):
            name = camel(module.path[-1] if module.path else self.title)
            words = {re.sub(r"\d+$", "", one.module.path[-1]) for one in group if one.module.gives}
            name = "Branch" if len(words) > 1 else name
            attends = any(getattr(e, "op", "") == "DotProductAttention" for e in module.body)
            if attends and module.path and not re.search("att", name, re.IGNORECASE):
                name += "Attention"
        others = [c for c in self.classes if c.name.startswith(name)]
        extra = [
            n for n in module.children if all(n not in c.example.module.children for c in others)
        ]
        options = [name, *(f"{name}With{camel(n)}" for n in extra[:1] if others)]
        options += [camel(p) + name for p in reversed(module.path[:-1])]
        options += [f"{name}{i}" for i in range(2, len(self.used) + 3)]
        chosen = next(o for o in options if o not in self.used)
        self.used.add(chosen)
        return chosen


def _counts_up(value: ir.Value) -> bool:
    """Whether a constant is 0, 1, 2, …"""
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.INT64:
        return False
    return bool((tensor.numpy().reshape(-1) == np.arange(tensor.size)).all())


def _meaning(hints: list[str]) -> str:
    """A name for a size that is used in several places: `hidden_…` between two layers."""
    ends = {h.partition("_")[2] for h in hints if h.startswith(("in_", "out_"))}
    if len(ends) == 1 and {h.partition("_")[0] for h in hints} >= {"in", "out"}:
        return ends.pop() if hints[0].startswith("in_") else f"hidden_{ends.pop()}"
    return hints[0]


def _key(value: Any) -> Any:
    return type(value).__name__, value


def _unused(name: str, used: Iterable[str]) -> str:
    used_names, plain, number = set(used), name, 1
    while name in used_names:
        number += 1
        name = f"{plain}{number}"
    return name


WORDS = {"attn": "Attention", "mlp": "MLP", "ffn": "FeedForward", "ff": "FeedForward"}


def camel(name: str) -> str:
    """A class name of a component: "layer.0" is Layer, "self" is Self, a letter is Block."""
    is_item = name.rpartition(".")[2].isdigit()
    plain = name.rpartition(".")[0] if is_item else name
    words = [w for w in re.split(r"[^A-Za-z0-9]+", plain) if w]
    text = "".join(WORDS.get(w, w[0].upper() + w[1:]) for w in words)[:60]
    if len(text) < 2 or not text[0].isalpha() or keyword.iskeyword(text) or text == "Path":
        return "Block"
    plural = is_item and text.endswith("s") and len(text) > 3 and not text.endswith("ss")
    return text[:-1] if plural else text


def grown(children: dict[str, Any]) -> dict[str, Any]:
    """Children by name, items of lists in dicts of their own."""
    tree: dict[str, Any] = {}
    for name, child in children.items():
        place = tree
        *path, last = name.split(".")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = child
    return tree


def layer_tokens(layer: Layer) -> list[Token]:
    tokens: list[Token] = [f"{layer.kind}("]
    for i, literal in enumerate(layer.arguments):
        tokens += [", ", literal] if i and not literal.lead else [literal]
    return [*tokens, _layer_type(layer), ")"]


def _layer_type(layer: Layer) -> str:
    """The argument `dtype` of a layer whose parameters are no float32."""
    kinds = {v.dtype for tensor in layer.tensors.values() for v in tensor.sources}
    kind = next((k for k in kinds if k is not None and k.is_floating_point()), None)
    return TYPE.get(kind, "") if kind is not None else ""


def listed(items: list[list[Token]], star: bool = False) -> list[Token]:
    """A list of what is made; one expression for items that are all alike."""
    texts = [flat(i) for i in items]
    if len(items) > 1 and len(set(texts)) == 1:
        count = Literal(len(items), "layers")
        return ["*[" if star else "[", *items[0], " for _ in range(", count, ")]"]
    parts: list[Token] = [] if star else ["["]
    for i, item in enumerate(items):
        parts += [", "] if i else []
        parts += item
    return parts if star else [*parts, "]"]


def flat(tokens: Sequence[Token]) -> str:
    return "".join(str(t) for t in tokens)


TYPE = {
    ir.DataType.INT64: ", dtype=torch.int64",
    ir.DataType.INT32: ", dtype=torch.int32",
    ir.DataType.BOOL: ", dtype=torch.bool",
    ir.DataType.DOUBLE: ", dtype=torch.float64",
    ir.DataType.FLOAT16: ", dtype=torch.float16",
    ir.DataType.BFLOAT16: ", dtype=torch.bfloat16",
    ir.DataType.UINT8: ", dtype=torch.uint8",
    ir.DataType.INT8: ", dtype=torch.int8",
}


def _declared(name: str, value: ir.Value) -> list[Token]:
    """A tensor that belongs to no layer: a parameter, or a buffer where training leaves it."""
    shape: list[Token] = []
    for i, size in enumerate(value.const_value.shape.numpy()):  # type: ignore[union-attr]
        shape += ([", "] if i else []) + [Literal(int(size), "size")]
    empty: list[Token] = ["torch.empty(", *(shape or ["()"]), TYPE.get(value.dtype, ""), ")"]  # type: ignore[arg-type]
    if value.meta.get("is_weight"):
        return [f"self.{name} = nn.Parameter(", *empty, ")"]
    return [f'self.register_buffer("{name}", ', *empty, ")"]


# -- text ---------------------------------------------------------------------------------


def wrapped(text: str, depth: int) -> list[str]:
    """A line, or several where it is too long: one for each item between its outer brackets."""
    line = "    " * depth + text
    start = text.find("(")
    if len(line) <= COLUMNS or start < 0:
        return [line]
    end = _closing(text, start)
    items = _items(text[start + 1 : end])
    if not items or not text[start + 1 : end]:
        return [line]
    # Around one expression that nothing calls, a comma would make a tuple.
    is_group = len(items) == 1 and not (start and re.match(r"[\w\])]", text[start - 1]))
    comma = "" if is_group else ","
    inner = [part for item in items for part in wrapped(f"{item}{comma}", depth + 1)]
    return ["    " * depth + text[: start + 1], *inner, "    " * depth + text[end:]]


def _closing(text: str, start: int) -> int:
    """Where the bracket at `start` is closed."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if not depth:
            return i
    return len(text)


def _items(text: str) -> list[str]:
    """The parts of a text between the commas outside of brackets."""
    items, depth, begin = [], 0, 0
    for i, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            items.append(text[begin:i].strip())
            begin = i + 1
    return [*items, text[begin:].strip()]


def source(classes: list[Class], weights: str) -> str:
    """The whole file."""
    body = "\n\n\n".join(class_text(c) for c in classes)
    main = classes[-1].name
    imports = ["from pathlib import Path", "", "import torch"]
    if re.search(r"\bF\.", body):
        imports.append("import torch.nn.functional as F")
    imports += ["from safetensors.torch import load_model, save_model", "from torch import nn"]
    loader = f'''def load(folder: str | Path = Path(__file__).parent) -> {main}:
    """The model with its weights, ready for inference; `.train()` lets it train."""
    model = {main}()
    load_model(model, str(Path(folder) / "{weights}"))
    return model.eval()


def save(model: {main}, folder: str | Path = Path(__file__).parent) -> None:
    """Write the weights where `load()` finds them."""
    save_model(model, str(Path(folder) / "{weights}"))'''
    opening = '"""A model converted from ONNX to torch; `load()` gives it with its weights."""'
    return "\n".join([opening, "", *imports, "", "", f"{body}\n\n\n{loader}\n"])


def class_text(written_class: Class) -> str:
    one = written_class.example
    numbers = iter(range(len(one.numbers)))
    setup = [_line(line, numbers, written_class.columns, "", 2) for line in one.setup]
    forward = [_line(line, numbers, written_class.columns, "self.", 2) for line in one.forward]
    parameters = ", ".join(
        ["self", *(f"{n}: {_annotation(written_class, n)}" for n in written_class.parameters)]
    )
    text = [f"class {written_class.name}(nn.Module):"]
    if written_class.about:
        text += [*_docstring(written_class.about), ""]
    if setup or _kept(written_class):
        text += [*wrapped(f"def __init__({parameters}) -> None:", 1), "        super().__init__()"]
        text += [f"        self.{n} = {n}" for n in _kept(written_class)]
        text += [line for lines in setup for line in lines]
        text += [f"        {line}" for line in written_class.ties]
        text.append("")
    count = len(one.module.outputs)
    gives = "torch.Tensor" if count == 1 else f"tuple[{', '.join(['torch.Tensor'] * count)}]"
    names = ", ".join(["self", *(f"{n}: torch.Tensor" for n in one.arguments)])
    text += wrapped(f"def forward({names}) -> {gives}:", 1)
    return "\n".join([*text, *(line for lines in forward for line in lines)])


def _docstring(about: str) -> list[str]:
    lines = textwrap.wrap(f'"""{about}', COLUMNS - 7, break_long_words=False)
    ending = ['"""'] if len(lines) > 1 else []
    lines[-1] += "" if ending else '"""'
    return [f"    {line}" for line in [*lines, *ending]]


def _kept(written_class: Class) -> list[str]:
    """Parameters that the forward method reads."""
    one = written_class.example
    count = sum(isinstance(t, Literal) for _, tokens in one.setup for t in tokens)
    later = {name for i, name in written_class.columns.items() if i >= count}
    return [name for name in written_class.parameters if name in later]


def _annotation(written_class: Class, name: str) -> str:
    position = next(i for i, n in written_class.columns.items() if n == name)
    value = written_class.example.numbers[position].value
    plain = {bool: "bool", int: "int", float: "float", str: "str", tuple: "tuple[int, ...]"}
    return plain.get(type(value), "object")


def _line(
    line: Line, numbers: Iterator[int], columns: dict[int, str], prefix: str, base: int
) -> list[str]:
    depth, tokens = line
    texts = []
    for token in tokens:
        if isinstance(token, Literal):
            i = next(numbers)
            texts.append(token.lead + prefix + columns[i] if i in columns else str(token))
        else:
            texts.append(token)
    return wrapped("".join(texts), base + depth)

"""The forward method of a module: names of variables, lines, loops and conditions.

Text is made of tokens: strings and numbers (`Literal`), so that classes that differ only in numbers
can become one. Every name comes from `identifier`, which uses a fixed alphabet.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.engines.torch.source.expression import (
    COMPARISON,
    Dim,
    Expression,
    Hole,
    Literal,
    build,
)
from sardonyx.engines.torch.source.layers import Layer
from sardonyx.engines.torch.source.reading import Cycle, Statement
from sardonyx.engines.torch.source.scopes import attribute
from sardonyx.engines.torch.source.structure import Call, Choice, Loop, Module, Repeat

Token = str | Literal
Line = tuple[int, list[Token]]  # depth of indentation, text
WIDTH = 84  # characters of a line, without its indentation by a class and a method
NUMBER = 3  # how many a number counts, whatever it is: instances must not be laid out differently
DEEPEST = 3  # calls inside one another in one line
TAKEN = {"self", "torch", "nn", "F", "Path", "load_model"}

# The names of results of layers with these names.
RESULT_OF_LAYER = {
    "query": "query", "key": "key", "value": "value", "q_proj": "q", "k_proj": "k", "v_proj": "v",
    "to_q": "q", "to_k": "k", "to_v": "v", "gate_proj": "gate", "up_proj": "up", "gate": "gate",
    "q": "q", "k": "k", "v": "v",
}  # fmt: skip
# The names of results of these operators.
RESULTS = {"Range": "positions", "Softmax": "weights", "TopK": "top", "ArgMax": "best"}
# Operators that only change the layout: the role of a value is that of their input.
FORMS = {"Reshape", "Transpose", "Mul", "Div", "Unsqueeze", "Squeeze", "Cast", "Identity"}


def identifier(name: str, fallback: str = "x") -> str:
    """A Python name like `name`: ASCII letters, digits and underscores, nothing reserved."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:60]
    if not text or text[0].isdigit():
        text = f"{fallback}_{text}".strip("_")
    is_taken = keyword.iskeyword(text) or keyword.issoftkeyword(text) or text in TAKEN
    return f"{text}_" if is_taken or hasattr(builtins, text) else text


def width(tokens: Sequence[Token]) -> int:
    return sum(
        len(t) if isinstance(t, str) else 0 if t.is_usual else NUMBER + len(t.lead) for t in tokens
    )


def nesting(tokens: Sequence[Token]) -> int:
    """The largest number of brackets that are open at once."""
    depth = most = 0
    for token in tokens:
        for sign in token if isinstance(token, str) else "":
            depth += (sign in "([") - (sign in ")]")
            most = max(most, depth)
    return most


def reference(target: str) -> str:
    """How a module reaches a child: `self.layer[0]`, `self.part.inner`."""
    text = "self"
    for i, part in enumerate(target.split(".")):
        text += f"[{part}]" if part.isdigit() and i else f".{attribute(part)}"
    return text


@dataclass
class Forward:
    """The text of a forward method; `arguments` are the names of the module's inputs."""

    arguments: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


@dataclass
class Text:
    """An expression as text: how tightly it binds, the variables in it, the main one of them."""

    tokens: list[Token]
    rank: int
    reads: Counter[ir.Value] = field(default_factory=Counter)
    main: ir.Value | None = None
    hint: str = "out"


class Writer:
    """Writes the forward method of one module.

    argument_names -- of the modules that were written before, by id
    names          -- of the inputs of the whole model, for the outermost forward method
    """

    def __init__(
        self, module: Module, argument_names: dict[int, list[str]], names: list[str] | None = None
    ):
        self.module, self.argument_names, self.is_root = module, argument_names, names is not None
        self.result = Forward()
        self.name: dict[ir.Value, str] = {}
        self.pending: dict[ir.Value, Text] = {}
        self.left = self._uses()
        branches = [w for e in module.body if isinstance(e, Choice) for w in e.branches]
        self.sized = {
            p.value
            for e in (*module.body, *branches)
            if isinstance(e, Statement)
            for p in e.expression.parts
            if isinstance(p, Dim)
        }
        self.roles = self._roles()
        self._name_arguments(names)
        self.sizes = self._named_sizes()

    def write(self) -> Forward:
        for element in self.module.body:
            if isinstance(element, Loop):
                self._loop(element)
            elif isinstance(element, Choice):
                self._choice(element)
            elif isinstance(element, Repeat):
                self._repeat(element)
            else:
                self._element(element)
        self._return()
        return self.result

    # -- names

    def _uses(self) -> Counter[ir.Value]:
        counts: Counter[ir.Value] = Counter()
        for element in self.module.body:
            counts.update(element.reads)
        counts.update(self.module.outputs)
        return counts

    def _roles(self) -> dict[ir.Value, str]:
        """Values that are queries, keys, values or masks of an attention, forms aside."""
        makers = {v: e for e in self.module.body for v in e.outputs}
        roles: dict[ir.Value, str] = {}
        for element in self.module.body:
            if isinstance(element, Statement) and element.op == "DotProductAttention":
                operands = zip(element.expression.values, ("q", "k", "v", "mask"))
                for start, role in operands:
                    value: ir.Value | None = start
                    while value is not None and value not in roles:
                        roles[value] = role
                        maker = makers.get(value)
                        is_form = isinstance(maker, Statement) and maker.op in FORMS
                        value = maker.expression.values[0] if is_form else None  # type: ignore[union-attr]
            elif isinstance(element, (Call, Loop)):
                call = element.first if isinstance(element, Loop) else element
                for argument, name in zip(call.inputs, self.argument_names.get(id(call.child), ())):
                    if name not in ("x", "residual"):
                        roles.setdefault(argument, name)
        return roles

    def _name_arguments(self, names: list[str] | None) -> None:
        proposals = names or [self._role_of_input(v) for v in self.module.inputs]
        for value, name in zip(self.module.inputs, proposals):
            if name == "x" and proposals.count("x") > 1 and value.is_graph_input():
                name = value.meta.get("argument") or value.name or name
            self.name[value] = self._fresh(identifier(name))
        self.result.arguments = [self.name[v] for v in self.module.inputs]
        self.fixed = {v: f"self.{name}" for v, name in self.module.held.items()}
        self.fixed.update({v: reference(name) for v, name in self.module.reached.items()})
        self.name.update(self.fixed)

    def _role_of_input(self, value: ir.Value) -> str:
        if self.roles.get(value) == "mask":
            return "mask"
        for element in self.module.body:
            if isinstance(element, (Call, Loop)):
                call = element.first if isinstance(element, Loop) else element
                if isinstance(call.child, Module) and value in call.inputs:
                    name = self.argument_names[id(call.child)][call.inputs.index(value)]
                    return name if name != "residual" else "x"
                if isinstance(call.child, Layer) and value in call.inputs:
                    return "ids" if call.child.kind == "nn.Embedding" else "x"
            elif isinstance(element, Choice):
                if value in element.condition.values:
                    return "condition"
                for call in element.calls:
                    if value in call.inputs and isinstance(call.child, Module):
                        return self.argument_names[id(call.child)][call.inputs.index(value)]
            elif isinstance(element, Repeat):
                if value in element.reads:
                    return "x"
            elif any(isinstance(p, Hole) and p.value is value for p in element.expression.parts):
                is_sum = element.op == "Add" and element.expression.values[0] is not value
                return "residual" if is_sum else "x"
        return "x"

    def _fresh(self, name: str) -> str:
        """A name like `name` that no value has which is still to be read."""
        fixed = {n for v, n in self.name.items() if v.name is None}
        used = {n for v, n in self.name.items() if self.left[v] > 0} | fixed
        if name == "out" and "x" not in used:
            return "x"
        plain, number = name, 1
        while name in used:
            number += 1
            name = f"{plain}{number}"
        return name

    def _named_sizes(self) -> dict[tuple[ir.Value, int], str]:
        """Sizes of an input that are written more than once have a name, given at the top."""
        counts: Counter[tuple[ir.Value, int]] = Counter()
        for element in self.module.body:
            if isinstance(element, Statement):
                dims = [p for p in element.expression.parts if isinstance(p, Dim)]
                counts.update((d.value, d.axis) for d in dims)
        size_names: dict[tuple[ir.Value, int], str] = {}
        for value in self.module.inputs:
            axes = sorted(a for (v, a), n in counts.items() if v is value and n > 1)
            if not axes:
                continue
            rank = len(value.shape or ())
            if axes == list(range(len(axes))) and len(axes) > 1:
                names = [self._size_name(value, a, rank) for a in axes]
                whole = "" if len(axes) == rank else f"[:{len(axes)}]"
                text = f"{', '.join(names)} = {self.name[value]}.shape{whole}"
            else:
                axes = axes[:1]
                names = [self._size_name(value, axes[0], rank)]
                text = f"{names[0]} = {self.name[value]}.shape[{axes[0]}]"
            self.result.lines.append((0, [text]))
            size_names.update({(value, a): n for a, n in zip(axes, names)})
            for axis in axes:
                self.left[value] -= counts[value, axis]
        return size_names

    def _size_name(self, value: ir.Value, axis: int, rank: int) -> str:
        usual = {1: ["batch", "length", "width"], 2: ["batch", "channels", "height", "width"]}
        names = usual[2 if rank == 4 else 1]
        name = names[axis] if axis < len(names) else f"size{axis}"
        name = self._fresh(name)
        self.name[ir.Value()] = name  # the name stays reserved
        return name

    # -- one line

    def _element(self, element: Statement | Call) -> None:
        expression = self._expression(element)
        values = expression.values
        for value in values:  # a value read twice, or whose size is read, needs a name
            if value in self.pending and (values.count(value) > 1 or value in self.sized):
                self._flush(value)
        if isinstance(element, Call) and isinstance(element.child, Layer):
            for value in values:  # a new layer begins a new line after two calls
                if value in self.pending and nesting(self.pending[value].tokens) > 1:
                    self._flush(value)
        elif isinstance(element, Call):
            for value in values:  # a further argument of a module gets a name
                if value in self.pending and self.roles.get(value, "x") != "x":
                    self._flush(value)
        text = self._composed(expression)
        while width(text.tokens) > WIDTH - 12 or nesting(text.tokens) > DEEPEST:
            waiting = [v for v in values if v in self.pending]
            if not waiting:
                break
            long = [v for v in waiting if width(self.pending[v].tokens) > 12]
            self._flush((long or waiting)[0])
            text = self._composed(expression)
        text.hint = self._hint(element, values)
        if isinstance(element, Statement) and element.op == "DotProductAttention":
            text.main = None
        for value in values:
            self.pending.pop(value, None)
        outputs = element.outputs
        if len(outputs) == 1 and self.left[outputs[0]] == 1 and outputs[0] not in self.sized:
            self.pending[outputs[0]] = text
        elif len(outputs) == 1:
            self._emit(outputs[0], text)
        else:
            self._unpack(element, text)

    def _expression(self, element: Statement | Call) -> Expression:
        if isinstance(element, Statement):
            return element.expression
        places = [f"{{{i}}}" for i in range(len(element.inputs))]
        if isinstance(element.child, Layer) and len(places) == 3:  # an LSTM takes a pair of states
            places[1:] = [f"({places[1]}, {places[2]})"]
        arguments = ", ".join(places)
        return build(f"{reference(element.target)}({arguments})", *element.inputs)

    def _composed(self, expression: Expression) -> Text:
        """The text of an expression, with pending expressions inlined."""
        text = Text([], expression.rank)
        for part in expression.parts:
            if isinstance(part, Hole) and part.value in self.pending:
                inner = self.pending[part.value]
                loose = inner.rank < part.floor
                text.tokens += ["(", *inner.tokens, ")"] if loose else inner.tokens
                text.reads.update(inner.reads)
                text.main = text.main or inner.main
                text.rank = inner.rank if expression.is_hole else text.rank
            elif isinstance(part, Hole):
                text.tokens.append(self.name[part.value])
                text.reads[part.value] += 1
                if part.value not in self.fixed:
                    text.main = text.main or part.value
            elif isinstance(part, Dim):
                named = self.sizes.get((part.value, part.axis))
                text.tokens.append(named or f"{self.name[part.value]}.shape[{part.axis}]")
                if named is None:
                    text.reads[part.value] += 1
            else:
                text.tokens.append(part)  # type: ignore[arg-type]
        return text

    def _hint(self, element: Statement | Call, values: list[ir.Value]) -> str:
        """The name of a result that cannot reuse the name of its operand."""
        if isinstance(element, Call):
            name = element.target.rpartition(".")[2]
            if name in RESULT_OF_LAYER:
                return RESULT_OF_LAYER[name]
        before = self.pending[values[0]].hint if values and values[0] in self.pending else ""
        if isinstance(element, Statement) and element.op in FORMS and before not in ("", "out"):
            return before
        role = self.roles.get(element.outputs[0])
        return role or RESULTS.get(getattr(element, "op", ""), "out")

    def _flush(self, value: ir.Value) -> None:
        self._emit(value, self.pending.pop(value))

    def _emit(self, value: ir.Value, text: Text, depth: int = 0) -> None:
        self.left.subtract(text.reads)
        name = self._choose(value, text)
        self.result.lines.append((depth, [f"{name} = ", *text.tokens]))
        self.name[value] = name

    def _choose(self, value: ir.Value, text: Text) -> str:
        """The name of the main operand if nothing reads it any more, otherwise a new one."""
        main = text.main
        free = main is not None and self.left[main] <= 0 and main not in self.fixed
        is_model_input = self.is_root and main in self.module.inputs
        if main is not None and free and not is_model_input and main.dtype == value.dtype:
            name = self.name[main]
            if text.hint in ("out", name) or name not in ("x", "out"):
                return name
        return self._fresh(text.hint)

    def _unpack(self, element: Statement | Call, right_side: Text) -> None:
        self.left.subtract(right_side.reads)
        names = []
        recurrent = isinstance(element, Call) and isinstance(element.child, Layer)
        usual = ("out", "hidden", "cell") if recurrent else ("part",) * len(element.outputs)
        for value, word in zip(element.outputs, usual):
            is_read = self.left[value] > 0
            name = self._fresh(identifier(self.roles.get(value, word))) if is_read else "_"
            names.append(name)
            self.name[value] = name if is_read else ""
        nested = recurrent and len(names) == 3
        text = f"{names[0]}, ({names[1]}, {names[2]})" if nested else ", ".join(names)
        self.result.lines.append((0, [f"{text} = ", *right_side.tokens]))

    # -- loops and results

    def _loop(self, loop: Loop) -> None:
        call = loop.first
        for value in call.inputs:
            if value in self.pending:
                self._flush(value)
        names = {}
        for _, before, after in loop.carried:
            self.left[before] -= 1
            name = self.name[before]
            if self.left[before] > 0 or before in self.fixed:
                name = self._fresh("out")
                self.result.lines.append((0, [f"{name} = {self.name[before]}"]))
            names[before] = name
            self.name[after] = name
        used = {n for v, n in self.name.items() if self.left[v] > 0} | set(names.values())
        item = singular(loop.container.rpartition(".")[2], used)
        arguments = [names.get(v) or self.name[v] for v in call.inputs]
        for value in call.inputs:
            if value not in names:
                self.left[value] -= 1
        results = ", ".join(names[before] for _, before, _ in loop.carried)
        self.result.lines.append((0, [f"for {item} in {reference(loop.container)}:"]))
        self.result.lines.append((1, [f"{results} = {item}({', '.join(arguments)})"]))

    def _choice(self, choice: Choice) -> None:
        """`if …:` and `else:`, each assigning the same results."""
        for value in dict.fromkeys(v for branch in choice.branches for v in branch.reads):
            if value in self.pending:
                self._flush(value)
        condition = self._composed(choice.condition)
        for value in choice.condition.values:
            self.pending.pop(value, None)
        branches = [self._composed(self._expression(branch)) for branch in choice.branches]
        for part in (condition, *branches):
            self.left.subtract(part.reads)
        names = self._names_of(choice)
        text = ", ".join(names)
        plain = [part.tokens != [text] for part in branches]  # `x = x` is left out
        lines = self.result.lines
        if not plain[0] and plain[1]:
            lines.append((0, ["if not ", *_grouped(condition), ":"]))
        else:
            lines.append((0, ["if ", *condition.tokens, ":"]))
            lines.append((1, [f"{text} = ", *branches[0].tokens]))
            lines += [(0, ["else:"])] if plain[1] else []
        if plain[1]:
            lines.append((1, [f"{text} = ", *branches[1].tokens]))

    def _repeat(self, loop: Repeat) -> None:
        """`for …:` with a call of the body, whose states go from one iteration to the next."""
        cycle, lines = loop.cycle, self.result.lines
        for value in dict.fromkeys(loop.reads):
            if value in self.pending:
                self._flush(value)
        iterable = self._composed(loop.iterable)
        starts = [self.name[v] for v in cycle.starts]
        for value in cycle.states:
            self._reserve(value, "condition" if self._is_condition(cycle, value) else "state")
        for value in cycle.items:
            self._reserve(value, "item" if iterable.tokens[0] != "torch.arange(" else "step")
        lists = [ir.Value() for _ in cycle.axes]
        rows = [ir.Value() for _ in cycle.axes]
        for words, values in (("rows", lists), ("row", rows)):
            for value in values:
                self._reserve(value, words)
        for value, start in zip(cycle.states, starts):
            lines.append((0, [f"{self.name[value]} = {start}"]))
        lines += [(0, [f"{self.name[v]} = []"]) for v in lists]
        condition = self.name[cycle.states[0]] if cycle.has_condition else ""
        items = ", ".join(self.name[v] for v in cycle.items) or "_"
        if iterable.tokens:
            lines.append((0, [f"for {items} in ", *iterable.tokens, ":"]))
            lines += [(1, [f"if not {condition}:"]), (2, ["break"])] if condition else []
        else:
            lines.append((0, [f"while {condition}:"]))
        results = ", ".join(self.name[v] for v in (*cycle.states, *rows))
        arguments = ", ".join(self.name[v] for v in loop.call.inputs)
        lines.append((1, [f"{results} = {reference(loop.call.target)}({arguments})"]))
        lines += [(1, [f"{self.name[a]}.append({self.name[b]})"]) for a, b in zip(lists, rows)]
        self.left.subtract(loop.reads)
        for value, state in zip(loop.outputs, cycle.states):
            self.name[value] = self.name[state]
        turned = cycle.turned or [False] * len(lists)
        for k, (value, axis, parts) in enumerate(
            zip(loop.outputs[len(starts) :], cycle.axes, lists)
        ):
            name, dim = self.name[parts], f", dim={axis}" if axis else ""
            text = f"{name} = torch.stack({name}{'[::-1]' if turned[k] else ''}{dim})"
            if cycle.may_be_empty:
                text += f" if {name} else {self._no_rows(loop, len(starts) + k)}"
            lines.append((0, [text]))
            self.name[value] = name
        for value in (*loop.inner, *lists, *rows):
            del self.name[value]

    def _no_rows(self, loop: Repeat, position: int) -> str:
        """What a loop without iterations stacks: a call of the body shows the shape of a row."""
        items = set(loop.cycle.items)
        inputs = ["torch.tensor(0)" if v in items else self.name[v] for v in loop.call.inputs]
        call = f"{reference(loop.call.target)}({', '.join(inputs)})"
        results = len(loop.cycle.states) + len(loop.cycle.axes)
        return f"{call}{f'[{position}]' if results > 1 else ''}[None][:0]"

    @staticmethod
    def _is_condition(cycle: Cycle, value: ir.Value) -> bool:
        return cycle.has_condition and value is cycle.states[0]

    def _reserve(self, value: ir.Value, word: str) -> None:
        """Give a value of a loop a name that nothing else has until the loop ends."""
        value.name = value.name or f"loop/{word}"
        name = self._fresh(word)
        self.name[value], self.left[value] = name, 1

    def _names_of(self, choice: Choice) -> list[str]:
        """The names of the outputs of a choice."""
        word = "out" if len(choice.outputs) == 1 else "part"
        names: list[str] = []
        for value in choice.outputs:
            role = identifier(self.roles.get(value, word))
            name = self._fresh(role) if self.left[value] > 0 or word == "out" else "_"
            self.name[value] = name
            names.append(name)
        return names

    def _return(self) -> None:
        outputs = self.module.outputs
        tokens: list[Token] = ["return "]
        for i, value in enumerate(outputs):
            waiting = self.pending.get(value)
            if waiting is not None and len(outputs) > 1 and width(waiting.tokens) > 30:
                self._flush(value)
                waiting = None
            tokens += [", "] if i else []
            tokens += waiting.tokens if waiting is not None else [self.name[value]]
        self.result.lines.append((0, tokens))


def _grouped(text: Text) -> list[Token]:
    return text.tokens if text.rank >= COMPARISON else ["(", *text.tokens, ")"]


def singular(name: str, used: set[str]) -> str:
    """The name of one item of a list: `layer` of `layers`, `block` of a single letter."""
    text = attribute(name)
    item = text[:-1] if text.endswith("s") and len(text) > 2 else text
    item = "block" if len(item) < 3 else item
    return f"one_{item}" if item in used else item

"""The operators of TorchScript's graphs as Python functions.

Those of tensors are torch's own (`torch.ops.aten`). Those of numbers, lists and texts are written
here, so that a size that is free stays a symbol.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

ATTRIBUTE = "prim::GetAttr"
# Operators that read or write files, or start work elsewhere: an archive has no business there.
REFUSED = ("save", "from_file", "wait", "fork", "as_tensor_from_file")
NAMESPACES = ("aten", "torchvision")
# Graphs have types, layouts and memory formats as numbers.
TYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64,
    5: torch.float16, 6: torch.float32, 7: torch.float64, 8: torch.complex32, 9: torch.complex64,
    10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
NUMBERS = {dtype: number for number, dtype in TYPES.items()}
FORMATS = {0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last,
           3: torch.channels_last_3d}  # fmt: skip
CODES: dict[str, dict[int, Any]] = {
    "dtype": TYPES, "layout": {0: torch.strided}, "memory_format": FORMATS,
}  # fmt: skip


def function_of(node: Any) -> Callable[..., Any] | None:
    """What computes a node; `None` where nothing does."""
    kind = node.kind()
    if kind in PRIMITIVES:
        return PRIMITIVES[kind](node)
    namespace, _, name = kind.partition("::")
    if namespace not in NAMESPACES or name in REFUSED:
        return None
    schema = node.schema()
    if name in ALWAYS:
        return ALWAYS[name]
    if "Tensor" not in schema.partition("->")[0] and name in PLAIN:
        return PLAIN[name]
    if schema == "(no schema)":
        return None
    parsed = torch._C.parse_schema(schema)
    packet = getattr(getattr(torch.ops, namespace), name, None)
    function = getattr(packet, parsed.overload_name or "default", None)
    return _positional(function, parsed.arguments) if function is not None else None


def _positional(function: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
    """An operator of torch called as nodes do it: by position, with types as numbers."""
    names = [a.name for a in arguments]
    only_named = [a.kwarg_only for a in arguments]
    tables = [CODES.get(n, {}) for n in names]

    def run(*inputs: Any) -> Any:
        values = [t.get(x, x) if t and isinstance(x, int) else x for t, x in zip(tables, inputs)]
        kwargs = {n: v for n, v, named in zip(names, values, only_named) if named}
        return function(*[v for v, named in zip(values, only_named) if not named], **kwargs)

    return run


def _scalar(x: Any) -> Any:
    """A number that tracing has made a tensor, as a tensor."""
    if isinstance(x, torch.Tensor):
        return x
    is_whole = isinstance(x, (int, torch.SymInt))
    return torch.scalar_tensor(x, dtype=torch.int64 if is_whole else torch.float64)


def _convolution(x: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    """The form in which tracing records every convolution; its last four settings are of CUDA."""
    return torch.convolution(x, weight, bias, *settings[:6])


def _type_number(x: Any) -> int:
    return NUMBERS[x.dtype] if isinstance(x, torch.Tensor) else NUMBERS[torch.int64]


def _unpack(node: Any) -> Callable[..., Any]:
    return lambda values: tuple(values)


def _pairs(node: Any) -> Callable[..., Any]:
    return lambda *parts: dict(zip(parts[::2], parts[1::2], strict=True))


def _raise(node: Any) -> Callable[..., Any]:
    def fail(message: Any, *_: Any) -> None:
        raise RuntimeError(str(message))

    return fail


def _always(function: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    return lambda node: function


def _tuple_of(node: Any) -> Callable[..., Any]:
    return lambda *values: tuple(values)


def _number(x: Any) -> Any:
    """A tensor of one element as a number; a number as it is."""
    return x.item() if isinstance(x, torch.Tensor) else x


def _as_tensor(x: Any) -> Any:
    """A number stays one: sizes that are free would not survive a tensor."""
    return x


def _int(x: Any) -> Any:
    x = _number(x)
    return x if isinstance(x, (int, torch.SymInt)) else int(x)


def _float(x: Any) -> Any:
    x = _number(x)
    return x if isinstance(x, (float, torch.SymFloat)) else float(x)


def _size(x: Any, axis: Any = None) -> Any:
    return list(x.shape) if axis is None else x.shape[axis]


def _slice(values: Any, start: Any, end: Any, step: Any) -> Any:
    return values[slice(start, end, step)]


def _equal(a: Any, b: Any) -> Any:
    return list(a) == list(b) if isinstance(a, (list, tuple)) else a == b


def _set_item(values: Any, key: Any, value: Any) -> Any:
    values[key] = value
    return values


def _attention(*arguments: Any) -> Any:
    names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    query, key, value, *rest = arguments
    settings = dict(zip(names, rest, strict=False))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, **settings)


def _append(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def _either(function: Callable[..., Any], of_tensors: Callable[..., Any]) -> Callable[..., Any]:
    """Of numbers in Python, of tensors in torch."""

    def run(*inputs: Any) -> Any:
        is_tensor = any(isinstance(x, torch.Tensor) for x in inputs)
        return (of_tensors if is_tensor else function)(*inputs)

    return run


def _arithmetic(name: str, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """`a + alpha * b` and the like, where tracing has made tensors of numbers."""

    def of_numbers(a: Any, b: Any, alpha: Any = 1) -> Any:
        return function(a, b * alpha if isinstance(alpha, (int, float)) and alpha != 1 else b)

    def of_tensors(a: Any, b: Any, alpha: Any = 1) -> Any:
        settings = {} if isinstance(alpha, str) or alpha in (None, 1) else {"alpha": alpha}
        if isinstance(alpha, str):
            settings = {"rounding_mode": alpha}
        return getattr(torch, name)(a, b, **settings)

    return _either(of_numbers, of_tensors)


def _rounded_division(a: Any, b: Any, mode: Any = None) -> Any:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return torch.div(a, b, rounding_mode=mode)
    return a // b if mode in ("floor", "trunc") else a / b


# Operators whose inputs may be numbers where the schema says tensors: tracing wraps sizes.
ALWAYS: dict[str, Callable[..., Any]] = {
    "size": _size,
    "dim": lambda x: x.dim(),
    "numel": lambda x: x.numel(),
    "Int": _int,
    "IntImplicit": _int,
    "Float": _float,
    "FloatImplicit": _float,
    "ScalarImplicit": _number,
    "Bool": lambda x: bool(_number(x)) if not isinstance(x, torch.Tensor) else x,
    "item": _number,
    "add": _arithmetic("add", operator.add),
    "sub": _arithmetic("sub", operator.sub),
    "rsub": _either(lambda a, b, alpha=1: b - a * alpha, torch.rsub),
    "mul": _arithmetic("mul", operator.mul),
    "div": _rounded_division,
    "floor_divide": _either(operator.floordiv, torch.floor_divide),
    "remainder": _either(operator.mod, torch.remainder),
    "_convolution": _convolution,
    "scaled_dot_product_attention": _attention,
    "__is__": lambda a, b: a is b,
    "__isnot__": lambda a, b: a is not b,
    "__not__": lambda a: not a,
    "warn": lambda *_: None,
    "is_floating_point": lambda x: x.is_floating_point(),
    "len": len,
    "format": lambda text, *values: text.format(*values),
    "append": _append,
    "extend": lambda a, b: a.extend(b),
    "insert": lambda a, i, x: a.insert(i, x),
    "pop": lambda a, *i: a.pop(*i),
    "list": list,
    "dict": dict,
    "keys": lambda a: list(a.keys()),
    "values": lambda a: list(a.values()),
    "items": lambda a: list(a.items()),
    "get": lambda a, key, *default: a.get(key, *default),
    "_set_item": _set_item,
    "__getitem__": lambda a, key: a[key],
    "__contains__": lambda a, key: key in a,
    "device": torch.device,
}
# Operators of numbers, lists and texts; the same names have others of tensors.
PLAIN: dict[str, Callable[..., Any]] = {
    "eq": _equal,
    "ne": lambda a, b: not _equal(a, b),
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "floordiv": operator.floordiv,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": abs,
    "sqrt": lambda x: x**0.5,
    "floor": lambda x: x // 1,
    "ceil": lambda x: -(-x // 1),
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "slice": _slice,
    "round": round,
    "str": str,
}


def _minimum(*values: Any) -> Any:
    return min(values[0]) if len(values) == 1 else min(values)


def _maximum(*values: Any) -> Any:
    return max(values[0]) if len(values) == 1 else max(values)


def _numbers_up_to(count: int) -> list[int]:
    return list(range(count))


PRIMITIVES: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "prim::ListConstruct": lambda node: lambda *values: list(values),
    "prim::TupleConstruct": _tuple_of,
    "prim::DictConstruct": _pairs,
    "prim::ListUnpack": _unpack,
    "prim::TupleUnpack": _unpack,
    "prim::TupleIndex": _always(lambda values, index: values[index]),
    "prim::TupleSlice": lambda node: lambda values: values[slice(node.i("beg"), node.i("end"))],
    "prim::NumToTensor": _always(_as_tensor),
    "prim::ImplicitTensorToNum": _always(_number),
    "prim::unchecked_cast": _always(_as_tensor),
    "prim::unchecked_unwrap_optional": _always(_as_tensor),
    "prim::data": _always(lambda x: x.detach()),
    "prim::dtype": _always(_type_number),
    "prim::device": _always(lambda x: x.device),
    "prim::layout": _always(lambda x: 0),
    "prim::requires_grad": _always(lambda x: x.requires_grad),
    "prim::is_cuda": _always(lambda x: False),
    "prim::is_nested": _always(lambda x: x.is_nested),
    "prim::is_sparse": _always(lambda x: x.is_sparse),
    "prim::is_quantized": _always(lambda x: x.is_quantized),
    "prim::type": _always(lambda device: device.type),
    "prim::min": _always(_minimum),
    "prim::max": _always(_maximum),
    "prim::rangelist": _always(_numbers_up_to),
    "prim::Uninitialized": _always(lambda: None),
    "prim::RaiseException": _raise,
    "prim::Print": _always(lambda *_: None),
}

"""Builders of hostile and odd ONNX files, each a few lines."""

from __future__ import annotations

from collections.abc import Callable

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
PAYLOAD = b"\x00\x00\x80?\x00\x00\x00@"  # float32 1.0, 2.0


def node(op: str, reads: str, makes: str, name: str = "", **attributes: object) -> NodeProto:
    """A node from names separated by spaces, `domain:Op` for another domain."""
    domain, _, op_type = op.rpartition(":")
    return helper.make_node(
        op_type, reads.split(), makes.split(), name or makes or op, domain=domain, **attributes
    )


def graph(nodes: list[NodeProto], outputs: str = "y", inputs: tuple = (X,), **rest) -> GraphProto:
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs.split()]
    return helper.make_graph(nodes, "g", list(inputs), made, **rest)


def model(main: GraphProto, functions: list = ()) -> ModelProto:
    return helper.make_model(main, functions=functions, opset_imports=OPSETS, ir_version=10)


def function(name: str, nodes: list[NodeProto], domain: str = "local", overload: str = ""):
    made = helper.make_function(domain, name, ["a"], ["b"], nodes, OPSETS)
    made.overload = overload
    return made


def chain(length: int) -> ModelProto:
    """A plain chain of `length` nodes."""
    proto = model(graph([], f"v{length}", ()))
    proto.graph.input.add(name="v0").type.tensor_type.elem_type = TensorProto.FLOAT
    for i in range(length):
        proto.graph.node.add(op_type="Relu", input=[f"v{i}"], output=[f"v{i + 1}"])
    return proto


def doubling_calls(levels: int, used: bool = True) -> ModelProto:
    """Local functions that each call the next one twice: 2**levels nodes once inlined."""
    functions = [function("f0", [node("Relu", "a", "b")])]
    for i in range(1, levels + 1):
        callee = f"local:f{i - 1}"
        functions.append(function(f"f{i}", [node(callee, "a", "t"), node(callee, "t", "b")]))
    main = node(f"local:f{levels}" if used else "Relu", "x", "y")
    return model(graph([main]), functions)


def recursive_function(steps: int) -> ModelProto:
    """A function that calls itself through `steps - 1` others."""
    functions = [
        function(f"f{i}", [node(f"local:f{(i + 1) % steps}", "a", "b")]) for i in range(steps)
    ]
    return model(graph([node("local:f0", "x", "y")]), functions)


def nested_ifs(depth: int) -> ModelProto:
    """An If inside an If, `depth` deep, all reading the outermost input; built from the outside,
    because copying a message that deep into another is refused by protobuf."""
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    proto = model(graph([], f"y{depth}", (X, condition)))
    at = proto.graph
    for level in range(depth, 0, -1):
        made = at.node.add(op_type="If", input=["c"], output=[f"y{level}"])
        other = graph([node("Relu", "x", f"z{level}")], f"z{level}", ())
        made.attribute.append(helper.make_attribute("else_branch", other))
        then = made.attribute.add(name="then_branch", type=AttributeProto.GRAPH)
        at = then.g
        at.name = f"then{level}"
        at.output.add(name=f"y{level - 1}")
    at.node.append(node("Relu", "x", "y0"))
    return proto


def loop(inner: list[NodeProto] | None = None, tag: str = "") -> NodeProto:
    """A Loop whose trip count is the outer value `n`."""
    names = {k: k + tag for k in ("i", "ci", "vi", "co", "vo")}
    body = graph(
        [node("Identity", names["ci"], names["co"])]
        + (inner or [])
        + [node("Identity", names["vi"], names["vo"])],
        f"{names['co']} {names['vo']}",
        (
            helper.make_tensor_value_info(names["i"], TensorProto.INT64, []),
            helper.make_tensor_value_info(names["ci"], TensorProto.BOOL, []),
            helper.make_tensor_value_info(names["vi"], TensorProto.FLOAT, [2]),
        ),
    )
    body.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    return helper.make_node("Loop", ["n", "", "x"], [f"y{tag}"], body=body)


def endless_loop(trips: int, nested: bool = False) -> ModelProto:
    inner = [loop(tag="2")] if nested else None
    count = helper.make_tensor("n", TensorProto.INT64, [], [trips])
    return model(graph([loop(inner)], initializer=[count]))


def as_initializer(tensor: TensorProto) -> ModelProto:
    return model(graph([node("Add", "x w", "y")], initializer=[tensor]))


def raw(data_type: int, dims: list[int], data: bytes, name: str = "w") -> TensorProto:
    return TensorProto(name=name, data_type=data_type, dims=dims, raw_data=data)


def external(name: str = "w", count: int = 2, **entries: object) -> TensorProto:
    """A float tensor with external data; `location_` is a second location, and so on."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[count])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        if value is not None:
            tensor.external_data.add(key=key.rstrip("_"), value=str(value))
    return tensor


def as_constant(tensor: TensorProto) -> ModelProto:
    return model(graph([node("Constant", "", "w", value=tensor), node("Add", "x w", "y")]))


def as_sparse(tensor: TensorProto) -> ModelProto:
    proto = model(graph([node("Add", "x w", "y")]))
    sparse = proto.graph.sparse_initializer.add(dims=[8])
    sparse.values.CopyFrom(tensor)
    count = tensor.dims[0]
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [count], list(range(count))))
    return proto


def as_sparse_indices(tensor: TensorProto) -> ModelProto:
    """The same location used for the INT64 indices of a sparse tensor with one value."""
    proto = as_sparse(raw(TensorProto.FLOAT, [1], PAYLOAD[:4]))
    indices = proto.graph.sparse_initializer[0].indices
    indices.CopyFrom(tensor)
    indices.data_type, indices.dims[:] = TensorProto.INT64, [1]
    indices.name = ""
    return proto


def as_if_body(tensor: TensorProto) -> ModelProto:
    then = graph([node("Add", "x w", "t")], "t", (), initializer=[tensor])
    other = graph([node("Relu", "x", "e")], "e", ())
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    branches = node("If", "c", "y", then_branch=then, else_branch=other)
    return model(graph([branches], inputs=(X, condition)))


def as_function_body(tensor: TensorProto) -> ModelProto:
    body = [node("Constant", "", "w", value=tensor), node("Add", "a w", "b")]
    return model(graph([node("local:f", "x", "y")]), [function("f", body)])


def as_training_state(tensor: TensorProto) -> ModelProto:
    proto = model(graph([node("Relu", "x", "y")]))
    record = proto.training_info.add()
    record.algorithm.CopyFrom(graph([node("Add", "y w", "s")], "s", (), initializer=[tensor]))
    record.update_binding.add(key="w", value="s")
    return proto


PLACES: dict[str, Callable[[TensorProto], ModelProto]] = {
    "initializer": as_initializer,
    "constant": as_constant,
    "sparse": as_sparse,
    "sparse-indices": as_sparse_indices,
    "if-body": as_if_body,
    "function": as_function_body,
    "training": as_training_state,
}


def attribute(**fields: object) -> ModelProto:
    """A model whose node "k" has one attribute made of these fields."""
    proto = model(graph([node("Relu", "x", "y", "k")]))
    proto.graph.node[0].attribute.add().MergeFrom(AttributeProto(**fields))
    return proto


def call_in_if() -> ModelProto:
    then = graph([node("local:f", "a", "t"), node("local:f", "t", "u")], "u", ())
    other = graph([node("Relu", "a", "e")], "e", ())
    condition = node("Cast", "a", "c", to=TensorProto.BOOL)
    branch = node("If", "c", "b", then_branch=then, else_branch=other)
    functions = [
        function("f", [node("Relu", "a", "p"), node("Neg", "p", "b")]),
        function("h", [condition, branch]),
    ]
    calls = [node("local:h", "x", "z"), node("local:h", "z", "y")]
    return model(graph(calls), functions)


def same_names() -> ModelProto:
    """Functions that differ only in domain or overload, of one, two and three nodes."""
    relus = [node("Relu", "a", "p"), node("Relu", "p", "q"), node("Relu", "q", "b")]
    two = [node("Relu", "a", "p"), node("Relu", "p", "b")]
    functions = [
        function("f", [node("Relu", "a", "b")]),
        function("f", two, domain="other"),
        function("f", relus, overload="wide"),
    ]
    calls = [node("local:f", "x", "s"), node("other:f", "s", "t"), node("local:f", "t", "y")]
    calls[2].overload = "wide"
    proto = model(graph(calls), functions)
    proto.opset_import.append(helper.make_opsetid("other", 1))
    return proto


def graph_argument() -> ModelProto:
    """A function that puts the graph it is given into both branches, called by one that doubles."""
    branch = node("If", "c", "b")
    for name in ("then_branch", "else_branch"):
        kind = AttributeProto.GRAPH
        branch.attribute.append(AttributeProto(name=name, type=kind, ref_attr_name="body"))
    inner = function("f", [node("Cast", "a", "c", to=TensorProto.BOOL), branch])
    outer = function("h", [node("local:f", "a", "t"), node("local:f", "t", "b")])
    for made in (inner, outer):
        made.attribute.append("body")
    for n in outer.node:
        reference = AttributeProto(name="body", type=AttributeProto.GRAPH, ref_attr_name="body")
        n.attribute.append(reference)
    body = graph([node("Relu", "x", "p"), node("Neg", "p", "q"), node("Abs", "q", "r")], "r", ())
    return model(graph([node("local:h", "x", "y", body=body)]), [inner, outer])


def nested_type() -> ModelProto:
    proto = model(graph([node("Relu", "x", "y")]))
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    sequence = helper.make_sequence_type_proto(helper.make_sequence_type_proto(tensor))
    proto.graph.input.append(helper.make_value_info("s", sequence))
    return proto


def many() -> ModelProto:
    node_ = node("Split", " ".join(["x"] * 7), " ".join(f"o{i}" for i in range(7)), "s")
    node_.attribute.extend(helper.make_attribute(f"a{i}", i) for i in range(7))
    return model(graph([node_], "o0"))

"""Models converted to torch, and their weights back in the ONNX file.

Oracles: onnxruntime for what a model computes, the gradients of onnxruntime's training step for
what differentiation gives, torch's own layers for what training mode does.
"""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import ArgumentError
from sardonyx.model import Model
from tests.converted_networks import NETWORKS, close, expected, gradients, rows
from tests.networks import mlp, network


@pytest.fixture(scope="module", params=NETWORKS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def modules(torch: Any) -> dict[str, tuple[Model, Any]]:
    made = {n: make() for n, (make, _) in NETWORKS.items()}
    return {n: (model, sx.to_torch(model)) for n, model in made.items()}


def test_torch_gives_the_same_numbers(torch: Any, modules: dict, name: str) -> None:
    model, module = modules[name]
    assert module.untraced == ""
    for count, longer in ((1, False), (4, name in ("transformer", "lstm"))):
        x = rows(name, count, longer=longer)
        close(module(torch.from_numpy(x)).detach(), expected(model, x))
        close(module(**{model.inputs[0].name: torch.from_numpy(x)}).detach(), expected(model, x))


def test_torch_parameters_carry_the_models_names(modules: dict, name: str) -> None:
    model, module = modules[name]
    kinds = {w.name: w.kind for w in sx.weights(model) if w.kind != "constant"}
    assert set(module.state_dict()) == set(kinds)
    assert {n for n, _ in module.named_parameters()} == {
        n for n, k in kinds.items() if k == "weight"
    }
    assert {n for n, k in kinds.items() if k == "statistic"} <= dict(module.named_buffers()).keys()
    for key, tensor in module.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), model.initializer(key).numpy())


def test_torch_gradients_are_those_of_the_model(torch: Any, modules: dict, name: str) -> None:
    model, module = modules[name]
    x = rows(name, 3)
    module.zero_grad()
    module(torch.from_numpy(x)).square().sum().backward()
    expected = gradients(model, x)
    result = {n: p.grad for n, p in module.named_parameters()}
    assert result.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(result[key].numpy(), value, rtol=1e-3, atol=1e-4)


def test_torch_compile_takes_the_whole_graph(torch: Any, modules: dict, name: str) -> None:
    model, module = modules[name]
    torch._dynamo.reset()  # it compiles one function only so many times
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = rows(name, 3)
    with torch.no_grad():  # torch's own LSTM cannot be compiled for training on a CPU
        close(compiled(torch.from_numpy(x)), expected(model, x))


def test_torch_export_with_free_sizes(torch: Any, modules: dict, name: str) -> None:
    model, module = modules[name]
    sizes = {0: torch.export.Dim("rows")}
    if name == "transformer":  # torch unrolls an LSTM over time, its own as well
        sizes[1] = torch.export.Dim("steps")
    inputs = (torch.from_numpy(rows(name, 3)),)
    exported = torch.export.export(module, inputs, dynamic_shapes=(sizes,))
    x = rows(name, 5, longer=name == "transformer")
    close(exported.module()(torch.from_numpy(x)).detach(), expected(model, x))
    assert set(exported.state_dict) == set(module.state_dict())


@pytest.mark.filterwarnings("ignore")
def test_torch_onnx_export_of_the_module(torch: Any, modules: dict) -> None:
    model, module = modules["mlp"]
    inputs = (torch.from_numpy(rows("mlp", 3)),)
    made = torch.onnx.export(
        module, inputs, dynamo=True, dynamic_shapes=({0: "rows"},), verbose=False
    )
    x = rows("mlp", 5)
    close(expected(sx.load(made.model_proto), x), expected(model, x))


@pytest.mark.filterwarnings("ignore")
def test_torch_module_names_its_inputs(torch: Any) -> None:
    text = "m (float[N,2] features, float[N,2] self, float[N,2] a.b) => (float[N,2] y) {"
    model = network(f"{text} s = Add (features, self)  y = Sub (s, a.b) }}".replace("a.b", "z"), {})
    model.inputs[2].name = "a.b"
    module = sx.to_torch(model)
    inputs = [torch.full((3, 2), v) for v in (1.0, 2.0, 5.0)]
    assert list(inspect.signature(module.forward).parameters) == ["features", "self_", "a_b"]
    rows = torch.export.Dim("rows")
    sizes = {n: {0: rows} for n in ("features", "self_", "a_b")}
    exported = torch.export.export(module, tuple(inputs), dynamic_shapes=sizes)
    assert exported.graph_signature.user_inputs == ("features", "self_", "a_b")
    longer = [torch.cat([v, v]) for v in inputs]
    for called in (module, exported.module(), copy.deepcopy(module)):
        assert torch.equal(called(*longer), torch.full((6, 2), -2.0))
    again = pickle.loads(pickle.dumps(module))
    assert torch.equal(again(inputs[0], self_=inputs[1], a_b=inputs[2]), module(*inputs))
    assert torch.equal(again(*inputs[:2], **{"a.b": inputs[2]}), module(*inputs))


def test_torch_module_says_what_does_not_fit(torch: Any, modules: dict) -> None:
    _, module = modules["mlp"]
    x = torch.zeros(2, 6)
    for wrong in (lambda: module(), lambda: module(y=x), lambda: module(x, x)):
        with pytest.raises(ArgumentError, match="inputs do not fit the model") as result:
            wrong()
        assert "it takes x" in str(result.value)


def test_torch_module_can_be_read(modules: dict) -> None:
    _, module = modules["mlp"]
    shown = repr(module)
    assert "x -> scores" in shown and "(fc0): Scope(weight: [5, 6], bias: [5])" in shown
    assert "(fc0_weight, fc0_bias, fc1_weight, fc1_bias, x)" in module.served.code.replace(
        "forward(self, ", "("
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_torch_module_in_another_type(torch: Any, modules: dict, name: str, dtype: str) -> None:
    model, module = modules[name]
    x = rows(name, 3)
    other = copy.deepcopy(module).to(getattr(torch, dtype))
    inputs = torch.from_numpy(x)
    inputs = inputs.to(getattr(torch, dtype)) if inputs.is_floating_point() else inputs
    result = other(inputs).detach()
    assert str(result.dtype) == f"torch.{dtype}"
    reference = expected(model, x)
    tolerance = 0.05 if dtype == "bfloat16" else 1e-5
    assert np.abs(result.double().numpy() - reference).max() <= tolerance * np.abs(reference).max()
    close(module(torch.from_numpy(x)).detach(), reference)


def test_torch_graph_moves_with_its_weights(torch: Any, modules: dict, name: str) -> None:
    # every machine has the device without memory; a tensor left on the CPU would be refused
    _, module = modules[name]
    moved = copy.deepcopy(module).to("meta")
    for mode in (False, True):
        y = moved.train(mode)(torch.from_numpy(rows(name, 3)).to("meta"))
        assert y.device.type == "meta" and y.shape[0] == 3
    assert module(torch.from_numpy(rows(name, 3))).device.type == "cpu"


def test_torch_training_mode_switches_norm_and_dropout(torch: Any, modules: dict) -> None:
    _, module = modules["cnn"]
    module = copy.deepcopy(module)
    x = torch.from_numpy(rows("cnn", 6))
    assert torch.equal(module(x), module(x))
    convolved = torch.nn.functional.conv2d(
        x, module.conv1.weight, module.conv1.bias, padding=1
    ).detach()
    oracle = torch.nn.BatchNorm2d(4, momentum=0.1)
    oracle.load_state_dict(
        {"weight": module.bn.weight.detach(), "bias": module.bn.bias.detach(),
         "running_mean": module.bn.mean, "running_var": module.bn.var},
        strict=False,
    )  # fmt: skip
    oracle(convolved)
    module.train()
    first, second = module(x), None
    close(module.bn.mean, oracle.running_mean.numpy())
    close(module.bn.var, oracle.running_var.numpy())
    second = module(x)
    assert not torch.equal(first, second)
    module.eval()
    assert torch.equal(module(x), module(x))


TRAINING = {
    "Dropout": "y = Dropout (x, share, yes)",
    "BatchNormalization": "y, m, v = BatchNormalization <training_mode = 1>"
    " (x, one, one, one, one)",
}


@pytest.mark.parametrize("op", TRAINING)
def test_torch_warns_of_files_that_train_by_themselves(torch: Any, op: str) -> None:
    values = {"share": np.asarray(0.5), "yes": np.asarray(True), "one": np.ones(2)}
    used = {k: v for k, v in values.items() if f" {k}" in TRAINING[op]}
    with pytest.warns(UserWarning, match=f'training mode is set in the file: {op} "y" trains even'):
        sx.to_torch(network(f"m (float[N,2] x) => (float[N,2] y) {{ {TRAINING[op]} }}", used))


def test_torch_dropout_keeps_the_share_that_it_says(torch: Any) -> None:
    text = "drop (float[N,1000] x) => (float[N,1000] y) { y = Dropout (x, ratio) }"
    module = sx.to_torch(network(text, {"ratio": np.asarray(0.25)})).train()
    y = module(torch.ones(20, 1000))
    assert abs(float((y == 0).float().mean()) - 0.25) < 0.02
    close(y[y != 0], 1 / 0.75)


def test_torch_fine_tunes_and_comes_back_bit_for_bit(torch: Any, name: str, tmp_path: Path) -> None:
    make, _ = NETWORKS[name]
    model = make()
    module = sx.to_torch(model).train()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    x = rows(name, 4)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.from_numpy(x)).square().mean().backward()
        optimizer.step()
    module.eval()
    tuned = sx.with_weights(model, module)
    sx.save(tuned, tmp_path / "tuned.onnx")
    back = sx.load(tmp_path / "tuned.onnx")
    for key, tensor in module.state_dict().items():
        np.testing.assert_array_equal(back.initializer(key).numpy(), tensor.numpy())
    same = [n for n in model.graph.initializers if n not in module.state_dict()]
    for key in same:
        np.testing.assert_array_equal(back.initializer(key).numpy(), model.initializer(key).numpy())
    assert [n.op_type for n in back.graph] == [n.op_type for n in model.graph]
    assert back.opset == model.opset
    close(expected(back, x), module(torch.from_numpy(x)).detach().numpy())


def test_torch_changes_a_model_in_memory_only_if_asked_to(torch: Any) -> None:
    weights = {"w": np.ones((2, 2), np.float32)}
    model = network("m (float[N,2] x) => (float[N,2] y) { y = MatMul (x, w) }", weights)
    held = sx.with_weights(model, weights)
    memory = held.initializer("w").numpy()
    for share, changes in ((None, False), (False, False), (True, True)):
        module = sx.to_torch(held, share=share)
        with torch.no_grad():
            module.w[0, 0] = 5.0
        assert (memory[0, 0] == 5.0) == changes


def test_torch_names_that_torch_forbids(torch: Any) -> None:
    names = ["a", "a.b", "forward", "x..y", "/layer/weight:0", "served"]
    nodes, last = [], "x"
    for i, key in enumerate(names):
        nodes.append(helper.make_node("MatMul", [last, key], [f"y{i}"], f"n{i}"))
        last = f"y{i}"
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.normal(size=(2, 2)).astype(np.float32), n) for n in names
    ]
    graph = helper.make_graph(
        nodes, "names",
        [helper.make_tensor_value_info("x", 1, ["N", 2])],
        [helper.make_tensor_value_info(last, 1, ["N", 2])], tensors,
    )  # fmt: skip
    model = sx.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    )
    module = sx.to_torch(model)
    assert set(module.names) == set(names)
    assert module.names["/layer/weight:0"] == "/layer/weight:0" and module.names["a.b"] == "a.b"
    assert len(set(module.names.values())) == len(names)
    x = rng.normal(size=(3, 2)).astype(np.float32)
    close(module(torch.from_numpy(x)).detach(), expected(model, x))
    module.load_state_dict({k: 2 * v for k, v in module.state_dict().items()})
    tuned = sx.with_weights(model, module)
    for key in names:
        np.testing.assert_array_equal(
            tuned.initializer(key).numpy(), 2 * model.initializer(key).numpy()
        )


def test_torch_runs_what_it_cannot_trace(torch: Any) -> None:
    text = "m (float[N] x) => (float[K] y) { z = Mul (x, w)  i = NonZero (z)  s = Squeeze (i)\n"
    text += "k = Shape (s)  r = ConstantOfShape (k)  y = Add (r, w) }"
    model = network(text, {"w": np.ones(1)})
    module = sx.to_torch(model)
    x = np.array([0.0, 2.0, 3.0], np.float32)
    close(module(torch.from_numpy(x)).detach(), expected(model, x))


def test_torch_compile_goes_around_what_it_cannot_trace(torch: Any) -> None:
    """A sequence has no place in a graph; what comes before and after it still runs."""
    text = """m (float[N,4] x) => (float[K,2] y) {
        parts = SplitToSequence <axis = 0, keepdims = 0> (x)  last = SequenceAt (parts, minus)
        flat = Reshape (last, pairs)  z = NonZero (flat)  k = Shape (z)
        w = ConstantOfShape (k)  c = ReduceSum <keepdims = 0> (w)  y = Add (flat, c) }"""
    numbers = {"minus": np.asarray(-1), "pairs": np.array([2, 2])}
    model = network(text, numbers)
    module = sx.to_torch(model)
    assert module.untraced
    compiled = torch.compile(module, backend="eager")
    for count in (2, 5):
        x = np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)
        close(compiled(torch.from_numpy(x)).detach(), expected(model, x))


SHAPES_IN_32_BITS = """m (float[N,T,4] x) => (float[M,2] y, int32[3] sizes) {
    s = Shape (x)  sizes = Cast <to = 6> (s)  front = Slice (sizes, zero, two)
    rest = ReduceProd <keepdims = 1> (front)  pair = Cast <to = 6> (even)
    shape = Concat <axis = 0> (rest, four)  wide = Cast <to = 7> (shape)
    flat = Reshape (x, wide)  y = MatMul (flat, w) }"""
ODD_ENDS = """m (float[N,T] x) => (float[N,K] y) {
    s = Shape <start = 1> (x)  left = Mod (s, four)  stop = Sub (s, left)
    cut = Slice (x, zero, stop, one)  y = Mul (cut, w) }"""


@pytest.mark.parametrize(
    ("text", "shapes"),
    [(SHAPES_IN_32_BITS, [(2, 3, 4), (1, 7, 4)]), (ODD_ENDS, [(2, 9), (3, 8), (2, 1030)])],
    ids=["shapes in 32 bits", "a multiple"],
)
def test_sizes_stay_sizes(torch: Any, text: str, shapes: list[tuple[int, ...]]) -> None:
    weights = {"w": np.ones((4, 2)) if "MatMul" in text else np.full(1, 2.0)}
    numbers = {"zero": [0], "one": [1], "two": [2], "four": [4], "even": [2]}
    kinds = {n: np.int32 if n == "four" and "MatMul" in text else np.int64 for n in numbers}
    weights |= {n: np.asarray(v, kinds[n]) for n, v in numbers.items()}
    model = network(text, weights)
    module = sx.to_torch(model)
    assert module.untraced == ""
    for shape in shapes:
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        result = module(torch.from_numpy(x))
        expected = list(Runner(model)({"x": x}).values())
        for part, value in zip(result if len(expected) > 1 else [result], expected, strict=True):
            assert part.detach().numpy().dtype == value.dtype
            np.testing.assert_allclose(part.detach().numpy(), value, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (  # a window that no small input has room for
            """m (float[1,1,T] x) => (float[1,2,K] y) { y = Conv <strides = [128]> (x, w) }""",
            [(1, 1, 700), (1, 1, 1500)],
        ),
        (  # made smaller and larger again: the sizes must be multiples
            """m (float[1,1,H,4] x) => (float[1,1,H,4] y) {
                a = MaxPool <kernel_shape = [32, 1], strides = [32, 1]> (x)
                b = ConvTranspose <strides = [32, 1]> (a, w)  y = Add (x, b) }""",
            [(1, 1, 64, 4), (1, 1, 2048, 4)],
        ),
    ],
    ids=["large sizes", "round sizes"],
)
def test_torch_traces_at_sizes_that_a_model_takes(
    torch: Any, text: str, shapes: list[tuple[int, ...]]
) -> None:
    rng = np.random.default_rng(0)
    window = (2, 1, 512) if "128" in text else (1, 1, 32, 1)
    model = network(text, {"w": rng.normal(size=window)})
    module = sx.to_torch(model)
    assert module.untraced == ""
    for shape in shapes:
        x = rng.normal(size=shape).astype(np.float32)
        result = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(result, expected(model, x), rtol=1e-3, atol=1e-4)


POSITIONS = """m (int64[N,T] x) => (float[N,T,3] y) {
    s = Shape <start = 1> (x)  at = Slice (places, zero, s, zero)
    words = Gather (table, x)  y = Add (words, at) }"""
SHORT_SIGNALS = """m (float[N,T] x) => (float[N,K] y) {
    s = Shape <start = 1> (x)  frames = Div (s, window)  some = Max (frames, one)
    n = Mul (some, window)  missing = Sub (n, s)  none = Sub (s, s)  more = Max (missing, none)
    pads = Concat <axis = 0> (none, none, none, more)  padded = Pad (x, pads)
    y = Slice (padded, zero, n, one) }"""
BACKWARDS = """m (float[N,T] x) => (float[N,K] y, float[N,L] z, float[N,M] w) {
    y = Slice (x, five, below, one, minus)  z = Slice (x, minus, below, one, minustwo)
    w = Slice (x, beyond, minusfour, one, minustwo) }"""


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (POSITIONS, [(2, 7), (3, 64)]),  # a table of positions: larger sizes are not accepted
        (SHORT_SIGNALS, [(2, 3), (1, 300), (2, 1100)]),  # a maximum of sizes
        (BACKWARDS, [(2, 3), (2, 9), (1, 1100)]),
    ],
    ids=["positions", "short signals", "backwards"],
)
def test_torch_traces_sizes_of_every_kind(
    torch: Any, text: str, shapes: list[tuple[int, ...]]
) -> None:
    rng = np.random.default_rng(0)
    values = {"zero": 0, "one": 1, "window": 256, "five": 5, "below": -(2**31), "minus": -1}
    values |= {"minustwo": -2, "minusfour": -4, "beyond": 2**31 - 1}
    tensors = {n: np.array([v], np.int64) for n, v in values.items()}
    tensors |= {"table": rng.normal(size=(5, 3)), "places": rng.normal(size=(64, 3))}
    model = network(text, {n: v for n, v in tensors.items() if n in text})
    module = sx.to_torch(model)
    assert module.untraced == ""
    for shape in shapes:
        x = rng.normal(size=shape).astype(np.float32)
        x = rng.integers(0, 5, shape) if "int64[N" in text else x
        outputs = module(torch.from_numpy(x))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for value, reference in zip(outputs, Runner(model)({"x": x}).values(), strict=True):
            close(value.detach(), reference)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("attributes", ["", "<softcap = 2.0>", "<is_causal = 1>"])
def test_torch_gradients_of_rows_that_see_nothing(torch: Any, attributes: str, kind: str) -> None:
    """Attention gives zeros for them, and no gradient: what is masked counts for nothing."""
    text = f"""m (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v, {kind}[3,3] mask)
        => (float[1,2,3,4] y) {{ y = Attention {attributes} (q, k, v, mask) }}"""
    module = sx.to_torch(network(text, {}))
    rng = np.random.default_rng(0)
    q, k, v = (torch.tensor(rng.normal(size=(1, 2, 3, 4)).astype(np.float32)) for _ in range(3))
    mask = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    mask = torch.where(mask, 0.0, -torch.inf) if kind == "float" else mask
    tensors = [t.requires_grad_() for t in (q, k, v)]
    y = module(*tensors, mask)
    assert not y[:, :, 1].any()
    gradients = torch.autograd.grad(y.square().sum(), tensors)
    assert all(torch.isfinite(g).all() for g in gradients)
    assert not gradients[0][:, :, 1].any()


def test_torch_conversion_leaves_no_log(torch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """torch logs the error of a first try at sizes that the model does not accept."""
    text = """m (float[N,1,T] x) => (float[N,1,K] y) {
        a = Mul (x, two)  y = AveragePool <kernel_shape = [64], strides = [64]> (a) }"""
    module = sx.to_torch(network(text, {"two": np.full(1, 2.0)}))
    assert module.untraced == ""
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == []


def test_weights_that_do_not_fit_are_all_named(torch: Any) -> None:
    model = mlp()
    state = dict(sx.to_torch(model).state_dict())
    state["fc0.weight"] = torch.zeros(2)
    state["fc1.bias"] = state["fc1.bias"].half()
    state["nowhere"] = torch.zeros(1)
    with pytest.raises(ArgumentError) as error:
        sx.with_weights(model, state)
    for word in ("fc0.weight", "[5, 6] ← [2]", "float32 ← float16", "nowhere", "cast=True"):
        assert word in str(error.value)
    halved = sx.to_torch(model).half()
    tuned = sx.with_weights(model, halved, cast=True)
    result = tuned.initializer("fc0.weight").numpy()
    expected = model.initializer("fc0.weight").numpy().astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(result, expected)

"""Nodes that run on another engine, inside a framework's own graph, with their gradients.

The oracle is the framework itself: the same model converted without sending anything elsewhere.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.errors import ArgumentError, UnsupportedOp
from sardonyx.lower.partition import Placement, groups
from sardonyx.lower.program import Program
from sardonyx.model import Model

HEADER = '<ir_version: 10, opset_import: ["": 22, "ai.onnx.ml": 4]>'
ENGINES = ("numpy", "torch", "jax", "tensorflow")
FRAMEWORKS = ENGINES[1:]

# Two outputs of a chosen node are read, one of integers; a weight and a constant are.
NETWORK = """g (float[N,4] x) => (float[N,3] y, int64[N,2] at)
    <float[4,3] w = {0.1,0.2,-0.3,0.4,-0.5,0.6,0.7,-0.8,0.9,-1,1.1,1.2}, int64[1] k = {2}> {
        [first] a = Tanh(x)
        [product] b = MatMul(a, w)
        [second] c = Sin(b)
        [largest] top, at = TopK<axis = 1>(c, k)
        [total] s = ReduceSum<keepdims = 1>(top, axes)
        [last] y = Mul(b, s)
    }"""
NETWORK = NETWORK.replace("int64[1] k = {2}", "int64[1] k = {2}, int64[1] axes = {1}")
PLACES = {
    "one": {"second": "numpy"},
    "neighbours": {"MatMul": "onnxruntime", "Sin": "onnxruntime"},
    "integers": {"TopK": "onnxruntime"},
    "two engines": {"product": "numpy", "TopK": "onnxruntime", "last": "numpy"},
    "all": {"*": "onnxruntime"},
}


def text(body: str) -> Model:
    return sx.load(onnx.parser.parse_model(f"{HEADER} {body}"))


def data(batch: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(batch, 4)).astype(np.float32)


class InTorch:
    """A model as a function of arrays, compiled, and the gradient of what it gives."""

    def __init__(self, model: Model, **settings: Any):
        self.torch = pytest.importorskip("torch")
        self.module = sx.to_torch(model, **settings)
        assert not self.module.untraced
        self.torch._dynamo.reset()  # it compiles one function only so many times
        self.compiled = self.torch.compile(
            self.module, backend="aot_eager", fullgraph=True, dynamic=True
        )

    def values(self, x: np.ndarray) -> list[np.ndarray]:
        with self.torch.no_grad():
            return [v.numpy() for v in self.compiled(self.torch.tensor(x))]

    def gradients(self, x: np.ndarray) -> list[np.ndarray]:
        inputs = self.torch.tensor(x, requires_grad=True)
        loss = self.compiled(inputs)[0].square().sum()
        return [g.numpy() for g in self.torch.autograd.grad(loss, [inputs, self.module.w])]

    def second(self, x: np.ndarray) -> np.ndarray:
        inputs = self.torch.tensor(x, requires_grad=True)
        loss = self.module(inputs)[0].square().sum()
        (first,) = self.torch.autograd.grad(loss, inputs, create_graph=True)
        return self.torch.autograd.grad(first.sin().sum(), inputs)[0].numpy()


class InJax:
    def __init__(self, model: Model, **settings: Any):
        self.jax = pytest.importorskip("jax")
        self.apply, self.params = sx.to_jax(model, **settings)

    def values(self, x: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(v) for v in self.jax.jit(self.apply)(self.params, x)]

    def loss(self, params: Any, x: Any) -> Any:
        return (self.apply(params, x)[0] ** 2).sum()

    def gradients(self, x: np.ndarray) -> list[np.ndarray]:
        dw, dx = self.jax.jit(self.jax.grad(self.loss, argnums=(0, 1)))(self.params, x)
        return [np.asarray(dx), np.asarray(dw["w"])]

    def second(self, x: np.ndarray) -> np.ndarray:
        first = self.jax.grad(self.loss, argnums=1)
        total = lambda x: self.jax.numpy.sin(first(self.params, x)).sum()
        return np.asarray(self.jax.jit(self.jax.grad(total))(x))


class InTensorFlow:
    def __init__(self, model: Model, **settings: Any):
        self.tf = pytest.importorskip("tensorflow")
        self.module = sx.to_tensorflow(model, **settings)

    def values(self, x: np.ndarray) -> list[np.ndarray]:
        return [v.numpy() for v in self.module(x)]

    def gradients(self, x: np.ndarray) -> list[np.ndarray]:
        inputs = self.tf.constant(x)
        with self.tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = self.tf.reduce_sum(self.module(inputs)[0] ** 2)
        return [g.numpy() for g in tape.gradient(loss, [inputs, self.module.weights["w"]])]

    def second(self, x: np.ndarray) -> np.ndarray:
        inputs = self.tf.constant(x)
        with self.tf.GradientTape() as outer:
            outer.watch(inputs)
            with self.tf.GradientTape() as tape:
                tape.watch(inputs)
                loss = self.tf.reduce_sum(self.module(inputs)[0] ** 2)
            total = self.tf.reduce_sum(self.tf.sin(tape.gradient(loss, inputs)))
        return outer.gradient(total, inputs).numpy()


CONVERT: dict[str, Callable[..., Any]] = {
    "torch": InTorch,
    "jax": InJax,
    "tensorflow": InTensorFlow,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", FRAMEWORKS)
class TestInsideAGraph:
    def test_values_and_gradients(self, name: str, place: dict[str, str]) -> None:
        native, placed = (CONVERT[name](text(NETWORK), place=p) for p in (None, place))
        for batch in (3, 5):
            x = data(batch)
            (y, at), (y2, at2) = native.values(x), placed.values(x)
            np.testing.assert_allclose(y2, y, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(at2, at)
            for result, expected in zip(placed.gradients(x), native.gradients(x), strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)

    def test_gradients_of_gradients(self, name: str, place: dict[str, str]) -> None:
        native, placed = (CONVERT[name](text(NETWORK), place=p) for p in (None, place))
        result, expected = placed.second(data()), native.second(data())
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", ENGINES)
def test_a_runner_sends_nodes_elsewhere(name: str, place: dict[str, str]) -> None:
    pytest.importorskip(name)
    runner = importlib.import_module(f"sardonyx.engines.{name}").Runner
    result, expected = (runner(text(NETWORK), place=p)({"x": data()}) for p in (place, None))
    np.testing.assert_allclose(result["y"], expected["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(result["at"], expected["at"])


# -- text, and sizes that data decides ----------------------------------------------------

# Numbers to words and back: text never leaves numpy.
WORDS = """g (int64[N] x, float[N] z) => (float[N] y) {
    w = ai.onnx.ml.LabelEncoder<keys_int64s = [1, 2], values_strings = ["one", "two"]>(x)
    v = ai.onnx.ml.LabelEncoder<keys_strings = ["two", "one"], values_floats = [2.5, 1.5]>(w)
    y = Mul(v, z)
}"""


@pytest.mark.parametrize("name", FRAMEWORKS)
class TestText:
    x = np.array([2, 1, 1], np.int64)
    z = np.array([1, 10, 100], np.float32)
    y = np.array([2.5, 15, 150], np.float32)

    def test_is_one_call_inside_the_graph(self, name: str) -> None:
        pytest.importorskip(name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = self._run(name, fallback="allow")
        np.testing.assert_array_equal(result, self.y)

    def _run(self, name: str, **settings: Any) -> Any:
        if name == "torch":
            torch = pytest.importorskip("torch")
            module = sx.to_torch(text(WORDS), **settings)
            assert not module.untraced
            calls = [n for n in module.served.graph.nodes if "call_out" in str(n.target)]
            assert len(calls) == 1
            return module(torch.tensor(self.x), torch.tensor(self.z)).numpy()
        if name == "jax":
            jax = pytest.importorskip("jax")
            apply, params = sx.to_jax(text(WORDS), **settings)
            return jax.jit(apply)(params, self.x.astype(np.int32), self.z)
        return sx.to_tensorflow(text(WORDS), **settings)(self.x, self.z).numpy()

    def test_is_never_silent(self, name: str) -> None:
        pytest.importorskip(name)
        with pytest.warns(UserWarning, match=f"2 nodes cannot run in {name} itself") as caught:
            self._run(name)
        assert str(caught[0].message).count("has no strings") == 2

    def test_is_refused_if_asked(self, name: str) -> None:
        pytest.importorskip(name)
        with pytest.raises(UnsupportedOp) as raised:
            self._run(name, fallback="error")
        assert len(raised.value.where) == 2
        assert '"w"' in str(raised.value) and '"v"' in str(raised.value)


def test_sizes_that_data_decides_cross_into_an_export() -> None:
    torch = pytest.importorskip("torch")
    from sardonyx.engines.torch.xp import arrays

    model = text("g (float[N] x) => (float[M] y) {i = NonZero(x) j = Flatten(i) y = Cast<to=1>(j)}")
    made = Program(model, arrays(), place={"NonZero": "numpy"})

    class Module(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, x: Any) -> Any:
            return made({"x": x})[0]

    exported = torch.export.export(Module(), (torch.ones(4),)).module()
    for x in ([0, 1, 0, 2], [0, 0, 0, 3], [1, 1, 1, 1]):
        result = exported(torch.tensor(x, dtype=torch.float32)).numpy()
        np.testing.assert_array_equal(result[0], np.flatnonzero(x))


@pytest.fixture
def odd() -> Iterator[Model]:
    """A model with an operator that only numpy has, and that has no gradient."""
    from sardonyx.lower.driver import KERNELS, lowering

    lowering("Odd", domain="com.acme", only="numpy")(lambda xp, x: xp.negative(x))
    header = '<ir_version: 10, opset_import: ["": 22, "com.acme": 1]>'
    body = "g (float[2] x) => (float[2] y) {[odd] y = com.acme.Odd(x)}"
    yield sx.load(onnx.parser.parse_model(f"{header} {body}"))
    KERNELS["numpy"].remove("Odd", "com.acme")


def test_what_has_no_gradient_runs_and_refuses_when_asked_for_one(odd: Model) -> None:
    torch = pytest.importorskip("torch")
    from sardonyx.engines.torch.callout import call_out

    runner = importlib.import_module("sardonyx.engines.torch").Runner(odd, fallback="allow")
    np.testing.assert_array_equal(runner({"x": np.ones(2, np.float32)})["y"], [-1, -1])
    (region,) = runner.program.regions.values()
    region.model.graph.outputs[0].type = region.model.graph.inputs[0].type
    (y,) = call_out(region, [torch.ones(2, requires_grad=True)])
    with pytest.raises(UnsupportedOp, match=r"com\.acme::Odd *node \"odd\""):
        y.sum().backward()


# -- how nodes are grouped -----------------------------------------------------------------


def grouped(body: str, *names: str) -> list[list[str]]:
    """The groups of the named nodes, by the names of their nodes."""
    graph = text(body).graph
    placed = {n: Placement(n, "", "numpy") for n in graph if n.name in names}
    return sorted(sorted(n.name or "" for n in nodes) for nodes in groups(graph, placed))


class TestGroups:
    def test_neighbours_are_one(self) -> None:
        body = "g (float[2] x) => (float[2] c) {[a] a = Exp(x) [b] b = Neg(a) [c] c = Abs(b)}"
        assert grouped(body, "a", "b", "c") == [["a", "b", "c"]]
        assert grouped(body, "a", "c") == [["a"], ["c"]]

    def test_a_way_around_keeps_neighbours_apart(self) -> None:
        body = """g (float[2] x) => (float[2] c) {
            [a] a = Exp(x) [outside] b = Neg(a) [c] c = Add(a, b)}"""
        assert grouped(body, "a", "c") == [["a"], ["c"]]

    def test_branches_meet(self) -> None:
        body = """g (float[2] x) => (float[2] c) {
            [a] a = Exp(x) [b] b = Neg(x) [c] c = Add(a, b)}"""
        assert grouped(body, "a", "b", "c") == [["a", "b", "c"]]

    def test_a_circle_through_two_groups_is_not_closed(self) -> None:
        # {a1, a2} and {b1, b2} would each need the other first.
        body = """g (float[2] x, float[2] z) => (float[2] p, float[2] q) {
            [a1] a1 = Exp(x) [b1] b1 = Neg(z)
            [m] m = Abs(a1) [n] n = Abs(b1)
            [a2] p = Add(a1, n) [b2] q = Add(b1, m)}"""
        result = grouped(body, "a1", "a2", "b1", "b2")
        assert result in ([["a1", "a2"], ["b1"], ["b2"]], [["a1"], ["a2"], ["b1", "b2"]])

    def test_a_body_counts_as_a_reader(self) -> None:
        body = """g (float[2] x, bool c) => (float[2] y) {
            [a] a = Exp(x)
            [if] i = If (c) <then_branch = t () => (float[2] u) {u = Neg(a)},
                             else_branch = e () => (float[2] v) {v = Abs(a)}>
            [b] y = Add(a, i)}"""
        assert grouped(body, "a", "b") == [["a"], ["b"]]


@pytest.mark.parametrize("name", ENGINES)
def test_a_node_with_bodies_takes_what_they_read_along(name: str) -> None:
    pytest.importorskip(name)
    model = text("""g (float[2] x, bool c) => (float[2] y) {
        a = Exp(x)
        i = If (c) <then_branch = t () => (float[2] u) {u = Neg(a)},
                    else_branch = e () => (float[2] v) {v = Abs(x)}>
        y = Add(a, i)}""")
    runner = importlib.import_module(f"sardonyx.engines.{name}").Runner(
        model, place={"If": "onnxruntime"}
    )
    x = np.array([1, -2], np.float32)
    for c, expected in ((True, 0 * x), (False, np.exp(x) + np.abs(x))):
        result = runner({"x": x, "c": np.array(c)})["y"]
        np.testing.assert_allclose(result, expected, rtol=1e-6)


# -- the dry run -----------------------------------------------------------------------------


class TestPlacement:
    def test_bytes_that_cross(self) -> None:
        result = sx.placement(
            text(NETWORK), "torch", place={"MatMul": "onnxruntime", "Sin": "onnxruntime"}
        )
        (part,) = result.parts
        # in: a of 4 floats a row and w of 12; out: b and c of 3 floats a row each
        assert (part.ins, part.outs) == ("16·N + 48", "24·N")
        assert result.stays == 4 and [row[0] for row in result.nodes] == ["MatMul", "Sin"]

    def test_free_sizes_become_numbers(self) -> None:
        result = sx.placement(text(NETWORK), "jax", place={"TopK": "numpy"}, sizes={"N": 10})
        # in: 3 floats a row; out: 2 floats and 2 integers of 8 bytes
        assert (result.parts[0].ins, result.parts[0].outs) == ("120", "240")

    def test_reasons(self) -> None:
        result = sx.placement(text(WORDS), "tensorflow")
        assert {row[3] for row in result.nodes} == {"tensorflow has no strings"}
        assert len(result.parts) == 1 and result.stays == 1
        assert not sx.placement(text(WORDS), "numpy").nodes

    def test_all_that_is_wrong_is_named(self) -> None:
        with pytest.raises(ArgumentError, match="theano"):
            sx.placement(text(NETWORK), "torch", place={"Sin": "theano"})
        with pytest.raises(ArgumentError) as raised:
            sx.placement(text(NETWORK), "torch", place={"Sinh": "numpy", "Cosh": "numpy"})
        assert '"Sinh"' in str(raised.value) and '"Cosh"' in str(raised.value)

    def test_the_last_pattern_decides(self) -> None:
        place = {"*": "onnxruntime", "MatMul": "torch", "Sin": "numpy"}
        result = sx.placement(text(NETWORK), "torch", place=place)
        engines = {row[1]: row[2] for row in result.nodes}
        assert 'node "product"' not in engines
        assert engines['node "second"'] == "on numpy"
        assert engines['node "last"'] == "on onnxruntime"

    def test_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        onnx.save(text(NETWORK).proto(), tmp_path / "m.onnx")
        inputs = ["--to", "torch", "--dry-run", "--place", "S*=onnxruntime", "--size", "N=2"]
        monkeypatch.setattr("sys.argv", ["sardonyx", "convert", str(tmp_path / "m.onnx"), *inputs])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0
        printed = capsys.readouterr().out
        assert "5 nodes in torch, 1 elsewhere" in printed
        assert "2 tensors cross: 24 bytes in, 24 bytes out" in printed

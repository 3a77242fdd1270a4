"""Lowerings of layers where tests/cases have no oracle: chance, omitted inputs, compiled loops."""

from __future__ import annotations

import functools
import importlib
import struct
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.model import Model, load

ENGINES = ("numpy", "torch", "jax", "tensorflow")
F = np.float32


def engine(name: str) -> Any:
    pytest.importorskip(name)
    return importlib.import_module(f"sardonyx.engines.{name}")


def text(body: str, opset: int = 24) -> Model:
    domains = f'"": {opset}, "ai.onnx.preview.training": 1'
    return load(onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> {body}"))


@pytest.mark.parametrize("name", ENGINES)
class TestDropout:
    SOURCE = """g (float[40, 50] x, float r, bool t) => (float[40, 50] y, bool[40, 50] m) {
        y, m = Dropout <seed = 3> (x, r, t)
    }"""

    def run(self, name: str, ratio: float, training: bool) -> tuple[Any, Any]:
        result = engine(name).Runner(text(self.SOURCE))(
            {"x": np.full((40, 50), 3, F), "r": np.array(ratio, F), "t": np.array(training)}
        )
        return result["y"], result["m"]

    def test_what_is_kept_is_scaled(self, name: str) -> None:
        y, mask = self.run(name, 0.25, True)
        np.testing.assert_allclose(y, np.where(mask, F(4), F(0)), rtol=1e-6)
        # 2000 draws: five standard deviations
        assert abs(mask.mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / 2000)

    def test_a_seed_draws_the_same_again(self, name: str) -> None:
        first, again = self.run(name, 0.5, True), self.run(name, 0.5, True)
        np.testing.assert_array_equal(first[1], again[1])

    def test_nothing_happens_at_inference(self, name: str) -> None:
        y, mask = self.run(name, 0.5, False)
        assert (y == 3).all() and mask.all()

    def test_everything_may_go(self, name: str) -> None:
        y, mask = self.run(name, 1.0, True)
        assert not y.any() and not mask.any()


@pytest.mark.parametrize("name", ENGINES)
class TestSuppression:
    BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3]]], F)
    SCORES = np.array([[[0.5, 0.9, 0.1]]], F)

    def run(self, name: str, limit: str, call: str) -> Any:
        body = f"g (float[1, 3, 4] b, float[1, 1, 3] s) => (int64[n, 3] y) <{limit}> {{y = {call}}}"
        return engine(name).Runner(text(body))({"b": self.BOXES, "s": self.SCORES})["y"]

    def test_without_thresholds_any_overlap_is_too_much(self, name: str) -> None:
        result = self.run(name, "int64 k = {3}", "NonMaxSuppression(b, s, k)")
        np.testing.assert_array_equal(result, [[0, 0, 1], [0, 0, 2]])

    def test_without_a_limit_nothing_is_chosen(self, name: str) -> None:
        result = self.run(name, "int64 k = {3}", "NonMaxSuppression(b, s)")
        assert result.shape == (0, 3) and result.dtype == np.int64


BLUE_AND_WHITE = np.array([[[0, 0, 255], [255, 255, 255]]], np.uint8)


def bitmap(pixels: np.ndarray) -> np.ndarray:
    """A BMP file: rows from the bottom, blue first, each padded to four bytes."""
    height, width, _ = pixels.shape
    rows = b"".join(row[:, ::-1].tobytes() + bytes(-3 * width % 4) for row in pixels[::-1])
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 0, 0, 0, 0)
    start = 14 + len(header)
    file = b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + header + rows
    return np.frombuffer(file, np.uint8)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("pixel_format", "expected"),
    [
        ("RGB", BLUE_AND_WHITE),
        ("BGR", BLUE_AND_WHITE[:, :, ::-1]),
        ("Grayscale", np.array([[[29], [255]]], np.uint8)),  # 0.114 of blue
    ],
)
def test_images_are_decoded(name: str, pixel_format: str, expected: np.ndarray) -> None:
    pytest.importorskip("PIL")
    call = f'ImageDecoder <pixel_format = "{pixel_format}"> (x)'
    model = text(f"g (uint8[n] x) => (uint8[a, b, c] y) {{y = {call}}}")
    runner = engine(name).Runner(model, fallback="allow")
    np.testing.assert_array_equal(runner({"x": bitmap(BLUE_AND_WHITE)})["y"], expected)


@pytest.mark.parametrize("name", ENGINES)
def test_adam_shrinks_afterwards(name: str) -> None:
    model = text("""g (float[2] x, float[2] g, float[2] v, float[2] h)
        => (float[2] y, float[2] u, float[2] w) <float r = {0.1}, int64 t = {1}> {
        y, u, w = ai.onnx.preview.training.Adam
            <alpha = 0.9, beta = 0.999, epsilon = 0.0, norm_coefficient_post = 0.5>
            (r, t, x, g, v, h)
    }""")
    zero = np.zeros(2, F)
    feeds = {"x": np.array([1, 2], F), "g": np.array([3, -4], F), "v": zero, "h": zero}
    result = engine(name).Runner(model)(feeds)["y"]
    # The first step goes by the rate, against the sign of the gradient; then half is left.
    np.testing.assert_allclose(result, [(1 - 0.1) / 2, (2 + 0.1) / 2], rtol=1e-5)


@pytest.mark.parametrize("name", ENGINES)
def test_gradient_nodes_are_differentiated(name: str) -> None:
    model = text("""g (float[3] x) => (float[3] d) {
        y = Mul(x, x)
        s = ReduceSum <keepdims = 0> (y)
        d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "s"> (x)
    }""")
    x = np.array([1, -2, 5], F)
    np.testing.assert_allclose(engine(name).Runner(model)({"x": x})["d"], 2 * x)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_that_sees_nothing_is_zero(name: str, kind: str) -> None:
    """onnxruntime gives NaN there."""
    body = f"""g (float[1, 2, 3, 4] q, float[1, 2, 5, 4] k, float[1, 2, 5, 4] v, {kind}[3, 5] m)
        => (float[1, 2, 3, 4] y) {{ y = Attention(q, k, v, m) }}"""
    rng = np.random.default_rng(5)
    q, k, v = (rng.normal(size=(1, 2, n, 4)).astype(F) for n in (3, 5, 5))
    seen = np.array([[True] * 5, [False] * 5, [True, False, True, False, True]])
    mask = seen if kind == "bool" else np.where(seen, F(0), F(-np.inf))
    result = engine(name).Runner(text(body))({"q": q, "k": k, "v": v, "m": mask})["y"]
    weights = np.exp(q @ k.swapaxes(2, 3) / 2) * seen
    total = weights.sum(-1, keepdims=True)
    expected = np.where(total > 0, weights @ v / np.maximum(total, 1e-9), 0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


# -- recurrent layers are loops of the framework, not as many nodes as there are steps -----


def lstm(steps: int) -> Model:
    return text(f"""g (float[{steps}, 2, 3] x, float[1, 16, 3] w, float[1, 16, 4] r, int32[2] n)
        => (float[{steps}, 1, 2, 4] y) {{
        y = LSTM <hidden_size = 4> (x, w, r, , n)
    }}""")


def feeds(steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"x": (steps, 2, 3), "w": (1, 16, 3), "r": (1, 16, 4)}
    made = {k: rng.uniform(-1, 1, s).astype(F) for k, s in shapes.items()}
    return {**made, "n": np.array([steps, steps - 1], np.int32)}


def program(name: str, steps: int) -> Any:
    from sardonyx.lower.program import Program

    return Program(lstm(steps), engine(name).Runner.xp)


def called(run: Any, given: dict[str, Any]) -> Any:
    return run(given)[0]


def test_jax_scans_over_time() -> None:
    jax = pytest.importorskip("jax")
    from sardonyx.engines.jax.xp import enable_x64

    sizes = []
    for steps in (3, 9):
        run, inputs = program("jax", steps), feeds(steps)
        function = functools.partial(called, run)
        with enable_x64(True):
            sizes.append(len(str(jax.make_jaxpr(function)(inputs))))
            result = jax.jit(function)(inputs)
        expected = engine("numpy").Runner(lstm(steps))(inputs)["y"]
        np.testing.assert_allclose(result, expected, atol=1e-6)
    assert sizes[1] <= 1.05 * sizes[0]


def test_tensorflow_loops_over_time() -> None:
    tf = pytest.importorskip("tensorflow")
    sizes = []
    for steps in (3, 9):
        run, inputs = program("tensorflow", steps), feeds(steps)
        function = tf.function(functools.partial(called, run))
        concrete = function.get_concrete_function({k: tf.constant(v) for k, v in inputs.items()})
        sizes.append(len(concrete.graph.as_graph_def().node))
        expected = engine("numpy").Runner(lstm(steps))(inputs)["y"]
        np.testing.assert_allclose(function(inputs), expected, atol=1e-6)
    assert sizes[0] == sizes[1]


def test_torch_runs_its_own_layer() -> None:
    torch = pytest.importorskip("torch")
    from unittest import mock

    model = text("""g (float[5, 2, 3] x, float[1, 16, 3] w, float[1, 16, 4] r)
        => (float[5, 1, 2, 4] y) {
        y = LSTM <hidden_size = 4> (x, w, r)
    }""")
    runner = engine("torch").Runner(model)
    inputs = {k: v for k, v in feeds(5).items() if k != "n"}
    with mock.patch("torch.lstm", side_effect=torch.lstm) as layer:
        runner(inputs)
    assert layer.called

"""Products on tile registers (kernels/split.h), against NumPy in double precision.

Where the processor has no such registers, what their instructions do is computed in C instead; the
rest of the kernel is the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx as sx
from sardonyx.engines.c_library import find_compiler, instructions
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.engines.onnxruntime.kernels import fusion, library, products
from sardonyx.engines.onnxruntime.kernels.program import DOMAIN, Programs
from sardonyx.engines.onnxruntime.session import open_session

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler"),
    pytest.mark.skipif("avx512_bf16" not in instructions(), reason="no conversion to bf16"),
]
FORMS = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Libraries whose tiles are emulated; how many products the last one has computed on them."""
    monkeypatch.setattr(library, "TEXT", "#define EMULATED_TILES 1\n" + library.TEXT)
    paths: list[str] = []

    def build(*arguments: str) -> str | None:
        path = original(*arguments)
        assert path is not None
        paths.append(path)
        return path

    original = library.library
    for module in (library, fusion):
        monkeypatch.setattr(module, "library", build)
    build(Programs().source())
    return lambda: ctypes.c_int64.in_dll(ctypes.CDLL(paths[-1]), "products_on_tiles").value


def product(a: np.ndarray, b: np.ndarray, form: tuple[int, int], *added: np.ndarray) -> np.ndarray:
    feeds = dict(zip("abc", (a, b, *added), strict=False))
    ends = [helper.make_tensor_value_info(n, 1, [None] * v.ndim) for n, v in feeds.items()]
    node = helper.make_node("Product", list(feeds), ["y"], domain=DOMAIN, product=(*form, 0))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", ends, [result])
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    data = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
    path = library.library(Programs().source())
    assert path is not None
    (array,) = open_session(data, threads=2, libraries=[path]).run(None, feeds)
    return array


def matrices(
    rows: int, columns: int, depth: int, form: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    a = rng.normal(size=(depth, rows) if form[0] else (rows, depth)).astype(np.float32)
    b = rng.normal(size=(columns, depth) if form[1] else (depth, columns)).astype(np.float32)
    return a, b


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("added", ["nothing", "row", "matrix"])
def test_products_of_all_sizes(
    form: tuple[int, int], added: str, emulated: Callable[[], int]
) -> None:
    # whole tiles, rests of them, more than one part of the depth, more than one slab of panels
    for rows, columns, depth in (
        (256, 64, 64), (129, 33, 95), (161, 67, 33),
        (150, 40, 1100), (2100, 40, 33), (140, 2100, 40),
    ):  # fmt: skip
        a, b = matrices(rows, columns, depth, form)
        shape = {"nothing": None, "row": (columns,), "matrix": (rows, columns)}[added]
        rng = np.random.default_rng(0)
        more = [] if shape is None else [rng.normal(size=shape).astype(np.float32)]
        left, right = a.T if form[0] else a, b.T if form[1] else b
        exact = left.astype(float) @ right + (more[0] if more else 0.0)
        sizes = np.abs(left) @ np.abs(right) + (np.abs(more[0]) if more else 0.0)
        before = emulated()
        result = product(a, b, form, *more)
        assert emulated() == before + 1
        assert (np.abs(result - exact) <= 2**-23 * 4 * sizes).all(), (rows, columns, depth)


def test_sums_are_as_exact_as_those_of_single_precision(emulated: Callable[[], int]) -> None:
    """The parts that are left out are below rounding: numbers of 24 bits without a common sign."""
    rng = np.random.default_rng(0)
    a = (1 + rng.integers(0, 1 << 23, (256, 256)) * 2.0**-23).astype(np.float32)
    b = (1 + rng.integers(0, 1 << 23, (256, 256)) * 2.0**-23).astype(np.float32)
    exact = a.astype(float) @ b
    before = emulated()
    error = np.abs(product(a, b, (0, 0)) - exact).max()
    assert emulated() == before + 1
    assert error <= 2 * np.abs(a @ b - exact).max()


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_where_it_belongs(
    number: float, emulated: Callable[[], int]
) -> None:
    a, b = matrices(200, 96, 64, (0, 0))
    a[3, 4] = number
    before = emulated()
    result = product(a, b, (0, 0))
    assert emulated() == before + 1
    exact = np.empty((200, 96))
    exact[:] = np.delete(a, 4, 1).astype(float) @ np.delete(b, 4, 0) + np.outer(a[:, 4], b[4])
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(exact))
    np.testing.assert_allclose(result, exact, rtol=1e-3, atol=1e-4)


def test_the_largest_numbers(emulated: Callable[[], int]) -> None:
    """They are finite, while the nearest bf16 is not."""
    a, b = matrices(200, 96, 64, (0, 0))
    a[3], a[3, 4], b[4] = 0, np.finfo(np.float32).max, np.clip(b[4], -0.5, 0.5)
    before = emulated()
    np.testing.assert_allclose(product(a, b, (0, 0))[3], a[3, 4].astype(float) * b[4], rtol=1e-6)
    assert emulated() == before + 1


@pytest.mark.parametrize("side", [0, 1])
def test_small_numbers_keep_their_last_bits(side: int, emulated: Callable[[], int]) -> None:
    """The third part of such a number is too small for bf16."""
    pair = list(matrices(200, 96, 64, (0, 0)))
    pair[side] *= np.float32(1e-36)
    exact = pair[0].astype(float) @ pair[1]
    sizes = np.abs(pair[0]).astype(float) @ np.abs(pair[1])
    before = emulated()
    assert (np.abs(product(*pair, (0, 0)) - exact) <= 2**-24 * 65 * sizes).all()
    assert emulated() == before + 1


def test_a_training_on_tiles_is_the_same(
    monkeypatch: pytest.MonkeyPatch, emulated: Callable[[], int]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(products, "LEAST", 1)
    monkeypatch.setattr(products, "instructions", lambda: products.TILES)
    monkeypatch.setattr(fusion, "LEAST_WORK", 0)
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(48, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 33)
    )
    program = torch.onnx.export(
        module.eval(), (torch.randn(3, 45, 48),), dynamo=True, verbose=False, input_names=["x"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )  # fmt: skip
    net = sx.trainable(sx.load(program.model_proto), "cross_entropy", sx.optim.adamw(1e-2))
    ours = prepare_training(net, threads=2)
    plain = prepare_training(net, threads=2, without=["kernels"])
    rng = np.random.default_rng(0)
    batches = [
        {
            "x": rng.normal(size=(rows, 45, 48)).astype(np.float32),
            "label": rng.integers(0, 33, (rows, 45)),
        }
        for rows in (4, 4, 7, 1, 4)
    ]
    before = emulated()
    assert sx.verify_training(net, ours, plain, data=batches, steps=5).verdict == "same"
    # forward and backward products of the first layer and of the second, but where rows are few
    assert emulated() >= before + 4 * 5

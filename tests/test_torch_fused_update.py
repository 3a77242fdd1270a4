"""Updates in kernels of their own, those of a GPU compiled for the CPU and those of a CPU, against
`_foreach_` functions of torch.

A GPU runs the same text (`tests/gpu_checks.py`).
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from tests.update_cases import CASES, Net

torch = pytest.importorskip("torch")

from sardonyx.engines.torch import cpu_update, fused_update, native_step  # noqa: E402
from sardonyx.engines.torch.foreach import Grouped  # noqa: E402
from sardonyx.engines.torch.merge import MERGED  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")

CPU = """
#include <cmath>
using std::exp; using std::fabs; using std::sqrt;
struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim;
#define __device__
#define __global__
#define __forceinline__ inline
"""


def compiler(folder: Path, sources: list[str]) -> fused_update.Compile:
    """Compiles kernels for the CPU, where one thread does the work of all."""

    def compile(source: str, name: str) -> Callable[..., Any]:
        sources.append(source)
        signature = re.search(rf"void {name}\((.*?)\) {{", source, re.S).group(1)
        names = [part.split()[-1] for part in signature.split(",")]
        launch = f"""
extern "C" void launch(unsigned grid, unsigned threads, {signature}) {{
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
      {name}({", ".join(names)});
}}"""
        path = folder / f"kernel{len(sources)}"
        path.with_suffix(".cpp").write_text(CPU + source + launch)
        command = ["g++", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w", "-o"]
        subprocess.run(
            [*command, f"{path}.so", f"{path}.cpp"], check=True, capture_output=True, text=True
        )
        function = ctypes.CDLL(f"{path}.so").launch

        def run(grid: tuple[int, ...], block: tuple[int, ...], args: list[Any]) -> None:
            pointers = [
                ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in args
            ]
            function(grid[0], block[0], *pointers)

        return run

    return compile


def _trained(net: sx.Model, in_place: bool) -> tuple[list[float], dict[str, np.ndarray]]:
    rep = sx.prepare_training(net, "torch")
    rep.steps_ahead = int(in_place)  # as on a GPU, where no state before a step is kept
    rng = np.random.default_rng(0)
    name, dtype = net.inputs[0].name, net.inputs[0].dtype.numpy()
    losses = []
    for _ in range(5):
        x, y = rng.normal(size=(4, 7)).astype(dtype), rng.integers(0, 3, 4)
        losses.append(float(rep.step({name: x, "label": y})["loss"]))
    return losses, rep.state()


@pytest.fixture
def exact_square_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's square root of a list of tensors on a CPU is not always the nearest number."""

    def _foreach_sqrt(tensors: list[Any]) -> list[Any]:
        return [torch.from_numpy(np.sqrt(t.numpy())) for t in tensors]

    def _foreach_sqrt_(tensors: list[Any]) -> None:
        for tensor, root in zip(tensors, _foreach_sqrt(tensors), strict=True):
            tensor.copy_(root)

    monkeypatch.setattr(torch, "_foreach_sqrt", _foreach_sqrt)
    monkeypatch.setattr(torch, "_foreach_sqrt_", _foreach_sqrt_)


@pytest.mark.usefixtures("exact_square_roots")
@pytest.mark.parametrize(("dtype", "in_place"), [("float32", True), ("float64", False)])
@pytest.mark.parametrize("case", CASES)
def test_kernels_give_the_numbers_of_single_operations(
    case: str, dtype: str, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    optimizer, settings = CASES[case]
    program = torch.onnx.export(
        Net(kind).eval(), (torch.randn(4, 7, dtype=kind),), dynamo=True, verbose=False
    )
    net = sx.trainable(program.model_proto, "cross_entropy", optimizer, **settings)
    monkeypatch.setattr(native_step, "fused", lambda graph, over, device: Grouped(graph))
    expected_losses, expected = _trained(net, False)
    kernels: list[str] = []
    launches: list[Any] = []

    def fused(graph: Any, over: dict[int, int], device: Any) -> Grouped:
        result = fused_update.Fused(graph, over, compiler(tmp_path, kernels))
        launches.extend(call for call in result.calls if isinstance(call, fused_update.Launch))
        return result

    monkeypatch.setattr(native_step, "fused", fused)
    monkeypatch.setattr(native_step, "_are_finite", lambda tensors, metrics: False)
    losses, state = _trained(net, in_place)
    places = [place for launch in launches for column in launch.over for place in column]
    assert kernels
    assert any(place is not None for place in places)
    assert all(launch.replaces == in_place for launch in launches)
    assert losses == expected_losses
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)


@pytest.mark.usefixtures("exact_square_roots")
@pytest.mark.parametrize(("dtype", "in_place"), [("float32", True), ("float64", False)])
@pytest.mark.parametrize("case", CASES)
def test_loops_in_c_give_the_numbers_of_single_operations(
    case: str, dtype: str, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    optimizer, settings = CASES[case]
    program = torch.onnx.export(
        Net(kind).eval(), (torch.randn(4, 7, dtype=kind),), dynamo=True, verbose=False
    )
    net = sx.trainable(program.model_proto, "cross_entropy", optimizer, **settings)
    loops: list[Any] = []

    def fused(graph: Any, over: dict[int, int], device: Any) -> Grouped:
        result = cpu_update.on_cpu(graph, over)
        loops.extend(call for call in result.calls if isinstance(call, cpu_update.Loop))
        return result

    monkeypatch.setattr(cpu_update, "SMALLEST", 0)
    # several threads, each with many pieces, also where the machine has one core
    monkeypatch.setattr(cpu_update, "CHUNK", 5)
    monkeypatch.setattr(cpu_update, "ALONE", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(native_step, "fused", fused)
    monkeypatch.setattr(native_step, "_are_finite", lambda tensors, metrics: in_place)
    losses, state = _trained(net, False)
    assert loops
    assert all(loop.replaces == in_place for loop in loops)
    monkeypatch.setattr(native_step, "fused", lambda graph, over, device: Grouped(graph))
    expected_losses, expected = _trained(net, False)
    assert losses == expected_losses
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_the_state_before_a_step_is_there_where_its_loss_is_not_finite(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_update, "SMALLEST", 0)
    program = torch.onnx.export(Net().eval(), (torch.randn(4, 7),), dynamo=True, verbose=False)
    net = sx.trainable(program.model_proto, "cross_entropy", sx.optim.adamw(1e-2))
    rep = sx.prepare_training(net, engine)
    x, y = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32), np.arange(4) % 3
    name = net.inputs[0].name
    for _ in range(3):
        assert np.isfinite(rep.step({name: x, "label": y})["loss"])
    before = rep.state()
    assert np.isnan(rep.step({name: np.full_like(x, np.nan), "label": y})["loss"])
    for key, value in rep.steps[0].before().items():
        np.testing.assert_array_equal(value, before[key], err_msg=key)


def test_only_large_updates_are_compiled() -> None:
    def sums(size: int) -> Any:
        graph = torch.fx.experimental.proxy_tensor.make_fx(lambda a, b: [a * b + a])(
            torch.zeros(size), torch.zeros(size)
        )
        return cpu_update.on_cpu(graph, {})

    assert not isinstance(sums(100), cpu_update.Compiled)
    assert isinstance(sums(cpu_update.SMALLEST), cpu_update.Compiled)


def test_a_forked_process_has_threads_of_its_own() -> None:
    size = 4 * cpu_update.ALONE
    code = f"""
import os, torch
from sardonyx.engines.torch import cpu_update
torch.set_num_threads(2)
graph = torch.fx.experimental.proxy_tensor.make_fx(lambda a, b: [a * b + a])(
    torch.zeros({size}), torch.zeros({size}))
update = cpu_update.on_cpu(graph, {{}})
a = torch.arange({size}, dtype=torch.float32)
assert update(a, a)[0][-1] == a[-1] * a[-1] + a[-1]
child = os.fork()
if child == 0:
    os._exit(0 if update(a, a)[0][-1] == a[-1] * a[-1] + a[-1] else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("case", CASES)
def test_merged_operations_give_the_same_numbers_but_for_rounding(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    optimizer, settings = CASES[case]
    kind = torch.float64
    program = torch.onnx.export(
        Net(kind).eval(), (torch.randn(4, 7, dtype=kind),), dynamo=True, verbose=False
    )
    net = sx.trainable(program.model_proto, "cross_entropy", optimizer, **settings)
    merges: list[Any] = []
    monkeypatch.setattr(cpu_update, "compile_library", lambda text: None)
    original = native_step.fused

    def fused(graph: Any, over: dict[int, int], device: Any) -> Grouped:
        result = original(graph, over, device)
        merges.extend(n for n in graph.graph.nodes if n.target in MERGED)
        return result

    monkeypatch.setattr(native_step, "fused", fused)
    losses, state = _trained(net, False)
    assert merges
    monkeypatch.setattr(native_step, "fused", lambda graph, over, device: Grouped(graph))
    expected_losses, expected = _trained(net, False)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-11)
    for name, array in expected.items():
        scale = float(np.abs(array).max(initial=0.0))
        np.testing.assert_allclose(state[name], array, rtol=0, atol=1e-9 * scale, err_msg=name)


def test_operations_alike_share_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.onnx.export(Net().eval(), (torch.randn(4, 7),), dynamo=True, verbose=False)
    net = sx.trainable(program.model_proto, "cross_entropy", sx.optim.adamw(1e-2))
    kernels: list[str] = []

    def fused(graph: Any, over: dict[int, int], device: Any) -> Grouped:
        return fused_update.Fused(graph, over, compiler(tmp_path, kernels))

    monkeypatch.setattr(native_step, "fused", fused)
    _trained(net, True)
    assert len(kernels) == 1


def test_other_layouts_are_computed_by_single_operations() -> None:
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda a, b: [a * b + a])(
        torch.zeros(3, 4), torch.zeros(3, 4)
    )

    def compile(source: str, name: str) -> Callable[..., Any]:
        def run(**launch: Any) -> None:
            raise AssertionError("a kernel for other layouts")

        return run

    a, b = torch.randn(4, 3).T, torch.randn(3, 4)
    (result,) = fused_update.Fused(graph, {}, compile)(a, b)
    assert torch.equal(result, a * b + a)

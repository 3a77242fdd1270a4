"""Checks that need a GPU, each for a process of its own: `python -m tests.gpu_checks NAME`.

`tests/test_gpu.py` runs them where there is one. A check prints "ok" as its last line.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx as sx


def _record() -> tuple[Any, dict[str, np.ndarray]]:
    """A record of a small GPT and rows for it."""
    import torch

    from tests.architectures import Gpt

    torch.manual_seed(0)
    module = Gpt(32, 2, 2, 100, 32, fused=True).eval()
    ids = torch.randint(0, 100, (64, 16))
    sizes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.onnx.export(
        module, (ids[:4],), dynamo=True, optimize=False, verbose=False, input_names=["idx"],
        dynamic_shapes=sizes,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        program.save(Path(folder) / "gpt.onnx")
        model = sx.load(Path(folder) / "gpt.onnx")
        net = sx.trainable(
            model, "cross_entropy", sx.optim.adamw(1e-3), prediction=model.outputs[0].name,
            class_axis=-1,
        )  # fmt: skip
    labels = np.roll(ids.numpy(), -1, 1)
    (label,) = {v.name for v in sx.prepare_training(net, "torch").step_inputs} - {"idx"}
    return net, {"idx": ids.numpy(), str(label): labels}


def steps_wait_for_nothing() -> None:
    """torch raises where a step would wait for the GPU; batches and metrics go beside it."""
    import torch

    net, rows = _record()
    for precision in (None, "bf16"):
        rep = sx.prepare_training(net, "torch", device="cuda", precision=precision)
        assert rep.steps_ahead > 0
        batches = [{n: a[i : i + 8] for n, a in rows.items()} for i in range(0, 64, 8)]
        expected = [float(rep.step(batch)["loss"]) for batch in batches[:2]]
        readers = []
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches[2:]:
                readers.append(rep.start_step(rep.staged(batch)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        losses = [float(read()["loss"]) for read in readers]
        again = sx.prepare_training(net, "torch", device="cuda", precision=precision)
        waiting = [float(again.step(batch)["loss"]) for batch in batches]
        bound = 1e-5 if precision is None else 2e-2
        np.testing.assert_allclose([*expected, *losses], waiting, rtol=bound)


def kernels_of_an_update_give_the_numbers_of_single_operations() -> None:
    """Optimizers, clipping, averages and groups, in kernels of their own and by torch's."""
    import torch

    from sardonyx.engines.torch import fused_update, native_step, update
    from sardonyx.engines.torch.foreach import Grouped
    from tests.update_cases import CASES, Net

    torch.manual_seed(0)
    program = torch.onnx.export(
        Net().eval(), (torch.randn(4, 7),), dynamo=True, verbose=False, input_names=["x"]
    )
    rng = np.random.default_rng(0)
    batches = [
        {"x": rng.normal(size=(4, 7)).astype(np.float32), "label": rng.integers(0, 3, 4)}
        for _ in range(5)
    ]
    for case, (optimizer, settings) in CASES.items():
        net = sx.trainable(program.model_proto, "cross_entropy", optimizer, **settings)
        results = []
        for joined in (update.fused, lambda graph, over, device: Grouped(graph)):
            native_step.fused = joined  # type: ignore[assignment]
            rep = sx.prepare_training(net, "torch", device="cuda")
            losses = [float(rep.step(batch)["loss"]) for batch in batches]
            results.append((losses, rep.state()))
        (losses, state), (expected_losses, expected) = results
        assert losses == expected_losses, (case, losses, expected_losses)
        for name, array in expected.items():
            np.testing.assert_array_equal(state[name], array, err_msg=f"{case}: {name}")
        graph = torch.fx.experimental.proxy_tensor.make_fx(lambda a, b: [a * b])(
            torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
        )
        assert isinstance(update.fused(graph, {}, torch.device("cuda")), fused_update.Fused)


def cross_entropy_of_narrow_scores_is_that_of_wide_ones() -> None:
    """The kernel against torch's loss in double precision, also of infinite scores."""
    import torch

    from sardonyx.engines.torch import narrow_loss

    assert narrow_loss.kernel(torch.device("cuda", 0)) is not None
    generator = torch.Generator("cuda").manual_seed(0)
    for rows, classes in ((1, 2), (5, 1), (33, 511), (64, 50257)):
        scores = torch.randn(rows, classes, device="cuda", generator=generator) * 4
        scores[0, classes // 2 :] = -torch.inf if classes > 2 else 0.0
        target = torch.randint(0, max(1, classes // 2), (rows,), device="cuda", generator=generator)
        target[1::3] = -100
        narrow = scores.bfloat16().requires_grad_()
        wide = narrow.detach().double().requires_grad_()
        loss = narrow_loss.cross_entropy(narrow, target)
        expected = torch.nn.functional.cross_entropy(wide, target)
        torch.testing.assert_close(loss.double(), expected, rtol=2e-6, atol=1e-7)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(narrow.grad.double(), wide.grad, rtol=2**-8, atol=1e-9)
    broken = torch.tensor([[0.0, torch.nan, 1.0]], device="cuda").bfloat16().requires_grad_()
    assert torch.isnan(
        narrow_loss.cross_entropy(broken, torch.zeros(1, dtype=torch.int64, device="cuda"))
    )


def a_run_on_the_gpu_is_that_of_the_cpu() -> None:
    """A whole run, with validation, checkpoints and a resume, on torch and jax."""
    net, rows = _record()
    how: dict[str, Any] = {"batch_size": 8, "validation": 0.25, "metrics": []}
    expected = sx.train(net, rows, engine="torch", epochs=3, **how)
    for engine in ("torch", "jax"):
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "o.onnx"
            more = {"engine": engine, "device": "cuda", "output": output, **how}
            sx.train(net, rows, epochs=1, **more)
            run = sx.train(net, rows, epochs=3, resume=True, **more)
        bound = 2e-4 if engine == "torch" else 5e-3  # jax multiplies in TF32
        for ours, theirs in zip(run.history, expected.history, strict=True):
            np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=bound)
            np.testing.assert_allclose(ours["val_loss"], theirs["val_loss"], rtol=bound)


def a_residual_network_compiles_on_jax() -> None:
    """XLA aborted the process where it tiled a sum over the expanded gradient of such a network:
    "triton_tiling_propagation.cc: Check failed: subdim_size_accumulator == dim_size (784 vs. 56)".
    """
    import torch

    from tests.architectures import ResNet

    torch.manual_seed(0)
    module = ResNet((1, 1, 1, 1)).eval()
    x = torch.randn(8, 3, 224, 224)
    program = torch.onnx.export(
        module, (x[:4],), dynamo=True, optimize=False, verbose=False, input_names=["x"],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        program.save(Path(folder) / "resnet.onnx")
        net = sx.trainable(Path(folder) / "resnet.onnx", "cross_entropy", sx.optim.adamw(1e-3))
    batch = {"x": x.numpy(), "label": np.arange(8)}
    rep = sx.prepare_training(net, "jax", device="cuda")
    losses = [float(rep.step(batch)["loss"]) for _ in range(3)]
    other = sx.prepare_training(net, "torch", device="cuda")
    expected = [float(other.step(batch)["loss"]) for _ in range(3)]
    np.testing.assert_allclose(losses[0], expected[0], rtol=5e-3)
    assert np.isfinite(losses).all()


CHECKS: dict[str, Callable[[], None]] = {
    check.__name__: check
    for check in (
        steps_wait_for_nothing,
        kernels_of_an_update_give_the_numbers_of_single_operations,
        cross_entropy_of_narrow_scores_is_that_of_wide_ones,
        a_run_on_the_gpu_is_that_of_the_cpu,
        a_residual_network_compiles_on_jax,
    )
}


if __name__ == "__main__":
    CHECKS[sys.argv[1]]()
    print("ok")

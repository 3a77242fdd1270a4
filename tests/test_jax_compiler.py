"""What XLA makes of converted models: the same numbers after every compilation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

# The suite compiles without optimizations; these tests are about them.
OPTIMIZED = {k: v for k, v in os.environ.items() if k != "JAX_DISABLE_MOST_OPTIMIZATIONS"}

START = """
import os, sys, warnings
warnings.simplefilter("error")
import numpy as np, onnx, onnxruntime
import jax
import sardonyx as sx

def same(path, inputs, times):
    session = onnxruntime.InferenceSession(path)
    for _ in range(times):
        apply, params = sx.to_jax(path)
        function = jax.jit(apply)
        for x in inputs:
            expected = session.run(None, {session.get_inputs()[0].name: x})[0]
            np.testing.assert_allclose(function(params, x), expected, rtol=1e-3)
        jax.clear_caches()
"""

EQUAL_WEIGHTS = """
import onnx.parser
onnx.save(onnx.parser.parse_model('''
<ir_version: 9, opset_import: ["" : 18]>
agraph (float[1, 512, 13, 13] x) => (float[1, 1000, 1, 1] y)
<int64[4] shape = {1000, 512, 1, 1}> {
    w = ConstantOfShape <value = float[1] {0.02}> (shape)
    z = Conv (x, w)
    r = Relu (z)
    y = GlobalAveragePool (r)
}'''), "equal.onnx")
same("equal.onnx", [np.random.default_rng(0).random((1, 512, 13, 13), np.float32)], 6)
"""

SOFTMAX = """
import onnx.parser
for name in ("Softmax", "LogSoftmax", "ReduceLogSumExp"):
    attribute, axes = ("keepdims = 1", ", one") if name[0] == "R" else ("axis = -1", "")
    onnx.save(onnx.parser.parse_model(f'''
    <ir_version: 9, opset_import: ["" : 18]>
    agraph (float[1, 1000] x) => (float[N, M] y)
    <float c = {{0.00591716}}, int64[1] one = {{1}}> {{
        s = Mul (x, c)
        y = {name} <{attribute}> (s{axes})
    }}'''), f"{name}.onnx")
    values = np.linspace(1e12, 2e12, 20)
    same(f"{name}.onnx", [np.full((1, 1000), v, np.float32) for v in values], 1)
"""

LIGHT = """
folder = os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/light")
x = np.arange(3 * 224 * 224).reshape(1, 3, 224, 224).astype(np.float32) % 255
same(f"{folder}/light_{sys.argv[1]}.onnx", [x], 6)
"""


def run(script: str, folder: Path, *arguments: str, **variables: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env={**OPTIMIZED, **variables},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_a_sum_over_products_of_equal_weights(tmp_path):
    run(START + EQUAL_WEIGHTS, tmp_path)


def test_a_softmax_of_scaled_large_numbers(tmp_path):
    run(START + SOFTMAX, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "resnet50"])
def test_light_models_compiled_several_times(name, tmp_path):
    run(START + LIGHT, tmp_path, name)


def test_the_variable_is_left_as_it_was(tmp_path):
    script = "import os, sardonyx.engines.jax; print(os.environ['XLA_FLAGS'])"
    flags = "--xla_cpu_multi_thread_eigen=true"
    assert run(script, tmp_path, XLA_FLAGS=flags).strip().endswith(flags)


def test_a_process_that_compiled_before_is_warned(tmp_path):
    import importlib.metadata

    from sardonyx.engines.jax import miscompiled

    if importlib.metadata.version("jaxlib") not in miscompiled.VERSIONS:
        pytest.skip("this jaxlib is right")
    script = """
import warnings, jax
jax.numpy.zeros(3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import sardonyx.engines.jax
print([str(w.message) for w in caught])
"""
    assert f"XLA_FLAGS={miscompiled.SAFE}" in run(script, tmp_path)
    assert run(script, tmp_path, XLA_FLAGS=miscompiled.SAFE).strip() == "[]"

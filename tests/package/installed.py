"""Try an installed wheel as a user gets it: every command, the README, frameworks that are absent.

    python tests/package/installed.py [README.md]

It runs in an environment that holds `sardonyx[cpu]` and nothing else of the project: no pytest, no
torch, no checkout on the path. It exits with 1 if anything differs from what is written here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sardonyx.cli.__main__ import COMMANDS

PYTHON = sys.executable
COMMAND = str(Path(PYTHON).with_name("sardonyx"))
README = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
# Commands with what a user would give them, and the exit code that they end with.
CALLS = {
    "--help": 0,
    "-h": 0,
    "--version": 0,
    "inspect model.onnx": 0,
    "check model.onnx": 0,
    "ops Softmax": 0,
    "grad model.onnx -o gradient.onnx": 0,
    "trainable model.onnx -o trainable.onnx --loss cross_entropy": 0,
    "train model.onnx data.npz --loss cross_entropy --epochs 2 -o tuned.onnx": 0,
    "train tuned.onnx data.npz --epochs 3 -o tuned.onnx --resume": 0,
    "evaluate tuned.onnx data.npz": 0,
    "predict tuned.onnx data.npz -o predictions.npz": 0,
    "predict tuned.onnx data.npz -o predictions.csv": 0,
    "export-step tuned.onnx -o step": 0,
    "export-training tuned.onnx -o whole.onnx": 0,
    "export-web tuned.onnx data.npz -o site --runtime web": 0,
    "quantize model.onnx data.npz -o integers.onnx": 0,
    "verify model.onnx": 0,
    "verify model.onnx tuned.onnx": 1,
    "diff model.onnx model.onnx": 0,
    "diff model.onnx tuned.onnx": 1,
    "convert model.onnx --to numpy -o converted": 0,
    "import tree.pmml -o tree.onnx": 0,
    "predict tree.onnx row.npz -o row.csv": 0,
    "train model.onnx data.npz --loss cross_entropy --lora 1 --epochs 1 -o adapted.onnx": 0,
    "adapter inspect adapted.onnx": 0,
    "adapter extract adapted.onnx -o adapted.onnx_adapter": 0,
    "adapter merge adapted.onnx -o merged.onnx": 0,
    "score --help": 0,
    "inspect nowhere.onnx": 2,
    "train model.onnx data.npz --epochs -1 -o x.onnx": 2,
}
# What needs a framework that is not there says which extra brings it.
MISSING = {
    "convert model.onnx --to torch -o m.pt2": "torch",
    "convert model.onnx --to torch-source -o m": "torch",
    "convert model.onnx --to jax -o m": "jax",
    "convert model.onnx --to tensorflow -o m": "tensorflow",
    "convert model.onnx --to keras -o m.keras": "tensorflow",
    "convert model.onnx --to tflite -o m.tflite": "tensorflow",
    "train model.onnx data.npz --engine torch --epochs 1 -o x.onnx": "torch",
    "train model.onnx data.npz --engine jax --epochs 1 -o x.onnx": "jax",
    "train model.onnx data.npz --engine tensorflow --epochs 1 -o x.onnx": "tensorflow",
    "train model.onnx data.npz --engine openvino --epochs 1 -o x.onnx": "openvino",
}
PMML = """<PMML version="4.4" xmlns="http://www.dmg.org/PMML-4_4"><Header/>
<DataDictionary><DataField name="a" optype="continuous" dataType="double"/>
<DataField name="y" optype="continuous" dataType="double"/></DataDictionary>
<TreeModel functionName="regression"><MiningSchema><MiningField name="a"/>
<MiningField name="y" usageType="target"/></MiningSchema><Node score="0"><True/>
<Node score="1"><SimplePredicate field="a" operator="greaterThan" value="0"/></Node>
<Node score="2"><True/></Node></Node></TreeModel></PMML>
"""
ABSENT = """
import inspect, sardonyx as sx
from sardonyx.errors import MissingExtra
assert set(sx.__all__) <= set(dir(sx))
assert set(sx.__all__) <= dict(inspect.getmembers(sx)).keys()
for framework in ("torch", "jax", "tensorflow"):
    assert hasattr(sx, f"to_{framework}")
    try:
        getattr(sx, f"to_{framework}")("model.onnx")
    except MissingExtra as error:
        assert f"sardonyx[{framework}]" in str(error), error
    else:
        raise AssertionError(framework)
try:
    sx.train("model.onnx", "data.npz", epochs=1, loss="cross_entropy", engine="torch")
except MissingExtra:
    pass
else:
    raise AssertionError("train")
"""


def write_files() -> None:
    """A small classifier with a free batch size, and rows that it can learn."""
    rng = np.random.default_rng(0)
    shapes = {"body.weight": (8, 16), "body.bias": (16,), "head.weight": (16, 3), "head.bias": (3,)}
    weights = [
        numpy_helper.from_array(rng.normal(scale=0.3, size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "body.weight", "body.bias"], ["hidden"], name="body"),
        helper.make_node("Relu", ["hidden"], ["active"], name="relu"),
        helper.make_node("Gemm", ["active", "head.weight", "head.bias"], ["scores"], name="head"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 3])]
    graph = helper.make_graph(nodes, "classifier", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "model.onnx")
    x = rng.normal(size=(96, 8)).astype(np.float32)
    label = (x @ rng.normal(size=(8, 3))).argmax(axis=1).astype(np.int64)
    np.savez("data.npz", x=x, label=label)
    np.savez("row.npz", a=np.array([[1.0], [-1.0]]))
    Path("tree.pmml").write_text(PMML)
    Path("web").mkdir()  # stands for onnxruntime-web, whose files are only copied
    for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
        Path("web", name).touch()


def call(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": "", "NO_COLOR": "1", "COLUMNS": "120"}
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=600, env=environment, check=False
    )


def problem(arguments: list[str], code: int, needle: str = "") -> str | None:
    """What differs from the expected end of a call; None where nothing does."""
    done = call(arguments)
    output = done.stdout + done.stderr
    if done.returncode != code:
        return f"exit code {done.returncode}, not {code}:\n{output[-2000:]}"
    if "Traceback" in output:
        return f"a traceback:\n{output[-2000:]}"
    if needle not in output:
        return f"does not say {needle!r}:\n{output[-2000:]}"
    return None


def readme_problems() -> list[str]:
    assert README is not None
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", README.read_text(), re.M | re.S)
    scripts = [text for language, text in blocks if language == "python"]
    shell = [text for language, text in blocks if language == "sh"]
    problems = []
    for line in "".join(shell).splitlines():
        if line.startswith("sardonyx "):
            problems.append(problem([COMMAND, *line.split()[1:]], 0))
    problems.append(problem([PYTHON, "-c", "\n".join(scripts)], 0))
    return [f"README: {text}" for text in problems if text]


def main() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    write_files()
    tried_commands = {text.split()[0] for text in CALLS}
    problems = [f"sardonyx {name}: never tried" for name in COMMANDS if name not in tried_commands]
    for text, code in CALLS.items():
        result = problem([COMMAND, *text.split()], code)
        problems += [f"sardonyx {text}: {result}"] if result else []
    for text, extra in MISSING.items():
        result = problem([COMMAND, *text.split()], 2, f"sardonyx[{extra}]")
        problems += [f"sardonyx {text}: {result}"] if result else []
    # The other engines of a comparison have a verdict: this one alone could not tell.
    command = [COMMAND, "verify", "model.onnx", "--engine", "torch"]
    result = problem(command, 5, "sardonyx[torch]")
    problems += [f"sardonyx verify --engine torch: {result}"] if result else []
    absent = problem([PYTHON, "-c", ABSENT], 0)
    problems += [f"absent frameworks: {absent}"] if absent else []
    problems += readme_problems() if README else []
    for text in problems:
        print(f"-- {text}", file=sys.stderr)
    tried = len(CALLS) + len(MISSING) + 2 + bool(README)
    print(f"{tried - len(problems)} passed, {len(problems)} failed")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()

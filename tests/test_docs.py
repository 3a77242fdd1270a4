"""Every code block of README, CONTRIBUTING and docs runs, page by page and in order.

Each page starts in an empty folder.
`python` blocks of a page share one namespace; `sh` blocks run in bash; an `output` block must equal
what the block before it printed; a block with `title="name"` is written to that file. The folder
holds the files that the pages speak of (`fixture_files`). Examples in docstrings run as doctests.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DATA_LANGUAGES = {"text", "toml", "yaml", "json", "mermaid"}
LANGUAGES = {"python", "sh", "output"} | DATA_LANGUAGES
FENCE = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```\s*$", re.MULTILINE)
# What sets a machine up cannot run inside a test; its names are checked instead.
SETUP = re.compile(r"^(pip install|make) ")


@dataclass
class Block:
    """One fenced block: its language, `title`, text, and the line of the page where it starts."""

    language: str
    title: str | None
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    result = []
    for match in FENCE.finditer(text):
        indent, info, body = match.groups()
        title = re.search(r'title="([^"]+)"', info)
        dedented = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        line = text.count("\n", 0, match.start()) + 2
        result.append(Block(info.split(" ")[0], title and title[1], dedented, line))
    return result


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fixture_files(folder: Path) -> None:
    """A small classifier with data that it can learn, and a file nobody should trust."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 8)).astype(np.float32)
    label = (x @ rng.normal(size=(8, 3))).argmax(axis=1).astype(np.int64)
    np.savez(folder / "data.npz", x=x, label=label)
    onnx.save(classifier(rng), folder / "model.onnx")
    hostile = classifier(rng)
    tensor = hostile.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret/weights.bin")
    (folder / "untrusted.onnx").write_bytes(hostile.SerializeToString())


def classifier(rng: np.random.Generator) -> onnx.ModelProto:
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
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_fences_are_closed_and_of_a_known_language(page: Path) -> None:
    result = blocks(page)
    assert {b.language for b in result} <= LANGUAGES
    assert page.read_text().count("```") == 2 * len(result)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_data_blocks_parse(page: Path) -> None:
    for block in blocks(page):
        if block.language == "toml":
            tomllib.loads(block.text)
        if block.language == "json":
            json.loads(block.text)


def setup_lines() -> list[tuple[str, str]]:
    lines = [(p, line) for p in PAGES for b in blocks(p) for line in b.text.splitlines()]
    return [(name_of(page), line) for page, line in lines if SETUP.match(line)]


def test_setup_commands_name_what_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, line in setup_lines():
        command = line.partition("#")[0].strip()
        if command.startswith("make "):
            assert set(command.split()[1:]) <= targets, f"{page}: {line}"
        else:
            extras = re.fullmatch(r'pip install "?sardonyx(?:\[([a-z,]+)\])?"?', command)
            assert extras, f"{page}: {line}"
            expected = set(extras[1].split(",")) if extras[1] else set()
            assert expected <= project["optional-dependencies"].keys(), f"{page}: {line}"


MODULES_WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", MODULES_WITH_EXAMPLES)
def test_docstring_examples_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fixture_files(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    name = module.removesuffix(".__init__")
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert failed == 0


PAGES_THAT_RUN = [
    page for page in PAGES if any(b.language not in DATA_LANGUAGES for b in blocks(page))
]


@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=name_of)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The command line is the one of this very environment, whatever else is on the path.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    fixture_files(tmp_path)
    namespace: dict[str, object] = {"__name__": "__page__"}
    printed = ""
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        if block.language == "python":
            printed = run_python(block, page, namespace)
        elif block.language == "sh":
            printed = run_shell(block, page)
        elif block.language == "output":
            assert printed.strip() == block.text.strip(), f"{name_of(page)}:{block.line}"


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> str:
    # The empty lines give tracebacks the line numbers of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        exec(code, namespace)
    return stdout.getvalue()


def run_shell(block: Block, page: Path) -> str:
    script = "\n".join(line for line in block.text.splitlines() if not SETUP.match(line))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{name_of(page)}:{block.line}\n{done.stdout}\n{done.stderr}"
    return done.stdout

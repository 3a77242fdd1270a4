"""Nothing runs because a model names it: no library, no file, no network, no pickled object."""

from __future__ import annotations

import ast
import builtins
import io
import os
import pickle
import re
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import sardonyx
from sardonyx.errors import DataError, ModelError, SardonyxError, UnsupportedOp
from sardonyx.verify.datasets import read, read_npz

from . import test_names
from .measure import COMMANDS
from .models import as_initializer, external, graph, model, node

ROOT = Path(__file__).parents[2]
SAFE = ("load", "inspect", "check", "convert", "grad")


def with_node(op: str, **attributes: object) -> ModelProto:
    proto = model(graph([node(op, "x", "y", **attributes)]))
    domain = op.rpartition(":")[0]
    proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


@pytest.mark.parametrize("op", ["com.nobody:Relu", "com.nobody:Nothing", "ai.onnx.ml:Relu"])
def test_exe_01_an_operator_is_its_domain_and_its_name(op: str) -> None:
    """A known word in another domain is another operator, for every part of the library."""
    loaded = sardonyx.load(with_node(op))
    name = op.replace(":", "::")
    with pytest.raises(UnsupportedOp, match=re.escape(name)):
        sardonyx.to_numpy(loaded)
    with pytest.raises(UnsupportedOp, match=re.escape(name)):
        sardonyx.grad(loaded)
    from sardonyx.inspection import inspect

    assert inspect(loaded).operators == {name: 1}


def configured() -> dict[str, ModelProto]:
    """Files that name what a runtime would act on."""
    asking = model(graph([node("Relu", "x", "y")]))
    for key, value in {
        "ort_config": '{"session_options": {"custom_ops_library": "/nowhere/evil.so"}}',
        "session.config": "register_custom_ops_library=/nowhere/evil.so",
        "python": "__import__('os').system('touch hacked')",
    }.items():
        asking.metadata_props.add(key=key, value=value)
    return {
        "EXE-02-metadata": asking,
        "EXE-02-context-cache": with_node(
            "com.microsoft:EPContext", embed_mode=0, ep_cache_context="/etc/passwd", main_context=1
        ),
        "EXE-02-library": with_node("com.evil:Load", library="/nowhere/evil.so"),
        "EXE-02-python": with_node("ai.onnx.contrib:PyFunction", code="import os"),
    }


@pytest.mark.parametrize("command", SAFE)
@pytest.mark.parametrize("case", configured())
def test_nothing_that_a_file_names_is_opened_or_loaded(
    case: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(configured()[case].SerializeToString())
    sound = tmp_path / "sound.onnx"
    sound.write_bytes(model(graph([node("Relu", "x", "y")])).SerializeToString())
    COMMANDS[command](str(sound))  # whatever it imports is imported now
    opened: list[str] = []
    for module, name in ((os, "open"), (builtins, "open"), (io, "open")):
        monkeypatch.setattr(module, name, _noting(opened, getattr(module, name)))
    import ctypes

    monkeypatch.setattr(ctypes, "CDLL", _refused)
    monkeypatch.setattr(subprocess, "Popen", _refused)
    monkeypatch.chdir(tmp_path)
    try:
        COMMANDS[command](str(path))
    except UnsupportedOp:
        assert command in ("convert", "grad")
    outside = [p for p in opened if "evil" in p or "passwd" in p or "hacked" in p]
    assert outside == [] and sorted(os.listdir(tmp_path)) == ["m.onnx", "sound.onnx"]


def _noting(opened: list[str], function):
    def noting(path, *rest, **options):
        opened.append(str(path))
        return function(path, *rest, **options)

    return noting


def _refused(*arguments, **options):
    raise AssertionError("a model made us load a library, start a process or open a socket")


URL = "https://example.com/x"


@pytest.mark.parametrize("command", SAFE)
def test_exe_03_no_network(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    proto = model(graph([node("Relu", "x", "y", URL, doc_string=URL)]))
    proto.doc_string = proto.producer_name = proto.domain = proto.graph.name = URL
    proto.metadata_props.add(key=URL, value=URL)
    named, outside = tmp_path / "named.onnx", tmp_path / "outside.onnx"
    named.write_bytes(proto.SerializeToString())
    outside.write_bytes(as_initializer(external(location=URL)).SerializeToString())
    monkeypatch.setattr(socket, "socket", _refused)
    monkeypatch.setattr(socket, "getaddrinfo", _refused)
    monkeypatch.setattr(socket, "create_connection", _refused)
    COMMANDS[command](str(named))
    with pytest.raises(ModelError):
        COMMANDS[command](str(outside))


def test_exe_04_conversion_compiles_no_text_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `exec`, `eval` or import is called while a model with hostile names is converted."""
    name = 'a"); __import__("os").system("x"); ("'
    weight = TensorProto(name=name, data_type=1, dims=[2], raw_data=bytes(8))
    nodes = [helper.make_node("Add", ["x", name], ["y"], name)]
    loaded = sardonyx.load(model(graph(nodes, initializer=[weight])))
    sardonyx.to_numpy(loaded)
    sardonyx.grad(loaded)
    seen: list[str] = []
    real = {n: getattr(builtins, n) for n in ("exec", "eval", "compile", "__import__")}
    for word, function in real.items():

        def noting(first, *rest, _function=function, **options):
            seen.append(str(first))
            return _function(first, *rest, **options)

        monkeypatch.setattr(builtins, word, noting)
    again = sardonyx.load(model(graph(nodes, initializer=[weight])))
    sardonyx.to_numpy(again)
    sardonyx.grad(again)
    monkeypatch.undo()
    assert not any("os" in text and "system" in text for text in seen)


def shape_of(source: str) -> str:
    """The tree of a source, with every name and text left out."""
    tree = ast.parse(source)
    for part in ast.walk(tree):
        for name in ("id", "attr", "arg", "name"):
            if isinstance(getattr(part, name, None), str):
                setattr(part, name, "_")
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            part.value = "_"
    return ast.dump(tree)


@pytest.mark.parametrize("case", test_names.HOSTILE | test_names.ODD)
def test_exe_04_generated_python_is_the_same_program_under_any_name(
    case: str, tmp_path: Path
) -> None:
    """A hostile name changes identifiers, of letters, digits and underscores, and no more."""
    pytest.importorskip("torch")
    name = (test_names.HOSTILE | test_names.ODD)[case]
    texts = [
        sardonyx.to_torch_source(sardonyx.load(test_names.named(n)), tmp_path / str(i)).read_text()
        for i, n in enumerate((name, "harmless"))
    ]
    assert shape_of(texts[0]) == shape_of(texts[1])
    assert all(c == "\n" or c.isprintable() for c in texts[0])
    words = {
        str(getattr(p, a))
        for p in ast.walk(ast.parse(texts[0]))
        for a in ("id", "attr")
        if isinstance(getattr(p, a, None), str)
    }
    assert all(re.fullmatch(r"[A-Za-z0-9_]+", w) and w != "__class__" for w in words)


class Hostile:
    """Whoever unpickles it calls `pytest.fail`."""

    def __reduce__(self):
        return (pytest.fail, ("a pickled object was made",))


def archives(folder: Path) -> dict[str, Path]:
    pickled = pickle.dumps(Hostile())
    made = {}
    for ending in ("pt", "pkl"):
        made[ending] = folder / f"data.{ending}"
        made[ending].write_bytes(pickled)
    made["npy"] = folder / "data.npy"
    np.save(made["npy"], np.array([Hostile()], object), allow_pickle=True)
    made["npz"] = folder / "data.npz"
    np.savez(made["npz"], x=np.array([Hostile()], object))
    return made


@pytest.mark.parametrize("kind", ["pt", "pkl", "npy", "npz"])
def test_exe_05_pickled_objects_are_refused(kind: str, tmp_path: Path) -> None:
    from sardonyx.train.data import open_data

    path = archives(tmp_path)[kind]
    with pytest.raises(DataError):
        open_data(path)
    with pytest.raises(DataError):
        read_npz(path)
    with pytest.raises(ModelError):
        sardonyx.load(path)


def test_exe_06_archives_of_test_data_are_not_unpacked(tmp_path: Path) -> None:
    """There is no reader of such archives: they are refused as a whole, and nothing is written."""
    inside = tmp_path / "inside"
    inside.mkdir()
    path = inside / "test_data_set_0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, kind in (
            ("../escaped", tarfile.REGTYPE),
            (f"{tmp_path}/absolute", tarfile.REGTYPE),
            ("link", tarfile.SYMTYPE),
            ("device", tarfile.CHRTYPE),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    for reading in (path, inside):
        with pytest.raises(DataError):
            read(reading, None)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["inside", path.name]


def test_exe_07_there_is_no_downloader() -> None:
    """No module of the library imports one or names its calls; `urllib.parse` only writes text."""
    modules = r"^\s*(import|from) (urllib(?!\.parse\s)|http|requests|ftplib|socket|aiohttp)\b"
    words = re.compile(rf"{modules}|\b(urllib\.request|urlopen|urlretrieve)\b", re.M)
    sources = (ROOT / "src" / "sardonyx").rglob("*.py")
    assert [p.name for p in sources if words.search(p.read_text(encoding="utf-8"))] == []
    with pytest.raises(SardonyxError):
        sardonyx.load("https://example.com/model.onnx")


QUIET = """
import subprocess, sys
def refused(*a, **k): raise SystemExit("a process was started")
subprocess.Popen.__init__ = refused
import os
os.fork = os.posix_spawn = os.system = refused
from sardonyx.cli.__main__ import main
try:
    main(["check", sys.argv[1]])
except SystemExit as stop:
    assert stop.code == int(sys.argv[2]), stop.code
loaded = {m.partition(".")[0] for m in sys.modules}
print(sorted(loaded & {"torch", "jax", "tensorflow", "keras", "onnxruntime", "flax"}))
"""


@pytest.mark.parametrize("case", ["hostile", "sound"])
def test_exe_08_check_imports_no_framework_and_starts_no_process(case: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    hostile = as_initializer(external(location="../secret"))
    sound = model(graph([node("Relu", "x", "y")]))
    path.write_bytes((hostile if case == "hostile" else sound).SerializeToString())
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    code = "1" if case == "hostile" else "0"
    run = [sys.executable, "-c", QUIET, str(path), code]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr[-1000:]

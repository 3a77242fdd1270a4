"""The process in which one engine runs the suite: `python worker.py adapter.py`.

Needs Python and numpy, nothing of sardonyx: it runs in the engine's own environment. An adapter is
a Python file with a function `run(model, inputs)`; `gradient`, `train` and `version` are optional
(docs/scoreboard.md). Requests and answers are lines of JSON; values travel in files, as `pack`
writes them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

MESSAGE = 2000  # characters of an error that are kept


# -- values in files ------------------------------------------------------------------


def pack(values: Mapping[str, Any]) -> bytes:
    """Named values as bytes: a line of JSON that describes them, then their elements."""
    chunks: list[bytes] = []
    described = {name: _describe(value, chunks) for name, value in values.items()}
    return json.dumps(described).encode() + b"\n" + b"".join(chunks)


def unpack(data: bytes) -> dict[str, Any]:
    """What `pack` was given."""
    head, _, body = data.partition(b"\n")
    return {name: _restore(d, body) for name, d in json.loads(head).items()}


def _describe(value: Any, chunks: list[bytes]) -> dict[str, Any]:
    if value is None:
        return {"kind": "none"}
    if isinstance(value, (list, tuple)):
        return {"kind": "list", "items": [_describe(v, chunks) for v in value]}
    if isinstance(value, Mapping):
        pairs = [[_plain(k), _describe(v, chunks)] for k, v in value.items()]
        return {"kind": "map", "items": pairs}
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        texts = [v.decode() if isinstance(v, bytes) else str(v) for v in array.reshape(-1)]
        return {"kind": "text", "shape": array.shape, "items": texts}
    data = np.ascontiguousarray(array).tobytes()
    at = sum(map(len, chunks))
    chunks.append(data)
    return {
        "kind": "array",
        "dtype": array.dtype.name,
        "shape": array.shape,
        "at": at,
        "size": len(data),
    }


def _plain(key: Any) -> Any:
    return key.item() if isinstance(key, np.generic) else key


def _restore(described: dict[str, Any], body: bytes) -> Any:
    kind = described["kind"]
    if kind == "none":
        return None
    if kind == "list":
        return [_restore(d, body) for d in described["items"]]
    if kind == "map":
        return {k: _restore(d, body) for k, d in described["items"]}
    if kind == "text":
        texts = np.empty(len(described["items"]), object)
        texts[:] = described["items"]
        return texts.reshape(described["shape"])
    at, size = described["at"], described["size"]
    flat = np.frombuffer(body[at : at + size], dtype_of(described["dtype"]))
    return flat.reshape(described["shape"]).copy()


def dtype_of(name: str) -> np.dtype:
    """A type by its name: numpy's own, else one of ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


# -- the loop ---------------------------------------------------------------------------


def load_adapter(path: str) -> Any:
    """The adapter as a module; by a name that hides no package, whatever the file is called."""
    spec = importlib.util.spec_from_file_location("score_adapter", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["score_adapter"] = module
    spec.loader.exec_module(module)
    return module


def answer(adapter: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Execute one request."""
    if request["do"] == "hello":
        version = getattr(adapter, "version", None)
        able = [name for name in ("run", "gradient", "train") if hasattr(adapter, name)]
        return {"version": str(version()) if version else "", "able": able}
    with open(request["data"], "rb") as file:
        inputs = unpack(file.read())
    if request["do"] == "run":
        outputs = _named(adapter.run(request["model"], inputs))
    elif request["do"] == "gradient":
        outputs = adapter.gradient(
            request["model"], inputs["inputs"], inputs["seeds"], [str(n) for n in inputs["wrt"]]
        )
    else:
        steps = adapter.train(request["model"], inputs["batches"])
        outputs = {str(i): step for i, step in enumerate(steps)}
    with open(request["to"], "wb") as file:
        file.write(pack(outputs))
    used = getattr(adapter, "used", None)
    return {"used": used() if used else []}


def _named(outputs: Any) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if not isinstance(outputs, (list, tuple)):
        outputs = [outputs]
    return {str(i): value for i, value in enumerate(outputs)}


def failure(error: BaseException) -> dict[str, Any]:
    """An error as an answer: its class, its words, and where in the engine it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return {"error": type(error).__name__, "message": str(error)[:MESSAGE], "where": where}


def leave_with(parent: int) -> None:
    """End this process once the one that started it has ended, even if the engine hangs."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main(path: str) -> None:
    """Answer requests until the pipe closes."""
    threading.Thread(target=leave_with, args=[os.getppid()], daemon=True).start()
    # The pipe is ours alone: what libraries print to stdout goes to stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    adapter: Any = None
    for line in sys.stdin:
        try:
            if adapter is None:
                adapter = load_adapter(path)
            reply = answer(adapter, json.loads(line))
        except BaseException as error:  # an engine may raise anything, SystemExit too
            reply = failure(error)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    # The folder of this file must not shadow packages of the engine.
    sys.path.pop(0)
    main(sys.argv[1])

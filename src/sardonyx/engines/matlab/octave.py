"""The written folder in GNU Octave: an engine that runs models, to prove that the code is right."""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.matlab import mat_file
from sardonyx.engines.matlab.forms import CLASSES
from sardonyx.engines.matlab.function import TEXT
from sardonyx.engines.matlab.write import to_matlab_source, written_form
from sardonyx.engines.native import Stored
from sardonyx.errors import ArgumentError, EngineError, quote
from sardonyx.model import Model, load

COMMAND = "octave-cli"
SECONDS = 600.0
# One call for each job; what goes wrong in one does not end the others.
SCRIPT = """
function run_job(folder, feeds, results, count, inputs)
    file = fopen(results, 'w');
    try
        cd(folder);
        files = dir('*.m');
        for k = 1:numel(files)
            clear(files(k).name(1:end - 2));
        end
        params = load('params.mat');
        values = load(feeds);
        arguments = cell(1, inputs);
        for k = 1:inputs
            arguments{k} = values.(sprintf('in%d', k));
        end
        outputs = cell(1, count);
        [outputs{:}] = model(arguments{:}, params);
        fwrite(file, 1, 'double');
        for k = 1:count
            value = outputs{k};
            fwrite(file, [ndims(value), size(value)], 'double');
            kind = class(value);
            if iscell(value)
                for i = 1:numel(value)
                    fwrite(file, numel(value{i}), 'double');
                    fwrite(file, value{i}, 'char');
                end
                continue
            end
            if islogical(value)
                value = uint8(value);
                kind = 'uint8';
            end
            fwrite(file, value, kind);
        end
    catch problem
        frewind(file);
        fwrite(file, 0, 'double');
        where = '';
        if ~isempty(problem.stack)
            where = sprintf(' (%s.m, line %d)', problem.stack(1).name, problem.stack(1).line);
        end
        fwrite(file, [problem.message, where], 'char');
    end
    fclose(file);
end
"""


@dataclass
class Job:
    """A written model and what it is fed."""

    folder: Path
    feeds: Sequence[np.ndarray]
    outputs: Sequence[tuple[ir.DataType, int]]


def run(jobs: Sequence[Job], seconds: float = SECONDS) -> list[list[np.ndarray] | str]:
    """The outputs of each job, or the words of its error; all in one process of Octave."""
    if shutil.which(COMMAND) is None:
        raise EngineError(
            "GNU Octave is not installed", hint="apt-get install --no-install-recommends octave"
        )
    with tempfile.TemporaryDirectory() as place:
        lines = [SCRIPT]
        for number, job in enumerate(jobs):
            feeds, results = Path(place, f"in{number}.mat"), Path(place, f"out{number}")
            with open(feeds, "wb") as file:
                names = {f"in{k}": array for k, array in enumerate(job.feeds, 1)}
                mat_file.write(file, names or {"none": np.zeros(1)})
            words = [f"'{job.folder.resolve()}'", f"'{feeds}'", f"'{results}'"]
            lines.append(f"run_job({', '.join(words)}, {len(job.outputs)}, {len(job.feeds)});")
        script = Path(place, "jobs.m")
        script.write_text("1;\n" + "\n".join(lines) + "\n", encoding="utf-8")
        command = [COMMAND, "--no-gui", "--norc", "--quiet", str(script)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"Octave took more than {seconds:g} s") from error
        messages = done.stderr.strip()
        return [_results(Path(place, f"out{n}"), job, messages) for n, job in enumerate(jobs)]


def _results(path: Path, job: Job, words: str) -> list[np.ndarray] | str:
    data = path.read_bytes() if path.exists() else b""
    if len(data) < 8:
        return f"Octave ended early: {words[:300]}"
    if np.frombuffer(data, np.float64, 1)[0] != 1:
        return data[8:].decode(errors="replace")
    values, at = [], 8
    for dtype, rank in job.outputs:
        (count,) = np.frombuffer(data, np.float64, 1, at)
        sizes = np.frombuffer(data, np.float64, int(count), at + 8).astype(int).tolist()
        at += 8 + 8 * int(count)
        if any(n != 1 for n in sizes[max(rank, 0) :]):
            return f"Octave gave sizes {sizes} for an output of {rank} axes"
        if dtype == TEXT:
            texts, at = _texts(data, at, math.prod(sizes))
            values.append(texts.reshape([*sizes, *(1,) * rank][:rank][::-1]))
            continue
        kind = np.dtype(np.uint8 if dtype == ir.DataType.BOOL else dtype.numpy())
        size = int(np.prod(sizes))
        if at + size * kind.itemsize > len(data):
            return "Octave gave an output of another class than the model's"
        flat = np.frombuffer(data, kind, size, at).astype(dtype.numpy())
        at += flat.size * kind.itemsize
        sizes = [*sizes, *(1,) * rank][:rank]
        values.append(flat.reshape(sizes[::-1]))
    return values


def _texts(data: bytes, at: int, count: int) -> tuple[np.ndarray, int]:
    """Texts, each after its length, and where they end."""
    words = np.empty(count, object)
    for i in range(count):
        size = int(np.frombuffer(data, np.float64, 1, at)[0])
        words[i] = data[at + 8 : at + 8 + size].decode()
        at += 8 + size
    return words, at


class Runner:
    """Runs a model: `Runner(model)({"x": array})` gives its outputs by name; a process each."""

    def __init__(self, model: Model | Any, **settings: Any):
        loaded = load(model)
        self.folder = Path(tempfile.mkdtemp(prefix="sardonyx-octave-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        to_matlab_source(loaded, self.folder)
        served = written_form(loaded)
        self.inputs = {v.name or "": v.dtype for v in served.graph.inputs}
        self.outputs = {v.name or "": v for v in served.graph.outputs}

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        missing = [n for n in self.inputs if n not in feeds]
        if missing:
            raise ArgumentError(f"the model needs the input {quote(missing[0])}")
        arrays = [np.asarray(feeds[n]) for n in self.inputs]
        (outputs,) = run([Job(self.folder, arrays, ends_of(self.outputs.values()))])
        if isinstance(outputs, str):
            raise EngineError(f"Octave failed: {outputs}")
        ends = zip(self.outputs.items(), outputs, strict=True)
        return {name: _mapped(value, array) for (name, value), array in ends}


def _mapped(value: ir.Value, array: np.ndarray) -> Any:
    """An output as the model has it: scores that ZipMap turns into maps are maps again."""
    keys = value.meta.get(CLASSES)
    if keys is None:
        return array
    return [dict(zip(keys, row.tolist(), strict=True)) for row in array]


def ends_of(values: Any) -> list[tuple[ir.DataType, int]]:
    return [(v.dtype, len(v.shape)) for v in values]


class FolderFunction:
    """A written folder as a function of arrays; each call is a process of Octave."""

    def __init__(self, folder: Path, served: Model):
        self.folder, self.outputs = folder, ends_of(served.graph.outputs)

    def __call__(self, *arrays: Any) -> Any:
        (outputs,) = run([Job(self.folder, [np.asarray(a) for a in arrays], self.outputs)])
        if isinstance(outputs, str):
            raise EngineError(f"Octave failed: {outputs}")
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def store(model: Model, folder: Path) -> Stored:
    """Write the code; the result runs it in Octave where that is installed."""
    loaded = load(model)
    file = to_matlab_source(loaded, folder)
    functions = sorted(p.name for p in folder.glob("*.m"))
    rows = [
        ["code", f"{', '.join(functions)} ({len(file.read_text().splitlines())} lines in model.m)"],
        ["to run it", f"params = load('params.mat'); model(…, params)   % in {folder}"],
    ]
    if shutil.which(COMMAND) is None:
        return Stored(folder, None, rows, "GNU Octave is not installed")
    return Stored(folder, FolderFunction(folder, written_form(loaded)), rows)


class Rep:
    """A model that is ready to run."""

    def __init__(self, model: Model):
        self.runner = Runner(model)

    def run(self, inputs: Any) -> tuple[Any, ...]:
        feeds = inputs if isinstance(inputs, Mapping) else dict(zip(self.runner.inputs, inputs))
        return tuple(self.runner(feeds).values())


def prepare(model: Model, **settings: Any) -> Rep:
    """A model written as MATLAB code, and run in Octave."""
    if shutil.which(COMMAND) is None:
        raise EngineError(
            "GNU Octave is not installed", hint="apt-get install --no-install-recommends octave"
        )
    return Rep(load(model))

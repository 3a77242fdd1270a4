"""Training in a browser's runtimes against onnxruntime: ten small networks, one thread.

    python bench/web.py --runtime FOLDER [--networks mlp,cnn] [--steps 100] [--warm 1500]
    python bench/web.py --runtime FOLDER --webgpu
    python bench/web.py --runtime FOLDER --ready

FOLDER is an npm project that has onnxruntime-web. Both sides take the same batches, from the same
weights.

In WebAssembly, which node runs, the figures are the largest difference of a loss within the first
steps, and the median CPU time of a step over that of onnxruntime: of the first steps, and of as
many after `--warm` others. "ratio" is over the same operators, as `shuffle="hash"` has them, which
a page computes; "compiled" over a step with kernels that are compiled for the machine, which no
browser can have. V8 begins with code that its baseline compiler makes; another compiler,
in threads whose time is counted too, replaces the functions that run often, within the first
thousand steps or so.

On WebGPU, which Chromium runs (by Playwright, in software), the figures are the largest difference
of a loss within an epoch, the nodes that onnxruntime-web says it placed on WebGPU and on the CPU,
and those of the graph beside the step (scalars, sizes, whole numbers), which WebAssembly runs.

`--ready` opens the page of each network five times in a fresh browser, from a server on loopback.
The figures are the median time from the navigation until the page is ready to train, the CPU time
of all processes of the browser until then (on Linux), and the requests that training causes
afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import sardonyx as sx

FLOORS = {"difference": 2e-6, "time": 3.0, "placed": 95, "ready": 2.0, "requests": 0}
BATCHES, ROWS = 10, 16
RUNNER = """
import { readFile } from "node:fs/promises";
import * as ort from "onnxruntime-web";
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";
const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array };
const size = (shape) => shape.reduce((a, b) => a * b, 1);
const { folder, steps, warm, batches } = JSON.parse(await readFile(process.argv[2]));
const read = (name) => readFile(`${folder}/${name}`);
const about = JSON.parse(await read("step.json")), { train } = about.steps[0];
const open = async (name) => ort.InferenceSession.create(await read(name), { logSeverityLevel: 3 });
const first = await (await open(about.initialize.file)).run({});
const state = {}, hyper = {};
for (const [name, output] of Object.entries(about.initialize.state)) state[name] = first[output];
for (const { name, type, shape, default: value } of train.hyperparameters) {
  const number = type === "int64" ? BigInt(value) : value;
  hyper[name] = new ort.Tensor(type, new ARRAYS[type](size(shape)).fill(number), shape);
}
const feeds = [];
for (const batch of batches) {
  const tensors = {};
  for (const { name, type, shape, file } of batch) {
    const bytes = new Uint8Array(await read(file));
    tensors[name] = new ort.Tensor(type, new ARRAYS[type](bytes.buffer), shape);
  }
  feeds.push(tensors);
}
const session = await open(train.file), losses = [], times = [];
for (let step = 0; step < steps + warm + steps; step++) {
  const current = Object.fromEntries(train.state.map((n) => [n, state[n]]));
  const begin = process.cpuUsage();
  const result = await session.run({ ...feeds[step % feeds.length], ...hyper, ...current });
  const { user, system } = process.cpuUsage(begin);
  for (const [name, output] of Object.entries(train.updates)) state[name] = result[output];
  losses.push(result.loss.data[0]);
  times.push((user + system) / 1e6);
}
console.log(JSON.stringify({ losses, times }));
"""


class Recurrent(nn.Module):
    """A recurrent layer over 12 steps, and a head on the last one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Residual(nn.Module):
    """Convolutions with batch normalization, and a connection around two of them.

    Its activation is smooth: a ReLU whose input is rounded to the other side of 0 makes a gradient
    jump, on any two runtimes.
    """

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(16), nn.SiLU())
        inner = [nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)]
        self.block = nn.Sequential(*inner, nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        return self.head(nn.functional.silu(y + self.block(y)).mean((2, 3)))


class Words(nn.Module):
    """A transformer's layer over embedded tokens, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.table(tokens)).mean(1))


def convolutions(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4))


# name → network, shape of a row, loss
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)), (64,), "ce"),
    "deep": (
        lambda: nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(32, 32), nn.Tanh()))),
        (32,),
        "mse",
    ),
    "regression": (lambda: nn.Linear(16, 1), (16,), "mse"),
    "autoencoder": (
        lambda: nn.Sequential(nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 64), nn.Sigmoid()),
        (64,),
        "mse",
    ),
    "cnn": (
        lambda: convolutions(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), width=16),
        (1, 16, 16),
        "ce",
    ),
    "residual": (Residual, (3, 16, 16), "ce"),
    "separable": (
        lambda: convolutions(
            nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, groups=12, bias=False),
            nn.BatchNorm2d(12), nn.ReLU(), width=12,
        ),
        (3, 16, 16),
        "ce",
    ),
    "lstm": (lambda: Recurrent(nn.LSTM(8, 32, batch_first=True)), (12, 8), "ce"),
    "gru": (lambda: Recurrent(nn.GRU(8, 32, batch_first=True)), (12, 8), "ce"),
    "words": (Words, (12,), "ce"),
}  # fmt: skip
LOSSES = {"ce": "cross_entropy", "mse": "mse"}


def record(name: str) -> tuple[sx.Model, list[dict[str, np.ndarray]]]:
    """A network with its training record, and the batches."""
    make, shape, loss = NETWORKS[name]
    torch.manual_seed(0)
    module, rng = make().eval(), np.random.default_rng(0)

    def rows() -> np.ndarray:
        if name == "words":
            return rng.integers(0, 100, (ROWS, *shape))
        return rng.normal(size=(ROWS, *shape)).astype(np.float32)

    example = torch.from_numpy(rows())
    model = sx.from_torch(module, (example,))
    net = sx.trainable(model, LOSSES[loss], sx.optim.adamw(1e-3), labels=["label"])
    out = module(example).shape[1:]
    batches = []
    for _ in range(BATCHES):
        label = rng.integers(0, 4, ROWS) if loss == "ce" else rng.random((ROWS, *out), np.float32)
        batches.append({model.inputs[0].name or "x": rows(), "label": label})
    return net, batches


def native(
    net: sx.Model, batches: list[dict[str, np.ndarray]], steps: int, without: Sequence[str]
) -> dict[str, Any]:
    rep = sx.prepare_training(net, threads=1, without=without)
    losses, times = [], []
    for step in range(steps):
        begin = time.process_time()
        losses.append(float(rep.step(batches[step % len(batches)])["loss"]))
        times.append(time.process_time() - begin)
    return {"losses": losses, "times": times}


def in_node(
    net: sx.Model, batches: list[dict[str, np.ndarray]], steps: int, warm: int, project: Path
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sx.export_step(net, folder, current=True)
        tensors = []
        for i, batch in enumerate(batches):
            row = []
            for j, (key, array) in enumerate(batch.items()):
                file = f"{i}_{j}.bin"
                (folder / file).write_bytes(np.ascontiguousarray(array).tobytes())
                row.append(
                    {"name": key, "type": str(array.dtype), "shape": array.shape, "file": file}
                )
            tensors.append(row)
        job = {"folder": name, "steps": steps, "warm": warm, "batches": tensors}
        (folder / "job.json").write_text(json.dumps(job))
        (folder / "run.mjs").write_text(RUNNER)
        (folder / "node_modules").symlink_to(project / "node_modules")
        done = subprocess.run(
            ["node", folder / "run.mjs", folder / "job.json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


# -- WebGPU ---------------------------------------------------------------------------------------

SOFTWARE_GPU = ("--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
# A session over the step as the page opens it, which logs where its nodes are.
PLACE = """async () => {
  const ort = await import("/runtime/ort.webgpu.min.mjs");
  ort.env.wasm.wasmPaths = new URL("/runtime/", location).href;
  ort.env.wasm.numThreads = 1;
  const bytes = await (await fetch("/step/train.onnx")).arrayBuffer();
  const options = { executionProviders: ["webgpu"], graphOptimizationLevel: "all" };
  await ort.InferenceSession.create(bytes, { ...options, logSeverityLevel: 0 });
}"""
LOSSES_KEPT = """() => new Promise((resolve) => {
  const request = indexedDB.open("sardonyx", 1);
  request.onsuccess = () => {
    const all = request.result.transaction("runs").objectStore("runs").getAll();
    all.onsuccess = () => resolve(all.result[0].progress.losses);
  };
})"""
PLACED = re.compile(r"placed on \[(\w+)\]\. Number of nodes: (\d+)")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def opened(site: Path) -> Iterator[tuple[Any, list[str]]]:
    """The page of a folder in Chromium with WebGPU, and the lines of its console."""
    from playwright.sync_api import sync_playwright

    handler = functools.partial(Quiet, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*SOFTWARE_GPU])
        page, lines = browser.new_page(), []
        page.on("console", lambda message: lines.append(message.text))
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("body[data-ready=yes]", timeout=120_000)
        yield page, lines
        browser.close()
    server.shutdown()
    server.server_close()


def placed(page: Any, lines: list[str]) -> dict[str, int]:
    """Provider → the number of nodes of the step that it runs."""
    page.evaluate(PLACE)
    page.wait_for_timeout(500)
    return {m[1]: int(m[2]) for m in map(PLACED.search, lines) if m}


def on_webgpu(name: str, project: Path) -> None:
    net, batches = record(name)
    rows = {key: np.concatenate([b[key] for b in batches]) for key in batches[0]}
    with tempfile.TemporaryDirectory() as folder:
        how = {"epochs": 1, "batch_size": ROWS, "validation": 0.0}
        page_file = sx.export_web(net, folder, rows, target="webgpu", runtime=project, **how)
        beside = len(sx.load(page_file.parent / "step" / "scalars.onnx").graph)
        with opened(page_file.parent) as (page, lines):
            facts = page.text_content("#facts")
            if "on the GPU" not in facts:
                raise SystemExit(f"this browser has no WebGPU: {facts}")
            page.click("#start")
            done = "document.getElementById('status').textContent.startsWith('finished')"
            page.wait_for_function(done, timeout=300_000)
            losses = page.evaluate(LOSSES_KEPT)
            counts = placed(page, lines)
    run = sx.train(net, rows, epochs=1, batch_size=ROWS, shuffle="hash", display="quiet")
    difference = np.abs(np.subtract(losses, run.losses)).max()
    gpu, cpu = (counts.get(f"{p}ExecutionProvider", 0) for p in ("WebGpu", "CPU"))
    share = 100 * gpu / (gpu + cpu)
    print(f"| {name} | {difference:.1e} | {gpu} | {cpu} | {share:.1f} | {beside} |", flush=True)


# -- loading ---------------------------------------------------------------------------------------

READY = """() => new Promise((resolve) => {
  const check = () => document.body?.dataset.ready === "yes" ? resolve(performance.now())
    : setTimeout(check, 5);
  check();
})"""


def browser_time() -> float:
    """The CPU time of all processes that this one has started, in seconds."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(number)
            ticks[number] = int(fields[11]) + int(fields[12])
    total, waiting = 0, list(children.get(os.getpid(), []))
    while waiting:
        number = waiting.pop()
        total += ticks[number]
        waiting += children.get(number, [])
    return total / os.sysconf("SC_CLK_TCK")


def until_ready(name: str, project: Path) -> None:
    net, batches = record(name)
    rows = {key: np.concatenate([b[key] for b in batches]) for key in batches[0]}
    times, work, requests = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        page_file = sx.export_web(net, folder, rows, epochs=1, runtime=project)
        for _ in range(5):
            with opened(page_file.parent) as (page, _):
                before = browser_time()
                page.reload()  # the first visit starts processes of the browser
                times.append(page.evaluate(READY) / 1e3)
                work.append(browser_time() - before)
                seen: list[str] = []
                page.on("request", lambda request, seen=seen: seen.append(request.url))
                page.click("#start")
                done = "document.getElementById('status').textContent.startsWith('finished')"
                page.wait_for_function(done, timeout=300_000)
                requests += len(seen)
    wall, cpu = statistics.median(times), statistics.median(work)
    print(f"| {name} | {wall:.2f} | {cpu:.2f} | {requests} |", flush=True)


def in_webassembly(name: str, steps: int, warm: int, project: Path) -> None:
    net, batches = record(name)
    ours = native(net, batches, 3 * steps, ["kernels", "dense", "depthwise"])
    compiled = statistics.median(native(net, batches, 3 * steps, [])["times"][steps:])
    theirs = in_node(net, batches, steps, warm, project)
    difference = np.abs(np.subtract(ours["losses"][:steps], theirs["losses"][:steps])).max()
    here = statistics.median(ours["times"][steps:])
    first, later = (statistics.median(theirs["times"][part]) for part in parts(steps))
    print(
        f"| {name} | {difference:.1e} | {1e3 * here:.2f} | {1e3 * later:.2f} "
        f"| {later / here:.2f} | {later / compiled:.2f} | {first / here:.2f} |",
        flush=True,
    )


def parts(steps: int) -> tuple[slice, slice]:
    return slice(5, steps), slice(-steps, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", type=Path, required=True)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm", type=int, default=1500)
    parser.add_argument("--webgpu", action="store_true")
    parser.add_argument("--ready", action="store_true")
    options = parser.parse_args()
    project = options.runtime.resolve()
    if options.ready:
        print("| network | ready, s | CPU time, s | requests |\n|---|---|---|---|")
        for name in options.networks.split(","):
            until_ready(name, project)
        return
    if options.webgpu:
        print("| network | difference | on WebGPU | on the CPU | share, % | beside |", end="")
    else:
        print("| network | difference | onnxruntime, ms | node, ms ", end="")
        print("| ratio | compiled | ratio at first |", end="")
    print("\n|---|---|---|---|---|---|" + "---|" * (not options.webgpu))
    for name in options.networks.split(","):
        if options.webgpu:
            on_webgpu(name, project)
        else:
            in_webassembly(name, options.steps, options.warm, project)
    print(f"\nfloors: {FLOORS}")


if __name__ == "__main__":
    main()

"""Load and save: time and peak memory for large external data, and the curve over node counts.

    python bench/load.py                        # small sizes, a few seconds
    python bench/load.py --gigabytes 2 8 --nodes 12500 25000 50000 100000

The data of the large models is a sparse file: it takes no disk until a save writes it out.
`private` is what the process holds itself, and a second copy of the weights would show there;
`mapped` is the share of the file that the system keeps in memory for it, and gives back when it
needs the room. Every row is measured in a process of its own. Peers are measured in the same run:
`onnx.load` and `onnx.save`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import onnx
import onnx.helper as helper

TENSOR = 64 * 2**20


def large_model(folder: Path, gigabytes: float) -> Path:
    """A chain of square matrices of 64 MiB each, with all data in one sparse file."""
    count = max(int(gigabytes * 10**9 / TENSOR), 1)
    side = 4096
    nodes, tensors = [], []
    for i in range(count):
        tensor = onnx.TensorProto(name=f"w{i}", data_type=onnx.TensorProto.FLOAT, dims=[side, side])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (
            ("location", "weights.data"),
            ("offset", i * TENSOR),
            ("length", TENSOR),
        ):
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
        nodes.append(helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], name=f"n{i}"))
    infos = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", side])
        for n in ("v0", f"v{count}")
    ]
    graph = helper.make_graph(nodes, "large", infos[:1], infos[1:], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    (folder / "large.onnx").write_bytes(proto.SerializeToString())
    with open(folder / "weights.data", "wb") as file:
        file.truncate(count * TENSOR)
    return folder / "large.onnx"


def long_model(folder: Path, nodes: int) -> Path:
    """A chain of cheap nodes."""
    ops = ("Neg", "Relu", "Exp", "Abs")
    chain = [
        helper.make_node(ops[i % 4], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(nodes)
    ]
    infos = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 4])
        for n in ("v0", f"v{nodes}")
    ]
    graph = helper.make_graph(chain, "long", infos[:1], infos[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    (folder / "long.onnx").write_bytes(proto.SerializeToString())
    return folder / "long.onnx"


class Peak:
    """The most private and mapped memory of this process while the block runs, in megabytes."""

    def __enter__(self) -> Peak:
        self.private = self.mapped = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start[0]
        self.cpu = time.process_time() - self._start[1]
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            fields = dict(
                line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
            )
            private, mapped = (int(fields[k].split()[0]) / 1000 for k in ("RssAnon", "RssFile"))
            self.private, self.mapped = max(self.private, private), max(self.mapped, mapped)
            if self._done.wait(0.005):
                return


def step(what: str, peak: Peak) -> None:
    row = (
        what,
        f"{peak.seconds:.2f}",
        f"{peak.cpu:.2f}",
        f"{peak.private:.0f}",
        f"{peak.mapped:.0f}",
    )
    print("\t".join(row), flush=True)


def measure_ours(path: Path, target: Path) -> None:
    from sardonyx.model import load
    from sardonyx.normalize import normalize
    from sardonyx.save import save

    with Peak() as peak:
        pass
    step("imports alone", peak)
    with Peak() as peak:
        model = load(path)
    step("load", peak)
    with Peak() as peak:
        normalize(model)
    step("normalize", peak)
    with Peak() as peak:
        save(model, target, external=path.name == "large.onnx" or None)
    step("save", peak)


def measure_onnx(path: Path, target: Path) -> None:
    with Peak() as peak:
        model = onnx.load(path)
    step("onnx.load", peak)
    outside = path.name == "large.onnx"
    with Peak() as peak:
        onnx.save(model, target, save_as_external_data=outside, location=f"{target.name}.data")
    step("onnx.save", peak)


def run(who: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, __file__, "--measure", who, str(path), f"{folder}/saved.onnx"]
        done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        what, seconds, cpu, private, mapped = line.split("\t")
        memory = f"private {private:>6} MB   mapped {mapped:>6} MB"
        print(f"  {what:14} {seconds:>7} s  (processor {cpu:>6} s)   {memory}")
    if done.returncode:
        print(f"  {who}: failed: {done.stderr.strip().splitlines()[-1][:160]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[0.25, 0.5])
    parser.add_argument("--nodes", type=int, nargs="*", default=[2500, 5000, 10000])
    parser.add_argument(
        "--folder", type=Path, help="where to put the models; needs room for one copy"
    )
    parser.add_argument("--ours", action="store_true", help="leave out the peers")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        who, path, target = options.measure
        {"ours": measure_ours, "onnx": measure_onnx}[who](Path(path), Path(target))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for gigabytes in options.gigabytes:
            print(f"{gigabytes:g} GB of external data")
            path = large_model(Path(folder), gigabytes)
            for who in ("ours",) if options.ours else ("ours", "onnx"):
                run(who, path)
        for nodes in options.nodes:
            print(f"{nodes:,} nodes")
            path = long_model(Path(folder), nodes)
            for who in ("ours",) if options.ours else ("ours", "onnx"):
                run(who, path)


if __name__ == "__main__":
    main()

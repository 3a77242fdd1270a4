"""Networks of transformers, timm, torchvision and our own, imported from torch with their training.

    python -m tests.sweeps.torch_imports transformers -o imports.json
    python -m tests.sweeps.torch_imports timm torchvision own --only resnet

Small configurations with random weights; nothing is downloaded. Each network is imported (the
verdict is that of `from_torch` itself), and then takes ten training steps in onnxruntime and in
torch, compared by the noise ratio. With `--apart`, each one has a process of one thread and
`--seconds` of its own, `--jobs` of them run at a time, and networks whose results the file of `-o`
already has are left out.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import multiprocessing
import multiprocessing.connection
import re
import resource
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import torch

import sardonyx as sx
from sardonyx.errors import SardonyxError
from sardonyx.importers.torch import compare
from sardonyx.importers.torch.convert import IMPORTED
from tests.sweeps import torch_networks

STEPS, RATIO = 10, 3.0
TRAINABLE = 30_000_000  # larger networks are imported, not trained: memory
MEMORY = 12 * 2**30  # of a process with `--apart`
Case = tuple[str, str, Callable[[], torch_networks.Example]]


@dataclass
class Result:
    """How one network fared."""

    family: str
    name: str
    verdict: str = ""
    training: str = ""
    ratio: float = 0.0
    seconds: float = 0.0
    reason: str = ""


def mean_square(outputs: Any, labels: Any) -> Any:
    """A loss for any network: its first float output against numbers."""
    from sardonyx.importers.torch.leaves import tensors

    floats = [v for v in tensors(outputs).values() if v.is_floating_point()]
    return (floats[0].float() - labels.reshape(-1, *[1] * (floats[0].dim() - 1))).square().mean()


def one(
    family: str, name: str, make: Callable[[], torch_networks.Example], forward: bool = False
) -> Result:
    """Import a network, and train it unless only the forward pass is asked for."""
    result = Result(family, name)
    start = time.monotonic()
    torch.manual_seed(0)
    try:
        example = make()
        module = example.module
        count = sum(p.numel() for p in module.parameters())
        settings: dict[str, Any] = {}
        if count <= TRAINABLE and not forward:
            module.train()
            optimizer = torch.optim.SGD(
                [p for p in module.parameters() if p.requires_grad], 1e-3, momentum=0.9
            )
            loss = None if example.labels is not None else mean_square
            labels = example.labels
            if labels is None:
                labels = torch.linspace(-1.0, 1.0, example.rows)
            settings = {"loss": loss, "labels": labels, "optimizer": optimizer}
        else:
            module.eval()
        model = sx.from_torch(module, example.args, example.kwargs, **settings)
        _, result.verdict, *training = model.metadata[IMPORTED].split(", ")
        if training:
            result.ratio = float(training[0].split()[1])
            result.training = "same" if result.ratio <= RATIO else "look"
    except SardonyxError as error:
        # The outputs are compared first: a difference after updates is one of the training.
        is_training = "updates" in error.what or "record" in error.what
        result.verdict = "same" if is_training else type(error).__name__
        result.training = type(error).__name__ if is_training else ""
        result.reason = str(error)[:600]
    except Exception as error:  # what breaks is a finding too
        key = "training" if result.verdict else "verdict"
        setattr(result, key, f"crash {type(error).__name__}")
        result.reason = "".join(traceback.format_exception(error))[-900:]
    result.seconds = round(time.monotonic() - start, 1)
    return result


def apart(waiting: Iterator[Case], jobs: int, seconds: float, forward: bool) -> Iterator[Result]:
    """Each case in a process of its own, `jobs` at a time, ended after some time."""
    processes = multiprocessing.get_context("fork")
    running: dict[Any, tuple[Any, Case, float]] = {}

    def report(case: Case, sender: Any) -> None:
        torch.set_num_threads(1)
        _one_thread_of_onnxruntime()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        sender.send(one(*case, forward))

    while True:
        for case in itertools.islice(waiting, jobs - len(running)):
            receiver, sender = processes.Pipe(duplex=False)
            process = processes.Process(target=report, args=(case, sender))
            process.start()
            sender.close()
            running[receiver] = process, case, time.monotonic()
        if not running:
            return
        ready = multiprocessing.connection.wait(list(running), timeout=1.0)
        for receiver, (process, case, start) in list(running.items()):
            took = time.monotonic() - start
            if receiver in ready or took > seconds:
                yield _ended(receiver, process, case, took)
                del running[receiver]


def _one_thread_of_onnxruntime() -> None:
    plain = onnxruntime.SessionOptions

    def options() -> Any:
        settings = plain()
        settings.intra_op_num_threads = 1
        return settings

    onnxruntime.SessionOptions = options


def _ended(receiver: Any, process: Any, case: Case, seconds: float) -> Result:
    """The result that a process has sent, or why there is none."""
    result = Result(*case[:2], verdict="time", seconds=round(seconds, 1))
    if receiver.poll():
        try:
            result = receiver.recv()
        except EOFError:
            result.verdict = "crash"
    process.kill()
    process.join()
    receiver.close()
    return result


def cases(families: list[str], only: str) -> Iterator[Case]:
    for family in families:
        for name, make in torch_networks.FAMILIES[family]():
            if re.search(only, name):
                yield family, name, make


def summary(results: list[Result]) -> str:
    lines = []
    for family in dict.fromkeys(r.family for r in results):
        rows = [r for r in results if r.family == family]
        same = sum(r.verdict == "same" for r in rows)
        different = sum("Differs" in r.verdict or "Differs" in r.training for r in rows)
        trained = [r for r in rows if r.training]
        steps = sum(r.training == "same" for r in trained)
        lines.append(
            f"{family}: {same} of {len(rows)} same, {different} different, "
            f"{steps} of {len(trained)} trained alike"
        )
    return "\n".join(lines)


def _before(path: str | None) -> list[Result]:
    if not path or not Path(path).is_file():
        return []
    return [Result(**row) for row in json.loads(Path(path).read_text(encoding="utf-8"))]


def main() -> None:
    warnings.simplefilter("ignore")
    torch_networks.define_operators()
    compare.STEPS = STEPS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(torch_networks.FAMILIES))
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--forward", action="store_true", help="without training")
    parser.add_argument("--apart", action="store_true", help="one process for each network")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each of these processes")
    parser.add_argument("--large", action="store_true", help="with networks of 2 GB and more")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes at a time")
    parser.add_argument("-o", "--output", help="a JSON file of the results")
    arguments = parser.parse_args()
    torch_networks.LARGE = arguments.large
    results = _before(arguments.output) if arguments.apart else []
    names = {(r.family, r.name) for r in results}
    waiting = (c for c in cases(arguments.families, arguments.only) if c[:2] not in names)
    if arguments.apart:
        stream = apart(waiting, arguments.jobs, arguments.seconds, arguments.forward)
    else:
        stream = (one(*case, arguments.forward) for case in waiting)
    for result in stream:
        results.append(result)
        row = [result.family, result.name, result.verdict, result.training, f"{result.ratio:.2f}"]
        print("  ".join([*row, f"{result.seconds:.0f} s", result.reason[:300]]), flush=True)
        if arguments.output:
            with open(arguments.output, "w", encoding="utf-8") as file:
                json.dump([asdict(r) for r in results], file, indent=1)
        gc.collect()
    print(summary(results))


if __name__ == "__main__":
    main()

"""The cost of imports against the source's own exporter: time, and memory over the weights.

    python bench/imports.py [--network bert-base|bert-small|bert-hugging-face|resnet50]
                            [--clock wall|processor]

torch: `sx.from_torch` with its comparison, against `torch.onnx.export(dynamo=True)` alone, each in
a fresh process. Memory is the peak of the process above what it held with the module made, so the
module itself is not counted. On a machine that others use too, `--clock processor` with one thread
(OMP_NUM_THREADS=1) counts the time that the process ran. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

SIZES = {"bert-base": (768, 12, 12, 30_522), "bert-small": (256, 4, 4, 8_000)}
LIBRARIES = ("bert-hugging-face", "resnet50")  # of transformers and of timm
MIB = 2**20


class Bert(nn.Module):
    """An encoder of BERT's sizes with a head for two classes."""

    def __init__(self, width: int, depth: int, heads: int, words: int):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Any) -> Any:
        places = torch.arange(ids.shape[1])
        return self.head(self.encoder(self.norm(self.embed(ids) + self.place(places)))[:, 0])


def example(network: str) -> tuple[nn.Module, Any]:
    """A network with random weights, and its input."""
    if network == "bert-hugging-face":
        from transformers import BertConfig, BertForSequenceClassification

        module = BertForSequenceClassification(BertConfig()).eval()
        return module, torch.randint(0, 1000, (2, 32))
    if network == "resnet50":
        import timm

        return timm.create_model("resnet50", pretrained=False).eval(), torch.randn(2, 3, 224, 224)
    return Bert(*SIZES[network]).eval(), torch.randint(0, 1000, (2, 32))


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(network: str, how: str) -> dict[str, float]:
    """Seconds of wall and processor time, and peak memory over the weights."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.manual_seed(0)
    _declare_torchvision()
    module, x = example(network)
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    _load(how)
    before, wall, processor = peak(), time.perf_counter(), time.process_time()
    if how == "sardonyx":
        import sardonyx as sx

        model = sx.from_torch(module, x)
        assert model.metadata["sardonyx.imported"].endswith("same")
    else:
        sizes = ({0: torch.export.Dim.AUTO},)
        torch.onnx.export(module, (x,), dynamo=True, dynamic_shapes=sizes, verbose=False)
    return {
        "wall": time.perf_counter() - wall,
        "processor": time.process_time() - processor,
        "memory": (peak() - before) / size,
        "size": size / MIB,
    }


def _declare_torchvision() -> None:
    """Declare what transformers and timm import, where torchvision does not load beside torch."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.sweeps import torch_networks

    torch_networks.define_operators()


def _load(how: str) -> None:
    """Import what an import needs, and export a small network: that is not measured."""
    small, x = nn.Linear(2, 2).eval(), torch.ones(2, 2)
    if how == "sardonyx":
        import sardonyx as sx

        sx.from_torch(small, x)
    else:
        torch.onnx.export(small, (x,), dynamo=True, verbose=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=(*SIZES, *LIBRARIES), default="bert-base")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--one", choices=("sardonyx", "torch"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(arguments.network, arguments.one)))
        return
    results = {}
    for how in ("torch", "sardonyx"):
        command = [sys.executable, __file__, "--network", arguments.network, "--one", how]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results[how] = json.loads(done.stdout.splitlines()[-1])
    ratio = results["sardonyx"][arguments.clock] / results["torch"][arguments.clock]
    print(
        f"| {arguments.network}, {results['torch']['size']:.0f} MiB | seconds | memory / weights |"
    )
    print("|---|---|---|")
    for how, name in (("torch", "torch.onnx.export"), ("sardonyx", "sx.from_torch")):
        row = results[how]
        print(f"| {name} | {row[arguments.clock]:.1f} | {row['memory']:.2f} |")
    print(f"\nratio {ratio:.2f}, {arguments.clock} time")


if __name__ == "__main__":
    main()

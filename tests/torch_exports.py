"""Models as torch's two exporters write them, with a free batch: a CNN, an LSTM, a transformer."""

from __future__ import annotations

import functools
import io
import warnings
from typing import Any

import onnx

# Each exporter at the opsets that it writes; the newer one begins at 18.
SCRIPT = "torchscript"
DYNAMO = "dynamo"
OPSETS = {SCRIPT: (13, 17, 20), DYNAMO: (18, 20, 22)}
NETWORKS = ("cnn", "lstm", "transformer")
# torch 2.13's older exporter has no way to write the attention of a transformer before opset 14.
EXPORTS = [
    (network, exporter, version)
    for network in NETWORKS
    for exporter, versions in OPSETS.items()
    for version in versions
    if (network, exporter, version) != ("transformer", SCRIPT, 13)
]


def network(name: str) -> Any:
    """A network in evaluation mode, with weights from a fixed seed."""
    import torch
    from torch import nn

    class Cnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1, stride=2),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.Conv2d(8, 16, 3, padding=1, groups=2),
                nn.GELU(),
                nn.MaxPool2d(2),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
            )
            self.head = nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x))

    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.rnn = nn.LSTM(8, 12, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(24, 4)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.rnn(self.embed(tokens))[0][:, -1])

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 16)
            layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 4)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.encoder(self.embed(tokens)).mean(1))

    torch.manual_seed(0)
    return {"cnn": Cnn, "lstm": Lstm, "transformer": Transformer}[name]().eval()


def example(name: str, batch: int) -> Any:
    """One input of a network."""
    import torch

    generator = torch.Generator().manual_seed(batch)
    if name == "cnn":
        return torch.randn(batch, 3, 16, 16, generator=generator)
    return torch.randint(0, 50, (batch, 7), generator=generator)


@functools.cache
def exported(name: str, exporter: str, version: int) -> onnx.ModelProto:
    """A network as one of torch's exporters writes it, its batch free."""
    import torch

    module, x = network(name), example(name, 3)
    settings: dict[str, Any] = {"opset_version": version, "input_names": ["x"]}
    settings["output_names"] = ["y"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == DYNAMO:
            sizes = ({0: torch.export.Dim("batch", min=2)},)
            made = torch.onnx.export(
                module, (x,), dynamo=True, dynamic_shapes=sizes, verbose=False, **settings
            )
            proto: onnx.ModelProto = made.model_proto
            return proto
        file = io.BytesIO()
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        torch.onnx.export(module, (x,), file, dynamo=False, dynamic_axes=axes, **settings)
        return onnx.load_from_string(file.getvalue())

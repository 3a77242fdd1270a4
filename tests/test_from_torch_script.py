"""TorchScript, scripted and traced, in memory and in archives: against the module itself."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn  # noqa: E402

import sardonyx as sx  # noqa: E402
from sardonyx.errors import ImportRefused  # noqa: E402
from sardonyx.importers import proof  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Mixed(nn.Module):
    """Sizes, a loop, a branch on the mode, a dict, batch normalization, dropout and an LSTM."""

    count: int

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.memory = nn.LSTM(8, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 3)
        self.count = 2

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> tuple[Any, dict[str, torch.Tensor]]:
        h = self.drop(torch.relu(self.norm(self.first(x))))
        for i in range(self.count):
            h = h + i / scale
        if self.training:
            h = h * 1.5
        y, (state, _) = self.memory(h.view(h.shape[0], 1, h.size(1)))
        return self.head(y[:, 0]), {"state": state}

    __annotations__ = {"count": int}


Mixed.forward.__annotations__ = {
    "x": torch.Tensor, "scale": float, "return": tuple[torch.Tensor, dict[str, torch.Tensor]],
}  # fmt: skip


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout(0.1),
        )  # fmt: skip
        self.head = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).reshape(x.shape[0], -1))


Convolved.forward.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}


def compiled(module: Any, how: str, *args: Any) -> Any:
    if how == "script":
        return torch.jit.script(module)
    return torch.jit.trace(module.eval(), args, strict=False, check_trace=False)


def run(model: Any, **feeds: Any) -> Any:
    return proof.run(model, {k: v.numpy() for k, v in feeds.items()})


@pytest.mark.parametrize("how", ["script", "trace"])
def test_an_archive_has_the_numbers_of_its_module(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Mixed().eval(), torch.randn(5, 4)
    path = tmp_path / "net.pt"
    compiled(module, how, x).save(str(path))
    model = sx.from_torch(path, x)
    assert set(module.state_dict()) - {"norm.num_batches_tracked"} <= set(model.graph.initializers)
    longer = torch.randn(7, 4)  # the batch is free, also of a traced module
    result = run(model, x=longer)
    expected, states = module(longer)
    np.testing.assert_allclose(result["output.0"], expected.detach(), atol=1e-6)
    np.testing.assert_allclose(result["output.1.state"], states["state"].detach(), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("kind", ["mixed", "convolved", "attention"])
def test_a_loaded_archive_trains_as_in_torch(kind: str, how: str, tmp_path: Path) -> None:
    # The import takes two steps in onnxruntime and in torch, and raises where they differ.
    torch.manual_seed(0)
    module, x = {
        "mixed": (Mixed(), torch.randn(5, 4)),
        "convolved": (Convolved(), torch.randn(4, 3, 8, 8)),
        "attention": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(3, 5, 8)),
    }[kind]
    path = tmp_path / "net.pt"
    compiled(module, how, x).save(str(path))
    script = torch.jit.load(str(path)).train()

    def loss(outputs: Any, weight: Any) -> Any:
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        return (first.square().flatten(1).mean(1) * weight).mean()

    optimizer = torch.optim.SGD(script.parameters(), 0.05, momentum=0.9)
    model = sx.from_torch(script, x, loss=loss, labels=torch.rand(len(x)), optimizer=optimizer)
    assert "training" in model.metadata["sardonyx.imported"]
    # A traced module has no dropout: torch itself trains it without.
    assert any(n.op_type == "Dropout" for n in model.graph) == (how == "script")


def test_a_script_trains_with_batch_statistics() -> None:
    torch.manual_seed(0)
    net = Convolved()
    net.body[4] = nn.Identity()  # no dropout, which torch would draw by itself
    script = torch.jit.script(net)
    x, label = torch.randn(4, 3, 8, 8), torch.arange(4) % 3
    optimizer = torch.optim.SGD(script.parameters(), 0.1)
    loss = nn.CrossEntropyLoss()
    model = sx.from_torch(script, x, loss=loss, labels=label, optimizer=optimizer)
    rep = sx.prepare_training(model)
    rep.step({"x": x.numpy(), "label": label.numpy()})
    loss(script(x), label).backward()
    optimizer.step()
    state = rep.state()
    for name in ("body.1.running_mean", "body.1.running_var", "body.1.weight", "head.weight"):
        expected = script.state_dict()[name].numpy()
        np.testing.assert_allclose(state[name], expected, rtol=1e-5, atol=1e-6)


def test_a_script_that_averages_over_all_batches_is_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None))
    x, label = torch.randn(5, 4), torch.arange(5) % 3
    with pytest.raises(ImportRefused, match="changes buffers in training mode"):
        sx.from_torch(
            torch.jit.script(net), x, loss=nn.CrossEntropyLoss(), labels=label, optimizer="adam",
            verify=False,
        )  # fmt: skip


def test_weights_of_a_script_go_back_into_the_file() -> None:
    script, x = torch.jit.script(Convolved()).eval(), torch.randn(2, 3, 8, 8)
    model = sx.from_torch(script, x)
    with torch.no_grad():
        script.head.bias.add_(1.0)
    later = sx.with_weights(model, script)
    np.testing.assert_allclose(run(later, x=x)["output"], script(x).detach(), atol=1e-5)


class Restored(nn.Module):
    """A module whose archive runs code of its own while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 1

    @torch.jit.export
    def __getstate__(self):  # type: ignore[no-untyped-def]
        return (self.value, self.training)

    @torch.jit.export
    def __setstate__(self, state):  # type: ignore[no-untyped-def]
        self.value = state[0]
        self.training = state[1]

    def forward(self, x):  # type: ignore[no-untyped-def]
        return x * self.value


Restored.__setstate__.__annotations__ = {"state": tuple[int, bool]}


def test_an_archive_that_runs_code_while_loading_needs_trust(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.jit.script(Restored()).eval().save(str(path))
    with pytest.raises(ImportRefused, match="__setstate__"):
        sx.from_torch(path, torch.ones(2, 3))
    assert sx.from_torch(path, torch.ones(2, 3), trust=True).outputs


def test_an_archive_that_unpacks_to_much_more_needs_trust(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/code/__torch__.py", b"#" * 8_000_000)
        archive.writestr("net/data.pkl", b"")
    with pytest.raises(ImportRefused, match="unpacks to"):
        sx.from_torch(path, torch.ones(2, 3))


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/code/__torch__.py", b"class A: pass")
        archive.writestr("net/data.pkl", b"\x80\x02}.")
    with pytest.raises(ImportRefused, match="not a TorchScript archive"):
        sx.from_torch(path, torch.ones(2, 3))


def test_operators_outside_torch_are_named_all_at_once() -> None:
    class Files(nn.Module):
        def forward(self, x):  # type: ignore[no-untyped-def]
            torch.save(x, "somewhere.pt")
            with torch.no_grad():
                return x + 1

    with pytest.raises(ImportRefused, match="cannot be read") as caught:
        sx.from_torch(torch.jit.script(Files()), torch.ones(2, 3))
    assert any("aten::save" in row[0] for row in caught.value.where)
    assert any("prim::" in row[0] for row in caught.value.where)

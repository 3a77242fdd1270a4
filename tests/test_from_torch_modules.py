"""Modules of many kinds, imported with their training: the import compares outputs and two steps
with torch, and raises where they differ. What cannot be taken over is refused by name.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import sardonyx as sx  # noqa: E402
from sardonyx.errors import ImportRefused  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
Made = tuple[Any, Any, Any]  # a module, its arguments, labels
CASES: dict[str, Callable[[], Made]] = {}
REFUSED: dict[str, tuple[Callable[[], Made], str]] = {}


class Net(nn.Module):
    """A module from a function of itself and its arguments."""

    def __init__(self, function: Any, **parts: Any):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def case(function: Callable[[], Made]) -> Callable[[], Made]:
    CASES[function.__name__.replace("_", " ")] = function
    return function


def refused(match: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def add(function: Callable[[], Made]) -> Callable[[], Made]:
        REFUSED[function.__name__.replace("_", " ")] = function, match
        return function

    return add


def normal(*shape: int) -> Any:
    return torch.randn(*shape)


def layers(*parts: Any) -> Any:
    return nn.Sequential(nn.Linear(4, 6), *parts, nn.Linear(6, 3))


def loss(outputs: Any, labels: Any) -> Any:
    if dataclasses.is_dataclass(outputs):
        outputs = outputs.logits
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    return (first - labels).square().mean()


# -- what is taken over -----------------------------------------------------------------


@case
def a_branch_on_a_value() -> Made:
    def branch(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x) * 2, (x,))

    return Net(branch, a=nn.Linear(4, 3), b=nn.Linear(4, 3)), normal(5, 4), normal(5, 3)


@case
def one_layer_at_three_places() -> Made:
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, nn.ReLU(), layer, nn.BatchNorm1d(4), layer)
    return net, normal(6, 4), normal(6, 4)


@case
def weight_norm() -> Made:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(6, 3)), normal(5, 4), normal(5, 3)


@case
def batch_norm_without_statistics() -> Made:
    return layers(nn.BatchNorm1d(6, track_running_stats=False)), normal(5, 4), normal(5, 3)


@case
def batch_norm_without_weights() -> Made:
    return layers(nn.BatchNorm1d(6, affine=False)), normal(5, 4), normal(5, 3)


@case
def alpha_dropout() -> Made:
    return layers(nn.SELU(), nn.AlphaDropout(0.3)), normal(5, 4), normal(5, 3)


@case
def alpha_dropout_of_channels() -> Made:
    parts = [nn.Conv2d(3, 4, 3), nn.SELU(), nn.FeatureAlphaDropout(0.3), nn.Dropout2d(0.2)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(64, 3)), normal(5, 3, 6, 6), normal(5, 3)


@case
def dropout_as_a_function() -> Made:
    def run(self: Any, x: Any) -> Any:
        return self.b(functional.dropout(functional.relu(self.a(x)), 0.3, self.training))

    return Net(run, a=nn.Linear(4, 6), b=nn.Linear(6, 3)), normal(5, 4), normal(5, 3)


@case
def dropout_in_a_checkpoint() -> Made:
    inner = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Tanh())
    return (
        Net(lambda s, x: s.b(checkpoint(s.a, x, use_reentrant=False)), a=inner, b=nn.Linear(6, 3)),
        normal(5, 4),
        normal(5, 3),
    )


@case
def transformer() -> Made:
    net = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    return net, (normal(3, 4, 8), normal(3, 5, 8)), normal(3, 5, 8)


@case
def attention_with_weights_and_padding() -> Made:
    attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True, add_bias_kv=True)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    net = Net(lambda s, x, p: s.a(x, x, x, key_padding_mask=p), a=attention)
    return net, (normal(3, 5, 8), padding), normal(3, 5, 8)


@case
def bags_of_equal_size() -> Made:
    net = Net(
        lambda s, i, w: s.h(s.e(i, per_sample_weights=w)),
        e=nn.EmbeddingBag(10, 6, mode="sum"),
        h=nn.Linear(6, 3),
    )
    return net, (torch.randint(0, 10, (4, 5)), torch.rand(4, 5)), normal(4, 3)


@case
def largest_of_bags() -> Made:
    net = Net(lambda s, i: s.h(s.e(i)), e=nn.EmbeddingBag(10, 6, mode="max"), h=nn.Linear(6, 3))
    return net, torch.randint(0, 10, (4, 5)), normal(4, 3)


@case
def bags_with_offsets_and_padding() -> Made:
    bag = nn.EmbeddingBag(10, 6, mode="mean", padding_idx=2, include_last_offset=True)
    net = Net(lambda s, i, o: s.h(s.e(i, o)), e=bag, h=nn.Linear(6, 3))
    indices, offsets = torch.tensor([1, 2, 2, 4, 5, 2, 2]), torch.tensor([0, 3, 3, 5, 7])
    return net, (indices, offsets), normal(4, 3)


@case
def distances() -> Made:
    def run(self: Any, x: Any) -> Any:
        h = self.a(x)
        near = torch.cdist(h, self.p) + torch.cdist(h, self.p, 1.0)
        return near + torch.cdist(h, self.p, 3.0) + torch.cdist(h, self.p, float("inf"))

    net = Net(run, a=nn.Linear(4, 3), p=nn.Parameter(normal(5, 3)))
    return net, normal(6, 4), normal(6, 5)


@case
def adaptive_maxima() -> Made:
    parts = [nn.Conv2d(3, 4, 3), nn.AdaptiveMaxPool2d((3, None)), nn.AdaptiveMaxPool2d(1)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(4, 3)), normal(4, 3, 9, 7), normal(4, 3)


@case
def types_in_the_code() -> Made:
    def run(self: Any, x: Any) -> Any:
        h = self.a(x)
        return h.float() * torch.arange(3.0, dtype=torch.float32) + torch.zeros(h.shape)

    return Net(run, a=nn.Linear(4, 3)), normal(5, 4), normal(5, 3)


@dataclasses.dataclass
class Batch:
    x: Any
    ids: Any


@dataclasses.dataclass
class Result:
    logits: Any
    norms: dict[str, Any]


@case
def dataclasses_in_and_out() -> Made:
    def run(self: Any, batch: Batch) -> Result:
        return Result(self.a(batch.x) + self.e(batch.ids), {"n": batch.x.norm(dim=1)})

    batch = Batch(normal(5, 4), torch.randint(0, 7, (5,)))
    return Net(run, a=nn.Linear(4, 3), e=nn.Embedding(7, 3)), (batch,), normal(5, 3)


@case
def one_row() -> Made:
    parts = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(4, 3)), normal(1, 3, 8, 8), normal(1, 3)


@case
def writes_by_index() -> Made:
    def run(self: Any, x: Any) -> Any:
        h = self.a(x)
        y = h.clone()
        y[:, 0] = h[:, 1] * 2
        y[h[:, 2] > 0, 1] = 0.5
        return y

    return Net(run, a=nn.Linear(4, 3)), normal(5, 4), normal(5, 3)


@case
def float64() -> Made:
    return layers(nn.Tanh()).double(), normal(5, 4).double(), normal(5, 3).double()


@case
def attention_in_float64() -> Made:
    """Its scale, 1/sqrt(3), is not a number of float32; onnxruntime made it one."""
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)).double()
    return net, normal(5, 4, 6).double(), normal(5, 3).double()


@case
def transformer_with_causal_masks() -> Made:
    """torch looks whether a mask is causal: no need, the mask is there."""

    def run(self: Any, source: Any, target: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.net(source, target, tgt_mask=mask, src_key_padding_mask=source[..., 0] > 1.5)

    net = Net(run, net=nn.Transformer(8, 2, 1, 1, 16, batch_first=True))
    return net, (normal(3, 4, 8), normal(3, 5, 8)), normal(3, 5, 8)


@case
def encoder_with_a_mask_as_input() -> Made:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = Net(lambda s, x, mask: s.net(x, mask=mask), net=nn.TransformerEncoder(layer, 1))
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    return net, (normal(3, 5, 8), mask), normal(3, 5, 8)


@case
def experts_of_sorted_rows() -> Made:
    def run(self: Any, x: Any) -> Any:
        share, expert = self.gate(x).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        counts = functional.one_hot(expert, 4).sum(0)
        y = functional.grouped_mm(x[order], self.w, offs=counts.cumsum(0).to(torch.int32))
        return y[order.argsort()] * share[:, None]

    if not hasattr(functional, "grouped_mm"):
        pytest.skip("torch has no grouped_mm before 2.10")
    return (
        Net(run, gate=nn.Linear(8, 4), w=nn.Parameter(normal(4, 8, 8))),
        normal(6, 8),
        normal(6, 8),
    )


@case
def running_products_and_extremes() -> Made:
    def run(self: Any, x: Any) -> Any:
        h = self.a(x)
        products = torch.cumprod(h.sigmoid(), 1) + h.cumprod(dim=0)
        largest = h.cummax(1)
        return products + largest.values * largest.indices + torch.cummin(h, 0)[0]

    return Net(run, a=nn.Linear(4, 3)), normal(5, 4), normal(5, 3)


@case
def order_statistics() -> Made:
    def run(self: Any, x: Any) -> Any:
        h = self.a(x)
        second = h.kthvalue(2, 1, keepdim=True)[0] + torch.median(h, -1, True).values
        ordered = h.sort(dim=1, descending=True, stable=True)[0]
        return second + ordered + h.median() * h.gather(1, h.argsort(dim=1, stable=True))

    return Net(run, a=nn.Linear(4, 3)), normal(5, 4), normal(5, 3)


@case
def means_of_what_is_scattered() -> Made:
    places = torch.tensor([[0, 2, 0]])

    def run(self: Any, x: Any) -> Any:
        h = self.a(x)
        index = places.expand(h.shape[0], 3)
        with_start = torch.ones_like(h).scatter_reduce(1, index, h, "mean")
        return with_start + h.scatter_reduce(1, index, h * 2, "mean", include_self=False)

    return Net(run, a=nn.Linear(4, 3)), normal(5, 4), normal(5, 3)


@case
def lengths_and_steps() -> Made:
    steps = torch.linspace(-1, 1, 5)

    def run(self: Any, x: Any) -> Any:
        h = self.a(x)
        place = torch.searchsorted(steps, h.detach()) - torch.searchsorted(
            steps, x[:, :3], right=True
        )
        return torch.hypot(h, h + 1) * place + torch.fmin(h, h * 2) - h.fmax(h.flip(1))

    return Net(run, a=nn.Linear(4, 3)), normal(5, 4), normal(5, 3)


@case
def dropout_that_nothing_reads() -> Made:
    """As in the last layer of a network of two streams: torch draws its mask all the same."""

    def run(self: Any, x: Any) -> Any:
        h = self.a(x)
        self.drop(self.b(h))
        return self.c(self.drop(h.tanh()))

    parts = {"a": nn.Linear(4, 5), "b": nn.Linear(5, 5), "c": nn.Linear(5, 3)}
    return Net(run, drop=nn.Dropout(0.3), **parts), normal(5, 4), normal(5, 3)


# -- what is refused --------------------------------------------------------------------


@refused("spectral_norm iterates")
def spectral_norm() -> Made:
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6))
    return nn.Sequential(first, nn.Linear(6, 3)), normal(5, 4), normal(5, 3)


@refused('"1.running_mean".*momentum=None')
def batch_norm_that_averages_over_all_batches() -> Made:
    return layers(nn.BatchNorm1d(6, momentum=None)), normal(5, 4), normal(5, 3)


@refused("track_running_stats=False")
def instance_norm_with_statistics() -> Made:
    norm = nn.InstanceNorm1d(6, track_running_stats=True)
    net = Net(lambda s, x: s.norm(s.a(x)).mean(2), a=nn.Conv1d(3, 6, 3), norm=norm)
    return net, normal(5, 3, 8), normal(5, 6)


@refused('"average"')
def buffer_that_follows_the_data() -> Made:
    def run(self: Any, x: Any) -> Any:
        h = self.a(x)
        if self.training:
            self.average.mul_(0.9).add_(0.1 * h.mean(0).detach())
        return h - self.average

    net = Net(run, a=nn.Linear(4, 3))
    net.register_buffer("average", torch.zeros(3))
    return net, normal(5, 4), normal(5, 3)


@refused(r"aten.rand.default .*test_from_torch_modules.py")
def stochastic_depth() -> Made:
    def run(self: Any, x: Any) -> Any:
        keep = (torch.rand(x.shape[0], 1) > 0.3) if self.training else 1.0
        return self.b(x + self.a(x) * keep)

    return Net(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3)), normal(5, 4), normal(5, 3)


class Path(nn.Module):
    """Stochastic depth as libraries write it."""

    def __init__(self, ratio: float, how: str):
        super().__init__()
        self.ratio, self.how = ratio, how

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        keep, shape = 1.0 - self.ratio, [x.shape[0], *[1] * (x.dim() - 1)]
        if self.how == "uniform":
            return x.div(keep) * (keep + torch.rand(shape, dtype=x.dtype)).floor()
        if self.how == "all rows":
            shape[0] = 1
        mask = x.new_empty(shape).bernoulli_(keep)
        return x * (mask if self.how == "as they are" else mask.div_(keep))


def residual(how: str, ratio: float = 1 / 3) -> Made:
    def run(self: Any, x: Any) -> Any:
        return self.b(self.drop(x + self.path(self.a(x))))

    parts = {"path": Path(ratio, how), "drop": nn.Dropout(0.2)}
    return Net(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3), **parts), normal(5, 4), normal(5, 3)


@case
def dropped_rows() -> Made:
    return residual("each row")


@case
def dropped_rows_as_they_are() -> Made:
    return residual("as they are")


@case
def dropped_rows_by_uniform_numbers() -> Made:
    return residual("uniform")


@case
def all_rows_dropped_together() -> Made:
    return residual("all rows")


@refused("does not run in evaluation mode")
def head_of_training_mode() -> Made:
    def run(self: Any, x: Any) -> Any:
        y = self.a(x)
        return (y, self.aux(y)) if self.training else y

    return Net(run, a=nn.Linear(4, 3), aux=nn.BatchNorm1d(3)), normal(5, 4), normal(5, 3)


@case
def one_map_over_rows() -> Made:
    return Net(lambda s, x: torch.vmap(s.a)(x), a=nn.Linear(4, 3)), normal(5, 4), normal(5, 3)


@case
def weights_that_are_pruned_and_used() -> Made:
    net = layers(nn.Tanh())
    prune.l1_unstructured(net[0], "weight", 0.4)
    net(normal(5, 4))  # the layer keeps its masked weight, with its gradient
    return net, normal(5, 4), normal(5, 3)


@case
def embedding_whose_gradient_is_shared() -> Made:
    parts = nn.Embedding(7, 4, padding_idx=2, scale_grad_by_freq=True), nn.Linear(4, 3)
    return nn.Sequential(*parts), torch.tensor([[1, 1, 2], [1, 5, 2]]), normal(2, 3, 3)


@refused('parameter "0.weight"')
def embedding_with_rows_of_limited_length() -> Made:
    parts = nn.Embedding(7, 4, max_norm=1.0), nn.Linear(4, 3)
    return nn.Sequential(*parts), torch.tensor([[1, 1, 2], [1, 5, 2]]), normal(2, 3, 3)


@refused("rrelu")
def random_slopes() -> Made:
    return layers(nn.RReLU()), normal(5, 4), normal(5, 3)


class Doubled(torch.autograd.Function):
    """A square whose gradient is not that of a square."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x


@refused("wrapped")
def module_of_several_processes() -> Made:
    net = object.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(net)
    net.module = nn.Linear(4, 3)
    return net, normal(5, 4), normal(5, 3)


@refused('"Doubled"')
def gradient_of_its_own() -> Made:
    net = Net(lambda s, x: Doubled.apply(s.a(x)), a=nn.Linear(4, 3))
    return net, normal(5, 4), normal(5, 3)


# -- tests ------------------------------------------------------------------------------

QUICK = ("weights that are pruned and used", "one map over rows", "alpha dropout",
         "dropout in a checkpoint", "attention with weights and padding",
         "bags with offsets and padding", "stochastic depth", "dropped rows by uniform numbers",
         "batch norm that averages over all batches", "gradient of its own")  # fmt: skip


def marked(names: Any) -> list[Any]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


def imported(make: Callable[[], Made]) -> Any:
    torch.manual_seed(0)
    net, args, labels = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return sx.from_torch(net, args, loss=loss, labels=labels, optimizer=optimizer)


@pytest.mark.parametrize("name", marked(CASES))
def test_a_module_trains_as_in_torch(name: str) -> None:
    model = imported(CASES[name])
    assert ", same, training" in model.metadata["sardonyx.imported"]


@pytest.mark.parametrize("kind", [2.0, 1.0])
def test_rows_of_an_embedding_may_be_shortened_as_they_are_read(
    kind: float, tmp_path: pathlib.Path
) -> None:
    torch.manual_seed(0)
    net = nn.Embedding(7, 4, max_norm=1.0, norm_type=kind).eval()
    long = float(net.weight.norm(kind, dim=1).max())
    model = sx.from_torch(net, torch.tensor([[1, 1, 2], [1, 5, 2]]))
    ids = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 6, 6]])
    sx.save(model, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (rows,) = session.run(None, {"input": ids.numpy()})
    assert long > 1.0
    assert np.allclose(rows, net(ids).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("name", marked(REFUSED))
def test_what_a_record_cannot_do_is_refused_by_name(name: str) -> None:
    make, match = REFUSED[name]
    with pytest.raises(ImportRefused, match=match):
        imported(make)

"""Networks as people write them, with parts that importers stumble over."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from tests.sweeps.torch_networks import Example, Make

TABLE: dict[str, Make] = {}


def network(function: Callable[[], Example]) -> Callable[[], Example]:
    TABLE[function.__name__] = function
    return function


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(3, *shape)


class Made(nn.Module):
    """Parts by name, and a forward pass that is a function of them and of the inputs."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = forward

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def made(forward: Callable[..., Any], x: Any, **parts: Any) -> Example:
    return Example(Made(forward, **parts), x, rows=len(x))


@network
def weight_norm() -> Example:
    layer = parametrizations.weight_norm(nn.Conv1d(4, 6, 3, padding=1))
    return made(lambda m, x: m.head(F.silu(m.conv(x)).mean(-1)), rows(4, 9), conv=layer,
                head=parametrizations.weight_norm(nn.Linear(6, 2), dim=None))  # fmt: skip


@network
def old_weight_norm() -> Example:
    layer = nn.utils.weight_norm(nn.Linear(5, 6))
    return made(lambda m, x: torch.tanh(m.layer(x)), rows(5), layer=layer)


@network
def orthogonal() -> Example:
    layer = parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley")
    return made(lambda m, x: m.layer(x), rows(4), layer=layer)


class Symmetric(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@network
def own_parametrization() -> Example:
    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return made(lambda m, x: m.layer(F.gelu(m.layer(x))), rows(5), layer=layer)


@network
def parameter_lists() -> Example:
    def forward(m: Any, x: Any) -> Any:
        for weight, name in zip(m.weights, m.scales, strict=True):
            x = torch.tanh(x @ weight) * m.scales[name]
        return x + sum(layer(x) for layer in m.layers)

    return made(
        forward, rows(5), layers=nn.ModuleList(nn.Linear(5, 5) for _ in range(3)),
        weights=nn.ParameterList(torch.randn(5, 5) * 0.4 for _ in range(2)),
        scales=nn.ParameterDict({"a": torch.ones(5), "b": torch.full((1,), 0.5)}),
    )  # fmt: skip


@network
def tied_encoder_decoder() -> Example:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.cell = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 6)
            self.head = nn.Linear(6, 11)
            self.head.weight = self.table.weight

        def forward(self, ids: Any) -> Any:
            return self.head(torch.relu(self.cell(self.table(ids) * math.sqrt(6))))

    return Example(Tied(), torch.randint(0, 11, (3, 5)), rows=3)


class Attended(nn.Module):
    """Attention with a mask of padding, a mask of positions, and weights that are returned."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **settings)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any, padding: Any, causal: Any = None) -> Any:
        y, weights = self.attention(
            x, x, x, key_padding_mask=padding, attn_mask=causal, average_attn_weights=False
        )
        return {"logits": self.head(y), "weights": weights}


def _attended(causal: bool, **settings: Any) -> Example:
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[:, 4] = True
    masks = {"causal": nn.Transformer.generate_square_subsequent_mask(5) > -1} if causal else {}
    masks = {n: ~m for n, m in masks.items()}
    return Example(Attended(**settings), (), {"x": rows(5, 8), "padding": padding, **masks}, rows=3)


@network
def attention_with_padding() -> Example:
    return _attended(False)


@network
def attention_with_two_masks() -> Example:
    return _attended(True, add_bias_kv=True, bias=False)


@network
def cross_attention_of_other_sizes() -> Example:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 4, kdim=5, vdim=6, batch_first=True)

        def forward(self, query: Any, key: Any, value: Any) -> Any:
            return self.attention(query, key, value, need_weights=False)[0]

    return Example(Cross(), (rows(4, 8), rows(7, 5), rows(7, 6)), rows=3)


@network
def encoder_decoder() -> Example:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Transformer(
                8, 2, 1, 1, 16, dropout=0.0, batch_first=True, norm_first=True
            )

        def forward(self, source: Any, target: Any) -> Any:
            mask = self.net.generate_square_subsequent_mask(target.shape[1])
            return self.net(source, target, tgt_mask=mask, tgt_is_causal=True)

    return Example(Model(), (rows(6, 8), rows(4, 8)), rows=3)


@network
def embedding_bag() -> Example:
    return made(lambda m, x: m.head(m.bag(x)), torch.randint(0, 9, (3, 4)),
                bag=nn.EmbeddingBag(9, 5, mode="mean"), head=nn.Linear(5, 2))  # fmt: skip


@network
def embedding_bag_of_weights() -> Example:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 5, mode="sum")

        def forward(self, ids: Any, weights: Any) -> Any:
            return self.bag(ids, per_sample_weights=weights.softmax(-1))

    return Example(Bag(), (torch.randint(0, 9, (3, 4)), rows(4)), rows=3)


@network
def einsums() -> Example:
    def forward(m: Any, x: Any) -> Any:
        q, k = torch.einsum("btd,hde->bhte", x, m.q), torch.einsum("btd,hde->bhte", x, m.k)
        scores = torch.einsum("bhqe,bhke->bhqk", q, k).softmax(-1)
        return torch.einsum("bhqk,bkd,hde->bqe", scores, x, m.v)

    tables = {n: nn.Parameter(torch.randn(2, 4, 3) * 0.5) for n in "qkv"}
    return made(forward, rows(5, 4), **tables)


@network
def scattered() -> Example:
    def forward(m: Any, x: Any) -> Any:
        y = m.layer(x)
        order = x.argsort(-1)
        spread = torch.zeros_like(y).scatter(1, order, y)
        return spread.scatter_add(1, order.flip(1), y * 0.5) + y.gather(1, order)

    return made(forward, rows(6), layer=nn.Linear(6, 6))


@network
def graph_of_edges() -> Example:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.message, self.update = nn.Linear(8, 5), nn.GRUCell(5, 4)
            self.head = nn.Linear(4, 1)

        def forward(self, x: Any, edges: Any) -> Any:
            source, target = edges[0], edges[1]
            for _ in range(2):
                m = torch.relu(self.message(torch.cat([x[source], x[target]], -1)))
                total = x.new_zeros(x.shape[0], 5).index_add(0, target, m)
                degree = x.new_zeros(x.shape[0]).scatter_add(0, target, torch.ones_like(m[:, 0]))
                x = self.update(total / degree.clamp(min=1)[:, None], x)
            return self.head(x)

    edges = torch.tensor([[0, 1, 2, 3, 4, 4], [1, 2, 3, 4, 0, 2]])
    return Example(Graph(), (torch.randn(5, 4), edges), rows=5)


@network
def graph_softmax() -> Example:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.score = nn.Linear(4, 4, bias=False), nn.Linear(8, 1)

        def forward(self, x: Any, edges: Any) -> Any:
            h = self.line(x)
            s = F.leaky_relu(self.score(torch.cat([h[edges[0]], h[edges[1]]], -1)), 0.2)[:, 0]
            top = x.new_full((x.shape[0],), -1e9).scatter_reduce(0, edges[1], s, "amax")
            e = (s - top[edges[1]]).exp()
            total = x.new_zeros(x.shape[0]).index_add(0, edges[1], e)
            return x.new_zeros(x.shape).index_add(
                0, edges[1], h[edges[0]] * (e / total[edges[1]])[:, None]
            )

    edges = torch.tensor([[0, 1, 2, 3, 4, 4], [1, 2, 3, 4, 0, 2]])
    return Example(Graph(), (torch.randn(5, 4), edges), rows=5)


class Straight(torch.autograd.Function):
    """What torch computes for it anyway, written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return gradient * (s + x * s * (1 - s))


@network
def own_function() -> Example:
    return made(lambda m, x: m.b(Straight.apply(m.a(x))), rows(5),
                a=nn.Linear(5, 6), b=nn.Linear(6, 2))  # fmt: skip


@network
def straight_through() -> Example:
    def forward(m: Any, x: Any) -> Any:
        y = m.a(x)
        return m.b(y + (y.round() - y).detach())

    return made(forward, rows(5), a=nn.Linear(5, 6), b=nn.Linear(6, 2))


@network
def double_precision() -> Example:
    net = nn.Sequential(
        nn.Linear(5, 6), nn.LayerNorm(6), nn.LeakyReLU(0.1), nn.Linear(6, 2)
    ).double()
    return Example(net, rows(5).double(), rows=3)


@network
def double_attention() -> Example:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    return Example(layer, rows(4, 8).double(), rows=3)


@network
def mixed_precision() -> Example:
    def forward(m: Any, x: Any) -> Any:
        y = m.a(x).half().float()
        return m.b(torch.tanh(y.double()).float())

    return made(forward, rows(5), a=nn.Linear(5, 6), b=nn.Linear(6, 2))


class Pair(NamedTuple):
    first: Any
    second: Any


@network
def nested_results() -> Example:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, inputs: Any, *, scale: Any = None, offset: Any = None) -> Any:
            pair = inputs["pair"]
            h = self.a(pair.first) + self.a(pair.second)
            h = h if scale is None else h * scale
            h = h if offset is None else h + offset
            return OrderedDict(logits=self.b(h), parts=[h, (h * 2, {"deep": h - 1})])

    return Example(Nested(), ({"pair": Pair(rows(4), rows(4))},), {"scale": rows(1)}, rows=3)


@network
def own_loss_of_several() -> Example:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)
            self.weights = nn.Parameter(torch.zeros(2))

        def forward(self, x: Any, labels: Any = None) -> Any:
            h = torch.tanh(self.body(x))
            logits, value = self.a(h), self.b(h)[:, 0]
            if labels is None:
                return {"logits": logits, "value": value}
            terms = torch.stack(
                [F.cross_entropy(logits, labels), F.mse_loss(value, labels.float())]
            )
            loss = (terms * torch.exp(-self.weights) + self.weights).sum()
            return {"loss": loss, "logits": logits, "value": value}

    return Example(Tasks(), rows(4), rows=3, labels=torch.tensor([0, 2, 1]))


@network
def checkpointed() -> Example:
    def forward(m: Any, x: Any) -> Any:
        for layer in m.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x

    layers = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.GELU()) for _ in range(2))
    return made(forward, rows(5), layers=layers)


@network
def experts() -> Example:
    def forward(m: Any, x: Any) -> Any:
        gates, chosen = m.gate(x).topk(2, -1)
        gates = torch.zeros(x.shape[0], 4).scatter(1, chosen, gates.softmax(-1))
        outputs = torch.stack([expert(x) for expert in m.experts], 1)
        return (gates[..., None] * outputs).sum(1)

    return made(forward, rows(5), gate=nn.Linear(5, 4),
                experts=nn.ModuleList(nn.Linear(5, 3) for _ in range(4)))  # fmt: skip


@network
def rotary() -> Example:
    def forward(m: Any, x: Any) -> Any:
        b, t, _ = x.shape
        q, k, v = m.qkv(x).view(b, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        angle = torch.arange(t)[:, None] / 10.0 ** (torch.arange(2) / 2)
        sin, cos = angle.sin().repeat(1, 2), angle.cos().repeat(1, 2)

        def turned(y: Any) -> Any:
            a, c = y.chunk(2, -1)
            return y * cos + torch.cat([-c, a], -1) * sin

        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        return m.out(y.transpose(1, 2).reshape(b, t, 8))

    return made(forward, rows(6, 8), qkv=nn.Linear(8, 24), out=nn.Linear(8, 8))


@network
def relative_positions() -> Example:
    def forward(m: Any, x: Any) -> Any:
        t = x.shape[1]
        distance = (torch.arange(t)[None] - torch.arange(t)[:, None]).clamp(-3, 3) + 3
        scores = x @ x.transpose(1, 2) / 2 + m.bias(distance)[..., 0]
        return scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf).softmax(-1) @ x

    return made(forward, rows(5, 4), bias=nn.Embedding(7, 1))


@network
def squeeze_and_excite() -> Example:
    def forward(m: Any, x: Any) -> Any:
        y = m.norm(m.conv(x))
        gate = torch.sigmoid(m.up(F.hardswish(m.down(y.mean((2, 3), keepdim=True)))))
        return F.interpolate(y * gate, scale_factor=2, mode="bilinear", align_corners=False)

    return made(forward, rows(3, 6, 6), conv=nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
                norm=nn.BatchNorm2d(8), down=nn.Conv2d(8, 2, 1), up=nn.Conv2d(2, 8, 1))  # fmt: skip


@network
def pixel_shuffled() -> Example:
    return made(lambda m, x: m.tail(F.pixel_shuffle(F.prelu(m.head(x), m.slope), 2)), rows(3, 5, 5),
                head=nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
                tail=nn.ConvTranspose2d(2, 3, 4, 2, 1),
                slope=nn.Parameter(torch.tensor([0.2])))  # fmt: skip


@network
def sampled_grid() -> Example:
    def forward(m: Any, x: Any) -> Any:
        theta = m.where(x.flatten(1)).view(-1, 2, 3) * 0.1 + torch.eye(2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False, padding_mode="border")

    return made(forward, rows(2, 6, 6), where=nn.Linear(72, 6))


@network
def distances() -> Example:
    def forward(m: Any, x: Any) -> Any:
        far = torch.cdist(m.layer(x), m.centers)
        return F.normalize(1 / (1 + far), dim=-1).log()

    return made(forward, rows(5), layer=nn.Linear(5, 4), centers=nn.Parameter(torch.randn(6, 4)))


@network
def cumulative() -> Example:
    def forward(m: Any, x: Any) -> Any:
        y = m.layer(x)
        return torch.logcumsumexp(y, 1) + y.cumsum(1).flip(1) + y.cummax(1).values + y.roll(2, 1)

    return made(forward, rows(6), layer=nn.Linear(6, 6))


@network
def packed_steps() -> Example:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(4, 5, bidirectional=True, batch_first=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            y = self.cell(x)[0]
            mask = torch.arange(x.shape[1])[None] < lengths[:, None]
            y = y.masked_fill(~mask[..., None], 0.0)
            return y.sum(1) / lengths[:, None], y[torch.arange(len(y)), lengths - 1]

    return Example(Last(), (rows(6, 4), torch.tensor([6, 3, 1])), rows=3)


@network
def state_space() -> Example:
    def forward(m: Any, x: Any) -> Any:
        decay = torch.exp(-F.softplus(m.decay))
        state, outputs = x.new_zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            state = state * decay + m.inward(x[:, t])
            outputs.append(m.outward(state))
        return torch.stack(outputs, 1)

    return made(forward, rows(5, 3), decay=nn.Parameter(torch.zeros(4)), inward=nn.Linear(3, 4),
                outward=nn.Linear(4, 3))  # fmt: skip


@network
def groups_of_norms() -> Example:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3), nn.GroupNorm(2, 6), nn.ELU(),
        nn.InstanceNorm2d(6, affine=True),
        nn.Conv2d(6, 4, 3, dilation=2, padding=2), nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(),
        nn.RMSNorm(24), nn.Softmin(1),
    )  # fmt: skip
    return Example(net, rows(3, 8, 8), rows=3)


@network
def bilinear_and_glu() -> Example:
    def forward(m: Any, x: Any) -> Any:
        a, b = x[:, :4], x[:, 4:]
        return F.glu(m.pair(a, b)) + F.cosine_similarity(a, b)[:, None]

    return made(forward, rows(8), pair=nn.Bilinear(4, 4, 6))


def networks() -> Iterator[tuple[str, Make]]:
    """(name, how it is made)"""
    yield from TABLE.items()

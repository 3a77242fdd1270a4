"""Recurrent and graph networks of our own, as users write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.sweeps.torch_networks import ROWS, Example, Make

TIME, WIDTH = 6, 5


class Recurrent(nn.Module):
    """A recurrent layer and a head over its last step, or over its last state."""

    def __init__(self, kind: str, head: str = "last", **settings: Any):
        super().__init__()
        self.rnn = getattr(nn, kind)(WIDTH, 7, batch_first=True, **settings)
        directions = 2 if settings.get("bidirectional") else 1
        width = settings.get("proj_size") or 7
        self.head, self.by = nn.Linear(width * directions, 3), head

    def forward(self, x: Any) -> Any:
        y, state = self.rnn(x)
        if self.by == "last":
            return self.head(y[:, -1])
        if self.by == "mean":
            return self.head(y.mean(1))
        h = state[0] if isinstance(state, tuple) else state
        return self.head(torch.cat([h[-2], h[-1]], -1) if self.rnn.bidirectional else h[-1])


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6, padding_idx=0)
        self.rnn = nn.LSTM(6, 8, 2, dropout=0.3, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Any) -> Any:
        return self.head(self.rnn(self.embed(ids))[0])


class Stateful(nn.Module):
    """Takes its state and returns it, as streaming recognizers do."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, 7)

    def forward(self, x: Any, h: Any, c: Any) -> dict[str, Any]:
        y, (h, c) = self.rnn(x.transpose(0, 1), (h.transpose(0, 1), c.transpose(0, 1)))
        return {"y": y.transpose(0, 1), "h": h.transpose(0, 1), "c": c.transpose(0, 1)}


class Cells(nn.Module):
    """Cells in a loop of Python."""

    def __init__(self, kind: str):
        super().__init__()
        self.cell, self.head = getattr(nn, kind)(WIDTH, 7), nn.Linear(7, 3)
        self.is_pair = kind == "LSTMCell"

    def forward(self, x: Any) -> Any:
        h = x.new_zeros(x.shape[0], 7)
        state = (h, h) if self.is_pair else h
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state[0] if self.is_pair else state)


class Attending(nn.Module):
    """A GRU encoder and a decoder with additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.GRU(WIDTH, 8, batch_first=True), nn.GRUCell(8, 8)
        self.score, self.head = nn.Linear(16, 1), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        memory, last = self.encoder(x)
        h, steps = last[0], []
        for _ in range(3):
            wide = h[:, None].expand_as(memory)
            weights = functional.softmax(self.score(torch.cat([memory, wide], -1)), 1)
            h = self.decoder((weights * memory).sum(1), h)
            steps.append(self.head(h))
        return torch.stack(steps, 1)


class ConvRecurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(WIDTH, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout1d(0.2)
        )
        self.rnn, self.head = nn.GRU(6, 7, batch_first=True), nn.Linear(7, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(self.conv(x.transpose(1, 2)).transpose(1, 2))[0][:, -1])


# -- graphs: dense adjacency, and lists of edges ------------------------------------------


class GraphConv(nn.Module):
    """Two layers of normalized neighbourhood sums (GCN) over a dense adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 8), nn.Linear(8, 3)

    def forward(self, x: Any, adjacency: Any) -> Any:
        own = adjacency + torch.eye(adjacency.shape[-1])
        scale = own.sum(-1).rsqrt()
        weights = scale[..., None] * own * scale[..., None, :]
        h = torch.relu(weights @ self.first(x))
        return (weights @ self.second(h)).mean(1)


class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map, self.left, self.right = nn.Linear(WIDTH, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: Any, adjacency: Any) -> Any:
        h = self.map(x)
        scores = functional.leaky_relu(self.left(h) + self.right(h).transpose(1, 2), 0.2)
        scores = scores.masked_fill(adjacency == 0, -1e9)
        return (functional.softmax(scores, -1) @ h).mean(1)


class Edges(nn.Module):
    """Messages along a list of edges, summed, averaged or maximized at their ends."""

    def __init__(self, how: str):
        super().__init__()
        self.message, self.update = nn.Linear(2 * WIDTH, 8), nn.Linear(WIDTH + 8, 3)
        self.how = how

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges[:, 0], edges[:, 1]
        messages = torch.relu(self.message(torch.cat([x[source], x[target]], -1)))
        sums = x.new_zeros(x.shape[0], 8)
        if self.how == "sum":
            sums = sums.index_add(0, target, messages)
        elif self.how == "mean":
            counts = x.new_zeros(x.shape[0], 1).index_add(
                0, target, torch.ones_like(messages[:, :1])
            )
            sums = sums.index_add(0, target, messages) / counts.clamp(min=1)
        else:
            index = target[:, None].expand_as(messages)
            sums = sums.scatter_reduce(0, index, messages, "amax", include_self=False)
        return self.update(torch.cat([x, sums], -1))


class GatedGraph(nn.Module):
    """Neighbourhood sums that drive a GRU cell (GG-NN)."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.cell, self.head = nn.Linear(8, 8), nn.GRUCell(8, 8), nn.Linear(8, 3)

    def forward(self, x: Any, adjacency: Any) -> Any:
        h = functional.pad(x, (0, 8 - x.shape[-1]))
        rows, nodes = h.shape[0], h.shape[1]
        for _ in range(3):
            message = adjacency @ self.map(h)
            h = self.cell(message.reshape(-1, 8), h.reshape(-1, 8)).reshape(rows, nodes, 8)
        return self.head(h.sum(1))


def sequence() -> Any:
    return torch.randn(ROWS, TIME, WIDTH)


def _adjacency() -> Any:
    dense = (torch.rand(ROWS, 4, 4) > 0.5).float()
    return torch.maximum(dense, dense.transpose(1, 2))


def _graph(module: Any) -> Example:
    return Example(module, (torch.randn(ROWS, 4, WIDTH), _adjacency()))


def _edges(how: str) -> Example:
    edges = torch.tensor([[0, 1], [1, 2], [2, 0], [4, 1], [3, 4], [0, 4], [2, 4]])
    return Example(Edges(how), (torch.randn(5, WIDTH), edges), rows=5)


def _tagged() -> Example:
    return Example(Tagger(), torch.randint(1, 20, (ROWS, TIME)))


def _stateful() -> Example:
    state = torch.randn(ROWS, 1, 7)
    return Example(Stateful(), (sequence(), state, state.flip(0)))


def networks() -> Iterator[tuple[str, Make]]:
    """(name, how it is made)"""
    for kind in ("RNN", "GRU", "LSTM"):
        yield kind, lambda k=kind: Example(Recurrent(k), sequence())
        deep = {"num_layers": 2, "bidirectional": True}
        yield f"{kind} deep", lambda k=kind, d=deep: Example(Recurrent(k, "state", **d), sequence())
    plain: dict[str, Any] = {"bias": False, "num_layers": 3, "dropout": 0.25}
    yield "GRU without bias", lambda: Example(Recurrent("GRU", "mean", **plain), sequence())
    yield "LSTM without bias", lambda: Example(Recurrent("LSTM", "mean", **plain), sequence())
    relu: dict[str, Any] = {"nonlinearity": "relu", "bidirectional": True}
    yield "RNN relu", lambda: Example(Recurrent("RNN", "mean", **relu), sequence())
    projected: dict[str, Any] = {"proj_size": 3, "num_layers": 2, "dropout": 0.25}
    yield (
        "LSTM with a projection",
        lambda: Example(Recurrent("LSTM", "mean", **projected), sequence()),
    )
    yield "tagger", _tagged
    yield "stateful", _stateful
    for kind in ("RNNCell", "GRUCell", "LSTMCell"):
        yield kind, lambda k=kind: Example(Cells(k), sequence())
    yield "attention over a GRU", lambda: Example(Attending(), sequence())
    yield "convolution and GRU", lambda: Example(ConvRecurrent(), sequence())
    yield "graph convolution", lambda: _graph(GraphConv())
    yield "graph attention", lambda: _graph(GraphAttention())
    yield "gated graph", lambda: _graph(GatedGraph())
    for how in ("sum", "mean", "max"):
        yield f"edges, {how}", lambda h=how: _edges(h)

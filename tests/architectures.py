"""Architectures that people export, as torch modules written the way their originals are.

Sizes are arguments: tests take tiny ones, benchmarks the published ones.
"""

from __future__ import annotations

import math

import torch
from torch import nn

F = nn.functional


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A residual network of bottlenecks; (3, 4, 6, 3) blocks of width 64 make the 50 layers."""

    def __init__(
        self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = width
        for i, count in enumerate(blocks):
            made = []
            for j in range(count):
                stride = 2 if i > 0 and j == 0 else 1
                made.append(Bottleneck(inputs, width << i, stride))
                inputs = 4 * (width << i)
            setattr(self, f"layer{i + 1}", nn.Sequential(*made))
        self.stages = len(blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class BertSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.each = heads, width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.each).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        y = self.attend(q, k, v, mask)
        return y.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[1], -1)

    def attend(self, q, k, v, mask):  # type: ignore[no-untyped-def]
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.each) + mask
        return scores.softmax(-1) @ v


class FusedBertSelfAttention(BertSelfAttention):
    """With torch's own kernel, as libraries use today."""

    def attend(self, q, k, v, mask):  # type: ignore[no-untyped-def]
        return F.scaled_dot_product_attention(q, k, v, mask)


class BertSelfOutput(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class BertAttention(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.self = (FusedBertSelfAttention if fused else BertSelfAttention)(width, heads)
        self.output = BertSelfOutput(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.output(self.self(x, mask), x)


class BertIntermediate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.dense(x))


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.attention = BertAttention(width, heads, fused)
        self.intermediate = BertIntermediate(width)
        self.output = BertSelfOutput(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class BertEmbeddings(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width)
        self.position_embeddings = nn.Embedding(length, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.register_buffer("position_ids", torch.arange(length)[None], persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = self.position_embeddings(self.position_ids[:, : ids.shape[1]])
        return self.LayerNorm(self.word_embeddings(ids) + places)


class BertEncoder(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, fused: bool) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(width, heads, fused) for _ in range(layers))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class BertPooler(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(x[:, 0]))


class Bert(nn.Module):
    """Token ids and a mask of 0 and 1 to the last states and a summary of the first token."""

    def __init__(
        self,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
        vocabulary: int = 30522,
        length: int = 512,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(vocabulary, length, width)
        self.encoder = BertEncoder(width, heads, layers, fused)
        self.pooler = BertPooler(width)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple:
        x = self.embeddings(input_ids)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        x = self.encoder(x, mask)
        return x, self.pooler(x)


class NewGELU(nn.Module):
    """The tanh form, spelled out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1 + torch.tanh(inner))


class GptAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.c_attn(x).split(c, dim=2)
        q, k, v = (a.view(b, t, self.heads, c // self.heads).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class GptMLP(nn.Module):
    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.act = nn.GELU(approximate="tanh") if fused else NewGELU()
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = GptAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = GptMLP(width, fused)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Token ids to scores of the next token; the head has the weights of the embedding."""

    def __init__(
        self,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
        vocabulary: int = 50257,
        length: int = 1024,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.h = nn.ModuleList(GptBlock(width, heads, fused) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        places = torch.arange(idx.shape[1], device=idx.device)
        x = self.wte(idx) + self.wpe(places)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class WhisperAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.25
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q = self.query(x).view(b, t, self.heads, -1).permute(0, 2, 1, 3) * self.scale
        k = self.key(x).view(b, t, self.heads, -1).permute(0, 2, 3, 1) * self.scale
        v = self.value(x).view(b, t, self.heads, -1).permute(0, 2, 1, 3)
        y = F.softmax((q @ k).float(), dim=-1).to(q.dtype) @ v
        return self.out(y.permute(0, 2, 1, 3).flatten(2))


class WhisperBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = WhisperAttention(width, heads)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.attn_ln(x))
        return x + self.mlp(self.mlp_ln(x))


class WhisperEncoder(nn.Module):
    """A spectrogram through two convolutions and a transformer."""

    def __init__(
        self,
        mels: int = 80,
        length: int = 1500,
        width: int = 384,
        heads: int = 6,
        layers: int = 4,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.randn(length, width))
        self.blocks = nn.ModuleList(WhisperBlock(width, heads) for _ in range(layers))
        self.ln_post = nn.LayerNorm(width)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x))
        x = x.permute(0, 2, 1)
        x = x + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


def varied(module: nn.Module, seed: int = 0) -> nn.Module:
    """A module none of whose tensors equals another: exporters merge those that do."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.add_(torch.randn_like(tensor) * 0.05)
        for name, tensor in module.named_buffers():
            if "running" in name:
                tensor.add_(torch.rand_like(tensor) * 0.1)
    return module.eval()

"""A training record on the jax engine against the same network in Flax with optax, in one run.

    PYTHONPATH=src python bench/gpu_flax.py [--models resnet,bert,gpt] [--tiny] [--seconds 3]
                                            [--precision bf16]

ResNet-50, BERT-base and GPT-2 small of random weights, AdamW. The record is that of
`gpu_records.py`, executed by `sx.prepare_training(engine="jax")`; beside it the network in Flax
NNX, written as somebody would who uses Flax alone (images with their channels last), with the
weights of the same torch module, under `jax.jit` with its buffers donated. With --precision bf16,
Flax's layers have `dtype=bfloat16`. Losses of the first steps are compared before anything is
timed. Both take turns; ratios are of medians, below 1 the record is faster. On a machine without a
GPU everything runs on the CPU: a check only.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import optax
import torch
from flax import nnx

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from gpu import MODELS, exported, first
from gpu_records import DECAY, RATE, labels_of, loss_of

import sardonyx as sx

warnings.filterwarnings("ignore")
KEYS = nnx.Rngs(0)


class Layers:
    """Layers of Flax with the weights of torch's, computed in one type."""

    def __init__(self, dtype: Any):
        self.dtype = dtype

    def linear(self, layer: torch.nn.Linear) -> nnx.Linear:
        sizes = layer.in_features, layer.out_features
        bias = layer.bias is not None
        made = nnx.Linear(*sizes, use_bias=bias, dtype=self.dtype, rngs=KEYS)
        made.kernel[...] = _array(layer.weight).T
        if bias:
            made.bias[...] = _array(layer.bias)
        return made

    def conv(self, layer: torch.nn.Conv2d) -> nnx.Conv:
        around = [(p, p) for p in layer.padding]
        made = nnx.Conv(
            layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride,
            padding=around, use_bias=False, dtype=self.dtype, rngs=KEYS,
        )  # fmt: skip
        made.kernel[...] = _array(layer.weight).transpose(2, 3, 1, 0)
        return made

    def batch_norm(self, layer: torch.nn.BatchNorm2d) -> nnx.BatchNorm:
        made = nnx.BatchNorm(
            layer.num_features, momentum=0.9, epsilon=layer.eps, dtype=self.dtype, rngs=KEYS
        )
        made.scale[...], made.bias[...] = _array(layer.weight), _array(layer.bias)
        return made

    def layer_norm(self, layer: torch.nn.LayerNorm) -> nnx.LayerNorm:
        width = layer.normalized_shape[0]
        made = nnx.LayerNorm(width, epsilon=layer.eps, dtype=self.dtype, rngs=KEYS)
        made.scale[...], made.bias[...] = _array(layer.weight), _array(layer.bias)
        return made

    def embed(self, layer: torch.nn.Embedding) -> nnx.Embed:
        made = nnx.Embed(*layer.weight.shape, dtype=self.dtype, rngs=KEYS)
        made.embedding[...] = _array(layer.weight)
        return made


def _array(tensor: torch.Tensor) -> Any:
    return jnp.asarray(tensor.detach().numpy())


class Bottleneck(nnx.Module):
    def __init__(self, module: Any, of: Layers):
        self.convs = nnx.List([of.conv(getattr(module, f"conv{i}")) for i in (1, 2, 3)])
        self.norms = nnx.List([of.batch_norm(getattr(module, f"bn{i}")) for i in (1, 2, 3)])
        side = module.downsample
        self.side = nnx.List([] if side is None else [of.conv(side[0]), of.batch_norm(side[1])])

    def __call__(self, x: Any) -> Any:
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            y = jax.nn.relu(y) if i < 2 else y
        for layer in self.side:
            x = layer(x)
        return jax.nn.relu(y + x)


class ResNet(nnx.Module):
    def __init__(self, module: Any, of: Layers):
        self.conv, self.norm = of.conv(module.conv1), of.batch_norm(module.bn1)
        stages = [getattr(module, f"layer{i + 1}") for i in range(module.stages)]
        self.blocks = nnx.List([Bottleneck(b, of) for stage in stages for b in stage])
        self.head = of.linear(module.fc)

    def __call__(self, x: Any) -> Any:
        x = jax.nn.relu(self.norm(self.conv(x)))
        x = nnx.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


def attention(q: Any, k: Any, v: Any, heads: int, mask: Any = None, causal: bool = False) -> Any:
    b, t, c = q.shape
    q, k, v = (a.reshape(b, t, heads, c // heads) for a in (q, k, v))
    y = jax.nn.dot_product_attention(q, k, v, bias=mask, is_causal=causal)
    return y.reshape(b, t, c)


class BertLayer(nnx.Module):
    def __init__(self, module: Any, of: Layers):
        inner, out = module.attention.self, module.attention.output
        self.heads = inner.heads
        self.qkv = nnx.List([of.linear(m) for m in (inner.query, inner.key, inner.value)])
        self.out, self.norm1 = of.linear(out.dense), of.layer_norm(out.LayerNorm)
        self.up, self.down = of.linear(module.intermediate.dense), of.linear(module.output.dense)
        self.norm2 = of.layer_norm(module.output.LayerNorm)

    def __call__(self, x: Any, mask: Any) -> Any:
        q, k, v = (layer(x) for layer in self.qkv)
        x = self.norm1(self.out(attention(q, k, v, self.heads, mask)) + x)
        return self.norm2(self.down(jax.nn.gelu(self.up(x), approximate=False)) + x)


class Bert(nnx.Module):
    def __init__(self, module: Any, of: Layers):
        embeddings = module.embeddings
        self.word = of.embed(embeddings.word_embeddings)
        self.place = of.embed(embeddings.position_embeddings)
        self.norm = of.layer_norm(embeddings.LayerNorm)
        self.layers = nnx.List([BertLayer(m, of) for m in module.encoder.layer])

    def __call__(self, ids: Any, mask: Any) -> Any:
        x = self.norm(self.word(ids) + self.place(jnp.arange(ids.shape[1])))
        hidden = (1.0 - mask[:, None, None, :].astype(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, hidden)
        return x


class GptBlock(nnx.Module):
    def __init__(self, module: Any, of: Layers):
        self.heads = module.attn.heads
        self.norm1, self.norm2 = of.layer_norm(module.ln_1), of.layer_norm(module.ln_2)
        self.qkv, self.out = of.linear(module.attn.c_attn), of.linear(module.attn.c_proj)
        self.up, self.down = of.linear(module.mlp.c_fc), of.linear(module.mlp.c_proj)

    def __call__(self, x: Any) -> Any:
        q, k, v = jnp.split(self.qkv(self.norm1(x)), 3, -1)
        x = x + self.out(attention(q, k, v, self.heads, causal=True))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x)), approximate=True))


class Gpt(nnx.Module):
    def __init__(self, module: Any, of: Layers):
        self.token, self.place = of.embed(module.wte), of.embed(module.wpe)
        self.blocks = nnx.List([GptBlock(m, of) for m in module.h])
        self.norm = of.layer_norm(module.ln_f)

    def __call__(self, ids: Any) -> Any:
        x = self.token(ids) + self.place(jnp.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.token.attend(self.norm(x))


FLAX: dict[str, Callable[[Any, Layers], nnx.Module]] = {"resnet": ResNet, "bert": Bert, "gpt": Gpt}


def flax_step(name: str, module: Any, inputs: list[Any], label: Any, dtype: Any) -> Callable:
    """A step in Flax and optax, which gives its loss."""
    graph, params, rest = nnx.split(FLAX[name](module, Layers(dtype)), nnx.Param, ...)
    tx = optax.adamw(RATE, weight_decay=DECAY)

    def loss(params: Any, rest: Any, inputs: Any, label: Any) -> Any:
        network = nnx.merge(graph, params, rest, copy=True)
        output = network(*inputs).astype(jnp.float32)
        if name == "bert":
            value = ((output - label) ** 2).mean()
        else:
            value = optax.softmax_cross_entropy_with_integer_labels(output, label).mean()
        return value, nnx.split(network, nnx.Param, ...)[2]

    def step(params: Any, rest: Any, state: Any, inputs: Any, label: Any) -> Any:
        (value, rest), slopes = jax.value_and_grad(loss, has_aux=True)(params, rest, inputs, label)
        updates, state = tx.update(slopes, state, params)
        return value, optax.apply_updates(params, updates), rest, state

    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    held = [params, rest, tx.init(params)]

    def run() -> Any:
        value, *held[:] = compiled(*held, inputs, label)
        return value

    return run


def medians(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["flax"]) < 5:
        for name, run in runs.items():
            begun = time.perf_counter()
            float(run())
            times[name].append(1e3 * (time.perf_counter() - begun))
    return {name: statistics.median(values) for name, values in times.items()}


def in_use(fact: str = "peak_bytes_in_use") -> float:
    """The most memory that was in use so far, or another fact about it, in MB."""
    facts = jax.devices()[0].memory_stats() or {}
    return facts.get(fact, float("nan")) / 1e6


def measure(name: str, options: argparse.Namespace) -> list[str]:
    module, inputs, names = MODELS[name](options.tiny)
    model = sx.load(exported(module, inputs, names))
    with torch.no_grad():
        one = first(module(*(x[:1] for x in inputs)))
    label = labels_of(name, one.expand(len(inputs[0]), *one.shape[1:])).numpy()
    how, _ = loss_of(name)
    optimizer = sx.optim.adamw(RATE, weight_decay=DECAY)
    net = sx.trainable(model, optimizer=optimizer, prediction=model.outputs[0].name, **how)
    module.train()
    arrays = [x.numpy() for x in inputs]
    theirs_inputs = [arrays[0].transpose(0, 2, 3, 1)] if name == "resnet" else arrays
    theirs_inputs = [jax.device_put(a) for a in theirs_inputs]
    dtype = jnp.bfloat16 if options.precision else None
    begun = time.perf_counter()
    rep = sx.prepare_training(net, "jax", precision=options.precision)
    (extra,) = [v.name for v in rep.step_inputs if v.name not in names]
    with jax.enable_x64(True):  # labels and indices of an ONNX model have 64 bits
        feeds = {n: jax.device_put(a) for n, a in zip([*names, extra], [*arrays, label])}
    ours = [float(rep.step(feeds)["loss"]) for _ in range(3)]
    ours_first, ours_memory = time.perf_counter() - begun, in_use()
    ours_state = in_use("bytes_in_use")
    begun = time.perf_counter()
    step = flax_step(name, module, theirs_inputs, jax.device_put(label), dtype)
    theirs = [float(step()) for _ in range(3)]
    their_first = time.perf_counter() - begun
    their_memory = in_use() - ours_state  # the state of the record lies beside it
    apart = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    times = medians({"flax": step, "record": lambda: rep.step(feeds)["loss"]}, options.seconds)
    row = [name, options.precision or "float32", f"{times['flax']:.2f}", f"{times['record']:.2f}"]
    row += [f"{times['record'] / times['flax']:.3f}", f"{apart:.1e}", f"{their_memory:.0f}"]
    row += [f"{ours_memory:.0f}"]
    row += [f"{ours_first:.1f}/{their_first:.1f}"]
    print("  ".join(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=",".join(FLAX))
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each row")
    parser.add_argument("--precision", choices=["bf16"], help="of products, in both")
    options = parser.parse_args()
    head = ["model", "type", "Flax, ms", "record, ms", "ratio", "losses differ by", "Flax, MB"]
    head += ["record, MB"]
    head += ["first 3 steps, record/Flax, s"]
    place = jax.devices()[0].device_kind
    lines = [f"{datetime.date.today()}, {place}, jax {jax.__version__}.", ""]
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(measure(name, options))} |" for name in options.models.split(",")]
    print("\n".join(lines))
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "gpu_flax.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""A GAN in one file: two training records, a generator's and a discriminator's, trained in turn.

The model computes samples out of noise, and how real the discriminator finds them and the points of
a data set: a ring of eight clouds. The record "critic" trains the weights `d.*`, the record
"artist" the weights `g.*`; `step(…, which=…)` chooses. At the end the generator is cut out, served
alone, and what it draws is written as a picture.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx

OUT = Path("out/gan")
NOISE, WIDTH, BATCH, STEPS = 4, 64, 64, 2000
CRITIC, ARTIST = 0, 1


def model() -> onnx.ModelProto:
    """Noise and real points in; samples, and the scores of both kinds of points out."""
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def network(x: str, name: str, sizes: tuple[int, ...], output: str) -> None:
        """Layers that share their weights with every other call of the same name."""
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            weight, bias = f"{name}.{i}.weight", f"{name}.{i}.bias"
            if weight not in tensors:
                tensors[weight] = rng.normal(size=(a, b)) * np.sqrt(2 / a)
                tensors[bias] = np.zeros(b)
            last = i == len(sizes) - 2
            y = output if last else f"{output}/{i}"
            nodes.append(helper.make_node("Gemm", [x, weight, bias], [y if last else f"{y}/in"]))
            if not last:
                nodes.append(helper.make_node("LeakyRelu", [f"{y}/in"], [y], alpha=0.2))
            x = y

    network("noise", "g", (NOISE, WIDTH, WIDTH, 2), "samples")
    network("samples", "d", (2, WIDTH, WIDTH, 1), "score_of_samples")
    network("points", "d", (2, WIDTH, WIDTH, 1), "score_of_points")
    inputs, outputs = {"noise": NOISE, "points": 2}, {"samples": 2}
    outputs |= {"score_of_samples": 1, "score_of_points": 1}
    graph = helper.make_graph(
        nodes,
        "gan",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", w]) for n, w in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", w]) for n, w in outputs.items()],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def is_real(op, score):
    """log(1 + exp(-score)): small where the discriminator says "real"."""
    return op.ReduceMean(op.Softplus(op.Neg(score)), keepdims=0)


def is_made(op, score):
    return op.ReduceMean(op.Softplus(score), keepdims=0)


def with_two_records(gan: onnx.ModelProto) -> sx.Model:
    """Each call of `trainable` adds a record; neither loss needs a label."""
    real, made = (sx.loss.custom(loss, labels=[]) for loss in (is_real, is_made))
    adam = sx.optim.adam(2e-3, b1=0.5)
    critic = [
        sx.loss.Term(real, prediction="score_of_points"),
        sx.loss.Term(made, prediction="score_of_samples"),
    ]
    artist = [sx.loss.Term(real, prediction="score_of_samples")]
    net = sx.trainable(sx.load(gan), critic, adam, train="d.*", name="critic")
    return sx.trainable(net, artist, adam, train="g.*", name="artist")


def ring(rng: np.random.Generator, count: int) -> np.ndarray:
    """Points of eight small clouds on a circle."""
    angle = rng.integers(0, 8, count) * np.pi / 4
    centres = np.stack([np.cos(angle), np.sin(angle)], 1)
    return (centres + rng.normal(size=(count, 2)) * 0.05).astype(np.float32)


def train(net: sx.Model) -> sx.Model:
    rng = np.random.default_rng(1)
    rep = sx.prepare_training(net)
    for step in range(STEPS):
        noise = rng.normal(size=(BATCH, NOISE)).astype(np.float32)
        batch = {"noise": noise, "points": ring(rng, BATCH)}
        critic = rep.step(batch, which=CRITIC)
        artist = rep.step({"noise": noise}, which=ARTIST)
        if step % 500 == 0:
            losses = {**critic, **artist}
            print(step, {n: round(float(v), 3) for n, v in losses.items()}, flush=True)
    return rep.to_model()


def clouds(points: np.ndarray) -> tuple[float, int]:
    """How many points lie in a cloud, and how many of the eight clouds have their share."""
    angle = np.arange(8) * np.pi / 4
    centres = np.stack([np.cos(angle), np.sin(angle)], 1)
    distance = np.linalg.norm(points[:, None] - centres, axis=2)
    near = distance.min(1) < 0.25
    counts = np.bincount(distance.argmin(1)[near], minlength=8)
    return float(near.mean()), int((counts > len(points) / 40).sum())


def density(points: np.ndarray, cells: int) -> np.ndarray:
    """How many points lie in each cell of a square, the top row first; from 0 to 1."""
    edges = np.linspace(-1.5, 1.5, cells + 1)
    counts = np.histogram2d(points[:, 1], points[:, 0], bins=(edges, edges))[0][::-1]
    return np.sqrt(counts / max(counts.max(), 1))


def draw(real: np.ndarray, samples: np.ndarray, path: Path) -> str:
    """A picture of both, side by side, where pillow is installed; the samples as text."""
    try:
        from PIL import Image
    except ImportError:
        pass
    else:
        both = np.hstack([density(real, 100), np.ones((100, 1)), density(samples, 100)])
        pixels = np.kron(255 - 255 * both, np.ones((3, 3))).astype(np.uint8)
        Image.fromarray(pixels).save(path)
    shades = " .:+*#"
    levels = np.rint(density(samples, 25) * (len(shades) - 1)).astype(int)
    return "\n".join("".join(shades[v] * 2 for v in row).rstrip() for row in levels)


def main() -> tuple[float, int]:
    OUT.mkdir(parents=True, exist_ok=True)
    net = with_two_records(model())
    sx.save(net, OUT / "gan.onnx")
    trained = train(sx.load(OUT / "gan.onnx"))
    sx.save(trained, OUT / "trained.onnx")

    trained.records.clear()
    sx.save(sx.cut(trained, "samples"), OUT / "generator.onnx")
    session = ort.InferenceSession(OUT / "generator.onnx")
    noise = np.random.default_rng(2).normal(size=(2000, NOISE)).astype(np.float32)
    (samples,) = session.run(None, {"noise": noise})
    print(draw(ring(np.random.default_rng(3), 2000), samples, OUT / "samples.png"))
    share, result = clouds(samples)
    print(f"{share:.0%} of the samples lie in a cloud, {result} of 8 clouds are drawn")
    return share, result


if __name__ == "__main__":
    main()

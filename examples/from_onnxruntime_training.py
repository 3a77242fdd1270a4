"""Moving over from onnxruntime-training, call by call: the same training on stock onnxruntime.

What stood in a program for onnxruntime-training is quoted above each step; nothing of it is needed
or imported here. The four artifacts become one file, which is also the checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

import sardonyx as sx

OUT = Path("out/from_onnxruntime_training")

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 8] x) => (float[N, 3] scores)
<float[8, 16] "body.weight", float[16] "body.bias",
 float[16, 3] "head.weight", float[3] "head.bias">
{
  hidden = Gemm(x, "body.weight", "body.bias")
  active = Relu(hidden)
  scores = Gemm(active, "head.weight", "head.bias")
}"""


def model() -> onnx.ModelProto:
    """The graph above, with weights drawn for what it declares."""
    proto = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for value in proto.graph.value_info:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = rng.normal(scale=0.3, size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    proto.graph.ClearField("value_info")
    return proto


def batches(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    teacher = np.random.default_rng(7).normal(size=(8, 3))
    rng = np.random.default_rng(seed)
    xs = [rng.normal(size=(32, 8)).astype(np.float32) for _ in range(count)]
    return [{"x": x, "label": (x @ teacher).argmax(axis=1)} for x in xs]


def prepare() -> None:
    # artifacts.generate_artifacts(
    #     onnx_model, requires_grad=["head.weight", "head.bias"],
    #     frozen_params=["body.weight", "body.bias"],
    #     loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW,
    #     artifact_directory="artifacts")
    net = sx.trainable(
        sx.load(model()),
        loss="cross_entropy",
        optimizer=sx.optim.adamw(1e-2),
        train=["head.weight", "head.bias"],
    )
    sx.save(net, OUT / "trainable.onnx")


def train() -> tuple[float, float]:
    # state = CheckpointState.load_checkpoint("artifacts/checkpoint")
    # module = Module("artifacts/training_model.onnx", state, "artifacts/eval_model.onnx")
    # optimizer = Optimizer("artifacts/optimizer_model.onnx", module)
    rep = sx.prepare_training(sx.load(OUT / "trainable.onnx"))

    # module.eval()
    # loss = module(x, label)
    (test,) = batches(1, seed=1)
    before = rep.evaluate(test)["loss"]

    # scheduler = LinearLRScheduler(optimizer, warmup_step_count, total_step_count, initial_lr)
    # … one call a step; in sardonyx a schedule is part of the optimizer, or the rate is fed
    # module.train()
    # for x, label in batches:
    #     loss = module(x, label)
    #     optimizer.step()
    #     module.lazy_reset_grad()
    for batch in batches(100, seed=0):
        rep.step(batch)
    after = rep.evaluate(test)["loss"]

    # CheckpointState.save_checkpoint(state, "artifacts/checkpoint", include_optimizer_state=True)
    sx.save(rep.to_model(), OUT / "checkpoint.onnx")
    return float(before), float(after)


def serve() -> float:
    # module.export_model_for_inferencing("inference.onnx", ["scores"])
    # … is not needed: the checkpoint serves. Without its record it is only smaller:
    served = sx.load(OUT / "checkpoint.onnx")
    served.records.clear()
    sx.save(served, OUT / "inference.onnx")
    (test,) = batches(1, seed=1)
    answers = []
    for name in ("checkpoint.onnx", "inference.onnx"):
        (scores,) = ort.InferenceSession(OUT / name).run(None, {"x": test["x"]})
        answers.append(scores)
    assert np.array_equal(*answers)
    return float((answers[0].argmax(1) == test["label"]).mean())


def main() -> tuple[float, float, float]:
    OUT.mkdir(parents=True, exist_ok=True)
    prepare()
    before, after = train()
    accuracy = serve()
    print(f"loss {before:.3f} → {after:.3f}, {accuracy:.0%} right on unseen rows")
    return before, after, accuracy


if __name__ == "__main__":
    main()

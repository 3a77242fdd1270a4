"""onnx-ad: gradients as ONNX models, run on onnxruntime. It has no engine of its own."""

from importlib.metadata import version as version_of

import onnx
import onnx_ad
import onnxruntime


def version():
    return version_of("onnx-ad")


def gradient(model, inputs, seeds, wrt):
    graph = onnx_ad.reverse(onnx.load(model), inputs=wrt, outputs=list(seeds), layout="onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    # Several seeds may ride along the last axis; here is one.
    feeds = {**inputs, **{f"adj_{name}": seed[..., None] for name, seed in seeds.items()}}
    gradients = session.run([f"adj_{name}" for name in wrt], feeds)
    return {name: value[..., 0] for name, value in zip(wrt, gradients)}

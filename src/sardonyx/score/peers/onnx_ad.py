"""onnx-ad: gradients as ONNX models, run on onnxruntime. It has no engine of its own."""

from importlib.metadata import version as version_of

import onnx
import onnx_ad
import onnxruntime


def version():
    return version_of("onnx-ad")


def gradient(model, inputs, seeds, wrt):
    made = onnx_ad.reverse(onnx.load(model), inputs=wrt, outputs=list(seeds), layout="onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    # Several seeds may ride along the last axis; here is one.
    given = {**inputs, **{f"adj_{name}": seed[..., None] for name, seed in seeds.items()}}
    found = session.run([f"adj_{name}" for name in wrt], given)
    return {name: value[..., 0] for name, value in zip(wrt, found)}

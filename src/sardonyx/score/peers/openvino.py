"""OpenVINO on the CPU, in the model's own precision."""

import ml_dtypes
import openvino

# Its Python hands these over as other types of the same size.
FOREIGN = {
    "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e8m0": ml_dtypes.float8_e8m0fnu,
}
CORE = openvino.Core()


def version():
    return openvino.__version__.split("-")[0]


def run(model, inputs):
    exactly = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
    compiled = CORE.compile_model(CORE.read_model(model), "CPU", exactly)
    request = compiled.create_infer_request()
    for index, value in enumerate(inputs.values()):
        request.set_input_tensor(index, _tensor(value))
    request.infer()
    return [_plain(request.get_output_tensor(i)) for i in range(len(compiled.outputs))]


def _tensor(value):
    for name, dtype in FOREIGN.items():
        if value.dtype == dtype:
            tensor = openvino.Tensor(getattr(openvino.Type, name), value.shape)
            tensor.data[...] = value.view(tensor.data.dtype)
            return tensor
    return openvino.Tensor(value)


def _plain(tensor):
    name = tensor.element_type.get_type_name()
    if tensor.element_type == openvino.Type.string:
        return tensor.str_data.copy()
    data = tensor.data.copy()
    return data.view(FOREIGN[name]) if name in FOREIGN else data

"""ONNX models as Keras 3 models, on whichever backend Keras has: TensorFlow, JAX or PyTorch.

Keras executes nothing itself: the programs are those of the engine that its backend is.

convert.py    `to_keras`, and weights out of Keras models · network.py   the layer and the model
steps.py      the training record as a pure function of the backend's arrays
optimizer.py  the optimizer of a record, which holds its slots · contents.py   a model as text
"""

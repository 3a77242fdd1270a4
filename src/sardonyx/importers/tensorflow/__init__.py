"""TensorFlow's family in: keras.py reads Keras 3 models through their JAX backend, in this process
or, where another backend is active, in another one (keras_worker.py).
"""

"""Keras in: a model is traced on Keras's JAX backend and read by the rules of `importers/jax`.

model.py      `from_keras`: models, files, other backends · worker.py   a process on the JAX backend
source.py     a Keras model as pure functions of arrays, with names · labels.py   what losses take
sizes.py      free sizes that depend on each other · states.py   variables that inference assigns
marks.py      layers that become single operators: recurrent.py, spectral.py, norms.py,
              pooling.py, resizing.py
replaced.py   functions of Keras that are traced in another form · refusals.py   what cannot be
training.py   `compile()` as a training record, or as one step of JAX
optimizers.py Keras's optimizers in the words of ours · check.py   two steps against Keras
"""

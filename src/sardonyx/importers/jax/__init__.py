"""JAX in: a driver over the equations of a jaxpr, and rules named after its primitives.

model.py      `from_jax` · step.py   `from_jax_step` · training.py   a loss and an optax optimizer
finish.py     the forward function as a model · trace.py   from a function to a graph
check.py      the comparison with JAX before anything is returned · trees.py   names of leaves
driver.py     walks equations · writer.py   the builder that rules write with
keys.py       arrays of random keys, whose words ONNX holds in one more axis
elementwise.py, integers.py, special.py, reductions.py, shapes.py, indexing.py, windows.py,
dot.py, conv.py, sorting.py, random.py, control.py, calls.py   rules by family
"""

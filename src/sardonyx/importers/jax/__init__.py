"""JAX in: a driver over the equations of a jaxpr, and rules named after its primitives.

model.py      `from_jax`, `from_jax_step` · trees.py   names of the leaves of pytrees
driver.py     walks equations · writer.py   the builder that its rules write with
check.py      the comparison with JAX before anything is returned
elementwise.py, integers.py, special.py, reductions.py, shapes.py, indexing.py, windows.py,
dot.py, conv.py, sorting.py, random.py, control.py, calls.py   rules by family
"""

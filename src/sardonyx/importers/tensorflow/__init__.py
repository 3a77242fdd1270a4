"""TensorFlow's graphs in: a driver over the operators of a graph, and rules named after them.

graph.py      `from_tensorflow` · sources.py   functions, modules, folders and files as one graph
reader.py     walks the operators of a graph · writer.py   the builder that rules write with
evaluation.py operators of constants and sizes, computed by TensorFlow while building
state.py, lists.py   variables, tables and lists, for which ONNX has no type
check.py      the comparison with TensorFlow before anything is returned
ops/          rules by family
"""

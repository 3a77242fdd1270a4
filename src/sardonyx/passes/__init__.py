"""Small changes to a graph, one per module, each linear in the size of the graph.

dead       remove nodes and initializers that nothing reads
cse        merge nodes that compute the same
functions  replace calls by bodies: model-local functions, and ONNX's own definitions of operators
folding    compute constants ahead of time, bounded: size before value
shapes     types and shapes of every value, symbols kept
explicit   one form for each operation: no auto_pad, no vectors in MatMul, no negative axes
nesting    the graphs inside a graph

A pass changes the `onnx_ir` graph that it is given. None of them looks at an opset version.
"""

"""A graph computed by several processes, each of which has its part of some tensors.

spread.py    `spread` rewrites a graph for one process
work.py      a graph that is being rewritten, and what rules read of its nodes
rules.py     which rule an operator has
values.py    rules of operators that compute
shapes.py    rules of operators that move elements, and of sizes
"""

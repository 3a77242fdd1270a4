"""Kernels of our own as custom operators of stock onnxruntime, where a C compiler is at hand.

library.py compiles the C sources of this folder once for a machine, fusion.py puts the operators
into a step, program.py writes what a fused node computes. Without a compiler a step consists of
onnxruntime's own kernels alone.
"""

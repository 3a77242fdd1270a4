"""Models whose weights and activations are integers, trained as such: `quantize_aware` rounds in
the graph while gradients pass straight through, `to_integers` stores what came out as integers.
"""

"""Changes of a graph that alter its meaning on purpose: heads, cuts, freezing, tied weights."""

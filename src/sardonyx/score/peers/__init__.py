"""Adapters of other projects' engines. Each file runs in that engine's own environment, not here:
it imports the engine, and nothing of sardonyx.
"""

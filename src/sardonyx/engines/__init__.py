"""Engines: one folder each, the same file names in every one; each runs models and training
steps.
"""

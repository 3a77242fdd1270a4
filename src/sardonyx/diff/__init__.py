"""What changed between two models: structure, weights, versions, metadata, training.

match.py    which node became which: by what it computes, by its weights, name and neighbours
changes.py  what is different between those (`diff`)
"""

from __future__ import annotations

from sardonyx.diff.changes import Change, Diff, diff

__all__ = ["Change", "Diff", "diff"]

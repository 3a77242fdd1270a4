"""If, Loop and Scan: the gradient of a body is a body again.

If      each branch gets a backward branch in an If with the same condition
Loop    iterations backwards are a Scan over what the forward iterations left on the tape
Scan    likewise; what it read is read again, in the other direction
growing the iterations of a Loop whose state grows are written out, or kept in a sequence that
        a Loop reads backwards

The tape is made of additional outputs of the forward node. Captured tensors (weights) collect
their cotangents in the state of the backward Scan, so that their cost does not grow with its
length.

NOTE [tape or replay] A value of the forward body that the backward body reads comes from the
tape if its size is the same in every iteration for certain; else its node runs again, from the
states on the tape.
"""

from __future__ import annotations

from sardonyx.grad.controlflow import branch, reverse
from sardonyx.grad.controlflow.body import body_of, like, results_of

__all__ = ["body_of", "branch", "like", "results_of", "reverse"]

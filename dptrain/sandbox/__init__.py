"""Confine the code of others in a private microbatch.

Between the draw of a microbatch and the end of its backward pass runs code that is not ours: the model, the loss, the loop.
Some of what such code may do makes one contribution felt by others, or by whoever watches. This package holds all of it:

========================  =======================================================================  =====================
what happens              what becomes of it                                                       room
========================  =======================================================================  =====================
a random number is drawn  it is a function of (seed, step, contribution, example, module, n-th      ``addresses``, ``draws``
                          draw, position), or of all but the contribution where everybody shares it ``layouts``
an index is out of range  the operation goes on; the contribution counts as zero                   ``indices``
a loss is not finite      the contribution counts as zero                                          ``interception``
the model is written      a copy is written, the run ends with its window                          ``writes``
Python asks a tensor      it gets the answer of the start-up probes, where they saw one alone       ``truths``
a foreign leaf takes part the run is refused, before a gradient is formed                          ``leaves``
the optimizer moves       by released gradients alone; which optimizers keep blocks apart           ``optimizers``
a backward pass beside it it raises, and says what to use                                             ``outside``
========================  =======================================================================  =====================

docs/guarantee.md has the same as a table with a test for each row, and what is not defended.
"""

from dptrain.sandbox.addresses import SEED_BYTES, forward_seed
from dptrain.sandbox.interception import Sandbox
from dptrain.sandbox.passes import Draw, Entry, Given, Loop, Pass, Read

__all__ = ["SEED_BYTES", "Draw", "Entry", "Given", "Loop", "Pass", "Read", "Sandbox", "forward_seed"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)

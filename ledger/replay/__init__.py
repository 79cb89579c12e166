"""The meaning of a ledger: one replay for writer and auditor, and the rules that it holds leaves to.

`state` is what the leaves say so far. Rules read it, and `replay` alone writes it.
"""

from ledger.replay.replay import Replay
from ledger.replay.state import RunState

__all__ = ["Replay", "RunState"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)

"""`dptrain demo`: the whole way of a contribution on real data, from a key to a verified export."""

from dptrain.demo.stages import main

__all__ = ["main"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)

"""Many ranks: what processes tell each other, where sums are added up, and the wrappers that models come in."""

from dptrain.parallel.ranks import ALONE, Ranks, found

__all__ = ["ALONE", "Ranks", "found"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)

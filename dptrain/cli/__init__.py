"""The `dptrain` command."""

from dptrain.cli.app import main

__all__ = ["main"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)

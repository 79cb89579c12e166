"""The `dptrain` command."""

from dptrain.cli.app import main

__all__ = ["main"]

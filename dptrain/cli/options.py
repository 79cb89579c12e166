"""Declare arguments and options in one line each: a value, a file or a folder that must be there."""

from typing import Any

import typer


def option(text: str, *flags: str, **settings: Any) -> Any:
    """Declares an option.

    Args:
        text: its help.
        flags: its names; by default that of the parameter.
        settings: further arguments of `typer.Option`.
    """
    return typer.Option(*flags, help=text, **settings)


def argument(text: str, **settings: Any) -> Any:
    """Declares an argument."""
    return typer.Argument(help=text, **settings)


def file_option(metavar: str, text: str, *flags: str, **settings: Any) -> Any:
    """Declares an option that takes a file which must exist; hints know the file by its metavar."""
    return typer.Option(*flags, metavar=metavar, exists=True, dir_okay=False, help=text, **settings)


def folder_option(metavar: str, text: str, *flags: str, **settings: Any) -> Any:
    """Declares an option that takes a folder which must exist."""
    return typer.Option(*flags, metavar=metavar, exists=True, file_okay=False, help=text, **settings)


def file_argument(metavar: str, text: str, **settings: Any) -> Any:
    """Declares an argument that takes a file which must exist."""
    return typer.Argument(metavar=metavar, exists=True, dir_okay=False, help=text, **settings)


def folder_argument(metavar: str, text: str, **settings: Any) -> Any:
    """Declares an argument that takes a folder which must exist."""
    return typer.Argument(metavar=metavar, exists=True, file_okay=False, help=text, **settings)

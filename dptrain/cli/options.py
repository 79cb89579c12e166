"""Options that name files."""

from typing import Any

import typer


def existing_file(flag: str, metavar: str, text: str, **settings: Any) -> Any:
    """An option that takes a file which must exist.

    Args:
        flag: `--key` and the like. metavar: what completion and hints know the file by. text: its help.
        settings: further arguments of `typer.Option`.
    """
    return typer.Option(flag, metavar=metavar, exists=True, dir_okay=False, help=text, **settings)

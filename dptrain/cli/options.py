"""Options that name files."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dptrain.planning.canvas import SUFFIXES, require_matplotlib


def existing_file(flag: str, metavar: str, text: str, **settings: Any) -> Any:
    """An option that takes a file which must exist.

    Args:
        flag: `--key` and the like. metavar: what completion and hints know the file by. text: its help.
        settings: further arguments of `typer.Option`.
    """
    return typer.Option(flag, metavar=metavar, exists=True, dir_okay=False, help=text, **settings)


MemberRecords = Annotated[
    list[Path] | None,
    existing_file(
        "--member",
        "PROOF.member",
        "Where ADMIT leaves are gone: what 'ledger prove --kind summary' wrote for a contribution; repeat.",
    ),
]

PlotFile = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FIGURE", dir_okay=False, help="Draw it: FILE.svg, FILE.html with tables, or FILE.png."),
]


def require_plot(path: Path | None) -> None:
    """Says before anything is computed if a figure cannot be written.

    Raises:
        typer.BadParameter: Another suffix, or the file exists. ConfigError: matplotlib is missing for a .png.
    """
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{path} is no figure; name a file that ends in {', '.join(SUFFIXES)}")
    if path.exists():
        raise typer.BadParameter(f"{path} exists; choose another name or move it away")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {path.parent} to write {path.name} to")
    require_matplotlib(path)

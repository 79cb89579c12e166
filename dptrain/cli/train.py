"""`dptrain train` and `dptrain demo`: the commands that import torch, and only when they run."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from dptrain.cli.gate import NoKeptReading
from dptrain.cli.options import file_argument, option
from dptrain.cli.results import JsonFlag
from dptrain.errors import ConfigError, how_to_install, is_missing_extra


def load_training(module: str) -> ModuleType:
    """Loads a module that imports torch. Raises ConfigError: Code TRAIN_EXTRA_MISSING, with what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not is_missing_extra(error):
            raise
        raise ConfigError("TRAIN_EXTRA_MISSING", how_to_install(error)) from error


def train(
    run: Annotated[Path, file_argument("RUN.toml", "The run file.")],
    resume: Annotated[bool, option("Continue from the last checkpoint of this run.", "--resume")] = False,
    clock_jump_ok: Annotated[
        bool, option("The clock is right though it is over 14 days ahead of the ledger's last leaf.", "--clock-jump-ok")
    ] = False,
    no_kept_reading: NoKeptReading = False,
    json: JsonFlag = False,
) -> None:
    """Train as a run file says; the same as `accelerate launch -m dptrain.train RUN.toml`.

    Nothing in a run file can weaken the guarantee: everything it rests on is in the signed policy.

    To train a text or image classifier from a file. For a model or loop of your own use `dptrain.PrivateTraining` in Python.

    Example: `dptrain train run.toml`
    """
    flags = {"--resume": resume, "--clock-jump-ok": clock_jump_ok, "--no-kept-reading": no_kept_reading, "--json": json}
    arguments = [str(run), *(flag for flag, given in flags.items() if given)]
    raise typer.Exit(load_training("dptrain.train").main(arguments))


def demo(
    directory: Annotated[Path, option("Where everything is written.", "--dir", metavar="DIR")] = Path("demo"),
    json: JsonFlag = False,
) -> None:
    """Go the whole way on real data that comes with the package: keys, policy, gate, training, export, audit, report.

    Example: `dptrain demo --dir demo`
    """
    arguments = ["--dir", str(directory), *(["--json"] if json else [])]
    raise typer.Exit(load_training("dptrain.demo").main(arguments))

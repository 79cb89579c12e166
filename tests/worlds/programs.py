"""Runs `dptrain` in processes of their own that have imported what it needs: forked from a server, and killed as any other."""

import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.distributed.preloaded"])  # there is one server for each process of the tests


def started(folder: Path, words: list[str]) -> Any:
    """Starts a command in a folder; returns its process, whose ``exitcode`` is that of the command."""
    process = _CONTEXT.Process(target=_main, args=(str(folder), words), daemon=True)
    process.start()
    return process


def told(folder: Path, process: Any) -> str:
    """Returns what a process has said so far."""
    return _said(folder, process.pid).read_text()


def _said(folder: Path, pid: int) -> Path:
    return folder.parent / f"{folder.name}-said-{pid}"


def _main(folder: str, words: list[str]) -> None:
    import torch

    from dptrain.cli.app import main

    torch.set_num_threads(1)
    os.chdir(folder)
    sys.argv = ["dptrain", *words]
    with open(_said(Path(folder), os.getpid()), "w") as said, redirect_stdout(said), redirect_stderr(said):
        main()

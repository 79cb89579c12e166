"""Runs `dptrain`, and the workers of a run, in processes that have imported what they need, forked from a server."""

import os
import runpy
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any

PRELOADED = "tests.distributed.preloaded"


@cache
def forking() -> Any:
    """Starts the server that processes are forked from, one for each process of the tests, and returns its context.

    It starts where the tests lie: in another folder it would not find what it is to import, say nothing, and leave all of it,
    which takes seconds, to every process.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    with chdir(Path(__file__).parents[2]):
        ensure_running()
    return context


def started(folder: Path, words: list[str]) -> Any:
    """Starts a command in a folder; returns its process, whose ``exitcode`` is that of the command."""
    process = forking().Process(target=_main, args=(str(folder), words), daemon=True)
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


def ran(words: list[str], folder: Path, seconds: float = 120) -> CompletedProcess[str]:
    """Runs what ``python *words`` runs, a module behind ``-m`` or a program behind ``-c``, and returns how it ended."""
    with tempfile.TemporaryDirectory() as kept:
        process = forking().Process(target=_run, args=(kept, str(folder), words), daemon=True)
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            raise TimeoutExpired(words, seconds)
        out, err = (Path(kept, name).read_text() for name in ("out", "err"))
    return CompletedProcess(words, process.exitcode, out, err)


def _run(kept: str, folder: str, words: list[str]) -> None:
    with open(f"{kept}/out", "w") as out, open(f"{kept}/err", "w") as err, redirect_stdout(out), redirect_stderr(err):
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.chdir(folder)
        flag, what, *rest = words
        sys.argv = [flag, *rest]
        try:
            if flag == "-c":
                exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
            else:
                runpy.run_module(what, run_name="__main__", alter_sys=True)
        except Exception:
            traceback.print_exc()
            sys.exit(1)


class Forked:
    """Stands for the process that `attest.processes.start` starts, which costs a second of imports."""

    def __init__(self, module: str, theirs: socket.socket, environment: dict[str, str]) -> None:
        self._process = forking().Process(target=_serve, args=(module, theirs, list(sys.path), environment), daemon=True)
        self._process.start()
        self.pid = self._process.pid
        self.kill = self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired("a forked process", timeout or 0.0)
        return self._process.exitcode


def forked(module: str, *, quiet: bool = True, environment: Mapping[str, str] | None = None) -> tuple[Forked, socket.socket]:
    """Does what `attest.processes.start` does, with a process that is forked from the server; `quiet` does nothing."""
    ours, theirs = socket.socketpair()
    with theirs:
        return Forked(module, theirs, dict(os.environ if environment is None else environment)), ours


def _serve(module: str, channel: socket.socket, path: list[str], environment: dict[str, str]) -> None:
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ |= environment
    sys.path[:] = path
    os.dup2(channel.fileno(), 0)
    channel.close()
    import_module(module).serve()

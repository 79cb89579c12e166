"""Commands on a terminal: a program that believes that a person sits there, and what it drew."""

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def on_terminal(
    directory: Path, arguments: Sequence[str], answers: Sequence[tuple[str, str]] = (), timeout: float = 60
) -> tuple[int, str]:
    """Run `dptrain` with a terminal as standard input, output and error.

    Args:
        directory: Where it runs.
        arguments: Of the command.
        answers: Pairs of a text to wait for and the line to type then.
        timeout: Seconds until it is given up.

    Returns:
        The exit code and everything that appeared on the terminal.
    """
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dptrain", *arguments],
        cwd=directory,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    shown, read, waiting = "", 0, list(answers)
    deadline = time.monotonic() + timeout
    try:
        while True:
            ready, _, _ = select.select([ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"nothing happens any more; shown so far:\n{shown}"
            try:
                data = os.read(ours, 65536)
            except OSError:  # Linux says EIO when the last process has closed the terminal.
                data = b""
            if not data:
                break
            shown += data.decode("utf-8", "replace")
            if waiting and (found := shown.find(waiting[0][0], read)) >= 0:
                read = found + len(waiting[0][0])
                os.write(ours, waiting.pop(0)[1].encode() + b"\n")
        assert not waiting, f"never asked {waiting[0][0]!r}; shown:\n{shown}"
        return process.wait(10), shown
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()

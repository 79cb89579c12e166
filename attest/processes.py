"""Starts processes of our own, and frames the messages between them.

A process is a fresh interpreter at the other end of a socket pair: nothing is forked, so threads and accelerators of the
caller do not matter, and the caller's main module is not run again. It ends when our end of the pair is closed. What travels is
between processes of one program.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

HEAD = 8
"""Bytes of the length before a message."""

# -P: the directory that the caller stands in may be the corpus itself, and a file named json.py there is no module of ours.
_FLAGS = ["-P", *(["-I"] if sys.flags.isolated else []), *(["-E"] if sys.flags.ignore_environment else [])]
_BOOT = "import json,sys; sys.path[:] = json.loads(sys.argv[1]); from {} import serve; serve()"


def can_start() -> bool:
    """Tells whether there is an interpreter to start; a frozen program would run all of itself again, and again."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def available_processors() -> int:
    """Returns processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(
    module: str, *, quiet: bool = True, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts an interpreter that runs `serve` of a module; returns it, and our end of the socket that is its standard input.

    Args:
        module: its name. quiet: whether what it prints is dropped. environment: of the process; default: ours.

    Raises:
        OSError: the system starts none.
    """
    # What is no string in the path is ignored by the import system, and JSON may not hold it. The empty string is the directory
    # in which the caller stands by now: that of a corpus, say, whose files are others'.
    path = json.dumps([entry for entry in sys.path if isinstance(entry, str) and entry])
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            # In a group of its own: an interrupt from the keyboard is for the caller, even while a process starts.
            process = subprocess.Popen(
                [sys.executable, *_FLAGS, "-c", _BOOT.format(module), path],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL if quiet else None,
                env=environment,
                process_group=0,
            )
    except BaseException:
        ours.close()
        raise
    return process, ours


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process that holds nothing which must be put in order; a stopped one takes no other signal."""
    process.kill()
    process.wait()


def send(channel: socket.socket, message: bytes | bytearray) -> None:
    """Sends a message, behind its length."""
    channel.sendall(len(message).to_bytes(HEAD, "big"))
    channel.sendall(message)  # by itself, since it may be large


def receive(channel: socket.socket) -> bytearray | None:
    """Returns the next message; None where the other end is closed."""
    head = exactly(channel, HEAD)
    return None if head is None else exactly(channel, int.from_bytes(head, "big"))


def exactly(channel: socket.socket, length: int) -> bytearray | None:
    """Returns so many bytes; None where the other end is closed before."""
    data = bytearray(length)
    left = memoryview(data)
    while left:
        count = channel.recv_into(left)
        if not count:
            return None
        left = left[count:]
    return data

"""SSH agents for tests: OpenSSH's own, and one in a thread that answers whatever it is told to."""

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

needs_openssh = pytest.mark.skipif(
    shutil.which("ssh-agent") is None or shutil.which("ssh-add") is None,
    reason="ssh-agent and ssh-add are not installed; install the package openssh-client",
)


def string(data):
    return struct.pack(">I", len(data)) + data


def key_blob(raw, kind=b"ssh-ed25519"):
    return string(kind) + string(raw)


def identities_answer(*blobs):
    return b"\x0c" + struct.pack(">I", len(blobs)) + b"".join(string(blob) + string(b"a comment") for blob in blobs)


def signature_answer(signature, kind=b"ssh-ed25519"):
    return b"\x0e" + string(string(kind) + string(signature))


@contextlib.contextmanager
def openssh_agent(*options: str) -> Iterator[str]:
    """A running `ssh-agent`; yields the path of its socket."""
    # Not below pytest's directory: the path of a socket may have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="agent-") as folder:
        path = os.path.join(folder, "socket")
        process = subprocess.Popen(["ssh-agent", "-D", "-a", path, *options], stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 10
            while not os.path.exists(path):
                assert process.poll() is None and time.monotonic() < deadline, "ssh-agent does not start"
                time.sleep(0.01)
            yield path
        finally:
            process.terminate()
            process.wait(10)


def ssh_add(path: str, *arguments: str | Path, code: int = 0, **environment: str) -> str:
    """Run `ssh-add` against an agent; returns what it says."""
    done = subprocess.run(
        ["ssh-add", *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "SSH_AUTH_SOCK": path, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def fake_agent(
    answer: Callable[[bytes], bytes | None],
    *,
    framed: bool = True,
    pause: float | None = None,
    ended: list[None] | None = None,
) -> Iterator[str]:
    """An agent in a thread; yields the path of its socket.

    Args:
        answer: From the body of a request to the body of the answer; None hangs up.
        framed: Whether the length is put before the answer.
        pause: Seconds before each single byte of an answer; None sends it in one piece.
        ended: Grows with every connection that the client has closed.
    """
    with tempfile.TemporaryDirectory(prefix="agent-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = os.path.join(folder, "socket")
        listener.bind(path)
        listener.listen(16)

        def serve(connection: socket.socket) -> None:
            with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
                while head := stream.read(4):
                    reply = answer(stream.read(*struct.unpack(">I", head)))
                    if reply is None:
                        return
                    reply = string(reply) if framed else reply
                    for piece in [reply] if pause is None else [reply[at : at + 1] for at in range(len(reply))]:
                        time.sleep(pause or 0)
                        connection.sendall(piece)
            if ended is not None:
                ended.append(None)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)

"""A throw-away PostgreSQL server on loopback: its own data, port and password, gone with the test session.

The server refuses to run as root, so it then runs as the user ``postgres``, or ``nobody``. It dies with this process.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

USER = "tester"


def server_binary(name: str) -> Path | None:
    """A program of the newest PostgreSQL on this machine, None without one."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3].split(".")[0]))
    on_path = shutil.which(name)
    return found[-1] if found else Path(on_path) if on_path else None


def require_server() -> None:
    """Skips where the server's programs are not installed, and only there."""
    if server_binary("postgres") is None or server_binary("initdb") is None:
        pytest.skip("no PostgreSQL server on this machine (Debian: apt-get install postgresql)")


class Cluster:
    """A server; ``url(database)`` connects as its superuser."""

    def __init__(self, settings: dict[str, str] | None = None, directory: Path | None = None) -> None:
        """Starts one with its data below a directory, by default in memory where the system has a place for it."""
        memory = Path("/dev/shm")
        parent = directory or (memory if os.access(memory, os.W_OK) else None)
        self.root = Path(tempfile.mkdtemp(prefix="dptrain-pg-", dir=parent))
        self.password = secrets.token_hex(8)
        self.settings = {"fsync": "on", "log_min_messages": "fatal"} | (settings or {})
        self._process: subprocess.Popen | None = None
        self._owner = _owner()
        if self._owner is not None:
            os.chown(self.root, self._owner.pw_uid, self._owner.pw_gid)
        secret = self.root / "password"
        secret.write_text(self.password)
        if self._owner is not None:
            os.chown(secret, self._owner.pw_uid, self._owner.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        initdb = [server_binary("initdb"), "-D", self.root / "data", "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}"]
        done = subprocess.run([*self._as_owner(), *initdb, "--no-sync", "-E", "UTF8"], capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr
        self.start()

    def url(self, database: str = "postgres", *, port: int | None = None, user: str | None = None) -> str:
        return f"postgresql://{user or f'{USER}:{self.password}'}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Starts the server and waits until it answers, after a crash also until it has recovered."""
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""} | self.settings
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command = [*self._as_owner(), server_binary("postgres"), "-D", self.root / "data", *arguments]
        self._process = subprocess.Popen(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, "the server ended while it was starting"
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.05)

    def backends(self) -> list[int]:
        """Process ids of the connections of ledgers."""
        with psycopg.connect(self.url()) as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'dptrain ledger'"
            return [pid for (pid,) in connection.execute(query)]

    def kill(self) -> None:
        """SIGKILL to the server and all its processes, as at a power cut; `start` recovers from the write-ahead log."""
        assert self._process is not None
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self._process.pid)], capture_output=True, text=True).stdout
        for pid in [self._process.pid, *map(int, children.split())]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        (self.root / "data" / "postmaster.pid").unlink(missing_ok=True)
        time.sleep(0.2)  # until the shared memory of the dead is free

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Runs one statement as superuser, outside a transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)

    def _as_owner(self) -> list[str]:
        if self._owner is None:
            return ["setpriv", "--pdeathsig", "QUIT"] if shutil.which("setpriv") else []
        ids = [f"--reuid={self._owner.pw_uid}", f"--regid={self._owner.pw_gid}", "--clear-groups"]
        return ["setpriv", *ids, "--pdeathsig", "QUIT"]


def _owner() -> pwd.struct_passwd | None:
    """Whom the server runs as if we are root, whom it refuses."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("this is root, whom PostgreSQL refuses, and there is neither a user postgres nor nobody")

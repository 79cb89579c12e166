"""Writers under strace: what they call after the marker, and how they fare when a call fails."""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

HARNESS: Final = frozenset({"recvfrom", "sendto", "exit_group"})
"""Calls of the harness itself."""

CALL: Final = re.compile(r"^([a-z][a-z0-9_]*)\(", re.MULTILINE)
TIMEOUT_SECONDS: Final = 60


@dataclass(slots=True)
class Outcome:
    """How a writer fared.

    Attributes:
        reports: what it was told is durable, in order.
        end: ``done``, the name of a typed error, ``untyped``, or ``killed``.
        code: code of the error.
        sentence: its sentence, or a traceback.
        calls: how often it made each system call after the marker.
    """

    reports: list[dict] = field(default_factory=list)
    end: str = "killed"
    code: str = ""
    sentence: str = ""
    calls: Counter[str] = field(default_factory=Counter)


class Writers(AbstractContextManager["Writers"]):
    """Forks one-shot writers (`tests.fault.one_shot`) from one warm process, with strace on them or without."""

    def __init__(self) -> None:
        """Starts the process that writers are forked from."""
        self._folder = Path(tempfile.mkdtemp())
        self._socket = self._folder / "writers"
        command = [sys.executable, "-m", "tests.fault.one_shot", str(self._socket)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline() == "READY\n"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)

    def run(self, life: str, directory: Path, *options: str, trace: Path | None = None) -> Outcome:
        """Lets one writer live.

        Args:
            life: name of the life.
            directory: where the ledger is.
            options: options of strace, such as an injection; with none and no trace the writer runs by itself.
            trace: where strace writes.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            connection.connect(str(self._socket))
            connection.sendall(json.dumps([life, str(directory)]).encode())
            with connection.makefile("r") as lines:
                pid = lines.readline().strip()
                tracer = _attach(pid, options, trace) if options or trace else None
                connection.sendall(b"x")
                outcome = _outcome(lines)
            if tracer is not None:
                tracer.communicate(timeout=TIMEOUT_SECONDS)
        if trace is not None:
            outcome.calls = Counter(CALL.findall(trace.read_text(errors="replace")))
        return outcome


def require_strace() -> None:
    """Skips where there is no strace, or where it may not trace."""
    if shutil.which("strace") is None:
        pytest.skip("strace is absent (apt-get install strace)")
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"strace may not trace here: {probe.stderr.strip()}")


def _attach(pid: str, options: tuple[str, ...], trace: Path | None) -> subprocess.Popen[str]:
    command = ["strace", "-o", str(trace or "/dev/null"), *options, "-p", pid]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    assert "attached" in said, said
    return tracer


def _outcome(lines: Iterable[str]) -> Outcome:
    outcome = Outcome()
    for line in lines:
        facts = json.loads(line)
        if "end" in facts:
            outcome.end, outcome.code, outcome.sentence = facts["end"], facts["code"], facts["sentence"]
        else:
            outcome.reports.append(facts)
    return outcome

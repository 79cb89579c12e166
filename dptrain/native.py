"""Builds kernels in C++ where a compiler is at hand, and keeps what was built for later processes.

What is built is kept under the user's cache directory, by the digests of source, compiler and processor and of itself, if
nobody else may write there. What is read from it is what is loaded.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
_SECONDS = 60.0


def built(source: Path, declared: Callable[[Any], None], works: Callable[[Any], bool]) -> Any:
    """Returns the kernels of a source; None where there is no compiler, or what it built does not compute.

    Args:
        declared: tells the types of what kernels take. works: tells whether kernels compute.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if os.name != "posix" or not compiler:
        return None
    try:
        found = _kept(compiler, source, declared)
        return found if works(found) else None
    except (OSError, ValueError, subprocess.SubprocessError, AttributeError):
        return None  # whatever fails: the products of libraries are right, and slower


def _kept(compiler: str, source: Path, declared: Callable[[Any], None]) -> Any:
    """Loads what was built before, or builds it."""
    told = subprocess.run([compiler, "--version"], capture_output=True, timeout=_SECONDS, check=True).stdout
    name = f"{source.stem}-{_digest(source.read_bytes(), told, ' '.join(_FLAGS).encode(), processor())}"
    place = folder()
    for path in sorted(place.glob(f"{name}-*.so")) if place is not None else ():
        built = _read(path)
        if built is not None and path.name == f"{name}-{hashlib.sha256(built).hexdigest()}.so":
            return _loaded(built, declared)
    built = _built(compiler, source)
    if place is not None:
        _keep(built, place / f"{name}-{hashlib.sha256(built).hexdigest()}.so")
    return _loaded(built, declared)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def folder() -> Path | None:
    """Returns the directory of what is kept; None where it cannot be made, or somebody else may write it or one above it."""
    try:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dptrain"
        for one in (*reversed(place.parents), place):
            one.mkdir(exist_ok=True, mode=0o700)
        place = place.resolve()
        found = [one.lstat() for one in (place, *place.parents)]
    except (OSError, RuntimeError):
        return None
    for each in found:
        others = each.st_mode & 0o022 and not each.st_mode & stat.S_ISVTX
        if not stat.S_ISDIR(each.st_mode) or each.st_uid not in (0, os.getuid()) or others:
            return None
    own = found[0].st_uid == os.getuid() and not found[0].st_mode & 0o022
    return place if own and os.access(place, os.W_OK) else None


def _read(path: Path) -> bytes | None:
    """Reads a file of the user's that nobody else may write; None for any other."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        own = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        return file.read() if own else None


def _keep(built: bytes, path: Path) -> None:
    """Keeps what was built, whole or not at all; without room it is built once more."""
    with suppress(OSError):
        handle, made = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with open(handle, "wb") as file:
                file.write(built)
                file.flush()
                os.fsync(handle)
            os.replace(made, path)
        finally:
            Path(made).unlink(missing_ok=True)


def _built(compiler: str, source: Path) -> bytes:
    """Builds the kernels for this processor, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="dptrain-") as own:
        made = Path(own) / "kernels.so"
        for target in ("-march=native", "-mcpu=native"):
            command = [compiler, *_FLAGS, target, str(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
            if done.returncode == 0:
                return made.read_bytes()
    raise ValueError(done.stderr.decode(errors="replace"))


def _loaded(built: bytes, declared: Callable[[Any], None]) -> Any:
    """Loads the very bytes that were read or built, from a directory of this process alone."""
    with tempfile.TemporaryDirectory(prefix="dptrain-") as own:
        path = Path(own) / "kernels.so"
        path.write_bytes(built)
        found = ctypes.CDLL(str(path))  # once loaded, no file is needed
    declared(found)
    return found


def processor() -> bytes:
    """Names the processor by what it can do, for a home directory may be that of many machines."""
    told, kinds = Path("/proc/cpuinfo"), ("flags", "model name", "Features", "CPU part")
    lines = told.read_text().splitlines() if told.exists() else []
    known = {line.partition(":")[2].strip() for line in lines if line.startswith(kinds)}
    return "\n".join([platform.machine(), platform.processor(), *sorted(known)]).encode()

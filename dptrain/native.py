"""Builds kernels in C++ where a compiler is at hand, and keeps what was built for later processes.

What is built is kept under the user's cache directory, by the digests of source, compiler and processor and of itself, if
nobody else may write there. What is read from it is what is loaded. Building and loading happen only where nobody else may put
a file in the place of another.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
_SECONDS = 60.0


def built(
    source: Path, declared: Callable[[Any], None], works: Callable[[Any], bool], options: tuple[str, ...] = ()
) -> Any:
    """Returns the kernels of a source; None where there is no compiler, or what it built does not compute.

    Args:
        source: in C++; it may include the headers (``*.h``) beside it.
        declared: tells the types of what kernels take. works: tells whether kernels compute.
        options: of the compiler, behind those of every source.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if os.name != "posix" or not compiler:
        return None
    try:
        return _kept(compiler, source, declared, works, (*_FLAGS, *options))
    except (OSError, ValueError, subprocess.SubprocessError, AttributeError):
        return None  # whatever fails: the products of libraries are right, and slower


def _kept(
    compiler: str, source: Path, declared: Callable[[Any], None], works: Callable[[Any], bool], flags: tuple[str, ...]
) -> Any:
    """Loads what was built before, or builds it; what does not compute is not kept."""
    program = Path(shutil.which(compiler) or compiler).resolve()
    told = subprocess.run([compiler, "--version"], capture_output=True, timeout=_SECONDS, check=True).stdout
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    which = _digest(told, bytes(program), program.read_bytes(), " ".join(flags).encode(), processor(), *texts)
    name, place = f"{source.stem}-{which}", folder()
    for path in sorted(place.glob(f"{name}-*.so")) if place is not None else ():
        built = _read(path)
        if built is not None and path.name == f"{name}-{hashlib.sha256(built).hexdigest()}.so":
            found = _loaded(built, declared)
            return found if _computes(found, works) else None
    built = _built(compiler, source, flags)
    found = _loaded(built, declared)
    if not _computes(found, works):
        return None
    if place is not None:
        _keep(built, place / f"{name}-{hashlib.sha256(built).hexdigest()}.so")
    return found


def _computes(found: Any, works: Callable[[Any], bool]) -> bool:
    """Tells whether kernels compute, in memory of the processor whatever device a program makes its tensors on."""
    with torch.device("cpu"):
        return works(found)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def folder() -> Path | None:
    """Returns the directory of what is kept; None where it cannot be made, or somebody else may write it or one above it."""
    try:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dptrain"
        for one in (*reversed(place.parents), place):
            one.mkdir(exist_ok=True, mode=0o700)
        place = place.resolve()
        found = place.lstat()
    except (OSError, RuntimeError):
        return None
    own = found.st_uid == os.getuid() and not found.st_mode & 0o022
    return place if own and _trusted(place) and os.access(place, os.W_OK) else None


def _trusted(place: Path) -> bool:
    """Tells whether nobody else may put another directory in the place of one that the user makes here, or of one above."""
    try:
        found = [one.lstat() for one in (place, *place.parents)]
    except OSError:
        return False
    return all(
        stat.S_ISDIR(each.st_mode)
        and each.st_uid in (0, os.getuid())
        and (not each.st_mode & 0o022 or each.st_mode & stat.S_ISVTX)
        for each in found
    )


def temporary() -> Path:
    """Returns the directory of temporary files. Raises ValueError: others may put files in the place of those in it."""
    place = Path(tempfile.gettempdir()).resolve()
    if not _trusted(place):
        raise ValueError(f"others may put files in the place of those in {place}; set TMPDIR to a directory of your own")
    return place


@contextmanager
def _scratch() -> Iterator[Path]:
    """Makes a directory of this process alone, for the time of a block. Raises ValueError: there is no place for it."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder() or temporary()) as own:
        yield Path(own)


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


def _built(compiler: str, source: Path, flags: tuple[str, ...]) -> bytes:
    """Builds the kernels for this processor, in a directory of its own."""
    with _scratch() as own:
        made, environment = own / "kernels.so", {**os.environ, "TMPDIR": str(own)}
        for target in ("-march=native", "-mcpu=native"):
            command = [compiler, *flags, target, str(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False, env=environment)
            if done.returncode == 0:
                return made.read_bytes()
    raise ValueError(done.stderr.decode(errors="replace"))


def _loaded(built: bytes, declared: Callable[[Any], None]) -> Any:
    """Loads the very bytes that were read or built, from a directory of this process alone.

    Raises:
        ValueError: a compiler's options (``-ffast-math`` in a wrapper) had it change how this process computes.
    """
    flushed = _flushes()
    with _scratch() as own:
        path = own / "kernels.so"
        path.write_bytes(built)
        found = ctypes.CDLL(str(path))  # once loaded, no file is needed
    if _flushes() and not flushed:
        torch.set_flush_denormal(False)
        raise ValueError("what was built has subnormal numbers of this process count as zero")
    declared(found)
    return found


def _flushes() -> bool:
    """Tells whether subnormal numbers count as zero here."""
    return bool(np.multiply(np.float32(1e-40), np.float32(0.5)) == 0.0)


_ONE, _LITTLE = 1.0, 2.0**-60


def to_nearest() -> bool:
    """Tells whether this thread rounds to the nearest number; in another mode libraries and compilers round differently."""
    return _ONE + _LITTLE == _ONE and _ONE - _LITTLE == _ONE


def give_back() -> None:
    """Gives memory that is free in this process back to the system, where glibc would keep it between what is not.

    For the rare moments after which blocks of other sizes are asked for: into holes that small blocks left, large ones do not
    go. What is asked for again comes as new pages, so this is nothing for every step.
    """
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)


class KeptMemory:
    """Has glibc keep what is freed for what is asked for next, while at least one is open.

    After each backward pass nearly all is freed, and glibc gives the top of its heap back to the system, and every block above
    32 MiB (logits, say) at once. The next microbatch meets every page anew, which was 5 to 15 percent of small steps. Nothing
    is changed where the environment says how glibc allocates.
    """

    _open = 0
    _lock = Lock()

    def __init__(self) -> None:
        self._own = not _tuned()
        if self._own:
            with KeptMemory._lock:
                KeptMemory._open += 1
                _thresholds(_ALL, 0)

    def close(self) -> None:
        """Gives the memory back, and lets glibc go on as it does once it has seen a large tensor freed."""
        if self._own:
            self._own = False
            with KeptMemory._lock:
                KeptMemory._open -= 1
                if not KeptMemory._open:
                    _thresholds(_USUAL, _MAPS)
                    give_back()


_ALL, _USUAL = (1 << 31) - 1, 1 << 26
"""Bytes at the top of the heap from which glibc gives them back: in a run; and by itself, after it freed 32 MiB at once."""

_TRIM, _MAP, _MAPPED = -1, -3, 1 << 25
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h, and the most that the second takes."""

_MOST_MAPS, _MAPS = -4, 1 << 16
"""M_MMAP_MAX, and how many blocks may lie in maps of their own by default."""


def _tuned() -> bool:
    """Tells whether the environment has set how memory is allocated."""
    return "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(name.startswith("MALLOC_") for name in os.environ)


def _thresholds(trim: int, maps: int) -> None:
    tell = getattr(_LIBC, "mallopt", None)
    if tell is not None:
        tell(_TRIM, trim)
        tell(_MAP, _MAPPED)
        tell(_MOST_MAPS, maps)


_LIBC = ctypes.CDLL(None) if os.name == "posix" else None


def processor() -> bytes:
    """Names the processor by what it can do, for a home directory may be that of many machines."""
    told, kinds = Path("/proc/cpuinfo"), ("flags", "model name", "Features", "CPU part")
    lines = told.read_text().splitlines() if told.exists() else []
    known = {line.partition(":")[2].strip() for line in lines if line.startswith(kinds)}
    return "\n".join([platform.machine(), platform.processor(), *sorted(known)]).encode()

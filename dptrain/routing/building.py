"""Calls the C++ compiler less often than inductor does, for the same kernels.

Inductor builds each kernel alone, and most of that is reading the same headers: here they are one unit. A kernel that has not
the form known here is built alone, as are all of a unit that cannot be built. Inductor tries all vector instructions that a
processor might have, and takes the best: here those behind the best are not tried. The kernels, the compiler and its options
are inductor's, and so is what a kernel computes.
"""

import atexit
import itertools
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch._inductor.config
import torch.utils._filelock  # so that no thread imports it
from torch._inductor import cpu_vec_isa
from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch._inductor.utils import clear_on_fresh_cache

from dptrain import native

FEW, MANY = 24, 48
"""Kernels of one unit, where others can be built beside it and at most. Its headers take as long as twenty kernels."""

_NAME = re.compile(r"\bkernel\b")
_FORM = re.compile(r"\s*((?:#include [^\n]+\n)+)((?:[^#]|#pragma )*)")
_HEADERS = ("#define PY_SSIZE_T_CLEAN", "#include <Python.h>", "#include <sstream>", "#include <cstdlib>", "#include <cerrno>")
"""Lists what torch's bindings include, here outside of any namespace."""

Kernel = Callable[..., None]


@contextmanager
def together() -> Iterator[None]:
    """Has inductor, inside and in this thread, build kernels by the unit."""
    alone, wait = AsyncCompile.cpp_pybinding, AsyncCompile.wait
    ours = threading.get_ident()

    def cpp_pybinding(self: AsyncCompile, argtypes: Sequence[str], source_code: str) -> Any:
        found = _FORM.fullmatch(source_code)
        if threading.get_ident() != ours or found is None or len(_NAME.findall(source_code)) != 1:
            return alone(self, argtypes, source_code)
        return _Promise(argtypes, source_code, *found.groups())

    def wait_for(self: AsyncCompile, scope: dict[str, Any]) -> None:
        promised = {name: value for name, value in scope.items() if isinstance(value, _Promise)}
        workers = get_compile_threads()
        units = [_Unit(kernels) for kernels in _shares(list(promised.values()), workers)]
        for unit in units:
            unit.begin(self.submit if workers > 1 else None)
        scope.update(zip(promised, (kernel for unit in units for kernel in unit.kernels()), strict=True))
        wait(self, scope)

    AsyncCompile.cpp_pybinding, AsyncCompile.wait = cpp_pybinding, wait_for
    try:
        # Headers that were compiled before would be read from a directory that others may write.
        with torch._inductor.config.patch(cpp_cache_precompile_headers=False):
            yield
    finally:
        AsyncCompile.cpp_pybinding, AsyncCompile.wait = alone, wait


@dataclass(frozen=True)
class _Promise:
    """One kernel to be built: the types of its arguments, its source, and of this the headers and the rest."""

    argtypes: Sequence[str]
    source: str
    headers: str
    body: str


def _shares(kernels: list[_Promise], workers: int) -> Iterator[list[_Promise]]:
    """Splits kernels in units: one a worker that has enough to do, and more where they would grow too large."""
    count = max(-(-len(kernels) // MANY), min(workers, -(-len(kernels) // FEW)))
    cuts = [k * len(kernels) // count for k in range(count + 1)] if count else []
    return (kernels[a:b] for a, b in itertools.pairwise(cuts))


class _Unit:
    """Kernels that are built together."""

    def __init__(self, kernels: list[_Promise]) -> None:
        self._kernels = kernels
        self._built: Callable[[], Any] | None = None

    def begin(self, submit: Callable[[Callable[[], None]], Any] | None) -> None:
        """Starts to build beside what runs here; without ``submit`` it is built when it is needed."""
        with suppress(Exception):
            self._built = _Library.load_async(_joined(self._kernels), submit_fn=submit)

    def kernels(self) -> list[Kernel]:
        """Returns the kernels, one by one if the unit cannot be built."""
        try:
            assert self._built is not None
            library = self._built()
            entries = [type("_Entry", (_Library,), {"entry_function": f"kernel_{k}"}) for k in range(len(self._kernels))]
            return [getattr(entry.module(library.path, library.key), entry.entry_function) for entry in entries]
        except Exception:
            return [CppPythonBindingsCodeCache.load_pybinding(kernel.argtypes, kernel.source) for kernel in self._kernels]


@clear_on_fresh_cache
class _Library(CppPythonBindingsCodeCache):
    """One file with the bindings of many kernels, each a Python module by its own entry."""

    cache: ClassVar[dict[str, Callable[[], Any]]] = {}

    @staticmethod
    def cache_clear() -> None:
        _Library.cache.clear()

    @classmethod
    def _load_library_inner(cls, path: str, key: str) -> Any:
        return SimpleNamespace(path=path)  # and inductor adds the key

    @classmethod
    def module(cls, path: str, key: str) -> Any:
        """The module of the kernel that this class is the entry of."""
        return super()._load_library_inner(path, key)


def _joined(kernels: Sequence[_Promise]) -> str:
    """Puts kernels into one source, each with torch's bindings in a namespace of its own."""
    headers = dict.fromkeys(line for kernel in kernels for line in kernel.headers.splitlines())
    parts = ["\n".join((*headers, *_HEADERS))]
    for place, kernel in enumerate(kernels):
        name = f"kernel_{place}"
        given = ", ".join(f"parse_arg<{kind.replace('const ', '')}>(args, {n})" for n, kind in enumerate(kernel.argtypes))
        call = f"{name}({given}); Py_RETURN_NONE;"
        bindings = CppPythonBindingsCodeCache.suffix_template.format(
            arg_len=len(kernel.argtypes), call_entry_func=call, entry_func=name, extra_parse_arg=""
        )
        code = _NAME.sub(name, kernel.body)
        parts.append(f"namespace unit_{place} {{\n{code}\n{bindings}\n}}")
    return "\n".join(parts)


# --------------------------------------------------------------------------------------------------- vector instructions

_LOCK = threading.Lock()


def begin() -> threading.Thread:
    """Starts to look for the best vector instructions, beside what runs here; the compiler is called for it."""
    thread = threading.Thread(target=_best, name="dptrain-vector-instructions", daemon=True)
    thread.start()
    return thread


@contextmanager
def best_alone() -> Iterator[None]:
    """Has inductor, inside, know no other vector instructions than those that it would take of all."""
    found, before = _best(), cpu_vec_isa.valid_vec_isa_list
    if found is not None:
        cpu_vec_isa.valid_vec_isa_list = lambda: [found]
    try:
        yield
    finally:
        cpu_vec_isa.valid_vec_isa_list = before


def _best() -> cpu_vec_isa.VecISA | None:
    """Returns what inductor would take; None where that is for inductor to say."""
    with _LOCK:
        return _first()


@cache
def _first() -> cpu_vec_isa.VecISA | None:
    chosen = os.environ.get("ATEN_CPU_CAPABILITY"), torch._inductor.config.cpp.simdlen
    if chosen != (None, None) or sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        has = set(cpu_vec_isa.x86_isa_checker())
        with kept_in(lambda: str(own_place() / "instructions")):
            return next((isa for isa in cpu_vec_isa.supported_vec_isa_list if has.issuperset(str(isa).split()) and isa), None)
    except Exception:
        return None


# ------------------------------------------------------------------------------------------------ where it is built and kept

_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@contextmanager
def kept_in(folder: Callable[[], str]) -> Iterator[None]:
    """Has inductor, inside, build and keep what it makes in a folder, but where the user chose another by the environment."""
    before = os.environ.get(_CACHE)
    if before is None or before == default_cache_dir() or _is_default(Path(before)):
        os.environ[_CACHE] = folder()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_CACHE, None)
        else:
            os.environ[_CACHE] = before


def _is_default(place: Path) -> bool:
    """Tells whether torch wrote its default there itself, maybe for another user or TMPDIR: where all may make directories."""
    try:
        return place.name.startswith("torchinductor_") and bool(place.parent.stat().st_mode & 0o002)
    except OSError:
        return False


@cache
def own_place() -> Path:
    """Returns a directory that nobody else may enter, or one for the life of this process: inductor makes others in it as the
    umask says, and loads from them."""
    place = native.folder()
    if place is not None:
        place = place / "compiled"
        with suppress(OSError):
            place.mkdir(mode=0o700, exist_ok=True)
        try:
            found = place.lstat()
            alone = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        except OSError:
            alone = False
        place = place if alone else None
    if place is None:
        place = Path(tempfile.mkdtemp(prefix="dptrain-", dir=native.temporary()))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place

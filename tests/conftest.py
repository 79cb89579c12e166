"""For all tests: which cases of a cross are quick, where files lie, and what a test leaves behind for the next."""

import gc
import getpass
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from zlib import crc32

import pytest

# Before torch multiplies: MKL rounds rows by their addresses on processors of AMD otherwise, which exactness certified refuses.
os.environ.setdefault("MKL_CBWR", "AUTO")

# Before torch begins threads: those that wait sleep. Tests run beside each other, and spinning takes the others' time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What it brings along it adds to `sys.path` once, when it is first imported; a test that puts the path back must not take that
# away from those behind it (torch's compiler needs it).
with suppress(ImportError):
    import_module("setuptools")


MEMORY, ENOUGH = "/dev/shm", 4 * 1024**3
"""A file system in memory, and its free bytes from which on the files of tests lie there."""


def _files_in_memory() -> None:
    """Puts temporary files into memory, unless TMPDIR says where: ledgers wait for a disk after every leaf.

    What torch has compiled stays where it was: it is of use to the next run, too.
    """
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY


_files_in_memory()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Imports the test files from the last to the first in every second worker, before it collects them.

    In a fresh checkout pytest rewrites the assertions of every file. Workers that begin at the same file all rewrite all of
    them; two that meet in the middle find what the other wrote. Collection finds the modules imported, and says what failed.
    """
    if not os.environ.get("PYTEST_XDIST_WORKER", "0").endswith(("1", "3", "5", "7", "9")):
        return
    named = [Path(arg).absolute() for arg in session.config.args if "::" not in arg]
    files = {file for path in named for file in (path.rglob("test_*.py") if path.is_dir() else [path])}
    for file in sorted(files, reverse=True):
        root = next(folder for folder in file.parents if not (folder / "__init__.py").exists())
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        with suppress(Exception, pytest.skip.Exception):  # what fails here is imported again by its collection, which tells
            import_module(".".join(file.relative_to(root).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Takes what imports and collection made out of the garbage collector's rounds: millions of objects that never go.

    Rounds are rarer, too: most objects go without one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="module", autouse=True)
def _files_before_are_left_alone() -> None:
    """Takes what the files before have left, caches and modules, out of the collector's rounds: a twelfth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the first case of a test marked ``one_in(n)`` among the quick ones, and about one in n of the others.

    Names choose, not numbers: every n-th case of a cross would be the same in one of its directions.
    """
    begun: set[str] = set()
    for item in items:
        mark, test = item.get_closest_marker("one_in"), item.nodeid.partition("[")[0]
        if mark is None or item.get_closest_marker("slow"):
            continue
        if test in begun and crc32(item.nodeid.encode()) % mark.args[0]:
            item.add_marker(pytest.mark.slow)
        begun.add(test)


@pytest.fixture(autouse=True)
def _accelerate_forgets() -> Iterator[None]:
    """Drops accelerate's state, which is one for the whole process."""
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """As many threads of torch as the test names, and those of before after it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)

"""Runs the tests named for guarantees, and finds guarantees whose code none of them entered.

A test that is named for a promise and never runs the code that keeps it holds nothing. Code that a test starts in a process of
its own is not seen. A guarantee of a class counts as reached once any method of it ran.
"""

import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.claims.paragraphs import ROOT, guarantees
from tests.claims.tests_of import find, held


class Watcher:
    """A plugin of pytest that notes which functions of the product ran during each test."""

    def __init__(self) -> None:
        self.entered: dict[str, set[tuple[str, str]]] = {}
        self.failed: list[str] = []
        self._codes: set[CodeType] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._codes = set()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            seen = self.entered.setdefault(item.nodeid.partition("[")[0], set())
            seen |= {(code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname) for code in self._codes}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)


def unreached(only: str = "") -> list[str]:
    """The guarantees whose code no test named for them entered.

    Args:
        only: part of the names of those that are looked at.

    Raises:
        RuntimeError: a test failed, or pytest could not begin.
    """
    wanted = {name: [find(test).node_id for test in tests] for name, tests in held().items() if only in name}
    watcher = Watcher()
    ids = sorted({one for ids in wanted.values() for one in ids})
    code = pytest.main(["-q", "-W", "ignore", "-p", "no:cacheprovider", *(f"{ROOT}/{one}" for one in ids)], plugins=[watcher])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or watcher.failed:
        raise RuntimeError(f"pytest ended with {code}: {', '.join(watcher.failed) or 'no test ran'}")
    return [name for name, ids in wanted.items() if not any(holds(name, watcher.entered.get(one, set())) for one in ids)]


def holds(name: str, entered: set[tuple[str, str]]) -> bool:
    """Whether code of the guarantee ran. Where it has none, any of its file counts, or a subclass's method of its name."""
    one = guarantees()[name]
    if not one.bare:
        return any(path == one.path and f"{within}.".startswith(f"{one.within}.") for path, within in entered)
    folder, method = one.path.rpartition("/")[0], f".{one.within.rpartition('.')[2]}"
    return any(path == one.path or (path.startswith(f"{folder}/") and within.endswith(method)) for path, within in entered)

"""Breaks one promise after the other, and demands that the test named for it fails.

    python -m tests.mutants                      every mutant
    python -m tests.mutants --only "half" --jobs 2

Every mutant lives in a copy of the project in a directory of its own. First all the named tests run on the copy as it is: they
must pass. A mutant is *caught* if its test fails; it *survives* if that passes, and is *broken* if nothing could be run. Prints
a table, and fails if one is not caught.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.mutants import GROUPS

COPIED = ("attest", "ledger", "dptrain", "tests", "docs", "recipes", "benchmarks", "pyproject.toml", "README.md")
PASSED, FAILED = 0, 1
"""Exit codes of pytest."""


def copy_of(place: Path) -> Path:
    """The project, in a directory of its own."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, place / name)
    return place


def run_tests(place: Path, tests: Sequence[str], *, first: bool = True) -> tuple[int, str]:
    """Runs tests of a copy in a process that was forked from this one, which has torch: (exit code of pytest, last lines).

    Args:
        first: stop at the first that fails.
    """
    told = place / "told.txt"
    child = os.fork()
    if child == 0:
        code = 99
        try:
            with open(told, "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(place)
            os.environ["PYTHONPATH"] = str(place)
            sys.path[:] = [str(place), *(path for path in sys.path if path not in ("", str(ROOT)))]
            for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "attest", "ledger", "dptrain")]:
                del sys.modules[name]
            sys.dont_write_bytecode = True
            import pytest

            options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "slow or not slow", "--tb=line"]
            code = int(pytest.main([*options, *(["-x"] if first else []), *tests]))
            import dptrain

            if not str(dptrain.__file__).startswith(str(place)):
                code = 98
        finally:
            sys.stdout.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = told.read_text(errors="replace").strip().splitlines()
    return code, "\n".join(lines[-12:])


def outcome(place: Path, mutant: Mutant) -> tuple[str, str]:
    """``caught``, ``survives`` or ``broken``, and what pytest said."""
    file = place / mutant.file
    before = file.read_text(encoding="utf-8")
    file.write_text(mutant.source(), encoding="utf-8")
    try:
        code, told = run_tests(place, [mutant.test])
    finally:
        file.write_text(before, encoding="utf-8")
    return {PASSED: "survives", FAILED: "caught"}.get(code, "broken"), told


def main() -> int:
    """Runs the mutants that were asked for; 1 if one is not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Break every promise once.")
    parser.add_argument("--only", default="", help="mutants whose group, promise, file or test contains this")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    asked = parser.parse_args()
    chosen = [
        (group, mutant)
        for group, mutants in GROUPS.items()
        for mutant in mutants
        if asked.only.lower() in f"{group} {mutant.promise} {mutant.file} {mutant.test}".lower()
    ]
    if not chosen:
        parser.error(f"no mutant has {asked.only!r} in it")
    import pytest  # noqa: F401
    import torch

    from dptrain import PrivateTraining  # noqa: F401  (and all that it needs: forks begin with that, and drop ours alone)

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        places: SimpleQueue[Path] = SimpleQueue()
        for job in range(asked.jobs):
            places.put(copy_of(Path(directory) / f"copy{job}"))
        tests = sorted({mutant.test for _, mutant in chosen})
        place = places.get()
        code, told = run_tests(place, tests, first=False)
        places.put(place)
        if code != PASSED:
            print(f"tests fail without any mutant:\n{told}")
            return 1

        def judged(item: tuple[str, Mutant]) -> tuple[str, str]:
            place = places.get()
            began = time.perf_counter()
            try:
                found, told = outcome(place, item[1])
            finally:
                places.put(place)
            group, mutant = item
            print(f"{found:9}{time.perf_counter() - began:6.1f}s  {group}: {mutant.promise}")
            print(f"{'':18}{mutant.file} -> {mutant.test}", flush=True)
            if found != "caught":
                print(told, flush=True)
            return found, told

        with ThreadPoolExecutor(asked.jobs) as pool:
            found = [word for word, _ in pool.map(judged, chosen)]
    caught, survive, broken = (found.count(word) for word in ("caught", "survives", "broken"))
    print(f"{caught} of {len(found)} mutants caught, {survive} survive, {broken} broken")
    return int(caught != len(found))


if __name__ == "__main__":
    raise SystemExit(main())

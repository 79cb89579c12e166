"""Takes the zoo through the start of a run and says what became of it; ``make zoo``.

python -m tests.zoo                          all families, both variants: a table, and build/zoo.json
python -m tests.zoo --kind vision BERT       by kind, or by part of a name
python -m tests.zoo --accept                 writes what was found into tests/zoo/expected.toml, and docs/models.md
python -m tests.zoo --docs                   writes docs/models.md from the expectations alone
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import starmap
from multiprocessing import get_context
from pathlib import Path

from tests.zoo import expectations, report
from tests.zoo.families import ZOO
from tests.zoo.family import VARIANTS
from tests.zoo.judge import judge, prepare_process

RESULTS = Path("build/zoo.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; default: all families")
    parser.add_argument("--kind", help="only families of this kind")
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="default: both")
    parser.add_argument("--part", help="K/N: the K-th of every N families")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--accept", action="store_true", help="write expectations and docs/models.md")
    parser.add_argument("--docs", action="store_true", help="write docs/models.md and stop")
    parser.add_argument("--json", type=Path, default=RESULTS, help=f"where results go (default {RESULTS})")
    asked = parser.parse_args()
    if asked.docs:
        report.PAGE.write_text(report.page(expectations.read()))
        return 0
    chosen = [
        family.name
        for family in ZOO.values()
        if (not asked.kind or asked.kind == family.kind) and (not asked.names or any(n in family.name for n in asked.names))
    ]
    if asked.part:
        which, parts = map(int, asked.part.split("/"))
        chosen = chosen[which - 1 :: parts]
    tasks = [(name, variant) for name in chosen for variant in asked.variant or VARIANTS]
    results = []
    for result in _all(tasks, asked.jobs):
        results.append(result)
        print(report.line(result), file=sys.stderr, flush=True)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps([r.as_json() for r in results], indent=1, default=list) + "\n")
    print(report.table(results))
    differ = expectations.differences(results, expectations.read())
    if asked.accept:
        expectations.write(expectations.accepted(results, expectations.read()))
        report.PAGE.write_text(report.page(expectations.read()))
        return 0
    print(f"\n{len(differ)} of {len(results)} are not what is expected", *differ, sep="\n", file=sys.stderr)
    return int(bool(differ))


def _all(tasks, jobs: int):
    if jobs == 1:
        prepare_process()
        yield from starmap(judge, tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=prepare_process) as pool:
        yield from pool.map(judge, *zip(*tasks, strict=True))


if __name__ == "__main__":
    sys.exit(main())

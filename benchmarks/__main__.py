"""``make bench``: every step configuration, one table each, then what routing, ledger and noise cost by themselves.

Saved as JSON after every table, with the versions it was measured with.
"""

import argparse
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import overheads
from benchmarks.configs import CONFIGS
from benchmarks.step import render, run
from benchmarks.variants import VARIANTS
from dptrain.gradients import matmul


def versions() -> dict[str, Any]:
    """What a figure was measured with."""
    packages = ("torch", "transformers", "peft", "opacus", "cryptography")
    found = {package: version(package) for package in packages} | {"python": platform.python_version()}
    return {"versions": found, "machine": platform.machine(), "processors": os.cpu_count(), "onednn_products": matmul.ENABLED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=sorted(CONFIGS), nargs="+", help="these configurations; default all")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=[], help="measure these beside non_private")
    parser.add_argument("--no-memory", action="store_true", help="skip the processes that measure memory")
    parser.add_argument("--no-overheads", action="store_true", help="leave out the rows of routing, ledger and noise")
    parser.add_argument("--out", type=Path, default=Path("bench-step.json"))
    options = parser.parse_args()
    found: dict[str, Any] = versions() | {"threads": options.threads, "rounds": options.rounds, "results": {}}

    def save() -> None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    for name, config in CONFIGS.items():
        if options.only and name not in options.only:
            continue
        found["results"][name] = run(config, options.rounds, options.threads, not options.no_memory, options.variants)
        print(render(name, found["results"][name]), flush=True)
        save()
    if not options.no_overheads:
        found["overheads"] = overheads.run(options.rounds, options.threads)
        print(overheads.render(found["overheads"]), flush=True)
        save()
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()

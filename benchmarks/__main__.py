"""``make bench``: every step configuration, one table each, then what routing, ledger and noise cost by themselves.

The base of every ratio is the fastest step without privacy of the same run, named in the table (:mod:`benchmarks.bases`). The
last table has one line per configuration. ``--dropout 0 0.1`` measures every configuration at both. Saved as JSON after every
table, with the versions it was measured with. ``python -m benchmarks prism`` compares ways to train LoRA (`benchmarks.prism`).
"""

import argparse
import json
import os
import platform
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import overheads
from benchmarks.bases import BASES
from benchmarks.configs import CONFIGS, PEERS
from benchmarks.step import headline, render, run
from benchmarks.variants import VARIANTS
from dptrain.gradients import matmul


def versions() -> dict[str, Any]:
    """What a figure was measured with."""
    packages = ("torch", "transformers", "peft", "opacus", "cryptography")
    found = {package: version(package) for package in packages} | {"python": platform.python_version()}
    return {
        "versions": found,
        "machine": platform.machine(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "onednn_products": matmul.ENABLED,
    }


def _processor() -> str | None:
    """Model of the processor, on which it hangs which products are the fastest; None where Linux does not tell."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=sorted(CONFIGS), nargs="+", help="these configurations; default all")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=[], help="measure these beside the bases")
    parser.add_argument("--bases", nargs="+", choices=list(BASES), default=[], help="of the steps without privacy, these alone")
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0], help="probabilities of dropout; default 0 alone")
    parser.add_argument("--peers", action="store_true", help=f"measure {', '.join(PEERS)} too")
    parser.add_argument("--no-memory", action="store_true", help="skip the processes that measure memory")
    parser.add_argument("--no-overheads", action="store_true", help="leave out the rows of routing, ledger and noise")
    parser.add_argument("--out", type=Path, default=Path("bench-step.json"))
    options = parser.parse_args()
    found: dict[str, Any] = versions() | {"threads": options.threads, "rounds": options.rounds, "results": {}}

    variants = options.variants or [name for name in VARIANTS if options.peers or name not in PEERS]
    if not options.peers and not options.variants:
        print(f"{', '.join(PEERS)} are not measured without --peers", flush=True)

    def save() -> None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    for name, config in CONFIGS.items():
        if options.only and name not in options.only:
            continue
        for dropout in options.dropout:
            setting = replace(config, dropout=dropout)
            table = run(setting, options.rounds, options.threads, not options.no_memory, variants, options.bases)
            found["results"][setting.title] = table
            print(render(table), flush=True)
            save()
    print(headline(found["results"]), flush=True)
    if not options.no_overheads:
        found["overheads"] = overheads.run(options.rounds, options.threads)
        print(overheads.render(found["overheads"]), flush=True)
        save()
    print(f"saved to {options.out}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["prism"]:
        from benchmarks.prism import main as prism

        raise SystemExit(prism(sys.argv[2:]))
    main()

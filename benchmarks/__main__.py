"""``make bench``: every step configuration, one table each, saved as JSON with the versions it was measured with."""

import argparse
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.configs import CONFIGS
from benchmarks.step import render, run
from dptrain.routing import products


def versions() -> dict[str, Any]:
    """What a figure was measured with."""
    packages = ("torch", "transformers", "peft", "opacus", "cryptography")
    found = {package: version(package) for package in packages} | {"python": platform.python_version()}
    return {"versions": found, "machine": platform.machine(), "processors": os.cpu_count(), "onednn_products": products.ENABLED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=sorted(CONFIGS), nargs="+", help="these configurations; default all")
    parser.add_argument("--out", type=Path, default=Path("bench-step.json"))
    options = parser.parse_args()
    results = {}
    for name, config in CONFIGS.items():
        if options.only and name not in options.only:
            continue
        results[name] = run(config, options.rounds, options.threads, memory=True)
        print(render(name, results[name]), flush=True)
    options.out.write_text(
        json.dumps(versions() | {"threads": options.threads, "rounds": options.rounds, "results": results}, indent=1) + "\n"
    )
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()

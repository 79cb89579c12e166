"""``make bench``: every step configuration, one table each, saved as JSON with the versions it was measured with."""

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path

from benchmarks.configs import CONFIGS
from benchmarks.step import render, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bench-step.json"))
    options = parser.parse_args()
    results = {}
    for name, config in CONFIGS.items():
        results[name] = run(config, options.rounds, options.threads, memory=True)
        print(render(name, results[name]), flush=True)
    versions = {package: version(package) for package in ("torch", "transformers", "opacus")}
    record = {"versions": versions | {"python": platform.python_version()}, "machine": platform.machine(), "results": results}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()

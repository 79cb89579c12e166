"""``make bench-scaling``: cost of a private step against contributions, T, width, depth share and number of classes.

Small BERT-like models (4 or 8 layers, width 128, T = 64, 32 contributions where nothing else is said), one thing varied at a
time. Ratios are to the faster step without privacy of the whole model at the same size: torch's own, or that with products by
oneDNN; compiling every size would take longer than measuring it. Small steps have a floor of some milliseconds for the ledger,
so read the trend.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.__main__ import versions
from benchmarks.bases import BANDS
from benchmarks.configs import SCALING
from benchmarks.step import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=sorted(SCALING), help="vary this alone")
    parser.add_argument("--out", type=Path, default=Path("bench-scaling.json"))
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    titles = f"{'cpu s/step':>12}{'cpu ratio':>11}{'wall ratio':>12}{'bands ratio':>13}{'memory':>9}{'MiB':>7}"
    print(f"{'varied':<14}{'value':>7}{titles}")
    for varied, configs in SCALING.items():
        if options.only not in (None, varied):
            continue
        results[varied] = {}
        for value, config in configs.items():
            results[varied][value] = run(config, options.rounds, options.threads, memory=True)
            table = results[varied][value]["variants"]
            ours = table["ours_fast"]
            bands = [table[name]["cpu_ratio"] for name in BANDS if table[name]["cpu_ratio"]]
            own = f"{ours['cpu_ratio'] / min(bands):.2f}" if bands else "-"
            print(
                f"{varied:<14}{value:>7}{ours['cpu_s']:>12.3f}{ours['cpu_ratio']:>11.2f}{ours['wall_ratio']:>12.2f}{own:>13}"
                f"{ours['rss_ratio']:>9.2f}{ours['rss_mib']:>7.0f}",
                flush=True,
            )
        options.out.write_text(json.dumps(versions() | {"results": results}, indent=1) + "\n")
    if "classes" in results:
        peaks = {value: found["variants"]["ours_fast"]["rss_mib"] for value, found in results["classes"].items()}
        least, most = min(peaks.values()), max(peaks.values())
        print(f"peak memory over {', '.join(peaks)} classes: {least:.0f} to {most:.0f} MiB ({most / least - 1:.1%} apart)")
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()

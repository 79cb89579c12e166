"""Whole programs side by side: ``python -m benchmarks.beside --rounds 12 [--threads 2] [--small] [--json]``.

Every program of this folder runs in a process of its own, up to the end of an optimizer step, and they take turns in random
order. So a step holds what its library does for it: sampling, microbatches, noise, accounting, the ledger. Sizes of draws vary
under Poisson sampling, which the median evens out. Lines are counted, and epsilons computed from the numbers of all programs.
"""

import argparse
import ast
import contextlib
import difflib
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.against import ROOT, Stepping, turns

FOLDER = Path(__file__).parent
MODELS = ("bert", "gpt2")
LIBRARIES = ("plain", "opacus", "dptrain")
WARM_UP = 6
"""Steps before the first round: they hold the probes at start and the first comparisons."""

WORKER = """
import json, runpy, sys, time, torch
from torch.optim.optimizer import register_optimizer_step_post_hook

torch.set_num_threads(int(sys.argv[2]))
done, begun = 0, None

def behind(*_):
    global done, begun
    done += 1
    if done < int(sys.argv[3]):
        return
    if begun is None:
        print("ready", flush=True)
    else:
        wall, cpu = begun
        print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}), flush=True)
    if not sys.stdin.readline():
        raise SystemExit
    begun = time.perf_counter(), time.process_time()

register_optimizer_step_post_hook(behind)
runpy.run_module(sys.argv[1], run_name="__main__")
"""
"""Runs a program, and stops behind each of its steps until it is told to go on."""


def measured(model: str, rounds: int, threads: int, *, small: bool) -> dict[str, dict[str, Any]]:
    """Returns by library the seconds of the steps of its program, round by round, and its peak memory in MiB."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "BESIDE_SMALL": str(int(small)),
    }
    with contextlib.ExitStack() as stack:
        programs = {}
        for library in LIBRARIES:
            cwd = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-beside-")))
            command = [sys.executable, "-W", "ignore", "-c", WORKER, f"benchmarks.beside.{model}_{library}"]
            programs[library] = Stepping([*command, str(threads), str(WARM_UP)], cwd, environment)
            stack.callback(programs[library].close)
        taken = turns(programs, rounds)
        return {
            library: {clock: [step[clock] for step in steps] for clock in ("cpu", "wall")}
            | {"peak_mib": programs[library].peak_mib()}
            for library, steps in taken.items()
        }


def code_of(model: str, library: str) -> list[str]:
    """Returns the lines of a program that are neither blank nor comments nor its docstring."""
    text = (FOLDER / f"{model}_{library}.py").read_text(encoding="utf-8")
    said = ast.parse(text).body[0].end_lineno or 0
    lines = (line.partition("  # fmt")[0].rstrip() for line in text.splitlines()[said:])
    return [line for line in lines if line and not line.lstrip().startswith("#")]


def lines(model: str, library: str) -> dict[str, int]:
    """Counts the lines of a program, and those that are new beside the program without privacy or gone from it."""
    theirs, ours = code_of(model, "plain"), code_of(model, library)
    found = [line[:2] for line in difflib.ndiff(theirs, ours)]
    return {"lines": len(ours), "new": found.count("+ "), "gone": found.count("- ")}


def epsilons() -> dict[str, float]:
    """Returns epsilon of the numbers that all programs share, by each library's accountants.

    Opacus' are under addition or removal of a record; dptrain's under zero-out, and for a record in the place of another.
    """
    from opacus.accountants import PRVAccountant, RDPAccountant

    from benchmarks.beside import scene
    from ledger import accountants

    rate, steps = scene.BATCH / scene.CONTRIBUTIONS, scene.EPOCHS * scene.CONTRIBUTIONS // scene.BATCH
    found = {}
    for name, make in {"opacus_prv": PRVAccountant, "opacus_rdp": RDPAccountant}.items():
        accountant = make()
        accountant.history = [(scene.MULTIPLIER, rate, steps)]
        found[name] = float(accountant.get_epsilon(scene.DELTA))
    found["dptrain_pld"] = accountants.epsilon(scene.MULTIPLIER, rate, steps, scene.DELTA)
    found["dptrain_pld_replaced"] = accountants.epsilon(scene.MULTIPLIER, rate, steps, scene.DELTA, replace=True)
    return found


def render(found: dict[str, Any]) -> str:
    """One line for each program, and one of epsilons."""
    told = [
        f"{'':<16}{'lines':>6}{'new':>5}{'gone':>5}{'wall s/step':>13}{'range':>15}{'CPU s/step':>12}{'range':>15}{'MiB':>7}"
    ]
    for model in found["steps"]:
        for library, row in found["steps"][model].items():
            counted = found["lines"][model][library]
            cells = "".join(
                f"{statistics.median(row[clock]):>{width}.3f}{f'{min(row[clock]):.3f}..{max(row[clock]):.3f}':>15}"
                for clock, width in (("wall", 13), ("cpu", 12))
            )
            name = f"{model}_{library}"
            told.append(f"{name:<16}{counted['lines']:>6}{counted['new']:>5}{counted['gone']:>5}{cells}{row['peak_mib']:>7.0f}")
    return "\n".join([*told, "epsilon: " + ", ".join(f"{name} {value:.4f}" for name, value in found["epsilons"].items())])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--small", action="store_true", help="models of a few thousand parameters, to see that it runs; epsilons stay"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    found = {
        "rounds": chosen.rounds,
        "threads": chosen.threads,
        "steps": {model: measured(model, chosen.rounds, chosen.threads, small=chosen.small) for model in chosen.only},
        "lines": {model: {library: lines(model, library) for library in LIBRARIES} for model in MODELS},
        "epsilons": epsilons(),
    }
    print(json.dumps(found, indent=1) if chosen.json else render(found))


if __name__ == "__main__":
    main()

"""Compares ways to train LoRA pairs with privacy: along their tangent space, and every baseline in the same loop.

    python -m benchmarks prism --task toy
    python -m benchmarks prism --task sst2 --data DATA
    python -m benchmarks prism --task sst2 --model PATH --device cuda
    python -m benchmarks prism --task shapes
    python -m benchmarks prism --table

Results are added to benchmarks/prism.json; a run that is there already is not done again.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "prism.json"


def main(given: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for."""
    from benchmarks.prism import compare, shapes, tasks, toy
    from benchmarks.prism.arms import ARMS
    from recipes.correlated_noise import Results

    parser = argparse.ArgumentParser(prog="benchmarks prism", description=__doc__.splitlines()[0])
    known = ("toy", "shapes", *tasks.TASKS)
    parser.add_argument("--task", nargs="+", default=[], choices=known, metavar="TASK", help=", ".join(known))
    parser.add_argument("--table", action="store_true", help="print what was measured")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="JSON")
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="as recipes.prepare takes it")
    parser.add_argument("--model", metavar="PATH", help="a folder or a hub name; default: the small model at hand")
    parser.add_argument("--targets", nargs="+", default=[], metavar="NAME", help="modules that have LoRA")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=[], metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(compare.EPSILONS), help="arms choose at the first")
    parser.add_argument("--without", action="store_true", help="train without privacy too")
    parser.add_argument("--starts", nargs="+", choices=("zero", "balanced", "spectral"), default=list(compare.STARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    for name in ("steps", "draws", "contributions", "rank"):
        parser.add_argument(f"--{name}", type=int, help="in the place of the task's")
    options = parser.parse_args(given)
    results = Results(options.results)
    for name in options.task:
        if name == "toy":
            toy.run(results, options.arms or tuple(toy.ALL))
        elif name == "shapes":
            shapes.run(results)
        else:
            said = ("steps", "draws", "contributions", "rank")
            sizes = {key: value for key in said if (value := getattr(options, key)) is not None}
            tasks.TASKS[name] = replace(tasks.TASKS[name], **sizes)
            ready = tasks.ready(name, options.data, options.model, targets=options.targets, device=options.device)
            epsilons = [*options.epsilons, *([None] if options.without else [])]
            compare.run(results, ready, options.arms or tuple(ARMS), epsilons, options.seeds, options.starts)
    if options.table:
        print("\n".join(toy.lines_of(results.rows)), "\n".join(toy.lines_of(results.rows, False)), sep="\n\n")
        for name in dict.fromkeys(row["task"] for row in results.rows if row["part"] == "task"):
            print("", *compare.lines_of(results.rows, name), sep="\n")
        print("", *shapes.lines_of(results.rows), "", *compare.tasks_lines(results.rows), sep="\n")
    return 0

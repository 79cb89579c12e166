"""Measures what plots of InvisibleInk show, writes it as JSON, and draws it.

    python -m benchmarks.ink.plots --world build --data DATA --out benchmarks/ink_plots.json
    python -m benchmarks.ink.plots --world build --data DATA --out benchmarks/ink_plots.json --vocabularies
    python -m benchmarks.ink.plots --draw build/ink-pictures

The first measures, in the topic world and, with DATA, on court cases and stories as well; the second adds k at two
vocabularies, for which a model is trained. The third draws what is in
benchmarks/ink_plots.json and benchmarks/ink.json. References are public texts where a plot says so: what is shown there may
be looked at when numbers are chosen. Sampling is seeded; nothing is private.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from benchmarks.__main__ import versions
from benchmarks.ink import metrics, realworlds, run, topicworld
from benchmarks.ink.baselines import Amin, Choice, Ink, PublicOnly, Step
from benchmarks.ink.real import Bench as RealBench
from benchmarks.ink.run import DELTA, Row
from benchmarks.ink.topicworld import LONGEST, Words
from benchmarks.ink.writer import write
from dptrain.demo import topics
from dptrain.inference import invisibleink as product
from dptrain.planning.figures import DASHES, FAINT, GRID, PALETTE, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / "benchmarks" / "ink_plots.json"
SEEDS: Final = (1, 2, 3)
EPSILONS: Final = (1.0, 3.0, 5.0, 10.0)
TAUS: Final = (0.6, 0.8, 1.0, 1.2, 1.5)
KS: Final = (5, 20, 50, 100)
CLIPS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
BATCHES: Final = (1, 3, 7, 15, 31, 63, 127, 255)
VOCABULARIES: Final = (512, 1024)
EVERY: Final = 1 << 20
"""k that leaves no token out."""


def mean(values: Sequence[float]) -> list[float]:
    """Returns the mean of values and the half width of its 99 % Wald interval."""
    found = metrics.Interval.of(values)
    return [found.mean, found.half if np.isfinite(found.half) else 0.0]


# Without references: tau and k are chosen on public text


def tau_by_k(bench: RealBench, count: int, taus: Sequence[float] = TAUS, ks: Sequence[int] = (*KS, EVERY)) -> list[Row]:
    """Returns MAUVE of public-only texts beside public texts, by temperature and k (figure 2 of the page)."""
    world = bench.world
    texts = [world.decode(world.encode(text)[: world.tokens]) for text in world.public[:count]]
    real = bench.encoder(texts)
    rows = []
    for tau in taus:
        for k in ks:
            prompts = [[world.prompt(None)]] * count
            ids = write(world.model, PublicOnly(tau, k), prompts, world.tokens, world.end, 1).ids
            found = metrics.mauve(real, bench.encoder([world.decode(each) or "." for each in ids]))
            rows.append({"tau": tau, "k": None if k == EVERY else k, "mauve": {str(key): one for key, one in found.items()}})
    return rows


# How far logits spread


@torch.no_grad()
def spread(model: Any, groups: Sequence[tuple[Sequence[list[int]], list[int]]]) -> Row:
    """Returns quantiles of logits, and of their differences to public ones, along public texts (figure 3 of the page).

    Args:
        groups: prompts with public references, the public prompt last, and ids of a public text that follows each of them.
    """
    values: dict[str, list[Any]] = {"phi": [], "difference": []}
    ranges: dict[str, list[float]] = {"phi": [], "difference": []}
    for prompts, text in groups:
        every = [(len(prompt), model(input_ids=torch.tensor([[*prompt, *text]])).logits[0]) for prompt in prompts]
        found = [logits[start - 1 : -1].double().numpy() for start, logits in every]
        for private in found[:-1]:
            for name, rows in (("phi", private - private.max(-1, keepdims=True)), ("difference", private - found[-1])):
                values[name].append(rows.ravel())
                ranges[name] += (rows.max(-1) - rows.min(-1)).tolist()
    at = (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
    return {
        name: {
            "quantiles": dict(zip(map(str, at), np.quantile(np.concatenate(each), at).tolist(), strict=True)),
            "range": float(np.mean(ranges[name])), "deviation": float(np.concatenate(each).std()),
        }
        for name, each in values.items()
    }  # fmt: skip


def topic_groups(count: int, B: int = 7) -> list[tuple[list[list[int]], list[int]]]:
    """Returns groups of `spread` of the topic world, from topics that are public."""
    words, made = Words.of_the_world(), []
    names = [name for name in topics.TOPICS if name not in topics.PRIVATE]
    for place in range(count):
        found = topics.texts(topics.TOPICS[names[place % len(names)]], B + 1, 500 + place)
        made.append(([*map(words.prompt, found[:-1]), words.prompt(None)], [*words.encode(found[-1]), words.end]))
    return made


def real_groups(world: realworlds.World, count: int, B: int = 7) -> list[tuple[list[list[int]], list[int]]]:
    """Returns groups of `spread` of a world of real texts, from public ones."""
    made = []
    for place in range(count):
        found = world.public[place * (B + 1) : (place + 1) * (B + 1)]
        made.append((world.prompts(found[:-1]), world.encode(found[-1])[: world.tokens]))
    return made


# At one epsilon


def topic_row(model: Any, arm: Ink, seeds: Sequence[int] = SEEDS, count: int = 96) -> Row:
    """Returns the share of topic words, the grammar and MAUVE of one arm in the topic world, means and intervals over seeds."""
    found = [run.Bench(model, count).measure(arm, arm.B, seed) for seed in seeds]
    row = {name: mean([each[name] for each in found]) for name in ("share", "grammar")}
    if "mauve" in found[0]:
        row["mauve"] = mean([each["mauve"][5.0] for each in found])
    return row | {"clip": arm.clip, "epsilon": arm.bill().epsilon}


def by_tau(model: Any, **rest: Any) -> list[Row]:
    """Returns utility by temperature at epsilon 10 and B = 7, with k = 100 and with all tokens (figure 8 of the page)."""
    rows = []
    for tau in TAUS:
        for k in (100, EVERY):
            arm = Ink.calibrated(product, 10.0, DELTA, 7, LONGEST, tau=tau, k=k)
            rows.append({"tau": tau, "k": None if k == EVERY else k} | topic_row(model, arm, **rest))
    return rows


def by_clip(model: Any, **rest: Any) -> list[Row]:
    """Returns utility by clip norm at B = 7, with the epsilon that each costs (figure 9 of the page)."""
    return [topic_row(model, Ink(product, C, 7, LONGEST, DELTA, k=EVERY), **rest) for C in CLIPS]


def clip_norms(T: int = 500, tau: float = 1.2) -> list[Row]:
    """Returns the clip norm that each way has by B and epsilon, at the page's T and temperature (figure 9); None is none.

    ``amin`` has the sensitivities of `zero-out`, without screening; ``amin_page`` those of the page; ``amin_screened`` is
    that of the page's table 2: 100 private tokens and a screening, at the page's sensitivities.
    """
    rows = []
    for epsilon in EPSILONS:
        for B in BATCHES:
            ways = {
                "ink": Ink.calibrated(product, epsilon, DELTA, B, T, tau=tau),
                "amin": Amin.calibrated(epsilon, DELTA, B, T, tau=tau, noise=0.0),
                "amin_page": Amin.calibrated(epsilon, DELTA, B, T, tau=tau, noise=0.0, page=True),
                "amin_screened": Amin.calibrated(epsilon, DELTA, B, 100, tau=tau, page=True),
            }
            rows.append({"epsilon": epsilon, "B": B} | {name: arm and arm.clip for name, arm in ways.items()})
    return rows


# What Top-k+ adds


@dataclass(frozen=True)
class Watched(Ink):
    """Remembers of each token which ones the expansion added: strictly below the k-th, and as the page counts, the k-th too."""

    seen: list[list[tuple[int, Any, Any]]] = field(default_factory=list)

    def begin(self, numbers: np.random.Generator) -> Step:
        inner, mine = super().begin(numbers), []
        self.seen.append(mine)

        def step(private: Any, public: Any) -> Choice | None:
            least = np.partition(public, -min(self.k, len(public)))[-min(self.k, len(public))]
            choice = inner(private, public)
            if choice is not None:
                kept = choice.probabilities > 0
                mine.append((int(kept.sum()), kept & (public < least), kept & (public <= least)))
            return choice

        return step

    def counted(self, ids: Sequence[Sequence[int]]) -> Row:
        """Returns the mean size of Top-k+, and how many tokens of a text came from the expansion, by both ways of counting."""
        added = [[sum(bool(one[way][token]) for one, token in zip(mine, text, strict=True)) for mine, text in
                  zip(self.seen, ids, strict=True)] for way in (1, 2)]  # fmt: skip
        sizes = [one[0] for mine in self.seen for one in mine]
        strictly, page = (float(np.mean(each)) for each in added)
        return {"effective_k": float(np.mean(sizes)), "expansion": strictly, "as_the_page": page}


def expansion(model: Any, prompts: Sequence[Any], tokens: int, end: int, ks: Sequence[int], tau: float = 1.2) -> list[Row]:
    """Returns effective k and expansion tokens of a text, by epsilon and k, at B = 7 (table 12 of the page)."""
    rows = []
    for epsilon in EPSILONS:
        for k in ks:
            arm = Watched.calibrated(product, epsilon, DELTA, 7, tokens, tau=tau, k=k)
            ids = write(model, arm, prompts, tokens, end, 1).ids
            rows.append({"epsilon": epsilon, "k": k, "clip": arm.clip} | arm.counted(ids))
    return rows


def by_vocabulary(data: Path, folder: Path, seeds: Sequence[int], count: int = 50) -> list[Row]:
    """Returns utility by k at epsilon 10 and B = 7 on court cases, at two vocabularies of byte pairs (figure 6 of the page).

    MAUVE of 50 texts has two bins, so that it hardly tells them apart; the use of references does.
    """
    rows = []
    for vocabulary in VOCABULARIES:
        size = realworlds.Size(vocabulary=vocabulary)
        world = realworlds.tab(data, folder / ("tab" if size == realworlds.Size() else f"tab-{vocabulary}"), size)
        bench = RealBench(world, count)
        for k in (10, 50, EVERY):
            found = [bench.measure(Ink.calibrated(product, 10.0, DELTA, 7, world.tokens, k=k), 7, seed) for seed in seeds]
            row = {"vocabulary": vocabulary, "k": None if k == EVERY else k, "uses": mean([each["uses"] for each in found])}
            rows.append(row | {f"mauve {key}": mean([each["mauve"][key] for each in found]) for key in metrics.SCALINGS})
    return rows


def measured(world: Path, data: Path | None, count: int = 96, groups: int = 12) -> Iterator[Row]:
    """Yields the figures of plots, more each time; those on real texts only where there are data."""
    model = topicworld.world(world / "ink")
    words, cases = Words.of_the_world(), topicworld.cases(count, 7, 1)
    prompts = [[*map(words.prompt, case.references), words.prompt(None)] for case in cases]
    found: Row = {
        "clip_norms": clip_norms(), "spread": {"topics": spread(model, topic_groups(groups))},
        "expansion": {"topics": expansion(model, prompts, LONGEST, words.end, (10, 50, 100))},
        "tau_by_k": {"topics": tau_by_k(RealBench(_topics(model), count, topicworld.features), count)},
    }  # fmt: skip
    yield found
    found["by_clip"] = by_clip(model, count=count)
    yield found
    found["tau_at_epsilon_10"] = by_tau(model, count=count)
    yield found
    if data is None:
        return
    tab, stories = realworlds.tab(data, world / "tab"), realworlds.stories(data)
    found["spread"] |= {each.name: spread(each.model, real_groups(each, groups)) for each in (tab, stories)}
    some = [tab.prompts(references) for _, references in tab.cases(100, 7, 1)[::3]]
    found["expansion"]["tab"] = expansion(tab.model, some, tab.tokens, tab.end, (10, 100))
    yield found
    found["tau_by_k"]["tab"] = tau_by_k(RealBench(tab, 100), 100, (0.6, 0.8, 1.0, 1.2), (5, 50, EVERY))
    yield found


def _topics(model: Any) -> realworlds.World:
    words = Words.of_the_world()
    return realworlds.World(
        "topics", model, LONGEST, words.end, words.encode, words.decode, lambda ids: words.prompt(None),
        topics.public_texts(400, 77, rare=0.26), {}, [], lambda *_: 0.0,
    )  # fmt: skip


# Pictures


def _axes(figure: "Figure", count: int = 1) -> Any:
    found = figure.subplots(1, count, squeeze=False)[0]
    for axes in found:
        axes.grid(color=GRID, linewidth=0.6)
    return found


def _line(axes: Any, place: int, points: Sequence[tuple[float, list[float] | float]], label: str) -> None:
    across, up = [x for x, _ in points], [y if isinstance(y, list) else [y, 0.0] for _, y in points]
    style = {"color": PALETTE[place % len(PALETTE)], "linestyle": DASHES[place % len(DASHES)], "label": label}
    style |= {"marker": "o", "markersize": 3, "capsize": 2, "linewidth": 1.4}
    axes.errorbar(across, [y for y, _ in up], [half for _, half in up], **style)


def _heat(name: str, figure: "Figure", found: Row) -> None:
    (axes,) = _axes(figure)
    axes.grid(visible=False)
    rows = found["tau_by_k"][name]
    taus, ks = sorted({row["tau"] for row in rows}), list(dict.fromkeys(row["k"] for row in rows))
    table = [[next(r["mauve"]["5.0"] for r in rows if (r["tau"], r["k"]) == (tau, k)) for k in ks] for tau in taus]
    image = axes.imshow(table, origin="lower", aspect="auto", vmin=0, vmax=1, cmap="viridis")
    axes.set_xticks(range(len(ks)), [str(k or "all") for k in ks])
    axes.set_yticks(range(len(taus)), [f"{tau:g}" for tau in taus])
    axes.set(xlabel="k", ylabel="temperature")
    figure.colorbar(image, label="MAUVE, scaling 5, beside public texts")


def _spread(figure: "Figure", found: Row) -> None:
    (axes,) = _axes(figure)
    lines = [(f"{world}, {kind}", one[kind]) for world, one in found["spread"].items() for kind in one]
    for place, (name, each) in enumerate(lines):
        at = each["quantiles"]
        axes.plot([at["0.001"], at["0.999"]], [place, place], color=PALETTE[place % 2], linewidth=1.2)
        axes.plot([at["0.01"], at["0.99"]], [place, place], color=PALETTE[place % 2], linewidth=4)
        axes.plot([at["0.5"]], [place], "o", color=PALETTE[place % 2], mfc="white")
        axes.text(at["0.001"], place + 0.2, name, fontsize=7)
    axes.set_yticks([])
    axes.set(xlabel="logit: phi less its largest, and phi less the public one; 0.1, 1, 50, 99, 99.9 %")


def _by_tau(figure: "Figure", found: Row) -> None:
    for axes, what in zip(_axes(figure, 2), ("share", "mauve"), strict=True):
        for place, k in enumerate((100, None)):
            points = [(row["tau"], row[what]) for row in found["tau_at_epsilon_10"] if row["k"] == k]
            _line(axes, place, points, f"k = {k or 'all'}")
        axes.set(xlabel="temperature", ylabel="topic words on the topic" if what == "share" else "MAUVE, scaling 5")
        axes.legend(frameon=False)


def _by_clip(figure: "Figure", found: Row) -> None:
    (axes,) = _axes(figure)
    for place, what in enumerate(("share", "grammar", "mauve")):
        _line(axes, place, [(row["clip"], row[what]) for row in found["by_clip"]], what)
    axes.set_xscale("log")
    for row in found["by_clip"]:
        axes.text(row["clip"], 1.04, f"{row['epsilon']:.2g}", ha="center", fontsize=6, color=FAINT)
    axes.set(xlabel="C; above: the epsilon that it costs", ylim=(0, 1.1))
    axes.legend(frameon=False)


def _clip_norms(figure: "Figure", found: Row) -> None:
    names = {"ink": "InvisibleInk", "amin": "Amin et al., 2C/B", "amin_screened": "with screening, as published"}
    for axes, epsilon in zip(_axes(figure, len(EPSILONS)), EPSILONS, strict=True):
        for place, (name, label) in enumerate(names.items()):
            rows = [row for row in found["clip_norms"] if row["epsilon"] == epsilon and row[name] is not None]
            _line(axes, place, [(row["B"], row[name]) for row in rows], label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel="B", title=f"epsilon {epsilon:g}", ylim=(5e-3, 60))
    figure.axes[0].set_ylabel("C")
    figure.axes[0].legend(frameon=False, fontsize=7)


def _expansion(figure: "Figure", found: Row) -> None:
    panels = _axes(figure, 2)
    for place, (world, rows) in enumerate(found["expansion"].items()):
        for more, k in enumerate((10, 100)):
            mine = [row for row in rows if row["k"] == k]
            label = f"{world}, k = {k}"
            _line(panels[0], 2 * place + more, [(row["epsilon"], row["effective_k"] / k) for row in mine], label)
            _line(panels[1], 2 * place + more, [(row["epsilon"], row["expansion"]) for row in mine], label)
    panels[0].set(xlabel="epsilon", ylabel="effective k / k")
    panels[1].set(xlabel="epsilon", ylabel="expansion tokens of a text")
    panels[0].legend(frameon=False, fontsize=7)


def _vocabulary(figure: "Figure", found: Row) -> None:
    for axes, what in zip(_axes(figure, 2), ("uses", "mauve 5.0"), strict=True):
        for place, vocabulary in enumerate(sorted({row["vocabulary"] for row in found["by_vocabulary"]})):
            rows = [row for row in found["by_vocabulary"] if row["vocabulary"] == vocabulary]
            _line(axes, place, [(row["k"] or vocabulary, row[what]) for row in rows], f"{vocabulary} tokens")
        axes.set_xscale("log")
        axes.set(xlabel="k (rightmost: all)", ylabel="texts against the state" if what == "uses" else "MAUVE, scaling 5")
        axes.legend(frameon=False)


PICTURES: Final[dict[str, tuple[str, str, Callable[["Figure", Row], None], float]]] = {
    "tau-k-topics": ("tau_by_k", "Public text by temperature and k, topic world", partial(_heat, "topics"), 5.6),
    "tau-k-tab": ("tau_by_k", "Public text by temperature and k, court cases", partial(_heat, "tab"), 5.6),
    "spread": ("spread", "Logits, and what references add to public ones", _spread, 6.4),
    "vocabularies": ("by_vocabulary", "k at two vocabularies, epsilon 10, B = 7", _vocabulary, 8.0),
    "tau": ("tau_at_epsilon_10", "Temperature at epsilon 10, B = 7", _by_tau, 8.0),
    "clip": ("by_clip", "Utility by clip norm, B = 7", _by_clip, 5.6),
    "clip-norms": ("clip_norms", "Clip norm by B, T = 500, temperature 1.2", _clip_norms, 12.0),
    "expansion": ("expansion", "What Top-k+ adds, B = 7", _expansion, 8.0),
}
"""By name: the figures that each needs, title, how it is drawn, width."""


def draw(found: Row, table: Sequence[Row], folder: Path) -> list[Path]:
    """Draws all pictures whose figures are there, and utility against model calls; returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, (needs, title, way, width) in PICTURES.items():
        if needs in found and (not name.endswith("-tab") or "tab" in found[needs]):

            def drawn(figure: "Figure", way: Callable[..., None] = way, width: float = width) -> None:
                figure.set_size_inches(width, 3.6)
                way(figure, found)

            made.append(folder / f"{name}.svg")
            Picture(title, drawn).write(made[-1], [])
    made.append(folder / "compute.svg")
    run.draw(table, made[-1])
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(prog="benchmarks.ink.plots", description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=Path, default=Path("build"), metavar="FOLDER", help="holds the models, or gets them")
    parser.add_argument("--data", type=Path, metavar="DATA", help="as of benchmarks.ink.real; without it the topic world alone")
    parser.add_argument("--out", type=Path, default=Path("bench-ink-plots.json"), metavar="JSON")
    parser.add_argument("--vocabularies", action="store_true", help="k at two vocabularies alone, beside what --out has")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw what is kept, and measure nothing")
    options = parser.parse_args(given)
    if options.draw:
        table = json.loads((ROOT / "benchmarks" / "ink.json").read_text(encoding="utf-8"))["table"]
        print("\n".join(map(str, draw(json.loads(KEPT.read_text(encoding="utf-8")), table, options.draw))))
        return 0
    torch.set_num_threads(1)
    told = versions() | {"command": "python -m benchmarks.ink.plots", "seeds": SEEDS, "delta": DELTA}
    if options.vocabularies:
        kept = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else told
        found = {"by_vocabulary": by_vocabulary(options.data, options.world, SEEDS)}
        options.out.write_text(run.written_out(kept | found), encoding="utf-8")
        return 0
    for found in measured(options.world, options.data):
        options.out.write_text(run.written_out(told | found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Draws the pictures of the docs, each from figures that the project computes: `python -m publish.site.pictures`.

They are kept in docs/pictures/, so that they are seen without a site and without matplotlib. Each holds its figures in a `desc`
element, and a test computes them again. Numbers that are typed here are settings (an epsilon that is asked for, the length of a
run), never results. Pictures have a white ground, so that they are read on light and dark pages.
"""

import base64
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attest.policy import Policy
from dptrain.planning.figures import DASHES, FAINT, GRID, PALETTE, Picture
from dptrain.planning.layout import stack
from dptrain.planning.plan import make_plan
from ledger import accountants, leaves, merkle, tiles
from ledger.views.attacker import FALSE_ALARMS, detection_limit, hits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "pictures"
DELTA: Final = 1e-6
LAYERS: Final = 12

POLICY: Final = """
corpus = "clinic-notes-2026"
delta = 1e-6
steps = 1000
normalizer = 64
window_steps = 8
epoch_steps = 32
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 1.6
sampling_rate = 0.01
depth = { from = 0.75, to = 1.0 }
[[class]]
name = "internal"
clip_norm = 0.5
noise_multiplier = 1.1
sampling_rate = 0.01
depth = { from = 0.5, to = 1.0 }
[[class]]
name = "open"
clip_norm = 0.5
noise_multiplier = 0.7
sampling_rate = 0.01
depth = { from = 0.0, to = 1.0 }
"""
"""An example of three classes, of which the strictest reaches least deep."""

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Drawn:
    """One picture.

    Attributes:
        title: above it. alt: what it shows, for who does not see it; pages say it in the same words.
        figures: computes what is drawn. draw: draws that.
    """

    title: str
    alt: str
    figures: Callable[[], Figures]
    draw: Callable[["Figure", Figures], None]
    width: float = 5.6
    height: float = 3.6

    def write(self, path: Path) -> None:
        """Writes the picture with its figures in it."""
        found = self.figures()

        def draw(figure: "Figure") -> None:
            figure.set_size_inches(self.width, self.height)
            self.draw(figure, found)

        Picture(self.title, draw).write(path, [])
        told = json.dumps(found, sort_keys=True).replace("&", "&amp;").replace("<", "&lt;")
        text = path.read_text(encoding="utf-8").replace("</title>", f"</title><desc>{told}</desc>", 1)
        path.write_text(text, encoding="utf-8")


PICTURES: Final[dict[str, Drawn]] = {}


def picture(name: str, title: str, alt: str, *, size: tuple[float, float] = (5.6, 3.6)) -> Callable[[type], type]:
    """Registers a class with `figures` and `draw` as a picture."""

    def registered(parts: Any) -> Any:
        PICTURES[name] = Drawn(title, alt, parts.figures, parts.draw, *size)
        return parts

    return registered


def _lines(axes: "Axes", x: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
    for place, (name, y) in enumerate(series.items()):
        axes.plot(x, y, color=PALETTE[place % len(PALETTE)], linestyle=DASHES[place % len(DASHES)], label=name, linewidth=1.6)
    axes.grid(color=GRID, linewidth=0.6)
    axes.legend(frameon=False)


def _box(axes: "Axes", x: float, y: float, text: str, *, color: str, width: float, height: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.02,rounding_size=0.12", linewidth=1.2,
        edgecolor=color, facecolor=f"{color}18",
    )  # fmt: skip
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", fontsize=7.6)


def _arrow(axes: "Axes", start: tuple[float, float], end: tuple[float, float], *, color: str = FAINT) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.1})


def _bare(figure: "Figure", width: float, height: float) -> "Axes":
    axes = figure.add_subplot()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.set_axis_off()
    return axes


@picture(
    "epsilon-says",
    "What epsilon says: the best attacker there can be",
    "Share of hits of the best possible attacker against its share of false alarms, for four values of epsilon: near "
    "the diagonal of blind guessing at epsilon 0.5, near certainty at epsilon 8.",
    size=(5.4, 4.6),
)
class EpsilonSays:
    """The region of tests that (epsilon, delta) leaves open (Kairouz, Oh, Viswanath)."""

    @staticmethod
    def figures() -> Figures:
        alarms = [place / 200 for place in range(201)]
        curves = {f"ε = {e:g}": [detection_limit(e, DELTA, share) for share in alarms] for e in (8.0, 3.0, 1.0, 0.5)}
        told = {e: hits(e, DELTA) for e in (0.5, 1.0, 3.0, 8.0)}
        return {"alarms": alarms, "curves": curves, "at": FALSE_ALARMS, "hits": told}

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        axes = figure.add_subplot()
        _lines(axes, found["alarms"], found["curves"])
        axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
        axes.text(0.62, 0.55, "blind guessing", color=FAINT, rotation=38, fontsize=8)
        axes.axvline(found["at"], color=FAINT, linewidth=0.7)
        axes.set_xlabel("false alarms: says “it was in” of an empty contribution")
        axes.set_ylabel("hits, at most")
        axes.legend(frameon=False, loc="lower right")


@picture(
    "accountants",
    "Epsilon over the steps of a run, by accountant",
    "Epsilon against steps up to 4,000 at noise multiplier 1 and sampling rate 0.01: moments above rdp above pld, and"
    " all three grow ever more slowly.",
)
class Accountants:
    """One run, three accountants that need no torch."""

    @staticmethod
    def figures() -> Figures:
        steps = [100, 250, 500, 1000, 1500, 2000, 3000, 4000]
        names = ("moments", "rdp", "pld")
        curves = {name: [accountants.epsilon(1.0, 0.01, t, DELTA, name) for t in steps] for name in names}
        return {"steps": steps, "curves": curves}

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        axes = figure.add_subplot()
        _lines(axes, found["steps"], found["curves"])
        axes.set_xlabel("steps (noise multiplier 1, sampling rate 0.01)")
        axes.set_ylabel("epsilon")
        axes.set_ylim(bottom=0)


@picture(
    "epsilon-noise",
    "Epsilon over noise, by sampling rate",
    "Epsilon of 1,000 steps against the noise multiplier from 0.5 to 4, on a logarithmic scale, for the sampling "
    "rates 0.1, 0.01 and 0.001: more noise and rarer draws both lower it.",
)
class EpsilonNoise:
    """Shows what more noise buys."""

    @staticmethod
    def figures() -> Figures:
        noise = [0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0]
        rates = {"q = 0.1": 0.1, "q = 0.01": 0.01, "q = 0.001": 0.001}
        curves = {name: [accountants.epsilon(z, q, 1000, DELTA) for z in noise] for name, q in rates.items()}
        return {"noise": noise, "curves": curves}

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        axes = figure.add_subplot()
        _lines(axes, found["noise"], found["curves"])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
        axes.set_xlabel("noise multiplier (1,000 steps)")
        axes.set_ylabel("epsilon")


def _planned() -> Any:
    return make_plan(Policy.from_toml(POLICY), LAYERS)


@picture(
    "who-touches-what",
    "Which class may touch which block",
    "A grid of three classes and fourteen blocks, from the embeddings to the head: sensitive touches the last "
    "quarter, internal the upper half, open everything.",
    size=(5.6, 2.2),
)
class WhoTouches:
    """The profile of each class of the example."""

    @staticmethod
    def figures() -> Figures:
        plan = _planned()
        blocks = list(stack(LAYERS))
        return {"blocks": blocks, "classes": {one.name: [block in one.blocks for block in blocks] for one in plan.reaches}}

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        from matplotlib.patches import Rectangle

        axes = figure.add_subplot()
        names = list(found["classes"])
        for row, name in enumerate(names):
            for column, touched in enumerate(found["classes"][name]):
                colour = PALETTE[row] if touched else "#ffffff"
                axes.add_patch(Rectangle((column + 0.05, row + 0.1), 0.9, 0.8, facecolor=colour, edgecolor=GRID))
        axes.set_xlim(0, len(found["blocks"]))
        axes.set_ylim(len(names), 0)
        axes.set_yticks([row + 0.5 for row in range(len(names))], names)
        axes.set_xticks([column + 0.5 for column in range(len(found["blocks"]))], _short(found["blocks"]))
        axes.tick_params(length=0)


def _short(blocks: Sequence[str]) -> list[str]:
    return [{"embeddings": "emb.", "head": "head"}.get(block, block.rpartition(" ")[2].rpartition(".")[2]) for block in blocks]


@picture(
    "noise-per-block",
    "Noise of each block, beside uniform noise",
    "Standard deviation of the noise in each block, as bars: under the policy the lower blocks get less than half of "
    "the noise that uniform training at the strictest class would put there; the top blocks get the same.",
)
class NoisePerBlock:
    """The schedule of the example, and what everybody at the strictest class's bounds would get."""

    @staticmethod
    def figures() -> Figures:
        plan = _planned()
        strictest = max(one.preset.clip_norm * one.preset.noise_multiplier for one in plan.classes)
        policy = {block.name: block.std for block in plan.blocks}
        energy = sum(std**2 for std in policy.values()) / (strictest**2 * len(policy))
        return {"policy": policy, "uniform": strictest, "energy": energy}

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        axes = figure.add_subplot()
        places = range(len(found["policy"]))
        axes.bar(places, [found["uniform"]] * len(places), color="#ffffff", edgecolor=FAINT, width=0.8, label="uniform")
        axes.bar(places, list(found["policy"].values()), color=PALETTE[0], width=0.62, label="this policy")
        axes.set_xticks(list(places), _short(list(found["policy"])))
        axes.set_ylabel("standard deviation on the sum")
        axes.set_xlabel(f"block; noise energy {100 * found['energy']:.0f} % of uniform")
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 1.16), ncols=2)


@picture(
    "way-of-a-contribution",
    "The way of one contribution",
    "Boxes in order: the contributor signs, the gate admits, the window is charged, the step clips, sums "
    "and adds noise, the ledger is exported, the auditor gives a verdict. No arrow leads back.",
    size=(5.0, 3.9),
)
class WayOfAContribution:
    """The rooms that a contribution passes, in order. A test looks whether they are there."""

    @staticmethod
    def figures() -> Figures:
        return {
            "boxes": [
                ["signed", "attest/attestation.py", "contributor"], ["admitted", "attest/gate", "owner"],
                ["charged", "ledger/log", "trainer"], ["clipped, summed,\nnoised", "dptrain/engine/step.py", "trainer"],
                ["exported", "ledger/export.py", "trainer"], ["audited", "ledger/audit", "auditor"],
            ]
        }  # fmt: skip

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        axes = _bare(figure, 6.6, 5.2)
        colours = {"contributor": PALETTE[2], "owner": PALETTE[3], "trainer": PALETTE[0], "auditor": PALETTE[1]}
        for place, (what, room, who) in enumerate(found["boxes"]):
            x, y = 1.1 + 2.2 * (place % 3), 4.0 - 2.5 * (place // 3)
            _box(axes, x, y, what, color=colours[who], width=1.75, height=0.9)
            axes.text(x, y + 0.62, who, ha="center", fontsize=8.5, color=colours[who])
            axes.text(x, y - 0.75, room, ha="center", fontsize=6.6, color=FAINT)
            if place % 3:
                _arrow(axes, (x - 1.32, y), (x - 0.88, y))
        axes.plot([5.5, 5.5, 1.1], [3.0, 2.6, 2.6], color=FAINT, linewidth=1.1)
        _arrow(axes, (1.1, 2.6), (1.1, 2.35))
        axes.text(3.3, 0.2, "the charge reaches the disk before anything is drawn", ha="center", fontsize=8)


VECTORS: Final = ROOT / "tests" / "vectors" / "conformance" / "exports.json"


def _leaves() -> list[bytes]:
    """Returns the first eight leaves of a ledger: the honest export among the conformance vectors, a run of two windows."""
    files = json.loads(VECTORS.read_text(encoding="utf-8"))["honest"][0]["files"]
    (path,) = (name for name in files if name.startswith("tile/entries/"))
    bundle = base64.b64decode(files[path])
    return tiles.split_bundle(bundle, int(path.rpartition("/")[2]))[:8]


@picture(
    "inclusion-proof",
    "Leaf 5 is in the ledger: three hashes show it",
    "A binary tree over eight leaves. The leaf that is proven and its path to the root are blue, the three sibling "
    "hashes that the proof consists of are orange.",
    size=(5.6, 3.6),
)
class InclusionProof:
    """A proof over real leaves, verified before it is drawn."""

    INDEX = 5

    @staticmethod
    def figures() -> Figures:
        made = _leaves()
        proof = merkle.inclusion_proof(made, InclusionProof.INDEX)
        merkle.verify_inclusion(made[InclusionProof.INDEX], InclusionProof.INDEX, len(made), proof, merkle.root(made))
        levels = [[merkle.leaf_hash(leaf) for leaf in made]]
        while len(levels[-1]) > 1:
            below = levels[-1]
            levels.append([merkle.node_hash(left, right) for left, right in zip(below[::2], below[1::2], strict=True)])
        assert levels[-1][0] == merkle.root(made)
        kinds = [type(leaves.decode_leaf(leaf)).__name__.upper() for leaf in made]
        return {
            "kinds": kinds, "levels": [[node.hex()[:6] for node in level] for level in levels],
            "proof": [node.hex()[:6] for node in proof], "index": InclusionProof.INDEX,
        }  # fmt: skip

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        axes = _bare(figure, 8, 4.6)
        levels = found["levels"]
        for height, level in enumerate(levels):
            span = 8 / len(level)
            for place, name in enumerate(level):
                x, y = span * (place + 0.5), 1.0 + height * 1.0
                on_path = place == found["index"] >> height
                colour = PALETTE[0] if on_path else PALETTE[1] if name in found["proof"] else FAINT
                if height:
                    for child in (2 * place, 2 * place + 1):
                        axes.plot([x, span / 2 * (child + 0.5)], [y - 0.22, y - 0.78], color=GRID, linewidth=1.0, zorder=0)
                _box(axes, x, y, name, color=colour, width=0.84, height=0.42)
        for place, kind in enumerate(found["kinds"]):
            axes.text(place + 0.5, 0.5, f"{place}\n{kind}", ha="center", va="center", fontsize=7, color=FAINT)
        axes.text(4.6, 4.0, "root, in the signed checkpoint", fontsize=8, va="center")


@picture(
    "charge-before-draw",
    "A window is paid for before it is drawn",
    "A line of time: CHARGE of steps 1 to 8 is written and durable, then eight steps are drawn and released, then "
    "SETTLE; then the CHARGE of steps 9 to 16. A crash in the middle leaves steps charged that did not run.",
    size=(5.4, 2.4),
)
class ChargeBeforeDraw:
    """The leaves of the first two windows of the example, by its own window."""

    @staticmethod
    def figures() -> Figures:
        policy = Policy.from_toml(POLICY)
        kinds = {kind.__name__.upper(): kind.KIND for kind in (leaves.Charge, leaves.Settle, leaves.Epoch)}
        return {"window": policy.window_steps, "kinds": kinds}

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        length = found["window"]
        axes = _bare(figure, length + 5.6, 3.4)
        axes.annotate("", (length + 5.5, 1.0), (0, 1.0), arrowprops={"arrowstyle": "-|>", "color": FAINT})
        charges = [f"CHARGE\n{first}–{first + length - 1}" for first in (1, length + 1)]
        boxes = ((1.0, charges[0], 1), (length + 2.75, "SETTLE", 2), (length + 4.6, charges[1], 1))
        for x, told, colour in boxes:
            _box(axes, x, 1.8, told, color=PALETTE[colour], width=1.6, height=0.9)
            _arrow(axes, (x, 1.32), (x, 1.02), color=PALETTE[colour])
        for step in range(length):
            axes.plot([2.4 + step * 0.95] * 2, [0.8, 1.25], color=PALETTE[0], linewidth=2.4)
            axes.text(2.4 + step * 0.95, 0.4, str(1 + step), ha="center", fontsize=7, color=FAINT)
        axes.text(0.2, 2.75, "A crash can leave steps that are paid for and never ran, and none that ran unpaid.", fontsize=7.4)


@picture(
    "correlated-noise",
    "Error of the running sum at equal epsilon",
    "Root mean square error of the sum of all steps so far against the step, for one participation in 512 steps: "
    "independent noise grows to several times the error of noise with 16 bands and of the square root.",
)
class CorrelatedNoise:
    """Strategies of one sensitivity, so that their errors may be compared."""

    @staticmethod
    def figures() -> Figures:
        import numpy as np

        from dptrain.noise.correlated import toeplitz

        n = 512
        columns = {
            "independent": np.array([1.0]),
            "16 bands": toeplitz.optimal_coefficients(n, 16),
            "square root": toeplitz.square_root(n),
        }
        curves = {}
        for name, column in columns.items():
            whole = np.zeros(n)
            whole[: len(column)] = column
            norm = float(np.linalg.norm(whole))  # sensitivity at one participation: the largest column is the first
            rows = np.cumsum(toeplitz.inverse(whole, n))
            curves[name] = [norm * float(np.sqrt((rows[: t + 1] ** 2).sum())) for t in range(0, n, 8)]
        return {"steps": [t + 1 for t in range(0, n, 8)], "curves": curves}

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        axes = figure.add_subplot()
        _lines(axes, found["steps"], found["curves"])
        axes.set_xlabel("step")
        axes.set_ylabel("error of the sum so far, in noise multipliers")
        axes.set_ylim(bottom=0)


@picture(
    "geometry-lead",
    "Lead of the tangent geometry over the best other arm",
    "Lead of the better tangent arm over the best other against epsilon, on two tasks.",
)
class GeometryLead:
    """Means over seeds, tuned alike (`benchmarks/prism.json`), with the spread of the two arms together."""

    @staticmethod
    def figures() -> Figures:
        from benchmarks.prism.arms import OURS
        from recipes.correlated_noise import SELECTING

        rows = json.loads((ROOT / "benchmarks" / "prism.json").read_text(encoding="utf-8"))
        found: dict[str, Any] = {}
        for task in ("digits", "sst2"):
            own = [row for row in rows if row["part"] == "task" and row["task"] == task and row["seed"] != SELECTING]
            for epsilon in sorted({row["epsilon"] for row in own if row["epsilon"] is not None}):
                arms: dict[str, list[float]] = {}
                for row in own:
                    if row["epsilon"] == epsilon:
                        arms.setdefault(row["arm"], []).append(100.0 * row["reporting"])
                several = {name: values for name, values in arms.items() if len(values) > 1}
                best = [
                    max((values for name, values in several.items() if (name in OURS) is ours), key=statistics.mean)
                    for ours in (True, False)
                ]
                lead = statistics.mean(best[0]) - statistics.mean(best[1])
                found.setdefault(task, []).append([epsilon, lead, math.hypot(*map(statistics.stdev, best))])
        return found

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        axes = figure.add_subplot()
        for place, (task, points) in enumerate(found.items()):
            epsilons, leads, spreads = zip(*points, strict=True)
            moved = [epsilon * (1.0 + 0.02 * place) for epsilon in epsilons]
            axes.errorbar(moved, leads, spreads, color=PALETTE[place], marker="o", capsize=3, linewidth=1.4, label=task)
        axes.axhline(0.0, color=FAINT, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks([1, 3, 6], ["1", "3", "6"])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("epsilon, delta 1e-5")
        axes.set_ylabel("points of accuracy")
        axes.grid(color=GRID, linewidth=0.6)
        axes.legend(frameon=False)


@picture(
    "ink-compute",
    "Topic words on the references' topic, by model calls a token",
    "Share of topic words against model calls a token in the topic world, at epsilon 1, 3 and 10, for InvisibleInk and Amin et"
    " al.: at epsilon 3 the share of 0.6 takes 16 calls against 63, at epsilon 10 the share of 0.85 takes 8 against 27.",
)
class InkCompute:
    """Means over seeds (`benchmarks/ink.json`), every arm with its true constants; hollow where grammar is below .98."""

    @staticmethod
    def figures() -> Figures:
        table = json.loads((ROOT / "benchmarks" / "ink.json").read_text(encoding="utf-8"))["table"]
        found: dict[str, Any] = {}
        for row in table:
            if row["arm"] in ("ink", "amin") and row["epsilon"] and "infeasible" not in row:
                calls = row["B"] + (row["arm"] == "ink")
                found.setdefault(f"{row['arm']} {row['epsilon']:g}", []).append([calls, row["share"], row["grammar"] > 0.98])
        return found

    @staticmethod
    def draw(figure: "Figure", found: Figures) -> None:
        axes = figure.add_subplot()
        names = {"ink": "InvisibleInk", "amin": "Amin et al."}
        for name, points in found.items():
            way, epsilon = name.split()
            style = {"color": PALETTE[["1", "3", "10"].index(epsilon)], "linestyle": DASHES[way == "amin"]}
            x, y, good = zip(*points, strict=True)
            axes.plot(x, y, linewidth=1.4, label=f"{names[way]}, ε = {epsilon}", **style)
            for one, other, full in zip(x, y, good, strict=True):
                axes.plot([one], [other], "o", color=style["color"], mfc=style["color"] if full else "white", markersize=4)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("model calls a token; hollow: grammar below 0.98")
        axes.set_ylabel("share")
        axes.grid(color=GRID, linewidth=0.6)
        axes.legend(frameon=False, fontsize=7)


def figures_in(path: Path) -> Figures:
    """Returns the figures that a picture holds."""
    from xml.etree import ElementTree

    found = ElementTree.parse(path).getroot().find("{http://www.w3.org/2000/svg}desc")
    if found is None or not found.text:
        raise ValueError(f"{path.name} holds no figures; make it again: python -m publish.site.pictures")
    told: Figures = json.loads(found.text)
    return told


def like(found: Any, other: Any) -> bool:
    """Returns whether two sets of figures are equal, numbers to seven digits: far below the width of a line.

    Processors round the sums behind an epsilon in ways of their own, which showed in the ninth digit.
    """
    if isinstance(found, Mapping) and isinstance(other, Mapping):
        first, second = ({str(key): value for key, value in one.items()} for one in (found, other))
        return first.keys() == second.keys() and all(like(value, second[key]) for key, value in first.items())
    if isinstance(found, list | tuple) and isinstance(other, list | tuple):
        return len(found) == len(other) and all(map(like, found, other))
    if isinstance(found, float) or isinstance(other, float):
        return math.isclose(found, other, rel_tol=1e-7, abs_tol=1e-12)
    return bool(found == other)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, one in PICTURES.items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            one.write(FOLDER / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())

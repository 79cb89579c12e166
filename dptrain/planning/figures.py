"""Draws a plan, and epsilon over steps or delta, to files: SVG, PNG, or a page of HTML, by matplotlib (the extra `plot`)."""

import importlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment
from markupsafe import Markup, escape

from attest.files import atomic_write
from attest.schema.plain import visible
from attest.schema.rounding import rounded_up
from dptrain.errors import ConfigError
from dptrain.planning.layout import stack
from dptrain.planning.picture import promise
from dptrain.planning.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".html", ".png")

PALETTE = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b58900", "#2aa198", "#6c6f7f", "#ad3e76")
"""Colours of series; each line differs in its dashes too."""

DASHES = ("-", "--", ":", "-.")

FAINT, GRID = "#5c6370", "#d8dbe2"

TABLES = list[tuple[str, list[list[str]]]]
"""Captions, each with the rows of its table, the first row its head."""

_STYLE = {
    "text.parse_math": False,  # a name from a policy must not be typeset as a formula
    "svg.fonttype": "none",
    "svg.hashsalt": "dptrain",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MOST_LABELS = 16

_PAGE = Environment(autoescape=True, trim_blocks=True).from_string("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1f2430}
svg{max-width:100%;height:auto}table{border-collapse:collapse;margin:1.5rem 0}
caption{text-align:left;font-weight:bold;padding-bottom:.4rem}
th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #d8dbe2}
th:first-child,td:first-child{text-align:left}
</style></head><body>
<h1>{{ title }}</h1>
<figure role="img" aria-label="{{ title }}">{{ svg }}</figure>
{% for caption, rows in tables %}
<table><caption>{{ caption }}</caption>
<thead><tr>{% for cell in rows[0] %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows[1:] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table>
{% endfor %}
</body></html>
""")


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure that is drawn when it is written."""

    title: str
    draw: Callable[["Figure"], None]

    def write(self, path: Path, tables: TABLES) -> None:
        """Writes the figure in the form that the suffix of the file says; a page has its numbers as tables too.

        Raises:
            ConfigError: Code PLOT_EXTRA_MISSING without matplotlib.
        """
        with _matplotlib().rc_context(_STYLE):
            figure = importlib.import_module("matplotlib.figure").Figure(layout="constrained")
            figure.suptitle(visible(self.title), x=0.02, ha="left", weight="bold", size=12)
            self.draw(figure)
            image = io.BytesIO()
            if path.suffix == ".png":
                figure.savefig(image, format="png", dpi=160, bbox_inches="tight")
                atomic_write(path, image.getvalue())
                return
            metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(image, format="svg", bbox_inches="tight", metadata=metadata)
        # Without the declaration of a document type, which points to a page elsewhere.
        attributes, _, rest = image.getvalue().decode().partition("<svg")[2].partition(">")
        svg = f"<svg{attributes}><title>{escape(visible(self.title))}</title>{rest}"
        if path.suffix == ".html":
            told = [(visible(caption), [list(map(visible, row)) for row in rows]) for caption, rows in tables]
            atomic_write(path, _PAGE.render(title=visible(self.title), svg=Markup(svg), tables=told).encode())
        else:
            atomic_write(path, svg.encode())


def require_matplotlib() -> None:
    """Says what to install before anything is computed, if no file can be drawn here.

    Raises:
        ConfigError: Code PLOT_EXTRA_MISSING.
    """
    _matplotlib()


def _matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(
            "PLOT_EXTRA_MISSING",
            "figures are drawn by matplotlib, which is not installed; run: pip install 'dptrain[plot]', or leave out --plot",
        ) from error


def plan_figure(plan: Plan, title: str, terms: str) -> Picture:
    """Draws a bar per class over the blocks that it may touch, what it gets beside it, and the noise of every block below.

    Blocks that are bound to names or adapters have no place in the stack before a model is seen, and stand to the right of it.

    Args:
        plan: The plan.
        title: Of the figure.
        terms: What every epsilon is about: delta, accountant, adjacency.
    """
    known = stack(plan.layers)
    names = [*known, *(block.name for block in plan.blocks if block.name not in known)]

    def draw(figure: "Figure") -> None:
        heights = [0.32 * len(plan.reaches), 0.9, *([0.9] if len(plan.phases) > 1 else [])]
        figure.set_size_inches(8.0, sum(heights) + 1.2)
        bars, noise, *phases = figure.subplots(len(heights), 1, height_ratios=heights)
        bars.set_title(f"{visible(terms)}; input on the left, output on the right", loc="left", size=8, color=FAINT)
        _draw_reaches(bars, plan, names)
        _draw_noise(noise, plan, names)
        for axes in phases:
            edges = [phase.first_step for phase in plan.phases]
            edges.append(edges[-1] + plan.phases[-1].steps)
            axes.stairs([phase.scale for phase in plan.phases], edges, fill=True, color=FAINT)
            axes.set(xlim=(1, edges[-1]), xlabel="step", ylabel="times the noise")
            axes.locator_params("x", integer=True)

    return Picture(title, draw)


def _draw_reaches(axes: "Axes", plan: Plan, names: Sequence[str]) -> None:
    """Draws who may touch which blocks; each bar has the id `class/block`."""
    public = {item.name for item in plan.public}
    for row, reach in enumerate(plan.reaches):
        places = [place + 0.04 for place, block in enumerate(names) if block in reach.blocks]
        colour, alpha = PALETTE[row % len(PALETTE)], 0.35 if reach.name in public else 1.0
        bars = axes.barh([row] * len(places), 0.92, 0.7, places, color=colour, alpha=alpha, snap=False)
        for bar, block in zip(bars, filter(set(reach.blocks).__contains__, names), strict=True):
            bar.set_gid(visible(f"{reach.name}/{block}"))
        told = promise(plan, reach.name, "ε", "public: nothing is promised")
        axes.text(1.02, row, told, va="center", transform=axes.get_yaxis_transform())
    axes.set(xlim=(0, len(names)), ylim=(len(plan.reaches) - 0.5, -0.5), xticks=[])
    axes.set_yticks(range(len(plan.reaches)), [visible(reach.name) for reach in plan.reaches], weight="bold")


def _draw_noise(axes: "Axes", plan: Plan, names: Sequence[str]) -> None:
    """Draws the noise of every block; each bar has the id `noise/block`."""
    stds = {block.name: block.std for block in plan.blocks}
    most = max(stds.values())
    bars = axes.bar([place + 0.5 for place in range(len(names))], [stds.get(block, 0.0) for block in names], 0.8, color=FAINT)
    for bar, block in zip(bars, names, strict=True):
        bar.set_gid(visible(f"noise/{block}"))
    every = max(1, -(-len(names) // _MOST_LABELS))
    shown = [place for place, block in enumerate(names) if place % every == 0 or block == "head"]
    short = {"embeddings": "E", "head": "H"}
    labels = [short.get(names[place], visible(names[place].removeprefix("layer."))[:12]) for place in shown]
    axes.set_xticks([place + 0.5 for place in shown], labels)
    axes.set(xlim=(0, len(names)), ylim=(0, most * 1.1 or 1.0), ylabel="noise")
    axes.text(1.02, 0, f"std up to {most:.4g} on the sum of a step", transform=axes.get_yaxis_transform())


def plan_tables(plan: Plan, terms: str) -> TABLES:
    """Returns the numbers of a plan's figure."""
    head = ["class", "clip norm", "noise multiplier", "z", "epsilon", "content replaced", "all redone", "draws of each"]
    classes = [
        [
            item.name,
            f"{item.preset.clip_norm:g}",
            f"{item.preset.noise_multiplier:g}",
            f"{item.preset.effective_multiplier:.4g}",
            *map(rounded_up, (item.preset.epsilon, item.preset.epsilon_replace, item.preset.epsilon_with_redo)),
            f"{item.expected_draws:.4g} ({item.draws.low} to {item.draws.high})",
        ]
        for item in plan.classes
    ]
    classes += [[item.name, *["public"] * 6, f"{item.expected_draws:.4g}"] for item in plan.public]
    blocks = [[item.name, f"{item.std:.4g}" if item.std else "none", ", ".join(item.classes)] for item in plan.blocks]
    phases = [[f"{phase.first_step:,}", f"{phase.steps:,}", f"{phase.scale:g}"] for phase in plan.phases]
    return [
        (f"Classes: {terms}", [head, *classes]),
        ("Noise on the sum of clipped gradients", [["block", "standard deviation", "classes"], *blocks]),
        ("Phases of the noise", [["from step", "steps", "times the noise"], *phases]),
    ]


def curve_figure(
    xs: Sequence[float], series: Mapping[str, Sequence[float]], *, title: str, x_label: str, y_label: str
) -> Picture:
    """Draws lines over a logarithmic abscissa; values that are not finite are left out.

    Args:
        xs: Ascending, above 0.
        series: Values per name, one per abscissa.
        title: Of the figure.
        x_label: What the abscissa is.
        y_label: What the lines show.
    """

    def draw(figure: "Figure") -> None:
        figure.set_size_inches(7.0, 4.4)
        axes = figure.subplots()
        for place, (name, values) in enumerate(series.items()):
            points = [(x, y) for x, y in zip(xs, values, strict=True) if math.isfinite(y)]
            mark = "o" if len(points) == 1 else None
            style = {"color": PALETTE[place % len(PALETTE)], "linestyle": DASHES[place % len(DASHES)], "marker": mark}
            axes.plot([x for x, _ in points], [y for _, y in points], label=name, **style)
        axes.set(xscale="log", xlabel=x_label, ylabel=y_label)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}" if xs[-1] < 20 * xs[0] else "")
        axes.grid(color=GRID)
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)

    return Picture(title, draw)

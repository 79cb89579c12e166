"""Draw the curves of a plan, as SVG, as a page of HTML, or as PNG through matplotlib (the extra `plot`)."""

import importlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import ModuleType

from attest.files import atomic_write
from dptrain.errors import ConfigError
from dptrain.planning.layout import stack
from dptrain.planning.plan import PhasePlan, Plan
from dptrain.planning.rounding import rounded_up

SUFFIXES = (".svg", ".html", ".png")

PALETTE = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b58900", "#2aa198", "#6c6f7f", "#ad3e76")
"""Colours of series; each line differs in its dashes too."""

DASHES = ("", "7 4", "2 3", "9 3 2 3")

INK, FAINT, GRID, PAPER = "#1f2430", "#5c6370", "#d8dbe2", "#ffffff"

_FONT = "system-ui, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle; `opacity` tells more noise from less where colour does not."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    opacity: float = 1.0
    title: str = ""


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str = INK
    width: float = 1.0
    dash: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """Text with its baseline at (x, y)."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: float = 12.0
    colour: str = INK
    bold: bool = False
    upright: bool = False


@dataclass(slots=True)
class Canvas:
    """Items in the order in which they are drawn; y grows downwards, units are pixels."""

    width: float
    height: float
    title: str
    items: list[Rect | Stroke | Words] = field(default_factory=list)

    def add(self, *items: Rect | Stroke | Words) -> None:
        """Draws over what is there."""
        self.items += items

    def svg(self) -> str:
        """The drawing as an SVG document that can stand alone or inside a page."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" '
            f'height="{self.height:g}" role="img" aria-label="{escape(self.title)}" font-family="{_FONT}">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="{self.width:g}" height="{self.height:g}" fill="{PAPER}"/>',
        ]
        return "\n".join([*parts, *map(_svg, self.items), "</svg>"]) + "\n"

    def html(self, tables: Sequence[tuple[str, Sequence[Sequence[str]]]] = ()) -> str:
        """A page with the drawing and its figures as tables, which also those read who see no drawing.

        Args:
            tables: Caption and rows of each, the first row its head.
        """
        body = [f"<h1>{escape(self.title)}</h1>", self.svg()]
        for caption, (head, *rows) in tables:
            cells = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
            lines = ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
            body.append(
                f"<table><caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
            )
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f"<style>{_CSS}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
        )

    def write(self, path: Path, tables: Sequence[tuple[str, Sequence[Sequence[str]]]] = ()) -> None:
        """Writes the drawing in the form that the suffix of the file says.

        Raises:
            ConfigError: Code PLOT_EXTRA_MISSING for a .png without matplotlib.
        """
        if path.suffix == ".png":
            atomic_write(path, self._png())
            return
        text = self.html(tables) if path.suffix == ".html" else self.svg()
        atomic_write(path, text.encode())

    def _png(self) -> bytes:
        figures, patches = _matplotlib("figure"), _matplotlib("patches")
        inch = 100.0
        figure = figures.Figure(figsize=(self.width / inch, self.height / inch), dpi=2 * inch, facecolor=PAPER)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.height, 0)
        axes.set_axis_off()
        for order, item in enumerate(self.items):
            if isinstance(item, Rect):
                patch = patches.Rectangle(
                    (item.x, item.y), item.width, item.height, color=item.fill, alpha=item.opacity, linewidth=0, zorder=order
                )
                axes.add_patch(patch)
            elif isinstance(item, Stroke):
                xs, ys = zip(*item.points, strict=True)
                dashes = tuple(float(length) * 0.72 / item.width for length in item.dash.split())
                style = (0, dashes) if dashes else "solid"
                axes.plot(xs, ys, color=item.colour, linewidth=item.width * 0.72, linestyle=style, zorder=order)
            else:
                axes.text(
                    item.x, item.y, item.text, parse_math=False, fontsize=item.size * 0.72, color=item.colour, zorder=order,
                    ha={"start": "left", "middle": "center", "end": "right"}[item.anchor], va="baseline",
                    fontweight="bold" if item.bold else "normal", rotation=90 if item.upright else 0,
                )  # fmt: skip
        image = io.BytesIO()
        figure.savefig(image, format="png")
        return image.getvalue()


def require_matplotlib(path: Path) -> None:
    """Says what to install before anything is computed, if a file cannot be drawn here.

    Raises:
        ConfigError: Code PLOT_EXTRA_MISSING.
    """
    if path.suffix == ".png":
        _matplotlib("figure")


def _matplotlib(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"matplotlib.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(
            "PLOT_EXTRA_MISSING",
            "a .png is drawn by matplotlib, which is not installed; run: pip install 'dptrain[plot]', or name a .svg or .html",
        ) from error


def _svg(item: Rect | Stroke | Words) -> str:
    if isinstance(item, Rect):
        shade = f' fill-opacity="{item.opacity:.3g}"' if item.opacity < 1 else ""
        box = f'x="{item.x:.1f}" y="{item.y:.1f}" width="{item.width:.1f}" height="{item.height:.1f}" fill="{item.fill}"{shade}'
        return f"<rect {box}><title>{escape(item.title)}</title></rect>" if item.title else f"<rect {box}/>"
    if isinstance(item, Stroke):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in item.points)
        dash = f' stroke-dasharray="{item.dash}"' if item.dash else ""
        return f'<polyline points="{points}" fill="none" stroke="{item.colour}" stroke-width="{item.width:g}"{dash}/>'
    weight = ' font-weight="bold"' if item.bold else ""
    turned = f' transform="rotate(-90 {item.x:.1f} {item.y:.1f})"' if item.upright else ""
    place = f'x="{item.x:.1f}" y="{item.y:.1f}" font-size="{item.size:g}" text-anchor="{item.anchor}" fill="{item.colour}"'
    return f"<text {place}{weight}{turned}>{escape(item.text)}</text>"


_CSS = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1f2430}"
    "svg{max-width:100%;height:auto}table{border-collapse:collapse;margin:1.5rem 0}"
    "caption{text-align:left;font-weight:bold;padding-bottom:.4rem}"
    "th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #d8dbe2}"
    "th:first-child,td:first-child{text-align:left}"
)


_WIDTH = 860.0
_LEFT, _STACK, _ROW, _TOP, _NOISE = 130.0, 440.0, 34.0, 76.0, 90.0
_MOST_LABELS = 16


def plan_figure(plan: Plan, title: str, terms: str) -> Canvas:
    """A bar per class over the blocks that it may touch, what it gets beside it, and the noise of every block below.

    Blocks that are bound to names or adapters have no place in the stack before a model is seen, and stand to the right of it.

    Args:
        terms: What every epsilon is about: delta, accountant, adjacency.
    """
    known = stack(plan.layers)
    others = [block.name for block in plan.blocks if block.name not in known]
    names = [*known, *others]
    rows = len(plan.reaches)
    floor = _TOP + rows * _ROW + _NOISE + 24
    phases = 150.0 if len(plan.phases) > 1 else 0.0
    canvas = Canvas(_WIDTH, floor + 40 + phases, title)
    cell = _STACK / len(names)
    canvas.add(Words(16, 28, title, size=17, bold=True))
    told = f"{terms}; input on the left, output on the right; a bar is what contributions of a class may touch"
    canvas.add(Words(16, 48, told, colour=FAINT))
    for row, reach in enumerate(plan.reaches):
        y, colour = _TOP + row * _ROW, PALETTE[row % len(PALETTE)]
        public = reach.name in {item.name for item in plan.public}
        canvas.add(Words(_LEFT - 10, y + 19, reach.name, anchor="end", bold=True))
        canvas.add(Rect(_LEFT, y + 4, _STACK, _ROW - 10, GRID, 0.45))
        for index, name in enumerate(names):
            if name in reach.blocks:
                gap = min(1.5, cell / 6)
                canvas.add(
                    Rect(_LEFT + index * cell + gap / 2, y + 4, cell - gap, _ROW - 10, colour, 0.35 if public else 1.0, name)
                )
        canvas.add(Words(_LEFT + _STACK + 14, y + 19, _promise(plan, reach.name), colour=INK, size=11.5))
    _noise_bars(canvas, plan, names, cell, _TOP + rows * _ROW + 12, floor)
    if phases:
        _phase_bars(canvas, plan.phases, floor + 52, floor + phases)
    return canvas


def plan_tables(plan: Plan, terms: str) -> list[tuple[str, list[list[str]]]]:
    """The figures of the plan's picture."""
    head = ["class", "clip norm", "noise multiplier", "z", "epsilon", "content replaced", "all redone", "draws of each"]
    classes = [
        [
            item.name,
            f"{item.preset.clip_norm:g}",
            f"{item.preset.noise_multiplier:g}",
            f"{item.preset.effective_multiplier:.4g}",
            rounded_up(item.preset.epsilon),
            rounded_up(item.preset.epsilon_replace),
            rounded_up(item.preset.epsilon_with_redo),
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
) -> Canvas:
    """Lines over a logarithmic abscissa; values that are not finite are left out.

    Args:
        xs: Ascending, above 0. series: Values per name, one per abscissa.
    """
    canvas = Canvas(760.0, 460.0, title)
    left, right, top, bottom = 70.0, 560.0, 60.0, 400.0
    finite = [value for values in series.values() for value in values if math.isfinite(value)]
    high = max(finite, default=1.0) or 1.0
    y_ticks = _ticks(high)
    low_x, high_x = math.log10(xs[0]), math.log10(xs[-1]) if xs[-1] > xs[0] else math.log10(xs[0]) + 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low_x) / (high_x - low_x)
        return left + (right - left) * across, bottom - (bottom - top) * y / y_ticks[-1]

    canvas.add(Words(16, 28, title, size=16, bold=True))
    for tick in y_ticks:
        y = at(xs[0], tick)[1]
        canvas.add(Stroke(((left, y), (right, y)), GRID))
        canvas.add(Words(left - 8, y + 4, f"{tick:g}", anchor="end", size=11, colour=FAINT))
    for exponent in range(math.ceil(low_x - 1e-9), math.floor(high_x + 1e-9) + 1):
        x = at(10.0**exponent, 0)[0]
        canvas.add(Stroke(((x, top), (x, bottom)), GRID))
        canvas.add(Words(x, bottom + 18, f"1e{exponent}", anchor="middle", size=11, colour=FAINT))
    canvas.add(Words((left + right) / 2, bottom + 42, x_label, anchor="middle"))
    canvas.add(Words(18, (top + bottom) / 2, y_label, anchor="middle", upright=True))
    label_y = top - 16.0
    ends = []
    for place, (name, values) in enumerate(series.items()):
        points = tuple(at(x, y) for x, y in zip(xs, values, strict=True) if math.isfinite(y))
        if len(points) > 1:
            canvas.add(Stroke(points, PALETTE[place % len(PALETTE)], 2.0, DASHES[place % len(DASHES)]))
        if points:
            ends.append((points[-1][1], place, name))
    for y, place, name in sorted(ends):
        label_y = max(y + 4, label_y + 16)
        canvas.add(Words(right + 12, label_y, name, colour=PALETTE[place % len(PALETTE)], bold=True))
    return canvas


def _promise(plan: Plan, name: str) -> str:
    found = next((item.preset for item in plan.classes if item.name == name), None)
    if found is None:
        return "public: nothing is promised"
    return (
        f"clip {found.clip_norm:.4g}, z {found.effective_multiplier:.4g}, ε {rounded_up(found.epsilon, 3)}"
        f" ({rounded_up(found.epsilon_replace, 3)} replaced)"
    )


def _noise_bars(canvas: Canvas, plan: Plan, names: Sequence[str], cell: float, top: float, floor: float) -> None:
    stds = {block.name: block.std for block in plan.blocks}
    most = max(stds.values())
    canvas.add(Words(_LEFT - 10, (top + floor) / 2, "noise", anchor="end", bold=True))
    every = max(1, -(-len(names) // _MOST_LABELS))
    for index, name in enumerate(names):
        std = stds.get(name, 0.0)
        height = (floor - top - 14) * std / most if most else 0.0
        x = _LEFT + index * cell
        if height:
            canvas.add(Rect(x + cell * 0.1, floor - height, cell * 0.8, height, FAINT, 0.8, f"{name}: {std:.4g}"))
        if index % every == 0 or name == "head":
            label = {"embeddings": "E", "head": "H"}.get(name, name.removeprefix("layer."))
            canvas.add(Words(x + cell / 2, floor + 16, label[:12], anchor="middle", size=10.5, colour=FAINT))
    canvas.add(Stroke(((_LEFT, floor), (_LEFT + _STACK, floor)), INK))
    canvas.add(Words(_LEFT + _STACK + 14, floor - 4, f"std up to {most:.4g} on the sum of a step", size=11.5, colour=FAINT))


def _phase_bars(canvas: Canvas, phases: Sequence[PhasePlan], top: float, floor: float) -> None:
    steps, most = sum(phase.steps for phase in phases), max(phase.scale for phase in phases)
    canvas.add(Words(_LEFT - 10, (top + floor) / 2 - 8, "over steps", anchor="end", bold=True))
    for phase in phases:
        x, width = _LEFT + _STACK * (phase.first_step - 1) / steps, _STACK * phase.steps / steps
        height = (floor - top - 34) * phase.scale / most
        canvas.add(Rect(x, floor - 20 - height, max(width - 0.5, 0.5), height, FAINT, 0.8, f"from step {phase.first_step}"))
        if width > 30:
            canvas.add(Words(x + width / 2, floor - 24 - height, f"×{phase.scale:g}", anchor="middle", size=10.5))
    for step, place in ((1, "start"), (steps, "end")):
        x = _LEFT if place == "start" else _LEFT + _STACK
        canvas.add(Words(x, floor - 4, f"step {step:,}", anchor=place, size=10.5, colour=FAINT))


def _ticks(top: float) -> list[float]:
    """Round numbers from 0 to at least `top`, five or so."""
    step = 10.0 ** math.floor(math.log10(top / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if top / (step * factor) <= 5)
    return [step * count for count in range(math.ceil(top / step - 1e-9) + 1)]

"""A drawing of a few primitives, written as SVG, as a page of HTML, or as PNG through matplotlib (the extra `plot`)."""

import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import ModuleType

from attest.files import atomic_write
from dptrain.errors import ConfigError

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

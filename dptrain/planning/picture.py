"""Draws a plan on a terminal, in Unicode or in plain characters."""

from collections.abc import Sequence
from dataclasses import dataclass

from attest.schema.rounding import rounded_up
from dptrain.geometry.energy import DESIGNS
from dptrain.geometry.over_rank import NoiseOverRank
from dptrain.planning.layout import BlockPlan, stack
from dptrain.planning.plan import PhasePlan, Plan

Line = list[tuple[str, str]]
"""Pieces of one line, each with its style."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of a picture; `levels` ascend."""

    touched: str
    partly: str
    public: str
    outside: str
    wall: str
    levels: str
    epsilon: str


UNICODE = Glyphs("█", "▒", "░", "·", "│", "▁▂▃▄▅▆▇█", "ε")
ASCII = Glyphs("#", "+", "o", ".", "|", "12345678", "epsilon")

PLAIN = {"∞": "inf", "ε": "epsilon", "δ": "delta", "σ": "sigma", "✗": "x", "×": "x", "–": "-", "—": "-", "…": "...", "µ": "u"}
"""Replacements of characters that a screen does not take."""


_MOST_COLUMNS = 48
"""Columns of the layers; deeper stacks share them."""

_STEP_COLUMNS = 60


def plan_picture(plan: Plan, glyphs: Glyphs) -> list[Line]:
    """Draws one line per class from input to output, and one of the noise.

    Blocks that are bound to names or adapters, or that masks divide, lie somewhere in the stack that only a model tells: they
    are counted at the end of the line.
    """
    columns = _columns(plan.layers)
    width = max(len(reach.name) for reach in plan.reaches)
    width = max(width, len("noise"))
    legend = "  E embeddings, layers by number, H head"
    lines: list[Line] = [[(f"{'':{width}}  {_ruler(plan.layers, columns)}{legend}", "dim")]]
    names = stack(plan.layers)
    for reach in plan.reaches:
        public = reach.name in {item.name for item in plan.public}
        full = glyphs.public if public else glyphs.touched
        cells = [_cell(len(column & set(reach.blocks)), len(column), full, glyphs) for column in columns]
        extra = sum(block not in names for block in reach.blocks)
        style = "magenta" if public else "cyan"
        told = f"  {promise(plan, reach.name, glyphs.epsilon, 'public')}"
        lines.append([(f"{reach.name:{width}}  ", "bold"), (_walled(cells, glyphs), style), (told, "")])
        if extra:
            lines[-1].append((f"  and {extra} {'block' if extra == 1 else 'blocks'} by name", "dim"))
    noise = _noise_line(plan.blocks, columns, glyphs)
    if noise is not None:
        lines.append([(f"{'noise':{width}}  ", "bold"), (noise[0], "yellow"), (noise[1], "")])
    return lines


def phase_picture(phases: Sequence[PhasePlan], glyphs: Glyphs) -> list[Line]:
    """Draws the noise over the steps of the run, as heights relative to the largest scale; nothing for a run of one level."""
    if len(phases) < 2:
        return []
    steps = phases[-1].first_step + phases[-1].steps - 1
    columns = min(_STEP_COLUMNS, steps)
    most = max(phase.scale for phase in phases)
    heights = []
    for column in range(columns):
        at = 1 + column * steps // columns
        scale = next(phase.scale for phase in reversed(phases) if phase.first_step <= at)
        heights.append(_level(scale / most, glyphs))
    told = ", ".join(f"x{phase.scale:g} from step {phase.first_step:,}" for phase in phases[:6])
    return [
        [("noise over steps  ", "bold"), (glyphs.wall + "".join(heights) + glyphs.wall, "yellow"), (f"  1 to {steps:,}", "")],
        [(f"  {told}{', ...' if len(phases) > 6 else ''}", "dim")],
    ]


def rank_picture(found: NoiseOverRank, glyphs: Glyphs) -> list[Line]:
    """Draws the noise on the product of LoRA pairs over ranks: a line per design, heights relative to the largest of all."""
    labels = [one.label for one in found.at]
    most = max(getattr(one.noise, design) for one in found.at for design in DESIGNS)
    shown = found.own or found.at[-1]
    width = max(map(len, DESIGNS))
    unit = " tau" if found.relative else ""
    lines: list[Line] = [[(f"{'rank':{width}}   {' '.join(labels)}", "dim")]]
    for design in DESIGNS:
        heights = [getattr(one.noise, design) for one in found.at]
        cells = [_level(height / most, glyphs) if height else glyphs.outside for height in heights]
        drawn = " ".join(f"{cell:>{len(label)}}" for cell, label in zip(cells, labels, strict=True))
        told = f"  {getattr(shown.noise, design):.4g}{unit} at rank {shown.label}"
        lines.append([(f"{design:{width}}  ", "bold"), (f"{glyphs.wall}{drawn}{glyphs.wall}", "yellow"), (told, "")])
    return lines


def _columns(layers: int) -> list[set[str]]:
    """Returns the blocks of every column: embeddings, layers (several a column where there are many), head."""
    count = min(layers, _MOST_COLUMNS)
    inner: list[set[str]] = [set() for _ in range(count)]
    for index in range(layers):
        inner[index * count // layers].add(f"layer.{index}")
    return [{"embeddings"}, *inner, {"head"}]


def _ruler(layers: int, columns: list[set[str]]) -> str:
    """Returns what stands over the bars: E, numbers of layers, H."""
    inner = [" "] * (len(columns) - 2)
    free = 0
    for column in range(len(inner)):
        label = str(column * layers // len(inner))
        if column >= free and (column % 5 == 0) and column + len(label) <= len(inner):
            inner[column : column + len(label)] = label
            free = column + len(label) + 1
    return f"E {''.join(inner)} H"


def _walled(cells: Sequence[str], glyphs: Glyphs) -> str:
    return f"{cells[0]}{glyphs.wall}{''.join(cells[1:-1])}{glyphs.wall}{cells[-1]}"


def _cell(touched: int, of: int, full: str, glyphs: Glyphs) -> str:
    return full if touched == of else glyphs.partly if touched else glyphs.outside


def promise(plan: Plan, name: str, epsilon: str, public: str) -> str:
    """Says what a contribution at the presets of a class gets; `public` of a class to which nothing is promised."""
    found = next((item.preset for item in plan.classes if item.name == name), None)
    if found is None:
        return public
    return (
        f"clip {found.clip_norm:.4g}, z {found.effective_multiplier:.4g}, {epsilon} {rounded_up(found.epsilon, 3)}"
        f" ({rounded_up(found.epsilon_replace, 3)} replaced)"
    )


def _noise_line(blocks: Sequence[BlockPlan], columns: list[set[str]], glyphs: Glyphs) -> tuple[str, str] | None:
    """Draws the noise per column, the largest of a column; None where no block of the stack has any."""
    stds = {block.name: block.std for block in blocks}
    heights = [max((stds.get(name, 0.0) for name in column), default=0.0) for column in columns]
    present = sorted({height for height in heights if height > 0})
    if not present:
        return None
    cells = [_level(height / present[-1], glyphs) if height else glyphs.outside for height in heights]
    told = f"{present[0]:.4g}" if len(present) == 1 else f"{present[0]:.4g} to {present[-1]:.4g}"
    return _walled(cells, glyphs), f"  std {told} on the sum"


def _level(share: float, glyphs: Glyphs) -> str:
    return glyphs.levels[min(len(glyphs.levels) - 1, max(0, round(share * len(glyphs.levels)) - 1))]

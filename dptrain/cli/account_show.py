"""How `dptrain account` and `dptrain calibrate` show what they found."""

from pathlib import Path
from typing import Any

from dptrain.cli.output import amount, console, counted, print_picture, table
from dptrain.planning.curves import Curve
from dptrain.planning.glyphs import Glyphs, Line
from dptrain.planning.rounding import rounded_up

_BAR = 40


def print_account(data: dict[str, Any]) -> None:
    """One figure a line, then the comparison of accountants."""
    out = console()
    rows = [("epsilon", data["epsilon"], f"at delta {data['delta']:g}, zero-out, {data['accountant']}{_noise(data)}")]
    rows.append(("epsilon, content replaced", data["epsilon_replace"], ""))
    if "epsilon_capped" in data:
        rows.append((f"drawn at most {data['max_occurrences']} times", data["epsilon_capped"], "zero-out"))
    if "epsilon_group" in data:
        rows.append((f"{data['group_size']} of one person together", data["epsilon_group"], "zero-out of all of them"))
    if "epsilon_examples" in data:
        rows.append((f"{data['examples']} examples one by one", data["epsilon_examples"], "without one clip for all"))
    width = max(len(name) for name, _, _ in rows)
    for name, value, note in rows:
        out.print(f"{name:{width}}   {_up(value):>9}   {note}".rstrip())
    if len(data["phases"]) > 1:
        out.print(f"{counted(len(data['phases']), 'phase')}, {data['steps']:,} steps in all; the order does not matter")
    if data["caveat"]:
        out.print(data["caveat"])
    if "compare" in data:
        grid = table("accountant", "epsilon", "if content replaced", "by")
        for name, found in data["compare"].items():
            if found["refused"]:
                grid.add_row(name, "-", "-", found["refused"])
            else:
                grid.add_row(name, _up(found["epsilon"]), _up(found["epsilon_replace"]), found["library"])
        out.print(grid)


def print_curve(found: Curve) -> None:
    """A bar per point, for the first accountant of the curve; the rest is in the figure and the JSON."""
    name, values = next(iter(found.epsilon.items()))
    most = max((value for value in values if value < float("inf")), default=0.0)

    def draw(glyphs: Glyphs) -> list[Line]:
        lines: list[Line] = [[(f"\n{found.over:>12}   epsilon ({name})", "bold")]]
        for x, value in zip(found.xs, values, strict=True):
            length = round(_BAR * min(value / most, 1.0)) if most else 0
            shown = amount(x) if found.over == "steps" else f"{x:g}"
            lines.append([(f"{shown:>12}   {_up(value):>9} ", ""), (glyphs.touched * length, "cyan")])
        return lines

    print_picture(draw)


def print_calibration(data: dict[str, Any], wanted: str) -> None:
    """What was found, and its epsilon."""
    out = console()
    if "compare" in data:
        more = [] if data["clip_norm"] is None else [f"variance at clip norm {data['clip_norm']:g}"]
        grid = table("accountant", wanted.replace("_", " "), "epsilon", *more)
        for name, found in data["compare"].items():
            variance = [_up(found["sufficient_variance"])] if more else []
            grid.add_row(name, _found(found, wanted), _up(found["epsilon"]), *variance)
        out.print(grid)
        return
    name = wanted.replace("_", " ")
    out.print(f"{name}  {_found(data, wanted)}   epsilon {_up(data['epsilon'])} at delta {data['delta']:g}{_noise(data)}")
    if data["disclosure"] == "occurrences_public":
        count = f"{data['occurrences']:,} public occurrence{'s' if data['occurrences'] > 1 else ''}"
        out.print(
            f"  for {count}; one more makes it {_up(data['epsilon_of_one_more'])}: sign max_occurrences = {data['occurrences']}"
        )
    elif data["occurrences"] is not None:
        rate, steps = data["sampling_rate"], data["steps"]
        out.print(f"  at rate {rate:g} in {steps:,} steps; draws are secret, and however many come are covered")
    if data["clip_norm"] is not None:
        std, clip = data["sufficient_std"], data["clip_norm"]
        out.print(
            f"  variance that suffices at clip norm {clip:g}: {_up(data['sufficient_variance'])}, standard deviation {_up(std)}"
        )
    if len(data["phases"]) > 1:
        for phase in data["phases"]:
            out.print(f"  {phase['noise_multiplier']:.6f} at rate {phase['sampling_rate']:g} for {phase['steps']:,} steps")


def print_written(path: Path) -> None:
    """Where a figure went."""
    console().print(f"wrote {path}")


def _found(data: dict[str, Any], wanted: str) -> str:
    value = data[wanted]
    if wanted == "noise_multiplier":
        return f"{value:.6f}"
    return f"{value:,}" if wanted in ("steps", "occurrences") else f"{value:.9f}".rstrip("0").rstrip(".")


def _noise(data: dict[str, Any]) -> str:
    return "" if data["family"] == "gaussian" else f", {data['family']} noise"


def _up(value: float) -> str:
    return rounded_up(value, 6)

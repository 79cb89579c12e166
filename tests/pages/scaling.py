"""Writes the tables of the page on scaling from the formulas."""

from dataclasses import fields, replace
from typing import Final

from dptrain.cli.output import number, size
from dptrain.planning.per_rank import Ranks, per_rank
from dptrain.planning.scaling import ASSUMED, MODELS, TOKENS, Inputs, Model, Step, fits, ranks_of, seconds
from tests.pages.documents import Pages, table, with_tables

STEPS: Final = (1024, 32_768, 524_288)
"""Contributions of a step, n."""

GPUS: Final = (8, 64, 512)


_UNITS: Final = {
    "FLOP/s": (1e12, "TFLOP/s"),
    "bytes/s": (1e9, "GB/s"),
    "bytes": (1e9, "GB"),
    "ns": (1e-9, "ns"),
    "ms": (1e-3, "ms"),
}
"""Units in which a person reads an input."""


def held(model: Model, contributions: float, processes: int) -> Ranks:
    """Returns the ranks of a run: whole parameters where they fit, shards where they do not, whether these fit or not."""
    whole = ranks_of(model, contributions, processes, sharded=False)
    return whole if fits(whole, ASSUMED) else ranks_of(model, contributions, processes, sharded=True)


def predicted(model: Model, ranks: Ranks, inputs: Inputs = ASSUMED) -> Step:
    """Returns the step that the page tells of."""
    return seconds(model, ranks, inputs, TOKENS)


def inputs_table() -> str:
    """Returns the inputs, each with its source."""
    rows = []
    for item in fields(Inputs):
        told, value = item.metadata, getattr(Inputs(), item.name)
        scale, unit = _UNITS.get(told["unit"], (1.0, told["unit"]))
        shown = "open" if value is None else f"{value / scale:,.4g} {unit}".strip()
        rows.append((f"`{item.name}`", told["what"], shown, str(told["source"]), told["where"]))
    return table(("input", "of what", "value", "source", "where it stands"), rows)


def steps_table() -> str:
    """Returns the seconds of a step by model, contributions and GPUs."""
    rows = []
    for name, model in MODELS.items():
        for contributions in STEPS:
            ways = [held(model, contributions, processes) for processes in GPUS]
            kinds = " or ".join(dict.fromkeys(map(_kind, ways)))
            rows.append((name, f"{contributions:,}", kinds, *(_s(predicted(model, way).seconds) for way in ways)))
    return table(("model", "n", "under", *(f"s on {processes} GPUs" for processes in GPUS)), rows)


def parts_table() -> str:
    """Returns the parts of a step of 32,768 contributions on 64 GPUs."""
    rows = []
    for name, model in MODELS.items():
        ranks = held(model, STEPS[1], GPUS[1])
        step, as_here = (predicted(model, ranks, one) for one in (ASSUMED, replace(ASSUMED, ratio=ASSUMED.cpu_ratio)))
        figures = (step.compute, as_here.compute, step.communication, step.noise, step.ledger, step.seconds)
        held_bytes = size(per_rank(ranks).peak_bytes)
        rows.append((name, held_bytes, *map(_s, figures), number(step.ratio, 3), number(as_here.ratio, 3)))
    head = ("model", "memory", "compute, s", "at the CPU's ratio, s", "communication, s", "noise, s", "ledger, s", "a step, s")
    return table((*head, "over plain", "at the CPU's ratio"), rows)


def _kind(ranks: Ranks) -> str:
    """Names the wrapper, with a star where a rank holds more than its GPU has."""
    return ("FSDP2" if ranks.sharded else "DDP") + ("" if fits(ranks, ASSUMED) else " \\*")


def _s(seconds: float) -> str:
    """Returns seconds to three digits, without exponents."""
    return f"{seconds:,.0f}" if seconds >= 100 else number(seconds, 3)


def scaling_page(page: str) -> str:
    """Returns scaling.md with the tables that are computed."""
    page = with_tables(page, "Inputs", [inputs_table()])
    return with_tables(page, "Seconds of a step", [steps_table(), parts_table()])


PAGES: Final[Pages] = {"scaling.md": scaling_page}

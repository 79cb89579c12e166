"""Shows where a machine draws the noise of every family, and how fast."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dptrain.cli.output import number, styled, table_of
from dptrain.cli.results import Shown

if TYPE_CHECKING:
    from dptrain.noise.speed import Draws, Surveyed


def drawn_text(found: "Surveyed") -> Iterator[Shown]:
    """Yields whether the device passes its test, a row for every family, and what the policy's own family costs or lacks."""
    where = found.device if found.model is None else f"{found.device} ({found.model})"
    threads = f"{found.threads} thread{'' if found.threads == 1 else 's'}"
    if found.refusal is None:
        yield f"\nnoise on {where}: its arithmetic passes the test that comes before noise is drawn there; {threads} of torch"
    else:
        yield f"\nnoise on {where}, {threads} of torch"
        yield styled("red", "✗", f" {found.refusal.code}: {found.refusal.sentence}")
    families: dict[str, dict[str, Draws]] = {}
    for row in found.draws:
        families.setdefault(row.family, {})[row.generator] = row
    yield table_of(
        families.values(),
        {
            "family": lambda row: row["host"].family + (" (of the policy)" if row["host"].of_policy else ""),
            "host: ns a coordinate": lambda row: _nanoseconds(row["host"]),
            "s a million": lambda row: _seconds(row["host"]),
            "device: ns a coordinate": lambda row: _nanoseconds(row["device"]),
            "s a million ": lambda row: _seconds(row["device"]),
        },
    )
    yield (
        "host and device: values of noise_generator; times are of a release, from the clipped sum on the device to what leaves "
        "there, measured now"
    )
    for row in found.draws:
        if row.of_policy and row.sentence:
            yield styled("yellow", "!", f" {row.generator}: " + f"{row.code}: " * bool(row.code) + row.sentence)


def _nanoseconds(row: "Draws") -> str:
    if not row.drawn:
        return "refused"
    return "not measured" if row.nanoseconds is None else number(row.nanoseconds, 3)


def _seconds(row: "Draws") -> str:
    return "" if row.nanoseconds is None else number(row.nanoseconds * 1e-3, 3)

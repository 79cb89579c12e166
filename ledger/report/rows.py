"""Takes from an audit the rows of every table of the page, no more than a page can hold."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from markupsafe import Markup

from attest.errors import ReasonCode
from ledger.audit import AuditReport, EpochRow
from ledger.note import parse_verifier_key
from ledger.report.charts import bar, bin_edges, distribution, over_time
from ledger.report.extras import Extras
from ledger.report.shown import PUBLIC, bound, code, counted, is_numeric, name, noted, rounded_down, rounded_up, text, utc
from ledger.views.attacker import hits
from ledger.views.geometry import TangentBlock
from ledger.views.summary import ClassSummary, ReleaseRow, Spread

MAX_POINTS: Final = 200
"""Epochs that are drawn or listed; of more, as many evenly spaced ones and the last."""

MAX_BLOCKS: Final = 300
"""Rows of layers, after equal neighbours are merged; models with more have thousands of heads by themselves."""

MAX_RELEASES: Final = 10
MAX_PARTS: Final = 20
"""Releases, and parts of each, that are shown; a page must not grow with what an operator may repeat at will."""

MAX_EXAMPLES: Final = 50
"""Refusals told one by one; the gate's own report has the others."""

MAX_ROWS: Final = 200
MAX_COLUMNS: Final = 20
MAX_LINES: Final = 120

BAR: Final = Markup("<span class='hear'>as a bar</span>")
"""Title of a column of bars."""

AUDITOR: Final = "auditor"
WITNESS: Final = "witness"
OTHER: Final = "other pinned key"
"""Roles of who cosigns."""

_NEVER: Final = "never admitted"
_LAYER: Final = re.compile(r"^(.*?\.\d+)(?:\.|$)")

Rows = Iterable[Sequence[Any]]


class Table:
    """A table whose first column names the rows: None is shown as a dash, numbers stand at the right.

    Attributes:
        ident: name, unique in the page; the id of the caption is `-c` behind it.
        caption: what the table shows.
        head: titles of the columns.
        rows: their values; `Markup` stays as it is.
        heard: whether the caption is hidden, where a heading beside it says the same to those who see it.
        right: by column, whether it has numbers.
    """

    def __init__(self, ident: str, caption: str, head: Sequence[str], rows: Rows, *, heard: bool = False) -> None:
        """Takes the rows, and finds out which columns have numbers."""
        self.ident, self.caption, self.head, self.rows, self.heard = ident, caption, head, list(rows), heard
        self.right = [is_numeric([row[at] for row in self.rows]) for at in range(len(head))]


def evenly(epochs: Sequence[EpochRow]) -> Sequence[EpochRow]:
    """Returns at most `MAX_POINTS` epochs, the last among them."""
    count = len(epochs)
    return epochs if count <= MAX_POINTS else [epochs[(at + 1) * count // MAX_POINTS - 1] for at in range(MAX_POINTS)]


@dataclass(frozen=True, slots=True)
class Attacked:
    """Says how well somebody who knows everything else tells one contribution of a class.

    Attributes:
        name: name of the class.
        epsilon: what the contribution has spent at most; None for a public class.
        from_null: cases of 100 in which at most it is told from an empty one; None if public, and where nothing was spent.
        from_other: the same from a given other content; None likewise, and where bounds are the operator's word.
        believed: `from_null` for who believes the bounds that the operator told; None where they were derived.
    """

    name: str
    epsilon: float | None = None
    from_null: int | None = None
    from_other: int | None = None
    believed: int | None = None


def attacked(report: AuditReport) -> list[Attacked]:
    """Returns what each class stands to lose, as far as signatures reach.

    Guarantee: Where the bounds of contributions are the operator's word, figures are those at the preset of the class in the
    signed policy: no ADMIT leaf makes one smaller. A public class has no figure.
    """
    return [_attacked(c, 1.0 if report.delta is None else report.delta) for c in report.classes]


def _attacked(c: ClassSummary, delta: float) -> Attacked:
    if c.public or c.epsilon is None:
        return Attacked(c.name)
    if c.epsilon_preset is not None:
        most = max(c.epsilon, c.epsilon_preset)
        return Attacked(c.name, most, _hits(most, delta), None, _hits(c.epsilon, delta))
    replaced = math.inf if c.epsilon_replace is None else c.epsilon_replace
    return Attacked(c.name, c.epsilon, _hits(c.epsilon, delta), _hits(replaced, delta))


def _hits(epsilon: float, delta: float) -> int | None:
    return hits(epsilon, delta) if epsilon else None


def spent(report: AuditReport) -> list[tuple[str, Any]]:
    """Returns by what the figures were computed, and how far the run is."""
    at = f"{report.charged:,} in {counted(report.attempts, 'attempt')}, horizon {report.steps or 0:,}"
    return _known(
        ("δ", report.delta),
        ("accountant", report.accountant),
        ("steps charged", at if report.steps else None),
        ("run", ("closed" if report.finished else "open: more may be charged") if report.steps else None),
        ("isolation (statement A)", report.isolation),
        ("geometry", None if report.geometry is None else report.geometry.sentence),
    )


def about(report: AuditReport) -> list[tuple[str, Any]]:
    """Returns the ledger that it is about, to compare it with one at hand: names, size and digests."""
    return _known(
        ("corpus", report.corpus),
        ("ledger", report.origin),
        ("leaves", report.size),
        ("root", report.root_hex),
        ("policy signed by", report.owner),
        ("model digest", report.model_digest),
        ("model structure", report.model_fingerprint),
    )


def _known(*facts: tuple[str, Any]) -> list[tuple[str, Any]]:
    return [(what, code(value) if isinstance(value, str) else value) for what, value in facts if value is not None]


def model(report: AuditReport) -> dict[str, int]:
    """Returns the size of the model, as the header tells it: layers, parameters, and how many of these are frozen."""
    frozen = sum(block.coordinates for block in report.blocks if not block.classes)
    return {"layers": report.layers, "parameters": sum(block.coordinates for block in report.blocks), "frozen": frozen}


def tables(report: AuditReport, extras: Extras) -> dict[str, Table]:
    """Returns every table whose rows are read off as they are, by its name."""
    epochs, counts, keys = evenly(report.epochs), report.withdrawal_counts, [*map(parse_verifier_key, report.log_keys)]
    largest, total = max((row.count for row in counts), default=0), sum(row.count for row in counts)
    spreads = [(c.name, c.spread) for c in report.classes if c.spread is not None]
    found = (
        Table(
            "findings",
            "What is wrong, and where",
            ("where", "what is wrong"),
            [(noted(code(row.where), row.code), row.sentence) for row in report.findings],
            heard=True,
        ),
        Table(
            "kinds",
            "Leaves of the ledger by kind",
            ("kind", "leaves", "first", "last"),
            [(row.kind, row.count, row.first, row.last) for row in report.kinds],
        ),
        Table(
            "spread",
            "ε of all contributions ever admitted, withdrawn ones included; rounded up",
            ("class", "contributions", "least", "a quarter up to", "half up to", "three quarters up to", "most"),
            [
                (label, s.contributions, *map(rounded_up, (s.least, s.quarter, s.median, s.three_quarters, s.most)))
                for label, s in spreads
            ],
        ),
        # Class and reason share a column, so that on a phone there is room for whole bars, whose lengths can be compared.
        Table(
            "withdrawn",
            f"{total:,} withdrawals by class and reason",
            ("class, reason", "count", BAR),
            [(noted(row.class_name or _NEVER, code(row.reason)), row.count, bar(row.count, largest)) for row in counts],
        ),
        Table(
            "withdrawn-last",
            "What each had spent when it left",
            ("leaf", "time", "contribution", "reason", "class", "steps charged", "ε spent and kept"),
            [
                (
                    row.seq,
                    utc(row.time),
                    code(row.descriptor_hash),
                    code(row.reason),
                    row.class_name or _NEVER,
                    row.steps,
                    spent,
                )
                for row in report.withdrawals
                for spent in [None if row.class_name is None else bound(row.epsilon)]
            ],
        ),
        Table(
            "summaries",
            "Ranges of the ledger that have a summary",
            ("leaf", "first leaf", "last leaf", "bodies that are gone", "auditors who vouch for it"),
            [(row.seq, row.first, row.end - 1, row.pruned, ", ".join(row.vouchers) or "none") for row in report.summaries],
        ),
        Table(
            "ignored",
            "Signature lines that count for nothing",
            ("name in the line", "key id in the line", "lines", "the known key that it resembles"),
            [(code(row.name), code(row.key_id), row.lines, _resembled(row.resembles)) for row in report.ignored],
        ),
        Table(
            "keys",
            "Keys of the ledger, in the order in which they signed it; each handed it over to the next",
            ("key", "name", "key id", "state"),
            [
                (place, code(key.name), code(key.key_id.hex()), "current" if place == len(keys) else "replaced")
                for place, key in enumerate(keys, start=1)
            ],
        ),
        Table(
            "epochs",
            "Epochs recorded in the ledger that the checkpoint signs",
            ("epoch", "leaf", "closed", "last step", "model digest"),
            [(row.number, row.seq, utc(row.time), row.step, code(row.model_digest)) for row in epochs],
        ),
        Table(
            "geometry",
            "Energy of the noise of one step on blocks with pairs of LoRA factors, rounded down",
            ("block", "pairs", "coordinates", "dimensions of tangents", "energy on the factors", "energy after the projection"),
            [
                (code(row.name), row.pairs, row.coordinates, row.dimensions, *map(rounded_down, energies))
                for row in tangents(report)[:MAX_BLOCKS]
                for energies in [(row.factor_energy, row.energy)]
            ],
        ),
        tally("admitted", "Admitted, by class", "class", extras.admitted),
        tally("refused", "Refused, by reason", "reason", extras.refused),
        free("examples", "Refusals", extras.examples, MAX_EXAMPLES),
        free("results", "Results", extras.results, MAX_ROWS),
        *told(extras),
        classes(report),
        signers(report),
    )
    return {table.ident: table for table in found}


def tangents(report: AuditReport) -> tuple[TangentBlock, ...]:
    """Returns the blocks whose noise is projected; none without a geometry."""
    return () if report.geometry is None else report.geometry.blocks


def classes(report: AuditReport) -> Table:
    """Returns the largest value of one contribution per class; where bounds are the operator's word also at its preset."""
    preset = any(c.epsilon_preset is not None for c in report.classes)
    taken = any(c.occurrences is not None for c in report.classes)
    steps = ("steps", "occurrences") if taken else ("steps",)
    told = ("ε at the preset, no caps",) if preset else ()
    head = ("class", "ε", "ε, content replacement", *told, "noise multiplier", "sampling rate", *steps, "active", "withdrawn")
    rows: list[tuple[Any, ...]] = []
    for c in report.classes:
        spent = map(bound, (c.epsilon, c.epsilon_replace, *([c.epsilon_preset] if preset else [])))
        multiplier = PUBLIC if c.public else None if c.noise_multiplier is None else rounded_down(c.noise_multiplier)
        often = (c.steps, c.occurrences) if taken else (c.steps,)
        rows.append((c.name, *spent, multiplier, c.sampling_rate, *often, c.active, c.withdrawn))
    return Table("classes", "Largest value of one contribution per class; ε rounded up, noise down", head, rows)


def run(report: AuditReport) -> tuple[Table, Markup]:
    """Returns epsilon per class over the steps charged, as recorded epoch by epoch and as it stands now; and its chart."""
    epochs, now = evenly(report.epochs), [c.epsilon for c in report.classes]
    costs = [Markup("ε {}").format(text(c.name)) for c in report.classes]
    head = ("epoch", "leaf", "last step", "steps charged", *costs, "active", "withdrawn", "closed")
    # Steps charged, not step numbers: re-executed steps count again, and the line never runs back.
    points: list[tuple[int, Sequence[float | None]]] = [(row.charged, row.epsilons) for row in epochs]
    rows: list[tuple[Any, ...]] = []
    for row in epochs:
        counts = (sum(row.active), sum(row.withdrawn), utc(row.time))
        rows.append((row.number, row.seq, row.step, row.charged, *map(bound, row.epsilons), *counts))
    if epochs and report.charged > epochs[-1].charged:
        points.append((report.charged, now))
        left = (sum(c.active for c in report.classes), sum(c.withdrawn for c in report.classes), None)
        rows.append(("in no epoch yet", None, None, report.charged, *map(bound, now), *left))
    listed = Table("run", "Largest ε of a contribution, at the close of each epoch; rounded up", head, rows)
    private = [(place, c.name) for place, c in enumerate(report.classes) if not c.public]
    series = {label: [epsilons[place] or 0.0 for _, epsilons in points] for place, label in private}
    if not (series and points and points[-1][0] and all(math.isfinite(e) for values in series.values() for e in values)):
        return listed, Markup("")
    xs, what = [at for at, _ in points], "largest ε of a contribution"
    return listed, over_time("run", "ε per class over the run", xs, series, "steps charged", what)


def spreads(report: AuditReport) -> list[tuple[str, Spread, Markup | None, Table | None]]:
    """Returns per class its distribution, with chart and table; without where all are equal, or some have no bound."""
    found = [(c.name, c.spread) for c in report.classes if c.spread is not None]
    return [(label, s, *_distribution(place, label, s)) for place, (label, s) in enumerate(found)]


def _distribution(place: int, label: str, s: Spread) -> tuple[Markup | None, Table | None]:
    if s.least == s.most or not math.isfinite(s.most):
        return None, None
    ends = pairwise(map(rounded_up, bin_edges(s)))
    rows = [(f"{low} to {high}", count, bar(count, max(s.counts))) for (low, high), count in zip(ends, s.counts, strict=True)]
    caption = f"Contributions of class {label} by ε"
    listed = Table(f"spread-{place}", caption, ("ε", "count", BAR), rows, heard=True)
    return distribution(f"spread-{place}", caption, s), listed


@dataclass(frozen=True, slots=True)
class Layer:
    """Neighbouring blocks that the same classes touch behind the same noise.

    Attributes:
        first: layer of the first block.
        last: layer of the last block.
        coordinates: number of parameters.
        std: standard deviation of the noise.
        cells: per class its noise multiplier; `PUBLIC` for a public class; None where it may not touch them.
    """

    first: str
    last: str
    coordinates: int
    std: float
    cells: tuple[float | str | None, ...]


def layers(report: AuditReport) -> dict[str, Any]:
    """Returns the rows of the heat map, how many are left out, and its least and largest figure."""
    found = merged(report)
    figures = [value for row in found for value in row.cells if isinstance(value, float)]
    scale = (min(figures), max(figures)) if figures else None
    return {"rows": found[:MAX_BLOCKS], "left_out": len(found) - MAX_BLOCKS, "scale": scale}


def merged(report: AuditReport) -> list[Layer]:
    """Merges blocks into layers by the number in their name, and runs of equal layers into one row."""
    names = [c.name for c in report.classes]
    rows: list[Layer] = []
    for block, multipliers in zip(report.blocks, report.multipliers, strict=True):
        match = _LAYER.match(block.name)
        layer = match[1] if match else block.name
        cells = tuple(
            None if label not in block.classes else PUBLIC if value is None else value
            for label, value in zip(names, multipliers, strict=True)
        )
        if rows and (rows[-1].std, rows[-1].cells) == (block.std, cells):
            rows[-1] = Layer(rows[-1].first, layer, rows[-1].coordinates + block.coordinates, block.std, cells)
        else:
            rows.append(Layer(layer, layer, block.coordinates, block.std, cells))
    return rows


HEATS: Final = 8
"""Shades in the style sheet."""


def shade(value: float, scale: Sequence[float]) -> int:
    """Returns the shade of a figure between the least and the largest, by its logarithm; the middle where all are equal."""
    least, most = scale
    if not least < most:
        return HEATS // 2
    return min(int(math.log(value / least) / math.log(most / least) * HEATS), HEATS - 1)


def releases(report: AuditReport) -> list[tuple[ReleaseRow, Table]]:
    """Returns the last releases, the last one first, each with whose influence may be in its parts and what they cost."""
    names = [c.name for c in report.classes]
    head = ("part", "influence of", *(Markup("ε {}").format(text(label)) for label in names))
    found = []
    for row in reversed(report.releases[-MAX_RELEASES:]):
        rows = []
        for part in row.parts[:MAX_PARTS]:
            costs = (_cost(epsilon, label in part.influenced_by) for label, epsilon in zip(names, part.epsilons, strict=True))
            rows.append((part.name, ", ".join(part.influenced_by) or "none", *costs))
        caption = f"Leaf {row.seq:,}: whose influence may be in the weights, and the largest ε of one contribution; rounded up"
        found.append((row, Table(f"release-{row.seq}", caption, head, rows)))
    return found


def _cost(epsilon: float | None, reached: bool) -> Any:
    """Returns what a part costs a class; a figure of zero would read like a measurement."""
    if not reached:
        return "no influence"
    return bound(epsilon) if epsilon is None or math.isfinite(epsilon) else "no bound known"


def tally(ident: str, caption: str, what: str, counts: Mapping[str, int]) -> Table:
    """Returns counts by class or by reason, the largest first; a reason code of ours has its meaning."""
    found = sorted(counts.items(), key=lambda item: -item[1])[:MAX_ROWS]
    rest, largest = sum(counts.values()) - sum(count for _, count in found), max(counts.values(), default=0)
    rows: list[Sequence[Any]] = [
        (_reason(label) if what == "reason" else name(label), count, bar(count, largest)) for label, count in found
    ]
    return Table(ident, caption, (what, "count", BAR), [*rows, ("all others", rest, "")] if rest else rows, heard=True)


def _reason(label: str) -> Markup:
    known = ReasonCode.__members__.get(label)
    return noted(code(label), known.meaning) if known else Markup(f"<code>{name(label)}</code>")


def free(ident: str, caption: str, rows: Sequence[Mapping[str, Any]], most: int, *, heard: bool = True) -> Table:
    """Returns a table of rows whose columns nobody knows beforehand."""
    found = rows[:most]
    columns = list(dict.fromkeys(key for row in found for key in row))[:MAX_COLUMNS]
    values = ([row.get(key) for key in columns] for row in found)
    return Table(ident, caption, [name(column) for column in columns], values, heard=heard)


def told(extras: Extras) -> list[Table]:
    """Returns the operator's further tables of results, with captions to be seen."""
    found = enumerate(extras.tables.items(), start=1)
    return [free(f"told-{place}", caption, rows, MAX_ROWS, heard=False) for place, (caption, rows) in found]


def signers(report: AuditReport) -> Table:
    """Returns who signed the checkpoint, and which auditor or witness whom the signed policy names has not."""
    roles = _roles(report)
    rows: list[Sequence[Any]] = []
    for signer in report.signers:
        role = "the ledger itself" if signer.of_log else roles.get((signer.name, signer.key_id), OTHER)
        late = "verified, counts for nothing: dated before the last leaf, or ahead of the clock"
        time = None if signer.time is None else utc(signer.time)
        rows.append((code(signer.name), code(signer.key_id), role, "verified" if signer.counts else late, time))
    signed = {(signer.name, signer.key_id) for signer in report.signers}
    rows += [(*map(code, key), role, "has not cosigned", None) for key, role in roles.items() if key not in signed]
    head = ("name", "key id", "role", "signature", "time stated")
    return Table("signers", "Who signed the checkpoint, and who has not", head, rows)


def _roles(report: AuditReport) -> dict[tuple[str, str], str]:
    """Returns auditors and witnesses whom the signed policy names, by name and key id."""
    named = [(vkey, AUDITOR) for vkey in report.auditors] + [(vkey, WITNESS) for vkey in report.witnesses]
    return {(key.name, key.key_id.hex()): role for key, role in ((parse_verifier_key(vkey), role) for vkey, role in named)}


def cosigned(report: AuditReport) -> Counter[str]:
    """Counts by role who cosigned the checkpoint beside the ledger itself; cosignatures that count for nothing are left out."""
    roles = _roles(report)
    counting = (signer for signer in report.signers if signer.counts and not signer.of_log)
    return Counter(roles.get((signer.name, signer.key_id), OTHER) for signer in counting)


def _resembled(vkey: str | None) -> Markup | None:
    if vkey is None:
        return None
    key = parse_verifier_key(vkey)
    return Markup("{} {}").format(code(key.name), noted(code(key.key_id.hex()), "damaged, forged, or by another key"))

"""Show what a ledger says of single contributions: the one that is asked for, and those that were withdrawn."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from attest.fixed_point import MICRO, PICO
from attest.schema.plain import utc
from dptrain.cli.ledger.wanted import Asked
from dptrain.cli.options import option
from dptrain.cli.output import counted, number, spent, styled, table
from dptrain.cli.results import Shown, Told, pick
from ledger.errors import AccountantError

if TYPE_CHECKING:
    # Loaded where they are used, as in `dptrain.cli.ledger.commands`: help and completion need none of them.
    from dptrain.clipping.own_noise import OwnNoise
    from ledger.replay import Replay
    from ledger.views.trace import Trace, WithdrawalStatement

Withdrawn = Annotated[bool, option("What holds of each withdrawn contribution, and of all of them together.", "--withdrawn")]


def shown_contribution(run: "Replay", bodies: Iterable[bytes | None], asked: Asked) -> Told:
    """Returns what became of a contribution.

    Args:
        run: the run.
        bodies: its leaves, as `ledger.views.trace.trace` takes them.
        asked: which contribution.

    Raises:
        LedgerError: code NOT_FOUND.
        AnchorRefused: the ledger has it under another descriptor, content or key than the anchor says.
    """
    from ledger.views.trace import trace

    found = trace(run, bodies, asked.wanted)
    if asked.signers is not None:
        found.require_signer(asked.signers(run.header))
    text = [*anchor_text(asked, pruned=found.pruned), *trace_text(found, run)]
    return Told(trace_as_json(found, run) | {"anchor": asked.anchor}, text)


def anchor_text(asked: Asked, *, pruned: bool) -> Iterator[Shown]:
    """Yields who signed the anchor, if that was what led here, and what was held against it.

    Args:
        asked: which contribution.
        pruned: whether an ADMIT leaf that it leads to was pruned, with which the id of the contributor's key went.
    """
    if asked.anchor is None:
        return
    told = asked.anchor
    about = "the content given is the one it is of" if told["content_compared"] else "which content it is of was not looked at"
    yield f"anchor of {utc(told['time'])}, signed by {told['contributor']}, key {told['key_id']}: {about}"
    if pruned:
        yield "its ADMIT leaf was pruned, and names no key any more: that the signer is its contributor is not shown"


def shown_withdrawn(run: "Replay") -> Told:
    """Returns the statement about all withdrawn contributions."""
    from ledger.views.trace import withdrawal_statement

    made = withdrawal_statement(run)
    return Told(_told_statement(made, run.header.delta), _statement_text(made))


def _statement_text(made: "WithdrawalStatement") -> Iterator[Shown]:
    if not made.rows:
        yield "nothing was withdrawn"
    for row in made.rows:
        about = "" if row.class_name is None else f"  class {row.class_name}, {counted(row.steps, 'charged step')}"
        yield styled("bold", row.descriptor_hash.hex(), f"  leaf {row.seq}{about}")
        yield from (f"  {sentence}" for sentence in row.sentences)
    if made.members > 1 or made.hidden:
        yield made.sentence


def _own_noise(found: "Trace", run: "Replay") -> "OwnNoise | None":
    """Returns the noise that its own bounds would need, from its ADMIT leaf and the signed policy; None where there is none."""
    from dptrain.clipping.own_noise import own_bounds, own_noise

    admit = found.admit
    own = own_bounds(run.header.policy, admit.class_name, admit.bounds, admit.limit)
    try:
        return None if own is None else own_noise(own)
    except AccountantError:
        return None


def trace_as_json(found: "Trace", run: "Replay") -> dict[str, Any]:
    """Returns what became of a contribution in a run, as JSON."""
    admit, withdraw, own = found.admit, found.withdraw, _own_noise(found, run)
    windows = zip(found.windows, found.variances, strict=True)
    return pick(admit, "descriptor_hash seq", **{"class": "class_name"}) | {
        "time": None if found.pruned else admit.time,
        **pick(admit.bounds, "clip_norm noise_multiplier"),
        "max_occurrences": admit.max_occurrences or None,
        "max_epsilon": admit.max_epsilon_micro / MICRO or None,
        "max_delta": admit.max_delta_pico / PICO or None,
        **pick(found, "pruned blocks steps occurrences epsilon carried"),
        "withdrawn": None if withdraw is None else pick(withdraw, "seq time reason"),
        "windows": [
            pick(window, "window seq time attempt first_step last_step") | {"variance": variance}
            for window, variance in windows
        ],
        "delta": run.header.delta,
        "releases": [pick(row, "seq time step manifest_digest parts") for row in found.releases],
        "own_noise": None if own is None else pick(own, "multiplier variance", expected_occurrences="expected"),
    }


def trace_text(found: "Trace", run: "Replay", verdict: str = "") -> Iterator[Shown]:
    """Yields what became of a contribution in a run.

    Args:
        found: from `ledger.views.trace.trace`.
        run: the run.
        verdict: of the audit of its export, which stands beside the epsilon; empty for a ledger, which nobody audited.
    """
    admit, withdraw, own = found.admit, found.withdraw, _own_noise(found, run)
    when, since = ("", ", pruned since") if found.pruned else (f" {utc(admit.time)}", "")
    yield styled("bold", admit.descriptor_hash.hex(), f"  admitted{when}, leaf {admit.seq}{since}")
    clip, sigma = admit.bounds.clip_norm, admit.bounds.noise_multiplier
    yield f"class {admit.class_name}, clip norm {number(clip)}, noise {number(sigma)}"
    if admit.max_epsilon_micro:
        limit = f"epsilon {number(admit.max_epsilon_micro / MICRO, 6)} at delta {admit.max_delta_pico / PICO:g}"
        yield f"signed for at most {limit} over all runs"
    else:
        yield "signed no limit of epsilon over all runs"
    if own is not None:
        yield (
            f"its own bounds would need noise of variance {number(own.variance)} per step and coordinate (multiplier "
            f"{number(own.multiplier)}, {number(own.expected)} draws expected), whatever its class is given"
        )
    if withdraw is not None:
        yield f"withdrawn {utc(withdraw.time)}, leaf {withdraw.seq}: {withdraw.reason}"
    yield f"could touch: {', '.join(found.blocks)}"
    drawn = "" if found.occurrences is None else f", drawn in {found.occurrences}"
    yield f"in the pool of {counted(len(found.windows), 'window')}, {counted(found.steps, 'charged step')}{drawn}"
    rows = table("window", "attempt", "first step", "last step", "variance", "charged")
    for window, variance in zip(found.windows, found.variances, strict=True):
        steps = map(str, (window.window, window.attempt, window.first_step, window.last_step))
        rows.add_row(*steps, number(variance), utc(window.time))
    yield rows
    for row in found.releases:
        yield (
            f"may have influenced the release at leaf {row.seq}, step {row.step}: {', '.join(row.parts)} "
            f"(release.cose has SHA-256 {row.manifest_digest.hex()})"
        )
    carried = f", and {spent(found.carried)} in earlier runs, as its admission says" if found.carried else ""
    beside = f" [{verdict}]" if verdict else ""
    yield f"spent: epsilon {spent(found.epsilon)} at delta {run.header.delta:g}{carried}{beside}"


def _told_statement(made: "WithdrawalStatement", delta: float) -> dict[str, Any]:
    names = {"class": "class_name", "epsilon_planned": "planned"}
    withdrawn = [pick(row, "descriptor_hash seq steps epsilon sentences", **names) for row in made.rows]
    together = {"contributions": made.members, **pick(made, "epsilon sentence")}
    return {"delta": delta, "withdrawn": withdrawn, "together": together}

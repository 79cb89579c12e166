"""What `dptrain ledger show` says of single contributions: the one with a given content, and those that were withdrawn."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attest.micro import MICRO, PICO
from attest.records import JSONL
from attest.shown import utc
from dptrain.cli.output import console, counted, number, print_json, spent, styled, table
from ledger.errors import AccountantError

if TYPE_CHECKING:
    # Loaded where they are used, as in `dptrain.cli.ledger`: help and completion need none of them.
    from dptrain.own_noise import OwnNoise
    from ledger.replay import Replay
    from ledger.views.trace import Trace
    from ledger.views.withdrawn import WithdrawalStatement

Content = Annotated[
    str | None,
    typer.Option("--content", metavar="HASH", help="Find the contribution with this content: its SHA-256 in hex, or a file."),
]
Nonce = Annotated[
    str | None, typer.Option("--nonce", metavar="N", help="With --content: the nonce of its opening, 32 hex digits.")
]
Withdrawn = Annotated[
    bool, typer.Option("--withdrawn", help="What holds of each withdrawn contribution, and of all of them together.")
]

_CHUNK = 1 << 20


def check_together(content: str | None, nonce: str | None, withdrawn: bool) -> None:
    """Options that make no sense alone, or together.

    Raises:
        typer.BadParameter: there are such.
    """
    if (content is None) != (nonce is None):
        raise typer.BadParameter("--content and --nonce go together: without the nonce nobody finds a contribution")
    if content is not None and withdrawn:
        raise typer.BadParameter("give --content or --withdrawn, not both")


def show_content(run: "Replay", bodies: Iterable[bytes | None], content: str, nonce: str, *, json: bool) -> None:
    """Prints what became of the contribution with this content.

    Args:
        run: the run.
        bodies: its leaves, as `ledger.views.trace.trace_content` takes them.
        content: hash in hex, or file.
        nonce: in hex.
        json: print JSON.

    Raises:
        typer.BadParameter: hash or nonce is none.
        LedgerError: code NOT_FOUND.
    """
    from ledger.views.trace import trace_content

    key = _octets(nonce, 16, "--nonce")
    found = trace_content(run, bodies, _content_hash(content), key)
    own = _own_noise(found, run)
    if json:
        print_json(_told(found, own, run.header.delta))
    else:
        _print(found, own, run.header.delta)


def show_withdrawn(run: "Replay", *, json: bool) -> None:
    """Prints the statement about all withdrawn contributions."""
    from ledger.views.withdrawn import withdrawal_statement

    made = withdrawal_statement(run)
    if json:
        print_json(_told_statement(made, run.header.delta))
        return
    out = console()
    if not made.rows:
        out.print("nothing was withdrawn")
    for row in made.rows:
        about = "" if row.class_name is None else f"  class {row.class_name}, {counted(row.steps, 'charged step')}"
        out.print(styled("bold", row.descriptor_hash.hex(), f"  leaf {row.seq}{about}"))
        for sentence in row.sentences:
            out.print(f"  {sentence}")
    if made.members > 1:
        out.print(made.sentence)


def _content_hash(text: str) -> bytes:
    """The hash itself, or that of a file."""
    path = Path(text)
    if re.fullmatch("[0-9a-f]{64}", text) or not path.is_file():
        return _octets(text, 32, "--content")
    if path.suffix == JSONL:
        raise typer.BadParameter(
            f"{text} holds many contributions; give the content hash of one, as 'dptrain attest show {text}.attest --record N' "
            "prints it"
        )
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()


def _octets(text: str, size: int, option: str) -> bytes:
    if not re.fullmatch(f"[0-9a-f]{{{2 * size}}}", text):
        or_file = ", or a file that is there" if option == "--content" else ""
        raise typer.BadParameter(f"{option} takes {2 * size} hex digits{or_file}, got {text!r:.100}")
    return bytes.fromhex(text)


def _own_noise(found: "Trace", run: "Replay") -> "OwnNoise | None":
    """Returns the noise that its own bounds would need, from its ADMIT leaf and the signed policy; None where there is none."""
    from dptrain.own_noise import admitted_bounds, own_noise

    bounds = admitted_bounds(found.admit, run.header.policy)
    try:
        return None if bounds is None else own_noise(bounds)
    except AccountantError:
        return None


def _told(found: "Trace", own: "OwnNoise | None", delta: float) -> dict[str, Any]:
    admit, withdraw = found.admit, found.withdraw
    return {
        "descriptor_hash": admit.descriptor_hash.hex(),
        "seq": admit.seq,
        "time": None if found.pruned else admit.time,
        "pruned": found.pruned,
        "class": admit.class_name,
        "clip_norm": admit.clip_micro / MICRO,
        "noise_multiplier": admit.sigma_micro / MICRO,
        "max_occurrences": admit.max_occurrences or None,
        "withdrawn": None if withdraw is None else {"seq": withdraw.seq, "time": withdraw.time, "reason": withdraw.reason},
        "blocks": list(found.blocks),
        "windows": [
            {
                "window": window.window,
                "seq": window.seq,
                "time": window.time,
                "attempt": window.attempt,
                "first_step": window.first_step,
                "last_step": window.last_step,
            }
            for window in found.windows
        ],
        "steps": found.steps,
        "occurrences": found.occurrences,
        "epsilon": found.epsilon,
        "carried": found.carried,
        "max_epsilon": admit.max_epsilon_micro / MICRO or None,
        "max_delta": admit.max_delta_pico / PICO or None,
        "delta": delta,
        "own_noise": None
        if own is None
        else {"expected_occurrences": own.expected, "multiplier": own.multiplier, "variance": own.variance},
    }


def _print(found: "Trace", own: "OwnNoise | None", delta: float) -> None:
    out, admit, withdraw = console(), found.admit, found.withdraw
    when, since = ("", ", pruned since") if found.pruned else (f" {utc(admit.time)}", "")
    out.print(styled("bold", admit.descriptor_hash.hex(), f"  admitted{when}, leaf {admit.seq}{since}"))
    out.print(
        f"class {admit.class_name}, clip norm {number(admit.clip_micro / MICRO)}, noise {number(admit.sigma_micro / MICRO)}"
    )
    if admit.max_epsilon_micro:
        limit = f"epsilon {number(admit.max_epsilon_micro / MICRO, 6)} at delta {admit.max_delta_pico / PICO:g}"
        out.print(f"signed for at most {limit} over all runs")
    else:
        out.print("signed no limit of epsilon over all runs")
    if own is not None:
        out.print(
            f"its own bounds would need noise of variance {number(own.variance)} per step and coordinate (multiplier "
            f"{number(own.multiplier)}, {number(own.expected)} draws expected), whatever its class is given"
        )
    if withdraw is not None:
        out.print(f"withdrawn {utc(withdraw.time)}, leaf {withdraw.seq}: {withdraw.reason}")
    out.print(f"could touch: {', '.join(found.blocks)}")
    drawn = "" if found.occurrences is None else f", drawn in {found.occurrences}"
    out.print(f"in the pool of {counted(len(found.windows), 'window')}, {counted(found.steps, 'charged step')}{drawn}")
    rows = table("window", "attempt", "first step", "last step", "charged")
    for window in found.windows:
        rows.add_row(*map(str, (window.window, window.attempt, window.first_step, window.last_step)), utc(window.time))
    out.print(rows)
    carried = f", and {spent(found.carried)} in earlier runs" if found.carried else ""
    out.print(f"spent: epsilon {spent(found.epsilon)} at delta {delta:g}{carried}")


def _told_statement(made: "WithdrawalStatement", delta: float) -> dict[str, Any]:
    return {
        "delta": delta,
        "withdrawn": [
            {
                "descriptor_hash": row.descriptor_hash.hex(),
                "seq": row.seq,
                "class": row.class_name,
                "steps": row.steps,
                "epsilon": row.epsilon,
                "epsilon_planned": row.planned,
                "sentences": list(row.sentences),
            }
            for row in made.rows
        ],
        "together": {"contributions": made.members, "epsilon": made.epsilon, "sentence": made.sentence},
    }

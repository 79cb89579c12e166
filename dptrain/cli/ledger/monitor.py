"""`dptrain ledger monitor`: what a growing ledger says of one contributor, for people and for cron jobs."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attest import keys
from attest.attestation import read_sequence
from attest.fixed_point import MICRO, PICO
from attest.schema.plain import utc
from dptrain.cli.inputs import MemberRecords
from dptrain.cli.ledger.place import Now
from dptrain.cli.ledger.proofs import OwnersKey, VerifierKeys, trusted
from dptrain.cli.ledger.show import verdict_line
from dptrain.cli.options import file_option, folder_argument, folder_option, option
from dptrain.cli.output import counted, counting, number, parse_age, spent, styled
from dptrain.cli.results import Shown, Told

if TYPE_CHECKING:
    # Loaded where they are used, as in `dptrain.cli.ledger.commands`: help and completion need none of them.
    from attest.withdrawal import Withdrawal
    from ledger.proofs.monitoring import Bounds, Mine, Watched, WatchedRow


def monitor(
    exports: Annotated[list[Path], folder_argument("EXPORT", "Directories that export wrote.")],
    key: VerifierKeys,
    attestations: Annotated[list[Path], file_option("DATA.attest", "What you signed: every file of yours; repeat.")],
    pub: Annotated[list[Path] | None, file_option("PUB", "A further key of yours, which signed nothing; repeat.")] = None,
    withdrawals: Annotated[Path | None, folder_option("DIR", "Withdrawals that you sent, as attest withdraw wrote.")] = None,
    members: MemberRecords = None,
    delay: Annotated[
        int, option("Until when a withdrawal must be entered, such as 36h.", parser=parse_age, metavar="AGE")
    ] = "7d",
    remember: Annotated[
        Path | None, option("Keep the largest checkpoint per ledger here: finds forks, cuts.", metavar="DIR", file_okay=False)
    ] = None,
    owner_key: OwnersKey = None,
    now: Now = None,
) -> Told:
    """Watch a ledger for what it says of your contributions, and raise an alarm where it is not what you signed.

    Give every attestation file that you have: what is admitted under your key and is in none of them is an alarm. The export
    is audited first. Then for each contribution: admitted or not, the bounds as you signed them and as they are recorded, what
    it has spent, withdrawn or not. Run it again for every new export, with --remember and the withdrawals that you sent. The
    exit code says what to do, for a cron job; of several alarms the highest counts.

    Exit codes: 3 a withdrawal older than `--delay` is not in the ledger, or for another reason than you signed; 4 a
    contribution is recorded otherwise than you signed; 5 something was admitted under your key that is in none of the
    attestations; 6 the ledger was cut back, or has another history than what is remembered.

    Example: `dptrain ledger monitor export/ --key ledger.pub --attestations letters.attest --remember seen/`
    """
    from ledger.proofs.membership import read_admitted
    from ledger.proofs.monitoring import watch

    at = int(time.time()) if now is None else now
    mine = [item for path in attestations for item in _mine(path)]
    ids = [keys.key_id(keys.load_public_key(path)) for path in pub or []]
    sent = [] if withdrawals is None else _withdrawals(withdrawals)
    shown = [read_admitted(path) for path in members or []]
    owner, vkeys = trusted(key, owner_key)
    with counting(f"auditing {counted(len(exports), 'export')}"):
        found = watch(exports, vkeys, mine, sent, shown, delay=delay, now=at, key_ids=ids, remember=remember, owner_key=owner)
    return Told({**found.to_json(), "exit_code": found.exit_code}, _watched_text(found), found.exit_code)


def _watched_text(found: "Watched") -> Iterator[Shown]:
    from ledger.audit.findings import headline

    for report in found.reports:
        about = f"{report.origin or 'no ledger'}: {report.size or 0} leaves"
        yield verdict_line(report.verdict, headline(report.verdict, report.qualifiers), about)
    for row in found.rows:
        yield from _text(row)
    for alarm in found.alarms:
        where = alarm.export if alarm.seq is None else f"{alarm.export}, leaf {alarm.seq}"
        yield styled("bold red", alarm.code, f" {where}: {alarm.sentence}")
    if not found.alarms:
        yield "no alarm"


def _mine(path: Path) -> "list[Mine]":
    from ledger.proofs.monitoring import Mine

    with path.open("rb") as stream:
        return [Mine.of(f"{path.name}, {place}", item) for place, item in enumerate(read_sequence(stream), start=1)]


def _withdrawals(directory: Path) -> "list[tuple[str, Withdrawal]]":
    """Returns the withdrawals in a directory.

    Raises:
        typer.BadParameter: it cannot be read, or holds another file, which could be a withdrawal that nobody watches.
    """
    from ledger.audit.withdrawals import read_withdrawals

    others: list[str] = []
    faults: list[str] = []
    found = list(read_withdrawals(directory, others, lambda code, where, sentence: faults.append(sentence)))
    if others or faults:
        raise typer.BadParameter(f"{directory} holds what is no signed withdrawal: {', '.join(others) or faults[0]}")
    return [(item.name, item.withdrawal) for item in found]


def _text(row: "WatchedRow") -> Iterator[Shown]:
    if row.seq is None:
        here = f"not {'named' if row.unnamed else 'admitted'} in {row.origin}"
        told = here if row.origin else "admitted by none of these ledgers"
    else:
        when = "" if row.time is None else f" {utc(row.time)}"
        told = f"admitted in {row.origin}{when}, leaf {row.seq}"
    yield styled("bold", row.name, f"  {row.descriptor_hash[:16]}  {told}")
    if row.unnamed:
        stayed = f"of {counted(row.unnamed, 'contribution')} that stayed no names are left; it may be one of them"
        yield f"  {stayed}: give its member record with --member"
    if row.recorded is not None:
        same = row.signed == row.recorded
        yield f"  {'signed and recorded' if same else 'recorded'}: {_bounds(row.recorded)}"
        if row.signed is not None and not same:
            yield f"  signed: {_bounds(row.signed)}"
        carried = f", and {spent(row.carried)} in earlier runs" if row.carried else ""
        yield f"  spent: epsilon {spent(row.epsilon)} in {counted(row.steps, 'charged step')}{carried}"
    if row.withdrawn is not None:
        yield f"  withdrawn {utc(row.withdrawn.time)}, leaf {row.withdrawn.seq}: {row.withdrawn.reason}"
    elif row.asked is not None:
        yield f"  you withdrew it {utc(row.asked)}; no leaf says so yet"


def _bounds(bounds: "Bounds") -> str:
    clip, sigma = number(bounds.clip_micro / MICRO), number(bounds.sigma_micro / MICRO)
    told = f"class {bounds.class_name}, clip norm {clip}, noise {sigma}"
    if bounds.max_occurrences:
        told += f", at most {counted(bounds.max_occurrences, 'draw')}"
    if bounds.max_epsilon_micro:
        limit = f"epsilon {number(bounds.max_epsilon_micro / MICRO, 6)} at delta {bounds.max_delta_pico / PICO:g}"
        told += f", at most {limit} over all runs"
    return told

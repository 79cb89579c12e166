"""`dptrain ledger verify`, `report` and `monitor`: audits of exports, for auditors and for contributors."""

import json as json_text
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from attest import keys
from attest.fixed_point import MICRO, PICO
from attest.schema.plain import utc
from attest.withdrawal import Withdrawal
from dptrain.cli.inputs import MemberRecords, read_attestations, refuse_to_overwrite
from dptrain.cli.ledger import show as ledger_show
from dptrain.cli.ledger.place import ExportDirectory, Now, OwnersKey, VerifierKeys, trusted
from dptrain.cli.ledger.show import verdict_line
from dptrain.cli.options import argument, file_option, folder_argument, folder_option, option, parse_age, wrong_if
from dptrain.cli.output import counted, counting, number, spent, styled
from dptrain.cli.results import Shown, Told
from dptrain.errors import ConfigError
from ledger.audit import verify_export
from ledger.audit.findings import exit_code, headline
from ledger.audit.withdrawals import read_withdrawals
from ledger.budget.audit import given_texts, holds_budget, verify_budget
from ledger.proofs.membership import read_admitted
from ledger.proofs.memory import hold_against_memory
from ledger.proofs.monitoring import Bounds, Mine, Watched, WatchedRow, watch
from ledger.report import write_report
from ledger.report.extras import read_extras


def verify(
    export: ExportDirectory,
    key: VerifierKeys,
    owner_key: OwnersKey = None,
    require_quorum: Annotated[
        bool, option("Fail unless the auditors and witnesses whom the policy asks for have cosigned.", "--require-quorum")
    ] = False,
    earlier: Annotated[
        list[Path] | None,
        folder_option(
            "EXPORT",
            "Export of an earlier run, or of a budget of texts, that this one counts; then what was spent before is computed "
            "again too. Of a budget log: export of another one from which the same contributions pay, or of a run. Repeat.",
        ),
    ] = None,
    min_size: Annotated[
        int | None, option("Fail if there are fewer leaves: an old copy, or a cut tail.", metavar="N", min=1)
    ] = None,
    max_age: Annotated[
        int | None,
        option(
            "Fail if the last leaf, and every auditor's cosignature, is older, such as 7d or 36h; default: any age.",
            parser=parse_age,
            metavar="AGE",
        ),
    ] = None,
    now: Now = None,
    remember: Annotated[
        Path | None,
        option(
            "Keep the largest checkpoint per ledger here, and fail if a later export does not extend it.",
            metavar="DIR",
            file_okay=False,
        ),
    ] = None,
    withdrawals: Annotated[Path | None, folder_option("DIR", "Signed withdrawals: hold leaves against them.")] = None,
    registry: Annotated[
        Path | None,
        file_option("REGISTRY", "Registry of the contributors' keys, in place of the one in the export, which it must extend."),
    ] = None,
    policy: Annotated[
        list[Path] | None,
        file_option("POLICY", "Of a budget log: signed policy that its rules of generation name. Repeat."),
    ] = None,
    require_full: Annotated[
        bool, option("Exit with code 1 unless the verdict is FULL: TOLD and SUMMARISED fail too.", "--require-full")
    ] = False,
) -> Told:
    """Audit an export with the ledger's public key: FULL, SUMMARISED, TOLD or FAILED.

    Every number is derived again from the leaves, and every finding names a file or a leaf. Needs no network, no data, no
    model and no torch. Get the key from the ledger's operator by another way than the export. FULL needs what contributors
    signed in the export, and the registry of their keys, there or with --registry. Behind the verdict stand the
    words that weaken it, such as OPEN or NO_QUORUM; docs/auditors.md has them all. Read the notes too: they say what nothing
    is wrong with and a reader should know. An export of a budget log is added up; with --owner-key, --policy and --registry
    consent to generation is held against what was signed. Times are held against the clock of this machine, so see that it is
    right. Exit code 1 for FAILED; with --require-full for whatever is not FULL.

    Example: `dptrain ledger verify export/ --key ledger.pub --owner-key owner.pub --remember seen/`
    """
    owner, vkeys = trusted(key, owner_key)
    if holds_budget(export):
        wrong_if(require_quorum, "this is an export of a budget, which no policy gives auditors: --require-quorum is for runs")
        unread = (policy or registry) and owner is None
        wrong_if(bool(unread), "--policy and --registry are read under the corpus owner's key: give it with --owner-key")
        brought: dict[str, Any] = {"owner_key": owner, "policies": policy or (), "registry": registry}
        texts = [path for path in earlier or () if holds_budget(path)]
        brought |= {"withdrawals": withdrawals, "others": texts, "runs": [one for one in earlier or () if one not in texts]}
        with counting(f"auditing {export}"):
            budget = verify_budget(export, vkeys, now=now, minimum_size=min_size, max_age=max_age, **brought)
        told = budget if remember is None else hold_against_memory(budget, export, remember, vkeys)
        return Told(told.to_json(), ledger_show.budget_text(told), exit_code(told.verdict, require_full=require_full))
    wrong_if(bool(policy), "this is the export of a run, which holds its policy: --policy is for the export of a budget")
    asked: dict[str, Any] = {"require_quorum": require_quorum, "minimum_size": min_size, "max_age": max_age, "now": now}
    asked |= {"withdrawals": withdrawals, "registry": registry, "owner_key": owner}
    budgets = [path for path in earlier or () if holds_budget(path)]
    runs = [path for path in earlier or () if path not in budgets]
    with counting(f"auditing {export}"):
        texts = [given_texts(path, vkeys, now=now, owner_key=owner, registry=registry if owner else None) for path in budgets]
        report = verify_export(export, vkeys, earlier=runs or None, texts=texts, **asked)
    if remember is not None:
        report = hold_against_memory(report, export, remember, vkeys)
    return Told(report.to_json(), ledger_show.audit_text(report), exit_code(report.verdict, require_full=require_full))


def report(
    export: ExportDirectory,
    out: Annotated[Path, argument("New file.", metavar="REPORT.html")],
    key: VerifierKeys,
    owner_key: OwnersKey = None,
    extras: Annotated[Path | None, file_option("JSON", "Gate counts and results to show, unverified.")] = None,
    now: Now = None,
) -> Told:
    """Audit an export and write one HTML page about it, for people.

    The page fetches and runs nothing, prints, and can be read on a phone; docs/report.md says what is in it.

    Example: `dptrain ledger report export/ report.html --key ledger.pub --owner-key owner.pub`
    """
    refuse_to_overwrite(out)
    told = _extras(extras)
    owner, vkeys = trusted(key, owner_key)
    with counting(f"auditing {export}"):
        audited = verify_export(export, vkeys, owner_key=owner, now=now)
    write_report(export, out, report=audited, extras=told)
    return Told(
        {"path": str(out), "verdict": audited.verdict, "qualifiers": list(audited.qualifiers)},
        [f"wrote {out}: {headline(audited.verdict, audited.qualifiers)}"],
        exit_code(audited.verdict),
    )


def _extras(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        value = json_text.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError("EXTRAS", f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("EXTRAS", f"{str(path)!r} holds no JSON object")
    read_extras(value)  # an audit may take a minute: what would be refused after it is refused before
    return value


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
    at = int(time.time()) if now is None else now
    mine = [
        Mine.of(f"{path.name}, {place}", item)
        for path in attestations
        for place, item in enumerate(read_attestations(path), start=1)
    ]
    ids = [keys.key_id(keys.load_public_key(path)) for path in pub or []]
    sent = [] if withdrawals is None else _withdrawals(withdrawals)
    shown = [read_admitted(path) for path in members or []]
    owner, vkeys = trusted(key, owner_key)
    with counting(f"auditing {counted(len(exports), 'export')}"):
        found = watch(exports, vkeys, mine, sent, shown, delay=delay, now=at, key_ids=ids, remember=remember, owner_key=owner)
    return Told({**found.to_json(), "exit_code": found.exit_code}, _watched_text(found), found.exit_code)


def _watched_text(found: Watched) -> Iterator[Shown]:
    for report in found.reports:
        about = f"{report.origin or 'no ledger'}: {report.size or 0} leaves"
        yield verdict_line(report.verdict, report.qualifiers, about)
    for row in found.rows:
        yield from _text(row)
    for alarm in found.alarms:
        where = alarm.export if alarm.seq is None else f"{alarm.export}, leaf {alarm.seq}"
        yield styled("bold red", alarm.code, f" {where}: {alarm.sentence}")
    if not found.alarms:
        yield "no alarm"


def _withdrawals(directory: Path) -> list[tuple[str, Withdrawal]]:
    """Returns the withdrawals in a directory; refused if it holds another file: a withdrawal, maybe, that nobody watches."""
    others: list[str] = []
    faults: list[str] = []
    found = list(read_withdrawals(directory, others, lambda code, where, sentence: faults.append(sentence)))
    if others or faults:
        raise typer.BadParameter(f"{directory} holds what is no signed withdrawal: {', '.join(others) or faults[0]}")
    return [(item.name, item.withdrawal) for item in found]


def _text(row: WatchedRow) -> Iterator[Shown]:
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


def _bounds(bounds: Bounds) -> str:
    clip, sigma = number(bounds.clip_micro / MICRO), number(bounds.sigma_micro / MICRO)
    told = f"class {bounds.class_name}, clip norm {clip}, noise {sigma}"
    if bounds.max_occurrences:
        told += f", at most {counted(bounds.max_occurrences, 'draw')}"
    if bounds.max_epsilon_micro:
        limit = f"epsilon {number(bounds.max_epsilon_micro / MICRO, 6)} at delta {bounds.max_delta_pico / PICO:g}"
        told += f", at most {limit} over all runs"
    return told

"""Verifies an export of a budget log offline, from its files and a pinned key alone: every sum is added up again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from attest.fixed_point import MICRO, PICO
from attest.schema.plain import is_ahead, machine_time, utc
from ledger import layout
from ledger.audit.findings import MAX_FINDINGS, Finding, Verdict, weakest
from ledger.audit.given import Export, Leaves, check_keys
from ledger.audit.texts import GivenTexts
from ledger.budget.audit.charges import Charges
from ledger.budget.audit.consents import Brought, Consents
from ledger.budget.audit.over_runs import OverRuns, judge_over_runs
from ledger.budget.audit.read import read_texts
from ledger.budget.audit.report import BudgetReport, CapRow
from ledger.budget.leaves import Epoch, Header, decode_leaf, is_budget
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.budget.state import BudgetState
from ledger.errors import BudgetExhausted, ExportChanged, LeafRefused, ProofError
from ledger.trust import auditors_policy

_ROUNDED: Final = 1e-9
"""Part by which two machines may compute another epsilon of a cap."""


def holds_budget(path: str | Path) -> bool:
    """Tells whether the first leaf of an export says that it is of a budget log. Nothing is verified: it tells which audit to
    ask."""
    export = Export(Path(path), lambda *said: None)
    if not export.scan():
        return False
    names = (layout.entries_path(0, width) for width in range(1, layout.TILE_WIDTH + 1))
    name = next((name for name in names if name in export.names), None)
    data = None if name is None else export.read(name)
    return data is not None and len(data) > 2 and is_budget(data[2 : 2 + int.from_bytes(data[:2], "big")])


def verify_budget(
    path: str | Path,
    keys: Sequence[str],
    *,
    now: int | None = None,
    minimum_size: int | None = None,
    max_age: int | None = None,
    owner_key: bytes | None = None,
    policies: Sequence[str | Path] = (),
    registry: str | Path | None = None,
    withdrawals: str | Path | None = None,
    others: Sequence[str | Path] = (),
    runs: Sequence[str | Path] = (),
    contributions: Sequence[bytes] = (),
) -> BudgetReport:
    """Audits an export of a budget log.

    Guarantee: FULL means: the directory holds exactly the files that its signed size calls for; they are the tree whose root a
    pinned key signed, which is the key in the header; every cap in rho is worth no more than its epsilon at its delta; every
    reservation names a mechanism of the header and costs what that says; no unit was above its cap after any leaf; nothing was
    freed but by the one COMMIT leaf of its reservation, and no more than was reserved; thresholds were told when they were
    reached, once; totals are those of the leaves; and no time runs back, or lies ahead of the auditor's clock. Of a log with
    rules of generation it means besides: the owner signed every rule, as it stands, in the policy that it names; every
    contribution that paid was admitted before by what its contributor signed, for generation, for the class of its rule, under
    a key of the registry given that was valid then; and it paid what the numbers of that rule cost at least, never more than
    the rule allows, and nothing behind its withdrawal; each text was paid for by as many contributions as its rule has
    references, all of that one rule. How many tokens of a text were computed is the operator's word, and so are the times of
    the leaves: qualifiers say so where something was freed, or a withdrawal was signed before; and where somebody else paid for
    a reservation, that no text was made by it. No contributor, nor the person behind several, has more contributions admitted
    by one log than registry and policy allow. Where the policy or the registry is not given the verdict is TOLD, and qualifiers
    say whose word stands in their place. With `others`, verdict and qualifiers are those of all of these logs together: no
    contribution that one of them admitted spent more over all of them than the lowest of the rules under which they admitted it
    allows over all texts, and a qualifier says where one paid after another log had entered its withdrawal. That there is no
    further log, and that the other exports are the newest, is the operator's word, as the notes say. With limits of epsilon
    over all runs it means what `ledger.budget.audit.over_runs.judge_over_runs` says of the runs that were given. The audit
    cannot tell whether something was computed for which nothing was reserved, or whether a mechanism adds the noise that its
    rho needs.

    Args:
        keys: verifier keys of the log, obtained from a place that the exporter does not control.
        now: the auditor's clock, POSIX seconds; that of this machine without.
        minimum_size: fail if the checkpoint has fewer leaves; None for unknown.
        max_age: fail if the last leaf is older than this many seconds; None for any age.
        owner_key: public key of the corpus owner, under which policies and registry are read.
        policies: signed policies that the rules of the header name. registry: of the contributors' keys.
        withdrawals: directory of signed withdrawals, which WITHDRAWN leaves have to enter.
        others: exports of other budget logs from which the same contributions pay, under keys that are given too.
        runs: exports of training runs over the corpus, likewise: those that the log counts, and all others there are.
        contributions: digests of descriptors of which the report says what was charged, in this order.

    Returns:
        The report. Bad input never raises: it is a finding.
    """
    clock = machine_time() if now is None else now
    findings: list[Finding] = []
    report: dict[str, Any] = {}
    verdicts: list[Verdict] = []
    try:
        brought = Brought.read(owner_key, policies, registry, withdrawals, lambda *said: findings.append(Finding(*said)))
        first = _verify(Path(path), list(keys), clock, (minimum_size, max_age), findings, report, brought, contributions)
        beside = [_other(Path(other), list(keys), clock, brought, findings) for other in others]
        if first is not None:
            together = [first, *(one for one in beside if one is not None)]
            _judge_together(together, brought, findings)
            over = OverRuns() if findings else _over_runs(together, runs, list(keys), brought, clock, findings)
            _unite(together, report, over, plain=not findings)
            verdicts += over.verdicts
    except Exception as error:  # an input that breaks the auditor must not pass the audit
        findings.append(Finding("INTERNAL", str(path), f"the audit broke off: {type(error).__name__}: {error}"))
    told = {"CONSENT_TOLD", "RULES_TOLD"} & set(report.get("qualifiers", ()))
    verdict: Verdict = "FAILED" if findings else weakest(["TOLD" if told else "FULL", *verdicts])
    found = BudgetReport(verdict=verdict, findings=tuple(findings[:MAX_FINDINGS]), now=clock, **report)
    return replace(found, notes=(*_over_all(found, len(others)), *found.notes)) if not findings else found


@dataclass(frozen=True, slots=True)
class _Log:
    """Holds what one export adds up to, and what its own audit says."""

    path: Path
    state: BudgetState
    leaves: Leaves
    consents: Consents
    report: dict[str, Any]


def _verify(
    path: Path,
    keys: list[str],
    now: int,
    asked: tuple[int | None, int | None],
    findings: list[Finding],
    report: dict[str, Any],
    brought: Brought,
    wanted: Sequence[bytes],
) -> _Log | None:
    """Audits one export; returns what its leaves add up to, None where they could not be read."""

    def fault(code: str, where: str, sentence: str) -> None:
        findings.append(Finding(code, where, sentence))

    export = Export(path, fault)
    opened = None if not check_keys(keys, fault) or not export.scan() else export.checkpoint(keys)
    if opened is None:
        return None
    note, checkpoint = opened
    if note is None:
        fault("UNSIGNED", layout.CHECKPOINT, "none of the keys given signed the checkpoint")
        return None
    report.update(origin=checkpoint.origin, size=checkpoint.size, root_hex=checkpoint.root.hex())
    minimum, max_age = asked
    qualifiers: set[str] = set()
    if minimum is None:
        qualifiers.add("UNCOMPARED")
    elif checkpoint.size < minimum:
        sentence = f"the checkpoint has {checkpoint.size} leaves, at least {minimum} are asked for"
        fault("OLD", layout.CHECKPOINT, f"{sentence}: an old copy; ask the operator for the newest export")
    if checkpoint.size == 0:
        fault("EMPTY", layout.CHECKPOINT, "an empty tree has no header")
        return None
    leaves = export.leaves(checkpoint) if export.check_names(checkpoint.size) else None
    if leaves is None:
        return None
    if export.retained or export.terms or layout.REGISTRY in export.names:
        fault("UNKNOWN_FILE", str(path), "an export of a budget has no pruned leaves, no attestations and no registry")
    consents, charges = Consents(brought, fault), Charges(wanted)
    state = _added_up(leaves, findings, report, consents, charges)
    if state is None:
        return None
    header = state.header
    consents.judge_rules(header)
    qualifiers |= consents.told(state)
    if header.origin != checkpoint.origin or header.log_vkey not in {str(item.key) for item in note.signatures}:
        sentence = f"the header is of {header.origin!r} under {header.log_vkey}, the checkpoint of {checkpoint.origin!r}"
        fault("ORIGIN", layout.CHECKPOINT, f"{sentence} under another key, or another origin")
    if export.read(layout.POLICY) not in (None, auditors_policy(header.log_vkey).text()):
        fault("POLICY_FILE", layout.POLICY, "the trust policy is not that of the log's key")
    _judge_caps(header, fault)
    if is_ahead(state.last_time, now):
        fault("AHEAD", f"seq {state.size - 1}", f"the last leaf is of {utc(state.last_time)}, the clock here says {utc(now)}")
    if max_age is not None and state.last_time < now - max_age:
        fault("STALE", layout.CHECKPOINT, f"the last leaf is of {utc(state.last_time)}; ask the operator for the newest export")
    report.update(
        began=header.time,
        last_time=state.last_time,
        log_keys=(header.log_vkey,),
        beside=tuple((item.origin, item.size, item.root.hex()) for item in header.beside),
        caps=tuple(_cap_rows(state)),
        reserves=state.reserves,
        open=len(state.open),
        reserved_nano=state.reserved,
        freed_nano=state.freed,
        budget_epochs=state.epochs,
        undelivered=len(state.undelivered),
        qualifiers=tuple(sorted(qualifiers)),
        generation=tuple(consents.rows(state)),
        contributions=tuple(charges.rows(state)),
    )
    if not findings:
        report["notes"] = tuple(_notes(BudgetReport(verdict="FULL", findings=(), now=now, **report)))
    return _Log(path, state, leaves, consents, report)


def _other(path: Path, keys: list[str], now: int, brought: Brought, findings: list[Finding]) -> _Log | None:
    """Audits the export of another log, and reports where it cannot be relied on."""
    wrong: list[Finding] = []
    found = _verify(path, keys, now, (None, None), wrong, {}, brought, ())
    if wrong:
        sentence = f"its own audit FAILED: {wrong[0].code} {wrong[0].where}: {wrong[0].sentence}"
        findings.append(Finding("OTHER", str(path), sentence))
        return None
    return found


def _judge_together(together: list[_Log], brought: Brought, findings: list[Finding]) -> None:
    """Adds up over several logs what contributions spent, and wants every policy that was given to be named by one of them."""
    logs = [one.state for one in together]
    named = {rule.policy for log in logs for rule in log.header.generation}
    for digest in sorted(brought.policies.keys() - named):
        sentence = f"a policy was given, {digest.hex()}, and no rule of the header names it"
        findings.append(Finding("POLICY", "seq 0", sentence))
    if len({log.header.log_id for log in logs}) < len(logs):
        findings.append(Finding("OTHER", "seq 0", "two of the exports are of one log; give the newest export of each, once"))
        return
    most: dict[bytes, int] = {}
    where: dict[bytes, str] = {}
    for one in together:
        for account, admitted in one.state.admitted.items():
            allowed = one.state.rules[admitted.rule].max_rho_nano
            most[account] = min(allowed, most.get(account, allowed))
            where.setdefault(account, f"seq {admitted.seq}" if one is together[0] else f"{one.path}: seq {admitted.seq}")
    for account, allowed in most.items():
        spent = sum(log.spent(account) for log in logs)
        if len(logs) > 1 and spent > allowed:
            sentence = f"the contribution {account.hex()} spent {spent} of 1e-9 rho over {len(logs)} logs"
            findings.append(Finding("TOGETHER", where[account], f"{sentence}; its rule allows {allowed} over all texts"))


def _over_runs(
    together: list[_Log], runs: Sequence[str | Path], keys: list[str], brought: Brought, now: int, findings: list[Finding]
) -> OverRuns:
    """Holds the first log against runs and the other logs."""
    first, *others = together
    exports = [Path(path) for path in runs]
    passed = BudgetReport(verdict="FULL", findings=(), now=now)
    budgets = [GivenTexts(one.path, passed, read_texts(one.leaves)) for one in others]
    how = (brought.owner_key, now, lambda *said: findings.append(Finding(*said)))
    return judge_over_runs(first.state, first.leaves, exports, budgets, keys, *how)


def _unite(together: list[_Log], report: dict[str, Any], over: OverRuns, *, plain: bool) -> None:
    """Has the report of the first log say what weakens that of any, and what runs say: qualifiers, notes, and texts that it
    made of what another one, or a run, had withdrawn. No size is asked for of the others: UNCOMPARED speaks of the first.
    `plain`: whether notes say what nothing is wrong with too."""
    qualifiers, notes = set(report["qualifiers"]), list[str]()
    for number, one in enumerate(together):
        own = [*(one.report.get("notes", ()) if plain else ()), *one.consents.notes]
        notes += [f"{one.path}: {note}" for note in own] if number else own
        qualifiers |= set(one.report["qualifiers"]) - ({"UNCOMPARED"} if number else set())
    qualifiers |= over.qualifiers
    notes += over.notes
    entered: dict[bytes, int] = dict(over.withdrawn)
    signed: dict[bytes, int] = {}  # what was given, by the logs that show who may withdraw
    for one in together:
        for known, found in ((entered, one.consents.withdrawn_at), (signed, one.consents.signed_at)):
            for account, time in found.items():
                known[account] = min(time, known.get(account, time))
    late: set[bytes] = set()
    for one in together:
        for account, time in one.consents.last_paid.items():
            unheld = account not in one.state.admitted and time > signed.get(account, time)
            if unheld or time > entered.get(account, time):
                late.add(account)
    if late:
        qualifiers.add("WITHDRAWAL_LATE")
        told = f"{len(late)} contributions paid for a text after another log, or a run, had entered or shown their withdrawal"
        notes.append(f"{told}, {min(late).hex()} among them; the times of leaves are the operator's word")
    report.update(qualifiers=tuple(sorted(qualifiers)), notes=tuple(notes))


def _added_up(
    leaves: Leaves, findings: list[Finding], report: dict[str, Any], consents: Consents, charges: Charges
) -> BudgetState | None:
    """Replays the leaves; None where there is no header."""
    state: BudgetState | None = None
    behind, at = 0, 0
    try:
        for at, body in enumerate(leaves):  # noqa: B007 (it is where the replay broke off)
            leaf = decode_leaf(body)
            if state is None:
                if not isinstance(leaf, Header):
                    raise LeafRefused("HEADER", "the first leaf is not the header of a budget log", seq=0)
                state = BudgetState(leaf)
                consents.begin(leaf)
                charges.begin(leaf)
                continue
            state.apply(leaf)
            consents.see(leaf)
            charges.see(leaf)
            behind = 0 if isinstance(leaf, Epoch) else behind + 1
        if state is not None and next(state.due(), None) is not None:
            raise LeafRefused("NOTICE", "a threshold was reached by the last leaf, and no NOTICE follows")
    except (LeafRefused, BudgetExhausted, ExportChanged, ProofError) as error:
        findings.append(Finding(error.code, f"seq {at}", error.sentence))
    report.update(behind_epoch=behind)
    return state


def _judge_caps(header: Header, fault: Any) -> None:
    for cap in header.caps:
        worth = epsilon_of_rho(cap.rho_nano / NANO, cap.delta_pico / PICO)
        if worth > cap.epsilon_micro / MICRO * (1 + _ROUNDED):
            sentence = f"the cap of a {cap.unit} is {cap.rho_nano} of 1e-9 rho, worth epsilon {worth:.6f}"
            fault("CAP", "seq 0", f"{sentence}, and the header promises {cap.epsilon_micro / MICRO:.6f}")


def _cap_rows(state: BudgetState) -> list[CapRow]:
    rows = []
    for cap in state.header.caps:
        spent = [account.spent for account in state.accounts.values() if account.unit == cap.unit]
        most, delta = max(spent, default=0), cap.delta_pico / PICO
        epsilon = epsilon_of_rho(most / NANO, delta)
        rows.append(CapRow(cap.unit, cap.epsilon_micro / MICRO, delta, cap.rho_nano, len(spent), most, epsilon))
    return rows


def _over_all(report: BudgetReport, others: int) -> list[str]:
    """Says what stands on no leaf of any log that was given."""
    notes = []
    if report.generation:
        told = "a rule holds over all texts of a contribution, and that no other log charged anything to it"
        notes.append(f"{told} is the operator's word" + (f"; {others} more were looked at" if others else " (--earlier)"))
    if others:
        notes.append(f"that exports of {others} other logs are the newest is the operator's word: no size was asked of them")
    return notes


def _notes(report: BudgetReport) -> list[str]:
    """Says of one log what nothing is wrong with and a reader should know."""
    notes = []
    if report.open:
        notes.append(f"{report.open} reservations have no COMMIT leaf; they count whole")
    if report.behind_epoch:
        notes.append(f"{report.behind_epoch} leaves stand behind the last epoch")
    if report.undelivered:
        notes.append(f"{report.undelivered} notices are not recorded as delivered")
    for row in report.generation:
        if row.admitted:
            told = "whose signatures were not verified" if "CONSENT_TOLD" in report.qualifiers else "under keys of the registry"
            notes.append(f"class {row.rule.name}: {row.admitted} contributions were admitted to generation, {told}")
    return notes

"""Traces one contribution through several exports: what became of it in each, what it spent in all, and what none shows.

Every export is audited by itself first; one that FAILED is asked nothing, and a trace over it is refused. The exports are held
against each other only as far as an answer hangs on it: two histories of one ledger are refused.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

from ledger.audit.earlier import ANSWERED
from ledger.audit.findings import Verdict, weakest
from ledger.audit.histories import judge_citations, longest
from ledger.audit.verify import OpenedExport, open_export
from ledger.errors import LedgerBehind, LedgerError, LedgerForked
from ledger.leaves import Admit, Header, Previous, Withdraw
from ledger.leaves.header import COMPROMISED, TEXTS
from ledger.proofs.membership import Admitted, name_member, shows_member
from ledger.replay import Replay
from ledger.replay.budgets import TOLERANCE_MICRO, Account, Limit, Spending, Use, composed, limits_over, of_run, reached
from ledger.replay.contributions import stand_in_name
from ledger.replay.earlier_runs import Accounts
from ledger.views.trace import Trace, Wanted, trace

DRAWS: Final = "in which of these steps it was drawn: draws are secret, and written nowhere"
OTHERS: Final = "what was spent in runs whose exports were not given"
FOR_TEXTS: Final = "what it spends for texts, which is in no figure here ('dptrain ledger show' tells it), in the budget log"
ANEW: Final = "the same content signed again: it has another nonce and another anchor, and counts as another contribution"
UNLOGGED: Final = "training that no ledger recorded, and models that were begun from one of these releases"
CLOCKS: Final = "that times are right: each ledger has the clock of its operator"

Signers = Callable[[Header], Collection[bytes]]


@dataclass(frozen=True, slots=True)
class TracedRun:
    """Holds one of the runs that were asked. `lost`: whether another run says that its key was lost before it was closed: it
    counts with its whole plan then."""

    opened: OpenedExport
    trace: Trace | None
    lost: bool = False

    @property
    def run(self) -> Replay:
        """Returns the run, replayed to its last leaf."""
        return self.opened.run

    @property
    def origin(self) -> str:
        """Returns the origin of its ledger."""
        return self.run.header.origin

    @property
    def unnamed(self) -> int:
        """Says how many stayed there of whom nothing says who they are, if the contribution may be one of them."""
        return sum(self.run.register.unnamed) if self.trace is None else 0


@dataclass(frozen=True, slots=True)
class LimitUse:
    """Says what several runs use of a limit of epsilon over all of them. `planned`: the most that could have been by the end of
    any run, as that was planned, with what was spent before it."""

    limit: Limit
    used: float
    planned: float

    @property
    def held(self) -> bool:
        """Tells whether no run began that had no room: only then the limit holds however each run was chosen."""
        return not Use(self.limit, self.planned).too_much(TOLERANCE_MICRO)


@dataclass(frozen=True, slots=True)
class AtWithdrawal:
    """Tells of the first withdrawal that somebody signed, and what was spent by then and after.

    Attributes:
        epsilon: composed over all runs, of what was charged by its time; None like `TracedOver.epsilon`.
        steps_after: steps charged later in other runs, to which the withdrawal had not come: 0 is as it should be.
    """

    origin: str
    leaf: Withdraw
    epsilon: float | None
    steps_after: int


@dataclass(frozen=True, slots=True)
class TracedOver:
    """Traces a contribution over several runs.

    Attributes:
        runs: all that were asked, in the order in which they began.
        verdict: the weakest of their verdicts: what is composed rests on each of them.
        delta: of the composed epsilon: the smallest of the policies of runs that admitted it.
        epsilon: of these runs composed, at that delta; None where its class is public in one: nothing bounds what was learned.
        limits: every limit over all runs under which it was admitted, and what of it these runs use.
        withdrawal: its first withdrawal that somebody signed; None without any.
        not_given: earlier ledgers, and budgets of texts, that a run counts, and whose export is not here.
        descriptors: the descriptor hashes found: more than one where a content was signed again with its old nonce.
    """

    runs: tuple[TracedRun, ...]
    verdict: Verdict
    qualifiers: tuple[str, ...]
    delta: float
    epsilon: float | None
    limits: tuple[LimitUse, ...]
    withdrawal: AtWithdrawal | None
    not_given: tuple[Previous, ...]
    descriptors: tuple[bytes, ...]
    unseen: tuple[str, ...]

    @property
    def found(self) -> tuple[TracedRun, ...]:
        """Returns the runs that admitted it, at least one."""
        return tuple(item for item in self.runs if item.trace is not None)

    @property
    def composed(self) -> tuple[TracedRun, ...]:
        """Returns the runs that are composed: those that admitted it, and those that may have behind where their key was lost.
        """
        return tuple(item for item in self.runs if item.trace is not None or item.lost)


def open_exports(
    paths: Iterable[str | Path], keys: Sequence[str], *, owner_key: bytes | None = None, now: int | None = None
) -> tuple[OpenedExport, ...]:
    """Audits exports, and returns the longest of each ledger, in the order in which their runs began.

    Args:
        paths: the directories; of two exports of one ledger the longer is asked.
        keys: verifier keys of their ledgers, as for `verify_export`.
        owner_key: likewise, for all of them.

    Raises:
        ExportRefused: code FAILED, the audit of one found something.
        LedgerForked: two of them, or what one cites of another, are two histories of one ledger; or one goes on behind where
            another says that its key was lost.
        LedgerBehind: one is shorter than another says that it was.
        ExportChanged, LeafRefused, ProofError: one changed after its audit.
    """
    opened = {Path(path): open_export(path, keys, owner_key=owner_key, now=now) for path in paths}
    shown = longest([item.given for item in opened.values()], _refuse)
    for one in shown:
        judge_citations(shown, one, _refuse)
    return tuple(opened[one.path] for one in sorted(shown, key=lambda one: (one.header.time, one.header.origin)))


def trace_over(
    exports: Sequence[OpenedExport], wanted: Wanted, signers: Signers | None = None, members: Sequence[Admitted] = ()
) -> TracedOver:
    """Finds a contribution in several runs, and composes what it spent.

    Guarantee: `epsilon` is an upper bound, at `delta` and under zero-out adjacency, of all that these runs released together,
    if none of them was chosen by looking at what another one released (`ledger.replay.budgets.composed`; docs/mechanism,
    Accounting). A limit that is `LimitUse.held` holds without that condition (docs/mechanism, Theorem 13). Both rest on the
    verdicts of the runs, count no texts (`unseen` names the budgets that a run counts), and count these runs alone, one whose
    key was lost with its whole plan, whether its leaves admit the contribution or not; and of these not one of which nothing
    says whether it is among those that stayed there (`TracedRun.unnamed`), which `unseen` says.

    Args:
        signers: takes the header of a run that admitted it, and returns the ids of the keys that may have signed it; None for
            any. A contribution under another key is refused.
        members: its member records, by which it is found in runs whose admissions are gone.

    Raises:
        LedgerError: code NOT_FOUND, none of them admitted it.
        AnchorRefused: one admitted it under another descriptor, content or key.
        AccountantError: there is no bound of these runs together.
    """
    runs = _traced(exports, wanted, members)
    result = [(item, item.trace) for item in runs if item.trace is not None]
    if not result:
        raise _not_found(runs)
    if signers is not None:
        for item, found in result:
            found.require_signer(signers(item.run.header))
    public = any(found.epsilon is None for _, found in result)
    delta = min(item.run.header.delta for item, _ in result)
    accounts = _accounts(runs, result[0][1].admit)
    not_given = _not_given(runs)
    return TracedOver(
        runs=runs,
        verdict=weakest(item.opened.report.verdict for item in runs),
        qualifiers=_qualifiers(runs, not_given),
        delta=delta,
        epsilon=None if public else composed((own.spent for own, _ in accounts), delta),
        limits=_limits(accounts),
        withdrawal=_at_withdrawal(runs, result[0][1].admit, None if public else delta),
        not_given=not_given,
        descriptors=tuple(dict.fromkeys(found.admit.descriptor_hash for _, found in result)),
        unseen=(*_unnamed(runs), *_unseen(result, not_given)),
    )


def _traced(exports: Sequence[OpenedExport], wanted: Wanted, members: Sequence[Admitted]) -> tuple[TracedRun, ...]:
    """Returns what became of it in each run; where its leaf is gone it is looked for by the descriptor hash of elsewhere."""
    shown = [member for member in members if any(shows_member(item.run, member) for item in exports)]
    for item in exports:
        for member in shown:
            name_member(item.run, member)
    records = (member.shown.member for member in shown)
    names = {said.descriptor_hash for said in records if wanted.is_of(said.seq, said.descriptor_hash, said.content_anchor)}
    lost = {cited.header_digest for item in exports for cited in item.run.header.previous if cited.reason == COMPROMISED}
    runs = [TracedRun(item, _trace(item, wanted), item.given.digest in lost and not item.run.closed) for item in exports]
    names |= {item.trace.admit.descriptor_hash for item in runs if item.trace is not None}
    return tuple(run if run.trace is not None else replace(run, trace=_first(run.opened, names)) for run in runs)


def _first(export: OpenedExport, names: Iterable[bytes]) -> Trace | None:
    """Returns the first trace of one of these descriptor hashes, None without any."""
    found = (_trace(export, Wanted(descriptor_hash=name)) for name in names)
    return next((trace for trace in found if trace is not None), None)


def _not_found(runs: Sequence[TracedRun]) -> LedgerError:
    origins = ", ".join(item.origin for item in runs)
    told = f"none of {origins} admitted it: never admitted, or the content was signed again, with another nonce, and admitted"
    how = " as that; give the attestation of that time, or the export of another run"
    if any(item.unnamed for item in runs):
        how += "; or it stayed in one whose admissions are gone: give its member record"
    return LedgerError("NOT_FOUND", told + how)


def _accounts(runs: Iterable[TracedRun], signed: Admit) -> list[tuple[Account, Account]]:
    """Returns what was spent in each run where its class is private, and what could have been by plan, in order of the runs."""
    found = []
    for item in runs:
        if item.trace is None and not item.lost:
            continue
        admit = signed if item.trace is None else item.trace.admit
        ledger, name = Accounts(item.run, lost=item.lost), admit.descriptor_hash
        own = ledger.of(name, admit)
        if own is not None:
            found.append((own, own if item.lost else ledger.planned(item.run.contributions[name])))
    return sorted(found, key=lambda pair: pair[0].order)


def _limits(accounts: Sequence[tuple[Account, Account]]) -> tuple[LimitUse, ...]:
    """Returns what is used of every limit, each run held against it as planned, with those before as they were spent."""
    spent = [own for own, _ in accounts]
    return tuple(
        LimitUse(
            limit,
            reached(limit, spent),
            max(reached(limit, (*spent[:place], planned)) for place, (_, planned) in enumerate(accounts)),
        )
        for limit in limits_over(spent)
    )


def _trace(export: OpenedExport, wanted: Wanted) -> Trace | None:
    try:
        return trace(export.run, export.given.leaves, wanted)
    except LedgerError as error:
        if error.code != "NOT_FOUND":
            raise
        return None


def _refuse(code: str, where: str, sentence: str) -> None:
    """Ends a trace at the first contradiction between exports: no figure over both would be worth anything."""
    if code == "EARLIER_BEHIND":
        raise LedgerBehind("BEHIND", f"{where}: {sentence}")
    raise LedgerForked("FORKED", f"{where}: {sentence}")


def _not_given(runs: Sequence[TracedRun]) -> tuple[Previous, ...]:
    """Returns the ledgers that these runs count and that are none of them."""
    here = {item.opened.given.digest for item in runs}
    cited = chain.from_iterable(item.run.header.previous for item in runs)
    return tuple({before.header_digest: before for before in cited if before.header_digest not in here}.values())


def _qualifiers(runs: Sequence[TracedRun], not_given: Sequence[Previous]) -> tuple[str, ...]:
    """Returns what weakens any run, without what having the exports of all counted runs, and of several, answers; one that is
    open and did not admit the contribution may still."""
    found = {word for item in runs for word in item.opened.report.qualifiers}
    over = [item.run.header.policy.corpus for item in runs if item.run.closed or item.lost or item.trace is not None]
    answered = ANSWERED if len({*over}) < len(over) else ANSWERED - {"LIMITS_ALONE"}
    return tuple(sorted(found if not_given or any(item.unnamed for item in runs) else found - answered))


def _unnamed(runs: Sequence[TracedRun]) -> Iterator[str]:
    for item in runs:
        if item.unnamed:
            stayed = f"whether it is one of the {item.unnamed} contributions that stayed in {item.origin}, and what it spent"
            yield f"{stayed} there: nothing says who they are, only a member record does"


def _unseen(result: Sequence[tuple[TracedRun, Trace]], not_given: Sequence[Previous]) -> tuple[str, ...]:
    others = ", ".join(before.origin for before in not_given if before.reason != TEXTS)
    budgets = ", ".join(before.origin for before in not_given if before.reason == TEXTS)
    texts = [f"{FOR_TEXTS} {budgets}"] if budgets else []
    secret = any(found.occurrences is None for _, found in result)
    runs = f"{OTHERS}, among them {others}" if others else OTHERS
    return (*([DRAWS] if secret else []), runs, *texts, ANEW, UNLOGGED, CLOCKS)


def _at_withdrawal(runs: Sequence[TracedRun], admit: Admit, delta: float | None) -> AtWithdrawal | None:
    """Returns what holds at the first signed withdrawal; None for a delta of None, a public class, leaves epsilon out."""
    signed = [(item, item.trace.signed) for item in runs if item.trace is not None and item.trace.signed is not None]
    if not signed:
        return None
    where, leaf = min(signed, key=lambda pair: pair[1].time)
    spendings = [own.spent for own, _ in _accounts([item for item in runs if item.lost], admit)]
    after = 0
    for item in runs:
        if item.trace is not None:
            spending, steps = _by(item, item.trace, leaf.time)
            spendings += [spending] if spending is not None and not item.lost else []
            after += steps
    epsilon = None if delta is None else composed(spendings, delta)
    return AtWithdrawal(where.origin, leaf, epsilon, after)


def _by(item: TracedRun, found: Trace, moment: int) -> tuple[Spending | None, int]:
    """Returns what was charged to a contribution in a run by a moment, None for nothing, and how many steps later."""
    name, run = found.admit.descriptor_hash, item.run
    first = next((window.seq for window in found.windows if window.time > moment), None)
    late = sum(window.n_steps for window in found.windows if first is not None and window.seq >= first)
    if first is not None:
        run = item.opened.given.run(first)
    contribution = run.contributions.get(name) or run.contributions.get(stand_in_name(found.admit.seq))
    if contribution is None or run.is_public(contribution):
        return None, late
    return of_run(run, contribution), late

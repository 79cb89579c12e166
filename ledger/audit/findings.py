"""Defines what an audit reports: verdicts and qualifiers in words, findings, rows, and leaves counted by kind.

Pages, JSON, summaries and exit codes take their words from here, and add none. docs/auditors.md has them as one table.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from attest.schema.cards import MOST, card, card_of
from attest.schema.rounding import at_most
from ledger.accountants.table import NOT_HERE
from ledger.leaves import HeaderBlock, Leaf
from ledger.views.geometry import GeometryFacts
from ledger.views.summary import ClassSummary, ReleaseRow

MAX_FINDINGS: Final = 200
"""An audit stops naming faults after this many; one is enough to fail."""

Report = Callable[[str, str, str], None]
"""Takes code, place and sentence of everything wrong."""

Verdict = Literal["FULL", "SUMMARISED", "TOLD", "SIGNED", "FAILED"]
"""From the strongest to the weakest. An audit of an export never says SIGNED, which is a word of releases."""


@dataclass(frozen=True, slots=True)
class Word:
    """Explains a word.

    Attributes:
        sentence: what it says, in full.
        remedy: what the reader can do about it.
        code: exit code of a command that ends with this verdict (`exit_code`); 0 for a qualifier, which decides none.
        brief: of a verdict what it says in plain words, of a qualifier what was not verified, for whoever reads one screen.
    """

    sentence: str
    remedy: str
    code: int = 0
    brief: str = ""

    _repr_html_ = card_of


VERDICTS: Final[dict[str, Word]] = {
    "FULL": Word(
        "nothing is wrong, and every figure was derived again from the export, signed attestations and the pinned keys",
        "read the qualifiers",
        brief="Nothing wrong was found in this record, and every figure was computed again from what was signed",
    ),
    "SUMMARISED": Word(
        "nothing is wrong, and part of the ledger was pruned: for that part the figures rest on the word of a quorum of the "
        "policy's auditors, which the notes name",
        "decide whether you trust these auditors, or ask for an export from before the leaves were pruned",
        brief="Nothing wrong was found in this record, but a part of it is gone: for that part auditors vouch",
    ),
    "TOLD": Word(
        "nothing is wrong, and the bounds of contributions are as told by the operator, not derived from signed attestations: "
        "every epsilon but that at the class preset rests on that word",
        "get an export with attestations and the registry of its contributors (--registry), or decide whether you trust the "
        "operator; a contributor holds its own ADMIT leaf (ledger prove) against what it signed",
        brief="Nothing wrong was found, but no contributor's signature was verified: the operator's word stands for them",
    ),
    "SIGNED": Word(
        "the signature holds, and there was no export to check anything else against: all figures are the signer's word",
        "get an export from the ledger's operator, and give it with --export",
        code=1,
        brief="The signature holds, and nothing behind it was checked",
    ),
    "FAILED": Word(
        "something is wrong, and the findings name it: no figure can be relied on",
        "ask the operator, and keep the export: it is the evidence",
        code=1,
        brief="Something is wrong with this record: rely on no figure of it",
    ),
}
"""Verdicts from the strongest to the weakest."""

UNREAD: Final = Word(
    "this machine lacks what computes the figures, so that nothing behind the header was checked: nothing is said for or "
    "against the ledger",
    "install what the finding names, from whom you trust, and audit again; until then rely on no figure",
    code=1,
    brief="This machine could not compute the figures: nothing is said for or against the record",
)
"""Explains an audit that FAILED for that alone."""

QUALIFIERS: Final[dict[str, Word]] = {
    "CLOCK_SET": Word(
        "a leaf set the ledger's clock back, so its times are not the order of what happened",
        "ask the operator why; the note names the leaf",
        brief="the order of times: the record's clock was set back",
    ),
    "CODE_BESIDE": Word(
        "files beside the weights can carry code for a loader to run, or name such code: what it makes of the weights has no "
        "epsilon",
        "read the files that the check names, or load the weights without running anything",
        brief="what code beside the weights makes of them",
    ),
    "DRAWS_TOLD": Word(
        "who took part in which step is the trainer's record, which no contributor signs and no order decides: an occurrence "
        "that was left out of it is in no epsilon, and where noise follows the draw, one that was put in lowers everybody's",
        "decide whether you trust the trainer's record, or ask the owner for a policy with a signed order of turns",
        brief="who took part in which step: the trainer's word",
    ),
    "EARLIER_APART": Word(
        "earlier runs share contributions and do not count each other: limits over runs hold only if neither was chosen by "
        "looking at the other's model",
        "ask the owner when and why each of them was planned",
        brief="limits over all runs: earlier runs do not count each other",
    ),
    "EARLIER_TOLD": Word(
        "what contributions spent in earlier runs, and whether they withdrew there, is the operator's word: exports of counted "
        "runs were not given, or nothing in one says any more who stayed",
        "give the exports of earlier runs with --earlier, from before admissions went where you have them",
        brief="what was spent in earlier runs: the operator's word",
    ),
    "FROZEN_TOLD": Word(
        "that what no class may touch stayed frozen is the operator's word: such blocks carry no noise",
        "check a release (dptrain release --check): it holds frozen parameters against what the header committed to",
        brief="that frozen parameters stayed as they were: the operator's word",
    ),
    "ISOLATION_WEAKENED": Word(
        "statement A (direct isolation) does not hold of this run, as the trainer recorded; no epsilon hangs on it",
        "read the reason in the note; rely on statement B alone",
        brief="that a class moves its own layers alone: here it may move others",
    ),
    "KEY_LOST": Word(
        "an earlier run ended with its key lost: what was charged to it since is in no leaf, so its whole plan is counted, and "
        "whoever has the key may have trained beyond that",
        "ask the owner what became of it",
        brief="what was charged to an earlier run since its key was lost",
    ),
    "KEY_REVOKED": Word(
        "windows were charged with contributions in the pool whose key was revoked by then, as the registry says; the operator "
        "may not have had that entry yet",
        "ask the operator when it learned of the revocation, and whether these contributions were withdrawn since",
        brief="that contributions under revoked keys were left out: some were not",
    ),
    "LIMITS_ALONE": Word(
        "limits of epsilon over all runs were held against this run and what it says was spent before, not against other runs",
        "give the exports of all other runs over the corpus with --earlier",
        brief="limits over all runs: other runs were not looked at",
    ),
    "NO_AUDITORS": Word(
        "the policy names no auditors and no pinned one has cosigned: nobody vouches for what the leaves say, nor, without "
        "witnesses, that everybody is shown this history",
        "compare the checkpoint with that of other readers, or ask the owner for a policy with auditors",
        brief="that others are shown the same record: no auditor vouches for it",
    ),
    "NO_QUORUM": Word(
        "fewer of the policy's auditors have cosigned than it asks for, so others may be shown another history",
        "ask the operator for cosignatures; --require-quorum makes it a condition",
        brief="that others are shown the same record: too few auditors signed it",
    ),
    "NO_WITNESS_QUORUM": Word(
        "fewer of the policy's witnesses have cosigned than it asks for, so others may be shown another history",
        "ask the operator to have the checkpoint witnessed; --require-quorum makes it a condition",
        brief="that others are shown the same record: too few witnesses signed it",
    ),
    "ONE_PARTY": Word(
        "one key signs the policy, every attestation and the ledger: one party holds all of it, and nobody else vouches for "
        "anything",
        "trust the figures as far as you trust that party; ask it for auditors who cosign",
        brief="anything beyond the word of one party, which holds every key",
    ),
    "OPEN": Word(
        "the run is not closed: more may be charged",
        "ask for a later export once it is closed",
        brief="what comes later: the run is not closed, and more may be spent",
    ),
    "PRUNED": Word(
        "leaves were pruned, and auditors vouch for what these said",
        "read in the notes who vouches, or ask for an export from before",
        brief="what the removed part of the record said: auditors vouch for it",
    ),
    "RELEASE_OLDER": Word(
        "contributions were withdrawn after the release, which cannot take that into account",
        "ask for a newer release",
        brief="that a release leaves out who withdrew since: it cannot",
    ),
    "UNADDRESSED": Word(
        "random numbers of the forward passes come from one generator for everybody drawn in a step, as the trainer recorded: "
        "who knows its seed may learn draws that the figures take for secret",
        "ask who could know the seed; where draws are known, epsilon is larger than stated",
        brief="that draws stay secret: who knows one seed may learn them",
    ),
    "UNCOMPARED": Word(
        "nothing says how large the ledger is at least: an export that was cut back to an earlier size would look the same",
        "ask for the ledger's size by another way than the export and give --min-size, or let "
        "'dptrain ledger verify --remember' keep the checkpoint for the next time",
        brief="that this is the newest record: an older one would look the same",
    ),
    "UNPINNED": Word(
        "the owner's key was not pinned: whose policy this is was read from the export itself",
        "get the corpus owner's key by another way, and give it with --owner-key",
        brief="whose policy this is: the audit was not given the owner's key",
    ),
    "UNPROBED": Word(
        "the start-up probes saw no gradient in some trained tensors, so they vouch for nothing there",
        "ask the trainer for a run whose probes reach these tensors",
        brief="the gradients of some trained tensors: the probes saw none",
    ),
    "WEIGHTS_NOT_TIED": Word(
        "a loader of these files is not shown to get every trained tensor of the run, bit for bit, and none in its place: "
        "others have no epsilon",
        "ask for the files as the run saved them",
        brief="that a loader gets the weights of this run, and no others",
    ),
    "WITHDRAWAL_UNENTERED": Word(
        "a signed withdrawal that was given is entered by no leaf of the export: what it names may still be drawn",
        "hand it to the operator, and ask for a later export",
        brief="that a withdrawal which was given was heeded: it is in no leaf",
    ),
    "WITHDRAWALS_TOLD": Word(
        "who withdrew, and for what reason, is the operator's word where no signed withdrawal was held against the leaf",
        "get the signed withdrawals, and give them with --withdrawals",
        brief="who withdrew, and why: the operator's word",
    ),
}
"""Qualifiers: each weakens what a reader may believe though nothing is wrong."""

BEYOND: Final = (
    "that the trainer did what it recorded: drew whom it says, clipped, and added the noise",
    "that nobody trained on the data outside of this ledger, or in a run that nobody gave",
    "that this is the newest state of the ledger, beyond what you remember of it",
    "that others are shown the same history, beyond the auditors and witnesses who cosigned",
    "that somebody who asked to be withdrawn was, while no WITHDRAW leaf says so",
    "that the model has the parameters that the header names: their names, order and coordinates, and which head, expert or "
    "adapter has them, are the operator's word",
    "that times are right: they are the operator's clock",
    "that randomness of the forward passes, isolation, probes, the generator of the noise, the precision, and ranks and frames "
    "of LoRA pairs are as recorded",
    "what contributions say, whose they are, and how many people stand behind them: no export has that",
    "that a file at hand is the model of this run: dptrain release --check compares it",
)
"""Facts that no audit can find in an export, whatever its verdict."""

WHERE_BEYOND: Final = "what no audit can find in an export: docs/auditors.md, What an audit cannot find"
"""The one line that points to the list."""


def weakest(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns the weakest of these verdicts: the one that a reader must not overlook."""
    return max(verdicts, key=get_args(Verdict).index)


def word_of(verdict: Verdict, codes: Iterable[str]) -> Word:
    """Returns what a verdict says and what its reader can do, given the codes of the findings."""
    found = set(codes)
    return UNREAD if found and found <= set(NOT_HERE) else VERDICTS[verdict]


def exit_code(verdict: Verdict, *, require_full: bool = False, signature_only: bool = False) -> int:
    """Returns the exit code of a command that says this verdict; `signature_only` lets SIGNED do, unless FULL is asked for."""
    if require_full:
        return int(verdict != "FULL")
    return 0 if signature_only and verdict == "SIGNED" else VERDICTS[verdict].code


def headline(verdict: Verdict, qualifiers: Iterable[str]) -> str:
    """Returns verdict and qualifiers in one line: ``TOLD (OPEN, UNPINNED)``; FAILED stands alone, whatever else is known."""
    words = ", ".join(qualifiers)
    return f"{verdict} ({words})" if words and verdict != "FAILED" else verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """Names something that is wrong. `where`: the file of the export, or ``seq N`` for the meaning of a leaf."""

    code: str
    where: str
    sentence: str

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class EpochRow:
    """Tells of one recorded epoch.

    Attributes:
        charged: steps charged so far, over all attempts.
        epsilons: largest epsilon per class, None for a public one.
        seq: position of its EPOCH leaf: a checkpoint of a larger size commits to it.
        active: contributions in the pool, per class.
        withdrawn: contributions withdrawn so far, per class.
        model_digest: hex of the digest of the model state.
    """

    number: int
    step: int
    charged: int
    epsilons: tuple[float | None, ...]
    seq: int
    time: int
    active: tuple[int, ...]
    withdrawn: tuple[int, ...]
    model_digest: str

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class Signer:
    """Names a pinned key whose signature on the checkpoint was verified.

    Attributes:
        time: POSIX seconds that a cosignature states; None for a plain signature, as the log's own is.
        counts: whether that time lies where it can (`ledger.replay.signer.Timeline.counts`); a cosignature that does not count
            is in no quorum. True of a plain signature, and where the audit broke off before it read the leaves.
    """

    name: str
    key_id: str
    time: int | None
    of_log: bool
    counts: bool = True

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class IgnoredLine:
    """Counts the signature lines of one key that is neither pinned, nor the ledger's, nor named by the policy: they count for
    nothing. `resembles`: verifier key of a known signer that has this name or this key id, not both; None without such. The
    line is then damaged, forged, or by another key of that signer."""

    name: str
    key_id: str
    lines: int
    resembles: str | None


@dataclass(frozen=True, slots=True)
class KindRow:
    """Counts the leaves of a kind."""

    kind: str
    count: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WithdrawalCount:
    """Counts withdrawals of a class by reason; the class is None where nothing was ever admitted."""

    class_name: str | None
    reason: str
    count: int

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class WithdrawalRow:
    """Tells of one withdrawal.

    Attributes:
        class_name: class of the contribution, None when no such contribution was ever admitted.
        steps: charged steps it was in the pool for, None like the class.
        epsilon: what it had spent and keeps, None like the class and for a public class.
    """

    seq: int
    time: int
    descriptor_hash: str
    reason: str
    class_name: str | None
    steps: int | None
    epsilon: float | None

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class WithdrawalEvidence:
    """Counts what became of the evidence that WITHDRAW leaves name, where signed withdrawals were given.

    Attributes:
        shown: how many of them were held against the withdrawal that they name, and hold.
        missing: positions of the others, at most `ledger.audit.withdrawals.MAX_MISSING` of them.
    """

    signed: int
    shown: int
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundsEvidence:
    """Counts what became of the attestations that ADMIT leaves quote.

    Attributes:
        held: how many of them hold against an attestation; under a key of the registry, where that is known.
        keys: under how many keys of the registry they verify.
        registry_root: hex of the root of the registry's last state; None where no registry is known.
    """

    admits: int
    pruned: int
    held: int
    attested: bool
    keys: int
    registry_root: str | None


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """Tells of one SUMMARY leaf.

    Attributes:
        vouchers: names of the policy's auditors who vouch for it, as far as the export shows.
        pruned: leaves of the range whose bodies are gone.
        hashes_gone: how many of these have no leaf hash either, but lie in subtrees of which the root is kept.
        whole: whether the export has every body that the summary speaks for, ADMIT leaves of earlier ranges among them to whose
            records it commits. Only then may an auditor who audited this export vouch for it.
    """

    seq: int
    first: int
    end: int
    vouchers: tuple[str, ...]
    pruned: int = 0
    hashes_gone: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class CitedRow:
    """Cites an earlier ledger as the header does (`ledger.leaves.Previous`)."""

    origin: str
    size: int
    root_hex: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClockRow:
    """Tells of one CLOCK leaf: the operator took back times that a wrong clock had put into the leaves before it."""

    seq: int
    before: int
    time: int
    reason: str

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Holds the result of an audit.

    Attributes:
        verdict: FULL, SUMMARISED, TOLD or FAILED (`ledger.audit.findings.VERDICTS`, `ledger.audit.verify_export`).
        qualifiers: what weakens it, as words of `ledger.audit.findings.QUALIFIERS`, sorted.
        notes: what a reader should know though nothing is wrong, the particulars of the qualifiers among it.
        origin: the ledger's origin, as signed; None when the checkpoint itself was refused, and so are the rest.
        now: what the auditor's clock said, POSIX seconds: times were held against it.
        began: time of leaf 0, POSIX seconds by the operator's clock; None where the leaves were not read.
        last_time: time of the last leaf, likewise.
        accountant: name, library and version that this audit computed with; a note says where the run recorded another.
        classes: per class, recomputed from the leaves.
        blocks: the noise schedule, derived from the signed policy and the stack that the header names.
        model_fingerprint: hex of the digest over names, shapes and types of the model's parameters: the operator's word.
        layers: layers of the stack, of all towers together, likewise.
        stack_parameters: parameters of that stack, whose names, order and coordinates are the operator's word.
        isolation: how statement A stands, in words: the trainer's word.
        randomness: whose the random numbers of a forward are, likewise (`ledger.leaves.header.RANDOMNESS`).
        unprobed: names of the trained tensors in whose gradient the start-up probes saw nothing, likewise.
        geometry: pairs of LoRA factors that move along tangent spaces, None without: which they are was derived, their ranks
            and frames are the trainer's word.
        multipliers: per block and class, the noise multiplier of the class's preset bounds on that block alone, as
            `ledger.views.summary.block_multipliers` defines it.
        noise_follows_draw: whether the noise of a step is what those drawn brought, rather than the schedule's.
        noise_phases: first step, factor on the schedule, and charged steps of each phase, where the noise varies over the run.
        owner_pinned: whether the owner's key was given by whoever audits, rather than read from the header.
        model_digest: hex of the model digest in the last epoch, None without one.
        signers: who signed the checkpoint, of the pinned keys, the ledger's own and the cosigners whom the policy names.
        ignored: signature lines by keys that nobody knows, below the checkpoint and below those that a pruned export keeps.
        log_keys: the ledger's verifier keys in the order in which they signed it, the current one last.
        auditors: verifier keys of the auditors whom the policy names.
        quorum: how many of them the policy asks for, None without auditors.
        quorum_met: whether as many have cosigned, None without auditors.
        witnesses: verifier keys of the witnesses whom the policy names.
        witness_quorum: how many of them the policy asks for, None without witnesses.
        witness_quorum_met: whether as many have cosigned, None without witnesses.
        withdrawals: the last ones, at most `ledger.audit.withdrawals.MAX_LISTED`.
        withdrawal_evidence: what became of their evidence, None where no signed withdrawals were given.
        bounds: what became of the attestations of the contributions; None where the leaves were not read.
        folded: number of ADMIT leaves that are gone of contributions that had not left when the run was closed.
        releases: the last of them, at most `ledger.views.summary.MAX_LISTED`, with what they cost each class.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    qualifiers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    origin: str | None = None
    size: int | None = None
    root_hex: str | None = None
    now: int | None = None
    began: int | None = None
    last_time: int | None = None
    clock_sets: tuple[ClockRow, ...] = ()
    finished: bool = False
    corpus: str | None = None
    cited: tuple[CitedRow, ...] = ()
    delta: float | None = None
    accountant: str | None = None
    steps: int | None = None
    charged: int = 0
    attempts: int = 0
    classes: tuple[ClassSummary, ...] = ()
    epochs: tuple[EpochRow, ...] = ()
    blocks: tuple[HeaderBlock, ...] = ()
    model_fingerprint: str | None = None
    layers: int = 0
    stack_parameters: int = 0
    isolation: str | None = None
    randomness: str | None = None
    unprobed: tuple[str, ...] = ()
    geometry: GeometryFacts | None = None
    multipliers: tuple[tuple[float | None, ...], ...] = ()
    noise_follows_draw: bool = False
    noise_phases: tuple[tuple[int, float, int], ...] = ()
    owner: str | None = None
    owner_pinned: bool = False
    kinds: tuple[KindRow, ...] = ()
    model_digest: str | None = None
    signers: tuple[Signer, ...] = ()
    ignored: tuple[IgnoredLine, ...] = ()
    log_keys: tuple[str, ...] = ()
    auditors: tuple[str, ...] = ()
    quorum: int | None = None
    quorum_met: bool | None = None
    witnesses: tuple[str, ...] = ()
    witness_quorum: int | None = None
    witness_quorum_met: bool | None = None
    withdrawal_counts: tuple[WithdrawalCount, ...] = ()
    withdrawals: tuple[WithdrawalRow, ...] = ()
    withdrawal_evidence: WithdrawalEvidence | None = None
    bounds: BoundsEvidence | None = None
    summaries: tuple[SummaryRow, ...] = ()
    folded: int = 0
    release_count: int = 0
    releases: tuple[ReleaseRow, ...] = ()

    def _repr_html_(self) -> str:
        word = word_of(self.verdict, (one.code for one in self.findings))
        rows: list[tuple[str, Any]] = [(headline(self.verdict, self.qualifiers), word.brief or word.sentence)]
        rows += [(one.code, one.sentence) for one in self.findings[:MOST]]
        rows += [(name, f"not verified: {QUALIFIERS[name].brief}") for name in self.qualifiers]
        if self.verdict != "FAILED":  # nothing bounds what a record spent in which something is wrong
            rows += [(f"class {one.name}", self._spent(one)) for one in self.classes[:MOST]]
        if self.steps is not None:
            rows.append(("steps", f"{self.charged:,} charged of {self.steps:,}, {'closed' if self.finished else 'open'}"))
        rows += [("ledger", self.origin), ("leaves", self.size), ("owner's key given", self.owner_pinned)]
        rows.append(("more", "findings, notes, epochs, blocks, releases and others are attributes"))
        return card(type(self).__name__, rows)

    def _spent(self, one: ClassSummary) -> str:
        """Says the epsilon of a class as far as signatures reach: that of its preset where bounds are the operator's word."""
        if one.public or one.epsilon is None:
            return f"{one.active:,} contributions, {'public: no promise' if one.public else 'nothing charged'}"
        told = one.epsilon_preset is not None
        most = max(one.epsilon, one.epsilon_preset or 0.0)
        replaced = "" if told or one.epsilon_replace is None else f" ({at_most(one.epsilon_replace)} replaced)"
        return f"{one.active:,} contributions, epsilon at most {at_most(most)}{replaced} at delta {self.delta}"

    def to_json(self) -> dict[str, Any]:
        """Returns a form that ``json.dumps`` takes."""
        return asdict(self)


class Kinds:
    """Takes every leaf of a run in order, and keeps a row per kind."""

    def __init__(self, header: Leaf) -> None:
        self._rows: dict[type, tuple[int, int, int]] = {}
        self.see(header)

    def see(self, leaf: Leaf) -> None:
        """Takes the next leaf."""
        count, first, _ = self._rows.get(type(leaf), (0, leaf.seq, 0))
        self._rows[type(leaf)] = count + 1, first, leaf.seq

    def rows(self) -> tuple[KindRow, ...]:
        """Returns the kinds in the order in which they first came."""
        return tuple(KindRow(kind.__name__.upper(), *row) for kind, row in self._rows.items())


def count_of(rows: Iterable[KindRow], kind: str) -> int:
    """Returns how many leaves of a kind there are."""
    return next((row.count for row in rows if row.kind == kind), 0)

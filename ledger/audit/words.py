"""The words in which an audit speaks: verdicts, qualifiers, and what nobody can find in an export.

Pages, JSON, summaries and exit codes take their words from here, and add none. docs/auditors.md has them as one table.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

Verdict = Literal["FULL", "SUMMARISED", "TOLD", "SIGNED", "FAILED"]
"""From the strongest to the weakest. An audit of an export never says SIGNED, which is a word of releases."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a word means.

    Attributes:
        sentence: what it says, without a full stop.
        remedy: what the reader can do about it.
        code: exit code of a command that ends with this verdict (`exit_code`); 0 for a qualifier, which decides none.
    """

    sentence: str
    remedy: str
    code: int = 0


VERDICTS: Final[dict[str, Word]] = {
    "FULL": Word(
        "nothing is wrong, and every figure was derived again from the export, signed attestations and the pinned keys",
        "read the qualifiers",
    ),
    "SUMMARISED": Word(
        "nothing is wrong, and part of the ledger was pruned: for that part the figures rest on the word of a quorum of the "
        "policy's auditors, which the notes name",
        "decide whether you trust these auditors, or ask for an export from before the leaves were pruned",
    ),
    "TOLD": Word(
        "nothing is wrong, and the bounds of contributions are as told by the operator, not derived from signed attestations: "
        "every epsilon but that at the class preset rests on that word",
        "get an export with attestations and the registry of its contributors (--registry), or decide whether you trust the "
        "operator; a contributor holds its own ADMIT leaf (ledger prove) against what it signed",
    ),
    "SIGNED": Word(
        "the signature holds, and there was no export to check anything else against: all figures are the signer's word",
        "get an export from the ledger's operator, and give it with --export",
        code=1,
    ),
    "FAILED": Word(
        "something is wrong, and the findings name it: no figure can be relied on",
        "ask the operator, and keep the export: it is the evidence",
        code=1,
    ),
}
"""Verdicts from the strongest to the weakest."""

QUALIFIERS: Final[dict[str, Word]] = {
    "CLOCK_SET": Word(
        "a leaf set the ledger's clock back, so its times are not the order of what happened",
        "ask the operator why; the note names the leaf",
    ),
    "CODE_BESIDE": Word(
        "files beside the weights can carry code for a loader to run, or name such code: what it makes of the weights has no "
        "epsilon",
        "read the files that the check names, or load the weights without running anything",
    ),
    "DRAWS_TOLD": Word(
        "who took part in which step is the trainer's record, which no contributor signs and no order decides: an occurrence "
        "that was left out of it is in no epsilon, and where noise follows the draw, one that was put in lowers everybody's",
        "decide whether you trust the trainer's record, or ask the owner for a policy with a signed order of turns",
    ),
    "EARLIER_APART": Word(
        "earlier runs share contributions and do not count each other: limits over runs hold only if neither was chosen by "
        "looking at the other's model",
        "ask the owner when and why each of them was planned",
    ),
    "EARLIER_TOLD": Word(
        "what contributions spent in earlier runs, and whether they withdrew there, is the operator's word: exports of counted "
        "runs were not given, or nothing in one says any more who stayed",
        "give the exports of earlier runs with --earlier, from before admissions went where you have them",
    ),
    "FROZEN_TOLD": Word(
        "that what no class may touch stayed frozen is the operator's word: such blocks carry no noise",
        "check a release (dptrain release --check): it holds frozen parameters against what the header committed to",
    ),
    "ISOLATION_WEAKENED": Word(
        "statement A (direct isolation) does not hold of this run, as the trainer recorded; no epsilon hangs on it",
        "read the reason in the note; rely on statement B alone",
    ),
    "KEY_LOST": Word(
        "an earlier run ended with its key lost: what was charged to it since is in no leaf, so its whole plan is counted, and "
        "whoever has the key may have trained beyond that",
        "ask the owner what became of it",
    ),
    "KEY_REVOKED": Word(
        "windows were charged with contributions in the pool whose key was revoked by then, as the registry says; the operator "
        "may not have had that entry yet",
        "ask the operator when it learned of the revocation, and whether these contributions were withdrawn since",
    ),
    "LIMITS_ALONE": Word(
        "limits of epsilon over all runs were held against this run and what it says was spent before, not against other runs",
        "give the exports of all other runs over the corpus with --earlier",
    ),
    "NO_AUDITORS": Word(
        "the policy names no auditors and no pinned one has cosigned: nobody vouches for what the leaves say, nor, without "
        "witnesses, that everybody is shown this history",
        "compare the checkpoint with that of other readers, or ask the owner for a policy with auditors",
    ),
    "NO_QUORUM": Word(
        "fewer of the policy's auditors have cosigned than it asks for, so others may be shown another history",
        "ask the operator for cosignatures; --require-quorum makes it a condition",
    ),
    "NO_WITNESS_QUORUM": Word(
        "fewer of the policy's witnesses have cosigned than it asks for, so others may be shown another history",
        "ask the operator to have the checkpoint witnessed; --require-quorum makes it a condition",
    ),
    "OPEN": Word("the run is not closed: more may be charged", "ask for a later export once it is closed"),
    "PRUNED": Word(
        "leaves were pruned, and auditors vouch for what these said",
        "read in the notes who vouches, or ask for an export from before",
    ),
    "RELEASE_OLDER": Word(
        "contributions were withdrawn after the release, which cannot take that into account",
        "ask for a newer release",
    ),
    "UNADDRESSED": Word(
        "random numbers of the forward passes come from one generator for everybody drawn in a step, as the trainer recorded: "
        "who knows its seed may learn draws that the figures take for secret",
        "ask who could know the seed; where draws are known, epsilon is larger than stated",
    ),
    "UNCOMPARED": Word(
        "nothing says how large the ledger is at least: an export that was cut back to an earlier size would look the same",
        "give --min-size, or let --remember keep the checkpoint for the next time",
    ),
    "UNPINNED": Word(
        "the owner's key was not pinned: whose policy this is was read from the export itself",
        "get the corpus owner's key by another way, and give it with --owner-key",
    ),
    "UNPROBED": Word(
        "the start-up probes saw no gradient in some trained tensors, so they vouch for nothing there",
        "ask the trainer for a run whose probes reach these tensors",
    ),
    "WEIGHTS_NOT_TIED": Word(
        "a loader of these files is not shown to get every trained tensor of the run, bit for bit, and none in its place: "
        "others have no epsilon",
        "ask for the files as the run saved them",
    ),
    "WITHDRAWAL_UNENTERED": Word(
        "a signed withdrawal that was given is entered by no leaf of the export: what it names may still be drawn",
        "hand it to the operator, and ask for a later export",
    ),
    "WITHDRAWALS_TOLD": Word(
        "who withdrew, and for what reason, is the operator's word where no signed withdrawal was held against the leaf",
        "get the signed withdrawals, and give them with --withdrawals",
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
    "that randomness of the forward passes, isolation, probes, the generator of the noise and the precision are as recorded",
    "what contributions say, whose they are, and how many people stand behind them: no export has that",
    "that a file at hand is the model of this run: dptrain release --check compares it",
)
"""What no audit can find in an export: with every verdict, FULL too."""

WHERE_BEYOND: Final = "what no audit can find in an export: docs/auditors.md, What an audit cannot find"
"""The one line that points to the list."""


def weakest(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns the weakest of these verdicts: the one that a reader must not overlook."""
    return max(verdicts, key=get_args(Verdict).index)


def exit_code(verdict: Verdict, *, require_full: bool = False, signature_only: bool = False) -> int:
    """Returns the exit code of a command that says this verdict.

    Args:
        verdict: what the audit, or the check of a release, says.
        require_full: whether anything but FULL is a failure.
        signature_only: whether SIGNED will do, unless FULL is asked for.
    """
    if require_full:
        return int(verdict != "FULL")
    return 0 if signature_only and verdict == "SIGNED" else VERDICTS[verdict].code


def headline(verdict: Verdict, qualifiers: Iterable[str]) -> str:
    """Returns verdict and qualifiers in one line: ``TOLD (OPEN, UNPINNED)``; FAILED stands alone, whatever else is known."""
    words = ", ".join(qualifiers)
    return f"{verdict} ({words})" if words and verdict != "FAILED" else verdict

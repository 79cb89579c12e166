"""Reads exports of budget logs as runs count them: audited first, then with all that their rules allow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ledger.audit.findings import Finding
from ledger.audit.given import read_leaves, require_audited
from ledger.audit.texts import GivenTexts
from ledger.budget.audit.read import read_texts
from ledger.budget.audit.report import BudgetReport
from ledger.budget.audit.verify import verify_budget
from ledger.errors import LeafRefused, LedgerBehind, LedgerError, LedgerForked
from ledger.leaves import Previous
from ledger.replay.earlier_texts import EarlierTexts


def given_texts(path: str | Path, keys: Sequence[str], **asked: Any) -> GivenTexts:
    """Audits an export of a budget log, and returns it as `ledger.audit.verify_export` holds a run against it.

    Args:
        keys: verifier keys of the log. asked: as of `verify_budget`.

    Returns:
        The log with its report. Bad input never raises: the report is FAILED then, and nothing was read.
    """
    report = verify_budget(path, keys, **asked)
    if report.verdict == "FAILED":
        return GivenTexts(Path(path), report, None)
    try:
        leaves, _ = read_leaves(Path(path))
        require_audited(Path(path), leaves, report)
        return GivenTexts(Path(path), report, read_texts(leaves))
    except LedgerError as error:
        findings = (Finding(error.code, str(path), error.sentence),)
        return GivenTexts(Path(path), BudgetReport(verdict="FAILED", findings=findings, now=report.now), None)


def earlier_texts(
    path: str | Path, keys: Sequence[str], *, counted: Sequence[Previous] = (), **asked: Any
) -> EarlierTexts:
    """Verifies an export of a budget log and returns it as a run counts it, at its whole size.

    Args:
        keys: as of `given_texts`. asked: likewise. counted: how a header cites ledgers, perhaps this one.

    Raises:
        LeafRefused: code EARLIER, the audit FAILED; RULE, there are no rules to count by.
        LedgerBehind, LedgerForked: it is shorter than cited, or another history.
    """
    given = given_texts(path, keys, **asked)
    if given.read is None:
        found = given.report.findings[0]
        raise LeafRefused("EARLIER", f"the budget log {path} is FAILED: {found.where}: {found.sentence}")
    leaves = given.read.leaves
    require_counted(given.read.texts, counted, leaves.root_at, str(path))
    return given.read.texts


def require_counted(texts: EarlierTexts, counted: Sequence[Previous], root_at: Any, shown: str) -> None:
    """Holds a log against how a header cites it, if it does, and wants rules by which it can be counted.

    Args:
        root_at: gives the root over the first leaves of the log. shown: how messages name it.

    Raises:
        LeafRefused: code RULE. LedgerBehind, LedgerForked: it is shorter than cited, or another history.
    """
    if not texts.allowed:
        sentence = f"{shown} is a budget log without rules of generation: its contributions are its operator's own records"
        raise LeafRefused("RULE", f"{sentence}, and nothing of them can be counted in a run; do not name it")
    for cited in counted:
        if cited.header_digest != texts.cited.header_digest:
            continue
        if texts.cited.size < cited.size:
            raise LedgerBehind("BEHIND", f"{cited.size} leaves of {cited.origin} were counted, {shown} has {texts.cited.size}")
        if root_at(cited.size) != cited.root:
            raise LedgerForked("FORKED", f"the first {cited.size} leaves of {shown} are not those that were counted")

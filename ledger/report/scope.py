"""What the audit verified and where in the ledger that stands; and what nobody who has only the ledger can know."""

from ledger.audit import AuditReport
from ledger.audit.kinds import count_of
from ledger.audit.words import BEYOND
from ledger.report.markup import Html, details, section, soft, table, text
from ledger.report.verdict import fact_list


def scope(report: AuditReport) -> str:
    """Returns the claims that were checked, each with its leaves, and what was not checked; nothing of an audit that failed."""
    if report.verdict == "FAILED" or not report.kinds:
        return ""
    kinds = ((row.kind, row.count, row.first, row.last) for row in report.kinds)
    listed = table("kinds-c", "Leaves of the ledger by kind", ("kind", "leaves", "first", "last"), kinds)
    claims = [(claim, Html(f"{text(how)}<small>{text(leaves)}</small>")) for claim, leaves, how in _claims(report)]
    return section(
        "scope",
        "What was verified, and what was not",
        fact_list(claims, "facts claims"),
        details("Where these leaves stand", listed),
        "<h3>Not verified</h3>",
        soft("Beside the words that weaken the verdict, no audit can find in an export:"),
        f"<ul>{''.join(f'<li>{text(sentence)}</li>' for sentence in BEYOND)}</ul>",
    )


def _claims(report: AuditReport) -> list[tuple[str, str, str]]:
    """What was claimed, the leaves that say it, and how it was checked."""

    def leaves(*kinds: str) -> str:
        there = [f"{count:,} {kind}" for kind in kinds if (count := count_of(report.kinds, kind))]
        return f"leaves: {', '.join(there) or 'none'}"

    keys = " and ".join(f"{signer.name}, key id {signer.key_id}" for signer in report.signers if signer.of_log)
    owner = (
        "signed by the owner's key that was pinned"
        if report.owner_pinned
        else f"signed by the key that it names for {report.owner}"
    )
    found = [
        (
            "Nothing was changed since it was signed",
            _all_leaves(report),
            f"hashed to the root, signed by {keys}",
        ),
        ("The policy is the corpus owner's", "leaf 0, HEADER", owner),
        (
            "Noise on every layer that a class may touch is what the policy demands, unless the layer is told to be frozen",
            "leaf 0, HEADER",
            "blocks and noise derived again from the policy and the stack that the header names",
        ),
        (
            "Every step was charged, over the contributions of its moment",
            leaves("ADMIT", "CHARGE", "DRAW", "SETTLE", "RESUME"),
            "windows tile the run within its horizon; pools and noise streams compared",
        ),
        ("Every ε is at least what was spent", leaves("SPEND", "EPOCH"), f"computed again with {report.accountant}"),
        ("Who withdrew was drawn no more", leaves("WITHDRAW"), "gone from the pool of every later charge"),
    ]
    if report.bounds is not None and report.verdict in ("FULL", "SUMMARISED"):
        how = f"{report.bounds.held:,} attestations verify under {report.bounds.keys:,} keys of the owner's registry and say so"
        if not report.bounds.admits:
            how = "the auditors who vouch for what was pruned had the attestations, and held each leaf against its own"
        found.append(("Bounds and limits are what each contributor signed", leaves("ADMIT"), how))
    optional = (
        ("Releases cite this ledger as it was", "RELEASE", "root and withdrawals of their moment computed again"),
        ("Summaries say what their ranges said", "SUMMARY", _of_summaries(report)),
        ("The ledger's key was handed over by its holder", "KEY", "signed by the old key and by the new one"),
        ("The run is over", "CLOSE", "nothing is charged behind it"),
    )
    return found + [(claim, leaves(kind), how) for claim, kind, how in optional if count_of(report.kinds, kind)]


def _all_leaves(report: AuditReport) -> str:
    gone = sum(row.pruned for row in report.summaries)
    return f"all {report.size or 0:,} leaves{f', {gone:,} of them by their hash alone' if gone else ''}"


def _of_summaries(report: AuditReport) -> str:
    if any(row.pruned for row in report.summaries):
        return "computed again from what stays; of what is gone, auditors vouch"
    return "every figure computed again from the leaves"
